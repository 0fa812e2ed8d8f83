"""Several systems on one test set: whether they differ by more than chance, where, and by which settings (Section 6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.errors import DragomanError, UsageError
from dragoman.evaluation.evaluate import named_source, ranking_measure
from dragoman.evaluation.measures import RESAMPLES, SEED, Measure, Paired, pair_up, resamples_for, sentence_scores
from dragoman.evaluation.metrics import matches_exactly
from dragoman.evaluation.systems import System
from dragoman.evaluation.testset import TestSet

SIGNIFICANT = 0.05
_EQUAL = 1e-9


@dataclass(frozen=True)
class MeasuredTogether:
    """The scores of all systems by one measure, in their order, with the signature that they share."""

    measure: Measure
    signature: str
    results: tuple[Paired, ...]


@dataclass(frozen=True)
class Change:
    """A sentence, its number from 1, as the first system and another translate it, and the chrF of both."""

    number: int
    source: str | None
    references: tuple[str, ...]
    before: str
    after: str
    score_before: float
    score_after: float

    @property
    def gain(self) -> float:
        """What the other's chrF is above the first's."""
        return self.score_after - self.score_before

    def texts(self, before: str, after: str) -> list[tuple[str, str]]:
        """All its texts, each behind its name; ``before`` and ``after`` name the two systems."""
        references = [("reference", reference) for reference in self.references]
        return [*named_source(self.source), *references, (before, self.before), (after, self.after)]


@dataclass(frozen=True)
class Difference:
    """A system beside the first, by the chrF of each sentence: how many are better, worse and as good, and how many texts are the same."""

    better: int
    worse: int
    equal: int
    same_text: int
    changes: tuple[Change, ...]

    def gains(self, most: int) -> list[Change]:
        """The largest gains, largest first."""
        return [change for change in self.changes[:most] if change.gain > _EQUAL]

    def losses(self, most: int) -> list[Change]:
        """The largest losses, largest first."""
        return [change for change in self.changes[::-1][:most] if change.gain < -_EQUAL]


@dataclass(frozen=True)
class Comparison:
    """Systems on one test set, the first being what the others are compared with.

    ``differences`` holds one for each of the others; ``settings`` those of models that are not the same in all of them,
    ``making`` what their bundles say of how they were made, such as the step, the same or not; None where one says nothing of it.
    """

    systems: tuple[System, ...]
    sentences: int
    scores: tuple[MeasuredTogether, ...]
    exact_matches: tuple[float, ...]
    differences: tuple[Difference, ...]
    sentence_signature: str
    settings: Mapping[str, tuple[Any, ...]]
    making: Mapping[str, tuple[Any, ...]]


def compare_systems(
    systems: Sequence[System], test: TestSet, measures: Sequence[Measure], *, resamples: int = RESAMPLES, seed: int = SEED
) -> Comparison:
    """Compare each system with the first on a test set in plain text.

    Raises UsageError for fewer than two systems, DragomanError when numbers of lines differ, or when there are too many lines to resample.
    """
    if len(systems) < 2:
        raise UsageError("one system is nothing to compare; give two or more")
    drawn = resamples_for(len(test), resamples)
    if not drawn:
        raise DragomanError(f"{len(test):,} lines are too many to resample; compare a part of them")
    texts = [system.texts for system in systems]
    scores = []
    for each in measures:
        results, signature = pair_up(each, texts, test.references, resamples=drawn, seed=seed)
        scores.append(MeasuredTogether(each, signature, tuple(results)))
    ranking = ranking_measure(measures)
    columns, signature = [], ""
    for lines in texts:
        column, signature = sentence_scores(ranking, lines, test.references)
        columns.append(column)
    rows = list(zip(*test.references, strict=True))
    exact = [sum(map(matches_exactly, lines, rows)) for lines in texts]
    return Comparison(
        systems=tuple(systems),
        sentences=len(test),
        scores=tuple(scores),
        exact_matches=tuple(100 * matches / len(test) for matches in exact),
        differences=tuple(_difference(test, texts[0], columns[0], *other) for other in zip(texts[1:], columns[1:], strict=True)),
        sentence_signature=signature,
        settings=settings_that_differ([system.settings for system in systems]),
        making=_side_by_side([system.making for system in systems]),
    )


def settings_that_differ(settings: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The values of each setting that is not the same in all, by its dotted name; None where a system has no such setting."""
    known = [bool(each) for each in settings]  # a file of translations has none, which is no difference
    rows = _side_by_side([_flat(each) for each in settings])
    return {name: row for name, row in rows.items() if _several([value for value, has in zip(row, known, strict=True) if has])}


def _side_by_side(facts: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    names = dict.fromkeys(name for each in facts for name in each)
    return {name: tuple(each.get(name) for each in facts) for name in names}


def _several(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _difference(
    test: TestSet, before: Sequence[str], scores_before: Sequence[float], after: Sequence[str], scores_after: Sequence[float]
) -> Difference:
    sources: Sequence[str | None] = test.sources if test.sources is not None else [None] * len(test)
    references = zip(*test.references, strict=True)
    rows = enumerate(zip(sources, references, before, after, scores_before, scores_after, strict=True), start=1)
    changes = sorted((Change(number, *row) for number, row in rows), key=lambda change: (-change.gain, change.number))
    better, worse = (sum(sign * change.gain > _EQUAL for change in changes) for sign in (1, -1))
    same = sum(ours == theirs for ours, theirs in zip(before, after, strict=True))
    return Difference(better, worse, len(changes) - better - worse, same, tuple(changes))
