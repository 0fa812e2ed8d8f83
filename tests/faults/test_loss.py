"""Reported faults of the loss: B01, B17, B19 (accumulation), B83 (half precision), padding that counts, losses that are no numbers."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data.batching import collate
from dragoman.errors import DragomanError
from dragoman.training.distributed import Ranks
from dragoman.training.loss import Loss
from dragoman.training.totals import Totals
from dragoman.training.trainer import Trainer
from training_runs import WORDS, Pair, checkpoints, final_weights, make_trainer, records, toy_pairs, train, write_pairs

Plan = list[list[int]]


def pairs_of_lengths(lengths: Sequence[int]) -> list[Pair]:
    """A pair of each length in words; its target has one word more."""
    return [(" ".join(WORDS[n % 7 : n % 7 + n]), " ".join(WORDS[: n + 1])) for n in lengths]


def planned(trainer: Trainer, plan: Plan, monkeypatch: pytest.MonkeyPatch, *, rate: float = 0.5) -> dict[str, Tensor]:
    """Train on these batches in every epoch with plain gradient descent, in which equal gradients give equal weights; the weights."""
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0)
    trainer.rate = lambda step: rate
    monkeypatch.setattr("dragoman.training.windows.plan_batches", lambda *_, **__: [np.array(batch) for batch in plan])
    trainer.train()
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}


def by_hand(trainer: Trainer, windows: Sequence[Plan], *, rate: float = 0.5, epsilon: float = 0.1) -> tuple[dict[str, Tensor], list[float]]:
    """The same, pair by pair, so without padding and masks, with PyTorch's own loss; the weights, and the mean loss of each update."""
    model, tokenizer, losses = trainer.model.train(), trainer.bundle.target_tokenizer, []
    for window in windows:
        pairs = [trainer.corpus[index] for batch in window for index in batch]
        tokens = sum(len(target) for _, target in pairs)
        total = torch.zeros(())
        for source, target in pairs:
            read = torch.tensor([[tokenizer.bos, *target[:-1].tolist()]])
            logits = model(torch.tensor([source.tolist()]), read)[0]
            total = total + F.cross_entropy(logits, torch.tensor(target.tolist()), label_smoothing=epsilon, reduction="sum")
        mean = total / tokens
        gradients = torch.autograd.grad(mean, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= rate * gradient
        losses.append(mean.item())
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}, losses


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.mark.parametrize("batches", [1, 2, 4, 8])
def test_accumulation_weighs_tokens_not_batches(batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B17: eight pairs of very different length in one update, in pieces of 8, 4, 2 and 1: the update of each pair taken alone."""
    pairs, size = pairs_of_lengths([1, 17, 2, 13, 1, 9, 3, 16]), 8 // batches
    right, losses = by_hand(make_trainer(tmp_path / "hand", pairs), [[list(range(8))]])
    trainer = make_trainer(tmp_path / "run", pairs, max_steps=1, accumulate=batches, evaluate_every=100)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    plan = [list(range(start, start + size)) for start in range(0, 8, size)]
    found = planned(trainer, plan, monkeypatch)
    assert largest_difference(found, right) < 1e-6
    assert largest_difference(found, before) > 1e-2
    (record,) = records(trainer.run, "train")
    assert record["loss"] == pytest.approx(losses[0], abs=1e-6)


def test_the_last_window_of_an_epoch_may_be_short_and_counts_its_own_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B19: ten batches, four an update: windows of 4, 4 and 2, then the next epoch."""
    pairs = pairs_of_lengths([(n * 5) % 14 + 1 for n in range(20)])
    plan = [[2 * n, 2 * n + 1] for n in range(10)]
    right, losses = by_hand(make_trainer(tmp_path / "hand", pairs), [plan[:4], plan[4:8], plan[8:]])
    shorter, _ = by_hand(make_trainer(tmp_path / "shorter", pairs), [plan[:4], plan[4:8]])
    trainer = make_trainer(tmp_path / "run", pairs, max_steps=3, accumulate=4, evaluate_every=100)
    found = planned(trainer, plan, monkeypatch)
    assert largest_difference(found, right) < 1e-6
    assert largest_difference(found, shorter) > 1e-3
    assert [record["loss"] for record in records(trainer.run, "train")] == pytest.approx(losses, abs=1e-6)
    assert [record["epoch"] for record in records(trainer.run, "train")] == [0, 0, 0]
    assert trainer.progress.target_tokens == trainer.corpus.target_lengths.sum()


def test_an_epoch_s_last_step_is_followed_by_the_next_epoch_s_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, pairs_of_lengths([3, 4, 5]), max_steps=5, accumulate=2, evaluate_every=100)
    planned(trainer, [[0], [1], [2]], monkeypatch)
    assert [record["epoch"] for record in records(trainer.run, "train")] == [0, 0, 1, 1, 2]


