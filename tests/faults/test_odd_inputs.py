"""Odd but plausible inputs of the verbs: each does the right thing or is one line with the cause, the place and the remedy."""

import io
import sys
from pathlib import Path

import pytest

from command_line import tiny_bundle
from dragoman.cli import main

CLOSED = "standard input is closed; give a file, or redirect text into the command"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model and a text."""
    monkeypatch.chdir(tmp_path)
    tiny_bundle(tmp_path / "model")
    Path("text").write_text("ona bek\ntilu\n", encoding="utf-8")
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    """The one line with which a command is refused, and nothing is left behind."""
    before = sorted(Path.cwd().iterdir())
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert sorted(Path.cwd().iterdir()) == before
    return err.removeprefix("dragoman: ").removesuffix("\n")


@pytest.mark.parametrize(
    "arguments", [["translate", "model"], ["evaluate", "--hypotheses", "-", "--reference", "text"], ["explain", "model", "-"]]
)
def test_a_closed_standard_input_is_told(
    arguments: list[str], desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next file that is opened has its number: it was read instead, or the message was of a bad descriptor, or a traceback."""
    monkeypatch.setattr(sys, "stdin", None)
    assert refusal(capsys, 1, *arguments) == CLOSED


def test_an_empty_standard_input_is_called_so(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr("dragoman.cli.evaluation_options.arriving_lines", lambda descriptor, place: iter(()))
    said = refusal(capsys, 1, "evaluate", "--hypotheses", "-", "--reference", "text")
    assert said == "standard input: empty; give a text with one translation for each sentence"


def test_arrays_do_not_go_to_a_file_called_hyphen(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, 2, "translate", "model", "text", "--attention", "-")
    assert said == "--attention -: standard output is for the translations; give a file, such as attention.npz"


@pytest.mark.parametrize(
    ("length", "fault"),
    [
        ("x", "x: neither a number of tokens nor a multiple of the source's, such as 1.5x"),
        ("0", "0: it must be at least 1, for the end token counts"),
    ],
)
def test_a_length_that_is_none_is_shown_as_it_was_given(length: str, fault: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, 2, "translate", "model", "text", "--max-length", length)
    assert said == f"Invalid value for '--max-length': {fault} (see `dragoman translate --help`)"


@pytest.mark.parametrize(
    ("verb", "remedy"),
    [
        ("translate", "use a smaller --beam, shorter lines"),
        ("generate", "use a smaller --beam, shorter lines"),
        ("inspect", "give less at once"),
    ],
)
def test_too_little_memory_is_mended_by_what_the_verb_has(
    verb: str, remedy: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("dragoman.bundle.build_model", full)
    more = {"translate": ["text"], "generate": ["ona"], "inspect": []}[verb]
    assert refusal(capsys, 1, verb, "model", *more) == f"out of memory; {remedy}, a smaller model, or another device"
