"""Prefixes, required and forbidden phrases with real tokenizers: what a text holds is decided by its characters, not by its pieces."""

import itertools
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.glossary import Glossary, Term
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.phrases import ForbiddenPhrases, Spelling, stands_in
from dragoman.decoding.rules import ForcedPrefix
from dragoman.decoding.translate import Translation, Translator
from dragoman.errors import DragomanError
from small_bundles import WORDS, copier, fx_rand, ids_seen, make_bundle, random_sentences

SENTENCES = ["the hat (hat) hats", "that thé hat hate", "a hat, a cat.", "Ein Hund, Hunde", "the Hund"] * 5


@cache
def byte_pairs(size: int = 300) -> Tokenizer:
    return Tokenizer.train(SENTENCES, kind="bpe", vocabulary_size=size)


@cache
def joined_pieces() -> Tokenizer:
    return Tokenizer.train(["th@@ e hat t@@ hat@@ s hat s ( a cat , c@@ h@@ at at"], kind="whitespace", vocabulary_size=0, joiner="@@")


@pytest.mark.parametrize(
    ("phrase", "text", "there"),
    [
        ("hat", "a hat", True), ("hat", "hats", False), ("hat", "that", False), ("hat", "that hat", True), ("hat", "(hat)", True),
        ("hat", "“hat”", True), ("hat", "hat", True), ("hat", "éhat", False), ("hat", "haté", False), ("a hat", "a hat.", True),
        ("hat!", "hat!s", True), ("公园", "去公园散步", True), ("公", "公园", True), ("สวน", "ในสวนสวย", True), ("сон", "сонный", False),
        ("сон", "мой сон", True), ("42", "142", False), ("hat", "", False),
    ],
)  # fmt: skip
def test_a_phrase_stands_in_a_text_as_whole_words(phrase: str, text: str, there: bool) -> None:
    assert stands_in(phrase, text) is there


