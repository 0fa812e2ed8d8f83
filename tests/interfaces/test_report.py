"""report.html: one file that runs and fetches nothing, whose numbers are those of the log."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dragoman.cli import main
from dragoman.html import escaped, number
from dragoman.training.charts import MOST_POINTS, STROKES, line_chart, thinned, ticks
from dragoman.training.report import MOST_ROWS, Report, write_report
from dragoman.training.schedule import paper_rate
from html_pages import ATTACKS, Page
from training_runs import records, toy_pairs, train, write_pairs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve steps with two evaluations; one pair has an empty side."""
    folder = tmp_path_factory.mktemp("report")
    data = write_pairs(folder / "data" / "train", [*toy_pairs(40), ("", "no source")])
    valid = write_pairs(folder / "data" / "valid", toy_pairs(9, seed=9))
    assert train(folder / "run", data, "--valid", valid, "--quiet", "--max-steps", "12", training__evaluate_every=6) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page((run / "report.html").read_text(encoding="utf-8"))


def made_up(run: Path, *log: dict[str, Any], **facts: Any) -> Page:
    """The report of a run folder that holds these records."""
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    (run / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log), encoding="utf-8")
    write_report(run)
    return Page((run / "report.html").read_text(encoding="utf-8"))


def test_nothing_in_it_runs_or_fetches(page: Page) -> None:
    assert "<script" not in page.text.lower()
    assert not re.search(r"https?://|//\w", page.text.replace(' xmlns="http://www.w3.org/2000/svg"', ""))  # a name, no address
    names = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "href", "srcset", "data", "action", "style"}
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "img", "object", "embed", "form", "base", "foreignObject", "use", "image"}
    assert "@import" not in page.text
    assert "url(" not in page.text


def test_its_numbers_are_those_of_the_log(run: Path, page: Page) -> None:
    training, evaluations = records(run, "train"), records(run, "eval")
    losses = page.tables["Loss"]
    assert losses[0] == ["step", "training, smoothed", "validation, smoothed"]
    validation = {record["step"]: number(record["loss"]) for record in evaluations}
    assert losses[1:] == [[str(record["step"]), number(record["loss"]), validation.get(record["step"], "")] for record in training]
    equation = [number(paper_rate(step, d_model=16, warmup_steps=1)) for step in range(1, 13)]
    rates = [[str(record["step"]), number(record["lr"]), right] for record, right in zip(training, equation, strict=True)]
    assert page.tables["Learning rate"][1:] == rates
    for caption, key in (("Speed, target tokens a second", "tok_s"), ("Norm of the gradient, before clipping", "grad_norm")):
        assert page.tables[caption][1:] == [[str(record["step"]), number(record[key])] for record in training]
    assert page.tables["Score on the validation text"][1:] == [
        [str(record["step"]), number(record["bleu"]), number(record["chrf"])] for record in evaluations
    ]
    keys = ("step", "loss", "nll", "ppl", "acc", "bleu", "chrf", "seconds")
    assert [row[:-1] for row in page.tables["On the validation text"][1:]] == [
        [number(record[key]) for key in keys] for record in evaluations
    ]


def test_its_head_is_that_of_the_run(run: Path, page: Page) -> None:
    head, facts, last = page.facts("The run"), json.loads((run / "run.json").read_bytes()), records(run, "train")[-1]
    best = next(record for record in records(run, "eval") if record["step"] == facts["best_step"])
    assert head["Status"] == "done"
    assert head["Best"] == (
        f"step {best['step']}, BLEU {number(best['bleu'])}, chrF {number(best['chrf'])}, validation loss {number(best['loss'])}"
    )
    assert head["BLEU signature"] == best["signature"]
    assert head["Steps"] == "12 of at most 12"
    assert head["Peak memory"] == f"{last['mem'] / 1e6:,.0f} MB"
    assert head["Parameters"] == f"{facts['parameters']:,}"
    assert head["Device"] == "cpu"
    assert [row[-1] for row in page.tables["On the validation text"][1:]].count("best") == 1


def test_samples_are_listed_where_their_output_changed(run: Path, page: Page) -> None:
    rows = page.tables[""]
    for sample in records(run, "eval")[0]["samples"]:
        assert ["source", sample["source"]] in rows
        assert ["reference", sample["reference"]] in rows
        assert ["step 6", sample["output"]] in rows
    changed = zip(records(run, "eval")[0]["samples"], records(run, "eval")[1]["samples"], strict=True)
    wanted = [["step 12", later["output"]] for earlier, later in changed if earlier["output"] != later["output"]]
    assert [row for row in rows if row[0] == "step 12"] == wanted


