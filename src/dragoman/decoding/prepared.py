"""A `Transformer` made ready for search: its products prepared, and a cache that hypotheses share.

Shapes:  B sentences   K hypotheses of each   N = B·K rows   S source positions   T = keys of a sentence, those of all its hypotheses
         H heads   w = d_k or d_v   D = d_model   V target vocabulary

The hypotheses of a sentence stand in attention as its queries, so the memory is kept once a sentence, and what one hypothesis has computed
stays where it is: when hypotheses change places, only ``seen`` does, which says whose keys are whose. Most of them go on from the same few,
so before long most keys are nobody's, and those that are somebody's close up.

A step of one sentence is mostly calls and the reading of matrices. In the attention to the source the sentence's memory stands between two
matrices, so these products are taken once, and a step has two small ones in place of four (`Folded`).
"""

import math
import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.caches import Growing, Memory
from dragoman.decoding.decoder_layers import (
    Folded,
    Heads,
    Masks,
    PlainLayer,
    PlainLayers,
    cross_attention,
    folded_attention,
    self_attention,
)
from dragoman.decoding.fused import fused_layers
from dragoman.decoding.greedy import greedy_of
from dragoman.decoding.matrices import ByItself, Matrix, check_finite, product
from dragoman.decoding.output import OutputProduct
from dragoman.decoding.prepared_encoder import Tokens, is_plain, norm_of, prepared_encoder, unchanged
from dragoman.decoding.products import AskedPrecision, Precision, Product, ReluProducts, bias_of, check_products, feed_forward
from dragoman.decoding.step import Ahead, Asked, Likeliest, StepModel, TransformerStep
from dragoman.errors import UsageError, option
from dragoman.model import EncoderDecoder, Transformer
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.embedding import Embedding
from dragoman.model.layers import DecoderLayer, pre_norm_residual, residual
from dragoman.model.linear import ROWS, Linear
from dragoman.model.transformer import Decoder

_ROOM = 32  # keys that a new cache has room for
_MANY = 32  # heads of sentences, from which on attention is products of all of them
_FEWEST = 16  # keys of attention, the last of them nobody's where there are fewer: PyTorch takes 16 numbers at once, and fewer one by one
_OFTEN = 16  # sentences that come alone before several of their steps are made ready to be taken at once, which takes as long as they do
_EVERY = 4  # steps between two looks for keys that nobody sees any more


class Encoded(NamedTuple):
    """What an encoder has made of sentences."""

    rows: Tensor  # (B·S, D), or as many as there are tokens
    tokens: Tokens


class Prepared(NamedTuple):
    """What a `PreparedStep` has seen. A state is used once: the next one writes into its room."""

    hypotheses: int  # K
    steps: int
    length: int  # T
    memory: list[Memory]  # of each layer, S positions; none where they are folded
    memory_mask: Tensor  # (B, 1, 1, S): 0 at tokens, -∞ at padding
    own: list[Growing]  # of each layer, T positions
    seen: Tensor | None  # (B, K, T): 0 at a hypothesis's own keys, -∞ at others'; None where all are its own
    folded: "tuple[Encoded, list[Folded]] | None" = None  # of one sentence: its encoder's output, and each layer's
    room: Tensor | None = None  # of the last log-probabilities, as many rows as were made together or more


