"""A text in sentences and what stands between them: only sentences are translated, and the rest comes back as it was."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dragoman.decoding.split import BETWEEN_SENTENCES

# A full stop behind these ends no sentence: titles and usual short forms, initials, and the ordinal numbers of many languages (3. Mai).
_SHORT_FORMS = (
    "mr mrs ms dr prof sr jr st rev gen col capt lt sgt hon nos vol fig figs pp vs approx dept eg ie cf "
    "nr hr bzw bspw evtl ggf inkl exkl mio mrd sog str usw vgl zzgl jhd mme mlle sra srta dra ud uds pág núm dott ing avv ecc tzn např "
    "resp odst mgr inż"
)
_SHORT = frozenset(_SHORT_FORMS.split())
_LOOKED_AT = 40  # characters before a full stop: all of them would take the square of the length of a line
_LAST_WORD = re.compile(r"(?:^|[\s(\[\"'„“«])((?:[^\W\d_]\.)*[^\W\d_]+|\d{1,2})\.$")


@dataclass(frozen=True)
class Sentence:
    """What is translated at once; ``finish`` makes of a translation what goes into the document."""

    text: str
    finish: Callable[[str], str] = str


Document = Sequence["str | Sentence"]
"""A text in order: what stays as it is, and sentences."""


def document_of(text: str, *, split: bool) -> list[str | Sentence]:
    """The lines of a plain text, each in sentences if ``split``; what has no letter and no digit stays as it is."""
    parts: list[str | Sentence] = []
    for number, line in enumerate(text.split("\n")):
        if number:
            parts.append("\n")
        parts.extend(line_parts(line, split=split))
    return parts


def line_parts(line: str, *, split: bool, finish: Callable[[str], str] = str) -> Iterator["str | Sentence"]:
    """The sentences of a line, the white space before, between and behind them, and sentences without a letter or digit as they are."""
    content = line.strip()
    if not content:
        if line:
            yield finish(line)
        return
    start = line.index(content[0])
    if start:
        yield finish(line[:start])
    cuts = sentence_cuts(content) if split else []
    ends = [(0, 0), *cuts, (len(content), len(content))]
    for (_, begin), (end, after) in pairwise(ends):
        sentence = content[begin:end]
        yield Sentence(sentence, finish) if says_something(sentence) else finish(sentence)
        if after > end:
            yield finish(content[end:after])
    if rest := line[start + len(content) :]:
        yield finish(rest)


def sentence_cuts(text: str) -> list[tuple[int, int]]:
    """Where the white space between two sentences begins and ends."""
    return [
        found.span()
        for found in BETWEEN_SENTENCES.finditer(text)
        if found.start() > 0 and found.end() < len(text) and not _is_short_form(text[max(found.start() - _LOOKED_AT, 0) : found.start()])
    ]


def _is_short_form(before: str) -> bool:
    """Whether the full stop at the end of this belongs to a short form, an initial or an ordinal number."""
    found = _LAST_WORD.search(before)
    if found is None:
        return False
    word = found[1]
    return word.isdecimal() or "." in word or len(word) == 1 or word.lower() in _SHORT


def says_something(text: str) -> bool:
    """Whether there is a letter or a digit in it: emoji and signs alone are no text to translate."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def assembled(document: Document, translations: Sequence[str]) -> str:
    """The document with each sentence's translation in its place."""
    found = iter(translations)
    return "".join(part if isinstance(part, str) else part.finish(next(found)) for part in document)


def sentences_of(document: Document) -> list[Sentence]:
    """The sentences of a document, in order."""
    return [part for part in document if isinstance(part, Sentence)]
