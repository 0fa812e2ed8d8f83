"""What may not come next: rules that search asks once a step, before it chooses.

Shapes:  N rows, one a hypothesis   n tokens so far   V target vocabulary   B sentences   P tokens of the longest prefix
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import eq
from typing import Protocol

import torch
from torch import Tensor


class Rule(Protocol):
    """A rule of a search: it sets to -∞ what may not follow, in place, and leaves the rest as the model has it.

    ``row_by_row``: it looks at each row by itself and remembers nothing, so it may be asked of a few rows of a step at a time.
    ``sleeps``: the tokens before which it takes nothing away, so that it need not be asked.
    """

    row_by_row: bool = False
    sleeps: int = 0

    def __call__(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """scores (N, V) of what follows; tokens (N, n) so far, without the start; sentence (N,), places in the caller's batch.

        Rows may hold anything in the empty places of a beam.
        """
        ...

    def idle(self, tokens: Sequence[int], sentence: int) -> bool:
        """Whether it surely takes nothing away after these tokens of a sentence, by its place in the caller's batch."""
        return len(tokens) < self.sleeps


def only_end(scores: Tensor, rows: Tensor, eos: int) -> None:
    """Leaves the end token alone possible, in place, where ``rows`` (…) is True; scores (…, V)."""
    end = scores[..., eos].clone()  # (…)
    scores[rows] = -math.inf
    scores[..., eos] = end


