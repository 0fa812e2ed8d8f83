"""Recurrent encoder and decoder with attention: what the Transformer replaced ("recurrent" in Table 1, Section 4).

Shapes:  B batch   S source positions   T target positions   D = d_model   G gates of a cell: 4 in an LSTM, 3 in a GRU
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dragoman.model.dropout import as_module
from dragoman.model.embedding import Embedding
from dragoman.model.linear import Linear
from dragoman.model.masks import as_boolean


class CellState(NamedTuple):
    """What a cell hands to its next step: its output (B, D), and an LSTM's memory (B, D), which a GRU has not."""

    hidden: Tensor
    memory: Tensor | None = None

    def select(self, rows: Tensor) -> "CellState":
        """The batch rows of the given indices (M,)."""
        return CellState(self.hidden.index_select(0, rows), None if self.memory is None else self.memory.index_select(0, rows))


class LSTMCell(nn.Module):
    """One step of a long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, g, o = W x + b + U h;  c' = σ(f) ⊙ c + σ(i) ⊙ tanh(g);  h' = σ(o) ⊙ tanh(c'). W x + b comes from outside, made for many
    positions at once.
    """

    def __init__(self, inputs: int, d_model: int) -> None:
        super().__init__()
        self.w_input = Linear(inputs, 4 * d_model)
        self.w_hidden = Linear(d_model, 4 * d_model, bias=False)

    def start(self, hidden: Tensor) -> CellState:
        """The state before the first step, with this output (B, D) and an empty memory."""
        return CellState(hidden, torch.zeros_like(hidden))

    def forward(self, gates: Tensor, state: CellState) -> CellState:
        """What w_input has made of the input (B, 4·D), and the state before; returns the state after."""
        enter, forget, new, leave = (gates + self.w_hidden(state.hidden)).chunk(4, -1)  # (B, D) each
        memory = forget.sigmoid() * cast(Tensor, state.memory) + enter.sigmoid() * new.tanh()
        return CellState(leave.sigmoid() * memory.tanh(), memory)


class GRUCell(nn.Module):
    """One step of a gated recurrent unit (Cho et al. 2014), with the reset gate after the product, as in PyTorch.

    r, z, n = W x + b;  r', z', n' = U h + b';  m = tanh(n + σ(r + r') ⊙ n');  h' = (1 - σ(z + z')) ⊙ m + σ(z + z') ⊙ h.
    """

    def __init__(self, inputs: int, d_model: int) -> None:
        super().__init__()
        self.w_input = Linear(inputs, 3 * d_model)
        self.w_hidden = Linear(d_model, 3 * d_model)

    def start(self, hidden: Tensor) -> CellState:
        """The state before the first step, with this output (B, D)."""
        return CellState(hidden)

    def forward(self, gates: Tensor, state: CellState) -> CellState:
        """What w_input has made of the input (B, 3·D), and the state before; returns the state after."""
        reset, update, new = gates.chunk(3, -1)  # (B, D) each
        reset_hidden, update_hidden, new_hidden = self.w_hidden(state.hidden).chunk(3, -1)
        new = (new + (reset + reset_hidden).sigmoid() * new_hidden).tanh()
        return CellState(torch.lerp(new, state.hidden, (update + update_hidden).sigmoid()))


