"""What a command writes never takes the place of what it reads, nor of something else that it writes."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from dragoman.cli.streams import RECORD_SUFFIX, partial_of
from dragoman.errors import UsageError

_OF_A_MODEL = ("config.json", "model.safetensors", "tokenizer*.json")


def check_outputs(written: Mapping[str, Path | None], read: Iterable[Path | None]) -> None:
    """Raises UsageError for a file to write that has no name, is to be read as well, or that two options name, before any is touched.

    ``written``: options with the files they name. ``read``: files, folders of models, and ``-`` for standard input, which may come from a
    file. Nothing is lost in a stream, a pipe or a device.
    """
    for option, path in written.items():
        if path is not None and not path.name:  # as of an unset variable of a shell, or the root
            raise UsageError(f"{option} {path}: no name of a file, but empty or a folder; give the file to write")
    outputs = {option: path for option, path in written.items() if path is not None and _is_whole(path)}
    names = [*outputs.values(), *(beside for path in map(_real, outputs.values()) for beside in _beside(path))]
    if any(_same(one, other) for place, one in enumerate(names) for other in names[:place]):
        *most, last = written
        named = f"two of {', '.join(most)} and {last}" if most else f"{last} and what is beside it until it is whole"
        raise UsageError(f"{named} name one file; give each its own")
    for path in (file for given in read if given is not None for file in _files_of(given)):
        place, is_read = ("standard input", _is_standard_input) if str(path) == "-" else (path, partial(_same, path))
        if any(map(is_read, names)):
            raise UsageError(f"{place}: is to be read and would be written over; give another name to write to")


def _is_whole(path: Path) -> bool:
    return str(path) != "-" and (path.is_file() or not path.exists())


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _beside(path: Path) -> tuple[Path, Path]:
    """Where a file is until it is whole, and what is known of it until then."""
    return partial_of(path), path.with_name(path.name + RECORD_SUFFIX)


def _is_standard_input(path: Path) -> bool:
    try:
        return sys.stdin is not None and os.path.samestat(path.stat(), os.fstat(0))
    except OSError:
        return False


def _same(one: Path, other: Path) -> bool:
    return _real(one) == _real(other) or (one.exists() and other.exists() and one.samefile(other))


def _files_of(path: Path) -> Iterator[Path]:
    """The file itself, or those of a bundle and of the checkpoints of a run."""
    if not path.is_dir():
        yield path
        return
    for name in _OF_A_MODEL:
        yield from path.glob(name)
        yield from path.glob(f"checkpoints/*/{name}")
    yield from (path / "checkpoints" / mark for mark in ("best", "last"))
