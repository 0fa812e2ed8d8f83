"""Rules of a search and other choices than the most probable, against enumeration and the same in lists."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.decoding.beam import Choose, Hypothesis, Live, beam_search, most_probable
from dragoman.decoding.constraints import Phrase, RequiredPhrases
from dragoman.decoding.diverse import in_groups
from dragoman.decoding.rules import ForcedPrefix, MinimumLength, NoRepeatedNgram, RepetitionGuard, Rule, most_copies
from step_models import BOS, END, RandomTree, Table, every_sequence, sentences, spell

CPU = torch.device("cpu")
seeds = st.integers(0, 10**6)
temperatures = st.sampled_from([0.3, 1.0, 3.0])
Sequences = list[tuple[tuple[int, ...], float]]


def search(
    model: RandomTree | Table, limits: list[int], *, beam: int, alpha: float = 0.6, n_best: int = 1, rules: Sequence[Rule] = (),
    choose: Choose = most_probable,
) -> list[list[Hypothesis]]:  # fmt: skip
    source, mask = sentences(len(limits))
    return beam_search(
        model, source, mask, bos=BOS, eos=END, banned=(BOS,), beam=beam, alpha=alpha, max_lengths=limits, n_best=n_best, rules=rules,
        choose=choose,
    )  # fmt: skip


def assert_equal(found: list[Hypothesis], expected: Sequences) -> None:
    assert [hypothesis.tokens for hypothesis in found] == [tokens for tokens, _ in expected]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([score for _, score in expected], abs=1e-4)


def repeats(tokens: tuple[int, ...], n: int) -> bool:
    return max(Counter(tokens[start : start + n] for start in range(len(tokens) - n + 1)).values(), default=0) > 1


@settings(max_examples=40, deadline=None)
@given(seed=seeds, least=st.integers(1, 4), n=st.integers(1, 3), prefix=st.lists(st.integers(2, 3), max_size=3), temperature=temperatures)
def test_a_wide_beam_under_rules_is_the_enumeration_without_what_they_forbid(
    seed: int, least: int, n: int, prefix: list[int], temperature: float
) -> None:
    model = RandomTree(4, seed=seed, temperature=temperature)
    everything = every_sequence(model, 0, limit=4, alpha=0.6)

    def found(*rules: Rule) -> list[Hypothesis]:
        return search(model, [4], beam=256, n_best=256, rules=rules)[0]

    minimum, no_repeat = MinimumLength([least], eos=END, device=CPU), NoRepeatedNgram(n)
    assert_equal(found(minimum), [each for each in everything if len(each[0]) >= least])
    assert_equal(found(no_repeat), [each for each in everything if not repeats(each[0], n)])
    both = [each for each in everything if len(each[0]) >= least and not repeats(each[0], n)]
    assert_equal(found(minimum, no_repeat), both)
    begun = [each for each in everything if list(each[0][: len(prefix)]) == prefix]
    assert_equal(found(ForcedPrefix([prefix], {}, [], device=CPU)), begun)


def test_the_prefix_comes_before_other_rules_which_hold_after_it() -> None:
    model = RandomTree(5, seed=3)
    prefixes = [[2, 2, 2], [], [3]]
    rule = ForcedPrefix(prefixes, {}, [NoRepeatedNgram(1)], device=CPU)
    for prefix, found in zip(prefixes, search(model, [7, 7, 7], beam=6, n_best=6, rules=[rule]), strict=True):
        assert len(found) == (5 if prefix else 6)  # no more are possible
        for hypothesis in found:
            assert list(hypothesis.tokens[: len(prefix)]) == prefix
            rest = hypothesis.tokens[len(prefix) :]
            assert not repeats(rest, 1)
            assert not set(rest) & set(prefix)


def test_a_longer_piece_may_stand_for_the_rest_of_a_prefix() -> None:
    model = RandomTree(6, seed=1)
    rule = ForcedPrefix([[2, 3]], {(0, 1): [4, 5]}, [], device=CPU)
    found = search(model, [4], beam=300, n_best=300, rules=[rule])[0]
    everything = every_sequence(model, 0, limit=4, alpha=0.6)
    assert_equal(found, [each for each in everything if each[0][0] == 2 and each[0][1] in (3, 4, 5)])


class Without(Rule):
    """Never these tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, scores: torch.Tensor, tokens: torch.Tensor, sentence: torch.Tensor) -> None:
        scores[:, self.tokens] = -math.inf


