"""From a CTranslate2 folder to a bundle: every weight and every number in it has a place here, or is refused by its name."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from dragoman.bundle import Bundle, assemble_bundle, empty_model, load_config, load_tokenizers
from dragoman.config import Config
from dragoman.errors import DragomanError, UsageError
from dragoman.interop.ctranslate2_names import IGNORED, NUMBERS, OLD_POSITIONS, Found, extras, settings_of, table
from dragoman.interop.ctranslate2_vocabulary import Side, Vocabularies, read_vocabularies, sentencepiece_of, side_of
from dragoman.interop.model_bin import ModelBin, read_model_bin
from dragoman.interop.names import take
from dragoman.model.embedding import sinusoids

OWN = "dragoman"
"""The subfolder with our settings and tokenizers, of what Dragoman exported."""

_KINDS = {"TransformerSpec": 7, "TransformerBase": 2, "TransformerBig": 2, "TransformerDecoderSpec": 8}  # newest revision of each
_SUPPORTED = "Dragoman reads CTranslate2's encoder-decoder and decoder-only Transformers"
_OLD_HEADS = {"TransformerBig": 16}
_SHARED_ONCE = ("num_heads", "pre_norm", "activation", "embeddings_merge")  # of both sides, in revisions before 5
_ALIGNED_ONCE = ("alignment_layer", "alignment_heads")
_MARKS = ("with_source_bos", "with_source_eos", "with_target_bos")  # in model.bin, before there was a config.json


@dataclass(frozen=True)
class FolderRead:
    """A model that came from a CTranslate2 folder: its kind and the entries of its target vocabulary there, and what is to be known of it.

    ``ignored`` are the variables that are left out, with the reason.
    """

    bundle: Bundle
    kind: str
    rows: int
    ignored: dict[str, str]
    notices: tuple[str, ...]


def read_folder(folder: Path) -> FolderRead:
    """The model of a CTranslate2 folder as a bundle, in float32 whatever it is stored in.

    Raises DragomanError that lists everything in it that is missing, misshapen, left over or not known here.
    """
    stored = read_model_bin(folder / "model.bin")
    if stored.kind not in _KINDS:
        raise DragomanError(
            f"{folder / 'model.bin'}: a model of the kind {stored.kind or 'of version 1'}; {_SUPPORTED}: {', '.join(_KINDS)}"
        )
    if stored.revision > _KINDS[stored.kind]:
        raise DragomanError(
            f"{folder / 'model.bin'}: revision {stored.revision} of {stored.kind} is newer than the {_KINDS[stored.kind]} that this "
            "Dragoman reads; update Dragoman"
        )
    problems: list[str] = []
    found = _named_as_today(stored)
    numbers = {name: value for name, value in found.items() if name.rpartition("/")[2] in {*NUMBERS, *_MARKS}}
    if wrong := [f"{name} is not one finite number" for name, value in numbers.items() if value.dim() or not value.isfinite()]:
        _refuse(folder, wrong)
    document = _document(folder, problems)
    if (folder / OWN / "config.json").is_file():
        return _own(folder, stored, found)
    marks = {name: float(found.pop(name, torch.tensor(usual))) != 0 for name, usual in zip(_MARKS, (0, 0, 1), strict=True)}
    settings = settings_of(found, document, heads=_OLD_HEADS.get(stored.kind, 8))
    problems += settings.problems
    vocabularies = read_vocabularies(
        folder, single=stored.kind == "TransformerDecoderSpec", unknown=str(document.get("unk_token", "<unk>")), problems=problems
    )
    return _foreign(folder, stored, found, _Given(document, marks, settings, vocabularies), problems)


@dataclass(frozen=True)
class _Given:
    """What a folder says beside its weights."""

    document: Mapping[str, Any]
    marks: Mapping[str, bool]
    settings: Found
    vocabularies: Vocabularies

    @property
    def start(self) -> str:
        usual = str(self.document.get("bos_token", "<s>")) if self.marks["with_target_bos"] else str(self.document.get("eos_token", "</s>"))
        return str(self.document.get("decoder_start_token", usual))


def _foreign(folder: Path, stored: ModelBin, found: dict[str, Tensor], given: _Given, problems: list[str]) -> FolderRead:
    model, vocabularies = dict(given.settings.model), given.vocabularies
    _check_sizes(found, vocabularies, problems)
    if given.document.get("decoder_start_token", given.start) is None:
        problems.append("it has no start token (decoder_start_token), but one that each caller gives, and a model here begins with its own")
    if given.document.get("quantization_type"):
        problems.append(f"weights quantised in another way (quantization_type={given.document['quantization_type']})")
    zero_start = bool(float(found.get("decoder/start_from_zero_embedding", torch.tensor(0))))
    if problems:
        _refuse(folder, problems)
    target = side_of(vocabularies.target, given.document, start=given.start, zero_start=zero_start, problems=problems)
    beginning = given.start if vocabularies.shared else str(given.document.get("bos_token", "<s>"))
    source = target
    if not vocabularies.shared:  # of a source only its end and its beginning count, so what it lacks is added
        known = dict.fromkeys(vocabularies.source)
        missing = beginning not in known and not given.document.get("add_source_bos")
        source = side_of(vocabularies.source, given.document, start=beginning, zero_start=missing, problems=problems)
    if given.document.get("add_source_bos") and beginning != str(given.document.get("bos_token", "<s>")):
        problems.append("sources begin with another token than targets")
    model |= _ties(found, shared=vocabularies.shared, single="architecture" in model)
    notices = _positions(stored, found, model)
    if stored.types != ["float32"]:
        notices.append(f"weights stored in {' and '.join(stored.types)} are float32 here")
    _add_rows(found, source, target, model)
    if given.settings.halves:
        notices.append("the heads that are rotated have their numbers in another order here")
    model |= {"dropout": 0.0, "pad": target.pad if target.pad < len(source.entries) else source.pad}
    around = {"source_start": _flag(given, "bos"), "source_end": _flag(given, "eos")} if "architecture" not in model else {}
    models = [sentencepiece_of(folder, side) for side in ("source", "target")]
    joint = vocabularies.shared and models[0] == models[1]
    tokens, notice = target.tokenizer(models[1], **(around if joint else {}))
    sources = tokens if joint else source.tokenizer(models[0], **around)[0]
    notices += [notice] if notice else []
    data = {"tokenizer": tokens.kind, "joiner": tokens.joiner, "vocabulary_size": 0, "joint_vocabulary": joint}
    if problems:
        _refuse(folder, problems)
    try:
        config = Config().with_values(model=model, data=data | {"max_length": max(model["max_positions"], 2)})
    except UsageError as error:
        _refuse(folder, [str(error)])
    empty = Bundle(config, empty_model(config), sources, tokens, {"imported_from": "CTranslate2"})
    return _filled(folder, empty, found, kind=stored.kind, rows=len(vocabularies.target), halves=given.settings.halves, notices=notices)


def _flag(given: _Given, name: str) -> bool:
    return bool(given.document.get(f"add_source_{name}", given.marks[f"with_source_{name}"]))


def _own(folder: Path, stored: ModelBin, found: dict[str, Tensor]) -> FolderRead:
    """What Dragoman exported: its own settings and tokenizers, which the numbers in the file must fit."""
    config = load_config(folder / OWN)
    sources, targets = load_tokenizers(folder / OWN)
    info = json.loads((folder / OWN / "config.json").read_bytes()).get("info", {})
    numbers = {name: value for name, value in extras(config.model).items() if name in found}
    problems = [
        f"{name} is not what {OWN}/config.json says"
        for name, value in numbers.items()
        if found[name].shape != value.shape or not torch.allclose(found.pop(name), value.float(), atol=1e-6)
    ]
    if problems:
        _refuse(folder, problems)
    found = {name: value for name, value in found.items() if name not in extras(config.model)}
    notices = [] if stored.types == ["float32"] else [f"weights stored in {' and '.join(stored.types)} are float32 here"]
    empty = Bundle(config, empty_model(config), sources, targets, info)
    return _filled(folder, empty, found, kind=stored.kind, rows=config.model.target_vocabulary, halves=False, notices=notices)


def _filled(
    folder: Path, bundle: Bundle, found: Mapping[str, Tensor], *, kind: str, rows: int, halves: bool, notices: list[str]
) -> FolderRead:
    variables = {name: value for name, value in found.items() if value.dim()}
    shapes = {name: tuple(value.shape) for name, value in bundle.model.named_parameters()}
    taken = take(table(bundle.config.model, halves=halves), variables, shapes, ignored=IGNORED)
    if taken.problems:
        _refuse(folder, taken.problems)
    ignored = {name: each.reason for name in found for each in IGNORED if re.fullmatch(each.pattern, name)}
    weights = {name: value.clone() for name, value in taken.weights.items()}  # two may be one variable there
    full = assemble_bundle(bundle.config, weights, bundle.source_tokenizer, bundle.target_tokenizer, bundle.info, model=bundle.model)
    return FolderRead(full, kind, rows, taken.ignored | ignored, tuple(notices))


def _named_as_today(stored: ModelBin) -> dict[str, Tensor]:
    """The variables under the names of the newest revision."""
    found = stored.numbers()
    if "encoder/embeddings/weight" in found:
        found["encoder/embeddings_0/weight"] = found.pop("encoder/embeddings/weight")
    for name in (*_SHARED_ONCE, *_ALIGNED_ONCE):
        if name in found:
            value = found.pop(name)
            found |= {f"{side}/{name}": value for side in (("decoder",) if name in _ALIGNED_ONCE else ("encoder", "decoder"))}
    return found


def _document(folder: Path, problems: list[str]) -> dict[str, Any]:
    """config.json; nothing where there is none, as in folders of old."""
    path = folder / "config.json"
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"config.json cannot be read ({error})")
        return {}
    if not isinstance(document, dict):
        problems.append("config.json is no JSON object")
        return {}
    return document


def _check_sizes(found: Mapping[str, Tensor], vocabularies: Vocabularies, problems: list[str]) -> None:
    sides = {"encoder/embeddings_0/weight": vocabularies.source, "decoder/embeddings/weight": vocabularies.target}
    matrices = [*(sides if not vocabularies.single else [*sides][1:]), "decoder/projection/weight", "decoder/layer_0/ffn/linear_0/weight"]
    matrices += [name for name in found if name.endswith("position_encodings/encodings")]
    for name in matrices:
        if name not in found:
            problems.append(f"weight {name} is missing")
        elif found[name].dim() != 2:
            problems.append(f"weight {name} has shape {tuple(found[name].shape)}, which is no matrix's")
    for name, entries in sides.items():
        if name in found and entries and len(found[name]) != len(entries):
            which = "shared" if vocabularies.shared else name.partition("/")[0].replace("encoder", "source").replace("decoder", "target")
            problems.append(
                f"the {which} vocabulary has {len(entries)} entries, the unknown token included, and {name} {len(found[name])} rows"
            )


def _ties(found: Mapping[str, Tensor], *, shared: bool, single: bool) -> dict[str, str]:
    """Which matrices are one: those that are equal, where the vocabulary allows it."""

    def equal(one: str, other: str) -> bool:
        return one in found and other in found and torch.equal(found[one], found[other])

    output = equal("decoder/embeddings/weight", "decoder/projection/weight")
    if output and (single or (shared and equal("decoder/embeddings/weight", "encoder/embeddings_0/weight"))):
        return {"tie": "all"}
    return {"tie": "decoder" if output else "none"}


def _positions(stored: ModelBin, found: dict[str, Tensor], model: dict[str, Any]) -> list[str]:
    """Settles what positions are; tables that can be computed leave ``found``, a table that CTranslate2 computes by itself comes in."""
    if "positions" in model:
        model["max_positions"] = OLD_POSITIONS
        return []
    names = [f"{side}/position_encodings/encodings" for side in (("decoder",) if "architecture" in model else ("encoder", "decoder"))]
    notices = []
    if not any(name in found for name in names):
        found |= dict.fromkeys(names, _old_positions(model["d_model"]))
        notices.append(
            f"positions are a table of {OLD_POSITIONS} of CTranslate2's own sinusoids, which begin with 1 and have other wavelengths"
        )
    there = [name for name in names if name in found]
    rows = min(len(found[name]) for name in there)
    if any(len(found[name]) != rows for name in there):
        notices.append(f"positions beyond {rows}, which one side has not, are left out")
    found |= {name: found[name][:rows] for name in there}
    kinds = {_kind_of(found[name], stored.variables[name].dtype if name in stored.variables else torch.float32) for name in there}
    model |= {"max_positions": rows, "positions": kinds.pop() if len(kinds) == 1 else "learned"}
    if model["positions"] != "learned":
        for name in there:
            del found[name]
    return notices


def _kind_of(rows: Tensor, dtype: torch.dtype) -> str:
    """What a table (T, D) of positions is, as far as the type it was stored in can tell."""
    length, width = rows.shape
    for kind in ("sinusoidal", "sinusoidal-concat") if width % 2 == 0 else ():
        ours = sinusoids(length, width, concatenated=kind == "sinusoidal-concat")
        if torch.allclose(rows, ours, atol=1e-6, rtol=0) or (dtype != torch.float32 and torch.equal(rows, ours.to(dtype).float())):
            return kind
    return "learned"


def _old_positions(d_model: int) -> Tensor:
    """The table (T, D) that CTranslate2 makes for a model without one, step by step in float32 as it does."""
    half = d_model // 2
    step = torch.tensor(math.log(10_000.0)) / max(half - 1, 1)
    angles = torch.arange(1, OLD_POSITIONS + 1)[:, None] * torch.exp(torch.arange(half) * -step)  # (T, D/2)
    return torch.cat((angles.sin(), angles.cos()), 1)  # (T, D)


def _add_rows(found: dict[str, Tensor], source: Side, target: Side, model: dict[str, Any]) -> None:
    """Rows for the entries that were added to the vocabularies, which no search may choose."""
    for name, side in (
        ("encoder/embeddings_0/weight", source),
        ("decoder/embeddings/weight", target),
        ("decoder/projection/weight", target),
    ):
        if name in found:
            found[name] = side.extend(found[name])
    model |= {"source_vocabulary": len(source.entries), "target_vocabulary": len(target.entries)}
    if target.copied:
        name = "decoder/projection/bias"
        found[name] = target.extend_bias(found.get(name, torch.zeros(len(target.entries) - len(target.copied))))
        model["output_bias"] = True


def _refuse(folder: Path, problems: list[str]) -> NoReturn:
    raise DragomanError(f"{folder}: cannot import this model: {'; '.join(problems)}; use an undamaged folder, of a model that fits")
