"""What a score needs beside its metric: texts that fit together, a word splitter that is there and suits the language (Section 6)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError, UsageError, counted

TOKENIZERS = ("13a", "none", "intl", "zh", "char", "ja-mecab", "ko-mecab")
_FETCHED = ("spm", "flores101", "flores200", "spBLEU-1K")


@dataclass(frozen=True)
class BleuDetails:
    """What BLEU is made of: n-gram precisions in percent for n = 1 to 4, brevity penalty, and both lengths in the splitter's words."""

    precisions: tuple[float, ...]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int


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
                f"reference set {number} has {counted(len(lines), 'line')}, but there are {len(hypotheses):,} hypotheses; "
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
