"""Step models for tests of search: probability tables, random trees small enough to list every sequence, a Transformer without a cache."""

import itertools
import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dragoman.decoding.beam import Hypothesis, length_penalty
from dragoman.decoding.step import StepModel
from dragoman.model import Transformer

BOS, END = 0, 1
LETTERS = "ABCD"


class TreeModel:
    """A step model whose next-token distribution depends on the sentence and on the whole prefix; its state is these, a tuple a row."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.rows_of_steps: list[int] = []

    def distribution(self, prefix: tuple[int, ...]) -> np.ndarray:
        raise NotImplementedError

    def start(self, source: Tensor, source_mask: Tensor) -> list[tuple[int, ...]]:
        return [(sentence,) for sentence in source[:, 0].tolist()]

    def next(self, tokens: Tensor, state: list[tuple[int, ...]]) -> tuple[Tensor, list[tuple[int, ...]]]:
        self.rows_of_steps.append(len(state))
        state = [(*seen, token) for seen, token in zip(state, tokens.tolist(), strict=True)]
        with np.errstate(divide="ignore"):
            return torch.tensor(np.log(np.stack([self.distribution(seen) for seen in state])), dtype=torch.float32), state

    def reorder(self, state: list[tuple[int, ...]], rows: Tensor) -> list[tuple[int, ...]]:
        return [state[row] for row in rows.flatten().tolist()]


class RandomTree(TreeModel):
    """Random distributions: one a prefix, reproducible, flat or peaked."""

    def __init__(self, vocabulary: int, *, seed: int, temperature: float = 1.0) -> None:
        super().__init__(vocabulary)
        self.seed, self.temperature = seed, temperature

    @cache  # noqa: B019 (a model lives as long as its test)
    def distribution(self, prefix: tuple[int, ...]) -> np.ndarray:
        weights = np.exp(np.random.default_rng((self.seed, *prefix)).normal(size=self.vocabulary) / self.temperature)
        weights[BOS] = 0
        return weights / weights.sum()


class Table(TreeModel):
    """A table of next-token probabilities after the start and after each letter; ``$`` is the end."""

    def __init__(self, **rows: dict[str, float]) -> None:
        super().__init__(2 + len(LETTERS))
        self.rows = rows

    def distribution(self, prefix: tuple[int, ...]) -> np.ndarray:
        # Search also steps the empty places of its rectangle: whatever they hold, the end follows.
        row = self.rows.get("start" if prefix[-1] == BOS else LETTERS[prefix[-1] - 2], {"$": 1.0})
        return np.array([0.0, row.get("$", 0.0), *(row.get(letter, 0.0) for letter in LETTERS)])


class Recomputed(NamedTuple):
    """The state without a cache: memory (N, S, D), its mask (N, S) and the target tokens so far (N, T)."""

    memory: Tensor
    source_mask: Tensor
    target: Tensor


class RecomputingStep(StepModel[Recomputed]):
    """A `Transformer` without a cache: every step runs the decoder over the whole target, the plain definition."""

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
        """The memory and tokens of the given rows (B, K)."""
        return Recomputed(*(part.index_select(0, rows.flatten()) for part in state))


def table_1() -> Table:
    """TABLE-1 of the reported faults."""
    return Table(
        start={"A": 0.6, "B": 0.4}, A={"$": 0.7, "B": 0.3}, B={"C": 0.95, "$": 0.05}, C={"D": 0.95, "$": 0.05}, D={"$": 0.95, "C": 0.05}
    )


def table_2() -> Table:
    """TABLE-2 of the reported faults."""
    return Table(start={"A": 0.6, "B": 0.4}, A={"$": 0.35, "A": 0.33, "B": 0.32}, B={"$": 0.9, "A": 0.05, "B": 0.05})


def spell(hypothesis: Hypothesis) -> str:
    """The letters of a hypothesis, and ``$`` for its end."""
    return "".join("$" if token == END else LETTERS[token - 2] for token in hypothesis.tokens)


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Sources and masks (count, 1) that number the sentences from 0."""
    return torch.arange(count)[:, None], torch.ones(count, 1, dtype=torch.bool)


def every_sequence(model: TreeModel, sentence: int, *, limit: int, alpha: float) -> list[tuple[tuple[int, ...], float]]:
    """Each token sequence of at most ``limit`` tokens with its score, best first, by enumeration."""
    scored = []
    for length in range(limit):
        for content in itertools.product(range(2, model.vocabulary), repeat=length):
            tokens = (*content, END)
            total = sum(math.log(model.distribution((sentence, BOS, *tokens[:n]))[token]) for n, token in enumerate(tokens))
            scored.append((tokens, total / length_penalty(len(tokens), alpha)))
    return sorted(scored, key=lambda pair: -pair[1])


def plain_beam(model: TreeModel, sentence: int, *, beam: int, limit: int, alpha: float) -> list[tuple[tuple[int, ...], float]]:
    """Beam search as its rule is worded, one sentence with lists and no early stop: every finished sequence with its score, best first."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished = []
    for n in range(1, limit + 1):
        allowed = [END] if n == limit else range(1, model.vocabulary)
        continuations = [
            ((*tokens, token), total + math.log(model.distribution((sentence, BOS, *tokens))[token]))
            for tokens, total in live
            for token in allowed
        ]
        kept = sorted(continuations, key=lambda pair: -pair[1])[:beam]
        finished += [(tokens, total / length_penalty(n, alpha)) for tokens, total in kept if tokens[-1] == END]
        live = [(tokens, total) for tokens, total in kept if tokens[-1] != END]
    return sorted(finished, key=lambda pair: -pair[1])
