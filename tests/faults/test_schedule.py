"""Reported faults of the schedule: B21 (the rate of each update as used) and B23 (the rate after an interruption)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from training_runs import checkpoints, final_weights, marked, records, same_bits, toy_pairs, train, write_pairs

RATES = [0.031250, 0.062500, 0.093750, 0.125000, 0.111803, 0.102062, 0.094491, 0.088388]  # d_model 16, warm-up 4, factor 1


@pytest.fixture
def used() -> Iterator[list[float]]:
    """The rate inside the optimiser at the moment of each update."""
    rates: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        rates.extend(group["lr"] for group in optimizer.param_groups)

    hook = register_optimizer_step_pre_hook(note)
    yield rates
    hook.remove()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_pairs(tmp_path / "data" / "train", toy_pairs(40))


def paper(run: Path, data: Path, steps: int) -> int:
    return train(run, data, "--max-steps", str(steps), "--quiet", training__schedule="paper", training__warmup_steps=4)


def test_each_update_uses_the_rate_of_its_own_step(data: Path, tmp_path: Path, used: list[float]) -> None:
    assert paper(tmp_path / "run", data, 8) == 0
    assert used == pytest.approx(RATES, abs=5e-7)
    log = records(tmp_path / "run", "train")
    assert [record["lr"] for record in log] == used
    assert [record["step"] for record in log] == list(range(1, 9))


def test_a_resumed_run_goes_on_with_rate_step_and_moments(data: Path, tmp_path: Path, used: list[float]) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert paper(whole, data, 8) == 0
    used.clear()
    assert paper(halves, data, 5) == 0
    assert used == pytest.approx(RATES[:5], abs=5e-7)
    used.clear()
    assert train(halves, None, "--max-steps", "8", "--quiet") == 0
    assert used == pytest.approx(RATES[5:], abs=5e-7)
    log = records(halves, "train")
    assert [record["step"] for record in log] == list(range(1, 9))
    assert [record["lr"] for record in log[5:]] == used
    assert same_bits(final_weights(halves), final_weights(whole))
    states = [load_file(run / "checkpoints" / marked(run, "last") / "state" / "tensors.safetensors") for run in (halves, whole)]
    assert same_bits(*states)
    assert {float(value) for name, value in states[0].items() if name.endswith(".step")} == {8.0}
    assert list(checkpoints(halves)) == [5, 8]
