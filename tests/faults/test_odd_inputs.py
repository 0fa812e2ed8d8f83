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


def test_a_mark_before_the_text_is_no_part_of_it(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As `translate` has it: some editors put a byte-order mark there."""
    printed = []
    for raw in (b"ona bek\n", b"\xef\xbb\xbfona bek\r\n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        assert main(["explain", "model", "-", "--device", "cpu"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_what_is_no_model_of_another_program_is_told(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    said = refusal(capsys, 1, "import", "folder", "out")
    assert said.startswith("folder: no model of Hugging Face or CTranslate2, for there is no config.json; give the whole folder of a model")
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/run.json").write_text("{}")
    assert refusal(capsys, 1, "import", "run", "out") == "run: already a run of Dragoman; use it as it is"
    assert refusal(capsys, 1, "import", "text", "out") == "text: not a whole file of weights (UnpicklingError); use an undamaged copy"


def test_a_place_within_a_file_is_told(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, 1, "export", "model", "text/out", "--to", "huggingface")
    assert said == "text/out: cannot write: File exists; give another name, for a part of it is a file and no folder"


def test_a_folder_that_is_no_run_has_nothing_to_average(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    said = refusal(capsys, 1, "average", "folder", "--last", "1", "--out", "out")
    assert said == "folder: no run with a finished checkpoint; give a run folder"


def test_a_translator_makes_no_vectors(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, 1, "embed", "model", "text")
    assert said == "the model is encoder-decoder, and not one that makes vectors of texts: use dragoman translate"
