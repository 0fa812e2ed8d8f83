"""`dragoman.pipeline` against the pipelines of `transformers`, on tiny random GPT-2 and BERT folders: the same results, value for value."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import dragoman
from dragoman.decoding.generation_options import GenerationOptions

if find_spec("dragoman.interop") is None:
    pytest.skip("this Dragoman reads no Hugging Face folders", allow_module_level=True)
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TEXT = ["a man rides a horse, said the man; the river runs to the sea.", "once upon a time a fish swam far away"] * 4
PROMPTS = ["once upon", "a man rides a horse, said", "the river"]


def saved(model: Any, tokenizer: Any, folder: Path) -> tuple[Path, Any, Any]:
    """A folder of this model, whose weights become far from all alike."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    end = "<|endoftext|>"
    backend.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[end])
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=end, eos_token=end, unk_token=end, pad_token=end, padding_side="left"
    )
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(tokenizer), **sizes))
    return saved(model, tokenizer, tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special))
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 40}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer), **sizes))
    return saved(model, tokenizer, tmp_path_factory.mktemp("bert"))


def test_text_generation(gpt2: tuple[Path, Any, Any]) -> None:
    folder, model, tokenizer = gpt2
    theirs = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device=-1)
    ours = dragoman.pipeline("text-generation", folder)
    for asked in ({"max_new_tokens": 20}, {"max_new_tokens": 5, "return_full_text": False}):
        assert ours(PROMPTS, do_sample=False, **asked) == theirs(PROMPTS, do_sample=False, **asked)
        assert ours(PROMPTS[0], do_sample=False, **asked) == theirs(PROMPTS[0], do_sample=False, **asked)


def test_beam_search_of_a_left_padded_batch(gpt2: tuple[Path, Any, Any]) -> None:
    folder, model, tokenizer = gpt2
    given = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    found = model.generate(
        given.input_ids, attention_mask=given.attention_mask, num_beams=4, num_return_sequences=3, length_penalty=0.0, max_new_tokens=12,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip
    wanted = tokenizer.batch_decode(found[:, given.input_ids.size(1) :], skip_special_tokens=True)
    generator = dragoman.pipeline("text-generation", folder).generator
    ours = generator.generate(PROMPTS, GenerationOptions(beam=4, n=3, alpha=0.0, max_tokens=12))
    assert [each.text for some in ours for each in some] == wanted


@pytest.mark.parametrize("text", ["a man [MASK] a horse", "The [MASK] runs to the [MASK].", "[MASK], said the man"])
def test_fill_mask(bert: tuple[Path, Any, Any], text: str) -> None:
    folder, model, tokenizer = bert
    wanted = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, device=-1)(text)
    found = dragoman.pipeline("fill-mask", folder)(text)
    for ours, theirs in zip(*(each if isinstance(each[0], list) else [each] for each in (found, wanted)), strict=True):
        assert [(each["token"], each["token_str"], each["sequence"]) for each in ours] == [
            (each["token"], each["token_str"], each["sequence"]) for each in theirs
        ]
        assert [each["score"] for each in ours] == pytest.approx([each["score"] for each in theirs], abs=1e-5)


def test_feature_extraction(gpt2: tuple[Path, Any, Any], bert: tuple[Path, Any, Any]) -> None:
    for folder, model, tokenizer in (gpt2, bert):
        theirs = transformers.pipeline("feature-extraction", model=model.base_model, tokenizer=tokenizer, device=-1)
        found = dragoman.pipeline("feature-extraction", folder)("a man rides")
        np.testing.assert_allclose(found, theirs("a man rides"), atol=1e-5)
