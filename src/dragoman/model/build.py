"""A model from its settings: the only place in model/ that reads `ModelConfig` (Section 3; initialisation as in the authors' code)."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from dragoman.config import ModelConfig
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.convolutional import ConvolutionalDecoder, ConvolutionalDecoderLayer, ConvolutionalEncoder, GatedConvolution
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
from dragoman.model.linear import Linear
from dragoman.model.recurrent import GRUCell, LSTMCell, RecurrentDecoder, RecurrentEncoder
from dragoman.model.transformer import Decoder, Encoder, EncoderDecoder, LanguageModel, MaskedLanguageModel, Model, Transformer

_Any = TypeVar("_Any", Transformer, LanguageModel, MaskedLanguageModel)


def build_model(config: ModelConfig, *, seed: int | None = None) -> Model:
    """The model of these settings with fresh weights, in training mode.

    Embeddings are N(0, d_model^-½) with a zero row for padding, other matrices Xavier uniform, biases zero; with DeepNorm some of them
    are scaled by its β. A ``seed`` fixes the weights and leaves PyTorch's random state on the CPU as it was.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        if config.architecture == "decoder-only":
            return _initialised(_language_model(config), config)
        if config.architecture == "encoder-only":
            return _initialised(_masked_language_model(config), config)
        if config.architecture == "recurrent":
            return _recurrent(config)
        if config.architecture == "convolutional":
            return _convolutional(config)
        return _initialised(_encoder_decoder(config), config)


def initialise(model: nn.Module) -> None:
    """Xavier uniform for every linear layer's matrix, zero for its bias; embeddings of tokens draw their own values when made."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def _initialised(model: _Any, config: ModelConfig) -> _Any:
    _share_tables(model)
    initialise(model)
    if config.initialization == "normal":
        _draw_normal(model, ends=math.sqrt(2 * config.decoder_layers) if isinstance(model, LanguageModel) else 1.0)
    if config.norm_place == "deepnorm":
        for layers, deepnorm in _stacks(model, config):
            _shrink(layers, deepnorm.beta)
    return model


def _share_tables(model: nn.Module) -> None:
    """One table of positions for all parts and layers, which have the same; a device that the model is moved to has one for each."""
    for kind in (PositionalEncoding, RotaryPositions):
        alike = [module for module in model.modules() if isinstance(module, kind)]
        for module in alike[1:]:
            module.pe = alike[0].pe


def _stacks(model: nn.Module, config: ModelConfig) -> "list[tuple[nn.Module, _DeepNorm]]":
    if isinstance(model, LanguageModel):
        return [(model.layers, _deepnorm_alone(config.decoder_layers))]
    if isinstance(model, MaskedLanguageModel):
        return [(model.encoder.layers, _deepnorm_alone(config.encoder_layers))]
    assert isinstance(model, Transformer)
    return [(model.encoder.layers, _deepnorm_encoder(config)), (model.decoder.layers, _deepnorm_decoder(config))]


@torch.no_grad()
def _draw_normal(model: nn.Module, *, ends: float) -> None:
    """N(0, 0.02²) for every matrix and embedding, with zeros for padding; the matrices that end a sub-layer are divided by ``ends``."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            last = name.rpartition(".")[2] in ("w_concat", "w_out") or name.endswith("feed_forward.2")
            nn.init.normal_(module.weight, std=0.02 / ends if last else 0.02)
        elif isinstance(module, Embedding | LearnedPositions | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Embedding):
            module.weight[module.pad].zero_()


def _embeddings(config: ModelConfig) -> tuple[Embedding, Embedding, Embedding]:
    """Of the source, of the target, and the output matrix."""
    embedding = partial(Embedding, d_model=config.d_model, pad=config.pad, scaled=config.scale_embedding)
    target = embedding(config.target_vocabulary)
    source = target if config.tie == "all" or config.single else embedding(config.source_vocabulary)
    return source, target, embedding(config.target_vocabulary) if config.tie == "none" else target


def _output_bias(config: ModelConfig) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(config.target_vocabulary)) if config.output_bias else None


def _language_model(config: ModelConfig) -> LanguageModel:
    _, embedding, output = _embeddings(config)
    return LanguageModel(
        embedding=embedding,
        positions=_positions(config),
        layers=(_encoder_layer(config, _deepnorm_alone(config.decoder_layers)) for _ in range(config.decoder_layers)),
        dropout=FastDropout(config.dropout),
        output=output,
        max_positions=config.max_positions,
        final_norm=_final_norm(config),
        output_bias=_output_bias(config),
    )


def _masked_language_model(config: ModelConfig) -> MaskedLanguageModel:
    _, embedding, output = _embeddings(config)
    norm, width = _norm_of(config), config.d_model
    encoder = Encoder(
        embedding=embedding,
        positions=_positions(config),
        layers=(_encoder_layer(config, _deepnorm_alone(config.encoder_layers)) for _ in range(config.encoder_layers)),
        dropout=FastDropout(config.dropout),
        final_norm=_final_norm(config),
        token_types=nn.Embedding(config.token_types, width) if config.token_types else None,
        embedding_norm=norm(width) if config.embedding_norm else None,
    )
    return MaskedLanguageModel(
        encoder=encoder,
        output=output,
        max_positions=config.max_positions,
        transform=nn.Sequential(Linear(width, width), nn.GELU(), norm(width)) if config.output_transform else None,
        output_bias=_output_bias(config),
        pooler=Linear(width, width) if config.pooler else None,
    )


