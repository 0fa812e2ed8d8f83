"""What goes in and out: UTF-8 whatever the locale, notices on standard error, lines as they arrive, output that is whole or absent."""

import json
import logging
import os
import re
import select
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from dragoman.errors import DragomanError, unreadable, unwritable
from dragoman.files import publish

CHUNK_BYTES = 1 << 19
RECORD_SUFFIX = ".partial.json"
"""Behind the name of an output: what is known of its unfinished translation."""

_BULK_BYTES = 1 << 15
_BULK_PATIENCE_SECONDS = 0.05
_TURN_SECONDS = 10.0
_LINE_BREAKS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def restart_in_utf8() -> None:
    """Start the same command again in Python's UTF-8 mode if the locale is not UTF-8: arguments and file names cannot be mended later."""
    if sys.getfilesystemencoding().lower() != "utf-8" and not sys.flags.utf8_mode:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


@contextmanager
def set_up() -> Iterator[None]:
    """Make standard output and error UTF-8 with plain line ends, and send the program's notices to standard error until the block ends."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    loggers = [logging.getLogger("dragoman"), logging.getLogger("sacrebleu")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    disabled = logging.root.manager.disable
    try:
        for logger in loggers:
            logger.handlers, logger.propagate = [_Notices()], False
            logger.setLevel(logging.INFO)
        with warnings.catch_warnings():
            yield
    finally:
        logging.disable(disabled)
        for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


class _Notices(logging.Handler):
    """One line a record on standard error: ``dragoman: …``, or ``dragoman: warning: …``."""

    def emit(self, record: logging.LogRecord) -> None:
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        with suppress(OSError, ValueError):
            print(f"dragoman: {mark}{one_line(record.getMessage())}", file=sys.stderr, flush=True)


@contextmanager
def few_of_a_kind(most: int = 20) -> Iterator[None]:
    """While the block runs, no more than ``most`` warnings of one kind are said, and then that there are more; errors are all said."""
    seen: dict[str, int] = {}
    logger = logging.getLogger("dragoman")

    def passes(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        seen[record.msg] = seen.get(record.msg, 0) + 1
        if seen[record.msg] == most + 1:
            logger.info("more lines like the last one are not named")
        return seen[record.msg] <= most

    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)


def hush() -> None:
    """Keep standard error empty, for ``--quiet``; what stops the program is still said."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def in_company() -> bool:
    """Whether torchrun started this process and others beside it."""
    return launched() and os.environ.get("WORLD_SIZE", "1") != "1"


def follows() -> bool:
    """Whether torchrun started this process as another than the first of a job."""
    return launched() and os.environ.get("RANK", "0") != "0"


def complain(sentence: str, status: int) -> int:
    """Say on standard error why the program stops, in one line, and return ``status``.

    What stops a whole job is said by its first process, and torchrun ends the others before they do; one that is still there after some
    seconds has a reason of its own.
    """
    if follows():
        if status == 130:  # interrupted: a key was pressed once for all
            return status
        time.sleep(_TURN_SECONDS)
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(f"dragoman: {one_line(sentence)}", file=sys.stderr, flush=True)
    return status


def drop_output() -> None:
    """Let nothing more be written to a standard output that failed, so that the interpreter can end in peace."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def one_line(text: str) -> str:
    """``text`` with each line break of any kind (LF, CR, VT, FF, FS, GS, RS, NEL, LS, PS) replaced by a space."""
    return _LINE_BREAKS.sub(" ", text)


def print_json(value: Any) -> None:
    """Print one JSON document, readable and in UTF-8."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def json_line(value: Any) -> str:
    """``value`` as one line of JSON in UTF-8, LF included, that is one line to every reader: NEL, LS and PS are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return _LINE_BREAKS.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n"


def notify(sentence: str) -> None:
    """Say something on standard error that is not a failure; nothing under ``--quiet``."""
    logging.getLogger("dragoman").info("%s", sentence)


def require_input() -> None:
    """Raises DragomanError where standard input is closed; the next file that is opened would have its number."""
    if sys.stdin is None:
        raise DragomanError("standard input is closed; give a file, or redirect text into the command")


def arriving_lines(descriptor: int, place: str) -> Iterator[list[bytes]]:
    """The complete lines, without their LF, that have arrived whenever any have: at most about CHUNK_BYTES at a time, at least one line.

    Never waits for a line while it holds one, but for the twentieth of a second that a writer in full flow gets to go on.
    A last line without LF counts. Raises DragomanError that names ``place`` when it cannot be read.
    """
    parts: list[bytes] = []
    while data := _read_available(descriptor, place):
        first, *others = data.split(b"\n")
        parts.append(first)
        if others:
            yield [b"".join(parts), *others[:-1]]
            parts = [others[-1]]
    if last := b"".join(parts):
        yield [last]


def _read_available(descriptor: int, place: str) -> bytes:
    pieces, size = [], 0
    try:
        while size < CHUNK_BYTES:
            piece = os.read(descriptor, CHUNK_BYTES - size)
            pieces.append(piece)
            size += len(piece)
            if not piece or not _ready(descriptor, _BULK_PATIENCE_SECONDS if size >= _BULK_BYTES else 0.0):
                break
    except OSError as error:
        raise DragomanError(unreadable(place, error)) from None
    return b"".join(pieces)


@contextmanager
def open_descriptor(path: Path) -> Iterator[int]:
    """A file, device or named pipe open for unbuffered reading; DragomanError that names it otherwise."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise DragomanError(unreadable(path, error)) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ready(descriptor: int, seconds: float) -> bool:
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    except (OSError, ValueError):  # Windows selects sockets only
        return False


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Standard output for None or ``-``; else a stream beside ``path`` that takes its name once all is written.

    After a failure what was written stays in ``path`` with ``.partial`` behind, and a notice says so. A device or pipe is written directly.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        return
    named, path = path, written_file(path)
    direct = path.exists() and not path.is_file()
    partial = path if direct else partial_of(path)
    if path.with_name(path.name + RECORD_SUFFIX).exists():
        raise DragomanError(f"{partial}: holds an unfinished translation; go on with it by `dragoman translate --resume`, or remove both")
    try:
        stream = partial.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise DragomanError(unwritable(named, error)) from None
    try:
        with stream:
            yield stream
            if not direct:
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException as error:
        _keep_partial(partial, direct)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError) and error.filename is None:  # of this very stream
            raise DragomanError(unwritable(named, error)) from None
        raise
    if not direct:
        publish(partial, path)


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """A stream of bytes beside ``path`` that takes its name once all is written, and is gone after a failure."""
    partial = partial_of(path)
    try:
        with partial.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        publish(partial, path)
    except OSError as error:
        raise DragomanError(unwritable(path, error)) from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def written_file(path: Path) -> Path:
    """The file that is written for a name: what a link leads to, for the link is to stay; any other as it was given, and is named so."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def partial_of(path: Path) -> Path:
    """Where a file is until it is whole."""
    return path.with_name(path.name + ".partial")


def _keep_partial(partial: Path, direct: bool) -> None:
    if direct:
        return
    if partial.stat().st_size:
        logging.getLogger("dragoman").warning("%s: holds what was written before the failure", partial)
    else:
        partial.unlink()
