"""Scaled dot-product and multi-head attention (Section 3.2).

Shapes:  B batch   H heads   G heads of keys and values, H unless fewer   Tq, Tk query and key positions   D = d_model   K = d_k   V = d_v
Masks are boolean; True where a query may attend to a key.
"""

import math
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dragoman.model.cache import KeysValues
from dragoman.model.embedding import RotaryPositions
from dragoman.model.linear import Linear, linear_together, products_are_narrow
from dragoman.model.masks import as_boolean

_FUSED_FROM = 512
"""Keys from which the fused kernel pays in bfloat16 on a CPU; with few, the plain equation takes a fraction of its time."""


_ROWS_FROM, _GRADIENT_ROWS_FROM = 64, 32
"""Keys from which PyTorch's softmax of bfloat16, and its gradient, are as fast as some passes over all numbers: they go row by row."""


class Attended(NamedTuple):
    """What attention returns: the output (B, H, Tq, V), and the weights (B, H, Tq, Tk) or None where a kernel does not give them."""

    output: Tensor
    weights: Tensor | None


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √d_k) V, equation (1), spelled as the paper spells it.

    query (B, H, Tq, K); key (B, H, Tk, K); value (B, H, Tk, V); mask broadcastable to (B, H, Tq, Tk); dropout acts on the weights.
    A query that may attend to nothing gets zeros, with finite gradients. Returns the output (B, H, Tq, V) and the weights (B, H, Tq, Tk).
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (B, H, Tq, Tk) §(1) scores = Q Kᵀ / √d_k
    if mask is None:
        weights = scores.softmax(-1)  # §(1) weights = softmax(scores)
    else:
        blocked = ~as_boolean(mask)  # §3.2.3 blocked = where a query may not attend
        # The lowest finite number stands for the paper's -∞: a row of -∞ alone would be not a number.
        weights = scores.masked_fill(blocked, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(blocked, 0.0)  # §(1) weights
    return F.dropout(weights, dropout) @ value, weights  # (B, H, Tq, V) §(1) heads = weights V


class ScaledDotProductAttention(nn.Module):
    """Equation (1) as a module that returns its weights; dropout acts on them while training."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Attended:
        """Shapes as in `scaled_dot_product_attention`."""
        return Attended(*scaled_dot_product_attention(query, key, value, mask, dropout=self.dropout if self.training else 0.0))


class FusedAttention(nn.Module):
    """Equation (1) by PyTorch's fused kernel: the same output as `ScaledDotProductAttention` to rounding, without the weights."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Attended:
        """Shapes as in `scaled_dot_product_attention`; the weights are None."""
        if mask is not None:
            mask = as_boolean(mask)
            mask = mask if mask.dim() > 1 else mask[None]  # the kernel takes no mask of one dimension
        dropout = self.dropout if self.training else 0.0
        if products_are_narrow(query) and key.size(2) < _FUSED_FROM:
            if not dropout:
                return Attended(_narrow_attention(query, key, value, mask), None)
            query, key, value = query.float(), key.float(), value.float()
            with torch.autocast("cpu", enabled=False):
                return Attended(F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout), None)
        return Attended(F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout), None)


