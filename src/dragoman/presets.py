"""The paper's rows (Table 3, base, big) and small ones for laptops, as changes to the default settings."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.config import Config, ModelConfig, check, layer
from dragoman.errors import UsageError
from dragoman.toml import parse_overrides, read_toml


@dataclass(frozen=True)
class Preset:
    """Named changes to the default settings, what they are, and the paper's rounded parameter count in millions, if it gives one."""

    name: str
    summary: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    paper_millions: int | None = None
    note: str = ""


def _row(name: str, summary: str, paper_millions: int | None = None, **model: Any) -> Preset:
    return Preset(name, summary, {"model": model}, paper_millions)


# Section 6.3. One vocabulary of words and brackets would be of no use, so only target and output share their matrix (3.4).
_TREES_DATA = {"target_tokenizer": "whitespace", "joint_vocabulary": False, "max_length": 512}
_TREES_DECODING = {"beam": 21, "alpha": 0.3, "extra_length": 300}

# Pre-norm: with the paper's order, at such rates and batches, a small encoder can give every position the same vector (docs/training.md).
_LAPTOP_MODEL = {"norm_place": "pre", "encoder_layers": 4, "decoder_layers": 4}
_LAPTOP_TRAINING = {
    "schedule": "inverse-sqrt",
    "evaluate_every": 500,
    "log_every": 20,
}

_GPT = {
    "architecture": "decoder-only", "norm_place": "pre", "activation": "gelu", "positions": "learned", "scale_embedding": False,
    "initialization": "normal", "norm_epsilon": 1e-5,
}  # fmt: skip
_NANO = {**_GPT, "attention_bias": False, "feed_forward_bias": False, "norm_bias": False}
_OF_ONE = {
    "optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 1.0, "label_smoothing": 0.0, "best_by": "loss", "adam_epsilon": 1e-8,
    "schedule": "cosine", "learning_rate": 1e-3, "minimum_rate": 1e-4, "warmup_steps": 100, "evaluate_every": 250,
}  # fmt: skip
_OF_NANO = {**_OF_ONE, "adam_beta1": 0.9, "adam_beta2": 0.99}
_LANGUAGE_MODELS = (
    Preset(
        "gpt-mini",
        "Decoder only, as GPT-2, for laptops: 4 layers of width 256 over 256 tokens; 4.2 million parameters with 4,000 entries.",
        {
            "model": {**_GPT, "d_model": 256, "d_ff": 1024, "n_heads": 4, "decoder_layers": 4, "max_positions": 256},
            "data": {"vocabulary_size": 4000},
            "training": {**_OF_ONE, "batch_tokens": 4096, "max_steps": 5000, "log_every": 20},
        },
    ),
    Preset(
        "gpt2",
        "Decoder only, the sizes of the smallest GPT-2: 12 layers of width 768 over 1,024 tokens.",
        {
            "model": {
                **_GPT, "activation": "gelu-tanh", "d_model": 768, "d_ff": 3072, "n_heads": 12, "decoder_layers": 12,
                "attention_dropout": 0.1,
            },
            "data": {"vocabulary_size": 50_257},
            "training": {
                **_OF_ONE, "learning_rate": 6e-4, "minimum_rate": 6e-5, "warmup_steps": 2000, "adam_beta2": 0.95, "batch_tokens": 24_576,
                "accumulate": 20, "max_steps": 600_000, "evaluate_every": 1000,
            },
        },
        note="its training is nanoGPT's for OpenWebText: about 491,520 tokens an update",
    ),
    Preset(
        "nano-cpu",
        "Decoder only, nanoGPT's characters for a laptop: 4 layers of width 128 over 64 characters.",
        {
            "model": {**_NANO, "d_model": 128, "d_ff": 512, "n_heads": 4, "decoder_layers": 4, "max_positions": 64, "dropout": 0.0},
            "data": {"tokenizer": "characters"},
            "training": {**_OF_NANO, "batch_tokens": 768, "max_steps": 2000, "log_every": 20},
        },
        note="804,608 parameters with the 65 characters of tinyshakespeare",
    ),
    Preset(
        "nano-gpu",
        "Decoder only, nanoGPT's characters for a GPU: 6 layers of width 384 over 256 characters.",
        {
            "model": {
                **_NANO, "d_model": 384, "d_ff": 1536, "n_heads": 6, "decoder_layers": 6, "max_positions": 256, "dropout": 0.2,
                "attention_dropout": 0.2,
            },
            "data": {"tokenizer": "characters"},
            "training": {**_OF_NANO, "batch_tokens": 16_384, "max_steps": 5000, "sampled_batches": 200},
        },
        note="10,746,624 parameters with the 65 characters of tinyshakespeare",
    ),
    Preset(
        "bert-mini",
        "Encoder only, the sizes of BERT-Mini: 4 layers of width 256; 4.3 million parameters with 4,000 entries.",
        {
            "model": {
                "architecture": "encoder-only", "positions": "learned", "activation": "gelu", "scale_embedding": False,
                "embedding_norm": True, "output_transform": True, "output_bias": True, "initialization": "normal", "norm_epsilon": 1e-12,
                "d_model": 256, "d_ff": 1024, "n_heads": 4, "encoder_layers": 4, "max_positions": 128, "attention_dropout": 0.1,
            },
            "data": {"vocabulary_size": 4000},
            "training": {
                **_OF_ONE, "batch_tokens": 4096, "max_steps": 10_000, "schedule": "linear", "minimum_rate": 0.0, "warmup_steps": 500,
            },
        },
    ),
)  # fmt: skip


