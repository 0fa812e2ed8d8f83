"""Phrases in text and in tokens: where they stand as whole words, how they are spelled, and a rule that forbids them.

A phrase stands in a text where its characters do and no letter or digit goes on before or after it; in scripts that put no spaces between
words (Chinese, Japanese, Thai …) it stands wherever its characters do. A character is known by its first byte in UTF-8, since pieces of a
vocabulary may begin or end inside one.
"""

import copy
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.rules import ForcedPrefix, Rule
from dragoman.errors import DragomanError

# First bytes of letters and digits of scripts with spaces: ASCII, and from U+00C0 to U+07FF and U+0800 to U+1FFF.
_WORD = [chr(byte).isalnum() if byte < 0x80 else 0xC3 <= byte <= 0xDF or byte in (0xE0, 0xE1) for byte in range(256)]
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF))  # Thai and Lao, Burmese, Khmer


def _is_word(character: str) -> bool:
    return _WORD[character.encode()[0]]


def _bounded(character: str) -> bool:
    """Whether a phrase with this character at its edge needs a boundary there."""
    return _is_word(character) and not any(first <= ord(character) <= last for first, last in _UNSPACED)


def whole_at(phrase: str, text: str, start: int) -> bool:
    """Whether ``phrase`` stands at ``start`` as whole words."""
    stop = start + len(phrase)
    if not text.startswith(phrase, start):
        return False
    before = start > 0 and _is_word(text[start - 1]) and _bounded(phrase[0])
    after = stop < len(text) and _is_word(text[stop]) and _bounded(phrase[-1])
    return not (before or after)


def stands_in(phrase: str, text: str) -> bool:
    """Whether ``phrase`` stands anywhere in ``text`` as whole words."""
    start = text.find(phrase)
    while start >= 0:
        if whole_at(phrase, text, start):
            return True
        start = text.find(phrase, start + 1)
    return False


class Prefix(NamedTuple):
    """The ids of a text's beginning, and for a place among them the ids of longer pieces that may stand there and end it.

    The last id is `ForcedPrefix.ONLY_INSTEAD` where a word must follow that may be any.
    """

    ids: list[int]
    instead: dict[int, list[int]]