@pytest.mark.parametrize("make", [byte_pairs, joined_pieces])
def test_pieces_together_are_the_text(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    ids = tokenizer.encode("the hat" if make is byte_pairs else "th@@ e hat")
    assert b"".join(map(tokenizer.piece, ids)).decode().strip() == tokenizer.decode(ids) == "the hat"
    assert [tokenizer.piece(token) for token in tokenizer.textless] == [b""] * 3


PHRASES = ["hat", "the", "a hat", "(hat", "thé", "hat,", "t"]


@settings(max_examples=60, deadline=None)
@given(
    phrases=st.lists(st.sampled_from(PHRASES), min_size=1, max_size=3, unique=True), data=st.data(), kind=st.sampled_from(["bpe", "joined"])
)
def test_exactly_what_would_complete_a_phrase_is_forbidden_in_whatever_pieces(phrases: list[str], data: st.DataObject, kind: str) -> None:
    tokenizer = byte_pairs() if kind == "bpe" else joined_pieces()
    spelling = Spelling(tokenizer)
    letters = set("the( aé,s")
    vocabulary = [token for token, piece in enumerate(spelling.pieces) if piece and set(piece.decode(errors="replace")) <= letters]
    rule = ForbiddenPhrases(phrases, spelling, eos=tokenizer.eos)
    seen: list[int] = []
    for _ in range(data.draw(st.integers(1, 7))):
        scores = torch.zeros(1, len(tokenizer))
        rule(scores, torch.tensor([seen], dtype=torch.long).view(1, -1), torch.tensor([0]))
        text = b"".join(spelling.pieces[token] for token in seen)
        for token in vocabulary:
            # A piece with the joiner is not the end of a word; all else may be.
            goes_on = tokenizer.backend.id_to_token(token).endswith("@@")
            after = (text + spelling.pieces[token] + (b"x" if goes_on else b"")).decode(errors="replace")
            assert (scores[0, token] < 0) == any(stands_in(phrase, after) for phrase in phrases), (text, spelling.pieces[token])
        assert (scores[0, tokenizer.eos] < 0) == any(stands_in(phrase, text.decode(errors="replace")) for phrase in phrases)
        allowed = [token for token in vocabulary if scores[0, token] == 0]
        seen.append(data.draw(st.sampled_from(allowed)))


def ranked(translation: Translation) -> list[Translation]:
    return [translation, *translation.alternatives]


@pytest.mark.parametrize("how", [{"beam": 1}, {"beam": 4, "n_best": 4}, {"sampled": True}], ids=str)
def test_what_copies_its_source_does_not_say_what_is_forbidden(how: dict[str, object]) -> None:
    translator = Translator(copier())
    texts = ["ona bek rem", "bek", "rem (bek) ona", "beks bek.", "sova ona ona"]
    forbid = ("bek", "ona ona")
    sampled = how.pop("sampled", False)
    asked = {"forbid": forbid, "sample": sampled, "samples": 8 if sampled else None, "temperature": 2.0 if sampled else None}
    plain = translator.translate(texts)
    assert [each.text for each in plain[:2]] == texts[:2]
    for text, best in zip(texts, translator.translate(texts, **how, options=SearchOptions(**asked)), strict=True):  # type: ignore[arg-type]
        for each in ranked(best):
            assert not any(stands_in(phrase, each.text) for phrase in forbid), (text, each.text)
            (scored,) = (
                translator.score([text], [each.text])
                if each.text == translator.bundle.target_tokenizer.decode(translator.bundle.target_tokenizer.encode(each.text))
                and "\ufffd" not in each.text
                else [None]
            )
            if scored and scored.tokens == each.tokens:
                assert scored.log_probability == pytest.approx(each.log_probability, abs=1e-3)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_prefix_is_how_translations_begin_and_its_last_word_may_go_on(beam: int) -> None:
    translator = Translator(copier())
    texts = ["ona bek rem sova", "ona bek rem sova", "tilu rem", "tilu rem", "sova", "我们明天"]
    prefixes = ["ona be", "kip ", "til", "", "so va", "我"]
    found = translator.translate(texts, beam=beam, n_best=beam, prefixes=prefixes)
    for prefix, best in zip(prefixes, found, strict=True):
        assert all(each.text.startswith(prefix) for each in ranked(best))
    assert found[0].text == texts[0]  # " be" is a piece of its own, and " bek" another: the model takes what it means
    assert found[2].text == texts[2]
    assert found[3].text == texts[3]
    assert found[5].text == texts[5]
    (scored,) = translator.score(texts[1:2], [found[1].text])
    assert scored.log_probability == pytest.approx(found[1].log_probability, abs=1e-3)


@pytest.mark.parametrize("prefix", ["Hubschrauber", "Eine Gruppe von Männern", "(Ein", "„", "e\u0301", "bek (xyz"])
def test_a_last_word_of_pieces_that_no_longer_piece_spells_is_kept(prefix: str) -> None:
    tokenizer = copier().target_tokenizer
    ids, instead = Spelling(tokenizer).prefix(prefix, "p")
    assert tokenizer.decode(ids) == prefix
    assert all(instead.values())
    (best,) = Translator(copier()).translate(["ona bek"], beam=2, n_best=2, max_length=40, prefixes=[prefix])
    assert all(each.text.startswith(prefix) for each in ranked(best))


@pytest.mark.parametrize(
    ("text", "prefix", "forbid"),
    [("我们明天", "我", "我们"), ("ona bek rem", "ona ", "bek"), ("ona bek rem", "ona be", "bek"), ("ona bek rem", "ona", "ona bek")],
)
def test_what_is_forbidden_does_not_follow_from_a_prefix(text: str, prefix: str, forbid: str) -> None:
    translator = Translator(copier())
    assert translator.translate([text], prefixes=[prefix])[0].text == text
    (best,) = translator.translate([text], beam=6, n_best=6, prefixes=[prefix], options=SearchOptions(forbid=(forbid,)))
    for each in ranked(best):
        assert each.text.startswith(prefix)
        assert not stands_in(forbid, each.text)


def test_a_space_ends_the_last_word_of_a_prefix() -> None:
    tokenizer = byte_pairs(340)
    spelling = Spelling(tokenizer)
    open_end, closed = spelling.prefix("a hat", "p"), spelling.prefix("a hat ", "p")
    assert {tokenizer.piece(token) for token in open_end.instead[len(open_end.ids) - 1]} >= {b" hat", b" hats"}
    assert all(tokenizer.piece(token).startswith(b" ") for token in closed.instead[len(closed.ids) - 1])
    assert len(closed.instead) == 1
    assert closed.ids == [*open_end.ids, ForcedPrefix.ONLY_INSTEAD]  # what follows is the model's choice
    assert spelling.prefix("", "p").ids == []


@pytest.mark.parametrize("prefix", [" bek", "bek  ", "bek\t", "\tbek", "bek\xa0", "\u3000bek", "bek\u3000", "  bek \t ", "bek  rem "])
def test_white_space_at_the_ends_of_a_prefix_is_kept(prefix: str) -> None:
    (best,) = Translator(copier()).translate(["ona bek"], beam=2, n_best=2, max_length=30, prefixes=[prefix])
    assert all(each.text.startswith(prefix) for each in ranked(best))


def test_a_vocabulary_without_a_piece_that_begins_a_word_keeps_the_space_at_the_end() -> None:
    spelling = Spelling(Tokenizer.train(["a"], kind="bpe", vocabulary_size=260))
    ids, instead = spelling.prefix("a ", "p")
    assert [spelling.pieces[token] for token in instead[len(ids) - 1]] == [b" "]


@pytest.mark.parametrize("prefix", [" rem", "rem  sova", "rem  "])
def test_spaces_that_segmented_text_cannot_have_are_refused(prefix: str) -> None:
    with pytest.raises(DragomanError, match=f"line 1: the prefix: '{prefix}' begins with a space or has more than one in a row"):
        Translator(fx_rand(seed=2)).translate(["ona"], prefixes=[prefix])
    with pytest.raises(DragomanError, match=r"has no 'rem\\t'"):
        Translator(fx_rand(seed=2)).translate(["ona"], prefixes=["rem\t"])


def test_an_empty_prefix_and_one_that_is_too_long() -> None:
    translator = Translator(fx_rand(seed=2, extra_length=3, max_positions=12))
    assert translator.translate(["ona bek"], prefixes=[""]) == translator.translate(["ona bek"])
    (found,) = translator.translate(["ona bek"], prefixes=["rem sova kip dal nur"], beam=2)
    assert found.tokens == ("rem", "sova", "kip", "dal", "nur", "</s>")
    assert found.stop == "length"
    with pytest.raises(DragomanError, match="mine, line 8: the prefix has 6 tokens, and an output of at most 6 has room for 5"):
        translator.translate(["ona", "ona bek"], prefixes=["", "rem sova kip dal nur afi"], place="mine", first_line=7)
    with pytest.raises(DragomanError, match="line 1: the prefix: the model's vocabulary has no 'nonesuch'"):
        translator.translate(["ona"], prefixes=["rem nonesuch"])
    with pytest.raises(DragomanError, match="line 1: the prefix holds 'rem', which is forbidden"):
        translator.translate(["ona"], prefixes=["sova rem"], options=SearchOptions(forbid=("rem",)))


GLOSSARY = Glossary([Term("ona", "gost huma", "g, line 1"), Term("bek", "jelo", "g, line 2"), Term("bek rem", "lira", "g, line 3")])


def test_terms_of_a_text_longest_first_each_once() -> None:
    def found(text: str) -> list[str]:
        return [term.source for term in GLOSSARY.found_in(text)]

    assert found("ona bek ona") == ["ona", "bek"]
    assert found("kip bek rem, bek") == ["bek rem", "bek"]
    assert found("bek remo") == ["bek"]
    assert found("bonax ON ONA") == []
    assert found("  Ona Bek") == ["ona"]  # a capital counts at the beginning only
    assert found("") == []


@pytest.mark.parametrize("kind", ["bpe", "whitespace"])
def test_terms_are_in_the_translation_when_their_source_is_in_the_text(kind: str) -> None:
    bundle = copier() if kind == "bpe" else fx_rand(seed=2)
    words = ("gost huma", "jelo", "lira") if kind == "bpe" else ("sova kip", "dal", "nur")
    glossary = Glossary(Term(term.source, word, term.place) for term, word in zip(GLOSSARY.terms, words, strict=True))
    translator, options = Translator(bundle), SearchOptions(glossary=glossary)
    texts = ["ona bek rem", "tilu ona", "sova tilu", "bek", "kip"]
    expected = [words[:1] + words[2:], words[:1], (), words[1:2], ()]
    found = translator.translate(texts, beam=4, options=options)
    for text, terms, best in zip(texts, expected, found, strict=True):
        assert tuple(term.target for term in best.met) == terms
        assert best.missed == ()
        assert all(stands_in(term, best.text) for term in terms)
        assert best.tokens[-1] == "</s>"
        (scored,) = translator.score([text], [best.text])
        if scored.tokens == best.tokens:
            assert scored.log_probability == pytest.approx(best.log_probability, abs=1e-3)
    plain = translator.translate(texts, beam=4)
    assert [found[2], found[4]] == [plain[2], plain[4]]  # no term, no difference
    alone = [translator.translate([text], beam=4, options=options)[0] for text in texts]
    assert [each.text for each in alone] == [each.text for each in found]
    for each in translator.translate(texts[:1], beam=6, n_best=6, options=options):
        assert all(other.missed == () for other in ranked(each))


def test_a_phrase_that_the_model_says_by_itself_is_not_said_again() -> None:
    translator = Translator(copier())
    texts = ["ona bek rem", "rem (bek) sova"]
    found = translator.translate(texts, options=SearchOptions(require=("bek",)))
    assert [each.text for each in found] == [each.text for each in translator.translate(texts)]
    assert all(each.met for each in found)


def test_what_has_no_room_is_reported_as_missed() -> None:
    translator = Translator(fx_rand(seed=2))
    (found,) = translator.translate(["ona"], max_length=3, options=SearchOptions(require=("rem sova kip", "dal")))
    assert len(found.met) <= 1
    assert len(found.met) + len(found.missed) == 2
    assert found.missed[0].place == "require"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("ona\tbek\nrem\t\n", "line 2: the target side is empty"),
        ("\tbek\n", "line 1: the source side is empty"),
        ("ona\tbek\n\n  \t x\n", "line 3: the source side is empty"),
        ("ona bek\n", "line 1: 0 tabs where a glossary has one"),
        ("ona\tbek\trem\n", "line 1: 2 tabs"),
        ("ona\tbek\nrem\tsova\nona\tkip\n", r"line 3: 'ona' is to be 'kip' here and 'bek' in .*line 1"),
        ("ona\tnonesuch\n", "line 1: the model's vocabulary has no 'nonesuch'"),
        ("ona\tsova rem\n", "line 1: 'sova rem' holds 'rem', which is forbidden"),
    ],
)
def test_a_glossary_that_cannot_be_used_names_file_and_line(tmp_path: Path, content: str, fault: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DragomanError, match=f"terms.tsv, {fault}"):
        # At once, not where a text first has the term.
        Translator(fx_rand()).translate(["kip"], options=SearchOptions(glossary=Glossary.load(path), forbid=("rem",)))


