"""BLEU and chrF as sacreBLEU computes them, with the signatures that make the figures comparable (Section 6)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError, UsageError

TOKENIZERS = ("13a", "none", "intl", "zh", "char", "ja-mecab", "ko-mecab")
_FETCHED = ("spm", "flores101", "flores200", "spBLEU-1K")


@dataclass(frozen=True)
class BleuDetails:
    """What BLEU is made of: n-gram precisions in percent for n = 1 to 4, brevity penalty, and both lengths in the splitter's words."""

    precisions: tuple[float, ...]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int


@dataclass(frozen=True)
class Scores:
    """Corpus scores from 0 to 100 with their signatures, over so many lines."""

    bleu: float
    bleu_signature: str
    bleu_details: BleuDetails
    chrf: float
    chrf_signature: str
    lines: int


def check_tokenizer(tokenize: str) -> None:
    """Raise UsageError, with the known names, unless ``tokenize`` is a word splitter of sacreBLEU that works without a network."""
    if tokenize in _FETCHED:
        raise UsageError(f"word splitter {tokenize}: needs a model from the network; choose one of {', '.join(TOKENIZERS)}")
    if tokenize not in TOKENIZERS:
        raise UsageError(f"word splitter {tokenize}: unknown; known: {', '.join(TOKENIZERS)}")
    if tokenize.endswith("-mecab"):
        from sacrebleu.metrics.bleu import BLEU

        try:
            BLEU(tokenize=tokenize)
        except (RuntimeError, ImportError):
            extra = tokenize.removesuffix("-mecab")
            raise UsageError(
                f"word splitter {tokenize}: needs a word splitter that is not installed; pip install 'sacrebleu[{extra}]'"
            ) from None


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "13a", lowercase: bool = False
) -> Scores:
    """BLEU (exponential smoothing, no effective order) and chrF2 of a corpus.

    ``references`` holds one list for each set of references, each as long as ``hypotheses``. ``tokenize`` is sacreBLEU's name of the word
    splitter: 13a, none for text that is tokenised already, zh for Chinese, ... Raises DragomanError with both counts when a set of
    references has another number of lines, or when there are none; UsageError for an unknown splitter.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    check_tokenizer(tokenize)
    check_counts(hypotheses, references)
    sets = [list(reference_set) for reference_set in references]
    bleu_metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    bleu = bleu_metric.corpus_score(list(hypotheses), sets)
    chrf_metric = CHRF(lowercase=lowercase)
    chrf = chrf_metric.corpus_score(list(hypotheses), sets)
    warn_of_unsplit_text(tokenize, bleu.ref_len, sets[0])
    return Scores(
        bleu=bleu.score,
        bleu_signature=str(bleu_metric.get_signature()),
        bleu_details=BleuDetails(tuple(bleu.precisions), bleu.bp, bleu.sys_len, bleu.ref_len),
        chrf=chrf.score,
        chrf_signature=str(chrf_metric.get_signature()),
        lines=len(hypotheses),
    )


def exact_matches(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Percentage of lines that equal their reference, apart from spaces at the ends; DragomanError with both counts when they differ."""
    check_counts(hypotheses, [references])
    return 100 * sum(ours.strip() == theirs.strip() for ours, theirs in zip(hypotheses, references, strict=True)) / len(hypotheses)


def matches_exactly(hypothesis: str, references: Sequence[str]) -> bool:
    """Whether a line equals one of its references, apart from spaces at the ends."""
    return hypothesis.strip() in {reference.strip() for reference in references}


def check_counts(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise DragomanError with both counts unless there are hypotheses, and as many lines in each set of references."""
    if isinstance(hypotheses, str) or isinstance(references, str) or any(isinstance(lines, str) for lines in references):
        raise DragomanError("hypotheses are a list of lines, and references a list of such lists, one for each set of references")
    if not hypotheses or not references:
        raise DragomanError(f"nothing to score: {len(hypotheses)} hypotheses, {len(references)} sets of references")
    for number, lines in enumerate(references, start=1):
        if len(lines) != len(hypotheses):
            raise DragomanError(
                f"reference set {number} has {len(lines)} lines, but there are {len(hypotheses)} hypotheses; "
                "give one line for each hypothesis, and one list for each set of references"
            )


def warn_of_unsplit_text(tokenize: str, words: int, references: Sequence[str]) -> None:
    """A warning when a splitter for European languages sees hardly a word boundary; ``words`` is the number it saw in the references."""
    # Text without spaces is one "word" a line to a splitter for European languages, and BLEU is then near 0 whatever the translation.
    characters = sum(map(len, references))
    if tokenize in ("13a", "intl", "none") and words < 3 * len(references) and characters > 6 * words:
        logging.getLogger("dragoman").warning(
            "BLEU: the %s splitter sees %.1f words a line of %.0f characters; for text without spaces choose zh, char or another splitter",
            tokenize,
            words / len(references),
            characters / len(references),
        )
