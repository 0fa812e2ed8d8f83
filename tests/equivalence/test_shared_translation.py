"""A file translated by several processes is the file translated by one: the same bytes, resumed by as many or others."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import WORDS, but_for_limits, tiny_bundle
from dragoman.cli import main
from dragoman.decoding.translate import Translator
from rank_runs import on_ranks, said, torchrun
from small_bundles import random_sentences
from warm_command import warm_command

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
LINES = [*random_sentences(15, seed=1), "", *random_sentences(6, seed=2), "ona " * 70]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("models") / "words")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder with a text of six windows, the last a short one."""
    monkeypatch.setattr("dragoman.cli.windows.WINDOW_LINES", 4)
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return tmp_path


def run(model: Path, *arguments: str) -> int:
    return main(["translate", str(model), "text", "--device", "cpu", *arguments])


def failing(work: Callable[[], int], *, rank: int, text: str, how: Callable[[], Any]) -> int:
    """``work`` where a rank does something else when it comes to a text."""
    translate = Translator.translate

    def broken(self: Translator, texts: list[str], **options: Any) -> Any:
        if text in texts and os.environ["RANK"] == str(rank):
            how()
        return translate(self, texts, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate", broken)
        return work()


@pytest.mark.parametrize("arguments", [[], ["--n-best", "2"], ["--json"]], ids=" ".join)
def test_any_number_of_processes_write_the_same_bytes(
    arguments: list[str], model: Path, desk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(model, "-o", "one", "--align", "one.links", *arguments) == 0
    total = capfd.readouterr().err.splitlines()[2:]
    assert total[0] == "dragoman: 1 line was longer than the model takes, and translated in pieces"
    assert re.fullmatch("dragoman: warning: [0-9]+ translations reached the longest length allowed and may be cut; lines: .*", total[1])
    for size in (2, 3, 7):
        assert on_ranks(size, desk / str(size), lambda: run(model, "-o", "many", "--align", "many.links", *arguments)) == [0] * size
        assert Path("many").read_bytes() == Path("one").read_bytes()
        assert Path("many.links").read_bytes() == Path("one.links").read_bytes()
        summary, *counted = said(desk / str(size), 0)[-3:]
        assert summary.startswith("dragoman: many: 23 lines, ")
        assert counted == total
        warnings = [line for rank in range(size) for line in said(desk / str(size), rank) if "warning" in line]
        assert len(warnings) == 2
        assert any("text, line 23: 70 tokens exceed" in line for line in warnings)


def test_each_process_gives_its_lines_their_prefixes(model: Path, desk: Path) -> None:
    prefixes = [WORDS.split()[number % 12] for number in range(len(LINES))]
    Path("begin").write_text("".join(f"{prefix}\n" for prefix in prefixes), encoding="utf-8")
    asked = ("--prefix", "begin", "--max-length", "50")
    assert run(model, "-o", "one", "--quiet", *asked) == 0
    assert on_ranks(2, desk / "ranks", lambda: run(model, "-o", "many", *asked)) == [0, 0]
    assert Path("many").read_bytes() == Path("one").read_bytes()
    translations = zip(Path("many").read_text().splitlines(), prefixes, LINES, strict=True)
    assert all(line.startswith(prefix) for line, prefix, text in translations if text)


def test_a_rank_that_dies_ends_the_job_and_it_can_be_gone_on_with(model: Path, desk: Path) -> None:
    assert run(model, "-o", "one", "--quiet") == 0

    def die() -> None:
        while json.loads(Path("many.partial.json").read_bytes())["lines"] < 8:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    statuses = on_ranks(2, desk / "ranks", lambda: failing(lambda: run(model, "-o", "many"), rank=1, text=LINES[13], how=die))
    first, second = statuses
    assert second == -signal.SIGKILL
    assert first in (1, 143)
    *_, kept, last = but_for_limits("\n".join(said(desk / "ranks", 0))).splitlines()
    assert json.loads(Path("many.partial.json").read_bytes())["lines"] == 8
    assert "many.partial: holds the first 8 lines; the same command with --resume goes on from there" in kept
    assert last == "dragoman: terminated" or "another process of this job ended or does not answer" in last
    assert not Path("many").exists()
    assert on_ranks(3, desk / "again", lambda: run(model, "-o", "many", "--resume")) == [0, 0, 0]
    assert Path("many").read_bytes() == Path("one").read_bytes()


def test_a_fault_in_the_text_of_any_rank_is_said_once_and_what_is_before_it_kept(model: Path, desk: Path) -> None:
    assert run(model, "-o", "one", "--quiet") == 0
    good = Path("text").read_bytes()
    for number in (6, 9):
        raw = good.split(b"\n")
        raw[number - 1] = b"re\xffm"
        Path("text").write_bytes(b"\n".join(raw))
        statuses = on_ranks(2, desk / "ranks", lambda: run(model, "-o", "many"))
        assert statuses[0] == 1
        *_, kept, last = but_for_limits("\n".join(said(desk / "ranks", 0))).splitlines()
        assert last.startswith(f"dragoman: text, line {number}: not UTF-8")
        assert f"holds the first {number - 1} lines" in kept
        assert said(desk / "ranks", 1) == []
        Path("text").write_bytes(good)
        assert on_ranks(2, desk / "ranks", lambda: run(model, "-o", "many", "--resume")) == [0, 0]
        assert sorted(Path("many").read_text().splitlines()) == sorted(Path("one").read_text().splitlines())
        assert Path("many").read_bytes() == Path("one").read_bytes()
        Path("many").unlink()


def test_a_fault_of_the_model_reaches_the_first_rank(model: Path, desk: Path) -> None:
    from dragoman.errors import DragomanError

    def refuse() -> None:
        raise DragomanError("line 5: cannot be translated")

    statuses = on_ranks(2, desk / "ranks", lambda: failing(lambda: run(model, "-o", "many"), rank=1, text=LINES[4], how=refuse))
    assert statuses[0] == 1
    assert said(desk / "ranks", 0)[-1] == "dragoman: line 5: cannot be translated"
    assert "holds the first 4 lines" in said(desk / "ranks", 0)[0]


def test_what_cannot_be_shared_is_refused_once(model: Path, desk: Path) -> None:
    os.mkfifo("pipe")
    wishes = {
        "pipe: only one of several processes can read it": ["translate", str(model), "text", "--prefix", "pipe"],
        "standard input: only one of several processes can read it": ["translate", str(model)],
        "--attention is for one process": ["translate", str(model), "text", "--attention", "a.npz"],
        "--device cuda:0 is one device": ["translate", str(model), "text", "--device", "cuda:0"],
    }
    for sentence, arguments in wishes.items():
        statuses = on_ranks(2, desk / "ranks", lambda arguments=arguments: main(arguments))  # type: ignore[misc]
        assert statuses[0] == 2
        (line,) = said(desk / "ranks", 0)
        assert sentence in line
        assert said(desk / "ranks", 1) == []


def test_torchrun_shares_a_file_and_writes_to_standard_output(model: Path, desk: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(model) == 0
    one = capfdbinary.readouterr().out
    with warm_command(desk / "bin" / "warm"):
        done = torchrun(2, "translate", model, desk / "text", "--device", "cpu", warm=desk / "bin" / "warm")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == one.decode().splitlines()
