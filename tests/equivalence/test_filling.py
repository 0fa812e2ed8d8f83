"""What encoder-only models say, and how probable texts are to decoders: against the plain definition, and padded = alone."""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.embed import embed, features
from dragoman.decoding.fill import fill, mask_text, masked_ids, pseudo_score
from dragoman.decoding.generate import Generator
from dragoman.decoding.likelihood import score_lines
from dragoman.decoding.score import Perplexity, Scored
from dragoman.errors import DragomanError, UsageError
from language_models import BERT, GPT, LLAMA, WORDS, random_bundle, words_tokenizer

TEXTS = ["ona <mask> bek", "<mask>", "tilu rem <mask> sova kip dal <mask> nur afi gost", "<mask> ona"]
PLAIN = ["ona bek", "tilu rem sova kip dal nur afi gost huma", "", "pest", "ona ona ona"]


def bert(**changes: Any) -> Bundle:
    return random_bundle(BERT | changes)


def ids_of(bundle: Bundle, text: str) -> Tensor:
    tokenizer = bundle.source_tokenizer
    between = [[tokenizer.mask] if word == "<mask>" else tokenizer.encode(word) for word in text.split(" ")]
    return torch.tensor([[tokenizer.bos, *chain.from_iterable(between), tokenizer.eos]])


def test_fillings_are_the_most_probable_classes_of_each_mask() -> None:
    bundle = bert()
    tokenizer = bundle.source_tokenizer
    for text, masks in zip(TEXTS, fill(bundle, TEXTS, top=4), strict=True):
        ids = ids_of(bundle, text)
        places = (ids[0] == tokenizer.mask).nonzero()[:, 0].tolist()
        assert len(masks) == len(places)
        probabilities = bundle.masked_language_model(ids)[0].softmax(-1)
        for place, some in zip(places, masks, strict=True):
            best = probabilities[place].topk(4)
            assert [each.token for each in some] == best.indices.tolist()
            assert [each.probability for each in some] == pytest.approx(best.values.tolist(), abs=1e-5)
            for each in some:
                wanted = ids[0].tolist()
                wanted[place] = each.token
                assert list(each.ids) == wanted
    first = fill(bundle, ["ona <mask> bek <mask>"], top=20)[0]
    said = next(each for each in first[1] if each.text == "tilu")
    assert said.sentence == "ona <mask> bek tilu"
    assert fill(bundle, ["<mask> bek"], among=tokenizer.encode("rem pest"))[0][0][0].text in ("rem", "pest")


def test_a_filling_does_not_depend_on_the_company() -> None:
    bundle = bert()
    together = fill(bundle, TEXTS, batch_tokens=1000)
    for text, found in zip(TEXTS, together, strict=True):
        (alone,) = fill(bundle, [text])
        for some, others in zip(found, alone, strict=True):
            assert [each.token for each in some] == [each.token for each in others]
            assert [each.probability for each in some] == pytest.approx([each.probability for each in others], abs=1e-5)


def byte_pairs_with_a_mask() -> Tokenizer:
    tokenizer = Tokenizer.train(["a man rides a horse, said the man, and un happy able"] * 4, kind="bpe", vocabulary_size=320)
    fields = {name: getattr(tokenizer, name) for name in ("kind", "joiner", "pad", "bos", "eos", "unk", "backend")}
    return Tokenizer(**fields, mask=tokenizer.encode("¤")[-1])  # any entry will do


def test_the_text_around_a_mask_is_cut_as_if_a_word_stood_there() -> None:
    tokenizer = byte_pairs_with_a_mask()
    mask = mask_text(tokenizer)
    for text in (
        "a man rides {} horse",
        "{} man rides",
        "a man rides a {}",
        "a {}, said the man",
        "the {} {} man",
        "{}: 1 man",
        "man{}, and",
    ):
        spelled = text.replace("{}", mask)
        with_word = tokenizer.encode(text.replace("{}", "a"))
        word = tokenizer.encode("a")
        found = masked_ids(tokenizer, spelled)
        assert found[0] == tokenizer.bos
        assert found[-1] == tokenizer.eos
        if "man{}" not in text:
            assert [word[0] if token == tokenizer.mask else token for token in found[1:-1]] == with_word
    ids = masked_ids(tokenizer, f"un{mask}able")
    assert tokenizer.decode(token for token in ids if token != tokenizer.mask) == "unable"


