"""The layers of a `Transformer` made ready for search: their products prepared, and no calls that search does not need.

Shapes:  B sentences   K hypotheses of each   N rows, B·K or B·S   S source positions   T = keys of a sentence, those of all its hypotheses
         H heads   w = d_k or d_v   D = d_model
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.caches import Growing, Memory, Seen
from dragoman.decoding.products import Precision, Product, bias_of, feed_forward, with_products
from dragoman.model.attention import FusedAttention, MultiHeadAttention
from dragoman.model.layers import DecoderLayer, EncoderLayer, Inner
from dragoman.model.linear import Linear
from dragoman.model.transformer import Encoder

_MANY = 32  # heads of sentences, from which on attention is products of all of them


@dataclass(frozen=True)
class Folded:
    """Attention to one sentence with the products before and behind it, softmax(x Aᵀ + b) C with the softmax over each head's S.

    With a head's keys K, values V and its parts of W_q, b_q and W_o: A = K W_q / √d_k, b = K b_q / √d_k, and C = V W_o + b_o / H.
    """

    heads: int
    before: Tensor  # Aᵀ (D, H·S)
    bias: Tensor  # b (H·S)
    behind: Tensor  # C (H·S, D)

    def __call__(self, x: Tensor) -> Tensor:
        """x (K, D) of the sentence's hypotheses; returns (K, D)."""
        scores = torch.addmm(self.bias, x, self.before).view(len(x), self.heads, -1)  # (K, H, S)
        return torch.mm(torch.softmax(scores, -1).view(len(x), -1), self.behind)