def _older(name: str, summary: str, learning_rate: float, **model: Any) -> Preset:
    training = {**_LAPTOP_TRAINING, "batch_tokens": 2048, "warmup_steps": 600, "learning_rate": learning_rate, "max_steps": 20_000}
    changes = {"model": {"dropout": 0.3, **model}, "data": {"vocabulary_size": 4000}, "training": {**training, "clip_norm": 1.0}}
    return Preset(name, summary, changes)


_RECURRENT = {"architecture": "recurrent", "encoder_layers": 2, "decoder_layers": 2, "scale_embedding": False}
_OLDER = (
    _older("recurrent", "What the paper replaced: LSTMs with attention.", 2e-3, **_RECURRENT, d_model=176),
    _older("recurrent-gru", "The same with GRUs.", 2e-3, **_RECURRENT, d_model=192, cell="gru"),
    _older(
        "convolutional", "What the paper replaced: gated convolutions with attention in each layer.", 2e-3,
        architecture="convolutional", encoder_layers=4, decoder_layers=4, d_model=128, positions="learned", scale_embedding=False,
    ),
)  # fmt: skip

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("base", "The paper's base model (Table 3).", paper_millions=65),
        _row("A-h1", "Table 3 (A): one head of width 512.", n_heads=1),
        _row("A-h4", "Table 3 (A): 4 heads of width 128.", n_heads=4),
        _row("A-h16", "Table 3 (A): 16 heads of width 32.", n_heads=16),
        _row("A-h32", "Table 3 (A): 32 heads of width 16.", n_heads=32),
        _row("B-dk16", "Table 3 (B): keys of width 16.", 58, d_k=16, d_v=64),
        _row("B-dk32", "Table 3 (B): keys of width 32.", 60, d_k=32, d_v=64),
        _row("C-N2", "Table 3 (C): 2 + 2 layers.", 36, encoder_layers=2, decoder_layers=2),
        _row("C-N4", "Table 3 (C): 4 + 4 layers.", 50, encoder_layers=4, decoder_layers=4),
        _row("C-N8", "Table 3 (C): 8 + 8 layers.", 80, encoder_layers=8, decoder_layers=8),
        _row("C-d256", "Table 3 (C): d_model 256.", 28, d_model=256),
        _row("C-d1024", "Table 3 (C): d_model 1024.", 168, d_model=1024),
        _row("C-ff1024", "Table 3 (C): d_ff 1024.", 53, d_ff=1024),
        _row("C-ff4096", "Table 3 (C): d_ff 4096.", 90, d_ff=4096),
        _row("D-drop0.0", "Table 3 (D): no dropout.", dropout=0.0),
        _row("D-drop0.2", "Table 3 (D): dropout 0.2.", dropout=0.2),
        Preset("D-smooth0.0", "Table 3 (D): no label smoothing.", {"training": {"label_smoothing": 0.0}}),
        Preset("D-smooth0.2", "Table 3 (D): label smoothing 0.2.", {"training": {"label_smoothing": 0.2}}),
        _row("E-learned", "Table 3 (E): learned positions instead of sinusoids.", positions="learned"),
        Preset(
            "big",
            "The paper's big model (Table 3).",
            {
                "model": {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3},
                "training": {"max_steps": 300_000, "keep": 20},
            },
            213,
            note="the paper's 213 million fits no convention that fits its other rows: V = 40,960 gives 218.3, V = 37,000 gives 214.2",
        ),
        Preset(
            "tiny",
            "4 + 4 pre-norm layers of width 128 for small corpora and laptops: 1.8 million parameters with 4,000 entries.",
            {
                "model": {**_LAPTOP_MODEL, "d_model": 128, "d_ff": 256, "n_heads": 4, "dropout": 0.3},
                "data": {"vocabulary_size": 4000},
                "training": {**_LAPTOP_TRAINING, "batch_tokens": 2048, "warmup_steps": 600, "learning_rate": 3e-3, "max_steps": 20_000},
            },
        ),
        Preset(
            "small",
            "4 + 4 pre-norm layers of width 256 for 100,000 pairs and more: 9.4 million parameters with 8,000 entries.",
            {
                "model": {**_LAPTOP_MODEL, "d_model": 256, "d_ff": 1024, "n_heads": 4, "dropout": 0.2},
                "data": {"vocabulary_size": 8000},
                "training": {**_LAPTOP_TRAINING, "batch_tokens": 4096, "warmup_steps": 2000, "learning_rate": 2e-3, "max_steps": 50_000},
            },
        ),
        *_LANGUAGE_MODELS,
        *_OLDER,
        Preset(
            "parsing",
            "Section 6.3: 4 + 4 layers of width 1024 that turn words into trees, for a treebank (docs/parsing.md).",
            {
                "model": {
                    "encoder_layers": 4,
                    "decoder_layers": 4,
                    "d_model": 1024,
                    "dropout": 0.2,
                    "attention_dropout": 0.2,
                    "tie": "decoder",
                },
                "data": {**_TREES_DATA, "vocabulary_size": 16_000},
                "training": {"warmup_steps": 16_000, "bleu_tokenize": "none"},
                "decoding": _TREES_DECODING,
            },
            note="the paper says 4 layers, its code 6; dropout and warm-up, which it does not tell, are those of its code; "
            "counted here with as many brackets as pieces of words, of which a treebank has a hundred or so",
        ),
        Preset(
            "parsing-tiny",
            "3 + 3 pre-norm layers of width 128 for some thousand trees and laptops, decoded as in Section 6.3.",
            {
                "model": {
                    **_LAPTOP_MODEL,
                    "encoder_layers": 3,
                    "decoder_layers": 3,
                    "d_model": 128,
                    "d_ff": 512,
                    "n_heads": 4,
                    "dropout": 0.2,
                    "tie": "decoder",
                },
                "data": {**_TREES_DATA, "vocabulary_size": 4000},
                "training": {
                    **_LAPTOP_TRAINING,
                    "batch_tokens": 2048,
                    "warmup_steps": 400,
                    "learning_rate": 2e-3,
                    "max_steps": 20_000,
                    "bleu_tokenize": "none",
                },
                "decoding": _TREES_DECODING,
            },
        ),
    )
}


