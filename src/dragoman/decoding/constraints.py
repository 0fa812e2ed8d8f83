"""Beam search under the constraint that phrases appear (Post and Vilar 2018): the beam is shared out by how much of them is said.

Shapes:  B sentences   K live hypotheses of each   M candidates of each   Q phrases of a sentence, L tokens of the longest
         n tokens so far   V target vocabulary
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
    """How far hypotheses are: tokens said of all phrases and whether one is missing (B, M); the next token of each that is (B, M, Q)."""

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
        self.ids = _padded([[phrase.ids for phrase in some] for some in phrases], device)  # (B, Q, L)
        self.after_a_sign = _padded([[phrase.after_a_sign for phrase in some] for some in phrases], device)  # (B, Q, L)
        self.lengths = (self.ids != _NOTHING).sum(2)  # (B, Q)

    def __call__(self, live: Live, log_probs: Tensor, beam: int) -> Chosen:
        """The continuations of a step; log_probs (B, K, V)."""
        ends = log_probs[..., self.eos].clone()  # (B, K)
        progress = self._progress(live.tokens, live.sentence)
        log_probs[..., self.eos].masked_fill_(progress.missing, -math.inf)
        tokens = [
            torch.where(progress.next == _NOTHING, self.eos, progress.next),  # (B, K, Q) one step further in a phrase
            log_probs.argmax(2, keepdim=True),  # (B, K, 1) the best of each hypothesis, so that no bank dies out
        ]
        best = most_probable(live, log_probs, beam)
        log_probs[..., self.eos] = ends
        candidates = [best, *(_continuations(live, log_probs, token) for token in tokens), _all_ends(live, ends, self.eos)]
        joined = Chosen(*(torch.cat(part, 1) for part in zip(*candidates, strict=True)))  # (B, M)
        place = self._order(live, joined)[:, :beam]  # (B, K)
        return Chosen(*(part.gather(1, place) for part in joined))

    def _order(self, live: Live, candidates: Chosen) -> Tensor:
        """The candidates' places (B, M), those to keep first; the totals of those not to keep become -∞, in place."""
        extended = torch.cat((_rows(live.tokens, candidates.hypothesis), candidates.token[..., None]), 2)  # (B, M, n + 1)
        progress = self._progress(extended, live.sentence)
        key = candidates.hypothesis * self.begins.numel() + candidates.token  # (B, M)
        possible = (candidates.total > -math.inf) & ~(key[:, :, None] == key[:, None]).tril(-1).any(2)
        whole = possible & ~(progress.missing & (candidates.token == self.eos))
        last_resort = ~whole.any(1) & (live.best[:, 0] == -math.inf)  # (B,)
        kept = torch.where(last_resort[:, None], possible, whole)
        candidates.total.masked_fill_(~kept, -math.inf)
        # Rank in its bank: how many candidates of the bank are better. Ties keep their order.
        by_total = candidates.total.argsort(dim=1, descending=True, stable=True).argsort(1)  # (B, M)
        same_bank = progress.said[:, :, None] == progress.said[:, None]  # (B, M, M)
        rank = (same_bank & (by_total[:, None] < by_total[:, :, None])).sum(2)  # (B, M)
        rank = torch.where(last_resort[:, None], by_total * 0, rank)
        most = int(self.lengths.sum(1).max()) + 1
        order = (rank * most + most - progress.said) * by_total.size(1) + by_total  # by rank, then the fuller bank, then the better total
        return order.masked_fill(~kept, torch.iinfo(torch.long).max).argsort(dim=1, stable=True)

    def _progress(self, tokens: Tensor, sentence: Tensor) -> _Progress:
        """Of hypotheses (B, M, n); sentence (B,) are places in the batch."""
        ids, lengths = self.ids[sentence], self.lengths[sentence][:, None]  # (B, Q, L), (B, 1, Q)
        met = self._stands(tokens, ids) | self._stands(tokens, self.after_a_sign[sentence])  # (B, M, Q)
        begun = torch.zeros_like(met, dtype=torch.long)
        for length in range(1, min(ids.size(2) - 1, tokens.size(2)) + 1):
            tail, head = tokens[:, :, None, -length:], ids[:, None, :, :length]
            begun = torch.where((tail == head).all(3) & (length < lengths), length, begun)
        following = ids[:, None].expand(-1, tokens.size(1), -1, -1).gather(3, begun[..., None])[..., 0]  # (B, M, Q)
        missing = ~met & (lengths > 0)
        return _Progress(torch.where(met, lengths, begun).sum(2), missing.any(2), torch.where(missing, following, _NOTHING))

    def _stands(self, tokens: Tensor, ids: Tensor) -> Tensor:
        """Which phrases (B, Q, L) stand in hypotheses (B, M, n) as whole words, or may still be going to: (B, M, Q)."""
        length = ids.size(2)
        lengths = (ids != _NOTHING).sum(2)[:, None, :, None].expand(-1, tokens.size(1), -1, tokens.size(2))  # (B, M, Q, n)
        if not tokens.size(2):
            return (lengths == 0).any(3)
        after = torch.nn.functional.pad(tokens, (0, length), value=_NOTHING - 1)
        windows = after.unfold(2, length, 1)[:, :, None, : tokens.size(2)]  # (B, M, 1, n, L)
        wanted = ids[:, None, :, None]  # (B, 1, Q, 1, L)
        equal = ((windows == wanted) | (wanted == _NOTHING)).all(4) & (lengths > 0)  # (B, M, Q, n) by the place of the first token
        goes_on = self._inside_a_word(after)  # (B, M, n + L) no word ends before this token
        starts = torch.arange(tokens.size(2), device=tokens.device)
        behind = goes_on[:, :, None].expand(-1, -1, ids.size(1), -1).gather(3, starts + lengths)
        return (equal & ~goes_on[:, :, None, : tokens.size(2)] & ~behind).any(3)

    def _inside_a_word(self, tokens: Tensor) -> Tensor:
        """Where (B, M, T) a token goes on with the word of the one before; not at the beginning, nor beyond the end."""
        known = tokens.clamp(min=0)
        joined = self.ends[known[..., :-1]] & self.begins[known[..., 1:]] & (tokens[..., 1:] >= 0)
        return torch.nn.functional.pad(joined, (1, 0), value=False)


