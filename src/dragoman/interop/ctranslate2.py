"""CTranslate2's folders of Transformers, in and out, each checked against CTranslate2 itself where it is installed.

A folder has the weights in ``model.bin``, the vocabularies, and ``config.json`` with the names of special tokens. What Dragoman writes has
its settings and tokenizers beside them, in ``dragoman/``, so that it comes back as it was, and for others what turns text into tokens.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.bundle import Bundle, save_settings
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, UsageError
from dragoman.files import new_folder
from dragoman.interop.ctranslate2_check import compare_with_folder, installed_version
from dragoman.interop.ctranslate2_in import OWN, read_folder
from dragoman.interop.ctranslate2_names import extras, misfits, table
from dragoman.interop.ctranslate2_vocabulary import entries_of
from dragoman.interop.huggingface import Imported
from dragoman.interop.model_bin import ModelBin, quantize, write_model_bin
from dragoman.interop.names import give
from dragoman.interop.verify import Verification

QUANTIZATIONS = ("float32", "int8")
_TEXT = "what turns text into tokens, for `tokenizers.Tokenizer.from_file`"


def is_ctranslate2(folder: Path) -> bool:
    """Whether a folder looks like one of CTranslate2."""
    return (folder / "model.bin").is_file() and not (folder / "model.safetensors").is_file()


def read_model(folder: Path) -> tuple[Imported, Callable[[Bundle], Verification]]:
    """The model of a CTranslate2 folder, in float32 whatever it is stored in, and its comparison with what CTranslate2 computes from it.

    Raises DragomanError that lists everything in the folder that is missing, misshapen, left over or not known here.
    """
    found = read_folder(folder)
    imported = Imported(found.bundle, f"CTranslate2 ({found.kind})", found.ignored, [*found.notices])
    return imported, partial(compare_with_folder, folder=folder, rows=found.rows)


def export_model(bundle: Bundle, out: Path, *, quantization: str = "float32") -> tuple[Verification, list[str]]:
    """Writes a bundle as a new CTranslate2 folder, compares the two, and leaves nothing when they differ.

    ``quantization`` is float32, or int8 for matrices in 8 bits with a scale a row: then the folder is compared with the model of these
    rounded weights, and notices say what CTranslate2 makes of it in 8 bits. Raises UsageError for another, and DragomanError that names
    the settings that CTranslate2 has nothing for, or says by how much the two differ.
    """
    if quantization not in QUANTIZATIONS:
        raise UsageError(f"quantization={quantization}: unknown; give {' or '.join(QUANTIZATIONS)}")
    if problems := misfits(bundle.config.model):
        raise DragomanError(
            f"CTranslate2 has nothing for {'; '.join(problems)}; export this model to onnx, or train one with other settings"
        )
    with new_folder(Path(out)) as folder:
        write_folder(bundle, folder, quantization=quantization)
        again = read_folder(folder)
        notices: list[str] = []
        if quantization == "float32":
            _require_same(bundle, again.bundle)
        elif installed_version():
            found = compare_with_folder(bundle, folder, rows=again.rows, computed="int8")
            notices.append(
                f"in 8 bits CTranslate2's logits differ from the model's by at most {found.difference:.2g}, and its greedy outputs agree "
                f"on {found.greedy_agree} of {found.samples} samples of random tokens"
            )
        verified = compare_with_folder(again.bundle, folder, rows=again.rows)
        verified.require(str(out))
    return verified, notices


def _require_same(written: Bundle, read: Bundle) -> None:
    theirs = dict(read.model.named_parameters())
    wrong = [name for name, value in written.model.named_parameters() if not value.detach().float().cpu().equal(theirs[name])]
    if wrong or written.config != read.config:
        raise DragomanError(f"the folder does not give back what was written: {', '.join(wrong) or 'other settings'}; nothing is written")


def write_folder(bundle: Bundle, folder: Path, *, quantization: str = "float32") -> None:
    """Fills a folder: weights, vocabularies, config.json, our settings, and a page on how to use it without Dragoman."""
    model = bundle.config.model
    stored = weights_of(bundle)
    stored = quantize(stored) if quantization == "int8" else stored
    kind, revision = ("TransformerDecoderSpec", 8) if model.single else ("TransformerSpec", 7)
    variables = stored | {name: value for name, value in extras(model).items() if name not in _POSITIONS[1:]}
    write_model_bin(folder / "model.bin", ModelBin(kind, revision, variables, _aliases(bundle, variables)))
    _write_vocabularies(bundle, folder)
    _write(folder / "config.json", _document(bundle))
    (folder / OWN).mkdir()
    save_settings(folder / OWN, bundle)
    (folder / "README.md").write_text(_page(bundle), encoding="utf-8")


_POSITIONS = ("decoder/position_encodings/encodings", "encoder/position_encodings/encodings")


def weights_of(bundle: Bundle) -> dict[str, Tensor]:
    """The weights of a model under CTranslate2's names, a shared one once."""
    weights = {name: value.detach().float().cpu() for name, value in bundle.model.named_parameters()}
    return give(table(bundle.config.model), weights)


