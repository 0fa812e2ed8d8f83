"""The decoder of a `Transformer` made ready for search: its products prepared, and a cache that hypotheses share.

Shapes:  B sentences   K hypotheses of each   N = B·K rows   S source positions   T = keys of a sentence, those of all its hypotheses
         H heads   D = d_model   V target vocabulary

The hypotheses of a sentence stand in attention as its queries, so the memory is kept once a sentence, and what one hypothesis has computed
stays where it is: when hypotheses change places, only ``seen`` does, which says whose keys are whose.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.decoding.products import AskedPrecision, OutputProduct, Precision, Product, check_products, feed_forward, with_products
from dragoman.decoding.step import StepModel, TransformerStep
from dragoman.errors import UsageError, option
from dragoman.model import EncoderDecoder, Transformer
from dragoman.model.attention import FusedAttention, MultiHeadAttention
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import Linear
from dragoman.model.masks import padding_mask

_ROOM = 32  # keys that a new cache has room for


class _KeysValues(NamedTuple):
    """Of one layer: (B, H, room, width) each, or as long as the memory."""

    key: Tensor
    value: Tensor

    def moved(self, places: Tensor, sources: Tensor, sentences: int) -> "_KeysValues":
        """The first so many sentences, after those at ``sources`` (M,) were copied to ``places`` (M,), in place."""
        for part in self if len(places) else ():
            part.index_copy_(0, places, part.index_select(0, sources))
        return _KeysValues(*(part[:sentences] for part in self))

    def select(self, rows: Tensor, length: int, room: int) -> "_KeysValues":
        """The first ``length`` keys of the given sentences, with room for so many."""
        made = _KeysValues(*(each.new_empty(len(rows), each.size(1), room, each.size(3)) for each in self))
        for new, old in zip(made, self, strict=True):
            new[:, :, :length] = old[:, :, :length].index_select(0, rows)
        return made

    def with_room(self, length: int) -> "_KeysValues":
        """The same with room for more keys; it is kept where it has room for so many."""
        have = self.key.size(2)
        return self if have >= length else self.select(torch.arange(len(self.key), device=self.key.device), have, max(length, 2 * have))


@dataclass(frozen=True)
class Prepared:
    """What a `PreparedStep` has seen. A state is used once: the next one writes into its room."""

    hypotheses: int  # K
    steps: int
    length: int  # T
    memory: tuple[_KeysValues, ...]
    memory_mask: Tensor  # (B, 1, 1, S): 0 at tokens, -∞ at padding
    own: tuple[_KeysValues, ...]
    seen: Tensor | None  # (B, K, T): 0 at a hypothesis's own keys, -∞ at others'; None where all are its own
    room: Tensor | None = None  # of the last log-probabilities, N rows or more


class _Layer:
    """A `DecoderLayer` with its products prepared."""

    def __init__(self, layer: DecoderLayer, precision: Precision) -> None:
        own, cross = layer.self_attn, layer.cross_attn
        self.heads, self.widths = own.n_heads, [own.d_k, own.d_k, own.d_v]

        def product(*layers: Linear) -> Callable[[Tensor], Tensor]:
            return Product(*layers, precision=precision).forward  # a step of one sentence is mostly calls: these pass the module's by

        self.own, self.own_concat = product(own.w_q, own.w_k, own.w_v), product(own.w_concat)
        self.query, self.memory, self.cross_concat = product(cross.w_q), product(cross.w_k, cross.w_v), product(cross.w_concat)
        self.cross_heads, self.cross_widths = cross.n_heads, [cross.d_k, cross.d_v]
        self.feed_forward = feed_forward(layer.feed_forward, precision)
        self.around = [partial(layer.around, norm=norm.forward, dropout=_same) for norm in (layer.norm1, layer.norm2, layer.norm3)]

    def start(self, memory: Tensor) -> _KeysValues:
        """Keys and values of the memory (B, S, D)."""
        key, value = self.memory(memory).split_with_sizes([self.cross_heads * width for width in self.cross_widths], -1)
        return _KeysValues(*(_heads(each, self.cross_heads).contiguous() for each in (key, value)))

    def room(self, sentences: int, like: Tensor) -> _KeysValues:
        """An empty cache."""
        return _KeysValues(*(like.new_empty(sentences, self.heads, _ROOM, width) for width in self.widths[1:]))

    def __call__(self, x: Tensor, state: Prepared, number: int, mask: Tensor | None) -> tuple[Tensor, _KeysValues]:
        """x (N, D) of the new positions, and the mask (B, 1, K, T) of their keys; returns (N, D) and the cache with them."""
        count, length = state.hypotheses, state.length
        own = state.own[number].with_room(length + count)

        def self_attention(y: Tensor) -> Tensor:
            parts = (
                self.own(y)
                .view(-1, count, sum(self.widths) * self.heads)
                .split_with_sizes([self.heads * width for width in self.widths], -1)
            )
            query, key, value = (_heads(part, self.heads) for part in parts)  # (B, H, K, width)
            own.key[:, :, length : length + count] = key
            own.value[:, :, length : length + count] = value
            keys, values = (each[:, :, : length + count] for each in own)
            attended: Tensor = self.own_concat(_rows(F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)))  # (N, D)
            return attended

        def cross_attention(y: Tensor) -> Tensor:
            query = _heads(self.query(y).view(-1, count, self.cross_heads * self.cross_widths[0]), self.cross_heads)  # (B, H, K, width)
            mask = state.memory_mask.expand(-1, -1, count, -1)
            heads = F.scaled_dot_product_attention(query, *state.memory[number], attn_mask=mask)
            attended: Tensor = self.cross_concat(_rows(heads))  # (N, D)
            return attended

        x = self.around[0](x, self_attention)
        x = self.around[1](x, cross_attention)
        return self.around[2](x, self.feed_forward), own


class PreparedStep(StepModel[Prepared]):
    """A `Transformer` as a `StepModel`, faster than `TransformerStep` and the same to rounding, for models that `can_prepare`.

    The weights are those of the moment it is made. ``precision`` is that of the products: fp32, bf16 or int8.
    """

    def __init__(self, model: Transformer, *, precision: Precision = "fp32") -> None:
        self.decoder = model.decoder
        self.encoder = with_products(model.encoder, precision)
        self.layers = [_Layer(cast(DecoderLayer, layer), precision) for layer in model.decoder.layers]
        self.output = OutputProduct(model.output, model.output_bias, precision=precision)

    def start(self, source: Tensor, source_mask: Tensor) -> Prepared:
        """The encoder's output, projected once for every decoder layer."""
        memory = self.encoder(source, padding_mask(source_mask))  # (B, S, D)
        mask = memory.new_zeros(source_mask.shape).masked_fill_(~source_mask, -math.inf)[:, None, None]
        own = tuple(layer.room(len(source), memory) for layer in self.layers)
        return Prepared(1, 0, 0, tuple(layer.start(memory) for layer in self.layers), mask, own, None)

    def next(self, tokens: Tensor, state: Prepared) -> tuple[Tensor, Prepared]:
        """One position of the decoder; tokens (N,). Returns log-probabilities (N, V) and the state with it."""
        decoder, count = self.decoder, state.hypotheses
        x = decoder.positions(decoder.embedding(tokens[:, None]), state.steps)[:, 0]  # (N, D)
        seen = _with_own(state.seen, len(tokens) // count, count, state.length, x)
        mask = None if seen is None else seen[:, None]  # (B, 1, K, T)
        own = []
        for number, layer in enumerate(self.layers):
            x, cache = layer(x, state, number, mask)
            own.append(cache)
        room = self.output.room(len(x), state.room)
        log_probs = self.output.log_probs(decoder.final_norm(x), room)  # (N, V)
        length = state.length + count
        return log_probs, Prepared(count, state.steps + 1, length, state.memory, state.memory_mask, tuple(own), seen, room)

    def reorder(self, state: Prepared, rows: Tensor) -> Prepared:
        """The state of rows (B, K), K hypotheses from one sentence in each; while all sentences stay, nothing of a cache moves."""
        sentence = rows[:, 0] // state.hypotheses  # (B,)
        seen = state.seen
        if seen is None and rows.size(1) > 1:
            seen = state.memory_mask.new_zeros(len(state.memory_mask), state.hypotheses, state.length)
        if seen is not None:
            seen = seen.flatten(0, 1)[rows]  # (B, K, T)
        state = replace(state, hypotheses=rows.size(1), seen=seen)
        before, after = len(state.memory_mask), len(sentence)
        moved = (sentence != torch.arange(after, device=rows.device)).nonzero()[:, 0]  # (M,) places that get another sentence
        if not len(moved) and after == before:
            return state
        if after <= before and 2 * len(moved) <= after:  # as when sentences leave: those from the end take their places
            sources = sentence[moved]
            memory, own = (tuple(each.moved(moved, sources, after) for each in caches) for caches in (state.memory, state.own))
        else:
            memory = tuple(_KeysValues(*(part.index_select(0, sentence) for part in each)) for each in state.memory)
            own = tuple(each.select(sentence, state.length, each.key.size(2)) for each in state.own)
        return replace(state, memory=memory, own=own, memory_mask=state.memory_mask.index_select(0, sentence))


def check_precision(precision: str, models: Sequence[EncoderDecoder]) -> None:
    """Raise UsageError for a precision that there is not, or that the models cannot be prepared for, saying why; auto is for all."""
    check_products(precision, models[0].output.weight.device, known=get_args(AskedPrecision))
    if precision not in ("fp32", "auto") and not all(map(can_prepare, models)):
        raise UsageError(
            f"{option('precision')}={precision} is for Transformers without rotary positions, QK-norm and fewer heads of keys and values, "
            "whose layers nobody watches; choose fp32"
        )


def step_of(model: EncoderDecoder, *, precision: Precision = "fp32") -> PreparedStep | TransformerStep:
    """The fastest step model for a model: prepared where it `can_prepare`. Raises UsageError as `check_precision` does."""
    if can_prepare(model):
        return PreparedStep(cast(Transformer, model), precision=precision)
    check_precision(precision, [model])
    return TransformerStep(model)


def can_prepare(model: EncoderDecoder) -> bool:
    """Whether a model's decoder is of the kind that `PreparedStep` computes, and nobody watches any layer, which a copy would not show."""
    if not isinstance(model, Transformer):
        return False
    watched = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    heads = [heads for layer in model.decoder.layers for heads in (layer.self_attn, layer.cross_attn)]
    return not watched and all(isinstance(each, MultiHeadAttention) and _plain(each) for each in heads)


def _plain(attention: MultiHeadAttention) -> bool:
    changed = attention.query_norm or attention.key_norm or attention.rotary
    return not changed and attention.kv_heads == attention.n_heads and type(attention.attention) is FusedAttention


def _same(x: Tensor) -> Tensor:
    return x


def _with_own(seen: Tensor | None, sentences: int, count: int, length: int, like: Tensor) -> Tensor | None:
    """``seen`` with the keys of the new positions (B, K, T): each hypothesis sees its own of them."""
    if seen is None:
        return None
    new = like.new_full((count, count), -math.inf).fill_diagonal_(0).expand(sentences, -1, -1)
    return torch.cat((seen, new), -1)


def _heads(projected: Tensor, count: int) -> Tensor:
    """(B, T, H·width) as (B, H, T, width)."""
    return projected.view(*projected.shape[:-1], count, -1).transpose(1, 2)


def _rows(heads: Tensor) -> Tensor:
    """(B, H, K, width) as (N, H·width)."""
    return heads.transpose(1, 2).flatten(2).flatten(0, 1)
