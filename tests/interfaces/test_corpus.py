"""The corpus on disk: what goes in comes out, what is dropped is counted, and a half-written one never looks whole."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.data import corpus as corpus_module
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError

WORDS = [f"w{n}" for n in range(30)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS)], kind="whitespace", vocabulary_size=100)


def build(folder: Path, pairs: Any, tokenizer: Tokenizer, **changes: Any) -> Corpus:
    limits = {"max_length": 50, "batch_tokens": 100} | changes
    return Corpus.build(folder, pairs, source_tokenizer=tokenizer, target_tokenizer=tokenizer, **limits)


def random_pairs(count: int) -> list[tuple[str, str]]:
    random = np.random.default_rng(1)
    return [
        (" ".join(random.choice(WORDS, random.integers(1, 9))), " ".join(random.choice(WORDS, random.integers(1, 9)))) for _ in range(count)
    ]


def contents(corpus: Corpus) -> list[tuple[list[int], list[int]]]:
    return [(source.tolist(), target.tolist()) for source, target in (corpus[index] for index in range(len(corpus)))]


def test_pairs_come_back_with_their_end_token(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_PAIRS", 7)
    pairs = random_pairs(40)
    corpus = build(tmp_path / "train", iter(pairs), tokenizer)
    assert contents(corpus) == [tuple([*tokenizer.encode(side), tokenizer.eos] for side in pair) for pair in pairs]
    assert corpus.source_lengths.tolist() == [len(source.split()) + 1 for source, _ in pairs]
    assert corpus.target_lengths.tolist() == [len(target.split()) + 1 for _, target in pairs]
    assert corpus.line_numbers.tolist() == list(range(1, 41))
    assert corpus.dropped == {}


def test_opened_again_it_is_the_same(tmp_path: Path, tokenizer: Tokenizer) -> None:
    built = build(tmp_path / "train", random_pairs(20), tokenizer)
    opened = Corpus.open(tmp_path / "train")
    assert contents(opened) == contents(built)
    assert (opened.fingerprint, opened.dropped) == (built.fingerprint, built.dropped)


def test_the_fingerprint_is_of_the_contents(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = random_pairs(20)
    first = build(tmp_path / "one", pairs, tokenizer).fingerprint
    monkeypatch.setattr(corpus_module, "CHUNK_PAIRS", 3)
    assert build(tmp_path / "two", pairs, tokenizer).fingerprint == first
    assert build(tmp_path / "three", pairs[1:], tokenizer).fingerprint != first
    assert build(tmp_path / "four", [(target, source) for source, target in pairs], tokenizer).fingerprint != first


def test_dropped_pairs_are_counted_and_said(tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    pairs = [
        ("w1", "w2"),
        ("", "w2"),
        ("w1", " \u3000\t"),
        (" ".join(WORDS[:9]), "w1"),
        ("w1", " ".join(WORDS[:10])),
        ("w1", " ".join(WORDS[:20])),
        ("w3", "w4"),
    ]
    with caplog.at_level(logging.WARNING, logger="dragoman"):
        corpus = build(tmp_path / "valid", pairs, tokenizer, max_length=20, batch_tokens=10)
    assert corpus.dropped == {"empty side": 2, "longer than the batch budget": 1, "longer than max_length": 1}
    assert corpus.line_numbers.tolist() == [1, 4, 7]  # ten tokens with the end token still fit
    assert [record.getMessage() for record in caplog.records] == [
        "valid: dropped 4 of 7 pairs (2 empty side, 1 longer than the batch budget, 1 longer than max_length)"
    ]


def test_unknown_words_of_both_sides_are_counted_in_what_is_kept(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs = [("w1 who", "w2"), ("w1", "what w2 where when"), ("nobody", "")]
    assert build(tmp_path / "train", pairs, tokenizer).unknown == 4


def test_nothing_dropped_nothing_said(tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path / "train", random_pairs(3), tokenizer)
    assert caplog.records == []


def test_nothing_left_is_an_error_with_the_way_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(
        DragomanError,
        match=r"2 longer than the batch budget\): the shortest has 4 tokens with its end token.*training\.batch_tokens=3 ",
    ):
        build(tmp_path / "train", [("w1 w2 w3", "w1"), ("w1", "w1 w2 w3 w4")], tokenizer, batch_tokens=3)
    with pytest.raises(DragomanError, match=r"raise data\.max_length and model\.max_positions, of which the lower is 2, to at least that"):
        build(tmp_path / "train", [("w1 w2 w3", "w1")], tokenizer, max_length=2)
    with pytest.raises(DragomanError, match=r"2 empty side\); give a corpus with text on both sides"):
        build(tmp_path / "train", [("", "w1"), ("w1", "")], tokenizer)
    with pytest.raises(DragomanError, match="there were none"):
        build(tmp_path / "train", [], tokenizer)
    assert list(tmp_path.iterdir()) == []


def test_each_side_has_its_own_tokenizer_and_the_smallest_numbers_that_hold_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    large = Tokenizer.train([" ".join(f"x{n}" for n in range(70_000))], kind="whitespace", vocabulary_size=66_000)
    last = large.token(65_999)
    corpus = Corpus.build(
        tmp_path / "train", [("w1", last)], source_tokenizer=tokenizer, target_tokenizer=large, max_length=9, batch_tokens=9
    )
    assert (corpus.source_ids.dtype, corpus.target_ids.dtype) == (np.uint16, np.int32)
    assert contents(corpus) == [([tokenizer.encode("w1")[0], tokenizer.eos], [65_999, large.eos])]


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_PAIRS", 2)

    def broken() -> Iterator[tuple[str, str]]:
        yield from random_pairs(7)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "train", broken(), tokenizer)
    assert list(tmp_path.iterdir()) == []
    assert len(build(tmp_path / "train", random_pairs(7), tokenizer)) == 7


def test_the_remains_of_a_killed_build_are_in_nobodys_way(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / ".train.partial").mkdir()
    (tmp_path / ".train.partial" / "source.ids").write_bytes(b"half")
    assert len(build(tmp_path / "train", random_pairs(4), tokenizer)) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_a_folder_that_exists_is_not_overwritten(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(DragomanError, match="mine: already exists"):
        build(tmp_path / "mine", random_pairs(4), tokenizer)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DragomanError, match="train: cannot write"):
        build(tmp_path / "file" / "train", random_pairs(4), tokenizer)


@pytest.mark.parametrize(
    "damage",
    [
        "missing folder",
        "missing file",
        "cut file",
        "odd bytes",
        "foreign types",
        "signed ids",
        "types of another form",
        "newer format",
        "no facts",
    ],
)
def test_a_damaged_corpus_is_named(tmp_path: Path, tokenizer: Tokenizer, damage: str) -> None:
    folder = tmp_path / "train"
    if damage != "missing folder":
        build(folder, random_pairs(4), tokenizer)
        facts = json.loads((folder / "corpus.json").read_text())
        ids = (folder / "target.ids").read_bytes()
    if damage == "missing file":
        (folder / "target.ids").unlink()
    elif damage == "cut file":
        (folder / "target.ids").write_bytes(ids[:-2])
    elif damage == "odd bytes":
        (folder / "target.ids").write_bytes(ids[:-1])
    elif damage == "foreign types":
        (folder / "corpus.json").write_text(json.dumps(facts | {"types": dict.fromkeys(facts["types"], "O")}))
    elif damage == "signed ids":  # as long as they are, so that only the type tells
        (folder / "corpus.json").write_text(json.dumps(facts | {"types": facts["types"] | {"target.ids": "<i2"}}))
    elif damage == "newer format":
        (folder / "corpus.json").write_text(json.dumps(facts | {"format": 2}))
    elif damage == "types of another form":
        (folder / "corpus.json").write_text(json.dumps(facts | {"types": "x"}))
    elif damage == "no facts":
        (folder / "corpus.json").write_text("[]")
    with pytest.raises(DragomanError, match=r"train: not a whole corpus .*; build it again from the text"):
        Corpus.open(folder)
