"""The ways a text can be scored, each by sacreBLEU: for a corpus with an interval, for a sentence, and for two systems at once (Section 6).

A measure is never given without sacreBLEU's signature, for two figures can be compared only when their signatures are equal.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.errors import UsageError, option
from dragoman.evaluation.metrics import BleuDetails, check_counts, check_tokenizer, warn_of_unsplit_text
from dragoman.evaluation.paper_bleu import paper_words, split_compounds

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

LABELS = {"bleu": "BLEU", "paper-bleu": "paper BLEU", "chrf": "chrF", "chrf++": "chrF++", "ter": "TER"}
RESAMPLES = 1000
SEED = 12345
"""sacreBLEU's own."""

MOST_SENTENCES_DRAWN = 10_000_000
"""Sentences of all resamples together, which sacreBLEU keeps in memory: about a gigabyte."""

_FEWEST_RESAMPLES = 100
_UNSPACED = ("zh", "ja-mecab", "ko-mecab", "char")


@dataclass(frozen=True)
class Measure:
    """A way to score, named by a key of ``LABELS``. BLEU splits words as ``tokenize`` says; ``language`` is the translations' code."""

    name: str
    tokenize: str = "13a"
    lowercase: bool = False
    language: str = ""

    @property
    def label(self) -> str:
        """The name for people."""
        return LABELS[self.name]

    @property
    def key(self) -> str:
        """The name in JSON and in Python."""
        return self.name.replace("-", "_")

    @property
    def falls(self) -> bool:
        """Whether less is better."""
        return self.name == "ter"

    @property
    def splits(self) -> bool:
        """Whether ``tokenize`` makes a difference to it."""
        splitters = {"bleu": (self.tokenize,), "paper-bleu": ("none",), "ter": _UNSPACED}
        return self.tokenize in splitters.get(self.name, ())

    @property
    def explanation(self) -> str:
        """What it is, in one line."""
        given = self.tokenize == "none"
        words = {"none": "the words between spaces", "13a": "words as mteval-v13a splits them"}.get(self.tokenize, "words")
        caveat = "comparable only on text split and cased alike" if given else "the figure to publish and compare"
        compounds = "the words between spaces" if given else "words split by Moses's rules"
        return {
            "bleu": f"n-grams of {words}: {caveat}",
            "paper-bleu": f"to set beside the paper's Table 2 alone: {compounds}, compounds split at hyphens; often above BLEU",
            "chrf": "F-score of character n-grams; fairer to word forms and compounds than BLEU",
            "chrf++": "chrF with words and word pairs",
            "ter": "edits (a moved phrase is one) for 100 reference words; less is better",
        }[self.name]

    def metric(self, *, sentence: bool = False, quiet: bool = False) -> "Metric":
        """sacreBLEU's metric. BLEU of a ``sentence`` uses the orders of n-gram that there are. ``quiet``: no advice about the text."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
        from sacrebleu.metrics.ter import TER

        if self.name in ("chrf", "chrf++"):
            return CHRF(lowercase=self.lowercase, word_order=2 if self.name == "chrf++" else 0)
        if self.name == "ter":
            asian = self.tokenize in _UNSPACED
            return TER(normalized=asian, asian_support=asian)
        paper = self.name == "paper-bleu"
        return BLEU(
            tokenize="none" if paper else self.tokenize,
            lowercase=self.lowercase,
            smooth_method="none" if paper and not sentence else "exp",
            effective_order=sentence,
            force=quiet or paper or self.tokenize == "none",
        )

    def prepared(self, lines: Sequence[str]) -> list[str]:
        """The lines as the metric takes them."""
        if self.name != "paper-bleu":
            return list(lines)
        if self.tokenize == "none":
            return [split_compounds(line) for line in lines]
        return [paper_words(line, language=self.language) for line in lines]

    def signed(self, signature: object) -> str:
        """sacreBLEU's signature, which for the paper's BLEU says who has split the words."""
        text = str(signature)
        splitter = "none" if self.tokenize == "none" else f"moses-{self.language or 'any'}"
        return text.replace("tok:none", f"tok:{splitter}+compounds") if self.name == "paper-bleu" else text


@dataclass(frozen=True)
class Interval:
    """Where 95 % of the scores of resampled test sets lie (bootstrap), around their mean."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Measured:
    """A score of a corpus, with its signature; ``interval`` when one was asked for, ``details`` of a BLEU."""

    measure: Measure
    score: float
    signature: str
    interval: Interval | None
    details: BleuDetails | None


@dataclass(frozen=True)
class Paired:
    """A system beside the first: its score, and how probable so large a difference is between equal ones; no ``p`` for the first itself."""

    score: float
    interval: Interval
    p: float | None


