"""Matrix products in bfloat16 on a CPU: the plain layers to that type's rounding, whatever the number of rows."""

import pytest
import torch
from torch import Tensor, nn

from dragoman.model.attention import FusedAttention, MultiHeadAttention, scaled_dot_product_attention
from dragoman.model.layers import FeedForward
from dragoman.model.linear import ROWS, Linear, linear_together, product_rows

ROUNDING = 2**-8  # of a bfloat16


def narrow() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def off_by(rough: Tensor, exact: Tensor) -> float:
    """The distance as a part of the exact one's length."""
    return float((rough - exact).detach().norm() / exact.detach().norm())


def values_and_gradients(module: nn.Module, inputs: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    """The output, then the gradients of the inputs and of every parameter."""
    given = [tensor.clone().requires_grad_() for tensor in inputs]
    output = module(*given)
    wanted = [*given, *module.parameters()]
    return [output.detach(), *torch.autograd.grad(output, wanted, grad)]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, ROWS // 2), (3, ROWS), (1, ROWS + 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_the_same_to_rounding_in_float32(shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(1)
    layer, x, grad = Linear(24, 40, bias=bias), torch.randn(*shape, 24), torch.randn(*shape, 40)
    exact = values_and_gradients(layer, (x,), grad)
    with narrow():
        rough = values_and_gradients(layer, (x,), grad)
    for one, other in zip(rough, exact, strict=True):
        assert one.dtype == torch.float32
        assert one.shape == other.shape
        assert off_by(one, other) < 2 * ROUNDING


def test_layers_together_are_each_of_them() -> None:
    torch.manual_seed(2)
    layers, x = [Linear(16, 8), Linear(16, 24, bias=False), Linear(16, 4)], torch.randn(3, 7, 16)
    for together, layer in zip(linear_together(x, *layers), layers, strict=True):
        assert torch.equal(together, layer(x))
    with narrow():
        for together, layer in zip(linear_together(x, *layers), layers, strict=True):
            assert torch.equal(together, layer(x))


def test_gradients_of_layers_together_meet_in_their_input() -> None:
    torch.manual_seed(3)
    layers, x = nn.ModuleList([Linear(16, 8), Linear(16, 24, bias=False)]), torch.randn(3, 7, 16, requires_grad=True)
    weights = [torch.randn(3, 7, 8), torch.randn(3, 7, 24)]

    def gradients() -> tuple[Tensor, ...]:
        outputs = linear_together(x, *layers)  # type: ignore[arg-type]
        return torch.autograd.grad(outputs, (x, *layers.parameters()), weights)

    exact = gradients()
    with narrow():
        rough = gradients()
    for one, other in zip(rough, exact, strict=True):
        assert off_by(one, other) < 2 * ROUNDING


def test_an_output_that_nobody_uses_has_no_gradient() -> None:
    first, second, x = Linear(8, 8), Linear(8, 8), torch.randn(2, 3, 8)
    with narrow():
        linear_together(x, first, second)[0].sum().backward()
    assert first.weight.grad is not None
    assert second.weight.grad is None or not second.weight.grad.any()


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, ROWS // 2), (1, ROWS + 1)])
def test_a_feed_forward_network_of_whole_numbers_is_exactly_the_same(shape: tuple[int, int]) -> None:
    """Small whole numbers have no rounding, so no unit falls to the other side of max(0, ·)."""
    torch.manual_seed(4)
    network = FeedForward(8, 12)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
    x, grad = (torch.randint(-1, 2, (*shape, 8)).float() for _ in range(2))
    exact = values_and_gradients(network, (x,), grad)
    with narrow():
        rough = values_and_gradients(network, (x,), grad)
    for one, other in zip(rough, exact, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, 2 * ROWS + 1])
def test_rows_are_filled_up_with_zeros(rows: int) -> None:
    x = torch.ones(rows, 3)
    filled = product_rows(x, torch.bfloat16)
    assert len(filled) % ROWS == 0
    assert len(filled) - rows < ROWS
    assert torch.equal(filled[:rows].float(), x)
    assert not filled[rows:].any()


def test_without_gradients_the_values_are_the_same() -> None:
    torch.manual_seed(5)
    attention, x = MultiHeadAttention(16, 4), torch.randn(2, 6, 16)
    with narrow():
        expected = attention(x, x, x)
        with torch.inference_mode():
            assert torch.equal(attention(x, x, x), expected)


