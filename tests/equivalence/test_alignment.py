"""Alignments and attention: the weights with which the found translation was chosen, word by word, and a model left as it was."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import tiny_bundle
from dragoman.bundle import load_bundle
from dragoman.cli import main
from dragoman.data.alignments import words_at
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.alignment import _word_links, align, attention, default_layer, source_tokens
from dragoman.decoding.translate import Translator
from dragoman.errors import UsageError
from dragoman.model import ScaledDotProductAttention
from small_bundles import WORDS, copier, fx_rand, make_bundle, random_sentences

BYTES = Tokenizer.train([" ".join(WORDS), "élan 東京 🐟 a\u00a0b"] * 2, kind="bpe", vocabulary_size=320)


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_attention_is_that_of_the_steps_of_the_search(kv_heads: int) -> None:
    """Row t of each head is what that head looked at when token t was chosen, one position after another with the cache."""
    bundle = fx_rand(seed=4, kv_heads=kv_heads)
    model, tokenizer = bundle.model.eval(), bundle.target_tokenizer
    texts = random_sentences(9, seed=2)
    translations = Translator(bundle).translate(texts, beam=3)
    found = attention(bundle, translations)
    seen: list[torch.Tensor] = []
    fused = [layer.cross_attn.attention for layer in model.decoder.layers]  # type: ignore[union-attr]
    for layer in model.decoder.layers:
        layer.cross_attn.attention = ScaledDotProductAttention()  # type: ignore[union-attr]
        layer.cross_attn.attention.register_forward_hook(lambda _, __, attended: seen.append(attended.weights))  # type: ignore[union-attr]
    for translation, weights in zip(translations, found, strict=True):
        (part,) = translation.parts
        seen.clear()
        with torch.inference_mode():
            cache = model.start(model.encode(torch.tensor([part.source])))
            for token in [tokenizer.bos, *part.target[:-1]]:
                _, cache = model.step(torch.tensor([[token]]), cache)
        steps = torch.stack(seen).view(len(part.target), 2, 2, len(part.source))  # T, L, H, S
        np.testing.assert_allclose(weights, steps.permute(1, 2, 0, 3), atol=1e-5)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        assert weights.shape == (2, 2, len(translation.tokens), len(source_tokens(bundle, translation)))
    for layer, own in zip(model.decoder.layers, fused, strict=True):
        layer.cross_attn.attention = own  # type: ignore[union-attr]


def test_looking_leaves_the_model_as_it_was() -> None:
    bundle = fx_rand(seed=4)
    bundle.model.train()
    before = [(id(module), type(module), module.training) for module in bundle.model.modules()]
    translator = Translator(bundle)
    translations = translator.translate(["ona bek"])
    align(bundle, ["ona bek"], translations)
    attention(bundle, translations)
    with pytest.raises(UsageError, match="layer 3: the model's decoder has layers 1 to 2"):
        align(bundle, ["ona bek"], translations, layer=3)
    assert [(id(module), type(module), module.training) for module in bundle.model.modules()] == before
    assert translator.translate(["ona bek"]) == translations


def test_a_model_that_copies_looks_at_what_it_copies() -> None:
    texts = ["ona bek tilu", "sova  kip", "", " dal ona rem bek"]
    bundle = copier()
    translations = Translator(bundle).translate(texts)
    found = align(bundle, texts, translations, layer=1)
    for text, translation, alignment in zip(texts, translations, found, strict=True):
        if translation.text.split() == text.split():
            assert alignment.words == [(place, place) for place in range(len(text.split()))]
        assert [alignment.source_tokens[source] for source, _ in alignment.tokens] == list(translation.tokens[:-1])
    assert sum(len(alignment.words) for alignment in found) >= 7
    assert found[2].words == found[2].tokens == []
    assert found[0].pharaoh() == "0-0 1-1 2-2"


def test_the_usual_layer_is_the_last_but_one() -> None:
    assert [default_layer(fx_rand(decoder_layers=layers).model) for layers in (1, 2, 6)] == [1, 1, 5]
    bundle = fx_rand(seed=1)
    texts = random_sentences(20, seed=5)
    translations = Translator(bundle).translate(texts)
    first, second = (align(bundle, texts, translations, layer=layer) for layer in (1, 2))
    assert align(bundle, texts, translations) == first != second


def test_weights_become_links() -> None:
    weights = np.array([[0.3, 0.3, 0.4, 0.0], [0.1, 0.0, 0.2, 0.7], [0.5, 0.1, 0.2, 0.2], [0.0, 0.0, 0.1, 0.9]], np.float32)
    # Source word 0 has tokens 0 and 1, word 1 token 2; token 3 is the end. Target word 0 has token 0, word 1 tokens 1 and 2.
    assert _word_links(weights, [0, 0, 1, -1], [0, 1, 1, -1]) == [(0, 0), (0, 1)]
    assert _word_links(weights, [-1, -1, -1, -1], [0, 1, 1, -1]) == []


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ona bek 東🐟é\u00a0\u2028.,\t"), max_size=40))
def test_tokens_know_their_words(text: str) -> None:
    """Every word has a token, and no token begins in a word that it has no part of."""
    ids = BYTES.encode(text)
    for spans in (BYTES.encoded_spans(text), BYTES.decoded_spans(ids)):
        assert len(spans) == len(ids)
        words = words_at(text, spans, "")
        assert sorted({word for word in words if word >= 0}) == list(range(len(text.split())))
        assert [word for word in words if word >= 0] == sorted(word for word in words if word >= 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(BYTES) - 1), max_size=12))
def test_spans_of_any_output_cover_its_text(ids: list[int]) -> None:
    """Of characters that are broken one may stand for several."""
    text, spans = BYTES.decode(ids), BYTES.decoded_spans(ids)
    uncovered = [text[place] for place in range(len(text)) if not any(start <= place < end for start, end in spans)]
    assert set(uncovered) <= {"\ufffd"}
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)


def test_segmented_text_has_the_words_that_its_tokens_make() -> None:
    tokenizer = Tokenizer.train(["o@@ na bek@@ ti lu"], kind="whitespace", vocabulary_size=20, joiner="@@")
    line = "o@@ na lu bek@@ ti"
    assert tokenizer.plain(line) == "ona lu bekti"
    assert words_at(line, tokenizer.encoded_spans(line), "@@") == [0, 0, 1, 2, 2]
    ids = tokenizer.encode(line)
    assert [tokenizer.decode(ids)[start:end] for start, end in tokenizer.decoded_spans(ids)] == ["o", "na", "lu", "bek", "ti"]
    assert words_at(tokenizer.decode(ids), tokenizer.decoded_spans(ids), "") == [0, 0, 1, 2, 2]


def test_a_text_in_pieces_has_their_links_one_after_another() -> None:
    bundle = fx_rand(seed=2, max_positions=8)
    text = "  " + " ".join(random_sentences(20, longest=1, seed=3)[:17])
    (translation,) = Translator(bundle).translate([text])
    assert len(translation.parts) > 2
    (alignment,) = align(bundle, [text], [translation])
    (weights,) = attention(bundle, [translation])
    words = target = 0
    links, blocks = [], np.zeros_like(weights)
    for part in translation.parts:
        assert text[part.start : part.start + len(part.text)] == part.text
        alone = replace(translation, text=bundle.target_tokenizer.decode(part.target), parts=(part._replace(start=0, separator=""),))
        (piece,) = align(bundle, [part.text], [alone])
        links += [(source_word + words, link + target) for source_word, link in piece.words]
        words, target = words + len(part.text.split()), target + len(alone.text.split())
    assert alignment.words == sorted(links)
    row = column = 0
    for part in translation.parts:
        height, width = len(part.target), len(part.source)
        block = weights[..., row : row + height, column : column + width]
        np.testing.assert_allclose(block.sum(-1), 1, atol=1e-5)
        blocks[..., row : row + height, column : column + width] = block
        row, column = row + height, column + width
    np.testing.assert_array_equal(weights, blocks)


def test_tags_and_ends_are_no_words() -> None:
    tagged = fx_rand(seed=3).source_tokenizer.with_tags(["de"])
    bundle = make_bundle(tagged, tagged, seed=3)
    text = ">>de<< ona bek"
    (translation,) = Translator(bundle).translate([text])
    (alignment,) = align(bundle, [text], [translation])
    assert alignment.source_tokens == (">>de<<", "ona", "bek", "</s>")
    assert {source for source, _ in alignment.tokens} <= {1, 2}
    assert {source for source, _ in alignment.words} <= {0, 1}
    assert [target for _, target in sorted(alignment.words, key=lambda link: link[1])] == list(range(len(translation.text.split())))


def test_the_command_writes_them_beside(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = tiny_bundle(tmp_path / "model")
    texts = ["ona bek tilu", "", "kip dal"]
    (tmp_path / "text").write_text("".join(f"{text}\n" for text in texts))
    bundle = load_bundle(model)
    translations = Translator(bundle).translate(texts)
    expected = align(bundle, texts, translations)
    command = ["translate", str(model), str(tmp_path / "text"), "--device", "cpu"]

    links, arrays = tmp_path / "links", tmp_path / "heads.npz"
    assert main([*command, "--align", str(links), "--attention", str(arrays)]) == 0
    assert capfd.readouterr().out.splitlines() == [translation.text for translation in translations]
    assert links.read_text().splitlines() == [alignment.pharaoh() for alignment in expected]
    with np.load(arrays, allow_pickle=False) as found:
        assert sorted(found) == sorted(f"{number}.{name}" for number in (1, 2, 3) for name in ("attention", "source", "target"))
        for number, (translation, weights) in enumerate(zip(translations, attention(bundle, translations), strict=True), start=1):
            np.testing.assert_allclose(found[f"{number}.attention"], weights, atol=1e-6)
            assert found[f"{number}.attention"].shape[:2] == (1, 2)
            assert tuple(found[f"{number}.target"]) == translation.tokens
            assert tuple(found[f"{number}.source"]) == source_tokens(bundle, translation)

    assert main([*command, "--json", "--align", "-", "--align-layer", "1", "--n-best", "2"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    for record, alignment in zip(records, expected, strict=True):
        assert record["alignment"] == [list(link) for link in alignment.words]
        assert record["token_alignment"] == [list(link) for link in alignment.tokens]
        assert record["source_tokens"] == list(alignment.source_tokens)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heads.npz", "links", "model", "text"]

    (tmp_path / "text").write_bytes(b"ona\nre\xff\n")
    arrays.unlink()
    assert main([*command, "--attention", str(arrays)]) == 1
    assert not arrays.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links", "model", "text"]
