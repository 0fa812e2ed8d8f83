"""Files and folders that a reader sees whole or not at all: written beside, synced, renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import DragomanError, UsageError, unwritable


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Gives a folder to fill, which takes the name ``folder`` when the block ends well and is removed when it does not.

    Raises UsageError when the name is taken, DragomanError when the disk refuses, naming the place and the reason.
    """
    require_new(folder)
    beside = folder.with_name(f".{folder.name}.partial")  # a fixed name, so that what a killed writer left is found and removed
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        yield beside
        for path in [*beside.rglob("*"), beside]:
            _sync(path)
        beside.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def passing_folder(out: Path) -> Iterator[Path]:
    """A folder on the disk where ``out`` would be, which goes with the block; DragomanError when it cannot be made."""
    from tempfile import TemporaryDirectory  # not above: it takes time, and few need it

    parent = next(folder for folder in out.absolute().parents if folder.is_dir())
    try:
        passing = TemporaryDirectory(prefix=".dragoman-dry-run-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise DragomanError(f"{out}: cannot make the run folder: {error.strerror}; choose another --out") from None
    with passing as folder:
        yield Path(folder)


def require_new(path: Path) -> None:
    """Raises UsageError when the name is taken."""
    if path.exists():
        raise UsageError(f"{path}: already exists; choose another name or remove it")


def write_file(path: Path, text: str) -> None:
    """Writes UTF-8 text so that the name holds the old or the new content; DragomanError when the disk refuses."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        _sync(beside)
        beside.replace(path)
        _sync(path.parent)
    except OSError as error:
        with suppress(OSError):  # the reason to be told is the first one
            beside.unlink()
        raise _cannot_write(path, error) from error


def publish(beside: Path, path: Path) -> None:
    """Gives a file that was written and synced its name, in place of an older file; DragomanError when the disk refuses."""
    try:
        beside.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> DragomanError:
    return DragomanError(unwritable(path, error))


def _sync(path: Path) -> None:
    """Waits until the disk has the content. Windows asks for files opened for writing, and opens no folders."""
    if not path.is_dir():
        with path.open("r+b") as file:
            os.fsync(file.fileno())
    elif os.name != "nt":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder that are not hidden and may be looked into, by name."""
    return [each for each in sorted(folder.glob("[!.]*")) if each.is_dir() and os.access(each, os.X_OK)]