_ALIGNING = ("alignment_layer", "alignment_head")
_FREE = ("dropout", "attention_dropout", "activation_dropout", *_ALIGNING)
_SET_BY_TOKENIZER = ("source_vocabulary", "target_vocabulary", "pad")
_OF_TOKENIZER = ("tokenizer", "target_tokenizer", "vocabulary_size", "joint_vocabulary", "normalization", "joiner")
_Settings = dict[str, Any]


def resolve_config(
    preset: str | None = None,
    path: Path | None = None,
    overrides: list[str] | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    model: Callable[[str], Config] | None = None,
) -> Config:
    """The settings of a preset (the paper's base by default), then a TOML file, then ``--set`` overrides, then command-line flags.

    ``model`` gives the settings of the model that training.start_from names, where one is to be gone on from: then what is not given is
    the model's, but for its training, which is that of the preset that it was made with. Raises UsageError for an unknown preset, naming
    the known ones; an unknown setting, naming the nearest; a value that does not fit, naming its place; and what the model has otherwise.
    """
    from_file = read_toml(path) if path else {}
    given = [(from_file, str(path)), (parse_overrides(overrides or []), "--set"), (flags or {}, "command line")]
    named = from_file.get("preset") if preset is None else preset
    start = _start_from(given) if model else ""
    known = model(start) if model and start else None
    usual = known.preset if known and known.preset in PRESETS else "base"
    recipe = find_preset(usual if named is None else named)
    settings = layer(Config().model_dump(), {**recipe.changes, "preset": recipe.name}, place=f"preset {recipe.name}")
    if known:
        settings |= _kept(known, settings, sizes=named is None)
    for changes, place in given:
        settings = layer(settings, {**changes, "preset": recipe.name}, place=place)
    if known:
        _require_same(settings, known, start)
    return check(settings, place="settings")


