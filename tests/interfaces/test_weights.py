"""``data.weights``: each pair of a corpus is seen as often as its weight says, whatever interrupts the run."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.cli import main
from dragoman.data.batching import draw_pairs, plan_batches
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizer import Tokenizer
from dragoman.training.trainer import Trainer
from dragoman.training.windows import Window
from training_runs import TINY, final_weights, records, same_bits, toy_pairs, train, write_pairs


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """30 pairs, one of them with an empty side, and 10 pairs."""
    folder = tmp_path_factory.mktemp("data")
    pairs = toy_pairs(40)
    return write_pairs(folder / "a", [*pairs[:12], ("", "x"), *pairs[12:29]]), write_pairs(folder / "b", pairs[29:39])


def weighted(run: Path, corpora: tuple[Path, Path], weights: str, *arguments: str, **changes: Any) -> int:
    first, second = corpora
    return train(run, first, "--train", str(second), "--set", f"data.weights={weights}", "--quiet", *arguments, **changes)


def count(pairs: np.ndarray | None, parts: list[int]) -> list[list[int]]:
    """How often each pair of each part is drawn."""
    assert pairs is not None
    counts = np.bincount(pairs, minlength=sum(parts))
    assert len(counts) == sum(parts)
    return [part.tolist() for part in np.split(counts, np.cumsum(parts)[:-1])]


def test_whole_weights_are_the_number_of_times() -> None:
    for epoch in range(3):
        assert count(draw_pairs([4, 3], [1, 3], seed=5, epoch=epoch), [4, 3]) == [[1] * 4, [3] * 3]


def test_a_share_of_the_pairs_is_drawn_once_more_and_over_the_epochs_each_as_often() -> None:
    parts, weights = [100, 30, 10], [0.25, 2.5, 0.3]
    drawn = [count(draw_pairs(parts, weights, seed=1, epoch=epoch), parts) for epoch in range(4)]
    for counts in drawn:
        assert [Counter(part) for part in counts] == [{0: 75, 1: 25}, {2: 15, 3: 15}, {0: 7, 1: 3}]
    assert [np.sum([counts[part] for counts in drawn], 0).tolist() for part in (0, 1)] == [[1] * 100, [10] * 30]
    assert Counter(np.sum([counts[2] for counts in drawn], 0).tolist()) == {1: 8, 2: 2}
    assert drawn[0][0] != drawn[1][0]


def test_the_draw_is_a_function_of_seed_and_epoch() -> None:
    def draw(seed: int, epoch: int) -> list[list[int]]:
        return count(draw_pairs([50], [0.5], seed=seed, epoch=epoch), [50])

    assert draw(1, 3) == draw(1, 3)
    assert draw(1, 0) != draw(1, 1)
    assert draw(1, 0) != draw(2, 0)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(0.001, 4)), min_size=1, max_size=4).filter(lambda parts: any(n for n, _ in parts)),
    st.integers(0, 9),
    st.integers(0, 50),
)
@settings(max_examples=100, deadline=None)
def test_every_pair_is_drawn_its_weight_rounded_up_or_down(parts: list[tuple[int, float]], seed: int, epoch: int) -> None:
    sizes, weights = [size for size, _ in parts], [weight for _, weight in parts]
    pairs = draw_pairs(sizes, weights, seed=seed, epoch=epoch)
    assert pairs is not None
    assert len(pairs) > 0
    for counts, weight in zip(count(pairs, sizes), weights, strict=True):
        assert set(counts) <= {int(weight), int(weight) + 1}
        assert abs(sum(counts) - weight * len(counts)) <= 1 + 1e-9


def test_an_epoch_to_which_no_pair_falls_has_one_and_each_time_another() -> None:
    """A quarter of three pairs is none at all in some epochs, and an epoch without a pair would never end."""
    drawn = [draw_pairs([3], [0.25], seed=1, epoch=epoch) for epoch in range(12)]
    assert [None if pairs is None else len(pairs) for pairs in drawn] == [1] * 12
    assert [pairs.tolist() for pairs in drawn[::4] if pairs is not None] == [[0], [1], [2]]


@pytest.mark.parametrize(("size", "weight"), [(1, 0.5), (1, 1.5), (2, 1.25), (7, 0.01), (15, 2.5), (101, 0.005)])
def test_over_the_epochs_no_share_is_rounded_away(size: int, weight: float) -> None:
    epochs = 400
    drawn = [draw_pairs([size, 5], [weight, 1], seed=1, epoch=epoch) for epoch in range(epochs)]
    seen = sum(int((pairs < size).sum()) for pairs in drawn if pairs is not None)
    assert seen == pytest.approx(weight * size * epochs, abs=1)


def test_no_weights_are_weights_of_one() -> None:
    lengths = np.random.default_rng(0).integers(1, 20, (2, 60))
    plain = plan_batches(*lengths, batch_tokens=64, seed=3, epoch=2)
    ones = plan_batches(*lengths, batch_tokens=64, seed=3, epoch=2, pairs=draw_pairs([40, 20], [1, 1], seed=3, epoch=2))
    assert [batch.tolist() for batch in plain] == [batch.tolist() for batch in ones]
    assert draw_pairs([40, 20], [], seed=3, epoch=2) is None


def test_pairs_seen_several_times_stay_under_the_budget() -> None:
    source, target = np.random.default_rng(0).integers(1, 20, (2, 60))
    pairs = draw_pairs([40, 20], [0.5, 3], seed=3, epoch=2)
    batches = plan_batches(source, target, batch_tokens=64, seed=3, epoch=2, pairs=pairs)
    assert pairs is not None
    assert sorted(index for batch in batches for index in batch) == sorted(pairs.tolist())
    assert all(len(batch) * max(source[batch].max(), target[batch].max()) <= 64 for batch in batches)


def test_ten_million_pairs_are_drawn_and_planned_in_seconds() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, (2, 10_000_000), dtype=np.int32)
    start = time.process_time()
    pairs = draw_pairs([9_000_000, 1_000_000], [0.5, 2.5], seed=1, epoch=7)
    assert time.process_time() - start < 5
    assert pairs is not None
    assert len(pairs) == 7_000_000
    assert sum(map(len, plan_batches(*lengths, batch_tokens=25_000, seed=1, epoch=7, pairs=pairs))) == 7_000_000


def test_a_corpus_knows_how_many_pairs_of_each_part_it_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.data.corpus.CHUNK_PAIRS", 2)
    tokenizer = Tokenizer.train(["a b"], kind="whitespace", vocabulary_size=10)
    limits = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer, "max_length": 9, "batch_tokens": 9}
    pairs = [("a", "b"), ("", "b"), ("b", "a"), ("a b", "b"), ("a", ""), ("b b", "b")]
    whole = Corpus.build(tmp_path / "whole", pairs, **limits)
    parts = Corpus.build(tmp_path / "parts", pairs[:3], iter(pairs[3:4]), pairs[4:5], pairs[5:], **limits)
    assert (whole.parts, parts.parts) == ((4,), (2, 1, 0, 1))
    assert parts.line_numbers.tolist() == whole.line_numbers.tolist() == [1, 3, 4, 6]
    assert parts.fingerprint == whole.fingerprint


# A training


def test_an_epoch_of_a_run_sees_each_pair_so_often(corpora: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int]]] = []
    update = Trainer._update

    def noting(trainer: Trainer, window: Window) -> float | None:
        lines = [int(line) for batch in window.batches for line in trainer.corpus.line_numbers[batch]]
        seen.append((window.epoch, lines))
        return update(trainer, window)

    monkeypatch.setattr(Trainer, "_update", noting)
    assert weighted(tmp_path / "run", corpora, "[1, 2.5]", "--max-steps", "40") == 0
    assert max(epoch for epoch, _ in seen) >= 2
    for epoch in (0, 1):
        counts = Counter(line for at, lines in seen if at == epoch for line in lines)
        assert sorted(counts) == [*range(1, 13), *range(14, 41)]
        assert [counts[line] for line in range(1, 31) if line != 13] == [1] * 29
        assert Counter(counts[line] for line in range(31, 41)) == {2: 5, 3: 5}


def test_three_times_is_the_corpus_given_three_times(corpora: tuple[Path, Path], tmp_path: Path) -> None:
    """In an epoch of one batch, whose order alone differs, and from the same weights, for the vocabulary does not go by weights."""
    first, second = corpora
    assert train(tmp_path / "start", first, "--train", str(second), "--quiet", "--max-steps", "1") == 0
    one_batch = {"training__batch_tokens": 5000, "training__start_from": str(tmp_path / "start"), "model__dropout": 0.0}
    assert weighted(tmp_path / "run", corpora, "[1, 3]", "--max-steps", "1", **one_batch) == 0
    again = [part for _ in range(3) for part in ("--train", str(second))]
    assert train(tmp_path / "thrice", first, *again, "--quiet", "--max-steps", "1", **one_batch) == 0
    one, other = (records(run, "train")[0] for run in (tmp_path / "run", tmp_path / "thrice"))
    assert one["epoch"] == other["epoch"] == 0
    assert [one[name] for name in ("loss", "nll", "grad_norm")] == pytest.approx([other[name] for name in ("loss", "nll", "grad_norm")])
    for run in ("run", "thrice"):
        state = next((tmp_path / run / "checkpoints").glob("step-*/state/progress.json"))
        progress = json.loads(state.read_text("utf-8"))["progress"]
        assert (progress["target_tokens"], progress["position"]) == (tokens(first) + 3 * tokens(second), 1)


def tokens(prefix: Path) -> int:
    """Target tokens of the pairs with text on both sides, each with its end."""
    sides = zip(*(prefix.with_suffix(f".{side}").read_text("utf-8").splitlines() for side in ("aa", "bb")), strict=True)
    return sum(len(target.split()) + 1 for source, target in sides if source)


def test_resumed_equals_uninterrupted(corpora: tuple[Path, Path], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert weighted(whole, corpora, "[0.4, 2.3]", "--max-steps", "14", model__dropout=0.1) == 0
    assert weighted(parts, corpora, "[0.4, 2.3]", "--max-steps", "3", model__dropout=0.1) == 0
    for steps in ("9", "14"):
        assert train(parts, None, "--quiet", "--max-steps", steps) == 0
    assert records(whole, "train")[-1]["epoch"] >= 2
    assert same_bits(final_weights(parts), final_weights(whole))


def test_a_dry_run_counts_what_an_epoch_sees(corpora: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weighted(tmp_path / "run", corpora, "[2, 3]", "--dry-run") == 0
    assert f"{2 * tokens(corpora[0]) + 3 * tokens(corpora[1]):,} target tokens in " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("weights", "part"),
    [
        ("[1]", "weights has 1 numbers for 2 training corpora; give one for each --train"),
        ("[1, 2, 3]", "weights has 3 numbers for 2 training corpora"),
        ("[1, 0]", "data.weights.1=0: input should be greater than 0"),
        ("[-1, 1]", "data.weights.0=-1: input should be greater than 0"),
        ("[1, nan]", "data.weights.1=nan: input should be a finite number"),
        ("[inf, 1]", "data.weights.0=inf: input should be a finite number"),
        ("[1, 1001]", "data.weights.1=1001: input should be less than or equal to 1000"),
        ('["1", "2"]', "data.weights.0='1': input should be a valid number"),
        ("3", "weights has 1 numbers for 2 training corpora"),
        ("true", "data.weights=True: input should be a list; write 'data.weights=[1,3]'"),
        ("1,3", "data.weights.0='1,3': input should be a valid number; write 'data.weights=[1,3]'"),
        ("[1,x]", "--set data.weights=[1,x]: not a list that can be read; write --set 'data.weights=[1,3]'"),
    ],
)
def test_weights_that_cannot_be(
    weights: str, part: str, corpora: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weighted(tmp_path / "run", corpora, weights) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line
    assert list(tmp_path.iterdir()) == []


def test_weights_cannot_change_within_a_run_and_survive_the_settings_file(
    corpora: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, again = tmp_path / "run", tmp_path / "again"
    assert weighted(run, corpora, "[1, 2]", "--max-steps", "2") == 0
    assert train(run, None, "--quiet", "--set", "data.weights=[2, 1]") == 2
    sentence = "--resume: what is in [data] cannot change within a run (data.weights from [1.0, 2.0] to [2.0, 1.0]); start a new one"
    assert sentence in capsys.readouterr().err
    assert main(["train", "--config", str(run / "config.toml"), "--out", str(again), "--quiet"]) == 0
    assert same_bits(final_weights(run), final_weights(again))
    assert TINY["training.batch_tokens"] == 60  # so that two steps are not an epoch
