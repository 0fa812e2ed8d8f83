"""Labelled bracket F1 of constituency trees (Section 6.3, Table 4), by the rules of evalb with its parameter file COLLINS.prm.

A bracket is a label with its first and last word; brackets that a tree has several times count as often. Words whose gold tag is
punctuation are left out, and brackets that hold nothing else; so are the labels TOP, ROOT, S1 and the empty one. ADVP and PRT are equal,
and tags are no brackets. Trees over other words than the gold tree's are errors, which evalb leaves out of all sums.

evalb leaves out the words that each tree by itself tags as punctuation; here the gold tags decide for both, for the trees of a model have
no tags. Where both trees tag punctuation alike there is no difference.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from dragoman.data.trees import WORD, Tree
from dragoman.errors import DragomanError, counted
from dragoman.evaluation.measures import RESAMPLES, SEED, Interval

PUNCTUATION = (",", ":", "``", "''", ".")
LONGEST = 40
"""Words of the sentences that evalb also scores by themselves."""

_UNCOUNTED = ("TOP", "ROOT", "S1", "")
_EQUAL = {"PRT": "ADVP"}

Bracket = tuple[str, int, int]


@dataclass(frozen=True)
class ParsedSentence:
    """A gold tree beside another tree, its number from 1; the brackets of both that count, those that they share, and how many of the
    other tree's cross one of the gold tree's.

    ``words`` are those that count, ``tagged`` of them have the gold tag. ``error`` says why the trees cannot be compared, ``skipped``
    whether there is nothing but punctuation.
    """

    number: int
    gold_tree: Tree
    tree: Tree
    gold: Counter[Bracket]
    found: Counter[Bracket]
    crossing: int
    words: int
    tagged: int
    error: str = ""

    @property
    def skipped(self) -> bool:
        """Whether no word counts."""
        return not self.words and not self.error

    @property
    def matched(self) -> Counter[Bracket]:
        """Each bracket as often as both have it."""
        return self.gold & self.found

    @property
    def complete(self) -> bool:
        """Whether both have the same brackets."""
        return self.gold == self.found

    @property
    def f1(self) -> float:
        """Its own F1; 0 for an error."""
        return 0.0 if self.error else BracketScore.of([self]).f1


@dataclass(frozen=True)
class BracketScore:
    """Sums over sentences: brackets that both trees have, that the gold trees have, and that the others have. Scores are in percent."""

    matched: int
    gold: int
    found: int

    @classmethod
    def of(cls, sentences: Iterable[ParsedSentence]) -> "BracketScore":
        """That of these sentences, each counted as it is."""
        rows = [(each.matched.total(), each.gold.total(), each.found.total()) for each in sentences]
        return cls(*map(sum, zip(*rows, strict=True))) if rows else cls(0, 0, 0)

    @property
    def precision(self) -> float:
        """Of the brackets found, those that are right."""
        return 100 * self.matched / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Of the gold brackets, those that were found."""
        return 100 * self.matched / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        return 200 * self.matched / (self.gold + self.found) if self.gold + self.found else 0.0


@dataclass(frozen=True)
class BracketReport:
    """All sentences of a test set, and where 95 % of the F1 of resampled test sets lie."""

    sentences: tuple[ParsedSentence, ...]
    interval: Interval | None

    @cached_property
    def valid(self) -> list[ParsedSentence]:
        """Those that count."""
        return [each for each in self.sentences if not each.error and not each.skipped]

    @property
    def errors(self) -> list[ParsedSentence]:
        """Those whose trees cannot be compared."""
        return [each for each in self.sentences if each.error]

    @property
    def score(self) -> BracketScore:
        """Of the sentences that count: evalb's recall, precision and F-measure."""
        return BracketScore.of(self.valid)

    @property
    def score_with_errors(self) -> BracketScore:
        """The same with the errors, as sentences in which no bracket was found."""
        score = self.score
        return BracketScore(score.matched, score.gold + sum(each.gold.total() for each in self.errors), score.found)

    @property
    def short(self) -> list[ParsedSentence]:
        """Of those that count the ones of at most `LONGEST` words, punctuation among them."""
        return [each for each in self.valid if len(each.gold_tree.words) <= LONGEST]

    @property
    def complete_match(self) -> float:
        """Percent of the sentences that count whose brackets are all right."""
        return self._percent(lambda each: each.complete)

    @property
    def without_crossing(self) -> float:
        """Percent of the sentences that count in which no bracket crosses a gold one."""
        return self._percent(lambda each: not each.crossing)

    @property
    def crossing(self) -> float:
        """Brackets a sentence that cross a gold one."""
        return sum(each.crossing for each in self.valid) / len(self.valid) if self.valid else 0.0

    @property
    def tag_accuracy(self) -> float | None:
        """Percent of the words that count with the gold tag; None where the trees have no tags, as those of a model."""
        if all(tag == WORD for each in self.valid for tag in each.tree.tags()):
            return None
        return 100 * sum(each.tagged for each in self.valid) / sum(each.words for each in self.valid)

    def labels(self) -> dict[str, BracketScore]:
        """The score of each label by itself, the most frequent in the gold trees first; PRT is counted with ADVP."""
        matched, gold, found = Counter[str](), Counter[str](), Counter[str]()
        for each in self.valid:
            for total, brackets in ((matched, each.matched), (gold, each.gold), (found, each.found)):
                for (label, _, _), count in brackets.items():
                    total[label] += count
        known = sorted({*gold, *found}, key=lambda label: (-gold[label], -found[label], label))
        return {label: BracketScore(matched[label], gold[label], found[label]) for label in known}

    def worst(self, most: int) -> list[ParsedSentence]:
        """The sentences that are not all right, the lowest F1 first, errors before all."""
        wrong = [each for each in self.sentences if each.error or not (each.complete or each.skipped)]
        return sorted(wrong, key=lambda each: (not each.error, each.f1, each.number))[:most]

    def _percent(self, holds: Callable[[ParsedSentence], bool]) -> float:
        return 100 * sum(map(holds, self.valid)) / len(self.valid) if self.valid else 0.0


