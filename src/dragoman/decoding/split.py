"""Text that is longer than the model takes, in pieces that are not: cut where a reader would pause."""

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from dragoman.config import Config
from dragoman.errors import DragomanError

# Signs that end a sentence where white space follows: Latin, Greek, Arabic, Devanagari, Armenian, Ethiopic, Myanmar, Khmer, Tibetan.
_ENDS = ".!?…‽;؟۔।॥։።፧။។།"
_CLAUSES = ",;:·،؛–—՝፣፤፥၊៖"
_CLOSING = "\"'”’“‘»›)\\]"
# East Asian text has no white space behind its signs, which are wide or half as wide.
_WIDE_ENDS, _WIDE_CLAUSES, _WIDE_CLOSING = "。！？｡．", "，、；：､", "」』”’）｣】》〉"

# Places to cut, the best first, after sentences, clauses and words; what matches is the white space between two pieces.
_CUTS = [
    re.compile(pattern)
    for pattern in (
        rf"(?<=[{_ENDS}])(?<!\.)\s+|(?<=\.)\s++(?![a-zß-öø-ÿа-яё])|(?<=[{_ENDS}][{_CLOSING}])\s+"
        rf"|(?<=[{_WIDE_ENDS}])(?![{_WIDE_ENDS}{_WIDE_CLOSING}])\s*|(?<=[{_WIDE_ENDS}][{_WIDE_CLOSING}])(?![{_WIDE_CLOSING}])\s*",
        rf"(?<=[{_CLAUSES}])\s+|(?<=[{_WIDE_CLAUSES}])\s*",
        r"\s+",
    )
]
BETWEEN_SENTENCES = _CUTS[0]
"""The white space between two sentences, which may be none between East Asian ones; a full stop before a small letter ends nothing."""

# A character of these kinds (accents, joiners, skin tones) belongs to the one before it.
_DEPENDENT = {"Mn", "Mc", "Me", "Cf", "Sk"}
_JOINER = "\u200d"
_FLAG_HALVES = "".join(map(chr, range(0x1F1E6, 0x1F200)))  # two letters make a flag


class Piece(NamedTuple):
    """A part of a text and the white space that follows it there."""

    text: str
    separator: str


def longest_taken(config: Config) -> int:
    """The most tokens of a side, end token included: the model's positions, of learned ones those that training has seen."""
    model = config.model
    return min(model.max_positions, config.data.max_length) if model.positions == "learned" else model.max_positions


def split_text(text: str, *, fits: Callable[[str], bool]) -> list[Piece]:
    """``text`` without white space at its ends, in pieces that fit, nothing left out and as few cuts as halving makes.

    A text that does not fit is cut in two near its middle: between sentences if it has any, else clauses, words, or characters.
    Raises DragomanError for a single character that does not fit.
    """
    text = text.strip()
    if fits(text):
        return [Piece(text, "")]
    start, end = _cut(text)
    left, right = split_text(text[:start], fits=fits), split_text(text[end:], fits=fits)
    return [*left[:-1], Piece(left[-1].text, text[start:end]), *right]


def _cut(text: str) -> tuple[int, int]:
    """Where the left part ends and the right part begins."""
    if len(text) < 2:
        raise DragomanError(f"the character {text!r} alone has more tokens than the model takes; use a model with more")

    def from_middle(span: tuple[int, int]) -> int:
        return abs(sum(span) - len(text))

    for pattern in _CUTS:
        spans = [match.span() for match in pattern.finditer(text) if match.start() > 0 and match.end() < len(text)]
        if spans:
            return min(spans, key=from_middle)
    places = sorted(range(1, len(text)), key=lambda place: from_middle((place, place)))
    best = next((place for place in places if _may_part(text, place)), places[0])
    return best, best


def _may_part(text: str, place: int) -> bool:
    """Whether a character by itself begins at a place: no accent, no second half of a flag, nothing joined to the one before."""
    if unicodedata.category(text[place]) in _DEPENDENT or text[place - 1] == _JOINER:
        return False
    if text[place] not in _FLAG_HALVES:
        return True
    before = text[:place]
    return (place - len(before.rstrip(_FLAG_HALVES))) % 2 == 0
