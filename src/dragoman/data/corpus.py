"""Parallel text as ids in memory-mapped files, so that a corpus may be larger than memory (Section 5.1).

A corpus is a folder: ``source.ids`` and ``target.ids`` (all sentences one after the other, each with its end token),
``source.lengths`` and ``target.lengths``, ``line_numbers``, and ``corpus.json``. Numbers are little-endian.
"""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenizer import Tokenizer
from dragoman.data.word_table import WordTable
from dragoman.errors import DragomanError
from dragoman.files import new_folder

logger = logging.getLogger("dragoman")

FORMAT_VERSION = 1
CHUNK_PAIRS = 10_000
FILES = ("source.ids", "target.ids", "source.lengths", "target.lengths", "line_numbers")
_REASONS = "", "empty side", "longer than max_length", "longer than the batch budget"  # why a pair is dropped; the first is for none


@dataclass(frozen=True)
class Corpus:
    """Pairs of id sequences, each with its end token and without the start token.

    ``source_lengths`` and ``target_lengths`` count tokens, end token included; ``line_numbers`` are the places of the kept pairs in
    the text, from 1; ``dropped`` counts the others by reason; ``unknown`` counts the words that the vocabularies have no entry for;
    ``parts`` are the numbers of kept pairs of the texts that it was built of, in their order.
    """

    source_ids: NDArray[Any]
    target_ids: NDArray[Any]
    source_lengths: NDArray[np.int32]
    target_lengths: NDArray[np.int32]
    source_starts: NDArray[np.int64]
    target_starts: NDArray[np.int64]
    line_numbers: NDArray[np.int32]
    dropped: dict[str, int]
    fingerprint: str
    unknown: int = 0
    parts: tuple[int, ...] = ()

    @classmethod
    def build(
        cls,
        folder: Path,
        *parts: Iterable[tuple[str, str]],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        max_length: int,
        batch_tokens: int,
        tags: Sequence[str] = (),
    ) -> Self:
        """Encode the pairs of all ``parts`` into the new folder ``folder``, which gets its name only when it is whole.

        Of ``tags``, names that the source tokenizer knows, each is put before every source of its part.

        A pair is dropped when a side is empty or white space, or has more than ``max_length`` or ``batch_tokens`` tokens with its end
        token. Raises DragomanError when the folder exists, when nothing is left, or when nothing can be written.
        """
        with new_folder(folder) as partial:
            writer = _Writer(partial, source_tokenizer, target_tokenizer, max_length=max_length, batch_tokens=batch_tokens)
            writer.write(parts, [[source_tokenizer.tags[tag]] for tag in tags] or [[]] * len(parts))
            if not writer.sizes["line_numbers"]:
                raise DragomanError(f"{folder.name}: {writer.nothing_left()}")
        corpus = cls.open(folder)
        if corpus.dropped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in corpus.dropped.items())
            total = len(corpus) + sum(corpus.dropped.values())
            logger.warning("%s: dropped %d of %d pairs (%s)", folder.name, total - len(corpus), total, reasons)
        return corpus

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The corpus that ``build`` wrote into ``folder``; DragomanError when it is missing or damaged."""
        try:
            facts = json.loads((folder / "corpus.json").read_bytes())
            if facts["format"] != FORMAT_VERSION:
                raise ValueError(f"format {facts['format']}")
            if not set(facts["types"].values()) <= {"<u2", "<i4"}:
                raise ValueError(f"types {facts['types']}")
            arrays = [np.memmap(folder / name, facts["types"][name], "r").view(np.ndarray) for name in FILES]
            sizes = [len(array) for array in arrays]
            source_ids, target_ids, source_lengths, target_lengths, line_numbers = arrays
            if sizes != [facts["sizes"][name] for name in FILES]:
                raise ValueError(f"sizes {sizes}")
            return cls(
                source_ids=source_ids,
                target_ids=target_ids,
                source_lengths=source_lengths,
                target_lengths=target_lengths,
                source_starts=_starts(source_lengths),
                target_starts=_starts(target_lengths),
                line_numbers=line_numbers,
                dropped=dict(facts["dropped"]),
                fingerprint=facts["fingerprint"],
                unknown=facts.get("unknown", 0),
                parts=tuple(facts.get("parts", [sizes[-1]])),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DragomanError(f"{folder}: not a whole corpus ({error}); build it again from the text") from None

    def of_epoch(self, epoch: int, *, seed: int, most: int) -> "Corpus":
        """The corpus as it is seen in an epoch, no longer than ``most``: the same in each, but for a `SampledCorpus`."""
        return self

    def predicted(self, indices: NDArray[Any]) -> int:
        """Target tokens of the pairs at ``indices`` that a loss is of."""
        return int(self.target_lengths[indices].sum())

    def aligned(self, indices: NDArray[Any]) -> int:
        """Target tokens of the pairs at ``indices`` whose source tokens are given; none, but for an `AlignedCorpus`."""
        return 0

    def links_of(self, indices: NDArray[Any]) -> NDArray[np.int64] | None:
        """Which source tokens these are, as (A, 3): the place of the pair in ``indices``, the target token, the source token."""
        return None

    def side(self, number: int, indices: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
        """The source (0) or target (1) of the pairs at ``indices``: ids in which they are, where they start there, and their lengths."""
        ids, starts, lengths = (
            (self.target_ids, self.target_starts, self.target_lengths)
            if number
            else (self.source_ids, self.source_starts, self.source_lengths)
        )
        return ids, starts[indices], lengths[indices]

    def __len__(self) -> int:
        """Pairs."""
        return len(self.source_lengths)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The ids of a pair, (S,) and (T,), each with its end token."""
        source, target = self.source_starts[index], self.target_starts[index]
        return (
            self.source_ids[source : source + self.source_lengths[index]],
            self.target_ids[target : target + self.target_lengths[index]],
        )


