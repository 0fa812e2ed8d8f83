"""``dragoman train --from MODEL``: a new run that begins with a model's weights, vocabulary and sizes, and with nothing else of it."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.bundle import load_bundle, resolve_model
from dragoman.cli import main
from dragoman.presets import resolve_config
from training_runs import TINY, checkpoints, final_weights, marked, records, same_bits, toy_pairs, train, write_pairs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pairs to learn from, other 20 of the same words to go on with, and 8 to look at."""
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "valid", toy_pairs(8, seed=9))
    write_pairs(folder / "more", toy_pairs(20, seed=5))
    return write_pairs(folder / "train", toy_pairs(40))


@pytest.fixture(scope="module")
def parent(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve steps whose best checkpoint is its tenth step, not its last; nothing changes it."""
    run = tmp_path_factory.mktemp("parent") / "run"
    assert train(run, data, "--max-steps", "12", "--seed", "4", "--quiet", model__dropout=0.1, decoding__beam=2) == 0
    (run / "checkpoints" / "best").write_text("step-000010\n", encoding="utf-8")
    return run


def go_on(run: Path, data: Path, model: Path, *arguments: str, pair: str | None = None, **settings: Any) -> int:
    """``dragoman train --train DATA --from MODEL --out RUN``, quietly, with the recipe of ``TINY`` and none of its sizes."""
    recipe = {name: value for name, value in TINY.items() if name.startswith("training.")}
    chosen = recipe | {name.replace("__", "."): value for name, value in settings.items()}
    sets = [part for name, value in chosen.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    start = [pair] if pair else []
    return main(["train", *start, "--train", str(data), "--from", str(model), "--out", str(run), "--quiet", *sets, *arguments])


def facts(run: Path) -> Any:
    return json.loads((run / "run.json").read_text("utf-8"))


def refusal(capsys: pytest.CaptureFixture[str], status: int, expected: int) -> str:
    """The one line on standard error, when the exit status is the expected one."""
    out, err = capsys.readouterr()
    assert (status, out) == (expected, "")
    (line,) = err.splitlines()
    assert line.startswith("dragoman: ")
    return line


UNMOVED = {"training__learning_rate": 1e-30}
"""An update by it leaves every weight but for zeros as it was."""


def differences(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.mark.parametrize("what", ["a run", "a checkpoint", "a bundle"])
def test_it_begins_with_the_weights_of_the_model(what: str, data: Path, parent: Path, tmp_path: Path) -> None:
    model = {"a run": parent, "a checkpoint": parent / "checkpoints" / "step-000012", "a bundle": tmp_path / "bundle"}[what]
    if what == "a bundle":
        shutil.copytree(parent / "checkpoints" / "step-000010", model, ignore=shutil.ignore_patterns("state"))
    assert go_on(tmp_path / "run", data.with_name("more"), model, "--max-steps", "1", **UNMOVED) == 0
    before = dict(load_bundle(model).model.named_parameters())
    after = dict(load_bundle(tmp_path / "run").model.named_parameters())
    assert differences(after, before) < 1e-29
    other = parent / "checkpoints" / ("step-000010" if what == "a checkpoint" else "step-000012")
    assert differences(after, dict(load_bundle(other).model.named_parameters())) > 1e-3


def test_the_first_loss_is_the_model_s_and_the_optimiser_is_new(data: Path, parent: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = {"training__batch_tokens": 10_000, "model__dropout": 0.0, "training__schedule": "inverse-sqrt", "training__warmup_steps": 4}
    assert go_on(run, data.with_name("more"), parent, "--max-steps", "2", training__evaluate_every=1, **more) == 0
    assert train(tmp_path / "fresh", data.with_name("more"), "--max-steps", "1", "--quiet", **more) == 0
    assert records(run, "train")[0]["loss"] < records(tmp_path / "fresh", "train")[0]["loss"] - 0.2
    assert [(record["step"], record["epoch"], record["lr"]) for record in records(run, "train")] == [(1, 0, 0.0025), (2, 1, 0.005)]
    state = json.loads((run / "checkpoints" / marked(run, "last") / "state" / "progress.json").read_text("utf-8"))
    assert (state["progress"]["step"], state["progress"]["best"]) == (2, None)
    assert list(checkpoints(run)) == [1, 2]
    first, start = load_bundle(run / "checkpoints" / "step-000001").model, load_bundle(parent).model
    moved = [(new - old).abs().max().item() for new, old in zip(first.parameters(), start.parameters(), strict=True)]
    assert max(moved) == pytest.approx(0.0025, rel=1e-3)  # a first step of Adam is of the learning rate; with moments it is another


def test_vocabulary_sizes_languages_and_decoding_are_the_model_s_and_the_recipe_is_its_presets(
    data: Path, parent: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ["train", "--train", str(data.with_name("more")), "--from", str(parent), "--out", str(run), "--max-steps", "1", "--quiet"]
    assert main(command) == 0
    before, after = load_bundle(parent), load_bundle(run)
    assert after.config.model == before.config.model
    assert after.config.decoding == before.config.decoding
    assert (after.config.data.source, after.config.data.target, after.config.data.tokenizer) == ("aa", "bb", "whitespace")
    assert after.source_tokenizer.fingerprint == before.source_tokenizer.fingerprint
    assert after.source_tokenizer is after.target_tokenizer
    recipe = resolve_config("base", overrides=["training.max_steps=1", f"training.start_from={parent}"]).training
    assert after.config.training == recipe
    assert before.config.training != recipe


def test_run_json_tells_where_it_came_from(data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, model = tmp_path / "run", resolve_model(parent)
    assert go_on(run, data.with_name("more"), parent, "--max-steps", "1") == 0
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert facts(run)["from"] == {
        "path": str(parent), "bundle": str(model), "weights_sha256": digest, "source_vocabulary": 52, "target_vocabulary": 52,
    }  # fmt: skip
    assert facts(run)["settings"]["training"]["start_from"] == str(parent)
    assert main(["inspect", str(run)]) == 0
    assert f"began from      {model}\n" in capsys.readouterr().out
    assert f"<td>{model}</td>" in (run / "report.html").read_text("utf-8")


def test_the_settings_file_repeats_it_to_the_last_bit(data: Path, parent: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    assert go_on(first, data.with_name("more"), parent, "--max-steps", "3") == 0
    assert main(["train", "--config", str(first / "config.toml"), "--out", str(again), "--quiet"]) == 0
    assert same_bits(final_weights(first), final_weights(again))
    assert facts(again)["from"] == facts(first)["from"]


def test_other_languages_and_another_dropout(data: Path, parent: Path, tmp_path: Path) -> None:
    prefix, run = tmp_path / "new", tmp_path / "run"
    for old, new in (("aa", "cc"), ("bb", "dd")):
        shutil.copy(data.with_name(f"more.{old}"), f"{prefix}.{new}")
    assert go_on(run, prefix, parent, "--max-steps", "1", pair="cc-dd", model__dropout=0.25, model__attention_dropout=0.2) == 0
    config = load_bundle(run).config
    assert (config.data.source, config.data.target) == ("cc", "dd")
    assert (config.model.dropout, config.model.attention_dropout) == (0.25, 0.2)
    assert facts(run)["settings"]["data"]["source"] == "cc"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--set", "model.d_model=32"], ["model.d_model=32 (the model has 16)"]),
        (["--set", "model.n_heads=4", "--set", "model.norm_place=pre"], ["model.n_heads=4 (", "model.norm_place=pre (the model has post)"]),
        (["--preset", "tiny"], ["model.d_model=128 (the model has 16)", "model.encoder_layers=4 (", "the preset tiny"]),
        (["--preset", "base"], ["model.d_model=512 (the model has 16)"]),
        (["--set", "data.tokenizer=bpe"], ["data.tokenizer=bpe (the model has whitespace)"]),
        (["--set", "data.vocabulary_size=99"], ["data.vocabulary_size=99 (the model has 37000)"]),
        (["--set", "model.d_mode=16"], ["unknown setting model.d_mode", "model.d_model"]),
        (["--dry-run", "--set", "model.d_ff=33"], ["model.d_ff=33 (the model has 32)"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_sizes_that_the_model_does_not_have_are_refused_by_name(
    arguments: list[str], parts: list[str], data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, go_on(tmp_path / "run", data.with_name("more"), parent, *arguments), 2)
    for part in parts:
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_it_has_may_be_given(data: Path, parent: Path, tmp_path: Path) -> None:
    assert go_on(tmp_path / "run", data.with_name("more"), parent, "--max-steps", "1", model__d_model=16, data__tokenizer="whitespace") == 0


def test_a_model_that_is_not_there_or_is_damaged(data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert "nothing: no such model" in refusal(capsys, go_on(run, data, tmp_path / "nothing"), 1)
    assert "neither a bundle" in refusal(capsys, go_on(run, data, data.parent), 1)
    damaged = tmp_path / "damaged"
    shutil.copytree(resolve_model(parent), damaged)
    (damaged / "model.safetensors").write_bytes(b"")
    assert "damaged: cannot load this model: model.safetensors" in refusal(capsys, go_on(run, data, damaged), 1)
    (damaged / "model.safetensors").unlink()
    assert "model.safetensors: cannot read the weights" in refusal(capsys, go_on(run, data, damaged), 1)
    assert not run.exists()


def test_unknown_words_are_counted(data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(tmp_path / "odd", [("onbek wolf", "KEBNO FLOW"), ("onlo tibek wolf", "OLNO")])
    run = tmp_path / "run"
    command = ["train", "--train", str(tmp_path / "odd"), "--from", str(parent), "--out", str(run), "--max-steps", "1"]
    assert main([*command, "--valid", str(data.with_name("valid"))]) == 0
    told = capsys.readouterr().err
    assert "train: 3 of 8 words are not in the vocabulary of the model that training goes on from and become <unk>\n" in told
    assert "valid: " not in told
    assert main(["train", "--resume", "--out", str(run), "--max-steps", "2"]) == 0
    assert "<unk>" not in capsys.readouterr().err


def test_a_dry_run_from_a_model(data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go_on(tmp_path / "run", data.with_name("more"), parent, "--dry-run") == 0
    out = capsys.readouterr().out
    assert out.startswith("aa→bb  20 pairs  vocabulary 52  1+1 layers  d_model 16  ")
    assert "measured on " in out
    assert list(tmp_path.iterdir()) == []


def test_separate_vocabularies_and_spare_rows_are_kept(data: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from dragoman.bundle import save_bundle
    from dragoman.model.build import build_model

    separate = {"data__joint_vocabulary": False, "model__tie": "decoder"}
    assert train(tmp_path / "parent", data, "--max-steps", "1", "--quiet", **separate) == 0
    bundle = load_bundle(tmp_path / "parent")
    config = bundle.config.with_values(model={"target_vocabulary": 40})
    save_bundle(replace(bundle, config=config, model=build_model(config.model, seed=3)), tmp_path / "spare")
    assert go_on(tmp_path / "run", data.with_name("more"), tmp_path / "spare", "--max-steps", "1", **UNMOVED) == 0
    before, after = load_bundle(tmp_path / "spare"), load_bundle(tmp_path / "run")
    assert after.config.model == config.model
    assert (len(after.source_tokenizer), len(after.target_tokenizer)) == (28, 28)
    assert differences(dict(after.model.named_parameters()), dict(before.model.named_parameters())) < 1e-29


# Going on with such a run


def test_resumed_equals_uninterrupted_and_the_model_may_be_gone(data: Path, parent: Path, tmp_path: Path) -> None:
    model, whole, parts = tmp_path / "model", tmp_path / "whole", tmp_path / "parts"
    shutil.copytree(resolve_model(parent), model)
    for run, steps in ((whole, "6"), (parts, "3")):
        assert go_on(run, data.with_name("more"), model, "--max-steps", steps) == 0
    shutil.rmtree(model)
    assert train(parts, None, "--max-steps", "6", "--quiet") == 0
    assert same_bits(final_weights(parts), final_weights(whole))
    assert facts(parts)["from"] == facts(whole)["from"]


def test_a_contradictory_model_is_refused(data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, fresh = tmp_path / "run", tmp_path / "fresh"
    assert go_on(run, data.with_name("more"), parent, "--max-steps", "1") == 0
    assert train(fresh, data, "--max-steps", "1", "--quiet") == 0
    other = str(parent / "checkpoints" / "step-000012")
    line = refusal(capsys, train(run, None, "--quiet", "--from", other), 2)
    assert f"--resume: the run began from {parent}, and goes on from its own newest checkpoint; leave out --from" in line
    assert "the run began with fresh weights" in refusal(capsys, train(fresh, None, "--quiet", "--from", other), 2)
    assert train(run, None, "--quiet", "--max-steps", "2", "--from", str(parent)) == 0
    assert list(checkpoints(run)) == [1, 2]


def test_killed_before_its_first_checkpoint_it_begins_again_from_the_same_weights(
    data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, run, whole = tmp_path / "model", tmp_path / "run", tmp_path / "whole"
    shutil.copytree(resolve_model(parent), model)
    for each in (run, whole):
        assert go_on(each, data.with_name("more"), model, "--max-steps", "2") == 0
    shutil.rmtree(run / "checkpoints")
    lost = "there is no checkpoint to go on from, so the 2 updates in its log.jsonl are made anew"
    assert refusal(capsys, train(run, None, "--quiet"), 0) == f"dragoman: warning: {run}: {lost}"
    assert same_bits(final_weights(run), final_weights(whole))
    shutil.rmtree(run / "checkpoints")
    shutil.copy(parent / "checkpoints" / "step-000012" / "model.safetensors", model)
    assert f"{model}: the weights changed since the run" in refusal(capsys, train(run, None, "--quiet"), 1)
    shutil.rmtree(model)
    assert "model: no such model" in refusal(capsys, train(run, None, "--quiet"), 1)
    assert (run / "run.json").exists()


@pytest.mark.parametrize("facts", [None, {}, "model"])
def test_a_run_that_forgot_where_it_began_does_not_begin_elsewhere(
    facts: Any, data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With run.json lost or damaged it would go on from fresh weights."""
    run = tmp_path / "run"
    assert go_on(run, data.with_name("more"), parent, "--max-steps", "1") == 0
    shutil.rmtree(run / "checkpoints")
    record = json.loads((run / "run.json").read_text("utf-8"))
    if facts is None:
        (run / "run.json").unlink()
    else:
        (run / "run.json").write_text(json.dumps(record | {"from": facts}), encoding="utf-8")
    message = "run.json: does not tell the model that the run began from; restore the file or start a new run"
    assert message in refusal(capsys, train(run, None, "--quiet"), 1)


def test_a_model_with_a_number_that_is_none_is_refused(
    data: Path, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(resolve_model(parent), model)
    weights = load_file(model / "model.safetensors")
    first = sorted(weights)[0]
    weights[first].view(-1)[0] = float("nan")
    save_file(weights, model / "model.safetensors")
    line = refusal(capsys, go_on(tmp_path / "run", data.with_name("more"), model, "--max-steps", "1"), 1)
    assert f"{model}: {first} has numbers that are not finite; go on from another checkpoint" in line
    assert not (tmp_path / "run").exists()