@pytest.mark.parametrize("how", ["forbid", "require", "terms, line 3"])
def test_a_phrase_of_nothing_but_the_joiner_is_refused_with_its_place(how: str) -> None:
    tokenizer = joined_pieces()
    asked = {how: ("@@",)} if how != "terms, line 3" else {"glossary": Glossary([Term("hat", "@@", how)])}
    with pytest.raises(DragomanError, match=f"^{how}: '@@' is no text to the model"):
        Translator(make_bundle(tokenizer, tokenizer)).translate(["hat"], options=SearchOptions(**asked))  # type: ignore[arg-type]


def test_a_blank_text_misses_what_is_required_and_leaves_out_its_prefix_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    translator, options = Translator(fx_rand(seed=2)), SearchOptions(require=("dal",))
    blank, full = translator.translate([" ", "ona"], options=options)
    assert (blank.text, blank.met, [term.target for term in blank.missed]) == ("", (), ["dal"])
    assert [term.target for term in full.met] == ["dal"]
    assert caplog.messages == []
    found = translator.translate(["", "ona", ""], prefixes=["rem", "rem", ""], place="mine", first_line=7)
    assert [each.text[:3] for each in found] == ["", "rem", ""]
    assert caplog.messages == ["mine, line 7: there is nothing to translate, so the prefix 'rem' is left out"]


