"""Tokenizers: lossless on any text, stable in their file, never giving a special id for text."""

import json
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.formats.pairs import read_pairs
from dragoman.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from dragoman.errors import DragomanError, UsageError

LINES = [
    "the red fox saw the red house",
    "The fox, the house; and 1984 foxes!",
    "der rote Fuchs sah das rote Haus",
    "नमस्ते दुनिया 東京 <s> <s> </s>",
] * 5


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train(LINES, kind="bpe", vocabulary_size=320)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_bpe_gives_back_any_text(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text


@given(st.text(alphabet=" \t\r\n\x0b\x0c\x85\xa0\u2028\u2029\u3000\ufeff\u200da<>/s\u0301\U0001f41f"))
@settings(max_examples=200, deadline=None)
def test_bpe_gives_back_any_spaces_and_marks(bpe: Tokenizer, text: str) -> None:
    ids = bpe.encode(text)
    assert bpe.decode(ids) == text
    assert not {bpe.pad, bpe.bos, bpe.eos, bpe.unk} & set(ids)


def test_bpe_gives_back_every_code_point_of_the_planes_in_use(bpe: Tokenizer) -> None:
    starts = [*range(0, 0xD800, 0x400), *range(0xE000, 0x20000, 0x400), 0xE0000, 0x10FC00]
    texts = ["".join(map(chr, range(start, start + 0x400))) for start in starts]
    assert [bpe.decode(ids) for ids in bpe.encode_batch(texts)] == texts


def test_a_first_word_has_the_pieces_of_a_later_one(bpe: Tokenizer) -> None:
    fox = bpe.encode("fox")
    assert len(fox) == 1
    assert bpe.encode("fox fox") == fox * 2
    assert bpe.token(fox[0]) == " fox"


def test_tokens_for_display_spell_the_text(bpe: Tokenizer) -> None:
    assert "".join(bpe.token(id) for id in bpe.encode("The red fox, 1984")) == " The red fox, 1984"
    assert [bpe.token(id) for id in bpe.encode("ẞ")] == [" ", "\\xe1", "\\xba", "\\x9e"]
    assert [bpe.token(id) for id in range(4)] == list(SPECIAL_TOKENS)
    with pytest.raises(DragomanError, match="no token has the id 320; the vocabulary has 320 entries"):
        bpe.token(320)


def test_decode_leaves_out_special_tokens_and_survives_half_a_character(bpe: Tokenizer) -> None:
    fox = bpe.encode("fox")
    assert bpe.decode([bpe.bos, *fox, bpe.unk, bpe.eos, bpe.pad]) == "fox<unk>"
    assert bpe.decode([*fox, *bpe.encode("🐟")[1:3]]) == "fox\ufffd"
    assert bpe.decode([]) == ""
    assert bpe.encode("") == []


def test_digits_are_single_and_marks_stay_with_their_letters() -> None:
    tokenizer = Tokenizer.train(["1984 1984 e\u0301te\u0301"] * 2, kind="bpe", vocabulary_size=400)
    assert [tokenizer.token(id) for id in tokenizer.encode("1984 e\u0301te\u0301")] == [" 1", "9", "8", "4", " e\u0301te\u0301"]


def test_whitespace_splits_at_the_ascii_space_only() -> None:
    words = ["tam", "tam\u00a0", "\u3000", "\u2003", "#", '"', "a\tb"]
    tokenizer = Tokenizer.train([" ".join(words)], kind="whitespace", vocabulary_size=100)
    ids = tokenizer.encode("  ".join(words) + " ")
    assert len(set(ids)) == len(words) == len(tokenizer) - 4
    assert tokenizer.decode(ids) == " ".join(words)


def test_whitespace_vocabulary_goes_by_frequency_then_text() -> None:
    tokenizer = Tokenizer.train(["c b a b", "b c d e"], kind="whitespace", vocabulary_size=7)
    assert [tokenizer.token(id) for id in range(len(tokenizer))] == [*SPECIAL_TOKENS, "b", "c", "a"]
    assert tokenizer.encode("a d b") == [6, tokenizer.unk, 4]
    assert tokenizer.decode(tokenizer.encode("a d b")) == "a <unk> b"


def test_only_pairs_that_come_twice_are_merged() -> None:
    tokenizer = Tokenizer.train(["zq zq", "xy"], kind="bpe", vocabulary_size=300)
    assert [len(tokenizer.encode(word)) for word in ("zq", "xy")] == [1, 3]  # the space before it is the third


@pytest.mark.parametrize(("kind", "gap"), [("whitespace", " "), ("characters", "")])
def test_what_is_as_frequent_stands_in_the_order_of_its_letters(kind: Literal["whitespace", "characters"], gap: str) -> None:
    """So that the vocabulary is of the text, and not of the order of its lines."""
    for line in ("cbab", "bcba"):
        tokenizer = Tokenizer.train([gap.join(line)], kind=kind, vocabulary_size=0)
        assert tokenizer.encode(gap.join("bac")) == [4, 5, 6]


def test_the_joiner_joins() -> None:
    tokenizer = Tokenizer.train(["a lo@@ w@@ est fo@@"], kind="whitespace", vocabulary_size=50, joiner="@@")
    assert tokenizer.decode(tokenizer.encode("a lo@@ w@@ est fo@@")) == "a lowest fo"
    assert tokenizer.plain("a lo@@ w@@ est @@x") == "a lowest @@x"
    assert Tokenizer.train(["a"], kind="bpe", vocabulary_size=260).plain("lo@@ w") == "lo@@ w"


@pytest.mark.parametrize("kind", ["bpe", "whitespace"])
@pytest.mark.parametrize(("normalization", "form"), [("nfc", "NFC"), ("nfkc", "NFKC")])
def test_normalization_is_kept_in_the_file(kind: str, normalization: str, form: str, tmp_path: Path) -> None:
    text = "ﬁ②Å½ e\u0301"
    tokenizer = Tokenizer.train([text], kind=kind, vocabulary_size=400, normalization=normalization)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == unicodedata.normalize(form, text)


@pytest.mark.parametrize("kind", ["bpe", "whitespace"])
def test_a_saved_tokenizer_is_the_same_tokenizer(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(LINES, kind=kind, vocabulary_size=300, joiner="@@" if kind == "whitespace" else "")
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode_batch(LINES) == tokenizer.encode_batch(LINES)
    assert (loaded.kind, loaded.joiner, len(loaded)) == (tokenizer.kind, tokenizer.joiner, len(tokenizer))
    assert [loaded.token(id) for id in range(len(loaded))] == [tokenizer.token(id) for id in range(len(tokenizer))]


def test_training_twice_gives_the_same_tokenizer(bpe: Tokenizer) -> None:
    assert Tokenizer.train(iter(LINES), kind="bpe", vocabulary_size=320).fingerprint == bpe.fingerprint
    assert Tokenizer.train(LINES, kind="bpe", vocabulary_size=319).fingerprint != bpe.fingerprint


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match=r"data\.vocabulary_size=259 is too small for tokenizer bpe; give 260 or more"):
        Tokenizer.train(LINES, kind="bpe", vocabulary_size=259)
    assert len(Tokenizer.train(LINES, kind="bpe", vocabulary_size=260)) == 260
    with pytest.raises(UsageError, match="give 5 or more"):
        Tokenizer.train(LINES, kind="whitespace", vocabulary_size=4)


def test_one_text_in_place_of_lines_is_refused() -> None:
    """Its characters would be taken for lines."""
    with pytest.raises(UsageError, match="lines: give a list of texts, with one in it where there is only one, and not a str"):
        Tokenizer.train("a red bird", kind="whitespace", vocabulary_size=0)


def test_an_error_while_reading_the_training_text_comes_through() -> None:
    def lines() -> Iterator[str]:
        yield "one"
        raise DragomanError("corpus.en, line 2: not UTF-8")

    for kind in ("bpe", "whitespace"):
        with pytest.raises(DragomanError, match=r"corpus\.en, line 2"):
            Tokenizer.train(lines(), kind=kind, vocabulary_size=300)


def test_half_a_surrogate_pair_is_refused(bpe: Tokenizer) -> None:
    with pytest.raises(DragomanError, match=r"'fox \\ud83d' holds half a surrogate pair"):
        bpe.encode_batch(["fox", "fox \ud83d"])


def damages() -> dict[str, object]:
    def change(**fields: object) -> object:
        return lambda saved: json.dumps(saved | fields)

    return {
        "cut short": lambda saved: json.dumps(saved)[:200],
        "a list": lambda saved: "[]",
        "another format": lambda saved: json.dumps(saved["tokenizer"]),
        "unknown kind": change(kind="unigram"),
        "unknown field": change(extra=1),
        "special id outside": change(pad=100_000),
        "special id twice": change(bos=2),
        "no model": change(tokenizer={}),
        "a gap in the ids": lambda saved: json.dumps(saved).replace('"!": 4', '"!": 4000'),
        "not UTF-8": lambda saved: b"\xff\xfe",
    }


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_is_named(bpe: Tokenizer, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tokenizer.json"
    bpe.save(path)
    text = damages()[damage](json.loads(path.read_bytes()))
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DragomanError, match=r"tokenizer\.json: not a tokenizer, or damaged"):
        Tokenizer.load(path)


def test_a_missing_or_newer_file_is_named(bpe: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(DragomanError, match=r"tokenizer\.json: cannot read the tokenizer: No such file"):
        Tokenizer.load(path)
    bpe.save(path)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"format": 2}))
    with pytest.raises(DragomanError, match=r"tokenizer\.json: written by a newer Dragoman \(tokenizer format 2\)"):
        Tokenizer.load(path)