class Spelling:
    """How the texts of a target vocabulary are made of its pieces.

    ``size`` is the number of rows of the model's target embedding: those beyond the tokenizer's entries have no text, but may stand in the
    empty places of a beam.
    """

    def __init__(self, tokenizer: Tokenizer, size: int = 0) -> None:
        self.tokenizer = tokenizer
        self.pieces = [tokenizer.piece(token) for token in range(len(tokenizer))]
        self.pieces += [b""] * (size - len(self.pieces))
        self._sorted = sorted((piece, token) for token, piece in enumerate(self.pieces) if piece)

    def normal(self, text: str) -> str:
        """``text`` as the vocabulary spells it: in its normal form, without joiners, without white space at its ends."""
        if self.tokenizer.kind != "whitespace":
            return self.tokenizer.decode(self.tokenizer.encode(text.strip()))
        return self.tokenizer.plain(self._in_normal_form(text).strip())

    def _in_normal_form(self, text: str) -> str:
        """Segmented text; of byte pairs decoding gives it."""
        normalizer = self.tokenizer.backend.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def beginning_with(self, start: bytes) -> list[int]:
        """The entries whose pieces begin so."""
        first = bisect_left(self._sorted, (start, -1))
        last = bisect_left(self._sorted, (start + b"\xff", -1))  # no UTF-8 has the byte 255
        return [token for _, token in self._sorted[first:last]]

    def encode(self, text: str, place: str) -> list[int]:
        """The ids of a phrase as it is spelled after a space, which is also how it is spelled at the beginning.

        Raises DragomanError that begins with ``place`` for a word that the vocabulary cannot spell.
        """
        ids = self.tokenizer.encode(text)
        if self.tokenizer.unk in ids and self.tokenizer.kind == "characters":
            unknown = dict.fromkeys(character for character in text if self.tokenizer.unk in self.tokenizer.encode(character))
            raise DragomanError(
                f"{place}: the model's vocabulary has no {', '.join(map(repr, unknown))}; use characters of its training text"
            )
        if self.tokenizer.unk in ids and self.tokenizer.kind != "bpe":
            words = [word for word in text.split(" ") if self.tokenizer.unk in self.tokenizer.encode(word)]
            if self.tokenizer.kind == "foreign":
                raise DragomanError(f"{place}: the model's vocabulary cannot spell {', '.join(map(repr, words))}; write it otherwise")
            joined = f", with {self.tokenizer.joiner} behind what is joined to the next" if self.tokenizer.joiner else ""
            raise DragomanError(
                f"{place}: the model's vocabulary has no {', '.join(map(repr, words))}; it is one of segmented text: write the pieces as "
                f"they stand in its training text{joined}"
            )
        return ids

    def after_a_sign(self, ids: Sequence[int], text: str) -> list[int]:
        """The ids of a phrase right behind a bracket; those after a space, ``ids``, where the vocabulary knows no difference."""
        if self.tokenizer.kind == "whitespace":
            return list(ids)
        bracket = self.tokenizer.encode("(")
        both = self.tokenizer.encode(f"({text}")
        return both[len(bracket) :] if both[: len(bracket)] == bracket else list(ids)

    def prefix(self, text: str, place: str) -> Prefix:
        """What makes an output begin with ``text``, in its normal form; its last word may go on, unless a space follows it there. One of
        white space alone asks for nothing.

        Byte pairs may spell a longer word with other pieces: wherever a piece spells all of the rest, and maybe more, the model may take
        it. Raises DragomanError that begins with ``place`` as `encode` does, and for spaces that segmented text cannot have.
        """
        if not text.strip():
            return Prefix([], {})
        if self.tokenizer.kind == "characters":
            return Prefix(self.encode(text, place), {})
        if self.tokenizer.kind == "whitespace":
            if "" in self._in_normal_form(text).removesuffix(" ").split(" "):
                raise DragomanError(
                    f"{place}: {text!r} begins with a space or has more than one in a row, and the model's vocabulary, one of segmented "
                    "text, has none but the one between words; take the others out"
                )
            return Prefix(self.encode(text, place), {})
        text = self.tokenizer.decode(self.tokenizer.encode(text))  # its normal form, where another white space may be a space
        ended = text.endswith(" ")
        ids = self.encode(text[:-1] if ended else text, place)  # that space is the beginning of the next word
        instead: dict[int, list[int]] = {}
        rest = b""
        for start in range(len(ids) - 1, -1, -1):
            rest = self.pieces[ids[start]] + rest
            if not ended and (longer := self.beginning_with(rest)):
                instead[start] = longer
            if rest.startswith(b" "):
                break
        if ended:
            spaces = self.beginning_with(b" ")
            instead[len(ids)] = [token for token in spaces if self.pieces[token].strip()] or spaces
            ids.append(ForcedPrefix.ONLY_INSTEAD)
        return Prefix(ids, instead)

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor]:
        """Which entries (V,) begin with a letter or digit, and which end with one: side by side two such are one word."""
        begins = [bool(piece) and _WORD[piece[0]] for piece in self.pieces]
        ends = [any(_WORD[byte] for byte in _last_character(piece)) for piece in self.pieces]
        return torch.tensor(begins), torch.tensor(ends)


def _last_character(piece: bytes) -> bytes:
    """The first byte of the last character, or nothing where the piece begins inside it."""
    start = next((place for place in range(len(piece) - 1, -1, -1) if not 0x80 <= piece[place] <= 0xBF), None)
    return b"" if start is None else piece[start : start + 1]


class _State(NamedTuple):
    """How far each phrase is spelled, a bit for each of its bytes, and whether the text ends with a letter or digit."""

    spelled: int
    in_word: bool


