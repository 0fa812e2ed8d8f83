"""Reported faults of checkpoints: B25 (a disk that refuses), B27 (what is written, kept and removed), and kills at any moment."""

import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dragoman.bundle import load_bundle, marked_checkpoint
from dragoman.errors import DragomanError
from dragoman.files import write_file
from training_runs import checkpoints, final_weights, make_trainer, marked, records, same_bits, toy_pairs, train, write_pairs

WIDE = {"model__d_model": 32, "model__d_ff": 64}  # a checkpoint of 90 kB, its state 180 kB


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pairs of one length, ten batches of four an epoch; validation targets of words that are never right."""
    folder = tmp_path_factory.mktemp("data")
    pairs = toy_pairs(40, shortest=4, longest=4)
    write_pairs(folder / "valid", [(source, " ".join([pairs[0][0].split()[0]] * 4)) for source, _ in pairs[:5]])
    return write_pairs(folder / "train", pairs)


def run_of(data: Path, run: Path, steps: int, *arguments: str, **settings: Any) -> int:
    """A run of ten batches an epoch."""
    return train(run, data, "--quiet", "--max-steps", str(steps), *arguments, **{"training__batch_tokens": 20} | settings)


def is_whole(checkpoint: Path) -> bool:
    """It loads, or the test fails with what is wrong."""
    return load_bundle(checkpoint).info["step"] == int(checkpoint.name.removeprefix("step-"))


def nothing_half_written(run: Path) -> None:
    """Every checkpoint with a final name is whole, and so is what the marks name."""
    assert all(map(is_whole, checkpoints(run).values()))
    last = marked_checkpoint(run, "last")
    assert last is not None
    assert last == list(checkpoints(run).values())[-1]


@pytest.mark.parametrize(("keep", "kept"), [(5, [5, 10, 15, 20]), (2, [5, 15, 20]), (1, [5, 20])])
def test_every_checkpoint_that_is_due_and_best_and_last_always(keep: int, kept: list[int], data: Path, tmp_path: Path) -> None:
    """B27: saves at 5, 10 (the end of an epoch), 15 and 20; the validation gets worse, so the first one is the best."""
    settings = {"training__keep": keep, "training__best_by": "loss"}
    assert run_of(data, tmp_path / "run", 20, "--valid", str(data.with_name("valid")), **settings) == 0
    saved = [record["step"] for record in records(tmp_path / "run", "eval")]
    assert saved == [5, 10, 15, 20]
    assert {record["epoch"] for record in records(tmp_path / "run", "train") if record["step"] in (10, 20)} == {0, 1}
    losses = [record["loss"] for record in records(tmp_path / "run", "eval")]
    assert losses == sorted(losses)
    assert losses[0] < losses[1]
    found = checkpoints(tmp_path / "run")
    assert list(found) == kept
    assert (marked(tmp_path / "run", "best"), marked(tmp_path / "run", "last")) == ("step-000005", "step-000020")
    nothing_half_written(tmp_path / "run")
    assert [folder.name for folder in found.values() if (folder / "state").exists()] == ["step-000020"]


def test_without_validation_the_last_update_is_there_to_resume_and_to_use(data: Path, tmp_path: Path) -> None:
    assert run_of(data, tmp_path / "run", 7, training__evaluate_every=1000) == 0
    assert list(checkpoints(tmp_path / "run")) == [7]
    assert load_bundle(tmp_path / "run").info["step"] == 7
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_early_stopping_counts_evaluations_since_the_best(data: Path, tmp_path: Path) -> None:
    valid = ("--valid", str(data.with_name("valid")))
    settings = {"training__patience": 2, "training__best_by": "loss"}
    assert run_of(data, tmp_path / "run", 100, *valid, **settings) == 0
    assert [record["step"] for record in records(tmp_path / "run", "eval")] == [5, 10, 15]
    assert records(tmp_path / "run", "event")[-1]["reason"] == "patience"
    assert marked(tmp_path / "run", "best") == "step-000005"


def test_the_newest_checkpoint_is_found_beyond_a_million_steps(data: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(4), max_steps=1_000_003, evaluate_every=1, keep=2)
    trainer.progress.step = 999_998
    trainer.train()
    assert list(checkpoints(trainer.run)) == [1_000_002, 1_000_003]
    assert marked(trainer.run, "last") == "step-1000003"


# A disk that refuses


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A limit on the size of files, which a full disk looks like."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [100_000, 20_000, 100])
def test_files_that_may_not_grow_stop_the_run_and_leave_the_last_checkpoint(
    size: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B25 with a low limit on file sizes: the state, the weights, or even the log does not fit."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    settings = WIDE | {"training__evaluate_every": 1, "training__keep": 3}
    assert run_of(data, whole, 6, **settings) == 0
    assert run_of(data, run, 3, **settings) == 0
    capsys.readouterr()
    with files_of_at_most(size):
        assert train(run, None, "--quiet", "--max-steps", "6") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dragoman: {run}")
    assert "cannot write: File too large" in line
    assert list(checkpoints(run)) == [1, 2, 3]
    nothing_half_written(run)
    assert not list((run / "checkpoints").glob(".*"))
    assert train(run, None, "--quiet", "--max-steps", "6") == 0
    assert same_bits(final_weights(run), final_weights(whole))


def test_the_first_reason_is_told_when_not_even_the_failure_can_be_noted(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk fills between two steps, so neither the log nor run.json can be written."""
    run, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    hook = register_optimizer_step_pre_hook(lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1])))
    try:
        assert run_of(data, run, 3) == 1
    finally:
        hook.remove()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err.startswith(f"dragoman: {run / 'log.jsonl'}: cannot write: File too large")


