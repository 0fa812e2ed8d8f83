"""Only trees: a rule of a search whose every output is a constituency tree over the source's words (Section 6.3), whatever the grammar.

Shapes:  N rows, one a hypothesis   n tokens so far   V target vocabulary   B sentences
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.data.tokenizer import Tokenizer
from dragoman.data.trees import WORD, fewest_parts
from dragoman.decoding.rules import Rule
from dragoman.errors import UsageError, option


class TreeVocabulary(NamedTuple):
    """What the entries of a vocabulary are in a tree: which open a bracket, close one, or stand for a word, (V,) each; and for each that
    opens one the entry that closes it, (V,), V for all others.

    A bracket that has no entry to close it is none that opens.
    """

    opens: Tensor
    closes: Tensor
    words: Tensor
    closing: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, size: int, device: torch.device) -> "TreeVocabulary":
        """That of a model with ``size`` rows in its target embedding. Raises UsageError for one that has not learnt trees."""
        entries = {tokenizer.token(token): token for token in range(len(tokenizer)) if token not in {*tokenizer.textless, tokenizer.unk}}
        pairs = [(token, entries[f"){entry[1:]}"]) for entry, token in entries.items() if entry[0] == "(" and f"){entry[1:]}" in entries]
        words = [token for entry, token in entries.items() if entry[0] not in "()"]
        of_trees = WORD in entries or any(len(tokenizer.token(opener)) > 1 for opener, _ in pairs)  # else they may be brackets of a text
        if tokenizer.kind != "whitespace" or not pairs or not words or not of_trees:
            raise UsageError(
                f"{option('tree')}: the model's target vocabulary has no brackets of trees, such as (NP and )NP; leave {option('tree')} "
                "out, or give a model that was trained on a treebank"
            )
        opens, closes, others = (torch.zeros(size, dtype=torch.bool) for _ in range(3))
        closing = torch.full((size,), size)
        for opener, closer in pairs:
            opens[opener] = closes[closer] = True
            closing[opener] = closer
        others[words] = True
        return cls(*(part.to(device) for part in (opens, closes, others, closing)))


class OnlyTrees(Rule):
    """Each output is a tree over its sentence's words (`data.trees.fault_of`): a token may follow only if a tree can still be completed
    with the words and the tokens that are left.

    ``words`` (B,) are the words of each sentence, ``lengths`` (B,) the most tokens of its outputs, end token included: no less than
    `fewest_tokens` of the words.
    """

    def __init__(self, words: Sequence[int], lengths: Sequence[int], vocabulary: TreeVocabulary, *, eos: int) -> None:
        device = vocabulary.opens.device
        self.words, self.lengths = (torch.tensor(numbers, device=device) for numbers in (words, lengths))
        self.vocabulary, self.eos = vocabulary, eos

    def __call__(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """Takes away what would leave no tree, the end before the tree is whole, and all but the end behind it."""
        opens, closes, words, closing = self.vocabulary
        n = tokens.size(1)
        opened, closed = opens[tokens], closes[tokens]  # (N, n)
        depth = (opened.long() - closed.long()).cumsum(1)  # (N, n) brackets open after each token
        now = depth[:, -1] if n else depth.new_zeros(len(tokens))  # (N,) brackets open
        missing = self.words[sentence] - words[tokens].sum(1)  # (N,) words that are still to come
        just_opened = opened[:, -1] if n else torch.zeros_like(now, dtype=torch.bool)
        left = self.lengths[sentence] - n  # (N,) tokens that may still come, the end token among them
        inside, begun = now > 0, n > 0

        # One more bracket needs two tokens beside the missing words, the brackets to be closed and the end.
        may_open = (missing > 0) & (left >= missing + now + 3) & (inside | (not begun))
        may_say_word = (missing > 0) & (inside | ((self.words[sentence] == 1) & (not begun)))
        # The outermost bracket is around all words; no bracket is closed that holds nothing.
        may_close = inside & ~just_opened & ((now > 1) | (missing == 0))
        allowed = (may_open[:, None] & opens) | (may_say_word[:, None] & words)  # (N, V)
        allowed[:, self.eos] = ~inside & begun
        if n:
            innermost = self._innermost(tokens, opened, depth)  # (N,)
            rows = (may_close & (innermost < len(closing))).nonzero()[:, 0]
            allowed[rows, innermost[rows]] = True
        scores.masked_fill_(~allowed, -math.inf)

    def _innermost(self, tokens: Tensor, opened: Tensor, depth: Tensor) -> Tensor:
        """The entry (N,) that closes the last bracket that is open: the last one opened at the depth there is now. V where none is."""
        there = opened & (depth == depth[:, -1:])  # (N, n)
        place = torch.arange(1, tokens.size(1) + 1, device=tokens.device)
        last = (there * place).amax(1)  # (N,) from 1
        entry = tokens.gather(1, (last - 1).clamp(min=0)[:, None])[:, 0]  # (N,)
        return torch.where(last > 0, self.vocabulary.closing[entry], len(self.vocabulary.closing))


def fewest_tokens(words: int) -> int:
    """The tokens of the smallest tree over so many words, end token included."""
    return fewest_parts(words) + 1
