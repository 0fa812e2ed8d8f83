"""What a model costs, from its sizes alone: operations and bytes; Table 1 (Section 4) and the arithmetic of Table 2 (Section 6.1).

Operations are the multiplications and additions of matrix products, two for each pair of them, padding left out. What is done number by
number (softmax, norms, activations, an embedding's look-up) is not counted: it is small beside them.
"""

import math
from typing import NamedTuple

from dragoman.config import Config, ModelConfig, TrainingConfig
from dragoman.presets import count_parameters

SUSTAINED_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
"""What Section 6.1 counts for each GPU, in float32."""
_WIDE = 4  # bytes of a float32


class Work(NamedTuple):
    """Multiplications of a forward pass, each with its addition, for a pair of S source and T target tokens (or S = 0).

    ``source`` comes S times, ``target`` T times, ``once`` once; ``source_pairs`` S² times, ``between`` S·T times, ``target_pairs`` T².
    """

    source: int = 0
    target: int = 0
    once: int = 0
    source_pairs: int = 0
    between: int = 0
    target_pairs: int = 0


def forward_work(model: ModelConfig) -> Work:
    """The multiplications of a forward pass up to the logits of every target position."""
    if model.architecture == "recurrent":
        return _recurrent(model)
    if model.architecture == "convolutional":
        return _convolutional(model)
    heads = model.n_heads * (model.key_width + model.value_width)
    if model.architecture == "decoder-only":
        return Work(target=model.decoder_layers * _layer(model) + _output(model), target_pairs=model.decoder_layers * heads)
    if model.architecture == "encoder-only":
        transform = model.d_model**2 if model.output_transform else 0
        return Work(target=model.encoder_layers * _layer(model) + transform + _output(model), target_pairs=model.encoder_layers * heads)
    query, key, value, concatenated = _projections(model)
    memory = model.decoder_layers * (key + value)  # projected once for each source token
    return Work(
        source=model.encoder_layers * _layer(model) + memory,
        target=model.decoder_layers * (_layer(model) + query + concatenated) + _output(model),
        source_pairs=model.encoder_layers * heads,
        between=model.decoder_layers * heads,
        target_pairs=model.decoder_layers * heads,
    )


def _projections(model: ModelConfig) -> tuple[int, int, int, int]:
    """Weights of W^Q, W^K, W^V and W^O of all heads (3.2.2)."""
    query, concatenated = model.n_heads * model.key_width, model.n_heads * model.value_width
    key, value = model.key_value_heads * model.key_width, model.key_value_heads * model.value_width
    return query * model.d_model, key * model.d_model, value * model.d_model, concatenated * model.d_model


def _layer(model: ModelConfig) -> int:
    """Weights of self-attention and feed-forward."""
    return sum(_projections(model)) + (3 if model.activation == "swiglu" else 2) * model.d_ff * model.d_model


def _output(model: ModelConfig) -> int:
    return model.d_model * model.target_vocabulary


def _recurrent(model: ModelConfig) -> Work:
    square, gates = model.d_model**2, 4 if model.cell == "lstm" else 3
    return Work(
        source=model.encoder_layers * gates * 3 * square // 2,  # both directions are half as wide, and read an input of full width
        target=(2 * model.decoder_layers + 1) * gates * square + 3 * square + _output(model),
        once=model.decoder_layers * square,
        between=2 * model.d_model,
    )


def _convolutional(model: ModelConfig) -> Work:
    square, kernel = model.d_model**2, 2 * model.kernel_width * model.d_model**2
    return Work(
        source=model.encoder_layers * kernel + 2 * square,
        target=model.decoder_layers * (kernel + 2 * square) + 2 * square + _output(model),
        between=model.decoder_layers * 2 * model.d_model,
    )


def forward_flops(model: ModelConfig, *, source: float, target: float) -> float:
    """Operations of a forward pass of one pair with so many tokens; those of a model of one sequence are ``target``."""
    work = forward_work(model)
    pairs = work.source_pairs * source * source + work.between * source * target + work.target_pairs * target * target
    return 2 * (work.source * source + work.target * target + work.once + pairs)


def training_flops(model: ModelConfig, *, source: float, target: float) -> float:
    """Operations of a training step for one pair: the backward pass makes two products of each one of the forward pass."""
    return 3 * forward_flops(model, source=source, target=target)


def decoding_flops(model: ModelConfig, *, source: int, target: int) -> float:
    """Operations of greedy decoding with a cache: as a forward pass, but a position never meets those after it."""
    work = forward_work(model)
    if model.architecture == "encoder-only":
        raise ValueError("a model that is encoder-only does not decode")
    return forward_flops(model, source=source, target=target) - 2 * work.target_pairs * target * (target - 1) // 2


def operations_of_pair(model: ModelConfig, length: float) -> tuple[float, float]:
    """Of a training step, for one pair of sentences of so many tokens each: of the weights, and of attention itself."""
    work = forward_work(model)
    weights = 6 * length * (work.source + work.target) + 6 * work.once
    return weights, 6 * length * length * (work.source_pairs + work.between + work.target_pairs)


