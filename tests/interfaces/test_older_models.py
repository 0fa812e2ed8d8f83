"""Recurrent and convolutional models through the command line: trained, resumed, averaged, scored, together with others, and refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.bundle import Bundle, average_bundles, load_bundle, save_bundle
from dragoman.cli import main
from dragoman.config import Config
from dragoman.decoding.score import score_texts
from dragoman.decoding.translate import Translator
from dragoman.errors import UsageError
from dragoman.model import build_model
from dragoman.presets import count_parameters
from dragoman.training.preflight import estimate_memory
from small_bundles import WORDS, fx_rand, random_sentences
from training_runs import checkpoints, final_weights, records, same_bits, toy_pairs, train, write_pairs

CONVOLUTIONAL = {"architecture": "convolutional", "positions": "learned", "scale_embedding": False}
KINDS: dict[str, dict[str, Any]] = {
    "lstm": {"architecture": "recurrent"}, "gru": {"architecture": "recurrent", "cell": "gru"}, "convolutional": CONVOLUTIONAL,
}  # fmt: skip
UNUSED = {"d_ff": 2048, "n_heads": 8}  # by default, for they mean nothing
PROJECT = Path(__file__).parents[2]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "valid", toy_pairs(4, seed=9))
    return write_pairs(folder / "train", toy_pairs(30))


def begin(run: Path, data: Path, kind: str, steps: int, *arguments: str | Path) -> None:
    settings = {f"model__{name}": value for name, value in (UNUSED | KINDS[kind]).items()}
    assert train(run, data, "--quiet", "--max-steps", str(steps), *arguments, training__clip_norm=1.0, **settings) == 0


def bundle_of(kind: str, *, seed: int = 1, **model: Any) -> Bundle:
    return fx_rand(seed=seed, **UNUSED, **KINDS[kind], **model)


@every_kind
def test_a_resumed_run_ends_as_one_that_was_never_interrupted(kind: str, data: Path, tmp_path: Path) -> None:
    begin(tmp_path / "whole", data, kind, 10)
    begin(tmp_path / "run", data, kind, 5)
    assert train(tmp_path / "run", None, "--quiet", "--max-steps", "10") == 0
    assert same_bits(final_weights(tmp_path / "whole"), final_weights(tmp_path / "run"))
    losses = [[record["loss"] for record in records(tmp_path / name, "train")] for name in ("whole", "run")]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


@every_kind
def test_a_saved_model_is_the_same_model_and_its_card_says_what_it_is(kind: str, tmp_path: Path) -> None:
    bundle, texts = bundle_of(kind), random_sentences(6)
    save_bundle(bundle, tmp_path / "model")
    again = load_bundle(tmp_path / "model")
    assert again.config == bundle.config
    assert same_bits(dict(bundle.model.named_parameters()), dict(again.model.named_parameters()))
    translations = [Translator(each).translate(texts) for each in (bundle, again)]
    assert translations[0] == translations[1]
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    sizes = {"lstm": "2 + 2 layers of LSTM cells", "gru": "2 + 2 layers of GRU cells", "convolutional": "2 + 2 convolutions of 3 positions"}
    assert f"encoder-decoder, {sizes[kind]}, d_model 32, {count_parameters(bundle.config.model):,} parameters" in card


@every_kind
def test_the_average_is_the_arithmetic_mean(kind: str, tmp_path: Path) -> None:
    bundles = [bundle_of(kind, seed=seed) for seed in (1, 2)]
    for number, bundle in enumerate(bundles):
        save_bundle(bundle, tmp_path / str(number))
    average_bundles([tmp_path / "0", tmp_path / "1"], tmp_path / "mean")
    weights = [dict(bundle.model.named_parameters()) for bundle in (*bundles, load_bundle(tmp_path / "mean"))]
    for name, mean in weights[2].items():
        torch.testing.assert_close(mean, (weights[0][name] + weights[1][name]) / 2, rtol=1e-6, atol=1e-7)


@every_kind
def test_translations_together_are_those_alone_and_their_scores_those_given_to_them(kind: str) -> None:
    bundle, texts = bundle_of(kind), random_sentences(8)
    together = Translator(bundle).translate(texts, beam=3)
    alone = [Translator(bundle).translate([text], beam=3)[0] for text in texts]
    assert [each.text for each in together] == [each.text for each in alone]
    scored = score_texts(bundle, texts, [each.text for each in together], alpha=bundle.config.decoding.alpha, batch_tokens=500)
    for translation, score in zip(together, scored, strict=True):
        if not translation.stop.startswith("length"):
            assert score.log_probability == pytest.approx(sum(translation.token_scores), abs=1e-3)


def test_models_of_all_kinds_work_together() -> None:
    bundles = {"transformer": fx_rand(), **{kind: bundle_of(kind) for kind in KINDS}}
    texts = random_sentences(5)
    first, *others = bundles.values()
    named = dict(zip(list(bundles)[1:], others, strict=True))
    scores = [score_texts(bundle, texts, texts, alpha=0.0, batch_tokens=500) for bundle in bundles.values()]
    mean = score_texts(first, texts, texts, alpha=0.0, batch_tokens=500, ensemble=others)
    for place in range(len(texts)):
        probabilities = np.exp([score[place].token_scores for score in scores]).mean(0)
        assert mean[place].token_scores == pytest.approx(np.log(probabilities).tolist(), abs=1e-4)
    assert len(Translator(first, ensemble=named).translate(texts)) == 5


@every_kind
def test_the_estimate_of_activations_is_what_autograd_keeps(kind: str) -> None:
    sizes = {"source_vocabulary": 100, "target_vocabulary": 100, "encoder_layers": 2, "decoder_layers": 3, "d_model": 64}
    model = Config().with_values(model=sizes | KINDS[kind]).model
    kept = [kept_by_autograd(model, batch, 25) for batch in (10, 20)]
    estimates = [estimate_memory(model, np.array([batch * 25]), np.array([25])).activations for batch in (10, 20)]
    assert estimates[1] - estimates[0] == pytest.approx(kept[1] - kept[0], rel=0.12)


def kept_by_autograd(config: Any, batch: int, length: int) -> int:
    """Bytes that the forward pass to the hidden states keeps for the backward pass, weights not counted."""
    model: Any = build_model(config, seed=1).train()
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    ids, mask = torch.randint(4, 100, (batch, length)), torch.ones(batch, length, dtype=torch.bool)
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        model.decode(ids, model.encode(ids, mask), mask)
    return sum(storage.nbytes() for place, storage in kept.items() if place not in own)


# The command line


def test_a_run_goes_on_from_a_model_and_is_inspected_evaluated_and_compared(
    data: Path, tmp_path: Path, run: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    begin(tmp_path / "one", data, "lstm", 5, "--valid", data.with_name("valid"))
    begin(tmp_path / "two", data, "convolutional", 5, "--valid", data.with_name("valid"))
    more = ("--train", data, "--out", tmp_path / "more", "--max-steps", 2, "--quiet", "--set", "training.batch_tokens=60")
    run("train", "aa-bb", "--from", tmp_path / "one", *more)
    first = load_bundle(tmp_path / "one").config.model
    assert load_bundle(tmp_path / "more").config.model == first
    assert list(checkpoints(tmp_path / "more")) == [2]
    facts = json.loads(run("inspect", tmp_path / "one", "--json"))["model"]
    assert facts["cost"]["bytes"]["weights"] == 4 * facts["parameters"]
    shown = run("inspect", tmp_path / "one")
    assert "1 + 1 layers of LSTM cells, d_model 16" in shown
    assert "FLOP a source and" in shown
    table = json.loads(run("compare", tmp_path / "one", tmp_path / "two", "--test", data.with_name("valid"), "--json"))
    assert len(table["systems"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("preset", ["recurrent", "recurrent-gru", "convolutional"])
def test_a_preset_trains(preset: str, data: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    small = ("--set", "model.d_model=16", "--set", "data.tokenizer=whitespace", "--set", "training.log_every=1")
    run("train", "aa-bb", "--train", data, "--out", tmp_path / "run", "--preset", preset, *small, "--max-steps", 2, "--quiet")
    assert len(records(tmp_path / "run", "train")) == 2
    assert all(torch.isfinite(weight).all() for weight in final_weights(tmp_path / "run").values())


def test_the_presets_tell_what_they_cost(run: Callable[..., str]) -> None:
    facts = json.loads(run("presets", "base", "--json"))["cost"]
    assert facts["flops"]["training"] == 3 * facts["flops"]["forward"]
    assert facts["bytes"] == {"weights": 4 * 65_110_016, "training": 16 * 65_110_016, "cache": 4 * 6 * 2 * 512 * 60}
    last = run("presets", "base").splitlines()[-2:]
    assert last[0].startswith("operations: 44.0 MFLOP a source and 86.0 MFLOP a target token; 30 + 30 tokens take ")
    assert last[1] == "memory: 260 MB of weights, 1.04 GB in training without activations; 1.47 MB of cache to decode 30 + 30 tokens"
    assert "operations" not in run("presets")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"architecture": "recurrent", "d_ff": 64}, "d_ff=64 means nothing to architecture='recurrent'; leave it out"),
        ({"architecture": "recurrent", "positions": "learned"}, "positions=learned means nothing to architecture='recurrent'"),
        ({"architecture": "recurrent", "kernel_width": 5}, "kernel_width=5 means nothing to architecture='recurrent'"),
        ({"architecture": "recurrent", "norm_place": "pre"}, "norm_place=pre means nothing to architecture='recurrent'"),
        ({"architecture": "recurrent", "d_model": 33}, "d_model=33 must be even for architecture='recurrent'"),
        ({**CONVOLUTIONAL, "n_heads": 2}, "n_heads=2 means nothing to architecture='convolutional'"),
        ({**CONVOLUTIONAL, "cell": "gru"}, "cell=gru means nothing to architecture='convolutional'"),
        ({"architecture": "convolutional"}, "set positions='learned' and scale_embedding=false"),
        ({"cell": "gru"}, "cell=gru means nothing to architecture='encoder-decoder'"),
        ({"kernel_width": 5}, "kernel_width=5 means nothing to architecture='encoder-decoder'"),
    ],
    ids=str,
)
def test_a_setting_that_would_do_nothing_is_refused_by_name(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError, match=r"^settings: ") as raised:
        Config().with_values(model=changes)
    assert fault in str(raised.value)
    assert Config().with_values(model={"architecture": "recurrent", "d_model": 30}).model.d_model == 30  # no multiple of 8 heads


@every_kind
def test_what_needs_a_transformer_says_so(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_bundle(bundle_of(kind), tmp_path / "model")
    (tmp_path / "text").write_text(" ".join(WORDS[:3]) + "\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    for option, fault in ((("--align", "links"), "of a Transformer's heads"), (("--precision", "int8"), "is for Transformers without")):
        assert main(["translate", "model", "text", *option]) == 2
        assert fault in capsys.readouterr().err


def test_the_page_has_the_times_that_were_measured() -> None:
    page = (PROJECT / "docs/before.md").read_text("utf-8")
    measured = json.loads((PROJECT / "benchmarks/table1.json").read_text("utf-8"))
    for n in {row["n"] for row in measured["rows"]}:
        row = [each for each in measured["rows"] if each["n"] == n]
        assert f"\n| {n} | " + " | ".join(f"{each['forward_backward_ms']:.1f}" for each in row) + " |\n" in page
    assert " | ".join(str(each["products"]) for each in row if n == 1024) in page
    assert 16 in measured["faster"]["recurrent"]
    assert 1024 not in measured["faster"]["recurrent"]
