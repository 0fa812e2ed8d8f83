"""Bracket F1: examples worked out by hand, and evalb itself where it is installed."""

import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman.data.formats.treebank import read_tree
from dragoman.data.made_trees import made_trees
from dragoman.data.trees import WORD, Tree, linearise, restore
from dragoman.errors import DragomanError
from dragoman.evaluation.brackets import BracketScore, compare_trees, score_brackets

# gold, tree, brackets of both, of gold, of the tree, crossing ones, words that count, those tagged right
EXAMPLES = [
    (  # S 0-7, NP 0-2, VP 2-7, NP 3-5, PP 5-7, NP 6-7 in both; the tree has NP 3-7 too, and one tag is wrong
        "(S (NP (DT The) (NN dog)) (VP (VBD saw) (NP (DT a) (NN cat)) (PP (IN in) (NP (NN town)))) (. .))",
        "(S (NP (DT The) (NN dog)) (VP (VBD saw) (NP (NP (DT a) (JJ cat)) (PP (IN in) (NP (NN town))))) (. .))",
        (6, 6, 7, 0, 7, 6),
    ),
    ("(S (X (A a) (B b)) (C c))", "(S (A a) (X (B b) (C c)))", (1, 2, 2, 1, 3, 3)),  # X 0-2 and X 1-3 cross
    (  # NP 0-1 comes twice in the gold tree, once in the other; PRT is ADVP
        "(S (NP (NP (NN x))) (VP (VB y) (PRT (RP z))))",
        "(S (NP (NN x)) (VP (VB y) (ADVP (RB z))))",
        (4, 5, 4, 0, 3, 2),
    ),
    (  # without punctuation the comma's place makes no difference, and PRN holds nothing
        "(S (NP (NNP Ann)) (, ,) (VP (VBZ runs)) (. .))",
        "(S (NP (NNP Ann) (, ,)) (VP (VBZ runs)) (PRN (. .)))",
        (3, 3, 3, 0, 2, 2),
    ),
]  # fmt: skip


def trees(side: int) -> list[Tree]:
    return [read_tree(example[side]) for example in EXAMPLES]  # type: ignore[arg-type]


@pytest.mark.parametrize(("gold", "tree", "counts"), EXAMPLES)
def test_examples_worked_out_by_hand(gold: str, tree: str, counts: tuple[int, ...]) -> None:
    found = compare_trees(read_tree(gold), read_tree(tree))
    assert (found.matched.total(), found.gold.total(), found.found.total(), found.crossing, found.words, found.tagged) == counts
    assert found.complete is (counts[0] == counts[1] == counts[2])


def test_a_corpus_is_the_sum_of_its_sentences() -> None:
    """14 brackets of 16 and of 16; one of four sentences complete, three without a crossing bracket; 13 of 15 tags."""
    report = score_brackets(trees(0), trees(1))
    assert (report.score.precision, report.score.recall, report.score.f1) == (87.5, 87.5, 87.5)
    assert (report.complete_match, report.without_crossing, report.crossing) == (25.0, 75.0, 0.25)
    assert report.tag_accuracy == pytest.approx(100 * 13 / 15)
    assert report.labels()["NP"] == BracketScore(matched=5, gold=6, found=6)
    assert report.labels()["ADVP"] == BracketScore(1, 1, 1)
    assert "PRT" not in report.labels()
    assert [each.number for each in report.worst(2)] == [2, 3]
    assert score_brackets(trees(0), trees(0)).score == BracketScore(16, 16, 16)
    assert score_brackets(trees(0), trees(0)).worst(9) == []


def test_precision_recall_and_f1_are_what_they_are() -> None:
    score = BracketScore(matched=6, gold=8, found=7)
    assert (score.recall, score.precision) == (75.0, pytest.approx(85.714286))
    assert score.f1 == pytest.approx(2 * score.recall * score.precision / (score.recall + score.precision)) == pytest.approx(80.0)
    assert (BracketScore(0, 3, 0).precision, BracketScore(0, 0, 3).recall, BracketScore(0, 0, 0).f1) == (0.0, 0.0, 0.0)


