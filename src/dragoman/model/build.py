"""A model from its settings: the only place in model/ that reads `ModelConfig` (Section 3; initialisation as in the authors' code)."""

import torch
from torch import nn

from dragoman.config import ModelConfig
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.dropout import FastDropout
from dragoman.model.embedding import Embedding, LearnedPositions, PositionalEncoding
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward
from dragoman.model.transformer import Decoder, Encoder, Transformer


def build_model(config: ModelConfig, *, seed: int | None = None) -> Transformer:
    """The encoder-decoder of these settings with fresh weights, in training mode.

    Embeddings are N(0, d_model^-½) with a zero row for padding, other matrices Xavier uniform, biases zero. A ``seed`` fixes the weights
    and leaves PyTorch's random state on the CPU as it was.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        model = _assemble(config)
        initialise(model)
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
        self_attn=_attention(config),
        feed_forward=_feed_forward(config),
        norm_epsilon=config.norm_epsilon,
        pre_norm=config.norm_place == "pre",
    )


def _decoder_layer(config: ModelConfig) -> DecoderLayer:
    return DecoderLayer(
        config.d_model,
        self_attn=_attention(config),
        cross_attn=_attention(config),
        feed_forward=_feed_forward(config),
        dropout=FastDropout(config.dropout),
        norm_epsilon=config.norm_epsilon,
        pre_norm=config.norm_place == "pre",
    )


def _attention(config: ModelConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.n_heads,
        d_k=config.key_width,
        d_v=config.value_width,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
    )


def _feed_forward(config: ModelConfig) -> FeedForward:
    dropout = FastDropout(config.activation_dropout) if config.activation_dropout else 0.0
    return FeedForward(config.d_model, config.d_ff, dropout=dropout)


def _positions(config: ModelConfig) -> PositionalEncoding | LearnedPositions:
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_positions)
    return PositionalEncoding(config.d_model, config.max_positions, concatenated=config.positions == "sinusoidal-concat")


def _final_norm(config: ModelConfig) -> nn.LayerNorm | None:
    return nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if config.norm_place == "pre" else None
