"""Trees as sequences and back, and the rule that lets a search find nothing but trees, against enumeration and random models."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.formats.treebank import read_tree
from dragoman.data.made_trees import made_trees
from dragoman.data.tokenizer import Tokenizer
from dragoman.data.trees import WORD, Tree, fault_of, fewest_parts, linearise, restore, words_of
from dragoman.decoding.beam import Hypothesis, beam_search
from dragoman.decoding.sample import sample
from dragoman.decoding.trees import OnlyTrees, TreeVocabulary, fewest_tokens
from dragoman.errors import DragomanError, UsageError
from step_models import BOS, END, RandomTree, every_sequence, sentences

ENTRIES = ("<s>", "</s>", "(A", ")A", "XX", "(B", ")B", "(C", "<unk>")
"""Entries of a small vocabulary by id; C has nothing that closes it, and ``<unk>`` is no part of a tree."""
OPENS, CLOSES, WORDS = (2, 5), (3, 6), (4,)
CLOSING = {2: 3, 5: 6}

labels = st.text(st.characters(exclude_characters="()", exclude_categories=("Z", "C")), max_size=4)
tags = labels.filter(bool)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Any tree: unary and wide, without labels, of one word without brackets."""
    parts: list[str] = []
    words: list[str] = []

    def grow(depth: int) -> None:
        if depth and (depth > 4 or draw(st.booleans())):
            parts.append(draw(tags))
            words.append(draw(tags))
            return
        label = draw(labels)
        parts.append(f"({label}")
        for _ in range(draw(st.integers(1, 3))):
            grow(depth + 1)
        parts.append(f"){label}")

    grow(draw(st.sampled_from([0, 0, 0, 5])))
    return Tree(tuple(parts), tuple(words))


def vocabulary(size: int) -> TreeVocabulary:
    """What the first ``size`` of `ENTRIES` are."""
    closing = torch.full((size,), size)
    flags = [torch.zeros(size, dtype=torch.bool) for _ in range(3)]
    for flag, ids in zip(flags, (OPENS, CLOSES, WORDS), strict=True):
        flag[[each for each in ids if each < size]] = True
    flags[0] &= torch.tensor([CLOSING.get(each, size) < size for each in range(size)])
    for opener, closer in CLOSING.items():
        if closer < size:
            closing[opener] = closer
    return TreeVocabulary(*flags, closing)


def parts_of(tokens: tuple[int, ...]) -> list[str]:
    return [ENTRIES[token] for token in tokens[:-1]]


def is_tree(tokens: tuple[int, ...], words: int) -> bool:
    """Whether tokens, the end last, are a tree over so many words in entries that a tree may have."""
    return fault_of(parts_of(tokens), words) == "" and not {7, 8} & set(tokens)


def search(
    model: RandomTree, words: list[int], limits: list[int], *, beam: int, n_best: int = 1, free: bool = False
) -> list[list[Hypothesis]]:
    source, mask = sentences(len(words))
    rules = () if free else (OnlyTrees(words, limits, vocabulary(model.vocabulary), eos=END),)
    return beam_search(
        model, source, mask, bos=BOS, eos=END, banned=(BOS,), beam=beam, alpha=0.3, max_lengths=limits, n_best=n_best, rules=rules
    )


@settings(max_examples=120, deadline=None)
@given(tree=trees())
def test_a_tree_is_restored_from_its_sequence_and_its_words(tree: Tree) -> None:
    restored = restore(linearise(tree), tree.words)
    assert restored == Tree(tuple(part if part[0] in "()" else WORD for part in tree.brackets), tree.words)
    assert linearise(restored) == linearise(tree)
    assert restore(" ".join(tree.brackets), tree.words) == tree  # with its tags nothing at all is lost
    assert list(restored.constituents()) == list(tree.constituents())
    assert linearise(tree).split(" ").count(WORD) == len(tree.words) == len(tree.tags())


