"""Matrix products (Section 3) in bfloat16 on a CPU, where autocast asks for them; everything around them stays float32.

Shapes:  N rows, the positions of a batch   P = N rounded up to a multiple, mostly of `ROWS`   I numbers in   O numbers out   F = d_ff
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ROWS = 128
"""Narrow products have a multiple of so many rows: oneDNN writes code for each new count, which takes longer than a product."""


class Linear(nn.Linear):
    """PyTorch's linear layer, x Wᵀ + b. Under autocast on a CPU the product is in the narrow type and the result in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """x (…, I); returns (…, O)."""
        return _narrow_together(x, self)[0] if products_are_narrow(x) else super().forward(x)


def linear_together(x: Tensor, *layers: Linear, narrow: bool = False) -> tuple[Tensor, ...]:
    """What each of ``layers`` makes of x (…, I): (…, O) each. One product makes them all where products are narrow and nobody watches.

    With ``narrow`` the results of that one product stay in its type, for whoever goes on in it.
    """
    together = products_are_narrow(x) and unwatched(*layers)
    return _narrow_together(x, *layers, narrow=narrow) if together else tuple(layer(x) for layer in layers)


def _narrow_together(x: Tensor, *layers: Linear, narrow: bool = False) -> tuple[Tensor, ...]:
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    dtype = torch.get_autocast_dtype("cpu")
    outputs = _NarrowProducts.apply(x, dtype, dtype if narrow else torch.float32, *parameters)  # type: ignore[no-untyped-call]
    return cast("tuple[Tensor, ...]", outputs)


def relu_feed_forward(x: Tensor, first: Linear, second: Linear) -> Tensor:
    """max(0, x W_1ᵀ + b_1) W_2ᵀ + b_2 with all of its inside in the narrow type; x (…, I), for where `products_are_narrow`."""
    parameters = first.weight, first.bias, second.weight, second.bias
    return cast(Tensor, _NarrowFeedForward.apply(x, torch.get_autocast_dtype("cpu"), *parameters))  # type: ignore[no-untyped-call]


def unwatched(*layers: nn.Module) -> bool:
    """Whether all are plain `Linear` layers without hooks, so that what they do may be done without calling them."""
    return all(type(layer) is Linear and not layer._forward_hooks and not layer._forward_pre_hooks for layer in layers)


def products_are_narrow(x: Tensor) -> bool:
    """Whether x is on a CPU and under autocast."""
    return x.device.type == "cpu" and torch.is_autocast_enabled("cpu")


def product_rows(x: Tensor, dtype: torch.dtype, *, multiple: int = ROWS) -> Tensor:
    """x (…, I) in the type of a product as rows: (N, I), or (P, I) with zeros after the N where products are narrow on a CPU.

    P is N rounded up to a ``multiple``.
    """
    count = x.numel() // x.size(-1)
    if x.device.type != "cpu" or (dtype == x.dtype and (dtype != torch.bfloat16 or count % multiple == 0)):
        return x.reshape(-1, x.size(-1)).to(dtype)
    narrow = x.new_empty(-(-count // multiple) * multiple, x.size(-1), dtype=dtype)
    narrow[:count].view(x.shape).copy_(x)
    narrow[count:].zero_()
    return narrow


class _NarrowProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, wanted: torch.dtype, *parameters: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = cast("tuple[Tensor, ...]", parameters[::2]), parameters[1::2]
        with torch.autocast("cpu", enabled=False):
            rows, weight = product_rows(x, dtype), torch.cat([weight.to(dtype) for weight in weights])  # (P, I), (ΣO, I)
            ctx.save_for_backward(rows, weight)
            ctx.shape, ctx.dtype, ctx.sizes = x.shape, x.dtype, [len(weight) for weight in weights]
            ctx.biased = [bias is not None for bias in biases]
            product = (rows @ weight.t())[: x.numel() // x.size(-1)]  # (N, ΣO)
            outputs = [part.to(wanted).view(*x.shape[:-1], -1) for part in product.split_with_sizes(ctx.sizes, 1)]
            return tuple(output if bias is None else output.add_(bias.to(wanted)) for output, bias in zip(outputs, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        count = grads[0].numel() // grads[0].size(-1)
        grad = rows.new_empty(len(rows), len(weight))  # (P, ΣO)
        for part, given in zip(grad[:count].view(*ctx.shape[:-1], -1).split(ctx.sizes, -1), grads, strict=True):
            part.copy_(given)
        grad[count:].zero_()
        grad_x = (grad @ weight)[:count].to(ctx.dtype).view(ctx.shape) if ctx.needs_input_grad[0] else None
        grad_weights = (grad.t() @ rows).float().split(ctx.sizes)
        grad_biases = grad.sum(0).float().split(ctx.sizes) if any(ctx.biased) else grad_weights
        pairs = zip(grad_weights, [bias if biased else None for bias, biased in zip(grad_biases, ctx.biased, strict=True)], strict=True)
        return grad_x, None, None, *(each for pair in pairs for each in pair)


class _NarrowFeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            rows, first, second = product_rows(x, dtype), first.to(dtype), second.to(dtype)  # (P, I), (F, I), (O, F)
            inner = F.linear(rows, first, first_bias.to(dtype)).relu_()  # (P, F)
            ctx.save_for_backward(rows, inner, first, second)
            ctx.shape = x.shape
            output = (inner @ second.t())[: x.numel() // x.size(-1)].to(torch.float32)  # (N, O)
            return output.add_(second_bias).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, inner, first, second = ctx.saved_tensors
        count, wide = grads[0].numel() // grads[0].size(-1), grads[0].dtype
        grad = product_rows(grads[0], rows.dtype)  # (P, O)
        grad_inner = torch.ops.aten.threshold_backward(grad @ second, inner, 0)  # (P, F)
        grad_x = (grad_inner @ first)[:count].to(wide).view(ctx.shape) if ctx.needs_input_grad[0] else None
        grad_first, grad_second = (grad_inner.t() @ rows).to(wide), (grad.t() @ inner).to(wide)
        return grad_x, None, grad_first, grad_inner.sum(0).to(wide), grad_second, grads[0].flatten(0, -2).sum(0)
