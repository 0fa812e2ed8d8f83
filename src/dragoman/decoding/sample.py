"""Outputs drawn at random from the model's distribution.

Shapes:  B sentences   S samples of each   N rows, one an unfinished sample   V target vocabulary   n tokens so far, end token included

A row has its own stream of random numbers, a function of its key and the step: what shares its batch changes nothing.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.decoding.beam import Hypothesis, length_penalty
from dragoman.decoding.rules import Rule, only_end
from dragoman.decoding.step import State, StepModel


@dataclass(frozen=True)
class Step:
    """What one step has drawn: rows (N,), places of the samples that were unfinished; their tokens and these tokens' scores (N, n) so far.

    ``ended`` (N,) is True where the end was drawn, ``lost`` where the rules left nothing to draw. ``best`` are the log-probabilities and
    the tokens (N, k) of the most probable ones, where they are asked for.
    """

    rows: Tensor
    seen: Tensor
    token_scores: Tensor
    ended: Tensor
    lost: Tensor
    best: tuple[Tensor, Tensor] | None = None


@torch.inference_mode()
def sample(
    model: StepModel[State],
    source: Tensor,
    source_mask: Tensor,
    *,
    bos: int,
    eos: int,
    banned: Sequence[int] = (),
    alpha: float,
    max_lengths: Sequence[int],
    keys: Sequence[Sequence[int]],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """Samples of each sentence, one for each of its 64-bit ``keys``, as they were drawn: the same one may come more than once.

    source (B, S) ids; source_mask (B, S), True at tokens; other arguments as for `beam_search`. ``temperature``, ``top_k`` and ``top_p``
    are those of `draw`; scores are the model's own, before all three. None for a sentence to which the rules leave no output.
    """
    sentence = [place for place, some in enumerate(keys) for _ in some]
    drawn: dict[int, Hypothesis] = {}
    for step in sampling_steps(
        model, source, source_mask, bos=bos, eos=eos, banned=banned, max_lengths=max_lengths, keys=keys, temperature=temperature,
        top_k=top_k, top_p=top_p, rules=rules,
    ):  # fmt: skip
        n = step.seen.size(1)
        for place in (step.ended & ~step.lost).nonzero()[:, 0].tolist():
            scores, row = step.token_scores[place].tolist(), int(step.rows[place])
            total = math.fsum(scores)
            limited = n == max_lengths[sentence[row]]
            drawn[row] = Hypothesis(tuple(step.seen[place].tolist()), total, total / length_penalty(n, alpha), tuple(scores), limited)
    return _by_sentence(drawn, [len(some) for some in keys])


@torch.inference_mode()
def sampling_steps(
    model: StepModel[State],
    source: Tensor,
    source_mask: Tensor,
    *,
    bos: int,
    eos: int,
    banned: Sequence[int] = (),
    max_lengths: Sequence[int],
    keys: Sequence[Sequence[int]],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    rules: Sequence[Rule] = (),
    best: int = 0,
) -> Iterator[Step]:
    """The steps of `sample`, each as soon as it is drawn, until no sample is unfinished; a row is the place of its key among all keys.

    Each step tells the ``best`` most probable tokens, if so many are asked for.
    """
    sentence = torch.tensor([place for place, some in enumerate(keys) for _ in some], device=source.device)  # (N,)
    key = torch.tensor([each for some in keys for each in some], dtype=torch.long, device=source.device)  # (N,)
    limit = torch.tensor(max_lengths, device=source.device)
    row = torch.arange(len(sentence), device=source.device)  # (N,) place of each unfinished sample
    seen = torch.zeros(len(row), 0, dtype=torch.long, device=source.device)  # (N, n)
    token_scores = torch.zeros(len(row), 0, device=source.device)  # (N, n)
    tokens = source.new_full((len(row),), bos)  # (N,)
    never = source.new_tensor(banned, dtype=torch.long)
    if len(row):
        state = model.reorder(model.start(source, source_mask), sentence[:, None])
    while len(row):
        log_probs, state = model.next(tokens, state)  # (N, V)
        log_probs.index_fill_(1, never, -math.inf)
        n = seen.size(1) + 1
        for rule in rules:
            rule(log_probs, seen, sentence[row])
        only_end(log_probs, limit[sentence[row]] == n, eos)
        tokens = draw(log_probs, uniform(key[row], n), temperature=temperature, top_k=top_k, top_p=top_p)  # (N,)
        score = log_probs.gather(1, tokens[:, None])  # (N, 1)
        seen, token_scores = torch.cat((seen, tokens[:, None]), 1), torch.cat((token_scores, score), 1)
        impossible = ~(score[:, 0] > -math.inf)
        done = tokens == eos
        most = log_probs.topk(min(best, log_probs.size(1))) if best else None  # (N, k) twice
        yield Step(row, seen, token_scores, done, impossible, None if most is None else (most.values, most.indices))
        going = (~(done | impossible)).nonzero()[:, 0]  # (M,)
        if len(going) < len(row):
            state = model.reorder(state, going[:, None])
        row, seen, token_scores, tokens = row[going], seen[going], token_scores[going], tokens[going]


def _by_sentence(drawn: dict[int, Hypothesis], counts: Sequence[int]) -> list[list[Hypothesis]]:
    found, first = [], 0
    for count in counts:
        found.append([drawn[row] for row in range(first, first + count) if row in drawn])
        first += count
    return found


def draw(log_probs: Tensor, numbers: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """One token (N,) of each row, drawn by a uniform number (N,) from [0, 1).

    Probabilities are raised to 1 / ``temperature`` first; 0 is the most probable token. Then the ``top_k`` most probable tokens stay, 0
    for all; then the fewest most probable ones whose probabilities, the tokens left out before not counted, sum to ``top_p`` or more:
    always one at least.
    """
    most = log_probs.amax(1, keepdim=True)  # (N, 1)
    if temperature == 0:
        return log_probs.argmax(1)
    # The largest becomes 0 before the division, so that no temperature is too small; a row of -∞ stays one of equals.
    scaled = (log_probs - torch.where(most > -math.inf, most, 0)).double() / temperature  # (N, V)
    order = None
    width = min(top_k or scaled.size(1), scaled.size(1))
    if width < scaled.size(1) or top_p < 1:
        scaled, order = scaled.topk(width) if width < scaled.size(1) else scaled.sort(dim=1, descending=True, stable=True)
    probs = scaled.softmax(1).nan_to_num(0.0)
    if top_p < 1:
        before = probs.cumsum(1) - probs  # (N, k) probability of the better tokens
        probs[:, 1:] = probs[:, 1:].masked_fill(before[:, 1:] >= top_p, 0)
    reached = probs.cumsum(1)  # (N, k)
    place = torch.searchsorted(reached, (numbers * reached[:, -1])[:, None], right=True)[:, 0]  # (N,)
    place = place.clamp(max=probs.size(1) - 1)  # only a row without any probability goes beyond
    return place if order is None else order.gather(1, place[:, None])[:, 0]


def uniform(keys: Tensor, step: int) -> Tensor:
    """A float64 number from [0, 1) for each 64-bit key (N,) and this step: splitmix64, whose integers wrap as these do."""
    mixed = keys + _signed(step * 0x9E3779B97F4A7C15)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 12).double() / 2**52  # a number of 52 bits times a sum is always below the sum


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Moved right as if without a sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def sample_keys(ids: Sequence[int], seed: int, count: int) -> list[int]:
    """The streams of random numbers of the samples of a text: a function of seed, text and sample, wherever the text stands."""
    names = (f"{seed} {number} {[*ids]}" for number in range(count))
    return [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True) for name in names]
