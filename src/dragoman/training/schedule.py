"""Learning rates over steps (Section 5.3). A step is counted from 1, and its rate is set before its update."""

import math
from collections.abc import Callable

from dragoman.config import TrainingConfig


def paper_rate(step: int, *, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor · d_model^-½ · min(step^-½, step · warmup_steps^-1.5), equation (3)."""
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))  # §(3) rate


def inverse_sqrt_rate(step: int, *, peak: float, warmup_steps: int) -> float:
    """Equation (3) with its greatest value given: linear to ``peak`` at ``warmup_steps``, then peak · √(warmup_steps / step)."""
    return peak * min(step / warmup_steps, math.sqrt(warmup_steps / step))


def cosine_rate(step: int, *, peak: float, warmup_steps: int, max_steps: int, least: float = 0.0) -> float:
    """Linear to ``peak`` at ``warmup_steps``, then half a cosine down to ``least`` at ``max_steps``."""
    left = (1 + math.cos(math.pi * _decayed(step, warmup_steps, max_steps))) / 2
    return min(peak * (step / warmup_steps), least + (peak - least) * left)


def linear_rate(step: int, *, peak: float, warmup_steps: int, max_steps: int, least: float = 0.0) -> float:
    """Linear to ``peak`` at ``warmup_steps``, then linear down to ``least`` at ``max_steps``."""
    return min(peak * (step / warmup_steps), least + (peak - least) * (1 - _decayed(step, warmup_steps, max_steps)))


def constant_rate(step: int, *, peak: float, warmup_steps: int) -> float:
    """Linear to ``peak`` at ``warmup_steps``, and ``peak`` from there on."""
    return peak * min(step / warmup_steps, 1.0)


def rate_of(training: TrainingConfig, *, d_model: int) -> Callable[[int], float]:
    """The schedule of these settings as a function of the step."""
    peak, warmup_steps, max_steps, least = training.learning_rate, training.warmup_steps, training.max_steps, training.minimum_rate
    schedules: dict[str, Callable[[int], float]] = {
        "paper": lambda step: paper_rate(step, d_model=d_model, warmup_steps=warmup_steps, factor=training.factor),
        "inverse-sqrt": lambda step: inverse_sqrt_rate(step, peak=peak, warmup_steps=warmup_steps),
        "cosine": lambda step: cosine_rate(step, peak=peak, warmup_steps=warmup_steps, max_steps=max_steps, least=least),
        "linear": lambda step: linear_rate(step, peak=peak, warmup_steps=warmup_steps, max_steps=max_steps, least=least),
        "constant": lambda step: constant_rate(step, peak=peak, warmup_steps=warmup_steps),
    }
    return schedules[training.schedule]


def _decayed(step: int, warmup_steps: int, max_steps: int) -> float:
    return min(max(step - warmup_steps, 0) / max(max_steps - warmup_steps, 1), 1.0)
