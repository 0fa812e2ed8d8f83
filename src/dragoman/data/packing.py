"""Documents one after the other, cut into blocks of the context's length: what models of one sequence learn from.

The text is one stream of ids, each document with the end token behind it. A decoder reads before each token the one before it, or the
start token where a document begins. An encoder reads a block between start and end token, some of it masked (`data/masking.py`).

A corpus of this kind is a folder: ``ids``, ``ends`` (the place of each document's end token), ``places`` (from which token on which line
was read), and ``corpus.json``. Numbers are little-endian.

Shapes:  B blocks of a batch   T tokens of its longest block
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.data.batching import Batch, Indices, collate
from dragoman.data.corpus import Corpus
from dragoman.data.documents import Piece
from dragoman.data.masking import Masking
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from dragoman.files import new_folder

FORMAT_VERSION = 1
CHUNK_PIECES = 1000
FILES = ("ids", "ends", "places")

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class PackedCorpus(Corpus):
    """A stream of ids cut into blocks, which are its pairs: ``target_starts`` says where in the stream each begins.

    A row of a batch has ``contexts`` tokens of the stream before a block's own, which are read but not predicted, and for an encoder the
    start token and the end token around it; ``target_lengths`` counts them all, ``own`` those that belong to the block. The numbers of
    ``texts`` are what the text has: documents, code points, bytes of UTF-8.
    """

    ends: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    places: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    own: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    contexts: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    size: int = 0
    masking: Masking | None = None
    epoch: int = 0
    texts: tuple[int, int, int] = (0, 0, 0)

    @property
    def tokens(self) -> int:
        """Of the whole stream, end tokens included."""
        return len(self.target_ids)

    def of_epoch(self, epoch: int, *, seed: int, most: int) -> "PackedCorpus":
        """The same stream cut at other places: the first block of an epoch is shorter, by chance."""
        first = 0 if self.tokens <= self._room else int(np.random.default_rng([seed, epoch, 3]).integers(self._room))
        return self._cut(first, epoch=epoch)

    def in_blocks(self, *, size: int, stride: int = 0, masking: Masking | None = None) -> "PackedCorpus":
        """The stream in blocks for a context of ``size`` tokens: an encoder's with ``masking``.

        For a decoder with a ``stride`` the blocks after the first are that long, and have the tokens before them as context.
        """
        corpus = replace(self, size=size, masking=masking)
        if not stride or corpus.tokens <= size:
            return corpus._cut(0)
        starts = np.concatenate(([0], np.arange(size, corpus.tokens, stride)))
        return corpus._at(starts, np.diff(starts, append=corpus.tokens), contexts=np.where(starts, size - stride, 0))

    def at_random(self, blocks: int, *, seed: int) -> "PackedCorpus":
        """So many blocks at places drawn by chance, for an estimate of what all of them would show."""
        own = min(self._room, self.tokens)
        starts = np.random.default_rng([seed, 4]).integers(self.tokens - own + 1, size=blocks)
        return self._at(starts, np.full(blocks, own))

    def predicted(self, indices: Indices) -> int:
        """Tokens of these blocks that a loss is of."""
        if self.masking is None:
            return int(self.own[indices].sum())
        if not self.masking.words:
            return int(self.masking.count(self._text_tokens(self.target_starts[indices], self.own[indices])).sum())
        return int(self._encoder_batch(indices, 0, 0, 0).target_mask.sum())

    def batch(self, indices: Indices, *, pad: int, bos: int, eos: int) -> Batch:
        """The blocks at ``indices`` as tensors, in that order: for a decoder without a source, for an encoder without a target's input."""
        if self.masking is not None:
            return self._encoder_batch(indices, pad, bos, eos)
        own, contexts = self.own[indices], self.contexts[indices]
        starts, lengths = self.target_starts[indices] - contexts, own + contexts
        columns = np.arange(lengths.max())
        is_token = columns < lengths[:, None]
        places = np.where(is_token, starts[:, None] + columns, 0)
        target = np.where(is_token, self.target_ids[places], pad).astype(np.int64)
        before = self.target_ids[np.maximum(places - 1, 0)].astype(np.int64)
        begins = (places == 0) | (before == eos)
        return Batch(
            source=torch.empty(len(indices), 0, dtype=torch.int64),
            source_mask=torch.empty(len(indices), 0, dtype=torch.bool),
            target_input=torch.from_numpy(np.where(is_token, np.where(begins, bos, before), pad)),
            target_output=torch.from_numpy(target),
            target_mask=torch.from_numpy(is_token & (columns >= contexts[:, None])),
            pairs=indices,
        )

    def _encoder_batch(self, indices: Indices, pad: int, bos: int, eos: int) -> Batch:
        assert self.masking is not None
        lengths, own = self.target_lengths[indices], self.own[indices]
        gold = np.full((len(indices), lengths.max()), pad, np.int64)
        seen, chosen = gold.copy(), np.zeros(gold.shape, np.bool_)
        for row, (index, start, count, length) in enumerate(zip(indices, self.target_starts[indices], own, lengths, strict=True)):
            ids = self.target_ids[start : start + count].astype(np.int64)
            first, last = np.searchsorted(self.ends, (start, start + count))
            is_text = np.ones(count, np.bool_)
            is_text[self.ends[first:last] - start] = False
            gold[row, :length] = [bos, *ids, eos][:length]
            seen[row, :length] = gold[row, :length]
            place = slice(1, 1 + count)
            chosen[row, place], seen[row, place] = self.masking.apply(ids, is_text, epoch=self.epoch, index=int(index))
        return Batch(
            source=torch.from_numpy(seen),
            source_mask=torch.from_numpy(np.arange(gold.shape[1]) < lengths[:, None]),
            target_input=torch.empty(len(indices), 0, dtype=torch.int64),
            target_output=torch.from_numpy(gold),
            target_mask=torch.from_numpy(chosen),
            pairs=indices,
        )

    @property
    def _room(self) -> int:
        """Tokens of the stream that fit into a row."""
        return self.size - (2 if self.masking else 0)

    def _cut(self, first: int, *, epoch: int = 0) -> "PackedCorpus":
        starts = np.arange(first, self.tokens, self._room)
        if first:
            starts = np.concatenate(([0], starts))
        return self._at(starts, np.diff(starts, append=self.tokens), epoch=epoch)

    def _at(self, starts: Indices, own: Indices, *, contexts: Indices | None = None, epoch: int = 0) -> "PackedCorpus":
        """The blocks that begin there; for an encoder without those of end tokens alone, from which there is nothing to learn."""
        lengths = own if contexts is None else own + contexts
        if self.masking is not None:
            with_text = self._text_tokens(starts, own) > 0
            starts, own = starts[with_text], own[with_text]
            lengths = own + 2 - np.isin(starts + own - 1, self.ends)
        narrow = lengths.astype(np.int32)
        line = np.searchsorted(self.places[:, 0], starts, side="right") - 1
        return replace(
            self,
            source_lengths=narrow, target_lengths=narrow, source_starts=starts, target_starts=starts,
            own=own, contexts=np.zeros_like(own) if contexts is None else contexts,
            line_numbers=self.places[line, 1].astype(np.int32), parts=(len(starts),), epoch=epoch,
        )  # fmt: skip

    def _text_tokens(self, starts: Indices, own: Indices) -> Indices:
        return own - (np.searchsorted(self.ends, starts + own) - np.searchsorted(self.ends, starts))


