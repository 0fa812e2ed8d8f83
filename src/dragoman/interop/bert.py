"""BERT and its plain relatives (MiniLM): an encoder-only model with token types, an embedding norm, and a head for masked words."""

from collections.abc import Collection
from typing import Any

from dragoman.config import Config, ModelConfig
from dragoman.interop.document import FOREIGN_ACTIVATIONS, Document
from dragoman.interop.layout import Settings, head_misfits, lost_dropouts, misfits
from dragoman.interop.names import Entry, Ignored, linear, norm, same

IGNORED = (
    Ignored(r"embeddings\.position_ids", "the numbers of the positions"),
    Ignored(r"cls\.seq_relationship\..*", "the head for next sentences"),
    Ignored(r"(classifier|qa_outputs)\..*", "the head of another task"),
)
PREFIX = "bert."
NAMES = {
    "d_model": "hidden_size", "d_ff": "intermediate_size", "n_heads": "num_attention_heads", "encoder_layers": "num_hidden_layers",
    "dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob", "norm_epsilon": "layer_norm_eps",
    "token_types": "type_vocab_size", "max_positions": "max_position_embeddings", "source_vocabulary": "vocab_size",
    "target_vocabulary": "vocab_size", "pad": "pad_token_id",
}  # fmt: skip
"""Our settings, and theirs, where a message is about a number of theirs."""
_TRANSFORM = "cls.predictions.transform.dense.weight"


def read_settings(document: Document, names: Collection[str]) -> Settings:
    """Our settings of a config.json, given the names of the folder's weights; what is not supported becomes a problem of the document."""
    document.require("position_embedding_type", "absolute", default="absolute")
    document.require("is_decoder", False, default=False)
    document.require("add_cross_attention", False, default=False)
    head = _TRANSFORM in names
    activation, vocabulary = document.activation("hidden_act", "gelu"), document.whole("vocab_size")
    if head and activation != "gelu":
        document.problems.append(
            f"hidden_act={document.get('hidden_act')!r} in the head for masked words is not supported; supported is 'gelu'"
        )
    model = {
        "architecture": "encoder-only",
        "d_model": document.whole("hidden_size"),
        "d_ff": document.whole("intermediate_size"),
        "n_heads": document.whole("num_attention_heads"),
        "encoder_layers": document.whole("num_hidden_layers"),
        "dropout": document.number("hidden_dropout_prob", 0.1),
        "attention_dropout": document.number("attention_probs_dropout_prob", 0.1),
        "activation": activation,
        "norm_epsilon": document.number("layer_norm_eps", 1e-12),
        "positions": "learned",
        "scale_embedding": False,
        "embedding_norm": True,
        "token_types": document.whole("type_vocab_size", 2),
        "output_transform": head,
        "pooler": "pooler.dense.weight" in names,
        "output_bias": "cls.predictions.bias" in names or "cls.predictions.decoder.bias" in names,
        "initialization": "normal",
        "max_positions": document.whole("max_position_embeddings", 512),
        "tie": "all" if document.flag("tie_word_embeddings", True) or not head else "none",
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary,
        "pad": document.whole("pad_token_id", 0),
    }
    notices = [] if head else ["the model has no head for masked words: use it for embeddings (dragoman embed), not to fill in words"]
    return Settings(model, notices=notices)


def name_table(config: ModelConfig) -> list[Entry]:
    """Which of our weights is which of theirs, there without ``bert.`` before it."""
    tied = config.tie == "all"
    table = [
        same("encoder.embedding.weight", "embeddings.word_embeddings.weight", *(("cls.predictions.decoder.weight",) if tied else ())),
        same("encoder.positions.weight", "embeddings.position_embeddings.weight"),
        *norm("encoder.embedding_norm", "embeddings.LayerNorm"),
    ]
    if config.token_types:
        table.append(same("encoder.token_types.weight", "embeddings.token_type_embeddings.weight"))
    for number in range(config.encoder_layers):
        ours, theirs = f"encoder.layers.{number}", f"encoder.layer.{number}"
        for mine, other in (("w_q", "query"), ("w_k", "key"), ("w_v", "value")):
            table += linear(f"{ours}.self_attn.{mine}", f"{theirs}.attention.self.{other}")
        table += linear(f"{ours}.self_attn.w_concat", f"{theirs}.attention.output.dense")
        table += norm(f"{ours}.norm1", f"{theirs}.attention.output.LayerNorm")
        table += linear(f"{ours}.feed_forward.0", f"{theirs}.intermediate.dense")
        table += linear(f"{ours}.feed_forward.2", f"{theirs}.output.dense")
        table += norm(f"{ours}.norm2", f"{theirs}.output.LayerNorm")
    if config.output_transform:
        table += linear("transform.0", "cls.predictions.transform.dense") + norm("transform.2", "cls.predictions.transform.LayerNorm")
    if config.output_bias:
        table.append(same("output_bias", "cls.predictions.bias", "cls.predictions.decoder.bias"))
    if not tied:
        table.append(same("output.weight", "cls.predictions.decoder.weight"))
    return table + (linear("pooler", "pooler.dense") if config.pooler else [])


def find_misfits(config: ModelConfig) -> list[str]:
    """The settings of one of our models that the format cannot express."""
    return head_misfits(config) + misfits(
        config,
        {
            "activation": ["gelu"] if config.output_transform else list(FOREIGN_ACTIVATIONS),
            "norm": ["layer"],
            "norm_place": ["post"],
            "final_norm": [False],
            "positions": ["learned"],
            "qk_norm": [False],
            "scale_embedding": [False],
            "embedding_norm": [True],
        },
    )


def write_settings(config: Config, *, bos: int, eos: int) -> tuple[dict[str, Any], list[str]]:
    """config.json of one of our models, and notices of what it cannot say."""
    model = config.model
    values = {
        "architectures": ["BertForMaskedLM" if model.output_transform else "BertModel"],
        "model_type": "bert",
        "vocab_size": model.target_vocabulary,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.encoder_layers,
        "num_attention_heads": model.n_heads,
        "intermediate_size": model.d_ff,
        "hidden_act": FOREIGN_ACTIVATIONS[model.activation],
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        "max_position_embeddings": model.max_positions,
        "type_vocab_size": max(model.token_types, 1),
        "layer_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tie == "all",
        "pad_token_id": model.pad,
    }
    lost = "BERT's head for masked words has a layer that this model has not (model.output_transform): the folder is for embeddings alone"
    return values, [*lost_dropouts(model, "activation_dropout"), *([] if model.output_transform else [lost])]
