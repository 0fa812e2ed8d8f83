"""No verb writes over what it reads, and what can be known before the work is said before it."""

import os
from pathlib import Path

import pytest

from command_line import tiny_bundle
from dragoman.cli import main

LINES = ["ona bek tilu", "rem sova kip", "dal ona rem"]
OVER = "is to be read and would be written over; give another name to write to"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in: a model, a damaged one, a test set, translations, a test set whose second file ends early."""
    tiny_bundle(tmp_path / "tiny")
    tiny_bundle(tmp_path / "damaged")
    (tmp_path / "damaged" / "tokenizer.json").unlink()
    for name in ("t.aa", "t.bb", "hyp", "hyp.partial", "hyp.partial.json", "second.bb", "short.aa"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    (tmp_path / "short.bb").write_text("ona\n", encoding="utf-8")
    (tmp_path / "linked").symlink_to("t.aa")
    (tmp_path / "again.partial").symlink_to("again")
    os.link(tmp_path / "second.bb", tmp_path / "twin")
    (tmp_path / "run").mkdir()
    for name in ("run.json", "log.jsonl"):
        (tmp_path / "run" / name).write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ("evaluate --hypotheses hyp --test t --pair aa-bb --html hyp", 2, f"hyp: {OVER}"),
        ("evaluate --hypotheses hyp.partial --test t --pair aa-bb --html hyp", 2, f"hyp.partial: {OVER}"),
        ("evaluate tiny --test t --reference second.bb -o second.bb", 2, f"second.bb: {OVER}"),
        ("evaluate tiny --test t --reference second.bb -o twin", 2, f"second.bb: {OVER}"),
        ("evaluate tiny --test t -o linked", 2, f"t.aa: {OVER}"),
        ("evaluate tiny --test t.aa,t.bb -o ./t.bb", 2, f"t.bb: {OVER}"),
        ("evaluate tiny --test t -o tiny/model.safetensors", 2, f"tiny/model.safetensors: {OVER}"),
        ("evaluate tiny --test t -o x --html ./x", 2, "two of -o and --html name one file"),
        ("evaluate tiny --test t -o x --html x.partial", 2, "two of -o and --html name one file"),
        ("evaluate tiny --test t --ensemble damaged -o damaged/config.json", 2, f"damaged/config.json: {OVER}"),
        ("compare hyp second.bb --test t --pair aa-bb --html second.bb", 2, f"second.bb: {OVER}"),
        ("compare hyp second.bb --test t --pair aa-bb --html t.bb", 2, f"t.bb: {OVER}"),
        ("compare tiny hyp --test t --html tiny/config.json", 2, f"tiny/config.json: {OVER}"),
        ("translate tiny t.aa -o t.aa", 2, f"t.aa: {OVER}"),
        ("translate tiny t.aa -o ./tiny/../t.aa", 2, f"t.aa: {OVER}"),
        ("translate tiny t.aa -o linked", 2, f"t.aa: {OVER}"),
        ("translate tiny linked -o t.aa", 2, f"linked: {OVER}"),
        ("translate tiny second.bb -o twin", 2, f"second.bb: {OVER}"),
        ("translate tiny t.aa t.bb hyp -o t.bb", 2, f"t.bb: {OVER}"),
        ("translate tiny t.aa -o t.aa --resume", 2, f"t.aa: {OVER}"),
        ("translate tiny t.aa -o x --attention linked", 2, f"t.aa: {OVER}"),
        ("translate tiny t.aa --prefix t.bb -o t.bb", 2, f"t.bb: {OVER}"),
        ("translate tiny t.aa --glossary t.bb -o t.bb", 2, f"t.bb: {OVER}"),
        ("translate tiny t.aa --ensemble damaged -o damaged/config.json", 2, f"damaged/config.json: {OVER}"),
        ("translate tiny hyp.partial.json -o hyp", 2, f"hyp.partial.json: {OVER}"),
        ("translate tiny t.aa -o x --align x.partial.json", 2, "two of -o, --align and --attention name one file"),
        ("embed tiny t.aa -o again", 2, "-o and what is beside it until it is whole name one file"),
        ("generate tiny --file t.aa --file t.bb -o t.bb", 2, f"t.bb: {OVER}"),
        ("generate tiny --file linked -o t.aa", 2, f"linked: {OVER}"),
        ("embed tiny t.aa -o linked", 2, f"t.aa: {OVER}"),
        ("embed tiny second.bb -o twin", 2, f"second.bb: {OVER}"),
        ("report run -o run/log.jsonl", 2, f"run/log.jsonl: {OVER}"),
        ("report run -o run/../run/run.json", 2, f"run/run.json: {OVER}"),
        ("compare tiny damaged --test t", 1, "neither tokenizer.json nor tokenizer.source.json and tokenizer.target.json is there"),
        ("score tiny --test t --test none", 1, "none: no such corpus"),
        ("score tiny --test t --test short", 1, "short.aa has 3 lines but short.bb has 1"),
    ],
)
def test_it_is_refused_before_any_work(
    arguments: str, status: int, sentence: str, desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(desk)
    monkeypatch.setattr("dragoman.decoding.translate.Translator.translate", None)
    monkeypatch.setattr("dragoman.decoding.translate.Translator.score", None)
    assert main(arguments.split()) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
    assert contents(desk) == before


def test_a_file_on_standard_input_is_not_written_over(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, terminal = contents(desk), os.dup(0)
    try:
        with (desk / "t.aa").open("rb") as file:
            os.dup2(file.fileno(), 0)
        assert main(["translate", "tiny", "-o", "linked"]) == 2
        assert capsys.readouterr() == ("", f"dragoman: standard input: {OVER}\n")
        assert contents(desk) == before
        assert main(["translate", "tiny", "-o", "x", "--quiet"]) == 0
        assert len((desk / "x").read_text(encoding="utf-8").splitlines()) == len(LINES)
    finally:
        os.dup2(terminal, 0)
        os.close(terminal)


def test_devices_and_files_beside_a_model_are_written(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # also over what the first wrote
        assert main(["evaluate", "tiny", "--test", "t", "-o", "tiny/out.bb", "--html", "tiny/page.html", "--quiet"]) == 0
    assert len((desk / "tiny" / "out.bb").read_text(encoding="utf-8").splitlines()) == len(LINES)
    assert main(["evaluate", "tiny", "--test", "t", "-o", "/dev/null", "--html", "/dev/null", "--quiet"]) == 0
