"""What a beam search tried (Section 6.1): every continuation that it kept, and the next best ones that it did not.

Shapes:  K hypotheses   V target vocabulary

The search is watched from outside: a step model around the real one sees the log-probabilities that the search chooses from, after rules
and bans have acted on them, and the search's own choice is made of them again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.beam import Hypothesis, Live, length_penalty, most_probable
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.phrases import Prefix, Spelling
from dragoman.decoding.prepared import step_of
from dragoman.decoding.search import Found, Search, Wanted
from dragoman.decoding.split import longest_taken
from dragoman.decoding.step import StepModel
from dragoman.explain.pieces import shown_piece
from dragoman.explain.record import Trace, recording


@dataclass(frozen=True)
class Node:
    """A continuation: the node of the step before that it continues, its token with log-probability, and that of the whole.

    ``kept``: the search went on with it, or it ended a hypothesis, and then it is ``ended`` too.
    """

    parent: int | None
    token: int
    log_probability: float
    total: float
    kept: bool
    ended: bool


@dataclass(frozen=True)
class Candidate:
    """A finished hypothesis: its text, and the places of its nodes in the steps of the tree.

    ``behind_from`` is the token from which on, to its last, its log-probability so far is below the best candidate's; None where it is not.
    """

    hypothesis: Hypothesis
    text: str
    stop: str
    penalty: float
    path: tuple[int, ...]
    behind_from: int | None


@dataclass(frozen=True)
class BeamRecord:
    """The candidates, best first, and the tree that they come from: for each step its nodes, kept ones first."""

    candidates: tuple[Candidate, ...]
    tree: tuple[tuple[Node, ...], ...]
    beam: int
    alpha: float
    trace: Trace

    def record(self, tokenizer: Tokenizer) -> list[dict[str, Any]]:
        """The tree as JSON: ``[parent, piece, log-probability, kept, total, ended]`` of each node."""
        return [
            {
                "step": number,
                "nodes": [
                    [node.parent, tokenizer.token(node.token), node.log_probability, node.kept, node.total, node.ended] for node in step
                ],
            }
            for number, step in enumerate(self.tree)
        ]

    def why_behind(self, candidate: Candidate, tokenizer: Tokenizer) -> str:
        """Why a candidate is behind the best, in words."""
        best, at = self.candidates[0], candidate.behind_from
        if candidate is best:
            return "it is the first"
        if at is None:
            longer = len(candidate.path) > len(best.path)
            return f"it is more probable, but {'longer' if longer else 'shorter'}: the length penalty decides"
        own, first = (self._so_far(each, at) for each in (candidate, best))
        piece = tokenizer.token(candidate.hypothesis.tokens[at])
        return f"it fell behind at token {at + 1}, “{shown_piece(piece)}”: log P so far {own:.2f}, of the first {first:.2f}"

    def _so_far(self, candidate: Candidate, at: int) -> float:
        """log P up to a token; a shorter one has all of its sum by then."""
        step = min(at, len(candidate.path) - 1)
        return self.tree[step][candidate.path[step]].total


def search_beams(
    bundle: Bundle,
    ids: Sequence[int],
    *,
    beam: int,
    alpha: float,
    max_length: int | None,
    prefix: str,
    check: Callable[[], None] | None = None,
) -> BeamRecord:
    """The search for source ids (end token included) as `dragoman translate --n-best BEAM` does it, and what it tried.

    ``prefix`` is how the output must begin; ``check`` is called at each step, and may raise. UsageError and
    DragomanError as from a translation.
    """
    target, place = bundle.target_tokenizer, "the target prefix"
    trace = Trace()
    watched = _WatchedStep(step_of(bundle.encoder_decoder), trace, beam=beam, eos=target.eos, check=check)
    spelling = cache(lambda: Spelling(target))
    search = Search(
        bundle, watched, longest=longest_taken(bundle.config), beam=beam, alpha=alpha, n_best=beam, max_length=max_length,
        options=SearchOptions(), spelling=spelling,
    )  # fmt: skip
    wanted = Wanted(list(ids), place, spelling().prefix(prefix, place) if prefix else Prefix([], {}), ())
    with torch.inference_mode(), recording(trace, files=("decoding/beam.py",)):
        (found,) = search([wanted], beam * max(len(ids), 16))
        watched.settle()
    return BeamRecord(_candidates(bundle, found, watched.tree, alpha), tuple(map(tuple, watched.tree)), beam, alpha, trace)


def _candidates(bundle: Bundle, found: Sequence[Found], tree: Sequence[Sequence[Node]], alpha: float) -> tuple[Candidate, ...]:
    best = found[0].hypothesis
    return tuple(
        Candidate(
            each.hypothesis, bundle.target_tokenizer.decode(each.hypothesis.tokens), each.stop,
            length_penalty(len(each.hypothesis.tokens), alpha), _path(each.hypothesis, tree), _behind_from(each.hypothesis, best),
        )
        for each in found
    )  # fmt: skip


def _path(hypothesis: Hypothesis, tree: Sequence[Sequence[Node]]) -> tuple[int, ...]:
    path: list[int] = []
    for token, nodes in zip(hypothesis.tokens, tree, strict=False):
        parent = path[-1] if path else None
        path.append(next(place for place, node in enumerate(nodes) if node.kept and node.token == token and node.parent == parent))
    return tuple(path)


def _behind_from(hypothesis: Hypothesis, best: Hypothesis) -> int | None:
    """The first of the last tokens in a row at which the sum so far is below the best's; its end counts for those it has not."""
    if hypothesis is best:
        return None
    place: int | None = None
    for count in range(len(hypothesis.tokens), 0, -1):
        if math.fsum(hypothesis.token_scores[:count]) >= math.fsum(best.token_scores[:count]):
            break
        place = count - 1
    return place