def _narrow_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Equation (1) in bfloat16 for short sequences on a CPU; shapes as in `scaled_dot_product_attention`."""
    return cast(Tensor, _NarrowAttention.apply(query, key, value, mask))  # type: ignore[no-untyped-call]


class _NarrowAttention(torch.autograd.Function):
    """Scores get their scale and mask inside the product, which adds up in float32, so they are rounded once."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, queries, width = query.shape
        keys, ctx.scale = key.size(2), width**-0.5
        with torch.autocast("cpu", enabled=False):
            q, k, v = (each.bfloat16().reshape(batch * heads, each.size(2), -1) for each in (query, key, value))  # (B·H, T, K)
            lowest = torch.finfo(q.dtype).min / 2
            added = q.new_zeros(()) if mask is None else q.new_zeros(mask.shape).masked_fill_(~mask, lowest)
            added = added.expand(batch, heads, queries, keys).reshape(batch * heads, queries, keys)
            weights = _softmax(torch.baddbmm(added, q, k.transpose(1, 2), alpha=ctx.scale))  # (B·H, Tq, Tk)
            if mask is not None and (torch.compiler.is_compiling() or not mask.any(-1).all()):
                sees = mask.any(-1, keepdim=True)
                weights.view(batch, heads, queries, keys).masked_fill_(~sees, 0)  # a query that sees nothing gets zeros
            ctx.save_for_backward(q, k, v, weights)
            ctx.dtypes = query.dtype, key.dtype, value.dtype
            return (weights @ v).view(batch, heads, queries, -1).to(query.dtype)  # (B, H, Tq, V)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        batch, heads = grads[0].shape[:2]
        grad = grads[0].bfloat16().reshape(batch * heads, grads[0].size(2), -1)  # (B·H, Tq, V)
        grad_weights = grad @ v.transpose(1, 2)  # (B·H, Tq, Tk)
        grad_scores = _softmax_backward(grad_weights, weights).mul_(ctx.scale)
        found = grad_scores @ k, grad_scores.transpose(1, 2) @ q, weights.transpose(1, 2) @ grad
        return *(each.view(batch, heads, each.size(1), -1).to(dtype) for each, dtype in zip(found, ctx.dtypes, strict=True)), None


def _softmax(scores: Tensor) -> Tensor:
    """Over the last dimension of scores (B·H, Tq, Tk), in bfloat16."""
    if scores.size(-1) >= _ROWS_FROM:
        return scores.softmax(-1)
    wide = scores.float()
    exponentials = wide.sub_(wide.amax(-1, keepdim=True)).exp_()
    return exponentials.div_(exponentials.sum(-1, keepdim=True)).bfloat16()


def _softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """The gradient of the scores (B·H, Tq, Tk), weights ⊙ (grad - Σ grad ⊙ weights), in bfloat16."""
    if weights.size(-1) >= _GRADIENT_ROWS_FROM:
        return torch._softmax_backward_data(grad, weights, -1, weights.dtype)
    wide = weights.float()
    both = grad * wide  # float32
    return both.sub_(wide.mul_(both.sum(-1, keepdim=True))).bfloat16()


