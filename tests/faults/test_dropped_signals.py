"""A signal that comes while Python calls back for a weak reference: what its handler raises is dropped there, and the work stops anyway."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import but_for_limits, environment, tiny_bundle
from dragoman.bundle import save_bundle
from dragoman.cli import stops
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from language_models import random_bundle
from small_bundles import make_bundle
from training_runs import marked, records, toy_pairs, write_pairs
from warm_command import warm_command

GPT = {"architecture": "decoder-only"}
LINES = ["ona bek", "tilu", "rem sova kip dal", "kip", "bek bek rem", "ona"]
PROGRAM = """
import signal, sys, weakref
from dragoman.cli import main, windows
from dragoman.decoding import generate, search

number, window, late, arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "late", sys.argv[4:]
windows.WINDOW_LINES = window
for module in (generate, search):
    module.batches_of = lambda lengths, **_: [[place] for place in range(len(lengths))]

class Thing: pass

calls = 0
def signalled(batch):
    def work(self, texts, *rest):
        global calls
        calls += 1
        found = batch(self, texts, *rest) if late else None
        if calls == 3:
            thing = Thing()
            reference = weakref.ref(thing, lambda _: signal.raise_signal(number))
            del thing
        return found or batch(self, texts, *rest)
    return work

for kind in (search.Search, generate.Generator):
    kind._batch = signalled(kind._batch)
status = main(arguments)
assert calls == 3, calls
sys.exit(status)
"""


def signalled(number: int, *arguments: str | Path, window: int, folder: Path, late: bool = False) -> subprocess.CompletedProcess[str]:
    """The command with a line a batch; as the third begins, or ``late``, as it ends, a signal comes where its exception is lost."""
    return run_program(PROGRAM, int(number), window, "late" if late else "early", *arguments, "--device", "cpu", folder=folder)


def run_program(program: str, *arguments: object, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A Python program to its end, by the ``warm`` command of the folder."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    return warm("program.py", *arguments, folder=folder, stdin=stdin)


def warm(*arguments: object, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command, or a program in its place, to its end."""
    command = [folder / "warm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, cwd=folder, input=stdin)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What runs programs and needs not import PyTorch for each."""
    script = tmp_path_factory.mktemp("bin") / "warm"
    with warm_command(script):
        yield script


@pytest.fixture
def desk(command: Path, tmp_path: Path) -> Path:
    """A folder with a model and six lines of text."""
    (tmp_path / "warm").symlink_to(command)
    tiny_bundle(tmp_path / "model")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("number", "status", "word", "way"),
    [(signal.SIGTERM, 143, "terminated", ()), (signal.SIGINT, 130, "interrupted", ()), (signal.SIGTERM, 143, "terminated", ("--sample",))],
)
def test_a_file_stops_within_a_step_and_goes_on(number: int, status: int, word: str, way: tuple[str, ...], desk: Path) -> None:
    done = signalled(number, "translate", "model", "text", "-o", "out", *way, window=2, folder=desk)
    assert (done.returncode, done.stdout) == (status, "")
    assert but_for_limits(done.stderr).splitlines() == [
        "dragoman: warning: out.partial: holds the first 2 lines; the same command with --resume goes on from there",
        f"dragoman: {word}",
    ]
    assert warm("translate", "model", "text", "-o", "out", "--device", "cpu", "--resume", *way, folder=desk).returncode == 0
    whole = warm("translate", "model", "text", "--device", "cpu", *way, folder=desk)
    assert (desk / "out").read_text("utf-8") == whole.stdout
    assert whole.stdout.count("\n") == len(LINES)


def test_a_window_that_is_done_is_written_and_no_other_is_begun(desk: Path) -> None:
    done = signalled(signal.SIGTERM, "translate", "model", "text", window=3, folder=desk, late=True)
    assert (done.returncode, done.stdout.count("\n"), but_for_limits(done.stderr)) == (143, 3, "dragoman: terminated\n")


def test_a_generator_stops_too(desk: Path) -> None:
    save_bundle(random_bundle(GPT), desk / "gpt")
    done = signalled(signal.SIGTERM, "generate", "gpt", "--file", "text", "--max-tokens", "4", window=4, folder=desk)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "dragoman: terminated\n")


ELSEWHERE = """
import importlib, signal, sys, weakref
from dragoman.cli import main

number, place, which, arguments = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
module, _, name = place.rpartition(".")
module = importlib.import_module(module)
if hasattr(module, "batches_of"):
    module.batches_of = lambda lengths, **_: [[place] for place in range(len(lengths))]

class Thing: pass

calls = 0
def signalled(*given, work=getattr(module, name), **more):
    global calls
    calls += 1
    if calls == which:
        thing = Thing()
        reference = weakref.ref(thing, lambda _: signal.raise_signal(number))
        del thing
    return work(*given, **more)

setattr(module, name, signalled)
status = main(arguments)
assert calls == which, calls
sys.exit(status)
"""
PAIRS = ("--test", "text,text")