def test_a_tree_over_other_words_is_an_error_that_is_left_out_and_told() -> None:
    gold = [*trees(0), read_tree("(S (NP (NN rain)) (VP (VBZ falls)))"), read_tree("(S (NP (NN snow)) (VP (VBZ falls)))")]
    other = [*trees(1), read_tree("(S (NP (NN rain)))"), read_tree("(S (NP (NN rain)) (VP (VBZ falls)))")]
    report = score_brackets(gold, other)
    assert [(each.number, each.error) for each in report.errors] == [
        (5, "1 word, but the gold tree has 2"),
        (6, "word 1 is rain, but snow in the gold tree"),
    ]
    assert report.score == score_brackets(trees(0), trees(1)).score
    assert report.score_with_errors == BracketScore(14, 16 + 3 + 3, 16)
    assert [each.number for each in report.worst(2)] == [5, 6]


def test_only_words_that_count_must_be_the_same() -> None:
    gold, other = "(S (`` ``) (NP (NN x)) ('' ''))", "(S (`` \") (NP (NN x)) ('' \"))"
    assert compare_trees(read_tree(gold), read_tree(other)).error == ""
    assert compare_trees(read_tree("(S (NN x))"), read_tree("(S (NN y))")).error == "word 1 is y, but x in the gold tree"


def test_a_sentence_of_punctuation_is_skipped() -> None:
    report = score_brackets([read_tree("(S (. .) (. .))"), *trees(0)], [read_tree("(X (. .) (. .))"), *trees(1)])
    assert [each.skipped for each in report.sentences] == [True, False, False, False, False]
    assert report.score.f1 == 87.5
    with pytest.raises(DragomanError, match="no bracket in the 1 gold trees"):
        score_brackets([read_tree("(S (. .))")], [read_tree("(S (. .))")])


def test_the_trees_of_a_model_have_no_tags_and_need_none() -> None:
    """Punctuation is what the gold tree tags as such."""
    found = [restore(linearise(tree), tree.words) for tree in trees(1)]
    assert found[0].tags() == (WORD,) * 8
    report = score_brackets(trees(0), found)
    assert report.score == score_brackets(trees(0), trees(1)).score
    assert report.tag_accuracy is None


def test_brackets_that_say_nothing_are_not_counted() -> None:
    bare, wrapped = read_tree("(S (NP (NN x)) (VP (VB y)))"), "(TOP (ROOT (S (NP (NN x)) (VP (VB y))) (. .)) (. .))"
    padded = Tree(("(TOP", "(", *bare.brackets, ")", ")TOP"), bare.words)
    assert (
        compare_trees(bare, padded).found == compare_trees(bare, bare).gold == Counter({("S", 0, 2): 1, ("NP", 0, 1): 1, ("VP", 1, 2): 1})
    )
    assert compare_trees(read_tree(wrapped), read_tree(wrapped)).gold == compare_trees(bare, bare).gold


def test_sentences_of_at_most_forty_words_by_themselves() -> None:
    long = read_tree("(S " + "(NN a) " * 41 + ")")
    report = score_brackets([*trees(0), long], [*trees(0), long])
    assert [len(each.gold_tree.words) for each in report.short] == [8, 3, 3, 4]
    assert len(report.valid) == 5


def test_the_interval_is_the_same_for_its_seed_and_around_the_score() -> None:
    gold = list(made_trees(60, seed=1))
    others = [reshaped(tree, random.Random(3)) for tree in gold]
    first, again, other = (score_brackets(gold, others, seed=seed) for seed in (7, 7, 8))
    assert first.interval == again.interval != other.interval
    assert first.interval
    assert first.interval.low < first.score.f1 < first.interval.high
    assert first.interval.half < 5
    assert score_brackets(gold, others, resamples=0).interval is None


