"""SentencePiece's model files, in and out: pieces with scores as a ``tokenizers`` model of the same segmentation.

The file is a protocol buffer (sentencepiece_model.proto): 1 pieces (1 piece, 2 score, 3 type), 2 trainer (3 kind of model, 35 byte
fallback), 3 normalizer (2 character map, 3 dummy prefix, 4 no extra white space, 5 ▁ for spaces).
"""

import base64
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from dragoman.errors import DragomanError, unreadable

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_UNIGRAM, BYTE_PAIRS = 1, 2
_KINDS = {1: "unigram", 2: "BPE", 3: "words", 4: "characters"}


class Piece(NamedTuple):
    """An entry: its text with ▁ for a space, its score, and its type (`NORMAL` …)."""

    text: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePiece:
    """What a model file holds."""

    pieces: list[Piece]
    kind: int
    charsmap: bytes
    byte_fallback: bool = False
    dummy_prefix: bool = True
    remove_extra_whitespace: bool = True

    @classmethod
    def read(cls, path: Path) -> "SentencePiece":
        """That of a file; DragomanError when it is none."""
        try:
            data = path.read_bytes()
            parts = list(_fields(data))
            trainer, normalizer = (dict(_fields(next((value for number, value in parts if number == wanted), b""))) for wanted in (2, 3))
            pieces = [_piece(value) for number, value in parts if number == 1]
            charsmap = bytes(memoryview(normalizer.get(2, b"")))
        except OSError as error:
            raise DragomanError(unreadable(path, error, "cannot read the vocabulary")) from None
        except (ValueError, LookupError, struct.error, TypeError, AttributeError) as error:
            raise DragomanError(f"{path}: not a SentencePiece model, or damaged ({error}); use an undamaged copy") from None
        if not pieces:
            raise DragomanError(f"{path}: not a SentencePiece model, or damaged (no pieces); use an undamaged copy")
        try:
            if charsmap:
                normalizers.Precompiled(charsmap)
        except Exception as error:  # tokenizers raises bare Exception
            raise DragomanError(f"{path}: a SentencePiece model whose character map is damaged ({error}); use an undamaged copy") from None
        if not normalizer.get(5, 1):
            raise DragomanError(f"{path}: a SentencePiece model that keeps spaces (escape_whitespaces=false) is not supported")
        return cls(
            pieces, trainer.get(3, _UNIGRAM), charsmap, bool(trainer.get(35, 0)), bool(normalizer.get(3, 1)),
            bool(normalizer.get(4, 1)),
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """The model file."""
        pieces = [_length(1, _text(1, piece.text) + _float(2, piece.score) + _number(3, piece.type)) for piece in self.pieces]
        trainer = _number(3, self.kind) + _number(4, len(self.pieces)) + _number(35, int(self.byte_fallback))
        normalizer = _text(1, "identity") + (_length(2, self.charsmap) if self.charsmap else b"")
        normalizer += _number(3, int(self.dummy_prefix)) + _number(4, int(self.remove_extra_whitespace)) + _number(5, 1)
        return b"".join(pieces) + _length(2, trainer) + _length(3, normalizer)

    def normalizer(self) -> normalizers.Normalizer:
        """Text as SentencePiece sees it: its character map, spaces trimmed, ▁ for each and one at the beginning."""
        steps: list[normalizers.Normalizer] = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        if self.remove_extra_whitespace:
            steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        if self.dummy_prefix:
            steps.append(normalizers.Prepend("▁"))
        return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])


def unigram(model: SentencePiece, ids: Mapping[str, int], *, unk: int, path: Path) -> tokenizers.Tokenizer:
    """The unigram model whose pieces have the given ids; ``ids`` without a normal piece of it are hidden from text by a space at the end.

    Raises DragomanError that names ``path`` for a model of another kind.
    """
    if model.kind != _UNIGRAM or model.byte_fallback or any(piece.type == USER_DEFINED for piece in model.pieces):
        what = "byte fallback" if model.byte_fallback else "user-defined pieces" if model.kind == _UNIGRAM else _KINDS.get(model.kind)
        raise DragomanError(f"{path}: a SentencePiece model of {what} is not supported here; supported are unigram models without either")
    scores = {piece.text: piece.score for piece in model.pieces if piece.type == NORMAL}
    vocabulary = [(text if text in scores else f"{text} ", scores.get(text, 0.0)) for text in sorted(ids, key=lambda text: ids[text])]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=unk, byte_fallback=False))
    backend.normalizer = model.normalizer()
    if model.remove_extra_whitespace and not any("▁" in text[1:] for text in scores):  # then each word is segmented by itself
        backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    ends = decoders.Replace(Regex(r"\A +| +\z"), "")
    backend.decoder = decoders.Sequence([decoders.Replace(" ", ""), decoders.Replace("▁", " "), decoders.Fuse(), ends])
    return backend


def from_unigram(backend: tokenizers.Tokenizer) -> SentencePiece | None:
    """The model that `unigram` made a backend of; None for any other backend."""
    saved: dict[str, Any] = json.loads(backend.to_str())
    steps = (saved["normalizer"] or {}).get("normalizers", [])
    if saved["model"]["type"] != "Unigram" or not steps or steps[-1] != {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
        return None
    charsmap = next((base64.b64decode(step["precompiled_charsmap"]) for step in steps if step["type"] == "Precompiled"), b"")
    pieces = [Piece(text, score, NORMAL) for text, score in saved["model"]["vocab"] if not text.endswith(" ")]
    special = [Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL)]
    kinds = [step["type"] for step in steps]
    return SentencePiece([*special, *pieces], _UNIGRAM, charsmap, False, "Prepend" in kinds, kinds.count("Replace") > 1)


def byte_pairs(pieces: Sequence[Piece], normalizer: normalizers.Normalizer) -> tokenizers.Tokenizer:
    """SentencePiece's BPE, whose ids are the places of the pieces: the pair that makes the piece of the highest score is merged first."""
    vocabulary = {piece.text: token for token, piece in enumerate(pieces)}
    normal = {piece.text: piece.score for piece in pieces if piece.type == NORMAL}
    pairs = [
        (-score, vocabulary[text], text[:place], text[place:])
        for text, score in normal.items()
        for place in range(1, len(text))
        if text[:place] in normal and text[place:] in normal
    ]
    merges = [(left, right) for _, _, left, right in sorted(pairs)]
    unknown = next((piece.text for piece in pieces if piece.type == UNKNOWN), None)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", left=1, right=0)]
    )
    return backend


def _piece(data: bytes) -> Piece:
    fields = dict(_fields(data))
    score = struct.unpack("<f", fields.get(2, bytes(4)))[0]
    if not math.isfinite(score):
        raise ValueError(f"the score {score}")
    return Piece(fields[1].decode(), score, fields.get(3, NORMAL))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message: a whole number, or bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(data, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _varint(data, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"field {number} of kind {wire}")
        if place + size > len(data):
            raise ValueError("it ends early")
        yield number, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _number(field: int, value: int) -> bytes:
    return _encoded(field << 3) + _encoded(value)


def _length(field: int, value: bytes) -> bytes:
    return _encoded(field << 3 | 2) + _encoded(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _length(field, value.encode())


def _float(field: int, value: float) -> bytes:
    return _encoded(field << 3 | 5) + struct.pack("<f", value)
