"""An `Encoder` made ready for search (Section 3.1): its products prepared, and no calls that search does not need.

Shapes:  B sentences   S source positions   N tokens, or B·S where padding is computed like them   H heads   D = d_model   X any width
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
from dragoman.model.masks import padding_mask
from dragoman.model.transformer import Encoder

_FULL = 0.9
"""The share of tokens from which on padding is computed like them: there is little then that leaving it out could save."""


class Tokens:
    """Where the tokens of a padded batch stand, so that what is done to each position alike is not done to padding.

    Sentences are of many lengths: where one is long, most positions of the others are padding. ``mask`` (B, S) is True at tokens.
    """

    def __init__(self, mask: Tensor) -> None:
        (sentences, length), count = mask.shape, int(mask.sum())
        self.shape, self.mask = (sentences, length), None if count == mask.numel() else mask
        packed = count <= _FULL * mask.numel() and mask.device.type == "cpu"
        self.places = mask.flatten().nonzero()[:, 0] if packed else None  # (N,) among the B·S positions; None where all are computed
        self._room: Tensor | None = None

    def rows(self, padded: Tensor) -> Tensor:
        """padded (B, S, X) or (B·S, X) as rows (N, X)."""
        rows = padded.view(self.shape[0] * self.shape[1], -1)
        return rows if self.places is None else rows.index_select(0, self.places)

    def padded(self, rows: Tensor) -> Tensor:
        """rows (N, X) as (B, S, X), with zeros at padding where it is not computed."""
        return self._into(None, rows)

    def in_passing(self, rows: Tensor) -> Tensor:
        """The same, in room that the next rows of this width take over."""
        padded = self._into(self._room, rows)
        if self.places is not None:
            self._room = padded
        return padded

    def _into(self, room: Tensor | None, rows: Tensor) -> Tensor:
        if self.places is not None:
            shape = self.shape[0] * self.shape[1], rows.size(1)
            if room is None or (room.size(-1), room.dtype) != (rows.size(1), rows.dtype):
                room = rows.new_zeros(shape)
            rows = room.view(shape).index_copy_(0, self.places, rows)
        return rows.view(*self.shape, -1)


class _PreparedEncoderLayer:
    """An `EncoderLayer` with its products prepared."""

    def __init__(self, layer: EncoderLayer, precision: Precision) -> None:
        attention = layer.self_attn
        self.heads, sizes = attention.n_heads, (attention.d_k, attention.d_k, attention.d_v)
        self.widths = [attention.n_heads * size for size in sizes]
        self.own = Product(attention.w_q, attention.w_k, attention.w_v, precision=precision).forward
        self.concat = Product(attention.w_concat, precision=precision).forward
        self.feed_forward = feed_forward(layer.feed_forward, precision)
        self.around = [partial(layer.around, norm=norm_of(norm), dropout=unchanged) for norm in (layer.norm1, layer.norm2)]

    def __call__(self, x: Tensor, tokens: Tokens, mask: Tensor | None) -> Tensor:
        """x (N, D) of these tokens, mask (B, 1, 1, S) or None; returns (N, D)."""

        def self_attention(y: Tensor) -> Tensor:
            made = tokens.in_passing(self.own(y))  # (B, S, H·(2·d_k + d_v))
            parts = (part.view(*tokens.shape, self.heads, -1) for part in made.split_with_sizes(self.widths, 2))
            query, key, value = (part.transpose(1, 2) for part in parts)  # (B, H, S, d_k or d_v)
            return self.concat(tokens.rows(rows_of(F.scaled_dot_product_attention(query, key, value, attn_mask=mask))))

        return self.around[1](self.around[0](x, self_attention), self.feed_forward)


class PreparedEncoder:
    """An `Encoder` with its products prepared."""

    def __init__(self, encoder: Encoder, precision: Precision) -> None:
        self.embedding, self.positions, self.embedding_norm = encoder.embedding, encoder.positions, encoder.embedding_norm
        self.final_norm = norm_of(encoder.final_norm)
        self.layers = [_PreparedEncoderLayer(cast(EncoderLayer, layer), precision) for layer in encoder.layers]

    def __call__(self, source: Tensor, tokens: Tokens) -> Tensor:
        """source (B, S) of ids; returns the memory's rows (N, D)."""
        embedded = self.positions.forward(self.embedding.forward(source))  # (B, S, D)
        x, mask = tokens.rows(self.embedding_norm.forward(embedded)), attention_mask(tokens)
        for layer in self.layers:
            x = layer(x, tokens, mask)
        return self.final_norm(x)


def prepared_encoder(encoder: nn.Module, precision: Precision) -> Callable[[Tensor, Tokens], Tensor]:
    """A function of source ids (B, S) and their tokens to the memory's rows (N, D): the encoder in evaluation, its products prepared."""
    if type(encoder) is Encoder and encoder.token_types is None and all(map(_is_plain_layer, encoder.layers)):
        return PreparedEncoder(encoder, precision)
    prepared = with_products(encoder, precision)
    return lambda source, tokens: tokens.rows(prepared(source, attention_mask(tokens)))


def _is_plain_layer(layer: nn.Module) -> bool:
    return type(layer) is EncoderLayer and is_plain(layer.self_attn)


def attention_mask(tokens: Tokens) -> Tensor | None:
    """That of keys, (B, 1, 1, S), or None where all are tokens."""
    return None if tokens.mask is None else padding_mask(tokens.mask)


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
