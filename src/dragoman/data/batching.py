"""Batches of similar lengths under a budget of tokens, in a seeded order (Section 5.1).

Shapes:  B pairs of a batch   S, T source and target tokens of its longest pair, end token included   A links between tokens
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.corpus import Corpus
from dragoman.errors import DragomanError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Pairs of sentences, padded at the right; ids are int64, masks True at tokens.

    The decoder reads ``target_input``, which begins with the start token, and learns to say ``target_output``, which ends with the end
    token: position t of the one is position t - 1 of the other.

    Of models of one sequence a decoder has no source, and an encoder reads the source and has no ``target_input``: these are (B, 0).
    ``target_mask`` is True where a loss is of the output, which may be fewer places than there are tokens (`data/packing.py`). ``links``
    are given alignments of tokens: row, place in ``target_output``, place in ``source``; None where the corpus has none.
    """

    source: Tensor  # (B, S)
    source_mask: Tensor  # (B, S)
    target_input: Tensor  # (B, T)
    target_output: Tensor  # (B, T)
    target_mask: Tensor  # (B, T)
    pairs: Indices  # (B,) places in the corpus
    links: Tensor | None = None  # (A, 3)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        ahead = device.type == "cuda"  # where `pinned` lets it be copied while other things are computed
        return self._each(lambda tensor: tensor.to(device, non_blocking=ahead))

    def pinned(self) -> "Batch":
        """The same batch in memory that a GPU reads by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = {name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return Batch(pairs=self.pairs, **tensors)


def draw_pairs(parts: Sequence[int], weights: Sequence[float], *, seed: int, epoch: int) -> Indices | None:
    """The pairs of an epoch by the weights of the parts of a corpus, those seen several times several times; None without weights.

    With weight w every pair of a part is seen ⌊w⌋ times, and the share w - ⌊w⌋ of them once more. These are the next ones in a fixed
    shuffled order that begins again at its end, so that over the epochs no pair is seen more than once more often than another.
    """
    if not weights:
        return None
    drawn, start = [np.empty(0, np.int64)], 0
    for number, (size, weight) in enumerate(zip(parts, weights, strict=True)):
        whole = int(weight)
        drawn += [np.arange(start, start + size)] * whole
        share = (weight - whole) * size
        first, stop = math.floor(epoch * share), math.floor((epoch + 1) * share)  # in all epochs together nothing is rounded away
        if stop > first:
            order = np.random.default_rng([seed, number, 1]).permutation(size)
            drawn.append(start + order[np.arange(first, stop) % size])
        start += size
    pairs = np.concatenate(drawn)
    return pairs if len(pairs) else np.array([epoch % start])  # an epoch without a pair would never end


def plan_batches(
    source_lengths: NDArray[Any], target_lengths: NDArray[Any], *, batch_tokens: int, seed: int, epoch: int, pairs: Indices | None = None
) -> list[Indices]:
    """The batches of an epoch: each pair once, similar lengths together, in an order that is a pure function of seed and epoch.

    ``pairs``, if given, are seen instead, each as often as it stands there. A batch of B pairs, padded, has at most ``batch_tokens``
    tokens on each side. Raises DragomanError for a pair that is longer.
    """
    random = np.random.default_rng([seed, epoch])
    # Pairs of equal lengths meet others in every epoch.
    shuffled = random.permutation(np.arange(len(source_lengths)) if pairs is None else pairs)
    order = shuffled[_by_length(source_lengths[shuffled], target_lengths[shuffled])]
    batches = _cut(order, source_lengths, target_lengths, batch_tokens)
    return [batches[index] for index in random.permutation(len(batches))]


def ordered_batches(source_lengths: NDArray[Any], target_lengths: NDArray[Any], *, batch_tokens: int) -> list[Indices]:
    """As ``plan_batches``, but always in the order of length: for validation and translation."""
    return _cut(_by_length(source_lengths, target_lengths), source_lengths, target_lengths, batch_tokens)


def padded_sizes(source_lengths: NDArray[Any], target_lengths: NDArray[Any], *, batch_tokens: int) -> tuple[Indices, Indices]:
    """Of the batches of an epoch, in the order of length: the tokens on the longer side with its padding, and the longest pair's.

    Every epoch has as many batches of the same sizes, for they depend on the lengths alone.
    """
    longer_sides = np.sort(np.maximum(source_lengths, target_lengths))
    bounds = _bounds(longer_sides.astype(np.int64), batch_tokens)
    longest = np.array([longer_sides[stop - 1] for _, stop in bounds], np.int64)
    return longest * np.array([stop - start for start, stop in bounds], np.int64), longest


def batches_of(lengths: Sequence[int], *, batch_tokens: int) -> list[list[int]]:
    """Places 0, 1, … of sequences with these lengths in batches of similar length: at most ``batch_tokens`` tokens each, padding counted.

    A sequence longer than that is a batch of its own.
    """
    as_array = np.asarray(lengths, dtype=np.int64)
    longest = int(as_array.max(initial=1))
    return [batch.tolist() for batch in ordered_batches(as_array, as_array, batch_tokens=max(batch_tokens, longest))]


def pad_rows(rows: Sequence[Sequence[int]], *, pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (B, S), padded at the right, and its mask (B, S), True at tokens."""
    lengths = np.array([len(row) for row in rows])
    ids = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    padded, mask = _gather(ids, lengths.cumsum() - lengths, lengths, pad)
    return torch.from_numpy(padded).to(device), torch.from_numpy(mask).to(device)


