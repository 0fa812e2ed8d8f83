"""Beam search against enumeration, a plain greedy loop and its own rule worded with lists (Section 6.1)."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.decoding.beam import Hypothesis, _spans, beam_search, length_penalty
from dragoman.errors import DragomanError, UsageError
from step_models import BOS, END, RandomTree, Table, every_sequence, plain_beam, sentences, spell, table_1, table_2

seeds = st.integers(0, 10**6)
alphas = st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0])
temperatures = st.sampled_from([0.3, 1.0, 3.0])


def search(
    model: RandomTree | Table, limits: list[int], *, beam: int, alpha: float = 0.0, n_best: int = 1, banned: tuple[int, ...] = (BOS,)
) -> list[list[Hypothesis]]:
    source, mask = sentences(len(limits))
    return beam_search(model, source, mask, bos=BOS, eos=END, banned=banned, beam=beam, alpha=alpha, max_lengths=limits, n_best=n_best)


def assert_equal(found: list[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> None:
    assert [hypothesis.tokens for hypothesis in found] == [tokens for tokens, _ in expected]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize(
    ("n", "alpha", "penalty"),
    [(1, 0.6, 1.0), (2, 0.6, 1.096903), (5, 0.6, 1.358655), (10, 0.6, 1.732862), (20, 0.6, 2.354362), (50, 0.6, 3.778565),
     (100, 0.6, 5.569585), (10, 0.3, 1.316382), (50, 0.3, 1.943853), (17, 0.0, 1.0)],
)  # fmt: skip
def test_length_penalty_golden_values(n: int, alpha: float, penalty: float) -> None:
    assert length_penalty(n, alpha) == pytest.approx(penalty, abs=1e-6)


@pytest.mark.parametrize(
    ("ids", "spans"), [((), []), ((4,), [(4, 4)]), ((9, 1, 3, 2, 2, 5), [(1, 3), (5, 5), (9, 9)]), ((0, *range(6, 9)), [(0, 0), (6, 8)])]
)
def test_ids_are_stretches_without_a_gap(ids: tuple[int, ...], spans: list[tuple[int, int]]) -> None:
    assert _spans(ids) == spans


@settings(max_examples=60, deadline=None)
@given(seed=seeds, vocabulary=st.integers(3, 5), limit=st.integers(1, 4), alpha=alphas, temperature=temperatures)
def test_a_beam_as_wide_as_the_space_is_exhaustive_search(seed: int, vocabulary: int, limit: int, alpha: float, temperature: float) -> None:
    model = RandomTree(vocabulary, seed=seed, temperature=temperature)
    width = vocabulary**limit
    expected = every_sequence(model, 0, limit=limit, alpha=alpha)
    (found,) = search(model, [limit], beam=width, alpha=alpha, n_best=width)
    assert_equal(found, expected)
    assert_equal(search(model, [limit], beam=width, alpha=alpha)[0], expected[:1])


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds, limits=st.lists(st.integers(1, 8), min_size=1, max_size=6), beam=st.integers(1, 6), data=st.data(),
    alpha=alphas, temperature=temperatures,
)  # fmt: skip
def test_batched_search_with_early_stop_equals_the_plain_rule_without(
    seed: int, limits: list[int], beam: int, data: st.DataObject, alpha: float, temperature: float
) -> None:
    model = RandomTree(6, seed=seed, temperature=temperature)
    n_best = data.draw(st.integers(1, beam))
    found = search(model, limits, beam=beam, alpha=alpha, n_best=n_best)
    for sentence, limit in enumerate(limits):
        assert_equal(found[sentence], plain_beam(model, sentence, beam=beam, limit=limit, alpha=alpha)[:n_best])


@settings(max_examples=40, deadline=None)
@given(seed=seeds, limit=st.integers(1, 12), alpha=alphas)
def test_a_beam_of_one_is_greedy(seed: int, limit: int, alpha: float) -> None:
    model = RandomTree(7, seed=seed)
    tokens: list[int] = []
    while not tokens or tokens[-1] != END:
        distribution = model.distribution((0, BOS, *tokens))
        tokens.append(END if len(tokens) == limit - 1 else int(distribution.argmax()))
    assert list(search(model, [limit], beam=1, alpha=alpha)[0][0].tokens) == tokens


@settings(max_examples=40, deadline=None)
@given(seed=seeds, alpha=alphas, limit=st.integers(2, 8))
def test_n_best_never_changes_the_best_and_scores_fall(seed: int, alpha: float, limit: int) -> None:
    model = RandomTree(6, seed=seed)
    (best,), n_best = search(model, [limit], beam=5, alpha=alpha)[0], search(model, [limit], beam=5, alpha=alpha, n_best=5)[0]
    assert n_best[0] == best
    assert len(n_best) == len({hypothesis.tokens for hypothesis in n_best}) == 5
    assert all(earlier.score >= later.score for earlier, later in pairwise(n_best))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, alpha=alphas, limit=st.integers(1, 8))
def test_a_hypothesis_carries_the_models_own_log_probabilities(seed: int, alpha: float, limit: int) -> None:
    model = RandomTree(6, seed=seed)
    for hypothesis in search(model, [limit], beam=4, alpha=alpha, n_best=1, banned=(BOS, 3))[0]:
        tokens = hypothesis.tokens
        expected = [math.log(model.distribution((0, BOS, *tokens[:n]))[token]) for n, token in enumerate(tokens)]
        assert hypothesis.token_scores == pytest.approx(expected, abs=1e-5)
        assert hypothesis.log_probability == pytest.approx(sum(expected), abs=1e-4)
        assert hypothesis.score == pytest.approx(hypothesis.log_probability / length_penalty(len(tokens), alpha), abs=1e-5)
        assert tokens.count(END) == 1
        assert tokens[-1] == END
        assert not {BOS, 3} & set(tokens)
        assert hypothesis.reached_limit == (len(tokens) == limit)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, alpha=alphas, beam=st.integers(1, 6), temperature=temperatures, data=st.data())
def test_a_sentence_does_not_depend_on_its_batch_the_order_or_n_best(
    seed: int, alpha: float, beam: int, temperature: float, data: st.DataObject
) -> None:
    model = RandomTree(6, seed=seed, temperature=temperature)
    limits = data.draw(st.lists(st.integers(1, 8), min_size=2, max_size=6))
    order = data.draw(st.permutations(range(len(limits))))[: data.draw(st.integers(1, len(limits)))]
    n_best = data.draw(st.integers(1, beam))
    whole = search(model, limits, beam=beam, alpha=alpha, n_best=beam)
    source = torch.tensor(order)[:, None]
    some = beam_search(
        model, source, torch.ones_like(source, dtype=torch.bool), bos=BOS, eos=END, banned=(BOS,), beam=beam, alpha=alpha, n_best=n_best,
        max_lengths=[limits[sentence] for sentence in order],
    )  # fmt: skip
    assert some == [whole[sentence][:n_best] for sentence in order]  # to the last bit


@settings(max_examples=40, deadline=None)
@given(seed=seeds, alpha=alphas, temperature=temperatures)
def test_what_theory_says_is_monotone(seed: int, alpha: float, temperature: float) -> None:
    model = RandomTree(4, seed=seed, temperature=temperature)
    scores = [every_sequence(model, 0, limit=limit, alpha=alpha)[0][1] for limit in (1, 2, 3, 4)]
    found = [search(model, [limit], beam=4**limit, alpha=alpha)[0][0].score for limit in (1, 2, 3, 4)]
    assert found == pytest.approx(scores, abs=1e-4)
    assert all(shorter <= longer + 1e-5 for shorter, longer in pairwise(found))  # more room is never worse
    assert all(
        search(model, [4], beam=beam, alpha=alpha)[0][0].score <= found[-1] + 1e-5 for beam in range(1, 9)
    )  # no beam beats all of it
    totals = [sum(search(model, [4], beam=1)[0][0].token_scores[:n]) for n in range(5)]
    assert all(longer <= shorter for shorter, longer in pairwise(totals))  # a log-probability only falls
    lengths = [len(search(model, [4], beam=256, alpha=each)[0][0].tokens) for each in (-1.0, 0.0, 0.6, 1.0, 3.0)]
    assert lengths == sorted(lengths)  # a larger alpha never gives a shorter winner


def test_search_stops_as_soon_as_nothing_live_can_win() -> None:
    # Ending at once has log .99; the rest, at most log .01 over the penalty of 100 tokens, cannot reach it.
    model = Table(start={"$": 0.99, "A": 0.01}, A={"A": 1.0})
    search(model, [100], beam=4, alpha=0.6)
    assert len(model.rows_of_steps) == 1
    # With the length penalty as large as this, it could.
    model = Table(start={"$": 0.99, "A": 0.01}, A={"A": 0.99999, "$": 0.00001})
    search(model, [100], beam=4, alpha=3.0)
    assert len(model.rows_of_steps) > 1


def test_a_negative_alpha_bounds_by_the_next_length() -> None:
    model = Table(start={"$": 0.135, "A": 0.865}, A={"$": 0.95, "A": 0.05})
    assert spell(search(model, [100], beam=2, alpha=-1.0)[0][0]) == "A$"


def test_finished_sentences_leave_the_batch() -> None:
    model = RandomTree(6, seed=5, temperature=0.2)
    search(model, [2, 4, 8, 16], beam=3, alpha=1.0, n_best=3)
    assert model.rows_of_steps[:2] == [4, 12]
    assert model.rows_of_steps == [4, *sorted(model.rows_of_steps[1:], reverse=True)]
    assert model.rows_of_steps[-1] == 3


def test_the_limit_forces_an_end_whose_log_probability_counts() -> None:
    (hypothesis,) = search(Table(start={"A": 1.0}, A={"A": 0.9, "$": 0.1}), [3], beam=1)[0]
    assert spell(hypothesis) == "AA$"
    assert hypothesis.log_probability == pytest.approx(math.log(0.9) + math.log(0.1), abs=1e-5)
    assert hypothesis.reached_limit


def test_on_equal_scores_the_hypothesis_that_finished_first_stays_ahead() -> None:
    model = Table(start={"$": 0.5, "A": 0.5}, A={"$": 1.0})
    assert [spell(hypothesis) for hypothesis in search(model, [5], beam=2, n_best=2)[0]] == ["$", "A$"]
    assert [spell(hypothesis) for hypothesis in search(model, [5], beam=2)[0]] == ["$"]


def test_a_wide_beam_finds_what_greedy_misses() -> None:
    assert spell(search(table_2(), [6], beam=1)[0][0]) == "A$"
    assert spell(search(table_2(), [6], beam=2)[0][0]) == "B$"
    assert search(table_1(), [6], beam=4)[0][0].log_probability == pytest.approx(math.log(0.6 * 0.7), abs=1e-5)


def test_damaged_weights_are_an_error() -> None:
    class Broken(Table):
        def next(self, tokens: torch.Tensor, state: list[tuple[int, ...]]) -> tuple[torch.Tensor, list[tuple[int, ...]]]:
            log_probs, state = super().next(tokens, state)
            return log_probs * math.nan, state

    with pytest.raises(DragomanError, match="weights are damaged"):
        search(Broken(start={"A": 1.0}, A={"$": 1.0}), [5, 5], beam=3)


@pytest.mark.parametrize(("beam", "n_best", "limit"), [(2, 3, 5), (0, 1, 5), (2, 0, 5), (2, 1, 0)])
def test_impossible_settings_are_usage_errors(beam: int, n_best: int, limit: int) -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        search(table_2(), [limit], beam=beam, n_best=n_best)


def test_no_sentences_give_no_hypotheses() -> None:
    assert search(table_2(), [], beam=3) == []
