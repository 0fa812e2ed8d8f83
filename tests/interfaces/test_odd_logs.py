"""A log and facts of a run that no training writes: what the server draws and the report tells is whole all the same."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dragoman.html import escaped, number
from dragoman.serve import runs
from dragoman.serve.answers import as_json
from dragoman.training.charts import line_chart
from dragoman.training.records import read_log_from
from dragoman.training.report import Report

HUGE = 10**400
ODD = "\ufffe\uffff\ud800\x01]]>&<script>\u202e"
STEP = {"step": 5, "loss": 2.5, "bleu": 9.0, "lr": 1e-3}


def write(run: Path, *records: Any, **facts: Any) -> Path:
    (run / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    (run / "log.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return run


def sent(run: Path) -> Any:
    """What the server sends of a run, of which every picture is XML, and the same of its curves; a report of it can be made too."""
    Report.read(run).html()
    as_json(runs._document("x", run, 0))
    found = json.loads(bytes(as_json(runs._view("x", run, "")).body))
    for chart in found["charts"]:
        ElementTree.fromstring(chart["svg"])
    return found


@pytest.mark.parametrize("value", [HUGE, -HUGE, 1.7e308, -1.7e308, 5e-324, float("nan"), float("inf"), True, None, "x", [], {}, ODD])
@pytest.mark.parametrize("field", ["t", "step", "loss", "bleu", "lr", "tok_s", "grad_norm", "seconds", "mem", "samples", "event"])
def test_a_log_of_odd_values(field: str, value: Any, tmp_path: Path) -> None:
    odd = [{"t": kind, **STEP, "step": 6, "seconds": 3.0, field: value} for kind in ("train", "eval")]
    run = write(tmp_path, *({"t": kind, **STEP} for kind in ("train", "eval")), *odd, {"t": "event", "event": "resume", "step": 9})
    assert sent(run)["charts"][0]["title"] == "Loss"


@pytest.mark.parametrize("value", [HUGE, 0, -3, float("nan"), True, None, "x", [3], ODD])
@pytest.mark.parametrize("name", ["model.d_model", "training.warmup_steps", "training.max_steps", "training.best_by", "data.source"])
def test_settings_of_odd_kinds(name: str, value: Any, tmp_path: Path) -> None:
    group, key = name.split(".")
    run = write(tmp_path, {"t": "train", **STEP}, {"t": "eval", **STEP}, settings={group: {key: value}}, status=ODD)
    assert "Learning rate" in [chart["title"] for chart in sent(run)["charts"]]


@pytest.mark.parametrize("sample", [None, 3, "x", [{}]])
def test_what_is_no_sample_is_not_sent(sample: Any, tmp_path: Path) -> None:
    assert sent(write(tmp_path, {"t": "eval", **STEP, "samples": [sample]}))["samples"] == []


@pytest.mark.parametrize(
    ("sample", "source", "reference", "output"),
    [
        ({}, "", "", ""), ({"output": HUGE}, "", "", str(HUGE)),
        ({"source": ODD, "reference": 3, "output": float("nan")}, ODD.replace("\ud800", "?"), "3", "nan"),
    ],
)  # fmt: skip
def test_samples_of_odd_kinds_are_sent_as_text(sample: Any, source: str, reference: str, output: str, tmp_path: Path) -> None:
    (table,) = sent(write(tmp_path, {"t": "eval", **STEP, "samples": [sample]}))["samples"]
    assert (table["caption"], table["rows"]) == (f"“{source}”", [["reference", reference], ["step 5", output]])


def test_what_xml_forbids_is_in_no_picture() -> None:
    assert escaped("a\ufffe\uffff\U0001fffe") == "a\ufffd\ufffd\U0001fffe"
    ElementTree.fromstring(line_chart(ODD, {ODD: [(1, 2.0)]}))


def test_a_number_beyond_those_of_float_is_written() -> None:
    assert number(HUGE) == "1" + 400 * "0"


def test_a_run_is_drawn_once_for_all_who_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, read = write(tmp_path, {"t": "train", **STEP}), []

    def counted(*place: Any) -> Any:
        read.append(place)
        return read_log_from(*place)

    monkeypatch.setattr(runs, "read_log_from", counted)
    assert runs._view("x", run, "")["updates"] == runs._view("x", run, "")["updates"]
    assert len(read) == 1
    write(run, {"t": "train", **STEP}, {"t": "train", **STEP, "step": 6})
    assert len(runs._view("x", run, "")["updates"]["rows"]) == 2
