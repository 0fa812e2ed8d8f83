"""``dragoman demo``: its dates and how they are parted, the commands it shows, its messages, and that it learns what it promises."""

import json
import sys
from datetime import date
from pathlib import Path

import pytest
from babel import Locale

from dragoman.cli import main
from dragoman.cli.demo import DATES, written_forms

DAY = date(2025, 11, 29)


def test_english_and_german_dates() -> None:
    assert written_forms(DAY, Locale.parse("en"), Locale.parse("de")) == [
        ("Saturday, November 29, 2025", "Samstag, 29. November 2025"),
        ("Sat, Nov 29, 2025", "Samstag, 29. November 2025"),
        ("November 29, 2025", "29. November 2025"),
        ("Nov 29, 2025", "29. November 2025"),
        ("11/29/2025", "29. November 2025"),
    ]


def test_japanese_and_french_dates() -> None:
    assert written_forms(DAY, Locale.parse("ja"), Locale.parse("fr")) == [
        ("2025年11月29日土曜日", "samedi 29 novembre 2025"),
        ("2025年11月29日(土)", "samedi 29 novembre 2025"),
        ("2025年11月29日", "29 novembre 2025"),
        ("2025/11/29", "29 novembre 2025"),
        ("2025/11/29", "29 novembre 2025"),
    ]


def test_no_minutes_are_refused_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--minutes", "0", "--out", str(tmp_path / "demo")]) == 2
    assert "--minutes" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_what_it_shows_is_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With few days and time for one step: the folder beside an earlier one, the text, and each command, which run.json can repeat."""
    for name, count in {"test": 20, "valid": 5, "train": 600}.items():
        monkeypatch.setitem(DATES, name, count)
    monkeypatch.chdir(tmp_path)
    Path("runs/demo").mkdir(parents=True)
    assert main(["demo", "--pairs", "en-de", "--minutes", "0.00001", "--seed", "3"]) == 0
    text = Path("runs/demo-2/text/en-de")
    sides = {name: [(text / f"{name}.{code}").read_text(encoding="utf-8").splitlines() for code in ("en", "de")] for name in DATES}
    assert {name: tuple(map(len, pair)) for name, pair in sides.items()} == {name: (5 * days, 5 * days) for name, days in DATES.items()}
    days = {name: {line for line in pair[1] if line[0].isdigit()} for name, pair in sides.items()}
    assert {name: len(found) for name, found in days.items()} == DATES
    assert len(set.union(*days.values())) == sum(DATES.values())  # no day is in two of them
    out, err = capsys.readouterr()
    shown = out.splitlines()
    assert "warning: training.schedule=linear falls to 0 at step 900 (training.max_steps), but the minutes" in err
    commands = [line.removeprefix("$ ").split()[:3] for line in shown if line.startswith("$ dragoman")]
    run = "runs/demo-2/en-de"
    assert commands == [["dragoman", "train", "en-de"], ["dragoman", "evaluate", run], ["dragoman", "translate", run]]
    train = next(line for line in shown if line.startswith("$ dragoman train"))
    assert json.loads(Path(run, "run.json").read_bytes())["argv"] == train.removeprefix("$ ").split()
    examples = (text / "examples.en").read_text(encoding="utf-8").splitlines()
    place = shown.index(f"$ cat {text / 'examples.en'}")
    assert shown[place + 1 : place + 6] == examples
    assert shown.index("What to do next:") == place + 6 + 1 + 1 + 5 + 1


@pytest.mark.timeout(900)
def test_it_learns_dates_that_it_has_never_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    assert main(["demo", "--out", str(folder), "--pairs", "en-de", "--minutes", "200"]) == 0
    said = capsys.readouterr().err
    assert "warning" not in said  # minutes that are enough change nothing
    assert "training.schedule" not in said
    assert main(["evaluate", str(folder / "en-de"), "--test", str(folder / "text/en-de/test"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["sentences"] == 5 * DATES["test"]
    assert facts["exact_match"] >= 99


@pytest.mark.parametrize("pairs", ["ende", "en-", "en-en", "en-xx", "en-de,fr", "en-no such"])
def test_pairs_that_have_no_dates_are_refused_before_anything_is_made(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path / "demo"), "--pairs", pairs]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--pairs" in said
    assert "such as en-de" in said
    assert not (tmp_path / "demo").exists()


def test_a_folder_that_exists_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"dragoman: {tmp_path}: cannot make the folder: File exists; choose another --out\n"


def test_without_babel_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install babel" in said
    assert not (tmp_path / "demo").exists()
