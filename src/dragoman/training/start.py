"""A run that goes on from a model: its sizes, vocabulary and weights are the model's, and all else begins anew."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from dragoman.bundle import load_bundle, load_config, load_tokenizers, resolve_model
from dragoman.config import ModelConfig
from dragoman.data.tokenizer import Tokenizer, tag_text
from dragoman.errors import DragomanError, UsageError
from dragoman.model.build import build_model
from dragoman.model.embedding import Embedding
from dragoman.model.transformer import EncoderDecoder, LanguageModel, MaskedLanguageModel, Model
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


def began_from(run: Path) -> dict[str, Any]:
    """What `describe_start` told run.json; DragomanError when it does not stand there any more."""
    facts = read_run(run).get("from")
    if not isinstance(facts, dict) or not {"bundle", "weights_sha256", "source_vocabulary", "target_vocabulary"} <= facts.keys():
        raise DragomanError(f"{run / 'run.json'}: does not tell the model that the run began from; restore the file or start a new run")
    return facts


def starting_tokenizers(run: Path, tags: Sequence[str]) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target of the model that the run goes on from, one object when they are one.

    Language tags that are new to it get entries behind all others. Raises UsageError when it has tags and the run has none.
    """
    source, target = load_tokenizers(Path(began_from(run)["bundle"]))
    if source.tags and not tags:
        known = ", ".join(map(tag_text, source.tags))
        raise UsageError(f"the model that training goes on from has the language tags {known}; give data.tags, one for each --train")
    tagged = source.with_tags(tags)
    return tagged, tagged if target is source else target


def starting_vocabularies(run: Path) -> tuple[int, int]:
    """Rows of the source and the target embedding of the model that the run goes on from."""
    start = began_from(run)
    return start["source_vocabulary"], start["target_vocabulary"]


def starting_model(run: Path, config: ModelConfig, source: Tokenizer, target: Tokenizer) -> Model:
    """A model of these settings with the weights of the model that the run goes on from.

    ``source`` and ``target`` are the run's tokenizers, whose last entries may be new to that model (`fill_new_rows`). Raises DragomanError
    when it is gone, is not what it was when the run began, or has a weight that is not a finite number.
    """
    start = began_from(run)
    folder = Path(start["bundle"])
    known = load_bundle(folder)
    if _digest(folder) != start["weights_sha256"]:
        raise DragomanError(f"{folder}: the weights changed since the run {run} began from them; restore them, or start a new run")
    weights = dict(known.model.named_parameters())
    if broken := [name for name, weight in weights.items() if not weight.isfinite().all()]:
        raise DragomanError(f"{folder}: {broken[0]} has numbers that are not finite; go on from another checkpoint")
    model = build_model(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight[: len(weights[name])] = weights[name]
    if isinstance(model, EncoderDecoder):
        fill_new_rows(cast(Embedding, model.encoder.embedding), before=len(known.source_tokenizer), after=len(source))
    inner = {LanguageModel: "", MaskedLanguageModel: "encoder"}.get(type(model), "decoder")
    for embedding in (model.get_submodule(inner).embedding, model.output):
        fill_new_rows(cast(Embedding, embedding), before=len(known.target_tokenizer), after=len(target))
    return model


@torch.no_grad()
def fill_new_rows(embedding: Embedding, *, before: int, after: int) -> None:
    """Gives the rows (D,) of the entries from ``before`` to ``after`` the mean of those of the entries before, padding left out.

    At the output the logit of a mean is the mean of the logits, so by Jensen's inequality a new entry begins with at most 1 / (before - 1)
    of the probability of the others, whatever the model has learnt to avoid; a row drawn at random may begin with more than any of them.
    """
    if before == after:
        return
    known = embedding.weight[:before].double()
    embedding.weight[before:after] = (known.sum(0) - known[embedding.pad]) / (before - 1)


def _digest(folder: Path) -> str:
    path = folder / "model.safetensors"
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DragomanError(f"{path}: cannot read the weights: {error.strerror}; use an undamaged copy") from None
