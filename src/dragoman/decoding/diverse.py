"""Diverse beam search (Vijayakumar et al. 2016): groups of the beam that keep away from each other's words.

Shapes:  B sentences   K live hypotheses of each, those of a group side by side   W = beam / groups   V target vocabulary
"""

import math
from functools import partial

import torch
from torch import Tensor

from dragoman.decoding.beam import Choose, Chosen, Live


def in_groups(groups: int, *, diversity: float, eos: int) -> Choose:
    """A choice for `beam_search` by ``groups`` of beam / groups hypotheses each.

    The groups choose one after another. To a later one each token looks less probable, by ``diversity`` in log-probability for each time
    that earlier groups have just chosen it. Scores stay the model's own. An output that two groups find is kept once.
    """
    return partial(_choose, groups=groups, diversity=diversity, eos=eos)


def _choose(live: Live, log_probs: Tensor, beam: int, *, groups: int, diversity: float, eos: int) -> Chosen:
    sentences, hypotheses, vocabulary = log_probs.shape
    taken = log_probs.new_zeros(sentences, 1, vocabulary)  # how often earlier groups have chosen each token
    width = hypotheses // groups if hypotheses > 1 else 1
    parts = []
    for group in range(groups):
        first = group * width if hypotheses > 1 else 0  # all groups grow from the one start
        scores = log_probs[:, first : first + width]  # (B, K / groups, V)
        ranks = (live.total[:, first : first + width, None] + scores - diversity * taken).flatten(1)  # (B, K / groups · V)
        rank, place = ranks.topk(min(beam // groups, vocabulary))  # (B, W)
        hypothesis, token = first + place // vocabulary, place % vocabulary
        token_score = scores.flatten(1).gather(1, place)
        parts.append(Chosen(live.total.gather(1, hypothesis) + token_score, token_score, hypothesis, token))
        taken[:, 0].scatter_add_(1, token, (rank > -math.inf).to(taken.dtype))
    chosen = Chosen(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))  # (B, K)
    return chosen._replace(total=chosen.total.masked_fill(_repeated(live, chosen) & (chosen.token == eos), -math.inf))


def _repeated(live: Live, chosen: Chosen) -> Tensor:
    """Which continuations (B, K) are those of an earlier place, token for token."""
    same_start = (live.tokens[:, :, None] == live.tokens[:, None]).all(-1)  # (B, K, K) over the hypotheses there were
    rows = same_start.gather(1, chosen.hypothesis[..., None].expand(-1, -1, same_start.size(2)))  # (B, K, K before)
    same = rows.gather(2, chosen.hypothesis[:, None].expand(-1, chosen.hypothesis.size(1), -1))  # (B, K, K)
    same = same & (chosen.token[:, :, None] == chosen.token[:, None]) & (chosen.total > -math.inf)[:, None]
    return same.tril(-1).any(2)
