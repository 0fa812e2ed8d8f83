"""Keys and values as a search keeps them.

Shapes:  B sentences   M some of them   H heads   w = d_k or d_v   T positions   K new ones   R rows, each a position of a sentence

A product of one head of one sentence is small, and there are many, so how keys and values lie decides how soon they are read: a stretch of
memory for each of the two, in the order of the products, is read several times as fast as pieces with other numbers between them. A memory
of the source stays as it is, so it has no room to spare, and its keys may lie as the columns of a product. What has been seen of the target
grows, so it lies one position after another, and the room is behind.
"""

from functools import cache
from importlib.util import find_spec
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

KeysValues = tuple[Tensor, Tensor]


class Seen(NamedTuple):
    """What the attention of one layer sees."""

    keys: Tensor  # (B, H, T, d_k)
    values: Tensor  # (B, H, T, d_v)

    def first(self, sentences: int) -> Self:
        """The first so many sentences, in the same memory."""
        return type(self)(self.keys[:sentences], self.values[:sentences])


class Memory(Seen):
    """Of the source, without room for more."""

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, *, as_columns: bool, fewest: int = 1) -> Self:
        """That of keys (B, T, H, d_k) and values (B, T, H, d_v), with zeros behind them where there are fewer positions than the fewest.

        Keys that lie as columns do so in memory, (B, H, d_k, T).
        """
        if (more := fewest - keys.size(1)) > 0:
            keys, values = (F.pad(each, (0, 0, 0, 0, 0, more)) for each in (keys, values))
        keys = keys.permute(0, 2, 3, 1).contiguous().transpose(2, 3) if as_columns else keys.transpose(1, 2).contiguous()
        return cls(keys, values.transpose(1, 2).contiguous())

    @property
    def as_columns(self) -> bool:
        """Whether the keys lie as columns."""
        return self.keys.stride(3) != 1

    def select(self, sentences: Tensor) -> Self:
        """That of the sentences (M,) of these."""
        keys, values = (each.index_select(0, sentences) for each in self._as_they_lie())
        return type(self)(keys.transpose(2, 3) if self.as_columns else keys, values)

    def move(self, origin: Tensor, place: Tensor) -> None:
        """Sentences (M,) take the places (M,) of others."""
        for each in self._as_they_lie():
            _move(each, origin, place)

    def _as_they_lie(self) -> tuple[Tensor, Tensor]:
        return self.keys.transpose(2, 3) if self.as_columns else self.keys, self.values


class Growing(Seen):
    """Of the target so far, with room behind it: in memory (T, B, H, w); of a sentence alone keys and values of a position side by side."""

    @classmethod
    def of(cls, like: Tensor, sentences: int, heads: int, sizes: tuple[int, int], room: int) -> Self:
        """Room for so many positions, with anything in it; ``sizes`` are d_k and d_v."""
        if sentences > 1:
            return cls(*(like.new_empty(room, sentences, heads, size).permute(1, 2, 0, 3) for size in sizes))
        width = heads * sum(sizes)  # of a position; the stride of the sentence says that there is one
        both, starts = like.new_empty(room, width), (0, heads * sizes[0])
        places = zip(sizes, starts, strict=True)
        return cls(*(both.as_strided((1, heads, room, size), (width, size, width, 1), start) for size, start in places))

    @property
    def room(self) -> int:
        """The positions that there is room for."""
        return self.keys.size(2)

    @property
    def step(self) -> int:
        """Rows from one position to the next."""
        return self.keys.stride(2) // self.keys.stride(0)

    def part(self, start: int, count: int) -> Seen:
        """So many positions, in the same memory."""
        return Seen(self.keys.narrow(2, start, count), self.values.narrow(2, start, count))

    @classmethod
    def holding(cls, seen: Seen, room: int) -> Self:
        """A cache that begins with positions of another, with room for so many."""
        sentences, heads, _, size = seen.values.shape
        made = cls.of(seen.values, sentences, heads, (seen.keys.size(3), size), room)
        made.begin_with(seen)
        return made

    def begin_with(self, seen: Seen) -> None:
        """Other positions take the place of the first."""
        for new, old in zip(self.part(0, seen.keys.size(2)), seen, strict=True):
            new.copy_(old)

    def rows(self, positions: Tensor, sentences: Tensor) -> Tensor:
        """Which rows (R,) these positions of these sentences are, which are broadcast."""
        return (positions * self.step + sentences).flatten()

    def taken(self, rows: Tensor, sentences: int) -> Seen:
        """Rows (R,), position by position, so many sentences in each."""
        heads = self.keys.size(1)
        taken = (each.index_select(0, rows).view(-1, sentences, heads, each.size(1) // heads) for each in self._rows())
        return Seen(*(each.permute(1, 2, 0, 3) for each in taken))

    def select(self, rows: Tensor, sentences: int) -> Self:
        """The same as a cache, with room for no more."""
        taken = self.taken(rows, sentences)
        return self.holding(taken, len(rows) // sentences) if sentences == 1 else type(self)(*taken)

    def move(self, origin: Tensor, place: Tensor) -> None:
        """Rows (R,) take the places (R,) of others."""
        for each in self._rows():
            _move(each, origin, place)

    def _rows(self) -> list[Tensor]:
        """Keys and values as rows of all heads, those of sentences that have left included."""
        count = self.room * self.step
        return [each.as_strided((count, each.size(1) * each.size(3)), (each.stride(0), 1), each.storage_offset()) for each in self]


@cache
def has_kernels() -> bool:
    """Whether Numba, which compiles them, is installed."""
    return find_spec("numba") is not None


def _move(rows: Tensor, origin: Tensor, place: Tensor) -> None:
    """Rows (R, any) of some take the places (R,) of others."""
    width = rows.numel() // max(1, rows.size(0))
    if rows.dtype == torch.bfloat16 and rows.device.type == "cpu" and width == rows.stride(0) and width % 16 == 0 and has_kernels():
        from dragoman.decoding import kernels

        kernels.move(rows.data_ptr(), origin.numpy(), place.numpy(), width)
    else:
        rows.index_copy_(0, place, rows.index_select(0, origin))


def write(own: KeysValues, start: int, made: Tensor) -> None:
    """Keys and values side by side (B·K, H·d_k + H·d_v) become those of K positions of a `Growing`, from ``start`` on."""
    key, value = own
    count, heads, width = made.size(0) // key.size(0), key.size(1), made.size(1)
    if key.stride(2) == key.stride(0):  # of a sentence alone keys and values of a position lie side by side
        key.as_strided([count, width], [width, 1], start * width).copy_(made)
    else:
        keys = heads * key.size(3)
        key.narrow(2, start, count).copy_(as_heads(made[:, :keys], count, heads))
        value.narrow(2, start, count).copy_(as_heads(made[:, keys:], count, heads))


def as_heads(rows: Tensor, count: int, heads: int) -> Tensor:
    """(N, H·w) as (B, H, K, w)."""
    return rows.view(-1, count, heads, rows.size(1) // heads).transpose(1, 2)
