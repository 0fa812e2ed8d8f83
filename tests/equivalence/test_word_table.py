"""Ids that are looked up by words are those that the tokenizer gives the whole text."""

import json
import sys
import unicodedata
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from dragoman.data import corpus as corpus_module
from dragoman.data import word_table
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from dragoman.data.vocabulary import PIECES, cuts_at_spaces
from dragoman.data.word_table import WordTable
from dragoman.errors import DragomanError

SPACES = "fox\u00a0 \u00a0fox   fox\u00a0  fox \t fox\t \tfox\u2003 \u2003fox \u00a0 fox"  # so that there are byte pairs of them
LINES = [SPACES, "the red fox's 1984 houses, saw it; über Ågren", "don't <s> </s> <mask> >>de<< na\u00efve nai\u0308ve \ufb01ne"] * 5
WORDS = [
    *(" ".join(LINES[1:3]).split(" ")), "", "\u00a0", "fox\u00a0!", "\u00a0fox", "fox\u00a0", "\u0308", "\u00a8", "a\u00a8", "\u2003", "\t",
    "a\tb", "\x00", "\x1c", "\r", "a\r", "\x85", "🦊", "\u1100", "\u1161", "한", "x" * 64, "x" * 65, "," * 130, "\u0301" * 70, "12",
    "…", "\ufdfa", "\ufc5e", "\u0345",
]  # fmt: skip
SEPARATORS = [" ", " ", " ", "  ", "   ", "", "\t", " \t", "\t ", "\u00a0", " \u00a0", "\u3000 ", "\u2028", "\n", " \r", "\x00"]
KINDS = [
    ("bpe", "none"), ("bpe", "nfc"), ("bpe", "nfkc"), ("whitespace", "none"), ("whitespace", "nfkc"), ("characters", "none"),
    ("characters", "nfkc"),
]  # fmt: skip

mixed = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SEPARATORS)), max_size=8).map(
    lambda parts: "".join(f"{word}{separator}" for word, separator in parts)
)
texts = st.lists(st.one_of(mixed, st.lists(st.sampled_from(WORDS)).map(" ".join), st.text()), max_size=6)


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    kind, form = request.param
    return Tokenizer.train(LINES, kind=kind, vocabulary_size=400, normalization=form, tags=["de"], mask=True)


def lists(rows: word_table.Rows) -> list[list[int]]:
    assert rows.starts.tolist() == [0, *accumulate(rows.lengths.tolist())][: len(rows.lengths)]
    assert len(rows.ids) == rows.lengths.sum()
    return [rows.ids[start : start + length].tolist() for start, length in zip(rows.starts, rows.lengths, strict=True)]


