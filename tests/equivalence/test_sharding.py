"""``training.shard``: a model of which each process has a part trains like one that is whole, and what is on disk is whole."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dragoman.training.distributed import Ranks, joined
from dragoman.training.preflight import preflight
from dragoman.training.trainer import Trainer
from equivalence.test_distributed import STEPS, assert_same_training, begin, curve, go_on, progress
from rank_runs import on_ranks, said
from training_runs import checkpoints, final_weights, make_trainer, marked, same_bits, toy_pairs, train, write_pairs

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
SHARED: dict[str, Any] = {"training__shard": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An odd number of pairs, in an odd number of batches of odd sizes."""
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "valid", toy_pairs(7, seed=9))
    return write_pairs(folder / "train", toy_pairs(41))


def states(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / marked(run, "last") / "state" / "tensors.safetensors")


@pytest.mark.parametrize(
    "settings",
    [{}, {"accumulate": 3, "clip_norm": 0.5}, {"batch_tokens": 9}, {"rdrop": 1.0, "optimizer": "adamw", "weight_decay": 0.1}],
    ids=["plain", "three batches clipped", "a batch has fewer rows than ranks", "R-Drop"],
)
def test_the_losses_and_weights_of_one_process(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    chosen = {f"training__{name}": value for name, value in settings.items()}
    one = tmp_path / "one"
    assert begin(one, data, **chosen) == 0
    for size in (2, 3):
        run = tmp_path / f"run-{size}"
        assert on_ranks(size, tmp_path, lambda run=run: begin(run, data, **chosen, **SHARED)) == [0] * size
        assert said(tmp_path, 0) + said(tmp_path, 1) == []
        assert_same_training(run, one)
        assert marked(run, "best") == marked(one, "best")
        assert {name: value.shape for name, value in states(run).items() if "random" not in name} == {
            name: value.shape for name, value in states(one).items() if "random" not in name
        }
        files = [sorted(path.name for path in checkpoints(each)[STEPS].rglob("*")) for each in (run, one)]
        assert files[0] == files[1]


def test_resumed_by_as_many_it_is_the_uninterrupted_run(data: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    noise = {"model__dropout": 0.2, **SHARED}
    assert on_ranks(2, tmp_path, lambda: begin(whole, data, **noise)) == [0, 0]
    assert on_ranks(2, tmp_path, lambda: begin(parts, data, 7, **noise)) == [0, 0]
    assert on_ranks(2, tmp_path, lambda: go_on(parts)) == [0, 0]
    assert curve(parts) == curve(whole)
    assert same_bits(final_weights(parts), final_weights(whole))
    assert same_bits(states(parts), states(whole))


def test_resumed_by_others_or_whole_it_goes_on_as_one_process(data: Path, tmp_path: Path) -> None:
    one, shared, whole = tmp_path / "one", tmp_path / "shared", tmp_path / "whole"
    assert begin(one, data) == 0
    assert begin(shared, data, 5) == 0
    assert on_ranks(2, tmp_path, lambda: train(shared, None, "--quiet", "--max-steps", "10", **SHARED)) == [0, 0]
    assert on_ranks(3, tmp_path, lambda: go_on(shared)) == [0, 0, 0]
    assert on_ranks(2, tmp_path, lambda: begin(whole, data, 5, **SHARED)) == [0, 0]
    assert train(whole, None, "--quiet", "--max-steps", str(STEPS), training__shard=False) == 0
    for run in (shared, whole):
        assert_same_training(run, one)
        assert progress(run)["step"] == STEPS


def test_a_rank_that_dies_is_said_in_one_line(data: Path, tmp_path: Path) -> None:
    def dying() -> int:
        calls = iter(range(10))

        def die(*_: object) -> None:
            if next(calls) == 3 and os.environ["RANK"] == "1":
                os._exit(9)

        register_optimizer_step_pre_hook(die)
        return begin(tmp_path / "run", data, **SHARED)

    statuses = on_ranks(2, tmp_path, dying)
    assert statuses[1] == 9
    assert statuses[0] in (1, -signal.SIGTERM)  # it is ended by the others' end, or finds out by itself
    if statuses[0] == 1:
        (line,) = said(tmp_path, 0)
        assert line.startswith("dragoman: another process of this job ended or does not answer")


def test_each_rank_has_its_part_of_weights_and_moments_only(tmp_path: Path) -> None:
    def hold() -> int:
        with joined("cpu") as ranks:
            trainer = make_trainer(tmp_path / str(ranks.rank), toy_pairs(20))
            bundle = replace(trainer.bundle, config=trainer.bundle.config.with_values(training={"shard": True}))
            shared = Trainer(bundle, trainer.corpus, run=trainer.run, log=trainer.log, device=ranks.device, ranks=ranks)
            shared._update(next(iter(shared._windows())))
            weights = list(shared.model.parameters())
            moments = [value for state in shared.optimizer.state.values() for name, value in state.items() if name != "step"]
            assert all(isinstance(value, DTensor) for value in (*weights, *moments))
            own, whole = (sum(value.numel() for value in values) for values in ([w.to_local() for w in weights], weights))
            assert own <= 0.5 * whole + 20 * len(weights)
            assert sum(value.to_local().numel() for value in moments) == 2 * own
        return 0

    assert on_ranks(2, tmp_path, hold) == [0, 0], said(tmp_path, 0)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "shares the model out among processes, and this is one; start it with `torchrun"),
        ({"training__ema": 0.9}, "shard=true does not go with ema=0.9"),
        ({"training__optimizer": "muon"}, "shard=true does not go with optimizer='muon'"),
    ],
    ids=["one process", "ema", "muon"],
)
def test_what_does_not_go_with_it_is_refused_by_name(
    settings: dict[str, Any], fault: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dry in ((), ("--dry-run",)):
        assert train(tmp_path / "run", data, *dry, **settings, **SHARED) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("dragoman: ")
        assert fault in line
        assert not (tmp_path / "run").exists()


def test_a_shared_model_is_estimated_to_take_less_memory(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(40))
    deep = trainer.bundle.config.with_values(model={"encoder_layers": 12, "decoder_layers": 12}, training={"shard": True})
    one, four = (preflight(deep, trainer.corpus, device=trainer.device, ranks=Ranks(0, size)).memory for size in (1, 4))
    assert four.moments == pytest.approx(one.moments / 4, abs=8)
    assert one.weights / 4 < four.weights < one.weights / 2
