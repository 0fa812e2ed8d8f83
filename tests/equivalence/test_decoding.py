"""From text to translations and back: a plain greedy loop, batches, padding, pieces of text, scores and modes (Section 6.1)."""

import random
from pathlib import Path

import pytest
import torch

import dragoman
from dragoman.bundle import save_bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.score import score_pairs
from dragoman.decoding.step import TransformerStep
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError, UsageError
from small_bundles import WORDS, fx_rand, make_bundle, random_sentences, reverse

CPU = torch.device("cpu")


def byte_pair_tokenizer() -> Tokenizer:
    return Tokenizer.train(random_sentences(50, words=24), kind="bpe", vocabulary_size=300)


@pytest.mark.parametrize("norm_place", ["post", "pre"])
def test_a_beam_of_one_is_a_greedy_loop_over_the_whole_model(norm_place: str) -> None:
    bundle = fx_rand(seed=3, norm_place=norm_place)
    tokenizer, model = bundle.target_tokenizer, bundle.model.eval()
    texts = random_sentences(20, seed=1)
    for text, translation in zip(texts, Translator(bundle).translate(texts, beam=1), strict=True):
        source = torch.tensor([[*tokenizer.encode(text), tokenizer.eos]])
        target = [tokenizer.bos]
        while target[-1] != tokenizer.eos:
            with torch.inference_mode():
                logits = model(source, torch.tensor([target]))[0, -1]
                logits[[tokenizer.pad, tokenizer.bos]] = -torch.inf
            at_limit = len(target) == source.size(1) + bundle.config.decoding.extra_length
            target.append(tokenizer.eos if at_limit else int(logits.argmax()))
        assert list(translation.tokens) == [tokenizer.token(token) for token in target[1:]]


def test_padding_of_the_source_changes_nothing() -> None:
    bundle = fx_rand(seed=1)
    model = bundle.model.eval()
    source, mask = pad_rows([[4, 5, 6, 2]], pad=0, device=CPU)
    padded, padded_mask = pad_rows([[4, 5, 6, 2], [7] * 11], pad=0, device=CPU)
    padded[0, 4:] = torch.randint(4, 16, (7,))  # what stands under the mask is not looked at
    target = torch.tensor([[1, 8, 9, 10]])
    output = torch.tensor([[8, 9, 10, 2]])
    with torch.inference_mode():
        alone = score_pairs(model, source, mask, target, output)
        beside = score_pairs(model, padded[:1], padded_mask[:1], target, output)
        torch.testing.assert_close(beside, alone, atol=1e-5, rtol=0)
        step = TransformerStep(model)
        first, _ = step.next(torch.tensor([1]), step.start(source, mask))
        second, _ = step.next(torch.tensor([1]), step.start(padded[:1], padded_mask[:1]))
        torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


def test_order_and_number_are_kept_and_blank_texts_stay_blank() -> None:
    translator = Translator(fx_rand(seed=2))
    texts = random_sentences(12, seed=3)
    expected = [translation.text for translation in translator.translate(texts)]
    mixed = ["", *texts[:5], " ", "\t\u3000\u2028", *texts[5:], ""]
    found = translator.translate(mixed, batch_tokens=40)
    assert [translation.text for translation in found] == ["", *expected[:5], "", "", *expected[5:], ""]
    assert found[0].tokens == found[0].token_scores == ()
    assert (found[0].log_probability, found[0].score, found[0].reached_limit) == (0.0, 0.0, False)
    assert translator.translate([]) == []
    assert [translation.text for translation in translator.translate(["", " "], n_best=3)] == ["", ""]


def test_alternatives_are_the_rest_of_the_n_best() -> None:
    translator = Translator(fx_rand(seed=2))
    for translation in translator.translate(random_sentences(10, seed=6), beam=5, n_best=4):
        assert len(translation.alternatives) == 3
        assert all(other.alternatives == () and other.score <= translation.score for other in translation.alternatives)
        assert len({translation.tokens, *(other.tokens for other in translation.alternatives)}) == 4