def pack(folder: Path, pieces: Iterable[Piece], tokenizer: Tokenizer) -> PackedCorpus:
    """Encodes documents into the new folder ``folder``, which gets its name only when it is whole.

    Raises DragomanError when the folder exists or cannot be written.
    """
    types = {"ids": "<u2" if len(tokenizer) <= 1 << 16 else "<i4", "ends": "<i8", "places": "<i8"}
    hashes, sizes = {name: hashlib.sha256() for name in FILES}, dict.fromkeys(FILES, 0)
    unknown, texts = 0, np.zeros(3, np.int64)

    def write(file: BinaryIO, name: str, values: list[int]) -> None:
        array = np.array(values, types[name])
        sizes[name] += len(array)
        hashes[name].update(array.data)
        file.write(array.data)

    with new_folder(folder) as partial:
        pieces = iter(pieces)
        with (partial / "ids").open("wb") as ids, (partial / "ends").open("wb") as ends, (partial / "places").open("wb") as places:
            while chunk := list(islice(pieces, CHUNK_PIECES)):
                for piece, tokens in zip(chunk, _encode(chunk, tokenizer), strict=True):
                    unknown += tokens.count(tokenizer.unk)
                    texts += (piece.last, len(piece.text), len(piece.text.encode()))
                    write(places, "places", [sizes["ids"], piece.line])
                    if piece.last:
                        write(ends, "ends", [sizes["ids"] + len(tokens)])
                    write(ids, "ids", [*tokens, tokenizer.eos] if piece.last else tokens)
            for file in (ids, ends, places):
                file.flush()
                os.fsync(file.fileno())
        fingerprint = hashlib.sha256("".join(each.hexdigest() for each in hashes.values()).encode()).hexdigest()
        facts = {"format": FORMAT_VERSION, "types": types, "sizes": sizes, "unknown": unknown, "fingerprint": fingerprint}
        facts |= {"texts": texts.tolist()}
        (partial / "corpus.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return open_packed(folder)


def _encode(pieces: list[Piece], tokenizer: Tokenizer) -> list[list[int]]:
    encoded: dict[int, list[int]] = {}
    for first in (True, False):
        chosen = [place for place, piece in enumerate(pieces) if piece.first is first]
        ids = (tokenizer if first else tokenizer.inside).encode_batch([pieces[place].text for place in chosen])
        encoded |= dict(zip(chosen, ids, strict=True))
    return [encoded[place] for place in range(len(pieces))]


def open_packed(folder: Path) -> PackedCorpus:
    """The corpus that `pack` wrote into ``folder``, as one block; DragomanError when it is missing or damaged."""
    try:
        facts = json.loads((folder / "corpus.json").read_bytes())
        if facts["format"] != FORMAT_VERSION or not set(facts["types"].values()) <= {"<u2", "<i4", "<i8"}:
            raise ValueError(f"format {facts['format']}, types {facts['types']}")
        ids, ends, places = (np.memmap(folder / name, facts["types"][name], "r").view(np.ndarray) for name in FILES)
        if [len(ids), len(ends), len(places)] != [facts["sizes"][name] for name in FILES] or len(places) % 2:
            raise ValueError(f"sizes {[len(ids), len(ends), len(places)]}")
        known = {"fingerprint": facts["fingerprint"], "unknown": facts["unknown"], "texts": tuple(facts["texts"])}
        return packed(ids, ends, places.reshape(-1, 2), **known)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DragomanError(f"{folder}: not a whole corpus ({error}); build it again from the text") from None


def packed(
    ids: NDArray[Any], ends: NDArray[np.int64], places: NDArray[np.int64], *, fingerprint: str = "", unknown: int = 0,
    texts: tuple[int, int, int] = (0, 0, 0),
) -> PackedCorpus:  # fmt: skip
    """A stream of ids as one block; the other arrays are those of the class."""
    nothing = _NONE.astype(np.int32)
    corpus = PackedCorpus(
        source_ids=ids, target_ids=ids, source_lengths=nothing, target_lengths=nothing, source_starts=_NONE, target_starts=_NONE,
        line_numbers=nothing, dropped={}, fingerprint=fingerprint, unknown=unknown, ends=ends, places=places, texts=texts,
    )  # fmt: skip
    return corpus.in_blocks(size=max(len(ids), 1))


def batch_of(corpus: Corpus, indices: Indices, tokenizer: Tokenizer) -> Batch:
    """The pairs or blocks of ``corpus`` at ``indices`` as tensors; ``tokenizer`` is that of the target."""
    if isinstance(corpus, PackedCorpus):
        return corpus.batch(indices, pad=tokenizer.pad, bos=tokenizer.bos, eos=tokenizer.eos)
    return collate(corpus, indices, pad=tokenizer.pad, bos=tokenizer.bos)
