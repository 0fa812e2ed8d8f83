"""``dragoman embed``: a vector for each text."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Device, ModelPath, Quiet, TextFiles
from dragoman.cli.overwriting import check_outputs
from dragoman.cli.stops import terminable
from dragoman.cli.streams import few_of_a_kind, hush, json_line, notify, open_bytes, open_output, partial_of
from dragoman.cli.windows import Window, check_files, up_to_fault, windows
from dragoman.errors import DragomanError, UsageError, unwritable

if TYPE_CHECKING:
    from torch import Tensor


def embed(
    model: ModelPath,
    files: TextFiles = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.npz",
            help="Where the vectors go: .npz, the array `embeddings` (lines, d_model) in float32; any other name JSON lines. "
            "Default: JSON lines on standard output.",
        ),
    ] = None,
    pool: Annotated[
        str,
        typer.Option(
            "--pool",
            metavar="mean|first|pooler",
            help="What makes a vector of a text: the mean over its tokens, start and end included; the state of the start token; or what "
            "the model's pooler makes of that.",
        ),
    ] = "mean",
    normalize: Annotated[bool, typer.Option("--normalize", help="Vectors of length 1, whose products are cosines.")] = False,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut a text that is too long for the model, with a warning, instead of refusing it.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Vectors of texts: n lines in, n vectors out, in order, by an encoder-only model (or the mean of a decoder-only one's states).

    On standard output one JSON object for each line: `{"line": 1, "embedding": [...]}`. Texts of similar length are computed together,
    which changes nothing but rounding.
    """
    if quiet:
        hush()
    texts = files or [Path("-")]
    check_files(texts)
    check_outputs({"-o": output}, [model, *texts])
    if pool not in ("mean", "first", "pooler"):
        raise UsageError(f"--pool {pool}: unknown; choose among mean, first, pooler")
    options = {"pool": pool, "normalize": normalize, "truncate": truncate}
    with few_of_a_kind(), terminable() as check:
        _embed(model, texts, output, device, options, check)


def _embed(model: Path, files: list[Path], output: Path | None, device: str, options: dict[str, Any], check: Callable[[], None]) -> None:
    from dragoman.bundle import load_bundle
    from dragoman.decoding.embed import embed as vectors_of
    from dragoman.devices import pick_device

    bundle = load_bundle(model, device=str(pick_device(device)))

    def work(window: Window) -> "Tensor":
        check()
        return vectors_of(bundle, window.texts, place=window.place, first_line=window.first_line, **options)

    parts = chain.from_iterable(up_to_fault(window, work) for window in windows(files))
    if output is not None and output.suffix == ".npz":
        _check_place(output)
        _write_array(output, [made for _, made in parts], bundle.config.model.d_model)
        return
    with open_output(output) as stream:
        for window, made in parts:
            for number, vector in enumerate(made.tolist(), start=window.number):
                stream.write(json_line({"line": number, "embedding": vector}))
            stream.flush()


def _check_place(path: Path) -> None:
    """Raises DragomanError for a file that cannot be written, before anything is computed for it."""
    if path.is_dir():
        raise DragomanError(f"{path}: is a folder; give a file")
    try:
        partial_of(path).touch()
        partial_of(path).unlink()
    except OSError as error:
        raise DragomanError(unwritable(path, error)) from None


def _write_array(path: Path, parts: "list[Tensor]", width: int) -> None:
    """All vectors in a file that takes its name once it is whole."""
    import numpy as np
    import torch

    whole = torch.cat(parts).numpy() if parts else np.empty((0, width), np.float32)
    with open_bytes(path) as file:
        np.savez(file, embeddings=whole)
    notify(f"{path}: {len(whole):,} vectors of {whole.shape[1]} numbers")
