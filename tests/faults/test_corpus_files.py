"""Reported faults of corpus files, and of sentences that fit no batch."""

from pathlib import Path

import pytest

from dragoman.bundle import load_bundle, save_bundle
from dragoman.data.batching import ordered_batches, plan_batches
from dragoman.data.corpus import Corpus
from dragoman.data.formats.pairs import read_pairs
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from small_bundles import make_bundle


def test_b45_quotes_in_a_tsv_are_ordinary_characters(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('Zeta\tzeta\n"Open\topen\nMid "dle"\tmid\n"Last\tlast\n', encoding="utf-8")
    assert list(read_pairs(str(tmp_path / "a.tsv"), "en", "de")) == [
        ("Zeta", "zeta"),
        ('"Open', "open"),
        ('Mid "dle"', "mid"),
        ('"Last', "last"),
    ]


@pytest.mark.parametrize(("line", "columns"), [("no tab", 1), ("a\tb\tc", 3), ("", 1)])
def test_b45_a_wrong_number_of_tabs_is_named_with_its_line(tmp_path: Path, line: str, columns: int) -> None:
    (tmp_path / "a.tsv").write_text(f"Zeta\tzeta\n{line}\nb\tc\n", encoding="utf-8")
    with pytest.raises(DragomanError, match=rf"a\.tsv, line 2: {columns} columns; each line is SOURCE, one tab, TARGET"):
        list(read_pairs(str(tmp_path / "a.tsv"), "en", "de"))


def test_b47_entries_of_unusual_spaces_survive_the_file(tmp_path: Path) -> None:
    entries = ["tam\u00a0", "tam", "lor", "lor\u00a0", "\u3000", "\u2003", "#", '"', "\u2028", "\x85"]
    tokenizer = Tokenizer.train([" ".join(entries)], kind="whitespace", vocabulary_size=100)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert [loaded.token(id) for id in range(len(loaded))] == [tokenizer.token(id) for id in range(len(tokenizer))]
    assert {loaded.token(id) for id in range(4, len(loaded))} == set(entries)
    assert loaded.encode(" ".join(entries)) == tokenizer.encode(" ".join(entries))

    before = make_bundle(tokenizer, tokenizer, tie="none")
    save_bundle(before, tmp_path / "model")
    texts = [*entries, " ".join(entries), "tam lor\u00a0 # tam\u00a0"]
    translations = Translator(before).translate(texts)
    assert Translator(load_bundle(tmp_path / "model")).translate(texts) == translations
    assert {token for translation in translations for token in translation.tokens} & set(entries)


def test_unequal_line_counts_name_counts_and_the_first_suspicious_line(tmp_path: Path) -> None:
    target = [letter * (1 + 7 * number % 23) for number, letter in enumerate("abcdefghijklmnopqrst")]
    source = [line.upper() for line in target]
    del source[11]
    (tmp_path / "train.en").write_text("\n".join(source) + "\n")
    (tmp_path / "train.de").write_text("\n".join(target) + "\n")
    with pytest.raises(
        DragomanError,
        match=r"train\.en has 19 lines but .*train\.de has 20.* near line 12 of .*train\.de \('l+'\); look there, and give one line "
        "of each file for each pair$",
    ):
        list(read_pairs(str(tmp_path / "train"), "en", "de"))


def test_lines_missing_at_the_end_are_found_there(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("one\nsixteen letters.\ntwo\nextra\n")
    (tmp_path / "train.de").write_text("one\nsixteen letters.\ntwo\n")
    with pytest.raises(DragomanError, match=r"train\.en has 4 lines but .*train\.de has 3.* near line 4 of .*train\.en \('extra'\)"):
        list(read_pairs(str(tmp_path / "train"), "en", "de"))


def test_empty_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.en").touch()
    (tmp_path / "train.de").touch()
    with pytest.raises(DragomanError, match=r"train\.en and .*train\.de: empty"):
        list(read_pairs(str(tmp_path / "train"), "en", "de"))
    (tmp_path / "train.de").write_text("one\n")
    with pytest.raises(DragomanError, match=r"train\.en has 0 lines but .*train\.de has 1; give one line of each file for each pair$"):
        list(read_pairs(str(tmp_path / "train"), "en", "de"))
    (tmp_path / "a.tsv").touch()
    with pytest.raises(DragomanError, match=r"a\.tsv: empty"):
        list(read_pairs(str(tmp_path / "a.tsv"), "en", "de"))


def test_b15_a_sentence_over_the_budget_is_dropped_before_the_first_step(tmp_path: Path) -> None:
    pairs = [(f"w{n % 7} " * (2 + n % 7), f"W{n % 7} " * (2 + n % 7)) for n in range(200)]
    pairs.insert(77, ("w1 " * 60, "W1 " * 60))
    tokenizer = Tokenizer.train([line for pair in pairs for line in pair], kind="whitespace", vocabulary_size=50)

    def build(name: str, batch_tokens: int) -> Corpus:
        return Corpus.build(
            tmp_path / name, pairs, source_tokenizer=tokenizer, target_tokenizer=tokenizer, max_length=256, batch_tokens=batch_tokens
        )

    for name in ("train", "valid"):
        corpus = build(name, 50)
        assert corpus.dropped == {"longer than the batch budget": 1}
        assert 78 not in corpus.line_numbers
        lengths = (corpus.source_lengths, corpus.target_lengths)
        batches = (
            plan_batches(*lengths, batch_tokens=50, seed=1, epoch=0) if name == "train" else ordered_batches(*lengths, batch_tokens=50)
        )
        assert sum(map(len, batches)) == 200
        assert all(map(len, batches))
    assert len(build("small", 3)) == 29  # two words and the end token just fit
    with pytest.raises(DragomanError, match=r"the shortest has 3 tokens .* training\.batch_tokens=2 to at least that"):
        build("none", 2)
