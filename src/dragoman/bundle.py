"""The one on-disk form of a model: a folder with config.json, model.safetensors, its tokenizers and a card.

Nothing in it is executed when it is read, and every fault of a damaged or foreign folder is named at once. Weights that are shared
(Section 3.4) are stored once.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dragoman.config import Architecture, Config, merge
from dragoman.data.tokenizer import Tokenizer, tag_text
from dragoman.errors import DragomanError, UsageError
from dragoman.files import folders_in, new_folder, require_new, write_file
from dragoman.model.build import build_model
from dragoman.model.transformer import EncoderDecoder, LanguageModel, MaskedLanguageModel, Model
from dragoman.presets import count_parameters, describe_sizes

FORMAT_VERSION = 1
"""Written into config.json; a bundle of a higher number comes from a newer Dragoman and is refused."""

version_of = cache(version)
"""The version of an installed package; read once, for it takes as long as a step of a small model."""

_ARCHITECTURE = "transformer"
_Both = tuple[Tokenizer, Tokenizer]
_Kind = TypeVar("_Kind", EncoderDecoder, LanguageModel, MaskedLanguageModel)
_VERBS_OF: dict[Architecture, str] = {
    "encoder-decoder": "dragoman translate",
    "decoder-only": "dragoman generate",
    "encoder-only": "dragoman fill or dragoman embed",
    "recurrent": "dragoman translate",
    "convolutional": "dragoman translate",
}

_log = logging.getLogger("dragoman")
_TOKENIZERS = {"joint": ("tokenizer.json", "tokenizer.json"), "separate": ("tokenizer.source.json", "tokenizer.target.json")}


@dataclass(frozen=True)
class Bundle:
    """A model with what turns text into its ids and back; one tokenizer object for both sides when the vocabulary is joint.

    ``info`` holds facts about its making, such as the step and the scores.
    """

    config: Config
    model: Model
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def encoder_decoder(self) -> EncoderDecoder:
        """The model of two sequences; DragomanError for one of another kind."""
        return self._of_kind(EncoderDecoder, "translates")

    @property
    def language_model(self) -> LanguageModel:
        """The decoder-only model; DragomanError for one of another kind."""
        return self._of_kind(LanguageModel, "goes on with a text")

    @property
    def masked_language_model(self) -> MaskedLanguageModel:
        """The encoder-only model; DragomanError for one of another kind."""
        return self._of_kind(MaskedLanguageModel, "fills in what is masked")

    def _of_kind(self, kind: type[_Kind], does: str) -> _Kind:
        if not isinstance(self.model, kind):
            architecture = self.config.model.architecture
            raise DragomanError(f"the model is {architecture}, and not one that {does}: use {_VERBS_OF[architecture]}")
        return self.model


def save_bundle(bundle: Bundle, folder: Path, *, also: Callable[[Path], None] | None = None) -> None:
    """Writes the bundle as a new folder that appears whole or not at all; ``also`` may write more files into it.

    Raises DragomanError when the folder exists or cannot be written.
    """
    weights = {name: weight.detach().contiguous().cpu() for name, weight in bundle.model.named_parameters()}
    with new_folder(Path(folder)) as beside:
        save_settings(beside, bundle)
        (beside / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
        (beside / "README.md").write_text(_card(bundle), encoding="utf-8")
        if also is not None:
            also(beside)


def save_settings(folder: Path, bundle: Bundle) -> None:
    """Writes all that a bundle holds but its weights and its card: config.json and the tokenizers."""
    document = {
        "format_version": FORMAT_VERSION,
        "dragoman_version": version_of("dragoman"),
        "architecture": _ARCHITECTURE,
        "config": bundle.config.model_dump(mode="json"),
        "info": dict(bundle.info),
    }
    (folder / "config.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    save_tokenizers(folder, bundle.source_tokenizer, bundle.target_tokenizer)


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Writes tokenizer.json when both sides share one tokenizer object, tokenizer.source.json and tokenizer.target.json otherwise."""
    names = _TOKENIZERS["joint" if source is target else "separate"]
    source.save(folder / names[0])
    target.save(folder / names[1])


