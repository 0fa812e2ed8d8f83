"""Reported faults of unusual characters and of special tokens in text: where text becomes ids, and through models."""

import json
import unicodedata
from pathlib import Path

import pytest

from dragoman.bundle import save_bundle
from dragoman.cli import main
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.translate import Translator
from small_bundles import CONTROL_TEXTS, EMOJI, copier, ids_seen, make_bundle

COMPATIBLE = "\ufb01\u2461\u212b\u00bd\ufe30\uff0c"


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train(["ona bek rem sova", "ANO KEB MER AVOS", *CONTROL_TEXTS] * 9, kind="bpe", vocabulary_size=400)


@pytest.mark.parametrize("emoji", [*EMOJI, "🦤"])
def test_b51_an_emoji_is_kept_and_ends_nothing(bpe: Tokenizer, emoji: str) -> None:
    around = bpe.encode("ona bek"), bpe.encode("rem sova")
    ids = bpe.encode(f"ona bek {emoji} rem sova")
    assert (ids[: len(around[0])], ids[-len(around[1]) :]) == around
    assert bpe.decode(ids).encode() == f"ona bek {emoji} rem sova".encode()
    words = Tokenizer.train(["ona bek rem sova"], kind="whitespace", vocabulary_size=50)
    assert words.decode(words.encode(f"ona bek {emoji} rem sova")) == "ona bek <unk> rem sova"


def test_b51_no_piece_of_a_character_leaves_broken_text(bpe: Tokenizer) -> None:
    ids = bpe.encode("🦤")
    for start in range(len(ids)):
        for stop in range(start, len(ids) + 1):
            bpe.decode(ids[start:stop]).encode()  # strict: a lone surrogate would raise
            "".join(bpe.token(id) for id in ids[start:stop]).encode()


