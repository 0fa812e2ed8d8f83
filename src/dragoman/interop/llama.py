"""Llama and its plain relatives (Mistral): a decoder-only model with RMSNorm, rotary positions, SwiGLU and grouped heads."""

from collections.abc import Collection
from typing import Any

from dragoman.config import Config, ModelConfig
from dragoman.interop.document import Document
from dragoman.interop.layout import Settings, lost_dropouts, misfits
from dragoman.interop.names import Entry, Ignored, linear, norm, same

IGNORED = (Ignored(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "the frequencies of rotary positions, which are computed"),)
PREFIX = "model."
NAMES = {
    "d_model": "hidden_size", "d_ff": "intermediate_size", "n_heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
    "d_k": "head_dim", "d_v": "head_dim", "decoder_layers": "num_hidden_layers", "norm_epsilon": "rms_norm_eps",
    "rotary_base": "rope_theta", "max_positions": "max_position_embeddings", "source_vocabulary": "vocab_size",
    "target_vocabulary": "vocab_size", "pad": "pad_token_id",
}  # fmt: skip
"""Our settings, and theirs, where a message is about a number of theirs."""


def read_settings(document: Document, names: Collection[str]) -> Settings:
    """Our settings of a config.json; what is not supported, such as scaled rotary positions, becomes a problem of the document."""
    document.require("hidden_act", "silu", "swish", default="silu")
    width, heads, vocabulary = document.whole("hidden_size"), document.whole("num_attention_heads"), document.whole("vocab_size")
    key_width = document.whole("head_dim", width // max(heads, 1))
    mistral = document.get("model_type") == "mistral"
    most = document.whole("max_position_embeddings", 131_072 if mistral else 2048)
    window = document.values.get("sliding_window", 4096 if mistral else None)  # of Mistral null alone is none
    notices = []
    if isinstance(window, int) and 0 < window < most:
        notices.append(f"attention goes {window} positions back, so that is the longest sequence the model takes here, of {most} there")
        most = window
    model = {
        "architecture": "decoder-only",
        "d_model": width,
        "d_ff": document.whole("intermediate_size"),
        "n_heads": heads,
        "kv_heads": document.whole("num_key_value_heads", heads),
        **({"d_k": key_width, "d_v": key_width} if key_width * heads != width else {}),
        "decoder_layers": document.whole("num_hidden_layers"),
        "dropout": 0.0,
        "attention_dropout": document.number("attention_dropout", 0.0),
        "activation": "swiglu",
        "norm": "rms",
        "norm_place": "pre",
        "norm_epsilon": document.number("rms_norm_eps", 1e-6),
        "positions": "rotary",
        "rotary_base": _rotary_base(document),
        "attention_bias": document.flag("attention_bias", False),
        "feed_forward_bias": document.flag("mlp_bias", False),
        "scale_embedding": False,
        "initialization": "normal",
        "max_positions": most,
        "tie": "all" if document.flag("tie_word_embeddings", False) else "none",
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
    }
    return Settings(model, notices=notices)


def _rotary_base(document: Document) -> float:
    """The base of the rotary wavelengths; scaled ones are a problem that is named."""
    for key in ("rope_scaling", "rope_parameters"):
        given = document.get(key)
        if given is not None and not isinstance(given, dict):
            document.problems.append(f"{key}={given!r} is not supported; supported is an object of rope_type 'default'")
        if isinstance(given, dict):
            kind = given.get("rope_type", given.get("type", "default"))
            if kind != "default":
                document.problems.append(f"{key} of type {kind!r} is not supported; supported is 'default', rotary positions as they are")
            if given.get("partial_rotary_factor", 1) != 1:
                document.problems.append(f"{key}.partial_rotary_factor={given['partial_rotary_factor']!r} is not supported; supported is 1")
            if "rope_theta" in given:
                return Document(given).number("rope_theta", 10_000.0)
    document.require("partial_rotary_factor", 1, 1.0, None)
    return document.number("rope_theta", 10_000.0)


def name_table(config: ModelConfig) -> list[Entry]:
    """Which of our weights is which of theirs, there without ``model.`` before it."""
    tied, biased, inner = config.tie == "all", config.attention_bias, config.feed_forward_bias
    table = [same("embedding.weight", "embed_tokens.weight", *(("lm_head.weight",) if tied else ()))]
    for number in range(config.decoder_layers):
        layer = f"layers.{number}"
        for ours, theirs, heads in (("w_q", "q_proj", config.n_heads), ("w_k", "k_proj", config.key_value_heads), ("w_v", "v_proj", 0)):
            table += linear(f"{layer}.self_attn.{ours}", f"{layer}.self_attn.{theirs}", bias=biased, rotary=heads)
        table += linear(f"{layer}.self_attn.w_concat", f"{layer}.self_attn.o_proj", bias=biased)
        for ours, theirs in (("w_gate", "gate_proj"), ("w_in", "up_proj"), ("w_out", "down_proj")):
            table += linear(f"{layer}.feed_forward.{ours}", f"{layer}.mlp.{theirs}", bias=inner)
        table += norm(f"{layer}.norm1", f"{layer}.input_layernorm", bias=False)
        table += norm(f"{layer}.norm2", f"{layer}.post_attention_layernorm", bias=False)
    table += norm("final_norm", "norm", bias=False)
    return table if tied else [*table, same("output.weight", "lm_head.weight")]


def find_misfits(config: ModelConfig) -> list[str]:
    """The settings of one of our models that the format cannot express."""
    widths = [] if config.key_width == config.value_width else [f"model.d_v={config.value_width} (it has d_k, {config.key_width})"]
    return widths + misfits(
        config,
        {
            "activation": ["swiglu"],
            "norm": ["rms"],
            "norm_place": ["pre"],
            "positions": ["rotary"],
            "qk_norm": [False],
            "scale_embedding": [False],
            "output_bias": [False],
        },
    )


def write_settings(config: Config, *, bos: int, eos: int) -> tuple[dict[str, Any], list[str]]:
    """config.json of one of our models, and notices of what it cannot say."""
    model = config.model
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.target_vocabulary,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.decoder_layers,
        "num_attention_heads": model.n_heads,
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.key_width,
        "hidden_act": "silu",
        "max_position_embeddings": model.max_positions,
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base},
        "attention_bias": model.attention_bias,
        "attention_dropout": model.attention_dropout,
        "mlp_bias": model.feed_forward_bias,
        "tie_word_embeddings": model.tie == "all",
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": model.pad,
    }
    return values, lost_dropouts(model, "dropout", "activation_dropout")
