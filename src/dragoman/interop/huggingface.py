"""Hugging Face folders, in and out: Marian and Pegasus, GPT-2, BERT, Llama; each way compares both sides before it leaves a result."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors.torch import save
from torch import Tensor

from dragoman.bundle import Bundle, assemble_bundle, empty_model
from dragoman.config import Config, ModelConfig, merge
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, UsageError
from dragoman.files import new_folder
from dragoman.interop import bert, gpt2, llama, marian, transformers
from dragoman.interop.document import Document
from dragoman.interop.layout import filled, with_biases
from dragoman.interop.names import Entry, Shape, give, take
from dragoman.interop.verify import Verification, compare, logits_of
from dragoman.interop.vocabularies import read_tokenizers, write_tokenizers
from dragoman.interop.weights import read_folder
from dragoman.model.embedding import sinusoids

_ARCHITECTURES = {"marian": marian, "pegasus": marian, "gpt2": gpt2, "bert": bert, "llama": llama, "mistral": llama}
_WITHOUT_PREFIX = ("lm_head.", "cls.", "model.", "final_logits_bias")


@dataclass(frozen=True)
class Imported:
    """A bundle made of foreign files: the weights that were left out with the reason, notices, and the foreign weights by table names."""

    bundle: Bundle
    kind: str
    ignored: dict[str, str]
    notices: list[str]
    table: list[Entry] = field(default_factory=list, repr=False)
    weights: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


def load_huggingface(source: str | Path) -> Bundle:
    """The bundle of a Hugging Face folder, or of a hub name where the net and ``huggingface-hub`` are there.

    Raises DragomanError that names everything that is wrong with it: an architecture or a setting that is not supported, missing, extra
    or misshapen weights, a tokenizer that does not fit.
    """
    return read_huggingface(find_folder(source)).bundle


def find_folder(source: str | Path) -> Path:
    """The folder of a path, or of a hub name, which is downloaded; DragomanError where that cannot be."""
    folder = Path(source)
    if folder.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+|[\w-][\w.-]*", str(source)):
        return folder
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise DragomanError(
            f"{source}: no such folder; to get a model of that name from the Hugging Face hub, run: pip install 'dragoman[huggingface]'"
        ) from None
    try:
        plain = ["*.json", "*.txt", "*.model", "*.spm", "*.safetensors"]
        found = Path(snapshot_download(str(source), allow_patterns=plain))
        if not any(found.glob("*.safetensors")):
            found = Path(snapshot_download(str(source), allow_patterns=[*plain, "pytorch_model*.bin"]))
    except Exception as error:  # the client raises many kinds
        reason = next(iter(str(error).splitlines()), "")[:160]
        raise DragomanError(
            f"{source}: no such folder, and the Hugging Face hub gives no model of that name ({type(error).__name__}: {reason}); check the "
            "name and the net, or give the folder of a downloaded model"
        ) from None
    return found


def read_huggingface(folder: Path) -> Imported:
    """What `load_huggingface` reads of a folder, with what it left out."""
    document = Document.read(folder / "config.json")
    if (folder / "generation_config.json").is_file():
        document.values = {**document.values, **Document.read(folder / "generation_config.json").values}
    module = _architecture(folder, document)
    weights = _canonical(folder, read_folder(folder), module)
    settings = module.read_settings(document, weights.keys())
    if document.problems:
        raise _unusable(folder, document.problems)
    source, target = read_tokenizers(folder, document)
    if document.problems:  # which the ids of special tokens may be
        raise _unusable(folder, document.problems)
    rows = settings.model["source_vocabulary"], settings.model["target_vocabulary"]
    problems = [
        f"the {side}tokenizer has {len(tokenizer)} entries but the embedding has {count} rows"
        for side, tokenizer, count in zip(("source ", "target ") if source is not target else ("", ""), (source, target), rows, strict=True)
        if len(tokenizer) > count
    ]
    if problems:
        raise DragomanError(f"{folder}: cannot import this model: {problems[0]}; use the tokenizer's files that belong to the weights")
    single = settings.model.get("architecture", "encoder-decoder") != "encoder-decoder"
    data: dict[str, Any] = {
        "tokenizer": "foreign",
        "vocabulary_size": len(source),
        "joint_vocabulary": settings.model.get("tie", "all") == "all",
    }
    languages = ("", "") if single else _languages(folder)
    data |= {"source": languages[0], "target": languages[1], "max_length": max(settings.model["max_positions"], 2)}
    changes = {"model": settings.model | {"pad": target.pad}, "data": data, "decoding": settings.decoding}
    try:
        config = merge(Config().model_dump(), changes, place="its numbers")
    except UsageError as error:
        raise _unusable(folder, [_in_their_words(str(error), module.NAMES)]) from None
    model = empty_model(config)
    table = module.name_table(config.model)
    taken = take(table, weights, {name: tuple(weight.shape) for name, weight in model.named_parameters()}, ignored=module.IGNORED)
    problems = taken.problems + _wrong_positions(config.model, weights, taken.ignored)
    if problems:
        raise DragomanError(f"{folder}: cannot import this model: {'; '.join(problems)}")
    notices = [*settings.notices]
    if len(target) < config.model.target_vocabulary:
        notices.append(
            f"the tokenizer has {len(target)} entries and the embedding {config.model.target_vocabulary} rows: the rest is never said"
        )
    if config.model.architecture != "encoder-only":
        notices += _other_ends(document.get("eos_token_id"), target)
    info = {"imported_from": f"{document.get('model_type')} (Hugging Face)"}
    bundle = assemble_bundle(config, taken.weights, source, target, info, model=model)
    return Imported(bundle, str(document.get("model_type")), taken.ignored, notices, table, weights)


def _unusable(folder: Path, problems: Sequence[str]) -> DragomanError:
    return DragomanError(f"{folder}/config.json: cannot import this model: {'; '.join(problems)}")


def _in_their_words(problems: str, names: Mapping[str, str]) -> str:
    """What is wrong with settings, each under the foreign name of the setting, and once."""
    said = re.sub(r"\b(?:\w+\.)?(\w+)(?==)", lambda found: names.get(found[1], found[1]), problems.removeprefix("its numbers: "))
    return "; ".join(dict.fromkeys(said.split("; ")))


def _other_ends(named: object, tokenizer: Tokenizer) -> list[str]:
    """A notice where there are other end tokens than the one that ends a text here."""
    ends = named if isinstance(named, list) else [named]
    others = [str(end) for end in ends if isinstance(end, int) and end != tokenizer.eos]
    own = f"{tokenizer.eos} ({tokenizer.token(tokenizer.eos)})"
    return [f"eos_token_id is {', '.join(others)} in the model's files: here {own} alone ends a text"] if others else []


def _architecture(folder: Path, document: Document) -> ModuleType:
    kind = document.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        raise DragomanError(f"{folder}: model_type={kind!r} is not supported; supported are {', '.join(_ARCHITECTURES)}")
    return _ARCHITECTURES[kind]


def _canonical(folder: Path, weights: Mapping[str, Tensor], module: ModuleType) -> dict[str, Tensor]:
    """The weights under the names of the table: without the prefix of a model inside another, and old names of norms as today's."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        plain = re.sub(r"(LayerNorm)\.gamma$", r"\1.weight", re.sub(r"(LayerNorm)\.beta$", r"\1.bias", name)).removeprefix(module.PREFIX)
        if plain in found:
            raise DragomanError(f"{folder}: the weight {plain} is there twice, with and without {module.PREFIX!r} or under an old name")
        found[plain] = weight
    return found