def test_many_phrases_share_a_beam_that_does_not_grow_with_them() -> None:
    bundle = fx_rand(seed=2, extra_length=80, max_positions=100)
    words = WORDS[:12]
    phrases = tuple(" ".join((words * 2)[first : first + 4]) for first in range(0, 12))
    with ids_seen(bundle) as (_, steps):
        (found,) = Translator(bundle).translate(["ona"], options=SearchOptions(require=phrases))
    assert found.missed == ()
    assert max(len(ids) for ids in steps) == 32


def test_the_forms_of_a_phrase() -> None:
    tokenizer = byte_pairs(340)
    spelling = Spelling(tokenizer)
    ids = spelling.encode("Hund", "p")
    assert b"".join(map(tokenizer.piece, ids)) == b" Hund"
    assert b"".join(map(tokenizer.piece, spelling.after_a_sign(ids, "Hund"))) == b"Hund"
    assert tokenizer.encode("the Hund")[-len(ids) :] == ids == tokenizer.encode("Hund")
    whole = Tokenizer.train(["a b"], kind="whitespace", vocabulary_size=0)
    assert Spelling(whole).after_a_sign(whole.encode("b"), "b") == whole.encode("b")


def test_rules_and_phrases_do_not_depend_on_the_batch() -> None:
    tokenizer = byte_pairs()
    translator = Translator(make_bundle(tokenizer, tokenizer, seed=3))
    texts = ["the hat", "a hat, a cat.", "that", "hats (hat)", "the Hund hate"]
    prefixes = ["th", "", "Ein ", "a", ""]
    options = SearchOptions(forbid=("hat", "a"), no_repeat_ngram=2, min_length="0.8x", require=("cat",))
    options_without = SearchOptions(forbid=("hat",), no_repeat_ngram=2)
    for asked in (options, options_without):
        whole = translator.translate(texts, beam=3, n_best=2, prefixes=prefixes if asked is options_without else None, options=asked)
        for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 37):
            some = translator.translate(
                [texts[place] for place in order], beam=3, n_best=2, batch_tokens=200, options=asked,
                prefixes=[prefixes[place] for place in order] if asked is options_without else None,
            )  # fmt: skip
            assert [[each.text for each in ranked(one)] for one in some] == [
                [each.text for each in ranked(whole[place])] for place in order
            ]


