"""Where a run will end, and what the learning rate will be there: said while something can still be changed (Section 5.3)."""

from pathlib import Path

from dragoman.bundle import list_checkpoints
from dragoman.config import TrainingConfig
from dragoman.training.state import Progress

_ENOUGH = 0.1  # of the minutes, after which their end is foretold


def at_the_end(training: TrainingConfig) -> list[str]:
    """A warning of a run whose training.max_steps lie within its warm-up."""
    return _rising(training, training.max_steps, f"step {training.max_steps:,}")


def cut_short(training: TrainingConfig, step: int, *, by_minutes: bool, about: bool = False) -> list[str]:
    """Warnings of a run that ends at a step before training.max_steps, by its minutes or its patience, without what `at_the_end` says.

    ``about`` says that the step is an estimate.
    """
    at = f"{'about ' if about else ''}step {step:,}"
    found = [] if at_the_end(training) else _rising(training, step, at)
    if by_minutes and step < training.max_steps and training.schedule in ("cosine", "linear"):
        found.append(
            f"warning: training.schedule={training.schedule} falls to {training.minimum_rate:g} at step {training.max_steps:,} "
            f"(training.max_steps), but the minutes of training.max_minutes={training.max_minutes:g} are over at {at}; choose max_steps "
            "to fit"
        )
    return found


def _rising(training: TrainingConfig, step: int, at: str) -> list[str]:
    if step >= training.warmup_steps:
        return []
    return [
        f"warning: the run ends at {at}, where the learning rate is still rising, as it does to step {training.warmup_steps:,} "
        "(training.warmup_steps), so the model learns little: train it longer, or begin again with fewer such steps"
    ]


def foretold(training: TrainingConfig, progress: Progress) -> list[str]:
    """The warnings of a run that its minutes will cut short, from its speed so far; nothing before a tenth of them."""
    if not training.max_minutes or not _ENOUGH <= progress.seconds / (60 * training.max_minutes) < 1:
        return []
    reached = int(60 * training.max_minutes * progress.step / progress.seconds)
    return cut_short(training, reached, by_minutes=True, about=True) if reached < training.max_steps else []


def seconds_left(training: TrainingConfig, progress: Progress) -> float:
    """To the end of the run, by its speed so far."""
    left = (training.max_steps - progress.step) * progress.seconds / progress.step
    if training.max_minutes:
        left = min(left, 60 * training.max_minutes - progress.seconds)
    return max(left, 0.0)


def when_diverged(training: TrainingConfig, run: Path) -> str:
    """What to do when the loss of a run is no number any more: to go on from its newest checkpoint, or to start again where it has none."""
    rate = "training.factor" if training.schedule == "paper" else "training.learning_rate"
    again = "continue with --resume" if list_checkpoints(run) else "start a new run with another --out, for this one has no checkpoint yet"
    clip = f"lower training.clip_norm={training.clip_norm:g}" if training.clip_norm else "set training.clip_norm"
    return f"lower {rate} or {clip}, then {again}"
