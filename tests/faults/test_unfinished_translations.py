"""Interrupted translations of files: nothing recorded is lost, no line comes twice, and no half file has a whole one's name."""

import errno
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import but_for_limits, tiny_bundle
from dragoman.cli import main, unfinished
from dragoman.cli.stops import undisturbed
from dragoman.cli.unfinished import Unfinished
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError

LINES = ["ona bek", "tilu", "", "rem sova kip dal", "kip", "bek bek rem", "élan 東京"]
FORMATS: list[list[str]] = [[], ["--n-best", "3"], ["--json"], ["--scores"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("models") / "words")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder with a text of four windows."""
    monkeypatch.setattr("dragoman.cli.windows.WINDOW_LINES", 2)
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return tmp_path


def run(model: Path, *arguments: str) -> int:
    return main(["translate", str(model), "text", "--device", "cpu", "-o", "out", *arguments])


def interrupted(model: Path, *arguments: str, after: int) -> None:
    """A translation that fails after so many windows."""
    with pytest.MonkeyPatch.context() as patch:
        translate, calls = Translator.translate, []

        def broken(self: Translator, texts: list[str], **options: Any) -> Any:
            calls.append(texts)
            if len(calls) > after:
                raise OSError(errno.EIO, "the cable was pulled", "model")
            return translate(self, texts, **options)

        patch.setattr(Translator, "translate", broken)
        assert run(model, *arguments, "--quiet") == 1


def in_a_child(work: Callable[[], int]) -> int:
    """The exit status of ``work`` in a process of its own; below 0 the signal that ended it."""
    child = os.fork()
    if not child:
        status = 70
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(point: int, work: Callable[[], int]) -> int:
    """Does ``work`` in a child that is killed when it touches its files for so manieth time, half of what it writes then written."""

    def dying() -> int:
        touched = 0

        def touch() -> bool:
            nonlocal touched
            touched += 1
            return touched > point

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            mine = any("out" in str(each) for each in arguments[:2])
            if event in ("open", "os.rename", "os.remove") and mine and touch():
                os.kill(os.getpid(), signal.SIGKILL)

        write = Unfinished._write

        def torn(self: Unfinished, name: str, data: bytes) -> None:
            if touch():
                write(self, name, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            write(self, name, data)

        Unfinished._write = torn  # type: ignore[method-assign]
        sys.addaudithook(audit)
        return work()

    return in_a_child(dying)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("arguments", FORMATS, ids=" ".join)
def test_a_kill_at_any_point_loses_nothing(arguments: list[str], model: Path, desk: Path) -> None:
    arguments = [*arguments, "--align", "out.links", "--quiet"]
    assert run(model, *arguments) == 0
    whole = {name: Path(name).read_bytes() for name in ("out", "out.links")}
    kills = 0
    for point in range(200):
        for name in whole:
            Path(name).unlink(missing_ok=True)
        status = killed_at(point, lambda: run(model, *arguments))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        kills += 1
        for name, content in whole.items():
            assert not Path(name).exists() or Path(name).read_bytes() == content
        if Path("out").exists() and not Path("out.partial.json").exists():
            continue  # all was done
        assert run(model, *arguments, "--resume") == 0
        assert {name: Path(name).read_bytes() for name in whole} == whole, point
        assert sorted(path.name for path in desk.iterdir() if not path.name.startswith(".")) == ["out", "out.links", "text"]
    assert kills > 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_many_kills_in_a_row(model: Path, desk: Path) -> None:
    assert run(model, "--quiet") == 0
    whole = Path("out").read_bytes()
    Path("out").unlink()
    statuses = [killed_at(point, lambda: run(model, "--quiet", "--resume")) for point in (6, 9, 3, 12, 0, 9, 14, 11)]
    assert set(statuses) <= {0, -signal.SIGKILL}
    if not Path("out").exists():
        assert run(model, "--quiet", "--resume") == 0
    assert Path("out").read_bytes() == whole


def test_resuming_translates_only_what_is_missing(
    model: Path, desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    interrupted(model, after=2)
    assert len(Path("out.partial").read_text().splitlines()) == 4
    assert not Path("out").exists()
    translate, seen = Translator.translate, []

    def noted(self: Translator, texts: list[str], **options: Any) -> Any:
        seen.extend(texts)
        assert options["first_line"] == (5 if texts == LINES[4:6] else 7)
        return translate(self, texts, **options)

    capfd.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", noted)
        assert run(model, "--resume") == 0
    assert seen == LINES[4:]
    assert capfd.readouterr().err.startswith("dragoman: out: 7 lines, ")
    assert Path("out").read_text().splitlines() == [each.text for each in Translator.load(model, device="cpu").translate(LINES)]


def test_an_interruption_says_how_to_go_on(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add = Unfinished.add

    def ended(number: int) -> Callable[..., None]:
        def add_and_end(self: Unfinished, *arguments: Any) -> None:
            add(self, *arguments)
            if self.tally.lines == 4:
                os.kill(os.getpid(), number)

        return add_and_end

    for number, status, word in ((signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Unfinished, "add", ended(number))
            assert run(model, "--resume") == status
        assert but_for_limits(capfd.readouterr().err).splitlines() == [
            "dragoman: warning: out.partial: holds the first 4 lines; the same command with --resume goes on from there",
            f"dragoman: {word}",
        ]
        Path("out.partial").unlink()
        Path("out.partial.json").unlink()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_just_after_a_failure_does_not_keep_it_from_saying_how_to_go_on(
    model: Path, desk: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun sends one when another process is gone, of which this one has just heard."""
    add, quiet = Unfinished.add, iter([True])

    def failing(self: Unfinished, *arguments: Any) -> None:
        add(self, *arguments)
        if self.tally.lines == 4:
            raise DragomanError("another process ended")

    def just_before() -> Any:
        if next(quiet, False):
            os.kill(os.getpid(), signal.SIGTERM)
        return undisturbed()

    monkeypatch.setattr(Unfinished, "add", failing)
    monkeypatch.setattr(unfinished, "undisturbed", just_before)
    assert run(model, "--resume") == 143
    assert but_for_limits(capfd.readouterr().err).splitlines() == [
        "dragoman: warning: out.partial: holds the first 4 lines; the same command with --resume goes on from there",
        "dragoman: terminated",
    ]


def refusal(capfd: pytest.CaptureFixture[str], status: int, model: Path, *arguments: str) -> str:
    """The one line with which it refuses; nothing in the folder has changed."""
    before = {path: path.read_bytes() for path in Path.cwd().iterdir() if path.is_file()}
    capfd.readouterr()
    assert run(model, *arguments) == status
    out, err = capfd.readouterr()
    assert {path: path.read_bytes() for path in Path.cwd().iterdir() if path.is_file()} == before
    assert (out, err.count("\n")) == ("", 1), err
    return err


def test_what_does_not_belong_together_is_refused(model: Path, desk: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    interrupted(model, "--beam", "3", after=2)
    go_on = ("--resume", "--beam", "3")
    assert "holds the first 4 lines of an unfinished translation; go on with it by --resume" in refusal(capfd, 1, model, "--beam", "3")
    assert "--beam was 3 and is 2;" in refusal(capfd, 2, model, "--resume", "--beam", "2")
    assert "--n-best was 1 and is 2" in refusal(capfd, 2, model, *go_on, "--n-best", "2")
    assert "--align was not given and is links" in refusal(capfd, 2, model, *go_on, "--align", "links")
    other = tiny_bundle(tmp_path / "other", max_positions=32)
    assert "the model was " in refusal(capfd, 2, other, *go_on)

    text = Path("text").read_text()
    for changed in (text.replace("tilu", "bek"), "ona bek\n", "\n" + text):
        Path("text").write_text(changed)
        assert "the first 4 lines of the input are not those" in refusal(capfd, 1, model, *go_on)
    Path("text").write_text(text.replace("kip\n", "dal\n"))  # behind what is done: translated as it is now

    partial, record = Path("out.partial").read_bytes(), Path("out.partial.json").read_text()
    for content in (partial[:-1], partial.replace(b"a", b"e")):
        Path("out.partial").write_bytes(content)
        assert "out.partial: changed since it was written" in refusal(capfd, 1, model, *go_on)
    Path("out.partial").write_bytes(partial)
    changes = [
        ('"format": 2', '"format": 1'),
        ('"lines": 4', '"lines": "4"'),
        ('"complete": false', '"complete": 0'),
        ('"missed": 0', '"lost": 0'),
    ]
    for damaged in ("{", "[]", "{}", *(record.replace(*change) for change in changes)):
        assert damaged != record
        Path("out.partial.json").write_text(damaged)
        assert "out.partial.json: not the record of an unfinished translation, or damaged" in refusal(capfd, 1, model, *go_on)
    Path("out.partial.json").write_text(record)

    with Path("out.partial").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "out: another process is writing it" in refusal(capfd, 1, model, *go_on)
    assert run(model, *go_on, "--quiet") == 0
    assert len(Path("out").read_text().splitlines()) == 7


def test_unfinished_files_of_others_are_left_alone(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("out.partial").write_text("somebody's\n")
    for resume in ([], ["--resume"]):
        assert "out.partial: not of a translation that can go on" in refusal(capfd, 1, model, *resume)
    Path("out.partial").unlink()
    Path("out").write_text("of another day\n")
    assert "out: is there, and no out.partial to go on with" in refusal(capfd, 1, model, "--resume")
    Path("links.partial").write_text("somebody's\n")
    assert "links.partial: not of a translation that can go on" in refusal(capfd, 1, model, "--align", "links")
    assert main(["evaluate", str(model), "--test", "text,text", "-o", "out", "--quiet"]) == 0
    interrupted(model, after=1)
    assert main(["evaluate", str(model), "--test", "text,text", "-o", "out", "--quiet"]) == 1
    assert "out.partial: holds an unfinished translation" in capfd.readouterr().err


def test_what_was_counted_is_said_though_interrupted_and_kept(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A term that no translation has room for, nor the blank line 3, a line in pieces, and outputs of the most tokens."""
    Path("text").write_text("\n".join([*LINES[:4], "ona " * 70, *LINES[5:6]]) + "\n", encoding="utf-8")
    asked = ("--require", "kip dal", "--max-length", "2")
    missed = [f"dragoman: warning: line {number}: kip dal is not in the translation" for number in range(1, 7)]
    add, said = Unfinished.add, {}
    for lines in (4, 6):

        def add_and_fail(self: Unfinished, *arguments: Any, lines: int = lines) -> None:
            add(self, *arguments)
            if self.tally.lines == lines:
                raise OSError(errno.EIO, "the cable was pulled", "model")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Unfinished, "add", add_and_fail)
            assert run(model, *asked, "--resume") == 1
        said[lines] = capfd.readouterr().err.splitlines()
        said[lines] = [line for line in said[lines][:-1] if "holds the first" not in line and "exceed the model's limit" not in line]
    cut = "translations reached the longest length allowed and may be cut; lines:"
    assert said[4] == [f"dragoman: warning: 3 {cut} 1, 2, 4", "dragoman: 0 of 4 required terms stand in the translations", *missed[:4]]
    counted = [
        "dragoman: 1 line was longer than the model takes, and translated in pieces",
        f"dragoman: warning: 5 {cut} 1, 2, 4, 5, 6",
        "dragoman: 0 of 6 required terms stand in the translations", *missed,
    ]  # fmt: skip
    assert said[6] == counted
    assert run(model, *asked, "--resume") == 0
    assert capfd.readouterr().err.splitlines()[1:] == counted
    record = Unfinished._record

    def record_and_fail(self: Unfinished, *, complete: bool = False) -> None:
        record(self, complete=complete)
        if complete:
            raise OSError(errno.EIO, "the cable was pulled", "model")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unfinished, "_record", record_and_fail)
        assert run(model, *asked) == 1
    capfd.readouterr()
    assert run(model, *asked, "--resume") == 0
    assert capfd.readouterr().err.splitlines() == ["dragoman: out: was complete but for its name", *counted]


def test_what_was_complete_but_for_its_name_is_checked_first(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(self: Unfinished) -> None:
        raise OSError(errno.EIO, "the cable was pulled", "model")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unfinished, "publish", fail)
        assert run(model) == 1
    capfd.readouterr()
    whole = Path("out.partial").read_text("utf-8")
    Path("out.partial").write_text(whole[:-3], encoding="utf-8")
    assert "out.partial: changed since it was written" in refusal(capfd, 1, model, "--resume")
    Path("out.partial").unlink()
    assert "changed since it was written" in refusal(capfd, 1, model, "--resume")
    Path("out.partial").write_text(whole, encoding="utf-8")
    for others in ([*LINES, "ona"], LINES[:-1], [*LINES[:-1], "ona"]):
        Path("text").write_text("".join(f"{line}\n" for line in others), encoding="utf-8")
        assert "of the input are not th" in refusal(capfd, 1, model, "--resume")
    assert not Path("out").exists()
    Path("text").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    Path("out.partial").rename("out")  # killed after that, and before the record went
    assert run(model, "--resume") == 0
    assert Path("out").read_text("utf-8") == whole
    assert not Path("out.partial.json").exists()


def test_nothing_is_left_where_the_record_cannot_be_written(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for suffix in (".partial", ".partial.json"):  # there is room for the file alone, or for its record but not for what is beside that
        name = "x" * (os.pathconf(".", "PC_NAME_MAX") - len(suffix))
        assert main(["translate", str(model), "text", "--device", "cpu", "-o", name]) == 1
        assert "File name too long" in capfd.readouterr().err
        assert os.listdir() == ["text"]


def test_prefixes_belong_to_the_lines_that_are_done(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prefixes = ["rem", "", "", "kip", "", "dal", ""]

    def write(lines: list[str]) -> None:
        Path("begin").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    write(prefixes)
    asked = ("--prefix", "begin", "--quiet")
    assert run(model, *asked) == 0
    whole = Path("out").read_text()
    Path("out").unlink()
    interrupted(model, *asked[:2], after=2)
    assert "--prefix was a file and is not given" in refusal(capfd, 2, model, "--resume")
    for others in (["sova", *prefixes[1:]], ["rem", "kip", "", "", *prefixes[4:]]):
        write(others)
        assert "the first 4 lines of the input are not those" in refusal(capfd, 1, model, *asked, "--resume")
    for others in (prefixes[:5], [*prefixes, ""]):
        write(others)
        sentence = f"begin: must have as many lines as the text to translate, 7, and has {len(others)}"
        assert sentence in refusal(capfd, 1, model, *asked, "--resume")
    write([*prefixes[:4], "bek", "dal", ""])  # behind what is done: taken as it is now
    assert run(model, *asked, "--resume") == 0
    now = Path("out").read_text().splitlines()
    assert now[4].startswith("bek")
    assert now[:4] + now[5:] == whole.splitlines()[:4] + whole.splitlines()[5:]


def through_a_pipe(model: Path, prefixes: list[str], *arguments: str) -> int:
    """A translation with prefixes from a named pipe, which can be read once."""
    Path("pipe").unlink(missing_ok=True)
    os.mkfifo("pipe")
    writer = threading.Thread(target=Path("pipe").write_text, args=("".join(f"{prefix}\n" for prefix in prefixes),), daemon=True)
    writer.start()
    try:
        return run(model, "--prefix", "pipe", *arguments)
    finally:
        writer.join(timeout=10)
        assert not writer.is_alive()


def test_work_of_an_older_version_is_gone_on_with(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its record does not count outputs of the most tokens: those of its lines are not counted."""
    assert run(model, "--quiet") == 0
    whole = Path("out").read_bytes()
    Path("out").unlink()
    interrupted(model, after=2)
    record = json.loads(Path("out.partial.json").read_bytes())
    assert (record.pop("at_limit"), record.pop("limit_lines"), record["lines"]) == (3, [1, 2, 4], 4)
    Path("out.partial.json").write_text(json.dumps(record))
    capfd.readouterr()
    assert run(model, "--resume") == 0
    assert Path("out").read_bytes() == whole
    counted = "3 translations reached the longest length allowed and may be cut; lines: 5, 6, 7"
    assert capfd.readouterr().err.splitlines()[1:] == [f"dragoman: warning: {counted}"]


def test_prefixes_from_a_pipe_are_read_once_and_lose_nothing(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prefixes = ["rem", "", "", "kip", "", "dal", ""]
    Path("begin").write_text("\n".join(prefixes) + "\n", encoding="utf-8")
    assert run(model, "--prefix", "begin") == 0
    whole = Path("out").read_bytes()
    capfd.readouterr()

    assert through_a_pipe(model, [*prefixes, "nur"]) == 0
    surplus, summary = but_for_limits(capfd.readouterr().err).splitlines()
    assert surplus == "dragoman: warning: pipe: goes on after line 7, where the text ends; the rest is left out"
    assert summary.startswith("dragoman: out: 7 lines, ")
    assert Path("out").read_bytes() == whole

    Path("out").unlink()
    assert through_a_pipe(model, prefixes[:5]) == 1
    kept, sentence = but_for_limits(capfd.readouterr().err).splitlines()
    assert "holds the first 5 lines" in kept
    assert sentence == "dragoman: pipe: ends after line 5, but there are more lines to translate; give one for each"
    assert through_a_pipe(model, prefixes, "--resume") == 0
    assert Path("out").read_bytes() == whole


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["text", "--resume"], 2, "--resume goes on with an output file"),
        (["text", "--resume", "-o", "-"], 2, "--resume goes on with an output file"),
        (["text", "--resume", "-o", "/dev/null"], 2, "--resume goes on with an output file"),
        (["text", "-o", "out", "--align", "out"], 2, "name one file"),
        (["text", "-o", "out", "--align", "out.partial"], 2, "name one file"),
        (["text", "-o", ""], 2, "-o .: no name of a file, but empty or a folder; give the file to write"),
        (["text", "--align", "/"], 2, "--align /: no name of a file"),
        (["text", "--attention", ""], 2, "--attention .: no name of a file"),
        (["text", "-o", "out", "--align", "./text"], 2, "text: is to be read and would be written over"),
        (["out.partial", "-o", "out"], 2, "out.partial: is to be read and would be written over"),
        (["text", "--attention", "text"], 2, "text: is to be read and would be written over"),
        (["text", "--glossary", "terms", "--align", "./terms"], 2, "terms: is to be read and would be written over"),
        (["text", "--glossary", "terms", "--attention", "terms"], 2, "terms: is to be read and would be written over"),
        (["text", "--glossary", "terms", "-o", "terms"], 2, "terms: is to be read and would be written over"),
        (["text", "--prefix", "terms", "-o", "terms"], 2, "terms: is to be read and would be written over"),
        (["text", "-o", "MODEL/model.safetensors"], 2, "model.safetensors: is to be read and would be written over"),
        (["text", "-o", "out", "--align", "MODEL/config.json"], 2, "config.json: is to be read and would be written over"),
        (["text", "-o", "out", "--attention", "a.npz", "--resume"], 2, "--attention is for one process"),
        (["text", "--prefix", "missing"], 1, "missing: no such file; give --prefix a file with a line for each line"),
        (["text", "--align", "-"], 2, "--align -: standard output is for the translations"),
        (["text", "--align-layer", "1"], 2, "--align-layer chooses what --align writes"),
        (["text", "--align", "links", "--align-layer", "2"], 2, "layer 2: the model's decoder has layers 1 to 1"),
        (["text", "-o", "missing/out"], 1, "missing/out: cannot write"),
        (["text", "-o", "out", "--align", "missing/links"], 1, "missing/links: cannot write"),
        (["text", "--attention", "missing/a.npz"], 1, "missing/a.npz: cannot write"),
    ],
)
def test_impossible_wishes_are_one_line(
    arguments: list[str], status: int, sentence: str, model: Path, desk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("out.partial").touch()
    Path("terms").write_text("ona\tbek\n" * len(LINES))
    weights = (model / "model.safetensors").read_bytes()
    assert main(["translate", str(model), *(each.replace("MODEL", str(model)) for each in arguments)]) == status
    out, err = capfd.readouterr()
    assert sentence in err
    assert (out, err.count("\n")) == ("", 1)
    assert Path("text").read_text().splitlines() == LINES
    assert Path("terms").read_text() == "ona\tbek\n" * len(LINES)
    assert (model / "model.safetensors").read_bytes() == weights


def test_a_full_disk_stops_with_one_line_and_can_be_gone_on_from(
    model: Path, desk: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = Unfinished._write, []

    def full(self: Unfinished, name: str, data: bytes) -> None:
        calls.append(name)
        if len(calls) == 3:
            write(self, name, data[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, name, data)

    monkeypatch.setattr(Unfinished, "_write", full)
    assert run(model) == 1
    *_, kept, last = but_for_limits(capfd.readouterr().err).splitlines()
    assert "out.partial: holds the first 4 lines" in kept
    assert last == "dragoman: out: cannot write: No space left on device; make room there, and go on with --resume"
    assert run(model, "--resume", "--quiet") == 0
    assert Path("out").read_text().splitlines() == [each.text for each in Translator.load(model, device="cpu").translate(LINES)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_after_a_failure_hides_neither_its_cause_nor_what_was_kept(
    number: int, model: Path, desk: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status is the failure's, too."""
    write, read, calls = Unfinished._write, Unfinished._read_record, []

    def full(self: Unfinished, name: str, data: bytes) -> None:
        calls.append(name)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, name, data)

    def disturbed(self: Unfinished) -> dict[str, Any] | None:
        if calls:
            signal.raise_signal(number)
        return read(self)

    monkeypatch.setattr(Unfinished, "_write", full)
    monkeypatch.setattr(Unfinished, "_read_record", disturbed)
    assert run(model) == 1
    *_, kept, last = but_for_limits(capfd.readouterr().err).splitlines()
    assert "out.partial: holds the first 4 lines" in kept
    assert last == "dragoman: out: cannot write: No space left on device; make room there, and go on with --resume"


def test_of_two_signals_the_first_is_told(
    model: Path, desk: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add, keep = Unfinished.add, Unfinished._keep

    def ended(self: Unfinished, *arguments: Any) -> None:
        add(self, *arguments)
        signal.raise_signal(signal.SIGTERM)

    def disturbed(self: Unfinished) -> None:
        signal.raise_signal(signal.SIGINT)
        keep(self)

    monkeypatch.setattr(Unfinished, "add", ended)
    monkeypatch.setattr(Unfinished, "_keep", disturbed)
    assert run(model) == 143
    *_, kept, last = but_for_limits(capfd.readouterr().err).splitlines()
    assert "out.partial: holds the first" in kept
    assert last == "dragoman: terminated"


def piped(model: Path, raw: bytes, *arguments: str) -> int:
    """A translation of what a pipe on standard input holds."""
    before, (read_end, write_end) = os.dup(0), os.pipe()
    try:
        os.write(write_end, raw)
        os.close(write_end)
        os.dup2(read_end, 0)
        return main(["translate", str(model), "-", "--device", "cpu", "-o", "out", *arguments])
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read_end)


def test_standard_input_is_given_again(model: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = Path("text").read_bytes()
    assert piped(model, text + b"re\xffm\n") == 1
    assert json.loads(Path("out.partial.json").read_bytes())["lines"] == 7
    capfd.readouterr()
    assert piped(model, b"bek\n" * 8, "--resume") == 1
    assert "the first 7 lines of the input are not those" in capfd.readouterr().err
    assert piped(model, text[:9], "--resume") == 1
    assert piped(model, text + b"rem\n", "--resume") == 0
    expected = [each.text for each in Translator.load(model, device="cpu").translate([*LINES, "rem"])]
    assert Path("out").read_text().splitlines() == expected


def test_the_old_file_stays_until_the_new_one_is_whole(model: Path, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("out").write_text("of another day\n")
    sizes: list[int] = []
    record = Unfinished._record

    def noted(self: Unfinished, **how: bool) -> None:
        record(self, **how)
        assert Path("out").read_text() == "of another day\n"
        sizes.append(Path("out.partial").stat().st_size)

    monkeypatch.setattr(Unfinished, "_record", noted)
    assert run(model, "--quiet") == 0
    assert sizes[0] == 0
    assert sizes[1:-1] == sorted(set(sizes[1:-1])), "it grows as it goes"
    assert len(sizes) == 6
    assert Path("out").stat().st_size == sizes[-1]


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """Signals are as before after every test."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before