def _padded(phrases: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Tensor:
    count = max(map(len, phrases), default=0)
    length = max((len(ids) for some in phrases for ids in some), default=0) or 1
    table = torch.full((len(phrases), count, length), _NOTHING, dtype=torch.long)
    for row, some in enumerate(phrases):
        for place, ids in enumerate(some):
            table[row, place, : len(ids)] = torch.tensor(ids)
    return table.to(device)


def _rows(tokens: Tensor, hypothesis: Tensor) -> Tensor:
    """The tokens (B, M, n) of these hypotheses (B, M) among tokens (B, K, n)."""
    return tokens.gather(1, hypothesis[..., None].expand(-1, -1, tokens.size(2)))


def _continuations(live: Live, log_probs: Tensor, token: Tensor) -> Chosen:
    """Each hypothesis with each of its tokens (B, K, k), as (B, K·k) candidates."""
    score = log_probs.gather(2, token)  # (B, K, k)
    hypothesis = torch.arange(token.size(1), device=token.device)[:, None].expand_as(token)
    return Chosen(*(part.flatten(1) for part in (live.total[..., None] + score, score, hypothesis, token)))


def _all_ends(live: Live, ends: Tensor, eos: int) -> Chosen:
    """Each hypothesis with the end token, whose log-probabilities are ``ends`` (B, K)."""
    hypothesis = torch.arange(ends.size(1), device=ends.device).expand_as(ends)
    return Chosen(live.total + ends, ends, hypothesis, torch.full_like(hypothesis, eos))
