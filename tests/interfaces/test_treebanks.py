"""Treebank files: what is read of them, what is wrong with them, and what of them is learnt."""

import gzip
from pathlib import Path

import pytest

from dragoman.data.formats.pairs import corpus_files, read_pairs
from dragoman.data.formats.treebank import is_treebank, read_tree, read_trees
from dragoman.data.made_trees import made_trees
from dragoman.errors import DragomanError

# Sentences and trees of our own, in the manner of the Penn Treebank's .mrg files.
TREEBANK = """\

( (S
    (NP-SBJ-1 (DT The) (NN kettle) )
    (VP (VBD was)
      (VP (VBN mended)
        (NP (-NONE- *-1) )
        (PP-LOC (-LRB- -LRB-) (IN at) (NP (NN home) )
          (-RRB- -RRB-) )))
    (. .) ))
(TOP (S (NP=2 (PRP They)) (VP (VBP say) (SBAR (-NONE- 0) (S (-NONE- *T*-3))))))  ( (X (NP (-NONE- *)) (-NONE- *)) )
( (NP (NNP Oslo)) (: --) (NP (CD 1\\/2)) )
(ROOT (S1 (INTJ|FRAG-HLN (UH Yes))))
"""
READ = [
    "(S (NP (DT The) (NN kettle)) (VP (VBD was) (VP (VBN mended) (PP (-LRB- -LRB-) (IN at) (NP (NN home)) (-RRB- -RRB-)))) (. .))",
    "(S (NP (PRP They)) (VP (VBP say)))",
    "",
    "( (NP (NNP Oslo)) (: --) (NP (CD 1\\/2)))",
    "(INTJ|FRAG (UH Yes))",
]


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    path = tmp_path / "wsj_0001.mrg"
    path.write_text(TREEBANK, encoding="utf-8")
    return path


def test_traces_function_tags_and_outer_brackets_are_taken_off(treebank: Path) -> None:
    assert [str(tree) for tree in read_trees(treebank)] == READ
    assert [" ".join(tree.words) for tree in read_trees(treebank)] == [
        "The kettle was mended -LRB- at home -RRB- .", "They say", "", "Oslo -- 1\\/2", "Yes",
    ]  # fmt: skip


def test_labels_that_begin_with_a_hyphen_stay_whole() -> None:
    assert str(read_tree("(NP-A-1=2 (-LRB-X-1 (NN-TL a)) (NP=3-B (-RRB- b)))")) == "(NP (-LRB-X-1 (NN-TL a)) (NP (-RRB- b)))"


def test_words_and_sequences_are_the_pairs_of_a_treebank(treebank: Path, tmp_path: Path) -> None:
    pairs = list(read_pairs(str(treebank), "words", "tree"))
    assert pairs[0][1] == "(S (NP XX XX )NP (VP XX (VP XX (PP XX XX (NP XX )NP XX )PP )VP )VP XX )S"
    assert pairs[3:] == [("Oslo -- 1\\/2", "( (NP XX )NP XX (NP XX )NP )"), ("Yes", "(INTJ|FRAG XX )INTJ|FRAG")]
    packed = tmp_path / "wsj.ptb.gz"
    packed.write_bytes(gzip.compress(treebank.read_bytes()))
    assert list(read_pairs(str(packed), "en", "de")) == pairs
    assert corpus_files(str(packed), "en", "de") == [packed]


@pytest.mark.parametrize(
    ("name", "treebank"),
    [("a.mrg", True), ("a.ptb.xz", True), ("b/a.trees", True), ("a.tsv", False), ("mrg", False), ("a.mrg,b.mrg", False), ("a.gz", False)],
)
def test_a_treebank_is_known_by_its_name(name: str, treebank: bool) -> None:
    assert is_treebank(name) is treebank


def test_trees_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = list(made_trees(200, seed=1))
    path = tmp_path / "made.trees"
    path.write_text("".join(f"(TOP {tree})\n" for tree in made), encoding="utf-8")
    assert list(read_trees(path)) == made
    path.write_text("\n".join(str(tree).replace(" (", "\n  (").replace(")", ") ") for tree in made), encoding="utf-8")
    assert list(read_trees(path)) == made


def test_a_deep_tree_is_a_tree_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "deep.mrg"
    path.write_text("(X " * 50_000 + "(NN a)" + ")" * 50_000, encoding="utf-8")
    (tree,) = read_trees(path)
    assert len(tree.brackets) == 100_001
    assert max(end for _, _, end in tree.constituents()) == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "(S (NN a))\n(S (NP (NN b))\n(S (NN c))\n",
            "line 2: the tree that begins here is not closed at the end of the file; add the missing )",
        ),
        ("(S\n (NN a)))\n", "line 2: a ) that closes nothing; take it out, or add the ( that is missing"),
        ("(S (NN a))\nNN b)\n", "line 2: 'NN' stands outside all brackets; a treebank has trees alone"),
        ("(S (NN a)\n ())\n", "line 2: nothing is in the bracket (); a bracket holds a word behind its tag, or brackets"),
        ("(S (NN))\n", "line 1: nothing is in the bracket (NN); a bracket holds a word"),
        (
            "(S (NN New\nYork))\n",
            "line 2: the word 'York' beside the word 'New'; give it a bracket of its own with its tag, such as (NN York)",
        ),
        ("(S (NN a) b)\n", "line 1: the word 'b' beside brackets; give it a bracket of its own with its tag, such as (NN b)"),
        ("(S (NN a (NN b)))\n", "line 1: a bracket beside the word 'a'; a bracket holds one word, or brackets"),
        ("\n\n", "no tree in it; a treebank has trees in brackets"),
    ],
)
def test_damaged_brackets_are_named(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "bad.mrg"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DragomanError) as error:
        list(read_pairs(str(path), "words", "tree"))
    assert str(error.value).removeprefix(f"{path}").lstrip(",: ").startswith(fault)
    assert str(error.value).startswith(str(path))


def test_one_tree_is_one() -> None:
    with pytest.raises(DragomanError, match="2 trees; give one"):
        read_tree("(S (NN a)) (S (NN b))")
