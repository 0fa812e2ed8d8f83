"""Section 3.2: attention against golden values, and heads one at a time."""

import math

import pytest
import torch
from torch import Tensor, nn

from dragoman.model import FusedAttention, MultiHeadAttention, ScaledDotProductAttention, causal_mask, scaled_dot_product_attention
from paper.models import random_numbers

QUERY = KEY = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64)[None, None]  # (1, 1, 3, 2)
VALUE = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.float64)[None, None]  # (1, 1, 3, 2)
FULL = [[3, 4], [3.406672556, 4.406672556], [3.510469530, 4.510469530]]
CAUSAL = [[1, 2], [2.339523099, 3.339523099], [3.510469530, 4.510469530]]

both_kinds = pytest.mark.parametrize("attention", [ScaledDotProductAttention(), FusedAttention()], ids=["equation", "fused"])


def close(actual: Tensor, expected: list[list[float]] | Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=tolerance, rtol=0)


@both_kinds
@pytest.mark.parametrize(("mask", "golden"), [(None, FULL), (torch.ones(3, 3), FULL), (causal_mask(3), CAUSAL)])
def test_golden_attention(attention: nn.Module, mask: Tensor | None, golden: list[list[float]]) -> None:
    close(attention(QUERY, KEY, VALUE, mask).output[0, 0], golden, 1e-9)


@both_kinds
def test_scores_are_divided_by_the_root_of_the_key_width_whatever_the_value_width(attention: nn.Module) -> None:
    wide = torch.cat((VALUE, VALUE, VALUE), -1)  # (1, 1, 3, 6)
    close(attention(QUERY, KEY, wide).output[0, 0, :, 2:4], FULL, 1e-9)


def test_weights_are_a_distribution_over_what_may_be_seen() -> None:
    _, weights = scaled_dot_product_attention(QUERY, KEY, VALUE, causal_mask(3))
    close(weights.sum(-1), torch.ones(1, 1, 3), 1e-12)
    assert weights[0, 0].triu(1).count_nonzero() == 0
    assert weights[0, 0, 1, 1] / weights[0, 0, 1, 0] == pytest.approx(math.exp(1 / math.sqrt(2)))  # scores 1 and 0


def test_the_causal_mask_lets_a_query_see_the_past_and_itself() -> None:
    assert causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(2, past=3).int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize(("d_k", "d_v", "bias"), [(None, None, True), (None, None, False), (5, 2, True), (2, 7, True)])
def test_multi_head_attention_is_its_heads_one_at_a_time(d_k: int | None, d_v: int | None, bias: bool) -> None:
    module = MultiHeadAttention(12, 3, d_k=d_k, d_v=d_v, bias=bias).double()
    x, memory = random_numbers(2, 4, 12, dtype=torch.float64), random_numbers(2, 5, 12, seed=5, dtype=torch.float64)
    mask = random_numbers(2, 1, 4, 5) > -0.5

    def part(linear: nn.Linear, head: int, inputs: Tensor) -> Tensor:
        rows = slice(head * linear.out_features // 3, (head + 1) * linear.out_features // 3)
        return inputs @ linear.weight[rows].T + (linear.bias[rows] if bias else 0)

    heads = [
        scaled_dot_product_attention(
            part(module.w_q, head, x), part(module.w_k, head, memory), part(module.w_v, head, memory), mask[:, 0]
        )[0]
        for head in range(3)
    ]  # fmt: skip
    assert [head.shape for head in heads] == [(2, 4, d_v or 4)] * 3
    close(module(x, memory, memory, mask), module.w_concat(torch.cat(heads, -1)), 1e-12)


def test_heads_that_do_not_divide_are_refused_unless_both_widths_are_given() -> None:
    with pytest.raises(ValueError, match=r"d_model=10 does not divide by n_heads=4"):
        MultiHeadAttention(10, 4, d_k=3)
    assert MultiHeadAttention(10, 4, d_k=3, d_v=2)(*[random_numbers(1, 6, 10)] * 3).shape == (1, 6, 10)