@pytest.mark.parametrize(("number", "status", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")])
@pytest.mark.parametrize(("model", "place", "which", "arguments"), [
    ("model", "dragoman.decoding.score.score_pairs", 3, ("score", "model", *PAIRS)),
    ("gpt", "dragoman.decoding.likelihood._log_probs", 3, ("score", "gpt", "--test", "text")),
    ("bert", "dragoman.decoding.fill._masked_scores", 3, ("score", "bert", "--test", "text")),
    ("bert", "dragoman.decoding.fill.pad_rows", 3, ("fill", "bert")),
    ("gpt", "dragoman.decoding.generate.sample", 1, ("generate", "gpt", "ona bek", "--n", "2", "--max-tokens", "4")),
    ("model", "dragoman.explain.answer.search_beams", 1, ("explain", "model", "ona bek")),
    ("gpt", "dragoman.explain.answer._of_one_text", 1, ("explain", "gpt", "ona bek", "--html", "page")),
])  # fmt: skip
def test_no_batch_and_no_page_is_made_after_a_signal_in_the_other_verbs(
    model: str, place: str, which: int, arguments: tuple[str, ...], number: int, status: int, word: str, desk: Path
) -> None:
    """With a line a batch; what is done nobody reads, so nothing is printed of it."""
    bundles = {"gpt": {"architecture": "decoder-only"}, "bert": {"architecture": "encoder-only"}}
    if model in bundles:
        save_bundle(random_bundle(bundles[model]), desk / model)
    masked = "".join(f"{line} <mask>\n" for line in LINES)
    done = run_program(ELSEWHERE, int(number), place, which, *arguments, "--device", "cpu", folder=desk, stdin=masked)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", f"dragoman: {word}\n")
    assert not (desk / "page").exists()


@pytest.mark.parametrize(("verb", "arguments"), [
    ("evaluate", ("model", "--output", "out", *PAIRS)), ("compare", ("model", "text", *PAIRS)),
])  # fmt: skip
def test_a_test_set_stops_within_a_step(verb: str, arguments: tuple[str, ...], desk: Path) -> None:
    done = signalled(signal.SIGTERM, verb, *arguments, "--quiet", window=2, folder=desk)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "dragoman: terminated\n")
    assert not (desk / "out").exists()


def test_a_treebank_stops_within_a_step(desk: Path) -> None:
    (desk / "gold.mrg").write_text("".join(f"(S (NN {line.split()[0]}))\n" for line in LINES), encoding="utf-8")
    source = Tokenizer.train([" ".join(LINES)], kind="whitespace", vocabulary_size=20)
    target = Tokenizer.train(["(S )S (NP )NP XX"], kind="whitespace", vocabulary_size=20)
    save_bundle(make_bundle(source, target, tie="none", max_positions=64), desk / "parser")
    done = signalled(signal.SIGTERM, "evaluate", "parser", "--test", "gold.mrg", "--quiet", window=2, folder=desk)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "dragoman: terminated\n")


TRAINING = """
import signal, sys, weakref
from dragoman.cli import main
from dragoman.training import run

class Thing: pass

def prepared(*arguments, prepare=run.prepare):
    thing = Thing()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(int(sys.argv[1])))
    del thing
    return prepare(*arguments)

run.prepare = prepared
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("number", "status", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")])
def test_a_training_does_not_begin_after_a_signal_amid_its_preparation(number: int, status: int, word: str, desk: Path) -> None:
    write_pairs(desk / "train", toy_pairs(40))
    arguments = ["train", "aa-bb", "--train", "train", "--out", "run", "--preset", "tiny", "--max-steps", "2", "--quiet", "--device", "cpu"]
    small = ("data.tokenizer=whitespace", "training.precision=fp32", "model.d_model=16", "model.encoder_layers=1", "model.decoder_layers=1")
    arguments += [part for setting in small for part in ("--set", setting)]
    done = run_program(TRAINING, int(number), *arguments, folder=desk)
    assert (done.returncode, done.stderr) == (status, f"dragoman: {word}\n")
    assert records(desk / "run", "train") == []
    assert warm("train", "--resume", "--out", "run", "--quiet", folder=desk).returncode == 0
    assert marked(desk / "run", "last") == "step-000002"


def test_ctrl_c_that_is_ignored_stays_ignored(desk: Path) -> None:
    """As for a command in the background of a shell script."""
    program = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    inner = [sys.executable, "-c", PROGRAM.replace("calls == 3, calls", "calls == 6"), str(int(signal.SIGINT)), "2", "early"]
    command = [sys.executable, "-c", program, *inner, "translate", "model", "text", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, timeout=120, env=environment(), cwd=desk, check=True)
    assert done.stdout.count(b"\n") == len(LINES)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_as_work_fails_does_not_hide_the_failure(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun sends one to all when a rank is gone, which another rank may have noticed a moment before."""

    def launched() -> bool:
        signal.raise_signal(number)
        return True

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(stops, "launched", launched)  # which is asked as the handlers are put back
    try:
        with pytest.raises(DragomanError, match="it failed"), stops.terminable():
            raise DragomanError("it failed")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
