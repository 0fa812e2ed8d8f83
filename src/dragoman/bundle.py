"""The one on-disk form of a model: a folder with config.json, model.safetensors, its tokenizers and a card.

Nothing in it is executed when it is read, and every fault of a damaged or foreign folder is named at once. Weights that are shared
(Section 3.4) are stored once.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dragoman.config import Config, merge
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, UsageError
from dragoman.files import new_folder, write_file
from dragoman.model.build import build_model
from dragoman.model.transformer import Transformer
from dragoman.presets import count_parameters

FORMAT_VERSION = 1
"""Written into config.json; a bundle of a higher number comes from a newer Dragoman and is refused."""

_TOKENIZERS = {"joint": ("tokenizer.json", "tokenizer.json"), "separate": ("tokenizer.source.json", "tokenizer.target.json")}


@dataclass(frozen=True)
class Bundle:
    """A model with what turns text into its ids and back; one tokenizer object for both sides when the vocabulary is joint.

    ``info`` holds facts about its making, such as the step and the scores.
    """

    config: Config
    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    info: Mapping[str, Any] = field(default_factory=dict)


def save_bundle(bundle: Bundle, folder: Path, *, also: Callable[[Path], None] | None = None) -> None:
    """Writes the bundle as a new folder that appears whole or not at all; ``also`` may write more files into it.

    Raises DragomanError when the folder exists or cannot be written.
    """
    weights = {name: weight.detach().contiguous().cpu() for name, weight in bundle.model.named_parameters()}
    with new_folder(Path(folder)) as beside:
        _write_all(beside, bundle, weights)
        if also is not None:
            also(beside)


def _write_all(folder: Path, bundle: Bundle, weights: Mapping[str, Tensor]) -> None:
    document = {
        "format_version": FORMAT_VERSION,
        "dragoman_version": version("dragoman"),
        "architecture": "transformer",
        "config": bundle.config.model_dump(mode="json"),
        "info": dict(bundle.info),
    }
    (folder / "config.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(save(dict(weights), metadata={"format": "pt"}))
    save_tokenizers(folder, bundle.source_tokenizer, bundle.target_tokenizer)
    (folder / "README.md").write_text(_card(bundle), encoding="utf-8")


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Writes tokenizer.json when both sides share one tokenizer object, tokenizer.source.json and tokenizer.target.json otherwise."""
    names = _TOKENIZERS["joint" if source is target else "separate"]
    source.save(folder / names[0])
    target.save(folder / names[1])


def load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target tokenizer of a folder, one object when it is joint; DragomanError that names each damaged file."""
    joint, separate = _TOKENIZERS["joint"], _TOKENIZERS["separate"]
    tokenizers, problems = [], []
    for name in joint[:1] if (folder / joint[0]).exists() else separate:
        try:
            tokenizers.append(Tokenizer.load(folder / name))
        except DragomanError as error:
            problems.append(str(error))
    if problems:
        raise DragomanError("; ".join(problems))
    return tokenizers[0], tokenizers[-1]


def _card(bundle: Bundle) -> str:
    data, model = bundle.config.data, bundle.config.model
    facts = {
        "Languages": f"{data.source or 'source'} to {data.target or 'target'}",
        "Model": f"encoder-decoder Transformer, {model.encoder_layers} + {model.decoder_layers} layers, d_model {model.d_model}, "
        f"d_ff {model.d_ff}, {model.n_heads} heads, {count_parameters(model):,} parameters",
        "Vocabulary": f"{model.source_vocabulary:,} source and {model.target_vocabulary:,} target entries ({data.tokenizer})",
        **{key.replace("_", " ").capitalize(): str(value) for key, value in bundle.info.items()},
    }
    lines = [f"- {key}: {value}" for key, value in facts.items()]
    return "\n".join(["# A Dragoman model", "", *lines, "", "Translate with `dragoman translate THIS_FOLDER`.", ""])


def load_bundle(path: str | Path, *, device: str = "cpu") -> Bundle:
    """The model of a run folder (its best checkpoint), a checkpoint or a bundle, on ``device``, in evaluation mode.

    Raises DragomanError that lists everything wrong with the folder.
    """
    folder = resolve_model(path)
    config, info = _read_config(folder)
    problems: list[str] = []
    try:
        tokenizers = load_tokenizers(folder)
        rows = (config.model.source_vocabulary, config.model.target_vocabulary)
        for side, count, tokenizer in zip(("source", "target"), rows, tokenizers, strict=True):
            if len(tokenizer) > count:
                problems.append(f"the {side} tokenizer has {len(tokenizer)} entries but the embedding has {count} rows")
    except DragomanError as error:
        problems.append(str(error))
    with torch.device("meta"):
        model = build_model(config.model)
    weights = _read_weights(folder / "model.safetensors", model, problems)
    if problems:
        raise DragomanError(f"{folder}: cannot load this model: {'; '.join(problems)}; use an undamaged copy, or train or average it again")
    model.load_state_dict(weights, strict=False, assign=True)
    return Bundle(config, model.to(device).eval(), *tokenizers, info)


def _read_config(folder: Path) -> tuple[Config, dict[str, Any]]:
    path = folder / "config.json"
    try:
        document = json.loads(path.read_bytes())
        found = document["format_version"]
        if not isinstance(found, int) or found > FORMAT_VERSION:
            raise DragomanError(f"{path}: format version {found} is newer than the {FORMAT_VERSION} this Dragoman reads; update Dragoman")
        return merge(Config().model_dump(), document["config"], place=str(path)), document.get("info", {})
    except OSError as error:
        raise DragomanError(f"{path}: cannot read the model's settings: {error.strerror}") from None
    except UsageError as error:
        raise DragomanError(f"{error}; use an undamaged copy, or a Dragoman that knows these settings") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DragomanError(
            f"{path}: not the settings of a Dragoman model ({type(error).__name__}: {error}); use an undamaged copy"
        ) from None


def _read_weights(path: Path, model: torch.nn.Module, problems: list[str]) -> dict[str, Tensor]:
    expected = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    try:
        path.open("rb").close()  # says why it cannot be read; safe_open does not
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a mapping
            problems += [f"weight {name} is missing" for name in expected if name not in found]
            problems += [f"weight {name} is not part of this model" for name in found if name not in expected]
            problems += [
                f"weight {name} has shape {found[name]}, not {shape}" for name, shape in expected.items() if found.get(name, shape) != shape
            ]
            weights = {name: file.get_tensor(name) for name in expected if name in found} if not problems else {}
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror or error}")
        return {}
    except SafetensorError as error:
        problems.append(f"{path.name} is not a whole safetensors file ({error})")
        return {}
    problems += [
        f"weight {name} is {weight.dtype}, not floating point" for name, weight in weights.items() if not weight.is_floating_point()
    ]
    return weights


def resolve_model(path: str | Path) -> Path:
    """The bundle that a path means: itself, or the best checkpoint (else the last) of a run folder.

    Raises DragomanError when there is none.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return folder
    for mark in ("best", "last"):
        checkpoint = marked_checkpoint(folder, mark)
        if checkpoint is not None:
            return checkpoint
    if not folder.exists():
        raise DragomanError(f"{folder}: no such model; give a run folder, a checkpoint folder or a bundle")
    raise DragomanError(f"{folder}: neither a bundle (no config.json) nor a run with a finished checkpoint; give another folder")


