"""Matrix products made ready for search: weights joined, converted and laid out once.

Shapes:  N rows   P = N rounded up   I numbers in   O numbers out   F = d_ff
"""

import copy
import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.matrices import ONEDNN, Matrix, check_finite, product, relu_products
from dragoman.decoding.options import AskedPrecision as AskedPrecision
from dragoman.decoding.options import Precision as Precision
from dragoman.decoding.options import check_precision_name
from dragoman.errors import UsageError, option
from dragoman.model.embedding import Embedding
from dragoman.model.layers import FeedForward
from dragoman.model.linear import ROWS, Linear

_Module = TypeVar("_Module", bound=nn.Module)
_ALIGNED = 64  # bytes
_SMALL = 2**17  # numbers of a matrix, up to which the simplest product takes the least time
_EIGHT_BITS = hasattr(torch.ops.onednn, "qlinear_pointwise")
_VNNI: bool = getattr(torch.cpu, "_is_vnni_supported", bool)()
"""Whether the processor can add up products of 8 bits without losing any; where it may lose some (`_sums_are_whole`), inputs have 7."""
EIGHT_ROWS = 64
"""Rows by the output matrix that oneDNN makes in 8 bits at once: always so many, for it keeps 400 kB of code for each count."""


class EightBits:
    """x Wᵀ + b in 8 bits by oneDNN, which takes up to half the time of PyTorch's own product where there are many rows and outputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.scales, self.zeros, self.bias = _scales(weight).float(), torch.zeros(len(weight), dtype=torch.long), bias
        eight = torch.round(weight / self.scales[:, None]).to(torch.int8)  # (O, I)
        self.weight = torch.ops.onednn.qlinear_prepack(eight, [EIGHT_ROWS, weight.size(1)])

    def __deepcopy__(self, known: dict[int, Any]) -> "EightBits":
        """Itself, which never changes; PyTorch copies no tensor that lies in blocks."""
        return self

    @staticmethod
    def pays(rows: int) -> bool:
        """Whether so many rows can be made so, and are faster."""
        return EIGHT_ROWS < 2 * rows <= 2 * EIGHT_ROWS and ONEDNN and _EIGHT_BITS and _VNNI and _sums_are_whole()

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, I), at most `EIGHT_ROWS` rows; returns (N, O)."""
        x = x.float()  # under a caller's autocast it may have another type
        lowest, highest = (float(each) for each in torch.aminmax(x))
        scale = (max(highest, 0.0) - min(lowest, 0.0)) / 255 or 1.0
        if not math.isfinite(scale):
            check_finite(x)
        zero = round(-min(lowest, 0.0) / scale)
        eight = torch.div(x, scale).add_(zero).round_().clamp_(0, 255).to(torch.uint8)
        eight = F.pad(eight, (0, 0, 0, EIGHT_ROWS - len(x)))
        made = torch.ops.onednn.qlinear_pointwise(
            eight, scale, zero, self.weight, self.scales, self.zeros, self.bias, 1.0, 0, torch.float32, "none", [], ""
        )
        return cast(Tensor, made)[: len(x)]


@cache
def _sums_are_whole() -> bool:
    """Whether the largest numbers of 8 bits are added up without loss, which no processor says: oneDNN may have been told to leave
    instructions out (ONEDNN_MAX_CPU_ISA), and its sums are silently too small then.
    """
    ones = torch.ones(EIGHT_ROWS, EIGHT_ROWS)
    sums = [torch.ops.quantized.linear_dynamic(ones, _packed(ones, None), False)]
    if ONEDNN and _EIGHT_BITS:
        sums.append(EightBits(ones, None)(ones))
    return all(bool(((each - EIGHT_ROWS).abs() < 1).all()) for each in sums)


def goes_in_blocks(weight: Tensor) -> bool:
    """Whether a matrix (O, I) is for oneDNN's blocks: a larger one, in float32, on a processor where oneDNN makes the products."""
    return ONEDNN and weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() > _SMALL


