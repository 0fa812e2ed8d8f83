"""ONNX graphs in onnxruntime against the model they were made of: logits of every step, greedy outputs, odd sizes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.bundle import Bundle, load_config, load_tokenizers
from dragoman.cli import main
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from dragoman.model import build_model
from small_bundles import WORDS, fx_rand, fx_toy, make_bundle, random_sentences

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
onnx = pytest.importorskip("dragoman.interop.onnx")
MODELS: dict[str, dict[str, Any]] = {
    "paper": {"tie": "all", "output_bias": True},
    "departures": {"activation": "swiglu", "norm": "rms", "norm_place": "pre", "positions": "rotary", "qk_norm": True, "kv_heads": 1},
    "deep": {"norm_place": "deepnorm", "activation": "gelu-tanh", "positions": "learned", "d_k": 8, "d_v": 12, "attention_bias": False},
    "gpt": {"architecture": "decoder-only", "positions": "learned", "norm_place": "pre", "activation": "gelu", "scale_embedding": False},
}


def random_bundle(name: str) -> Bundle:
    tokenizer = Tokenizer.train([" ".join(WORDS[:12])], kind="whitespace", vocabulary_size=16)
    if "architecture" not in MODELS[name]:
        bundle = make_bundle(tokenizer, tokenizer, max_positions=40, decoder_layers=1, encoder_layers=1, **MODELS[name])
    else:
        sizes = {"d_model": 32, "d_ff": 48, "n_heads": 2, "decoder_layers": 2, "max_positions": 40, "source_vocabulary": 16}
        config = Config().with_values(model=sizes | MODELS[name] | {"target_vocabulary": 16})
        bundle = Bundle(config, build_model(config.model, seed=1), tokenizer, tokenizer)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    bundle.model.eval()
    return bundle


@pytest.mark.parametrize("name", MODELS)
def test_graphs_compute_what_the_model_computes(name: str, tmp_path: Path) -> None:
    bundle = random_bundle(name)
    verified, _ = onnx.export_model(bundle, tmp_path / "out")
    assert verified.difference < 1e-5
    assert verified.greedy_agree == verified.samples == 16
    assert load_config(tmp_path / "out" / "dragoman") == bundle.config
    assert load_tokenizers(tmp_path / "out" / "dragoman")[1].fingerprint == bundle.target_tokenizer.fingerprint


def test_greedy_translations_are_the_same_alone_and_together(tmp_path: Path) -> None:
    bundle = fx_toy()
    onnx.export_model(bundle, tmp_path / "out")
    model = onnx.OnnxModel(tmp_path / "out")
    texts = random_sentences(20, words=24)
    sources = [bundle.source_tokenizer.as_source(ids) for ids in bundle.source_tokenizer.encode_batch(texts)]
    wanted = [each.parts[0].target for each in Translator(bundle).translate(texts, beam=1, max_length=20)]
    together = onnx.greedy(model, sources, most=19)
    for found in (together, [onnx.greedy(model, [source], most=19)[0] for source in sources]):
        assert [ids[:19] for ids in found] == [[*ids[:19]] for ids in wanted]  # the 20th is an end that Dragoman forces


def test_a_row_of_a_batch_is_what_it_is_alone(tmp_path: Path) -> None:
    bundle = random_bundle("paper")
    onnx.export_model(bundle, tmp_path / "out")
    model = onnx.OnnxModel(tmp_path / "out")
    rows = np.array([[5, 6, 7, 2, 0, 0, 0], [4, 5, 6, 7, 8, 9, 2]])
    both, _ = model.step(np.array([1, 1]), model.start(rows, rows != 0))
    alone, _ = model.step(np.array([1]), model.start(rows[:1, :4], np.ones((1, 4), bool)))
    np.testing.assert_allclose(both[:1], alone, atol=1e-5)


def test_a_graph_that_computes_something_else_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = random_bundle("paper")
    usual = onnx._write

    def wrong(graph: Any, path: Path, bundle: Bundle) -> None:
        usual(graph, path, random_bundle("paper"))
        with torch.no_grad():
            bundle.model.output.weight[5] += 0.01

    monkeypatch.setattr(onnx, "_write", wrong)
    with pytest.raises(DragomanError, match="the result is not the same model"):
        onnx.export_model(bundle, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dragoman.bundle import save_bundle

    save_bundle(fx_rand(encoder_layers=1, decoder_layers=1), tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "onnx", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["verification"]["against"].startswith("onnxruntime ")
    assert facts["verification"]["agrees"] is True
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "encoder.onnx",
        "decoder.onnx",
        "ids.json",
        "tokenizer.json",
        "dragoman",
    }
    assert json.loads((tmp_path / "out" / "ids.json").read_text("utf-8"))["start"] == 1
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "other"), "--to", "onnx", "--quantization", "int8"]) == 2
    assert "--quantization is for --to ctranslate2" in capsys.readouterr().err