def test_other_rules_hold_for_what_stands_for_the_rest_of_a_prefix() -> None:
    model = RandomTree(6, seed=1)
    everything = [tokens for tokens, _ in every_sequence(model, 0, limit=4, alpha=0.6)]

    def found(prefix: list[int], instead: list[int], *without: int) -> set[tuple[int, ...]]:
        rule = ForcedPrefix([prefix], {(0, 1): instead}, [Without(*without)], device=CPU)
        return {hypothesis.tokens for hypothesis in search(model, [4], beam=300, n_best=300, rules=[rule])[0]}

    begun = [tokens for tokens in everything if tokens[0] == 2 and len(tokens) > 1]
    # The token of the prefix itself stands whatever the rule says.
    assert found([2, 3], [3, 4, 5], 3, 4) == {tokens for tokens in begun if tokens[1] in (3, 5) and not {3, 4} & set(tokens[2:])}
    only = ForcedPrefix.ONLY_INSTEAD
    assert found([2, only], [3, 4], 3) == {tokens for tokens in begun if tokens[1] == 4 and 3 not in tokens}
    assert found([2, only], [3, 4], 3, 4) == set()


def test_the_guard_does_not_end_an_output_inside_its_prefix() -> None:
    prefix = [2, 2, 2, 2, 2, 2, ForcedPrefix.ONLY_INSTEAD]
    guard = RepetitionGuard([[2]], least=3, eos=END, device=CPU)
    rule = ForcedPrefix([prefix], {(0, 6): [2, 3]}, [guard], device=CPU)
    found = search(RandomTree(6, seed=1), [10], beam=4, n_best=4, rules=[rule])[0]
    assert {hypothesis.tokens[:6] for hypothesis in found} == {(2,) * 6}
    assert {hypothesis.tokens[6] for hypothesis in found} == {2, 3}


@pytest.mark.parametrize(
    ("text", "copies"), [("abcd", 1), ("", 1), ("a", 1), ("xababaBy", 2), ("xabababy", 3), ("aaaa", 4), ("abcabcabca", 3)]
)
def test_copies_in_a_row(text: str, copies: int) -> None:
    assert most_copies([ord(letter) for letter in text], 16) == copies


def looping(period: int) -> Table:
    """A model that says the first letters again and again."""
    letters = "ABCD"[:period]
    rows = {letter: {after: 0.99, "$": 0.01} for letter, after in pairwise(letters + letters[0])}
    return Table(start={"A": 1.0}, **rows)


@pytest.mark.parametrize(("period", "least", "expected"), [(1, 6, 7), (2, 6, 8), (3, 6, 12), (4, 6, 16), (3, 20, 23), (1, 1, 4)])
def test_the_guard_ends_a_loop_where_its_definition_says(period: int, least: int, expected: int) -> None:
    guard = RepetitionGuard([[9, 8, 7]], least=least, eos=END, device=CPU)
    ((hypothesis,),) = search(looping(period), [60], beam=1, rules=[guard])
    assert len(hypothesis.tokens) == expected + 1
    assert guard.ended(hypothesis.tokens, 0)
    assert not guard.ended((*hypothesis.tokens[:-2], END), 0)


def test_the_guard_lets_an_output_repeat_what_the_source_repeats() -> None:
    source = [9, 8] * 5  # five copies: more than ten are a loop
    guards = [RepetitionGuard([ids, [4]], least=6, eos=END, device=CPU) for ids in (source, [4, 5])]
    lengths = [[len(found[0].tokens) for found in search(looping(2), [60, 60], beam=1, rules=[guard])] for guard in guards]
    assert lengths == [[2 * 11 + 1, 9], [9, 9]]


def test_the_guard_changes_nothing_without_a_loop() -> None:
    for seed in range(8):
        model = RandomTree(5, seed=seed, temperature=2)
        guard = RepetitionGuard([[2], [3]], least=24, eos=END, device=CPU)
        assert search(model, [30, 35], beam=4, alpha=2.0, n_best=4, rules=[guard]) == search(model, [30, 35], beam=4, alpha=2.0, n_best=4)


def test_the_guard_gives_way_to_a_rule_that_forbids_the_end() -> None:
    rules = [MinimumLength([20], eos=END, device=CPU), RepetitionGuard([[2]], least=6, eos=END, device=CPU)]
    assert len(search(looping(2), [60], beam=1, rules=rules)[0][0].tokens) == 20


def test_no_output_is_left_where_rules_leave_none() -> None:
    rules = [MinimumLength([9, 9], eos=END, device=CPU), NoRepeatedNgram(1)]
    assert search(RandomTree(4, seed=1), [9, 9], beam=3, rules=rules) == [[], []]


# Diverse beams


