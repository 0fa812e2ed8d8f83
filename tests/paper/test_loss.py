"""Label-smoothed cross-entropy (Section 5.4): the paper's floors, and the pass in pieces against the plain form."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dragoman.training.loss import Loss, output_loss, rdrop_loss, smoothed_cross_entropy

# The least loss for ε = 0.1 with ε/V on every class: the entropy of the smoothed target (paper.md 1.3).
FLOORS = {37_000: 1.3769132, 40_960: 1.3870844, 9_712: 1.2430673, 5: 0.3896729}
TOKENS, WIDTH, CLASSES = 23, 16, 37


def smoothed_target(vocabulary: int, gold: int, epsilon: float) -> Tensor:
    """q: ε/V on each class and 1 - ε more on the gold one."""
    q = torch.full((vocabulary,), epsilon / vocabulary, dtype=torch.float64)
    q[gold] += 1 - epsilon
    return q


def case(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (N, D), an output matrix (V, D), both with gradients, and gold classes (N)."""
    random = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, generator=random).to(dtype).requires_grad_()
    matrix = torch.randn(CLASSES, WIDTH, generator=random).to(dtype).requires_grad_()
    return hidden, matrix, torch.randint(CLASSES, (TOKENS,), generator=random)


@pytest.mark.parametrize(("vocabulary", "floor"), FLOORS.items())
def test_the_least_loss_is_the_entropy_of_the_smoothed_target(vocabulary: int, floor: float) -> None:
    gold = torch.tensor([vocabulary // 3])
    logits = smoothed_target(vocabulary, int(gold), 0.1).log()
    assert smoothed_cross_entropy(logits[None], gold, epsilon=0.1).item() == pytest.approx(floor, abs=5e-8)
    in_pieces = output_loss(torch.ones(1, 1), logits[:, None].float(), gold, epsilon=0.1)
    assert in_pieces.smoothed.item() == pytest.approx(floor, abs=2e-6)
    assert in_pieces.negative_log_likelihood.item() == pytest.approx(-math.log(0.9 + 0.1 / vocabulary), abs=1e-6)


def test_the_gradient_is_zero_at_the_smoothed_target_and_nowhere_near() -> None:
    gold = torch.tensor([4])
    logits = smoothed_target(37_000, 4, 0.1).log()[None].requires_grad_()
    smoothed_cross_entropy(logits, gold, epsilon=0.1).backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-12
    hidden, matrix = torch.ones(1, 1, requires_grad=True), logits.detach().float().T.clone().requires_grad_()
    output_loss(hidden, matrix, gold, epsilon=0.1).smoothed.backward()
    assert matrix.grad is not None
    assert matrix.grad.abs().max() < 1e-6
    assert hidden.grad is not None
    assert hidden.grad.abs().item() < 1e-4
    sharper = (logits.detach() + 0.1 * F.one_hot(gold, 37_000)).requires_grad_()
    smoothed_cross_entropy(sharper, gold, epsilon=0.1).backward()
    assert sharper.grad is not None
    assert sharper.grad[0, 4] > 5e-3  # beyond the smoothed target the gold logit is pushed back


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_the_loss_is_the_cross_entropy_against_the_smoothed_target(epsilon: float) -> None:
    hidden, matrix, gold = case(torch.float64)
    log_p = (hidden @ matrix.T).log_softmax(-1).detach()
    expected = -sum(float(smoothed_target(CLASSES, int(g), epsilon) @ row) for g, row in zip(gold, log_p, strict=True))
    assert smoothed_cross_entropy(hidden @ matrix.T, gold, epsilon=epsilon).item() == pytest.approx(expected, rel=1e-12)


def test_without_smoothing_it_is_cross_entropy() -> None:
    hidden, matrix, gold = case()
    plain = F.cross_entropy(hidden @ matrix.T, gold, reduction="sum")
    found = output_loss(hidden, matrix, gold, epsilon=0.0)
    assert smoothed_cross_entropy(hidden @ matrix.T, gold, epsilon=0.0).item() == plain.item()
    assert found.smoothed.item() == pytest.approx(plain.item(), rel=1e-6)
    assert found.negative_log_likelihood.item() == pytest.approx(plain.item(), rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 5, TOKENS, 512])
def test_in_pieces_equals_the_plain_form_in_value_and_gradients(rows: int, epsilon: float) -> None:
    hidden, matrix, gold = case()
    plain = smoothed_cross_entropy(hidden @ matrix.T, gold, epsilon=epsilon)
    expected = torch.autograd.grad(plain / 7, (hidden, matrix))
    found = output_loss(hidden, matrix, gold, epsilon=epsilon, rows=rows)
    gradients = torch.autograd.grad(found.smoothed / 7, (hidden, matrix))
    assert found.smoothed.item() == pytest.approx(plain.item(), rel=1e-6)
    for gradient, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-5, atol=1e-6)
    logits = (hidden @ matrix.T).detach()
    assert found.negative_log_likelihood.item() == pytest.approx(F.cross_entropy(logits, gold, reduction="sum").item(), rel=1e-6)
    assert found.correct.item() == (logits.argmax(-1) == gold).sum().item()


