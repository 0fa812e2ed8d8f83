"""What may be asked of a search beside Section 6.1: all of it off, but for the guard against loops, until asked for."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dragoman.errors import UsageError, as_texts, counted, option

if TYPE_CHECKING:
    from dragoman.decoding.glossary import Glossary

Precision = Literal["fp32", "bf16", "int8"]
"""Type of the matrix products: float32, bfloat16, or whole numbers of 8 bits, a scale for each row of a weight and each product's input."""
AskedPrecision = Literal["auto", "fp32", "bf16", "int8"]
"""A type, or auto: the fastest whose scores are near float32's (`choose_precision`)."""

GUARD = 24
"""Tokens that must do nothing but repeat before the guard takes it for a loop."""
MBR_SAMPLES = 32
_DIGITS = 30  # of a length: no text has so many tokens
_AGAINST_TREES = ("min_length", "no_repeat_ngram", "glossary", "require", "forbid")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Departures from the plain search, with the names that `dragoman translate` gives them.

    Lengths are numbers of tokens, end token included, or relative to those of the source: ``"0.5x"``. UsageError for what cannot be.
    """

    min_length: int | str | None = None  # no output is shorter
    no_repeat_ngram: int = 0  # no n tokens in a row come twice in an output; 0: they may
    repetition_guard: int = GUARD  # an output that has gone round in a loop for so many tokens must end; 0: it need not
    diverse_groups: int = 1  # parts of the beam that keep away from each other's words
    diversity: float | None = None  # how much, in log-probability; 0.5
    sample: bool = False  # draw outputs at random instead of searching for the best
    samples: int | None = None  # how many of each text, the best are given; as many as are given
    temperature: float | None = None  # probabilities are raised to 1 / temperature; 1
    top_k: int | None = None  # draw from so many most probable tokens; 0: from all
    top_p: float | None = None  # draw from the fewest most probable tokens of this probability together; 1
    seed: int | None = None  # other numbers give other samples; 1
    mbr: Literal["chrf"] | None = None  # give the sample that is most like all of them, by chrF
    glossary: "Glossary | None" = None  # terms that must appear when their source does
    require: tuple[str, ...] = ()  # phrases that must appear in every output
    forbid: tuple[str, ...] = ()  # phrases that must not appear
    tree: bool = False  # every output is a constituency tree over the source's words, and its text is in a treebank's brackets

    def __post_init__(self) -> None:
        """Every number in its range, and nothing that would do nothing."""
        _in_range("no_repeat_ngram", self.no_repeat_ngram, 0)
        _in_range("repetition_guard", self.repetition_guard, 0)
        _in_range("diverse_groups", self.diverse_groups, 1)
        _in_range("diversity", self.diversity, 0)
        _in_range("samples", self.samples, 1)
        _in_range("temperature", self.temperature, 0)
        _in_range("top_k", self.top_k, 0)
        _in_range("top_p", self.top_p, 0, 1)
        if self.min_length is not None:
            tokens_of(self.min_length, 1, name="min_length")
        if self.mbr not in (None, "chrf"):
            raise UsageError(f"{option('mbr')}={self.mbr}: unknown; known: chrf")
        if self.mbr and self.sample:
            raise UsageError(f"{option('mbr')} with {option('sample')}: it draws samples by itself; leave {option('sample')} out")
        if self.mbr and self.samples == 1:
            raise UsageError(f"{option('mbr')} with {option('samples')}=1: there is nothing to choose from; give 2 or more")
        for name in ("samples", "temperature", "top_k", "top_p", "seed"):
            if getattr(self, name) is not None and not self.samples_drawn:
                raise UsageError(
                    f"{option(name)}={getattr(self, name)} is for sampling; ask for {option('sample')}, or leave {option(name)} out"
                )
        check_drawing(self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)
        if self.diversity is not None and self.diverse_groups == 1:
            raise UsageError(
                f"{option('diversity')}={self.diversity} is for groups of the beam; ask for 2 or more with {option('diverse_groups')}"
            )
        if self.constrained and (self.samples_drawn or self.diverse_groups > 1):
            other = option(self.drawn_by or "diverse_groups")
            given = " and ".join(option(name) for name in ("glossary", "require") if getattr(self, name))
            raise UsageError(f"{other}: samples and diverse groups cannot be made to hold phrases; leave {given} out, or {other}")
        if self.tree and (other := next((name for name in _AGAINST_TREES if getattr(self, name)), "")):
            raise UsageError(
                f"{option('tree')} with {option(other)}: it could leave no tree over the source's words; leave one of the two out"
            )
        if self.samples_drawn and self.diverse_groups > 1:
            raise UsageError(f"{option(self.drawn_by)} with {option('diverse_groups')}: samples need no groups; leave one of the two out")
        for name, phrases in (("require", self.require), ("forbid", self.forbid)):
            if wrong := [phrases] if isinstance(phrases, str) else [phrase for phrase in phrases if not phrase.strip()]:
                raise UsageError(f"{option(name)}={wrong[0]!r}: give phrases that are not empty, one or more")
            if broken := [phrase for phrase in phrases if re.search("[\ud800-\udfff]", phrase)]:
                raise UsageError(f"{option(name)}: {broken[0]!r} is not text, as its bytes are not UTF-8; give it in UTF-8")

    @property
    def samples_drawn(self) -> bool:
        """Whether outputs are drawn at random."""
        return bool(self.drawn_by)

    @property
    def drawn_by(self) -> str:
        """The option that asks for samples; empty where none does."""
        return "sample" if self.sample else "" if self.mbr is None else "mbr"

    def drawn(self, n_best: int) -> int:
        """How many samples of each text."""
        return self.samples or (MBR_SAMPLES if self.mbr else n_best)

    @property
    def constrained(self) -> bool:
        """Whether outputs must hold phrases."""
        return self.glossary is not None or bool(self.require)


def _in_range(name: str, value: float | None, least: float, most: float = math.inf) -> None:
    if value is not None and not (least <= value <= most and math.isfinite(value)):
        bound = f"between {least} and {most}" if most < math.inf else f"{least} or more, and finite"
        raise UsageError(f"{option(name)}={value}: it must be {bound}")


def check_drawing(temperature: float | None, **how: float | None) -> None:
    """Raise UsageError for what says ``how`` to draw at a temperature of 0, where nothing is drawn."""
    for name, value in how.items():
        if temperature == 0 and value is not None:
            raise UsageError(f"{option(name)}={value} with {option('temperature')}=0: nothing is drawn; leave one of the two out")


def tokens_of(length: int | str, source_tokens: int, *, name: str) -> int:
    """A length in tokens, given as a number or relative to the source as in ``1.5x``, rounded up, at least 1.

    Raises UsageError that begins with ``name`` for anything else.
    """
    if (isinstance(length, int) and abs(length) >= 10**_DIGITS) or (isinstance(length, str) and len(length) > _DIGITS):
        raise UsageError(f"{name}: of more than {_DIGITS} characters; give a number of tokens, or a multiple of the source's such as 1.5x")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)x", str(length))
    if found:
        if not float(found[1]):
            raise UsageError(f"{name}={length}: nothing would be left; it must be more than 0")
        return max(1, math.ceil(round(float(found[1]) * source_tokens, 6)))
    if not re.fullmatch(r"-?\d+", str(length)):
        raise UsageError(f"{name}={length}: neither a number of tokens nor a multiple of the source's, such as 1.5x")
    if int(length) < 1:
        raise UsageError(f"{name}={length}: it must be at least 1, for the end token counts")
    return int(length)


def check_prefixes(prefixes: Sequence[str], texts: int, *, tree: bool) -> None:
    """Raise UsageError unless there is one for each of so many texts, and no ``tree`` to be made."""
    if len(as_texts(prefixes, "prefixes")) != texts:
        raise UsageError(f"{len(prefixes)} prefixes for {counted(texts, 'text')}; give one for each, empty where there is none")
    if tree:
        raise UsageError(
            f"{option('tree')} with prefixes: a beginning could leave no tree over the source's words; leave one of the two out"
        )


def check_precision_name(precision: str, *, known: Sequence[str]) -> None:
    """Raise UsageError for a precision that is not one of those ``known``, on whatever device."""
    if precision not in known:
        fault = "for translating, whose first texts the choice is checked on" if precision == "auto" else "unknown"
        raise UsageError(f"{option('precision')}={precision}: {fault}; choose among {', '.join(known)}")