def marked_checkpoint(run: Path, mark: str) -> Path | None:
    """The checkpoint that ``checkpoints/best`` or ``checkpoints/last`` of a run names, or None."""
    try:
        name = (run / "checkpoints" / mark).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    folder = run / "checkpoints" / name
    return folder if name and (folder / "config.json").is_file() else None


def mark_checkpoint(run: Path, mark: str, checkpoint: Path) -> None:
    """Makes ``checkpoints/best`` or ``checkpoints/last`` name a checkpoint of the run."""
    write_file(run / "checkpoints" / mark, checkpoint.name + "\n")


def list_checkpoints(run: Path) -> list[Path]:
    """The run's whole checkpoints, oldest first."""
    whole = [folder for folder in (run / "checkpoints").glob("step-*") if (folder / "config.json").is_file()]
    return sorted(whole, key=lambda folder: (len(folder.name), folder.name))  # steps beyond 999,999 have more digits


def average_bundles(folders: Sequence[Path], out: Path) -> None:
    """Writes the arithmetic mean of the models (Section 6.1) as a new bundle; shared weights stay shared.

    Sums in float64 and stores each weight in its own type. Raises DragomanError when there is nothing to average, or when sizes or
    tokenizers differ, naming the folder.
    """
    if not folders:
        raise DragomanError("no checkpoints to average; give a run that has written some")
    first = load_bundle(folders[0])
    sums = {name: weight.detach().double() for name, weight in first.model.named_parameters()}
    for folder in folders[1:]:
        other = load_bundle(folder)
        _require_same_kind(folders[0], first, folder, other)
        for name, weight in other.model.named_parameters():
            sums[name] += weight.detach()
    with torch.no_grad():
        for name, weight in first.model.named_parameters():
            weight.copy_(sums[name] / len(folders))
    info = {"step": first.info.get("step"), "average_of": [folder.name for folder in folders]}
    save_bundle(Bundle(first.config, first.model, first.source_tokenizer, first.target_tokenizer, info), out)


def _require_same_kind(first_folder: Path, first: Bundle, folder: Path, other: Bundle) -> None:
    if other.config.model != first.config.model:
        raise DragomanError(f"{folder}: its model settings differ from those of {first_folder}; average checkpoints of one run")
    if _fingerprints(other) != _fingerprints(first):
        raise DragomanError(f"{folder}: its tokenizer differs from that of {first_folder}; average checkpoints of one run")


def _fingerprints(bundle: Bundle) -> Iterable[str]:
    return [bundle.source_tokenizer.fingerprint, bundle.target_tokenizer.fingerprint]
