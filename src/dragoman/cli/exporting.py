"""``dragoman export``: a model in another program's format, compared with the bundle before it is left (`interop`)."""

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import AsJson, ModelPath, Quiet
from dragoman.cli.streams import hush, notify

if TYPE_CHECKING:
    from dragoman.bundle import Bundle


class Format(StrEnum):
    """What a model can be written as."""

    HUGGINGFACE = "huggingface"
    CTRANSLATE2 = "ctranslate2"
    ONNX = "onnx"


def exporting(
    model: ModelPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder; must not exist.")],
    to: Annotated[
        Format,
        typer.Option(
            "--to",
            help="huggingface: a folder for from_pretrained and AutoTokenizer (Marian, Pegasus, GPT-2, BERT or Llama, by the model's "
            "shape); ctranslate2; or onnx.",
        ),
    ],
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a model in another program's format. Its logits and greedy outputs there are compared with the model's here, by the other
    program where that is installed; a result that differs is not left. Settings that the format cannot express are listed.
    """
    if quiet:
        hush()
    from dragoman.bundle import load_bundle
    from dragoman.files import require_new

    require_new(out)
    bundle = load_bundle(model)
    sentence, facts, notices = _export(bundle, to, out)
    if json_:
        about = {"model": str(model), "to": to.value, "out": str(out), "notices": notices}
        print(json.dumps({**about, "verification": facts}, ensure_ascii=False))
        return
    for notice in notices:
        notify(notice)
    print(f"{out}: written for {to.value}, {sentence}")


def _export(bundle: "Bundle", to: Format, out: Path) -> tuple[str, dict[str, Any], list[str]]:
    """Writes the folder; what the comparison found, in words and as JSON, and notices."""
    if to is Format.HUGGINGFACE:
        from dragoman.interop import huggingface

        verified, notices = huggingface.export_model(bundle, out)
        return verified.sentence(), verified.to_json(), notices
    from dragoman.interop import ctranslate2

    checked = ctranslate2.export_model(bundle, out)
    return checked.sentence(), asdict(checked), [*checked.notes]
