"""Whole files: windows that depend on the text alone, memory that does not grow, what is said of the work, and what it costs to start."""

import gzip
import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import tiny_bundle
from dragoman.cli import main
from dragoman.cli.progress import Progress
from dragoman.cli.rounds import Done, results
from dragoman.cli.streams import few_of_a_kind, set_up
from dragoman.cli.tally import Tally
from dragoman.cli.windows import Window, total_bytes, up_to_fault, windows
from dragoman.errors import LineError
from many_lines import faulty, numbered


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("models") / "words")


@settings(deadline=None)
@given(texts=st.lists(st.text(st.sampled_from("ab \u2028é"), max_size=9), max_size=12), lines=st.integers(1, 5), size=st.integers(1, 30))
def test_the_windows_of_a_file_depend_on_its_text_alone(
    texts: list[str], lines: int, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    raw = "".join(f"{text}\r\n" for text in texts).encode()
    (folder / "text").write_bytes(raw)
    (folder / "text.gz").write_bytes(gzip.compress(raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dragoman.cli.windows.WINDOW_LINES", lines)
        patch.setattr("dragoman.cli.windows.CHUNK_BYTES", size)
        cuts = []
        for chunk in (3, 1 << 19):
            patch.setattr("dragoman.cli.streams.CHUNK_BYTES", chunk)
            cuts.append([window.texts for window in windows([folder / "text"])])
        cuts.append([window.texts for window in windows([folder / "text.gz"])])
    assert cuts[0] == cuts[1] == cuts[2]
    assert [text for window in cuts[0] for text in window] == texts
    for window in cuts[0]:
        assert 1 <= len(window) <= lines
        assert sum(len(text) + 1 for text in window[:-1]) < size


def test_lines_are_numbered_in_their_file_and_over_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.windows.WINDOW_LINES", 2)
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("4\n")
    found = list(windows([tmp_path / "a", tmp_path / "b"]))
    assert [(Path(window.place).name, window.first_line, window.number, window.last) for window in found] == [
        ("a", 1, 1, 2), ("a", 3, 3, 3), ("b", 1, 4, 4),
    ]  # fmt: skip
    behind = list(results(found, lambda window: Done("".join(window.texts)), start=1))
    assert [(window.first_line, window.number, done.output) for window, done in behind] == [(2, 2, "2"), (3, 3, "3"), (1, 4, "4")]
    assert total_bytes([tmp_path / "a", tmp_path / "b"]) == 8


def test_what_is_before_the_first_fault_comes_whichever_is_found_first() -> None:
    """Faults of one kind are looked for in all lines before those of another."""

    def work(window: Window) -> int:
        for bad in ("bad tag", "bad prefix"):
            if bad in window.texts:
                line = window.first_line + window.texts.index(bad)
                raise LineError(f"line {line}: {bad}", line)
        return len(window.texts)

    found = up_to_fault(Window("file", 5, 1, ["one", "two", "bad prefix", "four", "bad tag", "six"]), work)
    assert next(found) == (Window("file", 5, 1, ["one", "two"]), 2)
    with pytest.raises(LineError, match=r"^line 7: bad prefix$"):
        next(found)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Three hundred thousand lines through a pipe into a file: no more than some windows of them, and few of their faults, are kept.

    In a process of its own, for what other tests leave running takes memory too.
    """
    lines = 300_000
    command = [sys.executable, str(Path(__file__).parents[1] / "many_lines.py"), str(tmp_path), str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (tmp_path / "out").read_text() == "".join(f"{number}\n" for number in range(1, lines + 1))
    assert (tmp_path / "links").read_bytes() == b""
    assert int(done.stdout) < 8e6  # the text has 9 MB, as Python's strings 25
    assert done.stderr.splitlines()[-14:] == [
        "dragoman: warning: 300000 translations went round in a loop and were ended; lines: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 …",
        "dragoman: warning: 300000 translations reached the longest length allowed and may be cut; lines: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 …",
        "dragoman: 300000 of 600000 required terms stand in the translations",
        *(f"dragoman: warning: line {number}: ona -> nur is not in the translation" for number in range(1, 11)),
        "dragoman: warning: 299990 more are not; --json tells which",
    ]


def test_a_tally_names_ten_and_counts_all() -> None:
    tally = Tally()
    for number in (1, 8, 15):
        tally.add(Window("text", number, number, ["é"] * 7), faulty(Window("text", number, number, ["é"] * 7)))
    assert (tally.lines, tally.size, tally.tokens, tally.loops, tally.at_limit, tally.terms, tally.missed) == (21, 63, 21, 21, 21, 42, 21)
    assert tally.looped_lines == tally.limit_lines == [*range(1, 11)]
    assert tally.missed_terms == [f"line {number}: ona -> nur" for number in range(1, 11)]


def test_a_window_is_read_when_the_one_before_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted() -> Iterator[Window]:
        for number in range(1, 5):
            read.append(number)
            yield Window("text", number, number, ["ona"])

    for window, _ in results(counted(), numbered, start=0):
        assert read[-1] == window.number


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


class Clock:
    """Time that passes when told to."""

    now = 100.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = Terminal() if terminal else io.StringIO(), Clock()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("dragoman.cli.progress.time", clock)
    with set_up():
        progress = Progress(total=10_000, lines=100, size=1000, tokens=900)
        logger = logging.getLogger("dragoman")
        logger.handlers.insert(0, progress)
        for _ in range(30):
            clock.now += 3
            progress.add(lines=20, size=100, tokens=200)
        logger.warning("of something else")
        logger.handlers.remove(progress)
        progress.clear()
    shown = screen.getvalue()
    if terminal:
        assert shown.startswith("\r\x1b[K120 lines, 11.0 %, 7 lines/s, 4 min left\r\x1b[K140 lines, 12.0 %, ")
        assert shown.endswith("\r\x1b[K700 lines, 40.0 %, 7 lines/s, 3 min left\r\x1b[Kdragoman: warning: of something else\n")
        assert shown.count("lines/s") == 30
    else:
        assert shown == "dragoman: 500 lines, 30.0 %, 7 lines/s, 4 min left\ndragoman: warning: of something else\n", "once a minute"
    assert progress.summary() == "700 lines, 6,900 output tokens (100 of the lines before); 90.0 seconds, 7 lines and 67 tokens a second"


def test_a_file_is_summed_up_and_quiet_is_quiet(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("ona bek\n\n" + "bek " * 200 + "\n")
    command = ["translate", str(model), str(tmp_path / "text"), "-o", str(tmp_path / "out")]
    assert main(command) == 0
    out, err = capfd.readouterr()
    long, summary, total, cut = err.splitlines()
    assert "line 3: 200 tokens exceed the model's limit of 63; translated in 4 pieces" in long
    assert summary.startswith(f"dragoman: {tmp_path / 'out'}: 3 lines, ")
    assert total == "dragoman: 1 line was longer than the model takes, and translated in pieces"
    assert cut == "dragoman: warning: 2 translations reached the longest length allowed and may be cut; lines: 1, 3"
    assert out == ""
    assert main([*command, "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")


def test_one_line_is_not_said_to_be_several(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("ona\n")
    assert main(["translate", str(model), str(tmp_path / "text"), "-o", str(tmp_path / "out"), "--max-length", "1"]) == 0
    assert f"{tmp_path / 'out'}: 1 line, 1 output token; " in capfd.readouterr().err
    assert main(["evaluate", str(model), "--test", f"{tmp_path / 'text'},{tmp_path / 'out'}"]) == 0
    out, err = capfd.readouterr()
    assert "translating 1 sentence\n" in err
    assert "% of 1 sentence\n" in out


def test_many_lines_of_one_kind_are_not_all_named(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("dragoman")
    with set_up(), few_of_a_kind(3):
        for number in range(9):
            logger.warning("line %d is long", number)
            logger.warning("line %d is odd", number)
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "long" in line] == [f"dragoman: warning: line {number} is long" for number in range(3)]
    assert [line for line in lines if "odd" in line] == [f"dragoman: warning: line {number} is odd" for number in range(3)]
    assert lines.count("dragoman: more lines like the last one are not named") == 2
    assert len(lines) == 8
    assert logger.filters == []


def test_translating_imports_what_it_needs_only(model: Path) -> None:
    """What is slow to import would be waited for before the first line."""
    heavy = ["sacrebleu", "transformers", "pandas", "scipy", "rich.progress", "torch._dynamo", "torch._inductor"]
    heavy += ["dragoman.training", "dragoman.evaluation", "dragoman.ranks", "dragoman.decoding.alignment"]
    program = (
        "import sys, dragoman, dragoman.cli.translate\n"
        f"dragoman.load({str(model)!r}, device='cpu').translate(['ona'])\n"
        f"print(*sorted(set({heavy!r}) & set(sys.modules)))"
    )  # fmt: skip
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_other_terms_are_other_work(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What a glossary says is part of what --resume compares, and where prefixes are; a file of them is compared with the text."""
    from dragoman.cli.whole_files import identity_of

    model = tiny_bundle(tmp_path / "model")
    assert len({identity_of(model, {"prefix": prefix})["--prefix"] for prefix in (None, Path("column"), Path("file"))}) == 3
    for name in ("glossary", "ensemble"):
        facts = []
        for content in ("ona\tbek\n", "ona\trem\n"):
            path = tmp_path / f"{name}.tsv"
            path.write_text(content, encoding="utf-8")
            value: object = [model] if name == "ensemble" else path
            facts.append(identity_of(model, {"model": model, name: value}))
        assert (facts[0] == facts[1]) == (name == "ensemble")
        assert name != "ensemble" or facts[0]["--ensemble"] == [facts[0]["the model"]]