def test_bfloat16_products_stay_close() -> None:
    hidden, matrix, gold = case()
    exact: Loss = output_loss(hidden, matrix, gold, epsilon=0.1)
    expected = torch.autograd.grad(exact.smoothed, (hidden, matrix))
    rough = output_loss(hidden, matrix, gold, epsilon=0.1, rows=5, dtype=torch.bfloat16)
    gradients = torch.autograd.grad(rough.smoothed, (hidden, matrix))
    assert rough.smoothed.dtype == torch.float32
    assert rough.smoothed.item() == pytest.approx(exact.smoothed.item(), rel=5e-3)
    assert rough.smoothed.item() != exact.smoothed.item()  # the type was used
    assert rough.correct.item() == exact.correct.item()
    for gradient, right in zip(gradients, expected, strict=True):
        assert gradient.dtype == torch.float32
        assert ((gradient - right).norm() / right.norm()).item() < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("distance", [18.0, 120.0])
def test_what_is_too_unlikely_for_its_type_has_its_likelihood(dtype: torch.dtype, distance: float) -> None:
    """e^-18 is 0 in float16, e^-120 in the others too; such a token is among others, in one of several pieces."""
    hidden = torch.tensor([[1.0]] * 5 + [[distance]] + [[1.0]] * 5)
    matrix, gold = torch.tensor([[1.0], [0.0], [0.5]]), torch.tensor([0, 1, 2, 0, 1, 1, 0, 1, 2, 0, 1])
    expected = F.cross_entropy(hidden @ matrix.T, gold, reduction="sum").item()
    with Seen() as seen, torch.no_grad():
        found = output_loss(hidden, matrix, gold, epsilon=0.0, rows=2, dtype=dtype)
    assert found.negative_log_likelihood.item() == pytest.approx(expected, rel=3e-3)
    assert found.smoothed.item() == found.negative_log_likelihood.item()
    pieces = math.ceil(len(gold) / (2 if dtype == torch.float32 else 4))
    assert seen.products == pieces + (dtype == torch.float16 or distance > 100)  # of that token alone, by logarithms


def test_only_the_smoothed_loss_has_a_gradient() -> None:
    found = output_loss(*case(), epsilon=0.1)
    assert (found.smoothed.requires_grad, found.negative_log_likelihood.requires_grad, found.correct.requires_grad) == (True, False, False)


def test_large_logits_neither_overflow_nor_vanish() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    matrix = torch.tensor([[1.0], [0.0], [-1.0]], requires_grad=True)
    found = output_loss(hidden, matrix, torch.tensor([0, 0]), epsilon=0.0)
    assert found.smoothed.item() == pytest.approx(2e4)
    assert found.correct.item() == 1
    found.smoothed.backward()
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [[0.0], [-2.0]]


