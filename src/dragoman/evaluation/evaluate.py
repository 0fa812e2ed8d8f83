"""A test set through a translator, scored (Section 6)."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from dragoman.decoding.translate import Translation, Translator
from dragoman.errors import DragomanError
from dragoman.evaluation.metrics import Scores, check_tokenizer, corpus_scores, exact_matches


@dataclass(frozen=True)
class Evaluation:
    """Scores of a test set, the percentage of translations that equal their reference, and the seconds that translating took."""

    scores: Scores
    exact_match: float
    seconds: float
    translations: tuple[Translation, ...]


def evaluate_translator(
    translator: Translator,
    pairs: Iterable[tuple[str, str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    beam: int | None = None,
    alpha: float | None = None,
    max_length: int | None = None,
) -> Evaluation:
    """Translate the sources of ``pairs`` and score the result against their targets.

    Targets in segmented text (a whitespace tokenizer with a joiner) count as plain text, as the translations do. ``beam``, ``alpha`` and
    ``max_length`` are those of ``Translator.translate``. Raises DragomanError when there are no pairs, UsageError for an unknown splitter.
    """
    check_tokenizer(tokenize)
    both = list(pairs)
    if not both:
        raise DragomanError("the test set has no pairs")
    plain = translator.bundle.target_tokenizer.plain
    references = [plain(target) for _, target in both]
    start = time.perf_counter()
    translations = translator.translate([source for source, _ in both], beam=beam, alpha=alpha, max_length=max_length)
    seconds = time.perf_counter() - start
    texts = [translation.text for translation in translations]
    return Evaluation(
        scores=corpus_scores(texts, [references], tokenize=tokenize, lowercase=lowercase),
        exact_match=exact_matches(texts, references),
        seconds=seconds,
        translations=tuple(translations),
    )
