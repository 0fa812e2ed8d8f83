"""Different ways to the same numbers: masked and cut off, fused and spelled out, cached and not, together and alone."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.model import (
    Cache,
    FusedAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
    Transformer,
    causal_mask,
    scaled_dot_product_attention,
)
from paper.models import random_ids, random_numbers, small_model, token_mask

LENGTHS = (7, 3, 5)
SOURCE, SOURCE_MASK, TARGET = random_ids(3, 7), token_mask(*LENGTHS), random_ids(3, 8, seed=5)

KINDS: list[dict[str, Any]] = [
    {},
    {"norm_place": "pre", "positions": "learned"},
    {"d_k": 5, "d_v": 9, "positions": "sinusoidal-concat", "encoder_layers": 3, "decoder_layers": 1, "tie": "none"},
    {"positions": "rotary", "kv_heads": 2, "qk_norm": True, "norm": "rms", "norm_place": "pre", "activation": "swiglu"},
    {"positions": "rotary", "kv_heads": 1, "norm_place": "deepnorm", "activation": "gelu"},
]
every_kind = pytest.mark.parametrize(
    "kind", KINDS, ids=["paper", "pre-norm, learned", "odd widths", "rotary, grouped, pre", "rotary, grouped, deep"]
)


def equation(model: Transformer) -> Transformer:
    """The model with the equation in the place of the kernel."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.attention = ScaledDotProductAttention()
    return model


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


# Causality and padding


@every_kind
@pytest.mark.parametrize("spell_out", [False, True], ids=["fused", "equation"])
def test_a_later_token_changes_nothing_before_it_to_the_last_bit(kind: dict[str, Any], spell_out: bool) -> None:
    model = equation(small_model(**kind)) if spell_out else small_model(**kind)
    logits = model(SOURCE, TARGET, SOURCE_MASK)
    for place in range(TARGET.size(1)):
        changed = TARGET.clone()
        changed[:, place] = (changed[:, place] + 1) % 19
        others = model(SOURCE, changed, SOURCE_MASK)
        assert torch.equal(others[:, :place], logits[:, :place])
        assert ((others - logits)[:, place:].abs().amax(-1) > 1e-4).all()


