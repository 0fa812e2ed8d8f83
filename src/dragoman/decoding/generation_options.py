"""What may be asked of a decoder-only model that goes on with a text."""

import math
import re
from dataclasses import dataclass
from typing import Any

from dragoman.decoding.beam import check_alpha
from dragoman.decoding.options import check_drawing
from dragoman.errors import UsageError, option

MOST_CONTINUATIONS = 10_000
"""Of one prompt."""

WIDEST_BEAM = 1000


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to go on with a text: drawn from the model's distribution unless told otherwise, with the names of `dragoman generate`.

    ``temperature`` 0 is greedy. UsageError for what cannot be, and for what would do nothing.
    """

    n: int = 1  # continuations of each prompt
    max_tokens: int = 100  # most tokens of a continuation, the end not counted
    min_tokens: int = 0  # no end before so many
    stop: tuple[str, ...] = ()  # strings before which a continuation ends
    temperature: float | None = None  # probabilities are raised to 1 / temperature; 1
    top_k: int | None = None  # draw from so many most probable tokens; 0: from all
    top_p: float | None = None  # draw from the fewest most probable tokens of this probability together; 1
    seed: int | None = None  # other numbers give other samples; 1
    beam: int | None = None  # search for the most probable with so many hypotheses instead of drawing
    alpha: float | None = None  # of the length penalty of beam search; the bundle's own, 0.6 in the paper
    no_repeat_ngram: int = 0  # no n tokens in a row come twice in prompt and continuation; 0: they may
    repetition_guard: int = 0  # a continuation that has gone round in a loop for so many tokens must end; 0: it need not
    slide: int | None = None  # where the model's positions are full, go on with the last so many tokens alone

    def __post_init__(self) -> None:
        """Every number in its range, and nothing that would do nothing."""
        for name, least in (("n", 1), ("max_tokens", 1), ("min_tokens", 0), ("top_k", 0), ("beam", 1), ("slide", 1), ("temperature", 0),
                            ("top_p", 0), ("no_repeat_ngram", 0), ("repetition_guard", 0)):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise UsageError(f"{option(name)}={value}: it must be {least} or more, and finite")
        for name, most in (("n", MOST_CONTINUATIONS), ("beam", WIDEST_BEAM)):
            if (getattr(self, name) or 0) > most:
                raise UsageError(f"{option(name)}={getattr(self, name)}: it must be at most {most:,}, or no memory holds them")
        if self.top_p is not None and self.top_p > 1:
            raise UsageError(f"{option('top_p')}={self.top_p}: it must be between 0 and 1")
        if self.min_tokens > self.max_tokens:
            raise UsageError(
                f"{option('min_tokens')}={self.min_tokens} and {option('max_tokens')}={self.max_tokens}: lower the one or raise the other"
            )
        if wrong := [self.stop] if isinstance(self.stop, str) else [stop for stop in self.stop if not stop]:
            raise UsageError(f"{option('stop')}={wrong[0]!r}: give strings that are not empty, one or more")
        if broken := [stop for stop in self.stop if re.search("[\ud800-\udfff]", stop)]:
            raise UsageError(f"{option('stop')}: {broken[0]!r} is not text, as its bytes are not UTF-8; give it in UTF-8")
        if self.beam is None:
            self._check_drawing()
        else:
            self._check_beam(self.beam)

    def _check_drawing(self) -> None:
        if self.alpha is not None:
            raise UsageError(f"{option('alpha')}={self.alpha} is for beam search; give {option('beam')}, or leave {option('alpha')} out")
        check_drawing(self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)
        if self.temperature == 0 and self.n > 1:
            raise UsageError(
                f"{option('n')}={self.n} with {option('temperature')}=0: the most probable continuation is one; give "
                f"{option('beam')}, or a temperature"
            )

    def _check_beam(self, beam: int) -> None:
        for name in ("temperature", "top_k", "top_p", "seed"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"{option(name)}={getattr(self, name)} with {option('beam')}={beam}: a search draws nothing; leave one of the two out"
                )
        if self.n > beam:
            raise UsageError(f"{option('n')}={self.n} with {option('beam')}={beam}: it must be at most the beam")
        check_alpha(self.alpha or 0.0)

    @property
    def seed_used(self) -> int:
        """seed as used."""
        return 1 if self.seed is None else self.seed

    @property
    def drawing(self) -> dict[str, Any]:
        """How tokens are drawn, where it is not as usual."""
        return {name: value for name in ("temperature", "top_k", "top_p") if (value := getattr(self, name)) is not None}