def _aliases(bundle: Bundle, variables: dict[str, Tensor]) -> dict[str, str]:
    """The further names of shared matrices, and of the positions where both sides have the same."""
    aliases = {copy: entry.theirs for entry in table(bundle.config.model) for copy in entry.copies}
    if bundle.config.model.positions.startswith("sinusoidal") and not bundle.config.model.single:
        aliases[_POSITIONS[1]] = _POSITIONS[0]
    return {alias: name for alias, name in aliases.items() if name in variables}


def _document(bundle: Bundle) -> dict[str, Any]:
    model, source, target = bundle.config.model, bundle.source_tokenizer, bundle.target_tokenizer

    def entry(token: int) -> str:
        return str(target.backend.id_to_token(token))

    document = {"bos_token": entry(target.bos), "eos_token": entry(target.eos), "unk_token": entry(target.unk)}
    common = {"layer_norm_epsilon": model.norm_epsilon, "multi_query_attention": model.key_value_heads != model.n_heads}
    if model.single:
        return document | common
    return document | common | {
        "decoder_start_token": entry(target.bos), "add_source_bos": source.opening == (source.bos,), "add_source_eos": source.source_end,
    }  # fmt: skip


def _write_vocabularies(bundle: Bundle, folder: Path) -> None:
    model, source, target = bundle.config.model, bundle.source_tokenizer, bundle.target_tokenizer
    entries = entries_of(target, model.target_vocabulary)
    sides: dict[str, Tokenizer] = {"source_": source, "target_": target}
    if model.single:
        _write(folder / "vocabulary.json", entries)
        sides = {"": target}
    elif source is target and model.source_vocabulary == model.target_vocabulary:
        _write(folder / "shared_vocabulary.json", entries)
        sides = {"": target}
    else:
        _write(folder / "source_vocabulary.json", entries_of(source, model.source_vocabulary))
        _write(folder / "target_vocabulary.json", entries)
    for name, tokenizer in sides.items():
        tokenizer.backend.save(str(folder / f"{name}tokenizer.json"), pretty=False)


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _page(bundle: Bundle) -> str:
    """How a program without Dragoman uses the folder."""
    single = bundle.config.model.single
    source, target = ("", "") if bundle.source_tokenizer is bundle.target_tokenizer else ("source_", "target_")
    joiner = bundle.target_tokenizer.joiner
    mend = f'.replace("{joiner} ", "")' if joiner else ""
    lines = ["# A Dragoman model for CTranslate2", "", f"`{source}tokenizer.json` is {_TEXT}:", "", "```python"]
    lines += ["import ctranslate2, tokenizers", "", f'source = tokenizers.Tokenizer.from_file("{source}tokenizer.json")']
    if single:
        lines += ['generator = ctranslate2.Generator(".")', 'tokens = source.encode("A text", add_special_tokens=False).tokens']
        start = bundle.target_tokenizer.backend.id_to_token(bundle.target_tokenizer.bos)
        lines += [f"found = generator.generate_batch([[{start!r}, *tokens]])[0]", "print(source.decode(found.sequences_ids[0]))"]
    else:
        lines += [f'target = tokenizers.Tokenizer.from_file("{target}tokenizer.json")', 'translator = ctranslate2.Translator(".")']
        lines += [
            'tokens = source.encode("A sentence.", add_special_tokens=False).tokens',
            "found = translator.translate_batch([tokens])[0]",
        ]
        lines += ["ids = [target.token_to_id(token) for token in found.hypotheses[0]]"]
        lines += [f"print(target.decode(ids, skip_special_tokens=False){mend})"]
    lines += [
        "```",
        "",
        "`dragoman import` of this folder gives the model back. CTranslate2's `length_penalty` p divides by n^p for n tokens;",
    ]
    lines += [
        "Dragoman's alpha divides by ((5 + n) / 6)^alpha with the end token counted, so the two are no translation of each other.",
        "",
    ]
    return "\n".join(lines)
