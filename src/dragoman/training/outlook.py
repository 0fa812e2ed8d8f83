"""Where a run will end, and what the learning rate will be there: said while something can still be changed (Section 5.3)."""

from pathlib import Path

from dragoman.bundle import list_checkpoints
from dragoman.config import TrainingConfig
from dragoman.training.state import Progress

_ENOUGH = 0.1  # of the minutes, after which their end is foretold


def at_the_end(training: TrainingConfig) -> list[str]:
    """A warning of a run whose training.max_steps lie within its warm-up."""
    return _warnings(_rising(training, training.max_steps))


def cut_short(training: TrainingConfig, step: int, *, by_minutes: bool, about: bool = False) -> list[str]:
    """Warnings of a run that ends at a step before training.max_steps, by its minutes or its patience, without what `at_the_end` says.

    ``about`` says that the step is an estimate.
    """
    rising = [] if at_the_end(training) else _rising(training, step, about=about)
    return _warnings(rising + (_fallen_short(training, step, about=about) if by_minutes else []))


def looking_back(training: TrainingConfig, step: int, *, by_minutes: bool) -> list[str]:
    """The sentences of those warnings for a run that has ended at a step, whatever ended it."""
    return _rising(training, step) + (_fallen_short(training, step) if by_minutes else [])


def averaged_early(training: TrainingConfig, first: int, newest: Path) -> list[str]:
    """What to know of a mean of checkpoints the first of which, at a step, lies within the warm-up; ``newest`` is the last of them."""
    if first >= training.warmup_steps:
        return []
    return [
        f"the checkpoints begin at step {first:,}, where the learning rate is still rising, as it does to step {training.warmup_steps:,} "
        f"(training.warmup_steps), so their mean may be worse than {newest}: evaluate both, or average later ones"
    ]


def _warnings(sentences: list[str]) -> list[str]:
    return [f"warning: {sentence}" for sentence in sentences]


def _rising(training: TrainingConfig, step: int, *, about: bool = False) -> list[str]:
    """Every schedule begins with the warm-up."""
    if step >= training.warmup_steps:
        return []
    fewer = float(f"{max(step / 4, 1):.0e}")  # one digit and noughts
    return [
        f"the run ends at {_at(step, about=about)}, where the learning rate is still rising, as it does to step {training.warmup_steps:,} "
        "(training.warmup_steps), so the model learns little: train it longer, or begin again with fewer such steps "
        f"(--set training.warmup_steps={fewer:.0f})"
    ]


def _fallen_short(training: TrainingConfig, step: int, *, about: bool = False) -> list[str]:
    if step >= training.max_steps or training.schedule not in ("cosine", "linear"):
        return []
    return [
        f"training.schedule={training.schedule} falls to {training.minimum_rate:g} at step {training.max_steps:,} (training.max_steps), "
        f"but the minutes of training.max_minutes={training.max_minutes:g} are over at {_at(step, about=about)}; choose max_steps to fit"
    ]


def _at(step: int, *, about: bool) -> str:
    return f"{'about ' if about else ''}step {step:,}"


class Outlook:
    """What is ahead of a run, by its speed since it was started or resumed: before that it may have been on another machine, or asleep.

    ``told`` says whether it has told what the minutes cut off.
    """

    def __init__(self, training: TrainingConfig, progress: Progress) -> None:
        """``progress`` is where the run is started or resumed."""
        self.training, self._step, self._seconds, self.told = training, progress.step, progress.seconds, False

    def seconds_left(self, progress: Progress) -> float:
        """To the end of the run."""
        left = (self.training.max_steps - progress.step) / self._speed(progress)
        if self.training.max_minutes:
            left = min(left, 60 * self.training.max_minutes - progress.seconds)
        return max(left, 0.0)

    def foretold(self, progress: Progress) -> list[str]:
        """The warnings of a run that its minutes will cut short: once, and nothing before a tenth of those that were left when it began."""
        most = 60 * (self.training.max_minutes or 0.0)
        if self.told or progress.seconds >= most or progress.seconds - self._seconds < _ENOUGH * (most - self._seconds):
            return []
        reached = progress.step + int((most - progress.seconds) * self._speed(progress))
        sentences = cut_short(self.training, reached, by_minutes=True, about=True) if reached < self.training.max_steps else []
        self.told = bool(sentences)
        return sentences

    def _speed(self, progress: Progress) -> float:
        """Steps a second."""
        return (progress.step - self._step) / (progress.seconds - self._seconds)


def when_diverged(training: TrainingConfig, run: Path) -> str:
    """What to do when the loss of a run is no number any more: to go on from its newest checkpoint, or to start again where it has none."""
    rate = "training.factor" if training.schedule == "paper" else "training.learning_rate"
    again = "continue with --resume" if list_checkpoints(run) else "start a new run with another --out, for this one has no checkpoint yet"
    clip = f"lower training.clip_norm={training.clip_norm:g}" if training.clip_norm else "set training.clip_norm"
    return f"lower {rate} or {clip}, then {again}"
