"""An `Encoder` made ready for search (Section 3.1): its products prepared, and no calls that search does not need.

Shapes:  B sentences   S source positions   N = B·S rows   H heads   D = d_model
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.products import Precision, Product, feed_forward, with_products
from dragoman.model.attention import FusedAttention, MultiHeadAttention
from dragoman.model.layers import EncoderLayer, Inner
from dragoman.model.linear import Linear
from dragoman.model.transformer import Encoder


class _PreparedEncoderLayer:
    """An `EncoderLayer` with its products prepared."""

    def __init__(self, layer: EncoderLayer, precision: Precision) -> None:
        attention = layer.self_attn
        self.heads, sizes = attention.n_heads, (attention.d_k, attention.d_k, attention.d_v)
        self.widths = [attention.n_heads * size for size in sizes]
        self.own = Product(attention.w_q, attention.w_k, attention.w_v, precision=precision).of_rows()
        self.concat = Product(attention.w_concat, precision=precision).of_rows()
        self.feed_forward = feed_forward(layer.feed_forward, precision)
        self.around = [partial(layer.around, norm=norm_of(norm), dropout=unchanged) for norm in (layer.norm1, layer.norm2)]

    def __call__(self, x: Tensor, sentences: int, mask: Tensor | None) -> Tensor:
        """x (N, D) of so many sentences, mask (B, 1, 1, S) or None; returns (N, D)."""

        def self_attention(y: Tensor) -> Tensor:
            parts = (
                part.view(sentences, -1, self.heads, part.size(1) // self.heads) for part in self.own(y).split_with_sizes(self.widths, 1)
            )
            query, key, value = (part.transpose(1, 2) for part in parts)  # (B, H, S, d_k or d_v)
            return self.concat(rows_of(F.scaled_dot_product_attention(query, key, value, attn_mask=mask)))

        return self.around[1](self.around[0](x, self_attention), self.feed_forward)


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


def is_plain(attention: object) -> bool:
    """Whether attention is as in the paper (3.2.2), with PyTorch's kernel and nothing beside its four matrices."""
    if type(attention) is not MultiHeadAttention or attention.query_norm or attention.key_norm or attention.rotary:
        return False
    if any(type(each) is not Linear for each in (attention.w_q, attention.w_k, attention.w_v, attention.w_concat)):
        return False
    return attention.kv_heads == attention.n_heads and type(attention.attention) is FusedAttention


def unchanged(x: Tensor) -> Tensor:
    """x itself, as dropout is in evaluation."""
    return x


def rows_of(heads: Tensor) -> Tensor:
    """(B, H, K, width) as (N, H·width)."""
    return heads.transpose(1, 2).reshape(heads.size(0) * heads.size(2), -1)


def norm_of(module: nn.Module) -> Inner:
    """A function of x (N, D) that is the norm, without the calls that a module's takes."""
    if type(module) is not nn.LayerNorm:
        return module.forward
    shape, weight, bias, epsilon = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
