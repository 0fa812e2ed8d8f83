"""The paper's equations once more, in NumPy and float64, with nothing of the model's code: what a trace is compared with.

Shapes:  Tq, Tk query and key positions   D = d_model   K = d_k   V vocabulary
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]


def exact(values: ArrayLike) -> Numbers:
    """As float64."""
    return np.asarray(values, np.float64)


def linear(x: Numbers, weight: ArrayLike, bias: ArrayLike | None) -> Numbers:
    """x Wᵀ + b for a weight (out, in), as PyTorch stores it."""
    return x @ exact(weight).T + (0.0 if bias is None else exact(bias))


def scores(query: Numbers, key: Numbers) -> Numbers:
    """Q Kᵀ / √d_k of equation (1): query (…, Tq, K), key (…, Tk, K)."""
    return query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])


def softmax(x: Numbers, may: NDArray[np.bool_] | None = None) -> Numbers:
    """exp(x) over its sum in each row; where ``may`` is False the exponent is the paper's -∞."""
    x = x if may is None else np.where(may, x, -np.inf)
    largest = x.max(-1, keepdims=True)
    grown = np.exp(x - np.where(np.isfinite(largest), largest, 0.0))
    total = grown.sum(-1, keepdims=True)
    return exact(grown / np.where(total, total, 1.0))


def layer_norm(x: Numbers, gain: ArrayLike, bias: ArrayLike, epsilon: float) -> Numbers:
    """(x - mean) / √(variance + ε) · gain + bias over the last axis, the variance over D numbers."""
    middle = x - x.mean(-1, keepdims=True)
    return exact(middle / np.sqrt((middle**2).mean(-1, keepdims=True) + epsilon) * exact(gain) + exact(bias))


def rms_norm(x: Numbers, gain: ArrayLike, epsilon: float) -> Numbers:
    """x / √(mean of x² + ε) · gain."""
    return exact(x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * exact(gain))


def relu(x: Numbers) -> Numbers:
    """max(0, x) of equation (2)."""
    return np.maximum(x, 0.0)


def gelu(x: Numbers) -> Numbers:
    """x Φ(x), Φ the normal distribution."""
    return exact(x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))))


def gelu_tanh(x: Numbers) -> Numbers:
    """The usual approximation of `gelu`."""
    return exact(0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def swish(x: Numbers) -> Numbers:
    """x · sigmoid(x)."""
    return exact(x / (1.0 + np.exp(-x)))


def sinusoid(position: int, d_model: int, *, concatenated: bool = False) -> Numbers:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(…) of one position, number by number (3.5)."""
    half = d_model // 2
    pairs = [divmod(place, half)[::-1] if concatenated else divmod(place, 2) for place in range(d_model)]
    angles = [(position / 10_000 ** (2 * i / d_model), odd) for i, odd in pairs]
    return exact([math.cos(angle) if odd else math.sin(angle) for angle, odd in angles])


def smoothed(vocabulary: int, gold: int, epsilon: float) -> Numbers:
    """The distribution of label smoothing: ε/V for every class and 1 - ε more for the gold one (5.4)."""
    q: NDArray[Any] = np.full(vocabulary, epsilon / vocabulary)
    q[gold] += 1 - epsilon
    return q


def log_softmax(x: Numbers) -> Numbers:
    """x - log Σ exp(x) in each row."""
    x = x - x.max(-1, keepdims=True)
    return exact(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5), equation (3)."""
    return float(d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def adam_step(gradient: Numbers, rate: float, beta1: float, beta2: float, epsilon: float) -> Numbers:
    """By how much Adam's first step changes each weight (5.3): the moments start at zero and are divided by 1 - β."""
    first, second = (1 - beta1) * gradient, (1 - beta2) * gradient**2
    return -rate * (first / (1 - beta1)) / (np.sqrt(second / (1 - beta2)) + epsilon)