def test_data_settings_and_environment(run: Path, page: Page) -> None:
    facts = json.loads((run / "run.json").read_bytes())
    counts = page.facts("Counts")
    assert counts["Pairs for training"] == "40"
    assert counts["Dropped from training: empty side"] == "1"
    assert counts["Dropped from validation"] == "0"
    assert counts["Vocabulary, source"] == counts["Vocabulary, target"] == str(facts["settings"]["model"]["source_vocabulary"])
    changed = {row[0]: row[1:] for row in page.tables["Other than the paper's base model"][1:]}
    assert changed["model.d_model"] == ["512", "16"]
    assert changed["training.batch_tokens"] == ["25,000", "60"]
    assert changed["data.tokenizer"] == ["bpe", "whitespace"]
    assert not {"model.dropout", "training.adam_beta1", "data.source", "data.train"} & set(changed)
    everything = {row[0]: row[1] for row in page.tables["All settings"][1:]}
    assert everything["model.dropout"] == "0.1"
    environment = page.facts("Where and with what")
    assert environment["version of torch"] == facts["versions"]["torch"]
    assert environment["threads"] == str(facts["threads"])
    assert environment["fingerprint: training data"] == facts["fingerprints"]["training data"]
    for entry in facts["data"]:
        assert environment[f"SHA-256 of {entry['path']}"] == entry["sha256"]


def test_what_a_corpus_says_is_text(tmp_path: Path) -> None:
    """The samples, the languages, the settings, the file names, the command and the error are attacks."""
    for attack in ATTACKS:
        sample = {"source": attack, "reference": attack, "output": attack}
        page = made_up(
            tmp_path / "run",
            {"t": "train", "step": 1, "loss": 2.0},
            {"t": "eval", "step": 1, "loss": 1.0, "samples": [sample], "signature": attack, "bleu": 1.0},
            status=attack, error=attack, argv=["dragoman", attack], host=attack, versions={attack: attack}, fingerprints={attack: attack},
            settings={"preset": attack, "data": {"source": attack, "target": attack, attack: attack}},
            data=[{"path": attack, "lines": 1, "sha256": attack}], pairs={attack: 1}, dropped={attack: {attack: 1}},
        )  # fmt: skip
        assert [
            (tag, values) for tag, values in page.elements if tag in ("script", "img", "a", "b") or any(k[:2] == "on" for k in values)
        ] == []
        assert len([tag for tag, _ in page.elements if tag == "style"]) == 1
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", page.text)
        shown = re.sub("[\x00-\x1f\x7f-\x9f]", "\ufffd", attack)
        assert page.tables[""].count(["source", shown]) == 1
        assert page.tables[""].count(["step 1", shown]) == 1
        assert page.facts("The run")["Error"] == shown
        languages = {values["lang"] for tag, values in page.elements if tag == "td" and "lang" in values}
        assert languages == {shown}


def test_it_is_written_at_every_evaluation_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[int]]] = []

    def note(run: Path) -> None:
        write_report(run)
        report = Report.read(run)
        seen.append((report.facts["status"], [record["step"] for record in report.evaluations]))

    for place in ("trainer.write_report", "report.write_report"):
        monkeypatch.setattr(f"dragoman.training.{place}", note)
    data, valid = write_pairs(tmp_path / "data" / "train", toy_pairs(20)), write_pairs(tmp_path / "data" / "valid", toy_pairs(3, seed=1))
    assert train(tmp_path / "run", data, "--valid", valid, "--quiet", "--max-steps", "5", training__evaluate_every=2) == 0
    assert seen == [("running", [2]), ("running", [2, 4]), ("running", [2, 4, 5]), ("done", [2, 4, 5])]
    assert [path.name for path in (tmp_path / "run").iterdir() if "report" in path.name] == ["report.html"]


def test_a_failed_run_has_its_report_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_pairs(tmp_path / "data" / "train", toy_pairs(30))
    assert train(tmp_path / "run", data, "--quiet", "--max-steps", "9", training__learning_rate=1e30) == 1
    (line,) = capsys.readouterr().err.splitlines()
    head = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).facts("The run")
    assert head["Status"] == "failed"
    assert line == f"dragoman: {head['Error']}"


