"""Text to ids and back (Section 5.1): byte-pair encoding learnt from the corpus, text that is already segmented, or characters.

The file is JSON: our few fields, and under ``tokenizer`` exactly what the ``tokenizers`` package reads and writes.

The four special tokens have their places in the vocabulary, but no text encodes to them: ``<`` is a piece of its own, so no sequence
of merges spells ``<s>``, and nothing is registered with ``tokenizers`` to be looked for in text. Language tags are the same: their entries
hold a space, and no piece of text does. A tag is put before ids by who knows that one is meant: a corpus that has one, or `split_tag`.

A ``foreign`` tokenizer is another program's, as that program wrote it for ``tokenizers`` or made from its files (`interop`). Its special
tokens, too, are ordinary text where they stand in text, and its entries that end with a space are ones that no text is cut into.
"""

import hashlib
import json
import logging
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Self, get_args

import tokenizers
from tokenizers import normalizers

from dragoman.data.foreign import piece_of, spans_by_decoding, spans_of_pieces, style_of
from dragoman.data.vocabulary import learn_bpe, learn_characters, learn_words
from dragoman.errors import DragomanError, UsageError, refuse_one_text

logger = logging.getLogger("dragoman")

Kind = Literal["bpe", "whitespace", "characters", "foreign"]
Normalization = Literal["none", "nfc", "nfkc"]

FORMAT_VERSION = 1
SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0 to 3 of a tokenizer trained here
MASK = "<mask>"

_TAG = re.compile(r">>([A-Za-z0-9_-]+)<< ?")

