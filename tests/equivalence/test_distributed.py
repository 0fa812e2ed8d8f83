"""A training by several processes is the training by one: the same losses and weights, the same stops, resumed by as many or others."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dragoman.ranks import answered
from dragoman.training.distributed import Ranks, joined
from dragoman.training.preflight import preflight
from rank_runs import on_ranks, said, torchrun
from training_runs import TINY, checkpoints, final_weights, make_trainer, marked, records, same_bits, toy_pairs, train, write_pairs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
STEPS = 12
FIGURES = ("loss", "nll", "ppl", "acc", "lr", "grad_norm", "epoch")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An odd number of pairs, in an odd number of batches of odd sizes."""
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "valid", toy_pairs(7, seed=9))
    return write_pairs(folder / "train", toy_pairs(41))


def begin(run: Path, data: Path, steps: int = STEPS, **settings: Any) -> int:
    """A new run with validation, without dropout unless asked for."""
    valid = ("--valid", str(data.with_name("valid")))
    return train(run, data, *valid, "--quiet", "--max-steps", str(steps), **{"model__dropout": 0.0} | settings)


def go_on(run: Path, steps: int = STEPS) -> int:
    return train(run, None, "--quiet", "--max-steps", str(steps))


def curve(run: Path) -> list[list[float]]:
    """What each update logged, in the order of the steps, each step once."""
    by_step = {record["step"]: [record[name] for name in FIGURES] for record in records(run, "train")}
    return [by_step[step] for step in range(1, len(by_step) + 1)]


