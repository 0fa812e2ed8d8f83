"""Where and how translations fail: by the length of the source, words that are unknown, copied or repeated, output too short."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

from dragoman.evaluation.measures import Measure, score_corpus
from dragoman.evaluation.metrics import matches_exactly

BOUNDS = (10, 20, 30, 40, 50)
"""Most words of a sentence in each bucket but the last."""

LONGEST_REPEATED = 4
UNKNOWN = "<unk>"

Split = Callable[[str], list[str]]


@dataclass(frozen=True)
class Bucket:
    """The sentences with at least ``shortest`` and at most ``longest`` words (None: any number), and their scores, by measure.

    A BLEU is None where it is 0 because the sentences have fewer words than the four of its longest phrases. ``length_ratio`` is words of
    the translations for one of the (first) references.
    """

    shortest: int
    longest: int | None
    sentences: int
    scores: dict[str, float | None]
    exact_match: float
    length_ratio: float | None

    @property
    def range(self) -> str:
        """From how many words to how many."""
        return f"{self.shortest} or more" if self.longest is None else f"{self.shortest} to {self.longest}"


@dataclass(frozen=True)
class Counts:
    """What can be counted without a metric, in ``unit``: words between spaces, or characters where the text has no spaces.

    ``unknown``: those that read ``<unk>``. ``copied``: those with a letter that stand in the source too; ``copied_wrongly``: and in no
    reference. ``copied_sentences`` equal their source and no reference. ``repeated``: those of a phrase of up to four that has just been
    said; ``repeated_in_reference`` the same of the (first) references, which is what is usual. Counts of the source are None without one.
    """

    unit: str
    words: int
    reference_words: int
    empty: int
    unknown: int
    repeated: int
    repeating_sentences: int
    repeated_in_reference: int
    copied: int | None
    copied_wrongly: int | None
    copied_sentences: int | None

    @property
    def length_ratio(self) -> float | None:
        """Words of the translations for one of the references; below 1 they are shorter."""
        return self.words / self.reference_words if self.reference_words else None


def splitter_for(lines: Sequence[str]) -> tuple[str, Split]:
    """What to count in these texts, and how to take a line apart: words, or characters when hardly a line has a space inside."""
    words, characters = sum(len(line.split()) for line in lines), sum(map(len, lines))
    if words < 3 * len(lines) and characters > 6 * words:
        return "characters", lambda line: [character for character in line if not character.isspace()]
    return "words", str.split


def count(hypotheses: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str] | None) -> Counts:
    """What stands out in the translations; ``references`` holds one list for each set."""
    unit, split = splitter_for(references[0])
    words = [split(line) for line in hypotheses]
    repeated = [repeated_words(line) for line in words]
    copied = copied_wrongly = copied_sentences = None
    if sources is not None:
        both = [
            _copied(line, split(source), [split(text) for text in others])
            for line, source, *others in zip(words, sources, *references, strict=True)
        ]
        copied, copied_wrongly = (sum(column) for column in zip(*both, strict=True))
        rows = zip(hypotheses, sources, *references, strict=True)
        copied_sentences = sum(line.strip() == source.strip() != "" and not matches_exactly(line, others) for line, source, *others in rows)
    return Counts(
        unit=unit,
        words=sum(map(len, words)),
        reference_words=sum(len(split(line)) for line in references[0]),
        empty=sum(not line for line in words),
        unknown=sum(line.split().count(UNKNOWN) for line in hypotheses),
        repeated=sum(repeated),
        repeating_sentences=sum(map(bool, repeated)),
        repeated_in_reference=sum(repeated_words(split(line)) for line in references[0]),
        copied=copied,
        copied_wrongly=copied_wrongly,
        copied_sentences=copied_sentences,
    )


def repeated_words(words: Sequence[str]) -> int:
    """Words that belong to a phrase of one to four words said again at once: 2 in ``a dog a dog runs``, 0 where signs repeat (``- -``)."""
    marked = [False] * len(words)
    for size in range(1, LONGEST_REPEATED + 1):
        for start in range(size, len(words) - size + 1):
            phrase = words[start : start + size]
            if phrase == words[start - size : start] and any(character.isalnum() for word in phrase for character in word):
                marked[start : start + size] = [True] * size
    return sum(marked)


def _copied(words: Sequence[str], source: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Words with a letter that are in the source, each as often as it is there; and of these those that no reference has so often."""
    found = Counter(word for word in words if any(map(str.isalpha, word))) & Counter(source)
    known: Counter[str] = Counter()
    for reference in references:
        known |= Counter(reference)
    return found.total(), (found - known).total()


def buckets_by_length(
    lengths: Sequence[int], measures: Sequence[Measure], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> list[Bucket]:
    """The scores of the sentences of each length, from the shortest; only buckets that have sentences."""
    _, split = splitter_for(references[0])
    found = []
    for shortest, longest in zip((0, *(bound + 1 for bound in BOUNDS)), (*BOUNDS, None), strict=True):
        chosen = [shortest <= length and (longest is None or length <= longest) for length in lengths]
        if not any(chosen):
            continue
        lines, *sets = (list(compress(each, chosen)) for each in (hypotheses, *references))
        words, reference_words = (sum(len(split(line)) for line in text) for text in (lines, sets[0]))
        exact = [matches_exactly(line, others) for line, *others in zip(lines, *sets, strict=True)]
        found.append(
            Bucket(
                shortest=shortest,
                longest=longest,
                sentences=len(lines),
                scores={each.key: _score(each, lines, sets) for each in measures},
                exact_match=100 * sum(exact) / len(lines),
                length_ratio=words / reference_words if reference_words else None,
            )
        )
    return found


def _score(measure: Measure, lines: Sequence[str], references: Sequence[Sequence[str]]) -> float | None:
    measured = score_corpus(measure, lines, references, quiet=True)
    found = measured.details
    short = found is not None and max(found.hypothesis_length, found.reference_length) < 4 * len(lines)
    return None if short and not measured.score else measured.score
