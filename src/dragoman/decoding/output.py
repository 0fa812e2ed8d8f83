"""The output layer of a step (Section 3.4), in room that steps share: log-probabilities of what may follow, or the most probable alone.

Shapes:  N rows   n some of them   P = N rounded up   D = d_model   V target vocabulary   k tokens of each row
"""

import math
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.fused import chosen_tokens
from dragoman.decoding.matrices import FEWEST_NARROW, ByItself, Matrix, blocks_piece, narrow_rows, product
from dragoman.decoding.products import EIGHT_ROWS, EightBits, Precision, Product, goes_in_blocks, in_blocks
from dragoman.decoding.step import Asked, Likeliest, largest_of_rows
from dragoman.model.embedding import Embedding
from dragoman.model.linear import ROWS

_ALIGNED = 64  # bytes
_NEAR = 5 * 2**15  # logits that stay nearest to the processor until the largest of them are found
_BOUND = 64.0  # of logits, also as roughly as 8 bits make them: sums of their exponentials are far from float32's largest, e^88
_TWICE = 2**21  # numbers of an output matrix, up to which it is kept once more for single rows, which are faster so than by blocks


class OutputMatrix(NamedTuple):
    """The output matrix in the one form that rows of a number are taken by, and its bias."""

    turned: Tensor | None = None  # (D, V) in float32
    blocks: Tensor | None = None  # in float32 in oneDNN's blocks
    narrow: Tensor | None = None  # (D, V) in bfloat16
    bias: Tensor | None = None  # (V)
    eight: Matrix | None = None  # in 8 bits, bias included
    longest: float = math.inf  # the largest length of a row with its bias


def logits_of(hidden: Tensor, matrix: OutputMatrix, passing: Tensor | None) -> Tensor:
    """Logits (N, V) of hidden states (N, D), at most `ROWS`: in bfloat16 in the room ``passing``, without the bias, else in float32."""
    turned, blocks, narrow, bias, eight = matrix.turned, matrix.blocks, matrix.narrow, matrix.bias, matrix.eight
    if eight is not None:
        return product(hidden, eight)
    if narrow is not None and passing is not None:
        rows = narrow_rows(hidden)
        torch.mm(rows, narrow, out=passing[: rows.size(0)])
        return passing[: hidden.size(0)]
    if blocks is not None:
        return blocks_piece(hidden, blocks, bias)
    assert turned is not None
    return torch.mm(hidden, turned) if bias is None else torch.addmm(bias, hidden, turned)


def in_reach(logits: Tensor, matrix: OutputMatrix, room: Tensor, bounded: bool) -> Tensor:
    """Those of `logits_of` (N, V) in float32 with their bias, less the largest of their row where they are not ``bounded``, so that no sum
    of their exponentials is too large; in room for N rows, if not where they are.
    """
    if logits.dtype != room.dtype:
        logits = room[: logits.size(0)].copy_(logits)
    bias = matrix.bias
    if matrix.narrow is not None and bias is not None:
        logits.add_(bias)
    return logits if bounded else logits.sub_(logits.amax(1, keepdim=True))


def less_log(logits: Tensor, total: Tensor, place: Tensor) -> Tensor:
    """logits (N, any) less the logarithm of a total (N, 1), in place of the last: first a whole number near it, for what is left of a logit
    that is near it as well has no rounding of a large number then.
    """
    near = total.log().round_()
    return torch.sub(logits, near, out=place).sub_(near.neg().exp_().mul_(total).log_())


def are_bounded(hidden: Tensor, matrix: OutputMatrix, most: float = _BOUND) -> bool:
    """Whether the lengths of hidden states (N, D) and of the matrix's rows say that no logit is larger than this, or smaller than -it."""
    return (float(torch.linalg.vector_norm(hidden, dim=1).max()) + 1) * matrix.longest <= most