def progress(run: Path) -> dict[str, Any]:
    text = (run / "checkpoints" / marked(run, "last") / "state" / "progress.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)["progress"]
    return found


def assert_same_training(run: Path, one: Path) -> None:
    """Curves, evaluations and last weights are equal to rounding."""
    for found, right in zip(curve(run), curve(one), strict=True):
        assert found == pytest.approx(right, rel=1e-5)
    for found, right in zip(records(run, "eval"), records(one, "eval"), strict=True):
        assert {name: found[name] for name in ("step", "loss", "acc")} == pytest.approx(
            {name: right[name] for name in ("step", "loss", "acc")}, rel=1e-5
        )
    assert progress(run)["target_tokens"] == progress(one)["target_tokens"]
    assert_close(final_weights(run), final_weights(one), atol=1e-4)


def assert_close(found: dict[str, Tensor], right: dict[str, Tensor], *, atol: float) -> None:
    assert found.keys() == right.keys()
    for name, weight in right.items():
        if "w_k.bias" not in name:  # softmax cancels it, so its gradient is rounding alone, which Adam blows up
            torch.testing.assert_close(found[name], weight, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def test_one_process_alone_blames_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(RuntimeError, match="launch timed out"), answered():
        raise RuntimeError("CUDA error: the launch timed out and was terminated")


def test_what_no_rank_has_a_gradient_of_has_none(tmp_path: Path) -> None:
    """As of one process: AdamW would let the weights decay, of BERT's pooler say, which masked text does not train."""

    def work() -> int:
        with joined("cpu") as ranks:
            some, none = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
            if ranks.first:
                some.grad = torch.tensor([1.0, 2.0])
            ranks.sum_gradients([some, none])
            return int(not (some.grad is not None and some.grad.tolist() == [1.0, 2.0] and none.grad is None))

    assert on_ranks(2, tmp_path, work) == [0, 0]


@pytest.mark.parametrize("batches", range(7))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_row_of_a_window_goes_to_one_rank(batches: int, size: int) -> None:
    window = [np.arange(100 * place, 100 * place + rows) for place, rows in enumerate([5, 1, 4, 9, 2, 7][:batches])]
    shares = [Ranks(rank, size).share(window) for rank in range(size)]
    for place, indices in enumerate(window):
        given = [part for share in shares for at, part in share if at == place]
        assert sorted(np.concatenate(given).tolist()) == indices.tolist()
        assert all(len(part) for part in given)
    if batches % size == 0:
        assert [[len(part) == len(window[place]) for place, part in share] for share in shares] == [[True] * (batches // size)] * size
    rows = [sum(len(part) for _, part in share) for share in shares]
    if batches < size:
        assert max(rows) - min(rows) <= batches


@pytest.fixture(scope="module", params=[1, 3], ids=["one batch an update", "three batches an update"])
def one(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    run = tmp_path_factory.mktemp("one") / "run"
    assert begin(run, data, training__accumulate=request.param) == 0
    return run


def test_the_losses_and_weights_of_one_process(one: Path, data: Path, tmp_path: Path) -> None:
    accumulate = json.loads((one / "run.json").read_bytes())["settings"]["training"]["accumulate"]
    for size in (2, 3):
        run = tmp_path / f"run-{size}"
        assert on_ranks(size, tmp_path, lambda run=run: begin(run, data, training__accumulate=accumulate)) == [0] * size
        assert [record["step"] for record in records(run, "train")] == list(range(1, STEPS + 1))
        assert_same_training(run, one)
        facts = json.loads((run / "run.json").read_bytes())
        assert (facts["status"], facts["processes"]) == ("done", size)
        assert marked(run, "best") == marked(one, "best")


def test_the_command_as_users_start_it(data: Path, tmp_path: Path) -> None:
    sets = [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    run = tmp_path / "run"
    words = ["aa-bb", "--train", data, "--out", run, "--set", "model.dropout=0", "--max-steps", "4", *sets]
    done = torchrun(2, "-m", "dragoman", "train", *words)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b""
    text = done.stderr.decode()
    assert (text.count("2 processes"), text.count("4/4"), text.count("all steps done")) == (1, 1, 1)
    assert train(tmp_path / "one", data, "--quiet", "--max-steps", "4", model__dropout=0.0) == 0
    assert_same_training(run, tmp_path / "one")


def test_resumed_by_as_many_it_is_the_uninterrupted_run_and_dropout_differs_by_rank(data: Path, tmp_path: Path) -> None:
    noise = {"model__dropout": 0.2, "training__ema": 0.9}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert on_ranks(2, tmp_path, lambda: begin(whole, data, **noise)) == [0, 0]
    assert on_ranks(2, tmp_path, lambda: begin(parts, data, 7, **noise)) == [0, 0]
    assert on_ranks(2, tmp_path, lambda: go_on(parts)) == [0, 0]
    assert curve(parts) == curve(whole)
    assert same_bits(final_weights(parts), final_weights(whole))
    states = [load_file(run / "checkpoints" / marked(run, "last") / "state" / "tensors.safetensors") for run in (parts, whole)]
    assert same_bits(*states)
    assert not torch.equal(states[0]["random.cpu"], states[0]["random.cpu.1"])


def test_resumed_by_more_or_fewer_it_goes_on_as_one_process(data: Path, tmp_path: Path) -> None:
    one, fewer, more = tmp_path / "one", tmp_path / "fewer", tmp_path / "more"
    assert begin(one, data) == 0
    assert on_ranks(2, tmp_path, lambda: begin(fewer, data, 5)) == [0, 0]
    assert go_on(fewer) == 0
    assert begin(more, data, 5) == 0
    assert on_ranks(3, tmp_path, lambda: go_on(more)) == [0, 0, 0]
    for run in (fewer, more):
        assert_same_training(run, one)


def test_a_rank_that_joins_later_has_dropout_of_its_own(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert begin(run, data, 2, model__dropout=0.2) == 0
    assert on_ranks(3, tmp_path, lambda: go_on(run, 4)) == [0, 0, 0]
    state = load_file(run / "checkpoints" / marked(run, "last") / "state" / "tensors.safetensors")
    numbers = {bytes(state[name].numpy()) for name in ("random.cpu", "random.cpu.1", "random.cpu.2")}
    assert len(numbers) == 3


def test_gradients_add_up_and_what_is_not_trained_gets_none(tmp_path: Path) -> None:
    def add() -> int:
        with joined("cpu") as ranks:
            model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
            model[1].requires_grad_(False)
            ranks.copy_weights(model)
            right = torch.autograd.grad(model(torch.ones(1, 3)).sum(), list(model[0].parameters()))
            if ranks.first:  # the other has no rows
                model(torch.ones(1, 3)).sum().backward()
            ranks.sum_gradients(model.parameters())
            same = all(torch.equal(parameter.grad, value) for parameter, value in zip(model[0].parameters(), right, strict=True))
            same &= all(parameter.grad is None for parameter in model[1].parameters())
            numbers = ranks.sum(ranks.rank + 1, 0.5), ranks.largest(ranks.rank), ranks.first_says(7 - ranks.rank)
            gathered = ranks.gather({"a": torch.tensor([ranks.rank], dtype=torch.uint8), "b": torch.tensor([9, 8], dtype=torch.uint8)})
            found = [{name: value.tolist() for name, value in states.items()} for states in gathered]
            return not (same and numbers == ([3, 1], 1, 7) and found == [{"a": [0], "b": [9, 8]}, {"a": [1], "b": [9, 8]}])

    assert on_ranks(2, tmp_path, add) == [0, 0]


def test_a_signal_to_one_rank_stops_all_at_the_same_step(data: Path, tmp_path: Path) -> None:
    run, step = tmp_path / "run", 0

    def signalled() -> int:
        def send(*_: object) -> None:
            nonlocal step
            step += 1
            if step == 3 and os.environ["RANK"] == "1":
                signal.raise_signal(signal.SIGTERM)

        register_optimizer_step_pre_hook(send)
        return begin(run, data)

    assert on_ranks(2, tmp_path, signalled)[1] == 128 + signal.SIGTERM
    assert list(checkpoints(run)) == [3]
    assert json.loads((run / "run.json").read_bytes())["status"] == "stopped"
    assert begin(tmp_path / "one", data) == 0
    assert on_ranks(2, tmp_path, lambda: go_on(run)) == [0, 0]
    assert curve(run) == pytest.approx(np.array(curve(tmp_path / "one")), rel=1e-5)


@pytest.mark.parametrize(
    "limit", [{"training__patience": 2, "training__learning_rate": 1e-15}, {"training__max_minutes": 1e-6}], ids=["patience", "minutes"]
)
def test_all_ranks_stop_where_the_first_does(limit: dict[str, Any], data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert on_ranks(2, tmp_path, lambda: begin(run, data, 50, training__evaluate_every=1, **limit)) == [0, 0]
    (stop,) = [record for record in records(run, "event") if record["event"] == "stop"]
    assert (stop["reason"], stop["step"]) == (("patience", 3) if "training__patience" in limit else ("max_minutes", 1))


def test_a_part_of_a_batch_takes_less_memory(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(40))
    one, four = (
        preflight(trainer.bundle.config, trainer.corpus, device=trainer.device, ranks=Ranks(0, size)).memory.activations for size in (1, 4)
    )
    assert four < one
    several = trainer.bundle.config.with_values(training={"accumulate": 4})
    assert preflight(several, trainer.corpus, device=trainer.device, ranks=Ranks(0, 4)).memory.activations == one


@pytest.mark.parametrize("device", ["mps", "cuda:1", "cuda"])
def test_a_device_that_not_every_rank_can_have_is_refused_in_one_line(device: str, data: Path, tmp_path: Path) -> None:
    if device == "cuda" and torch.cuda.device_count() > 1:
        pytest.skip("here every rank has its own")
    status, _ = on_ranks(2, tmp_path, lambda: begin(tmp_path / "run", data, training__device=device))
    assert status == 2
    (line,) = said(tmp_path, 0) + said(tmp_path, 1)
    assert line.startswith("dragoman: ")
    assert "torchrun started 2 processes" in line
    assert not (tmp_path / "run").exists()


def test_a_dry_run_is_of_one_process(data: Path, tmp_path: Path) -> None:
    assert on_ranks(2, tmp_path, lambda: train(tmp_path / "run", data, "--dry-run"))[0] == 2
    assert said(tmp_path, 0) + said(tmp_path, 1) == ["dragoman: --dry-run measures one process; start it without torchrun"]