def test_the_verb_makes_the_same_page_again_from_two_files(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = (run / "report.html").read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("run.json", "log.jsonl"):
        (copy / name).write_bytes((run / name).read_bytes())
    assert main(["report", str(copy)]) == 0
    assert capsys.readouterr().out == f"{copy / 'report.html'}\n"
    assert (copy / "report.html").read_bytes() == wanted
    assert main(["report", str(copy), "-o", "-"]) == 0
    assert capsys.readouterr().out == wanted.decode()
    assert main(["report", str(copy), "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_bytes() == wanted
    assert main(["report", str(tmp_path)]) == 1
    assert "nothing to report" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_long_run_is_a_small_page(tmp_path: Path) -> None:
    """20,000 steps, a record every 10 of them, 40 evaluations."""
    log = [
        {"t": "train", "step": step, "loss": 8 - step / 4000, "lr": 1e-3, "tok_s": 1e4 + step % 7, "grad_norm": 1.0, "seconds": step}
        for step in range(10, 20_001, 10)
    ]
    log += [{"t": "eval", "step": step, "loss": 8 - step / 4000, "bleu": step / 1000, "chrf": 1.0} for step in range(500, 20_001, 500)]
    page = made_up(tmp_path / "run", *log)
    assert len(page.text) < 150_000
    drawn = [len((values["points"] or "").split()) for tag, values in page.elements if tag == "polyline"]
    assert len(drawn) == 8
    assert max(drawn) == MOST_POINTS
    assert all(count <= MOST_POINTS for count in drawn)
    assert len(page.tables["Speed, target tokens a second"]) == 1 + MOST_ROWS
    assert page.facts("The run")["Time"] == "5:33:20"
    assert page.facts("The run")["Speed"] == "10,003 target tokens a second (median)"


def test_the_command_that_repeats_the_run_can_be_typed(tmp_path: Path) -> None:
    page = made_up(tmp_path / "run", argv=["/somewhere/bin/dragoman", "train", "en-de", "--train", "my data", "--set", "data.joiner=@@"])
    assert page.facts("The run")["Repeat with"] == "dragoman train en-de --train 'my data' --set data.joiner=@@"


def test_the_commands_that_went_on_with_the_run_follow_the_first(tmp_path: Path) -> None:
    resumed = [
        {"argv": ["dragoman", "train", "--resume", "--out", "run", "--max-minutes", str(minutes)], "step": step, "changed": []}
        for step, minutes in ((1200, 20), (3400, 30))
    ]
    page = made_up(tmp_path / "run", argv=["dragoman", "train", "en-de"], resumed=[*resumed, 3, {"argv": "x"}])
    commands = list(page.facts("The run").items())[-3:]
    assert commands == [
        ("Repeat with", "dragoman train en-de"),
        ("Then, at step 1,200", "dragoman train --resume --out run --max-minutes 20"),
        ("Then, at step 3,400", "dragoman train --resume --out run --max-minutes 30"),
    ]


def test_a_head_that_learns_to_align_has_a_curve_and_other_runs_have_none(tmp_path: Path, page: Page) -> None:
    title = "Alignment loss of the head that learns to align"
    aligning = made_up(tmp_path / "run", *({"t": "train", "step": step, "alignment": 3.0 - step} for step in (1, 2)))
    assert aligning.tables[title] == [["step", "training"], ["1", "2"], ["2", "1"]]
    assert title not in page.tables


def test_an_empty_or_a_strange_log_gives_a_page_still(tmp_path: Path) -> None:
    assert made_up(tmp_path / "run", status="preparing").facts("The run")["Status"] == "preparing"
    page = made_up(
        tmp_path / "run", {"t": "train", "step": 1, "loss": float("nan"), "lr": 1e-3, "tok_s": "x"}, {"t": "train"}, {"t": "new", "step": 3}
    )
    assert [tag for tag, _ in page.elements if tag in ("polyline", "circle")] == ["circle", "circle"]  # its rate, and equation (3)
    (tmp_path / "run" / "run.json").unlink()
    assert Report.read(tmp_path / "run").facts == {}


def test_what_is_no_sample_is_left_out(tmp_path: Path) -> None:
    strange = [
        {"t": "eval", "step": step, "loss": 1.0, "samples": samples} for step, samples in enumerate((3, ["x", {"source": "ona"}]), 1)
    ]
    page = made_up(tmp_path / "run", *strange, {**strange[1], "step": 3, "samples": [{"source": "ona", "output": "bek"}]})
    assert page.text.count('<th scope="row">source</th>') == 1
    assert "step 2</th>" in page.text
    assert "step 3</th>" in page.text


@pytest.mark.parametrize(("group", "wrong"), [("model", {"d_model": 0}), ("training", {"warmup_steps": 0})])
def test_without_its_numbers_there_is_no_equation_3(group: str, wrong: dict[str, Any]) -> None:
    report = Report({"settings": {group: wrong}}, [{"t": "train", "step": 1, "lr": 1e-3}], [])
    assert dict(report.charts())["Learning rate"] == {"as trained": [(1, 1e-3)], "equation (3) of the paper": []}


# Charts

SVG = "{http://www.w3.org/2000/svg}"


def curves_of(svg: str) -> Iterator[ElementTree.Element]:
    yield from ElementTree.fromstring(svg).iter(f"{SVG}polyline")


def test_a_chart_is_drawn_to_scale_with_colour_and_dash() -> None:
    svg = line_chart("A & B", {"<up>": [(0, 0.0), (50, 5.0), (100, 10.0)], "flat": [(0, 10.0), (100, 10.0)]})
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == "A & B, over steps: <up>, flat"
    assert root.get("role") == "img"
    up, flat = curves_of(svg)
    assert up.get("points") == "84.0,236.0 385.0,135.0 686.0,34.0"
    assert flat.get("points") == "84.0,34.0 686.0,34.0"
    assert [(curve.get("stroke"), curve.get("stroke-dasharray")) for curve in (up, flat)] == list(STROKES[:2])
    assert not [element.tag for element in root.iter() if element.get("style") or element.get("class")]
    step, first, second = list(root.iter(f"{SVG}text"))[-3:]
    assert float(step.get("x", 0)) == 360  # in the middle, as wide as the chart is
    assert float(second.get("x", 0)) - float(first.get("x", 0)) >= 12 * len("<up>") + 38  # a name, and the sign of the next
    labels = [element.text for element in root.iter(f"{SVG}text")]
    assert labels == ["0", "2", "4", "6", "8", "10", "0", "20", "40", "60", "80", "100", "step", "<up>", "flat"]


def test_what_is_no_number_is_left_out_of_a_chart() -> None:
    (curve,) = curves_of(line_chart("x", {"a": [(0, 1.0), (1, float("inf")), (2, float("nan")), (4, 2.0)]}))
    assert [point.split(",")[0] for point in (curve.get("points") or "").split()] == ["84.0", "686.0"]
    assert line_chart("x", {"a": [], "b": [(1, float("nan"))]}) == ""
    assert "<circle" in line_chart("x", {"a": [(3, 3.0)]})


def test_colours_read_on_white_and_on_black() -> None:
    """At least 3:1, the least contrast for graphics."""

    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour, _ in STROKES:
        assert 1.05 / (luminance(colour) + 0.05) >= 3
        assert (luminance(colour) + 0.05) / (luminance("#121212") + 0.05) >= 3
    assert len({dash for _, dash in STROKES}) == 3


def test_thinning_keeps_ends_and_extremes_in_order() -> None:
    points = [(step, float(step % 10)) for step in range(1000)]
    points[437] = (437, 99.0)
    points[612] = (612, -99.0)
    kept = thinned(points)
    assert len(kept) <= MOST_POINTS
    assert kept == sorted(kept)
    assert set(kept) <= set(points)
    assert {points[0], points[437], points[612], points[-1]} <= set(kept)
    assert thinned(points[:MOST_POINTS]) == points[:MOST_POINTS]


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (2.1, 7.9, [2, 3, 4, 5, 6, 7, 8]),
        (0, 20_000, [0, 5000, 10_000, 15_000, 20_000]),
        (0, 7e-4, [0, 2e-4, 4e-4, 6e-4, 8e-4]),
        (5, 5, [2, 3, 4, 5, 6, 7, 8]),
        (0, 0, [-0.6, -0.4, -0.2, 0, 0.2, 0.4, 0.6]),
    ],
)
def test_ticks_are_round_and_hold_the_values(low: float, high: float, wanted: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234, "1,234"), (2.0, "2"), (0.1234567, "0.123457"), (7e-5, "7e-05"), (1e20, "1e+20"), (True, "True"), ("<", "&lt;")],
)
def test_numbers_as_they_are_written(value: object, shown: str) -> None:
    assert number(value) == shown


def test_escaping() -> None:
    assert (
        escaped("<a href=\"x\" id='y'>&\n\x00\ud800\ufffe\uffffé\u202e")
        == "&lt;a href=&quot;x&quot; id=&#x27;y&#x27;&gt;&amp;\ufffd\ufffd\ufffd\ufffd\ufffdé\u202e"
    )
