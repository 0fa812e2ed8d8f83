"""Label-smoothed cross-entropy (Section 5.4).

Shapes:  N target tokens, padding already taken out   D = d_model   V target vocabulary
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.batching import Batch
from dragoman.model.linear import product_rows
from dragoman.model.transformer import LanguageModel, MaskedLanguageModel, Model


class Loss(NamedTuple):
    """Sums over N tokens, in nats: the smoothed loss that is minimised and -log p(gold); and how many gold tokens are the most likely.

    A gold token that is as likely as others, and none more, counts as a draw among these: 1/k of k.
    """

    smoothed: Tensor
    negative_log_likelihood: Tensor
    correct: Tensor


class GuidedLoss(NamedTuple):
    """A `Loss` beside that of given alignments: the sum ``alignment`` of `aligning.alignment_loss` over ``aligned`` target tokens."""

    smoothed: Tensor
    negative_log_likelihood: Tensor
    correct: Tensor
    alignment: Tensor
    aligned: Tensor


def smoothed_cross_entropy(logits: Tensor, target: Tensor, *, epsilon: float) -> Tensor:
    """Σ -log p · q over N tokens, where q gives each class ε/V and the gold one 1 - ε more (5.4; Szegedy et al., equation 7).

    logits (N, V), target (N,). Its least value for one token is the entropy of q.
    """
    return F.cross_entropy(logits, target, label_smoothing=epsilon, reduction="sum")  # §5.4 loss = Σ -log p · q


def output_loss(
    hidden: Tensor, matrix: Tensor, target: Tensor, *, epsilon: float, rows: int = 512, dtype: torch.dtype = torch.float32
) -> Loss:
    """`smoothed_cross_entropy` of hidden (N, D) against the output matrix (V, D), for target (N,), a few rows at a time.

    Loss and gradients come from one pass, so (N, V) logits never exist; the sums are those of the plain form to rounding. ``dtype`` is
    the type of the matrix products, and ``rows`` how many are taken together in float32, of narrow numbers twice as many. Only
    ``smoothed`` has a gradient.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        wants = _wants_gradient(hidden, matrix)
        return Loss(*_OutputLoss.apply(hidden[None], matrix, target, epsilon, 0.0, rows, dtype, wants))  # type: ignore[no-untyped-call]


def predicting_states(model: Model, batch: Batch) -> Tensor:
    """The hidden states (N, D) that predict a batch's N target tokens: of a decoder, of a decoder alone, or of an encoder alone."""
    if isinstance(model, LanguageModel):
        return model.hidden(batch.target_input)[batch.target_mask]  # padding stands behind the tokens, which do not see it
    if isinstance(model, MaskedLanguageModel):
        states: Tensor = model.transform(model.encode(batch.source, batch.source_mask)[batch.target_mask])
        return states
    memory = model.encode(batch.source, batch.source_mask)  # (B, S, D)
    return model.decode(batch.target_input, memory, batch.source_mask)[batch.target_mask]


