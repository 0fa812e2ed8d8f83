"""Reported faults of a training's state: B75 (validation leaves its mark) and B77 (a resumed run is another run)."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import dragoman
from dragoman.cli import main
from dragoman.data.batching import Batch, collate
from dragoman.decoding.translate import Translator
from training_runs import checkpoints, final_weights, make_trainer, marked, records, same_bits, toy_pairs, train, write_pairs

STOP, END = 13, 25


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pairs to learn from and 10 to look at."""
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "valid", toy_pairs(10, seed=9))
    return write_pairs(folder / "train", toy_pairs(40))


def noisy(run: Path, data: Path, *arguments: str, **settings: Any) -> int:
    """A run with dropout, validation, and batches of about four pairs."""
    valid = ("--valid", str(data.with_name("valid")))
    return train(run, data, *valid, "--quiet", *arguments, **{"model__dropout": 0.1, "training__batch_tokens": 32} | settings)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The pairs of each training batch, in order."""
    batches: list[list[int]] = []

    def note(corpus: Any, indices: np.ndarray, **ids: int) -> Batch:
        if torch.is_grad_enabled():
            batches.append(indices.tolist())
        return collate(corpus, indices, **ids)

    monkeypatch.setattr("dragoman.data.packing.collate", note)
    return batches


@pytest.fixture
def signals() -> Iterator[dict[int, signal.Signals]]:
    """Signals that come during the update of a step."""
    planned: dict[int, signal.Signals] = {}
    step = 0

    def send(*_: object) -> None:
        nonlocal step
        step += 1
        if step in planned:
            signal.raise_signal(planned[step])

    hook = register_optimizer_step_pre_hook(send)
    yield planned
    hook.remove()


def progress(run: Path) -> dict[str, Any]:
    """What the last checkpoint knows of its place, but for the time spent."""
    text = (run / "checkpoints" / marked(run, "last") / "state" / "progress.json").read_text("utf-8")
    return {name: value for name, value in json.loads(text)["progress"].items() if name != "seconds"}


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert noisy(run, data, "--max-steps", str(END)) == 0
    return run


def test_the_same_command_gives_the_same_run(data: Path, whole: Path, tmp_path: Path) -> None:
    assert noisy(tmp_path / "run", data, "--max-steps", str(END)) == 0
    assert same_bits(final_weights(tmp_path / "run"), final_weights(whole))
    assert noisy(tmp_path / "other", data, "--max-steps", str(END), "--seed", "2") == 0
    assert not same_bits(final_weights(tmp_path / "other"), final_weights(whole))


def test_validation_does_not_disturb_training(data: Path, tmp_path: Path) -> None:
    """B75: twelve updates with dropout 0.5; one run evaluates every third, the other only at its end."""
    losses = []
    for name, every in (("often", 3), ("once", 12)):
        assert noisy(tmp_path / name, data, "--max-steps", "12", model__dropout=0.5, training__evaluate_every=every) == 0
        assert len(records(tmp_path / name, "eval")) == 12 // every
        losses.append([record["loss"] for record in records(tmp_path / name, "train")])
    assert losses[0] == losses[1]
    assert same_bits(final_weights(tmp_path / "often"), final_weights(tmp_path / "once"))


def test_dropout_is_at_work_in_training_and_absent_from_validation(data: Path, tmp_path: Path) -> None:
    """At rate almost 0 the weights stay, so all evaluations agree to the last digit, and training losses do not."""
    settings = {"model__dropout": 0.5, "training__learning_rate": 1e-30, "training__evaluate_every": 1, "training__batch_tokens": 1000}
    assert noisy(tmp_path / "run", data, "--max-steps", "3", **settings) == 0
    assert len({record["loss"] for record in records(tmp_path / "run", "eval")}) == 1
    assert len({round(record["loss"], 3) for record in records(tmp_path / "run", "train")}) == 3


def test_translations_are_the_same_five_times_also_right_after_training(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(20), model={"dropout": 0.5}, max_steps=3)
    trainer.train()
    assert trainer.model.training
    for translator in (Translator(trainer.bundle), dragoman.load(trainer.run)):
        found = [translator.translate([toy_pairs(1)[0][0]]) for _ in range(5)]
        assert all(again == found[0] for again in found)
    assert trainer.model.training


def test_a_run_stopped_by_its_limit_and_resumed_is_the_uninterrupted_one(
    data: Path, whole: Path, tmp_path: Path, seen: list[list[int]]
) -> None:
    """B77: 40 pairs, dropout 0.1, 25 updates, or 13 and then up to 25."""
    again, halves = tmp_path / "again", tmp_path / "halves"
    assert noisy(again, data, "--max-steps", str(END)) == 0
    uninterrupted = seen.copy()
    seen.clear()
    assert noisy(halves, data, "--max-steps", str(STOP)) == 0
    assert seen == uninterrupted[:STOP]
    assert train(halves, None, "--quiet", "--max-steps", str(END)) == 0
    assert seen == uninterrupted
    assert same_bits(final_weights(halves), final_weights(whole))
    assert [record["loss"] for record in records(halves, "train")] == [record["loss"] for record in records(whole, "train")]


DEPARTURES: dict[str, dict[str, Any]] = {
    "adamw": {"training__optimizer": "adamw", "training__weight_decay": 0.1},
    "muon": {"training__optimizer": "muon", "training__weight_decay": 0.1},
    "average": {"training__ema": 0.9},
    "r-drop": {"training__rdrop": 5.0},
    "all": {
        "training__optimizer": "muon", "training__ema": 0.9, "training__rdrop": 1.0, "training__accumulate": 2,
        "model__positions": "rotary", "model__kv_heads": 1, "model__qk_norm": True, "model__norm": "rms", "model__activation": "swiglu",
        "model__norm_place": "deepnorm",
    },
}  # fmt: skip


@pytest.mark.parametrize("departure", DEPARTURES)
def test_with_every_departure_a_resumed_run_is_the_uninterrupted_one(departure: str, data: Path, whole: Path, tmp_path: Path) -> None:
    if "muon" in DEPARTURES[departure].values() and not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    whole_run, halves = tmp_path / "whole", tmp_path / "halves"
    assert noisy(whole_run, data, "--max-steps", str(END), **DEPARTURES[departure]) == 0
    assert noisy(halves, data, "--max-steps", str(STOP), **DEPARTURES[departure]) == 0
    assert train(halves, None, "--quiet", "--max-steps", str(END)) == 0
    assert same_bits(final_weights(halves), final_weights(whole_run))
    assert [record["loss"] for record in records(halves, "train")] == [record["loss"] for record in records(whole_run, "train")]
    assert [record["loss"] for record in records(halves, "eval")][-2:] == [record["loss"] for record in records(whole_run, "eval")][-2:]
    assert not same_bits(final_weights(whole_run), final_weights(whole))


def test_a_moving_average_may_begin_and_end_with_a_resume(data: Path, whole: Path, tmp_path: Path) -> None:
    """What is trained is the same in all of them; only what is saved differs."""
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    for run, first, then in ((begun, 0.0, 0.9), (ended, 0.9, 0.0)):
        assert noisy(run, data, "--max-steps", str(STOP), training__ema=first) == 0
        assert train(run, None, "--quiet", "--max-steps", str(END), training__ema=then) == 0
        assert [record["loss"] for record in records(run, "train")] == [record["loss"] for record in records(whole, "train")]
    assert same_bits(final_weights(ended), final_weights(whole))
    assert not same_bits(final_weights(begun), final_weights(whole))


def test_another_optimiser_is_refused_by_name(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for on the command line, or written into config.toml; and the run can still go on."""
    run = tmp_path / "run"
    assert noisy(run, data, "--max-steps", "2") == 0
    capsys.readouterr()
    assert train(run, None, "--max-steps", "4", training__optimizer="adamw") == 2
    assert "training.optimizer cannot change within a run" in capsys.readouterr().err
    settings = (run / "config.toml").read_text("utf-8")
    (run / "config.toml").write_text(settings.replace('optimizer = "adam"', 'optimizer = "adamw"'), encoding="utf-8")
    assert train(run, None, "--max-steps", "4") == 1
    assert "the optimizer changed since" in capsys.readouterr().err
    (run / "config.toml").write_text(settings, encoding="utf-8")
    assert train(run, None, "--quiet", "--max-steps", "4") == 0


