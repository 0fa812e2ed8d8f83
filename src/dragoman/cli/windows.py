"""Text to translate, a window at a time: of a file always the same ones, of a pipe what has arrived."""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from dragoman.cli.streams import CHUNK_BYTES, arriving_lines, notify, open_descriptor, require_input
from dragoman.data.formats.lines import COMPRESSED, decode_line, read_lines
from dragoman.errors import DragomanError, LineError

Answer = TypeVar("Answer")
WINDOW_LINES = 2048
"""Lines that are translated together at most: enough to sort by length, few enough to be done again after a kill."""


@dataclass(frozen=True)
class Window:
    """Lines that follow one another in a file: its name, and the number of the first of them there and over all files, from 1.

    With ``prefixes`` each has one of its own, which its translation begins with.
    """

    place: str
    first_line: int
    number: int
    texts: list[str]
    prefixes: list[str] | None = None

    @property
    def last(self) -> int:
        """The number of its last line over all files."""
        return self.number + len(self.texts) - 1

    @property
    def size(self) -> int:
        """Bytes of its text."""
        return sum(len(text.encode()) + 1 for text in self.texts)

    @property
    def content(self) -> bytes:
        """All that is translated: its lines with a LF each, behind each line its prefix if there are any."""
        lines = self.texts if self.prefixes is None else chain.from_iterable(zip(self.texts, self.prefixes, strict=True))
        return "".join(f"{line}\n" for line in lines).encode()

    def first(self, count: int) -> "Window":
        """Its first lines alone."""
        return replace(self, texts=self.texts[:count], prefixes=self.prefixes and self.prefixes[:count])

    def without(self, count: int) -> "Window":
        """The window without its first lines."""
        texts, prefixes = self.texts[count:], self.prefixes and self.prefixes[count:]
        return Window(self.place, self.first_line + count, self.number + count, texts, prefixes)


def check_files(files: Iterable[Path]) -> None:
    """Raises DragomanError for a file that is not there, before anything is done."""
    for path in files:
        if str(path) != "-" and not path.exists():
            raise DragomanError(f"{path}: no such file; give text files, or - for standard input")


def windows(files: Iterable[Path]) -> Iterator[Window]:
    """The lines of all files. The windows of a file depend on its text alone; of a pipe they are what has arrived, and are not waited for.

    A fault is raised after the lines before it have been given.
    """
    number = 1
    for path in files:
        place = "standard input" if str(path) == "-" else str(path)
        first_line = 1
        for texts in _texts(path, place):
            yield Window(place, first_line, number, texts)
            first_line, number = first_line + len(texts), number + len(texts)


def up_to_fault(window: Window, work: Callable[[Window], Answer]) -> Iterator[tuple[Window, Answer]]:
    """The window with what became of it; of one with a line that cannot be used what is before that line, and then the fault."""
    try:
        done = work(window)
    except LineError as fault:
        before = window.first(fault.line - window.first_line)
        if before.texts:
            yield from up_to_fault(before, work)  # where a fault of another kind may be found
        raise
    yield window, done


def is_stored(path: Path) -> bool:
    """Whether it is a file on a disk that anybody can read again, and no pipe or terminal."""
    return str(path) != "-" and path.is_file()


def total_bytes(files: Iterable[Path]) -> int | None:
    """Bytes of text in all files; None where only reading to the end can tell."""
    sizes = []
    for path in files:
        status = os.fstat(0) if str(path) == "-" and sys.stdin is not None else path.stat() if path.exists() else None
        if status is None or not stat.S_ISREG(status.st_mode) or path.suffix in COMPRESSED:
            return None
        sizes.append(status.st_size)
    return sum(sizes)


def _texts(path: Path, place: str) -> Iterator[list[str]]:
    if str(path) != "-" and path.suffix in COMPRESSED:
        yield from _cut(([line] for line in read_lines(path)), arriving=False)
        return
    with _descriptor(path) as descriptor:
        stored = stat.S_ISREG(os.fstat(descriptor).st_mode)
        yield from _cut(_decoded(arriving_lines(descriptor, place), place), arriving=not stored)


@contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    if str(path) == "-":
        require_input()
        if sys.stdin.isatty():
            notify("type or paste text, one sentence a line; Ctrl-D ends")
        yield 0
    else:
        with open_descriptor(path) as descriptor:
            yield descriptor


def _decoded(groups: Iterable[list[bytes]], place: str) -> Iterator[list[str]]:
    number = 0
    for group in groups:
        texts = []
        try:
            for raw in group:
                number += 1
                texts.append(decode_line(raw, place, number))
        except DragomanError:
            if texts:
                yield texts
            raise
        yield texts


def _cut(groups: Iterable[list[str]], *, arriving: bool) -> Iterator[list[str]]:
    """Lines in windows; with ``arriving`` none of a group is held back for lines of the next."""
    texts: list[str] = []
    size = 0
    try:
        for group in groups:
            for text in group:
                texts.append(text)
                size += len(text) + 1
                if len(texts) == WINDOW_LINES or size >= CHUNK_BYTES:
                    yield texts
                    texts, size = [], 0
            if arriving and texts:
                yield texts
                texts, size = [], 0
    except DragomanError:
        if texts:
            yield texts
        raise
    if texts:
        yield texts
