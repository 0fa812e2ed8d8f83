"""MarianMT (OPUS-MT) and Pegasus: the paper's encoder-decoder with swish, sines before cosines and a bias on the logits.

The two differ in the place of the norms alone: Marian has them after each sub-layer, as the paper, Pegasus before, and one at the end.
"""

from collections.abc import Collection
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from dragoman.config import Config, ModelConfig
from dragoman.interop.document import FOREIGN_ACTIVATIONS, Document
from dragoman.interop.layout import Settings, head_misfits, misfits
from dragoman.interop.names import Entry, Ignored, linear, norm, same

IGNORED = (Ignored(r"model\.(encoder|decoder)\.embed_positions\.weight", "sinusoids, which are computed"),)
PREFIX = ""
NAMES = {
    "d_ff": "encoder_ffn_dim", "n_heads": "encoder_attention_heads", "max_positions": "max_position_embeddings", "beam": "num_beams",
    "alpha": "length_penalty", "source_vocabulary": "vocab_size", "target_vocabulary": "decoder_vocab_size", "pad": "pad_token_id",
}  # fmt: skip
"""Our settings, and theirs, where a message is about a number of theirs."""
_NOT_CARRIED = {"forced_bos_token_id": None, "min_length": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1}
EPSILON = 1e-5  # PyTorch's own, which these models have


def read_settings(document: Document, names: Collection[str]) -> Settings:
    """Our settings of a config.json, given the names of the folder's weights; what is not supported becomes a problem of the document."""
    pegasus = document.get("model_type") == "pegasus"
    vocabulary = document.whole("vocab_size")
    shared = pegasus or document.flag("share_encoder_decoder_embeddings", True)
    tied = document.flag("tie_word_embeddings", True)
    if shared and not tied:
        document.problems.append("tie_word_embeddings=False with shared embeddings is not supported; supported is True")
    for one, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if document.whole(one) != document.whole(other):
            document.problems.append(f"{one}={document.get(one)} and {other}={document.get(other)} differ, which is not supported")
    document.require("normalize_before", *(True, False, None) if pegasus else (False, None))
    document.require("normalize_embedding", False, None)
    document.require("static_position_embeddings", True, None)
    model = {
        "d_model": document.whole("d_model"),
        "d_ff": document.whole("encoder_ffn_dim"),
        "n_heads": document.whole("encoder_attention_heads"),
        "encoder_layers": document.whole("encoder_layers"),
        "decoder_layers": document.whole("decoder_layers"),
        "dropout": document.number("dropout", 0.1),
        "attention_dropout": document.number("attention_dropout", 0.0),
        "activation_dropout": document.number("activation_dropout", 0.0),
        "activation": document.activation("activation_function", "gelu"),
        "norm_place": "pre" if pegasus else "post",
        "norm_epsilon": EPSILON,
        "positions": "sinusoidal-concat",
        "scale_embedding": document.flag("scale_embedding", False),
        "output_bias": "final_logits_bias" in names,
        "max_positions": document.whole("max_position_embeddings", 1024),
        "tie": "all" if shared else "decoder" if tied else "none",
        "source_vocabulary": vocabulary,
        "target_vocabulary": vocabulary if shared else document.whole("decoder_vocab_size", vocabulary),
        "pad": document.whole("pad_token_id", 0 if pegasus else 58100),
    }
    return Settings(model, *_search(document))


def _search(document: Document) -> tuple[dict[str, Any], list[str]]:
    """Decoding settings of the folder's own search, and a notice where they mean another thing there."""
    beam, power = max(document.whole("num_beams", 1), 1), document.number("length_penalty", 1.0)
    alpha = min(max(power, -10.0), 10.0)
    notices = []
    if beam > 1 and power:
        notices.append(
            f"the model's own search divides a score by n^{power:g} for n tokens, Dragoman's by ((5 + n) / 6)^alpha with alpha {alpha:g}: "
            "outputs of a beam may differ, greedy ones do not"
        )
    more = {name: value for name, usual in _NOT_CARRIED.items() if (value := document.get(name)) not in (None, usual)}
    if more:
        said = ", ".join(f"{name}={value}" for name, value in more.items())
        notices.append(f"the model's own search also has {said}, which the search here does not get from the folder")
    return {"beam": beam, "alpha": alpha, "extra_length": 50}, notices


def name_table(config: ModelConfig) -> list[Entry]:
    """Which of our weights is which of theirs."""
    table = [*_embeddings(config)]
    if config.output_bias:
        table.append(Entry(("output_bias",), "final_logits_bias", row=True))
    for side, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        table += chain.from_iterable(_layer(side, f"{side}.layers.{number}") for number in range(count))
        if config.norm_place == "pre":
            table += norm(f"{side}.final_norm", f"model.{side}.layer_norm")
    return table