@settings(max_examples=100, deadline=None)
@given(tree=trees())
def test_brackets_are_read_as_they_are_written(tree: Tree) -> None:
    """But for labels that a treebank's reader shortens or takes off, and traces."""
    kept = all(
        part[0] not in "()" or ("-" not in part and "=" not in part and part[1:] not in ("", "TOP", "ROOT", "S1")) for part in tree.brackets
    )
    if kept and "-NONE-" not in tree.tags():
        assert read_tree(str(tree)) == tree


def test_the_sequence_of_vinyals_et_al() -> None:
    tree = read_tree("(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))")
    assert linearise(tree) == "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S"
    assert list(tree.constituents()) == [("NP", 0, 1), ("NP", 2, 4), ("VP", 1, 4), ("S", 0, 5)]
    assert (
        str(restore(linearise(tree), ("Mary", "sees", "a", "cat", "!"))) == "(S (NP (XX Mary)) (VP (XX sees) (NP (XX a) (XX cat))) (XX !))"
    )


@pytest.mark.parametrize(
    ("sequence", "words", "fault"),
    [
        ("", 1, "it has 0"),
        ("(S XX )S", 2, "it has 1"),
        ("(S XX XX XX )S", 2, "it has 3"),
        ("(S XX )NP", 1, ")NP closes (S"),
        (")S", 1, ")S closes nothing"),
        ("(S (NP )NP XX )S", 1, "nothing is between (NP and )NP"),
        ("(S (NP XX )NP", 1, "(S is not closed"),
        ("(S XX )S (S XX )S", 2, "(S stands behind its end"),
        ("(S XX )S XX", 2, "XX stands behind its end"),
        ("XX XX", 2, "no bracket is around XX"),
        ("(S  XX )S", 1, "a space is too many"),
    ],
)
def test_what_is_no_tree_says_why(sequence: str, words: int, fault: str) -> None:
    with pytest.raises(DragomanError) as error:
        restore(sequence, ["word"] * words)
    assert str(error.value).endswith(f" is no tree over {words} words: {fault}")


def test_one_word_and_none() -> None:
    assert str(restore("XX", ["Yes"])) == "(XX Yes)"
    assert restore("", []) == Tree((), ())
    assert [fewest_parts(words) for words in (0, 1, 2, 7)] == [0, 1, 4, 9]
    assert words_of(" He (a man)\tsaid\u00a0so .\r") == ["He", "-LRB-a", "man-RRB-", "said\u00a0so", "."]


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), words=st.integers(1, 3), limit=st.integers(2, 6))
def test_a_wide_beam_of_trees_is_the_enumeration_of_all_trees(seed: int, words: int, limit: int) -> None:
    """Nothing but trees, and every tree that fits, with the scores that they have without the rule."""
    limit = max(limit, fewest_tokens(words))
    model = RandomTree(7, seed=seed)
    expected = [each for each in every_sequence(model, 0, limit=limit, alpha=0.3) if is_tree(each[0], words)]
    found = search(model, [words], [limit], beam=400, n_best=400)[0]
    assert [hypothesis.tokens for hypothesis in found] == [tokens for tokens, _ in expected]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([score for _, score in expected], abs=1e-4)
    assert len(found) == len(set(expected)) > 0


