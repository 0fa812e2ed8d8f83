"""llama2.c's files: a model as header and numbers, and its tokenizer as pieces with scores.

The model's file (its first version, without a magic number) begins with seven whole numbers: width, inner width, layers, heads, heads of
keys and values, vocabulary (negative: the output has a matrix of its own), positions. Then come the weights in float32, of each kind those
of all layers, with the tables of the rotations near the end.
"""

import math
import re
import struct
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tokenizers import normalizers
from torch import Tensor

from dragoman.bundle import Bundle, assemble_bundle, empty_model
from dragoman.config import Config, ModelConfig, merge
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, unreadable
from dragoman.interop import transformers
from dragoman.interop.huggingface import Imported, export_model, verify_weights
from dragoman.interop.names import Entry, norm, same, take
from dragoman.interop.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, Piece, byte_pairs
from dragoman.interop.verify import Verification

_HEADER = struct.Struct("<7i")
_BOS = 1
_LAYER_KINDS = ("rms_att", "wq", "wk", "wv", "wo", "rms_ffn", "w1", "w2", "w3")
_EPSILON = 1e-5


def is_llama2c(path: Path) -> bool:
    """Whether the size of a file is that of the model which its first numbers announce."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
        return len(header) == _HEADER.size and size == _HEADER.size + 4 * sum(math.prod(shape) for _, shape in _shapes(header))
    except (OSError, ValueError):
        return False


def read_llama2c(path: Path, tokenizer: Path | None = None) -> Imported:
    """The bundle of a model's file and its tokenizer's, ``tokN.bin`` for N entries or ``tokenizer.bin`` beside it unless given.

    Raises DragomanError for a file of another kind or size, and for a tokenizer that does not fit.
    """
    if not is_llama2c(path):
        raise DragomanError(f"{path}: not a whole model of llama2.c (its first version, float32); use an undamaged copy")
    data = path.read_bytes()
    numbers = np.frombuffer(data, "<f4", offset=_HEADER.size)
    weights: dict[str, Tensor] = {}
    place = 0
    for name, shape in _shapes(data[: _HEADER.size]):
        count = math.prod(shape)
        weights[name] = torch.from_numpy(numbers[place : place + count].astype(np.float32)).view(shape)
        place += count
    settings = _settings(data[: _HEADER.size])
    rows = settings["target_vocabulary"]
    found = _read_tokenizer(_tokenizer_of(path, rows) if tokenizer is None else tokenizer, rows)
    changes = {
        "model": settings | {"pad": found.pad},
        "data": {"tokenizer": "foreign", "vocabulary_size": len(found), "max_length": settings["max_positions"]},
    }
    config = merge(Config().model_dump(), changes, place=str(path))
    model = empty_model(config)
    table = name_table(config.model)
    flat = _by_layer(weights)
    tables = dict.fromkeys(("freq_cis_real", "freq_cis_imag"), "the table of the rotations, which is computed")
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    taken = take(table, {name: weight for name, weight in flat.items() if name not in tables}, shapes)
    if problems := taken.problems + _wrong_rotations(weights):
        raise DragomanError(f"{path}: cannot import this model: {'; '.join(problems)}")
    bundle = assemble_bundle(config, taken.weights, found, found, {"imported_from": "llama2.c"}, model=model)
    return Imported(bundle, "llama2.c", tables, [], table, flat)


def verify_llama2c(imported: Imported, bundle: Bundle) -> Verification:
    """The written ``bundle`` as a Llama of ``transformers``, where that is installed; else against the file's own weights."""
    if not transformers.is_installed():
        return verify_weights(imported, bundle)
    with TemporaryDirectory() as folder:
        return export_model(bundle, Path(folder) / "llama")[0]


def name_table(config: ModelConfig) -> list[Entry]:
    """Which of our weights is which of theirs; of each layer with its number behind the name."""
    table = [same("embedding.weight", "tok_embeddings"), *norm("final_norm", "rms_final", bias=False)]
    for number in range(config.decoder_layers):
        names = {"rms_att": "norm1", "rms_ffn": "norm2"}
        names |= {"wq": "self_attn.w_q", "wk": "self_attn.w_k", "wv": "self_attn.w_v", "wo": "self_attn.w_concat"}
        names |= {"w1": "feed_forward.w_gate", "w2": "feed_forward.w_out", "w3": "feed_forward.w_in"}
        table += [same(f"layers.{number}.{ours}.weight", f"{theirs}.{number}.weight") for theirs, ours in names.items()]
    return [*_without_suffix(table), *([] if config.tie == "all" else [same("output.weight", "wcls")])]


def _without_suffix(table: list[Entry]) -> list[Entry]:
    return [Entry(entry.ours, entry.theirs.removesuffix(".weight"), entry.copies) for entry in table]


