"""What a search needs from a model: one step at a time, over many hypotheses at once (Section 6.1).

Shapes:  B sentences   S source positions   K hypotheses of each   N = B·K rows   n some of them   k tokens of each   D = d_model
         V target vocabulary
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn

from dragoman.model import EncoderDecoder
from dragoman.model.linear import ROWS

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


_GROUP = 16  # numbers of a row of which the largest stands for all: sorting all of a wide row takes several times as long
_FEW = 4  # rows whose largest number is found sooner by looking at each


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of each row of scores (…, V), falling, and their places: (…, k) both."""
    rows = scores.flatten(0, -2)  # (N, V)
    together = ROWS if rows.device.type == "cpu" else max(len(rows), 1)  # on a CPU so few that they stay near it
    parts = [largest_of_rows(rows[first : first + together], k) for first in range(0, max(len(rows), 1), together)]
    values, places = (part[0] if len(parts) == 1 else torch.cat(part) for part in zip(*parts, strict=True))  # (N, k)
    shape = (*scores.shape[:-1], k)
    return values.view(shape), places.view(shape)


def largest_of_rows(rows: Tensor, k: int, group: int = _GROUP, few: int = _FEW) -> tuple[Tensor, Tensor]:
    """`largest` of rows (N, V), all at once, as a function that PyTorch can run by itself."""
    size, width = rows.size(1), rows.size(1) // group
    if k == 1 and rows.size(0) <= few:
        return rows.max(1, keepdim=True)
    if width < 2 * k:
        return rows.topk(k)
    grouped = width * group
    # Column p of the (N, width) stands for the places p, p + width, …: the k largest are among those of k columns, or in the rest.
    best = rows[:, :grouped].view(-1, group, width).amax(1).topk(k)[1]  # (N, k)
    places = (best[:, :, None] + torch.arange(0, grouped, width, device=rows.device)).flatten(1)  # (N, k·group)
    if grouped < size:
        places = torch.cat((places, torch.arange(grouped, size, device=rows.device).expand(rows.size(0), -1)), 1)
    values, found = rows.gather(1, places).topk(k)  # (N, k)
    return values, places.gather(1, found)


class Likeliest(NamedTuple):
    """The k most probable tokens of each row, falling: their log-probabilities and their ids, (N, k) both."""

    log_probs: Tensor
    tokens: Tensor


class Asked(NamedTuple):
    """What a search asks of a step where it needs no more than that: the ``number`` most probable tokens of those that may follow.

    ``never`` are stretches of ids that follow nothing, each by its first and its last. ``restrict`` sets to -∞, in place, what else may
    not, in log-probabilities (n, V) of the rows from a given one on; None where nothing else is ruled out.
    """

    number: int
    never: Sequence[tuple[int, int]] = ()
    restrict: Callable[[Tensor, int], None] | None = None

    def limit(self, log_probs: Tensor, first: int = 0) -> None:
        """Sets to -∞ what may not follow, in log-probabilities (n, V) of the rows from ``first`` on."""
        for low, high in self.never:
            log_probs.narrow(1, low, high + 1 - low).fill_(-math.inf)
        if self.restrict is not None:
            self.restrict(log_probs, first)

    def of(self, log_probs: Tensor, first: int = 0) -> Likeliest:
        """Of log-probabilities (n, V) of the rows from ``first`` on, which are written to."""
        self.limit(log_probs, first)
        return Likeliest(*largest(log_probs, min(self.number, log_probs.size(1))))


def likeliest(model: StepModel[State], tokens: Tensor, state: State, asked: Asked) -> tuple[Likeliest, State]:
    """`StepModel.next` for what is asked alone.

    A model that has a function of this name need not make all log-probabilities at once; its ``next`` is not called then.
    """
    own = getattr(model, "likeliest", None)
    if own is not None:
        found: tuple[Likeliest, State] = own(tokens, state, asked)
        return found
    log_probs, state = model.next(tokens, state)
    return asked.of(log_probs), state


class Ahead(NamedTuple):
    """Several steps of one hypothesis, each by its most probable token: (n,) all three, and the state after so many of them."""

    log_probs: Tensor
    totals: Tensor  # the sums of the log-probabilities, and of those before
    tokens: Tensor
    state_after: Callable[[int], Any]


class AheadModel(StepModel[State], Protocol[State]):
    """A `StepModel` that can take several steps of one hypothesis at once, where it ``goes_ahead``."""

    @property
    def goes_ahead(self) -> bool:
        """Whether it does so now."""
        ...

    def ahead(self, token: Tensor, state: State, total: Tensor, *, asked: Asked, eos: int, most: int) -> Ahead:
        """At most so many steps of `likeliest` after a token (1,) at once, the last where the end token comes or none is possible.

        total (1,) is the hypothesis's log-probability so far; what is asked is one token without a restriction.
        """
        ...


def goes_ahead(model: StepModel[State]) -> TypeGuard[AheadModel[State]]:
    """Whether a model takes several steps at once now."""
    return bool(getattr(model, "goes_ahead", False))


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
    """A step model that calls each of some functions before every step, or several at once; what they raise ends the search."""

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

    def likeliest(self, tokens: Tensor, state: Any, asked: Asked) -> tuple[Likeliest, Any]:
        """The same for what is asked alone."""
        for check in self.checks:
            check()
        return likeliest(self.model, tokens, state, asked)

    @property
    def goes_ahead(self) -> bool:
        """Whether the model does."""
        return goes_ahead(self.model)

    def ahead(self, token: Tensor, state: Any, total: Tensor, *, asked: Asked, eos: int, most: int) -> Ahead:
        """The model's own, of one that `goes_ahead`, with one check for all."""
        for check in self.checks:
            check()
        return cast(AheadModel[Any], self.model).ahead(token, state, total, asked=asked, eos=eos, most=most)

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
