"""The decoder of a `Transformer` made ready for search: its products prepared, and a cache that hypotheses share.

Shapes:  B sentences   K hypotheses of each   N = B·K rows   S source positions   T = keys of a sentence, those of all its hypotheses
         L layers   H heads   W = H·(d_k + d_v)   D = d_model   V target vocabulary

The hypotheses of a sentence stand in attention as its queries, so the memory is kept once a sentence, and what one hypothesis has computed
stays where it is: when hypotheses change places, only ``seen`` does, which says whose keys are whose. Most of them go on from the same few,
so before long most keys are nobody's, and those that are somebody's close up.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.products import AskedPrecision, OutputProduct, Precision, Product, check_products, feed_forward, with_products
from dragoman.decoding.step import StepModel, TransformerStep
from dragoman.errors import UsageError, option
from dragoman.model import EncoderDecoder, Transformer
from dragoman.model.attention import FusedAttention, MultiHeadAttention
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import Linear
from dragoman.model.masks import padding_mask

_ROOM = 32  # keys that a new cache has room for
_EVERY = 4  # steps between two looks for keys that nobody sees any more

_Inner = Callable[[Tensor], Tensor]
_KeysValues = tuple[Tensor, Tensor]


class _Cache:
    """Keys and values of all layers: ``whole`` (B, L, T, W), and a view of each layer's keys and values (B, H, T, width)."""

    def __init__(self, whole: Tensor, layer: "_Layer") -> None:
        self.whole = whole
        self.layers = layer.keys_values(whole)


@dataclass(frozen=True)
class Prepared:
    """What a `PreparedStep` has seen. A state is used once: the next one writes into its room."""

    hypotheses: int  # K
    steps: int
    length: int  # T
    memory: _Cache
    memory_mask: Tensor | None  # (B, 1, 1, S): 0 at tokens, -∞ at padding; None where there is none
    own: _Cache  # of the positions so far, with room for more: (B, L, room, W)
    seen: Tensor | None  # (B, K, T): 0 at a hypothesis's own keys, -∞ at others'; None where all are its own
    room: Tensor | None = None  # of the last log-probabilities, N rows or more