def _settings(header: bytes) -> dict[str, Any]:
    width, inner, layers, heads, kv_heads, vocabulary, positions = _HEADER.unpack(header)
    return {
        "architecture": "decoder-only", "d_model": width, "d_ff": inner, "n_heads": heads, "kv_heads": kv_heads, "decoder_layers": layers,
        "dropout": 0.0, "activation": "swiglu", "norm": "rms", "norm_place": "pre", "norm_epsilon": _EPSILON, "positions": "rotary",
        "attention_bias": False, "feed_forward_bias": False, "scale_embedding": False, "initialization": "normal",
        "max_positions": positions, "tie": "all" if vocabulary > 0 else "none", "source_vocabulary": abs(vocabulary),
        "target_vocabulary": abs(vocabulary),
    }  # fmt: skip


def _shapes(header: bytes) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights in the order of the file; ValueError for a header that is none."""
    width, inner, layers, heads, kv_heads, vocabulary, positions = _HEADER.unpack(header)
    if min(width, inner, layers, heads, kv_heads, positions) < 1 or not vocabulary or width % heads or heads % kv_heads:
        raise ValueError("not a header")
    keys, half = width // heads * kv_heads, width // heads // 2
    return [
        ("tok_embeddings", (abs(vocabulary), width)),
        ("rms_att", (layers, width)),
        ("wq", (layers, width, width)),
        ("wk", (layers, keys, width)),
        ("wv", (layers, keys, width)),
        ("wo", (layers, width, width)),
        ("rms_ffn", (layers, width)),
        ("w1", (layers, inner, width)),
        ("w2", (layers, width, inner)),
        ("w3", (layers, inner, width)),
        ("rms_final", (width,)),
        ("freq_cis_real", (positions, half)),
        ("freq_cis_imag", (positions, half)),
        *([("wcls", (-vocabulary, width))] if vocabulary < 0 else []),
    ]


def _by_layer(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    layers = chain.from_iterable(
        ((f"{name}.{number}", layer) for number, layer in enumerate(weights[name])) for name in _LAYER_KINDS
    )  # fmt: skip
    return {**{name: weight for name, weight in weights.items() if name not in _LAYER_KINDS}, **dict(layers)}


def _wrong_rotations(weights: Mapping[str, Tensor]) -> list[str]:
    """The stored tables where they are not those of base 10000."""
    positions, half = weights["freq_cis_real"].shape
    angles = torch.arange(positions)[:, None].double() / 10_000 ** (torch.arange(half).double() / half)
    computed = {"freq_cis_real": angles.cos(), "freq_cis_imag": angles.sin()}
    return [
        f"{name} is not the table of rotations of base 10000"
        for name, table in computed.items()
        if (weights[name] - table).abs().max() > 1e-3
    ]


def _tokenizer_of(path: Path, entries: int) -> Path:
    names = (f"tok{entries}.bin", "tokenizer.bin")
    found = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
    if found is None:
        raise DragomanError(f"{path}: neither {names[0]} nor {names[1]} is beside it; give the tokenizer's file with --tokenizer FILE")
    return found


def _read_tokenizer(path: Path, entries: int) -> Tokenizer:
    """The tokenizer of a file of as many entries; the start token also ends a text, as it stood between those of the training."""
    try:
        data = path.read_bytes()
        pieces: list[Piece] = []
        place = 4
        while place < len(data):
            score, size = struct.unpack_from("<fi", data, place)
            place += 8 + size
            if size < 0 or place > len(data):
                raise ValueError("it ends early")
            pieces.append(_piece(len(pieces), data[place - size : place].decode(), score))
    except OSError as error:
        raise DragomanError(unreadable(path, error, "cannot read the tokenizer")) from None
    except (ValueError, struct.error) as error:
        raise DragomanError(f"{path}: not a tokenizer of llama2.c, or damaged ({error}); use an undamaged copy") from None
    if len(pieces) != entries or len({piece.text for piece in pieces}) != entries:
        raise DragomanError(
            f"{path}: the tokenizer has {len(pieces)} entries but the embedding has {entries} rows; give the tokenizer that belongs to the "
            "model with --tokenizer FILE"
        )
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend = byte_pairs(pieces, normalizer)
    return Tokenizer(kind="foreign", joiner="", pad=_BOS, bos=_BOS, eos=_BOS, unk=0, backend=backend, opening=(_BOS,))


def _piece(token: int, text: str, score: float) -> Piece:
    if token <= 2:
        return Piece(text.strip("\n"), score, UNKNOWN if token == 0 else CONTROL)
    if re.fullmatch(r"<0x[0-9A-F]{2}>", text):
        return Piece(text, score, BYTE)
    return Piece(text.replace(" ", "▁"), score, NORMAL)
