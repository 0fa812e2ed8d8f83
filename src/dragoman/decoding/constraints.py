"""Beam search under the constraint that phrases appear (Post and Vilar 2018): the beam is shared out by how much of them is said.

Shapes:  B sentences   K live hypotheses of each   M candidates of each   Q phrases of a sentence, L tokens of the longest
         n tokens so far   V target vocabulary

Whole words are looked for at the end of a hypothesis only, as each token comes; what stands there for good is carried from step to step.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.decoding.beam import Chosen, Live, most_probable

_NOTHING = -1


class Phrase(NamedTuple):
    """A phrase that must appear: its ids after a space, which search puts in, and after a sign, which count as well."""

    ids: Sequence[int]
    after_a_sign: Sequence[int]


class _Progress(NamedTuple):
    """How far hypotheses are: the phrases that end with their last token, as far as it shows (B, M, Q); tokens said of all phrases and
    whether one is missing (B, M); the next token of each that is (B, M, Q).
    """

    ending: Tensor
    said: Tensor
    missing: Tensor
    next: Tensor


class RequiredPhrases:
    """The choice of `beam_search` for sentences that have phrases to say.

    Hypotheses with equally many tokens of their phrases said make a bank; the best of every bank live on, then the second best, until the
    beam is full, fuller banks first. A hypothesis may end only with all its phrases. Only where a sentence would have no output at all, as
    at its length limit, those with most of them may end as well.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]], edges: tuple[Tensor, Tensor], *, eos: int, device: torch.device) -> None:
        """``phrases`` of each sentence of the batch; ``edges`` says which entries (V,) begin and end with a letter or digit."""
        self.eos = eos
        self.begins, self.ends = (edge.to(device) for edge in edges)
        self.length = max((len(ids) for some in phrases for phrase in some for ids in phrase), default=0) or 1
        self.ids = self._padded([[phrase.ids for phrase in some] for some in phrases])  # (B, Q, L)
        self.lengths = (self.ids != _NOTHING).sum(2)  # (B, Q)
        self.backwards = [self._padded([[phrase[form][::-1] for phrase in some] for some in phrases]) for form in (0, 1)]  # (B, Q, L)
        # What stands in the live hypotheses for good, (B, K, Q), so that a step need only look at their last tokens.
        self.settled = self.ids.new_zeros(len(phrases), 1, self.ids.size(1), dtype=torch.bool)

    def __call__(self, live: Live, log_probs: Tensor, beam: int) -> Chosen:
        """The continuations of a step; log_probs (B, K, V). Steps of a search must come in order, from the first."""
        if not live.tokens.size(2):
            self.settled = torch.zeros_like(self.settled[:, :1])
        settled = self.settled[live.sentence]  # (B, K, Q)
        window = self.length + 1  # a phrase and the token before it
        recent = torch.nn.functional.pad(live.tokens[..., -window:], (window, 0), value=_NOTHING)[..., -window:]  # (B, K, L + 1)
        progress = self._progress(recent, settled, live.sentence)
        candidates = self._candidates(live, log_probs, beam, progress)  # (B, M)
        longer = torch.cat((_rows(recent, candidates.hypothesis), candidates.token[..., None]), 2)  # (B, M, L + 2)
        firm = _rows(progress.ending, candidates.hypothesis) & ~self._inside_a_word(longer)[..., -1:]
        settled = _rows(settled, candidates.hypothesis) | firm  # (B, M, Q)
        place = self._order(live, candidates, self._progress(longer[..., 1:], settled, live.sentence))[:, :beam]  # (B, K) with the new K
        self.settled = self.settled.new_zeros(len(self.settled), *place.shape[1:], settled.size(2))
        self.settled[live.sentence] = _rows(settled, place)
        return Chosen(*(part.gather(1, place) for part in candidates))

    def _candidates(self, live: Live, log_probs: Tensor, beam: int, progress: _Progress) -> Chosen:
        """What may be chosen (B, M), maybe twice: the most probable, what says more of a phrase, and the ends."""
        ends = log_probs[..., self.eos].clone()  # (B, K)
        log_probs[..., self.eos].masked_fill_(progress.missing, -math.inf)
        tokens = [
            torch.where(progress.next == _NOTHING, self.eos, progress.next),  # (B, K, Q) one step further in a phrase
            log_probs.argmax(2, keepdim=True),  # (B, K, 1) the best of each hypothesis, so that no bank dies out
        ]
        best = most_probable(live, log_probs, beam)
        log_probs[..., self.eos] = ends
        candidates = [best, *(_continuations(live, log_probs, token) for token in tokens), _all_ends(live, ends, self.eos)]
        return Chosen(*(torch.cat(part, 1) for part in zip(*candidates, strict=True)))

    def _order(self, live: Live, candidates: Chosen, progress: _Progress) -> Tensor:
        """The candidates' places (B, M), those to keep first; the totals of those not to keep become -∞, in place."""
        key = candidates.hypothesis * self.begins.numel() + candidates.token  # (B, M)
        possible = candidates.total > -math.inf
        possible &= ~_repeated(key.masked_fill(~possible, -1))  # the same token is possible as one candidate and not as another: the end
        whole = possible & ~(progress.missing & (candidates.token == self.eos))
        last_resort = ~whole.any(1, keepdim=True) & (live.best[:, :1] == -math.inf)  # (B, 1)
        kept = torch.where(last_resort, possible, whole)
        candidates.total.masked_fill_(~kept, -math.inf)
        # The fullest bank first, in it the best total; ties keep their order.
        place = candidates.total.argsort(dim=1, descending=True, stable=True)  # (B, M)
        said, order = progress.said.gather(1, place).sort(dim=1, descending=True, stable=True)
        place = place.gather(1, order)
        # Then by the rank in the bank: how far from where the bank begins.
        index = torch.arange(place.size(1), device=place.device).expand_as(place)
        begins = torch.nn.functional.pad(said[:, 1:] != said[:, :-1], (1, 0), value=True)
        rank = index - (index * begins).cummax(1).values
        rank = rank.masked_fill(last_resort, 0).masked_fill(~kept.gather(1, place), place.size(1))
        return place.gather(1, rank.argsort(dim=1, stable=True))

    def _progress(self, recent: Tensor, settled: Tensor, sentence: Tensor) -> _Progress:
        """By the last tokens (B, M, L + 1) and the phrases settled before (B, M, Q); sentence (B,) are places in the batch."""
        ids, lengths = self.ids[sentence], self.lengths[sentence][:, None]  # (B, Q, L), (B, 1, Q)
        ending = self._ending(recent, sentence)
        met = settled | ending  # (B, M, Q)
        begun = torch.zeros_like(met, dtype=torch.long)
        for length in range(1, self.length):
            tail, head = recent[:, :, None, -length:], ids[:, None, :, :length]
            begun = torch.where((tail == head).all(3) & (length < lengths), length, begun)
        following = ids[:, None].expand(-1, recent.size(1), -1, -1).gather(3, begun[..., None])[..., 0]  # (B, M, Q)
        missing = ~met & (lengths > 0)
        # The last tokens begin one phrase at a time, though several may begin alike.
        said = (met * lengths).sum(2) + torch.nn.functional.pad(begun * ~met, (0, 1)).amax(2)
        return _Progress(ending, said, missing.any(2), torch.where(missing, following, _NOTHING))

    def _ending(self, recent: Tensor, sentence: Tensor) -> Tensor:
        """Which phrases (B, M, Q) the last tokens (B, M, L + 1) end with, as whole words unless the next token goes on with the last."""
        inside, latest = self._inside_a_word(recent), recent.flip(2)[:, :, None, :-1]  # (B, M, L), (B, M, 1, L)
        ending = torch.zeros_like(inside[..., :1])
        for form in self.backwards:
            wanted = form[sentence][:, None]  # (B, 1, Q, L)
            nothing = wanted == _NOTHING
            first = nothing.sum(3).clamp(max=self.length - 1).expand(-1, recent.size(1), -1)  # (B, M, Q) in ``inside``
            ending = ending | (((latest == wanted) | nothing).all(3) & ~inside.gather(2, first))
        return ending

    def _inside_a_word(self, tokens: Tensor) -> Tensor:
        """Where a token of (B, M, T), but for the first, goes on with the word of the one before: (B, M, T - 1)."""
        known = tokens.clamp(min=0)
        return self.ends[known[..., :-1]] & self.begins[known[..., 1:]] & (tokens[..., :-1] >= 0)

    def _padded(self, phrases: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """(B, Q, L)"""
        table = torch.full((len(phrases), max(map(len, phrases), default=0), self.length), _NOTHING, dtype=torch.long)
        for row, some in enumerate(phrases):
            for place, ids in enumerate(some):
                table[row, place, : len(ids)] = torch.tensor(ids)
        return table.to(self.begins.device)


def _repeated(keys: Tensor) -> Tensor:
    """Which of the keys (B, M) stand before in their row."""
    ordered, place = keys.sort(dim=1, stable=True)
    again = torch.nn.functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0), value=False)
    return torch.empty_like(again).scatter_(1, place, again)


def _rows(table: Tensor, places: Tensor) -> Tensor:
    """The rows (B, M, n) at these places (B, M) of table (B, K, n)."""
    return table.gather(1, places[..., None].expand(-1, -1, table.size(2)))


def _continuations(live: Live, log_probs: Tensor, token: Tensor) -> Chosen:
    """Each hypothesis with each of its tokens (B, K, k), as (B, K·k) candidates."""
    score = log_probs.gather(2, token)  # (B, K, k)
    hypothesis = torch.arange(token.size(1), device=token.device)[:, None].expand_as(token)
    return Chosen(*(part.flatten(1) for part in (live.total[..., None] + score, score, hypothesis, token)))


def _all_ends(live: Live, ends: Tensor, eos: int) -> Chosen:
    """Each hypothesis with the end token, whose log-probabilities are ``ends`` (B, K)."""
    hypothesis = torch.arange(ends.size(1), device=ends.device).expand_as(ends)
    return Chosen(live.total + ends, ends, hypothesis, torch.full_like(hypothesis, eos))
