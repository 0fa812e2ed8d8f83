"""BPE dropout: each epoch spells the words of a corpus in other pieces (Provilkov et al. 2020), for a model that learns from more of them.

From its single bytes on, a word's neighbours are merged in the order that the tokenizer has learnt, but each merge that could be next is
left out with a probability, anew each time. What comes of it is a pure function of seed and epoch.

Shapes:  W distinct words   N samples of one length   L their symbols
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import CHUNK_PAIRS, Corpus
from dragoman.data.rows import Ids, Places, Rows, ranges
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from dragoman.files import new_folder

VARIANTS = 8
"""Ways in which a word is spelled in an epoch, or as many as there are places where it stands; each place has one of them by chance."""

_SIDES = ("source", "target")
_CHUNK = 1 << 20  # words, or samples, at a time
_NEVER = np.iinfo(np.int32).max  # the rank of a pair that is no merge


@dataclass(frozen=True)
class Words:
    """The words of one side of a corpus: what the tokenizer merges within, and end tokens and tags, which are words of their own.

    ``numbers`` has the words of all pairs one after the other, ``starts`` and ``counts`` where each pair's are; ``spelled`` are the
    distinct words as the tokenizer spells them.
    """

    numbers: Ids
    starts: Places
    counts: Ids
    spelled: Rows


@dataclass(frozen=True)
class SampledCorpus(Corpus):
    """A corpus whose words are spelled anew in every epoch; lengths and ids are the tokenizer's own until an epoch is asked for.

    ``longest`` is the most tokens that a sentence may have: one that would have more keeps the tokenizer's spelling.
    """

    words: tuple[Words, ...] = ()
    merges: tuple["Merges", ...] = ()
    dropout: float = 0.0
    longest: int = 0
    latest: dict[tuple[int, int, int], Corpus] = field(default_factory=dict)

    def of_epoch(self, epoch: int, *, seed: int, most: int) -> Corpus:
        """The corpus as it is spelled in an epoch, no sentence longer than ``most`` unless the tokenizer's own spelling is."""
        asked = epoch, seed, most
        if asked not in self.latest:
            self.latest.clear()
            limit = min(self.longest, most)
            sides = []
            for number, (words, merges) in enumerate(zip(self.words, self.merges, strict=True)):
                random = np.random.default_rng([seed, epoch, number, 2])
                sides.append(_spell(words, merges, self.dropout, random, limit=limit))
            common = {name: value for name, value in vars(self).items() if name in Corpus.__dataclass_fields__}
            lengths = {f"{name}_lengths": side.lengths for name, side in zip(_SIDES, sides, strict=True)}
            self.latest[asked] = _EpochCorpus(**common | lengths, spelled=tuple(sides))
        return self.latest[asked]


@dataclass(frozen=True)
class _Spelling:
    """One side in an epoch: of each word the tokenizer's spelling, then all others; which pairs keep the first; the tokens of each pair."""

    words: Words
    rows: Rows
    first: Places
    ways: Ids
    key: np.uint64
    kept: NDArray[np.bool_]
    lengths: Ids

    def variants(self, start: int, stop: int) -> Places:
        """The row of each word from ``start`` to ``stop`` of the text, if its pair does not keep the tokenizer's spelling."""
        return self.at(np.arange(start, stop))

    def at(self, places: Places) -> Places:
        """The same for the words at these places."""
        numbers = self.words.numbers[places]
        chance = _mixed(places.astype(np.uint64) + self.key) >> np.uint64(32)
        chosen: Places = self.first[numbers] + (chance * self.ways[numbers].astype(np.uint64) >> np.uint64(32)).astype(np.int64)
        return chosen

    def of_pairs(self, indices: NDArray[Any]) -> Rows:
        """The ids of these pairs' side."""
        counts = self.words.counts[indices]
        places = ranges(self.words.starts[indices], counts)
        rows = self.rows.take(np.where(np.repeat(self.kept[indices], counts), self.words.numbers[places], self.at(places)))
        return Rows.of(rows.ids, self.lengths[indices])


@dataclass(frozen=True)
class _EpochCorpus(Corpus):
    spelled: tuple[_Spelling, ...] = ()

    def side(self, number: int, indices: NDArray[Any]) -> tuple[NDArray[Any], Places, NDArray[Any]]:
        rows = self.spelled[number].of_pairs(indices)
        return rows.ids, rows.starts, rows.lengths