class MinimumLength(Rule):
    """No end before a sentence has its least number of tokens ``lengths`` (B,), end token included."""

    row_by_row = True

    def __init__(self, lengths: Sequence[int], *, eos: int, device: torch.device) -> None:
        self.lengths, self.eos = torch.tensor(lengths, device=device), eos
        self.longest = max(lengths, default=0)

    def idle(self, tokens: Sequence[int], sentence: int) -> bool:
        """Whether all sentences may end now."""
        return len(tokens) + 1 >= self.longest

    def __call__(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """Takes the end away where it would come too early."""
        length = tokens.size(1) + 1
        if length < self.longest:
            scores[:, self.eos].masked_fill_(self.lengths[sentence] > length, -math.inf)


class NoRepeatedNgram(Rule):
    """No sequence of ``n`` tokens comes twice in an output, nor in a prompt and the output after it: ``prompts`` (B, P), -1 before each."""

    row_by_row = True

    def __init__(self, n: int, prompts: Tensor | None = None) -> None:
        self.n, self.prompts = n, prompts

    def __call__(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """Takes away each token that has already followed the last n - 1."""
        if self.prompts is not None:
            tokens = torch.cat((self.prompts[sentence], tokens), 1)
        if tokens.size(1) < self.n:
            return
        ngrams = tokens.unfold(1, self.n, 1)  # (N, n-grams, n)
        last = tokens[:, tokens.size(1) - self.n + 1 :]  # (N, n - 1)
        again = (ngrams[..., :-1] == last[:, None]).all(-1) & (ngrams[..., 0] >= 0)  # (N, n-grams)
        following = ngrams[..., -1].clamp(min=0)
        scores.scatter_add_(1, following, torch.zeros_like(again, dtype=scores.dtype).masked_fill_(again, -math.inf))


class RepetitionGuard(Rule):
    """A hypothesis that has gone round in a loop must end.

    A loop: the last tokens are one piece of at most 16 tokens, repeated so often that at least ``least`` tokens only repeat those one piece
    earlier, and that the piece stands there at least 4 times and more than twice as often as any piece of the source in a row.
    """

    row_by_row = True
    LONGEST_PIECE = 16
    LEAST_COPIES = 4

    def __init__(self, sources: Sequence[Sequence[int]], *, least: int, eos: int, device: torch.device) -> None:
        self.sources, self.least, self.eos, self.device = sources, least, eos, device
        self.sleeps = least + 1

    @cached_property
    def copies(self) -> list[int]:
        """The copies in a row that make a loop, of each sentence."""
        return [max(self.LEAST_COPIES, 2 * most_copies(ids, self.LONGEST_PIECE) + 1) for ids in self.sources]

    @cached_property
    def needed(self) -> Tensor:
        """So many of the last tokens must equal those one period earlier: (B, periods)."""
        periods = torch.arange(1, self.LONGEST_PIECE + 1, device=self.device)  # (periods,)
        return (periods * (torch.tensor(self.copies, device=self.device)[:, None] - 1)).clamp(min=self.least)

    def __call__(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """Leaves the end alone possible after a loop, unless another rule forbids the end."""
        n = tokens.size(1)
        if n < self.sleeps:
            return
        needed = self.needed[sentence]  # (N, periods)
        window = min(int(needed.max()), n)
        # Column p of the unfolded is the window p tokens earlier; before the first token is nothing that could be equal.
        padded = torch.nn.functional.pad(tokens, (self.LONGEST_PIECE, 0), value=-1)[:, -window - self.LONGEST_PIECE :]
        earlier = padded.unfold(1, window, 1).flip(1)[:, 1:]  # (N, periods, window)
        must = torch.arange(window, 0, -1, device=tokens.device) <= needed[..., None]  # (N, periods, window)
        repeats = ((earlier == tokens[:, None, n - window :]) | ~must).all(-1) & (needed <= window)  # (N, periods)
        looping = repeats.any(1) & (scores[:, self.eos] > -math.inf)  # (N,)
        only_end(scores, looping, self.eos)

    def idle(self, tokens: Sequence[int], sentence: int) -> bool:
        """Whether these tokens are in no loop: what repeats a piece ends with a token of that piece."""
        return (
            len(tokens) < self.sleeps
            or tokens[-1] not in tokens[-1 - self.LONGEST_PIECE : -1]
            or not self.ended([*tokens, self.eos], sentence)
        )

    def ended(self, tokens: Sequence[int], sentence: int) -> bool:
        """Whether an output, end token included, stands where this rule lets nothing but the end follow."""
        content = list(tokens[:-1])
        for period in range(1, min(self.LONGEST_PIECE, len(content)) + 1):
            needed = max(self.least, period * (self.copies[sentence] - 1))
            tail = content[-needed - period :]
            if len(tail) == needed + period and tail[period:] == tail[:-period]:
                return True
        return False


def most_copies(ids: Sequence[int], longest_piece: int) -> int:
    """How often at most one piece of up to ``longest_piece`` ids stands in a row: 3 in ``x a b a b a b y``."""
    most = 1
    for period in range(1, min(longest_piece, len(ids) // 2) + 1):
        if sum(map(eq, ids[period:], ids)) < period:
            continue
        run = 0
        for place in range(period, len(ids)):
            run = run + 1 if ids[place] == ids[place - period] else 0
            most = max(most, run // period + 1)
    return most


class ForcedPrefix(Rule):
    """Each output begins with its sentence's tokens, whatever the other rules say; these hold for all that is the model's own choice.

    ``prefixes`` holds the ids of each sentence, maybe none. ``instead`` has, for a sentence and a place in its prefix, ids that may stand
    there as well and end the prefix, as far as the other rules let them: longer pieces that spell the rest of it and go on. At a place
    with `ONLY_INSTEAD` one of these must stand.
    """

    ONLY_INSTEAD = -1
    _NOTHING = -2

    def __init__(
        self,
        prefixes: Sequence[Sequence[int]],
        instead: Mapping[tuple[int, int], Sequence[int]],
        others: Sequence[Rule],
        *,
        device: torch.device,
    ) -> None:
        longest = max(map(len, prefixes), default=0)
        padded = [[*ids, *[self._NOTHING] * (longest - len(ids))] for ids in prefixes]
        self.ids = torch.tensor(padded, dtype=torch.long, device=device)  # (B, P)
        self.instead = {key: torch.tensor(ids, dtype=torch.long, device=device) for key, ids in instead.items()}
        self.others = others
        self.row_by_row = all(rule.row_by_row for rule in others)

    def __call__(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """Leaves the next token of the prefix alone possible, and what may stand for it, in rows that are inside their prefix."""
        n = tokens.size(1)
        if n >= self.ids.size(1):
            self._apply_others(scores, tokens, sentence)
            return
        prefix = self.ids[sentence]  # (N, P)
        inside = ((prefix[:, :n] == tokens).all(1) & (prefix[:, n] != self._NOTHING)).nonzero()[:, 0]  # (rows,)
        free = torch.zeros(len(inside), scores.size(1), dtype=torch.bool, device=scores.device)
        for row, place in enumerate(sentence[inside].tolist()):
            if (place, n) in self.instead:
                free[row, self.instead[place, n]] = True
        exact = inside[prefix[inside, n] != self.ONLY_INSTEAD]  # (rows with a token of their own,)
        forced = scores[exact, prefix[exact, n]]
        # Before the other rules: one that wants the end must see that it is not to be had.
        scores[inside] = scores[inside].masked_fill(~free, -math.inf)
        self._apply_others(scores, tokens, sentence)
        scores[exact, prefix[exact, n]] = forced

    def _apply_others(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        for rule in self.others:
            rule(scores, tokens, sentence)
