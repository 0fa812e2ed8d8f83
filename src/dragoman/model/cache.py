"""Keys and values already seen, for decoding one position after another (Section 3.1: the model is auto-regressive).

Shapes:  B batch   H heads of keys and values   T positions   K = d_k   V = d_v   S source positions
A cache is a value: every operation returns a new one and changes nothing.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor


class KeysValues(NamedTuple):
    """Projected heads of keys (B, H, T, K) and values (B, H, T, V)."""

    key: Tensor
    value: Tensor

    def append(self, newer: "KeysValues") -> "KeysValues":
        """These positions followed by the newer ones."""
        return KeysValues(torch.cat((self.key, newer.key), 2), torch.cat((self.value, newer.value), 2))

    def select(self, rows: Tensor) -> "KeysValues":
        """The batch rows of the given indices (M,), which may drop, repeat and permute."""
        return KeysValues(self.key.index_select(0, rows), self.value.index_select(0, rows))


class DecoderCache(Protocol):
    """What any decoder has seen, as search handles it."""

    @property
    def length(self) -> int:
        """Target positions seen."""
        ...

    def reorder(self, rows: Tensor) -> Self:
        """The hypotheses of the given batch rows (M,), in that order, which may drop, repeat and permute."""
        ...


@dataclass(frozen=True)
class LayerCache:
    """What one decoder layer has seen: its own positions, which grow, and the encoder's, projected once."""

    memory: KeysValues
    own: KeysValues | None = None

    @property
    def length(self) -> int:
        """Its own positions seen."""
        return 0 if self.own is None else self.own.key.size(2)


@dataclass(frozen=True)
class Cache:
    """What a decoder has seen: a `LayerCache` each layer, and the mask of the memory (B, 1, 1, S) or None."""

    layers: tuple[LayerCache, ...]
    memory_mask: Tensor | None = None

    @property
    def length(self) -> int:
        """Target positions seen."""
        return self.layers[0].length

    def reorder(self, rows: Tensor) -> "Cache":
        """The hypotheses of the given batch rows (M,), in that order: beams change places, finished sentences leave."""
        mask = None if self.memory_mask is None else self.memory_mask.index_select(0, rows)
        return Cache(tuple(_reorder(layer, rows) for layer in self.layers), mask)


@dataclass(frozen=True)
class SelfCache:
    """What a decoder-only model has seen: the keys and values of each layer, none before the first position.

    ``padding`` (B,) is how many positions stand before the first token of each row, which attend to nothing and are not counted; or None.
    """

    layers: tuple[KeysValues, ...] = ()
    padding: Tensor | None = None

    @property
    def length(self) -> int:
        """Positions seen, padding included."""
        return self.layers[0].key.size(2) if self.layers else 0

    def reorder(self, rows: Tensor) -> "SelfCache":
        """The sequences of the given batch rows (M,), in that order."""
        padding = None if self.padding is None else self.padding.index_select(0, rows)
        return SelfCache(tuple(layer.select(rows) for layer in self.layers), padding)


def _reorder(layer: LayerCache, rows: Tensor) -> LayerCache:
    return replace(layer, memory=layer.memory.select(rows), own=layer.own and layer.own.select(rows))
