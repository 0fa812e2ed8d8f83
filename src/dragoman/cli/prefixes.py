"""What translations must begin with, read along with the text: from a file with as many lines, or from a column of the text."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dragoman.cli.windows import Window, is_stored
from dragoman.data.formats.lines import count_lines, read_lines
from dragoman.errors import DragomanError

_COLUMN = "column"


def prefix_file(source: Path | None) -> Path | None:
    """The file that ``--prefix`` names; None where it names none, but the column or nothing."""
    return None if str(source) == _COLUMN else source


def check_prefixes(path: Path, files: Sequence[Path]) -> None:
    """Raises DragomanError, before anything is done, for a file that is not there or has not as many lines as the text.

    They are counted where all are stored: what a pipe has is known when it ends.
    """
    if not path.exists():
        raise DragomanError(f"{path}: no such file; give --prefix a file with a line for each line of the text, or the word column")
    if not all(map(is_stored, (path, *files))):
        return
    found, wanted = count_lines(path), sum(map(count_lines, files))
    if found != wanted:
        raise DragomanError(
            f"{path}: must have as many lines as the text to translate, {wanted:,}, and has {found:,}; "
            "give an empty line where nothing is asked"
        )


def with_prefixes(windows: Iterable[Window], path: Path) -> Iterator[Window]:
    """The windows with a line of the file for each of theirs; the file is read once, along with them.

    Raises DragomanError where it ends too early, or cannot be read, after the lines before have been given. Lines too many are a warning.
    """
    lines, last = read_lines(path), 0
    for window in windows:
        prefixes: list[str] = []
        try:
            for line in islice(lines, len(window.texts)):
                prefixes.append(line)
            if len(prefixes) < len(window.texts):
                end = window.number - 1 + len(prefixes)
                raise DragomanError(f"{path}: ends after line {end:,}, but there are more lines to translate; give one for each")
        except DragomanError:
            if prefixes:
                yield replace(window.first(len(prefixes)), prefixes=prefixes)
            raise
        yield replace(window, prefixes=prefixes)
        last = window.last
    if next(lines, None) is not None:
        logging.getLogger("dragoman").warning("%s: goes on after line %s, where the text ends; the rest is left out", path, f"{last:,}")


def separated(window: Window, source: Path | None) -> Window:
    """A window as it is translated: of lines ``TEXT<tab>PREFIX`` each by itself, if ``--prefix`` asks for the column."""
    if str(source) != _COLUMN:
        return window
    columns = [line.partition("\t") for line in window.texts]
    return replace(window, texts=[text for text, _, _ in columns], prefixes=[prefix for _, _, prefix in columns])
