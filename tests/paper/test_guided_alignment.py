"""Guided alignment (Garg et al. 2019), a named departure: its loss, what it trains, how it is normalised, and that all else stays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.data.alignments import AlignedCorpus, aligned_corpus
from dragoman.data.packing import batch_of
from dragoman.model import ScaledDotProductAttention
from dragoman.training.aligning import alignment_loss, log_weights, watched_head, with_alignment
from dragoman.training.distributed import Ranks
from dragoman.training.loss import GuidedLoss, output_loss, predicting_states
from dragoman.training.trainer import Trainer
from dragoman.training.windows import Window, make_window
from paper.models import random_numbers
from training_runs import Pair, make_trainer, toy_pairs

LAYERS = {"decoder_layers": 3, "encoder_layers": 1, "n_heads": 2, "alignment_layer": 2, "alignment_head": 2}


def backwards(pairs: Sequence[Pair]) -> list[tuple[Pair, frozenset[tuple[int, int]]]]:
    """Made-up links: source word i with target word n - 1 - i, but for every third, which has none, and the first two with the last."""
    found = []
    for pair in pairs:
        count = len(pair[0].split())
        links = {(count - 1 - word, word) for word in range(count) if word % 3 != 2} | {(0, count - 1), (1, count - 1)}
        found.append((pair, frozenset(links)))
    return found


def aligning_trainer(folder: Path, *, model: dict[str, Any] | None = None, **training: Any) -> Trainer:
    """A trainer with links, whose second decoder layer of three has the head that learns to align: the second of two."""
    pairs = toy_pairs(20)
    trainer = make_trainer(folder, pairs, model={**LAYERS, **(model or {})}, **{"alignment_weight": 0.3, **training})
    tokenizer = trainer.bundle.target_tokenizer
    trainer.corpus = aligned_corpus(folder / "links", trainer.corpus, backwards(pairs), tokenizer, tokenizer, tagged=False)
    return trainer


def gradients(trainer: Trainer, *windows: Window) -> dict[str, Tensor]:
    """Of one update, whose batches are shared out among these windows."""
    found: list[dict[str, Tensor]] = []
    take, trainer._clip = trainer._clip, lambda: found.append(  # type: ignore[method-assign,func-returns-value]
        {name: weight.grad.clone() for name, weight in trainer.model.named_parameters() if weight.grad is not None}
    ) or take()  # fmt: skip
    trainer.optimizer.step = lambda: None  # type: ignore[assignment]
    for window in windows:
        trainer._update(window)
    trainer._clip = take  # type: ignore[method-assign]
    return {name: torch.stack([each[name] for each in found]).sum(0) for name in found[0]}


def test_the_loss_is_the_articles_written_out() -> None:
    """-Σ_j Σ_i G_ji log A_ji with the rows of G that add up to 1, over the target tokens that have one."""
    weights = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]]], dtype=torch.float64)
    links = torch.tensor([[0, 0, 1], [0, 1, 0], [0, 1, 2], [1, 1, 1]])  # the first token of the second pair has none
    loss, aligned = alignment_loss(weights.log(), links)
    expected = -(np.log(0.25) + (np.log(0.1) + np.log(0.7)) / 2 + np.log(0.75))
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert aligned.item() == 3
    nothing, none = alignment_loss(weights.log(), links[:0])
    assert (nothing.item(), none.item()) == (0, 0)


def test_the_weights_are_those_of_equation_1() -> None:
    query, key = random_numbers(2, 4, 5, 8, dtype=torch.float64), random_numbers(2, 4, 6, 8, seed=5, dtype=torch.float64)
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    mask[1, ..., 4:] = False
    plain = ScaledDotProductAttention()(query, key, key, mask).weights
    assert plain is not None
    for head in range(4):
        torch.testing.assert_close(log_weights(query, key, mask, head=head).exp(), plain[:, head])
    assert log_weights(query.bfloat16(), key.bfloat16(), None, head=0).dtype == torch.float32


def test_what_is_trained_is_what_an_alignment_looks_at(tmp_path: Path) -> None:
    """The watched weights are those that `align` reads: of the second head of the second layer, in the rows that choose each token."""
    trainer = aligning_trainer(tmp_path)
    trainer.model.eval()
    batch = batch_of(trainer.corpus, np.arange(6), trainer.bundle.target_tokenizer)
    own = trainer.model.decoder.layers[1].cross_attn  # type: ignore[union-attr,index]
    with watched_head(trainer.model, trainer.bundle.config.model) as seen:
        predicting_states(trainer.model, batch)
    fused, own.attention = own.attention, ScaledDotProductAttention().eval()  # type: ignore[union-attr]
    plain: list[Tensor] = []
    own.attention.register_forward_hook(lambda _, __, attended: plain.append(attended.weights))  # type: ignore[union-attr]
    predicting_states(trainer.model, batch)
    own.attention = fused  # type: ignore[union-attr]
    torch.testing.assert_close(seen[0].exp(), plain[0][:, 1])
    assert not fused._forward_hooks  # type: ignore[union-attr]


def test_the_gradient_flows_through_that_head_alone(tmp_path: Path) -> None:
    """To its rows of W^Q and W^K and to what is below; not to other heads, to values, or to anything above."""
    trainer = aligning_trainer(tmp_path)
    batch = batch_of(trainer.corpus, np.arange(8), trainer.bundle.target_tokenizer)
    loss = trainer._loss(batch, epsilon=0.1)
    assert isinstance(loss, GuidedLoss)
    loss.alignment.backward()
    moved = {name for name, weight in trainer.model.named_parameters() if weight.grad is not None and weight.grad.abs().sum() > 0}
    layer = "decoder.layers.1."
    above = {name for name, _ in trainer.model.named_parameters() if name.startswith("decoder.layers.2.")}
    above |= {f"{layer}{name}.{kind}" for name in ("cross_attn.w_v", "cross_attn.w_concat", "norm3") for kind in ("weight", "bias")}
    above |= {name for name, _ in trainer.model.named_parameters() if name.startswith(f"{layer}feed_forward")}
    assert moved & above == set()
    assert {f"{layer}cross_attn.w_q.weight", f"{layer}cross_attn.w_k.weight", "decoder.layers.0.cross_attn.w_v.weight"} <= moved
    assert any(name.startswith("encoder.layers.0") for name in moved)
    width = trainer.bundle.config.model.key_width
    for name in ("w_q", "w_k"):
        grad = trainer.model.get_parameter(f"{layer}cross_attn.{name}.weight").grad
        assert grad is not None
        assert grad[:width].abs().max() == 0  # the first head
        assert grad[width:].abs().max() > 0


def test_an_update_takes_the_mean_over_tokens_and_the_mean_over_aligned_tokens(tmp_path: Path) -> None:
    """However they lie in batches, and on ranks: the gradient is that of the plain sum over all pairs."""
    trainer = aligning_trainer(tmp_path)
    corpus, tokenizer = trainer.corpus, trainer.bundle.target_tokenizer
    assert isinstance(corpus, AlignedCorpus)
    batches = [np.arange(start, stop) for start, stop in ((0, 7), (7, 8), (8, 20))]
    whole = batch_of(corpus, np.arange(20), tokenizer)
    with watched_head(trainer.model, trainer.bundle.config.model) as seen:
        hidden = predicting_states(trainer.model, whole)
    plain = output_loss(hidden, trainer.model.output.weight, whole.target_output[whole.target_mask], epsilon=0.1)
    loss = with_alignment(plain, seen, whole.links)
    assert isinstance(loss, GuidedLoss)
    assert int(loss.aligned) == corpus.aligned(np.arange(20)) < int(whole.target_mask.sum())
    (loss.smoothed / whole.target_mask.sum() + 0.3 * loss.alignment / loss.aligned).backward()
    expected = {name: weight.grad.clone() for name, weight in trainer.model.named_parameters() if weight.grad is not None}
    trainer.optimizer.zero_grad()
    alone = gradients(trainer, make_window(corpus, batches, tokenizer, Ranks()))
    assert trainer.totals.aligned == int(loss.aligned)
    assert trainer.totals.means()["alignment"] == pytest.approx(loss.alignment.item() / int(loss.aligned), rel=1e-5)
    trainer.optimizer.zero_grad()
    shared = [make_window(corpus, batches, tokenizer, Ranks(rank, 2)) for rank in range(2)]
    assert {window.aligned for window in shared} == {int(loss.aligned)}
    together = gradients(trainer, *shared)
    assert alone.keys() == together.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(alone[name], value, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-6)


def test_with_r_drop_both_passes_learn_to_align(tmp_path: Path) -> None:
    trainer = aligning_trainer(tmp_path, rdrop=1.0)  # without dropout both passes are the same
    trainer.model.train()
    batch = batch_of(trainer.corpus, np.arange(8), trainer.bundle.target_tokenizer)
    both = trainer._loss(batch, epsilon=0.1)
    trainer.model.eval()  # an evaluation runs once
    once = trainer._loss(batch, epsilon=0.1)
    assert isinstance(both, GuidedLoss)
    assert isinstance(once, GuidedLoss)
    assert both.alignment.item() == pytest.approx(once.alignment.item(), rel=1e-6)
    assert both.aligned == once.aligned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_without_alignments_loss_and_gradients_are_bit_for_bit_those_of_the_plain_step(dtype: torch.dtype, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(20), model={"decoder_layers": 2})
    trainer.dtype = dtype
    tokenizer = trainer.bundle.target_tokenizer
    batches = [np.arange(0, 9), np.arange(9, 20)]
    window = make_window(trainer.corpus, batches, tokenizer, Ranks())
    assert [part.batch.links for part in window.parts] == [None, None]
    trainer.model.train()
    losses = []
    for part in window.parts:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            hidden = predicting_states(trainer.model, part.batch)
        gold = part.batch.target_output[part.batch.target_mask]
        loss = output_loss(hidden, trainer.model.output.weight, gold, epsilon=0.1, dtype=dtype)
        torch.autograd.backward(loss.smoothed * 1.0 / window.tokens)
        losses.append(loss.smoothed.item())
    expected = {name: weight.grad.clone() for name, weight in trainer.model.named_parameters() if weight.grad is not None}
    trainer.optimizer.zero_grad()
    found = gradients(trainer, window)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert trainer.totals.smoothed == sum(losses)
    assert "alignment" not in trainer.totals.means()


def test_the_other_heads_keep_their_fused_path(tmp_path: Path) -> None:
    """With links the translation's loss is bit for bit what it is without, and so is its gradient."""
    trainer = aligning_trainer(tmp_path)
    trainer.model.train()
    batch = batch_of(trainer.corpus, np.arange(8), trainer.bundle.target_tokenizer)
    for dtype in (torch.float32, torch.bfloat16):
        trainer.dtype = dtype
        found = []
        for links in (batch.links, None):
            object.__setattr__(batch, "links", links)
            loss = trainer._loss(batch, epsilon=0.1)
            loss.smoothed.backward()
            found.append([loss.smoothed, *(weight.grad.clone() for weight in trainer.model.parameters() if weight.grad is not None)])
            trainer.optimizer.zero_grad()
        object.__setattr__(batch, "links", torch.from_numpy(trainer.corpus.links_of(np.arange(8))))
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