def load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target tokenizer of a folder, one object when it is joint; DragomanError that names each damaged file."""
    joint, separate = _TOKENIZERS["joint"], _TOKENIZERS["separate"]
    if not any((folder / name).exists() for name in (*joint, *separate)):
        raise DragomanError(f"{folder}: no tokenizer: neither {joint[0]} nor {' and '.join(separate)} is there")
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
    tags = " ".join(map(tag_text, bundle.source_tokenizer.tags))
    languages = {"Language": data.source} if model.single else {"Languages": f"{data.source or 'source'} to {data.target or 'target'}"}
    entries = "" if model.single else f"{model.source_vocabulary:,} source and "
    facts = {
        **languages,
        "Model": f"{model.architecture} {'encoder-decoder' if model.older else 'Transformer'}, {describe_sizes(model)}, "
        f"{count_parameters(model):,} parameters",
        "Vocabulary": f"{entries}{model.target_vocabulary:,}{'' if model.single else ' target'} entries ({data.tokenizer})",
        **({"Language tags": f"{tags}; each line to translate begins with one"} if tags else {}),
        **{key.replace("_", " ").capitalize(): str(value) for key, value in bundle.info.items()},
    }
    lines = [f"- {key}: {value}" for key, value in facts.items()]
    return "\n".join(["# A Dragoman model", "", *lines, "", f"To use it: {_VERBS_OF[model.architecture]}, each with THIS_FOLDER.", ""])


def load_bundle(path: str | Path, *, device: str = "cpu", tokenizers: _Both | None = None) -> Bundle:
    """The model of a run folder (its best checkpoint), a checkpoint or a bundle, on ``device``, in evaluation mode.

    Weights become float32; ``tokenizers`` that were read before are taken as they are. Raises DragomanError that lists everything wrong.
    """
    bundle = _load(resolve_model(path), torch.float32, tokenizers)
    return replace(bundle, model=bundle.model.to(device))


def load_config(folder: Path) -> Config:
    """The settings of a bundle; DragomanError that lists everything wrong with them."""
    problems: list[str] = []
    config, _ = _read_config(folder, problems)
    return config or _refuse(folder, problems)


def _load(folder: Path, dtype: torch.dtype | None, known: _Both | None = None) -> Bundle:
    """The bundle in a folder, its weights in ``dtype``, or each in its own when that is None; ``known`` tokenizers are not read again."""
    problems: list[str] = []
    config, info = _read_config(folder, problems)
    tokenizers = _read_tokenizers(folder, config, problems, known)
    model = empty_model(config) if config else None
    weights = _read_weights(folder / "model.safetensors", model, problems)
    if problems or config is None or model is None or tokenizers is None:
        _refuse(folder, problems)
    # Copies: what was read is still the file, in which another may be written, or less, and then the process would be killed.
    weights = {name: weight.to(dtype or weight.dtype, copy=True) for name, weight in weights.items()}
    return assemble_bundle(config, weights, *tokenizers, info, model=model)


def assemble_bundle(
    config: Config, weights: Mapping[str, Tensor], source: Tokenizer, target: Tokenizer, info: Mapping[str, Any], *, model: Model
) -> Bundle:
    """The bundle of weights, all that an `empty_model` of these settings has, in evaluation mode."""
    model.load_state_dict(weights, strict=False, assign=True)
    return Bundle(config, model.eval(), source, target, info)


def _refuse(folder: Path, problems: Sequence[str]) -> NoReturn:
    remedy = "use an undamaged copy or a Dragoman that knows this model, or train or average it again"
    raise DragomanError(f"{folder}: cannot load this model: {'; '.join(problems)}; {remedy}")


def empty_model(config: Config) -> Model:
    """The model of these settings without values, on PyTorch's device meta."""
    with torch.device("meta"), _NoDraws():
        return build_model(config.model)