def total_operations(config: Config, length: float) -> float:
    """Of a whole training on sentences of that mean length: training.max_steps updates of training.batch_tokens tokens a side."""
    pairs = config.training.max_steps * config.training.batch_budget / length
    return pairs * sum(operations_of_pair(config.model, length))


class Bytes(NamedTuple):
    """What stays in memory during a training, in float32: activations are `activation_bytes`."""

    weights: int
    gradients: int
    moments: int
    average: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def training_bytes(model: ModelConfig, training: TrainingConfig) -> Bytes:
    """Of the weights, their gradients, Adam's two moments (Muon keeps fewer), and a moving average where there is one."""
    weights = _WIDE * count_parameters(model)
    return Bytes(weights, weights, 2 * weights, weights if training.ema else 0)


def activation_bytes(model: ModelConfig, *, pairs: int, length: int) -> int:
    """What the backward pass of a batch keeps on a CPU in float32, estimated: ``pairs`` whose sides have ``length`` tokens each."""
    import numpy as np

    from dragoman.training.preflight import estimate_memory

    return estimate_memory(model, np.array([pairs * length]), np.array([length])).activations


def cache_bytes(model: ModelConfig, *, source: int, target: int) -> int:
    """What decoding keeps of one hypothesis, in float32, after so many tokens: keys and values, or what stands in their place."""
    if model.architecture == "recurrent":
        states = model.decoder_layers * (2 if model.cell == "lstm" else 1) + 1
        return _WIDE * model.d_model * (source + states)
    if model.architecture == "convolutional":
        return _WIDE * model.d_model * (2 * source + model.decoder_layers * (model.kernel_width - 1))
    if model.architecture == "encoder-only":
        return 0
    seen = target if model.architecture == "decoder-only" else source + target
    return _WIDE * model.decoder_layers * model.key_value_heads * (model.key_width + model.value_width) * seen


EXAMPLE = 30
"""Tokens a side of the sentences that the verbs tell the cost of."""


def cost_facts(model: ModelConfig) -> dict[str, dict[str, float]]:
    """Operations and bytes of a model, for JSON: by token without attention's own, and of sentences of `EXAMPLE` tokens a side."""
    work, lengths = forward_work(model), {"source": 0 if model.single else EXAMPLE, "target": EXAMPLE}
    kept = training_bytes(model, TrainingConfig())
    return {
        "flops": {
            **({} if model.single else {"source_token": 2 * work.source}),
            "target_token": 2 * work.target,
            "tokens_a_side": EXAMPLE,
            "forward": forward_flops(model, **lengths),
            "training": training_flops(model, **lengths),
        },
        "bytes": {"weights": kept.weights, "training": kept.total, "cache": cache_bytes(model, **lengths)},
    }


def cost_lines(model: ModelConfig) -> list[tuple[str, str]]:
    """The same for people."""
    facts, tokens = cost_facts(model), f"{EXAMPLE}" if model.single else f"{EXAMPLE} + {EXAMPLE}"
    flops, kept = facts["flops"], facts["bytes"]
    cache = f"; {readable(kept['cache'], 'B')} of cache to decode {tokens} tokens" if kept["cache"] else ""
    each = "" if model.single else f"{readable(flops['source_token'], 'FLOP')} a source and "
    side = " token" if model.single else " a target token"
    return [
        (
            "operations",
            f"{each}{readable(flops['target_token'], 'FLOP')}{side}; {tokens} tokens take {readable(flops['forward'], 'FLOP')} forward, "
            f"{readable(flops['training'], 'FLOP')} in training",
        ),
        (
            "memory",
            f"{readable(kept['weights'], 'B')} of weights, {readable(kept['training'], 'B')} in training without activations{cache}",
        ),
    ]


def readable(value: float, unit: str) -> str:
    """A number to three digits with a decimal prefix: 1.84 MFLOP, 27 B."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:#.3g}".rstrip(".") + f" {prefix}{unit}"
    return f"{value:.0f} {unit}"


class LayerCost(NamedTuple):
    """A row of Table 1 without its O(): operations of a layer, those that wait for one another, and the longest path between positions."""

    operations: float
    sequential: float
    path: float


def self_attention_cost(n: int, d: int) -> LayerCost:
    """Self-attention over n positions of width d: n²·d, 1, 1. The projections, 4·n·d², are not in Table 1."""
    return LayerCost(n * n * d, 1, 1)


def recurrent_cost(n: int, d: int) -> LayerCost:
    """A recurrent layer: n·d², n, n."""
    return LayerCost(n * d * d, n, n)


def convolutional_cost(n: int, d: int, k: int, *, dilated: bool = True) -> LayerCost:
    """Convolutions of width k: k·n·d², 1, and log_k(n) where each layer's windows are k times as wide apart; n / k where they are not."""
    return LayerCost(k * n * d * d, 1, math.log(n, k) if dilated else n / k)


def restricted_cost(n: int, d: int, r: int) -> LayerCost:
    """Self-attention to r positions around each: r·n·d, 1, n / r."""
    return LayerCost(r * n * d, 1, n / r)


def paper_flops(*, hours: float, gpus: int, tflops: float) -> float:
    """Table 2's training cost: the time, times the GPUs, times what each sustains (6.1; `SUSTAINED_TFLOPS`)."""
    return hours * 3600 * gpus * tflops * 1e12