def _encoder_decoder(config: ModelConfig) -> Transformer:
    source, target, output = _embeddings(config)
    encoder = Encoder(
        embedding=source,
        positions=_positions(config),
        layers=(_encoder_layer(config, _deepnorm_encoder(config)) for _ in range(config.encoder_layers)),
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
    bias = _output_bias(config)
    return Transformer(encoder=encoder, decoder=decoder, output=output, max_positions=config.max_positions, output_bias=bias)


def _recurrent(config: ModelConfig) -> EncoderDecoder:
    """PyTorch's initialisation of recurrent layers, U(±1/√width), in the decoder too; and a forget gate that begins by keeping."""
    source, target, output = _embeddings(config)
    width, dropout = config.d_model, FastDropout(config.dropout)
    layer, cell = (nn.LSTM, LSTMCell) if config.cell == "lstm" else (nn.GRU, GRUCell)
    read = (layer(width, width // 2, bidirectional=True, batch_first=True) for _ in range(config.encoder_layers))
    encoder = RecurrentEncoder(embedding=source, layers=read, dropout=dropout)
    decoder = RecurrentDecoder(embedding=target, cells=(cell(width, width) for _ in range(config.decoder_layers)), dropout=dropout)
    initialise(decoder)
    for part in decoder.layers:
        for parameter in part.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)
    if config.cell == "lstm":
        _open_forget_gates(encoder, decoder)
    bias = _output_bias(config)
    return EncoderDecoder(encoder=encoder, decoder=decoder, output=output, max_positions=config.max_positions, output_bias=bias)


@torch.no_grad()
def _open_forget_gates(encoder: RecurrentEncoder, decoder: RecurrentDecoder) -> None:
    """1 more for the biases of the second of four gates (Gers et al. 2000; Jozefowicz et al. 2015)."""
    biases = [bias for name, bias in encoder.layers.named_parameters() if "bias_ih" in name]
    biases += [bias for name, bias in decoder.layers.named_parameters() if name.endswith("w_input.bias")]
    for bias in biases:
        bias.view(4, -1)[1] += 1


def _convolutional(config: ModelConfig) -> EncoderDecoder:
    """Initialised so that variance stays (Gehring et al. 2017, 3.5): a gate lets a quarter of it through, dropout adds to it."""
    source, target, output = _embeddings(config)
    width, kernel = config.d_model, config.kernel_width
    encoder = ConvolutionalEncoder(
        embedding=source,
        positions=LearnedPositions(width, config.max_positions),
        layers=(GatedConvolution(width, kernel) for _ in range(config.encoder_layers)),
        dropout=FastDropout(config.dropout),
        attentions=config.decoder_layers,
    )
    decoder = ConvolutionalDecoder(
        embedding=target,
        positions=LearnedPositions(width, config.max_positions),
        layers=(ConvolutionalDecoderLayer(width, kernel) for _ in range(config.decoder_layers)),
        dropout=FastDropout(config.dropout),
    )
    bias = _output_bias(config)
    model = EncoderDecoder(encoder=encoder, decoder=decoder, output=output, max_positions=config.max_positions, output_bias=bias)
    initialise(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            gain = 4 * (1 - config.dropout) if name.endswith("kernel") else 1.0
            nn.init.normal_(module.weight, std=(gain / module.in_features) ** 0.5)
    return model


def _encoder_layer(config: ModelConfig, deepnorm: "_DeepNorm") -> EncoderLayer:
    return EncoderLayer(
        config.d_model,
        config.n_heads,
        config.d_ff,
        FastDropout(config.dropout),
        self_attn=_self_attention(config),
        feed_forward=_feed_forward(config),
        norm=_norm_of(config),
        around=_around(config, deepnorm),
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
        attention.rotary = RotaryPositions(config.key_width, config.max_positions, base=config.rotary_base)
    return attention


def _feed_forward(config: ModelConfig) -> nn.Module:
    dropout = FastDropout(config.activation_dropout) if config.activation_dropout else 0.0
    if config.activation == "swiglu":
        return GatedFeedForward(config.d_model, config.d_ff, dropout=dropout, bias=config.feed_forward_bias)
    activations = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu-tanh": nn.GELU("tanh"), "swish": nn.SiLU()}
    return FeedForward(
        config.d_model, config.d_ff, dropout=dropout, activation=activations[config.activation], bias=config.feed_forward_bias
    )


def _positions(config: ModelConfig) -> PositionalEncoding | LearnedPositions | NoPositions:
    if config.positions == "rotary":
        return NoPositions()
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_positions)
    return PositionalEncoding(config.d_model, config.max_positions, concatenated=config.positions == "sinusoidal-concat")


def _norm_of(config: ModelConfig) -> Callable[[int], nn.Module]:
    if config.norm == "rms":
        return partial(nn.RMSNorm, eps=config.norm_epsilon)
    return partial(nn.LayerNorm, eps=config.norm_epsilon, bias=config.norm_bias)


def _final_norm(config: ModelConfig) -> nn.Module | None:
    return _norm_of(config)(config.d_model) if config.norm_place == "pre" or config.final_norm else None


class _DeepNorm(NamedTuple):
    """DeepNorm's α, which weighs the input of a sub-layer, and β, the gain of the matrices on its straight path."""

    alpha: float
    beta: float


def _deepnorm_encoder(config: ModelConfig) -> _DeepNorm:
    depth = config.encoder_layers**4 * config.decoder_layers
    return _DeepNorm(0.81 * depth ** (1 / 16), 0.87 * depth ** (-1 / 16))


def _deepnorm_decoder(config: ModelConfig) -> _DeepNorm:
    return _DeepNorm((3 * config.decoder_layers) ** (1 / 4), (12 * config.decoder_layers) ** (-1 / 4))


def _deepnorm_alone(layers: int) -> _DeepNorm:
    """Of a model of one stack."""
    return _DeepNorm((2 * layers) ** (1 / 4), (8 * layers) ** (-1 / 4))


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