@dataclass(frozen=True)
class Merges:
    """What a byte-pair tokenizer has learnt: which two neighbours become which one, and in which order.

    ``keys`` are left · size + right in rising order; ``symbols`` the bytes of every entry, special ones and tags as they are.
    """

    size: int
    keys: Places
    ranks: Ids
    results: Ids
    symbols: Rows

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Those of a tokenizer of byte pairs."""
        model = json.loads(tokenizer.backend.to_str())["model"]
        vocabulary: dict[str, int] = model["vocab"]
        size = len(tokenizer)
        pairs = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        keys = np.array([vocabulary[left] * size + vocabulary[right] for left, right in pairs], np.int64)
        results = np.array([vocabulary[left + right] for left, right in pairs], np.int32)
        order = np.argsort(keys)
        whole = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, *tokenizer.tags.values()}
        entries = sorted(
            (token, [token] if token in whole else [vocabulary[byte] for byte in entry]) for entry, token in vocabulary.items()
        )
        symbols = Rows.of(
            np.array([symbol for _, entry in entries for symbol in entry], np.int32),
            np.array([len(entry) for _, entry in entries], np.int32),
        )
        return cls(size, keys[order], order.astype(np.int32), results[order], symbols)

    def look_up(self, left: Ids, right: Ids) -> tuple[Ids, Ids]:
        """The rank of the merge of each two neighbours, `_NEVER` where there is none, and what it makes."""
        if not len(self.keys):
            return np.full(left.shape, _NEVER, np.int32), left
        wanted = left.astype(np.int64) * self.size + right
        places = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == wanted, self.ranks[places], _NEVER).astype(np.int32), self.results[places]

    def sample(self, words: Rows, dropout: float, random: np.random.Generator) -> Rows:
        """Each of ``words``, ids in any spelling, spelled by merges of which each is left out with the probability ``dropout``."""
        symbols = self.symbols.take(words.ids)
        lengths = np.add.reduceat(symbols.lengths, words.starts).astype(np.int32) if len(words.ids) else words.lengths
        single = Rows.of(symbols.ids, lengths)
        found_lengths = lengths.copy()
        owners: list[Places] = []
        found: list[Ids] = []
        for length in np.unique(lengths):
            alike = np.flatnonzero(lengths == length)
            for start in range(0, len(alike), _CHUNK):
                some = alike[start : start + _CHUNK]
                for rows, ids in self._merge(single.take(some).ids.reshape(len(some), length), dropout, random):
                    owners.append(some[rows])
                    found.append(ids)
                    found_lengths[some[rows]] = ids.shape[1]
        spelled = Rows.of(np.empty(found_lengths.sum(dtype=np.int64), np.int32), found_lengths)
        for rows, ids in zip(owners, found, strict=True):
            spelled.ids[spelled.starts[rows][:, None] + np.arange(ids.shape[1])] = ids
        return spelled

    def _merge(self, ids: Ids, dropout: float, random: np.random.Generator) -> Iterator[tuple[Places, Ids]]:
        """Of words (N, L): which of them are finished, and their ids, all of one length; the others have one id less each time."""
        rows = np.arange(len(ids))
        ranks, results = self.look_up(ids[:, :-1], ids[:, 1:])  # (N, L - 1)
        while ids.shape[1] > 1:
            if dropout:
                left_out = random.random(ranks.shape, np.float32) < dropout
                best = np.where(left_out, _NEVER, ranks).argmin(1)
                going = (ranks[np.arange(len(ids)), best] < _NEVER) & ~left_out[np.arange(len(ids)), best]
            else:
                best = ranks.argmin(1)
                going = ranks[np.arange(len(ids)), best] < _NEVER
            yield rows[~going], ids[~going]
            rows, ids, ranks, results, best = rows[going], ids[going], ranks[going], results[going], best[going, None]
            columns = np.arange(ids.shape[1] - 1)
            merged = np.take_along_axis(results, best, 1)
            ids = np.take_along_axis(ids, columns + (columns > best), 1)
            np.put_along_axis(ids, best, merged, 1)
            columns = columns[:-1]
            ranks, results = (np.take_along_axis(each, columns + (columns >= best), 1) for each in (ranks, results))
            for beside in (best - 1, best):  # the pairs that the new symbol is the right and the left of
                inside = ((beside >= 0) & (beside < len(columns)))[:, 0]
                if inside.any():
                    place = beside[inside]
                    left, right = (np.take_along_axis(ids[inside], at, 1) for at in (place, place + 1))
                    for each, new in zip((ranks, results), self.look_up(left, right), strict=True):
                        each[np.flatnonzero(inside), place[:, 0]] = new[:, 0]
        yield rows, ids


def _spell(words: Words, merges: Merges, dropout: float, random: np.random.Generator, *, limit: int) -> _Spelling:
    """One side of an epoch."""
    ways = np.minimum(np.bincount(words.numbers, minlength=len(words.spelled.lengths)), VARIANTS).astype(np.int32)
    sampled = merges.sample(words.spelled.take(np.repeat(np.arange(len(ways)), ways)), dropout, random)
    rows = words.spelled.followed_by(sampled)
    first = len(ways) + np.cumsum(ways, dtype=np.int64) - ways
    key = random.integers(2**63, dtype=np.uint64)
    nothing = np.empty(0, np.int32)
    spelling = _Spelling(words, rows, first, ways, key, nothing.astype(bool), nothing)
    tokens = np.empty(len(words.numbers), np.uint16)
    for start in range(0, len(tokens), _CHUNK):
        stop = min(start + _CHUNK, len(tokens))
        tokens[start:stop] = rows.lengths[spelling.variants(start, stop)]
    lengths = np.add.reduceat(tokens, words.starts, dtype=np.int32)
    own = np.add.reduceat(words.spelled.lengths[words.numbers], words.starts, dtype=np.int32)
    kept = lengths > limit
    return _Spelling(words, rows, first, ways, key, kept, np.where(kept, own, lengths))


def sampled_corpus(folder: Path, corpus: Corpus, *tokenizers: Tokenizer, dropout: float, longest: int) -> SampledCorpus:
    """``corpus``, encoded by the tokenizers of source and target, with words that are spelled anew.

    ``folder`` has its words, or gets them if it is not there. Raises DragomanError when it is not that corpus's or damaged.
    """
    if not folder.exists():
        with new_folder(folder) as partial:
            for number, tokenizer in enumerate(tokenizers):
                _find_words(partial, number, corpus, tokenizer)
            (partial / "words.json").write_text(json.dumps({"corpus": corpus.fingerprint}), encoding="utf-8")
    try:
        if json.loads((folder / "words.json").read_bytes())["corpus"] != corpus.fingerprint:
            raise ValueError("of another corpus")
        words = tuple(_open_words(folder, name, len(corpus)) for name in _SIDES)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DragomanError(f"{folder}: not the words of this corpus ({error}); remove the folder, and it is made again") from None
    merges = tuple(map(Merges.of, tokenizers))
    return SampledCorpus(**vars(corpus), words=words, merges=merges, dropout=dropout, longest=longest)


def _find_words(folder: Path, number: int, corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Writes the words of one side into files of a folder."""
    table: dict[bytes, int] = {}
    counts = np.empty(len(corpus), np.int32)
    with (folder / f"{_SIDES[number]}.numbers").open("wb") as file:
        for start in range(0, len(corpus), CHUNK_PAIRS):
            stop = min(start + CHUNK_PAIRS, len(corpus))
            ids, starts, lengths = corpus.side(number, np.arange(start, stop))
            rows = [ids[first : first + length].astype(np.int32) for first, length in zip(starts, lengths, strict=True)]
            found: list[int] = []
            for place, (row, ends) in enumerate(zip(rows, _word_ends(rows, tokenizer), strict=True), start=start):
                first = 0
                for end in ends:
                    found.append(table.setdefault(row[first:end].tobytes(), len(table)))
                    first = end
                counts[place] = len(ends)
            file.write(np.array(found, np.int32).data)
    spelled = [np.frombuffer(word, np.int32) for word in table]
    counts.tofile(folder / f"{_SIDES[number]}.counts")
    np.concatenate(spelled).tofile(folder / f"{_SIDES[number]}.spelled")
    np.array([len(word) for word in spelled], np.int32).tofile(folder / f"{_SIDES[number]}.lengths")


