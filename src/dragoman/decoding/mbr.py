"""Minimum Bayes risk: of samples, the one that is most like all of them by chrF.

Shapes:  D different texts   G n-grams of one order in them
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ORDER = 6
_BETA = 2


def expected_chrf(texts: Sequence[str]) -> list[float]:
    """Of each text the mean chrF (sacreBLEU's chrF2, from 0 to 100) against all of them, itself included, each as the reference."""
    counts = Counter(texts)
    distinct = list(counts)
    weights = np.array([counts[text] for text in distinct]) / max(len(texts), 1)  # (D,)
    expected = dict(zip(distinct, (chrf_of_pairs(distinct) @ weights).tolist(), strict=True))
    return [expected[text] for text in texts]


def chrf_of_pairs(texts: Sequence[str]) -> NDArray[np.float64]:
    """chrF2 of each text as the hypothesis (rows) against each as the reference (columns): (D, D)."""
    stripped = ["".join(text.split()) for text in texts]
    precision = recall = effective = np.zeros((len(texts), len(texts)))
    for n in range(1, _ORDER + 1):
        matches, sizes = _overlaps(stripped, n)  # (D, D), (D,)
        both = (sizes[:, None] > 0) & (sizes[None] > 0)
        precision = precision + both * matches / np.maximum(sizes[:, None], 1)
        recall = recall + both * matches / np.maximum(sizes[None], 1)
        effective = effective + both
    precision, recall = precision / np.maximum(effective, 1), recall / np.maximum(effective, 1)
    factor = _BETA**2
    return 100 * (1 + factor) * precision * recall / np.maximum(factor * precision + recall, 1e-300)


def _overlaps(texts: Sequence[str], n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How many n-grams each two texts share, repeated ones counted (D, D), and how many each has (D,)."""
    grams = [Counter(text[start : start + n] for start in range(len(text) - n + 1)) for text in texts]
    places = {gram: place for place, gram in enumerate(dict.fromkeys(gram for some in grams for gram in some))}
    table = np.zeros((len(texts), len(places)), np.int32)  # (D, G)
    for row, some in enumerate(grams):
        table[row, [places[gram] for gram in some]] = list(some.values())
    matches = np.array([np.minimum(row, table).sum(1) for row in table], np.float64).reshape(len(texts), len(texts))
    return matches, table.sum(1).astype(np.float64)
