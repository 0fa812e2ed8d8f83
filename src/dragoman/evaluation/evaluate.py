"""A test set through a translator, or translations that are already there, scored (Section 6)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError
from dragoman.evaluation.analysis import Bucket, Counts, buckets_by_length, count, splitter_for
from dragoman.evaluation.measures import RESAMPLES, SEED, Measure, Measured, resamples_for, score_corpus, sentence_scores
from dragoman.evaluation.metrics import check_counts, check_tokenizer, matches_exactly
from dragoman.evaluation.testset import TestSet

if TYPE_CHECKING:
    from dragoman.decoding.translate import Translation, Translator

RANKED_BY = "chrf"
"""The measure that orders sentences: of all, the one that says most about a single one."""

_BY_LENGTH = ("bleu", "chrf", "chrf++")  # TER is dear


@dataclass(frozen=True)
class Evaluation:
    """Translations of a test set, and their scores."""

    bleu: Measured
    chrf: Measured
    translations: tuple["Translation", ...]


@dataclass(frozen=True)
class Sentence:
    """A sentence of the test set, its number from 1, and its own scores by measure; the first reference comes first."""

    number: int
    source: str | None
    hypothesis: str
    references: tuple[str, ...]
    scores: dict[str, float]
    exact: bool

    def texts(self) -> list[tuple[str, str]]:
        """All its texts, each behind its name."""
        references = [("reference", reference) for reference in self.references]
        return [*named_source(self.source), ("output", self.hypothesis), *references]


@dataclass(frozen=True)
class TestReport:
    """All that is known of the translations of a test set.

    ``sentence_signatures`` are those of the sentences' scores. ``buckets`` are by the words of the source, or of the first reference where
    there are no sources: ``lengths_of`` says which, and ``length_unit`` whether it is characters because the text has no spaces.
    """

    __test__ = False  # not a test, whatever its name says to pytest

    scores: tuple[Measured, ...]
    exact_match: float
    counts: Counts
    lengths_of: str
    length_unit: str
    buckets: tuple[Bucket, ...]
    sentences: tuple[Sentence, ...]
    sentence_signatures: dict[str, str]

    def best(self, most: int) -> list[Sentence]:
        """The sentences with the highest chrF, best first; of a small test set at most half, so that none is among the worst too."""
        return self._ranked()[::-1][: min(most, len(self.sentences) // 2)]

    def worst(self, most: int) -> list[Sentence]:
        """The sentences with the lowest chrF, worst first; of a small test set at most half, and none that is exactly right."""
        return [each for each in self._ranked()[: min(most, (len(self.sentences) + 1) // 2)] if not each.exact]

    def _ranked(self) -> list[Sentence]:
        return sorted(self.sentences, key=lambda sentence: (sentence.scores[RANKED_BY], -sentence.number))


def evaluate_translator(
    translator: "Translator", pairs: Iterable[tuple[str, str]], *, tokenize: str = "13a", lowercase: bool = False, beam: int | None = None
) -> Evaluation:
    """Translate the sources of ``pairs`` and score the result against their targets by BLEU and chrF.

    Targets in segmented text (a whitespace tokenizer with a joiner) count as plain text, as the translations do. ``beam`` is that of
    ``Translator.translate``. Raises DragomanError when there are no pairs, UsageError for an unknown splitter.
    """
    check_tokenizer(tokenize)
    both = list(pairs)
    if not both:
        raise DragomanError("the test set has no pairs")
    references = [translator.bundle.target_tokenizer.plain(target) for _, target in both]
    translations = translator.translate([source for source, _ in both], beam=beam)
    texts = [translation.text for translation in translations]
    bleu, chrf = (score_corpus(Measure(name, tokenize, lowercase), texts, [references]) for name in ("bleu", "chrf"))
    return Evaluation(bleu, chrf, tuple(translations))


def evaluate_texts(
    hypotheses: Sequence[str],
    test: TestSet,
    measures: Sequence[Measure],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    every_sentence: bool = False,
) -> TestReport:
    """Score translations of a test set in plain text, whoever made them.

    Intervals come from ``resamples`` of the test set (0: none, fewer when there are very many lines), drawn from ``seed``. Sentences have
    their chrF, and with ``every_sentence`` the scores of all measures. Raises DragomanError with both counts when the numbers of lines
    differ or are 0.
    """
    check_counts(hypotheses, test.references)
    resamples = resamples_for(len(hypotheses), resamples)
    references = test.references
    lengths_of = references[0] if test.sources is None else test.sources
    unit, split = splitter_for(lengths_of)
    scores = [score_corpus(each, hypotheses, references, resamples=resamples, seed=seed) for each in measures]
    ranking = ranking_measure(measures)
    sentences, signatures = _sentences(hypotheses, test, {each.key: each for each in (*(measures if every_sentence else []), ranking)})
    return TestReport(
        scores=tuple(scores),
        exact_match=100 * sum(sentence.exact for sentence in sentences) / len(sentences),
        counts=count(hypotheses, references, test.sources),
        lengths_of="reference" if test.sources is None else "source",
        length_unit=unit,
        buckets=tuple(
            buckets_by_length(
                [len(split(line)) for line in lengths_of],
                [each for each in measures if each.name in _BY_LENGTH],
                hypotheses,
                references,
            )
        ),
        sentences=tuple(sentences),
        sentence_signatures=signatures,
    )


def named_source(source: str | None) -> list[tuple[str, str]]:
    """A sentence's source behind its name, or nothing where there is none."""
    return [] if source is None else [("source", source)]


def ranking_measure(measures: Sequence[Measure]) -> Measure:
    """The one of these that orders sentences, or another like them."""
    lowercase = any(each.lowercase for each in measures)
    return next((each for each in measures if each.name == RANKED_BY), Measure(RANKED_BY, lowercase=lowercase))


def _sentences(hypotheses: Sequence[str], test: TestSet, measures: Mapping[str, Measure]) -> tuple[list[Sentence], dict[str, str]]:
    columns, signatures = {}, {}
    for key, each in measures.items():
        columns[key], signatures[key] = sentence_scores(each, hypotheses, test.references)
    sources: Sequence[str | None] = test.sources if test.sources is not None else [None] * len(hypotheses)
    rows = zip(sources, hypotheses, zip(*test.references, strict=True), strict=True)
    sentences = [
        Sentence(
            number=number,
            source=source,
            hypothesis=hypothesis,
            references=references,
            scores={key: column[number - 1] for key, column in columns.items()},
            exact=matches_exactly(hypothesis, references),
        )
        for number, (source, hypothesis, references) in enumerate(rows, start=1)
    ]
    return sentences, signatures
