"""A training that ends amid an evaluation loses no step: its checkpoint is there, and owes the evaluation to the run that goes on."""

import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from dragoman.errors import DragomanError
from dragoman.training import trainer as trainer_module
from dragoman.training.records import read_log, standing
from dragoman.training.report import Report
from dragoman.training.trainer import Trainer
from rank_runs import on_ranks
from training_runs import checkpoints, final_weights, marked, records, same_bits, toy_pairs, train, write_pairs

END = 12
TIMES = {"time", "seconds", "tok_s", "mem"}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pairs to learn from and 10 to look at."""
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "valid", toy_pairs(10, seed=9))
    return write_pairs(folder / "train", toy_pairs(40))


def begin(run: Path, data: Path, **settings: Any) -> int:
    """Twelve updates with an evaluation after 5, 10 and 12, and records at other steps than these."""
    usual = {"model__dropout": 0.1, "training__ema": 0.9, "training__log_every": 4, "training__keep": 1, "training__patience": 2}
    valid = ("--valid", data.with_name("valid"))
    return train(run, data, *valid, "--quiet", "--max-steps", str(END), **{"training__batch_tokens": 32} | usual | settings)


def go_on(run: Path) -> int:
    return train(run, None, "--quiet")


@contextmanager
def amid_evaluations(act: Callable[[int], None]) -> Iterator[None]:
    """Calls ``act`` with their number whenever an evaluation calls a module."""
    numbers = itertools.count(1)
    handle = register_module_forward_pre_hook(lambda *_: act(next(numbers)) if torch.is_inference_mode_enabled() else None)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nobody stops, and how many modules an evaluation calls."""
    run, numbers = tmp_path_factory.mktemp("whole") / "run", [0]
    with amid_evaluations(numbers.append):
        assert begin(run, data) == 0
    assert numbers[-1] % 3 == 0
    return run, numbers[-1] // 3


