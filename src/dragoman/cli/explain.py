"""``dragoman explain``: one sentence from its pieces to its translation, with every number on the way."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import Alpha, AsJson, Beam, Device, MaxLength, ModelPath
from dragoman.cli.streams import open_output, print_json
from dragoman.errors import DragomanError, UsageError

if TYPE_CHECKING:
    from dragoman.explain.answer import Explanation
    from dragoman.explain.steps import Focus
    from dragoman.training.charts import Point

_KINDS = ("encoder", "decoder", "cross")


def explain(
    model: ModelPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The sentence; - reads it from standard input.")],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write all of it as one page without scripts. Default: none.")
    ] = None,
    as_json: AsJson = False,
    attention: Annotated[
        Path | None,
        typer.Option(
            "--attention", metavar="FILE.svg", help="Draw where the tokens look, as in the paper's Figures 3 to 5. Default: none."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="What --attention draws: encoder (the text looks at itself), decoder (the translation at itself) or cross (the "
            "translation at the text). Default: encoder.",
        ),
    ] = None,
    layer: Annotated[
        int | None, typer.Option("--layer", min=1, metavar="N", help="The layer to look at, from 1. Default: the last but one.")
    ] = None,
    head: Annotated[
        list[int] | None,
        typer.Option(
            "--head",
            min=1,
            metavar="N",
            show_default=False,
            help="The head to look at, from 1; several for --attention. Default: the one with the strongest link; all for --attention.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="WORD|N",
            help="The token of the text to follow, a word or its number from 1; --attention then draws from it alone. Default: one that "
            "looks most at another.",
        ),
    ] = None,
    target_token: Annotated[
        str | None,
        typer.Option(
            "--target-token",
            metavar="WORD|N",
            help="The token of the translation to follow. Default: the one that looks most at the token of the text.",
        ),
    ] = None,
    tensor: Annotated[
        str | None,
        typer.Option(
            "--tensor", metavar="NAME", help="Print one tensor of the pass, such as encoder.0.self.scores; --json lists the names."
        ),
    ] = None,
    npy: Annotated[Path | None, typer.Option("--npy", metavar="FILE", help="Write the tensor of --tensor as NumPy's .npy too.")] = None,
    beam: Beam = None,
    alpha: Alpha = None,
    max_length: MaxLength = None,
    target_prefix: Annotated[str, typer.Option("--target-prefix", metavar="TEXT", help="What the translation must begin with.")] = "",
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="TEXT", help="A translation to compare with, token by token. Default: none.")
    ] = None,
    candidate: Annotated[int, typer.Option("--candidate", min=1, metavar="N", help="Which of the beam's translations to look into.")] = 1,
    device: Device = "auto",
) -> None:
    """Look inside a model at work on one sentence.

    Prints the pieces, the translation with what the model thought of each token, where it looked, and a walk through the paper: each
    equation with this sentence's numbers, computed a second time in NumPy and compared. The pass is the plain equation, without a cache and
    without the fused kernel; its translation is that of `dragoman translate`.
    """
    _check(model, html, attention, kind, head, tensor, npy)
    from dragoman.bundle import load_bundle, resolve_model
    from dragoman.devices import pick_device
    from dragoman.explain.answer import explain as answer
    from dragoman.explain.steps import focus_on
    from dragoman.explain.walk import walk

    folder = resolve_model(model)
    bundle = load_bundle(folder, device=str(pick_device(device)))
    found = answer(
        bundle, _read(text), beam=beam, alpha=alpha, max_length=max_length, target_prefix=target_prefix, reference=reference,
        chosen=candidate - 1,
    )  # fmt: skip
    focus = focus_on(found, layer=layer, head=head[0] if head else None, token=token, target_token=target_token)
    if attention is not None:
        _draw(found, focus, attention, kind or found.kinds[0], head, single=token is not None or target_token is not None)
    if tensor is not None:
        _tensor(found, tensor, npy, as_json)
        if html is None:
            return
    steps = walk(found, focus, rates=_rates(folder))
    if html is not None:
        from dragoman.explain.page import explanation_page

        with open_output(html) as stream:
            stream.write(explanation_page(found, focus, steps))
    if as_json and tensor is None:
        print_json({**found.record(), "focus": vars(focus), "paper": [step.record() for step in steps]})
    elif tensor is None and "-" not in (str(html), str(attention)):
        from dragoman.cli.explain_text import summary

        print(summary(found, focus, steps))


def _check(
    model: Path,
    html: Path | None,
    attention: Path | None,
    kind: str | None,
    head: Sequence[int] | None,
    tensor: str | None,
    npy: Path | None,
) -> None:
    from dragoman.cli.overwriting import check_outputs

    if npy is not None and tensor is None:
        raise UsageError("--npy writes the tensor that --tensor names; give --tensor NAME as well")
    if str(npy) == "-":
        raise UsageError("--npy -: standard output is for text; give a file")
    if kind is not None and attention is None:
        raise UsageError("--kind chooses what --attention draws; give --attention FILE as well")
    if kind is not None and kind not in _KINDS:
        raise UsageError(f"--kind {kind}: unknown; choose among {', '.join(_KINDS)}")
    if head is not None and len(head) > 1 and attention is None:
        raise UsageError("--head: several heads are for --attention; give one, or --attention FILE as well")
    if str(html) == "-" == str(attention):
        raise UsageError("--html - with --attention -: standard output can be one of them; give a file for the other")
    check_outputs({"--html": html, "--attention": attention, "--npy": npy}, [model])


def _read(text: str) -> str:
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DragomanError(f"standard input is not UTF-8 at byte {error.start}; convert it, or give the text as an argument") from None


def _draw(found: "Explanation", focus: "Focus", path: Path, kind: str, heads: Sequence[int] | None, *, single: bool) -> None:
    from dragoman.explain.attention import attention_svg

    if kind not in found.kinds:
        raise UsageError(f"--kind {kind}: this model has none; choose among {', '.join(found.kinds)}")
    weights = found.weights(kind)
    layer = min(focus.layer, len(weights) - 1)
    chosen = None if heads is None else [head - 1 for head in dict.fromkeys(heads)]
    if chosen and max(chosen) >= weights.shape[1]:
        raise UsageError(f"--head {max(chosen) + 1}: the model has heads 1 to {weights.shape[1]}; give some of them")
    token = (focus.source if kind == "encoder" else focus.target) if single else None
    picture = attention_svg(
        weights[layer], found.queries(kind), found.keys(kind), heads=chosen, token=token, title=f"Attention, {kind}, layer {layer + 1}"
    )
    with open_output(path) as stream:
        stream.write(picture + "\n")


def _tensor(found: "Explanation", name: str, npy: Path | None, as_json: bool) -> None:
    import numpy as np

    numbers = found.array(name)
    line = found.trace[name].line if name in found.trace else None
    if npy is not None:
        from dragoman.cli.streams import partial_of
        from dragoman.files import publish

        partial = partial_of(npy)
        try:
            with partial.open("wb") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(numbers), allow_pickle=False)
            publish(partial, npy)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise DragomanError(f"{npy}: cannot write: {error.strerror or error}; give another file") from None
    where = None if line is None else {"file": line.file, "line": line.number, "place": line.place, "text": line.text.strip()}
    if as_json:
        print_json({"name": name, "shape": list(numbers.shape), "from": where, "values": numbers.tolist()})
        return
    print(f"{name}  shape {' × '.join(map(str, numbers.shape)) or 'one number'}")
    if line is not None:
        print(f"{line.file}:{line.number}  {line.text.strip()}")
    print(np.array2string(numbers, precision=4, suppress_small=True, threshold=600, max_line_width=140))


def _rates(folder: Path) -> "list[Point]":
    """Steps and learning rates of the run that a checkpoint belongs to; none of a bundle that stands alone."""
    run = folder.parent.parent
    if folder.parent.name != "checkpoints" or not (run / "log.jsonl").is_file():
        return []
    from dragoman.training.records import read_log, standing
    from dragoman.training.report import points

    kept = standing(record for record in read_log(run)[0] if isinstance(record.get("step"), int))
    return points([record for record in kept if record.get("t") == "train"], "lr")
