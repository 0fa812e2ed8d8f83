"""What is counted of a translation's lines, and what of it is said at the end."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dragoman.cli.rounds import Done
from dragoman.cli.streams import notify
from dragoman.cli.windows import Window

if TYPE_CHECKING:
    from dragoman.decoding.translate import Translation

_NAMED = 10  # lines or terms that a notice names before it only counts


def what_to_say(number: int, translations: Sequence["Translation"]) -> dict[str, Any]:
    """Fields of `Done` for what a reader of the translations of lines from ``number`` on must know."""
    missed = [(line, term) for line, each in enumerate(translations, start=number) for term in each.missed]
    return {
        "loops": [line for line, each in enumerate(translations, start=number) if each.stop == "repetition"],
        "at_limit": [line for line, each in enumerate(translations, start=number) if each.reached_limit],
        "terms": sum(len(each.met) + len(each.missed) for each in translations),
        "missed": [f"line {line}: {term.source + ' -> ' if term.source else ''}{term.target}" for line, term in missed],
    }


@dataclass
class Tally:
    """Of all lines that are done: ``lines``, ``size`` bytes of text, output ``tokens``, lines that were ``split`` in pieces, ``loops``,
    outputs ``at_limit``, as `dragoman evaluate` counts them (their ends may be forced), and of ``terms`` that were asked for those that are
    ``missed``. Of these three the first few are kept, to be named.
    """

    lines: int = 0
    size: int = 0
    tokens: int = 0
    split: int = 0
    loops: int = 0
    at_limit: int = 0
    terms: int = 0
    missed: int = 0
    looped_lines: list[int] = field(default_factory=list)
    limit_lines: list[int] = field(default_factory=list)
    missed_terms: list[str] = field(default_factory=list)

    def add(self, window: Window, done: Done) -> None:
        """One more window is done."""
        self.lines = window.last
        self.size += window.size
        self.tokens += done.tokens
        self.split += done.split
        self.loops += len(done.loops)
        self.at_limit += len(done.at_limit)
        self.terms += done.terms
        self.missed += len(done.missed)
        self.looped_lines = (self.looped_lines + done.loops)[:_NAMED]
        self.limit_lines = (self.limit_lines + done.at_limit)[:_NAMED]
        self.missed_terms = (self.missed_terms + done.missed)[:_NAMED]

    def report(self) -> None:
        """Say on standard error what a reader of the translations must know."""
        log = logging.getLogger("dragoman")
        if self.split:
            lines = "line was" if self.split == 1 else "lines were"
            notify(f"{self.split:,} {lines} longer than the model takes, and translated in pieces")
        if self.loops:
            went = "translation went round in a loop and was" if self.loops == 1 else "translations went round in a loop and were"
            log.warning("%d %s ended; lines: %s", self.loops, went, _named(self.looped_lines, self.loops))
        if self.at_limit:
            came = "translation" if self.at_limit == 1 else "translations"
            lines = _named(self.limit_lines, self.at_limit)
            log.warning("%d %s reached the longest length allowed and may be cut; lines: %s", self.at_limit, came, lines)
        if self.terms:
            notify(f"{self.terms - self.missed} of {self.terms} required terms stand in the translations")
        for missed in self.missed_terms:
            log.warning("%s is not in the translation", missed)
        if self.missed > len(self.missed_terms):
            log.warning("%d more are not; --json tells which", self.missed - len(self.missed_terms))


def _named(lines: Sequence[int], count: int) -> str:
    """The first lines of so many."""
    return ", ".join(map(str, lines)) + (" …" if count > len(lines) else "")