class ForbiddenPhrases(Rule):
    """No output holds one of the phrases as whole words, in whatever pieces it might be spelled.

    A piece that ends where a phrase does is forbidden even if a longer word could follow, when only the next piece would show that.
    """

    def __init__(self, phrases: Sequence[str], spelling: Spelling, *, eos: int) -> None:
        self.pieces, self.eos = spelling.pieces, eos
        self._spelling = spelling
        self._texts = [phrase.encode() for phrase in phrases]
        self._starts = [sum(map(len, self._texts[:number])) for number in range(len(phrases))]
        self._bits = [0] * 256  # where each byte stands in the phrases
        for first, text in zip(self._starts, self._texts, strict=True):
            for place, byte in enumerate(text, start=first):
                self._bits[byte] |= 1 << place
        ends = [first + len(text) - 1 for first, text in zip(self._starts, self._texts, strict=True)]
        bounded = [(_bounded(phrase[0]), _bounded(phrase[-1])) for phrase in phrases]
        self._begin = sum(1 << first for first in self._starts)
        self._begin_in_word = sum(1 << first for first, (before, _) in zip(self._starts, bounded, strict=True) if not before)
        self._end = sum(1 << last for last in ends)
        self._end_of_word = sum(1 << last for last, (_, after) in zip(ends, bounded, strict=True) if after)
        self._inside = [token for token, piece in enumerate(self.pieces) if any(text in piece for text in self._texts)]
        self._after: dict[tuple[int, ...], _State] = {}
        self._steps: dict[tuple[_State, int], tuple[_State, bool]] = {}
        self._banned: dict[_State, list[int]] = {}

    def of_batch(self) -> "ForbiddenPhrases":
        """The same rule for a batch that others may be searched beside: what it remembers of the outputs so far is its own."""
        return copy.copy(self)  # `__call__` gives it a memory of its own

    def __call__(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """Takes away the tokens that would complete a phrase."""
        after: dict[tuple[int, ...], _State] = {}
        rows: list[int] = []
        columns: list[int] = []
        for row, seen in enumerate(map(tuple, tokens.tolist())):
            after[seen] = state = self._after[seen] if seen in self._after else self._follow(seen)
            if state not in self._banned:
                self._banned[state] = list(self._completing(state))
            rows += [row] * len(self._banned[state])
            columns += self._banned[state]
        self._after = after  # each row of the next step extends one of these
        if rows:
            scores[rows, columns] = -math.inf

    def _follow(self, seen: tuple[int, ...]) -> _State:
        if not seen:
            return _State(0, False)
        before = self._after[seen[:-1]] if seen[:-1] in self._after else self._follow(seen[:-1])
        return self._step(before, seen[-1])[0]

    def _completing(self, state: _State) -> Iterator[int]:
        """The tokens that complete a phrase after ``state``."""
        candidates = set(self._inside)
        for first, text in zip(self._starts, self._texts, strict=True):
            for place in range(len(text)):
                if state.spelled >> (first + place) & 1:
                    rest = text[place + 1 :]
                    candidates.update(self._spelling.beginning_with(rest) if rest else range(len(self.pieces)))
        yield from sorted(token for token in candidates if self._step(state, token)[1])
        if state.spelled & self._end:
            yield self.eos

    def _step(self, state: _State, token: int) -> tuple[_State, bool]:
        """The state after a token, and whether a phrase is then complete, or would be if nothing but its end could follow."""
        key = (state, token)
        if key not in self._steps:
            spelled, in_word = state
            complete = False
            for byte in self.pieces[token]:
                new_character = not 0x80 <= byte <= 0xBF
                complete |= new_character and not _WORD[byte] and bool(spelled & self._end_of_word)
                begin = self._begin_in_word if in_word else self._begin
                spelled = ((spelled & ~self._end) << 1 | begin) & self._bits[byte]
                in_word = _WORD[byte] if new_character else in_word
                complete |= bool(spelled & self._end & ~self._end_of_word)
            complete |= self._spelling.tokenizer.kind != "whitespace" and bool(spelled & self._end_of_word)
            self._steps[key] = _State(spelled, in_word), complete
        return self._steps[key]