class Seen(TorchDispatchMode):
    """The products computed and the shapes of all tensors made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.products, self.shapes = 0, set[tuple[int, ...]]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten.mm.default, torch.ops.aten.mm.out, torch.ops.aten.matmul.default):
            self.products += made.dim() == 2
        self.shapes |= {tuple(tensor.shape) for tensor in tree_leaves(made) if isinstance(tensor, Tensor) and not is_view(function)}
        return made


def is_view(function: Any) -> bool:
    return any(argument.alias_info is not None for argument in function._schema.arguments)


def test_in_float64_the_gradient_is_that_of_finite_differences() -> None:
    hidden, matrix, target = case(torch.float64)

    def smoothed(hidden: Tensor, matrix: Tensor) -> Tensor:
        return output_loss(hidden, matrix, target, epsilon=0.1, rows=7, dtype=torch.float64).smoothed

    assert torch.autograd.gradcheck(smoothed, (hidden, matrix))


@pytest.mark.parametrize(("dtype", "gap", "tolerance"), [
    (torch.float32, 95.0, 1e-6), (torch.float32, 101.0, 1e-6), (torch.bfloat16, 91.0, 1e-3), (torch.float16, 12.0, 1e-4),
    (torch.float16, 15.5, 1e-4),
])  # fmt: skip
def test_what_is_almost_impossible_has_all_digits_of_its_likelihood(dtype: torch.dtype, gap: float, tolerance: float) -> None:
    """Its probability is below the normal numbers of its type, where few digits are left; there is one of it among likely ones."""
    hidden, target = torch.ones(3, 1, requires_grad=True), torch.tensor([0, 1, 0])
    loss = output_loss(hidden, torch.tensor([[0.0], [-gap]]), target, epsilon=0.0, dtype=dtype)
    assert loss.negative_log_likelihood.item() == pytest.approx(gap, rel=tolerance)
    assert loss.smoothed.item() == pytest.approx(gap, rel=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 512])
def test_a_gold_token_that_ties_with_others_counts_as_a_draw_among_them(rows: int, dtype: torch.dtype) -> None:
    """Alone at the top, level with one other, level with two, level with one below another, and below another."""
    logits = torch.tensor([[3, 0, 1, 0], [2, 2, 1, 0], [2, 0, 2, 2], [1, 1, 2, 0], [0, 1, 0, 0]], dtype=dtype)
    hidden, matrix, gold = torch.eye(5, dtype=logits.dtype), logits.T.contiguous(), torch.zeros(5, dtype=torch.long)
    wide = hidden.to(torch.promote_types(dtype, torch.float32)), matrix.to(torch.promote_types(dtype, torch.float32))
    found = output_loss(*wide, gold, epsilon=0.1, rows=rows, dtype=dtype)
    assert found.correct.item() == pytest.approx(1 + 1 / 2 + 1 / 3, rel=1e-6)


def test_a_model_of_narrow_numbers_counts_each_token() -> None:
    """Beyond 256, bfloat16 has not every whole number."""
    ones = torch.ones(300, 2, dtype=torch.bfloat16)
    found = output_loss(ones, torch.tensor([[1, 1], [0, 0]], dtype=torch.bfloat16), torch.zeros(300, dtype=torch.long), epsilon=0.0, rows=1)
    assert found.correct.item() == 300


def test_many_ties_in_bfloat16_count_no_more_than_a_guess_among_them() -> None:
    """Logits of which many are the same number: what ties is right as often as a class drawn at random among the highest."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 3, (TOKENS, CLASSES), generator=generator).float()
    gold = logits.argmax(-1)
    expected = (1 / (logits == logits.amax(-1, keepdim=True)).sum(-1)).sum().item()
    found = output_loss(torch.eye(TOKENS), logits.T.contiguous(), gold, epsilon=0.0, rows=5, dtype=torch.bfloat16)
    assert expected < TOKENS / 2
    assert found.correct.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fault", [math.nan, -math.nan, math.inf])
def test_what_is_no_number_is_not_counted_as_right(fault: float, dtype: torch.dtype) -> None:
    hidden = torch.tensor([[1.0, 0.0], [1.0, fault], [0.0, 1.0]])
    matrix = torch.tensor([[4.0, 1.0], [1.0, 4.0]])
    loss = output_loss(hidden, matrix, torch.tensor([0, 0, 1]), epsilon=0.0, dtype=dtype)
    assert loss.correct.item() == 2
    assert math.isnan(loss.negative_log_likelihood.item())
    alone = output_loss(hidden[1:2], matrix[:1], torch.tensor([0]), epsilon=0.0, dtype=dtype)  # there is no other class
    assert alone.correct.item() == 0


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_where_no_gradient_is_wanted_none_is_computed_and_the_values_are_the_same(off: Any) -> None:
    """The parameters want gradients; validation does not."""
    hidden, matrix, gold = case()
    other = hidden.detach().flip(0).requires_grad_()

    def losses() -> list[Tensor]:
        both = rdrop_loss((hidden, other), matrix, gold, epsilon=0.1, alpha=5.0, rows=40)  # 5 tokens at a time
        return [*output_loss(hidden, matrix, gold, epsilon=0.1, rows=5), *both]

    with Seen() as wanted:
        right = losses()
    with off(), Seen() as seen:
        found = losses()
    assert [value.item() for value in found] == [value.item() for value in right]
    pieces = math.ceil(TOKENS / 5)
    assert (seen.products, wanted.products) == (2 * pieces, 6 * pieces)
    gradients = {(1, TOKENS, WIDTH), (CLASSES, WIDTH)}
    assert gradients <= wanted.shapes
    assert not gradients & seen.shapes
