"""What a run says of its end: by its speed since it was started or resumed, whatever it was before."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.config import TrainingConfig
from dragoman.training.outlook import Outlook, at_the_end, averaged_early, looking_back
from dragoman.training.state import Progress
from training_runs import make_trainer, toy_pairs

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
    rising, short = sentences
    assert " about step 260, where" in rising
    assert "are over at about step 260;" in short
    assert outlook.foretold(NOW) == []


def test_nothing_is_foretold_before_a_tenth_of_the_minutes_that_were_left_has_shown_the_speed() -> None:
    training = TrainingConfig(max_steps=1000, warmup_steps=400, schedule="cosine", learning_rate=1e-3, max_minutes=168)
    outlook = Outlook(training, SLOW)  # 80 seconds are left
    assert outlook.foretold(Progress(step=101, seconds=10_007.0)) == []
    assert len(outlook.foretold(Progress(step=120, seconds=10_009.0))) == 2


def test_a_run_that_its_minutes_do_not_cut_short_is_told_nothing() -> None:
    training = TrainingConfig(max_steps=250, warmup_steps=200, schedule="cosine", learning_rate=1e-3, max_minutes=168)
    assert Outlook(training, SLOW).foretold(NOW) == []


@pytest.mark.parametrize(
    ("steps", "fewer"), [(1, 1), (5, 1), (39, 10), (260, 60), (300, 80), (1000, 200), (1100, 300), (3500, 900), (3999, 1000)]
)
def test_a_run_that_is_too_short_is_given_a_warm_up_that_fits(steps: int, fewer: int) -> None:
    """A quarter of its steps, one digit and noughts."""
    (sentence,) = at_the_end(TrainingConfig(max_steps=steps))
    assert sentence.endswith(f"or begin again with fewer such steps (--set training.warmup_steps={fewer})")
    assert at_the_end(TrainingConfig(max_steps=steps, warmup_steps=fewer)) == []


@pytest.mark.parametrize("schedule", ["paper", "inverse-sqrt", "cosine", "linear", "constant"])
def test_what_was_too_early_is_told_of_a_run_that_has_ended(schedule: Any) -> None:
    """Of one that all its steps ended as well, and whichever schedule it has."""
    training = TrainingConfig(max_steps=500, max_minutes=3, warmup_steps=600, schedule=schedule)
    for step in (300, 500):
        (sentence,) = looking_back(training, step, by_minutes=False)
        assert sentence.startswith(f"the run ends at step {step}, where the learning rate is still rising, as it does to step 600")
    falls = [
        sentence for sentence in looking_back(training, 300, by_minutes=True) if "training.max_minutes=3 are over at step 300" in sentence
    ]
    assert len(falls) == (schedule in ("cosine", "linear"))
    assert looking_back(training, 600, by_minutes=True) == []


def test_a_mean_is_early_when_its_first_checkpoint_is() -> None:
    training, newest = TrainingConfig(warmup_steps=600), Path("run/checkpoints/step-000900")
    assert averaged_early(training, 600, newest) == []
    (sentence,) = averaged_early(training, 500, newest)
    assert "begin at step 500, where the learning rate is still rising, as it does to step 600 (training.warmup_steps)" in sentence
    assert f"may be worse than {newest}: " in sentence


def test_an_evaluation_that_was_owed_is_no_part_of_the_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(4))
    trainer.progress.owed = True

    def judged(stop: str) -> str:
        trainer.progress.seconds += 1000
        return "interrupted"

    monkeypatch.setattr(trainer, "_judged", judged)
    assert trainer.train() == "interrupted"
    assert trainer.outlook.seconds_left(Progress(step=1, seconds=1000.5)) == (trainer.settings.max_steps - 1) * 0.5


def test_the_time_before_a_run_was_resumed_counts_towards_its_minutes(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(4), max_minutes=10.0)
    trainer.progress.seconds = 599.999
    assert trainer.train() == "max_minutes"
    assert trainer.progress.step == 1
