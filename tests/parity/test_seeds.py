"""A reader of the two seed documents finds their names here, called in their way, with their numbers.

The classes below say, in this project's words, what the documents' code computes.
"""

import inspect
import math

import pytest
import torch
from torch import Tensor, nn

from dragoman import model as dragoman_model
from dragoman.model import EncoderLayer, MultiHeadAttention, PositionalEncoding, ScaledDotProductAttention, scaled_dot_product_attention
from paper.models import random_numbers


class SeedAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        weights = (scores if mask is None else scores.masked_fill(mask == 0, -1e9)).softmax(-1)
        return torch.matmul(weights, v), weights


class SeedMultiHead(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.w_q, self.w_k, self.w_v, self.w_concat = (nn.Linear(d_model, d_model) for _ in range(4))
        self.attention = SeedAttention()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        output, _ = self.attention(q, k, v, mask=mask)
        return self.w_concat(output.transpose(1, 2).flatten(2))


class SeedPositions(nn.Module):
    def __init__(self, d_model: int, max_len: int = 5000) -> None:
        super().__init__()
        angles = torch.arange(max_len)[:, None] * torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        table = torch.zeros(max_len, d_model)
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        self.register_buffer("pe", table[None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[:, : x.shape[1]]


class SeedEncoderLayer(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = SeedMultiHead(d_model, n_heads)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(d_model), nn.LayerNorm(d_model), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.norm1(x + self.dropout(self.self_attn(x, x, x, mask)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


MASKS = {
    "none": None,
    "ones and zeros (T, T)": torch.ones(5, 5).tril(),
    "whole numbers (B, 1, 1, T)": torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])[:, None, None],
    "booleans (1, T, T)": torch.ones(1, 5, 5, dtype=torch.bool).tril(),
}
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
WORDS = random_numbers(2, 5, 16)


def same(ours: Tensor, seeds: Tensor) -> None:
    torch.testing.assert_close(ours, seeds, atol=1e-6, rtol=0)


@every_mask
def test_scaled_dot_product_attention_module_returns_output_and_weights(mask: Tensor | None) -> None:
    q, k, v = (random_numbers(2, 4, 5, 8, seed=seed) for seed in (1, 2, 3))
    for ours, seeds in zip(ScaledDotProductAttention()(q, k, v, mask=mask), SeedAttention()(q, k, v, mask=mask), strict=True):
        same(ours, seeds)


def test_scaled_dot_product_attention_function_takes_three_dimensions() -> None:
    q = k = v = torch.rand(1, 4, 64)
    output, weights = scaled_dot_product_attention(q, k, v)
    assert (output.shape, weights.shape) == ((1, 4, 64), (1, 4, 4))
    for ours, seeds in zip((output, weights), SeedAttention()(q, k, v), strict=True):
        same(ours, seeds)


@every_mask
def test_multi_head_attention_loads_the_seeds_weights(mask: Tensor | None) -> None:
    seeds, ours = SeedMultiHead(16, 4), MultiHeadAttention(16, 4)
    ours.load_state_dict(seeds.state_dict())
    same(ours(WORDS, WORDS, WORDS, mask), seeds(WORDS, WORDS, WORDS, mask))
    ours.attention = ScaledDotProductAttention()  # as in the document, where the weights can be seen
    same(ours(WORDS, WORDS, WORDS, mask), seeds(WORDS, WORDS, WORDS, mask))


@every_mask
def test_encoder_layer_loads_the_seeds_weights(mask: Tensor | None) -> None:
    seeds, ours = SeedEncoderLayer(16, 4, 32, 0.1).eval(), EncoderLayer(16, 4, 32, 0.1).eval()
    ours.load_state_dict(seeds.state_dict())
    same(ours(WORDS, mask), seeds(WORDS, mask))


def test_encoder_layer_drops_what_the_seeds_drop() -> None:
    seeds, ours = SeedEncoderLayer(16, 4, 32, 0.5), EncoderLayer(16, 4, 32, 0.5)
    ours.load_state_dict(seeds.state_dict())
    torch.manual_seed(1)
    expected = seeds(WORDS, None)
    torch.manual_seed(1)
    same(ours(WORDS, None), expected)


@pytest.mark.parametrize(("length", "width"), [(8, 16), (8, 512)])
def test_positional_encoding_adds_the_seeds_numbers(length: int, width: int) -> None:
    x = random_numbers(2, length, width)
    same(PositionalEncoding(width)(x), SeedPositions(width)(x))


def test_the_seeds_table_loads_straight() -> None:
    seeds, ours = SeedPositions(64), PositionalEncoding(64)
    ours.load_state_dict(seeds.state_dict())
    x = torch.randn(2, 4000, 64)
    assert torch.equal(ours(x), seeds(x))


def test_positional_encoding_holds_5000_positions_more_exactly_than_the_seeds_float32() -> None:
    ours, seeds = PositionalEncoding(64).pe.double(), SeedPositions(64).pe.double()
    position, frequency = torch.arange(5000).double()[:, None], 10_000 ** -(torch.arange(0, 64, 2).double() / 64)
    exact = torch.stack(((position * frequency).sin(), (position * frequency).cos()), -1).view(1, 5000, 64)
    assert ours.shape == seeds.shape
    torch.testing.assert_close(ours, exact, atol=1e-7, rtol=0)
    torch.testing.assert_close(ours, seeds, atol=1e-3, rtol=0)
    assert (seeds - exact).abs().max() > 1e-5  # so 1e-6 between them holds for early positions only


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ScaledDotProductAttention", []),
        ("MultiHeadAttention", ["d_model", "n_heads"]),
        ("PositionalEncoding", ["d_model", "max_len"]),
        ("EncoderLayer", ["d_model", "n_heads", "d_ff", "dropout"]),
    ],
)
def test_positional_parameters_are_the_seeds(name: str, parameters: list[str]) -> None:
    signature = inspect.signature(getattr(dragoman_model, name)).parameters.values()
    assert [parameter.name for parameter in signature if parameter.kind is parameter.POSITIONAL_OR_KEYWORD] == parameters
    assert name in dragoman_model.__all__