def _starts(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    ends = np.cumsum(lengths, dtype=np.int64)
    return ends - lengths


class _Writer:
    """Encodes pairs chunk by chunk into the files of a folder."""

    def __init__(self, folder: Path, source: Tokenizer, target: Tokenizer, *, max_length: int, batch_tokens: int) -> None:
        self.folder, self.source, self.target = folder, source, target
        self.tables = WordTable(source), WordTable(target)
        self.max_length, self.batch_tokens = max_length, batch_tokens
        id_types = ["<u2" if len(tokenizer) <= 1 << 16 else "<i4" for tokenizer in (source, target)]
        self.types = dict(zip(FILES, [*id_types, "<i4", "<i4", "<i4"], strict=True))
        self.hashes = {name: hashlib.sha256() for name in FILES}
        self.sizes = dict.fromkeys(FILES, 0)
        self.dropped: Counter[str] = Counter()
        self.unknown = 0
        self.shortest = 0  # tokens of the shortest pair seen, by its longer side

    def write(self, parts: Sequence[Iterable[tuple[str, str]]], heads: Sequence[list[int]]) -> None:
        files = {name: (self.folder / name).open("wb") for name in FILES}
        seen, kept = 0, []
        try:
            for pairs, head in zip(map(iter, parts), heads, strict=True):
                before = self.sizes["line_numbers"]
                while chunk := list(islice(pairs, CHUNK_PAIRS)):
                    encoded = self._encode(chunk, head, first=seen + 1)
                    seen += len(chunk)
                    for name, values in encoded.items():
                        array = values.astype(self.types[name])
                        self.sizes[name] += len(array)
                        self.hashes[name].update(array.data)
                        files[name].write(array.data)
                kept.append(self.sizes["line_numbers"] - before)
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        finally:
            for file in files.values():
                file.close()
        facts = {
            "format": FORMAT_VERSION,
            "types": self.types,
            "sizes": self.sizes,
            "dropped": dict(self.dropped),
            "unknown": self.unknown,
            "parts": kept,
            "fingerprint": hashlib.sha256("".join(each.hexdigest() for each in self.hashes.values()).encode()).hexdigest(),
        }
        (self.folder / "corpus.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")

    def _encode(self, chunk: list[tuple[str, str]], head: list[int], *, first: int) -> dict[str, NDArray[Any]]:
        """What the files get of the pairs of ``chunk``, whose line numbers begin with ``first``."""
        source, target = (table.encode(texts) for table, texts in zip(self.tables, zip(*chunk, strict=True), strict=True))
        before = [*self.source.opening, *head]
        after = self.source.as_source(head)[len(before) :]
        longest = np.maximum(source.lengths + (len(before) + len(after)), target.lengths + 1)
        blank = np.array([not (pair[0].strip() and pair[1].strip()) for pair in chunk])
        empty = (source.lengths == 0) | (target.lengths == 0) | blank
        if not empty.all():
            shortest = int(longest[~empty].min())
            self.shortest = min(self.shortest or shortest, shortest)
        reasons = np.select([empty, longest > self.max_length, longest > self.batch_tokens], [1, 2, 3])
        self.dropped.update(_REASONS[reason] for reason in reasons[reasons > 0])
        kept = np.flatnonzero(reasons == 0)
        source, target = source.take(kept), target.take(kept)
        self.unknown += int((source.ids == self.source.unk).sum() + (target.ids == self.target.unk).sum())
        source, target = source.between(before, after), target.between([], [self.target.eos])
        return dict(zip(FILES, [source.ids, target.ids, source.lengths, target.lengths, first + kept], strict=True))

    def nothing_left(self) -> str:
        """Why no pair was kept, and what helps."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items()) or "there were none"
        if not self.shortest:
            return f"no pair of lines is left ({reasons}); give a corpus with text on both sides"
        limits = {
            f"data.max_length and model.max_positions, of which the lower is {self.max_length},": self.max_length,
            f"training.batch_tokens={self.batch_tokens}": self.batch_tokens,
        }
        lower = " and ".join(name for name, limit in limits.items() if limit < self.shortest)
        shortest = f"the shortest has {self.shortest} tokens with its end token; raise {lower} to at least that"
        return f"no pair of lines is left ({reasons}): {shortest}"