def with_bias(hidden: Tensor, matrix: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """hidden (N, D) and matrix (V, D) with a bias (V,) for each class as one more column of both, or as they are where there is none."""
    if bias is None:
        return hidden, matrix
    return F.pad(hidden, (0, 1), value=1.0), torch.cat((matrix, bias[:, None]), 1)  # (N, D + 1), (V, D + 1)


def rdrop_loss(
    hidden: tuple[Tensor, Tensor], matrix: Tensor, target: Tensor, *, epsilon: float, alpha: float, rows: int = 512,
    dtype: torch.dtype = torch.float32,
) -> Loss:  # fmt: skip
    """R-Drop, a named departure: `output_loss` of two passes (N, D) and how far they disagree, (L₁ + L₂ + α·½(KL₁₂ + KL₂₁)) / 2.

    That is half of the article's loss, so that it stays on the scale of one pass. The likelihood is the mean of both, ``correct`` the
    first's. With a narrow ``dtype`` the disagreement is of narrow numbers too; of ``rows`` fewer are taken together, for both passes.
    """
    with torch.autocast(matrix.device.type, enabled=False):
        both, wants = torch.stack(hidden), _wants_gradient(*hidden, matrix)
        return Loss(*_OutputLoss.apply(both, matrix, target, epsilon, alpha, rows, dtype, wants))  # type: ignore[no-untyped-call]


def model_loss(model: Model, batch: Batch, *, epsilon: float, rdrop: float, dtype: torch.dtype) -> Loss:
    """The loss of a model on a batch's N target tokens, with matrix products in ``dtype``.

    A model in training has ``rdrop`` as the α of `rdrop_loss`, where it is not 0. One that is not is being compared with others, so the
    output's own product is in float32.
    """
    gold = batch.target_output[batch.target_mask]

    def last() -> tuple[Tensor, Tensor]:
        with torch.autocast(batch.target_mask.device.type, dtype=dtype, enabled=dtype != torch.float32):
            hidden = predicting_states(model, batch)
        return with_bias(hidden, model.output.weight, model.output_bias)

    hidden, matrix = last()
    if rdrop and model.training:
        both = (hidden, last()[0])  # the second pass draws other dropout
        return rdrop_loss(both, matrix, gold, epsilon=epsilon, alpha=rdrop, dtype=dtype)
    return output_loss(hidden, matrix, gold, epsilon=epsilon, dtype=dtype if model.training else torch.float32)


def _wants_gradient(*tensors: Tensor) -> bool:
    """Asked outside of a Function: inside, gradients are always off, and needs_input_grad is True of a parameter in validation too."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class _OutputLoss(torch.autograd.Function):
    """The mean of K passes. With p = softmax(logits) and g one at the gold class, the gradient of the logits is p - (1 - ε)·g - ε/V.

    Its uniform part is the same for every row, so it stays out of the loop: ε·mean(matrix) for each hidden state, (ε/V)·Σ hidden for each
    row of the matrix. In the same way the smoothed loss is -log p(gold) + ε·(gold logit - mean logit).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, matrix: Tensor, target: Tensor, epsilon: float, alpha: float, rows: int, dtype: torch.dtype,
        wants_gradient: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        passes, rows_of_all = len(hidden), hidden.flatten(0, 1)  # (KN, D)
        weight = matrix.to(dtype)  # (V, D)
        turned = weight.t().contiguous() if dtype == torch.bfloat16 else weight.t()  # (D, V)
        mean_row = matrix.mean(0)  # (D)
        together = rows * torch.float32.itemsize // min(dtype.itemsize, torch.float32.itemsize)  # in as much memory
        gold_logits, correct = matrix.new_zeros(()), torch.zeros((), device=matrix.device)
        gold_probabilities = matrix.new_empty(passes, len(target))  # (K, N)
        disagreement = _Disagreement(alpha) if alpha else None
        if disagreement:
            # Its many steps are faster the nearer to a CPU their numbers stay; elsewhere pieces take as much memory as those of one pass.
            together = max(together // (8 if hidden.device.type == "cpu" else 2), 1)
        if wants_gradient:
            grad_hidden, grad_matrix = torch.empty_like(hidden), torch.zeros_like(matrix)
        room = None  # (P, V) that all rows share: new memory for each would take as long as their product
        for start in range(0, len(target), together):
            gold = target[start : start + together].repeat(passes)[:, None]  # (KN, 1) of some of the N
            some = product_rows(hidden[:, start : start + together].flatten(0, 1), dtype)  # (P, D)
            room = logits = torch.mm(some, turned, out=None if room is None else room[: len(some)])  # (P, V)
            gold_logits += logits[: len(gold)].gather(1, gold).to(matrix.dtype).sum()
            if disagreement:
                disagreement.see(logits[: len(gold)])
            p = torch.softmax(logits, -1, out=logits)  # (P, V)
            if p.dtype != torch.bfloat16:
                p.div_(p.sum(-1, keepdim=True))  # PyTorch's softmax of many classes is off by more than rounding, alike for all of a row
            if disagreement:
                disagreement.weigh(p[: len(gold)])
            gold_p = p[: len(gold)].gather(1, gold)  # (KN, 1)
            gold_probabilities[:, start : start + together] = gold_p.view(passes, -1)
            gold_places = torch.arange(len(gold), device=gold.device), gold[:, 0]  # scatter_ copies a narrow p whole
            p[gold_places] = -1  # so that the highest is another class's
            once = len(gold) // passes
            correct += _count_highest(p[:once], gold_p[:once])
            if wants_gradient:
                p[len(gold) :].zero_()
                p[gold_places] = gold_p[:, 0] - (1 - epsilon)
                if disagreement:
                    disagreement.add_gradient(p[: len(gold)])
                grad_hidden[:, start : start + together] = ((p @ weight)[: len(gold)] - epsilon * mean_row).view(passes, once, -1)
                grad_matrix += p.t() @ some
        # A number below the normal ones of its type has lost digits, if it is not 0; and what is no number is not to be hidden.
        unlikely = (~(gold_probabilities >= torch.finfo(dtype).tiny)).flatten().nonzero()[:, 0]
        likelihood = -gold_probabilities.flatten().index_fill(0, unlikely, 1).log().sum()
        for start in range(0, len(unlikely), rows):
            few = unlikely[start : start + rows]
            states = product_rows(rows_of_all[few], dtype)[: len(few)]
            likelihood += _unlikelihood(states, weight, target[few % len(target)])
        sum_hidden = rows_of_all.sum(0)  # (D)
        if wants_gradient:
            grad_matrix -= epsilon / len(matrix) * sum_hidden
            ctx.save_for_backward(grad_hidden, grad_matrix)
        smoothed = likelihood + epsilon * (gold_logits - sum_hidden @ mean_row)  # §5.4 smoothed = the same, as it is trained
        if disagreement:
            smoothed += alpha * disagreement.divergence
        smoothed, likelihood, ctx.passes = smoothed / passes, likelihood / passes, passes
        ctx.mark_non_differentiable(likelihood, correct)
        return smoothed, likelihood, correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_matrix = ctx.saved_tensors
        scale = grads[0] / ctx.passes
        return grad_hidden * scale, grad_matrix * scale, *[None] * 6


def _unlikelihood(some: Tensor, weight: Tensor, gold: Tensor) -> Tensor:
    """Σ -log p(gold) by logarithms alone, of a few rows (N, D) against the output matrix (V, D)."""
    logits = some @ weight.t()  # (N, V)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), gold, reduction="sum")


def _count_highest(others: Tensor, gold_p: Tensor) -> Tensor:
    """How many of the gold classes' probabilities (N, 1) are the highest of their row, of k that tie 1/k; what is no number is not.

    ``others`` (N, V) are the probabilities with -1 in the gold class's place.
    """
    # Numbers from 0 up stand in the order of their bits, and whole numbers are compared several times as fast on a CPU.
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[others.element_size()]
    p, gold, is_number = others.view(bits), gold_p.view(bits), ~gold_p.isnan()
    highest = p.amax(-1, keepdim=True)  # (N, 1)
    tied = (gold == highest) & is_number
    some = tied.nonzero()[:, 0] if p.device.type == "cpu" else slice(None)  # a GPU would be waited for, to know which rows
    equals = (p[some] == gold[some]).sum(-1, keepdim=True)
    return ((gold > highest) & is_number).sum() + (tied[some] / (1 + equals)).sum()


class _Disagreement:
    """α·½(KL(p‖q) + KL(q‖p)) of two passes' distributions p and q, some rows at a time, in room that all of them share.

    With d the difference of their logits the sum is α·½ Σ (p - q)·d: what makes logarithms of logits is the same for all classes. Its
    gradient is α·½(p - q + p·d - p·Σ p·d) for the logits of p, and -α·½(p - q + q·d - q·Σ q·d) for those of q.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self.divergence: Tensor | float = 0.0
        self.room: Tensor | None = None

    def see(self, logits: Tensor) -> None:
        """Logits (2N, V), the first pass above the second, before they become probabilities."""
        first, second = logits.chunk(2)
        if self.room is None:
            self.room = logits.new_empty(4, *first.shape)
        self.difference, self.apart, *self.gradients = self.room[:, : len(first)]  # (N, V)
        torch.sub(first, second, out=self.difference)

    def weigh(self, probabilities: Tensor) -> None:
        """The probabilities (2N, V) of the same."""
        torch.sub(*probabilities.chunk(2), out=self.apart)
        total, means = _row_sums(self.apart), []
        for p, gradient in zip(probabilities.chunk(2), self.gradients, strict=True):
            torch.addcmul(self.apart, p, self.difference, out=gradient)
            means.append(_row_sums(gradient) - total)  # Σ p·d (N, 1)
            gradient.addcmul_(p, means[-1].to(p.dtype), value=-1)
        self.divergence = self.divergence + (means[0] - means[1]).sum() / 2

    def add_gradient(self, gradients: Tensor) -> None:
        """Add that of the logits to theirs (2N, V)."""
        for part, gradient, sign in zip(gradients.chunk(2), self.gradients, (1, -1), strict=True):
            part.add_(gradient, alpha=sign * self.alpha / 2)


def _row_sums(numbers: Tensor) -> Tensor:
    return numbers.sum(-1, keepdim=True, dtype=torch.promote_types(numbers.dtype, torch.float32))
