"""Reported fault B29: an average that adds a shared matrix once per name, or takes it apart."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.bundle import Bundle, average_bundles, load_bundle, save_bundle
from dragoman.cli import main
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from dragoman.model.build import build_model
from dragoman.presets import count_parameters
from training_runs import WORDS, checkpoints, same_bits, toy_pairs, train, write_pairs

SIZES = {"d_model": 8, "d_ff": 8, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}


def filled(folder: Path, *, embedding: float, others: float, seed: int | None = None, words: int = 10, **model: object) -> Path:
    """A bundle with every embedding weight and every other weight set to these values, or drawn with a seed."""
    tokenizer = Tokenizer.train([" ".join(WORDS[:words])], kind="whitespace", vocabulary_size=50)
    sizes = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer)}
    config = Config().with_values(model=SIZES | sizes | model)
    bundle = Bundle(config, build_model(config.model, seed=seed), tokenizer, tokenizer, {"step": int(embedding)})
    with torch.no_grad():
        for name, weight in bundle.model.named_parameters() if seed is None else ():
            weight.fill_(embedding if "embedding" in name else others)
    save_bundle(bundle, folder)
    return folder


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    values = [(1, 3), (2, 3), (6, 9)]
    return [filled(tmp_path / f"in{n}", embedding=embedding, others=others) for n, (embedding, others) in enumerate(values)]


def weights_of(folder: Path) -> Mapping[str, Tensor]:
    return load_file(folder / "model.safetensors")


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_the_average_is_the_arithmetic_mean_and_shared_weights_stay_shared(three: list[Path], tmp_path: Path) -> None:
    before = [contents(folder) for folder in three]
    average_bundles(three, tmp_path / "out")
    assert [contents(folder) for folder in three] == before
    bundle = load_bundle(tmp_path / "out")
    model = bundle.model
    for name, weight in model.named_parameters():
        assert weight.unique().tolist() == [3.0 if "embedding" in name else 5.0], name
    assert model.output.weight is model.encoder.embedding.weight is model.decoder.embedding.weight
    with torch.no_grad():
        model.encoder.embedding.weight[5, 0] = 42.0
    assert model.output.weight[5, 0].item() == 42.0
    assert sum(weight.numel() for weight in weights_of(tmp_path / "out").values()) == count_parameters(bundle.config.model)
    assert bundle.info == {"step": 6, "average_of": ["in0", "in1", "in2"]}


def test_the_average_has_the_settings_of_the_newest(three: list[Path], tmp_path: Path) -> None:
    newest = load_bundle(three[-1])
    changed = newest.config.with_values(decoding={"beam": 7}, training={"max_minutes": 40.0})
    save_bundle(dataclasses.replace(newest, config=changed), tmp_path / "resumed")
    for name, order in (("up", [*three[:2], tmp_path / "resumed"]), ("down", [tmp_path / "resumed", *three[:2]])):
        average_bundles(order, tmp_path / name)
        config = load_bundle(tmp_path / name).config
        assert (config.decoding.beam, config.training.max_minutes) == (7, 40.0)


def test_twice_the_same_and_one_with_itself_are_bit_equal(tmp_path: Path) -> None:
    folders = [filled(tmp_path / f"in{seed}", embedding=0, others=0, seed=seed) for seed in (1, 2, 3)]
    for name in ("first", "second"):
        average_bundles(folders, tmp_path / name)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    average_bundles(folders[:1] * 3, tmp_path / "itself")
    assert same_bits(weights_of(tmp_path / "itself"), weights_of(folders[0]))


def test_half_precision_is_summed_in_more(tmp_path: Path) -> None:
    """2048 + 1 is 2048 in float16; the mean of 2048, 1 and 1 is 683.33 all the same."""
    folders = [filled(tmp_path / f"in{n}", embedding=value, others=value) for n, value in enumerate((2048, 1, 1))]
    for folder in folders:
        save_file({name: weight.half() for name, weight in weights_of(folder).items()}, folder / "model.safetensors")
    average_bundles(folders, tmp_path / "out")
    found = weights_of(tmp_path / "out")
    assert {weight.dtype for weight in found.values()} == {torch.float16}
    assert {weight.unique().item() for weight in found.values()} == {torch.tensor(2050 / 3, dtype=torch.float16).item()}


def test_each_weight_keeps_its_type_and_is_not_rounded_before_the_sum(tmp_path: Path) -> None:
    """The mean of 1 in float32 and 1 + 2⁻⁵⁰ in float64 needs float64, which float32 on the way would lose."""
    small = 2.0**-50
    folders = [filled(tmp_path / f"in{n}", embedding=1, others=1) for n in range(2)]
    for folder, value in zip(folders, (1.0, 1 + small), strict=True):
        weights = {name: torch.full_like(weight, value, dtype=torch.float64) for name, weight in weights_of(folder).items()}
        kept = next(iter(weights))
        save_file(weights | {kept: weights[kept].bfloat16()}, folder / "model.safetensors")
    average_bundles(folders, tmp_path / "out")
    found = dict(weights_of(tmp_path / "out"))
    assert found.pop(kept).dtype == torch.bfloat16
    assert {weight.unique().item() for weight in found.values()} == {1 + small / 2}


def test_a_name_that_is_taken_is_said_before_any_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(DragomanError, match="out: already exists; choose another name"):
        average_bundles([tmp_path / "no model"], tmp_path / "out")


def test_models_of_another_kind_are_named(three: list[Path], tmp_path: Path) -> None:
    other_sizes = filled(tmp_path / "sizes", embedding=1, others=1, d_ff=16)
    other_words = filled(tmp_path / "words", embedding=1, others=1, words=9, source_vocabulary=14, target_vocabulary=14)
    with pytest.raises(DragomanError, match=r"sizes: its model settings differ from those of .*in0"):
        average_bundles([three[0], other_sizes], tmp_path / "out")
    with pytest.raises(DragomanError, match=r"words: its tokenizer differs from that of .*in0"):
        average_bundles([three[0], other_words], tmp_path / "out")
    with pytest.raises(DragomanError, match="no checkpoints"):
        average_bundles([], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_verb_averages_the_last_checkpoints_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = write_pairs(tmp_path / "data" / "train", toy_pairs(10)), tmp_path / "run"
    assert train(run, data, "--quiet", "--max-steps", "15") == 0
    assert main(["average", str(run), "--last", "2", "--out", str(tmp_path / "mean"), "--quiet"]) == 0
    inputs = [weights_of(checkpoints(run)[step]) for step in (10, 15)]
    for name, weight in weights_of(tmp_path / "mean").items():
        torch.testing.assert_close(weight, (inputs[0][name] + inputs[1][name]) / 2, rtol=1e-6, atol=1e-7)
    assert not same_bits(*inputs)