@dataclass
class _WatchedStep(StepModel[Any]):
    """A step model that passes everything on, and keeps the tree of one sentence's search."""

    model: StepModel[Any]
    trace: Trace  # of the search, which must not have what is computed here
    beam: int
    eos: int
    check: Callable[[], None] | None = None  # called at each step
    pruned: int = 4  # continuations of each step that are shown beside the kept ones
    tree: list[list[Node]] = field(default_factory=list)
    _log_probs: Tensor | None = None
    _total: Tensor | None = None  # (K,) log-probability of each hypothesis; -∞ for one that has ended
    _nodes: list[int | None] = field(default_factory=lambda: [None])  # of each hypothesis in the last step

    def start(self, source: Tensor, source_mask: Tensor) -> Any:
        """The model's."""
        return self.model.start(source, source_mask)

    def next(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The model's; what the search has made of the last step is known by now."""
        self.settle()
        if self.check is not None:
            self.check()
        self._log_probs, state = self.model.next(tokens, state)  # (K, V)
        return self._log_probs, state

    def reorder(self, state: Any, rows: Tensor) -> Any:
        """The model's."""
        return self.model.reorder(state, rows)

    def settle(self) -> None:
        """The nodes of the step that was chosen from, if they are not in the tree yet."""
        log_probs, self._log_probs = self._log_probs, None
        if log_probs is None:
            return
        self.trace.paused = True
        self._add_step(log_probs)
        self.trace.paused = False

    def _add_step(self, log_probs: Tensor) -> None:
        total = log_probs.new_zeros(1) if self._total is None else self._total  # (K,)
        kept = self._choice(total, log_probs, self.beam)
        more = self._choice(total, log_probs, self.beam + self.pruned)
        chosen = {(row, token) for row, token, *_ in kept}
        nodes: list[Node] = []
        places: list[int | None] = []
        for row, token, log_probability, whole in [*kept, *(each for each in more if each[:2] not in chosen)]:
            is_kept = (row, token) in chosen
            places += [len(nodes) if whole > -math.inf else None] if is_kept else []
            if whole > -math.inf:
                nodes.append(Node(self._nodes[row], token, log_probability, whole, is_kept, is_kept and token == self.eos))
        self._total = log_probs.new_tensor([-math.inf if token == self.eos else whole for _, token, _, whole in kept])
        self._nodes = places
        self.tree.append(nodes)

    def _choice(self, total: Tensor, log_probs: Tensor, count: int) -> list[tuple[int, int, float, float]]:
        """The search's own choice among the continuations: hypothesis, token, its log-probability, that of the whole."""
        live = Live(*[total[None]] * 7)  # of a live sentence the choice looks at the totals (1, K) alone
        chosen = most_probable(live, log_probs[None], count)
        columns = (chosen.hypothesis, chosen.token, chosen.token_score, chosen.total)
        return list(zip(*(column[0].tolist() for column in columns), strict=True))