def plain_diverse(model: RandomTree, sentence: int, *, beam: int, groups: int, diversity: float, limit: int) -> list[tuple[int, ...]]:
    """The rule in lists, without an early stop: every output found, each once."""
    live: list[Sequences] = [[((), 0.0)] for _ in range(groups)]
    finished: set[tuple[int, ...]] = set()
    for n in range(1, limit + 1):
        taken: Counter[int] = Counter()
        for group, some in enumerate(live):
            allowed = [END] if n == limit else range(1, model.vocabulary)
            ways = [
                ((*tokens, token), total + (score := math.log(model.distribution((sentence, BOS, *tokens))[token])), total + score)
                for tokens, total in some
                for token in allowed
            ]
            kept = sorted(ways, key=lambda way: -(way[2] - diversity * taken[way[0][-1]]))[: beam // groups]
            taken.update(tokens[-1] for tokens, _, _ in kept)
            finished.update(tokens for tokens, _, _ in kept if tokens[-1] == END)
            live[group] = [(tokens, total) for tokens, total, _ in kept if tokens[-1] != END]
    return sorted(finished)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, groups=st.integers(1, 3), width=st.integers(1, 3), diversity=st.sampled_from([0.0, 0.7, 3.0]), data=st.data())
def test_diverse_beams_are_their_rule(seed: int, groups: int, width: int, diversity: float, data: st.DataObject) -> None:
    model = RandomTree(6, seed=seed)
    limits = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    choose = in_groups(groups, diversity=diversity, eos=END)
    # As long as fewer than n_best are found, nothing stops early: all of the beam's are wanted.
    found = search(model, limits, beam=groups * width, n_best=groups * width, alpha=0.0, choose=choose)
    for sentence, limit in enumerate(limits):
        every = plain_diverse(model, sentence, beam=groups * width, groups=groups, diversity=diversity, limit=limit)
        scored = {tokens: score for tokens, score in every_sequence(model, sentence, limit=limit, alpha=0.0) if tokens in every}
        best = sorted(scored, key=lambda tokens: -scored[tokens])[: groups * width]
        assert_equal(found[sentence], [(tokens, scored[tokens]) for tokens in best])


def test_one_group_is_the_plain_beam_and_a_strong_diversity_parts_the_groups() -> None:
    model = RandomTree(8, seed=4)
    one = in_groups(1, diversity=5.0, eos=END)
    assert search(model, [6, 7], beam=4, n_best=4, choose=one) == search(model, [6, 7], beam=4, n_best=4)
    apart = search(model, [5], beam=4, n_best=4, choose=in_groups(4, diversity=1e4, eos=END))[0]
    assert len({hypothesis.tokens[0] for hypothesis in apart}) == 4
    same = search(model, [5], beam=4, n_best=4, choose=in_groups(4, diversity=0.0, eos=END))[0]
    assert [each.tokens for each in same] == [search(model, [5], beam=1)[0][0].tokens]  # found four times, kept once


# Required phrases

LETTER_EDGES = (torch.zeros(6, dtype=torch.bool), torch.zeros(6, dtype=torch.bool))  # every token a word


def required(*phrases: list[list[int]], edges: int = 6) -> RequiredPhrases:
    no_letters = (LETTER_EDGES[0][:edges], LETTER_EDGES[1][:edges])
    return RequiredPhrases([[Phrase(ids, ids) for ids in some] for some in phrases], no_letters, eos=END, device=CPU)


def holds(tokens: tuple[int, ...], phrase: list[int]) -> bool:
    return any(list(tokens[start : start + len(phrase)]) == phrase for start in range(len(tokens)))


phrases = st.lists(st.lists(st.integers(2, 3), min_size=1, max_size=2), min_size=1, max_size=2)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, wanted=phrases, temperature=temperatures)
def test_a_wide_beam_with_required_phrases_is_the_enumeration_of_what_holds_them(
    seed: int, wanted: list[list[int]], temperature: float
) -> None:
    model = RandomTree(4, seed=seed, temperature=temperature)
    choose = required(wanted, edges=4)
    whole = [each for each in every_sequence(model, 0, limit=4, alpha=0.6) if all(holds(each[0], phrase) for phrase in wanted)]
    assume(whole)  # where nothing has room for all, what says most of them may end: another test
    assert_equal(search(model, [4], beam=128, n_best=128, choose=choose)[0], whole)


def test_phrases_that_begin_alike_are_both_said() -> None:
    """The last tokens begin one phrase, not two: counted twice they were the fuller bank, and stayed there until the end."""
    found = search(RandomTree(6, seed=0, temperature=0.2), [9, 12, 10], beam=7, choose=required([[5, 3, 2], [5, 3, 3]], [], []))
    tokens = found[0][0].tokens
    assert holds(tokens, [5, 3, 2])
    assert holds(tokens, [5, 3, 3])