class MultiHeadAttention(nn.Module):
    """Concat(head_1 … head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), Section 3.2.2.

    ``d_k`` and ``d_v`` are d_model / n_heads when not given. ``attention`` is replaceable: a `ScaledDotProductAttention` there shows the
    weights. Named departures: with ``kv_heads`` each head of keys and values serves n_heads / kv_heads heads of queries;
    ``query_norm`` and ``key_norm``, modules over K, and ``rotary`` act on the heads before their product, where they are set.
    Raises ValueError when d_model does not divide by n_heads and d_k or d_v is not given, or n_heads does not by kv_heads.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, d_k: int | None = None, d_v: int | None = None, kv_heads: int | None = None,
        bias: bool = True, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if d_model % n_heads and (d_k is None or d_v is None):
            raise ValueError(f"d_model={d_model} does not divide by n_heads={n_heads}; change one, or give both d_k and d_v")
        if kv_heads and n_heads % kv_heads:
            raise ValueError(f"n_heads={n_heads} does not divide by kv_heads={kv_heads}; change one")
        self.d_model, self.n_heads, self.kv_heads = d_model, n_heads, kv_heads or n_heads
        self.d_k = d_model // n_heads if d_k is None else d_k
        self.d_v = d_model // n_heads if d_v is None else d_v
        self.w_q = Linear(d_model, n_heads * self.d_k, bias=bias)
        self.w_k = Linear(d_model, self.kv_heads * self.d_k, bias=bias)
        self.w_v = Linear(d_model, self.kv_heads * self.d_v, bias=bias)
        self.w_concat = Linear(n_heads * self.d_v, d_model, bias=bias)  # the paper's W^O
        self.attention: nn.Module = FusedAttention(dropout=dropout)
        self.query_norm: nn.Module | None = None
        self.key_norm: nn.Module | None = None
        self.rotary: RotaryPositions | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """query (B, Tq, D); key, value (B, Tk, D); mask broadcastable to (B, H, Tq, Tk). Returns (B, Tq, D)."""
        if query is key and key is value:
            return self.attend_to_itself(query, mask)[0]
        return self.attend(query, self.keys_values(key, value), mask)

    def keys_values(self, key: Tensor, value: Tensor) -> KeysValues:
        """The projected heads of key and value (B, Tk, D): (B, G, Tk, K) and (B, G, Tk, V)."""
        if key is value:
            keys, values = linear_together(key, self.w_k, self.w_v, narrow=True)  # (B, Tk, G·K) §3.2.2 keys, values
        else:
            keys, values = self.w_k(key), self.w_v(value)
        return self._keys_values(keys, values)

    def attend(self, query: Tensor, keys_values: KeysValues, mask: Tensor | None = None) -> Tensor:
        """Attention of query (B, Tq, D) over projected keys and values; returns (B, Tq, D)."""
        (queries,) = linear_together(query, self.w_q, narrow=True)  # (B, Tq, H·K) §3.2.2 queries = Q W^Q
        return self._attend(queries, keys_values, mask)

    def attend_to_itself(
        self, x: Tensor, mask: Tensor | None = None, *, past: KeysValues | None = None, padding: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """Attention of new positions x (B, Tq, D) over the past ones and themselves: (B, Tq, D), and the keys and values of them all.

        ``padding`` (B,) is how many positions stand before the first token of each row, where those are not counted.
        """
        start: int | Tensor = 0 if past is None else past.key.size(2)
        if padding is not None:
            start = start - padding
        queries, keys, values = linear_together(x, self.w_q, self.w_k, self.w_v, narrow=True)  # (B, Tq, H·K) §3.2.2 queries, keys, values
        newer = self._keys_values(keys, values, start=start)
        seen = newer if past is None else past.append(newer)
        return self._attend(queries, seen, mask, start=start), seen

    def _keys_values(self, keys: Tensor, values: Tensor, *, start: int | Tensor = 0) -> KeysValues:
        return KeysValues(self._placed(_heads(keys, self.kv_heads), self.key_norm, start), _heads(values, self.kv_heads))

    def _attend(self, queries: Tensor, keys_values: KeysValues, mask: Tensor | None, *, start: int | Tensor = 0) -> Tensor:
        queries = self._placed(_heads(queries, self.n_heads), self.query_norm, start)  # (B, H, Tq, K)
        key, value = keys_values
        if self.kv_heads != self.n_heads:
            key, value = (heads.repeat_interleave(self.n_heads // self.kv_heads, 1) for heads in keys_values)  # (B, H, Tk, K)
        heads: Attended = self.attention(queries, key, value, mask)
        concatenated = heads.output.transpose(1, 2).flatten(2)  # (B, Tq, H·V) §3.2.2 concatenated = Concat(head_1 … head_h)
        projected: Tensor = self.w_concat(concatenated)  # (B, Tq, D) §3.2.2 projected = concatenated W^O
        return projected

    def _placed(self, heads: Tensor, norm: nn.Module | None, start: int | Tensor) -> Tensor:
        """Heads of queries or keys as they meet: normed, in float32 at least, and rotated to their positions, where that is set."""
        if norm is not None:
            heads = norm(heads.to(torch.promote_types(heads.dtype, torch.float32))).to(heads.dtype)
        return heads if self.rotary is None else self.rotary(heads, start)


def _heads(projected: Tensor, count: int) -> Tensor:
    return projected.view(*projected.shape[:-1], count, -1).transpose(1, 2)  # (B, H, T, K)
