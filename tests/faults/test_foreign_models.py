"""What is wrong with another program's model is said at once, and nothing in it is run (hf-interop, model-loading, decode-cache)."""

import json
import os
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import foreign_models
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from dragoman.interop.huggingface import find_folder, load_huggingface, read_huggingface
from dragoman.interop.sentencepiece import _float, _length, _number, _text
from dragoman.interop.weights import read_file, read_folder


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), encoding="utf-8")


def refused(folder: Path) -> str:
    with pytest.raises(DragomanError) as caught:
        load_huggingface(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_extra_and_misshapen_weights_are_listed_at_once(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")

    def change(weights: dict[str, torch.Tensor]) -> None:
        del weights["transformer.h.0.ln_1.bias"]
        weights["transformer.h.1.attn.c_attn.weight"] = weights["transformer.h.1.attn.c_attn.weight"].t()  # as in a linear layer
        weights["transformer.h.2.ln_1.bias"] = torch.zeros(16)
        weights["lm_head.weight"] = weights["transformer.wte.weight"] + 1

    change_weights(folder, change)
    said = refused(folder)
    for problem in (
        "weight h.0.ln_1.bias is missing",
        "weight h.1.attn.c_attn.weight has shape (48, 16), not (16, 48)",
        "weight h.2.ln_1.bias is not part of this model",
        "weight lm_head.weight differs from wte.weight, and in this model they are one",
    ):
        assert problem in said


@pytest.mark.parametrize(
    ("make", "values", "said"),
    [
        ("gpt2", {"model_type": "mamba"}, "model_type='mamba' is not supported; supported are marian, pegasus, gpt2, bert, llama, mistral"),
        (
            "gpt2",
            {"activation_function": "quick_gelu", "scale_attn_by_inverse_layer_idx": True},
            "activation_function='quick_gelu' is not supp",
        ),
        ("gpt2", {"activation_function": "quick_gelu", "scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx=True is not supported"),
        ("gpt2", {"n_embd": "16"}, "n_embd='16' is not a whole number"),
        ("gpt2", {"n_head": None}, "n_head is missing"),
        ("gpt2", {"model_type": ["gpt2"]}, "model_type=['gpt2'] is not supported"),
        ("gpt2", {"n_layer": 0}, "cannot import this model: n_layer=0: input should be greater than 0"),
        ("gpt2", {"n_embd": 10**12}, "n_embd=1000000000000: input should be less than or equal to 1000000"),
        ("gpt2", {"layer_norm_epsilon": 10**400}, "is not a number that can be used"),
        ("marian", {"d_model": 10**12}, "d_model=1000000000000: input should be less than or equal to 1000000"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers=0: input should be greater than 0"),
        ("bert", {"num_hidden_layers": 0}, "num_hidden_layers=0: input should be greater than 0"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling='linear' is not supported"),
        (
            "llama",
            {"max_position_embeddings": 1_000_000, "head_dim": 10_000},
            "max_position_embeddings=1000000 of 10000 numbers each are a table of positions of more than 2^31 numbers",
        ),
        ("gpt2", {"n_head": 3}, "n_embd=16 does not divide by n_head=3"),
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type='relative_key' is not supported; supported is 'absolute'",
        ),
        ("bert", {"is_decoder": True}, "is_decoder=True is not supported"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear' is not supported"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_parameters of type 'llama3' is not supported"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; supported is 'silu' or 'swish'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
    ],
)
def test_what_is_not_supported_is_named(make: str, values: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = getattr(foreign_models, make)(tmp_path / "model")
    change_json(folder / "config.json", **values)
    assert said in refused(folder)


def test_marian_settings_that_differ_between_the_sides_are_named(tmp_path: Path) -> None:
    folder = foreign_models.marian(tmp_path / "model")
    change_json(folder / "config.json", decoder_attention_heads=4, normalize_embedding=True)
    said = refused(folder)
    assert "encoder_attention_heads=2 and decoder_attention_heads=4 differ" in said
    assert "normalize_embedding=True is not supported" in said


@pytest.mark.parametrize("name", ["eos_token_id", "decoder_start_token_id", "pad_token_id"])
def test_wrong_special_ids_of_marian_are_named(name: str, tmp_path: Path) -> None:
    folder = foreign_models.marian(tmp_path / "model")
    change_json(folder / "config.json", **{name: "x"})
    assert f"{name}='x' is not" in refused(folder)
    change_json(folder / "config.json", **{name: 9999})
    assert "token has the id 9999, and the tokenizer's 65 entries are from 0" in refused(folder)


def test_search_of_marian_that_is_not_carried_over_is_told(tmp_path: Path) -> None:
    folder = foreign_models.marian(tmp_path / "model")
    change_json(folder / "config.json", forced_bos_token_id=5, no_repeat_ngram_size=3, min_length=0, length_penalty=50, eos_token_id=[0, 7])
    imported = read_huggingface(folder)
    assert imported.bundle.target_tokenizer.eos == 0
    assert imported.bundle.config.decoding.alpha == 10
    assert "with alpha 10:" in imported.notices[0]
    assert imported.notices[1].startswith("the model's own search also has forced_bos_token_id=5, no_repeat_ngram_size=3, which")


def test_mistral_has_a_window_unless_it_is_null(tmp_path: Path) -> None:
    """As there: a config.json that does not speak of it means 4096."""
    folder = foreign_models.llama(tmp_path / "model", model_type="mistral")
    change_json(folder / "config.json", max_position_embeddings=8192)
    imported = read_huggingface(folder)
    assert imported.bundle.config.model.max_positions == 4096
    assert imported.notices == ["attention goes 4096 positions back, so that is the longest sequence the model takes here, of 8192 there"]
    change_json(folder / "config.json", sliding_window=None)
    assert read_huggingface(folder).bundle.config.model.max_positions == 8192


def test_the_head_of_another_task_is_left_out_and_told(tmp_path: Path) -> None:
    gpt2 = foreign_models.gpt2(tmp_path / "gpt2")
    change_weights(gpt2, lambda weights: weights.update({"score.weight": torch.zeros(2, 16)}))
    assert read_huggingface(gpt2).ignored["score.weight"] == "the head of another task"
    bert = foreign_models.bert(tmp_path / "bert", head=False, tie_word_embeddings=False)
    change_weights(bert, lambda weights: weights.update({"classifier.weight": torch.zeros(2, 16)}))
    assert read_huggingface(bert).ignored == {"classifier.weight": "the head of another task"}


def test_weights_that_are_no_numbers_or_have_no_values_or_are_there_twice(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")
    whole = load_file(folder / "model.safetensors")
    change_weights(folder, lambda weights: weights["transformer.wte.weight"][100].fill_(float("nan")))  # of a token that no sample has
    assert "weight wte.weight holds what is no number" in refused(folder)
    (folder / "model.safetensors").unlink()
    for odd in (whole["transformer.wte.weight"].to_sparse(), whole["transformer.wte.weight"].to("meta")):
        torch.save(whole | {"transformer.wte.weight": odd}, folder / "pytorch_model.bin")
        assert "transformer.wte.weight has no values, or not all of them" in refused(folder)
    save_file(whole, folder / "1.safetensors")
    save_file({"transformer.wte.weight": whole["transformer.wte.weight"] + 1}, folder / "2.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    assert "2.safetensors: transformer.wte.weight is in another file of the model too" in refused(folder)


def test_stored_positions_are_not_trusted(tmp_path: Path) -> None:
    folder = foreign_models.marian(tmp_path / "model")
    table = "model.encoder.embed_positions.weight"
    change_weights(folder, lambda weights: weights.update({table: torch.zeros(32, 16)}))
    assert f"weight {table} is not a table of the sinusoids" in refused(folder)
    change_weights(folder, lambda weights: weights.update({table: torch.zeros(0, 16)}))
    assert f"weight {table} is not a table of the sinusoids" in refused(folder)


class Harmful:
    """Pickled, it asks for a command to be run when it is read."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def test_a_pickle_with_code_is_refused_in_one_sentence_and_not_run(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": torch.zeros(2, 2), "more": Harmful(f"touch {tmp_path / 'harm'}")}, folder / "pytorch_model.bin")
    said = refused(folder)
    assert "pytorch_model.bin: the file asks for code to be run (posix.system)" in said
    assert "save the state dict alone, best as safetensors" in said
    assert not (tmp_path / "harm").exists()


def test_weights_in_pytorch_files_in_several_files_and_in_half_precision(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")
    whole = load_huggingface(folder)
    weights = {name: weight.half() for name, weight in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    half = dict(load_huggingface(folder).model.named_parameters())
    assert all(torch.equal(weight.half().float(), half[name]) for name, weight in whole.model.named_parameters())
    (folder / "pytorch_model.bin").unlink()
    names = sorted(weights)
    parts = {"model-1.safetensors": names[:9], "model-2.safetensors": names[9:]}
    for file, some in parts.items():
        save_file({name: weights[name] for name in some}, folder / file)
    index = {"weight_map": {name: file for file, some in parts.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    again = dict(load_huggingface(folder).model.named_parameters())
    assert all(torch.equal(weight, again[name]) for name, weight in half.items())
    (folder / "model-2.safetensors").unlink()
    assert "model-2.safetensors of model.safetensors.index.json is missing" in refused(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../model-1.safetensors"}}))
    assert "not a list of weight files" in refused(folder)


# B87
def test_weights_that_were_saved_on_a_gpu_are_read_on_a_machine_without_one(tmp_path: Path) -> None:
    torch.save({"weight": torch.arange(4.0)}, tmp_path / "cpu.pt")
    with zipfile.ZipFile(tmp_path / "cpu.pt") as old, zipfile.ZipFile(tmp_path / "gpu.pt", "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            tag = (b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:3")
            content = old.read(entry)
            new.writestr(entry.filename, content.replace(*tag) if entry.filename.endswith("data.pkl") else content)
        assert b"cuda:3" in new.fp.getbuffer() if hasattr(new.fp, "getbuffer") else True
    assert b"cuda:3" in (tmp_path / "gpu.pt").read_bytes()
    assert read_file(tmp_path / "gpu.pt")["weight"].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(("name", "content"), [("model.safetensors", b"\x08\x00\x00"), ("pytorch_model.bin", b"PK\x03\x04broken")])
def test_damaged_weights_are_said(name: str, content: bytes, tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert "no weights: none of model.safetensors" in refused(folder)
    (folder / name).write_bytes(content)
    assert name in refused(folder)
    with pytest.raises(DragomanError, match="undamaged copy"):
        read_folder(folder)


# B79
def test_a_tokenizer_with_more_entries_than_the_embedding_has_rows(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")
    (folder / "added_tokens.json").write_text(json.dumps({"<more>": 270}))
    assert "the tokenizer has 271 entries but the embedding has 270 rows" in refused(folder)


def test_an_added_token_with_a_row_is_taken(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model", rows=271)
    (folder / "added_tokens.json").write_text(json.dumps({"<more>": 270}))
    tokenizer = load_huggingface(folder).source_tokenizer
    assert tokenizer.encode("a<more>") == [*tokenizer.encode("a"), 270]
    assert tokenizer.decode([270]) == "<more>"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_further_end_tokens_are_told(file: str, tmp_path: Path) -> None:
    """Programs that stop at any of them would say less; one that the vocabulary does not have is none."""
    folder = foreign_models.llama(tmp_path / "model")
    assert read_huggingface(folder).notices == []
    eos = json.loads((folder / "config.json").read_text())["eos_token_id"]
    if not (folder / file).exists():
        (folder / file).write_text("{}")
    change_json(folder / file, eos_token_id=[eos, 7, 50_000])
    imported = read_huggingface(folder)
    assert imported.bundle.target_tokenizer.eos == eos
    assert f"eos_token_id is 7, 50000 in the model's files: here {eos} (<|end|>) alone ends a text" in imported.notices


def test_an_embedding_with_more_rows_than_entries_never_says_them(tmp_path: Path) -> None:
    folder = foreign_models.marian(tmp_path / "model")
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]

    def widen(weights: dict[str, torch.Tensor]) -> None:
        weights["model.shared.weight"] = torch.cat((weights["model.shared.weight"], torch.zeros(2, 16)))
        weights["final_logits_bias"] = torch.cat((weights["final_logits_bias"], torch.full((1, 2), 50.0)), 1)

    change_weights(folder, widen)
    change_json(folder / "config.json", vocab_size=rows + 2)
    imported = read_huggingface(folder)
    assert f"the tokenizer has {rows} entries and the embedding {rows + 2} rows: the rest is never said" in imported.notices
    found = Translator(imported.bundle).translate(["A man", "snow"], beam=2, max_length=8)
    assert all(line.text for line in found)
    assert imported.bundle.target_tokenizer.decode([rows, rows + 1]) == ""


def test_a_gap_in_the_ids_is_named(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model", rows=280)
    document = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    last = max(document["model"]["vocab"], key=document["model"]["vocab"].get)
    document["model"]["vocab"][last] = 271
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    assert "the tokenizer's ids have gaps: none of its 270 entries has the id 269, 270" in refused(folder)
    shutil.rmtree(folder)
    folder = foreign_models.marian(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, "<pad>": 99}), encoding="utf-8")
    assert "vocab.json: the ids of its" in refused(folder)


def change_vocabulary(folder: Path, change: Callable[[dict[str, int]], object]) -> None:
    document = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    change(document["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")


def test_an_id_far_beyond_the_others_costs_no_memory(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")
    change_vocabulary(folder, lambda entries: entries.update(far=4_000_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "has the id 270, 271, 272, 273, 274 …" in refused(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_entries_of_one_id_and_a_vocabulary_without_entries(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model", rows=280)
    change_vocabulary(folder, lambda entries: entries.update(twice=5))
    assert "two of the tokenizer's entries have one id" in refused(folder)
    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(empty))
    assert "the tokenizer has no entries" in refused(folder)
    words = {"type": "WordLevel", "vocab": {"x": 0, "<|endoftext|>": 1}, "unk_token": "<unk>"}
    (folder / "tokenizer.json").write_text(json.dumps(empty | {"model": words}))
    assert "the tokenizer's files are damaged (WordLevel error" in refused(folder)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": 3}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": {"special": True}}}),
        ("added_tokens.json", {"a": "x", "b": 3}),
    ],
)
def test_added_tokens_that_are_none(file: str, values: dict[str, Any], tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")
    (folder / file).write_text(json.dumps(values))
    assert f"{folder}/{file}: " in refused(folder)


def test_sentence_pieces_that_are_damaged_or_of_another_kind(tmp_path: Path) -> None:
    folder = foreign_models.marian(tmp_path / "marian")
    piece = _length(1, _text(1, "a") + _float(2, -1.0))
    for data in (
        b"\x0a\x00",  # a piece without a text
        piece + _length(3, _length(2, b"abc")),  # a character map that is none
        piece + _length(3, _number(2, 7)),
        _length(1, _text(1, "a") + _float(2, float("nan"))),
        b"\x08" + b"\x80" * 100_000 + b"\x01",  # a number without an end
    ):
        (folder / "source.spm").write_bytes(data)
        assert "damaged" in refused(folder)
    folder = foreign_models.llama(tmp_path / "llama")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(foreign_models.sentence_pieces(foreign_models.LINES, 80))  # unigram
    assert "tokenizer.model: not a SentencePiece model of byte pairs" in refused(folder)


def test_a_folder_without_a_tokenizer_says_which_files_there_could_be(tmp_path: Path) -> None:
    folder = foreign_models.gpt2(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer: neither tokenizer.json, nor vocab.json, merges.txt (GPT-2)" in refused(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert "the tokenizer's files are damaged" in refused(folder)


# B81
@torch.inference_mode()
def test_features_of_a_sentence_pair_do_not_change_when_the_batch_is_padded_whatever_the_padding(tmp_path: Path) -> None:
    model = load_huggingface(foreign_models.bert(tmp_path / "model", pad=5)).masked_language_model
    short, long = (
        torch.tensor([[0, 9, 2, 0]]),
        torch.randint(6, 40, (1, 11), generator=torch.Generator().manual_seed(1)),
    )  # 0 is a real token
    types = torch.tensor([[0, 0, 1, 1]])
    ids = torch.cat((torch.cat((short, torch.full((1, 7), 5)), 1), long))
    mask = torch.tensor([[True] * 4 + [False] * 7, [True] * 11])
    segments = torch.cat((torch.cat((types, torch.zeros(1, 7, dtype=torch.long)), 1), torch.zeros(1, 11, dtype=torch.long)))
    together = model.encode(ids, mask, segments)
    for row, alone in enumerate((model.encode(short, None, types), model.encode(long))):
        torch.testing.assert_close(together[row, : alone.size(1)], alone[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(model.pool(together)[row], model.pool(alone)[0], atol=1e-5, rtol=0)
    assert not torch.allclose(model.encode(short, None, types), model.encode(short))


# B05
@torch.inference_mode()
def test_ten_more_tokens_with_and_without_a_cache(tmp_path: Path) -> None:
    model = load_huggingface(foreign_models.gpt2(tmp_path / "model")).language_model
    ids = torch.randint(1, 270, (1, 5), generator=torch.Generator().manual_seed(2))
    hidden, cache = model.step(ids, model.start())
    for _ in range(10):
        cached = model.project(hidden[:, -1])
        torch.testing.assert_close(cached, model(ids)[:, -1], atol=1e-4, rtol=0)
        ids = torch.cat((ids, cached.argmax(-1)[:, None]), 1)
        hidden, cache = model.step(ids[:, -1:], cache)
    assert len(set(ids[0, 5:].tolist())) > 1


# B07
def test_each_hypothesis_of_a_beam_keeps_its_own_memory(tmp_path: Path) -> None:
    translator = Translator(load_huggingface(foreign_models.marian(tmp_path / "model")))
    for source in ("A man", "Two dogs play", "snow", "don't"):
        (found,) = translator.translate([source], beam=4, n_best=4, alpha=0.0, max_length=8)
        for each in (found, *found.alternatives):
            tokenizer = translator.bundle.target_tokenizer
            ids = [next(token for token in range(len(tokenizer)) if tokenizer.token(token) == shown) for shown in each.tokens]
            source_ids = torch.tensor([translator.bundle.source_tokenizer.as_source(translator.bundle.source_tokenizer.encode(source))])
            target = torch.tensor([[tokenizer.bos, *ids[:-1]]])
            with torch.inference_mode():
                logs = translator.bundle.model(source_ids, target).log_softmax(-1)[0]
            assert sum(float(logs[place, token]) for place, token in enumerate(ids)) == pytest.approx(each.log_probability, abs=1e-3)


def test_a_hub_name_without_the_net_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="no huggingface-hub: pip install 'dragoman[huggingface]'")
    monkeypatch.chdir(tmp_path)
    import huggingface_hub

    def offline(*_: object, **__: object) -> str:
        raise OSError("no net\nand more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        DragomanError, match=r"^someone/model: no such folder, and the Hugging Face hub gives no model of that name \(OSError: no net\)"
    ):
        find_folder("someone/model")
    assert find_folder("no/such/folder") == Path("no/such/folder")