def test_a_pytorch_without_muon_is_told_before_a_run_begins(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    assert noisy(tmp_path / "run", data, training__optimizer="muon") == 2
    assert "training.optimizer=muon needs PyTorch 2.9" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_run_stopped_by_a_signal_and_resumed_is_the_uninterrupted_one(
    name: str, data: Path, whole: Path, tmp_path: Path, signals: dict[int, signal.Signals]
) -> None:
    """Also in what it has judged: the stop counts no evaluation that the uninterrupted run does not have."""
    run, number = tmp_path / "run", signal.Signals[name]
    signals[STOP] = number
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    assert noisy(run, data, "--max-steps", str(END)) == 128 + number
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert list(checkpoints(run)) == [5, 10, STOP]
    assert marked(run, "last") == f"step-{STOP:06}"
    facts = json.loads((run / "run.json").read_text("utf-8"))
    assert (facts["status"], facts["step"]) == ("stopped", STOP)
    assert train(run, None, "--quiet") == 0
    assert same_bits(final_weights(run), final_weights(whole))
    assert progress(run) == progress(whole)
    assert [record["step"] for record in records(run, "eval")] == [5, 10, 15, 20, 25]
    for evaluation, right in zip(records(run, "eval"), records(whole, "eval"), strict=True):
        assert {**evaluation, "seconds": 0, "time": 0} == {**right, "seconds": 0, "time": 0}
    assert marked(run, "best") == marked(whole, "best")
    assert [record["event"] for record in records(run, "event")] == ["start", "stop", "resume", "stop"]


def test_a_signal_at_a_step_that_is_to_be_judged_does_not_skip_the_judgement(
    data: Path, whole: Path, tmp_path: Path, signals: dict[int, signal.Signals]
) -> None:
    """It is the first thing that the resumed run does."""
    signals[15] = signal.SIGINT
    assert noisy(tmp_path / "run", data, "--max-steps", str(END)) == 130
    assert [record["step"] for record in records(tmp_path / "run", "eval")] == [5, 10]
    assert train(tmp_path / "run", None, "--quiet") == 0
    assert [record["step"] for record in records(tmp_path / "run", "eval")] == [5, 10, 15, 20, 25]
    assert progress(tmp_path / "run") == progress(whole)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_second_signal_stops_at_once(data: Path, tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        register_optimizer_step_pre_hook(lambda *_: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
        os._exit(noisy(tmp_path / "run", data, "--max-steps", str(END)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGINT
    assert checkpoints(tmp_path / "run") == {}


@pytest.mark.parametrize("changed", ["train.aa", "train.bb", "valid.aa"])
def test_changed_data_are_refused_by_name(changed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(tmp_path / "valid", toy_pairs(5, seed=9))
    data, run = write_pairs(tmp_path / "train", toy_pairs(40)), tmp_path / "run"
    assert noisy(run, data, "--max-steps", "2") == 0
    before = final_weights(run)
    with (tmp_path / changed).open("a", encoding="utf-8") as file:
        file.write("one more\n")
    capsys.readouterr()
    assert train(run, None, "--quiet", "--max-steps", "4") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{changed}: changed since the run" in line
    assert same_bits(final_weights(run), before)


def test_another_tokenizer_or_corpus_is_refused_by_name(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    assert noisy(run, data, "--max-steps", "2") == 0
    assert train(other, write_pairs(tmp_path / "data" / "train", toy_pairs(39)), "--max-steps", "1", data__vocabulary_size=30) == 0
    kept = (run / "tokenizer.json").read_bytes()
    (run / "tokenizer.json").write_bytes((other / "tokenizer.json").read_bytes())
    capsys.readouterr()
    assert train(run, None, "--max-steps", "4") == 1
    assert "tokenizer changed since" in capsys.readouterr().err
    (run / "tokenizer.json").write_bytes(kept)
    (run / "corpus" / "train").rename(tmp_path / "aside")
    (other / "corpus" / "train").rename(run / "corpus" / "train")
    assert train(run, None, "--max-steps", "4") == 1
    assert "the training data changed since" in capsys.readouterr().err


def test_a_damaged_tokenizer_of_a_run_is_refused_and_kept(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert noisy(run, data, "--max-steps", "2") == 0
    broken = (run / "tokenizer.json").read_bytes()[:100]
    (run / "tokenizer.json").write_bytes(broken)
    capsys.readouterr()
    assert train(run, None, "--max-steps", "4", "--quiet") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{run / 'tokenizer.json'}: not a tokenizer, or damaged" in line
    assert line.endswith("restore the file from the model it belongs to; the run's checkpoints have it too")
    assert (run / "tokenizer.json").read_bytes() == broken
    (run / "tokenizer.json").write_bytes((run / "checkpoints/step-000002/tokenizer.json").read_bytes())
    assert train(run, None, "--max-steps", "4") == 0


def test_settings_whose_end_is_lost_are_refused_and_not_filled_up(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert noisy(run, data, "--max-steps", "2") == 0
    whole = (run / "config.toml").read_text("utf-8")
    short = whole[: whole.index("\n", whole.index("warmup_steps = ")) + 1]
    (run / "config.toml").write_text(short, "utf-8")
    capsys.readouterr()
    assert train(run, None, "--max-steps", "4", "--quiet") == 1
    (line,) = capsys.readouterr().err.splitlines()
    lost = whole[len(short) :].count(" = ")
    assert f"{run / 'config.toml'}: {lost} settings of the run are missing, training." in line
    assert "start a new run" in line
    assert (run / "config.toml").read_text("utf-8") == short
    (run / "config.toml").write_text(whole, "utf-8")
    assert train(run, None, "--max-steps", "4") == 0


@pytest.mark.parametrize("steps", [2, 4])
def test_a_newest_checkpoint_that_is_not_whole_is_refused(
    steps: int, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither an older one nor fresh weights may take its place without a word."""
    run = tmp_path / "run"
    for end in range(2, steps + 1, 2):
        assert train(run, data if end == 2 else None, "--max-steps", str(end)) == 0
    newest = run / "checkpoints" / f"step-{steps:06}"
    lost = (newest / "config.json").read_bytes()
    (newest / "config.json").unlink()
    capsys.readouterr()
    assert train(run, None, "--max-steps", "6", "--quiet") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{newest}: config.json is not there, so this is no checkpoint; put it back, or remove the whole folder, with which" in line
    assert newest.is_dir()
    assert main(["average", str(run), "--last", "1", "--out", str(tmp_path / "mean")]) == 1
    assert f"{newest}: config.json is not there, so this is no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()
    assert main(["inspect", str(run)]) == 0
    facts = capsys.readouterr().out
    assert f"looks wrong     {newest.name} is no checkpoint, for its config.json is not there" in facts
    assert "no finished checkpoint yet" not in facts
    (newest / "config.json").write_bytes(lost)
    assert train(run, None, "--max-steps", "6") == 0


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_anew(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under --quiet as well, for what was trained is lost with them; one that is where it was says nothing."""
    run = tmp_path / "run"
    assert train(run, data, "--max-steps", "4", "--quiet") == 0
    assert train(run, None, "--max-steps", "5", "--quiet") == 0
    assert capsys.readouterr().err == ""
    before = final_weights(run)
    shutil.rmtree(run / "checkpoints")
    assert train(run, None, "--max-steps", "5", "--quiet") == 0
    lost = "there is no checkpoint to go on from, so the 5 updates in its log.jsonl are made anew"
    assert capsys.readouterr().err == f"dragoman: warning: {run}: {lost}\n"
    assert same_bits(final_weights(run), before)
    assert [record["event"] for record in records(run, "event")] == ["start", "stop", "resume", "stop", "start", "stop"]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_only_bears_the_name_of_a_checkpoint_may_be_removed(
    kind: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint before it has the training's state then, so that nothing is lost."""
    run = tmp_path / "run"
    assert train(run, data, "--max-steps", "2") == 0
    newest = run / "checkpoints" / "step-000004"
    {"folder": newest.mkdir, "file": newest.touch, "link": lambda: newest.symlink_to("nowhere")}[kind]()
    capsys.readouterr()
    assert train(run, None, "--max-steps", "6", "--quiet") == 1
    assert capsys.readouterr().err == (
        f"dragoman: {newest}: config.json is not there, so this is no checkpoint; put it back, or remove the whole folder\n"
    )
    newest.rmdir() if kind == "folder" else newest.unlink()
    assert train(run, None, "--max-steps", "6") == 0
    assert marked(run, "last") == "step-000006"


def test_changed_settings_are_told_and_those_of_model_and_data_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert noisy(run, data, "--max-steps", "2") == 0
    capsys.readouterr()
    assert train(run, None, "--max-steps", "4", "--seed", "7") == 0
    notice = capsys.readouterr().err.splitlines()[0]
    assert notice == "dragoman: changed settings: training.max_steps from 2 to 4, training.seed from 1 to 7"
    assert train(run, None, "--max-steps", "6", model__dropout=0.2) == 2
    assert "[model] cannot change" in capsys.readouterr().err
    assert train(run, None, "--train", str(data), "--max-steps", "6", data__max_length=9) == 2
    assert "[data] cannot change" in capsys.readouterr().err
    assert train(run, None, "--preset", "tiny") == 2
    assert "--preset" in capsys.readouterr().err
    assert marked(run, "last") == "step-000004"
