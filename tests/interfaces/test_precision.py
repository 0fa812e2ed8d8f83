"""``training.precision``: what auto chooses, that a resumed run computes as before, and memory that is kept for the next step."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dragoman.config import Config
from dragoman.training import precision
from dragoman.training.precision import bfloat16_time, compute_dtype
from training_runs import final_weights, toy_pairs, train, write_pairs

CPU = torch.device("cpu")


def choice(asked: str, *, before: torch.dtype | None = None) -> torch.dtype:
    return compute_dtype(Config().with_values(training={"precision": asked}), CPU, before=before)


def measured(monkeypatch: pytest.MonkeyPatch, time: float) -> None:
    """As if bfloat16 took that multiple of float32's time."""
    monkeypatch.setattr(precision, "bfloat16_time", lambda d_model, d_ff: time)


@pytest.mark.parametrize(("time", "chosen"), [(0.3, torch.bfloat16), (0.95, torch.float32), (9.0, torch.float32)])
def test_auto_takes_what_is_clearly_faster(time: float, chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, time)
    assert choice("auto") == chosen
    assert choice("fp32") == torch.float32
    assert choice("bf16") == torch.bfloat16


@pytest.mark.parametrize(
    ("before", "time", "chosen"),
    [(torch.float32, 0.1, torch.float32), (torch.bfloat16, 1.1, torch.bfloat16), (torch.bfloat16, 9.0, torch.float32)],
)
def test_what_was_chosen_stays_unless_it_is_slow_here(
    before: torch.dtype, time: float, chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, time)
    assert choice("auto", before=before) == chosen


def test_measuring_draws_nothing_from_the_random_state() -> None:
    """Else a run with precision=auto would not have the weights and the dropout of one with fp32."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    bfloat16_time.cache_clear()
    assert bfloat16_time(16, 32) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_resumed_run_computes_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_pairs(tmp_path / "train", toy_pairs(40))
    settings = {"training__evaluate_every": 3, "model__dropout": 0.1}
    measured(monkeypatch, 0.3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(whole, data, "--max-steps", "6", **settings) == 0
    assert train(parts, data, "--max-steps", "3", **settings) == 0
    measured(monkeypatch, 1.1)
    assert train(parts, None, "--max-steps", "6") == 0
    assert json.loads((parts / "run.json").read_text("utf-8"))["precision"] == "bfloat16"
    expected = final_weights(whole)
    for name, weight in final_weights(parts).items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the settings")
def test_freed_memory_is_kept_when_asked_for() -> None:
    script = """
import sys, torch
from dragoman.devices import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
blocks = [torch.ones(5 * 2**20) for _ in range(10)]  # 20 MiB each
del blocks
with open("/proc/self/statm") as facts:
    print(int(facts.read().split()[1]) * 4096)
"""
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", script, what], capture_output=True, text=True, check=True).stdout)
        for what in ("keep", "give back")
    )
    assert kept - given_back > 150 * 2**20