def test_how_many_trees_there_are() -> None:
    """Two labels, two words, at most seven tokens with the end: counted by hand, so that the enumeration is not its own judge."""
    content = (tokens for length in range(1, 7) for tokens in itertools.product(range(2, 7), repeat=length))
    # (a W W )a: 2 · with one bracket more, around the first, the second or both words: 3 · 2 · 2
    assert sum(is_tree((*tokens, END), 2) for tokens in content) == 2 + 12


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    words=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    spare=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    beam=st.sampled_from([1, 2, 5]),
    temperature=st.sampled_from([0.2, 1.0, 4.0]),
)
def test_every_output_of_any_model_is_a_tree_over_the_words_of_its_sentence(
    seed: int, words: list[int], spare: list[int], beam: int, temperature: float
) -> None:
    """Greedy and beam, whatever shares the batch, with entries that no tree may have, down to the shortest length there is room in."""
    model = RandomTree(len(ENTRIES), seed=seed, temperature=temperature)
    limits = [fewest_tokens(count) + more for count, more in zip(words, spare, strict=False)]
    found = search(model, words, limits, beam=beam, n_best=beam)
    for count, limit, hypotheses in zip(words, limits, found, strict=True):
        assert hypotheses
        assert all(is_tree(each.tokens, count) and len(each.tokens) <= limit for each in hypotheses)
        if limit == fewest_tokens(count):
            assert {len(each.tokens) for each in hypotheses} == {limit}
    alone = [search(model, words[:1], limits[:1], beam=beam)[0][0]]
    assert alone[0].tokens == found[0][0].tokens


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), words=st.integers(1, 2))
def test_what_is_a_tree_without_the_rule_is_the_same_with_it(seed: int, words: int) -> None:
    """Greedy search: at each step the most probable token is among those that the rule leaves."""
    model = RandomTree(5, seed=seed, temperature=0.5)  # one label, so that a tree is often found by chance
    for free, ruled in zip(
        search(model, [words] * 8, [9] * 8, beam=1, free=True), search(model, [words] * 8, [9] * 8, beam=1), strict=True
    ):
        if is_tree(free[0].tokens, words):
            assert ruled == free


def test_trees_by_chance_are_found_in_that_test() -> None:
    by_chance = 0
    for seed in range(40):
        free = search(RandomTree(5, seed=seed, temperature=0.5), [1] * 8, [9] * 8, beam=1, free=True)
        by_chance += sum(is_tree(each[0].tokens, 1) for each in free)
    assert by_chance > 10


def test_samples_are_trees_too() -> None:
    source, mask = sentences(2)
    limits = [9, 12]
    rule = OnlyTrees([2, 4], limits, vocabulary(len(ENTRIES)), eos=END)
    drawn = sample(
        RandomTree(len(ENTRIES), seed=1), source, mask, bos=BOS, eos=END, banned=(BOS,), alpha=0.3, max_lengths=limits,
        keys=[list(range(100)), list(range(100))], rules=(rule,),
    )  # fmt: skip
    for words, hypotheses in zip((2, 4), drawn, strict=True):
        assert len(hypotheses) == 100
        assert all(is_tree(each.tokens, words) for each in hypotheses)
        assert len({each.tokens for each in hypotheses}) > 20


def test_rows_that_hold_anything_are_borne() -> None:
    """The empty places of a beam are asked too; what comes out there counts for nothing."""
    rule = OnlyTrees([2], [9], vocabulary(len(ENTRIES)), eos=END)
    tokens = torch.tensor(list(itertools.product(range(len(ENTRIES)), repeat=3)))
    scores = torch.zeros(len(tokens), len(ENTRIES))
    rule(scores, tokens, torch.zeros(len(tokens), dtype=torch.long))
    assert set(scores.unique().tolist()) <= {0.0, -math.inf}


def test_the_made_treebank_is_one_and_the_same_for_its_seed() -> None:
    made = list(made_trees(300, seed=4))
    assert made == list(made_trees(300, seed=4)) != list(made_trees(300, seed=5))
    assert all(fault_of(tree.brackets, len(tree.words)) == "" and read_tree(str(tree)) == tree for tree in made)
    seen = {label for tree in made for label, _, _ in tree.constituents()}
    assert seen == {"S", "NP", "VP", "PP", "SBAR", "WHNP", "ADJP", "ADVP", "PRT"}


def test_brackets_of_a_text_are_no_trees() -> None:
    size, cpu = 20, torch.device("cpu")
    plain, trees = (Tokenizer.train([line], kind="whitespace", vocabulary_size=0) for line in ("a ( b ) c", "( (NP XX )NP )"))
    with pytest.raises(UsageError, match="has no brackets of trees, such as"):
        TreeVocabulary.of(plain, size=size, device=cpu)
    assert int(TreeVocabulary.of(trees, size=size, device=cpu).opens.sum()) == 2