def test_what_cannot_be_filled_in_is_said() -> None:
    bundle = bert()
    with pytest.raises(DragomanError, match="story, line 4 has nothing to fill in; write <mask> where a token is missing"):
        fill(bundle, ["ona <mask>", "ona"], place="story", first_line=3)
    with pytest.raises(DragomanError, match="line 1 has 43 tokens and the model takes 32; shorten it"):
        fill(bundle, ["<mask> " + " ".join(["ona"] * 40)])
    with pytest.raises(DragomanError, match="has no token for what is masked"):
        fill(random_bundle(BERT, words_tokenizer()), ["ona"])
    with pytest.raises(DragomanError, match="is decoder-only, and not one that fills in what is masked: use dragoman generate"):
        fill(random_bundle(GPT), ["ona"])
    for asked in ({"top": 0}, {"among": []}):
        with pytest.raises(UsageError, match="ask for at least one of at least one"):
            fill(bundle, ["ona <mask>"], **asked)


@pytest.mark.parametrize("call", [fill, pseudo_score, embed, features])
def test_one_text_alone_is_not_taken_for_a_list_of_its_characters(call: Callable[[Bundle, str], object]) -> None:
    with pytest.raises(UsageError, match="texts: give a list of texts, with one in it where there is only one, and not a str"):
        call(bert(), "ona")


def test_one_text_or_prompt_alone_for_a_decoder_is_not_either() -> None:
    bundle = random_bundle(GPT)
    with pytest.raises(UsageError, match="texts: give a list of texts"):
        score_lines(bundle, "ona")
    with pytest.raises(UsageError, match="prompts: give a list of texts"):
        Generator(bundle).generate("ona")


def test_white_space_alone_has_no_perplexity_a_word() -> None:
    total = Perplexity()
    total.add(Scored(("␣", "␣"), (-1.0, -2.0), -3.0, -3.0), "  ", end=False)
    assert (total.per_token, total.per_word) == (math.exp(1.5), math.inf)


def test_damaged_weights_give_no_answer() -> None:
    bundle = bert()
    with torch.no_grad():
        bundle.model.output.weight.fill_(math.nan)
    with pytest.raises(DragomanError, match="story, line 3 has probabilities that are no numbers: damaged weights"):
        fill(bundle, ["ona <mask>"], place="story", first_line=3)
    with pytest.raises(DragomanError, match="story, line 3 has a vector of what are no numbers: damaged weights"):
        embed(bundle, ["ona"], place="story", first_line=3)