class _NoDraws(TorchFunctionMode):
    """Random values are not drawn: without memory there is nothing to fill, and PyTorch would import its compiler for it, for a second."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").endswith(("normal_", "uniform_")):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _read_config(folder: Path, problems: list[str]) -> tuple[Config | None, dict[str, Any]]:
    """Settings and info; no settings when they cannot be used, and then ``problems`` says why."""
    path = folder / "config.json"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        problems.append(f"{path.name}: cannot read the model's settings: {error.strerror}")
        return None, {}
    except (ValueError, RecursionError) as error:
        problems.append(f"{path.name}: not the settings of a Dragoman model ({type(error).__name__}: {error})")
        return None, {}
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        problems.append(f"{path.name}: not the settings of a Dragoman model (no JSON object with an object 'config')")
        return None, {}
    found, architecture, info = document.get("format_version"), document.get("architecture"), document.get("info", {})
    if type(found) is int and found > FORMAT_VERSION:  # then nothing else can be judged
        raise DragomanError(f"{path}: format version {found} is newer than the {FORMAT_VERSION} this Dragoman reads; update Dragoman")
    if type(found) is not int or found < 1:
        problems.append(f"{path.name}: format_version={json.dumps(found)} is not a whole number from 1")
    if architecture != _ARCHITECTURE:
        problems.append(f"{path.name}: architecture={json.dumps(architecture)} is not {json.dumps(_ARCHITECTURE)}")
    if not isinstance(info, dict):
        problems.append(f"{path.name}: info={json.dumps(info)} is not a JSON object")
    try:
        config = merge(Config().model_dump(), document["config"], place=path.name)
    except UsageError as error:
        problems.append(str(error))
        return None, {}
    return config if architecture == _ARCHITECTURE else None, info  # another architecture has other weights


def _read_tokenizers(folder: Path, config: Config | None, problems: list[str], known: _Both | None) -> _Both | None:
    try:
        tokenizers = known or load_tokenizers(folder)
    except DragomanError as error:
        problems.append(str(error))
        return None
    rows = (config.model.source_vocabulary, config.model.target_vocabulary) if config else ()
    for side, count, tokenizer in zip(("source", "target"), rows, tokenizers, strict=False):
        if len(tokenizer) > count:
            problems.append(f"the {side} tokenizer has {len(tokenizer)} entries but the embedding has {count} rows")
    return tokenizers


def _read_weights(path: Path, model: torch.nn.Module | None, problems: list[str]) -> dict[str, Tensor]:
    """The weights of ``model``, or of none, when only the file itself can be judged."""
    try:
        path.open("rb").close()  # says why it cannot be read; safe_open does not
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a mapping
            faults = _misfits(found, {name: tuple(weight.shape) for name, weight in model.named_parameters()}) if model else []
            weights = {name: file.get_tensor(name) for name in found} if model and not faults else {}
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror or error}")
        return {}
    except SafetensorError as error:
        problems.append(f"{path.name} is not a whole safetensors file ({error})")
        return {}
    problems += faults
    problems += [
        f"weight {name} is {weight.dtype}, not floating point" for name, weight in weights.items() if not weight.is_floating_point()
    ]
    return weights


def _misfits(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What is wrong with the names and shapes of weights."""
    return [
        *(f"weight {name} is missing" for name in expected if name not in found),
        *(f"weight {name} is not part of this model" for name in found if name not in expected),
        *(f"weight {name} has shape {found[name]}, not {shape}" for name, shape in expected.items() if found.get(name, shape) != shape),
    ]


def resolve_model(path: str | Path) -> Path:
    """The bundle that a path means: itself, or the best checkpoint of a run folder, else the last, with a warning if the best is gone.

    ``RUN/checkpoints/best`` and ``last`` mean what they name. Raises DragomanError when there is none, and names a damaged checkpoint
    and a whole one of the run.
    """
    folder = Path(path)
    if folder.name in ("best", "last") and folder.is_file():
        folder = marked_checkpoint(folder.absolute().parent.parent, folder.name) or folder
    if (folder / "config.json").is_file():
        return folder
    best, last = (marked_checkpoint(folder, mark) for mark in ("best", "last"))
    if best is None and last is not None and (mark := folder / "checkpoints" / "best").exists():
        _log.warning("%s: the checkpoint that it names is gone; using the last, %s, until another is the best", mark, last.name)
    if (checkpoint := best or last) is not None:
        return checkpoint
    if not folder.exists():
        raise DragomanError(f"{folder}: no such model; give a run folder, a checkpoint folder or a bundle")
    whole, lost = list_checkpoints(folder), lost_checkpoints(folder)
    within = [str(each) for each in folders_in(folder) if _is_whole(each) or list_checkpoints(each)]
    named = f"{', '.join(within[:3])}{f' and {len(within) - 3:,} more' if len(within) > 3 else ''}"
    instead = f"give {whole[-1]}, which is whole" if whole else f"give one that lies in it: {named}" if within else "give another folder"
    if lost:
        raise DragomanError(f"{lost[-1]}: config.json is not there, so this is no checkpoint; put it back, or {instead}")
    raise DragomanError(f"{folder}: neither a bundle (no config.json) nor a run with a finished checkpoint; {instead}")