_VISIBLE_BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER_BYTES = [byte for byte in range(256) if byte not in _VISIBLE_BYTES]
# Byte-level vocabularies write each byte as one visible character: itself, or one from U+0100 on.
_BYTE_OF_CHARACTER = {chr(byte): byte for byte in _VISIBLE_BYTES} | {chr(256 + n): byte for n, byte in enumerate(_OTHER_BYTES)}


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back.

    ``bpe`` is lossless: ``decode(encode(text)) == text`` for any text, up to the normalization that was asked for. ``whitespace``
    splits at the ASCII space only, and gives plain text back: ``joiner`` at the end of a piece joins it to the next. ``characters`` has an
    entry for each code point that it knows, and is lossless for text of these. ``tags`` are the ids of the language tags by name: de for
    ``>>de<<``. ``mask`` is the id that stands for what a masked language model has to fill in. ``source_end`` is whether a source ends with
    the end token, as the paper's does; ``opening`` are ids that stand before every source, or before every text that a language model goes
    on with. Of a ``foreign`` tokenizer special tokens may share an id, as GPT-2's padding, start and end do.
    """

    kind: Kind
    joiner: str
    pad: int
    bos: int
    eos: int
    unk: int
    backend: tokenizers.Tokenizer = field(repr=False)
    tags: Mapping[str, int] = field(default_factory=dict)
    mask: int | None = None
    source_end: bool = True
    opening: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """What a foreign tokenizer's file may ask for beside ids is switched off: special tokens found in text, cutting, padding."""
        if self.kind == "foreign":
            self.backend.encode_special_tokens = True  # that is: as text
            self.backend.no_truncation()
            self.backend.no_padding()

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        *,
        kind: Kind,
        vocabulary_size: int,
        normalization: Normalization = "none",
        joiner: str = "",
        tags: Iterable[str] = (),
        mask: bool = False,
    ) -> Self:
        """A tokenizer learnt from ``lines``, with at most ``vocabulary_size`` entries, special tokens, tags and ``mask`` included.

        For ``whitespace`` 0 keeps every word, for ``characters`` every code point; a warning counts what a limit leaves out. Raises
        UsageError when ``vocabulary_size`` is too small, and for a str as lines.
        """
        refuse_one_text(lines, "lines")
        if kind == "foreign":
            raise UsageError("data.tokenizer=foreign is the vocabulary of an imported model; go on from one with --from, or choose bpe")
        tags = dict.fromkeys(tags)
        more = len(tags) + mask
        smallest = len(SPECIAL_TOKENS) + more + (256 if kind == "bpe" else 1)
        if vocabulary_size < smallest and (kind == "bpe" or vocabulary_size):
            raise UsageError(f"data.vocabulary_size={vocabulary_size} is too small for tokenizer {kind}; give {smallest} or more")
        normal_forms: dict[str, list[normalizers.Normalizer]] = {"none": [], "nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()]}
        learn = {"bpe": learn_bpe, "whitespace": learn_words, "characters": learn_characters}[kind]
        size = vocabulary_size and vocabulary_size - more
        backend = learn(lines, vocabulary_size=size, special=SPECIAL_TOKENS, normal_form=normal_forms[normalization])
        pad, bos, eos, unk = range(len(SPECIAL_TOKENS))
        tokenizer = cls(kind=kind, joiner=joiner, pad=pad, bos=bos, eos=eos, unk=unk, backend=backend).with_tags(tags)
        return tokenizer.with_mask() if mask else tokenizer

    def with_tags(self, names: Iterable[str]) -> Self:
        """This tokenizer with entries for the tags that it does not have yet, behind all others: no entry gets another id."""
        new = [name for name in dict.fromkeys(names) if name not in self.tags]
        if not new:
            return self
        tags = {name: token for token, name in enumerate(new, start=len(self))}
        return replace(
            self, backend=_with_entries(self.backend, {_entry(name): token for name, token in tags.items()}), tags={**self.tags, **tags}
        )

    def with_mask(self) -> Self:
        """This tokenizer with an entry for what is masked, behind all others if it has none yet: no entry gets another id.

        A word of segmented text that looks like it becomes it, and is an unknown one in text from then on.
        """
        if self.mask is not None:
            return self
        if (known := self.backend.token_to_id(MASK)) is not None:
            return replace(self, mask=known)
        return replace(self, backend=_with_entries(self.backend, {MASK: len(self)}), mask=len(self))

    def __len__(self) -> int:
        """Entries of the vocabulary."""
        return self.backend.get_vocab_size()

    @cached_property
    def textless(self) -> frozenset[int]:
        """The ids that stand for no text: padding, start, end, mask and the tags. An unknown token stands for some."""
        mask = () if self.mask is None else (self.mask,)
        return frozenset((self.pad, self.bos, self.eos, *mask, *self.tags.values()))

    def as_source(self, ids: Iterable[int]) -> list[int]:
        """Ids as an encoder gets them: with the end token, unless this tokenizer's sources have none, and ``opening`` before them."""
        return [*self.opening, *ids, self.eos] if self.source_end else [*self.opening, *ids]

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, without start and end tokens."""
        return self.encode_batch([text])[0]  # §5.1 ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without start and end tokens; DragomanError for a text with half a surrogate pair."""
        try:
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            broken = next((text for text in texts if re.search("[\ud800-\udfff]", text)), None)
            if broken is None:
                raise
            raise DragomanError(f"{broken!r} holds half a surrogate pair, which is not text; mend the text") from None
        if self.kind in ("bpe", "characters"):
            return [encoding.ids for encoding in encodings]
        if self.kind == "foreign" and self._hidden:
            return [self._with_hidden(encoding.ids, text) for encoding, text in zip(encodings, texts, strict=True)]
        special = {self.pad, self.bos, self.eos, *((self.mask,) if self.kind == "whitespace" else ())} - {self.unk}
        return [[self.unk if token in special else token for token in encoding.ids] for encoding in encodings]

    @cached_property
    def _style(self) -> str:
        """How the entries of a foreign tokenizer spell text."""
        return style_of(self.backend)

    @cached_property
    def _hidden(self) -> dict[str, int]:
        """Ids of the entries that end with a space and are no special tokens, by what stands before it."""
        special, entries = self.textless | {self.unk}, self.backend.get_vocab().items()
        hidden = {entry[:-1]: token for entry, token in entries if entry.endswith(" ") and token not in special}
        return hidden if self.kind == "foreign" else {}

    def _with_hidden(self, ids: list[int], text: str) -> list[int]:
        """The ids where each unknown piece that is a hidden entry has its id."""
        if self.unk not in ids:
            return ids
        pieces = self.backend.encode(text, add_special_tokens=False).tokens
        return [self._hidden.get(piece, token) if token == self.unk else token for token, piece in zip(ids, pieces, strict=True)]

    @cached_property
    def inside(self) -> Self:
        """The tokenizer of what follows in a text: ids of a text's parts, of the first by the tokenizer itself and of the others by this,
        are those of the text, if each cut is before the end of a line and behind a letter, a number or an ASCII sign.
        """
        saved = json.loads(self.backend.to_str())
        normalizer = saved["normalizer"] or {}
        steps = [step for step in normalizer.get("normalizers", [normalizer]) if step.get("type") != "Prepend"]
        saved["normalizer"] = {"type": "Sequence", "normalizers": [step for step in steps if step]}
        return replace(self, backend=tokenizers.Tokenizer.from_str(json.dumps(saved)))

    def split_tag(self, source: str, *, place: str) -> tuple[list[int], str]:
        """The id of the tag at the head of a line to translate, and the text behind it and one space.

        No id and all of the text, if it is blank or the tokenizer has no tags. Raises DragomanError for any other line without a tag, or
        with one that is not known, naming those that are, and ``place``.
        """
        if not self.tags or not source.strip():
            return [], source
        found = _TAG.match(source)
        known = ", ".join(map(tag_text, self.tags))
        if found is None:
            raise DragomanError(
                f"{place}: the line begins with no language tag, which tells the model what to translate into; put one of {known}"
            )
        if found[1] not in self.tags:
            raise DragomanError(f"{place}: the language tag {found[0].strip()} is unknown to the model; it has {known}")
        return [self.tags[found[1]]], source[found.end() :]

    def decode(self, ids: Iterable[int]) -> str:
        """The plain text of ``ids``: start, end, padding and tags left out, ``<unk>`` for an unknown token, U+FFFD for broken UTF-8."""
        return self.plain(self.backend.decode([token for token in ids if token not in self.textless], skip_special_tokens=False))

    def encoded_spans(self, text: str) -> list[tuple[int, int]]:
        """Where in ``text`` each id of ``encode(text)`` comes from: its first character and the one after its last."""
        return list(self.backend.encode(text, add_special_tokens=False).offsets)

    def decoded_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Where in ``decode(ids)`` each id is: its first character and the one after its last. Ids that share a character all have it;
        those without text have nothing.
        """
        if self.kind == "foreign":
            if self._style not in ("bytes", "sentencepiece"):
                return spans_by_decoding(self.decode, ids)
            return spans_of_pieces([self.piece(token) for token in ids], self.decode(ids))
        entries = ["" if token in self.textless else self.backend.id_to_token(token) or "" for token in ids]
        if self.kind == "characters":
            ends = list(accumulate(map(len, entries)))
            return [(end - len(entry), end) for end, entry in zip(ends, entries, strict=True)]
        return _spans_of_bytes(entries) if self.kind == "bpe" else _spans_of_words(entries, self.joiner)

    def token(self, id: int) -> str:
        """One vocabulary entry for display; bytes that are no character by themselves read ``\\xe2``."""
        entry = self.backend.id_to_token(id)
        if entry is None:
            raise DragomanError(f"no token has the id {id}; the vocabulary has {len(self)} entries")
        if self.kind == "characters" and id not in self.textless:
            return entry
        if self.kind == "whitespace" or id == self.unk or id in self.textless:
            return entry.strip(" ")
        if self.kind == "foreign":
            shown = self.piece(id) if self._style in ("bytes", "sentencepiece") else entry.encode()
            return shown.decode(errors="backslashreplace")
        return bytes(_BYTE_OF_CHARACTER[character] for character in entry).decode(errors="backslashreplace")

    def piece(self, id: int) -> bytes:
        """What an entry adds to a text, in UTF-8, which may be a part of a character: ``b" horse"``; nothing for a special token.

        With ``whitespace`` the space after a word belongs to it, and none follows a piece with the joiner.
        """
        entry = self.backend.id_to_token(id)
        if entry is None or id in self.textless:
            return b""
        if self.kind == "characters":
            return entry.encode()
        style = self._style if self.kind == "foreign" else ""
        if style not in ("", "bytes"):
            return piece_of(entry, style)
        if style or self.kind == "bpe":
            plain = id == self.unk or not set(entry) <= _BYTE_OF_CHARACTER.keys()
            return entry.encode() if plain else bytes(_BYTE_OF_CHARACTER[character] for character in entry)
        joined = self.joiner and entry.endswith(self.joiner)
        return (entry.removesuffix(self.joiner) if joined else f"{entry} ").encode()

    def plain(self, text: str) -> str:
        """Segmented text as plain text: without the joiners. Text itself where there is no joiner."""
        return re.sub(rf"{re.escape(self.joiner)}( |$)", "", text) if self.joiner else text

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what ``save`` writes."""
        return hashlib.sha256(self._to_json().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the tokenizer as one JSON file."""
        path.write_text(self._to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """The tokenizer that ``save`` wrote; DragomanError that names the file when it cannot be used."""
        try:
            fields: dict[str, Any] = json.loads(path.read_bytes())
            version = fields.pop("format")
            if type(version) is not int or version < 1:
                raise ValueError(f"format {version!r}")
            if version > FORMAT_VERSION:
                raise DragomanError(f"{path}: written by a newer Dragoman (tokenizer format {version}); update this one")
            backend = tokenizers.Tokenizer.from_str(json.dumps(fields.pop("tokenizer")))
            fields["opening"] = tuple(fields.get("opening", ()))
            tokenizer = cls(**fields, backend=backend)
            tokenizer._check()
        except OSError as error:
            raise DragomanError(f"{path}: cannot read the tokenizer: {error.strerror}") from None
        except DragomanError:
            raise
        except Exception as error:  # tokenizers raises bare Exception
            raise DragomanError(f"{path}: not a tokenizer, or damaged ({error!r}); restore the file from the model it belongs to") from None
        return tokenizer

    def _check(self) -> None:
        if self.kind not in get_args(Kind) or not isinstance(self.joiner, str):
            raise ValueError(f"kind {self.kind!r}, joiner {self.joiner!r}")
        if not isinstance(self.tags, dict) or any(_TAG.fullmatch(tag_text(name)) is None for name in self.tags):
            raise ValueError(f"tags {self.tags!r}")
        if type(self.source_end) is not bool:
            raise ValueError(f"source_end {self.source_end!r}")
        special = self.textless | {self.unk, *self.opening}
        if any(self.backend.token_to_id(_entry(name)) != token for name, token in self.tags.items()):
            raise ValueError(f"tags {self.tags} are not in the vocabulary")
        distinct = self.kind == "foreign" or len(special) >= len(SPECIAL_TOKENS) + len(self.tags) + (self.mask is not None)
        if not all(isinstance(token, int) and 0 <= token < len(self) for token in special) or not distinct:
            raise ValueError(f"special ids {[*special]} in a vocabulary of {len(self)}")
        if sorted(self.backend.get_vocab().values()) != list(range(len(self))):
            raise ValueError("ids with gaps")
        if self.kind == "bpe":
            entries = {entry for entry, token in self.backend.get_vocab().items() if token not in special}
            foreign = sorted(entry for entry in entries if not set(entry) <= _BYTE_OF_CHARACTER.keys())
            if foreign or not _BYTE_OF_CHARACTER.keys() <= entries:
                missing = sorted(_BYTE_OF_CHARACTER.keys() - entries)
                raise ValueError(f"not a byte-level vocabulary: {foreign[:3]} in it, {missing[:3]} not in it")

    def _to_json(self) -> str:
        own = {"format": FORMAT_VERSION, "kind": self.kind, "joiner": self.joiner}
        special: dict[str, object] = {"pad": self.pad, "bos": self.bos, "eos": self.eos, "unk": self.unk}
        if self.tags:
            special["tags"] = dict(self.tags)
        if self.mask is not None:
            special["mask"] = self.mask
        if not self.source_end:
            special["source_end"] = False
        if self.opening:
            special["opening"] = list(self.opening)
        return json.dumps(own | special | {"tokenizer": json.loads(self.backend.to_str())}, ensure_ascii=False, indent=1)


def _spans_of_bytes(entries: Sequence[str]) -> list[tuple[int, int]]:
    decoder = getincrementaldecoder("utf-8")("replace")
    count, spans = 0, []  # characters so far
    for entry in entries:
        places = []
        for character in entry:
            byte = _BYTE_OF_CHARACTER.get(character)
            count += len(decoder.decode(character.encode() if byte is None else bytes((byte,))))
            places.append(count - (0 if decoder.getstate()[0] else 1))
        spans.append((places[0], places[-1] + 1) if places else (count, count))
    lead = int("".join(entries).startswith("Ġ"))  # the space that decoding takes away
    return [(max(start - lead, 0), max(end - lead, 0)) for start, end in spans]


def _spans_of_words(entries: Sequence[str], joiner: str) -> list[tuple[int, int]]:
    place, spans = 0, []
    for entry in entries:
        joined = bool(joiner and entry.endswith(joiner))
        end = place + len(entry) - (len(joiner) if joined else 0)
        spans.append((place, end))
        place = end + int(bool(entry) and not joined)
    return spans


def tag_text(name: str) -> str:
    """A language tag as it stands at the head of a line."""
    return f">>{name}<<"


def _entry(name: str) -> str:
    """A tag's entry in the vocabulary. No piece of text has a space: words are cut at it, and byte pairs write it as another character."""
    return f"{tag_text(name)} "


def _with_entries(backend: tokenizers.Tokenizer, entries: Mapping[str, int]) -> tokenizers.Tokenizer:
    """With entries behind all others, of these ids."""
    saved = json.loads(backend.to_str())
    if isinstance(saved["model"]["vocab"], list):  # pieces with their scores, at the place of their ids
        saved["model"]["vocab"] += [[entry, 0.0] for entry in entries]
    else:
        saved["model"]["vocab"] |= entries
    return tokenizers.Tokenizer.from_str(json.dumps(saved))
