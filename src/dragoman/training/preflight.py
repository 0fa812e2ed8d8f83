"""What a training will take, before it begins: parameters, memory, an epoch, and from a few updates the time (Section 5.2).

Shapes:  N tokens of a batch's longer side, padding counted   T positions   H heads   D = d_model   F = d_ff   V target vocabulary
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.config import Config, ModelConfig, TrainingConfig
from dragoman.data.batching import draw_pairs, padded_sizes
from dragoman.data.corpus import Corpus
from dragoman.data.packing import PackedCorpus
from dragoman.devices import free_memory, peak_memory
from dragoman.errors import DragomanError
from dragoman.presets import count_parameters
from dragoman.training.distributed import ALONE, Ranks
from dragoman.training.log import clock
from dragoman.training.outlook import at_the_end, cut_short
from dragoman.training.precision import compute_dtype
from dragoman.training.trainer import Trainer

UPDATES, SECONDS = 8, 20.0
"""What the speed is measured on: so many updates, or those that begin within so many seconds."""

_PLAIN = TrainingConfig()
_LOSS_ROWS = 512
_WIDE = 4  # bytes of a float32
_EQUATION_BELOW = 512  # keys, with which attention in bfloat16 on a CPU keeps its weights (`FusedAttention`)


class Memory(NamedTuple):
    """Bytes of a training step, without PyTorch's own."""

    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


@dataclass(frozen=True)
class Preflight:
    """What is known of a training before its first update; ``free`` is None where the system does not tell.

    Of a text for a model of one sequence no token is a source token, and the pairs are its blocks.
    ``budget`` is the number that was found for training.batch_tokens=auto, None where it was given. ``warnings`` are of the run's end.
    """

    parameters: int
    memory: Memory
    free: int | None
    source_tokens: int
    target_tokens: int
    epoch_steps: int
    pairs: int
    dropped: Mapping[str, int]
    budget: int | None = None
    warnings: Sequence[str] = ()

    def lines(self) -> list[str]:
        """For people, without the parameters."""
        gone = sum(self.dropped.values())
        why = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
        memory = self.memory
        room = "" if self.free is None else f"; {readable_bytes(self.free)} free"
        found = [] if self.budget is None else [f"batches: at most {self.budget:,} tokens a side, found for training.batch_tokens=auto"]
        pairs = f"{gone:,} of {self.pairs + gone:,} pairs dropped ({why})" if gone else "no pair dropped"
        data = f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens in {self.epoch_steps:,} steps; {pairs}"
        if not self.source_tokens:
            data = f"{self.target_tokens:,} tokens in {self.epoch_steps:,} steps"
        return [
            *found,
            f"an epoch: {data}",
            f"memory: about {readable_bytes(memory.total)} (weights {readable_bytes(memory.weights)}, gradients "
            f"{readable_bytes(memory.gradients)}, Adam {readable_bytes(memory.moments)}, activations {readable_bytes(memory.activations)})"
            f"{room}",
            *self.warnings,
        ]