def test_length_limits() -> None:
    bundle = fx_rand(seed=0, extra_length=3, max_positions=20)
    translator = Translator(bundle)
    texts = [" ".join(WORDS[:length]) for length in range(1, 13)]

    def lengths(max_length: int | None) -> list[int]:
        return [len(translation.tokens) for translation in translator.translate(texts, max_length=max_length, beam=1)]

    assert all(length <= words + 1 + 3 for words, length in enumerate(lengths(None), start=1))
    assert max(lengths(7)) <= 7
    assert max(lengths(1000)) <= 20
    assert set(lengths(1)) == {1}
    with pytest.raises(UsageError, match="at least 1"):
        translator.translate(texts, max_length=0)


def test_impossible_settings_are_usage_errors() -> None:
    translator = Translator(fx_rand())
    with pytest.raises(UsageError, match="n_best=1 with beam=0"):
        translator.translate(["ona"], beam=0)
    with pytest.raises(UsageError, match="n_best=3 with beam=2"):
        translator.translate(["ona"], beam=2, n_best=3)
    for alpha in (float("nan"), 1e6):
        for lines in (["ona"], [""]):
            with pytest.raises(UsageError, match="is not between -10 and 10"):
                translator.translate(lines, alpha=alpha)
        with pytest.raises(UsageError, match="is not between -10 and 10"):
            translator.score(["ona"], ["ona"], alpha=alpha)


def test_one_text_alone_is_not_taken_for_a_list_of_its_characters() -> None:
    translator = Translator(fx_rand())
    with pytest.raises(UsageError, match="texts: give a list of texts, with one in it where there is only one, and not a str"):
        translator.translate("ona")
    with pytest.raises(UsageError, match="targets: give a list of texts"):
        translator.score(["o", "n", "a"], "ona")
    with pytest.raises(UsageError, match="prefixes: give a list of texts"):
        translator.translate(["ona", "ona", "ona"], prefixes="ona")
    with pytest.raises(UsageError, match="texts: number 2 is a NoneType, and not a text"):
        translator.translate(["ona", None])  # type: ignore[list-item]
    (alone,) = translator.translate(["ona bek"])
    assert translator.translate(text for text in ["ona bek"]) == [alone]  # type: ignore[arg-type]


def test_the_bundles_own_settings_are_the_defaults() -> None:
    bundle = fx_rand(seed=2)
    texts = random_sentences(8, seed=2)
    settings = bundle.config.decoding
    assert (settings.beam, settings.alpha) == (4, 0.6)
    assert Translator(bundle).translate(texts) == Translator(bundle).translate(texts, beam=4, alpha=0.6)
    assert Translator(bundle).translate(texts) != Translator(bundle).translate(texts, beam=1)


def test_any_text_is_translated_with_byte_pairs() -> None:
    tokenizer = byte_pair_tokenizer()
    translator = Translator(make_bundle(tokenizer, tokenizer, seed=5))
    texts = ["ona bek 🐟 rem sova.", "👩\u200d🚀 🇳🇴 👍🏽", "ona\u2028bek", "ona </s> bek", "<pad><pad>", "\ufeffona", "a\nb", "\x00"]
    for translation in translator.translate(texts):
        translation.text.encode()  # no half surrogate pairs
        assert translation.tokens[-1] == "</s>"
        assert not {"<pad>", "<s>"} & set(translation.tokens)
        assert len(translation.tokens) == len(translation.token_scores)


def test_source_and_target_have_their_own_tokenizers() -> None:
    sources = random_sentences(50, words=24, seed=1)
    source = Tokenizer.train(sources, kind="bpe", vocabulary_size=290)
    target = Tokenizer.train([reverse(line) for line in sources], kind="whitespace", vocabulary_size=28)
    bundle = make_bundle(source, target, seed=1)
    (translation,) = Translator(bundle).translate(["ona bek tilu"], beam=2, max_length=6)
    words = set(reverse(" ".join(WORDS)).split()) | {"<unk>"}
    assert set(translation.tokens[:-1]) <= words
    assert translation.text == " ".join(translation.tokens[:-1])
    (scored,) = Translator(bundle).score(["ona bek tilu"], [translation.text])
    assert scored.log_probability == pytest.approx(translation.log_probability, abs=1e-4)


def test_joined_pieces_become_plain_text() -> None:
    target = Tokenizer.train(["lo@@ wer new"], kind="whitespace", vocabulary_size=8, joiner="@@")
    source = fx_rand().source_tokenizer
    translations = [
        each for seed in range(5) for each in Translator(make_bundle(source, target, seed=seed)).translate(random_sentences(6, seed=seed))
    ]
    assert any("lo@@" in translation.tokens for translation in translations)
    assert not any("@@" in translation.text for translation in translations)


