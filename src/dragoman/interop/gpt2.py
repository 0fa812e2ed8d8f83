"""GPT-2: a decoder-only model with learned positions, norms before the sub-layers and fused, transposed matrices."""

from collections.abc import Collection
from typing import Any

from dragoman.config import Config, ModelConfig
from dragoman.interop.document import FOREIGN_ACTIVATIONS, Document
from dragoman.interop.layout import Settings, head_misfits, lost_dropouts, misfits
from dragoman.interop.names import Entry, Ignored, fused, linear, norm, same

IGNORED = (
    Ignored(r"h\.\d+\.attn\.(masked_bias|bias)", "the causal mask, which is computed"),
    Ignored(r"(score|classifier|qa_outputs|multiple_choice_head\.summary)\..*", "the head of another task"),
)
PREFIX = "transformer."
NAMES = {
    "d_model": "n_embd", "d_ff": "n_inner", "n_heads": "n_head", "decoder_layers": "n_layer", "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop", "norm_epsilon": "layer_norm_epsilon", "max_positions": "n_positions",
    "source_vocabulary": "vocab_size", "target_vocabulary": "vocab_size", "pad": "pad_token_id",
}  # fmt: skip
"""Our settings, and theirs, where a message is about a number of theirs."""


def read_settings(document: Document, names: Collection[str]) -> Settings:
    """Our settings of a config.json; what is not supported becomes a problem of the document."""
    document.require("scale_attn_weights", True, default=True)
    document.require("scale_attn_by_inverse_layer_idx", False, default=False)
    document.require("add_cross_attention", False, default=False)
    width, vocabulary = document.whole("n_embd"), document.whole("vocab_size")
    model = {
        "architecture": "decoder-only",
        "d_model": width,
        "d_ff": document.whole("n_inner", 4 * width),
        "n_heads": document.whole("n_head"),
        "decoder_layers": document.whole("n_layer"),
        "dropout": document.number("resid_pdrop", 0.1),
        "attention_dropout": document.number("attn_pdrop", 0.1),
        "activation": document.activation("activation_function", "gelu_new"),
        "norm_place": "pre",
        "norm_epsilon": document.number("layer_norm_epsilon", 1e-5),
        "positions": "learned",
        "scale_embedding": False,
        "initialization": "normal",
        "max_positions": document.whole("n_positions", 1024),
        "tie": "all" if document.flag("tie_word_embeddings", True) else "none",
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
    }
    return Settings(model)


def name_table(config: ModelConfig) -> list[Entry]:
    """Which of our weights is which of theirs, there without ``transformer.`` before it."""
    tied = config.tie == "all"
    table = [same("embedding.weight", "wte.weight", *(("lm_head.weight",) if tied else ())), same("positions.weight", "wpe.weight")]
    for number in range(config.decoder_layers):
        ours, theirs = f"layers.{number}", f"h.{number}"
        attention = [f"{ours}.self_attn.{name}" for name in ("w_q", "w_k", "w_v")]
        table += norm(f"{ours}.norm1", f"{theirs}.ln_1") + norm(f"{ours}.norm2", f"{theirs}.ln_2")
        table += fused(attention, f"{theirs}.attn.c_attn", transposed=True)
        table += linear(f"{ours}.self_attn.w_concat", f"{theirs}.attn.c_proj", transposed=True)
        table += linear(f"{ours}.feed_forward.0", f"{theirs}.mlp.c_fc", transposed=True)
        table += linear(f"{ours}.feed_forward.2", f"{theirs}.mlp.c_proj", transposed=True)
    table += norm("final_norm", "ln_f")
    return table if tied else [*table, same("output.weight", "lm_head.weight")]


def find_misfits(config: ModelConfig) -> list[str]:
    """The settings of one of our models that the format cannot express."""
    return head_misfits(config) + misfits(
        config,
        {
            "activation": list(FOREIGN_ACTIVATIONS),
            "norm": ["layer"],
            "norm_place": ["pre"],
            "positions": ["learned"],
            "qk_norm": [False],
            "scale_embedding": [False],
            "output_bias": [False],
        },
    )


def write_settings(config: Config, *, bos: int, eos: int) -> tuple[dict[str, Any], list[str]]:
    """config.json of one of our models, and notices of what it cannot say."""
    model = config.model
    values = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.target_vocabulary,
        "n_positions": model.max_positions,
        "n_embd": model.d_model,
        "n_layer": model.decoder_layers,
        "n_head": model.n_heads,
        "n_inner": model.d_ff,
        "activation_function": FOREIGN_ACTIVATIONS[model.activation],
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
        "layer_norm_epsilon": model.norm_epsilon,
        "tie_word_embeddings": model.tie == "all",
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": model.pad,
    }
    return values, lost_dropouts(model, "activation_dropout")