def likeliest_tokens(
    hidden: Tensor,
    matrix: OutputMatrix,
    room: Tensor,
    passing: Tensor | None,
    number: int,
    never: list[tuple[int, int]],
    together: int,
    few: int,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids (N, number) of the most probable tokens after hidden states (N, D), falling, without stretches of ids that
    may ``never`` follow; the product of so many rows ``together``, the rest of so ``few``, in the room (few or, in bfloat16, 2·few, V).
    """
    values: list[Tensor] = []
    tokens: list[Tensor] = []
    totals: list[Tensor] = []
    behind = room[few:] if matrix.narrow is not None else room
    for some in torch.split(hidden, together):
        bounded = are_bounded(some, matrix)
        for part in torch.split(logits_of(some, matrix, passing), few):
            logits = in_reach(part, matrix, room, bounded)
            totals.append(torch.exp(logits, out=behind[: part.size(0)]).sum(1, keepdim=True))
            for low, high in never:
                logits.narrow(1, low, high + 1 - low).fill_(-math.inf)
            value, token = largest_of_rows(logits, number)
            values.append(value)
            tokens.append(token)
    found = torch.cat(values)
    return less_log(found, torch.cat(totals), found), torch.cat(tokens)


class LogProbs(nn.Module):
    """Log-probabilities of all that may follow rows, as `LikeliestTokens` has them."""

    def forward(self, hidden: Tensor, matrix: OutputMatrix, place: Tensor, passing: Tensor | None, few: int) -> Tensor:
        """Those after hidden states (N, D), at most `ROWS`, of so ``few`` of them together, in their place (N, V)."""
        bounded = are_bounded(hidden, matrix)
        room = torch.empty([few, place.size(1)], dtype=place.dtype, device=place.device)
        for number, part in enumerate(torch.split(logits_of(hidden, matrix, passing), few)):
            some = place.narrow(0, number * few, part.size(0))
            logits = in_reach(part, matrix, some, bounded)
            less_log(logits, torch.exp(logits, out=room[: part.size(0)]).sum(1, keepdim=True), some)
        return place


class LikeliestTokens(nn.Module):
    """`likeliest_tokens`, with no more logits at once than stay near the processor."""

    def forward(
        self, hidden: Tensor, matrix: OutputMatrix, room: Tensor, passing: Tensor | None, number: int, never: list[tuple[int, int]],
        together: int, few: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As it."""
        return likeliest_tokens(hidden, matrix, room, passing, number, never, together, few)


@cache
def _by_itself(kind: type[nn.Module]) -> ByItself:
    return ByItself(kind())


class OutputProduct:
    """The output matrix, and its bias: hidden states to log-probabilities, or logits, of everything that may follow."""

    def __init__(self, output: Embedding, bias: Tensor | None, *, precision: Precision, fused: bool = False) -> None:
        weight = output.weight.detach()
        # Where numbers of a file lie in memory must not decide how a product rounds, so they lie as PyTorch's own do.
        self.weight = weight if weight.data_ptr() % _ALIGNED == 0 else weight.clone()  # (V, D)
        self.bias = None if bias is None else bias.detach()
        self.fused = fused  # whether kernels make and choose, of bf16
        self.narrow = weight.bfloat16().t().contiguous() if precision == "bf16" else None  # (D, V)
        self.product = Product(output, precision=precision, bias=bias) if precision == "int8" else None

    def __deepcopy__(self, known: dict[int, Any]) -> "OutputProduct":
        """Itself, which changes only by forms of the same matrix; PyTorch copies no tensor that lies in blocks."""
        return self

    @cached_property
    def _longest(self) -> float:
        """The largest length of a row with its bias; ∞ where no logit of the type may be as large as `_BOUND`."""
        if torch.finfo(self.weight.dtype).bits < 32:
            return math.inf
        squares = self.weight.square().sum(1)
        return float((squares if self.bias is None else squares + self.bias.square()).max().sqrt())

    @cached_property
    def _in_blocks(self) -> OutputMatrix:
        return OutputMatrix(blocks=in_blocks(self.weight), bias=self.bias, longest=self._longest)

    @cached_property
    def _turned(self) -> OutputMatrix:
        return OutputMatrix(turned=self.weight.t().contiguous(), bias=self.bias, longest=self._longest)

    @cached_property
    def _eight(self) -> EightBits:
        return EightBits(self.weight, self.bias)

    def room(self, rows: int, before: Tensor | None) -> Tensor | None:
        """Room for the log-probabilities of so many rows (N, V), that of before where it is enough; None where the product makes its own.

        New room for each step would take as long as the product, for the system clears every page of it.
        """
        if self.weight.device.type != "cpu" or (rows <= EIGHT_ROWS and self._in_eight_bits(rows)):
            return None
        return before if before is not None and before.size(0) >= rows else self.weight.new_empty(rows, self.weight.size(0))

    def of_one(self, before: Tensor | None) -> tuple[OutputMatrix, Tensor]:
        """The matrix as one row is taken by it, and room for its logits, that of before where there is some; of a CPU."""
        return self._matrix(1), cast(Tensor, self.room(1, before))

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

    def likeliest(self, hidden: Tensor, room: Tensor | None, asked: Asked) -> Likeliest:
        """What is asked after hidden states (N, D), in room for `ROWS` of them or all."""
        if self.fused and self.narrow is not None and asked.restrict is None:
            return Likeliest(*chosen_tokens(hidden, self.narrow, self.bias, min(asked.number, len(self.weight)), asked.never))
        if room is not None and asked.restrict is None and not self._in_eight_bits(len(hidden)):
            matrix, few = self._matrix_and_few(len(hidden))
            number, never = min(asked.number, len(self.weight)), [*asked.never]
            return Likeliest(*_by_itself(LikeliestTokens)(hidden, matrix, room, self._passing(matrix), number, never, ROWS, few))
        if len(hidden) <= ROWS:
            return asked.of(self.log_probs(hidden, room))
        parts = [asked.of(part, first) for first, part in self._parts(hidden, room)]
        return Likeliest(*map(torch.cat, zip(*parts, strict=True)))

    def _parts(self, hidden: Tensor, room: Tensor | None) -> Iterator[tuple[int, Tensor]]:
        """Log-probabilities of at most `ROWS` rows at a time and the number of the first, one after the other in the room; all at once
        without.
        """
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
        if self._in_eight_bits(rows):
            return self._write_some_in_eight_bits
        matrix, few = self._matrix_and_few(rows)
        passing = self._passing(matrix)
        return lambda hidden, place: _by_itself(LogProbs)(hidden, matrix, place, passing, few)

    def _matrix(self, rows: int) -> OutputMatrix:
        """The form that so many rows are taken by; not what a measurement says is faster here, for how a product rounds must not hang on
        one.
        """
        if self.product is not None:
            return OutputMatrix(eight=self.product.matrix, longest=self._longest)
        if self.narrow is not None and rows >= FEWEST_NARROW:
            return OutputMatrix(narrow=self.narrow, bias=self.bias, longest=self._longest)
        return self._in_blocks if (rows > 1 or self.weight.numel() > _TWICE) and goes_in_blocks(self.weight) else self._turned

    def _in_eight_bits(self, rows: int) -> bool:
        """Whether so many rows are for `EightBits`, or are so many that parts of them are."""
        return self.product is not None and (rows > EIGHT_ROWS or EightBits.pays(rows))

    def _matrix_and_few(self, rows: int) -> tuple[OutputMatrix, int]:
        """The matrix for so many rows, and how many of them are few enough for their logits to stay nearest to the processor."""
        matrix, most = self._matrix(rows), min(rows, ROWS)
        return matrix, max(1, min(_NEAR // len(self.weight), most if matrix.narrow is None else most // 2))

    def _passing(self, matrix: OutputMatrix) -> Tensor | None:
        return None if matrix.narrow is None else matrix.narrow.new_empty(ROWS, len(self.weight))

    def _write_some_in_eight_bits(self, hidden: Tensor, place: Tensor) -> None:
        for some, part in zip(torch.split(hidden, EIGHT_ROWS), torch.split(place, EIGHT_ROWS), strict=True):
            if EightBits.pays(len(some)):
                torch.log_softmax(self._eight(some), -1, out=part)
            else:
                self._writer(len(some))(some, part)

    def _of_its_own(self, hidden: Tensor) -> Tensor:
        """Logits (N, V) in new memory, bias included."""
        if self.product is not None:
            return self._eight(hidden) if EightBits.pays(len(hidden)) else cast(Tensor, self.product(hidden))
        if self.narrow is None or len(hidden) < FEWEST_NARROW:
            return F.linear(hidden, self.weight, self.bias)
        logits = (hidden.to(self.narrow.dtype) @ self.narrow).float()
        return logits if self.bias is None else logits + self.bias