def _narrow_blocks(weight: Tensor) -> bool:
    """Whether a matrix in bfloat16 may lie in oneDNN's blocks."""
    return ONEDNN and weight.device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def in_blocks(weight: Tensor) -> Tensor:
    """A matrix (O, I) as oneDNN reads it."""
    return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS))


class Product(nn.Module):
    """x Wᵀ + b of several linear layers side by side, whose weights are joined and converted once."""

    def __init__(self, *layers: Linear | Embedding, precision: Precision, bias: Tensor | None = None) -> None:
        super().__init__()
        weight = _joined([layer.weight.detach() for layer in layers])  # (O, I)
        biases = [] if bias is None else [bias.detach()]
        if any(isinstance(layer, Linear) and layer.bias is not None for layer in layers):
            biases = [bias_of(cast(Linear, layer)) for layer in layers]
        joined = _joined(biases) if biases else None  # (O)
        matrix = Matrix(bias=joined)
        if precision != "int8" or weight.numel() <= _SMALL:  # float32, which stays for few rows, and lies as it is read
            blocks = goes_in_blocks(weight)
            matrix = matrix._replace(blocks=in_blocks(weight)) if blocks else matrix._replace(turned=weight.t().contiguous())
        if precision == "bf16":
            narrow, blocks = weight.bfloat16(), _narrow_blocks(weight)
            narrow, narrow_bias = in_blocks(narrow) if blocks else narrow.t(), None if joined is None else joined.bfloat16()
            matrix = matrix._replace(narrow=narrow, narrow_bias=narrow_bias, narrow_blocks=blocks)
        if precision == "int8":
            matrix = matrix._replace(packed=_packed(weight, joined), seven_bits=not (_VNNI and _sums_are_whole()))
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        """x (…, I) float32; returns (…, O) float32."""
        rows = x if x.dim() == 2 else x.flatten(0, -2)
        made = product(rows, self.matrix)
        return made if x.dim() == 2 else made.view(*x.shape[:-1], -1)


class ReluProducts(NamedTuple):
    """Equation (2) with its products prepared."""

    first: Matrix
    second: Matrix

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, D); returns (N, D)."""
        return relu_products(x, self.first, self.second)


def feed_forward(module: nn.Module, precision: Precision) -> Any:
    """A function of x (N, D) that is the feed-forward layer with its products prepared."""
    if type(module) is FeedForward and (type(module[0]), type(module[1]), type(module[2])) == (Linear, nn.ReLU, Linear):
        return ReluProducts(*(Product(cast(Linear, module[place]), precision=precision).matrix for place in (0, 2)))
    return with_products(module, precision)


def with_products(module: _Module, precision: Precision) -> _Module:
    """A module with its linear layers prepared, a copy unless they stay as they are."""
    if precision == "fp32" and not any(type(each) is Linear and goes_in_blocks(each.weight) for each in module.modules()):
        return module
    copied = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})  # these are not copied
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if type(child) is Linear and (precision != "fp32" or goes_in_blocks(child.weight)):
                setattr(parent, name, Product(child, precision=precision))
    return copied.eval()


def check_products(precision: str, device: torch.device, *, known: Sequence[str] = get_args(Precision)) -> None:
    """Raise UsageError for a precision that is not one of those ``known``, or not on that device."""
    check_precision_name(precision, known=known)
    if precision == "int8" and device.type != "cpu":
        raise UsageError(f"{option('precision')}=int8 is for a CPU and the model is on {device.type}; choose bf16 or fp32")


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def bias_of(layer: Linear) -> Tensor:
    """A layer's bias (O), zeros where it has none and its neighbours have."""
    return layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()


def _packed(weight: Tensor, bias: Tensor | None) -> Any:
    """The matrix (O, I) in 8 bits, a scale for each row, as the product takes it; DragomanError for damaged weights."""
    scales = _scales(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch means to give these tensors another form one day
        eight = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(eight, bias)


def _scales(weight: Tensor) -> Tensor:
    """What 1 of 8 bits stands for in each row of a matrix (O, I); DragomanError for damaged weights."""
    check_finite(weight)
    return weight.abs().amax(1).clamp(min=1e-8).double() / 127
