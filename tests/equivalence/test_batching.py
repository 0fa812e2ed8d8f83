"""Batches: every pair once, under the budget, the same for the same seed; and a batch holds what its pairs hold alone."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.batching import collate, ordered_batches, pad_rows, plan_batches
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=300).map(
    lambda pairs: np.array(pairs, np.int32).reshape(-1, 2).T
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    random = np.random.default_rng(0)
    words = [f"w{n}" for n in range(50)]
    pairs = [tuple(" ".join(random.choice(words, random.integers(1, 12))) for _ in range(2)) for _ in range(97)]
    tokenizer = Tokenizer.train([" ".join(words)], kind="whitespace", vocabulary_size=60)
    folder = tmp_path_factory.mktemp("batching") / "train"
    return Corpus.build(folder, pairs, source_tokenizer=tokenizer, target_tokenizer=tokenizer, max_length=50, batch_tokens=64)


@given(LENGTHS, st.integers(60, 400), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_every_pair_once_and_under_the_budget(lengths: np.ndarray, batch_tokens: int, seed: int, epoch: int) -> None:
    source, target = lengths
    for batches in (
        plan_batches(source, target, batch_tokens=batch_tokens, seed=seed, epoch=epoch),
        ordered_batches(source, target, batch_tokens=batch_tokens),
    ):
        assert sorted(index for batch in batches for index in batch) == list(range(len(source)))
        for batch in batches:
            assert len(batch) * source[batch].max() <= batch_tokens
            assert len(batch) * target[batch].max() <= batch_tokens


def test_the_order_is_a_function_of_seed_and_epoch(corpus: Corpus) -> None:
    def plan(seed: int, epoch: int) -> list[list[int]]:
        batches = plan_batches(corpus.source_lengths, corpus.target_lengths, batch_tokens=64, seed=seed, epoch=epoch)
        return [batch.tolist() for batch in batches]

    assert plan(1, 0) == plan(1, 0)
    plans = [plan(1, 0), plan(1, 1), plan(2, 0), plan(0, 1)]
    assert all(first != second for at, first in enumerate(plans) for second in plans[:at])
    assert set(map(frozenset, plans[0])) != set(map(frozenset, plans[1]))  # not the same batches in another order


def test_lengths_in_a_batch_are_similar() -> None:
    random = np.random.default_rng(0)
    source = random.integers(1, 80, 20_000)
    target = np.clip(source + random.integers(-8, 9, 20_000), 1, None)
    batches = plan_batches(source, target, batch_tokens=4096, seed=0, epoch=0)
    padded = sum(len(batch) * (source[batch].max() + target[batch].max()) for batch in batches)
    assert (source.sum() + target.sum()) / padded > 0.95


def test_ordered_batches_rise_in_length_and_never_change(corpus: Corpus) -> None:
    first, second = (ordered_batches(corpus.source_lengths, corpus.target_lengths, batch_tokens=64) for _ in range(2))
    longer_sides = np.maximum(corpus.source_lengths, corpus.target_lengths)
    assert (np.diff(longer_sides[np.concatenate(first)]) >= 0).all()
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in second]


def test_no_pairs_no_batches_and_a_pair_over_the_budget_is_refused() -> None:
    assert plan_batches(np.array([], np.int32), np.array([], np.int32), batch_tokens=9, seed=0, epoch=0) == []
    with pytest.raises(DragomanError, match=r"10 tokens .* training\.batch_tokens=9"):
        plan_batches(np.array([3, 10]), np.array([3, 3]), batch_tokens=9, seed=0, epoch=0)


def test_collated_values() -> None:
    lengths = np.array([3, 2], np.int32)
    corpus = Corpus(
        source_ids=np.array([7, 8, 2, 9, 2], np.uint16),
        target_ids=np.array([5, 2, 6, 4, 2], np.uint16),
        source_lengths=lengths,
        target_lengths=lengths[::-1],
        source_starts=np.array([0, 3]),
        target_starts=np.array([0, 2]),
        line_numbers=np.array([1, 2], np.int32),
        dropped={},
        fingerprint="",
    )
    batch = collate(corpus, np.array([1, 0]), pad=0, bos=1)
    assert batch.source.tolist() == [[9, 2, 0], [7, 8, 2]]
    assert batch.source_mask.tolist() == [[True, True, False], [True, True, True]]
    assert batch.target_input.tolist() == [[1, 6, 4], [1, 5, 0]]
    assert batch.target_output.tolist() == [[6, 4, 2], [5, 2, 0]]
    assert batch.target_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.pairs.tolist() == [1, 0]
    assert batch.source.dtype == batch.target_input.dtype == batch.target_output.dtype == torch.int64


def test_a_batch_holds_what_its_pairs_hold_alone(corpus: Corpus) -> None:
    pad, bos = 0, 1
    for indices in plan_batches(corpus.source_lengths, corpus.target_lengths, batch_tokens=64, seed=3, epoch=0):
        batch = collate(corpus, indices, pad=pad, bos=bos)
        for row, index in enumerate(indices):
            source, target = (side.tolist() for side in corpus[index])
            assert batch.source[row][batch.source_mask[row]].tolist() == source
            assert batch.target_output[row][batch.target_mask[row]].tolist() == target
            assert batch.target_input[row][batch.target_mask[row]].tolist() == [bos, *target[:-1]]
        for ids, mask in (
            (batch.source, batch.source_mask),
            (batch.target_input, batch.target_mask),
            (batch.target_output, batch.target_mask),
        ):
            assert (ids[~mask] == pad).all()


def test_rows_are_padded_as_pairs_are(corpus: Corpus) -> None:
    batch = collate(corpus, np.array([5, 0, 7]), pad=59, bos=1)
    ids, mask = pad_rows([corpus[place][0].tolist() for place in (5, 0, 7)], pad=59, device=torch.device("cpu"))
    assert torch.equal(ids, batch.source)
    assert torch.equal(mask, batch.source_mask)


def test_padding_follows_the_tokenizer_not_zero(corpus: Corpus) -> None:
    batch = collate(corpus, np.arange(len(corpus)), pad=59, bos=1)
    assert (batch.source[~batch.source_mask] == 59).all()
    assert (batch.target_input[~batch.target_mask] == 59).all()


def test_a_million_pairs_are_planned_in_seconds(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    source = random.integers(1, 100, 1_000_000, dtype=np.int32)
    target = random.integers(1, 100, 1_000_000, dtype=np.int32)
    start = time.process_time()
    batches = plan_batches(source, target, batch_tokens=25_000, seed=0, epoch=0)
    assert time.process_time() - start < 5
    assert sum(map(len, batches)) == 1_000_000


def test_neighbours_are_alike_also_where_the_longer_side_grows() -> None:
    """From the pair whose target is much the longer to that whose source is, and back again with the next length."""
    pairs = [(4, 1), (3, 3), (1, 3), (4, 4), (3, 1), (1, 4), (5, 5), (1, 5)]
    source, target = np.array(pairs).T
    (order,) = ordered_batches(source, target, batch_tokens=100)
    assert [pairs[place] for place in order] == [(1, 3), (3, 3), (3, 1), (4, 1), (4, 4), (1, 4), (1, 5), (5, 5)]