class PreparedDecoderLayer:
    """A `DecoderLayer` with its products prepared."""

    def __init__(self, layer: DecoderLayer, precision: Precision) -> None:
        own, cross = layer.self_attn, layer.cross_attn
        self.heads, self.sizes = own.n_heads, (own.d_k, own.d_v)
        self.widths = [self.heads * own.d_k, self.heads * sum(self.sizes)]

        def product(*layers: Linear) -> Inner:
            return Product(*layers, precision=precision).of_rows()

        # A step of one sentence is mostly calls, so there are as few as can be between the products.
        self.own, self.own_concat = product(own.w_q, own.w_k, own.w_v), product(own.w_concat)
        query = Product(cross.w_q, precision=precision)
        self.folding = None if query.wide is None else _around_memory(cross)  # None where the products of few rows are not in float32
        self.query, self.cross_concat = query.of_rows(), product(cross.w_concat)
        self._memory = Product(cross.w_k, cross.w_v, precision=precision).forward
        self.feed_forward = feed_forward(layer.feed_forward, precision)
        self.around = [partial(layer.around, norm=norm_of(norm), dropout=_same) for norm in (layer.norm1, layer.norm2, layer.norm3)]

    def memory(self, encoded: Tensor, fewest: int) -> Memory:
        """That of the encoder's output (B, S, D), with keys of nobody's up to the fewest."""
        return Memory.of(*self._keys_values(encoded), as_columns=_are_many(len(encoded) * self.heads, encoded), fewest=fewest)

    def folded(self, encoded: Tensor) -> Folded:
        """The same of one sentence (1, S, D), with the products around it."""
        keys, values = (each[0].transpose(0, 1) for each in self._keys_values(encoded))  # (H, S, w)
        queries, query_bias, concat, concat_bias = cast("tuple[Tensor, ...]", self.folding)
        before, behind = torch.bmm(keys, queries), torch.baddbmm(concat_bias, values, concat)  # (H, S, D)
        return Folded(self.heads, before.flatten(0, 1).t(), torch.bmm(keys, query_bias).flatten(), behind.flatten(0, 1))

    def _keys_values(self, encoded: Tensor) -> list[Tensor]:
        """Those (B, S, H, w) of the encoder's output (B, S, D)."""
        parts = self._memory(encoded).split_with_sizes([self.heads * size for size in self.sizes], 2)
        return [part.view(*part.shape[:2], self.heads, -1) for part in parts]

    def __call__(
        self, x: Tensor, own: Growing, memory: Memory | Folded, masks: tuple[Tensor | None, Tensor], at: tuple[int, int]
    ) -> Tensor:
        """x (N, D) of the new positions, whose keys and values come to those ``at`` one of own; returns (N, D)."""
        count, (start, shown) = masks[1].size(2), at

        def self_attention(y: Tensor) -> Tensor:
            query, keys_values = self.own(y).split_with_sizes(self.widths, 1)
            own.write(start, keys_values)
            return self.own_concat(self._attention(self._heads(query, count), own.part(0, shown), masks[0]))

        def cross_attention(y: Tensor) -> Tensor:
            return self.cross_concat(self._attention(self._heads(self.query(y), count), cast(Memory, memory), masks[1]))

        x = self.around[0](x, self_attention)
        x = self.around[1](x, memory if isinstance(memory, Folded) else cross_attention)
        return self.around[2](x, self.feed_forward)

    def _heads(self, rows: Tensor, count: int) -> Tensor:
        """(N, H·width) as (B, H, K, width)."""
        return rows.view(-1, count, self.heads, rows.size(1) // self.heads).transpose(1, 2)

    def _attention(self, query: Tensor, seen: Seen, mask: Tensor | None) -> Tensor:
        """query (B, H, K, d_k), what is seen, mask (B, 1, K, T) or None where all see all; returns (N, H·d_v)."""
        (sentences, heads, count, width), (key, value) = query.shape, seen
        if key.stride(3) == 1 and not _are_many(sentences * heads, query):
            return _rows(F.scaled_dot_product_attention(query, key, value, attn_mask=mask))
        # PyTorch's own takes each head of each sentence for a task, and for one so small mostly what a task takes. Its fast way
        # does not take keys that lie as columns, which a batch keeps when few of its sentences are left.
        scores = torch.bmm(query.reshape(-1, count, width), key.flatten(0, 1).transpose(1, 2)).mul_(width**-0.5)  # (B·H, K, T)
        if mask is not None:
            scores.view(sentences, heads, count, -1).add_(mask)
        return _rows(torch.bmm(torch.softmax(scores, -1), value.flatten(0, 1)).view(sentences, heads, count, -1))


class _PreparedEncoderLayer:
    """An `EncoderLayer` with its products prepared."""

    def __init__(self, layer: EncoderLayer, precision: Precision) -> None:
        attention = layer.self_attn
        self.heads, sizes = attention.n_heads, (attention.d_k, attention.d_k, attention.d_v)
        self.widths = [attention.n_heads * size for size in sizes]
        self.own = Product(attention.w_q, attention.w_k, attention.w_v, precision=precision).of_rows()
        self.concat = Product(attention.w_concat, precision=precision).of_rows()
        self.feed_forward = feed_forward(layer.feed_forward, precision)
        self.around = [partial(layer.around, norm=norm_of(norm), dropout=_same) for norm in (layer.norm1, layer.norm2)]

    def __call__(self, x: Tensor, sentences: int, mask: Tensor | None) -> Tensor:
        """x (N, D) of so many sentences, mask (B, 1, 1, S) or None; returns (N, D)."""

        def attention(y: Tensor) -> Tensor:
            parts = self.own(y).split_with_sizes(self.widths, 1)
            query, key, value = (part.view(sentences, -1, self.heads, part.size(1) // self.heads).transpose(1, 2) for part in parts)
            return self.concat(_rows(F.scaled_dot_product_attention(query, key, value, attn_mask=mask)))  # (B, H, S, d_v) inside

        return self.around[1](self.around[0](x, attention), self.feed_forward)


class PreparedEncoder:
    """An `Encoder` with its products prepared."""

    def __init__(self, encoder: Encoder, precision: Precision) -> None:
        self.embedding, self.positions, self.embedding_norm = encoder.embedding, encoder.positions, encoder.embedding_norm
        self.final_norm = norm_of(encoder.final_norm)
        self.layers = [_PreparedEncoderLayer(cast(EncoderLayer, layer), precision) for layer in encoder.layers]

    def __call__(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """source (B, S) of ids, mask (B, 1, 1, S) or None; returns the memory (B, S, D)."""
        embedded = self.positions.forward(self.embedding.forward(source))  # (B, S, D)
        x = self.embedding_norm.forward(embedded).flatten(0, 1)  # (N, D)
        for layer in self.layers:
            x = layer(x, len(source), mask)
        return self.final_norm(x).view(embedded.shape)


def prepared_encoder(encoder: nn.Module, precision: Precision) -> Callable[[Tensor, Tensor | None], Tensor]:
    """A function of source ids (B, S) and a mask (B, 1, 1, S) or None that is the encoder in evaluation, its products prepared."""
    if type(encoder) is not Encoder or encoder.token_types is not None:
        return with_products(encoder, precision)
    plain = all(type(layer) is EncoderLayer and is_plain(layer.self_attn) for layer in encoder.layers)
    return PreparedEncoder(encoder, precision) if plain else with_products(encoder, precision)


def is_plain(attention: MultiHeadAttention) -> bool:
    """Whether attention is as in the paper, with PyTorch's kernel."""
    changed = type(attention) is not MultiHeadAttention or attention.query_norm or attention.key_norm or attention.rotary
    return not changed and attention.kv_heads == attention.n_heads and type(attention.attention) is FusedAttention


def _same(x: Tensor) -> Tensor:
    return x


def _are_many(heads: int, like: Tensor) -> bool:
    """Whether attention of so many heads of all sentences is products of them all."""
    return heads >= _MANY and like.device.type == "cpu"


def _rows(heads: Tensor) -> Tensor:
    """(B, H, K, width) as (N, H·width)."""
    return heads.transpose(1, 2).reshape(heads.size(0) * heads.size(2), -1)


def _around_memory(cross: MultiHeadAttention) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What stands on both sides of a memory: W_q (H, d_k, D) and b_q (H, d_k, 1) over √d_k; W_o (H, d_v, D), b_o (1, 1, D) over H."""
    heads, biases = cross.n_heads, [bias_of(layer) for layer in (cross.w_q, cross.w_concat)]
    query, query_bias = (each.view(heads, cross.d_k, -1) * cross.d_k**-0.5 for each in (cross.w_q.weight.detach(), biases[0]))
    concat = cross.w_concat.weight.detach().t().reshape(heads, cross.d_v, -1)
    return query, query_bias, concat.contiguous(), biases[1].view(1, 1, -1) / heads


def norm_of(module: nn.Module) -> Inner:
    """A function of x (N, D) that is the norm, without the calls that a module's takes."""
    if type(module) is not nn.LayerNorm:
        return module.forward
    shape, weight, bias, epsilon = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