@pytest.mark.parametrize("length", [20, 40, 80, 600])
@pytest.mark.parametrize("masked", [True, False])
def test_the_fused_kernel_is_the_equation_under_autocast(length: int, masked: bool) -> None:
    """Short sequences by our own kernel, long ones by PyTorch's; a query that sees nothing gets zeros in both, and no gradient."""
    torch.manual_seed(6)
    query, key, value = (torch.randn(2, 2, length, 8, requires_grad=True) for _ in range(3))
    mask = None
    if masked:
        mask = torch.rand(2, 1, length, length) < 0.5
        mask[0, 0, 3] = False
    grad = torch.randn(2, 2, length, 8)
    with narrow():
        output = FusedAttention()(query, key, value, mask).output
    assert output.dtype == (torch.float32 if length < 512 else torch.bfloat16)
    rough = [output, *torch.autograd.grad(output, (query, key, value), grad.to(output.dtype))]
    output = scaled_dot_product_attention(query, key, value, mask)[0]
    exact = [output, *torch.autograd.grad(output, (query, key, value), grad)]
    for one, other in zip(rough, exact, strict=True):
        assert off_by(one.float(), other) < 2 * ROUNDING
    if masked:
        assert not rough[0][0, :, 3].any()
        assert not rough[1][0, :, 3].any()


def test_one_mask_for_all_heads_and_queries_is_spread_over_them() -> None:
    torch.manual_seed(7)
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
    for shape in ((7,), (5, 7), (2, 1, 1, 7), (2, 3, 5, 7)):
        mask = torch.rand(shape) < 0.7
        mask[..., 0] = True
        with narrow():
            output = FusedAttention()(query, key, value, mask).output
        assert off_by(output, scaled_dot_product_attention(query, key, value, mask)[0]) < ROUNDING


def test_dropout_on_the_weights_acts_in_float32() -> None:
    """Our own kernel has none: the expected output is that without dropout, and each run draws anew."""
    torch.manual_seed(8)
    attention, heads = FusedAttention(dropout=0.5), torch.randn(1, 1, 4, 8)
    with narrow():
        mean = torch.stack([attention(heads, heads, heads).output for _ in range(4000)]).mean(0)
        assert off_by(mean, attention.eval()(heads, heads, heads).output) < 0.05


def test_heads_stay_narrow_between_their_products() -> None:
    """Multi-head attention is the same to rounding, with gradients, and nothing in between is wider than the products."""
    torch.manual_seed(9)
    attention, x, grad = MultiHeadAttention(32, 4), torch.randn(3, 7, 32), torch.randn(3, 7, 32)
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    types: list[torch.dtype] = []
    attention.attention.register_forward_pre_hook(lambda _, inputs: types.extend(each.dtype for each in inputs[:3]))
    given = x.clone().requires_grad_()
    with narrow():
        output = attention(given, given, given, mask)
    rough = [output.detach(), *torch.autograd.grad(output, [given, *attention.parameters()], grad)]
    assert types == 3 * [torch.bfloat16]
    output = attention(given, given, given, mask)
    exact = [output.detach(), *torch.autograd.grad(output, [given, *attention.parameters()], grad)]
    names = ["output", "x", *(name for name, _ in attention.named_parameters())]
    for name, one, other in zip(names, rough, exact, strict=True):
        assert one.dtype == torch.float32
        if name == "w_k.bias":  # it adds the same to all scores of a query, so its gradient is zero but for rounding
            assert one.norm() < 4 * ROUNDING * exact[names.index("w_k.weight")].norm()
        else:
            assert off_by(one, other) < 4 * ROUNDING, name


def test_whoever_watches_a_layer_sees_it() -> None:
    """Joined or fused, the layers are not called; with a hook on one of them they are."""
    attention, network, x = MultiHeadAttention(16, 4), FeedForward(16, 32), torch.randn(2, 6, 16)
    seen: list[str] = []
    attention.w_k.register_forward_hook(lambda *_: seen.append("keys"))
    network[2].register_forward_pre_hook(lambda *_: seen.append("second"))
    with narrow():
        attention(x, x, x)
        network(x)
    assert seen == ["keys", "second"]
