"""Products of a matrix that is laid out once, as functions of tensors alone, so that PyTorch can run them by itself (`ByItself`).

Shapes:  N rows   P = N rounded up   I numbers in   O numbers out   F = d_ff

What PyTorch runs by itself is a part of Python, in which a number that a function takes from outside stands among its arguments.
"""

import platform
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple, Optional, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import DragomanError
from dragoman.model.linear import ROWS

FEWEST_NARROW = ROWS // 2
"""Rows from which a product of bf16 is in bfloat16: fewer are faster as they are, in float32."""

_SINGLE = 8  # rows by a small matrix, up to which a product of int8 is in float32, which takes less time
ONEDNN = platform.machine().lower() in ("x86_64", "amd64") and all(  # on other processors it was not measured
    hasattr(torch.ops.mkldnn, name)  # PyTorch promises none of them, and has none where it was built without oneDNN
    for name in ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
)
Packed: Any = torch.classes.quantized.LinearPackedParamsBase


class Matrix(NamedTuple):
    """x Wᵀ + b, in the forms that it is taken in: which one, the number of rows decides."""

    turned: Tensor | None = None  # Wᵀ (I, O) in float32
    blocks: Tensor | None = None  # W in float32 in oneDNN's blocks, in place of it
    bias: Tensor | None = None  # (O)
    narrow: Tensor | None = None  # W in bfloat16 in oneDNN's blocks, or Wᵀ (I, O) where it takes none, for many rows
    narrow_bias: Tensor | None = None  # (O)
    narrow_blocks: bool = False
    packed: Optional[Packed] = None  # noqa: UP045 - W and b in 8 bits, for all rows but few by what is also there in float32
    seven_bits: bool = False  # of inputs, where sums of 8 could be lost

    def __deepcopy__(self, known: dict[int, Any]) -> "Matrix":
        """Itself, which never changes; PyTorch copies no tensor that lies in blocks."""
        return self


def product(x: Tensor, matrix: Matrix, least: int = FEWEST_NARROW, single: int = _SINGLE) -> Tensor:
    """x (N, I); returns (N, O), as x."""
    turned, blocks, bias, packed = matrix.turned, matrix.blocks, matrix.bias, matrix.packed
    if packed is not None and (turned is None or x.size(0) > single):
        return in_eight_bits(x.float(), packed, matrix.seven_bits)
    if matrix.narrow is not None and x.size(0) >= least:
        return narrow_product(narrow_rows(x), matrix)[: x.size(0)].to(x.dtype)
    if blocks is not None:
        return blocks_product(x, blocks, bias)
    assert turned is not None
    return torch.mm(x, turned) if bias is None else torch.addmm(bias, x, turned)


def in_eight_bits(x: Tensor, packed: Packed, seven_bits: bool) -> Tensor:
    """x (N, I) by a matrix in 8 bits; DragomanError for numbers that are none."""
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        made: Tensor = torch.ops.quantized.linear_dynamic(x, packed, seven_bits)
        return made
    else:  # what runs by itself has no errors but its own, and is computed again where it fails (`ByItself`)
        return _or_named(x, packed, seven_bits)


def _or_named(x: Tensor, packed: Packed, seven_bits: bool) -> Tensor:
    try:
        return cast(Tensor, torch.ops.quantized.linear_dynamic(x, packed, seven_bits))
    except RuntimeError:
        check_finite(x)  # what has no largest number has no scale
        raise


def relu_products(x: Tensor, first: Matrix, second: Matrix, least: int = FEWEST_NARROW) -> Tensor:
    """max(0, x W_1ᵀ + b_1) W_2ᵀ + b_2, equation (2), of x (N, I)."""
    if first.narrow is None or second.narrow is None or x.size(0) < least:
        return product(product(x, first).relu_(), second)
    inner = narrow_product(narrow_rows(x), first, relu=True)  # (P, F)
    return narrow_product(inner, second)[: x.size(0)].to(x.dtype)


