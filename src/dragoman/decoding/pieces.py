"""Text of ids as they come: whole characters, up to a stop string, and the rule that ends an output there.

Shapes:  N rows, one a hypothesis   n tokens so far   V vocabulary
"""

import math
from collections.abc import Sequence

from torch import Tensor

from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.rules import Rule

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_UNFINISHED = 3  # bytes of a character in UTF-8 that is not whole yet, at most; some decoders show each by a sign of its own


class TextStream:
    """The text that follows a prompt, token by token: what `add` gives, one after the other, and `finish` at last are the whole.

    The first of the strings ``stops`` and what is behind it are left out, and `stopped` is True from then on.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops, self.stopped = tokenizer, stops, False
        # A token's text depends on what stands before it, so some of that is decoded with it: a window of the ids.
        self._window, self._clean = list(prompt), len(prompt)
        self._given = len(tokenizer.decode(prompt))  # characters of the window's text that were given, or belong to the prompt
        self._held = ""  # text that may be the beginning of a stop string

    def add(self, token: int) -> str:
        """The text that is certain with one token more; maybe none."""
        self._window.append(token)
        text = self.tokenizer.decode(self._window)
        broken = len(text) - len(text.rstrip(_BROKEN))
        certain = len(text) - min(broken, _UNFINISHED)
        new, self._given = text[self._given : certain], max(self._given, certain)
        if not broken:
            del self._window[: self._clean]
            self._clean = len(self._window)
            self._given = len(self.tokenizer.decode(self._window))
        return self._up_to_a_stop(new)

    def finish(self) -> str:
        """The text that was held back: a last character that is not whole, the beginning of a stop string."""
        rest = self._up_to_a_stop(self.tokenizer.decode(self._window)[self._given :]) + self._held
        self._window, self._clean, self._given, self._held = [], 0, 0, ""
        return rest

    def _up_to_a_stop(self, new: str) -> str:
        if self.stopped:
            return ""
        text, self._held = self._held + new, ""
        place = first_stop(text, self.stops)
        if place is not None:
            self.stopped = True
            return text[:place]
        kept = max((_common(text, stop) for stop in self.stops), default=0)
        if kept:
            text, self._held = text[:-kept], text[-kept:]
        return text


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where in ``text`` the first stop string begins; None where there is none."""
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)


def _common(text: str, stop: str) -> int:
    """How many of the last characters of ``text`` are the first of ``stop``."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


class Ending(Rule):
    """An output ends, at no cost, when it has its most tokens, or when its text holds a stop string."""

    def __init__(self, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], most: Sequence[int], stops: Sequence[str]) -> None:
        """``prompts`` in ids and the most tokens of each sentence, the end not counted."""
        self.tokenizer, self.prompts, self.most, self.stops = tokenizer, prompts, most, stops
        # Each token of text is a byte at least, so a stop string is within so many; some more give them their surroundings.
        self.reach = max((len(stop.encode()) for stop in stops), default=0) + _UNFINISHED + 1

    def __call__(self, scores: Tensor, tokens: Tensor, sentence: Tensor) -> None:
        """Leaves the end alone possible, with probability 1, in rows that are at their end."""
        n = tokens.size(1)
        rows = [row for row, place in enumerate(sentence.tolist()) if n >= self.most[place]]
        if self.stops:
            pairs = enumerate(zip(tokens.tolist(), sentence.tolist(), strict=True))
            rows += [row for row, (seen, place) in pairs if self._stopped(seen, self.prompts[place])]
        if rows:
            scores[rows] = -math.inf
            scores[rows, self.tokenizer.eos] = 0.0

    def _stopped(self, seen: list[int], prompt: Sequence[int]) -> bool:
        before = [*prompt[-self.reach :], *seen[: -self.reach]][-self.reach :]
        text = self.tokenizer.decode([*before, *seen[-self.reach :]])
        return first_stop(text[len(self.tokenizer.decode(before)) :], self.stops) is not None
