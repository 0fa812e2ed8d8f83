"""Recurrent and convolutional models: the same numbers with a cache and without, padded and alone, by PyTorch's layers and by loops."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.beam import beam_search, length_penalty
from dragoman.decoding.prepared import step_of
from dragoman.decoding.step import TransformerStep
from dragoman.model import EncoderDecoder
from dragoman.model.convolutional import ConvolutionalEncoder, GatedConvolution
from dragoman.model.dropout import FastDropout
from dragoman.model.recurrent import CellState, GRUCell, LSTMCell
from paper.models import random_ids, random_numbers, small_model, token_mask

LENGTHS = (7, 3, 5)
SOURCE, SOURCE_MASK, TARGET = random_ids(3, 7), token_mask(*LENGTHS), random_ids(3, 8, seed=5)

CONVOLUTIONAL = {"architecture": "convolutional", "positions": "learned", "scale_embedding": False}
KINDS: dict[str, dict[str, Any]] = {
    "lstm": {"architecture": "recurrent"},
    "gru": {"architecture": "recurrent", "cell": "gru", "decoder_layers": 3, "encoder_layers": 1, "tie": "none"},
    "one cell": {"architecture": "recurrent", "decoder_layers": 1, "scale_embedding": False, "tie": "decoder"},
    "convolutional": CONVOLUTIONAL,
    "even kernel": CONVOLUTIONAL | {"kernel_width": 4, "decoder_layers": 3, "tie": "none"},
    "kernel of one": CONVOLUTIONAL | {"kernel_width": 1, "output_bias": True},
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def older_model(kind: dict[str, Any]) -> EncoderDecoder:
    sizes = {"d_ff": 2048, "n_heads": 8}  # as by default: they mean nothing here, and would be refused
    model = small_model(**sizes, **kind)
    assert isinstance(model, EncoderDecoder)
    return model


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


# Causality and padding


@every_kind
def test_a_later_token_changes_nothing_before_it_to_the_last_bit(kind: dict[str, Any]) -> None:
    model = older_model(kind)
    logits = model(SOURCE, TARGET, SOURCE_MASK)
    for place in range(TARGET.size(1)):
        changed = TARGET.clone()
        changed[:, place] = (changed[:, place] + 1) % 19
        others = model(SOURCE, changed, SOURCE_MASK)
        assert torch.equal(others[:, :place], logits[:, :place])
        assert (others - logits)[:, place].abs().amax(-1).min() > 1e-4


@every_kind
def test_what_stands_in_padding_changes_nothing_to_the_last_bit(kind: dict[str, Any]) -> None:
    model = older_model(kind)
    others = torch.where(SOURCE_MASK, SOURCE, (SOURCE + 1) % 19)
    memory = model.encode(SOURCE, SOURCE_MASK)
    assert torch.equal(model.encode(others, SOURCE_MASK), memory)
    assert memory[~SOURCE_MASK].count_nonzero() == 0
    assert torch.equal(model(others, TARGET, SOURCE_MASK), model(SOURCE, TARGET, SOURCE_MASK))
    assert not torch.equal(model(others, TARGET), model(SOURCE, TARGET))  # without a mask it would matter


@every_kind
def test_a_batch_with_padding_equals_each_sentence_alone(kind: dict[str, Any]) -> None:
    model = older_model(kind).double()
    memory, logits = model.encode(SOURCE, SOURCE_MASK), model(SOURCE, TARGET, SOURCE_MASK)
    for row, length in enumerate(LENGTHS):
        alone = SOURCE[row : row + 1, :length]
        close(model.encode(alone)[0], memory[row, :length], 1e-12)
        close(model(alone, TARGET[row : row + 1])[0], logits[row], 1e-12)


@every_kind
def test_a_sentence_of_padding_alone_gives_finite_numbers_and_gradients(kind: dict[str, Any]) -> None:
    model = older_model(kind)
    logits = model(SOURCE, TARGET, token_mask(7, 0, 5))
    logits.square().mean().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_token_behind_padding_is_refused_by_a_recurrent_encoder() -> None:
    mask = SOURCE_MASK.clone()
    mask[1, 1] = False
    with pytest.raises(ValueError, match="padding must stand behind them all"):
        older_model(KINDS["lstm"]).encode(SOURCE, mask)


# Cache


def in_chunks(model: EncoderDecoder, chunks: Iterable[int]) -> tuple[Tensor, Any]:
    cache: Any = model.start(model.encode(SOURCE, SOURCE_MASK), SOURCE_MASK)
    hidden = []
    for tokens in TARGET.split(list(chunks), 1):
        seen = cache.length
        states, cache = model.step(tokens, cache)
        hidden.append(states)
        assert cache.length == seen + tokens.size(1)
    return torch.cat(hidden, 1), cache


@every_kind
@pytest.mark.parametrize("chunks", [[1] * 8, [3, 1, 4], [7, 1]], ids=str)
def test_decoding_with_a_cache_equals_decoding_without(kind: dict[str, Any], chunks: list[int]) -> None:
    model = older_model(kind)
    hidden, cache = in_chunks(model, chunks)
    close(hidden, model.decode(TARGET, model.encode(SOURCE, SOURCE_MASK), SOURCE_MASK), 1e-5)
    assert cache.length == 8


@every_kind
@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1, 0, 2, 2], [1]], ids=str)
@pytest.mark.parametrize("seen", [0, 6])
def test_a_reordered_cache_goes_on_as_its_rows_would_have_and_is_a_value(kind: dict[str, Any], rows: list[int], seen: int) -> None:
    model, index = older_model(kind), torch.tensor(rows)
    memory = model.encode(SOURCE, SOURCE_MASK)
    cache: Any = model.start(memory, SOURCE_MASK)
    if seen:
        _, cache = model.step(TARGET[:, :seen], cache)
    before, _ = model.step(TARGET[:, seen:], cache)
    continued, _ = model.step(TARGET[index, seen:], cache.reorder(index))
    fresh = model.decode(TARGET[index], memory[index], SOURCE_MASK[index])
    close(continued, fresh[:, seen:], 1e-5)
    assert torch.equal(model.step(TARGET[:, seen:], cache)[0], before)


@every_kind
def test_the_cache_stays_of_one_size(kind: dict[str, Any]) -> None:
    model = older_model(kind)
    cache: Any = model.start(model.encode(SOURCE, SOURCE_MASK), SOURCE_MASK)

    def shapes(value: object) -> object:
        if isinstance(value, Tensor):
            return tuple(value.shape)
        return [shapes(each) for each in value] if isinstance(value, tuple) else None

    first = [shapes(value) for value in vars(cache).values()]
    _, cache = model.step(TARGET, cache)
    assert [shapes(value) for value in vars(cache).values()] == first


@every_kind
def test_a_beam_as_wide_as_the_space_is_exhaustive_search(kind: dict[str, Any]) -> None:
    model = older_model({**kind, "source_vocabulary": 7, "target_vocabulary": 7}).requires_grad_(False)
    bos, eos, letters, limit, alpha = 1, 2, (3, 4, 5, 6), 4, 0.6
    source, mask = torch.tensor([[4, 5, 3, 6], [6, 6, 0, 0]]), token_mask(4, 2)
    step: Any = step_of(model)
    assert isinstance(step, TransformerStep)
    found = beam_search(step, source, mask, bos=bos, eos=eos, banned=(0, bos), beam=300, n_best=3, alpha=alpha, max_lengths=[limit, limit])
    contents = [content for length in range(limit) for content in itertools.product(letters, repeat=length)]
    for row, hypotheses in enumerate(found):
        scored = []
        for content in contents:
            tokens = torch.tensor([[bos, *content, eos]])
            log_probs = model(source[row : row + 1], tokens[:, :-1], mask[row : row + 1]).log_softmax(-1)
            total = log_probs.gather(2, tokens[:, 1:, None]).sum().item()
            scored.append((total / length_penalty(len(content) + 1, alpha), (*content, eos)))
        best = sorted(scored, reverse=True)[:3]
        assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens for _, tokens in best]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([score for score, _ in best], abs=1e-4)


# Layers


@pytest.mark.parametrize(("ours", "theirs"), [(LSTMCell, nn.LSTM), (GRUCell, nn.GRU)], ids=["lstm", "gru"])
def test_a_cell_computes_what_pytorchs_layer_does(ours: type[LSTMCell | GRUCell], theirs: type[nn.LSTM | nn.GRU]) -> None:
    cell, layer = ours(10, 6).double(), theirs(10, 6, batch_first=True).double()
    with torch.no_grad():
        cell.w_input.weight.copy_(layer.weight_ih_l0)
        cell.w_hidden.weight.copy_(layer.weight_hh_l0)
        if cell.w_hidden.bias is None:
            cell.w_input.bias.copy_(layer.bias_ih_l0 + layer.bias_hh_l0)
        else:
            cell.w_input.bias.copy_(layer.bias_ih_l0)
            cell.w_hidden.bias.copy_(layer.bias_hh_l0)
    x, first = random_numbers(4, 5, 10, dtype=torch.float64), random_numbers(4, 6, seed=6, dtype=torch.float64)
    memory = random_numbers(4, 6, seed=7, dtype=torch.float64)
    start = (first[None], memory[None]) if ours is LSTMCell else first[None]
    expected, _ = layer(x, start)
    state = CellState(first, memory if ours is LSTMCell else None)
    for place in range(5):
        state = cell(cell.w_input(x[:, place]), state)
        close(state.hidden, expected[:, place], 1e-12)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_gated_convolution_is_a_loop_over_windows_and_pytorchs(width: int) -> None:
    layer, x = GatedConvolution(6, width).double(), random_numbers(2, 9, 6, dtype=torch.float64)
    output = layer(x)
    assert output.shape == (2, 9 - width + 1, 6)
    for row, place in itertools.product(range(2), range(output.size(1))):
        both = layer.kernel.bias.clone()
        for offset in range(width):
            both += layer.kernel.weight[:, 6 * offset : 6 * offset + 6] @ x[row, place + offset]
        close(output[row, place], both[:6] * both[6:].sigmoid(), 1e-12)
    kernel = layer.kernel.weight.view(12, width, 6).transpose(1, 2)  # as PyTorch lays it out
    close(output, F.glu(F.conv1d(x.transpose(1, 2), kernel, layer.kernel.bias), 1).transpose(1, 2), 1e-12)


def test_attention_of_the_recurrent_decoder_is_luongs_and_its_result_is_fed_back() -> None:
    model = older_model(KINDS["one cell"]).double()
    decoder, memory = model.decoder, model.encode(SOURCE, SOURCE_MASK)
    hidden = model.decode(TARGET, memory, SOURCE_MASK)
    row, length = 1, 3
    seen, cell = memory[row, :length], decoder.layers[0]
    state = cell.start((decoder.w_start.weight @ seen.mean(0) + decoder.w_start.bias).tanh()[None])
    fed = torch.zeros(24, dtype=torch.float64)
    for place in range(TARGET.size(1)):
        embedded = decoder.embedding.weight[TARGET[row, place]]
        state = cell((cell.w_input(embedded) + decoder.w_fed(fed))[None], state)
        weights = (seen @ decoder.w_query.weight @ state.hidden[0]).softmax(0)
        fed = (decoder.w_attended.weight @ torch.cat((weights @ seen, state.hidden[0]))).tanh()
        close(hidden[row, place], fed, 1e-12)


def test_attention_of_the_convolutional_decoder_is_multi_step_and_adds_embeddings_to_its_values() -> None:
    model = older_model({**KINDS["convolutional"], "decoder_layers": 1, "encoder_layers": 1}).double()
    encoder, decoder, half = model.encoder, model.decoder, 0.5**0.5
    row, length = 2, 5
    source, target = SOURCE[row, :length], TARGET[row]
    embedded = encoder.embedding.weight[source] + encoder.positions.weight[:length]
    x = encoder.w_in(embedded)
    z = encoder.w_out(half * (encoder.layers[0](F.pad(x, (0, 0, 1, 1))[None])[0] + x))
    values = half * (z + embedded)
    embedded = decoder.embedding.weight[target] + decoder.positions.weight[: len(target)]
    x = decoder.w_in(embedded)
    y = decoder.layers[0].convolution(F.pad(x, (0, 0, 2, 0))[None])[0]
    query = half * (decoder.layers[0].w_query(y) + embedded)
    context = (query @ z.T).softmax(-1) @ values * length**0.5
    x = half * (half * (decoder.layers[0].w_context(context) + y) + x)
    close(model.decode(TARGET, model.encode(SOURCE, SOURCE_MASK), SOURCE_MASK)[row], decoder.w_out(x), 1e-12)


# Learning


@every_kind
def test_the_gradient_reaches_everything(kind: dict[str, Any]) -> None:
    model = older_model({**kind, "dropout": 0.2}).train()
    model(SOURCE, TARGET, SOURCE_MASK).square().mean().backward()
    dead = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.abs().max() > 0]
    assert dead == []


@every_kind
def test_dropout_changes_every_training_pass_and_no_other(kind: dict[str, Any]) -> None:
    model = older_model({**kind, "dropout": 0.2})
    quiet = model(SOURCE, TARGET, SOURCE_MASK)
    assert torch.equal(model(SOURCE, TARGET, SOURCE_MASK), quiet)
    model.train()
    first, second = (model(SOURCE, TARGET, SOURCE_MASK) for _ in range(2))
    assert not torch.equal(first, second)
    for module in model.modules():
        if isinstance(module, FastDropout):
            module.p = 0.0
    close(model(SOURCE, TARGET, SOURCE_MASK), quiet, 1e-6)


def test_the_encoders_convolutions_get_half_the_mean_gradient_of_all_attentions() -> None:
    model = older_model({**KINDS["convolutional"], "decoder_layers": 3})
    encoder: Any = model.encoder
    assert isinstance(encoder, ConvolutionalEncoder)
    gradients = []
    for attentions in (3, 0.5):  # as built, and undivided
        encoder.attentions = attentions
        model.zero_grad()
        model(SOURCE, TARGET, SOURCE_MASK).square().mean().backward()
        gradients.append(encoder.layers[0].kernel.weight.grad.clone())
    # What reaches the kernel through the values' embeddings does not exist, so all of it is divided.
    torch.testing.assert_close(6 * gradients[0], gradients[1], rtol=1e-4, atol=1e-7)


@every_kind
def test_products_in_bfloat16_are_close_and_what_comes_out_is_float32(kind: dict[str, Any]) -> None:
    model = older_model(kind)
    exact = model.decode(TARGET, model.encode(SOURCE, SOURCE_MASK), SOURCE_MASK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.decode(TARGET, model.encode(SOURCE, SOURCE_MASK), SOURCE_MASK)
        hidden.square().mean().backward()
    assert hidden.dtype == torch.float32
    close(hidden, exact, 0.05 * exact.abs().max().item())
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters() if parameter.grad is not None)