@pytest.mark.parametrize("size", [100, 3000, 4500])
def test_a_run_that_cannot_be_prepared_leaves_nothing_in_the_way(
    size: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings, the facts or the corpus do not fit; with room the same command works."""
    big = write_pairs(tmp_path / "train", toy_pairs(1000))
    run = tmp_path / "run"
    with files_of_at_most(size):
        assert run_of(big, run, 1) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dragoman: {run}")
    assert ": File too large" in line
    assert not run.exists()
    assert run_of(data, run, 1) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small disk in memory, or mounts it again with other options; where that is not allowed the test is skipped."""
    disk, mounted = tmp_path / "disk", False
    disk.mkdir()

    def mount(options: str) -> Path:
        nonlocal mounted
        again = "remount," if mounted else ""
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(disk)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"may not mount here: {done.stderr.decode().strip()}")
        mounted = True
        return disk

    if not shutil.which("mount") or os.geteuid():
        pytest.skip("only root may mount")
    yield mount
    if mounted:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(
    data: Path, tmp_path: Path, small_disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """B25: room for a few checkpoints only; resumed once there is more."""
    whole, run = tmp_path / "whole", small_disk("size=800k") / "run"
    settings = WIDE | {"training__evaluate_every": 1, "training__keep": 3}
    assert run_of(data, whole, 6, **settings) == 0
    capsys.readouterr()
    assert run_of(data, run, 6, **settings) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dragoman: {run}")
    assert "cannot write: No space left on device" in line
    assert 1 <= len(checkpoints(run)) < 6
    nothing_half_written(run)
    small_disk("size=4m")
    assert train(run, None, "--quiet") == 0
    assert same_bits(final_weights(run), final_weights(whole))


def test_a_folder_that_may_not_be_written_is_named(
    data: Path, tmp_path: Path, small_disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_disk("size=4m") / "run"
    assert run_of(data, run, 2) == 0
    small_disk("ro")
    capsys.readouterr()
    assert train(run, None, "--quiet", "--max-steps", "4") == 1
    assert capsys.readouterr().err.startswith(f"dragoman: {run}")
    assert run_of(data, run.with_name("other"), 2) == 1
    assert capsys.readouterr().err.startswith(f"dragoman: {run.with_name('other')}: cannot make the run folder: Read-only file system")
    small_disk("rw")
    nothing_half_written(run)
    assert list(checkpoints(run)) == [2]
    assert train(run, None, "--quiet", "--max-steps", "4") == 0


# Kills


OPERATIONS = ("fsync", "rename", "replace", "mkdir", "rmdir", "unlink")


def count_operations(act: Callable[[int], None]) -> Callable[[], None]:
    """Calls ``act`` with their number before each operation that makes something visible on the disk; returns what undoes it."""
    originals = {name: getattr(os, name) for name in OPERATIONS}
    done = 0

    def wrap(name: str) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            act(done)
            return originals[name](*arguments, **options)

        return operation

    for name in OPERATIONS:
        setattr(os, name, wrap(name))

    def undo() -> None:
        for name, original in originals.items():
            setattr(os, name, original)

    return undo


def in_a_child(work: Callable[[], int], *, kill_at: int) -> int:
    """Runs ``work`` in a copy of this process, which dies without a word before its disk operation ``kill_at``; its exit status."""
    child = os.fork()
    if not child:
        count_operations(lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == kill_at else None)
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def steps_of(data: Path, run: Path) -> int:
    """Six steps with four evaluations; begins, or goes on from what an earlier process left."""
    if (run / "config.toml").exists():
        return train(run, None, "--quiet")
    shutil.rmtree(run, ignore_errors=True)
    valid = ("--valid", str(data.with_name("valid")))
    return run_of(data, run, 8, *valid, model__dropout=0.1, training__evaluate_every=2, training__keep=1, training__best_by="loss")


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nobody kills, and how many disk operations it takes."""
    run, numbers = tmp_path_factory.mktemp("undisturbed") / "run", [0]
    undo = count_operations(numbers.append)
    try:
        assert steps_of(data, run) == 0
    finally:
        undo()
    return run, numbers[-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("part", range(8))
def test_a_run_killed_at_any_moment_and_resumed_is_the_uninterrupted_one(
    part: int, data: Path, undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    """Eight moments between the first file of the data's preparation and the last mark of the last checkpoint."""
    whole, operations = undisturbed
    run, kill_at = tmp_path / "run", 1 + (operations - 1) * part // 7
    assert in_a_child(lambda: steps_of(data, run), kill_at=kill_at) == -signal.SIGKILL
    if checkpoints(run):
        assert all(map(is_whole, checkpoints(run).values()))
    assert steps_of(data, run) == 0
    assert same_bits(final_weights(run), final_weights(whole))
    assert {mark: marked(run, mark) for mark in ("best", "last")} == {mark: marked(whole, mark) for mark in ("best", "last")}
    assert list(checkpoints(run)) == list(checkpoints(whole))
    assert not [path for path in (run / "checkpoints").glob(".*") if path.is_dir()]


def killed_once(ready: Callable[[], bool], data: Path, run: Path) -> None:
    """A run whose process dies before the first disk operation at which ``ready`` holds."""
    child = os.fork()
    if not child:
        count_operations(lambda _: os.kill(os.getpid(), signal.SIGKILL) if ready() else None)
        os._exit(steps_of(data, run))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_best_checkpoint_killed_before_its_mark_is_marked_at_resuming(data: Path, tmp_path: Path) -> None:
    run, marks = tmp_path / "run", tmp_path / "run" / "checkpoints"
    killed_once((marks / "step-000002").exists, data, run)
    assert not (marks / "best").exists()
    assert train(run, None, "--quiet", "--max-steps", "2") == 0
    assert (marked(run, "best"), marked(run, "last")) == ("step-000002", "step-000002")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_a_killed_process_had_still_to_remove_is_removed_at_resuming(
    data: Path, undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    run, last = tmp_path / "run", tmp_path / "run" / "checkpoints" / "last"
    killed_once(lambda: last.exists() and marked(run, "last") == "step-000008", data, run)
    assert len(checkpoints(run)) > len(checkpoints(undisturbed[0]))
    assert steps_of(data, run) == 0
    assert list(checkpoints(run)) == list(checkpoints(undisturbed[0]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_a_killed_process_was_removing_is_removed_at_resuming(data: Path, tmp_path: Path) -> None:
    run, marks = tmp_path / "run", tmp_path / "run" / "checkpoints"
    killed_once(lambda: any(marks.glob(".*.removed")), data, run)
    assert any(marks.glob(".*.removed"))
    assert train(run, None, "--quiet", "--max-steps", "2") == 0
    assert not any(marks.glob(".*"))


@pytest.mark.parametrize("in_the_way", ["parent", "partial", "length"])
def test_a_file_that_cannot_be_written_is_a_sentence_whatever_is_in_its_way(in_the_way: str, tmp_path: Path) -> None:
    """One that cannot be removed either, after it: what stopped a training would be hidden by it."""
    (tmp_path / "file").touch()
    (tmp_path / ".run.json.partial").mkdir()
    path = {"parent": tmp_path / "file" / "run.json", "partial": tmp_path / "run.json", "length": tmp_path / ("n" * 255)}[in_the_way]
    with pytest.raises(DragomanError, match=f"^{re.escape(str(path))}: cannot write: "):
        write_file(path, "text")