def _embeddings(config: ModelConfig) -> list[Entry]:
    source, target = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    if config.tie == "all":
        return [same("encoder.embedding.weight", "model.shared.weight", source, target, "lm_head.weight")]
    entries = [same("encoder.embedding.weight", source, "model.shared.weight")]
    if config.tie == "decoder":
        return [*entries, same("decoder.embedding.weight", target, "lm_head.weight")]
    return [*entries, same("decoder.embedding.weight", target), same("output.weight", "lm_head.weight")]


def _layer(side: str, ours: str) -> list[Entry]:
    theirs = f"model.{ours}"
    blocks = [("self_attn", "self_attn", "norm1")] + ([("cross_attn", "encoder_attn", "norm2")] if side == "decoder" else [])
    table = []
    for block, foreign, normed in blocks:
        for mine, other in (("w_q", "q_proj"), ("w_k", "k_proj"), ("w_v", "v_proj"), ("w_concat", "out_proj")):
            table += linear(f"{ours}.{block}.{mine}", f"{theirs}.{foreign}.{other}")
        table += norm(f"{ours}.{normed}", f"{theirs}.{foreign}_layer_norm")
    table += linear(f"{ours}.feed_forward.0", f"{theirs}.fc1") + linear(f"{ours}.feed_forward.2", f"{theirs}.fc2")
    return table + norm(f"{ours}.norm{len(blocks) + 1}", f"{theirs}.final_layer_norm")


def find_misfits(config: ModelConfig) -> list[str]:
    """The settings of one of our models that the format cannot express."""
    pre = config.norm_place == "pre"
    return head_misfits(config) + misfits(
        config,
        {
            "activation": list(FOREIGN_ACTIVATIONS),
            "norm": ["layer"],
            "norm_place": ["post", "pre"],
            "final_norm": [False],
            "positions": ["sinusoidal", "sinusoidal-concat"],
            "qk_norm": [False],
            "tie": ["all"] if pre else ["all", "decoder", "none"],
        },
    )


def ready(config: ModelConfig, weights: dict[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The same model with all sines before all cosines: every vector of width d_model in another order, which changes no output."""
    if config.positions != "sinusoidal":
        return config, weights
    order = torch.cat((torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)))
    inner = ("w_q.", "w_k.", "w_v.", "feed_forward.0.")  # from width d_model
    turned = {}
    for name, weight in weights.items():
        if name.endswith(("embedding.weight", "output.weight")) or (any(part in name for part in inner) and weight.dim() == 2):
            turned[name] = weight[:, order]
        elif any(part in name for part in inner) or name == "output_bias":
            turned[name] = weight
        else:  # norms, and what ends a sub-layer
            turned[name] = weight[order]
    return ModelConfig(**config.model_dump() | {"positions": "sinusoidal-concat"}), turned


def write_settings(config: Config, *, bos: int, eos: int) -> tuple[dict[str, Any], list[str]]:
    """config.json of one of our models, and notices of what it cannot say."""
    model = config.model
    pre = model.norm_place == "pre"
    values = {
        "architectures": ["PegasusForConditionalGeneration" if pre else "MarianMTModel"],
        "model_type": "pegasus" if pre else "marian",
        "vocab_size": model.source_vocabulary,
        "decoder_vocab_size": model.target_vocabulary,
        "max_position_embeddings": model.max_positions,
        "d_model": model.d_model,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "encoder_attention_heads": model.n_heads,
        "decoder_attention_heads": model.n_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": FOREIGN_ACTIVATIONS[model.activation],
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "scale_embedding": model.scale_embedding,
        "share_encoder_decoder_embeddings": model.tie == "all",
        "tie_word_embeddings": model.tie != "none",
        "pad_token_id": model.pad,
        "eos_token_id": eos,
        "bos_token_id": bos,
        "decoder_start_token_id": bos,
        "forced_eos_token_id": eos,
        "is_encoder_decoder": True,
        "num_hidden_layers": model.encoder_layers,
    }
    notices = []
    if model.norm_epsilon != EPSILON:
        notices.append(f"the norms' ε is {EPSILON:g} there and {model.norm_epsilon:g} here, which is in the difference of logits")
    if config.decoding.alpha:
        notices.append(
            f"length_penalty there divides a score by n^{config.decoding.alpha:g} for n tokens, alpha here by ((5 + n) / 6)^alpha: outputs "
            "of a beam may differ, greedy ones do not"
        )
    return values, notices


def write_generation(config: Config, *, banned: list[int], bos: int, eos: int) -> dict[str, Any]:
    """generation_config.json: the search of the bundle as far as it can be said."""
    return {
        "decoder_start_token_id": bos,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": config.model.pad,
        "forced_eos_token_id": eos,
        "suppress_tokens": banned,
        "num_beams": config.decoding.beam,
        "length_penalty": config.decoding.alpha,
        "max_length": config.model.max_positions,
    }
