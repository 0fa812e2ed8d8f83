"""CTranslate2's folders against the ctranslate2 package: what it computes from ours and from its own is what Dragoman computes."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.alignment import attention
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from dragoman.interop.ctranslate2 import export_model, read_model, weights_of
from dragoman.interop.model_bin import quantize, read_model_bin
from dragoman.model import build_model
from small_bundles import WORDS, make_bundle

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
GATED = {"activation": "swiglu", "norm": "rms", "norm_place": "pre"}
GPT = {"architecture": "decoder-only", "positions": "learned", "norm_place": "pre", "activation": "gelu-tanh", "scale_embedding": False}
LLAMA = {
    "architecture": "decoder-only",
    "positions": "rotary",
    "rotary_base": 500.0,
    "kv_heads": 1,
    "tie": "none",
    "qk_norm": True,
    **GATED,
}
MODELS: dict[str, dict[str, Any]] = {
    "paper": {"tie": "all"},
    "pre-norm": {"norm_place": "pre", "activation": "gelu", "tie": "none"},
    "gelu-tanh": {"activation": "gelu-tanh", "output_bias": True, "norm_epsilon": 1e-3},
    "marian": {"activation": "swish", "positions": "sinusoidal-concat", "output_bias": True, "tie": "all"},
    "gated": GATED,
    "final norms": {"final_norm": True},
    "learned": {"positions": "learned", "scale_embedding": False},
    "rotary": {"positions": "rotary", "d_k": 8, "d_v": 8, "norm_place": "pre"},
    "no biases": {"attention_bias": False, "feed_forward_bias": False, "norm_bias": False, "decoder_layers": 1, "d_ff": 17},
    "gpt": GPT,
    "llama": LLAMA,
}
LISTED = {"initialization", "dropout", "norm_bias"}
"""What the weights and numbers of a folder cannot tell: how they began, and whether biases of zero are biases."""


def words() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS[:12])], kind="whitespace", vocabulary_size=16)


def noisy(bundle: Bundle) -> Bundle:
    """With random biases and norms too, so that none of them can be forgotten unseen."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    bundle.model.eval()
    return bundle


def random_bundle(name: str) -> Bundle:
    tokenizer, changes = words(), MODELS[name]
    if "architecture" not in changes:
        return noisy(make_bundle(tokenizer, tokenizer, max_positions=40, **changes))
    sizes = {
        "d_model": 32,
        "d_ff": 48,
        "n_heads": 2,
        "decoder_layers": 2,
        "max_positions": 40,
        "source_vocabulary": 16,
        "target_vocabulary": 16,
    }
    config = Config().with_values(model=sizes | changes)
    return noisy(Bundle(config, build_model(config.model, seed=1), tokenizer, tokenizer))


def parameters(bundle: Bundle) -> dict[str, Tensor]:
    return dict(bundle.model.named_parameters())


def same_weights(one: Bundle, other: Bundle) -> bool:
    first, second = parameters(one), parameters(other)
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_goes_there_and_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    bundle = random_bundle(name)
    verified, notices = export_model(bundle, tmp_path / "out")  # compares with the package, and refuses what differs
    assert verified.against == f"CTranslate2 {ctranslate2.__version__}"
    assert verified.difference < 1e-5
    assert verified.greedy_agree == verified.samples == 16
    assert notices == []
    imported, verify = read_model(tmp_path / "out")
    assert imported.bundle.config == bundle.config
    assert same_weights(imported.bundle, bundle)
    assert imported.bundle.target_tokenizer.fingerprint == bundle.target_tokenizer.fingerprint
    # Without our own settings in it the folder is one like any other.
    shutil.rmtree(tmp_path / "out" / "dragoman")
    imported, verify = read_model(tmp_path / "out")
    found, wanted = imported.bundle.config.model.model_dump(), bundle.config.model.model_dump()
    differing = {key for key, value in found.items() if value != wanted[key]}
    assert differing <= LISTED | ({"max_positions"} if name in ("rotary", "llama") else set())  # rotations have no table
    if "norm_bias" not in differing:
        assert same_weights(imported.bundle, bundle)
    assert verify(imported.bundle).agrees
    assert imported.ignored.keys() == {"decoder/alignment_layer", "decoder/alignment_heads"}


