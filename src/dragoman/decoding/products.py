"""Matrix products made ready for search: weights joined, converted and laid out once, and the output layer in room that steps share.

Shapes:  N rows   P = N rounded up   I numbers in   O numbers out   F = d_ff   D = d_model   V target vocabulary
"""

import copy
import math
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import Any, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.options import AskedPrecision as AskedPrecision
from dragoman.decoding.options import Precision as Precision
from dragoman.decoding.options import check_precision_name
from dragoman.errors import DragomanError, UsageError, option
from dragoman.model.embedding import Embedding
from dragoman.model.layers import FeedForward
from dragoman.model.linear import ROWS, Linear, product_rows

FEWEST_NARROW = ROWS // 2
"""Rows from which a product of bf16 is in bfloat16: fewer are faster as they are, in float32."""

_Module = TypeVar("_Module", bound=nn.Module)
_ALIGNED = 64  # bytes
_SMALL = 2**17  # numbers of a matrix, up to which the simplest product takes the least time
_TWICE = 2**21  # numbers of an output matrix, up to which it is kept once more for single rows, which are faster so than by `_Blocks`
_SINGLE = 8  # rows by a small matrix, up to which a product of int8 is in float32, which takes less time
_ONEDNN = platform.machine().lower() in ("x86_64", "amd64") and all(  # on other processors it was not measured
    hasattr(torch.ops.mkldnn, name)  # PyTorch promises none of them, and has none where it was built without oneDNN
    for name in ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
)
_EIGHT_BITS = hasattr(torch.ops.onednn, "qlinear_pointwise")
_VNNI: bool = getattr(torch.cpu, "_is_vnni_supported", bool)()
"""Whether the processor can add up products of 8 bits without losing any; where it may lose some (`_sums_are_whole`), inputs have 7."""
_EIGHT_ROWS = 64
"""Rows by the output matrix that oneDNN makes in 8 bits at once: always so many, for it keeps 400 kB of code for each count."""


class _Blocks:
    """x Wᵀ + b in float32 by oneDNN, whose matrix lies in the blocks that it reads. What PyTorch takes otherwise is slower on processors of
    AMD, above all for few rows; for a single one it may be faster.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS), bias

    def __deepcopy__(self, known: dict[int, Any]) -> "_Blocks":
        """Itself, which never changes; PyTorch copies no tensor that lies in blocks."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, I); returns (N, O)."""
        return self.piece(x) if x.size(0) <= ROWS else torch.cat([self.piece(part) for part in torch.split(x, ROWS)])

    def piece(self, x: Tensor) -> Tensor:
        """The same for at most `ROWS` rows, so that what is in passing stays near the processor."""
        count = x.size(0)
        # oneDNN writes code for each new count, and takes longer for fewer than 4 rows than for 4.
        if more := -count % (4 if count < 4 else 1 if count <= 8 else 8 if count <= 64 else 16):
            x = F.pad(x, (0, 0, 0, more))
        # Under a caller's autocast attention may give another type.
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x.float(), self.weight, self.bias, "none", [], ""))[:count]


def _narrow_rows(x: Tensor) -> Tensor:
    """x (…, I) as rows (P, I) in bfloat16: of few rows, those that fill them up would be a good part, so there are fewer."""
    count = x.numel() // x.size(-1)
    return product_rows(x, torch.bfloat16, multiple=32 if count <= ROWS else 64 if count <= 4 * ROWS else ROWS)