class RecurrentEncoder(nn.Module):
    """Embedding, then layers that read it forwards and backwards, each direction D/2 wide (Bahdanau et al. 2015).

    Dropout acts on what enters each layer. ``layers`` are PyTorch's, bidirectional, batch first, of one layer each.
    """

    def __init__(self, *, embedding: Embedding, layers: Iterable[nn.LSTM | nn.GRU], dropout: float | nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = as_module(dropout)
        self.layers = nn.ModuleList(layers)

    def forward(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """source (B, S) of ids; mask (B, S), True at tokens. Returns the memory (B, S, D), zero at padding.

        Padding is never read. Raises ValueError for a mask with a token behind padding.
        """
        x = self.embedding(source)  # (B, S, D)
        tokens = torch.ones_like(source, dtype=torch.bool) if mask is None else as_boolean(mask)
        if (tokens[:, 1:] & ~tokens[:, :-1]).any():
            raise ValueError("a recurrent encoder reads tokens one after another, so padding must stand behind them all")
        lengths = tokens.sum(1).clamp(min=1).cpu()  # a sentence of padding alone has one position, which is then zeroed
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        with torch.autocast("cpu", enabled=False):  # steps have few rows, whose products gain nothing from fewer bits
            for layer in self.layers:
                packed, _ = layer(PackedSequence(self.dropout(packed.data), *packed[1:]))
        memory, _ = pad_packed_sequence(packed, batch_first=True, total_length=source.size(1))
        return memory.masked_fill(~tokens[..., None], 0)  # (B, S, D)


@dataclass(frozen=True)
class RecurrentCache:
    """What a recurrent decoder goes on from: its cells' states and the last attentional vector, of one size however long the target.

    memory (B, S, D) and its mask (B, S) or None; fed (B, D).
    """

    memory: Tensor
    memory_mask: Tensor | None
    states: tuple[CellState, ...]
    fed: Tensor
    length: int = 0

    def reorder(self, rows: Tensor) -> "RecurrentCache":
        """The hypotheses of the given batch rows (M,), in that order."""
        mask = None if self.memory_mask is None else self.memory_mask.index_select(0, rows)
        states = tuple(state.select(rows) for state in self.states)
        return replace(self, memory=self.memory.index_select(0, rows), memory_mask=mask, states=states, fed=self.fed.index_select(0, rows))


class RecurrentDecoder(nn.Module):
    """Cells on top of one another, and attention from the last over the memory, whose result is fed back in (Luong et al. 2015).

    score(h, m) = h W mᵀ;  a = tanh(W_a [Σ softmax(score) m; h]) is the hidden state of a position, and enters the first cell with the next
    embedding. The first states are tanh(W_0 mean(m)). Dropout acts on embeddings, between cells and on a.
    """

    def __init__(self, *, embedding: Embedding, cells: Iterable[LSTMCell | GRUCell], dropout: float | nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = as_module(dropout)
        self.layers = nn.ModuleList(cells)
        d_model, first = embedding.weight.size(1), cast(LSTMCell, self.layers[0])
        self.w_start = Linear(d_model, len(self.layers) * d_model)
        self.w_fed = Linear(d_model, first.w_input.out_features, bias=False)
        self.w_query = Linear(d_model, d_model, bias=False)
        self.w_attended = Linear(2 * d_model, d_model, bias=False)

    def start(self, memory: Tensor, memory_mask: Tensor | None = None) -> RecurrentCache:
        """The cache before the first target position; memory (B, S, D), memory_mask (B, S)."""
        mask = None if memory_mask is None else as_boolean(memory_mask)
        count = memory.size(1) if mask is None else mask.sum(1, keepdim=True).clamp(min=1)
        mean = memory.sum(1) / count  # (B, D); the memory is zero at padding
        first = self.w_start(mean).tanh().chunk(len(self.layers), -1)  # (B, D) each
        states = tuple(cast(LSTMCell, cell).start(hidden) for cell, hidden in zip(self.layers, first, strict=True))
        return RecurrentCache(memory, mask, states, torch.zeros_like(mean))

    def forward(self, target: Tensor, cache: RecurrentCache) -> tuple[Tensor, RecurrentCache]:
        """New target ids (B, T) after those in the cache, one position after another. Returns hidden states (B, T, D) and the cache."""
        cells = [cast(LSTMCell, layer) for layer in self.layers]
        entering = cells[0].w_input(self.dropout(self.embedding(target)))  # (B, T, G·D), made for all positions at once
        blocked = None if cache.memory_mask is None else ~cache.memory_mask
        kept = self._kept(entering, len(cells), cache.fed)
        states, fed, outputs = list(cache.states), cache.fed, []
        with torch.autocast("cpu", enabled=False):
            for place, gates in enumerate(entering.unbind(1)):
                gates, hidden = gates + self.w_fed(fed), fed
                for number, cell in enumerate(cells):
                    states[number] = cell(gates if number == 0 else cell.w_input(hidden), states[number])
                    hidden = states[number].hidden
                    if kept is not None and number + 1 < len(cells):
                        hidden = hidden * kept[place, number]
                fed = self._attend(hidden, cache.memory, blocked)  # (B, D)
                if kept is not None:
                    fed = fed * kept[place, -1]
                outputs.append(fed)
        cache = replace(cache, states=tuple(states), fed=fed, length=cache.length + target.size(1))
        return torch.stack(outputs, 1), cache  # (B, T, D)

    def _attend(self, hidden: Tensor, memory: Tensor, blocked: Tensor | None) -> Tensor:
        scores = (memory @ self.w_query(hidden)[..., None])[..., 0]  # (B, S)
        if blocked is not None:
            scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
        context = (scores.softmax(-1)[:, None] @ memory)[:, 0]  # (B, D); a memory of padding alone is zero, and so is its context
        attended: Tensor = self.w_attended(torch.cat((context, hidden), -1)).tanh()  # (B, D)
        return attended

    def _kept(self, entering: Tensor, cells: int, like: Tensor) -> Tensor | None:
        """What dropout multiplies with at each position, after each cell and, last, after attention (T, cells, B, D): drawn at once."""
        ones = like.new_ones(entering.size(1), cells, *like.shape)
        kept: Tensor = self.dropout(ones)
        return None if kept is ones else kept  # nothing is dropped