def test_real_text_comes_back_whole(data_folder: Path) -> None:
    pairs = list(read_pairs(str(data_folder / "multi30k/raw/val"), "en", "de"))
    lines = [line for pair in pairs for line in pair]
    tokenizer = Tokenizer.train(lines, kind="bpe", vocabulary_size=2000)
    ids = tokenizer.encode_batch(lines)
    assert [tokenizer.decode(each) for each in ids] == lines
    assert len(tokenizer) == 2000
    words = sum(len(line.split()) for line in lines)
    assert sum(map(len, ids)) < 1.6 * words


def test_published_segmented_text_becomes_the_plain_text(data_folder: Path) -> None:
    segmented = [source for source, _ in read_pairs(str(data_folder / "multi30k/bpe10k/en-de/test.2016"), "en", "de")]
    plain = [source for source, _ in read_pairs(str(data_folder / "multi30k/tok/test_2016_flickr.lc.norm.tok"), "en", "de")]
    tokenizer = Tokenizer.train(segmented, kind="whitespace", vocabulary_size=20_000, joiner="@@")
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(segmented)] == plain


def test_a_limit_on_words_says_what_it_leaves_out_and_none_keeps_all(caplog: pytest.LogCaptureFixture) -> None:
    lines = ["a a a a b b", "c d"]
    assert len(Tokenizer.train(lines, kind="whitespace", vocabulary_size=6)) == 6
    assert "the vocabulary of 6 leaves out 2 of 4 words, 25.00 % of the text" in caplog.text
    caplog.clear()
    everything = Tokenizer.train(lines, kind="whitespace", vocabulary_size=0)
    assert (len(everything), everything.decode(everything.encode("d c"))) == (8, "d c")
    assert caplog.text == ""


def test_a_megabyte_without_a_space_is_learnt_from_in_seconds_and_kept() -> None:
    """Without a bound on the length of a piece this takes a quarter of an hour."""
    lines = ["a" * 1_000_000, "\u6f22\u5b57" * 100_000, " " * 1000 + "x", "-" * 5000]
    start = time.process_time()
    tokenizer = Tokenizer.train(lines, kind="bpe", vocabulary_size=400)
    assert time.process_time() - start < 20
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(lines)] == lines