class _NarrowBlocks:
    """x Wᵀ + b in bfloat16, whose matrix lies in oneDNN's blocks where it takes such; a ReLU may come with it.

    The bias is rounded as the matrix is, and added before the sum is rounded.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        narrow, self.bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(narrow, ROWS) if _narrow_blocks(weight) else None
        self.turned = narrow.t() if self.blocks is None else None  # (I, O)

    def __deepcopy__(self, known: dict[int, Any]) -> "_NarrowBlocks":
        """Itself, as `_Blocks` do."""
        return self

    def __call__(self, rows: Tensor, *, relu: bool = False) -> Tensor:
        """rows (P, I) in bfloat16; returns (P, O) in the same."""
        if self.blocks is not None:
            made = torch.ops.mkldnn._linear_pointwise(rows, self.blocks, self.bias, "relu" if relu else "none", [], "")
            return cast(Tensor, made)
        turned = cast(Tensor, self.turned)
        made = torch.mm(rows, turned) if self.bias is None else torch.addmm(self.bias, rows, turned)
        return made.relu_() if relu else made


def _narrow_blocks(weight: Tensor) -> bool:
    """Whether a matrix in bfloat16 may lie in oneDNN's blocks."""
    return _ONEDNN and weight.device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _EightBits:
    """x Wᵀ + b in 8 bits by oneDNN, which takes up to half the time of PyTorch's own product where there are many rows and outputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.scales, self.zeros, self.bias = _scales(weight).float(), torch.zeros(len(weight), dtype=torch.long), bias
        eight = torch.round(weight / self.scales[:, None]).to(torch.int8)  # (O, I)
        self.weight = torch.ops.onednn.qlinear_prepack(eight, [_EIGHT_ROWS, weight.size(1)])

    def __deepcopy__(self, known: dict[int, Any]) -> "_EightBits":
        """Itself, as `_Blocks` do."""
        return self

    @staticmethod
    def pays(rows: int) -> bool:
        """Whether so many rows can be made so, and are faster."""
        return _EIGHT_ROWS < 2 * rows <= 2 * _EIGHT_ROWS and _ONEDNN and _EIGHT_BITS and _VNNI and _sums_are_whole()

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, I), at most `_EIGHT_ROWS` rows; returns (N, O)."""
        x = x.float()  # under a caller's autocast it may have another type
        lowest, highest = (float(each) for each in torch.aminmax(x))
        scale = (max(highest, 0.0) - min(lowest, 0.0)) / 255 or 1.0
        if not math.isfinite(scale):
            check_finite(x)
        zero = round(-min(lowest, 0.0) / scale)
        eight = torch.div(x, scale).add_(zero).round_().clamp_(0, 255).to(torch.uint8)
        eight = F.pad(eight, (0, 0, 0, _EIGHT_ROWS - len(x)))
        made = torch.ops.onednn.qlinear_pointwise(
            eight, scale, zero, self.weight, self.scales, self.zeros, self.bias, 1.0, 0, torch.float32, "none", [], ""
        )
        return cast(Tensor, made)[: len(x)]


@cache
def _sums_are_whole() -> bool:
    """Whether the largest numbers of 8 bits are added up without loss, which no processor says: oneDNN may have been told to leave
    instructions out (ONEDNN_MAX_CPU_ISA), and its sums are silently too small then.
    """
    ones = torch.ones(_EIGHT_ROWS, _EIGHT_ROWS)
    sums = [torch.ops.quantized.linear_dynamic(ones, _packed(ones, None), False)]
    if _ONEDNN and _EIGHT_BITS:
        sums.append(_EightBits(ones, None)(ones))
    return all(bool(((each - _EIGHT_ROWS).abs() < 1).all()) for each in sums)


def _in_blocks(weight: Tensor) -> bool:
    """Whether a matrix (O, I) is for `_Blocks`: a larger one, in float32, on a processor where oneDNN makes the products."""
    return _ONEDNN and weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() > _SMALL


