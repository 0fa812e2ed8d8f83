"""Parsing through the command line: a treebank in, trees out, brackets scored."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import tiny_bundle
from dragoman.cli import main
from dragoman.data.formats.treebank import read_tree, read_trees
from dragoman.data.made_trees import made_trees
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError, UsageError
from dragoman.evaluation.brackets import score_brackets
from small_bundles import make_bundle

Run = Callable[..., str]

SMALL = [
    *("--preset", "parsing-tiny", "--seed", "1", "--device", "cpu", "--set", "data.vocabulary_size=320"),
    *("--set", "model.d_model=32", "--set", "model.d_ff=64", "--set", "model.encoder_layers=1", "--set", "model.decoder_layers=1"),
    *("--set", "model.dropout=0", "--set", "training.schedule=linear", "--set", "training.warmup_steps=10"),
    *("--set", "training.learning_rate=0.01", "--set", "training.batch_tokens=400"),
]
ENTRIES = "(S )S (NP )NP (VP )VP XX"


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 short trees, and before them one of nothing but a trace."""
    short = [tree for tree in made_trees(300, seed=2) if len(tree.words) <= 8][:30]
    path = tmp_path_factory.mktemp("treebank") / "train.mrg"
    path.write_text("( (S (NP-SBJ (-NONE- *))) )\n" + "".join(f"( {tree} )\n" for tree in short), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def parser(treebank: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt these trees by heart."""
    run = tmp_path_factory.mktemp("runs") / "parser"
    assert main(["train", "words-tree", "--train", str(treebank), *SMALL, "--max-steps", "300", "--out", str(run), "--quiet"]) == 0
    return run


def untrained(*, max_positions: int = 64) -> Translator:
    """A parser of random weights over a few words."""
    source = Tokenizer.train(["ona bek tilu rem sova kip"], kind="whitespace", vocabulary_size=20)
    target = Tokenizer.train([ENTRIES], kind="whitespace", vocabulary_size=20)
    return Translator(make_bundle(source, target, tie="none", max_positions=max_positions))


def test_a_treebank_is_learnt_through_the_command_line(run: Run, parser: Path, treebank: Path) -> None:
    facts = json.loads((parser / "run.json").read_text("utf-8"))
    assert facts["pairs"]["train"] == 30
    assert facts["dropped"]["train"] == {"empty side": 1}
    found = json.loads(run("evaluate", parser, "--test", treebank, "--json", "--beam", "2"))
    assert found["f1"] > 97
    assert (found["sentences"], found["valid"], found["skipped"], found["errors"]) == (31, 30, 1, [])


def test_vocabularies_are_pieces_of_words_and_whole_brackets(parser: Path) -> None:
    bundle = Translator.load(parser, device="cpu").bundle
    assert (bundle.source_tokenizer.kind, bundle.target_tokenizer.kind) == ("bpe", "whitespace")
    assert bundle.target_tokenizer.token(4) == "XX"  # the most frequent
    assert {bundle.target_tokenizer.token(token) for token in range(4, len(bundle.target_tokenizer))} >= {"(S", ")S", "(NP", ")NP"}


def test_as_many_trees_as_lines_over_their_words(run: Run, parser: Path, tmp_path: Path) -> None:
    lines = ["the gardener slept .", "", "  he  said ( that\tMara waited ) ", "wombat", "a a a a a a a a a a a a a a a a a a a a"]
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    trees = run("translate", parser, text, "--tree").split("\n")[:-1]
    assert len(trees) == len(lines)
    words = [" ".join(read_tree(tree).words) if tree else "" for tree in trees]
    assert words == ["the gardener slept .", "", "he said -LRB- that Mara waited -RRB-", "wombat", lines[4]]
    records = [json.loads(line) for line in run("translate", parser, text, "--tree", "--json", "--n-best", "3").splitlines()]
    assert [record["text"] for record in records] == trees
    assert records[0]["tokens"][0].startswith("(")
    assert records[0]["tokens"].count("XX") == 4
    assert [len(record["alternatives"]) for record in records] == [2, 0, 2, 2, 2]
    assert all(" ".join(read_tree(each["text"]).words) == words[0] for each in records[0]["alternatives"])
    sampled = run("translate", parser, text, "--tree", "--sample", "--temperature", "3").split("\n")[:-1]
    assert [" ".join(read_tree(tree).words) if tree else "" for tree in sampled] == words
    assert sampled != trees


def test_evaluate_writes_scores_and_reads_its_own_trees(run: Run, parser: Path, treebank: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.mrg"
    made = list(made_trees(30, seed=9))
    test.write_text("".join(f"( {tree} )\n" for tree in made), encoding="utf-8")
    own = json.loads(run("evaluate", parser, "--test", test, "--json", "-o", tmp_path / "own.trees", "--beam", "1"))
    given = json.loads(run("evaluate", "--hypotheses", tmp_path / "own.trees", "--test", test, "--json"))
    for name in ("f1", "f1_interval", "recall", "precision", "complete_match", "crossing", "labels", "worst"):
        assert own[name] == given[name], name
    assert (own["decoding"]["beam"], own["decoding"].get("precision")) == (1, None)
    rough = json.loads(run("evaluate", parser, "--test", test, "--json", "--beam", "1", "--precision", "bf16"))
    assert rough["decoding"] == {**own["decoding"], "precision": "bf16"}
    report = score_brackets(made, list(read_trees(tmp_path / "own.trees")))
    assert (own["f1"], own["recall"]) == (report.score.f1, report.score.recall)
    assert 10 < own["f1"] < 100
    assert own["f1_interval"]["low"] < own["f1"] < own["f1_interval"]["high"]
    assert len(own["worst"]) == 10
    text = run("evaluate", "--hypotheses", tmp_path / "own.trees", "--test", test, "--examples", "1")
    assert f"F1             {own['f1']:6.2f} ± " in text
    assert "tag accuracy" not in text
    assert text.count("        gold ") == 1
    both = json.loads(run("evaluate", "--hypotheses", test, "--test", test, "--json", "--segment-level", "--bootstrap", "0"))
    assert (both["f1"], both["tag_accuracy"], both["f1_interval"], both["worst"]) == (100.0, 100.0, None, [])
    assert [each["f1"] for each in both["segments"]] == [100.0] * 30
    rows = run("evaluate", "--hypotheses", tmp_path / "own.trees", "--test", test, "--segment-level").splitlines()
    assert rows[0].split("\t")[:3] == ["line", "f1", "matched"]
    assert len(rows) == 31


def test_sentences_that_do_not_count_are_told(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = list(made_trees(8, seed=1))
    (tmp_path / "gold.mrg").write_text("".join(f"{tree}\n" for tree in made), encoding="utf-8")
    (tmp_path / "other.trees").write_text("(S (NN odd))\n" * 5 + "".join(f"{tree}\n" for tree in made[5:]), encoding="utf-8")
    assert main(["evaluate", "--hypotheses", f"{tmp_path}/other.trees", "--test", f"{tmp_path}/gold.mrg"]) == 0
    out, err = capsys.readouterr()
    assert "F1 with errors" in out
    assert "when the 5 sentences that do not count have found no bracket" in out
    assert f"5 of 8 sentences do not count, such as line 1: 1 word, but the gold tree has {len(made[0].words)}" in err


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"no_repeat_ngram": 3}, "tree with no_repeat_ngram: it could leave no tree"),
        ({"min_length": 3}, "tree with min_length"),
        ({"require": ("XX",)}, "tree with require"),
        ({"forbid": ("XX",)}, "tree with forbid"),
    ],
)
def test_what_could_leave_no_tree_is_refused(options: dict[str, object], fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        SearchOptions(tree=True, **options)  # type: ignore[arg-type]


def test_a_tree_needs_room_and_a_whole_sentence() -> None:
    translator, options = untrained(max_positions=12), SearchOptions(tree=True)
    assert [each.text.count("XX") for each in translator.translate(["ona bek tilu rem"], max_length=7, options=options)] == [4]
    with pytest.raises(
        DragomanError, match=r"letter, line 3: a tree over 4 words has 7 tokens or more, and at most 6 are allowed; raise max_len"
    ):
        translator.translate(["ona", "", "ona bek tilu rem"], max_length=6, options=options, place="letter")
    with pytest.raises(
        DragomanError, match=r"letter, line 2: 12 tokens exceed the model's limit of 11, and a tree cannot be made in pieces"
    ):
        translator.translate(["ona", "bek " * 12], options=options, place="letter")
    with pytest.raises(UsageError, match="tree with prefixes"):
        translator.translate(["ona"], options=options, prefixes=["(S"])


def test_a_batch_of_trees_is_each_by_itself_under_every_search() -> None:
    translator, choose = untrained(), random.Random(1)
    lines = [" ".join(choose.choices(["ona", "bek", "tilu", "rem", "sova", "kip"], k=choose.randint(1, 9))) for _ in range(10)]
    for settings in (SearchOptions(tree=True), SearchOptions(tree=True, diverse_groups=2)):
        together = translator.translate(lines, beam=4, options=settings)
        assert [translator.translate([line], beam=4, options=settings)[0].text for line in lines] == [each.text for each in together]
        assert [" ".join(read_tree(each.text).words) for each in together] == lines
        assert {each.stop for each in together} <= {"end", "length"}


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (
            ["translate", "plain", "text", "--tree"],
            2,
            "--tree: the model's target vocabulary has no brackets of trees, such as (NP and )NP",
        ),
        (["translate", "plain", "text", "--tree", "--align", "a"], 2, "--align: the words of a --tree are those of its line, in order"),
        (["translate", "plain", "text", "--tree", "--forbid", "x"], 2, "--tree with --forbid"),
        (
            ["evaluate", "plain", "--test", "gold.mrg", "--html", "p", "--metric", "bleu"],
            2,
            "--metric, --html: for translations, and gold.mrg",
        ),
        (["evaluate", "plain", "--test", "gold.mrg", "--tokenize", "13a"], 2, "--tokenize: for translations, and gold.mrg is a treebank"),
        (["evaluate", "plain", "--test", "gold.mrg", "--bootstrap", "0", "--seed", "1"], 2, "--seed 1 with --bootstrap 0: nothing is"),
        (["evaluate", "plain", "--test", "gold.mrg", "--segment-level", "--examples", "1"], 2, "--examples with --segment-level: the"),
        (["evaluate", "plain", "--test", "gold.mrg", "--test", "a,b"], 2, "--test a,b: no treebank (.mrg, .ptb, .trees) beside one"),
        (["evaluate", "plain", "--test", "bad.mrg"], 1, "bad.mrg, line 1: the tree that begins here is not closed"),
        (["evaluate", "plain", "--test", "none.mrg"], 1, "none.mrg: cannot be read"),
        (["evaluate", "--hypotheses", "gold.mrg", "--test", "two.mrg"], 1, "gold.mrg: 1 trees, but the test set has 2; give one for each"),
        (["evaluate", "plain", "--test", "gold.mrg", "-o", "gold.mrg"], 2, "gold.mrg: is to be read and would be written over"),
        (
            ["train", "words-tree", "--train", "gold.mrg", "--set", "data.target_tokenizer=whitespace", "--out", "r"],
            2,
            "set joint_vocabulary=f",
        ),
        (
            ["train", "words-tree", "--train", "bad.mrg", "--preset", "parsing-tiny", "--out", "r"],
            1,
            "bad.mrg, line 1: the tree that begins",
        ),
        (["train", "words-tree", "--train", "none.mrg", "--preset", "parsing-tiny", "--out", "r"], 1, "looked for none.mrg"),
        (
            ["train", "words-tree", "--train", "gold.mrg", "--preset", "parsing-tiny", "--set", "data.bpe_dropout=0.1", "--out", "r"],
            2,
            "bpe_dropout=0.1 is for tokenizer='bpe' only",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], status: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_bundle(tmp_path / "plain")
    for name, content in (("text", "ona\n"), ("gold.mrg", "(S (NN ona))\n"), ("two.mrg", "(S (NN a))\n" * 2), ("bad.mrg", "(S (NN a)\n")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert sentence in err
    assert (tmp_path / "gold.mrg").read_text("utf-8") == "(S (NN ona))\n"
