"""Encoder and decoder layers (Sections 3.1 and 3.3).

Shapes:  B batch   Tq, Tk, T positions   S source positions   D = d_model   F = d_ff
"""

from collections.abc import Callable

from torch import Tensor, nn

from dragoman.model.attention import MultiHeadAttention
from dragoman.model.cache import LayerCache
from dragoman.model.dropout import as_module


class FeedForward(nn.Sequential):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation (2), on each position alike: (B, T, D) to (B, T, D) through width F."""

    def __init__(self, d_model: int, d_ff: int, *, dropout: float | nn.Module = 0.0) -> None:
        inner = nn.ReLU() if dropout == 0 else nn.Sequential(nn.ReLU(), as_module(dropout))
        super().__init__(nn.Linear(d_model, d_ff), inner, nn.Linear(d_ff, d_model))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each inside LayerNorm(x + Dropout(Sublayer(x))) (3.1, 5.4).

    ``pre_norm`` is the named departure x + Dropout(Sublayer(LayerNorm(x))). ``norm_epsilon`` is PyTorch's own for a layer made by hand;
    a model's comes from its settings. ``self_attn`` and ``feed_forward`` may be given ready-made, for heads or widths of another kind.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        dropout: float | nn.Module,
        *,
        self_attn: MultiHeadAttention | None = None,
        feed_forward: FeedForward | None = None,
        norm_epsilon: float = 1e-5,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn or MultiHeadAttention(d_model, n_heads)
        self.feed_forward = feed_forward or FeedForward(d_model, d_ff)
        self.norm1 = nn.LayerNorm(d_model, eps=norm_epsilon)
        self.norm2 = nn.LayerNorm(d_model, eps=norm_epsilon)
        self.dropout = as_module(dropout)
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D); mask broadcastable to (B, H, T, T). Returns (B, T, D)."""
        x = self._residual(self.norm1, x, lambda y: self.self_attn(y, y, y, mask))
        return self._residual(self.norm2, x, self.feed_forward)

    def _residual(self, norm: nn.LayerNorm, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return residual(x, sublayer, norm=norm, dropout=self.dropout, pre_norm=self.pre_norm)


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
        feed_forward: FeedForward,
        dropout: float | nn.Module,
        norm_epsilon: float = 1e-5,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.cross_attn = cross_attn
        self.feed_forward = feed_forward
        self.norm1 = nn.LayerNorm(d_model, eps=norm_epsilon)
        self.norm2 = nn.LayerNorm(d_model, eps=norm_epsilon)
        self.norm3 = nn.LayerNorm(d_model, eps=norm_epsilon)
        self.dropout = as_module(dropout)
        self.pre_norm = pre_norm

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
            newer = self.self_attn.keys_values(y, y)
            own = newer if own is None else own.append(newer)
            return self.self_attn.attend(y, own, mask)

        x = self._residual(self.norm1, x, self_attention)
        x = self._residual(self.norm2, x, lambda y: self.cross_attn.attend(y, cache.memory, memory_mask))
        x = self._residual(self.norm3, x, self.feed_forward)
        return x, LayerCache(cache.memory, own)

    def _residual(self, norm: nn.LayerNorm, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return residual(x, sublayer, norm=norm, dropout=self.dropout, pre_norm=self.pre_norm)


def residual(x: Tensor, sublayer: Callable[[Tensor], Tensor], *, norm: nn.Module, dropout: nn.Module, pre_norm: bool) -> Tensor:
    """LayerNorm(x + Dropout(Sublayer(x))) as in the paper (3.1, 5.4), or x + Dropout(Sublayer(LayerNorm(x))) with ``pre_norm``."""
    if pre_norm:
        x = x + dropout(sublayer(norm(x)))
        return x
    normed: Tensor = norm(x + dropout(sublayer(x)))
    return normed
