"""The vocabularies of a CTranslate2 folder, as tokenizers here, and ours as theirs.

Such a folder says nothing of how text becomes tokens, but may have a SentencePiece model beside it. A vocabulary without one becomes a
tokenizer of characters, or of text that is already segmented; what Dragoman exported has its own tokenizers with it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from dragoman.data.tokenizer import Kind, Tokenizer
from dragoman.errors import DragomanError
from dragoman.interop.sentencepiece import SentencePiece, unigram

NEVER = -1e9
"""The bias of an output that no model may choose: its probability is 0."""

_PADDING = ("<pad>", "<blank>", "[PAD]")
_TAG = re.compile(r">>[A-Za-z0-9_-]+<<")
_MARKS = {"▁": "SentencePiece", "￭": "OpenNMT's tokenizer", "Ġ": "byte-level BPE", "##": "WordPiece"}


class Vocabularies(NamedTuple):
    """The entries of source and target in the order of their ids; one list for both where they are shared, or the model is a ``single``
    stack.
    """

    source: list[str]
    target: list[str]
    single: bool = False

    @property
    def shared(self) -> bool:
        """Whether there is one vocabulary."""
        return self.source is self.target


@dataclass(frozen=True)
class Side:
    """A vocabulary as a tokenizer has it: the entries there, those added behind them, and the ids of the special ones.

    ``copied`` has for each added entry the id of the row that its embedding copies, or None for zeros.
    """

    entries: list[str]
    copied: list[int | None]
    pad: int
    bos: int
    eos: int
    unk: int

    def extend(self, rows: Tensor) -> Tensor:
        """An embedding (V, D) with the rows of the added entries behind it."""
        added = [torch.zeros_like(rows[0]) if place is None else rows[place] for place in self.copied]
        return torch.cat((rows, torch.stack(added))) if added else rows

    def extend_bias(self, bias: Tensor) -> Tensor:
        """An output bias (V,) under which the added entries are never chosen."""
        return torch.cat((bias, bias.new_full((len(self.copied),), NEVER)))

    def tokenizer(self, model: Path | None, *, source_start: bool = False, source_end: bool = True) -> tuple[Tokenizer, str]:
        """How text becomes these entries, and a sentence on it: by a SentencePiece ``model``; character by character, where all entries
        are characters; else the text is in pieces already, where @@ joins those that so many end in it that it must be the mark of it.
        """
        notice = ""
        if model is not None:
            ids = {entry: place for place, entry in enumerate(self.entries)}
            try:
                backend = unigram(SentencePiece.read(model), ids, unk=self.unk, path=model)
                tags = {entry[2:-2]: place for entry, place in ids.items() if _TAG.fullmatch(entry)}
                return self._made(backend, "foreign", source_start=source_start, source_end=source_end, tags=tags), ""
            except DragomanError as error:
                notice = f"{error}; "
        special = {self.pad, self.bos, self.eos, self.unk}
        plain = [entry for place, entry in enumerate(self.entries) if place not in special and not entry.startswith("<")]
        backend = self._words()
        if all(len(entry) == 1 for entry in plain):
            backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
            backend.decoder = decoders.Fuse()
            made = self._made(backend, "foreign", source_start=source_start, source_end=source_end)
            return made, notice + "the vocabulary is one of characters, so text is cut into its characters"
        joiner = "@@" if sum(entry.endswith("@@") for entry in plain) > len(plain) // 20 else ""
        made = self._made(backend, "whitespace", joiner=joiner, source_start=source_start, source_end=source_end)
        return made, notice + _notice_of(plain)

    def _words(self) -> tokenizers.Tokenizer:
        entries = {entry: place for place, entry in enumerate(self.entries)}
        backend = tokenizers.Tokenizer(models.WordLevel(entries, unk_token=self.entries[self.unk]))
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        return backend

    def _made(
        self, backend: tokenizers.Tokenizer, kind: Kind, *, source_start: bool, source_end: bool, joiner: str = "",
        tags: Mapping[str, int] | None = None,
    ) -> Tokenizer:  # fmt: skip
        opening = (self.bos,) if source_start else ()
        return Tokenizer(
            kind=kind, joiner=joiner, pad=self.pad, bos=self.bos, eos=self.eos, unk=self.unk, backend=backend, tags=tags or {},
            opening=opening, source_end=source_end,
        )  # fmt: skip


def sentencepiece_of(folder: Path, side: str) -> Path | None:
    """The SentencePiece model of a side, ``source`` or ``target``, where there is one beside the vocabularies."""
    names = (f"{side}.spm", f"{side}.model", "sentencepiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_vocabularies(folder: Path, *, single: bool, unknown: str, problems: list[str]) -> Vocabularies:
    """The vocabularies of a folder, with the unknown token behind the others where it is not among them, as CTranslate2 has it.

    ``single``: of a decoder-only model. Appends to ``problems`` what is missing or cannot be read.
    """
    if single or any((folder / f"shared_vocabulary.{kind}").is_file() for kind in ("json", "txt")):
        both = _read(folder, "vocabulary" if single else "shared_vocabulary", unknown, problems)
        return Vocabularies(both, both, single)
    source, target = (_read(folder, f"{side}_vocabulary", unknown, problems) for side in ("source", "target"))
    return Vocabularies(source, target)


def side_of(entries: Sequence[str], document: Mapping[str, Any], *, start: str, zero_start: bool, problems: list[str]) -> Side:
    """The ids of a vocabulary's special entries by the names in config.json, with entries added where one must stand for nothing else.

    ``start`` is the token that begins a target; with ``zero_start`` its embedding is zero, whatever its row holds.
    """
    place = {entry: number for number, entry in enumerate(entries)}
    eos, unk = (place.get(str(document.get(f"{name}_token", usual)), -1) for name, usual in (("eos", "</s>"), ("unk", "<unk>")))
    if eos < 0:
        problems.append(f"the end token {document.get('eos_token', '</s>')!r} is not in the vocabulary")
    if start not in place and not zero_start:
        problems.append(f"the start token {start!r} is not in the vocabulary")
    names, copied = list(entries), list[int | None]()

    def alone(wanted: int, name: str, others: set[int], like: int | None) -> int:
        """The entry itself if it stands for nothing else, or an added one."""
        if wanted >= 0 and wanted not in others:
            return wanted
        while name in place:
            name = f"{name}'"
        names.append(name)
        copied.append(like)
        return len(names) - 1

    first = place.get(start, -1)
    pad = alone(next((place[name] for name in _PADDING if name in place), -1), "<pad>", {eos, unk, first}, None)
    bos = alone(-1, "<start>", set(), None) if zero_start else alone(first, "<start>", {eos, unk, pad}, first if first >= 0 else None)
    unk = alone(unk, "<unknown>", {eos}, None if unk < 0 else unk)
    return Side(names, copied, pad, bos, max(eos, 0), unk)


def _notice_of(entries: Sequence[str]) -> str:
    """How text must come to a vocabulary without a tokenizer."""
    for mark, maker in _MARKS.items():
        if sum(mark in entry for entry in entries) > len(entries) // 20:
            return (
                f"the folder has no tokenizer that is known here: text goes in and comes out in pieces of {maker}, with spaces between them"
            )
    return "the folder has no tokenizer: text goes in and comes out in entries of its vocabulary, with spaces between them"


def entries_of(tokenizer: Tokenizer, rows: int) -> list[str]:
    """The entries of a tokenizer, with names for the rows of the embedding that have none."""
    named = [str(tokenizer.backend.id_to_token(token)) for token in range(len(tokenizer))]
    return [*named, *(f"<unused {token}>" for token in range(len(tokenizer), rows))]


def as_given(tokenizer: Tokenizer, source: Sequence[int]) -> list[int]:
    """The ids of a source that CTranslate2 is given: without the start and end token that it puts around them by itself."""
    start = int(tokenizer.opening == (tokenizer.bos,))
    return list(source[start : len(source) - int(tokenizer.source_end)])


def _read(folder: Path, name: str, unknown: str, problems: list[str]) -> list[str]:
    path = next((path for kind in ("json", "txt") if (path := folder / f"{name}.{kind}").is_file()), None)
    if path is None:
        problems.append(f"{name}.json is missing, and so is {name}.txt")
        return []
    try:
        content = path.read_bytes().decode()
        entries = json.loads(content) if path.suffix == ".json" else _lines(content)
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read ({error})")
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        problems.append(f"{path.name} is no list of texts")
        return []
    first: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        if first.setdefault(entry, number) != number:
            problems.append(f"{path.name} has the entry {entry!r} twice, as number {first[entry]} and {number}")
            return []
    return entries if unknown in first else [*entries, unknown]


def _lines(content: str) -> list[str]:
    """A token may hold a carriage return, so it belongs to the line break only where all lines end in it."""
    lines = content.removesuffix("\n").split("\n") if content else []
    return [line.removesuffix("\r") for line in lines] if all(line.endswith("\r") for line in lines) else lines
