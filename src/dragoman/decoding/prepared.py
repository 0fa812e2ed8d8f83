"""The decoder of a `Transformer` made ready for search: weights joined and converted once, and a cache that hypotheses share.

Shapes:  B sentences   K hypotheses of each   N = B·K rows   S source positions   T = keys of a sentence, those of all its hypotheses
         H heads   D = d_model   V target vocabulary

The hypotheses of a sentence stand in attention as its queries, so the memory is kept once a sentence, and what one hypothesis has computed
stays where it is: when hypotheses change places, only ``seen`` does, which says whose keys are whose.
"""

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.decoding.step import StepModel, TransformerStep
from dragoman.errors import DragomanError, UsageError, option
from dragoman.model import EncoderDecoder, Transformer
from dragoman.model.attention import FusedAttention, MultiHeadAttention
from dragoman.model.embedding import Embedding
from dragoman.model.layers import DecoderLayer
from dragoman.model.linear import ROWS, Linear, product_rows
from dragoman.model.masks import padding_mask

Precision = Literal["fp32", "bf16", "int8"]
"""Type of the matrix products: float32, bfloat16, or whole numbers of 8 bits, a scale for each row of a weight and each product's input."""

_Module = TypeVar("_Module", bound=nn.Module)
_ROOM = 64  # keys that a new cache has room for


class _KeysValues(NamedTuple):
    """Of one layer: (B, H, room, width) each, or as long as the memory."""

    key: Tensor
    value: Tensor

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


