"""Terms that a translation must hold: a file of source and target terms, and which of them a text asks for."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dragoman.data.formats.lines import read_lines
from dragoman.decoding.phrases import whole_at
from dragoman.errors import DragomanError, UsageError, option

_HEAD = 3  # characters that a term is looked up by


@dataclass(frozen=True)
class Term:
    """A phrase that must stand in the translation when ``source`` stands in the text; ``place`` is where it was asked for."""

    source: str
    target: str
    place: str

    @property
    def named(self) -> str:
        """The place as an error names it."""
        return option(self.place) if self._asked_by_option else self.place

    def error(self, fault: str) -> DragomanError:
        """What is wrong with the term, as an error that names its place: of an option's own phrase wrong usage, else wrong data."""
        return (UsageError if self._asked_by_option else DragomanError)(f"{self.named}: {self.target!r} {fault}")

    @property
    def _asked_by_option(self) -> bool:
        return self.place in ("require", "forbid")


class Glossary:
    """Terms by their source."""

    def __init__(self, terms: Iterable[Term]) -> None:
        """Raises DragomanError, with both places, for one source with two targets."""
        self.terms = tuple(terms)
        by_source: dict[str, Term] = {}
        for term in self.terms:
            first = by_source.setdefault(term.source, term)
            if first.target != term.target:
                raise DragomanError(
                    f"{term.place}: {term.source!r} is to be {term.target!r} here and {first.target!r} in {first.place}; keep one of them"
                )
        self._by_head: dict[str, list[Term]] = {}
        for term in sorted(by_source.values(), key=lambda term: -len(term.source)):
            self._by_head.setdefault(term.source[:_HEAD], []).append(term)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The glossary of a text file, one ``SOURCE<tab>TARGET`` a line; blank lines are passed over.

        Raises DragomanError that names file and line for a line without a tab, with more than one, or with an empty side.
        """
        terms = []
        for number, line in enumerate(read_lines(Path(path)), start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            sides = [side.strip() for side in line.split("\t")]
            if len(sides) != 2:
                raise DragomanError(f"{place}: {len(sides) - 1} tabs where a glossary has one; write SOURCE<tab>TARGET")
            for name, side in zip(("source", "target"), sides, strict=True):
                if not side:
                    raise DragomanError(f"{place}: the {name} side is empty; write SOURCE<tab>TARGET, or leave the line out")
            terms.append(Term(sides[0], sides[1], place))
        return cls(terms)

    def found_in(self, text: str) -> list[Term]:
        """The terms whose sources stand in ``text`` as whole words, each once, in order; of overlapping ones the first, then the longest.

        Letters count as written; only at the beginning of the text may a small first letter stand as a capital.
        """
        found: dict[Term, None] = {}
        start = 0
        first = len(text) - len(text.lstrip())
        lowered = text[:first] + text[first : first + 1].lower() + text[first + 1 :]
        while start < len(text):
            variants = (text, lowered) if start == first and len(lowered) == len(text) else (text,)
            term = next((term for variant in variants for term in self._at(variant, start)), None)
            if term:
                found[term] = None
            start += len(term.source) if term else 1
        return list(found)

    def _at(self, text: str, start: int) -> Iterable[Term]:
        for width in range(_HEAD, 0, -1):
            # A head shorter than that is a whole term.
            for term in self._by_head.get(text[start : start + width], ()) if start + width <= len(text) else ():
                if whole_at(term.source, text, start):
                    yield term
