"""Reported faults of numbers out of range in sampling (B85): each limit means something, or is refused."""

import pytest

from dragoman.decoding.options import SearchOptions
from dragoman.decoding.translate import Translator
from dragoman.errors import UsageError
from small_bundles import fx_rand, random_sentences

TEXTS = random_sentences(12, seed=8)


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(fx_rand(seed=2))


def sampled(translator: Translator, **asked: float) -> list[str]:
    return [each.text for each in translator.translate(TEXTS, options=SearchOptions(sample=True, **asked))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked", [{"temperature": 0}, {"temperature": 1e-4}, {"temperature": 1e-45}, {"top_k": 1}, {"top_p": 0}, {"top_p": 1e-4}]
)
def test_b85_the_least_randomness_is_greedy(translator: Translator, asked: dict[str, float]) -> None:
    assert sampled(translator, **asked) == [each.text for each in translator.translate(TEXTS, beam=1)]


@pytest.mark.parametrize("asked", [{"top_k": 0}, {"top_k": 16}, {"top_k": 17}, {"top_p": 1}, {"temperature": 1}])
def test_b85_what_limits_nothing_changes_nothing(translator: Translator, asked: dict[str, float]) -> None:
    assert sampled(translator, **asked) == sampled(translator)
    assert sampled(translator, **asked) != [each.text for each in translator.translate(TEXTS, beam=1)]


@pytest.mark.parametrize("asked", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": -0.1}, {"top_p": 1.5}])
def test_b85_what_cannot_be_is_refused(translator: Translator, asked: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="it must be"):
        sampled(translator, **asked)


def test_b85_the_same_seed_gives_the_same_text(translator: Translator) -> None:
    assert sampled(translator, seed=3) == sampled(translator, seed=3)
    assert sampled(translator, seed=3) != sampled(translator, seed=4)
    assert sampled(translator, seed=-(10**30)) == sampled(translator, seed=-(10**30))
