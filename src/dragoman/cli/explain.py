"""``dragoman explain``: one sentence from its pieces to its translation, with every number on the way."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli import explain_options as ask
from dragoman.cli.options import Alpha, AsJson, Beam, Device, MaxLength, ModelPath
from dragoman.cli.stops import terminable
from dragoman.cli.streams import open_bytes, open_output, print_json, require_input
from dragoman.errors import DragomanError, UsageError

if TYPE_CHECKING:
    from dragoman.explain.answer import Explanation
    from dragoman.explain.steps import Focus, Step
    from dragoman.training.charts import Point

_KINDS = ("encoder", "decoder", "cross")


def explain(
    model: ModelPath,
    text: ask.Text,
    html: ask.Page = None,
    as_json: AsJson = False,
    attention: ask.Picture = None,
    kind: ask.Kind = None,
    layer: ask.Layer = None,
    head: ask.Heads = None,
    token: ask.Token = None,
    target_token: ask.TargetToken = None,
    tensor: ask.TensorName = None,
    npy: ask.Array = None,
    beam: Beam = None,
    alpha: Alpha = None,
    max_length: MaxLength = None,
    target_prefix: ask.TargetPrefix = "",
    reference: ask.Reference = None,
    candidate: ask.CandidateNumber = 1,
    device: Device = "auto",
) -> None:
    """Look inside a model at work on one sentence.

    Prints the pieces, the translation with what the model thought of each token, where it looked, and a walk through the paper: each
    equation with this sentence's numbers, computed a second time in NumPy and compared. The pass is the plain equation, without a cache and
    without the fused kernel; its translation is that of `dragoman translate`.
    """
    _check(model, text, html, attention, kind, head, tensor, npy)
    if as_json or tensor is not None:
        _check_stream(html, attention, "--json" if as_json else "--tensor")
    with terminable() as check:  # from here on, for PyTorch alone takes a second
        from dragoman.bundle import load_bundle, resolve_model
        from dragoman.devices import pick_device
        from dragoman.explain.answer import explain as answer
        from dragoman.explain.steps import focus_on
        from dragoman.explain.walk import walk

        folder = resolve_model(model)
        bundle = load_bundle(folder, device=str(pick_device(device)))
        found = answer(
            bundle, _read(text), beam=beam, alpha=alpha, max_length=max_length, target_prefix=target_prefix, reference=reference,
            chosen=candidate - 1, check=check,
        )  # fmt: skip
        focus = focus_on(found, layer=_own(found, layer, attention), head=head[0] if head else None, token=token, target_token=target_token)
        if attention is not None:
            _draw(found, focus, attention, kind, layer, head, of_source=token is not None, of_target=target_token is not None)
        if tensor is not None:
            _tensor(found, tensor, npy, as_json)
            if html is None:
                return
        steps = walk(found, focus, rates=_rates(folder))
        check()
        if html is not None:
            _write_page(found, focus, steps, html)
        if as_json and tensor is None:
            print_json({**found.record(), "focus": vars(focus), "paper": [step.record() for step in steps]})
        elif tensor is None and "-" not in (str(html), str(attention)):
            from dragoman.cli.explain_text import summary

            print(summary(found, focus, steps))


def _write_page(found: "Explanation", focus: "Focus", steps: "Sequence[Step]", path: Path) -> None:
    from dragoman.explain.page import explanation_page

    with open_output(path) as stream:
        stream.write(explanation_page(found, focus, steps))


def _check(
    model: Path,
    text: str,
    html: Path | None,
    attention: Path | None,
    kind: str | None,
    head: Sequence[int] | None,
    tensor: str | None,
    npy: Path | None,
) -> None:
    from dragoman.cli.overwriting import check_outputs

    if not text.strip():
        raise UsageError("the text is empty, so there is nothing to explain; give a sentence")
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


def _check_stream(html: Path | None, attention: Path | None, other: str) -> None:
    for option, path in (("--html", html), ("--attention", attention)):
        if str(path) == "-":
            raise UsageError(f"{option} - with {other}: standard output can be one of them; give a file for {option}")


def _read(text: str) -> str:
    if text != "-":
        return text
    require_input()
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DragomanError(f"standard input is not UTF-8 at byte {error.start}; convert it, or give the text as an argument") from None


def _own(found: "Explanation", layer: int | None, picture: Path | None) -> int | None:
    """The layer of the walk's own stack: its last beside a picture of a stack that has more."""
    return layer if layer is None or picture is None else min(layer, found.layers(found.kinds[0]))


def _draw(
    found: "Explanation",
    focus: "Focus",
    path: Path,
    kind: str | None,
    layer: int | None,
    heads: Sequence[int] | None,
    *,
    of_source: bool,
    of_target: bool,
) -> None:
    """The picture of the heads; of one token alone where that of the text was chosen, or that of the translation and it is drawn."""
    from dragoman.explain.attention import attention_svg

    kind = kind or found.kinds[0]
    if kind not in found.kinds:
        raise UsageError(f"--kind {kind}: this model has none; choose among {', '.join(found.kinds)}")
    weights = found.weights(kind)
    if layer is not None and layer > len(weights):
        raise UsageError(f"layer {layer}: {kind} attention has layers 1 to {len(weights)}; give one of them")
    at = min(focus.layer, len(weights) - 1) if layer is None else layer - 1
    chosen = None if heads is None else [head - 1 for head in dict.fromkeys(heads)]
    if chosen and max(chosen) >= weights.shape[1]:
        raise UsageError(f"--head {max(chosen) + 1}: the model has heads 1 to {weights.shape[1]}; give some of them")
    single = of_source or (of_target and kind != "encoder")
    token = (focus.source if kind == "encoder" else focus.target) if single else None
    picture = attention_svg(
        weights[at], found.queries(kind), found.keys(kind), heads=chosen, token=token, title=f"Attention, {kind}, layer {at + 1}"
    )
    with open_output(path) as stream:
        stream.write(picture + "\n")


def _tensor(found: "Explanation", name: str, npy: Path | None, as_json: bool) -> None:
    import numpy as np

    numbers = found.array(name)
    line = found.trace[name].line if name in found.trace else None
    if npy is not None:
        with open_bytes(npy) as file:
            np.lib.format.write_array(file, np.ascontiguousarray(numbers), allow_pickle=False)
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
    if folder.parent.name != "checkpoints":
        return []
    from dragoman.training.report import learning_rates

    return learning_rates(folder.parent.parent)