def _start_from(given: list[tuple[Mapping[str, Any], str]]) -> str:
    """The model to go on from, by the last place that names it; a value that is no text is for `layer` to refuse."""
    groups = [changes.get("training") for changes, _ in reversed(given)]
    found = next((group["start_from"] for group in groups if isinstance(group, Mapping) and "start_from" in group), "")
    return found if isinstance(found, str) else ""


def _kept(known: Config, settings: _Settings, *, sizes: bool) -> _Settings:
    """What a run has of the model that it goes on from, unless it is given: all but the training. ``sizes``: no preset gives these."""
    model = {**known.model.model_dump(), **{name: settings["model"][name] for name in _SET_BY_TOKENIZER}}
    data = {name: getattr(known.data, name) for name in (*_OF_TOKENIZER, "source", "target", "max_length")}
    return {
        "model": model if sizes else settings["model"] | {name: model[name] for name in _ALIGNING},
        "data": settings["data"] | data,
        "decoding": known.decoding.model_dump(),
    }


def _require_same(settings: _Settings, known: Config, start: str) -> None:
    """UsageError that names every setting of the sizes and of the vocabulary that is not the model's."""
    fixed = {"model": [name for name in ModelConfig.model_fields if name not in (*_FREE, *_SET_BY_TOKENIZER)], "data": _OF_TOKENIZER}
    differing = [
        f"{group}.{name}={settings[group][name]} (the model has {getattr(getattr(known, group), name)})"
        for group, names in fixed.items()
        for name in names
        if settings[group][name] != getattr(getattr(known, group), name)
    ]
    if differing:
        raise UsageError(
            f"--from {start}: the model's sizes and vocabulary cannot change, but given are {', '.join(differing)}; leave these settings "
            f"out, and the preset {settings['preset']} where they are its own"
        )


