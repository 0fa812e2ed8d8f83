"""Sections 3.1, 3.3 and 5.4: the order of sub-layer, dropout, sum and norm in a layer, and what stands around the layers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model import EncoderLayer, FeedForward, ScaledDotProductAttention, Transformer, causal_mask
from paper.models import random_ids, random_numbers, small_model, token_mask

MASK = token_mask(3, 5)[:, None, None]  # (2, 1, 1, 5)
norm_places = pytest.mark.parametrize("norm_place", ["post", "pre"])


def test_golden_layer_norm() -> None:
    """Biased variance, ε 1e-6 inside the root."""
    norm = small_model(d_model=4, n_heads=1).encoder.layers[0].norm1.double()
    nn.init.ones_(norm.weight)
    nn.init.zeros_(norm.bias)
    golden = [-1.34164025, -0.447213417, 0.447213417, 1.34164025]
    assert norm(torch.tensor([1, 2, 3, 4], dtype=torch.float64)).tolist() == pytest.approx(golden, abs=1e-8)


@norm_places
def test_epsilon_reaches_every_norm(norm_place: str) -> None:
    model = small_model(norm_place=norm_place, norm_epsilon=0.25)
    norms = [module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert norms == [0.25] * (2 * 2 + 2 * 3 + (2 if norm_place == "pre" else 0))


def test_feed_forward_is_equation_2() -> None:
    layer = FeedForward(6, 10)
    x = random_numbers(2, 3, 6)
    expected = torch.clamp(x @ layer[0].weight.T + layer[0].bias, min=0) @ layer[2].weight.T + layer[2].bias
    torch.testing.assert_close(layer(x), expected)


@norm_places
def test_an_encoder_layer_in_the_papers_order(norm_place: str) -> None:
    layer = small_model(norm_place=norm_place).encoder.layers[0]
    x = random_numbers(2, 5, 24)
    if norm_place == "post":
        middle = layer.norm1(x + layer.self_attn(x, x, x, MASK))
        expected = layer.norm2(middle + layer.feed_forward(middle))
    else:
        normed = layer.norm1(x)
        middle = x + layer.self_attn(normed, normed, normed, MASK)
        expected = middle + layer.feed_forward(layer.norm2(middle))
    assert torch.equal(layer(x, MASK), expected)


@norm_places
def test_a_decoder_layer_in_the_papers_order(norm_place: str) -> None:
    layer = small_model(norm_place=norm_place).decoder.layers[0]
    x, memory = random_numbers(2, 4, 24), random_numbers(2, 5, 24, seed=6)
    causal = causal_mask(4)
    if norm_place == "post":
        first = layer.norm1(x + layer.self_attn(x, x, x, causal))
        second = layer.norm2(first + layer.cross_attn(first, memory, memory, MASK))
        expected = layer.norm3(second + layer.feed_forward(second))
    else:
        normed = layer.norm1(x)
        first = x + layer.self_attn(normed, normed, normed, causal)
        second = first + layer.cross_attn(layer.norm2(first), memory, memory, MASK)
        expected = second + layer.feed_forward(layer.norm3(second))
    assert torch.equal(layer(x, layer.start(memory), causal, MASK)[0], expected)


@norm_places
def test_a_stack_ends_with_a_norm_only_when_its_layers_norm_first(norm_place: str) -> None:
    model = small_model(norm_place=norm_place)
    source, target = random_ids(2, 5), random_ids(2, 4)
    x = model.encoder.positions(model.encoder.embedding(source))
    for layer in model.encoder.layers:
        x = layer(x, MASK)
    y = model.decoder.positions(model.decoder.embedding(target))
    memory = model.encoder.final_norm(x) if norm_place == "pre" else x
    for layer in model.decoder.layers:
        y, _ = layer(y, layer.start(memory), causal_mask(4), MASK)
    assert torch.equal(model.encode(source, token_mask(3, 5)), memory)
    assert torch.equal(model.decode(target, memory, token_mask(3, 5)), model.decoder.final_norm(y) if norm_place == "pre" else y)
    kinds = (nn.LayerNorm, nn.LayerNorm) if norm_place == "pre" else (nn.Identity, nn.Identity)
    assert (type(model.encoder.final_norm), type(model.decoder.final_norm)) == kinds


class Watched:
    """What a model feeds to its dropout modules, and what its sub-layers and embedding sums produce, in order."""

    def __init__(self, model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dropped: list[Tensor] = []
        self.produced: list[Tensor] = []
        self.rates: list[float] = []
        self.kernel_rates: list[float] = []
        kernel = F.scaled_dot_product_attention

        def dropout(module: nn.Module, inputs: tuple[Tensor]) -> None:
            self.dropped.append(inputs[0])
            self.rates.append(module.p)

        def fused(*arguments: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
            self.kernel_rates.append(dropout_p)
            return kernel(*arguments, **options)

        monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
        for name, module in model.named_modules():
            if hasattr(module, "p"):
                module.register_forward_pre_hook(dropout)
            if name.rpartition(".")[2] in ("w_concat", "feed_forward", "positions"):
                module.register_forward_hook(lambda _module, _inputs, output: self.produced.append(output))
        forward(model)


def forward(model: Transformer) -> Tensor:
    return model(random_ids(2, 5), random_ids(2, 4), token_mask(3, 5))


@norm_places
def test_dropout_acts_on_sublayer_outputs_and_embedding_sums_and_nowhere_else(norm_place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(small_model(norm_place=norm_place, dropout=0.25).train(), monkeypatch)
    assert len(watched.dropped) == (1 + 2 * 2) + (1 + 2 * 3)
    assert all(dropped is produced for dropped, produced in zip(watched.dropped, watched.produced, strict=True))
    assert set(watched.rates) == {0.25}
    assert set(watched.kernel_rates) == {0.0}


class Nothing(nn.Module):
    """A dropout that lets nothing through."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@norm_places