def marked_checkpoint(run: Path, mark: str) -> Path | None:
    """The checkpoint that ``checkpoints/best`` or ``checkpoints/last`` of a run names, or None."""
    try:
        name = (run / "checkpoints" / mark).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    folder = run / "checkpoints" / name
    return folder if name and (folder / "config.json").is_file() else None


def mark_checkpoint(run: Path, mark: str, checkpoint: Path) -> None:
    """Makes ``checkpoints/best`` or ``checkpoints/last`` name a checkpoint of the run."""
    write_file(run / "checkpoints" / mark, checkpoint.name + "\n")


def list_checkpoints(run: Path) -> list[Path]:
    """The run's whole checkpoints, oldest first."""
    return [folder for folder in _checkpoint_folders(run) if _is_whole(folder)]


def lost_checkpoints(run: Path) -> list[Path]:
    """What bears the name of a checkpoint of the run and has lost its config.json, oldest first."""
    return [folder for folder in _checkpoint_folders(run) if not _is_whole(folder)]


def newest_checkpoint(run: Path) -> Path | None:
    """The checkpoint that a run goes on from, and the last of those to average; None before the first.

    Raises DragomanError when the newest has lost its config.json: an older one would undo what was trained without a word.
    """
    if not (folders := _checkpoint_folders(run)):
        return None
    *older, newest = folders
    if not _is_whole(newest):
        then = "" if older and (older[-1] / "state").is_dir() else ", with which the training is lost"  # only the newest has its state
        raise DragomanError(f"{newest}: config.json is not there, so this is no checkpoint; put it back, or remove the whole folder{then}")
    return newest


def _is_whole(checkpoint: Path) -> bool:
    return (checkpoint / "config.json").is_file()


def _checkpoint_folders(run: Path) -> list[Path]:
    named = [folder for folder in (run / "checkpoints").glob("step-*") if folder.name.removeprefix("step-").isdecimal()]
    return sorted(named, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def average_bundles(folders: Sequence[Path], out: Path) -> None:
    """Writes the arithmetic mean of the models (Section 6.1) as a new bundle; shared weights stay shared.

    Sums in float64 and stores each weight in the type it has in the first. Settings and the step recorded are the newest one's. Raises
    DragomanError when there is nothing to average, when ``out`` exists, or when sizes or tokenizers differ, naming the folder.
    """
    if not folders:
        raise DragomanError("no checkpoints to average; give a run that has written some")
    require_new(out)
    first = _load(folders[0], None)
    sums = {name: weight.detach().double() for name, weight in first.model.named_parameters()}
    step, config = first.info.get("step"), first.config  # a resumed run may have other settings from some checkpoint on
    for folder in folders[1:]:
        other = _load(folder, None)
        _require_same_kind(folders[0], first, folder, other)
        if isinstance(now := other.info.get("step"), int) and not (isinstance(step, int) and step > now):
            step, config = now, other.config
        for name, weight in other.model.named_parameters():
            sums[name] += weight.detach()
    with torch.no_grad():
        for name, weight in first.model.named_parameters():
            weight.copy_(sums[name] / len(folders))
    info = {"step": step, "average_of": [folder.name for folder in folders]}
    save_bundle(Bundle(config, first.model, first.source_tokenizer, first.target_tokenizer, info), out)


def _require_same_kind(first_folder: Path, first: Bundle, folder: Path, other: Bundle) -> None:
    if other.config.model != first.config.model:
        raise DragomanError(f"{folder}: its model settings differ from those of {first_folder}; average checkpoints of one run")
    tokenizers = [(bundle.source_tokenizer.fingerprint, bundle.target_tokenizer.fingerprint) for bundle in (first, other)]
    if tokenizers[0] != tokenizers[1]:
        raise DragomanError(f"{folder}: its tokenizer differs from that of {first_folder}; average checkpoints of one run")