def narrow_rows(x: Tensor, most: int = ROWS) -> Tensor:
    """x (N, I) as rows (P, I) in bfloat16: of few rows, those that fill them up would be a good part, so there are fewer."""
    count = x.size(0)
    multiple = most // 4 if count <= most else most // 2 if count <= 4 * most else most
    if x.device.type != "cpu" or count % multiple == 0:
        return x.to(torch.bfloat16)
    narrow = torch.empty([(count + multiple - 1) // multiple * multiple, x.size(1)], dtype=torch.bfloat16)
    narrow[:count].copy_(x)
    narrow[count:].zero_()
    return narrow


def narrow_product(rows: Tensor, matrix: Matrix, relu: bool = False) -> Tensor:
    """rows (P, I) in bfloat16; returns (P, O) in the same, with a ReLU if wanted.

    The bias is rounded as the matrix is, and added before the sum is rounded.
    """
    narrow, bias = matrix.narrow, matrix.narrow_bias
    assert narrow is not None
    if matrix.narrow_blocks:
        return by_onednn(rows, narrow, bias, "relu" if relu else "none")
    made = torch.mm(rows, narrow) if bias is None else torch.addmm(bias, rows, narrow)
    return made.relu_() if relu else made


def blocks_product(x: Tensor, blocks: Tensor, bias: Tensor | None, together: int = ROWS) -> Tensor:
    """x (N, I) by a matrix in float32 in oneDNN's blocks, so many rows together that what is in passing stays near the processor.

    What PyTorch takes otherwise is slower on processors of AMD, above all for few rows; for a single one it may be faster.
    """
    if x.size(0) <= together:
        return blocks_piece(x, blocks, bias)
    return torch.cat([blocks_piece(some, blocks, bias) for some in torch.split(x, together)])


def blocks_piece(x: Tensor, blocks: Tensor, bias: Tensor | None) -> Tensor:
    """The same of few rows. oneDNN writes code for each new count, and takes longer for fewer than 4 rows than for 4."""
    count = x.size(0)
    multiple = 4 if count < 4 else 1 if count <= 8 else 8 if count <= 64 else 16
    more = (multiple - count % multiple) % multiple
    if more > 0:
        x = F.pad(x, [0, 0, 0, more])
    return by_onednn(x.float(), blocks, bias, "none")[:count]  # under a caller's autocast attention may give another type


if ONEDNN:

    def by_onednn(x: Tensor, blocks: Tensor, bias: Tensor | None, then: str) -> Tensor:
        """x (N, I) by a matrix in oneDNN's blocks; ``then``: relu or none."""
        none: list[int | float | complex | None] = []
        made: Tensor = torch.ops.mkldnn._linear_pointwise(x, blocks, bias, then, none, "")
        return made

else:

    def by_onednn(x: Tensor, blocks: Tensor, bias: Tensor | None, then: str) -> Tensor:
        """Never called: no matrix lies in blocks here."""
        raise NotImplementedError


class ByItself:
    """A module as PyTorch runs it without Python's interpreter (TorchScript): a call costs less, and does not wait for other threads that
    want the interpreter. Where PyTorch does not, for newer versions may drop it, the module is called as it is.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.scripted = module, _scripted(module)

    def __call__(self, *arguments: Any) -> Any:
        """What the module returns; what it raises is of the module itself, which may be called twice for it."""
        if self.scripted is not None:
            with suppress(RuntimeError):
                return self.scripted(*arguments)
        return self.module.forward(*arguments)

    def __deepcopy__(self, known: dict[int, Any]) -> "ByItself":
        """Itself, which never changes; PyTorch copies no tensor that lies in blocks."""
        return self


_scripting = Lock()  # two threads that script the same kind of module see each other's half-made types


def _scripted(module: nn.Module) -> Callable[..., Any] | None:
    if sys.version_info >= (3, 14):  # which TorchScript was not made for
        return None
    with _scripting, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return torch.jit.script(module).forward  # not its call, which hooks of all modules see
        except Exception:  # of whatever kind, which is PyTorch's own affair
            return None


def check_finite(numbers: Tensor) -> None:
    """Raise DragomanError for a number of a model that is none, or infinite."""
    if not numbers.isfinite().all():
        raise DragomanError("not all numbers of the model are finite: the model's weights are damaged; use an undamaged copy")
