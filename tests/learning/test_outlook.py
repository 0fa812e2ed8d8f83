"""What a run says of its end: by its speed since it was started or resumed, whatever it was before."""

from dragoman.config import TrainingConfig
from dragoman.training.outlook import Outlook
from dragoman.training.state import Progress

SLOW = Progress(step=100, seconds=10_000.0)  # 100 seconds a step, on another machine or with a night between
NOW = Progress(step=150, seconds=10_025.0)  # and half a second here


def test_the_time_to_the_end_of_a_resumed_run_is_told_by_its_speed_here() -> None:
    assert Outlook(TrainingConfig(max_steps=1000), SLOW).seconds_left(NOW) == 850 * 0.5


def test_the_minutes_end_a_run_before_its_steps() -> None:
    assert Outlook(TrainingConfig(max_steps=1000, max_minutes=168), SLOW).seconds_left(NOW) == 168 * 60 - 10_025
    assert Outlook(TrainingConfig(max_steps=1000, max_minutes=100), SLOW).seconds_left(NOW) == 0


def test_where_the_minutes_end_a_resumed_run_is_foretold_once_by_its_speed_here() -> None:
    training = TrainingConfig(max_steps=1000, warmup_steps=400, schedule="cosine", learning_rate=1e-3, max_minutes=168)
    outlook = Outlook(training, SLOW)
    sentences = outlook.foretold(NOW)  # 55 seconds are left, for 110 steps
    assert [" about step 260, where" in sentences[0], "are over at about step 260;" in sentences[1], len(sentences)] == [True, True, 2]
    assert outlook.foretold(NOW) == []


def test_a_run_that_its_minutes_do_not_cut_short_is_told_nothing() -> None:
    training = TrainingConfig(max_steps=250, warmup_steps=200, schedule="cosine", learning_rate=1e-3, max_minutes=168)
    assert Outlook(training, SLOW).foretold(NOW) == []
