"""Convolutional encoder and decoder (Gehring et al. 2017): what the Transformer replaced ("convolutional" in Table 1, Section 4).

Shapes:  B batch   S source positions   T target positions   D = d_model   W width of a window, the kernel's
As published, but for weight normalisation, which is left out; a memory is keys and values side by side, 2·D wide.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.dropout import as_module
from dragoman.model.embedding import Embedding, LearnedPositions
from dragoman.model.linear import Linear
from dragoman.model.masks import as_boolean

_HALF = math.sqrt(0.5)  # what a sum of two is multiplied by, so that its variance stays


class GatedConvolution(nn.Module):
    """A ⊙ σ(B) with [A; B] = W [x_1; …; x_W] + b of each window of W positions (Dauphin et al. 2017)."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.kernel = Linear(width * d_model, 2 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T + W - 1, D); returns (B, T, D), of the windows that begin at each position but the last W - 1."""
        length = x.size(1) - self.width + 1
        windows = torch.cat([x[:, place : place + length] for place in range(self.width)], -1)  # (B, T, W·D)
        return F.glu(self.kernel(windows), -1)  # (B, T, D)


class ConvolutionalEncoder(nn.Module):
    """Embedding plus positions, then gated convolutions, each with its input added; padding counts as zeros.

    ``attentions`` is how many layers of the decoder attend to the memory: the gradients of the convolutions are divided by twice that.
    """

    def __init__(
        self, *, embedding: Embedding, positions: LearnedPositions, layers: Iterable[GatedConvolution], dropout: float | nn.Module,
        attentions: int,
    ) -> None:  # fmt: skip
        super().__init__()
        d_model = embedding.weight.size(1)
        self.embedding = embedding
        self.positions = positions
        self.dropout = as_module(dropout)
        self.w_in = Linear(d_model, d_model)
        self.layers = nn.ModuleList(layers)
        self.w_out = Linear(d_model, d_model)
        self.attentions = attentions

    def forward(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """source (B, S) of ids; mask (B, S), True at tokens. Returns the memory (B, S, 2·D): keys, then values, embeddings added."""
        padding = None if mask is None else ~as_boolean(mask)[..., None]  # (B, S, 1)
        embedded = self.dropout(self.positions(self.embedding(source)))  # (B, S, D)
        x = self.w_in(embedded)
        for layer in self.layers:
            width = cast(GatedConvolution, layer).width
            around = _zeroed(self.dropout(x), padding)
            x = _HALF * (layer(F.pad(around, (0, 0, (width - 1) // 2, width // 2))) + x)
        keys = self.w_out(x)  # (B, S, D)
        if keys.requires_grad:
            keys.register_hook(lambda gradient: gradient / (2 * self.attentions))
        return _zeroed(torch.cat((keys, _HALF * (keys + embedded)), -1), padding)


def _zeroed(x: Tensor, padding: Tensor | None) -> Tensor:
    return x if padding is None else x.masked_fill(padding, 0)


@dataclass(frozen=True)
class ConvolutionalCache:
    """What a convolutional decoder goes on from: the last W - 1 inputs of each of its convolutions, however long the target.

    memory (B, S, 2·D) and its mask (B, S) or None; inputs (B, W - 1, D) each.
    """

    memory: Tensor
    memory_mask: Tensor | None
    inputs: tuple[Tensor, ...]
    length: int = 0

    def reorder(self, rows: Tensor) -> "ConvolutionalCache":
        """The hypotheses of the given batch rows (M,), in that order."""
        mask = None if self.memory_mask is None else self.memory_mask.index_select(0, rows)
        inputs = tuple(each.index_select(0, rows) for each in self.inputs)
        return replace(self, memory=self.memory.index_select(0, rows), memory_mask=mask, inputs=inputs)


class ConvolutionalDecoderLayer(nn.Module):
    """A gated convolution over this position and those before it, attention over the memory, and the input added."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.convolution = GatedConvolution(d_model, width)
        self.w_query = Linear(d_model, d_model)
        self.w_context = Linear(d_model, d_model)

    def forward(self, window: Tensor, x: Tensor, embedded: Tensor, cache: ConvolutionalCache) -> Tensor:
        """x (B, T, D), window (B, W - 1 + T, D) of it with what came before, the target's embeddings (B, T, D). Returns (B, T, D)."""
        y: Tensor = self.convolution(window)  # (B, T, D)
        query = _HALF * (self.w_query(y) + embedded)
        context: Tensor = self.w_context(_attended(query, cache))  # (B, T, D)
        return _HALF * (_HALF * (context + y) + x)


def _attended(query: Tensor, cache: ConvolutionalCache) -> Tensor:
    """softmax(Q Kᵀ) V times √m, as if the weights were even over the m tokens; query (B, T, D), returns (B, T, D)."""
    keys, values = cache.memory.chunk(2, -1)  # (B, S, D)
    scores = query @ keys.transpose(1, 2)  # (B, T, S)
    if cache.memory_mask is None:
        return scores.softmax(-1) @ values * math.sqrt(keys.size(1))
    blocked = ~cache.memory_mask[:, None]  # (B, 1, S)
    tokens = cache.memory_mask.sum(1)[:, None, None].to(values.dtype)
    return scores.masked_fill(blocked, torch.finfo(scores.dtype).min).softmax(-1) @ values * tokens.sqrt()


class ConvolutionalDecoder(nn.Module):
    """Embedding plus positions, then `ConvolutionalDecoderLayer`s, each of which attends: multi-step attention."""

    def __init__(
        self, *, embedding: Embedding, positions: LearnedPositions, layers: Iterable[ConvolutionalDecoderLayer], dropout: float | nn.Module
    ) -> None:
        super().__init__()
        d_model = embedding.weight.size(1)
        self.embedding = embedding
        self.positions = positions
        self.dropout = as_module(dropout)
        self.w_in = Linear(d_model, d_model)
        self.layers = nn.ModuleList(layers)
        self.w_out = Linear(d_model, d_model)

    def start(self, memory: Tensor, memory_mask: Tensor | None = None) -> ConvolutionalCache:
        """The cache before the first target position, where a window sees zeros; memory (B, S, 2·D), memory_mask (B, S)."""
        mask = None if memory_mask is None else as_boolean(memory_mask)
        widths = [cast(ConvolutionalDecoderLayer, layer).convolution.width for layer in self.layers]
        inputs = tuple(memory.new_zeros(len(memory), width - 1, memory.size(2) // 2) for width in widths)
        return ConvolutionalCache(memory, mask, inputs)

    def forward(self, target: Tensor, cache: ConvolutionalCache) -> tuple[Tensor, ConvolutionalCache]:
        """New target ids (B, T) after those in the cache. Returns hidden states (B, T, D) and the cache with them."""
        embedded = self.dropout(self.positions(self.embedding(target), cache.length))  # (B, T, D)
        x, inputs = self.w_in(embedded), []
        for layer, past in zip(self.layers, cache.inputs, strict=True):
            window = torch.cat((past, self.dropout(x)), 1)  # (B, W - 1 + T, D)
            inputs.append(window[:, target.size(1) :])
            x = layer(window, x, embedded, cache)
        hidden: Tensor = self.dropout(self.w_out(x))
        return hidden, replace(cache, inputs=tuple(inputs), length=cache.length + target.size(1))
