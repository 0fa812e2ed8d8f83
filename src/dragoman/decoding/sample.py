"""Outputs drawn at random from the model's distribution.

Shapes:  B sentences   S samples of each   N rows, one an unfinished sample   V target vocabulary   n tokens so far, end token included

A row has its own random numbers, one for each token, a function of its key, the step and the token: what shares the batch changes nothing,
and the last digits of probabilities, which it may change, decide only where two tokens come out even.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.decoding.beam import Hypothesis, length_penalty
from dragoman.decoding.rules import Rule, only_end
from dragoman.decoding.step import State, StepModel, largest

_RUNNERS = 64  # of the most probable tokens: one of them mostly wins
_NUCLEUS = 256  # of the most probable tokens: they mostly hold all of ``top_p``


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
        tokens = draw(log_probs, mixed(key[row], n), temperature=temperature, top_k=top_k, top_p=top_p)  # (N,)
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


def draw(log_probs: Tensor, seeds: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """One token (N,) of each row of log_probs (N, V), as the row's 64-bit seed (N,) has it.

    Probabilities are raised to 1 / ``temperature`` first; 0 is the most probable token. Then the ``top_k`` most probable tokens stay, 0
    for all; then the fewest most probable ones whose probabilities, the tokens left out before not counted, sum to ``top_p`` or more:
    always one at least.
    """
    if temperature == 0:
        return log_probs.argmax(1)
    if log_probs.device.type == "mps":  # which has no float64
        return draw(log_probs.cpu(), seeds.cpu(), temperature=temperature, top_k=top_k, top_p=top_p).to(log_probs.device)
    most = log_probs.amax(1, keepdim=True)  # (N, 1)
    # The largest becomes 0 before the division, so that no temperature is too small; a row of -∞ stays one of equals.
    scaled = log_probs - torch.where(most > -math.inf, most, 0)  # (N, V)
    if temperature != 1:
        scaled = (scaled.double() / temperature).to(scaled.dtype)
    tokens = None
    if 0 < top_k < scaled.size(1):
        scaled, tokens = scaled.topk(top_k)  # (N, k)
    if top_p < 1:
        scaled, places = _nucleus(scaled, top_p)  # (N, k)
        tokens = places if tokens is None else tokens.gather(1, places)
    if tokens is None:
        return _first_of_all(scaled, seeds)
    return tokens.gather(1, _first(scaled, tokens, seeds)[:, None])[:, 0]


def _nucleus(scaled: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest most probable of scaled (N, V) that sum to ``top_p``, and their places: (N, k) both, the others among these -∞."""
    total = scaled.logsumexp(1, keepdim=True).double()  # (N, 1)
    best, places = largest(scaled, min(_NUCLEUS, scaled.size(1)))
    shares = (best.double() - total).exp()  # (N, k)
    if more := scaled.size(1) - best.size(1):
        wide = (~(shares.sum(1) >= top_p)).nonzero()[:, 0]  # few are, and to sort all takes several times as long
        if len(wide):  # by themselves: which of equals come first must not hang on other rows
            best, places = F.pad(best, (0, more), value=-math.inf), F.pad(places, (0, more))
            best[wide], places[wide] = scaled[wide].sort(dim=1, descending=True, stable=True)
            shares = (best.double() - total).exp()
    before = shares.cumsum(1) - shares  # (N, k) probability of the better tokens
    best[:, 1:] = best[:, 1:].masked_fill(before[:, 1:] >= top_p, -math.inf)
    kept = max(int((best > -math.inf).sum(1).max()), 1)
    return best[:, :kept], places[:, :kept]


def _first_of_all(scaled: Tensor, seeds: Tensor) -> Tensor:
    """The token (N,) that is the `_first` of all (N, V): the less probable ones run as one, and by themselves only where that one wins."""
    count = scaled.size(1)
    tokens = torch.arange(count, device=scaled.device)
    if count <= 4 * _RUNNERS:
        return _first(scaled, tokens, seeds)
    best, places = largest(scaled, _RUNNERS)  # (N, R)
    rest = scaled.scatter(1, places, -math.inf)  # (N, V)
    names = F.pad(places, (0, 1), value=count)  # (N, R + 1)
    found = names.gather(1, _first(torch.cat((best, rest.logsumexp(1, keepdim=True)), 1), names, seeds)[:, None])[:, 0]
    others = (found == count).nonzero()[:, 0]
    if len(others):
        found[others] = _first(rest[others], tokens, seeds[others])
    return found


def _first(scores: Tensor, tokens: Tensor, seeds: Tensor) -> Tensor:
    """The place (N,) among scores (N, k), the logarithms of rates, of the token that comes first.

    Tokens come at exponential times, so each is the first as often as its rate is of all. A token's time is a function of seed and token.
    """
    times = -uniform(seeds[:, None], tokens + 1).log()  # (N, k) at a rate of 1
    return (scores.double() - times.log()).argmax(1)


def uniform(keys: Tensor, numbers: Tensor | int) -> Tensor:
    """Float64 numbers between 0 and 1, neither included, from 52 bits of those of `mixed`."""
    return (_shifted(mixed(keys, numbers), 12).double() + 0.5) / 2**52


def mixed(keys: Tensor, numbers: Tensor | int) -> Tensor:
    """64 random bits for each 64-bit key and number: splitmix64 after so many steps, whose integers wrap as these do."""
    step = 0x9E3779B97F4A7C15
    bits = keys + (numbers * _signed(step) if isinstance(numbers, Tensor) else _signed(numbers * step))
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shifted(bits, 31)


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
