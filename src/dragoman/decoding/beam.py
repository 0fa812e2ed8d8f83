"""Beam search with the paper's length penalty (Section 6.1).

Shapes:  B sentences still searched   K hypotheses of each   N = B·K   V target vocabulary   n tokens so far, end token included

The rule. At every step each sentence keeps its ``beam`` most probable continuations, the end token among them. Those that end are
finished, the others live on, so a beam of 1 is exactly greedy. At a sentence's length limit only the end token may follow. A sentence
is done as soon as no live hypothesis can still come among its ``n_best``: the live log-probability can only fall, so divided by the
largest penalty ahead it bounds every score to come. On equal scores the hypothesis that finished first stays ahead.

Two things may be asked for beside it: rules, which take continuations away before any is chosen, and another choice of the ``beam``
continuations than the most probable.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.decoding.rules import Rule, only_end
from dragoman.decoding.step import AheadModel, Asked, State, StepModel, goes_ahead, largest, likeliest
from dragoman.errors import DragomanError, UsageError, option

_AHEAD = 8  # steps that a sentence alone takes at most before its search can be ended


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation of one sentence, in ids.

    ``tokens`` end with the end token; ``token_scores`` are their log-probabilities and ``log_probability`` the sum of these; ``score`` is
    the sum over the length penalty. ``reached_limit``: it has the most tokens allowed, so its end may be forced.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    token_scores: tuple[float, ...]
    reached_limit: bool


def length_penalty(n: int, alpha: float) -> float:
    """lp = ((5 + n) / 6)^α for n tokens, end token included (GNMT's, cited in 6.1); scores divide by it, so a larger α favours longer."""
    return float(((5 + n) / 6) ** alpha)  # §6.1 penalty = ((5 + n) / 6)^α


def check_alpha(alpha: float) -> None:
    """Raise UsageError for an exponent beyond ±10, where penalties leave the range of numbers, or one that is no number."""
    if not -10 <= alpha <= 10:
        raise UsageError(f"{option('alpha')}={alpha} is not between -10 and 10; the paper's value is 0.6")


def check_n_best(n_best: int, beam: int) -> None:
    """Raise UsageError for more outputs than the beam has hypotheses, or none."""
    if not 1 <= n_best <= beam:
        raise UsageError(f"{option('n_best')}={n_best} with {option('beam')}={beam}: it must be at least 1 and at most the beam")


class Live(NamedTuple):
    """The sentences still searched and their live hypotheses; a total of -∞ marks a place that is empty."""

    sentence: Tensor  # (B,) place in the caller's batch
    limit: Tensor  # (B,) most tokens
    limit_penalty: Tensor  # (B,) length penalty at the limit
    best: Tensor  # (B, n_best) scores of the best finished hypotheses, falling
    total: Tensor  # (B, K) log-probability
    tokens: Tensor  # (B, K, n)
    token_scores: Tensor  # (B, K, n)

    def select(self, kept: Tensor) -> "Live":
        """The sentences at the places ``kept``."""
        return Live(*(field[kept] for field in self))


class Chosen(NamedTuple):
    """The continuations that live on or end, at most as many as the beam: each a live hypothesis and one token more, (B, K) all four.

    A total of -∞ marks a place that is empty.
    """

    total: Tensor  # log-probability of the whole
    token_score: Tensor  # log-probability of the token
    hypothesis: Tensor  # place of the hypothesis among those of its sentence
    token: Tensor


Choose = Callable[[Live, Tensor, int], Chosen]
"""The choice among the continuations of the live hypotheses, by log-probabilities (B, K, V) and the beam."""

Watch = Callable[[Live, Sequence[Sequence[Hypothesis]]], None]
"""Told after each step what is live and what each sentence of the batch has finished; what it raises ends the search."""


def most_probable(live: Live, log_probs: Tensor, beam: int) -> Chosen:
    """The ``beam`` continuations of the highest log-probability, the best first; log_probs (B, K, V)."""
    # A continuation among the best of all is among the best of its own row.
    return _best_of(live, *largest(log_probs, min(beam, log_probs.size(2))), beam)


def _best_of(live: Live, token_scores: Tensor, tokens: Tensor, beam: int) -> Chosen:
    """The ``beam`` best of the continuations by these tokens (B, K, k)."""
    totals = (live.total[..., None] + token_scores).flatten(1)  # (B, K·k) §6.1 totals = log P so far + log p of the token
    if totals.size(1) == 1:  # nothing to choose from
        return Chosen(totals, token_scores[:, 0], torch.zeros_like(tokens[:, 0]), tokens[:, 0])
    total, place = totals.topk(min(beam, totals.size(1)))  # (B, K) with the new K
    return Chosen(total, token_scores.flatten(1).gather(1, place), place // tokens.size(2), tokens.flatten(1).gather(1, place))


@torch.inference_mode()
def beam_search(
    model: StepModel[State],
    source: Tensor,
    source_mask: Tensor,
    *,
    bos: int,
    eos: int,
    banned: Sequence[int] = (),
    beam: int,
    alpha: float,
    max_lengths: Sequence[int],
    n_best: int = 1,
    rules: Sequence[Rule] = (),
    choose: Choose = most_probable,
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` hypotheses of each sentence, best score first, without duplicates.

    source (B, S) ids; source_mask (B, S), True at tokens; ``max_lengths`` the most target tokens of each sentence, end token included.
    ``banned`` ids are never generated and ``rules`` take other continuations away, while scores stay the model's own. Fewer than ``n_best``
    come back only where fewer exist, or where ``choose`` leaves them out; none for a sentence to which the rules leave no output.
    Raises UsageError for an ``n_best`` that is not between 1 and ``beam``, an ``alpha`` beyond ±10 or a length below 1, and DragomanError
    for a sentence without any output of positive probability, whatever the rules.
    """
    _check(beam, n_best, alpha, max_lengths)
    if not max_lengths:
        return []
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    live = _start(max_lengths, alpha, n_best, source.device)
    state = model.start(source, source_mask)
    tokens = source.new_full((len(max_lengths),), bos)  # (N,), N = B at the first step
    spans, shortest = _spans(banned), min(max_lengths)
    few_at_a_time = choose is most_probable and all(rule.row_by_row for rule in rules)
    alone = model if few_at_a_time and beam == len(max_lengths) == 1 and watch is None and goes_ahead(model) else None
    while len(tokens):
        several = _ahead(alone, tokens, state, live, rules, Asked(1, spans), eos, shortest - 1) if alone else None
        if several is not None:
            (live, state), rows = several, None
        else:
            asked = Asked(beam, spans, _restriction(live, rules, eos, live.tokens.size(2) + 1 >= shortest))
            live, rows, state = _step(model, tokens, state, live, asked, None if few_at_a_time else choose)
        live = _finish(live, finished, alpha=alpha, eos=eos)
        if watch is not None:
            watch(live, finished)
        going = _may_win(live, alpha)  # (B,)
        if not going.all():
            kept = _closed_up(going)
            live, rows = live.select(kept), kept[:, None] if rows is None else rows[kept]  # (B, K)
        if rows is not None:
            state = _reorder(model, state, rows, len(tokens))
        tokens = live.tokens[..., -1].flatten()  # (N,)
    if not rules and not all(finished):
        raise DragomanError("a sentence has no output of positive probability: the model's weights are damaged; use an undamaged copy")
    return finished


def _check(beam: int, n_best: int, alpha: float, max_lengths: Sequence[int]) -> None:
    check_n_best(n_best, beam)
    check_alpha(alpha)
    if min(max_lengths, default=1) < 1:
        raise UsageError(f"a largest length of {min(max_lengths)} leaves no room for the end token; it must be at least 1")


def _step(
    model: StepModel[State], tokens: Tensor, state: State, live: Live, asked: Asked, choose: Choose | None
) -> tuple[Live, Tensor | None, State]:
    """The hypotheses one token longer, what `_extend` says of their rows, and the state; None chooses the most probable, which needs no
    other log-probabilities.
    """
    if choose is None:
        best, state = likeliest(model, tokens, state, asked)
        token_scores, following = (each.view(*live.tokens.shape[:2], -1) for each in best)  # (B, K, k)
        chosen = _best_of(live, token_scores, following, asked.number)
    else:
        log_probs, state = model.next(tokens, state)  # (N, V)
        asked.limit(log_probs)
        chosen = choose(live, log_probs.view(*live.tokens.shape[:2], -1), asked.number)
    return *_extend(live, chosen), state


def _ahead(
    model: AheadModel[State], tokens: Tensor, state: State, live: Live, rules: Sequence[Rule], asked: Asked, eos: int, longest: int
) -> tuple[Live, State] | None:
    """Several steps of a sentence alone with a beam of 1, up to the longest output that need not end there, and no further than no rule
    takes anything away; None where there are none.
    """
    so_far: list[int] = live.tokens[0, 0].tolist()
    most = min(longest - len(so_far), _AHEAD)
    if most < 2 or not all(rule.idle(so_far, 0) for rule in rules):
        return None
    made = model.ahead(tokens, state, live.total[0], asked=asked, eos=eos, most=most)
    more: list[int] = made.tokens.tolist()
    count = next((n for n in range(1, len(more)) if not all(rule.idle(so_far + more[:n], 0) for rule in rules)), len(more))
    live = live._replace(
        total=made.totals[None, count - 1 : count],
        tokens=torch.cat((live.tokens, made.tokens[None, None, :count]), -1),
        token_scores=torch.cat((live.token_scores, made.log_probs[None, None, :count]), -1),
    )
    return live, made.state_after(count)


def _restriction(live: Live, rules: Sequence[Rule], eos: int, near_limit: bool) -> Callable[[Tensor, int], None] | None:
    """What the rules take from the live hypotheses, and the limit from those that are at it; None where they take nothing."""
    awake, at_limit = [rule for rule in rules if live.tokens.size(2) >= rule.sleeps], None
    if near_limit:
        at_limit = (live.limit == live.tokens.size(2) + 1)[:, None].expand(live.tokens.shape[:2]).flatten()  # (N,)
        at_limit = at_limit if at_limit.any() else None
    return partial(_restrict, live, awake, at_limit, eos) if awake or at_limit is not None else None


def _restrict(live: Live, rules: Sequence[Rule], at_limit: Tensor | None, eos: int, log_probs: Tensor, first: int) -> None:
    """Sets to -∞ what may not follow, in log_probs (n, V) of the rows from ``first`` on: at the limit all but the end."""
    rows = slice(first, first + len(log_probs))
    if rules:
        sentence = live.sentence[:, None].expand(live.tokens.shape[:2]).flatten()[rows]  # (n,)
        for rule in rules:
            rule(log_probs, live.tokens.flatten(0, 1)[rows], sentence)
    if at_limit is not None:
        only_end(log_probs, at_limit[rows], eos)


def _start(max_lengths: Sequence[int], alpha: float, n_best: int, device: torch.device) -> Live:
    sentences = len(max_lengths)
    return Live(
        sentence=torch.arange(sentences, device=device),
        limit=torch.tensor(max_lengths, device=device),
        limit_penalty=torch.tensor([length_penalty(limit, alpha) for limit in max_lengths], device=device),
        best=torch.full((sentences, n_best), -math.inf, device=device),
        total=torch.zeros(sentences, 1, device=device),
        tokens=torch.zeros(sentences, 1, 0, dtype=torch.long, device=device),
        token_scores=torch.zeros(sentences, 1, 0, device=device),
    )


def _spans(ids: Sequence[int]) -> list[tuple[int, int]]:
    """The ids as stretches without a gap, each by its first and its last: there are few, and to write each takes less time than a list."""
    spans: list[tuple[int, int]] = []
    for each in sorted(set(ids)):
        if spans and spans[-1][1] == each - 1:
            spans[-1] = spans[-1][0], each
        else:
            spans.append((each, each))
    return spans


def _extend(live: Live, chosen: Chosen) -> tuple[Live, Tensor | None]:
    """The chosen continuations of each sentence, and the rows (B, K) among the N before that they continue; None for each its own."""
    sentences, hypotheses, _ = live.tokens.shape
    tokens, token_scores, rows = live.tokens, live.token_scores, None
    if hypotheses > 1 or chosen.token.size(1) > 1:
        rows = chosen.hypothesis + hypotheses * torch.arange(sentences, device=live.limit.device)[:, None]  # (B, K) with the new K
        tokens, token_scores = (each.flatten(0, 1)[rows] for each in (tokens, token_scores))
    return live._replace(
        total=chosen.total,
        tokens=torch.cat((tokens, chosen.token[..., None]), -1),  # (B, K, n + 1)
        token_scores=torch.cat((token_scores, chosen.token_score[..., None]), -1),
    ), rows


def _finish(live: Live, finished: list[list[Hypothesis]], *, alpha: float, eos: int) -> Live:
    """Moves the hypotheses that have just ended to the finished ones, when they come among their sentence's n best."""
    n = live.tokens.size(2)
    n_best = live.best.size(1)
    ended = live.tokens[..., -1] == eos  # (B, K)
    if not ended.any():
        return live
    score = live.total / length_penalty(n, alpha)  # (B, K) §6.1 score = log P / penalty
    enters = ended & (score > live.best[:, -1:])  # (B, K)
    at_limit = (live.limit == n)[:, None].expand_as(enters)  # (B, K)
    sentence = live.sentence[:, None].expand_as(enters)  # (B, K)
    columns = (sentence, live.tokens, live.total, score, live.token_scores, at_limit)
    for place, tokens, total, points, token_scores, limited in zip(*(column[enters].tolist() for column in columns), strict=True):
        best = finished[place]
        best.append(Hypothesis(tuple(tokens), total, points, tuple(token_scores), limited))
        best.sort(key=lambda hypothesis: -hypothesis.score)
        del best[n_best:]
    best_scores = torch.cat((live.best, score.masked_fill(~ended, -math.inf)), 1).topk(n_best).values  # (B, n_best)
    return live._replace(total=live.total.masked_fill(ended, -math.inf), best=best_scores)


def _may_win(live: Live, alpha: float) -> Tensor:
    """Which sentences (B,) still have a live hypothesis that could come among the n best."""
    next_length = live.tokens.size(2) + 1
    largest_penalty = live.limit_penalty if alpha >= 0 else length_penalty(next_length, alpha)
    return live.total.amax(1) / largest_penalty > live.best[:, -1]


def _closed_up(going: Tensor) -> Tensor:
    """The places of those that go on, each where it was but for the last, which fill the gaps: so little of a cache moves."""
    count = int(going.sum())
    places = torch.arange(count, device=going.device)
    places[~going[:count]] = going[count:].nonzero()[:, 0] + count
    return places


def _reorder(model: StepModel[State], state: State, rows: Tensor, rows_before: int) -> State:
    """The state of these rows (B, K); untouched where nothing moves."""
    if rows.numel() == rows_before and torch.equal(rows.flatten(), torch.arange(rows_before, device=rows.device)):
        return state
    return model.reorder(state, rows)