def _of_rows(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """x Wᵀ + b for x (N, I), in the type of the weight (O, I), as a function of as few calls as can be."""
    if _in_blocks(weight):
        return _Blocks(weight, bias)
    turned = weight.t().contiguous()  # (I, O): few rows are up to twice as fast by a matrix that lies as it is read
    return (lambda x: torch.mm(x, turned)) if bias is None else (lambda x: torch.addmm(bias, x, turned))


class Product(nn.Module):
    """x Wᵀ + b of several linear layers side by side, whose weights are joined and converted once."""

    def __init__(self, *layers: Linear | Embedding, precision: Precision, bias: Tensor | None = None) -> None:
        super().__init__()
        weight = _joined([layer.weight.detach() for layer in layers])  # (O, I)
        biases = [] if bias is None else [bias.detach()]
        if any(isinstance(layer, Linear) and layer.bias is not None for layer in layers):
            biases = [bias_of(cast(Linear, layer)) for layer in layers]
        self.bias = _joined(biases) if biases else None  # (O)
        always_packed = precision == "int8" and weight.numel() > _SMALL
        self.wide = None if always_packed else _of_rows(weight, self.bias)  # float32, which stays for few rows
        self.narrow = _NarrowBlocks(weight, self.bias) if precision == "bf16" else None
        self.packed = _packed(weight, self.bias) if precision == "int8" else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, I) float32; returns (…, O) float32."""
        if self.packed is not None and (self.wide is None or x.numel() > _SINGLE * x.size(-1)):
            try:
                return cast(Tensor, torch.ops.quantized.linear_dynamic(x.float(), self.packed, not (_VNNI and _sums_are_whole())))
            except RuntimeError:
                check_finite(x)  # what has no largest number has no scale
                raise
        wide = cast(Callable[[Tensor], Tensor], self.wide)
        if self.narrow is None or x.numel() < FEWEST_NARROW * x.size(-1):
            return wide(x) if x.dim() == 2 else wide(x.flatten(0, -2)).view(*x.shape[:-1], -1)
        count = x.numel() // x.size(-1)
        return self.narrow(_narrow_rows(x))[:count].to(x.dtype).view(*x.shape[:-1], -1)

    def of_rows(self) -> Callable[[Tensor], Tensor]:
        """The same for x (N, I), as a function of as few calls as can be."""
        wide, least = self.wide, FEWEST_NARROW if self.narrow is not None else _SINGLE + 1
        if wide is None or (self.narrow is None and self.packed is None):
            return wide or self.forward
        return lambda x: wide(x) if x.size(0) < least else self.forward(x)


class OutputProduct:
    """The output matrix, and its bias: hidden states to log-probabilities, or logits, of everything that may follow."""

    def __init__(self, output: Embedding, bias: Tensor | None, *, precision: Precision) -> None:
        weight = output.weight.detach()
        # Where numbers of a file lie in memory must not decide how a product rounds, so they lie as PyTorch's own do.
        self.weight = weight if weight.data_ptr() % _ALIGNED == 0 else weight.clone()  # (V, D)
        self.bias = None if bias is None else bias.detach()
        self.narrow = weight.bfloat16().t().contiguous() if precision == "bf16" else None  # (D, V)
        self.product = Product(output, precision=precision, bias=bias) if precision == "int8" else None

    @cached_property
    def _blocks(self) -> _Blocks | None:
        return _Blocks(self.weight, self.bias) if _in_blocks(self.weight) else None

    @cached_property
    def _turned(self) -> Tensor:
        return self.weight.t().contiguous()  # (D, V)

    @cached_property
    def _eight(self) -> _EightBits:
        return _EightBits(self.weight, self.bias)

    def room(self, rows: int, before: Tensor | None) -> Tensor | None:
        """Room for the log-probabilities of so many rows (N, V), that of before where it is enough; None where the product makes its own.

        New room for each step would take as long as the product, for the system clears every page of it.
        """
        if self.weight.device.type != "cpu" or (self.product is not None and rows <= _EIGHT_ROWS):
            return None
        return before if before is not None and before.size(0) >= rows else self.weight.new_empty(rows, self.weight.size(0))

    def log_probs(self, hidden: Tensor, room: Tensor | None) -> Tensor:
        """Log-probabilities (N, V) after hidden states (N, D), in the first rows of the room."""
        if room is None:
            logits = self._of_its_own(hidden)  # (N, V)
            return torch.log_softmax(logits, -1, out=logits) if logits.device.type == "cpu" else logits.log_softmax(-1)
        made = room[: len(hidden)]
        write = self._writer(len(hidden))
        for some, place in zip(torch.split(hidden, ROWS), torch.split(made, ROWS), strict=True):
            write(some, place)
        return made

    def parts(self, hidden: Tensor, room: Tensor | None) -> Iterator[tuple[int, Tensor]]:
        """The same, at most `ROWS` rows at a time and the number of the first, one after the other in the room; all at once without."""
        if room is None:
            yield 0, self.log_probs(hidden, None)
            return
        write = self._writer(len(hidden))
        for first in range(0, len(hidden), ROWS):
            some = hidden[first : first + ROWS]
            write(some, room[: len(some)])
            yield first, room[: len(some)]

    def _writer(self, rows: int) -> Callable[[Tensor, Tensor], None]:
        """What writes the log-probabilities of hidden states to a place, at most `ROWS` of so many in all at once: few enough to stay near
        the processor from their product to the last thing done to them.
        """
        if self.product is not None:
            return self._write_in_eight_bits
        if self.narrow is not None and rows >= FEWEST_NARROW:
            return partial(self._write_in_bfloat16, self.narrow, self.narrow.new_empty(ROWS, len(self.weight)))
        # Not what a measurement says is faster here: how a product rounds must not hang on one.
        if (rows > 1 or self.weight.numel() > _TWICE) and self._blocks is not None:
            return partial(self._write_by_blocks, self._blocks)
        return self._write_as_it_is

    def _write_in_eight_bits(self, hidden: Tensor, place: Tensor) -> None:
        for some, part in zip(torch.split(hidden, _EIGHT_ROWS), torch.split(place, _EIGHT_ROWS), strict=True):
            torch.log_softmax(self._of_its_own(some), -1, out=part)

    def _write_in_bfloat16(self, matrix: Tensor, narrow: Tensor, hidden: Tensor, place: Tensor) -> None:
        rows = _narrow_rows(hidden)
        torch.mm(rows, matrix, out=narrow[: len(rows)])
        place.copy_(narrow[: len(hidden)])
        if self.bias is not None:
            place += self.bias
        torch.log_softmax(place, -1, out=place)

    def _write_by_blocks(self, blocks: _Blocks, hidden: Tensor, place: Tensor) -> None:
        torch.log_softmax(blocks.piece(hidden), -1, out=place)

    def _write_as_it_is(self, hidden: Tensor, place: Tensor) -> None:
        torch.mm(hidden, self._turned, out=place)
        if self.bias is not None:
            place += self.bias
        torch.log_softmax(place, -1, out=place)

    def _of_its_own(self, hidden: Tensor) -> Tensor:
        """Logits (N, V) in new memory, bias included."""
        if self.product is not None:
            return self._eight(hidden) if _EightBits.pays(len(hidden)) else self.product.forward(hidden)
        if self.narrow is None or len(hidden) < FEWEST_NARROW:
            return F.linear(hidden, self.weight, self.bias)
        logits = (hidden.to(self.narrow.dtype) @ self.narrow).float()
        return logits if self.bias is None else logits + self.bias


def feed_forward(module: nn.Module, precision: Precision) -> Any:
    """A function of x (N, D) that is the feed-forward layer with its products prepared."""
    if type(module) is FeedForward and (type(module[0]), type(module[1]), type(module[2])) == (Linear, nn.ReLU, Linear):
        products = [Product(cast(Linear, module[place]), precision=precision) for place in (0, 2)]
        first, second = (product.of_rows() for product in products)
        narrow_first, narrow_second = (product.narrow for product in products)

        def in_turn(x: Tensor) -> Tensor:
            if narrow_first is None or narrow_second is None or x.size(0) < FEWEST_NARROW:
                return second(first(x).relu_())
            inner = narrow_first(_narrow_rows(x), relu=True)  # (P, F)
            return narrow_second(inner)[: len(x)].to(x.dtype)

        return in_turn
    return with_products(module, precision)


def with_products(module: _Module, precision: Precision) -> _Module:
    """A module with its linear layers prepared, a copy unless they stay as they are."""
    if precision == "fp32" and not any(type(each) is Linear and _in_blocks(each.weight) for each in module.modules()):
        return module
    copied = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})  # these are not copied
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if type(child) is Linear and (precision != "fp32" or _in_blocks(child.weight)):
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


def check_finite(numbers: Tensor) -> None:
    """Raise DragomanError for a number of a model that is none, or infinite."""
    if not numbers.isfinite().all():
        raise DragomanError("not all numbers of the model are finite: the model's weights are damaged; use an undamaged copy")


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
