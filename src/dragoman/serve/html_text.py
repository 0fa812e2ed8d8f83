"""HTML in sentences: what a reader sees is translated, and every tag, attribute and comment comes back byte for byte.

Each run of text between two tags is translated by itself, its white space taken as a browser takes it. Nothing inside script, style and
code, and nothing under ``translate="no"`` or the class ``notranslate``, is touched. A character that was written as an entity in a run of
text is written as that entity in its translation.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from itertools import accumulate

from dragoman.serve.segments import Sentence, line_parts

_UNTOUCHED = {"script", "style", "code", "template", "svg", "math"}
_KEEP_LINES = {"pre", "textarea"}
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")
_MARKUP = re.compile(r"<[A-Za-z/!?]")
_SPACES = re.compile(r"[ \t\r\n\f]+")


def html_document(text: str, *, split: bool) -> list[str | Sentence]:
    """The document with its sentences, each of which becomes HTML again when it is translated."""
    parts: list[str | Sentence] = []
    for raw, as_text, keep_lines in _runs(text):
        if not as_text:
            parts.append(raw)
        elif raw.strip():
            parts.extend(_text_parts(raw, split=split, keep_lines=keep_lines))
        else:
            parts.append(raw)
    return parts


def _text_parts(raw: str, *, split: bool, keep_lines: bool) -> Iterator[str | Sentence]:
    plain = html.unescape(raw)
    finish = partial(_escaped, entities=_entities(raw))
    if not keep_lines:
        # No-break spaces stay: they are characters of the text.
        lead, rest = _leading(plain)
        content, trail = _trailing(rest)
        yield lead
        yield from line_parts(_SPACES.sub(" ", content), split=split, finish=finish)
        yield trail
        return
    for number, line in enumerate(plain.split("\n")):
        if number:
            yield "\n"
        yield from line_parts(line, split=split, finish=finish)


def _leading(text: str) -> tuple[str, str]:
    found = _SPACES.match(text)
    return (found.group(), text[found.end() :]) if found else ("", text)


def _trailing(text: str) -> tuple[str, str]:
    kept = text.rstrip(" \t\r\n\f")
    return kept, text[len(kept) :]


def _entities(raw: str) -> dict[str, str]:
    """The characters that a run of text writes as entities, each with its first spelling."""
    found: dict[str, str] = {}
    for entity in _ENTITY.findall(raw):
        character = html.unescape(entity)
        if len(character) == 1:
            found.setdefault(character, entity)
    return found


def _escaped(text: str, *, entities: dict[str, str]) -> str:
    """Text as HTML: the three signs that would be markup, and what its run of text wrote as entities."""
    written = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | entities
    return "".join(written.get(character, character) for character in text)


def _runs(text: str) -> Iterator[tuple[str, bool, bool]]:
    """The document cut at every tag: the piece, whether it is text to translate, and whether its lines count; all of it, in order."""
    scanner = _Scanner(text)
    marks = scanner.marks
    start = 0
    while start < len(marks):
        stop = start + 1
        while stop < len(marks) and marks[stop][1:] == marks[start][1:] and marks[start][1]:
            stop += 1
        end = marks[stop][0] if stop < len(marks) else len(text)
        yield text[marks[start][0] : end], marks[start][1], marks[start][2]
        start = stop


class _Open:
    """Elements that are open, each inside the one before; closing one takes as long as there are in it, and no time if it is not open."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._counts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, name: str) -> None:
        """One more, inside all others."""
        self._names.append(name)
        self._counts[name] += 1

    def close(self, name: str) -> None:
        """The innermost of this name, if there is one, and those inside it."""
        last = ""
        while self._counts[name] and last != name:
            last = self._names.pop()
            self._counts[last] -= 1


class _Scanner(HTMLParser):
    """Where each piece of a document begins, and what it is: text to translate or not, in lines or not."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.marks: list[tuple[int, bool, bool]] = []
        self._closed = _Open()  # the element that is left alone, and those inside it
        self._lines = _Open()  # elements whose line breaks count
        self._starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self.feed(text)
        self._end()
        if text and (not self.marks or self.marks[0][0]):
            self.marks.insert(0, (0, False, False))

    def _end(self) -> None:
        """What is left begins like markup and has no end: as in a browser, it is no text, unless it is a sign alone.

        The parser's own `close` takes it for text, but after it has looked from every sign in it to the end again.
        """
        if self.rawdata:
            self._mark(as_text=not _MARKUP.match(self.rawdata))

    def _mark(self, *, as_text: bool) -> None:
        line, column = self.getpos()
        place = self._starts[line - 1] + column
        if not self.marks or self.marks[-1][0] < place:
            self.marks.append((place, as_text and not self._closed, bool(self._lines)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag: it may close its content to translation, or make its line breaks count."""
        self._mark(as_text=False)
        if tag in _VOID:
            return
        if self._closed or tag in _UNTOUCHED or _is_kept(attrs):
            self._closed.add(tag)
        if tag in _KEEP_LINES:
            self._lines.add(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that has no content."""
        self._mark(as_text=False)

    def handle_endtag(self, tag: str) -> None:
        """The end of an element, and of those inside it that were never closed."""
        self._mark(as_text=False)
        self._closed.close(tag)
        self._lines.close(tag)

    def handle_data(self, data: str) -> None:
        """Text."""
        self._mark(as_text=True)

    def handle_entityref(self, name: str) -> None:
        """An entity by name."""
        self._mark(as_text=True)

    def handle_charref(self, name: str) -> None:
        """An entity by number."""
        self._mark(as_text=True)

    def handle_comment(self, data: str) -> None:
        """A comment stays."""
        self._mark(as_text=False)

    def handle_decl(self, decl: str) -> None:
        """So does a document type."""
        self._mark(as_text=False)

    def handle_pi(self, data: str) -> None:
        """So does a processing instruction."""
        self._mark(as_text=False)

    def unknown_decl(self, data: str) -> None:
        """And whatever else begins like one."""
        self._mark(as_text=False)


def _is_kept(attributes: list[tuple[str, str | None]]) -> bool:
    values = dict(attributes)
    return (values.get("translate") or "").lower() == "no" or "notranslate" in (values.get("class") or "").split()