class _Product(nn.Module):
    """x Wᵀ + b of several linear layers side by side, whose weights are joined and converted once."""

    def __init__(self, *layers: Linear | Embedding, precision: Precision, bias: Tensor | None = None) -> None:
        super().__init__()
        weight = _joined([layer.weight.detach() for layer in layers])  # (O, I)
        biases = [layer.bias.detach() for layer in layers if isinstance(layer, Linear) and layer.bias is not None]
        if bias is not None:
            biases.append(bias.detach())
        self.bias = _joined(biases) if biases else None  # (O)
        self.weight: Tensor | None = None if precision == "int8" else weight
        self.narrow = weight.bfloat16().t() if precision == "bf16" else None  # (I, O), of a float32 weight that stays for few rows
        self.packed = _packed(weight, self.bias) if precision == "int8" else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, I) float32; returns (…, O) float32."""
        if self.packed is not None:
            try:
                return cast(Tensor, torch.ops.quantized.linear_dynamic(x, self.packed, True))  # the last: safe on every processor
            except RuntimeError:
                _check_finite(x)  # what has no largest number has no scale
                raise
        if self.narrow is None or x.numel() < ROWS // 2 * x.size(-1):  # few rows are faster as they are
            return F.linear(x, cast(Tensor, self.weight), self.bias)
        count = x.numel() // x.size(-1)
        product = (product_rows(x, self.narrow.dtype) @ self.narrow)[:count].to(x.dtype).view(*x.shape[:-1], -1)
        return product if self.bias is None else product.add_(self.bias)


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _check_finite(numbers: Tensor) -> None:
    if not numbers.isfinite().all():
        raise DragomanError("not all numbers of the model are finite: the model's weights are damaged; use an undamaged copy")


def _packed(weight: Tensor, bias: Tensor | None) -> Any:
    """The matrix (O, I) in 8 bits, a scale for each row, as the product takes it; DragomanError for damaged weights."""
    _check_finite(weight)
    scales = weight.abs().amax(1).clamp(min=1e-8).double() / 127
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch means to give these tensors another form one day
        eight = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(eight, bias)


def with_products(module: _Module, precision: Precision) -> _Module:
    """A module with its linear layers prepared, a copy unless they stay as they are."""
    if precision == "fp32":
        return module
    copied = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})  # these are not copied
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if type(child) is Linear:
                setattr(parent, name, _Product(child, precision=precision))
    return copied.eval()


def output_product(output: Embedding, bias: Tensor | None, precision: Precision) -> nn.Module:
    """The product of hidden states (…, D) with the output matrix, and its bias, as logits (…, V)."""
    return _Product(output, precision=precision, bias=bias)


class _Layer:
    """A `DecoderLayer` with its products prepared."""

    def __init__(self, layer: DecoderLayer, precision: Precision) -> None:
        own, cross = layer.self_attn, layer.cross_attn
        product = partial(_Product, precision=precision)
        self.layer, self.heads, self.widths = layer, own.n_heads, [own.d_k, own.d_k, own.d_v]
        self.own, self.own_concat = product(own.w_q, own.w_k, own.w_v), product(own.w_concat)
        self.query, self.memory, self.cross_concat = product(cross.w_q), product(cross.w_k, cross.w_v), product(cross.w_concat)
        self.cross_heads, self.cross_widths = cross.n_heads, [cross.d_k, cross.d_v]
        self.feed_forward = with_products(layer.feed_forward, precision)

    def start(self, memory: Tensor) -> _KeysValues:
        """Keys and values of the memory (B, S, D)."""
        key, value = self.memory(memory).split([self.cross_heads * width for width in self.cross_widths], -1)
        return _KeysValues(*(_heads(each, self.cross_heads).contiguous() for each in (key, value)))

    def room(self, sentences: int, like: Tensor) -> _KeysValues:
        """An empty cache."""
        return _KeysValues(*(like.new_zeros(sentences, self.heads, _ROOM, width) for width in self.widths[1:]))

    def __call__(self, x: Tensor, state: Prepared, number: int, mask: Tensor | None) -> tuple[Tensor, _KeysValues]:
        """x (N, D) of the new positions, and the mask (B, 1, K, T) of their keys; returns (N, D) and the cache with them."""
        count, length = state.hypotheses, state.length
        own = state.own[number].with_room(length + count)

        def self_attention(y: Tensor) -> Tensor:
            parts = self.own(y).view(-1, count, sum(self.widths) * self.heads).split([self.heads * width for width in self.widths], -1)
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

        around = partial(self.layer.around, dropout=_NOTHING)
        x = around(x, self_attention, norm=self.layer.norm1)
        x = around(x, cross_attention, norm=self.layer.norm2)
        return around(x, self.feed_forward, norm=self.layer.norm3), own


class PreparedStep(StepModel[Prepared]):
    """A `Transformer` as a `StepModel`, faster than `TransformerStep` and the same to rounding, for models that `can_prepare`.

    The weights are those of the moment it is made. ``precision`` is that of the products: fp32, bf16 or int8.
    """

    def __init__(self, model: Transformer, *, precision: Precision = "fp32") -> None:
        self.decoder = model.decoder
        self.encoder = with_products(model.encoder, precision)
        self.layers = [_Layer(cast(DecoderLayer, layer), precision) for layer in model.decoder.layers]
        bias = model.output_bias
        self.project = partial(model.output.logits, bias=bias) if precision == "fp32" else output_product(model.output, bias, precision)

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
        logits = self.project(decoder.final_norm(x))  # (N, V)
        state = replace(state, steps=state.steps + 1, length=state.length + count, own=tuple(own), seen=seen)
        return torch.log_softmax(logits, -1), state

    def reorder(self, state: Prepared, rows: Tensor) -> Prepared:
        """The state of rows (B, K), K hypotheses from one sentence in each; while all sentences stay, nothing of a cache moves."""
        sentence = rows[:, 0] // state.hypotheses  # (B,)
        seen = state.seen
        if seen is None and rows.size(1) > 1:
            seen = state.memory_mask.new_zeros(len(state.memory_mask), state.hypotheses, state.length)
        if seen is not None:
            seen = seen.flatten(0, 1)[rows]  # (B, K, T)
        state = replace(state, hypotheses=rows.size(1), seen=seen)
        if len(sentence) == len(state.memory_mask) and torch.equal(sentence, torch.arange(len(sentence), device=rows.device)):
            return state
        memory = tuple(_KeysValues(*(part.index_select(0, sentence) for part in each)) for each in state.memory)
        own = tuple(each.select(sentence, state.length, each.key.size(2)) for each in state.own)
        return replace(state, memory=memory, own=own, memory_mask=state.memory_mask.index_select(0, sentence))


def check_products(precision: str, device: torch.device) -> None:
    """Raise UsageError for a precision that there is not, or not on that device."""
    if precision not in get_args(Precision):
        raise UsageError(f"{option('precision')}={precision}: unknown; choose among {', '.join(get_args(Precision))}")
    if precision == "int8" and device.type != "cpu":
        raise UsageError(f"{option('precision')}=int8 is for a CPU and the model is on {device.type}; choose bf16 or fp32")


def check_precision(precision: str, models: Sequence[EncoderDecoder]) -> None:
    """Raise UsageError for a precision that there is not, or that the models cannot be prepared for, saying why."""
    check_products(precision, models[0].output.weight.device)
    if precision != "fp32" and not all(map(can_prepare, models)):
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


_NOTHING = nn.Identity()


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