def _word_ends(rows: list[Ids], tokenizer: Tokenizer) -> list[list[int]]:
    """Behind which token each word of each sentence ends; tokens that are not text are words of their own."""
    special = np.array([tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, *tokenizer.tags.values()])
    texts = [np.isin(row, special, invert=True) for row in rows]
    decoded = tokenizer.backend.decode_batch([row[text].tolist() for row, text in zip(rows, texts, strict=True)], skip_special_tokens=False)
    ends = []
    for row, text, encoding in zip(rows, texts, tokenizer.backend.encode_batch(decoded, add_special_tokens=False), strict=True):
        belongs = -np.arange(1, len(row) + 1)  # to a word of its own
        if encoding.ids == row[text].tolist():
            belongs[text] = cast("list[int]", encoding.word_ids)
        ends.append([*(np.flatnonzero(np.diff(belongs)) + 1).tolist(), len(row)])
    return ends


def _open_words(folder: Path, name: str, pairs: int) -> Words:
    numbers, counts, spelled, lengths = (np.memmap(folder / f"{name}.{what}", "<i4", "r").view(np.ndarray) for what in
                                         ("numbers", "counts", "spelled", "lengths"))  # fmt: skip
    if len(counts) != pairs or counts.sum(dtype=np.int64) != len(numbers) or lengths.sum(dtype=np.int64) != len(spelled):
        raise ValueError("not whole")
    return Words(numbers, np.cumsum(counts, dtype=np.int64) - counts, counts, Rows.of(spelled, lengths))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers that look drawn by chance, each a function of one value (the finisher of SplitMix64)."""
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
