"""What a search needs from a model: one step at a time, over many hypotheses at once (Section 6.1).

Shapes:  B sentences   S source positions   N, M rows, one a hypothesis   D = d_model   V target vocabulary
"""

from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from dragoman.model import Cache, Transformer

State = TypeVar("State")


class StepModel(Protocol[State]):
    """A model that search can drive; its state is a value that search only passes on."""

    def start(self, source: Tensor, source_mask: Tensor) -> State:
        """The state before the first target token of source ids (B, S), with a mask (B, S) True at tokens: one row a sentence."""
        ...

    def next(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Natural log-probabilities (N, V), float32, of what follows the tokens (N,), and the state that has seen them.

        The log-probabilities are the caller's to overwrite.
        """
        ...

    def reorder(self, state: State, rows: Tensor) -> State:
        """The state of the given rows (M,), which may drop, repeat and permute."""
        ...


class TransformerStep(StepModel[Cache]):
    """A `Transformer` as a `StepModel`: each step computes one position and looks the earlier ones up in the cache."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def start(self, source: Tensor, source_mask: Tensor) -> Cache:
        """The encoder's output, projected once for every decoder layer."""
        return self.model.start(self.model.encode(source, source_mask), source_mask)

    def next(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        """One position of the decoder; tokens (N,). Returns log-probabilities (N, V) and the cache with it."""
        hidden, state = self.model.step(tokens[:, None], state)  # (N, 1, D)
        return self.model.project(hidden[:, 0]).float().log_softmax(-1), state  # (N, V)

    def reorder(self, state: Cache, rows: Tensor) -> Cache:
        """The cache of the given rows (M,)."""
        return state.reorder(rows)


class Recomputed(NamedTuple):
    """The state without a cache: memory (N, S, D), its mask (N, S) and the target tokens so far (N, T)."""

    memory: Tensor
    source_mask: Tensor
    target: Tensor


class RecomputingStep(StepModel[Recomputed]):
    """The same without a cache: every step runs the decoder over the whole target again. The plain definition that the cache must equal."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def start(self, source: Tensor, source_mask: Tensor) -> Recomputed:
        """The encoder's output and no target tokens."""
        return Recomputed(self.model.encode(source, source_mask), source_mask, source.new_empty(len(source), 0))

    def next(self, tokens: Tensor, state: Recomputed) -> tuple[Tensor, Recomputed]:
        """The decoder over every token so far and these (N,). Returns log-probabilities (N, V) after the last."""
        state = state._replace(target=torch.cat((state.target, tokens[:, None]), 1))  # (N, T + 1)
        hidden = self.model.decode(state.target, state.memory, state.source_mask)  # (N, T + 1, D)
        return self.model.project(hidden[:, -1]).float().log_softmax(-1), state  # (N, V)

    def reorder(self, state: Recomputed, rows: Tensor) -> Recomputed:
        """The memory and tokens of the given rows (M,)."""
        return Recomputed(*(part.index_select(0, rows) for part in state))
