"""Reported faults of long-input (B13): a line beyond the model's positions is translated in pieces, said so, and harms nobody."""

import logging
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding import split
from dragoman.decoding.split import Piece, split_text
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from small_bundles import fx_rand, make_bundle, random_sentences

POSITIONS = 32


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What the program says while the test runs, whatever a command line has done to its logger before."""
    monkeypatch.setattr(logging.getLogger("dragoman"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="dragoman")
    return caplog


@pytest.mark.parametrize("length", [33, 100])
def test_b13_a_long_line_between_short_ones(length: int, notices: pytest.LogCaptureFixture) -> None:
    translator = Translator(fx_rand(seed=2, max_positions=POSITIONS))
    first, last = random_sentences(2, seed=4)
    long = " ".join(random_sentences(100, longest=1, seed=8)[:length])
    found = translator.translate([first, long, last], first_line=41)
    assert len(found) == 3
    for translation, without in zip((found[0], found[2]), translator.translate([first, last]), strict=True):
        assert translation.text == without.text
        assert translation.score == pytest.approx(without.score, abs=1e-4)
    assert [record.message for record in notices.records] == [
        f"line 42: {length} tokens exceed the model's limit of {POSITIONS - 1}; translated in {2 if length == 33 else 4} pieces"
    ]
    pieces = split_text(long, fits=lambda text: len(text.split()) < POSITIONS)
    alone = translator.translate([piece.text for piece in pieces])
    assert found[1].text == "".join(translation.text + piece.separator for translation, piece in zip(alone, pieces, strict=True))
    assert found[1].log_probability == pytest.approx(sum(translation.log_probability for translation in alone), abs=1e-3)
    assert found[1].tokens.count("</s>") == len(pieces)


def test_b13_the_longest_line_that_fits_is_not_split(notices: pytest.LogCaptureFixture) -> None:
    translator = Translator(fx_rand(seed=2, max_positions=POSITIONS))
    (translation,) = translator.translate([" ".join(["ona"] * (POSITIONS - 1))])
    assert len(translation.tokens) <= POSITIONS
    assert notices.records == []


def test_learned_positions_end_where_training_ended(notices: pytest.LogCaptureFixture) -> None:
    bundle = fx_rand(seed=2, positions="learned", max_positions=POSITIONS)
    bundle = replace(bundle, config=bundle.config.with_values(data={"max_length": 8}))
    with torch.no_grad():
        for side in (bundle.model.encoder, bundle.model.decoder):
            side.positions.weight[8:] = torch.nan  # what training has never moved
    (whole, pieces) = Translator(bundle).translate([" ".join(["ona"] * 7), " ".join(["ona"] * 8)], max_length=20)
    assert len(whole.tokens) <= 8
    assert pieces.tokens.count("</s>") == 2
    assert [record.message for record in notices.records] == ["line 2: 8 tokens exceed the model's limit of 7; translated in 2 pieces"]
    for source, target in (("ona " * 8, "ona"), ("ona", "ona " * 8)):
        with pytest.raises(DragomanError, match="pair 1 has 9 tokens on its longer side and the model takes 8"):
            Translator(bundle).score([source.strip()], [target.strip()])


def test_a_line_longer_than_any_in_training_is_translated_whole_and_named(notices: pytest.LogCaptureFixture) -> None:
    bundle = fx_rand(seed=2, max_positions=POSITIONS)
    bundle = replace(bundle, config=bundle.config.with_values(data={"max_length": 8}))
    known, longer = " ".join(["ona"] * 7), " ".join(["ona"] * 8)
    (_, translation) = Translator(bundle).translate([known, longer], place="letter.aa", first_line=3)
    assert translation.tokens.count("</s>") == 1
    assert [record.message for record in notices.records] == [
        "letter.aa, line 4: 8 tokens are more than the 7 of the longest sentences in training; translated whole"
    ]


def test_b13_a_run_without_spaces_is_translated_whole(notices: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer.train(["ona bek"], kind="bpe", vocabulary_size=264)
    translator = Translator(make_bundle(tokenizer, tokenizer, max_positions=POSITIONS))
    (translation,) = translator.translate(["🐟" * 40], beam=1)
    pieces = split_text("🐟" * 40, fits=lambda text: len(tokenizer.encode(text)) < POSITIONS)
    assert translation.tokens.count("</s>") == len(pieces) == 8
    assert len(notices.records) == 1


texts = st.text(st.sampled_from("ab.!?,;: \u00a0\u2028。、」é\u0301👍🏽\u200d"), max_size=300)


@settings(max_examples=200, deadline=None)
@given(text=texts, limit=st.integers(1, 40))
@example(text=". \u2028b", limit=3)
def test_pieces_fit_and_nothing_is_lost(text: str, limit: int) -> None:
    pieces = split_text(text, fits=lambda piece: len(piece) <= limit)
    assert "".join(piece.text + piece.separator for piece in pieces) == text.strip()
    assert all(len(piece.text) <= limit for piece in pieces)
    if len(pieces) > 1:
        assert all(piece.text.strip() == piece.text != "" for piece in pieces)
        assert all(piece.separator.strip() == "" for piece in pieces)


@pytest.mark.parametrize(
    ("text", "limit", "pieces"),
    [
        ("One two. Three, four five.", 18, [("One two.", " "), ("Three, four five.", "")]),
        ("One two three, four five.", 18, [("One two three,", " "), ("four five.", "")]),
        ("One two \t three four", 12, [("One two", " \t "), ("three four", "")]),
        ('He said "Go!" She went.', 15, [('He said "Go!"', " "), ("She went.", "")]),
        ("我们走。你们来，好吗？", 8, [("我们走。", ""), ("你们来，好吗？", "")]),
        ("「行こう。」と言った", 8, [("「行こう。」", ""), ("と言った", "")]),
        ("3.14 is.not two sentences", 13, [("3.14 is.not", " "), ("two sentences", "")]),
        ("aaaaaa", 4, [("aaa", ""), ("aaa", "")]),
        ("ee\u0301e", 3, [("e", ""), ("e\u0301e", "")]),
        ("x👩\u200d🚀y", 4, [("x", ""), ("👩\u200d🚀y", "")]),
        ("🇳🇴🇳🇴🇳🇴", 4, [("🇳🇴", ""), ("🇳🇴🇳🇴", "")]),
        ("So, e.g. this one. And that", 20, [("So, e.g. this one.", " "), ("And that", "")]),
        ("Er sagte „Geh!“ Sie ging, so", 17, [("Er sagte „Geh!“", " "), ("Sie ging, so", "")]),
        ("यह एक है। वह दो, तीन है।", 16, [("यह एक है।", " "), ("वह दो, तीन है।", "")]),
        ("هذا واحد؟ وذاك، اثنان", 14, [("هذا واحد؟", " "), ("وذاك، اثنان", "")]),
        ("Սա մեկն է։ Դա երկուսն է", 14, [("Սա մեկն է։", " "), ("Դա երկուսն է", "")]),
        ("ይህ አንድ ነው። ያ ሁለት ነው", 12, [("ይህ አንድ ነው።", " "), ("ያ ሁለት ነው", "")]),
        ("これは一｡それは二､三", 6, [("これは一｡", ""), ("それは二､三", "")]),
        ("「行こう！？」と彼", 8, [("「行こう！？」", ""), ("と彼", "")]),
    ],
)
def test_cuts_come_where_a_reader_pauses(text: str, limit: int, pieces: list[tuple[str, str]]) -> None:
    assert split_text(text, fits=lambda piece: len(piece) <= limit) == [Piece(*piece) for piece in pieces]


def test_splitting_stays_quick_on_a_book() -> None:
    encoded = 0

    def fits(piece: str) -> bool:
        nonlocal encoded
        encoded += len(piece)
        return len(piece) <= 1000

    text = "A sentence of some words, and a clause. " * 5_000
    pieces = split_text(text, fits=fits)
    assert len(pieces) > 200
    assert encoded < 15 * len(text)  # the depth of halving, not the number of pieces


@pytest.mark.parametrize("text", ["a" * 50_000, "🇳🇴" * 25_000])
def test_splitting_stays_quick_without_spaces(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    may_part = split._may_part

    def counted(text: str, place: int) -> bool:
        looked_at.append(len(text))
        return may_part(text, place)

    monkeypatch.setattr(split, "_may_part", counted)
    pieces = split_text(text, fits=lambda piece: len(piece) <= 1000)
    assert "".join(piece.text for piece in pieces) == text
    assert len(pieces) == 64
    assert sum(looked_at) < 20 * len(text)  # what may be copied: the depth of halving, not every place of a piece


def test_a_character_that_cannot_fit_is_refused() -> None:
    with pytest.raises(DragomanError, match="'🐟' alone has more tokens"):
        split_text("a 🐟", fits=lambda piece: len(piece.encode()) <= 3)