@pytest.mark.parametrize(("head", "wanted"), [(1, "the head"), (2, "the layer")])
def test_it_aligns_by_the_head_that_learnt_to(head: int, wanted: str, tmp_path: Path) -> None:
    """Where it is the first one, for CTranslate2 knows how many heads and not which; else by all heads of the last layer but one."""
    tokenizer = words()
    bundle = noisy(make_bundle(tokenizer, tokenizer, decoder_layers=3, alignment_layer=3, alignment_head=head))
    export_model(bundle, tmp_path / "out")
    theirs = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")
    texts = ["ona bek tilu rem", "sova kip dal"]
    translations = Translator(bundle).translate(texts, beam=1, max_length=9)
    found = theirs.translate_batch(
        [text.split() for text in texts], beam_size=1, min_decoding_length=0, max_decoding_length=8, return_attention=True
    )
    for result, translation, weights in zip(found, translations, attention(bundle, translations), strict=True):
        assert result.hypotheses[0] == translation.text.split()
        looked_at = weights[2, 0] if wanted == "the head" else weights[1].mean(0)
        rows = np.array(result.attention[0])
        np.testing.assert_allclose(rows, looked_at[: len(rows), : rows.shape[1]], atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm_place": "deepnorm"}, "norm_place='deepnorm'"),
        ({"kv_heads": 1}, "kv_heads=1 in a model that also attends to a source"),
        ({"d_k": 8, "d_v": 12}, "d_v=12, another width than d_k=8"),
        ({"qk_norm": True}, "qk_norm=True"),
    ],
)
def test_settings_that_it_has_nothing_for_are_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    tokenizer = words()
    with pytest.raises(DragomanError, match=r"^CTranslate2 has nothing for ") as caught:
        export_model(make_bundle(tokenizer, tokenizer, **changes), tmp_path / "out")
    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_eight_bits_are_those_of_its_own_converter(tmp_path: Path) -> None:
    from ctranslate2.specs import common_spec

    bundle = random_bundle("paper")
    verified, notices = export_model(bundle, tmp_path / "out", quantization="int8")
    assert verified.agrees
    assert "in 8 bits CTranslate2's logits differ from the model's by at most" in notices[0]
    stored = read_model_bin(tmp_path / "out" / "model.bin")
    assert stored.types == ["int8"]
    for name, weight in weights_of(bundle).items():
        if weight.dim() == 2:
            spec = common_spec.LinearSpec()
            spec.weight = weight.numpy().copy()
            spec.validate()
            spec.optimize("int8")
            assert np.array_equal(stored.variables[name].numpy(), spec.weight.numpy())
            torch.testing.assert_close(stored.variables[f"{name}_scale"], torch.from_numpy(spec.weight_scale.numpy()), rtol=1e-6, atol=0)
            torch.testing.assert_close(stored.numbers()[name], weight, atol=float(weight.abs().max()) / 254 + 1e-6, rtol=0)
    assert quantize({"a/weight": torch.zeros(2, 3)})["a/weight_scale"].tolist() == [1.0, 1.0]


# What it writes itself