def test_padding_never_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short pair beside a long one gives what the two give alone; what the padding holds changes nothing."""
    pairs = pairs_of_lengths([1, 17])
    right, _ = by_hand(make_trainer(tmp_path / "hand", pairs), [[[0], [1]]])
    trainer = make_trainer(tmp_path / "run", pairs, max_steps=1, evaluate_every=100)

    def noisy(corpus: object, indices: object, **ids: int) -> object:
        batch = collate(corpus, indices, **ids)  # type: ignore[arg-type]
        batch.source[~batch.source_mask] = 9
        batch.target_input[~batch.target_mask] = 9
        batch.target_output[~batch.target_mask] = 9
        return batch

    monkeypatch.setattr("dragoman.data.packing.collate", noisy)
    assert largest_difference(planned(trainer, [[0, 1]], monkeypatch), right) < 1e-6


def test_records_are_means_over_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """loss is smoothed, nll is not, ppl = exp(nll), acc counts first places; over all updates since the record before."""
    pairs, plan = pairs_of_lengths([1, 2, 9, 12]), [[0, 1], [2], [3]]
    trainer = make_trainer(tmp_path / "run", pairs, max_steps=3, log_every=3, evaluate_every=100)
    planned(trainer, plan, monkeypatch, rate=0.0)
    (record,) = records(trainer.run, "train")
    still = make_trainer(tmp_path / "still", pairs)
    tokens = int(still.corpus.target_lengths.sum())
    nll, smoothed, right = 0.0, 0.0, 0
    with torch.no_grad():
        for source, target in (still.corpus[index] for index in range(4)):
            read = torch.tensor([[still.bundle.target_tokenizer.bos, *target[:-1].tolist()]])
            logits, gold = still.model(torch.tensor([source.tolist()]), read)[0], torch.tensor(target.tolist())
            nll += F.cross_entropy(logits, gold, reduction="sum").item()
            smoothed += F.cross_entropy(logits, gold, reduction="sum", label_smoothing=0.1).item()
            right += int((logits.argmax(-1) == gold).sum())
    assert record["nll"] == pytest.approx(nll / tokens, rel=1e-6)
    assert record["loss"] == pytest.approx(smoothed / tokens, rel=1e-6)
    assert record["ppl"] == pytest.approx(math.exp(nll / tokens), rel=1e-5)
    assert record["acc"] == right / tokens


def test_a_share_of_a_right_token_stays_one_over_batches_and_ranks() -> None:
    totals = Totals()
    for correct in (0.5, 1 / 3):
        totals.add(Loss(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(correct, dtype=torch.float64)), tokens=2)
    assert totals.means()["acc"] == totals.over(Ranks()).means()["acc"] == pytest.approx(5 / 24, rel=1e-9)


def test_the_gradient_is_scaled_to_clip_norm_and_its_norm_before_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, plan = pairs_of_lengths([3, 8]), [[0, 1]]
    free = make_trainer(tmp_path / "free", pairs, max_steps=1, evaluate_every=100)
    clipped = make_trainer(tmp_path / "clipped", pairs, max_steps=1, evaluate_every=100, clip_norm=0.25)
    start = {name: weight.detach().clone() for name, weight in free.model.named_parameters()}
    moved, held = (planned(trainer, plan, monkeypatch, rate=1.0) for trainer in (free, clipped))
    lengths = [math.sqrt(sum((weights[name] - start[name]).square().sum().item() for name in start)) for weights in (moved, held)]
    assert lengths[0] > 0.5
    assert lengths[1] == pytest.approx(0.25, rel=1e-4)
    for trainer in (free, clipped):
        assert records(trainer.run, "train")[0]["grad_norm"] == pytest.approx(lengths[0], rel=1e-4)


def test_bfloat16_steps_stay_finite_and_near_float32(tmp_path: Path) -> None:
    """B83: an update with padding under bf16 on the CPU, beside the same under float32."""
    data = write_pairs(tmp_path / "data" / "train", toy_pairs(60, shortest=1, longest=12))
    for precision in ("fp32", "bf16"):
        status = train(tmp_path / precision, data, "--precision", precision, "--max-steps", "6", training__batch_tokens=200)
        assert status == 0
    exact, rough = (records(tmp_path / precision, "train") for precision in ("fp32", "bf16"))
    assert [record["loss"] for record in rough] == pytest.approx([record["loss"] for record in exact], abs=1e-2)
    assert [record["loss"] for record in rough] != [record["loss"] for record in exact]
    weights = final_weights(tmp_path / "bf16")
    assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in weights.values())


def test_a_loss_that_is_no_number_stops_and_names_step_and_lines(tmp_path: Path) -> None:
    pairs = [*toy_pairs(2), ("", "nothing to read"), *toy_pairs(3, seed=1)]
    trainer = make_trainer(tmp_path, pairs, batch_tokens=1000, max_steps=9, evaluate_every=1)
    with torch.no_grad():
        trainer.model.output.weight[20] = math.nan
    with pytest.raises(DragomanError, match=r"^step 1: the loss is not a finite number on lines 1, 2, 4, 5, 6 of the training text"):
        trainer.train()
    assert trainer.progress.step == 0
    assert checkpoints(trainer.run) == {}


@pytest.mark.parametrize(
    ("schedule", "clip", "advice"),
    [
        ("paper", 0, "lower training.factor or set training.clip_norm"),
        ("constant", 0, "lower training.learning_rate or set training.clip_norm"),
        ("constant", 2.5, "lower training.learning_rate or lower training.clip_norm=2.5"),
    ],
)
def test_a_gradient_that_is_no_number_stops_before_the_update(schedule: str, clip: float, advice: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(2), batch_tokens=1000, max_steps=9, evaluate_every=1, schedule=schedule, clip_norm=clip)
    trainer.model.output.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(DragomanError, match=r"^step 1: the gradient is not a finite number on lines 1, 2 of the training text") as caught:
        trainer.train()
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert str(caught.value).endswith(f"; {advice}, then start a new run with another --out, for this one has no checkpoint yet")
    assert checkpoints(trainer.run) == {}


def test_a_diverged_run_fails_in_one_line_and_keeps_its_last_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_pairs(tmp_path / "data" / "train", toy_pairs(30))
    run = tmp_path / "run"
    assert train(run, data, "--quiet", "--max-steps", "9", training__learning_rate=1e30, training__evaluate_every=1) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dragoman: step 2: the ")
    assert "is not a finite number on lines" in line
    assert line.endswith("; lower training.learning_rate or set training.clip_norm, then continue with --resume")
    facts = json.loads((run / "run.json").read_text("utf-8"))
    assert facts["status"] == "failed"
    assert line == f"dragoman: {facts['error']}"
    assert list(checkpoints(run)) == [1]
    assert all(weight.isfinite().all() for weight in final_weights(run).values())


def test_a_pair_with_an_empty_side_changes_nothing_in_its_batch(tmp_path: Path) -> None:
    """B01 through the command line: one batch a step, with pairs that are left out and without them."""
    pairs = toy_pairs(12)
    frequent = pairs[0][0].split()[0]  # one more of it leaves the vocabulary in its order
    pairs = [*pairs, *[(frequent, frequent)] * 20]
    with_more = [*pairs[:4], ("", frequent), *pairs[4:9], (frequent, " "), ("", ""), *pairs[9:]]
    for name, text in (("plain", pairs), ("more", with_more)):
        data = write_pairs(tmp_path / name / "train", text)
        status = train(tmp_path / name / "run", data, "--quiet", "--max-steps", "4", training__batch_tokens=1000, model__dropout=0.0)
        assert status == 0
    plain, more = (records(tmp_path / name / "run", "train") for name in ("plain", "more"))
    assert [record["epoch"] for record in plain] == [0, 1, 2, 3]
    for name in ("loss", "nll", "acc", "grad_norm"):
        assert [record[name] for record in more] == pytest.approx([record[name] for record in plain], rel=1e-5)
    assert json.loads((tmp_path / "more" / "run" / "run.json").read_text("utf-8"))["dropped"]["train"] == {"empty side": 3}