def _languages(folder: Path) -> tuple[str, str]:
    """The codes of the tokenizer's languages, where it says them in letters."""
    path = folder / "tokenizer_config.json"
    values = Document.read(path).values if path.is_file() else {}
    codes = [str(values.get(f"{side}_lang") or "") for side in ("source", "target")]
    usable = all(re.fullmatch(r"[\w-]+", code) for code in codes) and codes[0] != codes[1]
    return (codes[0], codes[1]) if usable else ("", "")


def _wrong_positions(config: ModelConfig, weights: Mapping[str, Tensor], ignored: Mapping[str, str]) -> list[str]:
    """Stored tables of sinusoids that are not those that are computed."""
    problems = []
    for name in (name for name in ignored if name.endswith("embed_positions.weight")):
        table = weights[name].float()
        if (
            not len(table)
            or table.shape[1:] != (config.d_model,)
            or (table - sinusoids(len(table), config.d_model, concatenated=True)).abs().max() > 1e-4
        ):
            problems.append(f"weight {name} is not a table of the sinusoids that the model's code computes")
    return problems


def verify_import(imported: Imported, folder: Path, bundle: Bundle) -> Verification:
    """The written ``bundle`` against ``transformers`` where it is installed; else against the import in memory and the folder's weights."""
    if transformers.is_installed():
        return transformers.compare_with_folder(bundle, folder)
    return verify_weights(imported, bundle)