def test_b51_words_around_an_emoji_are_translated_and_it_comes_out_byte_for_byte(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    texts = [f"ona bek {emoji} rem sova" for emoji in [*EMOJI, "🦤"]]  # the last is in no text that the tokenizer has seen
    save_bundle(copier(), tmp_path / "model")
    (tmp_path / "text").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    assert main(["translate", str(tmp_path / "model"), str(tmp_path / "text"), "--device", "cpu"]) == 0
    assert capfdbinary.readouterr().out == (tmp_path / "text").read_bytes()
    assert main(["translate", str(tmp_path / "model"), str(tmp_path / "text"), "--device", "cpu", "--json"]) == 0
    assert [json.loads(line)["text"] for line in capfdbinary.readouterr().out.decode().splitlines()] == texts


@pytest.mark.parametrize("kind", ["bpe", "whitespace"])
def test_b53_the_normal_form_is_part_of_the_tokenizer(tmp_path: Path, kind: str) -> None:
    text = COMPATIBLE
    identity = Tokenizer.train([text], kind=kind, vocabulary_size=400)
    assert identity.decode(identity.encode(text)) == text
    nfkc = Tokenizer.train([text], kind=kind, vocabulary_size=400, normalization="nfkc")
    nfkc.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode(text) == nfkc.encode(text) == nfkc.encode(unicodedata.normalize("NFKC", text))
    assert loaded.decode(loaded.encode(text)).startswith("fi2\u00c51\u20442")


def test_b53_training_translation_and_scoring_see_the_same_ids(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([COMPATIBLE], kind="bpe", vocabulary_size=400, normalization="nfkc")
    ids = tokenizer.encode(unicodedata.normalize("NFKC", COMPATIBLE))
    corpus = Corpus.build(
        tmp_path / "train",
        [(COMPATIBLE, COMPATIBLE)],
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        max_length=99,
        batch_tokens=99,
    )
    assert corpus[0][0].tolist() == corpus[0][1].tolist() == [*ids, tokenizer.eos]
    bundle = make_bundle(tokenizer, tokenizer)
    with ids_seen(bundle) as (sources, targets):
        Translator(bundle).translate([COMPATIBLE], max_length=1)
        Translator(bundle).score([COMPATIBLE], [COMPATIBLE])
    assert [source.tolist() for source in sources] == [[[*ids, tokenizer.eos]]] * 2
    assert targets[-1].tolist() == [[tokenizer.bos, *ids]]


def test_b55_text_of_a_special_token_stays_text(bpe: Tokenizer) -> None:
    special = {bpe.pad, bpe.bos, bpe.eos, bpe.unk}
    for text in CONTROL_TEXTS:
        ids = bpe.encode(text)
        assert not special & set(ids)
        assert bpe.decode(ids) == text
    assert set(bpe.encode("ona")) | set(bpe.encode("bek")) <= set(bpe.encode("ona </s> bek"))


def test_b55_words_around_the_text_of_a_special_token_are_translated() -> None:
    texts = [*CONTROL_TEXTS, "dal <s> nur gost", "<unk> kip </s>"]
    for text, translation in zip(texts, Translator(copier()).translate(texts), strict=True):
        assert translation.text == text
        assert translation.tokens.count("</s>") == 1


def test_b55_among_words_it_is_an_unknown_word() -> None:
    tokenizer = Tokenizer.train(["ona bek </s> <s> <pad> <unk> rem"] * 3, kind="whitespace", vocabulary_size=50)
    assert len(tokenizer) == 7
    ona, bek = tokenizer.encode("ona bek")
    assert tokenizer.encode("ona </s> <s> <pad> <unk> bek") == [ona, *[tokenizer.unk] * 4, bek]


@pytest.mark.parametrize("kind", ["bpe", "whitespace"])
def test_b55_after_a_reload_too(tmp_path: Path, kind: str) -> None:
    tokenizer = Tokenizer.train(["ona bek", *CONTROL_TEXTS], kind=kind, vocabulary_size=400)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    for text in CONTROL_TEXTS:
        assert not {loaded.pad, loaded.bos, loaded.eos} & set(loaded.encode(text))


def test_b57_each_side_is_encoded_with_its_own_tokenizer(tmp_path: Path) -> None:
    source = Tokenizer.train(["ona bek"] * 9, kind="bpe", vocabulary_size=300)
    target = Tokenizer.train(["ANO KEB"] * 9, kind="bpe", vocabulary_size=300)
    corpus = Corpus.build(
        tmp_path / "train", [("ona ANO", "ANO ona")], source_tokenizer=source, target_tokenizer=target, max_length=50, batch_tokens=50
    )
    source_ids, target_ids = (ids.tolist() for ids in corpus[0])
    assert source_ids == [*source.encode("ona ANO"), source.eos]
    assert target_ids == [*target.encode("ANO ona"), target.eos]
    assert source.encode("ona ANO") != target.encode("ona ANO")
    assert target.decode(target_ids) == "ANO ona"


def test_b57_each_side_of_a_model_is_its_own_tokenizers() -> None:
    source = Tokenizer.train(["ona bek"] * 9, kind="bpe", vocabulary_size=300)
    target = Tokenizer.train(["ANO KEB"] * 9, kind="bpe", vocabulary_size=300)
    bundle = make_bundle(source, target)
    both = "ona ANO"
    assert source.encode(both) != target.encode(both)
    with ids_seen(bundle) as (sources, targets):
        (translation,) = Translator(bundle).translate([both])
        (scored,) = Translator(bundle).score([both], [both])
    assert [ids.tolist() for ids in sources] == [[[*source.encode(both), source.eos]]] * 2
    assert targets[-1].tolist() == [[target.bos, *target.encode(both)]]
    assert scored.tokens == tuple(target.token(token) for token in [*target.encode(both), target.eos])
    entries = {target.token(token): token for token in range(len(target))}
    assert translation.text == target.decode(entries[token] for token in translation.tokens)
