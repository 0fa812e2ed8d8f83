"""Files that options name and that the system does not let be read or written: one line with the place, the cause and the remedy."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import tiny_bundle
from dragoman.bundle import save_bundle
from dragoman.cli import main
from dragoman.errors import unreadable, unwritable
from language_models import random_bundle

NAMES, FOLDER = "; check its name", "; give a file, for this is a folder"
NOWHERE = "; make its folder first, or give another file"
TRANSLATE, HYPOTHESES = ["translate", "model", "text"], ["evaluate", "--hypotheses", "text"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models, a text, and a folder where a file should be."""
    monkeypatch.chdir(tmp_path)
    tiny_bundle(tmp_path / "model")
    save_bundle(random_bundle({"architecture": "decoder-only"}), tmp_path / "gpt")
    for name in ("text", "t.aa", "t.bb"):
        Path(name).write_text("ona bek\ntilu\n", encoding="utf-8")
    Path("folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "place", "remedy"),
    [
        ([*TRANSLATE, "--glossary", "none.tsv"], "none.tsv", NAMES),
        ([*TRANSLATE, "--glossary", "text/none.tsv"], "text/none.tsv", "; check its name, for a part of it is a file and no folder"),
        ([*TRANSLATE, "--glossary", "folder"], "folder", FOLDER),
        ([*TRANSLATE, "--prefix", "none"], "none", "; give --prefix a file with a line for each line of the text, or the word column"),
        ([*TRANSLATE, "--prefix", "folder"], "folder", FOLDER),
        (["translate", "model", "none"], "none", "; give text files, or - for standard input"),
        (["translate", "model", "folder"], "folder", FOLDER),
        ([*TRANSLATE, "-o", "none/out"], "none/out", NOWHERE),
        ([*TRANSLATE, "-o", "text/out"], "text/out", "; give another name, for a part of it is a file and no folder"),
        ([*TRANSLATE, "-o", "out", "--align", "none/links"], "none/links", NOWHERE),
        ([*TRANSLATE, "--align", "none/links"], "none/links", NOWHERE),
        ([*TRANSLATE, "--attention", "none/a.npz"], "none/a.npz", NOWHERE),
        ([*TRANSLATE, "--attention", "text/a.npz"], "text/a.npz", "; give another name, for a part of it is a file and no folder"),
        ([*TRANSLATE, "--ensemble", "none"], "none", "; give a run folder, a checkpoint folder or a bundle"),
        ([*HYPOTHESES, "--reference", "none"], "none", NAMES),
        ([*HYPOTHESES, "--reference", "folder"], "folder", FOLDER),
        (["evaluate", "--hypotheses", "none", "--reference", "text"], "none", NAMES),
        ([*HYPOTHESES, "--reference", "text", "--html", "none/page.html"], "none/page.html", NOWHERE),
        (["evaluate", "model", "--test", "t", "-o", "none/out"], "none/out", NOWHERE),
        (["compare", "text", "folder", "--test", "t"], "folder", "; give another folder"),
        (["compare", "text", "text", "--reference", "none"], "none", NAMES),
        (["score", "model", "--test", "none"], "none", "; give a prefix, a .tsv or .jsonl file, or SOURCE_FILE,TARGET_FILE"),
        (["score", "gpt", "--test", "folder"], "folder", "; the model is decoder-only, so give text files, one text a line"),
        (["generate", "gpt", "--file", "folder"], "folder", FOLDER),
        (["generate", "gpt", "ona", "-o", "none/out"], "none/out", NOWHERE),
        (["explain", "model", "ona", "--html", "none/page.html"], "none/page.html", NOWHERE),
        (["explain", "model", "ona", "--tensor", "encoder.0.self.scores", "--npy", "none/a.npy"], "none/a.npy", NOWHERE),
    ],
)
def test_a_file_that_cannot_be_is_told_with_its_remedy(
    arguments: list[str], place: str, remedy: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) in (1, 2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert err.startswith("dragoman: ")
    assert f"{place}: " in err
    assert str(desk) not in err  # a name is told as it was typed
    assert remedy in err


def test_an_output_is_named_as_it_was_typed_and_a_link_to_it_stays(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out.partial").write_text("somebody's\n")
    assert main([*TRANSLATE, "-o", "out", "--resume"]) == 1
    assert capsys.readouterr().err.startswith(
        "dragoman: out.partial: not of a translation that can go on, for there is no out.partial.json"
    )
    Path("out.partial.json").write_text("{}")
    assert main(["explain", "model", "ona", "--html", "./out"]) == 1
    assert capsys.readouterr().err == (
        "dragoman: out.partial: holds an unfinished translation; go on with it by `dragoman translate --resume`, or remove both\n"
    )
    Path("link").symlink_to(desk / "none" / "page.html")
    assert main([*HYPOTHESES, "--reference", "text", "--html", "link"]) == 1
    assert capsys.readouterr().err == f"dragoman: link: cannot write: {os.strerror(errno.ENOENT)}{NOWHERE}\n"
    Path("none").mkdir()
    assert main([*HYPOTHESES, "--reference", "text", "--html", "link", "--bootstrap", "0"]) == 0
    assert Path("link").readlink() == desk / "none" / "page.html"
    assert [path.name for path in Path("none").iterdir()] == ["page.html"]


@pytest.mark.parametrize("sentence", [unreadable, unwritable])
@pytest.mark.parametrize("number", [errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.ENOSPC, errno.EIO, errno.ENAMETOOLONG])
def test_every_cause_has_a_remedy(sentence: Callable[[str, OSError], str], number: int) -> None:
    place, cause = sentence("a.txt", OSError(number, os.strerror(number))).split("; ")
    assert place.startswith("a.txt: cannot ")
    assert place.endswith(f": {os.strerror(number)}")
    assert cause
