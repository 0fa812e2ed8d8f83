"""What a pass takes of memory: how much it will take, how much it takes, and only what is asked of it later kept."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.explain.answer import Explanation
from dragoman.explain.record import Recorded, Trace


def compacted(found: Explanation) -> Explanation:
    """The same for later: of each name the value that is shown, in the memory of the CPU; of the search the lines."""
    trace = Trace({name: Recorded(each.line, [_on_cpu(each.values[-1])]) for name, each in found.trace.items()})
    beams = found.beams
    if beams is not None:
        beams = replace(beams, trace=Trace({name: Recorded(each.line) for name, each in beams.trace.items()}))
    return replace(found, trace=trace, beams=beams)


def _on_cpu(value: object) -> object:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def held_bytes(found: Explanation) -> int:
    """Bytes of all numbers of a pass; memory that several names share counts once."""
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in _tensors(found)}
    scored = [each for each in (found.target, found.reference) if each is not None]
    return sum(storages.values()) + sum(each.hidden.nbytes + each.log_probs.nbytes for each in scored)


def _tensors(found: Explanation) -> Iterator[Tensor]:
    traces = [found.trace, *([] if found.beams is None else [found.beams.trace])]
    for trace in traces:
        for recorded in trace.values():
            yield from (value for value in recorded.values if isinstance(value, torch.Tensor))


def expected_bytes(model: ModelConfig, source: int, target: int, *, reference: int = 0) -> int:
    """The bytes that a pass of so many tokens will take, norms, rotations and gates counted whether a model has them or not.

    Of a model of one text its tokens are the ``target``.
    """
    keys, values, width = model.n_heads * model.key_width, model.n_heads * model.value_width, model.d_model
    attention = 5 * keys + 3 * values + 3 * width  # heads before and behind their rotation, together, W^O; the sum and its norm
    layer = attention + model.d_ff + 3 * width
    ends = 5 * width  # embeddings, sums with positions, what goes in and comes out
    scores = 2 * model.n_heads + 1  # before and behind the softmax, and where none may look
    vocabulary = 2 * model.target_vocabulary + width  # logits, log-probabilities, hidden states
    layers = model.encoder_layers if model.architecture == "encoder-only" else model.decoder_layers
    numbers = target * (layers * layer + ends) + layers * scores * target**2
    numbers += target * vocabulary + reference * vocabulary // 2
    if not model.single:
        numbers += source * (model.encoder_layers * layer + ends) + model.encoder_layers * scores * source**2
        numbers += layers * (target * attention + source * (keys + values) + scores * source * target)
    return 4 * numbers