def test_dropout_comes_before_the_sum_and_the_norm(norm_place: str) -> None:
    """With nothing let through, the input of a layer is left, normed where the paper norms the sum; and of a stack, nothing."""
    model = small_model(norm_place=norm_place)
    layer, x = model.encoder.layers[0], random_numbers(2, 5, 24)
    layer.dropout = Nothing()
    assert torch.equal(layer(x), layer.norm2(layer.norm1(x)) if norm_place == "post" else x)
    model.encoder.dropout, model.encoder.layers = Nothing(), nn.ModuleList()
    assert torch.equal(model.encode(random_ids(2, 5)), model.encoder.final_norm(torch.zeros(2, 5, 24)))


def test_attention_and_activation_dropout_act_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(dropout=0.0, attention_dropout=0.5, activation_dropout=0.125)
    watched = Watched(model.train(), monkeypatch)
    activations = [x for x, rate in zip(watched.dropped, watched.rates, strict=True) if rate == 0.125]
    assert [x.size(-1) for x in activations] == [40] * 4
    assert all((x >= 0).all() for x in activations)
    assert watched.kernel_rates == [0.5] * (2 + 2 * 2)
    monkeypatch.undo()
    assert set(Watched(model.eval(), monkeypatch).kernel_rates) == {0.0}


def test_the_equation_drops_weights_while_training_only() -> None:
    attention = ScaledDotProductAttention(dropout=0.5)
    x, eye = random_numbers(1, 1, 6, 3), torch.eye(6)[None, None]
    dropped = attention(x, x, eye).output  # the weights themselves, after dropout
    weights = attention.eval()(x, x, eye).output
    assert torch.equal(dropped, torch.where(dropped == 0, 0.0, weights * 2))
    assert 0 < dropped.count_nonzero() < 36


@pytest.mark.parametrize(
    ("dropout", "mode", "same"), [(0.0, nn.Module.train, True), (0.3, nn.Module.train, False), (0.3, nn.Module.eval, True)]
)
def test_only_dropout_while_training_is_random(dropout: float, mode: Callable[[nn.Module], nn.Module], same: bool) -> None:
    model = small_model(dropout=dropout)
    reference = forward(model)
    mode(model)
    assert torch.equal(forward(model), forward(model)) == same
    assert torch.equal(forward(model), reference) == same


def test_a_layer_made_by_hand_drops_at_the_rate_given() -> None:
    layer = EncoderLayer(24, 4, 40, 0.5)
    assert [module.p for module in layer.modules() if hasattr(module, "p")] == [0.5]
