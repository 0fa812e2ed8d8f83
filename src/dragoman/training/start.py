"""A run that goes on from a model: its sizes, vocabulary and weights are the model's, and all else begins anew."""

import hashlib
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import load_bundle, load_config, load_tokenizers, resolve_model
from dragoman.config import ModelConfig
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from dragoman.model.build import build_model
from dragoman.model.transformer import Transformer
from dragoman.training.records import read_run


def describe_start(start: str) -> dict[str, Any]:
    """What run.json says under "from": the path as given, the bundle it means, its weights' SHA-256 and its vocabularies.

    Raises DragomanError when there is no model.
    """
    folder = resolve_model(start)
    model = load_config(folder).model
    return {
        "path": start,
        "bundle": str(folder),
        "weights_sha256": _digest(folder),
        "source_vocabulary": model.source_vocabulary,
        "target_vocabulary": model.target_vocabulary,
    }


def starting_tokenizers(run: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target of the model that the run goes on from, one object when they are one."""
    return load_tokenizers(Path(read_run(run)["from"]["bundle"]))


def starting_vocabularies(run: Path) -> tuple[int, int]:
    """Rows of the source and the target embedding of the model that the run goes on from; 0 when it goes on from none."""
    start = read_run(run).get("from", {})
    return start.get("source_vocabulary", 0), start.get("target_vocabulary", 0)


def starting_model(run: Path, config: ModelConfig) -> Transformer:
    """A model of these settings with fresh weights, or with those of the model that the run goes on from.

    Raises DragomanError when that model is gone, or is not what it was when the run began.
    """
    model = build_model(config)
    start = read_run(run).get("from")
    if not start:
        return model
    folder = Path(start["bundle"])
    known = load_bundle(folder).model
    if _digest(folder) != start["weights_sha256"]:
        raise DragomanError(f"{folder}: the weights changed since the run {run} began from them; restore them, or start a new run")
    weights = dict(known.named_parameters())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weights[name])
    return model


def _digest(folder: Path) -> str:
    path = folder / "model.safetensors"
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DragomanError(f"{path}: cannot read the weights: {error.strerror}; use an undamaged copy") from None
