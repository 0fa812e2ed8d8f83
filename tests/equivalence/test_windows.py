"""Updates that a thread makes ahead of the step are those that are made when they are due, and the thread ends with its reader."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.training import trainer as training
from dragoman.training.distributed import Ranks
from dragoman.training.state import Plan, Progress
from dragoman.training.trainer import Trainer
from dragoman.training.windows import Window, ahead, make_window, windows
from training_runs import checkpoints, final_weights, make_trainer, records, same_bits, toy_pairs, train, write_pairs


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "batches"]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_same_items_in_the_same_order(most: int) -> None:
    assert list(ahead(iter(range(100)), most=most)) == list(range(100))
    assert list(ahead(iter(()), most=most)) == []
    assert threads() == []


def test_only_so_many_are_made_ahead() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    found = ahead(items(), most=2)
    assert next(found) == 0
    deadline = time.monotonic() + 20
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    assert len(made) == 4  # one in use, two ready, one that waits for room
    found.close()
    assert threads() == []


def test_what_it_raises_is_raised_at_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the corpus is gone")

    found = ahead(items())
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(OSError, match="the corpus is gone"):
        next(found)
    assert threads() == []


def test_a_reader_that_leaves_ends_the_thread() -> None:
    found = ahead(count())
    assert list(islice(found, 3)) == [0, 1, 2]
    assert len(threads()) == 1
    found.close()
    assert threads() == []


@pytest.fixture
def by_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, without one."""

    def found(self: Trainer) -> Any:
        return ahead(windows(self.corpus, self.bundle.config, self.bundle.target_tokenizer, self.ranks, after=self.progress))

    monkeypatch.setattr(training.Trainer, "_windows", found)


def test_the_training_is_the_same_also_resumed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data = write_pairs(tmp_path / "train", toy_pairs(41))
    settings = {"model__dropout": 0.2, "training__accumulate": 2}
    assert train(tmp_path / "plain", data, "--quiet", "--max-steps", "13", **settings) == 0
    request.getfixturevalue("by_thread")
    assert train(tmp_path / "ahead", data, "--quiet", "--max-steps", "7", **settings) == 0
    assert threads() == []
    assert train(tmp_path / "ahead", None, "--quiet", "--max-steps", "13") == 0
    assert same_bits(final_weights(tmp_path / "plain"), final_weights(tmp_path / "ahead"))
    curves = [
        [(record["step"], record["epoch"], record["loss"]) for record in records(tmp_path / name, "train")] for name in ("plain", "ahead")
    ]
    assert curves[0] == curves[1]
    places = [
        (checkpoints(tmp_path / name)[13] / "state" / "progress.json").read_text("utf-8").split('"seconds"')[0]
        for name in ("plain", "ahead")
    ]
    assert places[0] == places[1]


CHANGES: list[list[dict[str, int]]] = [
    [{"training__accumulate": 2}],
    [{"training__batch_tokens": 120}],
    [{"training__batch_tokens": 31}, {"training__accumulate": 3}, {"training__accumulate": 1, "training__batch_tokens": 60}],
    [{"training__seed": 5}, {"training__batch_tokens": 90}],
    [{"training__accumulate": 50}, {"training__batch_tokens": 120}],  # the first of which ends the epoch
]


@pytest.mark.parametrize("weights", [[], [1.5]])
@pytest.mark.parametrize("changes", CHANGES)
def test_other_batches_within_an_epoch_leave_no_pair_out(
    changes: list[dict[str, int]], weights: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run that goes on with other batches ends the epoch with the pairs that it has not seen, and the next one has all of them."""
    data, seen = write_pairs(tmp_path / "train", toy_pairs(80)), Counter[tuple[int, int]]()
    update = Trainer._update

    def counting(self: Trainer, window: Window) -> float | None:
        seen.update((window.epoch, int(pair)) for batch in window.batches for pair in batch)
        return update(self, window)

    monkeypatch.setattr(Trainer, "_update", counting)
    settings: dict[str, Any] = {"training__batch_tokens": 60} | ({"data__weights": weights} if weights else {})
    assert train(tmp_path / "run", data, "--quiet", "--max-steps", "4", **settings) == 0
    assert 0 < len(seen) < 80
    for steps, change in enumerate(changes, start=5):
        assert train(tmp_path / "run", None, "--quiet", "--max-steps", str(steps), **change) == 0
    assert train(tmp_path / "run", None, "--quiet", "--max-steps", "60") == 0
    assert max(epoch for epoch, _ in seen) >= 2
    for epoch in (0, 1):
        times = [seen[epoch, pair] for pair in range(80)]
        assert set(times) == ({1, 2} if weights else {1})
        assert sum(times) == (120 if weights else 80)


def test_the_same_batches_go_on_as_they_were_planned(tmp_path: Path) -> None:
    """Also of a run that an older version began, which did not keep the plan."""
    trainer = make_trainer(tmp_path, toy_pairs(80), batch_tokens=60)
    corpus, config, tokenizer = trainer.corpus, trainer.bundle.config, trainer.bundle.target_tokenizer
    whole = [window.batches for window in islice(windows(corpus, config, tokenizer, Ranks()), 12)]
    for progress in (Progress(position=4), Progress(position=4, plan=Plan.of(config.training)), Progress(position=4, plan=Plan())):
        progress.go_on_by(Plan.of(config.training))
        rest = [window.batches for window in islice(windows(corpus, config, tokenizer, Ranks(), after=progress), 8)]
        for ours, theirs in zip(rest, whole[4:], strict=True):
            assert [*map(list, ours)] == [*map(list, theirs)]


def test_an_interrupted_training_stops_its_thread(tmp_path: Path, by_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(41), max_steps=50)
    update = trainer._update

    def stopping(window: Window) -> float | None:
        trainer.interrupted = trainer.progress.step == 3
        return update(window)

    monkeypatch.setattr(trainer, "_update", stopping)
    assert trainer.train() == "interrupted"
    assert list(checkpoints(trainer.run)) == [4]
    assert threads() == []


def test_a_window_has_every_token_once_and_with_all_parts_equally_many(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(41))
    batches = [np.arange(start, start + rows) for start, rows in ((0, 5), (5, 1), (6, 4))]
    tokens = sum(int(trainer.corpus.target_lengths[indices].sum()) for indices in batches)
    for size in (1, 2, 3, 4):
        for all_parts in (False, True):
            shares = [
                make_window(trainer.corpus, batches, trainer.bundle.target_tokenizer, Ranks(rank, size), all_parts=all_parts)
                for rank in range(size)
            ]
            assert {window.tokens for window in shares} == {tokens}
            assert sum(int(part.batch.target_mask.sum()) for window in shares for part in window.parts if part.counts) == tokens
            if all_parts:
                assert len({len(window.parts) for window in shares}) == 1
            else:
                assert all(part.counts for window in shares for part in window.parts)


def test_on_a_cpu_no_thread_is_started(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(41))
    assert trainer.device == torch.device("cpu")
    next(trainer._windows())
    assert threads() == []