def test_as_many_trees_as_gold_trees() -> None:
    with pytest.raises(DragomanError, match="3 trees, but 4 gold trees; give one for each"):
        score_brackets(trees(0), trees(1)[:3])


def reshaped(tree: Tree, choose: random.Random) -> Tree:
    """Another tree over the same words: some brackets elsewhere, some with other labels, some tags wrong; punctuation keeps its tag."""
    spans = []
    for _ in range(2):
        start = choose.randrange(len(tree.words))
        spans.append((choose.choice(["NP", "PRT", "X"]), start, choose.randrange(start, len(tree.words)) + 1))
    spans += [span for span in tree.constituents() if choose.random() < 0.8]
    chosen = [("S", 0, len(tree.words))]
    for label, start, end in spans:
        if all(not (first < start < last < end or start < first < end < last) for _, first, last in chosen):
            chosen.append((choose.choice([label, label, label, "PRT", "ADVP"]), start, end))
    chosen.sort(key=lambda span: (span[1], -span[2]))
    parts: list[str] = []
    ends: list[tuple[str, int]] = []
    for place, tag in enumerate(tree.tags()):
        for label, start, end in chosen:
            if start == place:
                parts.append(f"({label}")
                ends.append((label, end))
        parts.append(tag if tag in ",." or choose.random() < 0.9 else "ZZ")
        while ends and ends[-1][1] == place + 1:
            parts.append(f"){ends.pop()[0]}")
    return Tree(tuple(parts), tree.words)


COLLINS = """DEBUG 0
MAX_ERROR 10
CUTOFF_LEN 40
LABELED 1
DELETE_LABEL TOP
DELETE_LABEL -NONE-
DELETE_LABEL ,
DELETE_LABEL :
DELETE_LABEL ``
DELETE_LABEL ''
DELETE_LABEL .
DELETE_LABEL_FOR_LENGTH -NONE-
EQ_LABEL ADVP PRT
"""


def evalb(folder: Path, gold: Sequence[Tree], others: Sequence[Tree]) -> dict[str, float]:
    """What evalb's summary of all sentences says."""
    (folder / "collins.prm").write_text(COLLINS, encoding="utf-8")
    for name, some in (("gold", gold), ("others", others)):
        (folder / name).write_text("".join(f"(TOP {tree})\n" for tree in some), encoding="utf-8")
    program = shutil.which("evalb") or "evalb"
    done = subprocess.run([program, "-p", "collins.prm", "gold", "others"], capture_output=True, text=True, cwd=folder)
    return {name.strip(): float(value) for name, value in re.findall(r"^(.+?)\s*= +([\d.]+)$", done.stdout.partition("-- len")[0], re.M)}


@pytest.mark.skipif(shutil.which("evalb") is None, reason="evalb is not on the path (nlp.cs.nyu.edu/evalb)")
@pytest.mark.parametrize("seed", range(5))
def test_the_figures_are_evalbs(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    gold = [*trees(0), *made_trees(100, seed=seed)]
    others = [*trees(1), *(reshaped(tree, choose) for tree in gold[4:])]
    others[9] = Tree(others[9].brackets, (f"{others[9].words[0]}x", *others[9].words[1:]))
    others[10] = others[11]
    report = score_brackets(gold, others)
    ours = {
        "Number of sentence": len(gold), "Number of Error sentence": len(report.errors), "Bracketing Recall": report.score.recall,
        "Bracketing Precision": report.score.precision, "Bracketing FMeasure": report.score.f1, "Complete match": report.complete_match,
        "Average crossing": report.crossing, "No crossing": report.without_crossing, "Tagging accuracy": report.tag_accuracy,
    }  # fmt: skip
    theirs = evalb(tmp_path, gold, others)
    assert {name: theirs[name] for name in ours} == pytest.approx(ours, abs=0.0051)
    assert report.crossing > 0.1
