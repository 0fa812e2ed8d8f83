"""Training of models of one sequence: the loss is the naive one, resumed = uninterrupted, by many = by one, padded = unpadded."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.bundle import load_bundle
from dragoman.data.masking import Masking
from dragoman.data.packing import PackedCorpus, batch_of, open_packed
from dragoman.model import LanguageModel, MaskedLanguageModel
from dragoman.training.loss import predicting_states
from rank_runs import on_ranks
from text_runs import TINY_BERT, TINY_GPT, train_text, words
from training_runs import checkpoints, final_weights, marked, records, same_bits

KINDS = {"decoder": TINY_GPT, "encoder": TINY_BERT}
FIGURES = ("loss", "nll", "ppl", "acc", "lr", "grad_norm", "epoch")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "valid.txt").write_text(words(6, seed=9), encoding="utf-8")
    (folder / "train.txt").write_text(words(30), encoding="utf-8")
    return folder / "train.txt"


def begin(run: Path, data: Path, steps: int, base: dict[str, Any], **settings: Any) -> int:
    valid = ("--valid", data.with_name("valid.txt"), "--quiet", "--max-steps", str(steps))
    return train_text(run, data, *valid, base=base, **settings)


def curve(run: Path, kind: str = "train") -> list[list[float]]:
    return [[record[name] for name in FIGURES if name in record] for record in records(run, kind)]


def naive(model: LanguageModel | MaskedLanguageModel, corpus: PackedCorpus, tokenizer: Any) -> tuple[float, int]:
    """The sum of -log p over the blocks one by one, by the logits of the model as they are, and the number of tokens."""
    total, count = 0.0, 0
    model.requires_grad_(False)
    for index in range(len(corpus)):
        batch = batch_of(corpus, np.array([index]), tokenizer)
        seen = batch.target_input if isinstance(model, LanguageModel) else batch.source
        log_p = model(seen).log_softmax(-1)
        for place in batch.target_mask[0].nonzero()[:, 0].tolist():
            total -= float(log_p[0, place, batch.target_output[0, place]])
            count += 1
    return total, count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stride", [0, 5])
def test_the_validation_loss_is_that_of_every_token_by_the_plain_logits(kind: str, stride: int, data: Path, tmp_path: Path) -> None:
    if stride and kind == "encoder":
        pytest.skip("an encoder sees all of a block")
    run = tmp_path / "run"
    assert begin(run, data, 5, KINDS[kind], training__validation_stride=stride) == 0
    bundle = load_bundle(run)
    model = bundle.model
    assert isinstance(model, LanguageModel | MaskedLanguageModel)
    (record,) = records(run, "eval")
    corpus = open_packed(run / "corpus/valid")
    if kind == "encoder":
        masking = Masking.of(bundle.target_tokenizer, probability=0.15, seed=0)
        total, count = naive(model, corpus.in_blocks(size=12, masking=masking), bundle.target_tokenizer)
        assert "bits_per_character" not in record
    else:
        total, count = naive(model, corpus.in_blocks(size=12, stride=stride), bundle.target_tokenizer)
        assert count == corpus.tokens
        text = data.with_name("valid.txt").read_text("utf-8")
        assert record["bits_per_character"] == pytest.approx(total / math.log(2) / len(text), rel=1e-5)
        assert record["bits_per_byte"] == pytest.approx(total / math.log(2) / len(text.encode()), rel=1e-5)
    assert record["nll"] == pytest.approx(total / count, rel=1e-5)
    assert record["ppl"] == pytest.approx(math.exp(total / count), rel=1e-5)
    assert record["sampled"] == pytest.approx(record["nll"], abs=0.5)
    assert record["sampled_error"] > 0


@pytest.mark.parametrize(("kind", "accumulate"), [("decoder", 2), ("encoder", 1)])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(kind: str, accumulate: int, data: Path, tmp_path: Path) -> None:
    settings = {"training__accumulate": accumulate, "model__dropout": 0.2, "training__evaluate_every": 10}
    assert begin(tmp_path / "one", data, 20, KINDS[kind], **settings) == 0
    assert begin(tmp_path / "two", data, 7, KINDS[kind], **settings) == 0
    assert train_text(tmp_path / "two", None, "--quiet", "--max-steps", "20") == 0
    assert records(tmp_path / "one", "train")[-1]["epoch"] >= 1
    assert curve(tmp_path / "one") == curve(tmp_path / "two")
    one, two = ({record["step"]: record for record in records(tmp_path / name, "eval")} for name in ("one", "two"))
    assert {step: record["samples"] for step, record in one.items()} == {step: two[step]["samples"] for step in one}
    assert [two[step]["nll"] for step in one] == [record["nll"] for record in one.values()]
    assert same_bits(final_weights(tmp_path / "one"), final_weights(tmp_path / "two"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one(kind: str, data: Path, tmp_path: Path) -> None:
    settings = {"model__dropout": 0.0, "training__accumulate": 3}
    assert begin(tmp_path / "one", data, 6, KINDS[kind], **settings) == 0
    assert on_ranks(2, tmp_path, lambda: begin(tmp_path / "two", data, 6, KINDS[kind], **settings)) == [0, 0]
    for found, right in zip(curve(tmp_path / "two"), curve(tmp_path / "one"), strict=True):
        assert found == pytest.approx(right, rel=1e-5)
    for found_eval, right_eval in zip(records(tmp_path / "two", "eval"), records(tmp_path / "one", "eval"), strict=True):
        assert found_eval["nll"] == pytest.approx(right_eval["nll"], rel=1e-5)
    one = final_weights(tmp_path / "one")
    for name, weight in final_weights(tmp_path / "two").items():
        if "w_k.bias" not in name:  # softmax cancels it, so its gradient is rounding alone, which Adam blows up
            torch.testing.assert_close(weight, one[name], rtol=0, atol=1e-4)


def test_the_states_that_predict_are_the_models_own_where_the_batch_is_padded(data: Path, tmp_path: Path) -> None:
    for kind, base in KINDS.items():
        assert begin(tmp_path / kind, data, 1, base) == 0
        bundle, corpus = load_bundle(tmp_path / kind), open_packed(tmp_path / kind / "corpus/train")
        model, tokenizer = bundle.model, bundle.target_tokenizer
        masking = None
        if kind == "encoder":
            masking = Masking.of(tokenizer, probability=0.3, seed=1)
        seen = corpus.in_blocks(size=12, masking=masking).of_epoch(1, seed=2, most=12)
        batch = batch_of(seen, np.arange(3), tokenizer)
        assert not batch.target_mask[0, -1], "the first block is shorter than the others"
        assert isinstance(model, LanguageModel | MaskedLanguageModel)
        logits = model.project(predicting_states(model, batch))
        found = F.cross_entropy(logits, batch.target_output[batch.target_mask], reduction="sum")
        rows: list[Tensor] = []
        for row in range(3):
            alone = batch_of(seen, np.array([row]), tokenizer)
            rows.append(model.project(predicting_states(model, alone)))
        torch.testing.assert_close(logits, torch.cat(rows), rtol=0, atol=1e-5)
        assert float(found.detach()) > 0


def test_going_on_from_a_model_takes_its_vocabulary_and_weights(data: Path, tmp_path: Path) -> None:
    assert begin(tmp_path / "one", data, 5, TINY_GPT) == 0
    other = tmp_path / "other.txt"
    other.write_text(words(20, seed=4) + "Z\n", encoding="utf-8")
    few = {name: TINY_GPT[name] for name in ("training.batch_tokens", "training.label_smoothing")}
    start = ("--from", tmp_path / "one", "--max-steps", "1", "--quiet")
    assert train_text(tmp_path / "two", other, *start, base=few, training__schedule="constant", training__learning_rate=1e-12) == 0
    before, after = load_bundle(tmp_path / "one"), load_bundle(checkpoints(tmp_path / "two")[1])
    assert before.target_tokenizer.fingerprint == after.target_tokenizer.fingerprint
    for name, weight in after.model.named_parameters():
        torch.testing.assert_close(weight, dict(before.model.named_parameters())[name], rtol=0, atol=1e-6)
    assert json.loads((tmp_path / "two/corpus/train/corpus.json").read_text())["unknown"] == 1
    assert marked(tmp_path / "two", "last") == "step-000001"


@pytest.mark.parametrize("kind", KINDS)
def test_b75_evaluations_and_their_samples_change_nothing_of_the_training(kind: str, data: Path, tmp_path: Path) -> None:
    settings = {"model__dropout": 0.5, "training__evaluate_every": 3}
    assert begin(tmp_path / "with", data, 8, KINDS[kind], **settings) == 0
    assert train_text(tmp_path / "without", data, "--quiet", "--max-steps", "8", base=KINDS[kind], **settings) == 0
    assert curve(tmp_path / "with") == curve(tmp_path / "without")
    assert same_bits(final_weights(tmp_path / "with"), final_weights(tmp_path / "without"))
