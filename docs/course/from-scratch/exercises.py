"""Eight functions to write yourself: the Transformer from scratch. `python check.py` in this folder says how far you are.

Shapes:  T, Tq, Tk positions   D = d_model   H heads   V vocabulary   N tokens   K hypotheses
Write with PyTorch's tensors, and with nothing of Dragoman: that is what you are compared with. Hints and answers are on the course's page
"From scratch", docs/course/from-scratch.md.
"""

import math  # noqa: F401 (for your functions, as torch is)
from collections.abc import Callable

import torch  # noqa: F401
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """1. Scaled dot-product attention, equation (1).

    query (Tq, K), key (Tk, K), value (Tk, V); mask (Tq, Tk), True where a query may look. Returns the output (Tq, V) and the weights
    (Tq, Tk).
    """
    raise NotImplementedError


def multi_head(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, n_heads: int) -> Tensor:
    """2. Multi-head self-attention, Section 3.2.2, without biases.

    x (T, D); all four matrices (D, D), and a projection is x @ w. Head i has columns i·D/H to (i + 1)·D/H of w_q, w_k and w_v. Returns
    (T, D).
    """
    raise NotImplementedError


def causal_mask(length: int) -> Tensor:
    """3. The decoder's mask, Section 3.2.3: (T, T) of booleans, True where position i (row) may look at position j (column)."""
    raise NotImplementedError


def positions(length: int, d_model: int) -> Tensor:
    """4. The sinusoids of Section 3.5: (T, D), sines at even columns, cosines at odd ones."""
    raise NotImplementedError


def encoder_layer(
    x: Tensor,
    attend: Callable[[Tensor], Tensor],
    feed_forward: Callable[[Tensor], Tensor],
    norm1: Callable[[Tensor], Tensor],
    norm2: Callable[[Tensor], Tensor],
) -> Tensor:
    """5. One layer of the encoder, Section 3.1, of its two sub-layers and two norms, all (T, D) to (T, D); no dropout. Returns (T, D)."""
    raise NotImplementedError


def smoothed_loss(logits: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """6. Label-smoothed cross-entropy, Section 5.4: the mean over N tokens, in nats.

    logits (N, V), target (N,) of ids. The distribution to learn gives every class ε/V, and the right one 1 - ε more.
    """
    raise NotImplementedError


def learning_rate(step: int, d_model: int, warmup_steps: int) -> float:
    """7. The learning rate of Section 5.3, equation (3); steps count from 1."""
    raise NotImplementedError


def beam_step(log_probs: Tensor, scores: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """8. One step of beam search, Section 6.1: the best continuations of K hypotheses.

    log_probs (K, V) of each hypothesis's next token, scores (K,) the log-probability of each so far. Returns, best first, the ``width``
    best new scores, and for each the hypothesis that it goes on from and its new token: three tensors (width,).
    """
    raise NotImplementedError