def test_rows_beyond_the_vocabulary_are_never_generated() -> None:
    tokenizer = fx_rand().source_tokenizer
    bundle = make_bundle(tokenizer, tokenizer, target_vocabulary=40, source_vocabulary=40, seed=2)
    with torch.no_grad():
        bundle.model.output.weight[16:] *= 30
    for translation in Translator(bundle).translate(random_sentences(10, seed=2)):
        assert set(translation.tokens) <= {*WORDS[:12], "<unk>", "</s>"}


def test_translating_is_repeatable_and_leaves_training_as_it_was() -> None:
    bundle = fx_rand(seed=2, dropout=0.5, attention_dropout=0.5)
    translator = Translator(bundle)
    (line,) = random_sentences(1, seed=2)
    bundle.model.train()
    state = torch.get_rng_state()
    assert len({translation.text for translation in translator.translate([line] * 5, batch_tokens=1)}) == 1
    assert len({translator.score([line], [line])[0].log_probability for _ in range(5)}) == 1
    assert all(module.training for module in bundle.model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    bundle.model(torch.tensor([[4, 2]]), torch.tensor([[1, 5]])).sum().backward()  # gradients still flow
    bundle.model.eval()
    assert translator.translate([line])[0].text == translator.translate([line])[0].text
    assert not bundle.model.training


def test_a_saved_bundle_translates_as_before(tmp_path: Path) -> None:
    bundle = fx_rand(seed=2)
    texts = random_sentences(6, seed=2)
    save_bundle(bundle, tmp_path / "model")
    assert dragoman.load(tmp_path / "model", device="cpu").translate(texts) == Translator(bundle).translate(texts)


def test_scores_of_given_translations() -> None:
    bundle = fx_rand(seed=4)
    tokenizer, model = bundle.target_tokenizer, bundle.model
    sources, targets = random_sentences(30, seed=1), random_sentences(30, seed=2)
    for batch_tokens in (1, 50, 4096):
        for source, target, scored in zip(
            sources, targets, Translator(bundle).score(sources, targets, alpha=0.6, batch_tokens=batch_tokens), strict=True
        ):
            ids = [*tokenizer.encode(target), tokenizer.eos]
            with torch.inference_mode():
                logits = model.eval()(
                    torch.tensor([[*tokenizer.encode(source), tokenizer.eos]]), torch.tensor([[tokenizer.bos, *ids[:-1]]])
                )
            expected = logits[0].log_softmax(-1)[range(len(ids)), ids]
            assert scored.token_scores == pytest.approx(expected.tolist(), abs=1e-5)
            assert scored.tokens == (*target.split(), "</s>")
            assert scored.log_probability == pytest.approx(float(expected.sum()), abs=1e-4)
            assert scored.score == pytest.approx(float(expected.sum()) / ((5 + len(ids)) / 6) ** 0.6, abs=1e-4)
    assert Translator(bundle).score([], []) == []


def test_scores_name_what_cannot_be_scored() -> None:
    translator = Translator(fx_rand(max_positions=8))
    with pytest.raises(DragomanError, match="2 sources but 1 targets"):
        translator.score(["ona", "bek"], ["ona"])
    with pytest.raises(DragomanError, match=r"pair 2 has 9 tokens .* takes 8"):
        translator.score(["ona", "bek"], ["ona", "ona " * 8])


def test_batches_hold_similar_lengths_under_the_budget() -> None:
    lengths = [random.Random(1).randint(1, 90) for _ in range(1)] + [random.Random(n).randint(1, 90) for n in range(400)]
    batches = batches_of(lengths, batch_tokens=300)
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[place] for place in batch) <= 300 for batch in batches)
    assert sum(len(batch) * max(lengths[place] for place in batch) for batch in batches) < 1.05 * sum(lengths)
    assert [len(batch) for batch in batches_of([5, 500, 5], batch_tokens=10)] == [2, 1]


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    save_bundle(fx_rand(), tmp_path / "model")
    for device in ("tpu", "cuda:99"):
        with pytest.raises(UsageError, match=f"device '{device}' is not available here"):
            Translator.load(tmp_path / "model", device=device)
