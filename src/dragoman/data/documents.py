"""Text for models of one sequence: documents, in pieces that are encoded by themselves, so that none need fit into memory.

Nothing of a document is lost: its pieces, joined, are its text, line feeds included.
"""

import string
from collections.abc import Iterable, Iterator
from itertools import count, groupby
from pathlib import Path
from typing import Literal, NamedTuple

from dragoman.data.formats.lines import read_text
from dragoman.errors import DragomanError

Documents = Literal["file", "blank-line", "line"]
Line = tuple[str, int]

PIECE_CHARACTERS = 4096
"""A piece that has as many ends at the next end of a line behind a letter, a number or an ASCII sign."""


class Piece(NamedTuple):
    """A part of a document: its text, the line of all texts where it begins, from 1, and whether it is the document's first and its last.

    Only the first begins elsewhere than at the end of a line, and only the last may end in white space (`Tokenizer.inside`).
    """

    text: str
    line: int
    first: bool
    last: bool


def text_files(specs: Iterable[str]) -> list[Path]:
    """The files of these names; DragomanError for those that are not there."""
    files = [Path(spec) for spec in specs]
    if missing := [str(path) for path in files if not path.is_file()]:
        raise DragomanError(f"{', '.join(missing)}: no such file; a model of one sequence learns from text files, plain or .gz, .xz, .zst")
    return files


def read_documents(files: Iterable[Path], *, documents: Documents) -> Iterator[Piece]:
    """The pieces of all documents, in order: whole files (``file``); what stands between lines of white space, without the line end behind
    it (``blank-line``); or lines with more than white space, without their ends (``line``).

    Raises DragomanError for a file of white space alone, and as `read_text` does.
    """
    numbers = count(1)
    for path in files:
        written = False
        for piece in _of_file(zip(read_text(path), numbers, strict=False), documents):
            written = written or bool(piece.text.strip())
            yield piece
        if not written:
            raise DragomanError(f"{path}: empty; give files with text")


def whole_documents(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same documents, each as one piece, for a tokenizer that no `Tokenizer.inside` is known of."""
    parts: list[Piece] = []
    for piece in pieces:
        parts.append(piece)
        if piece.last:
            yield Piece("".join(part.text for part in parts), parts[0].line, True, True)
            parts = []


def _of_file(lines: Iterator[Line], documents: Documents) -> Iterator[Piece]:
    if documents == "file":
        yield from _pieces(lines)
    elif documents == "line":
        yield from (Piece(text, number, True, True) for line, number in lines if (text := _without_end(line)).strip())
    else:
        for blank, group in groupby(lines, key=lambda line: not line[0].strip()):
            if not blank:
                yield from _pieces(_without_last_end(group))


def _pieces(lines: Iterable[Line]) -> Iterator[Piece]:
    """One document, cut."""
    parts: list[str] = []
    size, begin, first = 0, 0, True
    for line, number in lines:
        text = _without_end(line)
        begin = begin or number
        parts.append(text)
        size += len(text)
        if text == line:  # the last one, without an end
            continue
        if size >= PIECE_CHARACTERS and text and (text[-1].isalnum() or text[-1] in string.punctuation):
            yield Piece("".join(parts), begin, first, False)
            parts, size, begin, first = [], 0, number, False
        parts.append(line[len(text) :])
        size += len(line) - len(text)
    if parts:
        yield Piece("".join(parts), begin, first, True)


def _without_last_end(lines: Iterable[Line]) -> Iterator[Line]:
    held = None
    for line in lines:
        if held:
            yield held
        held = line
    if held:
        yield _without_end(held[0]), held[1]


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
