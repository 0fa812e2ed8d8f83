"""Reported faults of beam-finish (B33, B35): neighbours change nothing, and what has ended has ended."""

import random
from collections.abc import Callable

import pytest

from dragoman.bundle import Bundle
from dragoman.decoding.beam import beam_search
from dragoman.decoding.translate import Translation, Translator
from small_bundles import fx_rand, fx_toy, random_sentences
from step_models import BOS, END, sentences, spell, table_2


def ranked(translation: Translation) -> list[Translation]:
    return [translation, *translation.alternatives]


def assert_same(found: list[Translation], expected: list[Translation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert [each.text for each in ranked(one)] == [each.text for each in ranked(other)]
        assert [each.score for each in ranked(one)] == pytest.approx([each.score for each in ranked(other)], abs=1e-4)


@pytest.mark.parametrize(
    ("bundle", "beam", "alpha"),
    [(fx_rand, 1, 0.0), (fx_rand, 4, 0.0), (fx_rand, 4, 1.0), (fx_toy, 1, 1.0), (fx_toy, 4, 1.0), (fx_toy, 4, 0.0)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_b33_neighbours_change_nothing(bundle: Callable[[], Bundle], beam: int, alpha: float) -> None:
    translator = Translator(bundle())
    texts = random_sentences(37, seed=11)

    def translate(lines: list[str], batch_tokens: int) -> list[Translation]:
        return translator.translate(lines, beam=beam, alpha=alpha, n_best=beam, batch_tokens=batch_tokens)

    alone = translate(texts, 1)
    order = random.Random(3).sample(range(37), 37)
    for batch_size in (2, 7, 37):
        batch_tokens = batch_size * beam * 16  # a sentence of fewer tokens counts as 16
        assert_same(translate(texts, batch_tokens), alone)
        assert_same(translate([texts[place] for place in order], batch_tokens), [alone[place] for place in order])
    for n_best in range(1, beam):
        fewer = translator.translate(texts, beam=beam, alpha=alpha, n_best=n_best)
        for one, whole in zip(fewer, alone, strict=True):
            assert [each.text for each in ranked(one)] == [each.text for each in ranked(whole)][:n_best]


def test_b35_an_ended_hypothesis_is_not_extended() -> None:
    source, mask = sentences(1)
    (found,) = beam_search(table_2(), source, mask, bos=BOS, eos=END, banned=(BOS,), beam=4, alpha=0.0, n_best=3, max_lengths=[10])
    assert [spell(hypothesis) for hypothesis in found] == ["B$", "A$", "AB$"]
    assert [hypothesis.log_probability for hypothesis in found] == pytest.approx([-1.021651, -1.560648, -1.755620], abs=1e-6)


def test_b35_n_best_lists_hold_distinct_whole_hypotheses_best_first() -> None:
    bundle = fx_rand(seed=2)
    for translation in Translator(bundle).translate(random_sentences(20, seed=5), beam=8, n_best=8):
        candidates = ranked(translation)
        assert len({candidate.tokens for candidate in candidates}) == len(candidates) == 8
        assert all(candidate.tokens.count("</s>") == 1 and candidate.tokens[-1] == "</s>" for candidate in candidates)
        scores = [candidate.score for candidate in candidates]
        assert scores == sorted(scores, reverse=True)