def collate(corpus: Corpus, indices: Indices, *, pad: int, bos: int) -> Batch:
    """The pairs of ``corpus`` at ``indices`` as tensors, in that order."""
    source, source_mask = _gather(*corpus.side(0, indices), pad)
    target, target_mask = _gather(*corpus.side(1, indices), pad)
    target_input = np.full_like(target, pad)
    target_input[:, 0] = bos
    target_input[:, 1:] = np.where(target_mask[:, 1:], target[:, :-1], pad)
    links = corpus.links_of(indices)
    return Batch(
        source=torch.from_numpy(source),
        source_mask=torch.from_numpy(source_mask),
        target_input=torch.from_numpy(target_input),
        target_output=torch.from_numpy(target),
        target_mask=torch.from_numpy(target_mask),
        pairs=indices,
        links=None if links is None else torch.from_numpy(links),
    )


def _by_length(source_lengths: NDArray[Any], target_lengths: NDArray[Any]) -> Indices:
    """The order by the longer side, which is what the budget counts, then by the difference of the sides.

    The difference rises and falls by turns, so that neighbours are alike also where the longer side grows by one.
    """
    longest = int(max(source_lengths.max(initial=0), target_lengths.max(initial=0)))
    narrow = np.min_scalar_type(-longest - 1)  # numpy sorts 16 bits several times as fast as 64
    source, target = source_lengths.astype(narrow), target_lengths.astype(narrow)
    longer_sides, differences = np.maximum(source, target), source - target
    return np.lexsort((np.where(longer_sides % 2, differences, -differences), longer_sides))


def _cut(order: Indices, source_lengths: NDArray[Any], target_lengths: NDArray[Any], batch_tokens: int) -> list[Indices]:
    """``order`` cut into runs, each as long as the budget allows."""
    longer_sides = np.maximum(source_lengths, target_lengths)[order].astype(np.int64)
    return [order[start:stop] for start, stop in _bounds(longer_sides, batch_tokens)]


def _bounds(longer_sides: Indices, batch_tokens: int) -> list[tuple[int, int]]:
    """Where the runs begin and end; DragomanError for a pair that is longer than the budget."""
    if len(longer_sides) and longer_sides.max() > batch_tokens:
        raise DragomanError(f"a pair of {longer_sides.max()} tokens does not fit batches of training.batch_tokens={batch_tokens}; raise it")
    bounds, start = [], 0
    while start < len(longer_sides):
        window = longer_sides[start : start + batch_tokens // longer_sides[start]]
        padded = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)  # never falls
        stop = start + int(np.searchsorted(padded, batch_tokens, side="right"))
        bounds.append((start, stop))
        start = stop
    return bounds


def _gather(ids: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[Any], pad: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The sequences of ``ids`` with these starts and lengths as rows padded at the right, and True where they have tokens."""
    columns = np.arange(lengths.max())
    mask = columns < lengths[:, None]
    padded = np.full(mask.shape, pad, np.int64)
    padded[mask] = ids[(starts[:, None] + columns)[mask]]
    return padded, mask
