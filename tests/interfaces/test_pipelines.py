"""`dragoman.pipeline`: the classic calls give the classic shapes, and where `transformers` is installed, its values."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman.bundle import save_bundle
from dragoman.errors import DragomanError, UsageError
from language_models import BERT, GPT, SENTENCE, random_bundle, storyteller
from small_bundles import fx_toy


def test_text_generation() -> None:
    generator = dragoman.pipeline("text-generation", storyteller())
    assert generator("Once upon", do_sample=False) == [{"generated_text": SENTENCE}]
    many = generator(["Once upon", "Once"], num_return_sequences=3, max_length=6, seed=5)
    assert [[list(each) for each in some] for some in many] == [[["generated_text"]] * 3] * 2
    tokenizer = generator.generator.bundle.target_tokenizer
    assert {len(tokenizer.encode(each["generated_text"])) + 1 for some in many for each in some} == {6}  # the start token counts
    assert generator("Once", do_sample=False, max_new_tokens=1, return_full_text=False) == [{"generated_text": " upon"}]
    assert len(generator("Once", num_beams=3, num_return_sequences=2)) == 2
    with pytest.raises(UsageError, match="max_length=2 counts the prompt's tokens too, and one has 3 tokens"):
        generator("Once upon", max_length=2)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_new_tokens": 0}, "max_tokens=0: it must be 1 or more"),
        ({"max_new_tokens": 2, "max_length": 6}, "max_new_tokens=2 with max_length=6: both say where to stop"),
        ({"num_beams": 0}, "num_beams=0: it must be 1 or more"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature=0.5 with beam=2: a search draws nothing"),
        ({"do_sample": False, "temperature": 0.5}, "temperature=0.5 with do_sample=False: nothing is drawn"),
        ({"do_sample": False, "top_k": 5}, "top_k=5 with temperature=0: nothing is drawn"),
    ],
)
def test_nothing_that_is_asked_of_text_generation_does_nothing(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        dragoman.pipeline("text-generation", storyteller())("Once upon", **settings)


def test_fill_mask() -> None:
    fill = dragoman.pipeline("fill-mask", random_bundle(BERT))
    one = fill("ona <mask> bek")
    assert [sorted(each) for each in one] == [["score", "sequence", "token", "token_str"]] * 5
    assert [each["sequence"] for each in one] == [f"ona {each['token_str']} bek".replace("<mask> ", "") for each in one]
    assert fill(["ona <mask> bek"]) == one
    two = fill(["ona <mask> <mask>", "<mask>"], top_k=2)
    assert [len(two[0]), len(two[0][0]), len(two[1])] == [2, 2, 2]
    assert two[0][1][0]["sequence"] == f"<s> ona <mask> {two[0][1][0]['token_str']} </s>"
    assert {each["token_str"] for each in fill("ona <mask>", targets=["rem", "bek"])} == {"rem", "bek"}
    with pytest.raises(DragomanError, match="targets: 'nothing' is not one token"):
        fill("ona <mask>", targets="nothing")


def test_feature_extraction() -> None:
    for bundle, tokens in ((random_bundle(BERT), 4), (random_bundle(GPT), 3)):
        extract = dragoman.pipeline("feature-extraction", bundle)
        assert np.array(extract("ona bek")).shape == (1, tokens, 24)
        many = extract(["ona bek", "ona"])
        assert [np.array(each).shape for each in many] == [(1, tokens, 24), (1, tokens - 1, 24)]
        tensor = extract("ona bek", return_tensors=True)
        torch.testing.assert_close(tensor, torch.tensor(extract("ona bek")))


def test_translation() -> None:
    translate = dragoman.pipeline("translation", fx_toy())
    texts = ["ona bek", "tilu rem sova"]
    wanted = [each.text for each in translate.translator.translate(texts)]
    assert translate(texts[0]) == [{"translation_text": wanted[0]}]
    assert translate(texts) == [{"translation_text": text} for text in wanted]
    assert [len(some) for some in translate(texts, num_return_sequences=2, num_beams=3)] == [2, 2]
    named = fx_toy().config.with_values(data={"source": "aa", "target": "bb"})
    bundle = dragoman.Bundle(named, fx_toy().model, fx_toy().source_tokenizer, fx_toy().target_tokenizer)
    assert dragoman.pipeline("translation_aa_to_bb", bundle)("ona bek") == translate("ona bek")
    with pytest.raises(UsageError, match="the task is from en to de, and the model translates from aa to bb"):
        dragoman.pipeline("translation_en_to_de", bundle)


def test_folders_and_what_cannot_be(tmp_path: Path) -> None:
    save_bundle(storyteller(), tmp_path / "story")
    generator = dragoman.pipeline("text-generation", model=tmp_path / "story", device=-1)
    assert generator("Once upon", do_sample=False) == [{"generated_text": SENTENCE}]
    for wrong in ({"max_new_tokens": 0}, {"max_new_tokens": -1}, {"num_beams": 0}, {"num_beams": -1}):
        with pytest.raises(UsageError, match="it must be 1 or more"):
            generator("Once upon", **wrong)
    with pytest.raises(UsageError, match=r"task='summarization': unknown; choose among text-generation, fill-mask"):
        dragoman.pipeline("summarization", tmp_path / "story")
    for task, use in (("fill-mask", "generate"), ("translation", "generate")):
        with pytest.raises(DragomanError, match=f"is decoder-only.*use dragoman {use}"):
            dragoman.pipeline(task, tmp_path / "story")
    with pytest.raises(DragomanError, match=re.escape(str(tmp_path / "nowhere"))):
        dragoman.pipeline("text-generation", tmp_path / "nowhere")
