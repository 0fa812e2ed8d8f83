"""``dragoman import`` and ``dragoman export``: found by looking, compared before anything is left, refused in one sentence."""

import ast
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import foreign_models
from command_line import tiny_bundle
from dragoman import bundle as bundles
from dragoman.bundle import load_bundle
from dragoman.cli import main
from dragoman.data.tokenizer import Tokenizer
from dragoman.interop import huggingface, transformers, verify
from dragoman.interop.llama2c import read_llama2c
from small_bundles import make_bundle
from structure.sources import sources


@pytest.fixture(autouse=True)
def _without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without the package, which takes seconds to import; tests/parity has it."""
    monkeypatch.setattr(transformers, "is_installed", lambda: False)


def failed(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 1) -> str:
    assert main([str(argument) for argument in arguments]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_folder_is_imported_verified_and_used(run: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign_models.marian(tmp_path / "marian", tags=("de", "fr"))
    out = run("import", folder, tmp_path / "model")
    assert out.startswith(
        f"{tmp_path / 'model'}: imported from marian, compared with the same import in memory, as transformers is not inst"
    )
    assert "largest difference of logits 0 (limit" in out
    assert "greedy outputs agree on 3 of 3 samples" in out
    facts = json.loads(run("inspect", tmp_path / "model", "--json"))
    assert facts["vocabulary"] == {"tokenizer": "foreign", "joint": False, "source": 67, "target": 67, "tags": ["de", "fr"]}
    assert "random" not in json.dumps(facts)
    assert "preset" not in run("inspect", tmp_path / "model")  # its sizes are no preset's
    assert "\npreset          base\n" in run("inspect", tiny_bundle(tmp_path / "own"))
    (tmp_path / "lines").write_text(">>fr<< A man\n\n>>de<< snow\n", encoding="utf-8")
    assert run("translate", tmp_path / "model", tmp_path / "lines", "--beam", "1", "--max-length", "6").count("\n") == 3
    assert (tmp_path / "model" / "README.md").read_text("utf-8").count("Imported from: marian (Hugging Face)") == 1
    assert "the line begins with no language tag" in failed(capsys, "translate", tmp_path / "model", tmp_path / "marian" / "config.json")


def test_facts_as_json(run: Callable[..., str], tmp_path: Path) -> None:
    folder = foreign_models.bert(tmp_path / "bert")
    facts = json.loads(run("import", folder, tmp_path / "model", "--json"))
    assert facts["kind"] == "bert"
    assert facts["ignored_weights"]["cls.seq_relationship.weight"] == "the head for next sentences"
    assert facts["verification"]["agrees"]
    assert facts["verification"]["difference"] == 0
    assert any("turned back by the name table, are those of the files bit for bit" in notice for notice in facts["notices"])
    facts = json.loads(run("export", tmp_path / "model", tmp_path / "out", "--to", "huggingface", "--json"))
    assert facts["to"] == "huggingface"
    assert facts["verification"]["against"].startswith("Dragoman's own reading of the folder")
    assert facts["verification"]["greedy_agree"] == facts["verification"]["samples"] == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_result_that_differs_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign_models.gpt2(tmp_path / "gpt2")

    def damaged(path: Path) -> bundles.Bundle:
        bundle = load_bundle(path)
        with torch.no_grad():
            bundle.language_model.final_norm.bias += 0.01
        return bundle

    monkeypatch.setattr(bundles, "load_bundle", damaged)
    said = failed(capsys, "import", folder, tmp_path / "model")
    assert "the written weights are not those of the files: ln_f.bias; nothing is written" in said
    monkeypatch.setattr(bundles, "load_bundle", load_bundle)
    assert main(["import", str(folder), str(tmp_path / "model")]) == 0
    capsys.readouterr()
    give = huggingface.give

    def wrong(*given: Any) -> dict[str, torch.Tensor]:
        return {name: weight * (1.01 if name == "ln_f.weight" else 1) for name, weight in give(*given).items()}

    monkeypatch.setattr(huggingface, "give", wrong)
    said = failed(capsys, "export", tmp_path / "model", tmp_path / "out", "--to", "huggingface")
    assert "the result is not the same model (compared with Dragoman's own reading of the folder" in said
    assert said.endswith("nothing is written\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpt2", "model"]


def test_not_a_number_is_a_difference() -> None:
    found = verify.Verification("x", float("inf"), float("nan"), 3, 3)
    assert not found.agrees


def test_weights_that_are_no_numbers_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign_models.gpt2(tmp_path / "gpt2")
    weights = load_file(folder / "model.safetensors")
    weights["transformer.ln_f.weight"][3] = float("inf")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = failed(capsys, "import", folder, tmp_path / "model")
    assert said == "dragoman: the model computes logits that are no finite numbers, so its weights are damaged; use another copy of it\n"
    assert [path.name for path in tmp_path.iterdir()] == ["gpt2"]


def test_a_bert_that_loses_its_words_in_the_export_is_told(tmp_path: Path) -> None:
    """BERT has no head for masked words without a layer before the output matrix."""
    encoder = {"positions": "learned", "scale_embedding": False, "embedding_norm": True, "output_bias": True, "activation": "gelu"}
    shape = {"architecture": "encoder-only", "decoder_layers": 6, "tie": "all"}
    tokenizer = Tokenizer.train(["a b c d"], kind="whitespace", vocabulary_size=0, mask=True)
    lost = "the folder is for embeddings alone"
    for transform in (False, True):
        bundle = make_bundle(tokenizer, tokenizer, **shape, **encoder, output_transform=transform)
        _, notices = huggingface.export_model(bundle, tmp_path / f"out{transform}")
        assert any(lost in notice for notice in notices) is not transform


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2", "onnx"])
def test_a_disk_that_refuses_a_model_in_another_format_is_one_line(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_bundle(tmp_path / "model", kind="bpe")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        said = failed(capsys, "export", model, tmp_path / "out", "--to", form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "out: cannot write: File too large; make room there" in said
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_llama2c_and_its_other_tokenizer(
    run: Callable[..., str], data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = data_folder / "weights" / "stories260K.bin"
    alone = tmp_path / "alone.bin"
    alone.write_bytes(source.read_bytes())
    assert "neither tok512.bin nor tokenizer.bin is beside it; give the tokenizer's file with --tokenizer FILE" in failed(
        capsys, "import", alone, tmp_path / "model"
    )
    facts = json.loads(run("import", alone, tmp_path / "model", "--tokenizer", data_folder / "weights" / "tok512.bin", "--json"))
    assert facts["ignored_weights"].keys() == {"freq_cis_real", "freq_cis_imag"}
    ids = torch.tensor([[1, 403, 407, 261, 378]])
    assert torch.equal(load_bundle(tmp_path / "model").model(ids), read_llama2c(source).bundle.model(ids))
    run("export", tmp_path / "model", tmp_path / "llama", "--to", "huggingface")
    again = huggingface.load_huggingface(tmp_path / "llama")
    torch.testing.assert_close(again.model(ids), load_bundle(tmp_path / "model").model(ids), atol=1e-5, rtol=0)
    assert again.source_tokenizer.opening == (1,)
    alone.write_bytes(source.read_bytes()[:-4])
    assert "not a whole file of weights" in failed(capsys, "import", alone, tmp_path / "cut")


TORCH_SETTINGS = """\
n_heads = 2
{more}
[names]
transformer = "core"
source_embedding = "source.weight"
target_embedding = "target.weight"
output = "{output}"
[source]
vocabulary = ["<pad>", "<bos>", "<eos>", "<unk>", "a", "b", "c"]
pieces = "words"
[target]
vocabulary = ["<pad>", "<bos>", "<eos>", "<unk>", "A", "B"]
pieces = "characters"
"""


def torch_model(folder: Path, *, output: str = "out.weight", more: str = "", **kind: Any) -> tuple[Path, Path]:
    """A state dict of torch.nn.Transformer with embeddings around it, and the settings that go with it."""
    torch.manual_seed(1)
    core = torch.nn.Transformer(16, 2, 2, 1, 24, batch_first=True, **kind)
    weights = {f"core.{name}": weight + 0.1 * torch.randn_like(weight) for name, weight in core.state_dict().items()}
    weights |= {"source.weight": torch.randn(7, 16), "target.weight": torch.randn(6, 16)}
    weights |= {"out.weight": torch.randn(6, 16)} if output == "out.weight" else {}
    save_file(weights, folder / "state.safetensors")
    (folder / "settings.toml").write_text(TORCH_SETTINGS.format(output=output, more=more), encoding="utf-8")
    return folder / "state.safetensors", folder / "settings.toml"


@pytest.mark.parametrize(
    ("kind", "more", "output"),
    [
        ({}, "", "out.weight"),
        ({"norm_first": True, "activation": "gelu"}, 'norm_first = true\nactivation = "gelu"', "target.weight"),
        (
            {"bias": False, "layer_norm_eps": 1e-6},
            'layer_norm_eps = 1e-6\npositions = "sinusoidal-concat"\nscale_embedding = false',
            "out.weight",
        ),
    ],
)
def test_a_state_dict_of_torch_nn_transformer(
    kind: dict[str, Any], more: str, output: str, run: Callable[..., str], tmp_path: Path
) -> None:
    state, settings = torch_model(tmp_path, output=output, more=more, **kind)
    facts = json.loads(run("import", state, tmp_path / "model", "--config", settings, "--json"))
    assert facts["verification"]["agrees"]
    assert facts["verification"]["difference"] < 1e-5
    (tmp_path / "lines").write_text("a b\nc\n")
    assert run("translate", tmp_path / "model", tmp_path / "lines", "--max-length", "5").count("\n") == 2
    assert load_bundle(tmp_path / "model").config.model.tie == ("none" if output == "out.weight" else "decoder")


def test_what_a_state_dict_needs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, settings = torch_model(tmp_path)
    out = tmp_path / "model"
    assert "does not say all of its model; give --config FILE" in failed(capsys, "import", state, out, status=2)
    settings.write_text(TORCH_SETTINGS.format(output="head.weight", more="n_head = 2"))
    said = failed(capsys, "import", state, out, "--config", settings, status=2)
    assert "n_head: extra inputs are not permitted" in said
    settings.write_text(TORCH_SETTINGS.format(output="head.weight", more="").replace('"c"]', '"c", "d"]'))
    assert "source.vocabulary has 8 entries but the embedding has 7 rows" in failed(capsys, "import", state, out, "--config", settings)
    settings.write_text(TORCH_SETTINGS.format(output="head.weight", more=""))
    said = failed(capsys, "import", state, out, "--config", settings)
    assert "weight head.weight is missing; weight out.weight is not part of this model" in said
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    assert "neither a file of llama2.c nor a state dict" in failed(capsys, "import", tmp_path / "other.safetensors", out)


def test_refusals_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, folder = tiny_bundle(tmp_path / "own"), foreign_models.gpt2(tmp_path / "gpt2")
    assert "already a bundle of Dragoman" in failed(capsys, "import", own, tmp_path / "model")
    assert "already exists" in failed(capsys, "import", folder, own, status=2)
    assert "already exists" in failed(capsys, "export", own, folder, "--to", "huggingface", status=2)
    said = failed(capsys, "import", folder, tmp_path / "model", "--config", folder / "config.json", status=2)
    assert "--config is for single files; a folder says it itself, so leave it out" in said
    assert "no such file or folder" in failed(capsys, "import", tmp_path / "nothing" / "here", tmp_path / "model")
    assert "dragoman: Invalid value for '--to': 'tensorflow' is not one of 'huggingface', 'ctranslate2', 'onnx' (see `" in failed(
        capsys, "export", own, tmp_path / "model", "--to", "tensorflow", status=2
    )


def test_settings_that_do_not_fit_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = load_bundle(tiny_bundle(tmp_path / "own"))
    changes = {"activation": "swiglu", "norm": "rms", "kv_heads": 1, "qk_norm": True}
    config = own.config.with_values(model=changes)
    model = bundles.build_model(config.model, seed=1)
    bundles.save_bundle(bundles.Bundle(config, model, own.source_tokenizer, own.source_tokenizer), tmp_path / "other")
    said = failed(capsys, "export", tmp_path / "other", tmp_path / "out", "--to", "huggingface")
    for part in ("model.kv_heads=1 (it has 2)", "model.activation=swiglu (it has relu or gelu", "model.norm=rms", "model.qk_norm=True"):
        assert part in said


def test_two_vocabularies_of_our_own_have_no_place_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dragoman.data.tokenizer import Tokenizer

    own = load_bundle(tiny_bundle(tmp_path / "own"))
    other = Tokenizer.train(["ona bek tilu"], kind="whitespace", vocabulary_size=0)
    config = own.config.with_values(model={"tie": "decoder", "target_vocabulary": len(other)})
    model = bundles.build_model(config.model, seed=1)
    bundles.save_bundle(bundles.Bundle(config, model, own.source_tokenizer, other), tmp_path / "other")
    assert "has a vocabulary for each side" in failed(capsys, "export", tmp_path / "other", tmp_path / "out", "--to", "huggingface")
    assert not (tmp_path / "out").exists()


def test_nothing_here_imports_transformers_until_it_compares() -> None:
    optional = {"transformers", "huggingface_hub", "sentencepiece"}
    eager = [
        source.place(node)
        for source in sources()
        for node in source.tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if name.partition(".")[0] in optional
    ]
    assert eager == []
