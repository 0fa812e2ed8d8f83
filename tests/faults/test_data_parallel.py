"""Reported faults of training by several processes: B71 (uneven shares hang), B73 (rows seen twice or never), and B17 in that case."""

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.bundle import load_bundle
from dragoman.data.batching import Batch, collate
from dragoman.training import loss
from dragoman.training.loss import Loss
from rank_runs import on_ranks, said, torchrun
from training_runs import TINY, Pair, checkpoints, final_weights, marked, records, toy_pairs, train, write_pairs
from warm_command import warm_command

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
KILLED = """\
import os, signal, sys
from torch.optim.optimizer import register_optimizer_step_pre_hook
from dragoman.cli import main

steps = []

def die(*_):
    steps.append(1)
    if len(steps) == 8 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)

register_optimizer_step_pre_hook(die)
sys.exit(main())
"""


def watched(run: Path, data: Path, notes: Path, *arguments: str, **settings: Any) -> int:
    """A run of which each rank notes the pairs that it trains on: a line for each batch."""

    def note(corpus: Any, indices: np.ndarray, **ids: int) -> Batch:
        if torch.is_grad_enabled():
            with (notes / f"seen-{os.environ.get('RANK', '0')}").open("a") as file:
                file.write(f"{json.dumps(indices.tolist())}\n")
        return collate(corpus, indices, **ids)

    patch = pytest.MonkeyPatch()
    patch.setattr("dragoman.data.packing.collate", note)
    try:
        return train(run, data, "--quiet", *arguments, **{"model__dropout": 0.0} | settings)
    finally:
        patch.undo()


def seen(notes: Path) -> list[list[int]]:
    """All batches of all ranks."""
    return [json.loads(line) for path in sorted(notes.glob("seen-*")) for line in path.read_text().splitlines()]


def numbered(count: int) -> list[Pair]:
    return toy_pairs(count, seed=4)


@pytest.mark.parametrize("too_long", [False, True], ids=["five pairs", "one of them too long"])
def test_uneven_shares_end(too_long: bool, tmp_path: Path) -> None:
    """B71: batches of one pair, so that one rank has nothing to do at all, and updates of three, so that shares differ."""
    pairs = numbered(5)
    if too_long:
        pairs[2] = ("onlo " * 60, "OLNO " * 60)
    data, kept = write_pairs(tmp_path / "train", pairs), 5 - too_long
    longest = max(len(source.split()) for place, (source, _) in enumerate(pairs) if place != 2 or not too_long) + 1
    for accumulate in (1, 3):
        notes = tmp_path / str(accumulate)
        updates = -(-kept // accumulate)
        settings = {"training__batch_tokens": longest, "training__accumulate": accumulate, "data__max_length": 20}
        statuses = on_ranks(
            2, notes, lambda notes=notes, settings=settings, updates=updates: watched(
                notes / "run", data, notes, "--max-steps", str(2 * updates), **settings
            )
        )  # fmt: skip
        assert statuses == [0, 0]
        assert Counter(pair for batch in seen(notes) for pair in batch) == dict.fromkeys(range(kept), 2)
        assert records(notes / "run", "train")[-1]["epoch"] == 1


def test_every_pair_is_seen_once_an_epoch_by_any_number_of_ranks(tmp_path: Path) -> None:
    """B73."""
    write_pairs(tmp_path / "valid", numbered(6))
    data = write_pairs(tmp_path / "train", numbered(11))
    valid = ("--valid", str(tmp_path / "valid"))
    losses = []
    for size in (1, 2, 3):
        notes = tmp_path / str(size)
        statuses = on_ranks(
            size, notes, lambda notes=notes: watched(
                notes / "run", data, notes, *valid, "--max-steps", "1", training__batch_tokens=20, training__accumulate=100
            )
        )  # fmt: skip
        assert statuses == [0] * size
        assert sorted(pair for batch in seen(notes) for pair in batch) == list(range(11))
        assert len(list(notes.glob("seen-*"))) == size
        losses.append(records(notes / "run", "eval")[0]["loss"])
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)


