"""The attention of many lines as one file of numpy arrays, written line by line."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.cli.streams import partial_of
from dragoman.errors import DragomanError, unwritable
from dragoman.files import publish


class AttentionFile:
    """An .npz that grows: for line N (from 1) the arrays ``N.attention`` (L, H, T, S), ``N.source`` (S,) and ``N.target`` (T,), tokens."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def add(self, number: int, attention: NDArray[np.float32], source: Sequence[str], target: Sequence[str]) -> None:
        """Writes what belongs to line ``number``."""
        arrays: dict[str, NDArray[Any]] = {"attention": attention, "source": np.array(source, str), "target": np.array(target, str)}
        for name, array in arrays.items():
            with self._archive.open(f"{number}.{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


@contextmanager
def open_attention(path: Path) -> Iterator[AttentionFile]:
    """A file to fill, which takes the name ``path`` when the block ends well and goes when it does not: half an archive cannot be read."""
    partial = partial_of(path)
    try:
        try:
            with partial.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                yield AttentionFile(archive)
        except OSError as error:
            if error.filename not in (None, str(partial)) or isinstance(error, BrokenPipeError):
                raise
            raise DragomanError(unwritable(path, error)) from None
        publish(partial, path)
    except BaseException:
        with suppress(OSError):  # the reason to be told is the first one
            partial.unlink()
        raise