@pytest.mark.parametrize("pool", ["mean", "first", "pooler"])
def test_b81_a_vector_is_that_of_the_text_alone(pool: str) -> None:
    bundle = bert(pad=0)
    model = bundle.masked_language_model
    vectors = embed(bundle, PLAIN, pool=pool)
    assert vectors.shape == (5, 24)
    for text, vector in zip(PLAIN, vectors, strict=True):
        with torch.inference_mode():
            states = model.encode(ids_of(bundle, text))
            wanted = {"mean": states[0].mean(0), "first": states[0, 0], "pooler": model.pool(states)[0]}[pool]
        torch.testing.assert_close(vector, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(embed(bundle, PLAIN, pool=pool, normalize=True), F.normalize(vectors, dim=1))
    torch.testing.assert_close(embed(bundle, PLAIN, pool=pool, batch_tokens=8), vectors, atol=1e-5, rtol=0)


def test_b81_features_are_those_of_the_text_alone_also_of_a_decoder() -> None:
    bundle, decoder = bert(), random_bundle(LLAMA)
    for each in (bundle, decoder):
        for text, found in zip(PLAIN, features(each, PLAIN), strict=True):
            ids = ids_of(each, text)
            wanted = bundle.masked_language_model.encode(ids) if each is bundle else decoder.language_model.hidden(ids[:, :-1])
            torch.testing.assert_close(found, wanted[0].detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(embed(decoder, ["ona bek"])[0], features(decoder, ["ona bek"])[0].mean(0), atol=1e-6, rtol=0)


def test_what_has_no_vector_is_said(caplog: pytest.LogCaptureFixture) -> None:
    bundle, long = bert(), " ".join(["ona"] * 40)
    with pytest.raises(DragomanError, match="file, line 8 has 42 tokens and the model takes 32"):
        embed(bundle, ["ona", long], place="file", first_line=7)
    assert not caplog.records
    cut = embed(bundle, ["ona", long], truncate=True, place="file", first_line=7)
    assert caplog.messages == ["file, line 8 has 42 tokens and the model takes 32; the rest is left out"]
    torch.testing.assert_close(cut[1], embed(bundle, [" ".join(["ona"] * 30)])[0], atol=1e-5, rtol=0)
    for pool, error, model, said in (
        ("max", UsageError, bundle, "pool=max: unknown"),
        ("pooler", DragomanError, bert(pooler=False), "has no pooler; choose mean or first"),
        ("first", DragomanError, random_bundle(GPT), "has seen the first token alone; choose mean"),
        ("mean", DragomanError, random_bundle({"architecture": "encoder-decoder"}), "use dragoman translate"),
    ):
        with pytest.raises(error, match=said):
            embed(model, ["ona"], pool=pool)
    assert embed(bundle, []).shape == (0, 24)


def test_a_pseudo_likelihood_masks_each_token_in_turn() -> None:
    bundle = bert()
    tokenizer, model = bundle.source_tokenizer, bundle.masked_language_model
    for text, found in zip(PLAIN, pseudo_score(bundle, PLAIN, batch_tokens=30), strict=True):
        ids = ids_of(bundle, text)
        wanted = []
        for place in range(1, ids.size(1) - 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask
            wanted.append(model(masked)[0, place].log_softmax(-1)[ids[0, place]].item())
        assert found.token_scores == pytest.approx(wanted, abs=1e-4)
        assert found.log_probability == pytest.approx(sum(wanted), abs=1e-3)
        assert found.tokens == tuple(text.split())


@pytest.mark.parametrize("kind", [GPT, LLAMA])
def test_the_log_probability_of_a_text(kind: dict[str, Any]) -> None:
    bundle = random_bundle(kind)
    total = Perplexity()
    for text, found in zip(PLAIN, score_lines(bundle, PLAIN, alpha=1.0, batch_tokens=30), strict=True):
        ids = ids_of(bundle, text)
        log_probs = bundle.language_model(ids[:, :-1])[0].log_softmax(-1)
        wanted = log_probs.gather(1, ids[0, 1:, None])[:, 0].tolist()
        assert found.token_scores == pytest.approx(wanted, abs=1e-4)
        assert found.score == pytest.approx(sum(wanted) / ((5 + len(wanted)) / 6), abs=1e-4)
        assert found.tokens[-1] == "</s>"
        total.add(found, text)
    count = sum(len(text.encode()) + 1 for text in PLAIN)
    assert total.bytes == count
    assert total.per_byte == pytest.approx(math.exp(-total.log_probability / count))
    assert 2**total.bits_per_byte == pytest.approx(total.per_byte)


def test_a_text_longer_than_the_positions_is_read_in_windows_each_token_once(caplog: pytest.LogCaptureFixture) -> None:
    bundle = random_bundle(GPT, max_positions=8)
    text = f"{WORDS} {WORDS}"
    (found,) = score_lines(bundle, [text], place="file", first_line=3)
    said = "file, line 3 has 31 tokens, more than the model's 8 positions; it is read in windows, each token after at least 4 others"
    assert caplog.messages == [said]
    ids = ids_of(bundle, text)[0].tolist()
    wanted = []
    for place in range(31):
        end = next(end for end in (8, 12, 16, 20, 24, 28, 31) if end > place)
        start = end - 8
        logits = bundle.language_model(torch.tensor([ids[start : place + 1]]))[0, -1]
        wanted.append(logits.log_softmax(-1)[ids[place + 1]].item())
    assert found.token_scores == pytest.approx(wanted, abs=1e-4)
    with torch.no_grad():
        bundle.model.output.weight.fill_(torch.nan)
    with pytest.raises(DragomanError, match="line 1 has log-probability nan: damaged weights"):
        score_lines(bundle, ["ona"])