def choose_measures(names: Sequence[str], *, tokenize: str | None = None, lowercase: bool = False) -> list[Measure]:
    """The measures of these names, each once; without names BLEU, the paper's where words have spaces between them, chrF and TER.

    Words are split by 13a when not given. Raises UsageError for an unknown name or word splitter, with those that are known, and for a
    splitter that is given to measures that have no use for it.
    """
    splitter = "13a" if tokenize is None else tokenize
    check_tokenizer(splitter)
    for name in names:
        if name not in LABELS:
            raise UsageError(f"metric {name}: unknown; known: {', '.join(LABELS)}")
        if name == "paper-bleu" and splitter in _UNSPACED:
            raise UsageError(f"metric paper-bleu: Moses's rules need spaces between words; leave out it or --tokenize {tokenize}")
    usual = [name for name in ("bleu", "paper-bleu", "chrf", "ter") if name != "paper-bleu" or splitter not in _UNSPACED]
    measures = [Measure(name, splitter, lowercase) for name in dict.fromkeys(names or usual)]
    if tokenize is not None and not any(measure.splits for measure in measures):
        asked = " ".join(f"{option('metric')} {measure.name}" for measure in measures)
        raise UsageError(
            f"{option('tokenize')} {tokenize} with {asked}: it changes nothing there; leave it out, or ask for {option('metric')} bleu too"
        )
    return measures


def resamples_for(lines: int, wanted: int) -> int:
    """How many resamples of so many lines fit the memory, said in a warning when fewer than ``wanted``; 0 when too few to tell anything."""
    most = MOST_SENTENCES_DRAWN // max(lines, 1)
    if wanted <= most:
        return wanted
    most = most if most >= _FEWEST_RESAMPLES else 0
    log = logging.getLogger("dragoman")
    log.warning("%d lines are many: %s instead of %d resamples, for sacreBLEU keeps all in memory", lines, most or "no", wanted)
    return most


def score_corpus(
    measure: Measure,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    resamples: int = 0,
    seed: int = SEED,
    quiet: bool = False,
) -> Measured:
    """The score of a corpus; with ``resamples`` of the test set, drawn from ``seed``, its interval.

    ``references`` holds one list for each set; ``quiet`` keeps advice about the text to itself. Raises DragomanError with both counts when
    a set has another number of lines than there are hypotheses.
    """
    check_counts(hypotheses, references)
    metric = measure.metric(quiet=quiet)
    lines, sets = measure.prepared(hypotheses), [measure.prepared(each) for each in references]
    score = metric.corpus_score(lines, sets)
    interval, signature = None, measure.signed(metric.get_signature())
    if resamples:
        (result,), signature = pair_up(measure, [hypotheses], references, resamples=resamples, seed=seed)
        interval = result.interval
    details = None
    if measure.name in ("bleu", "paper-bleu"):
        details = BleuDetails(tuple(score.precisions), score.bp, score.sys_len, score.ref_len)
        if measure.name == "bleu" and not quiet:
            warn_of_unsplit_text(measure.tokenize, score.ref_len, sets[0])
    return Measured(measure, score.score, signature, interval, details)


def sentence_scores(measure: Measure, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[list[float], str]:
    """The score of each line by itself, and the signature of such scores. Their mean is not the score of the corpus."""
    check_counts(hypotheses, references)
    metric = measure.metric(sentence=True, quiet=True)
    sets = [measure.prepared(each) for each in references]
    rows = zip(measure.prepared(hypotheses), *sets, strict=True)
    scores = [metric.sentence_score(line, list(others)).score for line, *others in rows]
    return scores, measure.signed(metric.get_signature())


def pair_up(
    measure: Measure, systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[list[Paired], str]:
    """Each system's score, the first being what the others are compared with, by sacreBLEU's paired bootstrap; and the signature.

    ``p`` is 1 where the scores are equal: sacreBLEU's test takes systems that differ in no resample for the surest of differences.
    """
    from sacrebleu.significance import PairedTest

    for lines in systems:
        check_counts(lines, references)
    named: list[tuple[str, Sequence[str]]] = [(str(number), measure.prepared(lines)) for number, lines in enumerate(systems)]
    sets = [measure.prepared(each) for each in references]
    with _seeded(seed), _silent():
        test = PairedTest(named, {measure.name: measure.metric(quiet=True)}, sets, test_type="bs", n_samples=resamples)
        signatures, table = test()
    (signature,) = signatures.values()
    (results,) = ([each for each in column if not isinstance(each, str)] for name, column in table.items() if name != "System")
    found = []
    for result in results:
        p = None if result.p_value is None else 1.0 if result.score == results[0].score else float(result.p_value)
        found.append(Paired(float(result.score), _interval(result.mean, result.ci), p))
    return found, measure.signed(signature)


def _interval(mean: float | None, half: float | None) -> Interval:
    """An interval as sacreBLEU gives it, in Python's numbers."""
    mean, half = float(mean or 0), float(half or 0)
    return Interval(mean, mean - half, mean + half)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment alone."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


@contextmanager
def _silent() -> Iterator[None]:
    """Without sacreBLEU's notices of each step."""
    logger = logging.getLogger("sacrebleu")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