def preflight(config: Config, corpus: Corpus, *, device: torch.device, ranks: Ranks = ALONE, found: bool = False) -> Preflight:
    """The facts of a training on a device; of many ``ranks``, each needs the memory for its part of a batch.

    ``found`` says that training.batch_tokens was auto. Raises DragomanError when the memory there is cannot hold it, with the setting to
    change; what was tried on a GPU fits, whatever the estimate is.
    """
    weights, training = config.data.weights, config.training
    corpus = corpus.of_epoch(0, seed=training.seed, most=training.batch_budget)
    most = _lengths(corpus, [math.ceil(weight) for weight in weights], training)  # of any epoch
    sizes, longest = padded_sizes(*most, batch_tokens=training.batch_budget)
    batches = len(sizes)
    if training.accumulate < ranks.size:  # no rank has a whole batch
        rows = sizes // longest
        sizes = longest * -(-rows // ranks.size)
    free, shards = free_memory(device), ranks.size if training.shard else 1
    if free is not None and device.type == "cpu":
        free //= ranks.local_size
    narrow = products_will_be_narrow(config, device, free=free, shards=shards)
    on_cpu = device.type == "cpu"
    memory = estimate_memory(config.model, sizes, longest, training=training, narrow=narrow, on_cpu=on_cpu, shards=shards)
    if free is not None and memory.total > free and not (found and device.type == "cuda" and shards == 1):
        raise DragomanError(_too_large(config, memory, free, int(longest.max()), narrow=narrow, device=device, shards=shards))
    source_lengths, target_lengths = _lengths(corpus, weights, training)
    if weights:
        batches = len(padded_sizes(source_lengths, target_lengths, batch_tokens=training.batch_budget)[0])
    return Preflight(
        parameters=count_parameters(config.model),
        memory=memory,
        free=free,
        source_tokens=0 if isinstance(corpus, PackedCorpus) else int(source_lengths.sum(dtype=np.int64)),
        target_tokens=corpus.tokens if isinstance(corpus, PackedCorpus) else int(target_lengths.sum(dtype=np.int64)),
        epoch_steps=math.ceil(batches / training.accumulate),
        pairs=len(corpus),
        dropped=corpus.dropped,
        budget=training.batch_budget if found else None,
        warnings=at_the_end(training),
    )


def products_will_be_narrow(config: Config, device: torch.device, *, free: int | None, shards: int) -> bool:
    """Whether a training's products have two bytes a number.

    What ``auto`` measures on a CPU takes the memory of a layer, and long for a wide one, so there it is False of a model that does not fit
    with one token.
    """
    if device.type == "cpu" and config.training.precision == "auto" and free is not None:
        one = np.ones(1, np.int64)
        if estimate_memory(config.model, one, one, training=config.training, shards=shards).total > free:
            return False
    return compute_dtype(config, device) != torch.float32


def _lengths(corpus: Corpus, weights: Sequence[float], training: TrainingConfig) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Source and target tokens of all pairs of the first epoch with these weights."""
    pairs = draw_pairs(corpus.parts, weights, seed=training.seed, epoch=0)
    return (corpus.source_lengths, corpus.target_lengths) if pairs is None else (corpus.source_lengths[pairs], corpus.target_lengths[pairs])


def estimate_memory(
    model: ModelConfig, sizes: NDArray[np.int64], longest: NDArray[np.int64], *, training: TrainingConfig = _PLAIN, narrow: bool = False,
    on_cpu: bool = True, shards: int = 1,
) -> Memory:  # fmt: skip
    """Bytes of a step on the batch that takes most: ``sizes`` are the N of each batch, ``longest`` the T.

    ``narrow`` says that products have two bytes a number. Activations are what the backward pass needs, which is all sums, norms and
    inputs of matrix products, and what the loss takes at once. ``training`` may add to that: a second pass (rdrop), and a moving average
    of the weights (ema). Of ``shards`` each has a part of the weights, their average, gradients and moments, and for a time the whole
    embeddings and two layers.
    """
    parameters = count_parameters(model)
    kept = _passes(training) * sizes * _activations(model, longest, narrow=narrow, on_cpu=on_cpu)
    at_once = _WIDE * (3 * _LOSS_ROWS + 3 * model.d_model) * model.target_vocabulary + (2 * parameters if narrow else 0)
    own = weights = _WIDE * parameters
    if shards > 1:
        own = -(-weights // shards)
        weights = own + _WIDE * _gathered(model)
    averaged = own if training.ema else 0
    return Memory(weights + averaged, weights, 2 * own, int(kept.max(initial=0)) + at_once)


def _passes(training: TrainingConfig) -> int:
    """Through the model for each batch, all of which the backward pass needs."""
    return 2 if training.rdrop else 1


def measured_lines(trainer: Trainer, known: Preflight) -> list[str]:
    """What a few updates of a trainer show of speed, memory and the time to the end, for people.

    The speed is the median of theirs, for another program may come between some of them.
    """
    training: TrainingConfig = trainer.settings
    made = trainer.rehearse(updates=UPDATES, seconds=SECONDS)
    speed = median(each.tokens / each.seconds for each in made)
    step_seconds = mean(each.tokens for each in made) / speed
    peak = peak_memory(trainer.device)
    most = peak.get("device_mem", peak.get("mem"))
    lines = [
        f"measured on {len(made)} updates: {speed:,.0f} target tokens a second, {step_seconds:.3g} s an update"
        + (f", most memory {readable_bytes(most)}" if most else ""),
        f"to the end: {training.max_steps:,} steps ({training.max_steps / known.epoch_steps:,.1f} epochs) in "
        f"{clock(training.max_steps * step_seconds)}, evaluations not counted",
    ]
    if training.max_minutes:
        reached = int(60 * training.max_minutes / step_seconds)
        if reached < training.max_steps:
            epochs = reached / known.epoch_steps
            lines += [
                f"within training.max_minutes={training.max_minutes:g}: about {reached:,} steps ({epochs:,.1f} epochs)",
                *cut_short(training, reached, by_minutes=True, about=True),
            ]
    return lines


def readable_bytes(count: int) -> str:
    """Bytes to three digits, as 27 B, 1.05 MB or 32.1 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            digits = 0 if count >= 99.95 * size else 1 if count >= 9.995 * size else 2
            return f"{count / size:,.{digits}f} {unit}"
    return f"{count} B"


def _gathered(model: ModelConfig) -> int:
    """Parameters that a rank of a sharded model has whole at one time: what lies outside of the layers, and two of these."""

    def count(encoder: int, decoder: int) -> int:
        return count_parameters(model.model_copy(update={"encoder_layers": encoder, "decoder_layers": decoder}))

    return count(0, 0) + 2 * (count(0, 1) - count(0, 0))


def _activations(model: ModelConfig, longest: NDArray[np.int64], *, narrow: bool, on_cpu: bool) -> NDArray[np.int64]:
    """Bytes kept for the backward pass for each of the N tokens of batches whose ``longest`` pairs have T: more where weights are kept."""
    product = 2 if narrow else _WIDE
    if model.older:
        return _older_activations(model, longest, narrow=narrow)
    between = _WIDE if on_cpu else product  # between products; on a CPU these alone are narrow
    around = _WIDE + (between if model.dropout else 0)  # of each sub-layer: the sum that is normed, and what dropout chose
    heads = 2 * model.n_heads * (model.key_width + model.value_width)
    if narrow and on_cpu and model.attention_dropout:
        heads = heads * between + model.n_heads * model.value_width * product  # once more, for the product with W^O
    else:
        heads *= product
    inputs = product if on_cpu or not narrow else 3 * product  # of queries, keys and values: a GPU's autocast makes three of one tensor
    attention = heads + (around + inputs) * model.d_model
    feed_forward = model.d_ff * (product + (2 * between if model.activation_dropout else 0)) + (around + product) * model.d_model
    alone, crossing = {"decoder-only": (model.decoder_layers, 0), "encoder-only": (model.encoder_layers, 0)}.get(
        model.architecture, (model.encoder_layers, model.decoder_layers)
    )  # layers that attend to themselves, and those that attend to a memory too
    layers = alone * (attention + feed_forward) + crossing * (2 * attention + feed_forward)
    ends = _WIDE * (2 + (2 if model.dropout else 0) + (0 if narrow else 2)) * model.d_model  # embeddings, and the loss
    plain = model.attention_dropout or model.key_width != model.value_width  # what the fused kernel does not take
    weights = _WIDE * ((3 if model.attention_dropout else 1) + (narrow and not on_cpu)) if plain else 0
    kept = np.full_like(longest, weights)
    if narrow and on_cpu and not model.attention_dropout:
        kept = np.where(longest < _EQUATION_BELOW, product, weights)
    return layers + ends + kept * longest * model.n_heads * (alone + 2 * crossing)


def _older_activations(model: ModelConfig, longest: NDArray[np.int64], *, narrow: bool) -> NDArray[np.int64]:
    """The same for the models that the paper replaced."""
    width, product, dropped = model.d_model, 2 if narrow else _WIDE, _WIDE if model.dropout else 0
    if model.architecture == "recurrent":  # always in float32; PyTorch's LSTM keeps far more than its GRU
        layer = (95 if model.cell == "lstm" else 32) + dropped
        cells = model.decoder_layers * (8 * _WIDE + dropped) + 6 * _WIDE + dropped
        return (model.encoder_layers * layer + cells) * width + (_WIDE + 1) * longest
    convolution = model.kernel_width * product + 2 * _WIDE + dropped
    attention = 3 * product + (_WIDE if narrow else 0)
    layers = model.encoder_layers * convolution + model.decoder_layers * (convolution + attention)
    ends = (4 if narrow else 6) * product + 3 * dropped
    return (layers + ends) * width + model.decoder_layers * product * longest


def _too_large(config: Config, memory: Memory, free: int, longest: int, *, narrow: bool, device: torch.device, shards: int) -> str:
    """What does not fit, and the setting to change: the batch's budget if a smaller one would do, else the model's size."""
    needs = f"does not fit: training needs about {readable_bytes(memory.total)} but {readable_bytes(free)} is free on {device}"
    on_cpu, one, training = device.type == "cpu", np.array([longest]), config.training
    least = estimate_memory(config.model, one, one, training=training, narrow=narrow, on_cpu=on_cpu, shards=shards)
    parameters = count_parameters(config.model)
    if least.total > free:
        return (
            f"a model of {parameters:,} parameters {needs}, and {readable_bytes(least.total)} even for one pair at a time; choose a "
            "smaller --preset, or lower model.d_model, model.encoder_layers and model.decoder_layers, or data.vocabulary_size"
        )
    budget = training.batch_budget
    per_token = _passes(training) * int(_activations(config.model, np.array(longest), narrow=narrow, on_cpu=on_cpu))
    fits = max(longest, longest + (free - least.total) // per_token)
    return (
        f"a batch of training.batch_tokens={budget} {needs}; lower it to {fits}, and set training.accumulate="
        f"{training.accumulate * math.ceil(budget / fits)} for updates of the same size"
    )