def find_preset(name: object) -> Preset:
    """The preset of that name; UsageError naming the nearest and the known ones otherwise."""
    if not isinstance(name, str) or name not in PRESETS:
        nearest = difflib.get_close_matches(str(name).lower(), PRESETS, n=1)
        meant = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UsageError(f"unknown preset {name!r}{meant}; known: {', '.join(PRESETS)}")
    return PRESETS[name]


def describe_sizes(model: ModelConfig) -> str:
    """Layers and widths, for people."""
    layers = f"{model.encoder_layers} + {model.decoder_layers}"
    if model.architecture == "recurrent":
        return f"{layers} layers of {model.cell.upper()} cells, d_model {model.d_model}"
    if model.architecture == "convolutional":
        return f"{layers} convolutions of {model.kernel_width} positions, d_model {model.d_model}"
    if model.single:
        layers = str(model.decoder_layers if model.architecture == "decoder-only" else model.encoder_layers)
    return f"{layers} layers, d_model {model.d_model}, d_ff {model.d_ff}, {model.n_heads} heads"


def count_parameters(model: ModelConfig) -> int:
    """Trainable numbers of a model, from the sizes alone; shared matrices count once (Table 3's last column)."""
    if model.older:
        return _count_older(model)
    query, concatenated = model.n_heads * model.key_width, model.n_heads * model.value_width
    key, value = model.key_value_heads * model.key_width, model.key_value_heads * model.value_width
    attention = model.d_model * (query + key + value + concatenated)
    if model.attention_bias:
        attention += query + key + value + model.d_model
    if model.qk_norm:
        attention += 2 * model.key_width
    inner = 2 if model.activation == "swiglu" else 1  # matrices from d_model to d_ff
    feed_forward = (inner + 1) * model.d_model * model.d_ff
    if model.feed_forward_bias:
        feed_forward += inner * model.d_ff + model.d_model
    norm = model.d_model * (2 if model.norm == "layer" and model.norm_bias else 1)
    table = model.max_positions * model.d_model if model.positions == "learned" else 0
    bias = model.target_vocabulary if model.output_bias else 0
    if model.single:
        layers = model.decoder_layers if model.architecture == "decoder-only" else model.encoder_layers
        norms = 2 * layers + (model.norm_place == "pre" or model.final_norm) + model.embedding_norm
        square = model.d_model * (model.d_model + 1)
        around = model.output_transform * (square + norm) + model.pooler * square + model.token_types * model.d_model
        embeddings = model.target_vocabulary * model.d_model * (2 if model.tie == "none" else 1)
        return layers * (attention + feed_forward) + norms * norm + around + table + bias + embeddings
    encoder = model.encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = model.decoder_layers * (2 * attention + feed_forward + 3 * norm)
    final_norms = 2 * norm if model.norm_place == "pre" or model.final_norm else 0
    return encoder + decoder + final_norms + 2 * table + bias + _count_embeddings(model)


def _count_embeddings(model: ModelConfig) -> int:
    source, target = model.source_vocabulary * model.d_model, model.target_vocabulary * model.d_model
    return {"all": target, "decoder": source + target, "none": source + 2 * target}[model.tie]


def _count_older(model: ModelConfig) -> int:
    width, bias = model.d_model, model.target_vocabulary if model.output_bias else 0
    linear = width * width + width
    if model.architecture == "convolutional":
        kernel = 2 * width * (model.kernel_width * width + 1)
        layers = model.encoder_layers * kernel + model.decoder_layers * (kernel + 2 * linear)
        return layers + 4 * linear + 2 * model.max_positions * width + bias + _count_embeddings(model)
    gates = (4 if model.cell == "lstm" else 3) * width
    encoder = model.encoder_layers * gates * (width + width // 2 + 2)  # PyTorch's layers have two biases each
    cells = model.decoder_layers * gates * (2 * width + (1 if model.cell == "lstm" else 2))
    attention = 3 * width * width  # of the query and of what is attended to, with the cell's output beside it
    return encoder + cells + gates * width + model.decoder_layers * linear + attention + bias + _count_embeddings(model)
