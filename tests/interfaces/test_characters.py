"""Vocabularies of characters: an entry for each code point of the training text, and text comes back as it was."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.tokenizer import MASK, SPECIAL_TOKENS, Tokenizer
from dragoman.decoding.phrases import Spelling
from dragoman.errors import DragomanError

TEXT = "ab\n a<s>\r\té🐟e\u0301 <mask>"


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return Tokenizer.train([TEXT], kind="characters", vocabulary_size=0, mask=True)


def test_there_is_an_entry_for_each_code_point_and_no_other(characters: Tokenizer) -> None:
    assert len(characters) == 4 + len(set(TEXT)) + 1
    entries = [characters.backend.id_to_token(token) for token in range(len(characters))]
    assert (entries[:4], entries[-1], characters.mask) == ([*SPECIAL_TOKENS], MASK, len(characters) - 1)
    assert set(entries[4:-1]) == set(TEXT)
    assert len(characters.encode(TEXT)) == len(TEXT)


@given(st.text(alphabet=sorted(set(TEXT))))
def test_text_of_known_characters_comes_back(characters: Tokenizer, text: str) -> None:
    ids = characters.encode(text)
    assert characters.decode(ids) == text
    assert not characters.textless & set(ids)
    assert b"".join(map(characters.piece, ids)).decode() == text
    assert characters.decoded_spans(ids) == [(place, place + 1) for place in range(len(text))]
    assert [characters.token(token) for token in ids] == list(text)


def test_an_unknown_character_is_unk_and_told(characters: Tokenizer) -> None:
    assert characters.encode("aZ") == [characters.encode("a")[0], characters.unk]
    assert characters.decode(characters.encode("aZb")) == "a<unk>b"
    with pytest.raises(DragomanError, match="glossary: the model's vocabulary has no 'Z'; use characters of its training text"):
        Spelling(characters).encode("aZ", "glossary")
    assert Spelling(characters).prefix("a  b", "prefix").ids == characters.encode("a  b")


def test_the_most_frequent_are_kept_under_a_limit_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = Tokenizer.train(["aaabbc"], kind="characters", vocabulary_size=7, mask=True)
    assert "leaves out 1 of 3 characters, 16.67 % of the text" in caplog.text
    assert tokenizer.decode(tokenizer.encode("abc")) == "ab<unk>"
    assert len(tokenizer) == 7


def test_it_is_saved_and_loaded(characters: Tokenizer, tmp_path: Path) -> None:
    characters.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.mask, loaded.fingerprint) == ("characters", characters.mask, characters.fingerprint)
    assert loaded.encode(TEXT) == characters.encode(TEXT)


@pytest.mark.parametrize("kind", ["bpe", "whitespace", "characters"])
def test_no_text_encodes_to_the_mask(kind: str) -> None:
    tokenizer = Tokenizer.train([f"{MASK} a {MASK}"] * 9, kind=kind, vocabulary_size=300, mask=True)  # type: ignore[arg-type]
    assert tokenizer.mask not in tokenizer.encode(f"{MASK} {MASK}a a{MASK}")
    assert tokenizer.with_mask() is tokenizer
    assert tokenizer.token(tokenizer.mask or 0) == MASK
    assert tokenizer.decode([tokenizer.mask or 0]) == ""
