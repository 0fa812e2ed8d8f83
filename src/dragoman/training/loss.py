"""Label-smoothed cross-entropy (Section 5.4).

Shapes:  N target tokens, padding already taken out   D = d_model   V target vocabulary
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Loss(NamedTuple):
    """Sums over N tokens, in nats: the smoothed loss that is minimised and -log p(gold); and how many gold tokens were ranked first."""

    smoothed: Tensor
    negative_log_likelihood: Tensor
    correct: Tensor


def smoothed_cross_entropy(logits: Tensor, target: Tensor, *, epsilon: float) -> Tensor:
    """Σ -log p · q over N tokens, where q gives each class ε/V and the gold one 1 - ε more (5.4; Szegedy et al., equation 7).

    logits (N, V), target (N,). Its least value for one token is the entropy of q.
    """
    return F.cross_entropy(logits, target, label_smoothing=epsilon, reduction="sum")


def output_loss(
    hidden: Tensor, matrix: Tensor, target: Tensor, *, epsilon: float, rows: int = 512, dtype: torch.dtype = torch.float32
) -> Loss:
    """`smoothed_cross_entropy` of hidden (N, D) against the output matrix (V, D), for target (N,), a few rows at a time.

    Loss and gradients come from one pass, so (N, V) logits never exist; the sums are those of the plain form to rounding. ``dtype`` is
    the type of the matrix products. Only ``smoothed`` has a gradient.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        return Loss(*_OutputLoss.apply(hidden, matrix, target, epsilon, rows, dtype))  # type: ignore[no-untyped-call]


class _OutputLoss(torch.autograd.Function):
    """With p = softmax(logits) and g one at the gold class, the gradient of the logits is p - (1 - ε)·g - ε/V.

    Its uniform part is the same for every row, so it stays out of the loop: ε·mean(matrix) for each hidden state, (ε/V)·Σ hidden for each
    row of the matrix. In the same way the smoothed loss is -log p(gold) + ε·(gold logit - mean logit).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, matrix: Tensor, target: Tensor, epsilon: float, rows: int, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        wants_gradient = any(ctx.needs_input_grad)
        weight = matrix.to(dtype)  # (V, D)
        mean_row = matrix.mean(0)  # (D)
        likelihood, gold_logits, correct = matrix.new_zeros(()), matrix.new_zeros(()), target.new_zeros(())
        grad_hidden, grad_matrix = torch.empty_like(hidden), torch.zeros_like(matrix)
        for start in range(0, len(target), rows):
            some, gold = hidden[start : start + rows].to(dtype), target[start : start + rows, None]
            logits = some @ weight.t()  # (rows, V)
            top, best = logits.max(-1, keepdim=True)  # (rows, 1)
            gold_logit = logits.gather(1, gold).float()  # (rows, 1)
            p = logits.sub_(top).exp_()  # (rows, V), not yet normalised
            total = p.sum(-1, keepdim=True, dtype=torch.float32)  # (rows, 1)
            likelihood += (total.log() + top - gold_logit).sum()
            gold_logits += gold_logit.sum()
            correct += (best == gold).sum()
            if wants_gradient:
                p.div_(total).scatter_add_(1, gold, p.new_full(gold.shape, epsilon - 1))
                grad_hidden[start : start + rows] = p @ weight - epsilon * mean_row
                grad_matrix += p.t() @ some
        sum_hidden = hidden.sum(0)  # (D)
        if wants_gradient:
            grad_matrix -= epsilon / len(matrix) * sum_hidden
            ctx.save_for_backward(grad_hidden, grad_matrix)
        smoothed = likelihood + epsilon * (gold_logits - sum_hidden @ mean_row)
        ctx.mark_non_differentiable(likelihood, correct)
        return smoothed, likelihood, correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_matrix = ctx.saved_tensors
        return grad_hidden * grads[0], grad_matrix * grads[0], None, None, None, None
