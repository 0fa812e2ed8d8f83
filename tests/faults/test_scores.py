"""Reported faults of scores (B37, B39): the length penalty does what its help says, and every score counts the end token."""

from collections.abc import Callable
from typing import get_args

import pytest

from dragoman.bundle import Bundle
from dragoman.cli.options import Alpha
from dragoman.config import DecodingConfig
from dragoman.decoding.beam import beam_search, length_penalty
from dragoman.decoding.translate import Translator
from small_bundles import fx_rand, fx_toy, random_sentences
from step_models import BOS, END, sentences, spell, table_1, table_2


def test_b37_a_larger_alpha_never_gives_a_shorter_winner() -> None:
    source, mask = sentences(1)
    winners = []
    for alpha in (-1.0, 0.0, 0.6, 1.0, 3.0):
        ((best,),) = beam_search(table_1(), source, mask, bos=BOS, eos=END, banned=(BOS,), beam=8, alpha=alpha, max_lengths=[10])
        assert best.score == pytest.approx(best.log_probability / ((5 + len(best.tokens)) / 6) ** alpha, abs=1e-6)
        winners.append(spell(best))
    assert winners == ["A$", "A$", "A$", "BCD$", "BCD$"]


def test_b37_zero_is_the_plain_log_probability_and_the_formula_recomputes_what_is_reported() -> None:
    translator = Translator(fx_rand(seed=2))
    texts = random_sentences(10, seed=9)
    for alpha in (-1.0, 0.0, 0.6, 1.0):
        for translation in translator.translate(texts, alpha=alpha, beam=4):
            assert translation.log_probability == pytest.approx(sum(translation.token_scores), abs=1e-4)
            assert translation.score == pytest.approx(translation.log_probability / ((5 + len(translation.tokens)) / 6) ** alpha, abs=1e-9)
    assert length_penalty(123, 0.0) == 1.0


def test_b37_help_says_the_formula_and_the_direction() -> None:
    for sentence in (DecodingConfig.model_fields["alpha"].description, get_args(Alpha)[1].help):
        assert "((5 + n) / 6)^alpha" in sentence
        assert "arger" in sentence
        assert "longer" in sentence


def test_b39_greedy_counts_the_end_token() -> None:
    source, mask = sentences(1)
    ((greedy,),) = beam_search(table_2(), source, mask, bos=BOS, eos=END, banned=(BOS,), beam=1, alpha=0.0, max_lengths=[10])
    assert spell(greedy) == "A$"
    assert greedy.log_probability == pytest.approx(-1.560648, abs=1e-6)


@pytest.mark.parametrize("bundle", [fx_rand, fx_toy])
def test_b39_search_and_forced_scoring_agree(bundle: Callable[[], Bundle]) -> None:
    translator = Translator(bundle())
    texts = random_sentences(20, seed=13)
    for beam in (1, 4):
        translations = translator.translate(texts, beam=beam)
        forced = translator.score(texts, [translation.text for translation in translations])
        for translation, scored in zip(translations, forced, strict=True):
            assert scored.tokens == translation.tokens
            assert scored.token_scores == pytest.approx(translation.token_scores, abs=1e-4)
            assert scored.log_probability == pytest.approx(translation.log_probability, abs=1e-4)
            assert scored.score == pytest.approx(translation.score, abs=1e-4)
