"""Encoder and decoder layers (Sections 3.1 and 3.3).

Shapes:  B batch   Tq, Tk, T positions   S source positions   D = d_model   F = d_ff
"""

from collections.abc import Callable
from typing import Protocol, cast

import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.model.attention import MultiHeadAttention
from dragoman.model.cache import KeysValues, LayerCache
from dragoman.model.dropout import as_module
from dragoman.model.linear import Linear, linear_together, products_are_narrow, relu_feed_forward, unwatched


class FeedForward(nn.Sequential):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation (2), on each position alike: (B, T, D) to (B, T, D) through width F.

    An ``activation`` that is given takes the place of max(0, ·).
    """

    def __init__(
        self, d_model: int, d_ff: int, *, dropout: float | nn.Module = 0.0, activation: nn.Module | None = None, bias: bool = True
    ) -> None:
        activation = activation or nn.ReLU()
        inner = activation if dropout == 0 else nn.Sequential(activation, as_module(dropout))
        super().__init__(Linear(d_model, d_ff, bias=bias), inner, Linear(d_ff, d_model, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D); returns (B, T, D)."""
        first, inner, second = self
        if isinstance(inner, nn.ReLU) and first.bias is not None and products_are_narrow(x) and unwatched(first, second):
            return relu_feed_forward(x, cast(Linear, first), cast(Linear, second))
        output: Tensor = second(inner(first(x)))  # §(2) inner, output = max(0, x W_1 + b_1), inner W_2 + b_2
        return output


