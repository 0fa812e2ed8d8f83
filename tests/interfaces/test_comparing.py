"""compare: models and files of translations on one test set, each beside the first."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from command_line import tiny_bundle
from dragoman.bundle import load_bundle, save_bundle
from dragoman.cli import main
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError, UsageError
from dragoman.evaluation.compare import compare_systems, settings_that_differ
from dragoman.evaluation.measures import Measure, choose_measures, pair_up
from dragoman.evaluation.systems import System
from dragoman.evaluation.testset import TestSet
from dragoman.model.build import build_model
from html_pages import ATTACKS, Page

WORDS = ["ona", "bek", "tilu", "rem", "sova", "kip", "dal"]

Run = Callable[..., str]


def sentences(count: int = 60) -> list[str]:
    choose = random.Random(1)
    return [" ".join(choose.choices(WORDS, k=choose.randint(4, 9))) for _ in range(count)]


def worse(lines: list[str], share: float, seed: int) -> list[str]:
    """The same with so many of the words replaced."""
    choose = random.Random(seed)
    return [" ".join(word if choose.random() > share else "x" for word in line.split()) for line in lines]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_the_test_is_sacrebleus() -> None:
    references = sentences()
    first, second = worse(references, 0.3, 1), worse(references, 0.2, 2)
    _, table = PairedTest([("a", first), ("b", second)], {"BLEU": BLEU(force=True)}, [references], test_type="bs", n_samples=300)()
    theirs = table["BLEU"][1]
    (baseline, other), signature = pair_up(Measure("bleu"), [first, second], [references], resamples=300)
    assert not isinstance(theirs, str)
    assert baseline.p is None
    assert (other.score, other.p, other.interval.mean) == (theirs.score, theirs.p_value, theirs.mean)
    assert "bs:300|seed:12345" in signature
    assert pair_up(Measure("bleu"), [first, second], [references], resamples=300, seed=3)[0][1] != other


def test_equal_systems_do_not_differ() -> None:
    """The bare test gives p = 0.001 for a system beside itself, and for TER, which ignores case, beside itself in capitals."""
    references = sentences()
    lines = worse(references, 0.3, 1)
    for name in ("bleu", "chrf", "ter", "paper-bleu"):
        (_, same), _ = pair_up(Measure(name), [lines, list(lines)], [references], resamples=100)
        assert same.p == 1.0
    (_, louder), _ = pair_up(Measure("ter"), [lines, [line.upper() for line in lines]], [references], resamples=100)
    assert louder.p == 1.0


def test_a_large_difference_is_told_from_chance() -> None:
    references = sentences()
    systems = [System(str(share), tuple(worse(references, share, seed))) for seed, share in enumerate((0.3, 0.1, 0.31))]
    comparison = compare_systems(systems, TestSet(None, [references]), choose_measures(["chrf"]), resamples=500)
    _, clear, unclear = comparison.scores[0].results
    assert clear.p is not None
    assert unclear.p is not None
    assert clear.p < 0.05 < unclear.p


def test_differences_of_sentences() -> None:
    references = sentences(6)
    before = ["x", *references[1:]]
    after = [references[0], "x y", *references[2:5], f"{references[5]} ona"]
    comparison = compare_systems(
        [System("a", tuple(before)), System("b", tuple(after))], TestSet(None, [references]), choose_measures(["bleu"])
    )
    (difference,) = comparison.differences
    assert (difference.better, difference.worse, difference.equal, difference.same_text) == (1, 2, 3, 3)
    assert [(change.number, change.before, change.after) for change in difference.gains(10)] == [(1, "x", references[0])]
    assert [change.number for change in difference.losses(10)] == [2, 6]
    assert difference.losses(1)[0].gain == pytest.approx(CHRF().sentence_score("x y", [references[1]]).score - 100)
    assert difference.gains(0) == difference.losses(0) == []
    assert comparison.exact_matches == (pytest.approx(100 * 5 / 6), pytest.approx(100 * 4 / 6))


def test_settings_that_differ_are_those_of_models() -> None:
    one, two = {"model": {"d_model": 16, "norm": "post"}, "seed": 1}, {"model": {"d_model": 32, "norm": "post"}, "seed": 1, "new": [1]}
    assert settings_that_differ([one, {}, two]) == {"model.d_model": (16, None, 32), "new": (None, None, [1])}
    assert settings_that_differ([one, {}]) == {}


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two models of one vocabulary with other weights, the second of another step and beam; and a test set t."""
    first = tiny_bundle(tmp_path / "one")
    bundle = load_bundle(first)
    other = replace(
        bundle,
        model=build_model(bundle.config.model, seed=8),
        config=bundle.config.with_values(decoding={"beam": 2}),
        info={"step": 2000},
    )
    save_bundle(other, tmp_path / "two")
    write(tmp_path / "t.aa", sentences(12))
    write(tmp_path / "t.bb", sentences(12))
    return [first, tmp_path / "two"]