def own_folder(
    folder: Path, *, kind: str = "float32", zero_start: bool = False, config: dict[str, Any] | None = None, **shape: Any
) -> Path:
    """A folder as its own converters leave it, with random weights, of 2 + 1 layers; source words and target words differ."""
    from ctranslate2.specs import common_spec, transformer_spec

    shape["activation"] = common_spec.Activation[shape.pop("activation", "RELU")]
    spec = transformer_spec.TransformerSpec.from_config((2, 1), 4, **shape)
    generator = np.random.default_rng(3)
    entries = {"source": ["<s>", "</s>", "<unk>", *WORDS[:9]], "target": ["<unk>", "<s>", "</s>", *(word.upper() for word in WORDS[:11])]}

    def numbers(*size: int, mean: float = 0.0) -> Any:
        return (mean + 0.4 * generator.standard_normal(size)).astype(np.float32)

    def fill(layer: Any, name: str, value: Any) -> None:
        if isinstance(layer, common_spec.LayerNormSpec):
            layer.gamma = numbers(16, mean=1.0)
            if hasattr(layer, "beta"):
                layer.beta = numbers(16)

    spec._visit(fill)
    for side, network in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        network.position_encodings.encodings = numbers(30, 16)
        for layer in network.layer:
            layer.self_attention.linear[0].weight, layer.self_attention.linear[0].bias = numbers(48, 16), numbers(48)
            layer.self_attention.linear[1].weight, layer.self_attention.linear[1].bias = numbers(16, 16), numbers(16)
            if side == "decoder":
                for place, rows in enumerate((16, 32, 16)):
                    layer.attention.linear[place].weight, layer.attention.linear[place].bias = numbers(rows, 16), numbers(rows)
            for name, rows, columns in (("linear_0", 24, 16), ("linear_1", 16, 24), ("linear_0_noact", 24, 16)):
                if hasattr(layer.ffn, name):
                    linear = getattr(layer.ffn, name)
                    linear.weight, linear.bias = numbers(rows, columns), numbers(rows)
    spec.encoder.embeddings[0].weight, spec.decoder.embeddings.weight = numbers(12, 16), numbers(14, 16)
    spec.decoder.projection.weight = numbers(14, 16)
    spec.decoder.start_from_zero_embedding = zero_start
    spec.register_source_vocabulary(entries["source"])
    spec.register_target_vocabulary(entries["target"])
    for name, value in (config or {}).items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(kind)
    folder.mkdir()
    spec.save(str(folder))
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {"pre_norm": True},
        {"pre_norm": False, "activation": "SWISH", "zero_start": True},
        {"pre_norm": False, "activation": "GELU", "config": {"add_source_eos": True, "layer_norm_epsilon": 1e-6}},
        {"pre_norm": True, "activation": "GELUTanh", "config": {"add_source_bos": True, "add_source_eos": True}},
        {"pre_norm": True, "activation": "SWISH", "ffn_glu": True, "rms_norm": True},
        {"pre_norm": True, "kind": "float16"},
        {"pre_norm": True, "kind": "bfloat16"},
        {"pre_norm": True, "kind": "int16", "config": {"decoder_start_token": "</s>"}},
        {"pre_norm": True, "kind": "int8"},
    ],
    ids=lambda options: " ".join(f"{key}={value}" for key, value in options.items()),
)
def test_what_its_own_converters_write_is_read(options: dict[str, Any], tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "own", **options)
    imported, verify = read_model(folder)
    found = verify(imported.bundle)
    assert found.agrees
    assert found.samples == found.greedy_agree == 16
    theirs = ctranslate2.Translator(str(folder), compute_type="float32")
    choose = random.Random(1)
    sources = [choose.choices(WORDS[:9], k=choose.randint(1, 8)) for _ in range(12)]
    never = [["<s>"]] if options.get("zero_start") is None and "decoder_start_token" not in options.get("config", {}) else None
    # As here: nothing goes into a loop, and no output begins a target within it.
    wanted = theirs.translate_batch(sources, beam_size=1, min_decoding_length=0, max_decoding_length=9, suppress_sequences=never)
    translations = Translator(imported.bundle).translate([" ".join(source) for source in sources], beam=1, max_length=10)
    assert [translation.text.split(" ") if translation.text else [] for translation in translations] == [
        each.hypotheses[0] for each in wanted
    ]


# Real weights

NAMES = 200


@pytest.mark.parametrize("name", ["aren-transliteration", "aren-transliteration-i16", "aren-transliteration-i8"])
def test_a_trained_model_says_the_same_of_names_made_up_here(name: str, data_folder: Path) -> None:
    folder = data_folder / "weights" / "ct2-aren-transliteration" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    imported, verify = read_model(folder)
    assert verify(imported.bundle).agrees
    letters = [entry for entry in imported.bundle.source_tokenizer.backend.get_vocab() if "ا" <= entry <= "ي"]
    choose = random.Random(7)
    sources = ["آتزمون", "آتشيسون", *("".join(choose.choices(letters, k=choose.randint(2, 9))) for _ in range(NAMES - 2))]
    theirs = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    wanted = theirs.translate_batch(
        [[*source] for source in sources], beam_size=1, min_decoding_length=0, max_decoding_length=59, return_scores=True
    )
    found = Translator(imported.bundle).translate(sources, beam=1, max_length=60)
    assert [translation.text for translation in found] == ["".join(each.hypotheses[0]) for each in wanted]
    assert found[0].text == "atzmon"
    total = [each.scores[0] * (len(each.hypotheses[0]) + 1) for each in wanted]
    assert [translation.log_probability for translation in found] == pytest.approx(total, abs=1e-3)