def score_brackets(gold: Sequence[Tree], trees: Sequence[Tree], *, resamples: int = RESAMPLES, seed: int = SEED) -> BracketReport:
    """Compare each of ``trees`` with the gold tree at its place; the interval comes from ``resamples`` of the sentences, drawn from
    ``seed`` (0: none).

    Raises DragomanError with both counts when they differ or are 0, or when there is no gold bracket to find.
    """
    if len(gold) != len(trees):
        raise DragomanError(f"{len(trees):,} trees, but {len(gold):,} gold trees; give one for each")
    report = BracketReport(tuple(compare_trees(*pair, number=number) for number, pair in enumerate(zip(gold, trees, strict=True), 1)), None)
    if not report.score_with_errors.gold:
        raise DragomanError(f"nothing to score: there is no bracket in the {len(gold):,} gold trees")
    return BracketReport(report.sentences, _interval(report.valid, resamples, seed) if resamples and report.valid else None)


def compare_trees(gold: Tree, tree: Tree, *, number: int = 1) -> ParsedSentence:
    """A tree beside the gold tree of the same sentence."""
    counts = [tag not in PUNCTUATION for tag in gold.tags()]
    brackets = _brackets(gold, counts)
    if error := _difference(gold.words, tree.words, counts):
        return ParsedSentence(number, gold, tree, brackets, Counter(), 0, 0, 0, error=error)
    found = _brackets(tree, counts)
    tagged = sum(counted and ours == theirs for counted, ours, theirs in zip(counts, gold.tags(), tree.tags(), strict=True))
    crossing = sum(count for bracket, count in found.items() if any(_cross(bracket, other) for other in brackets))
    return ParsedSentence(number, gold, tree, brackets, found, crossing, sum(counts), tagged)


def _brackets(tree: Tree, counts: Sequence[bool]) -> Counter[Bracket]:
    """The brackets that count, by the places of their words among those that do (True in ``counts``)."""
    place = [0, *accumulate(counts)]
    return Counter(
        (_EQUAL.get(label, label), place[start], place[end])
        for label, start, end in tree.constituents()
        if label not in _UNCOUNTED and place[start] < place[end]
    )


def _cross(one: Bracket, other: Bracket) -> bool:
    (_, start, end), (_, first, last) = one, other
    return first < start < last < end or start < first < end < last


def _difference(gold: Sequence[str], words: Sequence[str], counts: Sequence[bool]) -> str:
    """Why these are not the words of the gold tree, of which those that count must be the same; empty when they are."""
    if len(gold) != len(words):
        return f"{counted(len(words), 'word')}, but the gold tree has {len(gold)}"
    for place, (ours, theirs, counts_here) in enumerate(zip(gold, words, counts, strict=True), start=1):
        if counts_here and ours != theirs:
            return f"word {place} is {theirs}, but {ours} in the gold tree"
    return ""


def _interval(sentences: Sequence[ParsedSentence], resamples: int, seed: int) -> Interval:
    """Where 95 % of the F1 of resampled sentences lie."""
    counts = np.array([(each.matched.total(), each.gold.total() + each.found.total()) for each in sentences])  # (sentences, 2)
    random = np.random.default_rng(seed)
    sums = np.array([counts[random.integers(len(counts), size=len(counts))].sum(0) for _ in range(resamples)])  # (resamples, 2)
    scores = 200 * sums[:, 0] / np.maximum(sums[:, 1], 1)
    low, high = np.quantile(scores, (0.025, 0.975))
    return Interval(float(scores.mean()), float(low), float(high))
