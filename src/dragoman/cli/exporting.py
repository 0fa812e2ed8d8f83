"""``dragoman export``: a model in another program's format, compared with the bundle before it is left (`interop`)."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import AsJson, ModelPath, Quiet
from dragoman.cli.streams import hush, notify
from dragoman.errors import UsageError


class Format(StrEnum):
    """What a model can be written as."""

    HUGGINGFACE = "huggingface"
    CTRANSLATE2 = "ctranslate2"
    ONNX = "onnx"


class Quantization(StrEnum):
    """What the matrices can be stored in."""

    FLOAT32 = "float32"
    INT8 = "int8"


def exporting(
    model: ModelPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder; must not exist.")],
    to: Annotated[
        Format,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="huggingface: a folder for from_pretrained and AutoTokenizer (Marian, Pegasus, GPT-2, BERT or Llama, by the model's "
            "shape); ctranslate2; or onnx.",
        ),
    ],
    quantization: Annotated[
        Quantization | None,
        typer.Option(
            "--quantization", metavar="float32|int8", help="For ctranslate2: float32, or int8 for matrices in 8 bits. Default: float32."
        ),
    ] = None,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a model in another program's format. Its logits and greedy outputs there are compared with the model's here, by the other
    program where that is installed; a result that differs is not left. Settings that the format cannot express are listed.
    """
    if quiet:
        hush()
    if quantization is not None and to is not Format.CTRANSLATE2:
        raise UsageError(f"--quantization is for --to ctranslate2; leave it out for {to.value}")
    from dragoman.bundle import load_bundle
    from dragoman.files import require_new

    require_new(out)
    bundle = load_bundle(model)
    if to is Format.HUGGINGFACE:
        from dragoman.interop import huggingface

        verified, notices = huggingface.export_model(bundle, out)
    elif to is Format.CTRANSLATE2:
        from dragoman.interop import ctranslate2

        verified, notices = ctranslate2.export_model(bundle, out, quantization=(quantization or Quantization.FLOAT32).value)
    else:
        from dragoman.interop import onnx

        verified, notices = onnx.export_model(bundle, out)
    if json_:
        facts = {"model": str(model), "to": to.value, "out": str(out), "notices": notices, "verification": verified.to_json()}
        print(json.dumps(facts, ensure_ascii=False))
        return
    for notice in notices:
        notify(notice)
    print(f"{out}: written for {to.value}, {verified.sentence()}")
