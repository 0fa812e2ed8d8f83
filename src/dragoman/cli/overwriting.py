"""What a command writes never takes the place of what it reads, nor of something else that it writes."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dragoman.cli.streams import partial_of
from dragoman.errors import UsageError

_OF_A_MODEL = ("config.json", "model.safetensors", "tokenizer*.json")


def check_outputs(written: Mapping[str, Path | None], read: Iterable[Path | None], *, replaced: Iterable[Path] = ()) -> None:
    """Raises UsageError for a file to write that is to be read as well, or that two options name, before either is touched.

    ``written``: options with the files they name. ``read``: files, and folders of models. ``replaced``: files that are read and that the
    first of ``written`` may name, for it takes their place when all is done. Nothing is lost in a stream, a pipe or a device.
    """
    outputs = {option: path for option, path in written.items() if path is not None and _is_whole(path)}
    names = [*outputs.values(), *map(partial_of, map(_real, outputs.values()))]
    if any(_same(one, other) for place, one in enumerate(names) for other in names[:place]):
        *most, last = written
        raise UsageError(f"two of {', '.join(most)} and {last} name one file; give each its own")
    inputs = [file for path in read if path is not None and str(path) != "-" for file in _files_of(path)]
    kept = [path for path in replaced if str(path) != "-"]
    for name in names:
        first = name is outputs.get(next(iter(written)))
        for path in inputs if first else [*inputs, *kept]:
            if _same(name, path):
                raise UsageError(f"{path}: is to be read and would be written over; give another name to write to")


def _is_whole(path: Path) -> bool:
    return str(path) != "-" and (path.is_file() or not path.exists())


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


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
