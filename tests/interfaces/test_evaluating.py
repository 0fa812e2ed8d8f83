"""What evaluate says beyond a score: intervals, several references, where translations fail, single sentences, the page."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from command_line import dragoman, tiny_bundle
from dragoman.cli import main
from dragoman.errors import DragomanError, UsageError
from dragoman.evaluation import measures as measures_room
from dragoman.evaluation.analysis import buckets_by_length, count, repeated_words
from dragoman.evaluation.evaluate import evaluate_texts
from dragoman.evaluation.measures import Measure, choose_measures, resamples_for, score_corpus, sentence_scores
from dragoman.evaluation.testset import TestSet
from html_pages import ATTACKS, Page

SOURCES = ["the ferry left at nine .", "two cats slept on the warm roof .", "nobody answered the old phone .", "yes ."]
HYPOTHESES = ["Die Fähre ging um neun .", "Zwei cats cats schliefen auf dem <unk> Dach .", "nobody answered the old phone .", ""]
REFERENCES = ["Die Fähre fuhr um neun .", "Zwei Katzen schliefen auf dem warmen Dach .", "Niemand ging an das alte Telefon .", "Ja ."]
OTHERS = ["Die Fähre ging um neun .", "Zwei cats lagen auf dem Dach .", "Keiner hob ab .", "Jawohl ."]

Run = Callable[..., str]


PIECES = ["Die Fäh@@ re ging um neun .", "Zwei Kat@@ zen .", "Nie@@ mand .", "Ja ."]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a command line that must fail with one line, and returns status and line."""

    def refused(*arguments: str | Path) -> tuple[int, str]:
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert out == ""
        lines = [line for line in err.splitlines() if not line.startswith("dragoman: warning") and "translating" not in line]
        assert len(lines) == 1, err
        return status, lines[0]

    return refused


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A test set t.en and t.de, a second reference, translations."""
    texts = {"t.en": SOURCES, "t.de": REFERENCES, "second.de": OTHERS, "hyp.de": HYPOTHESES}
    return {name: write(tmp_path / name, lines) for name, lines in texts.items()} | {"t": tmp_path / "t"}


def evaluated(run: Run, files: dict[str, Path], *more: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        run("evaluate", "--hypotheses", files["hyp.de"], "--test", files["t"], "--pair", "en-de", "--json", *more)
    )
    return found


def test_the_scores_are_sacrebleus(run: Run, files: dict[str, Path]) -> None:
    document = evaluated(run, files, "--metric", "bleu", "--metric", "chrf", "--metric", "chrf++", "--metric", "ter", "--bootstrap", 0)
    metrics = {"bleu": BLEU(), "chrf": CHRF(), "chrf_plus": CHRF(word_order=2), "ter": TER()}
    for key, metric in zip(("bleu", "chrf", "chrf++", "ter"), metrics.values(), strict=True):
        assert document[key] == pytest.approx(metric.corpus_score(HYPOTHESES, [REFERENCES]).score)
        assert document[f"{key}_signature"] == str(metric.get_signature())
        assert document[f"{key}_interval"] is None
    assert "paper_bleu" not in document


def test_the_interval_is_sacrebleus_own_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    hypotheses, references = HYPOTHESES[:3] * 10, [REFERENCES[:3] * 10]
    theirs = BLEU(force=True).corpus_score(hypotheses, references, n_bootstrap=200)
    found = score_corpus(Measure("bleu"), hypotheses, references, resamples=200)
    assert found.interval is not None
    assert (found.interval.mean, found.interval.half) == pytest.approx((theirs._mean, theirs._ci))
    assert found.signature.startswith("nrefs:1|bs:200|seed:12345|")
    assert score_corpus(Measure("bleu"), hypotheses, references, resamples=200) == found
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    other = score_corpus(Measure("bleu"), hypotheses, references, resamples=200, seed=7)
    assert "seed:7|" in other.signature
    assert other.interval != found.interval
    assert measures_room.os.environ["SACREBLEU_SEED"] == "99"


def test_every_reference_counts(run: Run, files: dict[str, Path]) -> None:
    one, two = evaluated(run, files), evaluated(run, files, "--reference", files["second.de"])
    assert two["bleu"] == pytest.approx(BLEU().corpus_score(HYPOTHESES, [REFERENCES, OTHERS]).score)
    assert "nrefs:2|" in two["bleu_signature"]
    assert (one["exact_match"], two["exact_match"]) == (0.0, 25.0)
    assert two["worst"][0]["references"] == ["Ja .", "Jawohl ."]
    alone = json.loads(
        run("evaluate", "--hypotheses", files["hyp.de"], "--reference", files["t.de"], "--reference", files["second.de"], "--json")
    )
    assert alone["bleu"] == two["bleu"]
    assert alone["lengths_of"] == "reference"
    assert alone["counts"]["copied"] is None


def test_counts_say_what_is_wrong(run: Run, files: dict[str, Path]) -> None:
    counts = evaluated(run, files)["counts"]
    assert (counts["unit"], counts["words"], counts["reference_words"]) == ("words", 21, 23)
    assert counts["length_ratio"] == pytest.approx(21 / 23)
    assert (counts["empty"], counts["unknown"]) == (1, 1)
    assert (counts["repeated"], counts["repeating_sentences"], counts["repeated_in_reference"]) == (1, 1, 0)
    # cats once, as the source has it once; the third line whole, of which no word is in the reference
    assert (counts["copied"], counts["copied_wrongly"], counts["copied_sentences"]) == (6, 6, 1)
    assert evaluated(run, files, "--reference", files["second.de"])["counts"]["copied_wrongly"] == 5


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("a b c", 0),
        ("a a", 1),
        ("a a a", 2),
        ("a dog a dog runs", 2),
        ("- - - .", 0),
        ("x a b c d a b c d", 4),
        ("a b c d e a b c d e", 0),
        ("", 0),
    ],
)
def test_what_counts_as_repeated(text: str, repeated: int) -> None:
    assert repeated_words(text.split()) == repeated


def test_text_without_spaces_is_counted_in_characters() -> None:
    references = ["我们明天上午去公园散步。", "今天天气很好。"]
    counts = count(["我们去公园公园。", "今天天气很好。"], [references], None)
    assert (counts.unit, counts.words, counts.reference_words) == ("characters", 15, 19)
    assert (counts.repeated, counts.repeated_in_reference) == (3, 1)  # 公园公园, and 天天 in both
    assert [measure.name for measure in choose_measures([], tokenize="zh")] == ["bleu", "chrf", "ter"]


def test_scores_by_length_are_those_of_the_sentences_of_that_length(run: Run, files: dict[str, Path]) -> None:
    lengths = [6, 8, 10, 11]
    buckets = buckets_by_length(lengths, choose_measures(["bleu", "chrf"]), HYPOTHESES, [REFERENCES])
    assert [(bucket.shortest, bucket.longest, bucket.sentences) for bucket in buckets] == [(0, 10, 3), (11, 20, 1)]
    assert buckets[0].scores["bleu"] == pytest.approx(BLEU().corpus_score(HYPOTHESES[:3], [REFERENCES[:3]]).score)
    assert buckets[0].length_ratio == pytest.approx(21 / 21)
    assert buckets[1].scores == {"bleu": None, "chrf": pytest.approx(CHRF().corpus_score([""], [["Ja ."]]).score)}
    document = evaluated(run, files)
    assert sum(bucket["sentences"] for bucket in document["lengths"]) == 4


def test_a_bucket_of_sentences_without_a_phrase_of_four_has_no_bleu_but_an_exact_match() -> None:
    (bucket,) = buckets_by_length([2, 2], choose_measures(["bleu", "chrf"]), ["Guten Tag", "Ja ja"], [["Guten Tag", "Ja ja"]])
    assert (bucket.scores["bleu"], bucket.scores["chrf"], bucket.exact_match) == (None, 100.0, 100.0)
    (bucket,) = buckets_by_length([5], choose_measures(["bleu"]), ["a b c d e"], [["v w x y z"]])
    assert bucket.scores["bleu"] == 0.0


def test_best_and_worst_are_in_the_order_of_chrf(run: Run, files: dict[str, Path]) -> None:
    document = evaluated(run, files, "--examples", 10)
    chrf = [CHRF().sentence_score(line, [reference]).score for line, reference in zip(HYPOTHESES, REFERENCES, strict=True)]
    order = sorted(range(4), key=lambda place: chrf[place])
    assert [sentence["number"] - 1 for sentence in document["worst"]] == order[:2]
    assert [sentence["number"] - 1 for sentence in document["best"]] == order[:1:-1]
    assert document["best"][0]["scores"]["chrf"] == pytest.approx(max(chrf))
    assert document["worst"][0] | {"scores": None} == {
        "number": 4, "source": "yes .", "hypothesis": "", "references": ["Ja ."], "scores": None, "exact": False,
    }  # fmt: skip
    few = evaluated(run, files, "--examples", 1)
    assert (len(few["best"]), len(few["worst"])) == (1, 1)
    perfect = json.loads(run("evaluate", "--hypotheses", files["t.de"], "--reference", files["t.de"], "--json"))
    assert (len(perfect["best"]), perfect["worst"]) == (2, [])


def test_the_level_of_segments(run: Run, files: dict[str, Path]) -> None:
    arguments = ["evaluate", "--hypotheses", files["hyp.de"], "--reference", files["second.de"], "--segment-level"]
    heading, *rows = [line.split("\t") for line in run(*arguments).splitlines()]
    assert heading == ["line", "bleu", "paper_bleu", "chrf", "ter", "exact"]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[-1] for row in rows] == ["1", "0", "0", "0"]
    metric = BLEU(effective_order=True)
    for row, line, reference in zip(rows, HYPOTHESES, OTHERS, strict=True):
        assert float(row[1]) == pytest.approx(metric.sentence_score(line, [reference]).score, abs=1e-4)
        assert float(row[4]) == pytest.approx(TER().sentence_score(line, [reference]).score, abs=1e-4)
    document = json.loads(run(*arguments, "--json"))
    assert [f"{segment['scores']['bleu']:.4f}" for segment in document["segments"]] == [row[1] for row in rows]
    assert "eff:yes" in document["sentence_signatures"]["bleu"]
    assert "segments" not in evaluated(run, files)


def test_the_level_of_segments_has_the_scores_that_were_asked_for(run: Run, files: dict[str, Path], tmp_path: Path) -> None:
    arguments = ["evaluate", "--hypotheses", files["hyp.de"], "--reference", files["t.de"], "--segment-level"]
    for names in (["bleu"], ["ter", "chrf++"], ["chrf"]):
        asked = [part for name in names for part in ("--metric", name)]
        heading, *rows = [line.split("\t") for line in run(*arguments, *asked).splitlines()]
        assert heading == ["line", *names, "exact"]
        document = json.loads(run(*arguments, *asked, "--json", "--examples", 1, "--bootstrap", 0))
        assert (len(document["best"]), document[f"{names[0]}_interval"]) == (1, None)
        assert [row[1:-1] for row in rows] == [[f"{each['scores'][name]:.4f}" for name in names] for each in document["segments"]]
        assert all({*each["scores"]} == {*names, "chrf"} for each in document["segments"])  # which orders them
    shown = run(*arguments, "--metric", "bleu", "--examples", 1, "--html", tmp_path / "page.html")
    assert shown == run(*arguments, "--metric", "bleu")
    assert "page.html" in [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(("names", "splitter"), [(["bleu", "chrf"], "zh"), (["ter"], "char"), (["paper-bleu"], "none"), ([], "intl")])
def test_a_word_splitter_is_taken_where_a_measure_has_a_use_for_it(names: list[str], splitter: str) -> None:
    chosen = choose_measures(names, tokenize=splitter)
    assert {measure.tokenize for measure in chosen} == {splitter}
    assert {measure.tokenize for measure in choose_measures(names)} == {"13a"}


def test_translations_from_standard_input(run: Run, files: dict[str, Path]) -> None:
    found = dragoman("evaluate", "--hypotheses", "-", "--reference", files["t.de"], "--json", "--quiet", stdin=files["hyp.de"].read_bytes())
    assert (found.returncode, found.stderr) == (0, b"")
    assert json.loads(found.stdout)["bleu"] == evaluated(run, files)["bleu"]


def test_translations_that_are_there_need_no_torch(files: dict[str, Path]) -> None:
    arguments = ["evaluate", "--hypotheses", str(files["hyp.de"]), "--reference", str(files["t.de"]), "--quiet", "--bootstrap", "0"]
    program = f"import sys; from dragoman.cli import main; main({arguments}); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False"


def test_all_of_it_as_text(run: Run, files: dict[str, Path]) -> None:
    text = run("evaluate", "--hypotheses", files["hyp.de"], "--test", f"{files['t.en']},{files['t.de']}")
    document = evaluated(run, files)
    for name, key in (("BLEU", "bleu"), ("chrF", "chrf"), ("TER", "ter")):
        half = (document[f"{key}_interval"]["high"] - document[f"{key}_interval"]["low"]) / 2
        assert f"{name:<12} {document[key]:6.2f} ± {half:.2f}  {document[f'{key}_signature']}\n" in text
        assert f"{document[f'{key}_explanation']}\n" in text
    assert "tok:moses-any+compounds" in text
    assert "Table 2" in text
    assert "exact match    0.00  % of 4 sentences\n" in text
    assert "copied       6 words of the source, 6 of them in no reference; 1 whole sentence\n" in text
    assert re.search(r"^source words +sentences +BLEU +chrF +exact match +length ratio$", text, re.M)
    assert "\nworst sentences, by chrF\n     4  " in text
    assert "seconds" not in text


def test_the_page_holds_the_same_figures_and_runs_nothing(run: Run, files: dict[str, Path], tmp_path: Path) -> None:
    document = evaluated(run, files, "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    (scores,) = [rows for caption, rows in page.tables.items() if caption.startswith("Scores")]
    assert {row[0]: (row[1], row[3]) for row in scores[1:]} == {
        name: (f"{document[key]:.2f}", document[f"{key}_signature"])
        for name, key in (("BLEU", "bleu"), ("paper BLEU", "paper_bleu"), ("chrF", "chrf"), ("TER", "ter"))
    }
    assert page.facts("Counts")["words copied from the source"] == "6"
    assert "auto" in {values.get("dir") for tag, values in page.elements if tag == "td"}
    assert {values.get("lang") for tag, values in page.elements if tag == "td"} == {None, "de"}
    assert 'content="light dark"' in page.text


def test_texts_that_look_like_markup_stay_text(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "hyp", list(ATTACKS))
    write(tmp_path / "ref", ["a", *ATTACKS[:-1]])
    run("evaluate", "--hypotheses", tmp_path / "hyp", "--reference", tmp_path / "ref", "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    visible = "".join(page.visible)
    assert all("".join(c if c >= " " and c not in "\x9b" else "\ufffd" for c in attack) in visible for attack in ATTACKS)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "img", "object", "embed", "form", "base", "a", "svg", "b"}
    assert not any(name.startswith("on") or name in ("src", "href", "style") for _, values in page.elements for name in values)


def test_a_model_is_evaluated_like_its_own_output(run: Run, tmp_path: Path) -> None:
    model = tiny_bundle(tmp_path / "model")
    test = [
        write(tmp_path / f"t.{code}", lines) for code, lines in (("aa", ["ona bek", "rem nope", "kip"]), ("bb", ["bek ona", "sova", "dal"]))
    ]
    own = json.loads(run("evaluate", model, "--test", tmp_path / "t", "-o", tmp_path / "hyp", "--html", tmp_path / "p.html", "--json"))
    given = json.loads(run("evaluate", "--hypotheses", tmp_path / "hyp", "--test", f"{test[0]},{test[1]}", "--pair", "aa-bb", "--json"))
    for key in (
        "bleu",
        "bleu_interval",
        "paper_bleu",
        "paper_bleu_signature",
        "chrf",
        "ter",
        "exact_match",
        "counts",
        "lengths",
        "best",
        "worst",
    ):
        assert own[key] == given[key], key
    assert own["system"]["unknown_in_source"] == 1  # nope
    assert own["system"]["reached_limit"] is not None
    assert own["system"]["tokens"] > 0
    assert given["seconds"] is None
    assert "Parameters" in Page((tmp_path / "p.html").read_text(encoding="utf-8")).facts("What was evaluated")


def test_many_lines_get_fewer_resamples_and_are_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures_room.logging.getLogger("dragoman"), "propagate", True)
    assert resamples_for(10_000, 1000) == 1000
    assert not caplog.records
    assert resamples_for(40_000, 1000) == 250
    assert "40000 lines are many: 250 instead of 1000 resamples" in caplog.text
    assert resamples_for(1_000_000, 1000) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (
            ["--hypotheses", "hyp.de", "--reference", "t.de", "--metric", "bleurt"],
            2,
            "metric bleurt: unknown; known: bleu, paper-bleu, chrf",
        ),
        (["--hypotheses", "hyp.de", "--reference", "t.de", "--metric", "paper-bleu", "--tokenize", "zh"], 2, "need spaces between words"),
        (
            ["--hypotheses", "hyp.de", "--reference", "t.de", "--reference", "short.de"],
            1,
            "short.de: 3 lines, but t.de has 4; give one line for each sentence",
        ),
        (["--hypotheses", "hyp.de", "--test", "t.en,t.de", "--reference", "short.de"], 1, "short.de: 3 lines, but --test has 4;"),
        (["--hypotheses", "short.de", "--reference", "t.de"], 1, "short.de: 3 lines, but the test set has 4;"),
        (["--hypotheses", "empty", "--reference", "t.de"], 1, "empty: empty; give a text with one translation for each sentence"),
        (["--hypotheses", "hyp.de", "--reference", "empty"], 1, "empty: empty; give a text with one line for each sentence"),
        (["--hypotheses", "empty", "--test", "empty,empty"], 1, "empty and empty: empty"),
        (["--hypotheses", "hyp.de"], 2, "nothing to compare with; give --test PATH, or --reference FILE"),
        (["--hypotheses", "hyp.de", "--test", "t"], 2, "--test t: its languages are not known without a model; add --pair"),
        (["--hypotheses", "hyp.de", "--test", "t", "--pair", "ende"], 2, "--pair ende: not SOURCE-TARGET"),
        (["--hypotheses", "hyp.de", "--reference", "t.de", "--beam", "2", "-o", "x"], 2, "--beam, --output: for a MODEL that translates"),
        (["--hypotheses", "hyp.de", "--reference", "t.de", "--ensemble", "x"], 2, "--ensemble: for a MODEL that translates"),
        (["--hypotheses", "hyp.de", "--reference", "t.de", "--device", "cpu"], 2, "--device: for a MODEL that translates"),
        (["model", "--hypotheses", "hyp.de", "--test", "t.en,t.de"], 2, "give a MODEL to translate with, or --hypotheses FILE"),
        (["--test", "t.en,t.de"], 2, "give a MODEL to translate with, or --hypotheses FILE"),
        (
            ["hyp.de", "--test", "t.en,t.de"],
            2,
            "hyp.de: a file, and a MODEL is a folder; for translations that are there, write --hypotheses",
        ),
        (["--hypotheses", ".", "--reference", "t.de"], 2, ".: a folder; translations are a text file"),
        (["model", "--reference", "t.de"], 2, "no test set; give --test PATH"),
        (["model", "--test", "t.en,t.de", "--pair", "en-de"], 2, "--pair: the model tells its languages"),
        (["--hypotheses", "hyp.de", "--reference", "none.de"], 1, "none.de: cannot be read"),
        (["--hypotheses", "hyp.de", "--reference", "t.de", "--html", "-"], 2, "--html -: standard output holds the scores"),
        (["--hypotheses", "hyp.de", "--reference", "t.de", "--html", "none/page.html"], 1, "none/page.html: cannot write"),
        (["--hypotheses", "hyp.de", "--reference", "t.de", "--seed", "0"], 2, "--seed"),
        (
            ["--hypotheses", "hyp.de", "--reference", "t.de", "--metric", "chrf", "--tokenize", "zh"],
            2,
            "--tokenize zh with --metric chrf: it changes nothing there; leave it out, or ask for --metric bleu too",
        ),
        (
            ["--hypotheses", "hyp.de", "--reference", "t.de", "--metric", "paper-bleu", "--metric", "ter", "--tokenize", "13a"],
            2,
            "--tokenize 13a with --metric paper-bleu --metric ter: it changes nothing there",
        ),
        (
            ["--hypotheses", "hyp.de", "--reference", "t.de", "--bootstrap", "0", "--seed", "3"],
            2,
            "--seed 3 with --bootstrap 0: nothing is drawn; leave one of the two out",
        ),
        (
            ["--hypotheses", "hyp.de", "--reference", "t.de", "--segment-level", "--examples", "10", "--bootstrap", "0"],
            2,
            "--examples, --bootstrap with --segment-level: the scores of each sentence are all it prints; leave one out, or add --json",
        ),
        (["--hypotheses", "hyp.de", "--reference", "t.de", "--segment-level", "--seed", "3"], 2, "--seed with --segment-level: the scores"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(
    arguments: list[str],
    status: int,
    sentence: str,
    tmp_path: Path,
    refused: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, lines in (("t.en", SOURCES), ("t.de", REFERENCES), ("hyp.de", HYPOTHESES), ("short.de", REFERENCES[:3])):
        write(tmp_path / name, lines)
    write(tmp_path / "empty", [])
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    found, line = refused("evaluate", *arguments)
    assert sentence in line
    assert found == status


def test_what_is_said_in_python() -> None:
    test = TestSet(None, [REFERENCES])
    with pytest.raises(DragomanError, match=r"has 4 lines, but there are 3 hypotheses"):
        evaluate_texts(HYPOTHESES[:3], test, choose_measures([]))
    with pytest.raises(DragomanError, match="nothing to score"):
        evaluate_texts([], TestSet(None, [[]]), choose_measures([]))
    with pytest.raises(UsageError, match="unknown"):
        choose_measures(["bleu", "comet"])
    scores, signature = sentence_scores(Measure("chrf"), ["ab cd"], [["ab cd"]])
    assert scores == [100.0]
    assert signature.startswith("nrefs:1|case:mixed|eff:yes")


@pytest.mark.parametrize(("hypotheses", "references"), [(PIECES, REFERENCES), (HYPOTHESES, PIECES), (HYPOTHESES, REFERENCES)])
def test_texts_in_pieces_are_told_where_no_model_joins_them(
    hypotheses: list[str], references: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {write(tmp_path / "hyp.de", hypotheses): hypotheses, write(tmp_path / "ref.de", references): references}
    hypothesis, reference = texts
    what = "3 of 16 words end in @@, as pieces of words do, and each counts as a word; join them first, as with sed 's/@@ //g'"
    expected = [name for name, text in ((str(hypothesis), hypotheses), ("the references", references)) if text is PIECES]
    for command in (["evaluate", "--hypotheses", hypothesis], ["compare", hypothesis, write(tmp_path / "other.de", HYPOTHESES)]):
        assert main([*map(str, command), "--reference", str(reference)]) == 0
        warnings = [line for line in capsys.readouterr().err.splitlines() if "@@" in line]
        assert warnings == [f"dragoman: warning: {name}: {what}" for name in expected]


def test_a_word_that_ends_as_a_piece_among_many_others_is_no_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["@@ -1 +1 @@ is the head of a change", *["a line of eight words as most are"] * 30]
    text = write(tmp_path / "text", lines)
    assert main(["evaluate", "--hypotheses", str(text), "--reference", str(text)]) == 0
    assert "@@" not in capsys.readouterr().err