def place(run: Path) -> dict[str, Any]:
    """What the last checkpoint knows of its place, but for the time spent."""
    text = (run / "checkpoints" / marked(run, "last") / "state" / "progress.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)["progress"]
    found["unreported"] = [value for place, value in enumerate(found["unreported"]) if place != 4]  # the seconds
    return {name: value for name, value in found.items() if name != "seconds"}


def lines(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without events and times."""
    return [{name: value for name, value in record.items() if name not in TIMES} for record in found if record["t"] != "event"]


def same_run(run: Path, other: Path) -> bool:
    """Weights, state, marks, checkpoints and what stands in the log."""
    tensors = [each / "checkpoints" / marked(each, "last") / "state" / "tensors.safetensors" for each in (run, other)]
    return (
        same_bits(final_weights(run), final_weights(other))
        and tensors[0].read_bytes() == tensors[1].read_bytes()
        and place(run) == place(other)
        and marked(run, "best") == marked(other, "best")
        and list(checkpoints(run)) == list(checkpoints(other))
        and lines(standing(read_log(run)[0])) == lines(read_log(other)[0])
        and {path.name: path.read_bytes() for path in (run / "samples").iterdir()}
        == {path.name: path.read_bytes() for path in (other / "samples").iterdir()}
    )


@pytest.mark.parametrize("which", [1, 2, 3], ids=["first", "middle", "last"])
@pytest.mark.parametrize(("name", "share"), [("SIGINT", 0.0), ("SIGTERM", 0.5), ("SIGINT", 1.0)], ids=["beginning", "amid", "end"])
def test_a_signal_leaves_the_evaluation_to_the_run_that_goes_on(
    name: str, share: float, which: int, data: Path, whole: tuple[Path, int], tmp_path: Path
) -> None:
    uninterrupted, calls = whole
    run, number, step = tmp_path / "run", signal.Signals[name], [5, 10, 12][which - 1]
    at = (which - 1) * calls + 1 + int(share * (calls - 1))
    after: list[int] = []

    def disturb(call: int) -> None:
        if call == at:
            signal.raise_signal(number)
        if call > at:
            after.append(call)

    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with amid_evaluations(disturb):
        assert begin(run, data) == 128 + number
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not after
    assert [record["step"] for record in records(run, "eval")] == [5, 10, 12][: which - 1]
    assert marked(run, "last") == f"step-{step:06}"
    assert place(run)["owed"] is True
    facts = json.loads((run / "run.json").read_bytes())
    assert (facts["status"], facts["step"]) == ("stopped", step)
    assert go_on(run) == 0
    assert same_run(run, uninterrupted)
    assert lines(read_log(run)[0]) == lines(read_log(uninterrupted)[0])  # as they stand in the file
    assert [record.get("owed") for record in records(run, "event") if record["event"] == "resume"] == [True]
    assert json.loads((run / "run.json").read_bytes())["status"] == "done"


def test_it_is_said_that_an_evaluation_is_left_and_made_first_by_the_run_that_goes_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no step to be finished any more, and nobody shall think that its evaluation is lost."""
    with amid_evaluations(lambda call: signal.raise_signal(signal.SIGINT) if call == 1 else None):
        assert train(tmp_path / "run", data, "--valid", data.with_name("valid"), "--max-steps", str(END)) == 128 + signal.SIGINT
    said = capsys.readouterr().err.splitlines()
    assert "dragoman: leaving the evaluation, which --resume makes first; once more stops now" in said
    assert "interrupted at step 5, before its evaluation, which --resume makes first" in said


def test_a_signal_in_the_step_before_does_not_begin_it(data: Path, whole: tuple[Path, int], tmp_path: Path, monkeypatch: Any) -> None:
    """And records nothing that the uninterrupted run has not."""
    update = Trainer._update

    def signalled(self: Trainer, *arguments: Any) -> float | None:
        if self.progress.step + 1 in (2, 5):
            signal.raise_signal(signal.SIGINT)
        return update(self, *arguments)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", signalled)
        assert begin(run, data) == 130
        assert (marked(run, "last"), place(run)["owed"]) == ("step-000002", False)
        assert go_on(run) == 130
        assert (marked(run, "last"), place(run)["owed"]) == ("step-000005", True)
    assert records(run, "eval") == []
    assert go_on(run) == 0
    assert same_run(run, whole[0])
    assert lines(read_log(run)[0]) == lines(read_log(whole[0])[0])


@needs_fork
def test_a_second_signal_loses_no_step_either(data: Path, whole: tuple[Path, int], tmp_path: Path) -> None:
    run, child = tmp_path / "run", os.fork()
    if not child:
        judged = Trainer._judged

        def again(self: Trainer, stop: str) -> str:
            found = judged(self, stop)
            if self.interrupted:
                signal.raise_signal(signal.SIGINT)
            return found

        Trainer._judged = again  # type: ignore[method-assign]
        with amid_evaluations(lambda call: signal.raise_signal(signal.SIGINT) if call == whole[1] + 2 else None):
            os._exit(begin(run, data))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGINT
    assert marked(run, "last") == "step-000010"
    assert go_on(run) == 0
    assert same_run(run, whole[0])


@needs_fork
@pytest.mark.parametrize("moment", ["first call", "last call", "before it is noted", "after it is noted"])
def test_a_kill_loses_no_step_and_counts_no_evaluation_twice(moment: str, data: Path, whole: tuple[Path, int], tmp_path: Path) -> None:
    run, child = tmp_path / "run", os.fork()
    if not child:

        def die(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        note = trainer_module.save_progress
        if "noted" in moment:
            trainer_module.save_progress = lambda *told: (die() if moment.startswith("before") else note(*told), die())[0]
        at = {"first call": 1, "last call": whole[1]}.get(moment)
        with amid_evaluations(lambda call: die() if call == at else None):
            os._exit(begin(run, data))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (marked(run, "last"), place(run)["owed"]) == ("step-000005", not moment.startswith("after"))
    assert not (run / "checkpoints" / "best").exists()
    assert len(records(run, "eval")) == ("noted" in moment)
    assert go_on(run) == 0
    assert same_run(run, whole[0])
    assert len(records(run, "eval")) == 3 + moment.startswith("before")
    assert [record["step"] for record in Report.read(run).evaluations] == [5, 10, 12]


def test_what_fails_in_an_evaluation_takes_no_step_with_it(
    data: Path, whole: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise DragomanError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "write_outputs", full)
        assert begin(tmp_path / "run", data) == 1
    assert capsys.readouterr().err == "dragoman: no room\n"
    assert list(checkpoints(tmp_path / "run")) == [5]
    assert go_on(tmp_path / "run") == 0
    assert same_run(tmp_path / "run", whole[0])


def test_patience_that_ends_with_an_owed_evaluation_ends_the_run(data: Path, whole: tuple[Path, int], tmp_path: Path) -> None:
    run, still = tmp_path / "run", {"training__learning_rate": 1e-30, "training__evaluate_every": 2}
    assert begin(tmp_path / "whole", data, **still) == 0
    with amid_evaluations(lambda call: signal.raise_signal(signal.SIGINT) if call == 2 * whole[1] + 2 else None):
        assert begin(run, data, **still) == 130
    assert go_on(run) == 0
    assert [(record["step"], record["reason"]) for record in records(run, "event") if record["event"] == "stop"] == [
        (6, "interrupted"), (6, "patience"),
    ]  # fmt: skip
    assert same_run(run, tmp_path / "whole")


@needs_fork
@pytest.mark.parametrize(("signalled", "shard"), [(0, False), (1, False), (0, True)], ids=["first", "other", "first, shared"])
def test_all_ranks_leave_an_evaluation_or_none(signalled: int, shard: bool, data: Path, tmp_path: Path) -> None:
    """A signal to the first rank, which evaluates, ends it for all; of one to another it learns after the next step."""
    settings = {"training__ema": 0.0, "training__shard": shard}

    def disturbed() -> int:
        def send(call: int) -> None:
            if call == 2:
                os.kill(os.getpid() if signalled == 0 else int((tmp_path / "other").read_text()), signal.SIGTERM)

        if os.environ["RANK"] == "1":
            (tmp_path / "other").write_text(str(os.getpid()))
        with amid_evaluations(send):
            return begin(tmp_path / "run", data, **settings)

    statuses = on_ranks(2, tmp_path / "said", disturbed)
    assert statuses[signalled] == 128 + signal.SIGTERM
    assert list(checkpoints(tmp_path / "run")) == ([5] if signalled == 0 else [5, 6])
    assert [record["step"] for record in records(tmp_path / "run", "eval")] == ([] if signalled == 0 else [5])
    assert json.loads((tmp_path / "run" / "run.json").read_bytes())["status"] == "stopped"
    assert on_ranks(2, tmp_path / "then", lambda: go_on(tmp_path / "run")) == [0, 0]
    assert on_ranks(2, tmp_path / "again", lambda: begin(tmp_path / "whole", data, **settings)) == [0, 0]
    assert same_run(tmp_path / "run", tmp_path / "whole")