@given(batches=st.lists(texts, max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_texts_have_the_ids_of_the_tokenizer(tokenizer: Tokenizer, batches: list[list[str]]) -> None:
    table = WordTable(tokenizer)
    for batch in [*batches, *batches]:
        assert lists(table.encode(batch)) == tokenizer.encode_batch(batch)


def test_what_is_or_becomes_a_space_or_joins_a_letter_may_stand_beside_one(tokenizer: Tokenizer) -> None:
    characters = [
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if character.isspace() or " " in unicodedata.normalize("NFKC", character) or unicodedata.combining(character)
    ]
    forms = "fox{0} fox", "fox {0}fox", "fox{0} {0}fox", "fox {0} fox", "{0} fox {0}", "fox{0}fox {0}{0}"
    lines = [form.format(character) for character in characters for form in forms]
    assert len(lines) > 4000
    assert lists(WordTable(tokenizer).encode(lines)) == tokenizer.encode_batch(lines)


def test_no_other_character_is_white_space_in_any_normal_form() -> None:
    characters = [chr(code) for code in range(1, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000 and not chr(code).isspace()]
    for form in (normalizers.Sequence([]), normalizers.NFC(), normalizers.NFKC()):
        normal = form.normalize_str("\x00".join(characters)).split("\x00")
        assert len(normal) == len(characters)
        last = "".join(text[-1] for text in normal)
        assert [piece for piece, _ in pre_tokenizers.Split(tokenizers.Regex(r"\s"), "isolated").pre_tokenize_str(last)] == [last]


def test_words_are_looked_up_after_they_were_met(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    table, asked = WordTable(tokenizer), []
    plain = Tokenizer.encode_batch
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda self, batch: asked.extend(batch) or plain(self, batch))
    first = lists(table.encode(["the red fox", "red fox the"]))
    assert len(table) == len(asked) == 3
    assert lists(table.encode(["fox red the the", "the red fox"]))[1] == first[0]
    assert len(asked) == 3


def test_the_table_stays_small(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "MOST_WORDS", 40)
    table = WordTable(tokenizer)
    for start in range(0, 400, 30):
        batch = [f"the w{number} fox w{number + 1} {'long' * 50} <s>" for number in range(start, start + 30)]
        assert lists(table.encode(batch)) == tokenizer.encode_batch(batch)
        assert 0 < len(table) <= 40
    many = [" ".join(f"v{number}" for number in range(100))] * 2  # more at a time than it may have
    assert lists(table.encode(many)) == tokenizer.encode_batch(many)
    assert len(table) <= 40


def test_a_long_word_is_not_kept(tokenizer: Tokenizer) -> None:
    table = WordTable(tokenizer)
    assert lists(table.encode(["x" * 100_000])) == tokenizer.encode_batch(["x" * 100_000])
    assert len(table) == 0


def test_half_a_surrogate_pair_is_refused_with_its_text(tokenizer: Tokenizer) -> None:
    batch = ["the fox", "the \ud83d fox", "\udc00"]
    with pytest.raises(DragomanError) as expected:
        tokenizer.encode_batch(batch)
    with pytest.raises(DragomanError) as raised:
        WordTable(tokenizer).encode(batch)
    assert str(raised.value) == str(expected.value)


def foreign() -> Tokenizer:
    entries = [*SPECIAL_TOKENS, "a", ",", "a b", ">>de<< "]
    backend = tokenizers.Tokenizer(models.WordLevel({entry: token for token, entry in enumerate(entries)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"a b|,|\w"), "isolated")
    return Tokenizer("foreign", "", 0, 1, 2, 3, backend, tags={"de": 7}, source_end=False, opening=(1, 5))


def another_split() -> Tokenizer:
    """Words of several with a space between them, as no tokenizer is learnt here."""
    tokenizer = Tokenizer.train(LINES, kind="bpe", vocabulary_size=400)
    changed = json.loads(tokenizer.backend.to_str().replace(json.dumps(PIECES, ensure_ascii=False)[1:-1], r"[\\s\\S]{1,9}"))
    return Tokenizer("bpe", "", 0, 1, 2, 3, tokenizers.Tokenizer.from_str(json.dumps(changed)))


@pytest.mark.parametrize(("make", "words"), [(foreign, ["a", "b"]), (another_split, ["houses", "houses"])])
def test_a_tokenizer_that_cuts_otherwise_is_given_whole_texts(make: Callable[[], Tokenizer], words: list[str]) -> None:
    tokenizer, batch = make(), ["a b,a b", "a b red houses houses a b", " ".join(words), "", " a"]
    table = WordTable(tokenizer)
    assert lists(table.encode(batch)) == tokenizer.encode_batch(batch)
    assert len(table) == 0
    assert tokenizer.encode(" ".join(words)) != [token for word in words for token in tokenizer.encode(word)]


DEPARTURES: dict[str, Callable[[tokenizers.Tokenizer], object]] = {
    "a normalizer that joins words": lambda backend: setattr(
        backend, "normalizer", normalizers.Sequence([normalizers.Replace("x s", "xs"), normalizers.Prepend(" ")])
    ),
    "no normalizer": lambda backend: setattr(backend, "normalizer", None),
    "no pieces": lambda backend: setattr(backend, "pre_tokenizer", None),
    "merges left out": lambda backend: setattr(backend.model, "dropout", 0.5),
    "truncation": lambda backend: backend.enable_truncation(2),
    "padding": lambda backend: backend.enable_padding(),
    "an added token": lambda backend: backend.add_tokens(["red fox"]),
}


@pytest.mark.parametrize("departure", DEPARTURES)
def test_a_tokenizer_that_departs_from_those_learnt_here_is_not_cut(departure: str) -> None:
    backend = Tokenizer.train(LINES, kind="bpe", vocabulary_size=400).backend
    assert cuts_at_spaces(backend, "bpe")
    DEPARTURES[departure](backend)
    assert not cuts_at_spaces(backend, "bpe")


def test_a_corpus_has_the_bytes_of_texts_encoded_one_by_one(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_PAIRS", 7)
    random = np.random.default_rng(3)
    sides = [[" ".join(random.choice(WORDS, random.integers(1, 12))) for _ in range(150)] for _ in range(2)]
    pairs = list(zip(*sides, strict=True))
    target = foreign()
    tagged = Corpus.build(
        tmp_path / "tagged", pairs[:50], pairs[50:], source_tokenizer=tokenizer, target_tokenizer=target, max_length=90, batch_tokens=60,
        tags=["de", "de"],
    )  # fmt: skip
    assert_as_one_by_one(tmp_path / "tagged", tagged, pairs, tokenizer, target, [tokenizer.tags["de"]])
    opened = Corpus.build(
        tmp_path / "opened", pairs, source_tokenizer=target, target_tokenizer=tokenizer, max_length=60, batch_tokens=2**63, tags=["de"]
    )
    assert_as_one_by_one(tmp_path / "opened", opened, pairs, target, tokenizer, [7], max_length=60, batch_tokens=2**63)


def test_each_side_counts_its_end_and_the_shortest_is_of_all_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK_PAIRS", 1)
    words = Tokenizer.train(["a"], kind="whitespace", vocabulary_size=0)
    for pairs in ([("a", "a a"), ("a a a", "a")], [("a a", "a"), ("a", "a a a")]):
        with pytest.raises(DragomanError, match="the shortest has 3 tokens"):
            Corpus.build(tmp_path / "corpus", pairs, source_tokenizer=words, target_tokenizer=words, max_length=2, batch_tokens=9)


def assert_as_one_by_one(
    folder: Path, corpus: Corpus, pairs: list[tuple[str, str]], source: Tokenizer, target: Tokenizer, head: list[int],
    *, max_length: int = 90, batch_tokens: int = 60,
) -> None:  # fmt: skip
    files: dict[str, list[int]] = {name: [] for name in corpus_module.FILES}
    dropped: dict[str, int] = {}
    unknown = 0
    for number, pair in enumerate(pairs, start=1):
        sides = source.encode(pair[0]), target.encode(pair[1])
        ids = source.as_source([*head, *sides[0]]), [*sides[1], target.eos]
        longest = max(map(len, ids))
        if not all(sides) or not all(text.strip() for text in pair):
            reason = "empty side"
        elif longest > max_length:
            reason = "longer than max_length"
        elif longest > batch_tokens:
            reason = "longer than the batch budget"
        else:
            for name, values in zip(files, [*ids, [len(ids[0])], [len(ids[1])], [number]], strict=True):
                files[name] += values
            unknown += sides[0].count(source.unk) + sides[1].count(target.unk)
            continue
        dropped[reason] = dropped.get(reason, 0) + 1
    assert len(corpus) > 20
    assert dropped
    facts = json.loads((folder / "corpus.json").read_text())
    assert list(facts["dropped"].items()) == list(dropped.items())  # in this order
    assert facts["unknown"] == unknown
    for name, values in files.items():
        assert (folder / name).read_bytes() == np.array(values, facts["types"][name]).tobytes()
