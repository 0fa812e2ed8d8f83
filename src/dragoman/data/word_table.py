"""Many texts to ids, quickly (Section 5.1): words recur, and of those that were met before the ids are known.

A tokenizer that was learnt here has the same ids for a word wherever it stands between single spaces (`cuts_at_spaces`). The texts that
are not such words alone, and those of other tokenizers, are encoded whole.
"""

import re
from collections.abc import Sequence
from itertools import count, repeat

import numpy as np

from dragoman.data.rows import Rows
from dragoman.data.tokenizer import Tokenizer
from dragoman.data.vocabulary import cuts_at_spaces

MOST_WORDS = 1 << 17
"""A table that would have more is emptied, so that it stays small however long a corpus is; words in use are soon there again."""

# No white space at its end, which could be one piece with the space behind it; nothing that is not text; not so long as to fill memory.
_WORD = re.compile(r"[^\ud800-\udfff]{1,64}(?<=\S)")


class WordTable:
    """The ids of the words of a tokenizer's texts, as they are met. Not to be shared between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_words = cuts_at_spaces(tokenizer.backend, tokenizer.kind)
        self._lead = " " if tokenizer.kind == "characters" else ""  # a character with an id, which byte pairs put there themselves
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {}
        self._rows = Rows.of_lists([[]])  # number 0 is of every word that has none

    def __len__(self) -> int:
        """Words."""
        return len(self._numbers)

    def encode(self, texts: Sequence[str]) -> Rows:
        """The ids of each text, as ``Tokenizer.encode_batch`` gives them. Raises what that raises."""
        if not self._by_words or not texts:
            return Rows.of_lists(self._tokenizer.encode_batch(texts))
        words = " ".join(texts).split(" ")
        self._learn(set(words))
        numbers = np.fromiter(map(self._numbers.get, words, repeat(0)), np.int64, len(words))
        counts = np.fromiter((text.count(" ") + 1 for text in texts), np.int64, len(texts))
        firsts = np.cumsum(counts) - counts
        whole = np.minimum.reduceat(numbers, firsts) == 0
        others = Rows.of_lists(self._tokenizer.encode_batch([texts[place] for place in np.flatnonzero(whole).tolist()]))
        if self._lead:
            others = others.between([self._tokenizer.unk], [])  # in the place of the lead
        numbers[np.repeat(whole, counts)] = 0
        numbers[firsts[whole]] = len(self._rows.lengths) + np.arange(len(others.lengths))
        found = self._rows.followed_by(others).take(numbers)
        encoded = Rows.of(found.ids, np.add.reduceat(found.lengths, firsts))
        return Rows.of(np.delete(encoded.ids, encoded.starts), encoded.lengths - 1) if self._lead else encoded

    def _learn(self, words: set[str]) -> None:
        new = [word for word in words.difference(self._numbers) if _WORD.fullmatch(word)]
        if len(self) + len(new) > MOST_WORDS:
            self._clear()
            new = [word for word in words if _WORD.fullmatch(word)][:MOST_WORDS]
        encoded = Rows.of_lists(self._tokenizer.encode_batch([f"{self._lead}{word}" for word in new]))
        self._numbers.update(zip(new, count(len(self._rows.lengths)), strict=False))
        self._rows = self._rows.followed_by(encoded)