@settings(max_examples=40, deadline=None)
@given(seed=seeds, data=st.data())
def test_phrases_are_said_even_by_a_narrow_beam_whatever_shares_the_batch(seed: int, data: st.DataObject) -> None:
    model = RandomTree(6, seed=seed, temperature=0.2)
    some = st.lists(st.lists(st.integers(2, 5), min_size=1, max_size=3), max_size=2)
    wanted = [data.draw(some) for _ in range(3)]
    beam = 1 + max(sum(map(len, each)) for each in wanted)
    found = search(model, [9, 12, 10], beam=beam, choose=required(*wanted))
    for sentence, (each, (best,)) in enumerate(zip(wanted, found, strict=True)):
        assert all(holds(best.tokens, phrase) for phrase in each)
        assert best.log_probability == pytest.approx(
            sum(math.log(model.distribution((sentence, BOS, *best.tokens[:n]))[token]) for n, token in enumerate(best.tokens)), abs=1e-4
        )
    source = torch.tensor([[2]])
    alone = beam_search(
        model, source, source >= 0, bos=BOS, eos=END, banned=(BOS,), beam=beam, alpha=0.6, max_lengths=[10], choose=required(wanted[2])
    )
    assert alone[0] == found[2]


def test_without_phrases_the_choice_is_the_most_probable() -> None:
    model = RandomTree(6, seed=7)
    assert search(model, [6, 8], beam=4, n_best=4, choose=required([], [[2]]))[0] == search(model, [6, 8], beam=4, n_best=4)[0]


def test_at_the_limit_what_says_most_may_end_without_the_rest() -> None:
    ((best,),) = search(RandomTree(6, seed=7), [3], beam=8, choose=required([[2, 3], [4, 5]]))
    assert spell(best) in ("AB$", "CD$")
    assert best.reached_limit


def test_the_only_output_there_is_room_for_is_found_whatever_it_misses() -> None:
    ((best,),) = search(RandomTree(4, seed=1), [1], beam=8, choose=required([[2], [3]], edges=4))
    assert best.tokens == (END,)


class Written(TorchDispatchMode):
    """Counts the numbers that operations return."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += sum(part.numel() for part in (result if isinstance(result, tuple) else (result,)) if isinstance(part, torch.Tensor))
        return result


def written_by_a_step(n: int, beam: int) -> int:
    choose = required([[2, 3, 4]] * 8)
    one = torch.ones(1)
    start = Live(
        torch.tensor([0]),
        99 * one.long(),
        one,
        -math.inf * one[:, None],
        0 * one[:, None],
        torch.zeros(1, 1, 0).long(),
        torch.zeros(1, 1, 0),
    )
    choose(start, torch.randn(1, 1, 6).log_softmax(2), 1)
    live = start._replace(total=torch.zeros(1, beam), tokens=torch.full((1, beam, n), 5), token_scores=torch.zeros(1, beam, n))
    choose.settled = choose.settled.expand(-1, beam, -1)
    with Written() as written:
        choose(live, torch.randn(1, beam, 6).log_softmax(2), beam)
    return written.count


def test_the_guard_sleeps_just_as_long_as_it_takes_nothing_away() -> None:
    """A search does not ask it of shorter outputs: of one token again and again it takes something as soon as it is asked."""
    guard = RepetitionGuard([[5]], least=6, eos=END, device=torch.device("cpu"))

    def allowed(n: int) -> int:
        scores = torch.zeros(1, 8)
        guard(scores, torch.full((1, n), 3), torch.tensor([0]))
        return int((scores > -math.inf).sum())

    assert [allowed(n) for n in range(8)] == [8, 8, 8, 8, 8, 8, 8, 1]  # one token, and six that only repeat it
    assert guard.sleeps == 7


def test_a_step_with_phrases_costs_the_same_after_many_tokens_and_grows_with_the_beam_as_it_does() -> None:
    assert written_by_a_step(300, 8) == written_by_a_step(10, 8)
    assert written_by_a_step(10, 64) < 9 * written_by_a_step(10, 8)


def test_a_phrase_inside_a_longer_word_does_not_count() -> None:
    # Tokens 4 and 5 are letters that go on with the word before: A = "a", C and D = "c" and "d" joined to it.
    begins = torch.tensor([False, False, False, False, True, True])
    ends = torch.tensor([False, False, True, True, True, True])
    choose = RequiredPhrases([[Phrase([2], [2])]], (begins, ends), eos=END, device=CPU)
    for seed in range(10):
        for hypothesis in search(RandomTree(6, seed=seed), [5], beam=20, n_best=20, choose=choose)[0]:
            tokens = hypothesis.tokens
            assert any(token == 2 and tokens[place + 1] not in (4, 5) for place, token in enumerate(tokens))