def test_models_beside_each_other_and_beside_a_file(models: list[Path], tmp_path: Path, run: Run) -> None:
    first = Translator.load(models[0], device="cpu")
    texts = [translation.text for translation in first.translate(sentences(12))]
    write(tmp_path / "t.bb", texts)
    given = write(tmp_path / "given", worse(texts, 0.5, 1))
    arguments = ["compare", *models, given, "--test", tmp_path / "t", "--html", tmp_path / "page.html", "--bootstrap", 100, "--examples", 2]
    document = json.loads(run(*arguments, "--json"))
    assert [system["name"] for system in document["systems"]] == [str(path) for path in (*models, given)]
    assert document["systems"][0]["exact_match"] == 100.0
    assert document["systems"][0]["parameters"] == sum(weight.numel() for weight in first.bundle.model.parameters())
    assert document["systems"][0]["seconds"] > 0
    assert document["systems"][2]["parameters"] is None
    assert document["settings"] == {"decoding.beam": [4, 2, None]}
    assert document["making"] == {"step": [1, 2000, None]}
    bleu = document["scores"]["bleu"]["systems"]
    assert bleu[0]["score"] == pytest.approx(100)
    assert bleu[0]["p"] is None
    assert bleu[1]["p"] < 0.05
    assert "bs:100" in document["scores"]["bleu"]["signature"]
    counts = document["differences"][0]
    assert (counts["better"], counts["worse"] + counts["equal"]) == (0, 12)
    assert counts["worse"] > 6
    assert len(document["differences"][0]["losses"]) == 2
    same = json.loads(run("compare", *models, "--test", tmp_path / "t", "--beam", 2, "--json", "--bootstrap", 100))
    assert same["settings"] == {}

    text = run(*arguments)
    assert [line.split()[:2] for line in text.splitlines()[1:4]] == [
        [str(place), str(path)] for place, path in enumerate((*models, given), 1)
    ]
    assert f"BLEU  {document['scores']['bleu']['signature']}\n" in text
    said = f"0 better, {counts['worse']} worse, {counts['equal']} as good; {counts['same_text']} the same text"
    assert f"\n2 beside 1, by chrF of each sentence: {said}\n  largest losses\n" in text
    assert [line.split() for line in text.splitlines() if line.startswith("decoding.beam")] == [["decoding.beam", "4", "2", "–"]]
    assert [line.split() for line in text.splitlines() if line.startswith(("made", "step"))] == [
        ["made", "1", "2", "3"],
        ["step", "1", "2,000", "–"],
    ]

    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [row[0] for row in page.tables["Settings that differ"]] == ["setting", "decoding.beam"]
    assert page.tables["How each was made"] == [["made", "1", "2", "3"], ["step", "1", "2,000", "–"]]
    assert [row[1] for row in page.tables["Systems"][1:]] == [str(path) for path in (*models, given)]
    assert f"{bleu[1]['p']:.4f}" in page.text


def test_texts_that_look_like_markup_stay_text(tmp_path: Path, run: Run) -> None:
    a, b, reference = (
        write(tmp_path / name, lines) for name, lines in (("a", list(ATTACKS)), ("b", list(ATTACKS[::-1])), ("r", list(ATTACKS)))
    )
    run("compare", a, b, "--reference", reference, "--html", tmp_path / "page.html", "--bootstrap", 100)
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "a", "svg", "b"}
    assert not any(name.startswith("on") or name in ("src", "href", "style") for _, values in page.elements for name in values)
    assert ATTACKS[0] in "".join(page.visible)


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["hyp"], 2, "hyp alone is nothing to compare"),
        (["hyp", "none", "--reference", "t.bb"], 1, "none: no such model and no such file"),
        (["hyp", "short", "--reference", "t.bb"], 1, "short: 5 lines, but the test set has 12;"),
        (["hyp", "hyp"], 2, "nothing to compare with; give --test PATH, or --reference FILE"),
        (["hyp", "hyp", "--reference", "t.bb", "--metric", "blue"], 2, "metric blue: unknown"),
        (["hyp", "hyp", "--reference", "t.bb", "--beam", "3"], 2, "--beam: for models that translate, and these are all files"),
        (["hyp", "hyp", "--reference", "t.bb", "--device", "cpu"], 2, "--device: for models that translate, and these are all files"),
        (["hyp", "hyp", "--reference", "t.bb", "--reference", "short"], 1, "short: 5 lines, but t.bb has 12;"),
        (["one", "two", "--reference", "t.bb"], 2, "no test set; give --test PATH"),
        (["one", "hyp", "--test", "t", "--pair", "aa-bb"], 2, "--pair: the models tell their languages"),
        (["one", "other", "--test", "t"], 2, "other: translates aa-cc, and one aa-bb; compare models of one direction"),
        (["one", "short", "--test", "t"], 1, "short: 5 lines, but the test set has 12;"),
        (["hyp", "hyp", "--reference", "t.bb", "--bootstrap", "1"], 2, "--bootstrap"),
        (
            ["hyp", "hyp", "--reference", "t.bb", "--metric", "chrf++", "--tokenize", "zh"],
            2,
            "--tokenize zh with --metric chrf++: it changes",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    arguments: list[str],
    status: int,
    sentence: str,
    models: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = load_bundle(models[0])
    save_bundle(replace(bundle, config=bundle.config.with_values(data={"target": "cc"})), tmp_path / "other")
    write(tmp_path / "hyp", sentences(12))
    write(tmp_path / "short", sentences(5))
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert sentence in err


def test_what_is_said_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    test = TestSet(None, [["a", "b"]])
    with pytest.raises(UsageError, match="one system is nothing to compare"):
        compare_systems([System("a", ("a", "b"))], test, choose_measures([]))
    with pytest.raises(DragomanError, match="2 lines, but there are 1 hypotheses"):
        compare_systems([System("a", ("a", "b")), System("b", ("a",))], test, choose_measures([]))
    monkeypatch.setattr("dragoman.evaluation.measures.MOST_SENTENCES_DRAWN", 150)
    with pytest.raises(DragomanError, match="2 lines are too many to resample"):
        compare_systems([System("a", ("a", "b")), System("b", ("a", "b"))], test, choose_measures([]))
