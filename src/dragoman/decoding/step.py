"""What a search needs from a model: one step at a time, over many hypotheses at once (Section 6.1).

Shapes:  B sentences   S source positions   K hypotheses of each   N = B·K rows   D = d_model   V target vocabulary
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from dragoman.model import EncoderDecoder

State = TypeVar("State")


class StepModel(Protocol[State]):
    """A model that search can drive. Search only passes the state on, and each to one call: the next state may share its room."""

    def start(self, source: Tensor, source_mask: Tensor) -> State:
        """The state before the first target token of source ids (B, S), with a mask (B, S) True at tokens: one row a sentence."""
        ...

    def next(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Natural log-probabilities (N, V), float32, of what follows the tokens (N,), and the state that has seen them.

        The log-probabilities are the caller's to overwrite, and stand until the next step, which may share their room as well.
        """
        ...

    def reorder(self, state: State, rows: Tensor) -> State:
        """The state of the given rows (B, K), which may drop, repeat and permute: K hypotheses from one sentence in each."""
        ...


class TransformerStep(StepModel[Any]):
    """A `Transformer`, or another `EncoderDecoder`, as a `StepModel`: each step computes one position, the cache has the earlier ones."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def start(self, source: Tensor, source_mask: Tensor) -> Any:
        """The encoder's output, projected once for every decoder layer."""
        return self.model.start(self.model.encode(source, source_mask), source_mask)

    def next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One position of the decoder; tokens (N,). Returns log-probabilities (N, V) and the cache with it."""
        hidden, state = self.model.step(tokens[:, None], state)  # (N, 1, D)
        return self.model.project(hidden[:, 0]).float().log_softmax(-1), state  # (N, V)

    def reorder(self, state: Any, rows: Tensor) -> Any:
        """The cache of the given rows (B, K)."""
        return state.reorder(rows.flatten())


class CheckedStep(StepModel[Any]):
    """A step model that calls each of some functions before every step; what they raise ends the search."""

    def __init__(self, model: StepModel[Any], checks: Sequence[Callable[[], None]]) -> None:
        self.model, self.checks = model, checks

    def start(self, source: Tensor, source_mask: Tensor) -> Any:
        """The model's own."""
        return self.model.start(source, source_mask)

    def next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The model's own, once nothing was raised."""
        for check in self.checks:
            check()
        return self.model.next(tokens, state)

    def reorder(self, state: Any, rows: Tensor) -> Any:
        """The model's own."""
        return self.model.reorder(state, rows)


@contextmanager
def evaluation_mode(models: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluation mode until the block ends; then the mode the models had, which a training loop still needs."""
    before = [model for model in models if model.training]
    for model in before:
        model.eval()
    try:
        yield
    finally:
        for model in before:
            model.train()