class _Layer:
    """A `DecoderLayer` with its products prepared, whatever its norms, its feed-forward layer and what stands around them."""

    def __init__(self, layer: DecoderLayer, precision: Precision) -> None:
        own, cross = layer.self_attn, layer.cross_attn
        self.sizes = own.d_k, own.d_v

        def matrix(*layers: Linear) -> Matrix:
            return Product(*layers, precision=precision).matrix

        self.heads = Heads(
            own.n_heads, matrix(own.w_q, own.w_k, own.w_v), matrix(own.w_concat), matrix(cross.w_q), matrix(cross.w_concat)
        )  # fmt: skip
        in_float32 = self.heads.query.turned is not None or self.heads.query.blocks is not None  # few rows
        self.folding = _around_memory(cross) if in_float32 else None
        self._memory = matrix(cross.w_k, cross.w_v)
        self.feed_forward = feed_forward(layer.feed_forward, precision)
        self.around = [partial(layer.around, norm=norm_of(norm), dropout=unchanged) for norm in (layer.norm1, layer.norm2, layer.norm3)]

    def memory(self, encoded: Encoded, fewest: int) -> Memory:
        """That of the encoder's output, with keys of nobody's up to the fewest."""
        as_columns = encoded.tokens.shape[0] * self.heads.n_heads >= many_heads(encoded.rows.device)
        return Memory.of(*self._keys_values(encoded), as_columns=as_columns, fewest=fewest)

    def narrow_memory(self, encoded: Encoded) -> Memory:
        """That of the encoder's output in bfloat16, as it was made."""
        keys, values = self._keys_values(encoded)
        return Memory(*(each.bfloat16().transpose(1, 2) for each in (keys, values)))

    def folded(self, encoded: Encoded) -> Folded:
        """The same of one sentence, with the products around it."""
        keys, values = (each[0].transpose(0, 1) for each in self._keys_values(encoded))  # (H, S, w)
        queries, query_bias, concat, concat_bias = cast("tuple[Tensor, ...]", self.folding)
        before, behind = torch.bmm(keys, queries), torch.baddbmm(concat_bias, values, concat)  # (H, S, D)
        return Folded(before.flatten(0, 1).t(), torch.bmm(keys, query_bias).flatten(), behind.flatten(0, 1))

    def _keys_values(self, encoded: Encoded) -> list[Tensor]:
        """Those (B, S, H, w) of the encoder's output."""
        made = encoded.tokens.padded(product(encoded.rows, self._memory))  # (B, S, H·d_k + H·d_v)
        parts = made.split_with_sizes([self.heads.n_heads * size for size in self.sizes], 2)
        return [part.view(*part.shape[:2], self.heads.n_heads, -1) for part in parts]

    def step(self, x: Tensor, own: Growing, memory: Memory | Folded, masks: Masks, at: tuple[int, int], many: int) -> Tensor:
        """x (N, D) of the new positions; returns (N, D). ``at`` and ``many`` as for `self_attention`."""
        x = self.around[0](x, lambda y: self_attention(y, self.heads, own, masks[0], *at, many))
        if isinstance(memory, Folded):
            x = self.around[1](x, lambda y: folded_attention(y, self.heads.n_heads, memory))
        else:
            x = self.around[1](x, lambda y: cross_attention(y, self.heads, memory, masks[1], many))
        return self.around[2](x, self.feed_forward)


class _Layers:
    """Layers of any kind one after the other, called as `PlainLayers` are."""

    def __init__(self, layers: Sequence[_Layer], *, many: int) -> None:
        self.layers, self.many = layers, many

    def __call__(
        self, x: Tensor, own: list[Growing], memory: list[Memory], folded: list[Folded], masks: Masks, start: int, shown: int
    ) -> Tensor:
        memories: Sequence[Memory | Folded] = folded or memory
        for layer, cache, seen in zip(self.layers, own, memories, strict=True):
            x = layer.step(x, cache, seen, masks, (start, shown), self.many)
        return x


def _all_of(layers: Sequence[DecoderLayer], prepared: Sequence[_Layer], device: torch.device) -> Callable[..., Tensor]:
    """All layers of a decoder: by PyTorch itself on a CPU where they are as in the paper, which saves what many small calls take."""
    many, made = many_heads(device), [_plain(*each) for each in zip(layers, prepared, strict=True)]
    plain, pre_norm = [each for each in made if each is not None], layers[0].around is pre_norm_residual
    if device.type != "cpu" or len(plain) < len(layers) or any(layer.around is not layers[0].around for layer in layers):
        return _Layers(prepared, many=many)
    return ByItself(PlainLayers(plain, pre_norm=pre_norm, many=many))


def _plain(layer: DecoderLayer, prepared: _Layer) -> PlainLayer | None:
    """A layer as `PlainLayers` take it, or None where it is of another kind."""
    norms, weights = [layer.norm1, layer.norm2, layer.norm3], list[Tensor]()
    epsilon = getattr(norms[0], "eps", 0.0)
    for norm in norms:
        if type(norm) is not nn.LayerNorm or norm.weight is None or norm.bias is None or norm.eps != epsilon:
            return None
        weights += [norm.weight.detach(), norm.bias.detach()]
    if not isinstance(prepared.feed_forward, ReluProducts) or layer.around not in (residual, pre_norm_residual):
        return None
    return PlainLayer(prepared.heads, *prepared.feed_forward, weights, epsilon)