class GatedFeedForward(nn.Module):
    """(swish(x W_g + b_g) ⊙ (x W_1 + b_1)) W_2 + b_2 with swish(y) = y · sigmoid(y): SwiGLU, a named departure from equation (2).

    All three matrices are ``d_ff`` wide, which is half as many numbers more as `FeedForward` has.
    """

    def __init__(self, d_model: int, d_ff: int, *, dropout: float | nn.Module = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.w_gate = Linear(d_model, d_ff, bias=bias)
        self.w_in = Linear(d_model, d_ff, bias=bias)
        self.w_out = Linear(d_ff, d_model, bias=bias)
        self.dropout = nn.Identity() if dropout == 0 else as_module(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D); returns (B, T, D)."""
        gate, values = linear_together(x, self.w_gate, self.w_in)  # (B, T, F)
        inner = F.silu(gate) * values  # (B, T, F) §(2) inner = swish(x W_g + b_g) ⊙ (x W_1 + b_1)
        output: Tensor = self.w_out(self.dropout(inner))  # (B, T, D) §(2) output = inner W_2 + b_2
        return output


Inner = Callable[[Tensor], Tensor]
"""A module, or a function, of x (B, T, D) to as much."""


class Residual(Protocol):
    """What stands around a sub-layer: x (B, T, D) and the sub-layer to (B, T, D), with the sub-layer's norm and the layer's dropout."""

    def __call__(self, x: Tensor, sublayer: Inner, *, norm: Inner, dropout: Inner) -> Tensor:
        """The sub-layer, the sum and the norm, in an order."""
        ...


def residual(x: Tensor, sublayer: Inner, *, norm: Inner, dropout: Inner) -> Tensor:
    """LayerNorm(x + Dropout(Sublayer(x))), the paper's order (3.1, 5.4)."""
    normed: Tensor = norm(x + dropout(sublayer(x)))  # §3.1 summed, normed = x + Sublayer(x), LayerNorm(summed)
    return normed


def pre_norm_residual(x: Tensor, sublayer: Inner, *, norm: Inner, dropout: Inner) -> Tensor:
    """x + Dropout(Sublayer(LayerNorm(x))), a named departure."""
    summed: Tensor = x + dropout(sublayer(norm(x)))  # §3.1 summed = x + Sublayer(LayerNorm(x))
    return summed


def deepnorm_residual(alpha: float) -> Residual:
    """LayerNorm(α · x + Dropout(Sublayer(x))), a named departure (DeepNorm)."""

    def weighed(x: Tensor, sublayer: Inner, *, norm: Inner, dropout: Inner) -> Tensor:
        normed: Tensor = norm(alpha * x + dropout(sublayer(x)))  # §3.1 summed, normed = α · x + Sublayer(x), LayerNorm(summed)
        return normed

    return weighed


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each inside LayerNorm(x + Dropout(Sublayer(x))) (3.1, 5.4).

    ``norm`` makes a norm over D: LayerNorm with PyTorch's own ε for a layer made by hand; a model's comes from its settings. ``around``
    is what stands around each sub-layer, `residual` or a named departure. ``self_attn`` and ``feed_forward`` may be given ready-made, for
    heads or widths of another kind.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        dropout: float | nn.Module,
        *,
        self_attn: MultiHeadAttention | None = None,
        feed_forward: nn.Module | None = None,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        around: Residual = residual,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn or MultiHeadAttention(d_model, n_heads)
        self.feed_forward = feed_forward or FeedForward(d_model, d_ff)
        self.norm1 = norm(d_model)
        self.norm2 = norm(d_model)
        self.dropout = as_module(dropout)
        self.around = around

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D); mask broadcastable to (B, H, T, T). Returns (B, T, D)."""
        x = self._residual(self.norm1, x, lambda y: self.self_attn(y, y, y, mask))
        return self._residual(self.norm2, x, self.feed_forward)

    def extend(
        self, x: Tensor, past: KeysValues | None, mask: Tensor | None = None, *, padding: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """The same for new positions x (B, Tq, D) after past ones: returns (B, Tq, D), and the keys and values of them all.

        mask broadcastable to (B, H, Tq, Tk) with Tk = past + new positions; ``padding`` (B,) as for `MultiHeadAttention`.
        """
        seen = past

        def self_attention(y: Tensor) -> Tensor:
            nonlocal seen
            attended, seen = self.self_attn.attend_to_itself(y, mask, past=past, padding=padding)
            return attended

        x = self._residual(self.norm1, x, self_attention)
        return self._residual(self.norm2, x, self.feed_forward), cast(KeysValues, seen)

    def _residual(self, norm: nn.Module, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.around(x, sublayer, norm=norm, dropout=self.dropout)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, then feed-forward, each with residual and norm (3.1).

    Arguments as for `EncoderLayer`; ``cross_attn`` attends to the memory.
    """

    def __init__(
        self,
        d_model: int,
        *,
        self_attn: MultiHeadAttention,
        cross_attn: MultiHeadAttention,
        feed_forward: nn.Module,
        dropout: float | nn.Module,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        around: Residual = residual,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.cross_attn = cross_attn
        self.feed_forward = feed_forward
        self.norm1 = norm(d_model)
        self.norm2 = norm(d_model)
        self.norm3 = norm(d_model)
        self.dropout = as_module(dropout)
        self.around = around

    def start(self, memory: Tensor) -> LayerCache:
        """The cache before the first position: keys and values of the memory (B, S, D), projected once."""
        return LayerCache(self.cross_attn.keys_values(memory, memory))

    def forward(
        self, x: Tensor, cache: LayerCache, mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> tuple[Tensor, LayerCache]:
        """New positions x (B, Tq, D) after those in the cache; one call with all of them is training, one position at a time is decoding.

        mask broadcastable to (B, H, Tq, Tk) with Tk = cached + new positions; memory_mask to (B, H, Tq, S).
        Returns (B, Tq, D) and the cache with the new positions.
        """
        own = cache.own

        def self_attention(y: Tensor) -> Tensor:
            nonlocal own
            attended, own = self.self_attn.attend_to_itself(y, mask, past=own)
            return attended

        x = self._residual(self.norm1, x, self_attention)
        x = self._residual(self.norm2, x, lambda y: self.cross_attn.attend(y, cache.memory, memory_mask))
        x = self._residual(self.norm3, x, self.feed_forward)
        return x, LayerCache(cache.memory, own)

    def _residual(self, norm: nn.Module, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.around(x, sublayer, norm=norm, dropout=self.dropout)