def verify_weights(imported: Imported, bundle: Bundle) -> Verification:
    """The written ``bundle`` against the import in memory, and its weights, turned back by the name table, against the files'."""
    found = compare(bundle, logits_of(imported.bundle), against="the same import in memory, as transformers is not installed")
    back = give(imported.table, dict(bundle.model.named_parameters()))
    differing = [name for name, weight in back.items() if name in imported.weights and not weight.equal(imported.weights[name].float())]
    if differing:
        raise DragomanError(f"the written weights are not those of the files: {', '.join(differing)}; nothing is written")
    found.notices.append(f"{len(back)} weights, turned back by the name table, are those of the files bit for bit")
    return found


def export_model(bundle: Bundle, out: Path) -> tuple[Verification, list[str]]:
    """Writes the bundle as a new folder that ``from_pretrained`` and ``AutoTokenizer`` of ``transformers`` load, and compares both.

    Returns the comparison and notices. Raises DragomanError that lists the settings that do not fit, or says what differs; then nothing
    is left.
    """
    if bundle.config.model.older:
        raise DragomanError(f"a {bundle.config.model.architecture} model has no layout of Hugging Face's; use it here")
    module = _module_for(bundle)
    problems: list[str] = module.find_misfits(bundle.config.model)
    if problems:
        raise DragomanError(
            f"a model of this shape has no {module.__name__.rpartition('.')[2]} layout: {'; '.join(problems)}; export it to ctranslate2 or "
            "onnx, or train one with settings that fit"
        )
    with new_folder(Path(out)) as beside:
        notices = _write(bundle, beside, module)
        if transformers.is_installed():
            found = transformers.compare_with_folder(bundle, beside)
        else:
            again = read_huggingface(beside).bundle
            found = compare(bundle, logits_of(again), against="Dragoman's own reading of the folder, as transformers is not installed")
        found.require(str(out))
    return found, notices + found.notices


def _module_for(bundle: Bundle) -> ModuleType:
    model = bundle.config.model
    if model.architecture == "encoder-decoder":
        return marian
    if model.architecture == "encoder-only":
        return bert
    return llama if model.positions == "rotary" else gpt2


def _write(bundle: Bundle, folder: Path, module: ModuleType) -> list[str]:
    weights = {name: weight.detach().float() for name, weight in bundle.model.named_parameters()}
    model = bundle.config.model
    if module is marian:
        model, weights = marian.ready(model, weights)
    if module in (marian, gpt2, bert):
        model = with_biases(model, output_bias=module is marian or (module is bert and model.output_transform))
    if module is bert and not model.token_types:
        model = ModelConfig(**model.model_dump() | {"token_types": 1})
    config = bundle.config.with_values(model=model.model_dump())
    shapes: dict[str, Shape] = {name: tuple(weight.shape) for name, weight in empty_model(config).named_parameters()}
    target = bundle.target_tokenizer
    written: tuple[dict[str, Any], list[str]] = module.write_settings(config, bos=target.bos, eos=target.eos)
    values, notices = written
    inside = values["architectures"][0] != "BertModel"
    named = {
        name if name.startswith(_WITHOUT_PREFIX) or not inside else f"{module.PREFIX}{name}": weight
        for name, weight in give(module.name_table(model), filled(weights, shapes)).items()
    }
    if values["model_type"] == "pegasus":  # whose loader says of tables that are not there that they are newly initialised
        table = sinusoids(model.max_positions, model.d_model, concatenated=True)
        named |= {f"model.{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}
    (folder / "model.safetensors").write_bytes(save(named, metadata={"format": "pt"}))  # unlike save_file, a full disk is an OSError
    _write_json(folder / "config.json", {**values, "dtype": "float32"})
    if module is marian:
        banned = sorted({target.pad, target.bos, *target.tags.values(), *range(len(target), model.target_vocabulary)})
        _write_json(folder / "generation_config.json", marian.write_generation(config, banned=banned, bos=target.bos, eos=target.eos))
    languages = bundle.config.data.source, bundle.config.data.target
    write_tokenizers(folder, bundle.source_tokenizer, target, architecture=model.architecture, languages=languages)
    return notices


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
