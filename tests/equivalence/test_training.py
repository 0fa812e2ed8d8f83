"""The training loop equals the loop as a textbook writes it: whole logits, PyTorch's own loss, Adam without fusing."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dragoman.data.batching import collate, plan_batches
from dragoman.training.trainer import Trainer
from training_runs import make_trainer, records, toy_pairs

STEPS, WARMUP = 12, 5


def textbook_losses(trainer: Trainer) -> list[float]:
    """The mean loss of each of the first steps; the weights end as the trainer's should."""
    model, corpus, settings = trainer.model.train(), trainer.corpus, trainer.settings
    pad, bos = trainer.bundle.target_tokenizer.pad, trainer.bundle.target_tokenizer.bos
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, foreach=False, fused=False)
    plans = [
        plan_batches(corpus.source_lengths, corpus.target_lengths, batch_tokens=settings.batch_budget, seed=settings.seed, epoch=epoch)
        for epoch in range(3)
    ]
    losses = []
    for step, indices in enumerate((indices for plan in plans for indices in plan), start=1):
        if step > STEPS:
            break
        batch = collate(corpus, indices, pad=pad, bos=bos)
        logits = model(batch.source, batch.target_input, batch.source_mask)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.target_output.flatten(), ignore_index=pad, label_smoothing=0.1)
        adam.param_groups[0]["lr"] = 16**-0.5 * min(step**-0.5, step * WARMUP**-1.5)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("tie", ["all", "none"])
def test_the_loop_is_the_textbook_s(tie: str, tmp_path: Path) -> None:
    pairs = toy_pairs(60)
    settings = {"max_steps": STEPS, "schedule": "paper", "warmup_steps": WARMUP, "evaluate_every": 100, "batch_tokens": 120}
    book = make_trainer(tmp_path / "book", pairs, model={"tie": tie}, **settings)
    losses = textbook_losses(book)
    trainer = make_trainer(tmp_path / "run", pairs, model={"tie": tie}, **settings)
    trainer.train()
    found = records(trainer.run, "train")
    assert max(record["epoch"] for record in found) >= 1
    assert [record["loss"] for record in found] == pytest.approx(losses, rel=1e-5)
    assert found[-1]["loss"] < found[0]["loss"] - 0.5
    right = dict(book.model.named_parameters())
    for name, weight in trainer.model.named_parameters():
        if "w_k.bias" not in name:  # softmax cancels it, so its gradient is rounding alone, which Adam blows up
            torch.testing.assert_close(weight, right[name], rtol=0, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}")