def test_an_update_is_the_same_however_it_is_cut(tmp_path: Path) -> None:
    """B17: eight pairs of very different length in one update, in one batch or several, by two ranks."""
    pairs = [toy_pairs(1, seed=length, shortest=length, longest=length)[0] for length in (1, 2, 3, 5, 8, 13, 21, 34)]
    data = write_pairs(tmp_path / "train", pairs)
    right, weights = None, None
    for size, budget in ((1, 8 * 35), (2, 8 * 35), (2, 70), (2, 35)):
        notes = tmp_path / f"{size}-{budget}"
        settings = {"training__batch_tokens": budget, "training__accumulate": 8}
        statuses = on_ranks(
            size, notes, lambda notes=notes, settings=settings: watched(notes / "run", data, notes, "--max-steps", "1", **settings)
        )
        assert statuses == [0] * size
        assert sorted(pair for batch in seen(notes) for pair in batch) == list(range(8))
        (record,) = records(notes / "run", "train")
        found = final_weights(notes / "run")
        if right is None or weights is None:
            right, weights = record, found
        assert [record[name] for name in ("loss", "nll", "acc", "grad_norm")] == pytest.approx(
            [right[name] for name in ("loss", "nll", "acc", "grad_norm")], rel=1e-6
        )
        for name, weight in weights.items():
            if "w_k.bias" not in name:  # softmax cancels it, so its gradient is rounding alone, which Adam blows up
                torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6)


def test_a_loss_that_is_no_number_on_one_rank_stops_all_with_one_line(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "train", numbered(12))

    def poisoned(run: Path) -> int:
        calls, whole = 0, loss.output_loss

        def output_loss(*states: Any, **settings: Any) -> Loss:
            nonlocal calls
            calls += 1
            found = whole(*states, **settings)
            return found._replace(smoothed=found.smoothed * math.nan) if (calls, os.environ["RANK"]) == (3, "1") else found

        patch = pytest.MonkeyPatch()
        patch.setattr(loss, "output_loss", output_loss)
        return train(run, data, "--quiet", "--max-steps", "9", training__evaluate_every=2)

    statuses = on_ranks(2, tmp_path, lambda: poisoned(tmp_path / "run"))
    assert statuses[0] == 1
    (line,) = said(tmp_path, 0)
    assert line.startswith("dragoman: step 3: the loss is not a finite number on lines ")
    assert said(tmp_path, 1) == []
    assert json.loads((tmp_path / "run" / "run.json").read_bytes())["error"] == line.removeprefix("dragoman: ")
    assert list(checkpoints(tmp_path / "run")) == [2]


def test_a_rank_that_dies_ends_the_job_and_the_last_checkpoint_is_whole(tmp_path: Path) -> None:
    """B71: the crash of one process."""
    data, run, script = write_pairs(tmp_path / "train", numbered(30)), tmp_path / "run", tmp_path / "killed.py"
    script.write_text(KILLED, encoding="utf-8")
    sets = [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    done = torchrun(2, script, "train", "aa-bb", "--train", data, "--out", run, "--max-steps", "5000", *sets)
    assert done.returncode not in (0, None)
    text = done.stderr.decode()
    (line,) = [line for line in text.splitlines() if line.startswith("dragoman: another process")]
    assert "continue with --resume" in line
    assert "SIGKILL" in text
    assert json.loads((run / "run.json").read_bytes())["status"] == "failed"
    assert marked(run, "last") == "step-000005"
    load_bundle(run / "checkpoints" / "step-000005")
    assert train(run, None, "--quiet", "--max-steps", "6") == 0
    assert list(checkpoints(run)) == [5, 6]


def test_a_wrong_setting_is_said_once(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "train", numbered(5))
    words = ("train", "aa-bb", "--train", data, "--out", tmp_path / "run")
    with warm_command(tmp_path / "bin" / "warm"):
        done = torchrun(2, *words, "--set", "training.batch_token=7", warm=tmp_path / "bin" / "warm")
    assert done.returncode != 0
    lines = [line for line in done.stderr.decode().splitlines() if "dragoman:" in line]
    assert lines == [line for line in lines if line.startswith("dragoman: ") and "batch_tokens" in line]
    assert len(lines) == 1
    status, _ = on_ranks(2, tmp_path, lambda: train(tmp_path / "run", tmp_path / "nothing"))
    assert status != 0
    assert len(said(tmp_path, 0)) == 1
    assert said(tmp_path, 1) == []
