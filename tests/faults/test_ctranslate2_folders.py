"""Damaged, foreign and newer CTranslate2 folders: every fault is named, all of them at once, and nothing is left behind."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.cli import main
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, UsageError
from dragoman.interop.ctranslate2 import export_model, read_model, write_folder
from dragoman.interop.model_bin import ModelBin, read_model_bin, write_model_bin
from small_bundles import WORDS, make_bundle


def folder_of(path: Path, **model: Any) -> Path:
    """A folder as another program leaves it: without our own settings in it."""
    tokenizer = Tokenizer.train([" ".join(WORDS[:12])], kind="whitespace", vocabulary_size=16)
    path.mkdir()
    write_folder(make_bundle(tokenizer, tokenizer, **{"tie": "none"} | model), path)
    for file in (path / "dragoman").iterdir():
        file.unlink()
    (path / "dragoman").rmdir()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "model")


def change(folder: Path, *, kind: str = "TransformerSpec", revision: int = 7, without: str = "", **new: Tensor) -> None:
    """Rewrites model.bin with other variables; __ in a name stands for /."""
    stored = read_model_bin(folder / "model.bin")
    variables: Mapping[str, Tensor] = {name: value for name, value in stored.variables.items() if not without or without not in name}
    variables = {**variables, **{name.replace("__", "/"): value for name, value in new.items()}}
    write_model_bin(folder / "model.bin", ModelBin(kind, revision, variables, stored.aliases))


def fault(folder: Path) -> str:
    with pytest.raises(DragomanError) as caught:
        read_model(folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_the_folder_itself_is_sound(folder: Path) -> None:
    assert read_model(folder)[0].kind == "CTranslate2 (TransformerSpec)"


def test_a_file_cut_off_anywhere_is_named_with_the_place(folder: Path) -> None:
    whole = (folder / "model.bin").read_bytes()
    for end in (0, 3, 5, 20, 27, 40, len(whole) // 2, len(whole) - 300, len(whole) - 1):
        (folder / "model.bin").write_bytes(whole[:end])
        assert f"model.bin: the file ends at byte {end} inside " in fault(folder)
    (folder / "model.bin").write_bytes(whole + b"more")
    assert "4 bytes follow the end of the model" in fault(folder)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (0, 7, "written by a newer CTranslate2 (version 7 of the file)"),
        (22, 8, "revision 8 of TransformerSpec is newer than the 7 that this Dragoman reads"),
    ],
)
def test_what_is_newer_is_refused(at: int, value: int, said: str, folder: Path) -> None:
    content = bytearray((folder / "model.bin").read_bytes())
    content[at : at + 4] = struct.pack("<I", value)
    (folder / "model.bin").write_bytes(bytes(content))
    assert said in fault(folder)


@pytest.mark.parametrize("kind", ["WhisperSpec", "TransformerEncoderSpec", "Wav2Vec2Spec"])
def test_another_kind_of_model_is_named_with_what_is_supported(kind: str, folder: Path) -> None:
    change(folder, kind=kind)
    said = fault(folder)
    assert f"a model of the kind {kind}" in said
    assert "Dragoman reads CTranslate2's encoder-decoder and decoder-only Transformers: TransformerSpec" in said


def test_missing_extra_and_misshapen_weights_are_all_said_at_once(folder: Path) -> None:
    change(
        folder, without="encoder/layer_1/ffn/linear_1/weight", encoder__layer_0__ffn__linear_1__bias=torch.zeros(7),
        decoder__project_in__weight=torch.zeros(2, 2),
    )  # fmt: skip
    said = fault(folder)
    assert "weight encoder/layer_1/ffn/linear_1/weight is missing" in said
    assert "weight encoder/layer_0/ffn/linear_1/bias has shape (7,), not (32,)" in said
    assert "weight decoder/project_in/weight is not part of this model" in said


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("decoder/alibi", torch.tensor(1, dtype=torch.int8), "attention with linear biases (ALiBi)"),
        ("encoder/activation", torch.tensor(5, dtype=torch.int8), "activation is 5 in the encoder and 0 in the decoder"),
        ("encoder/num_heads", torch.tensor(4, dtype=torch.int16), "num_heads is 4 in the encoder and 2 in the decoder"),
        ("encoder/pre_norm", torch.tensor(1, dtype=torch.int8), "pre_norm is 1 in the encoder and 0 in the decoder"),
        ("encoder/scale_embeddings", torch.tensor(3.5), "embeddings are multiplied by 3.5, 5.65685, not √d_model or 1"),
        ("decoder/scale_outputs", torch.tensor(0.5), "decoder/scale_outputs=0.5 is no setting of a model here"),
        ("decoder/sliding_window", torch.tensor(4, dtype=torch.int32), "decoder/sliding_window=4 is no setting of a model here"),
        ("encoder/layer_0/self_attention/queries_scale", torch.tensor(0.1), "self_attention/queries_scale=0.1 is no setting"),
        ("encoder/layernorm_embedding/gamma", torch.ones(32), "weight encoder/layernorm_embedding/gamma is not part of this model"),
        ("encoder/embeddings_1/weight", torch.ones(3, 32), "several embeddings of the source (features)"),
        ("encoder/layer_norm/gamma", torch.ones(32), "weight encoder/layer_norm/gamma is not part of this model"),
        ("decoder/embeddings/weight", torch.ones(5), "weight decoder/embeddings/weight has shape (5,), which is no matrix's"),
    ],
)
def test_what_a_model_here_has_not_is_named(name: str, value: Tensor, said: str, folder: Path) -> None:
    change(folder, **{name.replace("/", "__"): value})
    assert said in fault(folder)


def test_two_unsupported_activations_are_one_fault(folder: Path) -> None:
    change(folder, **{f"{side}__activation": torch.tensor(4, dtype=torch.int8) for side in ("encoder", "decoder")})
    assert "the activation x · sigmoid(1.702 x)" in fault(folder)


def test_a_vocabulary_that_does_not_fit_is_refused(folder: Path) -> None:
    path = folder / "shared_vocabulary.json"
    entries = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(entries[:-2]), encoding="utf-8")
    said = fault(folder)
    assert "the shared vocabulary has 14 entries, the unknown token included, and decoder/embeddings/weight 16 rows" in said
    path.write_text(json.dumps([*entries[:-1], entries[4]]), encoding="utf-8")
    assert f"shared_vocabulary.json has the entry '{entries[4]}' twice, as number 5 and 16" in fault(folder)
    path.write_text('{"a": 1}', encoding="utf-8")
    assert "shared_vocabulary.json is no list of texts" in fault(folder)
    path.unlink()
    said = fault(folder)
    assert "source_vocabulary.json is missing, and so is source_vocabulary.txt" in said
    assert "target_vocabulary.json is missing" in said


def test_a_token_of_the_settings_that_is_not_in_the_vocabulary_is_named(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"eos_token": "</end>", "decoder_start_token": "<begin>"}), encoding="utf-8")
    said = fault(folder)
    assert "the end token '</end>' is not in the vocabulary" in said
    assert "the start token '<begin>' is not in the vocabulary" in said
    (folder / "config.json").write_text(json.dumps({"decoder_start_token": None}), encoding="utf-8")
    assert "it has no start token (decoder_start_token)" in fault(folder)
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert "config.json cannot be read" in fault(folder)


def test_lines_of_a_vocabulary_end_as_ctranslate2_ends_them(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    path = folder / "shared_vocabulary.json"
    entries = json.loads(path.read_text("utf-8"))
    path.unlink()
    for text in ("\n".join(entries) + "\n", "\n".join(entries), "".join(f"{entry}\r\n" for entry in entries)):
        (folder / "shared_vocabulary.txt").write_bytes(text.encode())
        assert read_model(folder)[0].bundle.target_tokenizer.backend.get_vocab() == {entry: place for place, entry in enumerate(entries)}


def test_an_exported_folder_that_was_changed_is_not_what_its_settings_say(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([" ".join(WORDS[:12])], kind="whitespace", vocabulary_size=16)
    folder = tmp_path / "model"
    folder.mkdir()
    write_folder(make_bundle(tokenizer, tokenizer), folder)
    change(folder, decoder__num_heads=torch.tensor(4, dtype=torch.int16))
    assert "decoder/num_heads is not what dragoman/config.json says" in fault(folder)


def test_the_command_line_leaves_nothing_of_what_it_refuses(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:1000])
    assert main(["import", str(folder), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith(f"dragoman: {folder}/model.bin: the file ends at byte 1000 inside ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_an_unknown_quantization_is_a_usage_error(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([" ".join(WORDS[:12])], kind="whitespace", vocabulary_size=16)
    with pytest.raises(UsageError, match="quantization=int4: unknown; give float32 or int8"):
        export_model(make_bundle(tokenizer, tokenizer), tmp_path / "out", quantization="int4")


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"encoder__num_heads": torch.ones(2)}, "encoder/num_heads is not one finite number"),
        ({"decoder__scale_embeddings": torch.ones(2)}, "decoder/scale_embeddings is not one finite number"),
        ({"encoder__num_heads": torch.tensor(float("nan"))}, "encoder/num_heads is not one finite number"),
        ({"with_source_bos": torch.ones(2)}, "with_source_bos is not one finite number"),
        ({"decoder__layer_0__self_attention__rotary_dim": torch.ones(2)}, "rotary_dim is not one finite number"),
        ({"decoder__embeddings__weight_scale": torch.ones(3)}, "decoder/embeddings/weight has 16 rows and 3 scales"),
        ({"decoder__position_encodings__encodings": torch.zeros(0, 16)}, "max_positions=0"),
    ],
)
def test_numbers_that_are_none(folder: Path, new: dict[str, Tensor], said: str) -> None:
    change(folder, **new)
    assert said in fault(folder)


@pytest.mark.parametrize("epsilon", ["x", [1], float("nan")])
def test_an_epsilon_that_is_none(folder: Path, epsilon: object) -> None:
    document = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(document | {"layer_norm_epsilon": epsilon}))
    assert "is not a number that can be used" in fault(folder)
