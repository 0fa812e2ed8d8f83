"""``dragoman import``: a model of another program as a bundle, compared with the original before it is left (`interop`)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dragoman.cli.options import AsJson, Quiet
from dragoman.cli.streams import hush, notify
from dragoman.errors import DragomanError, UsageError

if TYPE_CHECKING:
    from dragoman.bundle import Bundle
    from dragoman.interop.huggingface import Imported
    from dragoman.interop.verify import Verification


class Found(NamedTuple):
    """What was read, and how the bundle that is written of it is compared with the original: in words and as JSON, or it is refused."""

    bundle: "Bundle"
    kind: str
    ignored: dict[str, str]
    notices: list[str]
    verify: "Callable[[Bundle], tuple[str, dict[str, Any], list[str]]]"


def importing(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A Hugging Face folder (Marian, Pegasus, GPT-2, BERT, Llama, Mistral) or the hub's name of one, a CTranslate2 folder, a "
            ".bin file of llama2.c, or a state dict of torch.nn.Transformer (.safetensors, .pt and the like; no code in them is run).",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of the new bundle; must not exist.")],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="For a state dict: a TOML file that says what it does not, such as the heads and the vocabularies. Default: none.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer", metavar="FILE", help="For llama2.c: the tokenizer's file. Default: tokN.bin or tokenizer.bin beside it."
        ),
    ] = None,
    json_: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make a bundle of another program's model. Its logits, greedy outputs and the ids of sample texts are compared with the original, by
    its own program where that is installed; a result that differs is not left. Weights that the format has and the model does not need are
    listed.
    """
    if quiet:
        hush()
    from dragoman.bundle import load_bundle, save_bundle
    from dragoman.files import require_new

    require_new(out)
    found = _read(source, out, config, tokenizer)
    verified: list[tuple[str, dict[str, Any], list[str]]] = []
    save_bundle(found.bundle, out, also=lambda folder: verified.append(found.verify(load_bundle(folder))))
    sentence, facts, more = verified[0]
    notices = [*found.notices, *more]
    if json_:
        about = {"source": source, "out": str(out), "kind": found.kind, "ignored_weights": found.ignored, "notices": notices}
        print(json.dumps({**about, "verification": facts}, ensure_ascii=False))
        return
    for name, reason in found.ignored.items():
        notify(f"left out: weight {name}: {reason}")
    for notice in notices:
        notify(notice)
    print(f"{out}: imported from {found.kind}, {sentence}")


def _found(imported: "Imported", out: Path, verify: "Callable[[Bundle], Verification]") -> Found:
    """What was read, with a comparison that must agree."""

    def checked(bundle: "Bundle") -> tuple[str, dict[str, Any], list[str]]:
        verified = verify(bundle)
        verified.require(str(out))
        return verified.sentence(), verified.to_json(), verified.notices

    return Found(imported.bundle, imported.kind, imported.ignored, imported.notices, checked)


def _read(source: str, out: Path, config: Path | None, tokenizer: Path | None) -> Found:
    """The importer of what SOURCE is, found by looking at it."""
    from dragoman.interop.huggingface import find_folder

    path = find_folder(source)
    if path.is_dir():
        for name, value in (("--config", config), ("--tokenizer", tokenizer)):
            if value is not None:
                raise UsageError(f"{name} is for single files; a folder says it itself, so leave it out")
        return _read_folder(path, out)
    if not path.exists():
        raise DragomanError(f"{source}: no such file or folder, and no name of the Hugging Face hub; give another")
    return _read_file(path, out, config, tokenizer)


def _read_folder(folder: Path, out: Path) -> Found:
    from dragoman.interop import ctranslate2

    if ctranslate2.is_ctranslate2(folder):
        imported, verify = ctranslate2.read_model(folder)
        return _found(imported, out, verify)
    from dragoman.interop.huggingface import read_huggingface, verify_import

    if (folder / "run.json").is_file() and (folder / "checkpoints").is_dir():
        raise DragomanError(f"{folder}: already a run of Dragoman; use it as it is")
    if not (folder / "config.json").exists():
        raise DragomanError(
            f"{folder}: no model of Hugging Face or CTranslate2, for there is no config.json; give the whole folder of a model, or the "
            "file of one of llama2.c or torch.nn.Transformer"
        )
    if (folder / "model.safetensors").is_file() and '"format_version"' in _head(folder / "config.json"):
        raise DragomanError(f"{folder}: already a bundle of Dragoman; use it as it is")
    imported = read_huggingface(folder)
    return _found(imported, out, lambda bundle: verify_import(imported, folder, bundle))


def _head(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:200]
    except OSError:
        return ""


def _read_file(path: Path, out: Path, config: Path | None, tokenizer: Path | None) -> Found:
    from dragoman.interop.llama2c import is_llama2c, read_llama2c, verify_llama2c

    if is_llama2c(path):
        if config is not None:
            raise UsageError("--config is for state dicts of torch.nn.Transformer; leave it out for a file of llama2.c")
        imported = read_llama2c(path, tokenizer)
        return _found(imported, out, lambda bundle: verify_llama2c(imported, bundle))
    from dragoman.interop.torch_transformer import REMEDY, looks_like_torch_transformer, read_torch_transformer, verify_torch_transformer
    from dragoman.interop.weights import read_file

    if tokenizer is not None:
        raise UsageError("--tokenizer is for files of llama2.c; for a state dict the --config file has the vocabularies")
    if not looks_like_torch_transformer(read_file(path)):
        raise DragomanError(f"{path}: neither a file of llama2.c nor a state dict of torch.nn.Transformer; give the model's whole folder")
    if config is None:
        raise UsageError(f"{path}: a state dict of torch.nn.Transformer does not say all of its model; {REMEDY}")
    imported, recipe = read_torch_transformer(path, config)
    return _found(imported, out, lambda bundle: verify_torch_transformer(imported, recipe, bundle))
