"""``training.batch_tokens=auto``: the largest batches that fit, found before the run and kept by it."""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import Config
from dragoman.presets import resolve_config
from dragoman.training import budget
from dragoman.training.budget import LEAST_UPDATES, MOST_ON_CPU, largest_fitting, settle_budget
from dragoman.training.distributed import Ranks
from dragoman.training.preflight import estimate_memory
from dragoman.training.run import Prepared
from dragoman.training.trainer import Trainer
from dragoman.training.windows import Window
from training_runs import final_weights, make_trainer, same_bits, toy_pairs, train, write_pairs

CPU = torch.device("cpu")
PAIRS = toy_pairs(3000)
LONGEST = 9  # eight words and the end token


@pytest.mark.parametrize("least", [1, 9, 100])
@pytest.mark.parametrize("most", [100, 777, 25_000])
@pytest.mark.parametrize("limit", [0, 8, 9, 13, 100, 776, 20_000, 10**9])
def test_the_largest_that_fits_is_found_to_a_sixteenth(limit: int, least: int, most: int) -> None:
    tried = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= limit

    found = largest_fitting(fits, least=least, most=most)
    best = min(limit, most) if limit >= least else 0
    assert found <= best
    assert found >= best - max(best // 16, 1)
    assert max(tried) <= max(2 * limit, least)
    assert len(tried) <= 2 + 2 * math.log2(most)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data") / "train", PAIRS)


def settings_of(run: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((run / "run.json").read_text("utf-8"))["settings"]
    return settings


def told(text: str) -> int:
    (found,) = re.findall(r"^batches: at most ([\d,]+) tokens a side, found for training.batch_tokens=auto$", text, re.M)
    return int(found.replace(",", ""))


def room_for(tokens: int, run: Path) -> int:
    """Free memory in which a batch of so many tokens is safe for the model of a run."""
    model = Config.model_validate_json(json.dumps(settings_of(run))).model if run.exists() else Config().model
    return int(estimate_memory(model, np.array([tokens]), np.array([LONGEST])).total / 0.7) + 1


def test_it_is_found_told_written_and_kept(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(tmp_path / "measure", data, "--quiet", "--max-steps", "1") == 0
    room = room_for(200, tmp_path / "measure")
    for name in ("budget", "preflight"):
        monkeypatch.setattr(f"dragoman.training.{name}.free_memory", lambda device: room)
    capsys.readouterr()

    assert train(tmp_path / "dry", data, "--dry-run", training__batch_tokens="auto") == 0
    found = told(capsys.readouterr().out)
    assert 200 - 200 // 8 <= found <= 200

    run, given = tmp_path / "run", tmp_path / "given"
    assert train(run, data, "--max-steps", "4", training__batch_tokens="auto") == 0
    assert told(capsys.readouterr().err) == found
    assert tomllib.loads((run / "config.toml").read_text("utf-8"))["training"]["batch_tokens"] == found
    assert settings_of(run)["training"]["batch_tokens"] == found
    assert train(given, data, "--max-steps", "4", training__batch_tokens=found) == 0
    assert same_bits(final_weights(run), final_weights(given))  # the search leaves no trace

    room = room_for(100, tmp_path / "measure") * 4
    assert train(run, None, "--max-steps", "6") == 0
    assert settings_of(run)["training"]["batch_tokens"] == found
    capsys.readouterr()
    assert train(run, None, "--max-steps", "7", training__batch_tokens="auto") == 0
    assert settings_of(run)["training"]["batch_tokens"] == told(capsys.readouterr().err) > found


def prepared(folder: Path, **training: Any) -> Prepared:
    trainer = make_trainer(folder, PAIRS, batch_tokens="auto", **training)
    bundle = trainer.bundle
    return Prepared(bundle.config, bundle.source_tokenizer, bundle.target_tokenizer, trainer.corpus, None)


def found_for(known: Prepared) -> int:
    return settle_budget(known, device=CPU).config.training.batch_budget


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_keeps_its_updates_and_an_update_is_not_larger_than_the_papers(
    accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = prepared(tmp_path, accumulate=accumulate)
    tokens = int(np.maximum(known.corpus.source_lengths, known.corpus.target_lengths).sum())
    for free in (10**12, None):
        monkeypatch.setattr(budget, "free_memory", lambda device, free=free: free)
        assert found_for(known) == tokens // (LEAST_UPDATES * accumulate)
    monkeypatch.setattr(budget, "LEAST_UPDATES", 0.1)
    assert found_for(known) == MOST_ON_CPU // accumulate


def test_ranks_that_share_a_batch_may_have_a_larger_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = prepared(tmp_path)
    room = int(estimate_memory(known.config.model, np.array([90]), np.array([LONGEST])).total / 0.7) + 1
    monkeypatch.setattr(budget, "free_memory", lambda device: room)
    one, two = found_for(known), budget._find(known, CPU, Ranks(0, 2))
    assert 80 <= one < 99  # ten pairs of nine tokens, at most
    assert 165 <= two <= 2 * 90


def test_with_no_room_the_preflight_says_so(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("budget", "preflight"):
        monkeypatch.setattr(f"dragoman.training.{name}.free_memory", lambda device: 50_000)
    assert train(tmp_path / "run", data, "--quiet", training__batch_tokens="auto") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "even for one pair at a time; choose a smaller --preset" in line
    assert not (tmp_path / "run").exists()


def test_on_a_gpu_updates_are_tried_until_one_runs_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, sizes, update = prepared(tmp_path), [], Trainer._update

    def scarce(self: Trainer, window: Window) -> float | None:
        (rows,) = window.batches
        sizes.append(len(rows) * LONGEST)
        if sizes[-1] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return update(self, window)

    monkeypatch.setattr(Trainer, "_update", scarce)
    for limit in (50, 400, 10**6):
        sizes.clear()
        found = budget._by_trying(known, tmp_path, CPU, lambda tokens: tokens // LONGEST, least=LONGEST, most=1000)
        right = min(limit, 1000)
        assert right - right // 16 - LONGEST <= found <= min(right + LONGEST, 1000)
        assert len(sizes) <= 40
    limit = 8
    with pytest.raises(budget.DragomanError, match=r"not even one pair of 9 tokens fits into the memory of cpu with this model; choose a "):
        budget._by_trying(known, tmp_path, CPU, lambda tokens: tokens // LONGEST, least=LONGEST, most=1000)


def test_before_it_is_found_there_is_no_number() -> None:
    training = resolve_config(overrides=["training.batch_tokens=auto"]).training
    assert training.batch_tokens == "auto"
    with pytest.raises(ValueError, match="has no number yet"):
        _ = training.batch_budget