@pytest.mark.parametrize("asked", [{"forbid": ("bek rem",)}, {"require": ("bek rem",)}])
@pytest.mark.parametrize("prefix", ["", "ona kip"])
def test_rows_of_the_model_without_an_entry_may_fill_empty_places_of_a_beam(asked: dict[str, tuple[str, ...]], prefix: str) -> None:
    texts, settings = random_sentences(4), {"beam": 8, "n_best": 3, "options": SearchOptions(**asked)}
    padded = Translator(fx_rand(target_vocabulary=25)).translate(texts, prefixes=[prefix] * 4, **settings)
    for each in (each for one in padded for each in ranked(one)):
        assert each.text.startswith(prefix)
        assert stands_in("bek rem", each.text) == ("require" in asked)


def test_lengths_relative_to_the_source() -> None:
    translator = Translator(fx_rand(seed=2))
    texts = random_sentences(20, seed=4)
    found = translator.translate(texts, beam=2, max_length="1.5x", options=SearchOptions(min_length="0.5x"))
    for text, each in zip(texts, found, strict=True):
        source = len(text.split()) + 1
        assert -(-source // 2) <= len(each.tokens) <= -(-3 * source // 2)
    assert {len(each.tokens) for each in translator.translate(texts, max_length=5, options=SearchOptions(min_length=5))} == {5}
