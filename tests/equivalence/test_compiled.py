"""What torch.compile makes of layers in training is what they are without it: the same dropout, the same numbers, the same gradients.

The backend is the one that traces and calls PyTorch's own operators, so no C++ compiler is needed, and equal means equal bits.
"""

import pytest
import torch
from torch import Tensor, nn

from dragoman.model.dropout import FastDropout
from dragoman.model.layers import EncoderLayer


class Twice(nn.Module):
    """Two dropouts of as many numbers in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = FastDropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (N, D); returns two of the shape."""
        return self.dropout(2 * x), self.dropout(3 * x)


def compiled(module: nn.Module) -> nn.Module:
    """The module itself, compiled in place for shapes that change, as one graph."""
    module.compile(dynamic=True, fullgraph=True, backend="aot_eager")
    return module


def outcome(module: nn.Module, x: Tensor, *others: Tensor) -> list[Tensor]:
    """Outputs, and the gradients of the input and of every parameter, after the same seed."""
    torch.manual_seed(3)
    given = x.clone().requires_grad_()
    outputs = module(given, *others)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [*outputs, *torch.autograd.grad(sum(each.square().sum() for each in outputs), [given, *module.parameters()])]


def test_compiled_dropout_draws_what_it_draws_and_not_the_same_twice() -> None:
    plain, other = Twice(), compiled(Twice())
    for rows in (7, 5):
        x = torch.ones(rows, 16)
        for one, same in zip(outcome(plain, x), outcome(other, x), strict=True):
            assert torch.equal(one, same)
        first, second, _ = outcome(other, x)
        assert not torch.equal(first != 0, second != 0)


def test_compiled_dropout_goes_on_from_a_random_state() -> None:
    other, x = compiled(Twice()), torch.ones(7, 16)
    outcome(other, x)
    state = torch.get_rng_state()
    expected = other(x)
    torch.set_rng_state(state)
    assert all(map(torch.equal, expected, other(x)))


@pytest.mark.parametrize("narrow", [False, True])
def test_a_compiled_layer_is_the_layer(narrow: bool) -> None:
    """In bfloat16 too, where the last row sees nothing."""
    torch.manual_seed(1)
    layer = EncoderLayer(16, 2, 32, FastDropout(0.3))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        given = [(torch.randn(rows, 6, 16), torch.arange(6) < torch.arange(rows)[:, None, None, None].flip(0)) for rows in (4, 3)]
        expected = [outcome(layer, *each) for each in given]
        compiled(layer)
        for each, found in zip(given, expected, strict=True):
            assert all(map(torch.equal, outcome(layer, *each), found))