class PreparedStep(StepModel[Prepared]):
    """A `Transformer` as a `StepModel`, faster than `TransformerStep` and the same to rounding, for models that `can_prepare`.

    The weights are those of the moment it is made. ``precision`` is that of the products: fp32, bf16 or int8, for which
    DragomanError is raised where a weight is no finite number.
    """

    def __init__(self, model: Transformer, *, precision: Precision = "fp32") -> None:
        if precision == "int8":  # what is no number may be one again behind a product in 8 bits, and no output would tell
            for parameter in model.parameters():
                check_finite(parameter)
        self.decoder = model.decoder
        self.encoder = prepared_encoder(model.encoder, precision)
        layers = cast("list[DecoderLayer]", list(model.decoder.layers))
        self.layers = [_Layer(layer, precision) for layer in layers]
        self.all_layers = _all_of(layers, self.layers, model.output.weight.device)
        self.fused = fused_layers(model.decoder, self.all_layers, model.output.weight) if precision == "bf16" else None
        self.final_norm = norm_of(model.decoder.final_norm)
        self.output = OutputProduct(model.output, model.output_bias, precision=precision, fused=self.fused is not None)
        self._alone, self._positions = 0, model.max_positions  # sentences that came alone so far

    def start(self, source: Tensor, source_mask: Tensor) -> Prepared:
        """The encoder's output, projected once for every decoder layer."""
        tokens = Tokens(source_mask)
        encoded = Encoded(self.encoder(source, tokens), tokens)
        (sentences, length), first = source.shape, self.layers[0]
        self._alone += sentences == 1
        mask = encoded.rows.new_full((sentences, 1, 1, max(length, _FEWEST)), -math.inf)
        mask[:, 0, 0, :length].masked_fill_(source_mask, 0)
        like = encoded.rows if self.fused is None else encoded.rows.new_empty(0, dtype=torch.bfloat16)
        own = [Growing.of(like, sentences, first.heads.n_heads, first.sizes, _ROOM) for _ in self.layers]
        if self.fused is not None:
            return Prepared(1, 0, 0, [layer.narrow_memory(encoded) for layer in self.layers], mask, own, None)
        for cache in (cache for seen in own for cache in seen.part(0, _FEWEST)):
            cache.zero_()  # nobody's keys have no weight, but must be numbers
        # Of more tokens there is more to read.
        if sentences == 1 and tokens.mask is None and first.folding and 2 * length <= sum(first.sizes):
            return Prepared(1, 0, 0, [], mask, own, None, (encoded, [layer.folded(encoded) for layer in self.layers]))
        return Prepared(1, 0, 0, [layer.memory(encoded, _FEWEST) for layer in self.layers], mask, own, None)

    @torch.no_grad()  # views of a cache are written to
    def next(self, tokens: Tensor, state: Prepared) -> tuple[Tensor, Prepared]:
        """One position of the decoder; tokens (N,). Returns log-probabilities (N, V) and the state with it."""
        room = self.output.room(len(tokens), state.room)
        hidden, state = self._step(tokens, state, room)  # (N, D)
        return self.output.log_probs(hidden, room), state

    @torch.no_grad()
    def likeliest(self, tokens: Tensor, state: Prepared, asked: Asked) -> tuple[Likeliest, Prepared]:
        """The same where no more is asked, with log-probabilities of a few rows at a time, which stay near the processor."""
        room = self.output.room(min(tokens.size(0), ROWS), state.room)
        hidden, state = self._step(tokens, state, room)  # (N, D)
        return self.output.likeliest(hidden, room, asked), state

    @property
    def goes_ahead(self) -> bool:
        """Whether it takes several steps of a sentence at once: where it can, and sentences have come alone so often that it pays to make
        that ready.
        """
        return self.fused is None and self._alone > _OFTEN and self._greedy is not None

    @torch.no_grad()
    def ahead(self, token: Tensor, state: Prepared, total: Tensor, *, asked: Asked, eos: int, most: int) -> Ahead:
        """Several steps of one hypothesis by PyTorch itself, as `AheadModel.ahead`."""
        most = max(1, min(most, self._positions - state.steps))
        (output, room), length = self.output.of_one(state.room), state.length + most
        positions = self.decoder.positions.forward(token.new_zeros(1, most, self.output.weight.size(1), dtype=room.dtype), state.steps)[0]
        own = state.own if state.own[0].room >= length else [Growing.holding(each, max(length, 2 * state.length)) for each in state.own]
        folded, never = state.folded[1] if state.folded else [], [*asked.never]
        made = cast(ByItself, self._greedy)(
            token, total, positions, own, state.memory, folded, state.memory_mask, state.length, (output, room), never, eos
        )  # fmt: skip

        def state_after(count: int) -> Prepared:
            return state._replace(steps=state.steps + count, length=state.length + count, own=own, room=room)

        log_probs, totals, tokens = made
        return Ahead(log_probs, totals, tokens, state_after)

    @cached_property
    def _greedy(self) -> ByItself | None:
        """What takes several steps at once, if there is such a thing for this decoder."""
        return greedy_of(self.decoder, self.all_layers)

    def _step(self, tokens: Tensor, state: Prepared, room: Tensor | None) -> tuple[Tensor, Prepared]:
        """What the output layer is given (N, D), and the state with it."""
        decoder, rows, count = self.decoder, tokens.size(0), state.hypotheses
        if state.seen is not None and state.length >= _ROOM and state.steps % _EVERY == 0:
            state = _without_unseen(state)
        length = state.length + count
        # Nobody watches these modules (`can_prepare`), so they are called without what their own calls take.
        x = decoder.positions.forward(decoder.embedding.forward(tokens[:, None]), state.steps)[:, 0]  # (N, D)
        seen = _with_own(state.seen, rows // count, count, state.length, x)
        fewest = _FEWEST if rows > count else 1  # of one sentence, to add nobody's keys takes longer than it saves
        masks, shown = (_mask(seen, length, fewest, x), state.memory_mask.expand(-1, -1, count, -1)), max(length, fewest)
        own = state.own
        if own[0].room < length:
            own = [Growing.holding(each, max(length, 2 * state.length)) for each in own]
        if self.fused is not None:
            x = self.fused(x, own, state.memory, *masks, state.length)
        else:
            x = self.final_norm(self.all_layers(x, own, state.memory, state.folded[1] if state.folded else [], masks, state.length, shown))
        after = Prepared(count, state.steps + 1, length, state.memory, state.memory_mask, own, seen, state.folded, room)
        return x, after

    def reorder(self, state: Prepared, rows: Tensor) -> Prepared:
        """The state of rows (B, K), K hypotheses from one sentence in each; while all sentences stay, nothing of a cache moves."""
        first = state.own[0]
        before, after = len(first.keys), len(rows)
        if state.folded and after > 1:
            state = state._replace(memory=[layer.memory(state.folded[0], _FEWEST) for layer in self.layers], folded=None)
        seen = state.seen
        if seen is None and rows.size(1) > 1:
            seen = state.memory_mask.new_zeros(before, state.hypotheses, state.length)
        if seen is not None:
            seen = seen.flatten(0, 1)[rows]  # (B, K, T)
        sentence = rows[:, 0] // state.hypotheses  # (B,)
        state = state._replace(hypotheses=rows.size(1), seen=seen)
        if before == 1 and after <= 1:  # nothing moves, or is left
            return state
        moved = (sentence != torch.arange(after, device=rows.device)).nonzero()[:, 0]  # (M,) places that get another sentence
        if not len(moved) and after == before:
            return state
        positions = torch.arange(first.room, device=rows.device)[:, None]
        if after <= before and 2 * len(moved) <= after:  # as when sentences leave: those from the end take their places
            if len(moved):
                origin, place = (first.rows(positions[: state.length], each) for each in (sentence[moved], moved))
                for memory in state.memory:
                    memory.move(sentence[moved], moved)
                for own in state.own:
                    own.move(origin, place)
            memories, caches = [each.first(after) for each in state.memory], [seen.first(after) for seen in state.own]
        else:
            places = first.rows(positions, sentence)
            memories, caches = [each.select(sentence) for each in state.memory], [seen.select(places, after) for seen in state.own]
        return state._replace(memory=memories, own=caches, memory_mask=state.memory_mask.index_select(0, sentence))


def check_precision(precision: str, models: Sequence[EncoderDecoder]) -> None:
    """Raise UsageError for a precision that there is not, or that the models cannot be prepared for, saying why; auto is for all."""
    check_products(precision, models[0].output.weight.device, known=get_args(AskedPrecision))
    if precision not in ("fp32", "auto") and not all(map(can_prepare, models)):
        raise UsageError(
            f"{option('precision')}={precision} is for Transformers without rotary positions, QK-norm and fewer heads of keys and values, "
            "whose layers nobody watches or has changed; choose fp32"
        )


def step_of(model: EncoderDecoder, *, precision: Precision = "fp32") -> PreparedStep | TransformerStep:
    """The fastest step model for a model: prepared where it `can_prepare`. Raises UsageError as `check_precision` does."""
    if can_prepare(model):
        return PreparedStep(cast(Transformer, model), precision=precision)
    check_precision(precision, [model])
    return TransformerStep(model)


def can_prepare(model: EncoderDecoder) -> bool:
    """Whether a model's decoder is of the kind that `PreparedStep` computes, not one that computes something else under the same names, and
    nobody watches any layer, which a copy would not show.
    """
    if type(model) is not Transformer or type(model.decoder) is not Decoder:
        return False
    if type(model.output) is not Embedding or "logits" in model.output.__dict__:
        return False
    if any(type(layer) is not DecoderLayer for layer in model.decoder.layers):
        return False
    watched = any(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__ for module in modules_of(model))
    heads = [heads for layer in model.decoder.layers for heads in (layer.self_attn, layer.cross_attn)]
    if watched or not all(map(is_plain, heads)):
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


def _with_own(seen: Tensor | None, sentences: int, count: int, length: int, like: Tensor) -> Tensor | None:
    """``seen`` with the keys of the new positions (B, K, T): each hypothesis sees its own of them."""
    if seen is None:
        return None
    new = like.new_full((count, count), -math.inf).fill_diagonal_(0).expand(sentences, -1, -1)
    return torch.cat((seen, new), -1)


def _mask(seen: Tensor | None, length: int, fewest: int, like: Tensor) -> Tensor | None:
    """``seen`` (B, K, T) as attention takes it, (B, 1, K, T'), with nobody's keys behind it up to the fewest that there are."""
    more = fewest - length
    if seen is not None:
        return (F.pad(seen, (0, more), value=-math.inf) if more > 0 else seen)[:, None]
    if more <= 0:
        return None
    mask = like.new_zeros(1, 1, 1, fewest)
    mask[..., length:] = -math.inf
    return mask


def _without_unseen(state: Prepared) -> Prepared:
    """The state without keys that no hypothesis sees, where they are at least half of all; the others close up in their room."""
    seen = cast(Tensor, state.seen)
    used = (seen == 0).any(1)  # (B, T)
    most = int(used.sum(1).max())
    if 2 * most > state.length:
        return state
    places = used.byte().sort(dim=1, descending=True, stable=True).indices[:, :most]  # (B, T'); what fills it up is still unseen
    rows = state.own[0].rows(places.t(), torch.arange(len(places), device=seen.device))  # (T'·B)
    for own in state.own:
        own.begin_with(own.taken(rows, len(places)))
    return state._replace(length=most, seen=seen.gather(2, places[:, None].expand(-1, seen.size(1), -1)))


def many_heads(device: torch.device) -> int:
    """Heads of all sentences, from which on their attention is products of them all."""
    return _MANY if device.type == "cpu" else sys.maxsize


def _around_memory(cross: MultiHeadAttention) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What stands on both sides of a memory: W_q (H, d_k, D) and b_q (H, d_k, 1) over √d_k; W_o (H, d_v, D), b_o (1, 1, D) over H."""
    heads, biases = cross.n_heads, [bias_of(layer) for layer in (cross.w_q, cross.w_concat)]
    query, query_bias = (each.view(heads, cross.d_k, -1) * cross.d_k**-0.5 for each in (cross.w_q.weight.detach(), biases[0]))
    concat = cross.w_concat.weight.detach().t().reshape(heads, cross.d_v, -1)
    return query, query_bias, concat.contiguous(), biases[1].view(1, 1, -1) / heads
