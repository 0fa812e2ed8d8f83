"""Sequences of ids of many lengths, one after the other in one array."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Sequences of ids of many lengths, one after the other."""

    ids: Ids
    starts: Places
    lengths: Ids

    @classmethod
    def of(cls, ids: Ids, lengths: Ids) -> Self:
        """Those of ``lengths``, one after the other."""
        ends = np.cumsum(lengths, dtype=np.int64)
        return cls(ids, ends - lengths, lengths)

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[int]]) -> Self:
        """The same sequences."""
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        return cls.of(np.fromiter(chain.from_iterable(lists), np.int32, lengths.sum(dtype=np.int64)), lengths)

    def take(self, which: NDArray[Any]) -> "Rows":
        """The sequences of these numbers, in that order."""
        lengths = self.lengths[which]
        return Rows.of(self.ids[ranges(self.starts[which], lengths)], lengths)

    def followed_by(self, others: "Rows") -> "Rows":
        """These sequences, and behind them the others."""
        return Rows.of(np.concatenate((self.ids, others.ids)), np.concatenate((self.lengths, others.lengths)))

    def between(self, before: Sequence[int], after: Sequence[int]) -> "Rows":
        """Each sequence with the same ids before it and the same behind it."""
        count = len(self.lengths)
        which = np.full((count, 3), (count, 0, count + 1))
        which[:, 1] = np.arange(count)
        framed = self.followed_by(Rows.of_lists([before, after])).take(which.ravel())
        return Rows.of(framed.ids, framed.lengths.reshape(-1, 3).sum(1, dtype=np.int32))


def ranges(starts: NDArray[Any], lengths: NDArray[Any]) -> Places:
    """start, start + 1 … of each start, as many as its length, one after the other."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
