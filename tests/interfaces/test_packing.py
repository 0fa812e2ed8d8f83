"""Text for models of one sequence: nothing of it is lost on the way into ids, and each token is in one block, once an epoch."""

import gzip
import json
import lzma
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data import documents as documents_module
from dragoman.data.documents import Piece, read_documents, text_files, whole_documents
from dragoman.data.masking import Masking
from dragoman.data.packing import PackedCorpus, batch_of, open_packed, pack
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from text_runs import words

ODD = "\ufeff first \r\nsecond\n\n\n third\u2028still third\x0c\n \t \nlast é🐟 "


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train([words(60), "a\n\nb  c\r\nd "], kind="bpe", vocabulary_size=300, mask=True)


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return Tokenizer.train([words(60)], kind="characters", vocabulary_size=0, mask=True)


def written(folder: Path, text: str, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def corpus_of(folder: Path, tokenizer: Tokenizer, text: str, documents: documents_module.Documents = "line") -> PackedCorpus:
    return pack(folder / "corpus", read_documents([written(folder, text)], documents=documents), tokenizer)


def texts_of(pieces: list[Piece]) -> list[str]:
    """The documents, of their pieces."""
    texts: list[str] = []
    for piece in pieces:
        texts += [""] * piece.first
        texts[-1] += piece.text
    return texts


def test_documents_are_files_or_stand_between_blank_lines_or_are_lines(tmp_path: Path) -> None:
    path = written(tmp_path, ODD)
    text = ODD.removeprefix("\ufeff")
    expected: dict[documents_module.Documents, list[tuple[str, int]]] = {
        "file": [(text, 1)],
        "blank-line": [(" first \r\nsecond", 1), (" third\u2028still third\x0c", 5), ("last é🐟 ", 7)],
        "line": [(" first ", 1), ("second", 2), (" third\u2028still third\x0c", 5), ("last é🐟 ", 7)],
    }
    for kind, right in expected.items():
        assert [(piece.text, piece.line) for piece in read_documents([path], documents=kind)] == right
        again = [piece.line for piece in read_documents([path, path], documents=kind)]
        assert again == [line for _, line in right] + [line + 7 for _, line in right]


@given(st.text(alphabet="ab. \n\r\t\u2028é", min_size=1), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_pieces_of_a_document_are_its_text_and_encode_as_it_does(bpe: Tokenizer, text: str, size: int) -> None:
    lines = text.split("\n")
    numbered = [(line + "\n", number) for number, line in enumerate(lines[:-1], 1)] + ([(lines[-1], len(lines))] if lines[-1] else [])
    before = documents_module.PIECE_CHARACTERS
    try:
        documents_module.PIECE_CHARACTERS = size
        pieces = list(documents_module._pieces(numbered))
    finally:
        documents_module.PIECE_CHARACTERS = before
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.first for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    ids = [token for piece in pieces for token in (bpe if piece.first else bpe.inside).encode(piece.text)]
    assert ids == bpe.encode(text)
    assert bpe.decode(ids) == text


def test_files_may_be_compressed_and_faults_name_them(tmp_path: Path) -> None:
    text = words(5)
    (tmp_path / "a.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "a.xz").write_bytes(lzma.compress(text.encode()))
    for name in ("a.gz", "a.xz"):
        assert texts_of(list(read_documents([tmp_path / name], documents="file"))) == [text]
    with pytest.raises(DragomanError, match=r"blank: empty; give files with text"):
        list(read_documents([written(tmp_path, " \n\n", "blank")], documents="line"))
    with pytest.raises(DragomanError, match=r"none\.txt, .*other\.txt: no such file"):
        text_files([str(tmp_path / "none.txt"), str(written(tmp_path, "a", "there.txt")), str(tmp_path / "other.txt")])
    (tmp_path / "latin").write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(DragomanError, match=r"latin, line 2: not UTF-8"):
        list(read_documents([tmp_path / "latin"], documents="file"))


@pytest.mark.parametrize("kind", ["file", "blank-line", "line"])
def test_a_packed_corpus_holds_the_text(
    kind: documents_module.Documents, bpe: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents_module, "PIECE_CHARACTERS", 50)
    text = "\n\n".join(words(7, seed=seed) for seed in range(3))
    corpus = corpus_of(tmp_path, bpe, text, kind)
    found = texts_of(list(read_documents([tmp_path / "text.txt"], documents=kind)))
    assert [piece.text for piece in whole_documents(read_documents([tmp_path / "text.txt"], documents=kind))] == found
    ids = np.split(corpus.target_ids, corpus.ends + 1)
    assert [bpe.decode(document) for document in ids[:-1]] == found
    assert [int(document[-1]) for document in ids[:-1]] == [bpe.eos] * len(found)
    assert len(ids[-1]) == 0
    assert corpus.texts == (len(found), sum(map(len, found)), sum(len(each.encode()) for each in found))
    assert open_packed(tmp_path / "corpus").fingerprint == corpus.fingerprint
    assert (corpus.target_ids.dtype, corpus.unknown) == (np.uint16, 0)


def test_a_damaged_corpus_is_refused(characters: Tokenizer, tmp_path: Path) -> None:
    corpus_of(tmp_path, characters, words(5))
    facts = json.loads((tmp_path / "corpus/corpus.json").read_text())
    (tmp_path / "corpus/ids").write_bytes((tmp_path / "corpus/ids").read_bytes()[:-2])
    with pytest.raises(DragomanError, match="corpus: not a whole corpus"):
        open_packed(tmp_path / "corpus")
    (tmp_path / "corpus/corpus.json").write_text(json.dumps(facts | {"format": 9}))
    with pytest.raises(DragomanError, match="format 9"):
        open_packed(tmp_path / "corpus")


@pytest.mark.parametrize("size", [2, 5, 12, 10_000])
def test_every_token_is_predicted_once_an_epoch_from_what_stands_before_it(characters: Tokenizer, tmp_path: Path, size: int) -> None:
    corpus = corpus_of(tmp_path, characters, words(30)).in_blocks(size=size)
    stream = corpus.target_ids.astype(np.int64)
    before = np.concatenate(([characters.bos], stream[:-1]))
    before[before == characters.eos] = characters.bos
    starts = set()
    for epoch in range(3):
        seen = corpus.of_epoch(epoch, seed=5, most=size)
        starts.add(int(seen.target_starts[1]) if len(seen) > 1 else 0)
        everything = np.arange(len(seen))
        batch = batch_of(seen, everything, characters)
        assert seen.predicted(everything) == int(batch.target_mask.sum()) == len(stream)
        assert batch.target_output[batch.target_mask].tolist() == stream.tolist()
        assert batch.target_input[batch.target_mask].tolist() == before.tolist()
        assert int(seen.target_lengths.max()) <= size
        assert batch.source.shape == (len(seen), 0)
        assert np.array_equal(seen.target_starts, corpus.of_epoch(epoch, seed=5, most=size).target_starts)
    if size == 12:
        assert len(starts) > 1


@pytest.mark.parametrize("stride", [1, 3, 12])
def test_with_a_stride_every_token_is_predicted_once_and_sees_as_much_as_there_is(
    characters: Tokenizer, tmp_path: Path, stride: int
) -> None:
    corpus = corpus_of(tmp_path, characters, words(9)).in_blocks(size=12, stride=stride)
    batch = batch_of(corpus, np.arange(len(corpus)), characters)
    assert batch.target_output[batch.target_mask].tolist() == corpus.target_ids.tolist()
    assert corpus.predicted(np.arange(len(corpus))) == corpus.tokens
    columns = batch.target_mask.nonzero()[:, 1]
    assert int(columns[12:].min()) == 12 - stride
    assert int(corpus.target_lengths.max()) == 12


def test_lines_are_those_of_the_text(characters: Tokenizer, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, characters, "\nabe\n\nlub\nti\n").in_blocks(size=2)
    assert corpus.line_numbers.tolist() == [2, 2, 4, 4, 5, 5]


def test_blocks_by_chance_are_pieces_of_the_text(characters: Tokenizer, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, characters, words(30)).in_blocks(size=12)
    some, again, others = corpus.at_random(50, seed=1), corpus.at_random(50, seed=1), corpus.at_random(50, seed=2)
    assert np.array_equal(some.target_starts, again.target_starts)
    assert not np.array_equal(some.target_starts, others.target_starts)
    batch = batch_of(some, np.arange(50), characters)
    for row, start in enumerate(some.target_starts):
        assert batch.target_output[row].tolist() == corpus.target_ids[start : start + 12].tolist()
    assert corpus.in_blocks(size=10_000).at_random(3, seed=1).target_starts.tolist() == [0, 0, 0]


def masked(corpus: PackedCorpus, tokenizer: Tokenizer, **changes: object) -> PackedCorpus:
    masking = Masking.of(tokenizer, **{"probability": 0.15, "seed": 3} | changes)  # type: ignore[arg-type]
    return corpus.in_blocks(size=14, masking=masking)


def test_an_encoder_sees_every_token_between_start_and_end(characters: Tokenizer, tmp_path: Path) -> None:
    corpus = masked(corpus_of(tmp_path, characters, words(60)), characters)
    for epoch in range(2):
        seen = corpus.of_epoch(epoch, seed=1, most=14)
        everything = np.arange(len(seen))
        batch = batch_of(seen, everything, characters)
        real = batch.source_mask
        assert (batch.target_output[:, 0] == characters.bos).all()
        assert real.sum(1).tolist() == seen.target_lengths.tolist()
        ends = batch.target_output.gather(1, real.sum(1, keepdim=True) - 1)
        assert (ends == characters.eos).all()
        rows = [row[1 : 1 + count].tolist() for row, count in zip(batch.target_output, seen.own, strict=True)]
        assert list(chain.from_iterable(rows)) == corpus.target_ids.tolist()[: sum(map(len, rows))]
        assert corpus.target_ids[sum(map(len, rows)) :].tolist() in ([], [characters.eos])
        assert seen.predicted(everything) == int(batch.target_mask.sum())
        assert torch.equal(batch.source[~batch.target_mask], batch.target_output[~batch.target_mask])
        assert not set(batch.target_output[batch.target_mask].tolist()) & characters.textless


def test_of_a_text_of_few_tokens_one_is_predicted_all_the_same() -> None:
    masking = Masking(0.15, 4, np.array([5, 6]), 0)
    assert masking.count(np.array([0, 1, 2, 3, 4, 9, 11, 100])).tolist() == [0, 1, 1, 1, 1, 1, 2, 15]
    chosen, _ = masking.apply(np.array([5, 6]), np.array([True, True]), epoch=0, index=0)
    assert chosen.sum() == 1


def test_of_the_tokens_15_percent_are_chosen_and_of_those_80_10_10(characters: Tokenizer, tmp_path: Path) -> None:
    corpus = masked(corpus_of(tmp_path, characters, words(1000)), characters).in_blocks(
        size=102, masking=Masking.of(characters, probability=0.15, seed=3)
    )
    batch = batch_of(corpus, np.arange(len(corpus)), characters)
    text = batch.source_mask & (batch.target_output > characters.eos)
    chosen, gold = batch.source[batch.target_mask], batch.target_output[batch.target_mask]
    assert len(chosen) / int(text.sum()) == pytest.approx(0.15, abs=0.003)
    is_mask, kept = chosen == characters.mask, chosen == gold
    entries = len(Masking.of(characters, probability=0.15).candidates)
    assert float(is_mask.float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float(kept.float().mean()) == pytest.approx(0.1 + 0.1 / entries, abs=0.02)
    drawn = chosen[~is_mask & ~kept]
    assert set(drawn.tolist()) <= set(range(4, len(characters) - 1))
    assert len(set(drawn.tolist())) == entries
    places = batch.target_mask.float().mean(0)[1:-1]
    assert float(places.std()) < 0.1
    assert float(places.min()) > 0.05


def test_masks_are_a_function_of_seed_and_epoch_and_block_whatever_is_in_the_batch(characters: Tokenizer, tmp_path: Path) -> None:
    corpus = masked(corpus_of(tmp_path, characters, words(40)), characters)
    everything = batch_of(corpus, np.arange(len(corpus)), characters)
    for index in (0, 3, 7):
        alone = batch_of(corpus, np.array([index]), characters)
        length = alone.source.size(1)
        assert torch.equal(alone.source[0], everything.source[index, :length])
        assert torch.equal(alone.target_mask[0], everything.target_mask[index, :length])
    other_seed = masked(corpus, characters, seed=4)
    assert not torch.equal(batch_of(other_seed, np.arange(len(corpus)), characters).target_mask, everything.target_mask)
    masking = Masking.of(characters, probability=0.15, seed=3)
    ids, text = corpus.target_ids[:40].astype(np.int64), np.ones(40, np.bool_)
    first, second = (masking.apply(ids, text, epoch=epoch, index=0)[0] for epoch in (0, 1))
    assert first.sum() == second.sum() == 6
    assert not np.array_equal(first, second)


def test_whole_words_are_chosen_whole(tmp_path: Path) -> None:
    bpe = Tokenizer.train([words(60)], kind="bpe", vocabulary_size=268, mask=True)  # few merges: words of several pieces
    corpus = masked(corpus_of(tmp_path, bpe, words(200)), bpe, words=True)
    batch = batch_of(corpus, np.arange(len(corpus)), bpe)
    assert corpus.predicted(np.arange(len(corpus))) == int(batch.target_mask.sum())
    split = 0
    for row, (ids, chosen) in enumerate(zip(batch.target_output.tolist(), batch.target_mask.tolist(), strict=True)):
        text = range(1, 1 + int(corpus.own[row]))
        least = int(Masking.of(bpe, probability=0.15).count(np.array(sum(ids[place] != bpe.eos for place in text))))
        assert sum(chosen) >= least
        for place in text[1:]:
            if ids[place] != bpe.eos and ids[place - 1] != bpe.eos and not bpe.piece(ids[place]).startswith((b" ", b"\n")):
                assert chosen[place] == chosen[place - 1]
                split += chosen[place]
    assert split > 10
