"""``data.bpe_dropout``: each epoch spells the training text in other pieces, which are the same text, the same in a resumed run."""

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.data.batching import collate
from dragoman.data.corpus import Corpus
from dragoman.data.segmentation import VARIANTS, Merges, Rows, SampledCorpus, sampled_corpus
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from dragoman.presets import resolve_config
from dragoman.training.preflight import preflight
from dragoman.training.run import create_run, prepare
from training_runs import checkpoints, final_weights, records, same_bits, train, write_pairs

CHOOSE = random.Random(4)
WORDS = ["lower", "lowest", "newer", "newest", "wide", "wider", "widest", "slow", "slower", "slowest", "unlower", "unwide"]
WORDS += ["12", "345", "<s>", "</s>", "naïve", "東京", "🐟", "it's", "--"]
TEXTS = [" ".join(CHOOSE.choices(WORDS, k=CHOOSE.randint(1, 9))) for _ in range(300)]
ODD = ["  two  spaces ", "tab\there", "\u3000wide space", "x", "e\u0301 combined", ">>de<< no tag", "<pad>", "a" * 200]


@pytest.fixture(scope="module", params=["none", "nfkc"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(TEXTS * 2, kind="bpe", vocabulary_size=330, normalization=request.param)


def words_of(texts: list[str], tokenizer: Tokenizer) -> Rows:
    ids = tokenizer.encode_batch(texts)
    return Rows.of(np.array([token for row in ids for token in row], np.int32), np.array([len(row) for row in ids], np.int32))


def each(rows: Rows) -> list[list[int]]:
    return [rows.ids[start : start + length].tolist() for start, length in zip(rows.starts, rows.lengths, strict=True)]


def test_without_dropout_merging_is_the_tokenizers_own(tokenizer: Tokenizer) -> None:
    """Words of one piece only: `encode` cuts what is longer first."""
    pieces = sorted({piece for text in TEXTS + ODD for piece, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(" " + text)})
    spelled = [tokenizer.backend.model.tokenize(piece) for piece in pieces]
    right = [[token.id for token in tokens] for tokens in spelled]
    merges = Merges.of(tokenizer)
    rows = Rows.of(np.array([token for row in right for token in row], np.int32), np.array([len(row) for row in right], np.int32))
    assert max(map(len, right)) > 20
    assert any(len(row) < len(piece) for row, piece in zip(right, pieces, strict=True))
    assert each(merges.sample(rows, 0.0, np.random.default_rng(1))) == right


def test_with_certain_dropout_every_byte_is_by_itself(tokenizer: Tokenizer) -> None:
    rows = merged = words_of(TEXTS + ODD, tokenizer)
    merged = Merges.of(tokenizer).sample(rows, 1.0, np.random.default_rng(1))
    for ids, text in zip(each(merged), TEXTS + ODD, strict=True):
        normal = tokenizer.backend.normalizer.normalize_str(text) if tokenizer.backend.normalizer else text
        assert len(ids) == len(normal.encode())
        assert tokenizer.decode(ids) == tokenizer.decode(tokenizer.encode(text))


def chances(word: tuple[str, ...], ranks: dict[tuple[str, str], int], dropout: float) -> Counter[tuple[str, ...]]:
    """Algorithm 1 of the article, each outcome with its probability."""
    found: Counter[tuple[str, ...]] = Counter()
    places = sorted((ranks[pair], place) for place, pair in enumerate(pairwise(word)) if pair in ranks)
    for earlier, (_, place) in enumerate(places):
        merged = (*word[:place], word[place] + word[place + 1], *word[place + 2 :])
        for outcome, chance in chances(merged, ranks, dropout).items():
            found[outcome] += dropout**earlier * (1 - dropout) * chance
    found[word] += dropout ** len(places)
    return found


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_pieces_are_as_frequent_as_the_article_makes_them(dropout: float) -> None:
    tokenizer = Tokenizer.train(TEXTS * 2, kind="bpe", vocabulary_size=330)
    merges = [tuple(pair) for pair in json.loads(tokenizer.backend.to_str())["model"]["merges"]]
    count = 40_000
    for word in ("lowest", "unwide", "newer"):
        own = words_of([word], tokenizer)
        ours = Merges.of(tokenizer).sample(own.take(np.zeros(count, np.int64)), dropout, np.random.default_rng(2))
        found = Counter(tuple(map(tokenizer.backend.id_to_token, ids)) for ids in each(ours))
        right = chances(tuple(f"Ġ{word}"), {pair: rank for rank, pair in enumerate(merges)}, dropout)
        assert sum(right.values()) == pytest.approx(1)
        assert len(right) > 4
        for outcome in found | right:
            chance = right[outcome]
            assert abs(found[outcome] / count - chance) < 5 * (chance / count) ** 0.5 + 1e-4


def built(folder: Path, tokenizer: Tokenizer, *, dropout: float, longest: int = 500, texts: list[str] | None = None) -> SampledCorpus:
    texts = texts or TEXTS + [text for text in ODD if text.strip()]
    corpus = Corpus.build(
        folder / "train", list(zip(texts, texts[::-1], strict=True)), source_tokenizer=tokenizer, target_tokenizer=tokenizer,
        max_length=500, batch_tokens=500, tags=["de"] if tokenizer.tags else [],
    )  # fmt: skip
    return sampled_corpus(folder / "train-words", corpus, tokenizer, tokenizer, dropout=dropout, longest=longest)


def rows_of(corpus: Corpus) -> list[list[list[int]]]:
    """The ids of both sides of all pairs."""
    sides = []
    for number in (0, 1):
        ids, starts, lengths = corpus.side(number, np.arange(len(corpus)))
        assert lengths.tolist() == (corpus.target_lengths if number else corpus.source_lengths).tolist()
        sides.append([ids[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)])
    return sides


@pytest.mark.parametrize("dropout", [0.1, 0.5, 1.0])
def test_every_epoch_is_the_same_text_in_other_pieces(dropout: float, tokenizer: Tokenizer, tmp_path: Path) -> None:
    tagged = tokenizer.with_tags(["de"])
    corpus = built(tmp_path, tagged, dropout=dropout)
    plain = rows_of(corpus)
    epochs = [rows_of(corpus.of_epoch(epoch, seed=1, most=500)) for epoch in range(4)]
    for sides in epochs:
        for side, own in zip(sides, plain, strict=True):
            assert [tagged.decode(ids) for ids in side] == [tagged.decode(ids) for ids in own]
            assert all(ids[-1] == tagged.eos and tagged.eos not in ids[:-1] for ids in side)
        assert {ids[0] for ids in sides[0]} == {tagged.tags["de"]}
        assert {ids[0] for ids in sides[1]}.isdisjoint([tagged.tags["de"]])
        assert sum(map(len, sides[0])) > 1.05 * sum(map(len, plain[0]))
    if dropout < 1:
        assert all(one != two for one, two in pairwise(epochs))
        assert epochs[0][0] != epochs[0][1][::-1]  # the sides draw for themselves


def test_an_epoch_is_a_function_of_seed_and_number(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS * 2, kind="bpe", vocabulary_size=330)
    corpus = built(tmp_path, tokenizer, dropout=0.3)
    first = rows_of(corpus.of_epoch(5, seed=1, most=500))
    assert rows_of(corpus.of_epoch(6, seed=1, most=500)) != first
    assert rows_of(corpus.of_epoch(5, seed=2, most=500)) != first
    again = sampled_corpus(tmp_path / "train-words", Corpus.open(tmp_path / "train"), tokenizer, tokenizer, dropout=0.3, longest=500)
    assert rows_of(again.of_epoch(5, seed=1, most=500)) == first
    epoch = corpus.of_epoch(5, seed=1, most=500)
    some = np.array([7, 3, 3, 100])  # whatever is in a batch with it, a pair has the same pieces
    batch = collate(epoch, some, pad=tokenizer.pad, bos=tokenizer.bos)
    assert [ids[mask].tolist() for ids, mask in zip(batch.source, batch.source_mask, strict=True)] == [first[0][pair] for pair in some]
    assert [ids[mask].tolist() for ids, mask in zip(batch.target_output, batch.target_mask, strict=True)] == [
        first[1][pair] for pair in some
    ]


def test_places_of_a_word_have_its_ways_by_chance(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS * 2, kind="bpe", vocabulary_size=330)
    corpus = built(tmp_path, tokenizer, dropout=0.6, texts=["unlowest"] * 4000)
    seen = Counter(map(tuple, rows_of(corpus.of_epoch(0, seed=1, most=500))[0]))
    assert 4 < len(seen) <= VARIANTS
    for many in seen.values():  # 4000 in 8 ways, some of them alike
        assert min(abs(many - alike * 4000 / VARIANTS) for alike in range(1, VARIANTS)) < 120


def test_what_would_be_too_long_keeps_the_tokenizers_pieces(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS * 2, kind="bpe", vocabulary_size=330)
    corpus = built(tmp_path, tokenizer, dropout=0.8, longest=40, texts=TEXTS)
    plain = rows_of(corpus)
    for most in (500, 30):
        limit, kept, spelled = min(40, most), 0, 0
        for side, own in zip(rows_of(corpus.of_epoch(0, seed=1, most=most)), plain, strict=True):
            for ids, before in zip(side, own, strict=True):
                assert len(ids) <= max(limit, len(before))
                kept += ids == before and len(ids) > 15
                spelled += ids != before
        assert kept > 5
        assert spelled > 100


def test_words_of_another_corpus_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TEXTS * 2, kind="bpe", vocabulary_size=330)
    built(tmp_path, tokenizer, dropout=0.3)
    other = built(tmp_path / "other", tokenizer, dropout=0.3, texts=TEXTS)
    plain = Corpus.open(tmp_path / "other" / "train")
    assert len(other) == len(plain)
    with pytest.raises(DragomanError, match=r"not the words of this corpus .of another corpus.; remove the folder"):
        sampled_corpus(tmp_path / "train-words", plain, tokenizer, tokenizer, dropout=0.3, longest=500)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pairs = list(zip(TEXTS, [text[::-1] for text in TEXTS], strict=True))
    write_pairs(tmp_path / "data" / "valid", pairs[:9])
    return write_pairs(tmp_path / "data" / "train", pairs[9:60])


def begin(run: Path, data: Path, steps: int, **settings: Any) -> int:
    bpe: dict[str, Any] = {"data__tokenizer": "bpe", "data__vocabulary_size": 300, "training__batch_tokens": 300}
    valid = ("--valid", data.with_name("valid"), "--max-steps", str(steps), "--quiet")
    return train(run, data, *valid, **bpe | {"data__bpe_dropout": 0.2} | settings)


def test_a_resumed_run_is_the_run_and_validation_is_as_ever(data: Path, tmp_path: Path) -> None:
    assert begin(tmp_path / "whole", data, 26) == 0
    assert begin(tmp_path / "parts", data, 13) == 0
    assert train(tmp_path / "parts", None, "--max-steps", "26", "--quiet") == 0
    assert records(tmp_path / "whole", "train")[-1]["epoch"] >= 2
    assert same_bits(final_weights(tmp_path / "whole"), final_weights(tmp_path / "parts"))
    frozen: dict[str, Any] = {"training__learning_rate": 1e-30, "training__evaluate_every": 1, "model__dropout": 0.0}
    losses = []
    for name, dropout in (("with", 0.5), ("without", 0.0)):
        assert begin(tmp_path / name, data, 2, data__bpe_dropout=dropout, **frozen) == 0
        losses.append([record["loss"] for record in records(tmp_path / name, "eval")])
    assert losses[0] == losses[1]
    first = [records(tmp_path / name, "train")[0]["loss"] for name in ("with", "without")]
    assert first[0] != first[1]
    assert list(checkpoints(tmp_path / "with")) == [1, 2]


def test_the_preflight_counts_what_is_seen(data: Path, tmp_path: Path) -> None:
    config = resolve_config("tiny", overrides=["data.vocabulary_size=300", "data.bpe_dropout=0.3", "training.batch_tokens=300"], flags={
        "data": {"source": "aa", "target": "bb", "train": [str(data)]},
    })  # fmt: skip
    create_run(tmp_path / "run", config, [])
    prepared = prepare(tmp_path / "run", config)
    known = preflight(prepared.config, prepared.corpus, device=torch.device("cpu"))
    seen = prepared.corpus.of_epoch(0, seed=1, most=300)
    assert known.source_tokens == seen.source_lengths.sum() > 1.1 * prepared.corpus.source_lengths.sum()


def test_it_is_for_byte_pairs(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", data, data__bpe_dropout=0.1) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "dragoman: settings: bpe_dropout=0.1 is for tokenizer='bpe' only; leave it at 0"
    for wrong in (-0.1, 1.1):
        assert train(tmp_path / "run", data, data__bpe_dropout=wrong, data__tokenizer="bpe") == 2
        assert "data.bpe_dropout" in capsys.readouterr().err