class _Layer:
    """A `DecoderLayer` with its products prepared. A position's keys and values, those of all heads, stand side by side: W numbers."""

    def __init__(self, layer: DecoderLayer, precision: Precision) -> None:
        own, cross = layer.self_attn, layer.cross_attn
        self.heads, self.key_size, self.size = own.n_heads, own.n_heads * own.d_k, own.n_heads * (own.d_k + own.d_v)

        def product(*layers: Linear) -> _Inner:
            return Product(*layers, precision=precision).of_rows()

        # A step of one sentence is mostly calls, so there are as few as can be between the products.
        self.own, self.own_concat = product(own.w_q, own.w_k, own.w_v), product(own.w_concat)
        self.query, self.cross_concat = product(cross.w_q), product(cross.w_concat)
        self.memory = Product(cross.w_k, cross.w_v, precision=precision).forward  # (B, S, D) to (B, S, W)
        self.feed_forward = feed_forward(layer.feed_forward, precision)
        self.around = [partial(layer.around, norm=_norm(norm), dropout=_same) for norm in (layer.norm1, layer.norm2, layer.norm3)]

    def keys_values(self, caches: Tensor) -> list[_KeysValues]:
        """Views of caches (B, L, T, W): the keys (B, H, T, d_k) and the values (B, H, T, d_v) of each layer."""
        parts = caches.split_with_sizes([self.key_size, self.size - self.key_size], -1)
        keys, values = (part.view(*part.shape[:3], self.heads, part.size(3) // self.heads).transpose(2, 3).unbind(1) for part in parts)
        return list(zip(keys, values, strict=True))

    def __call__(self, x: Tensor, own: "_Part", memory: "_Part", place: Tensor) -> Tensor:
        """x (N, D) of the new positions, whose keys and values come into ``place`` (B, K, W); returns (N, D)."""
        count = place.size(1)

        def self_attention(y: Tensor) -> Tensor:
            query, keys_values = self.own(y).split_with_sizes([self.key_size, self.size], 1)
            place.copy_(keys_values.view(place.shape))
            return self.own_concat(_rows(own.attention(self._heads(query, count))))

        def cross_attention(y: Tensor) -> Tensor:
            return self.cross_concat(_rows(memory.attention(self._heads(self.query(y), count))))

        x = self.around[0](x, self_attention)
        x = self.around[1](x, cross_attention)
        return self.around[2](x, self.feed_forward)

    def _heads(self, rows: Tensor, count: int) -> Tensor:
        """(N, H·width) as (B, H, K, width)."""
        return rows.view(-1, count, self.heads, rows.size(1) // self.heads).transpose(1, 2)


class _Part(NamedTuple):
    """What a layer attends to: keys and values (B, H, T, width), and who sees which (B, 1, K, T), None where all see all."""

    key: Tensor
    value: Tensor
    mask: Tensor | None

    def attention(self, query: Tensor) -> Tensor:
        """query (B, H, K, d_k); returns (B, H, K, d_v)."""
        return F.scaled_dot_product_attention(query, self.key, self.value, attn_mask=self.mask)


class PreparedStep(StepModel[Prepared]):
    """A `Transformer` as a `StepModel`, faster than `TransformerStep` and the same to rounding, for models that `can_prepare`.

    The weights are those of the moment it is made. ``precision`` is that of the products: fp32, bf16 or int8.
    """

    def __init__(self, model: Transformer, *, precision: Precision = "fp32") -> None:
        self.decoder = model.decoder
        self.encoder = with_products(model.encoder, precision)
        self.layers = [_Layer(cast(DecoderLayer, layer), precision) for layer in model.decoder.layers]
        self.final_norm = _norm(model.decoder.final_norm)
        self.output = OutputProduct(model.output, model.output_bias, precision=precision)

    def start(self, source: Tensor, source_mask: Tensor) -> Prepared:
        """The encoder's output, projected once for every decoder layer."""
        padded = not source_mask.all()
        memory = self.encoder(source, padding_mask(source_mask) if padded else None)  # (B, S, D)
        mask = memory.new_zeros(source_mask.shape).masked_fill_(~source_mask, -math.inf)[:, None, None] if padded else None
        first = self.layers[0]
        whole = torch.stack([layer.memory(memory) for layer in self.layers], 1)  # (B, L, S, W)
        own = memory.new_empty(len(source), len(self.layers), _ROOM, first.size)
        return Prepared(1, 0, 0, _Cache(whole, first), mask, _Cache(own, first), None)

    @torch.no_grad()  # views of a cache are written to
    def next(self, tokens: Tensor, state: Prepared) -> tuple[Tensor, Prepared]:
        """One position of the decoder; tokens (N,). Returns log-probabilities (N, V) and the state with it."""
        decoder, count = self.decoder, state.hypotheses
        if state.seen is not None and state.length >= _ROOM and state.steps % _EVERY == 0:
            state = _without_unseen(state)
        length = state.length + count
        # Nobody watches these modules (`can_prepare`), so they are called without what their own calls take.
        x = decoder.positions.forward(decoder.embedding.forward(tokens[:, None]), state.steps)[:, 0]  # (N, D)
        seen = _with_own(state.seen, len(tokens) // count, count, state.length, x)
        mask = None if seen is None else seen[:, None]  # (B, 1, K, T)
        memory_mask = None if state.memory_mask is None else state.memory_mask.expand(-1, -1, count, -1)
        own = state.own
        if own.whole.size(2) < length:
            own = _Cache(_with_room(own.whole, state.length, length), self.layers[0])
        places = own.whole.narrow(2, state.length, count).unbind(1)
        for layer, place, (keys, values), memory in zip(self.layers, places, own.layers, state.memory.layers, strict=True):
            x = layer(x, _Part(keys.narrow(2, 0, length), values.narrow(2, 0, length), mask), _Part(*memory, memory_mask), place)
        room = self.output.room(len(x), state.room)
        log_probs = self.output.log_probs(self.final_norm(x), room)  # (N, V)
        return log_probs, Prepared(count, state.steps + 1, length, state.memory, state.memory_mask, own, seen, room)

    def reorder(self, state: Prepared, rows: Tensor) -> Prepared:
        """The state of rows (B, K), K hypotheses from one sentence in each; while all sentences stay, nothing of a cache moves."""
        before, after = len(state.own.whole), len(rows)
        seen = state.seen
        if seen is None and rows.size(1) > 1:
            seen = state.own.whole.new_zeros(before, state.hypotheses, state.length)
        if seen is not None:
            seen = seen.flatten(0, 1)[rows]  # (B, K, T)
        sentence = rows[:, 0] // state.hypotheses  # (B,)
        state = replace(state, hypotheses=rows.size(1), seen=seen)
        if before == after == 1:
            return state
        moved = (sentence != torch.arange(after, device=rows.device)).nonzero()[:, 0]  # (M,) places that get another sentence
        if not len(moved) and after == before:
            return state
        caches = [state.memory.whole, state.own.whole]  # (B, L, …, W)
        if after <= before and 2 * len(moved) <= after:  # as when sentences leave: those from the end take their places
            for cache in caches if len(moved) else ():
                cache.index_copy_(0, moved, cache.index_select(0, sentence[moved]))
            memory, own = (cache[:after] for cache in caches)
        else:
            memory, own = (cache.index_select(0, sentence) for cache in caches)
        mask = None if state.memory_mask is None else state.memory_mask.index_select(0, sentence)
        return replace(state, memory=_Cache(memory, self.layers[0]), own=_Cache(own, self.layers[0]), memory_mask=mask)


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
    watched = any(module._forward_hooks or module._forward_pre_hooks for module in modules_of(model))
    heads = [heads for layer in model.decoder.layers for heads in (layer.self_attn, layer.cross_attn)]
    if watched or not all(isinstance(each, MultiHeadAttention) and _plain(each) for each in heads):
        return False
    return len({(each.n_heads, each.d_k, each.d_v) for each in cast(list[MultiHeadAttention], heads)}) == 1


def modules_of(model: nn.Module) -> list[nn.Module]:
    """A model and all modules in it, each once; `nn.Module.modules` takes several times as long, which a sentence alone would feel."""
    found, known = [model], {model}
    for module in found:  # which grows meanwhile
        for child in module._modules.values():
            if child is not None and child not in known:
                found.append(child)
                known.add(child)
    return found


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


def _without_unseen(state: Prepared) -> Prepared:
    """The state without keys that no hypothesis sees, where they are at least half of all; the others close up in their room."""
    seen, own = cast(Tensor, state.seen), state.own.whole
    used = (seen == 0).any(1)  # (B, T)
    most = int(used.sum(1).max())
    if 2 * most > state.length:
        return state
    places = used.byte().sort(dim=1, descending=True, stable=True).indices[:, :most]  # (B, T'); what fills it up is still unseen
    sentences, layers, room, _ = own.shape
    starts = room * torch.arange(sentences * layers, device=own.device).view(sentences, layers, 1)  # (B, L, 1)
    kept = own.flatten(0, 2).index_select(0, (starts + places[:, None]).flatten())  # (B·L·T', W)
    own.narrow(2, 0, most).copy_(kept.view(sentences, layers, most, -1))
    return replace(state, length=most, seen=seen.gather(2, places[:, None].expand(-1, seen.size(1), -1)))


def _rows(heads: Tensor) -> Tensor:
    """(B, H, K, width) as (N, H·width)."""
    return heads.transpose(1, 2).reshape(heads.size(0) * heads.size(2), -1)


def _with_room(own: Tensor, have: int, length: int) -> Tensor:
    """A cache (B, L, room, W), of which ``have`` keys are used, with room for ``length``."""
    made = own.new_empty(*own.shape[:2], max(length, 2 * have), own.size(3))
    made[:, :, :have] = own[:, :, :have]
    return made


def _norm(module: nn.Module) -> _Inner:
    """A function of x (N, D) that is the norm, without the calls that a module's takes."""
    if type(module) is not nn.LayerNorm:
        return module.forward
    shape, weight, bias, epsilon = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
