"""Section 5.4: what dropout does to numbers, drawn four decisions at a time."""

import pytest
import torch
from torch import nn

from dragoman.model.dropout import FastDropout, as_module
from paper.models import random_numbers


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_numbers_are_dropped_with_probability_p_each_on_its_own_and_the_rest_divided(p: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(400_000)
    dropped = (FastDropout(p)(x) == 0).double()
    assert dropped.mean().item() == pytest.approx(p, abs=4 * (p * (1 - p) / len(x)) ** 0.5)
    for distance in (1, 2, 3, 4):
        pairs = torch.stack((dropped[distance:], dropped[:-distance]))
        assert torch.corrcoef(pairs)[0, 1].abs().item() < 4 / len(x) ** 0.5
    kept = FastDropout(p)(x).unique()[1:]
    assert kept.tolist() == pytest.approx([1 / (1 - p)], rel=2e-4)


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 7, 4), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_shape_and_type_is_kept(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = random_numbers(*shape, dtype=dtype)
    result = FastDropout(0.5)(x)
    assert (result.shape, result.dtype) == (shape, dtype)
    assert torch.equal(result, torch.where(result == 0, 0, x * 2))


def test_gradients_pass_where_numbers_pass() -> None:
    x = torch.ones(6, 10).t().requires_grad_()
    result = FastDropout(0.5)(x)
    result.sum().backward()
    assert torch.equal(x.grad, result.detach())


def test_a_seed_repeats_it_and_two_calls_differ() -> None:
    dropout, x = FastDropout(0.5), torch.ones(100)
    torch.manual_seed(7)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(7)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_evaluation_and_a_rate_of_zero_change_nothing_and_draw_nothing() -> None:
    x, state = random_numbers(4, 4), torch.get_rng_state()
    assert FastDropout(0.5).eval()(x) is x
    assert FastDropout(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("p", [1e-7, 0.999_999])
def test_rates_at_the_ends_stay_finite(p: float) -> None:
    assert FastDropout(p)(torch.ones(1000)).isfinite().all()


def test_layers_take_a_rate_or_a_module() -> None:
    module = FastDropout(0.5)
    assert as_module(module) is module
    assert isinstance(as_module(0.25), nn.Dropout)
