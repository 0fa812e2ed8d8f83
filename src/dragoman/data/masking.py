"""What a masked language model has to predict, and what it sees there: BERT's rule (Devlin et al. 2019, Section 3.1)."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError

Ids = NDArray[np.int64]
Chosen = NDArray[np.bool_]

_MASKED, _RANDOM = 0.8, 0.1  # of the tokens to predict; the others are seen as they are


@dataclass(frozen=True)
class Words:
    """Which entries of a vocabulary (V,) begin a word, and behind which another piece of the same word stands."""

    begins: Chosen
    joins: Chosen

    def numbers(self, ids: Ids) -> Ids:
        """Of which word each token of ``ids`` (T,) is."""
        begins = self.begins[ids]
        begins[1:] &= ~self.joins[ids[:-1]]
        numbers: Ids = np.cumsum(begins, dtype=np.int64)
        return numbers


@dataclass(frozen=True)
class Masking:
    """Of the N tokens of a sequence that are text, max(1, round(probability · N)) are chosen to be predicted.

    Of these 80 % are seen as ``mask``, 10 % as one of ``candidates``, any text, and 10 % as they are. With ``words`` whole words are
    chosen, until there are that many tokens. All of it is a pure function of the seed, the epoch and the sequence's number.
    """

    probability: float
    mask: int
    candidates: Ids
    seed: int
    words: Words | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, probability: float, words: bool = False, seed: int = 0) -> Self:
        """With the entries of a tokenizer. ``words`` are what stands between white space.

        Raises DragomanError for a tokenizer without a mask.
        """
        if tokenizer.mask is None:
            raise DragomanError("the tokenizer has no entry for what is masked; train a new one for a model that is encoder-only")
        special = tokenizer.textless | {tokenizer.unk}
        candidates = np.array([token for token in range(len(tokenizer)) if token not in special])
        return cls(probability, tokenizer.mask, candidates, seed, _words_of(tokenizer) if words else None)

    def count(self, tokens: Ids) -> Ids:
        """How many are chosen of so many tokens of text; at least as many with ``words``."""
        least: Ids = np.minimum(tokens, np.maximum(1, np.rint(self.probability * tokens))).astype(np.int64)
        return least

    def apply(self, ids: Ids, is_text: Chosen, *, epoch: int, index: int) -> tuple[Chosen, Ids]:
        """For a sequence of ids (T,), True at text: which are to be predicted, and what is seen in the place of each."""
        random = np.random.default_rng([self.seed, epoch, index, 5])
        places = np.flatnonzero(is_text)
        words = np.arange(len(places)) if self.words is None else self.words.numbers(ids)[places]
        _, number = np.unique(words, return_inverse=True)
        sizes = np.bincount(number)
        order = random.permutation(len(sizes))
        rank = np.argsort(order)  # of each word in that order
        least = self.count(np.array(len(places)))
        taken = places[rank[number] <= np.searchsorted(np.cumsum(sizes[order]), least)]
        chosen, seen = np.zeros(len(ids), np.bool_), ids.copy()
        chosen[taken] = True
        draw = random.random(len(taken))
        seen[taken[draw < _MASKED]] = self.mask
        replaced = taken[(draw >= _MASKED) & (draw < _MASKED + _RANDOM)]
        seen[replaced] = random.choice(self.candidates, len(replaced))
        return chosen, seen


def _words_of(tokenizer: Tokenizer) -> Words:
    pieces = [tokenizer.piece(token) for token in range(len(tokenizer))]
    if tokenizer.kind == "whitespace":  # a space ends the piece of a word's last part
        return Words(np.ones(len(pieces), np.bool_), np.array([bool(piece) and not piece.endswith(b" ") for piece in pieces]))
    return Words(np.array([not piece or piece[:1].isspace() for piece in pieces]), np.zeros(len(pieces), np.bool_))
