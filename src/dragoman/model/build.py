"""A model from its settings: the only place in model/ that reads `ModelConfig` (Section 3; initialisation as in the authors' code)."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from dragoman.config import ModelConfig
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.dropout import FastDropout
from dragoman.model.embedding import Embedding, LearnedPositions, NoPositions, PositionalEncoding, RotaryPositions
from dragoman.model.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    Residual,
    deepnorm_residual,
    pre_norm_residual,
    residual,
)
from dragoman.model.transformer import Decoder, Encoder, Transformer


def build_model(config: ModelConfig, *, seed: int | None = None) -> Transformer:
    """The encoder-decoder of these settings with fresh weights, in training mode.

    Embeddings are N(0, d_model^-½) with a zero row for padding, other matrices Xavier uniform, biases zero; with DeepNorm some of them
    are scaled by its β. A ``seed`` fixes the weights and leaves PyTorch's random state on the CPU as it was.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        model = _assemble(config)
        initialise(model)
        if config.norm_place == "deepnorm":
            _shrink(model.encoder.layers, _deepnorm_encoder(config).beta)
            _shrink(model.decoder.layers, _deepnorm_decoder(config).beta)
    return model


def initialise(model: nn.Module) -> None:
    """Xavier uniform for every linear layer's matrix, zero for its bias; embeddings draw their own values when made."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _assemble(config: ModelConfig) -> Transformer:
    target = Embedding(config.target_vocabulary, config.d_model, pad=config.pad)
    source = target if config.tie == "all" else Embedding(config.source_vocabulary, config.d_model, pad=config.pad)
    output = Embedding(config.target_vocabulary, config.d_model, pad=config.pad) if config.tie == "none" else target
    encoder = Encoder(
        embedding=source,
        positions=_positions(config),
        layers=(_encoder_layer(config) for _ in range(config.encoder_layers)),
        dropout=FastDropout(config.dropout),
        final_norm=_final_norm(config),
    )
    decoder = Decoder(
        embedding=target,
        positions=_positions(config),
        layers=(_decoder_layer(config) for _ in range(config.decoder_layers)),
        dropout=FastDropout(config.dropout),
        final_norm=_final_norm(config),
    )
    return Transformer(encoder=encoder, decoder=decoder, output=output, max_positions=config.max_positions)


def _encoder_layer(config: ModelConfig) -> EncoderLayer:
    return EncoderLayer(
        config.d_model,
        config.n_heads,
        config.d_ff,
        FastDropout(config.dropout),
        self_attn=_self_attention(config),
        feed_forward=_feed_forward(config),
        norm=_norm_of(config),
        around=_around(config, _deepnorm_encoder(config)),
    )


def _decoder_layer(config: ModelConfig) -> DecoderLayer:
    return DecoderLayer(
        config.d_model,
        self_attn=_self_attention(config),
        cross_attn=_attention(config),
        feed_forward=_feed_forward(config),
        dropout=FastDropout(config.dropout),
        norm=_norm_of(config),
        around=_around(config, _deepnorm_decoder(config)),
    )


def _attention(config: ModelConfig) -> MultiHeadAttention:
    attention = MultiHeadAttention(
        config.d_model,
        config.n_heads,
        d_k=config.key_width,
        d_v=config.value_width,
        kv_heads=config.key_value_heads,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
    )
    if config.qk_norm:
        attention.query_norm = nn.RMSNorm(config.key_width, eps=config.norm_epsilon)
        attention.key_norm = nn.RMSNorm(config.key_width, eps=config.norm_epsilon)
    return attention


def _self_attention(config: ModelConfig) -> MultiHeadAttention:
    attention = _attention(config)
    if config.positions == "rotary":
        attention.rotary = RotaryPositions(config.key_width, config.max_positions)
    return attention


def _feed_forward(config: ModelConfig) -> nn.Module:
    dropout = FastDropout(config.activation_dropout) if config.activation_dropout else 0.0
    if config.activation == "swiglu":
        return GatedFeedForward(config.d_model, config.d_ff, dropout=dropout)
    activation = nn.GELU() if config.activation == "gelu" else nn.ReLU()
    return FeedForward(config.d_model, config.d_ff, dropout=dropout, activation=activation)


def _positions(config: ModelConfig) -> PositionalEncoding | LearnedPositions | NoPositions:
    if config.positions == "rotary":
        return NoPositions()
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_positions)
    return PositionalEncoding(config.d_model, config.max_positions, concatenated=config.positions == "sinusoidal-concat")


def _norm_of(config: ModelConfig) -> Callable[[int], nn.Module]:
    kind: type[nn.LayerNorm] | type[nn.RMSNorm] = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return partial(kind, eps=config.norm_epsilon)


def _final_norm(config: ModelConfig) -> nn.Module | None:
    return _norm_of(config)(config.d_model) if config.norm_place == "pre" else None


class _DeepNorm(NamedTuple):
    """DeepNorm's α, which weighs the input of a sub-layer, and β, the gain of the matrices on its straight path."""

    alpha: float
    beta: float


def _deepnorm_encoder(config: ModelConfig) -> _DeepNorm:
    depth = config.encoder_layers**4 * config.decoder_layers
    return _DeepNorm(0.81 * depth ** (1 / 16), 0.87 * depth ** (-1 / 16))


def _deepnorm_decoder(config: ModelConfig) -> _DeepNorm:
    return _DeepNorm((3 * config.decoder_layers) ** (1 / 4), (12 * config.decoder_layers) ** (-1 / 4))


def _around(config: ModelConfig, deepnorm: _DeepNorm) -> Residual:
    if config.norm_place == "deepnorm":
        return deepnorm_residual(deepnorm.alpha)
    return pre_norm_residual if config.norm_place == "pre" else residual


@torch.no_grad()
def _shrink(layers: nn.Module, beta: float) -> None:
    """Xavier with gain β for what a sub-layer's output is a product of; queries, keys and gates only weigh it and keep gain 1."""
    for name, module in layers.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] not in ("w_q", "w_k", "w_gate"):
            module.weight.mul_(beta)
