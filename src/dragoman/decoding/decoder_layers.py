"""A step of decoder layers (Section 3.1) over hypotheses that share a cache, as functions that PyTorch can run by itself (`ByItself`).

Shapes:  B sentences   K hypotheses of each   N = B·K rows   S source positions   T = keys of a sentence, those of all its hypotheses
         H heads   w = d_k or d_v   D = d_model

Keys and values are pairs (B, H, T, w), with room behind what is seen where they grow (`caches`).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.caches import KeysValues, as_heads, write
from dragoman.decoding.matrices import Matrix, product, relu_products

Masks = tuple[Tensor | None, Tensor]
"""That of a hypothesis's own keys (B, 1, K, T), None where all see all, and that of the source's (B, 1, K, S): 0, -∞ at what is unseen."""


class Folded(NamedTuple):
    """Attention to one sentence with the products before and behind it, softmax(x Aᵀ + b) C with the softmax over each head's S.

    With a head's keys K, values V and its parts of W_q, b_q and W_o: A = K W_q / √d_k, b = K b_q / √d_k, and C = V W_o + b_o / H.
    """

    before: Tensor  # Aᵀ (D, H·S)
    bias: Tensor  # b (H·S)
    behind: Tensor  # C (H·S, D)


class Heads(NamedTuple):
    """Both attentions of a decoder layer."""

    n_heads: int  # H
    own: Matrix  # D to queries, keys and values side by side
    own_concat: Matrix
    query: Matrix
    cross_concat: Matrix


class PlainLayer(NamedTuple):
    """A decoder layer as in the paper."""

    heads: Heads
    first: Matrix  # of equation (2)
    second: Matrix
    norms: list[Tensor]  # weight and bias of the three
    epsilon: float


def self_attention(x: Tensor, heads: Heads, own: KeysValues, mask: Tensor | None, start: int, shown: int, many: int) -> Tensor:
    """x (N, D); returns (N, D). The keys and values of x become those of own from ``start`` on, of which ``shown`` are seen."""
    key, value = own
    sentences, size = key.size(0), key.size(3)
    count, width = x.size(0) // sentences, heads.n_heads * size
    made = product(x, heads.own)  # (N, 2·H·d_k + H·d_v)
    write(own, start, made[:, width:])
    seen = (key.narrow(2, 0, shown), value.narrow(2, 0, shown))
    return product(attention(as_heads(made[:, :width], count, heads.n_heads), seen, mask, many), heads.own_concat)


def cross_attention(x: Tensor, heads: Heads, memory: KeysValues, mask: Tensor, many: int) -> Tensor:
    """x (N, D); returns (N, D)."""
    query = as_heads(product(x, heads.query), mask.size(2), heads.n_heads)
    return product(attention(query, memory, mask, many), heads.cross_concat)


def folded_attention(x: Tensor, heads: int, folded: Folded) -> Tensor:
    """x (K, D) of the sentence's hypotheses; returns (K, D)."""
    scores = torch.addmm(folded.bias, x, folded.before).view(x.size(0), heads, -1)  # (K, H, S)
    return torch.mm(torch.softmax(scores, -1).view(x.size(0), -1), folded.behind)


def attention(query: Tensor, seen: KeysValues, mask: Tensor | None, many: int) -> Tensor:
    """query (B, H, K, d_k), what is seen, mask (B, 1, K, T) or None where all see all; returns (N, H·d_v).

    From ``many`` heads of sentences on it is products of them all.
    """
    key, value = seen
    sentences, heads, count, width = query.size(0), query.size(1), query.size(2), query.size(3)
    if key.stride(3) == 1 and sentences * heads < many:
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    else:
        # PyTorch's own takes each head of each sentence for a task, and for one so small mostly what a task takes. Its fast way
        # does not take keys that lie as columns, which a batch keeps when few of its sentences are left.
        scores = torch.bmm(query.reshape(-1, count, width), key.flatten(0, 1).transpose(1, 2)).mul_(width**-0.5)  # (B·H, K, T)
        if mask is not None:
            scores.view(sentences, heads, count, -1).add_(mask)
        attended = torch.bmm(torch.softmax(scores, -1), value.flatten(0, 1)).view(sentences, heads, count, -1)
    return attended.transpose(1, 2).reshape(sentences * count, -1)


class PlainLayers(nn.Module):
    """Decoder layers as in the paper, or with their norms before the sub-layers."""

    layers: list[PlainLayer]

    def __init__(self, layers: list[PlainLayer], *, pre_norm: bool, many: int) -> None:
        super().__init__()
        self.layers, self.pre_norm, self.many = layers, pre_norm, many

    def forward(
        self, x: Tensor, own: list[KeysValues], memory: list[KeysValues], folded: list[Folded], masks: Masks, start: int, shown: int
    ) -> Tensor:
        """x (N, D) of the new positions; returns (N, D). Either memory or folded is empty; the rest as for `self_attention`."""
        for number, layer in enumerate(self.layers):
            y = self.before(x, layer, 0)
            x = self.behind(x + self_attention(y, layer.heads, own[number], masks[0], start, shown, self.many), layer, 0)
            y = self.before(x, layer, 1)
            if len(folded) > 0:
                y = folded_attention(y, layer.heads.n_heads, folded[number])
            else:
                y = cross_attention(y, layer.heads, memory[number], masks[1], self.many)
            x = self.behind(x + y, layer, 1)
            x = self.behind(x + relu_products(self.before(x, layer, 2), layer.first, layer.second), layer, 2)
        return x

    def before(self, x: Tensor, layer: PlainLayer, number: int) -> Tensor:
        """What a sub-layer, by its number from 0, is given of x (N, D)."""
        return normed(x, layer, number) if self.pre_norm else x

    def behind(self, x: Tensor, layer: PlainLayer, number: int) -> Tensor:
        """What becomes of a sum x (N, D) behind it."""
        return x if self.pre_norm else normed(x, layer, number)


def normed(x: Tensor, layer: PlainLayer, number: int) -> Tensor:
    """x (N, D) by the layer's norm of this number, from 0."""
    return torch.layer_norm(x, [x.size(1)], layer.norms[2 * number], layer.norms[2 * number + 1], layer.epsilon)