def test_no_gradient_flows_from_an_output_to_a_later_input() -> None:
    model = small_model()
    embedded: list[Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    model.decoder.embedding.register_forward_hook(keep)
    for place in range(TARGET.size(1)):
        memory = model.encode(SOURCE, SOURCE_MASK)
        embedded.clear()
        model.decode(TARGET, memory, SOURCE_MASK)[:, place].sum().backward()
        gradient = embedded[0].grad.abs().amax((0, 2))
        assert (gradient > 0).tolist() == [position <= place for position in range(TARGET.size(1))]


@every_kind
def test_what_stands_in_padding_changes_nothing_to_the_last_bit(kind: dict[str, Any]) -> None:
    model = small_model(**kind)
    others = torch.where(SOURCE_MASK, SOURCE, (SOURCE + 1) % 19)
    assert torch.equal(model.encode(others, SOURCE_MASK)[SOURCE_MASK], model.encode(SOURCE, SOURCE_MASK)[SOURCE_MASK])
    assert torch.equal(model(others, TARGET, SOURCE_MASK), model(SOURCE, TARGET, SOURCE_MASK))
    assert not torch.equal(model(others, TARGET), model(SOURCE, TARGET))  # without a mask it would matter


@every_kind
def test_a_batch_with_padding_equals_each_sentence_alone(kind: dict[str, Any]) -> None:
    model = small_model(**kind).double()
    memory, logits = model.encode(SOURCE, SOURCE_MASK), model(SOURCE, TARGET, SOURCE_MASK)
    for row, length in enumerate(LENGTHS):
        alone = SOURCE[row : row + 1, :length]
        close(model.encode(alone)[0], memory[row, :length], 1e-12)
        close(model(alone, TARGET[row : row + 1])[0], logits[row], 1e-12)


# Kernel and equation

QUERY, KEY, VALUE = random_numbers(2, 3, 5, 4), random_numbers(2, 3, 6, 4, seed=5), random_numbers(2, 3, 6, 7, seed=6)
NOTHING_TO_SEE = torch.ones(5, 6, dtype=torch.bool)
NOTHING_TO_SEE[2] = False
MASKS = {
    "none": None,
    "causal": causal_mask(5, past=1),
    "padding": token_mask(6, 2)[:, None, None],
    "one row for all": torch.tensor([True, False, True, True, False, True]),
    "ones and zeros": causal_mask(5, past=1).float(),
    "a query that sees nothing": NOTHING_TO_SEE,
    "a sentence of padding": token_mask(6, 0)[:, None, None],
    "each head its own": random_numbers(2, 3, 5, 6, seed=7) > 0,
}
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


def with_gradients(attention: torch.nn.Module, mask: Tensor | None) -> list[Tensor]:
    inputs = [tensor.clone().requires_grad_() for tensor in (QUERY, KEY, VALUE)]
    output = attention(*inputs, mask).output
    output.square().sum().backward()
    return [output, *(tensor.grad for tensor in inputs)]


@every_mask
def test_the_fused_kernel_computes_the_equation_and_its_gradients(mask: Tensor | None) -> None:
    fused, spelled = with_gradients(FusedAttention(), mask), with_gradients(ScaledDotProductAttention(), mask)
    for ours, theirs in zip(fused, spelled, strict=True):
        close(ours, theirs, 1e-5)
    if mask is not None:
        blind = ~(mask != 0).expand(2, 3, 5, 6).any(-1)
        assert fused[0][blind].count_nonzero() == spelled[0][blind].count_nonzero() == 0


@every_kind
def test_the_whole_model_with_kernel_or_equation_learns_the_same(kind: dict[str, Any]) -> None:
    fused, spelled = small_model(**kind).double(), equation(small_model(**kind).double())
    results = [model(SOURCE, TARGET, token_mask(7, 0, 5)) for model in (fused, spelled)]
    close(*results, 1e-12)
    for result in results:
        result.square().mean().backward()
    for ours, theirs in zip(fused.parameters(), spelled.parameters(), strict=True):
        close(ours.grad, theirs.grad, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every_mask
def test_masked_weights_are_exactly_zero_in_every_precision(mask: Tensor | None, dtype: torch.dtype) -> None:
    inputs = [(30 * tensor).to(dtype).requires_grad_() for tensor in (QUERY, KEY, VALUE)]  # scores of some thousands
    output, weights = scaled_dot_product_attention(*inputs, mask)
    seen = torch.ones(2, 3, 5, 6, dtype=torch.bool) if mask is None else (mask != 0).expand(2, 3, 5, 6)
    assert weights.dtype == dtype
    assert weights[~seen].count_nonzero() == 0
    close(weights.sum(-1).float(), seen.any(-1).float(), 0.02)
    output.float().sum().backward()
    assert all(tensor.isfinite().all() for tensor in (output, *(tensor.grad for tensor in inputs)))


# Cache


def in_chunks(model: Transformer, chunks: Iterable[int]) -> tuple[Tensor, Cache]:
    cache = model.start(model.encode(SOURCE, SOURCE_MASK), SOURCE_MASK)
    hidden = []
    for tokens in TARGET.split(list(chunks), 1):
        seen = cache.length
        states, cache = model.step(tokens, cache)
        hidden.append(states)
        assert cache.length == seen + tokens.size(1)
    return torch.cat(hidden, 1), cache


@every_kind
@pytest.mark.parametrize("chunks", [[1] * 8, [8], [3, 1, 4], [1, 7], [7, 1]], ids=str)
def test_decoding_with_a_cache_equals_decoding_without(kind: dict[str, Any], chunks: list[int]) -> None:
    model = small_model(**kind)
    hidden, cache = in_chunks(model, chunks)
    close(hidden, model.decode(TARGET, model.encode(SOURCE, SOURCE_MASK), SOURCE_MASK), 1e-5)
    assert cache.length == 8


def test_a_cache_is_a_value_that_no_step_and_no_reordering_changes() -> None:
    model = small_model()
    _, cache = in_chunks(model, [3, 5])
    tokens = random_ids(3, 1, seed=8)
    first, _ = model.step(tokens, cache)
    cache.reorder(torch.tensor([2, 2]))
    again, _ = model.step(tokens, cache)
    assert cache.length == 8
    assert torch.equal(first, again)


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1, 0, 2, 2], [1], [0, 2]], ids=str)
@pytest.mark.parametrize("seen", [0, 1, 6])
@pytest.mark.parametrize("masked", [True, False])
def test_a_reordered_cache_goes_on_as_its_rows_would_have(rows: list[int], seen: int, masked: bool) -> None:
    model = small_model()
    mask = SOURCE_MASK if masked else None
    index = torch.tensor(rows)
    memory = model.encode(SOURCE, mask)
    cache = model.start(memory, mask)
    if seen:
        _, cache = model.step(TARGET[:, :seen], cache)
    moved = cache.reorder(index)
    assert moved.length == seen
    continued, _ = model.step(TARGET[index, seen:], moved)
    fresh = model.decode(TARGET[index], memory[index], None if mask is None else mask[index])
    close(continued, fresh[:, seen:], 1e-5)


def test_the_memory_is_projected_once_for_the_whole_translation() -> None:
    model = small_model()
    calls: list[int] = []
    for layer in model.decoder.layers:
        layer.cross_attn.w_k.register_forward_hook(lambda *_: calls.append(1))
    in_chunks(model, itertools.repeat(1, 8))
    assert len(calls) == len(model.decoder.layers)
