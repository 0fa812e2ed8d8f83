"""Faults of masks that users of peer tools reported: B01, B03, B05 (attention half) and B83 (model half)."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model import FusedAttention, ScaledDotProductAttention, Transformer, causal_mask, padding_mask, scaled_dot_product_attention
from paper.models import random_ids, small_model, token_mask

QUERY = torch.tensor([[1.0, 0], [0, 1]])[None, None]
KEY = torch.tensor([[1.0, 0], [0, 1], [1, 1]])[None, None]
VALUE = torch.tensor([[1.0, 2], [3, 4], [5, 6]])[None, None]

both_kinds = pytest.mark.parametrize("attention", [ScaledDotProductAttention(), FusedAttention()], ids=["equation", "fused"])


def values(attention: nn.Module, query: Tensor, mask: Tensor | None) -> Tensor:
    return attention(query, KEY, VALUE, mask).output[0, 0]


def cross_entropy(model: Transformer, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return F.cross_entropy(model(source, target[:, :-1], mask).flatten(0, 1).float(), target[:, 1:].flatten())


@both_kinds
def test_b01_a_query_that_may_see_nothing_gets_zeros_and_finite_gradients(attention: nn.Module) -> None:
    inputs = [tensor.clone().requires_grad_() for tensor in (QUERY, KEY, VALUE)]
    output, weights = attention(*inputs, torch.tensor([[True, True, False], [False, False, False]]))
    torch.testing.assert_close(output[0, 0], torch.tensor([[1.660477, 2.660477], [0, 0]]), atol=1e-5, rtol=0)
    assert weights is None or weights.isfinite().all()
    output.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in inputs)


@pytest.mark.parametrize("norm_place", ["post", "pre"])
def test_b01_a_sentence_of_padding_spoils_neither_its_neighbours_nor_the_gradients(norm_place: str) -> None:
    model = small_model(norm_place=norm_place, dropout=0.0).train()
    source, target = random_ids(3, 6), random_ids(3, 5, seed=5)
    logits = model(source, target, token_mask(6, 0, 4))
    without = model(source[::2], target[::2], token_mask(6, 4))
    torch.testing.assert_close(logits[::2], without, atol=1e-5, rtol=0)
    cross_entropy(model, source, target, token_mask(6, 0, 4)).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@both_kinds
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_b03_true_and_one_mean_may_look(attention: nn.Module, dtype: torch.dtype) -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).to(dtype)
    expected = torch.tensor([[1.660477, 2.660477], [3.406672, 4.406672]])
    torch.testing.assert_close(values(attention, QUERY, mask), expected, atol=1e-5, rtol=0)


@both_kinds
@pytest.mark.parametrize("number", [float("-inf"), -1e9, 2.0])
def test_b03_a_mask_of_other_numbers_is_refused(attention: nn.Module, number: float) -> None:
    with pytest.raises(ValueError, match=r"a mask is boolean, or ones .* and zeros"):
        values(attention, QUERY, torch.tensor([[0, 0, number]]))


def test_b03_a_padding_mask_takes_the_token_mask_as_it_is() -> None:
    expected = torch.tensor([True, True, False]).view(1, 1, 1, 3)
    assert torch.equal(padding_mask(torch.tensor([[True, True, False]])), expected)
    assert torch.equal(padding_mask(torch.tensor([[1, 1, 0]])), expected)


def test_b03_the_last_token_of_a_prompt_and_the_tokens_under_padding_are_not_seen() -> None:
    model = small_model()
    source, prompt, mask = random_ids(1, 6), random_ids(1, 6, seed=5), torch.tensor([[True] * 4 + [False] * 2])
    changed_prompt, changed_source = prompt.clone(), source.clone()
    changed_prompt[0, -1] += 1
    changed_source[0, -1] += 1
    logits, other = model(source, prompt, mask), model(source, changed_prompt, mask)
    torch.testing.assert_close(other[:, :5], logits[:, :5], atol=1e-6, rtol=0)
    assert (other[:, 5] - logits[:, 5]).abs().max() > 1e-3
    torch.testing.assert_close(model.encode(changed_source, mask)[:, :4], model.encode(source, mask)[:, :4], atol=1e-6, rtol=0)


@both_kinds
@pytest.mark.parametrize("mask", [None, causal_mask(1, past=2)])
def test_b05_one_new_query_sees_every_key_of_the_cache(attention: nn.Module, mask: Tensor | None) -> None:
    assert values(attention, QUERY[:, :, :1], mask)[0].tolist() == pytest.approx([3.0, 4.0])


def test_b05_greedy_steps_with_a_cache_are_the_steps_without() -> None:
    model = small_model()
    source, mask, prompt = random_ids(2, 6), token_mask(6, 4), random_ids(2, 5, seed=5)
    memory = model.encode(source, mask)
    hidden, cache = model.step(prompt, model.start(memory, mask))
    seen = prompt
    for _ in range(10):
        cached, whole = model.project(hidden[:, -1]), model.project(model.decode(seen, memory, mask)[:, -1])
        torch.testing.assert_close(cached, whole, atol=1e-4, rtol=0)
        tokens = cached.argmax(-1, keepdim=True)
        assert torch.equal(tokens, whole.argmax(-1, keepdim=True))
        seen = torch.cat((seen, tokens), 1)
        hidden, cache = model.step(tokens, cache)
    assert cache.length == 15


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_b83_masked_weights_are_zero_in_half_precision(dtype: torch.dtype) -> None:
    output, weights = scaled_dot_product_attention(QUERY.to(dtype), KEY.to(dtype), VALUE.to(dtype), torch.tensor([1, 1, 0]))
    assert weights[..., 2].tolist() == [[[0.0, 0.0]]]
    assert output.isfinite().all()


@both_kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_b83_no_score_is_so_low_that_a_masked_one_wins(attention: nn.Module, dtype: torch.dtype) -> None:
    query, key = torch.tensor([[200, 0]], dtype=dtype), torch.tensor([[-280, 0], [-280, 0], [0, 0]], dtype=dtype)  # scores -39,600 and 0
    output = attention(query[None, None], key[None, None], VALUE.to(dtype), torch.tensor([1, 1, 0])).output
    assert output.flatten().tolist() == [2.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_b83_one_update_in_half_precision_with_padding(dtype: torch.dtype) -> None:
    source, target, mask = random_ids(3, 6), random_ids(3, 5, seed=5), token_mask(6, 2, 0)
    losses = []
    for model in (small_model(dropout=0.0), small_model(dropout=0.0).to(dtype)):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        loss = cross_entropy(model, source, target, mask)
        loss.backward()
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
