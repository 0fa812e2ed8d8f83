"""``dragoman fill``: what is masked filled in by an encoder-only model."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Device, ModelPath, Quiet
from dragoman.cli.stops import terminable
from dragoman.cli.streams import hush, json_line, one_line
from dragoman.cli.windows import Window, up_to_fault, windows

if TYPE_CHECKING:
    from dragoman.decoding.fill import Filling


def fill(
    model: ModelPath,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="A text with masks, or - for standard input, a text a line. Default: standard input.")
    ] = "-",
    top: Annotated[int, typer.Option("--top", "-k", min=1, metavar="K", help="Tokens for each mask, the most probable first.")] = 5,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each text: for each mask the tokens, with ids, probabilities and sentences.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Fill in what is masked: the most probable tokens for each mask in a text, by an encoder-only model.

    A mask is written as the model's vocabulary writes it, such as [MASK] or <mask>; `dragoman inspect MODEL` shows it. One line for each
    token: `PROBABILITY<tab>TOKEN<tab>TEXT`, the text with that token in it. Of several masks each is filled in by itself, the others stay;
    their lines begin with `MASK<tab>`, the number of the mask from 1. With standard input, lines begin with `LINE<tab>`, from 1.
    """
    if quiet:
        hush()
    with terminable() as check:
        _fill(model, text, top, device, as_json, check)


def _fill(model: Path, text: str, top: int, device: str, as_json: bool, check: Callable[[], None]) -> None:
    from dragoman.bundle import load_bundle
    from dragoman.decoding.fill import fill as fill_in
    from dragoman.devices import pick_device

    bundle = load_bundle(model, device=str(pick_device(device)))
    if text != "-":
        (masks,) = fill_in(bundle, [text], top=top, check=check)
        _write(text, masks, line=None, as_json=as_json)
        return

    def work(window: Window) -> "list[list[list[Filling]]]":
        return fill_in(bundle, window.texts, top=top, place=window.place, first_line=window.first_line, check=check)

    for window, answers in chain.from_iterable(up_to_fault(window, work) for window in windows([Path("-")])):
        for number, (line, masks) in enumerate(zip(window.texts, answers, strict=True), start=window.number):
            _write(line, masks, line=number, as_json=as_json)


def _write(text: str, masks: "list[list[Filling]]", *, line: int | None, as_json: bool) -> None:
    if as_json:
        print(
            json_line({"line": line or 1, "text": text, "masks": [[_record(each) for each in some] for some in masks]}), end="", flush=True
        )
        return
    for number, some in enumerate(masks, start=1):
        for each in some:
            columns = [*([str(line)] if line else []), *([str(number)] if len(masks) > 1 else [])]
            print(*columns, f"{each.probability:.6f}", one_line(each.text), one_line(each.sentence), sep="\t")


def _record(filling: "Filling") -> dict[str, Any]:
    return {"token": filling.text, "id": filling.token, "probability": filling.probability, "sentence": filling.sentence}
