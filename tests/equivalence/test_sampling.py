"""Sampling: the numbers it draws from, what temperature, top-k and top-p leave, and that neither batch nor order changes a sample."""

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.decoding.beam import Hypothesis
from dragoman.decoding.mbr import chrf_of_pairs, expected_chrf
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.rules import MinimumLength, NoRepeatedNgram
from dragoman.decoding.sample import draw, mixed, sample, uniform
from dragoman.decoding.translate import Translator
from dragoman.errors import UsageError
from small_bundles import fx_rand, random_sentences
from step_models import BOS, END, RandomTree, Table, every_sequence, spell, table_2

CPU = torch.device("cpu")
PROBABILITIES = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.2])


def drawn(probabilities: torch.Tensor, numbers: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """The share of each token in as many draws."""
    tokens = [
        draw(probabilities.log().expand(len(some), -1).clone(), mixed(some, 1), temperature=temperature, top_k=top_k, top_p=top_p)
        for some in torch.arange(numbers).split(2000)
    ]
    return torch.bincount(torch.cat(tokens), minlength=len(probabilities)) / numbers


def test_golden_splitmix64() -> None:
    keys = torch.tensor([0, 0x9E3779B97F4A7C15 - 2**64])
    first, second = 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4  # the generator's first two numbers from seed 0
    assert mixed(keys, 1).tolist() == [first - 2**64, second]
    assert uniform(keys, torch.tensor([1, 0])).tolist() == [((first >> 12) + 0.5) / 2**52] * 2  # the second key is the first a step later
    numbers = uniform(torch.arange(20_000), 3)
    assert float(numbers.min()) > 0
    assert float(numbers.max()) < 1
    assert float(numbers.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(numbers.var()) == pytest.approx(1 / 12, abs=0.003)


def test_random_numbers_are_never_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the 64 bits are."""
    monkeypatch.setattr("dragoman.decoding.sample.mixed", lambda keys, _: keys)
    assert uniform(torch.tensor([-1, 0]), 1).tolist() == [1 - 2**-53, 2**-53]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [0.1, 0.4, 0.0, 0.3, 0.2]),
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 0, 9 / 30, 4 / 30]),
        ({"temperature": 0}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e-300}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e300}, [0.25, 0.25, 0, 0.25, 0.25]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 5}, [0.1, 0.4, 0.0, 0.3, 0.2]),
        ({"top_k": 99}, [0.1, 0.4, 0.0, 0.3, 0.2]),
        ({"top_p": 0.0}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.39}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.89}, [0, 4 / 9, 0, 3 / 9, 2 / 9]),
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),  # the first of two has 4/7
        ({"temperature": 0.5, "top_p": 0.6}, [0, 16 / 25, 0, 9 / 25, 0]),
    ],
    ids=str,
)
def test_golden_draws(asked: dict[str, float], expected: list[float]) -> None:
    found = drawn(PROBABILITIES, 200_000, **asked).tolist()  # type: ignore[arg-type]
    assert found == pytest.approx(expected, abs=0.004)
    assert [share > 0 for share in found] == [share > 0 for share in expected]


def test_many_tokens_come_as_often_as_they_are_probable() -> None:
    """The less probable ones, which run as one at first, too."""
    probabilities = torch.arange(1.0, 2001.0).flip(0) ** -1.1
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    probabilities = (probabilities / probabilities.sum())[order]
    found = drawn(probabilities, 40_000)
    rank = probabilities.argsort(descending=True)
    for first, last in ((0, 1), (1, 4), (4, 64), (64, 200), (200, 700), (700, 2000)):
        expected = float(probabilities[rank[first:last]].sum())
        assert float(found[rank[first:last]].sum()) == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 40_000) ** 0.5)


def test_the_last_digits_of_probabilities_change_no_draw() -> None:
    """As they differ by what shares the batch."""
    generator = torch.Generator().manual_seed(2)
    for asked in ({}, {"top_k": 40}, {"top_p": 0.9}):
        log_probs = (3 * torch.randn(2000, 8000, generator=generator)).log_softmax(1)
        other = log_probs + 1e-6 * torch.randn(log_probs.shape, generator=generator)
        seeds = mixed(torch.arange(2000), 7)
        more: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | asked
        assert torch.equal(draw(log_probs, seeds, **more), draw(other, seeds, **more))


def test_which_of_equals_top_p_keeps_hangs_on_no_other_row() -> None:
    """A row whose nucleus is many tokens is sorted as a whole; one beside it keeps what it keeps alone."""
    even = torch.zeros(1, 2000).log_softmax(1)
    ties = torch.where(torch.arange(2000) % 20 == 0, 5.0, 0.0)[None].log_softmax(1)  # 100 equals hold 0.89
    for seed in mixed(torch.arange(40), 3).split(1):
        alone = draw(ties.clone(), seed, temperature=1.0, top_k=0, top_p=0.5)
        beside = draw(torch.cat((ties, even)), seed.repeat(2), temperature=1.0, top_k=0, top_p=0.5)
        assert alone.item() == beside[0].item()


def samples(
    model: RandomTree | Table, sentences: list[int], keys: list[list[int]], *, limit: int = 8, **more: object
) -> list[list[Hypothesis]]:
    source = torch.tensor(sentences)[:, None]
    return sample(
        model, source, source >= 0, bos=BOS, eos=END, banned=(BOS,), alpha=0.6, max_lengths=[limit] * len(sentences), keys=keys, **more
    )  # type: ignore[arg-type]


def test_samples_come_as_often_as_the_model_says() -> None:
    model = table_2()
    (found,) = samples(model, [0], [list(range(4000))], limit=4)
    shares = Counter(hypothesis.tokens for hypothesis in found)
    expected = {"A$": 0.6 * 0.35, "B$": 0.4 * 0.9, "AB$": 0.6 * 0.32 * 0.9, "AA$": 0.6 * 0.33 * 0.35}
    for tokens, count in shares.items():
        spelled = spell(Hypothesis(tokens, 0, 0, (), False))
        if spelled in expected:
            assert count / 4000 == pytest.approx(expected[spelled], abs=0.02)
    limited = [hypothesis for hypothesis in found if hypothesis.reached_limit]
    assert limited
    assert all(len(hypothesis.tokens) == 4 and hypothesis.tokens[-1] == END for hypothesis in limited)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), temperature=st.sampled_from([0.3, 1.0, 2.0]), top_k=st.integers(0, 4), data=st.data())
def test_a_sample_is_a_function_of_sentence_and_key(seed: int, temperature: float, top_k: int, data: st.DataObject) -> None:
    model = RandomTree(6, seed=seed)
    more = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": 0.9,
        "rules": [NoRepeatedNgram(2), MinimumLength([2] * 5, eos=END, device=CPU)],
    }
    keys = [[data.draw(st.integers(-(2**63), 2**63 - 1)) for _ in range(3)] for _ in range(5)]
    whole = samples(model, list(range(5)), keys, **more)
    order = data.draw(st.permutations(range(5)))[:3]
    some = samples(model, order, [keys[sentence][1:] for sentence in order], **more)
    assert some == [whole[sentence][1:] for sentence in order]
    for sentence, found in enumerate(whole):
        scores = dict(every_sequence(model, sentence, limit=4, alpha=0.6))
        for hypothesis in found:
            tokens = hypothesis.tokens
            pairs = list(pairwise(tokens))
            assert len(tokens) >= 2
            assert len(set(pairs)) == len(pairs)
            expected = [math.log(model.distribution((sentence, BOS, *tokens[:n]))[token]) for n, token in enumerate(tokens)]
            assert hypothesis.token_scores == pytest.approx(expected, abs=1e-5)  # the model's own, whatever the temperature
            assert hypothesis.score == pytest.approx(scores.get(tokens, hypothesis.score), abs=1e-4)


def test_samples_of_a_text_do_not_depend_on_what_stands_around_it() -> None:
    translator = Translator(fx_rand(seed=2))
    texts = random_sentences(20, seed=3)
    options = SearchOptions(sample=True, samples=3, seed=5)
    whole = translator.translate(texts, n_best=2, options=options)
    alone = [translator.translate([text], n_best=2, options=options, batch_tokens=1)[0] for text in texts]
    backwards = translator.translate(texts[::-1], n_best=2, options=options, batch_tokens=300)[::-1]
    for other in (alone, backwards):
        assert [(each.text, [more.text for more in each.alternatives]) for each in other] == [
            (each.text, [more.text for more in each.alternatives]) for each in whole
        ]
    assert [each.text for each in translator.translate(texts, options=SearchOptions(sample=True, seed=6))] != [each.text for each in whole]


def test_the_n_best_samples_are_distinct_and_forced_scoring_gives_their_scores() -> None:
    translator = Translator(fx_rand(seed=2))
    texts = random_sentences(8, seed=3)
    for text, best in zip(
        texts, translator.translate(texts, n_best=5, options=SearchOptions(sample=True, samples=40, top_k=4)), strict=True
    ):
        ranked = [best, *best.alternatives]
        assert len({each.tokens for each in ranked}) == len(ranked) == 5
        assert [each.score for each in ranked] == sorted((each.score for each in ranked), reverse=True)
        for each, scored in zip(ranked, translator.score([text] * 5, [each.text for each in ranked]), strict=True):
            assert scored.token_scores == pytest.approx(each.token_scores, abs=1e-4)


TEXTS = [
    "a man rides",
    "a man rides",
    "the dog",
    "",
    "a man",
    "Ein Mann reitet ein Pferd über die Straße.",
    "x",
    "ab",
    "aaaa aaaa",
    "man a rides",
]


def test_chrf_between_samples_is_sacrebleus() -> None:
    from sacrebleu.metrics.chrf import CHRF

    found = chrf_of_pairs(TEXTS)
    metric = CHRF()
    for row, text in enumerate(TEXTS):
        assert found[row].tolist() == pytest.approx([metric.sentence_score(text, [other]).score for other in TEXTS], abs=1e-9)
    assert expected_chrf(TEXTS) == pytest.approx(found.mean(1).tolist())
    assert expected_chrf([]) == []


def test_minimum_bayes_risk_chooses_the_sample_most_like_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("dragoman.decoding.search.expected_chrf", lambda drawn: seen.append([*drawn]) or expected_chrf(drawn))
    translator = Translator(fx_rand(seed=2))
    texts = random_sentences(6, seed=4)
    chosen = translator.translate(texts, n_best=3, options=SearchOptions(mbr="chrf", samples=12, temperature=0.7))
    assert [len(drawn) for drawn in seen] == [12] * 6
    for text, best, draws in zip(texts, chosen, seen, strict=True):
        utility_of = dict(zip(draws, expected_chrf(draws), strict=True))  # equal samples have equal utilities
        assert best.utility == utility_of[best.text] == max(utility_of.values())
        ranked = [best, *best.alternatives]
        utilities = [each.utility for each in ranked]
        assert utilities == sorted(utilities, reverse=True)  # type: ignore[type-var]
        (drawn,) = translator.translate([text], n_best=12, options=SearchOptions(sample=True, samples=12, temperature=0.7))
        assert {each.text for each in ranked} <= {each.text for each in [drawn, *drawn.alternatives]}


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"sample": True, "temperature": -1}, "temperature=-1"),
        ({"sample": True, "temperature": math.inf}, "temperature=inf"),
        ({"sample": True, "temperature": math.nan}, "temperature=nan"),
        ({"sample": True, "temperature": 0, "top_k": 2}, "top_k=2 with temperature=0: nothing is drawn"),
        ({"sample": True, "temperature": 0, "top_p": 0.5}, "top_p=0.5 with temperature=0: nothing is drawn"),
        ({"mbr": "chrf", "temperature": 0, "seed": 3}, "seed=3 with temperature=0: nothing is drawn"),
        ({"sample": True, "top_k": -1}, "top_k=-1"),
        ({"sample": True, "top_p": 1.1}, "top_p=1.1: it must be between 0 and 1"),
        ({"sample": True, "samples": 0}, "samples=0"),
        ({"top_k": 3}, "top_k=3 is for sampling"),
        ({"seed": 3}, "seed=3 is for sampling"),
        ({"mbr": "chrf", "samples": 1}, "samples=1: there is nothing to choose from"),
        ({"mbr": "chrf", "sample": True}, "mbr with sample: it draws samples by itself"),
        ({"mbr": "bleu"}, "mbr=bleu: unknown; known: chrf"),
        ({"sample": True, "diverse_groups": 2}, "samples need no groups"),
        ({"sample": True, "require": ("x",)}, "cannot be made to hold phrases"),
        ({"diversity": 1.0}, "diversity=1.0 is for groups"),
        ({"diverse_groups": 0}, "diverse_groups=0"),
        ({"forbid": ("",)}, "not empty"),
        ({"forbid": "word"}, "forbid='word'"),
        ({"min_length": "x"}, "min_length=x"),
        ({"min_length": 0}, "min_length=0: it must be at least 1"),
        ({"min_length": "0.0x"}, "min_length=0.0x: nothing would be left"),
        ({"no_repeat_ngram": -2}, "no_repeat_ngram=-2"),
    ],
    ids=str,
)
def test_impossible_options_are_usage_errors(asked: dict[str, object], fault: str) -> None:
    with pytest.raises(UsageError, match=fault.replace("(", r"\(")):
        SearchOptions(**asked)  # type: ignore[arg-type]


def test_options_that_do_not_go_with_the_search_are_usage_errors() -> None:
    translator = Translator(fx_rand())
    for settings_, fault in [
        ({"beam": 4, "options": SearchOptions(sample=True)}, "beam=4 with sample"),
        ({"n_best": 3, "options": SearchOptions(sample=True, samples=2)}, "n_best=3 of 2 samples"),
        ({"n_best": 0, "options": SearchOptions(sample=True)}, "n_best=0"),
        ({"n_best": 33, "options": SearchOptions(mbr="chrf")}, "n_best=33 of 32 samples"),
        ({"beam": 4, "options": SearchOptions(diverse_groups=3)}, "diverse_groups=3 with beam=4"),
        ({"max_length": "1.5"}, "max_length=1.5"),
        ({"max_length": 3, "options": SearchOptions(min_length=4)}, "line 1: min_length asks for 4 tokens and at most 3 are allowed"),
        ({"prefixes": ["ona", "bek"]}, "2 prefixes for 1 text;"),
    ]:
        with pytest.raises(UsageError, match=fault):
            translator.translate(["ona bek"], **settings_)  # type: ignore[arg-type]
