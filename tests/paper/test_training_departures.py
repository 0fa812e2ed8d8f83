"""The named departures from Sections 5.3 and 5.4: AdamW, Muon, R-Drop, and the moving average of weights."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.bundle import load_bundle
from dragoman.config import Config, TrainingConfig
from dragoman.data.packing import batch_of
from dragoman.errors import UsageError
from dragoman.model.build import build_model
from dragoman.training.loss import output_loss, rdrop_loss
from dragoman.training.moving_average import MovingAverage
from dragoman.training.optimizer import build_optimizer
from paper.models import SIZES, random_numbers, small_model
from training_runs import final_weights, make_trainer, toy_pairs

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")


def settings(**training: Any) -> TrainingConfig:
    return Config().with_values(training=training).training


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


# Optimisers


def test_adamw_takes_the_decay_from_matrices_beside_adams_step() -> None:
    """w ← w - rate · decay · w, then Adam's step, which the gradient alone decides; biases do not decay."""
    module = nn.Linear(1, 1)
    nn.init.constant_(module.weight, 2.0)
    nn.init.constant_(module.bias, 2.0)
    optimizer = build_optimizer(module, settings(optimizer="adamw", weight_decay=0.5))
    set_rate(optimizer, 0.1)
    second = 0.1 * (0.08 / 0.19) / math.sqrt(0.0984 / 0.0396)  # as in test_steps_worked_out_by_hand
    for gradient in (2.0, -1.0):
        module.weight.grad, module.bias.grad = torch.full((1, 1), gradient), torch.full((1,), gradient)
        optimizer.step()
    assert module.weight.item() == pytest.approx((2 * 0.95 - 0.1) * 0.95 - second, abs=1e-6)
    assert module.bias.item() == pytest.approx(2 - 0.1 - second, abs=1e-6)


def test_without_decay_adamw_is_adam() -> None:
    weights = []
    for name in ("adam", "adamw"):
        module = nn.Linear(3, 4)
        nn.init.ones_(module.weight)
        optimizer = build_optimizer(module, settings(optimizer=name, adam_beta1=0.8, adam_epsilon=0.5))
        set_rate(optimizer, 0.1)
        for seed in range(5):
            module.weight.grad = random_numbers(4, 3, seed=seed)
            optimizer.step()
        weights.append(module.weight.detach())
    assert torch.equal(*weights)


def orthogonal(gradient: Tensor) -> Tensor:
    """Five Newton-Schulz steps in bfloat16, as the article on Muon has them."""
    x = gradient.bfloat16() if gradient.size(0) <= gradient.size(1) else gradient.bfloat16().T
    x = x / x.norm()
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x if gradient.size(0) <= gradient.size(1) else x.T).float()


@needs_muon
def test_muon_steps_hidden_matrices_along_an_orthogonal_matrix() -> None:
    """m ← 0.95 m + 0.05 g; w ← w - rate · decay · w - rate · 0.2 √max(A, B) · orthogonal(0.05 g + 0.95 m)."""
    module = nn.Linear(10, 40)  # sizes where other ways to fit the rate to a shape give other steps
    optimizer = build_optimizer(module, settings(optimizer="muon", weight_decay=0.5))
    set_rate(optimizer, 0.01)
    expected, momentum = module.weight.detach().clone(), torch.zeros(40, 10)
    for seed in range(3):
        gradient = random_numbers(40, 10, seed=seed)
        module.weight.grad = gradient.clone()
        optimizer.step()
        momentum = 0.95 * momentum + 0.05 * gradient
        step = orthogonal(0.05 * gradient + 0.95 * momentum)
        lengths = torch.linalg.svdvals(step)
        assert ((lengths > 0.4) & (lengths < 1.4)).all()
        expected = expected * (1 - 0.01 * 0.5) - 0.01 * 0.2 * math.sqrt(40) * step
        torch.testing.assert_close(module.weight.detach(), expected, atol=5e-4, rtol=0)
        expected = module.weight.detach().clone()


@needs_muon
def test_muon_has_the_matrices_of_the_layers_and_adamw_all_else() -> None:
    model = small_model(positions="learned", qk_norm=True, activation="swiglu", tie="decoder")
    optimizer = build_optimizer(model, settings(optimizer="muon", weight_decay=0.25))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    hidden, matrices, others = ([names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups)
    assert sorted(hidden + matrices + others) == sorted(names.values())
    assert all(".w_" in name and name.endswith(".weight") for name in hidden)
    assert len(hidden) == 2 * (4 + 3) + 2 * (8 + 3)
    assert set(matrices) == {f"{stack}.{part}.weight" for stack in ("encoder", "decoder") for part in ("embedding", "positions")}
    assert all(name.endswith(".bias") or "norm" in name for name in others)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.25, 0.25, 0.0]


@needs_muon
def test_the_two_parts_of_muon_are_one_optimiser_also_after_loading() -> None:
    """One rate for all groups, gradients zeroed everywhere, and the state of both parts in one."""
    model = build_model(Config().with_values(model=SIZES).model, seed=1)
    first, second = (build_optimizer(model, settings(optimizer="muon")) for _ in range(2))

    def step(optimizer: torch.optim.Optimizer, rate: float, seed: int) -> None:
        set_rate(optimizer, rate)
        for parameter in model.parameters():
            parameter.grad = random_numbers(*parameter.shape, seed=seed)
        optimizer.step()
        optimizer.zero_grad()

    step(first, 0.1, 1)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(first.state_dict()["state"]) == len(list(model.parameters()))
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    state = {index: {name: value.clone() for name, value in moments.items()} for index, moments in first.state_dict()["state"].items()}
    step(first, 0.2, 2)
    wanted = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert all(not torch.equal(wanted[name], kept[name]) for name in kept)
    model.load_state_dict(kept, strict=False)
    second.load_state_dict({"state": state, "param_groups": second.state_dict()["param_groups"]})
    step(second, 0.2, 2)
    assert all(torch.equal(parameter.detach(), wanted[name]) for name, parameter in model.named_parameters())


def test_a_pytorch_without_muon_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(UsageError, match=r"optimizer=muon needs PyTorch 2\.9 or newer, and this is .*; update torch, or set"):
        build_optimizer(nn.Linear(1, 1), settings(optimizer="muon"))


def test_adam_with_weight_decay_is_refused() -> None:
    with pytest.raises(UsageError, match=r"weight_decay=0\.1 is not for optimizer='adam'; set optimizer='adamw' or 'muon'"):
        settings(weight_decay=0.1)


def test_the_defaults_are_none_of_them() -> None:
    training = TrainingConfig()
    assert (training.optimizer, training.weight_decay, training.rdrop, training.ema) == ("adam", 0, 0, 0)


# R-Drop


def two_passes(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    """Two sets of hidden states (N, D) and an output matrix (V, D), with gradients; and gold classes (N)."""
    inputs = [random_numbers(*shape, seed=seed, dtype=dtype).requires_grad_() for seed, shape in enumerate([(23, 16), (23, 16), (37, 16)])]
    return inputs, torch.randint(37, (23,), generator=torch.Generator().manual_seed(5))


def plain_divergence(first: Tensor, second: Tensor) -> Tensor:
    """½(KL(p‖q) + KL(q‖p)) of logits (N, V), summed, by PyTorch."""
    log_p, log_q = first.log_softmax(-1), second.log_softmax(-1)
    both = [F.kl_div(one, other, log_target=True, reduction="sum") for one, other in ((log_p, log_q), (log_q, log_p))]
    return (both[0] + both[1]) / 2


def divergence(inputs: list[Tensor], gold: Tensor, dtype: torch.dtype) -> Tensor:
    """What an α of 2 adds to R-Drop's loss, which is ½(KL(p‖q) + KL(q‖p)), summed."""
    with_it, without = (rdrop_loss((inputs[0], inputs[1]), inputs[2], gold, epsilon=0.1, alpha=alpha, dtype=dtype) for alpha in (2.0, 0.0))
    return with_it.smoothed - without.smoothed


def test_golden_divergence() -> None:
    """p = (3/4, 1/4) and q = (1/2, 1/2): ½·Σ (p - q)·(log p - log q) = ¼ · ½ log 3."""
    inputs = [torch.tensor(numbers, dtype=torch.float64) for numbers in ([[math.log(3.0)]], [[0.0]], [[1.0], [0.0]])]
    assert divergence(inputs, torch.tensor([0]), torch.float64).item() == pytest.approx(math.log(3) / 8, abs=1e-12)


@pytest.mark.parametrize("rows", [1, 40, 512])  # 1, 2 and all of the tokens at a time
def test_r_drop_in_pieces_equals_the_plain_form_in_value_and_gradients(rows: int) -> None:
    inputs, gold = two_passes()
    hidden, matrix = (inputs[0], inputs[1]), inputs[2]
    loss = rdrop_loss(hidden, matrix, gold, epsilon=0.1, alpha=5.0, rows=rows, dtype=torch.float64)
    logits = [states @ matrix.T for states in hidden]
    crosses = [F.cross_entropy(each, gold, label_smoothing=0.1, reduction="sum") for each in logits]
    expected = (crosses[0] + crosses[1]) / 2 + 5 / 2 * plain_divergence(*logits)
    torch.testing.assert_close(loss.smoothed, expected)
    for ours, theirs in zip(torch.autograd.grad(loss.smoothed, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
    likelihood = sum(F.cross_entropy(each, gold, reduction="sum") for each in logits) / 2
    torch.testing.assert_close(loss.negative_log_likelihood, likelihood)
    assert loss.correct == (logits[0].argmax(-1) == gold).sum()


def test_two_passes_that_agree_are_one() -> None:
    inputs, gold = two_passes(torch.float32)
    loss = rdrop_loss((inputs[0], inputs[0]), inputs[2], gold, epsilon=0.1, alpha=5.0, rows=8 * 512)
    assert torch.equal(loss.smoothed, output_loss(inputs[0], inputs[2], gold, epsilon=0.1).smoothed)


def test_bfloat16_products_stay_close() -> None:
    inputs, gold = two_passes(torch.float32)
    found, exact = (divergence(inputs, gold, dtype) for dtype in (torch.bfloat16, torch.float32))
    assert found.item() == pytest.approx(exact.item(), rel=0.02)
    for ours, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(exact, inputs), strict=True):
        assert F.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.999


def test_an_update_with_r_drop_runs_the_batch_twice_and_an_evaluation_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(6), model={"dropout": 0.3}, rdrop=5.0)
    batch = batch_of(trainer.corpus, torch.arange(6).numpy(), trainer.bundle.target_tokenizer)
    real, matrix, gold = batch.target_mask, trainer.model.output.weight, batch.target_output[batch.target_mask]

    def logits() -> Tensor:
        hidden = trainer.model.decode(batch.target_input, trainer.model.encode(batch.source, batch.source_mask), batch.source_mask)
        return hidden[real] @ matrix.T

    torch.manual_seed(1)
    loss = trainer._loss(batch, epsilon=0.1).smoothed
    torch.manual_seed(1)
    passes = [logits(), logits()]
    assert not torch.allclose(*passes)
    crosses = [F.cross_entropy(each, gold, label_smoothing=0.1, reduction="sum") for each in passes]
    expected = (crosses[0] + crosses[1]) / 2 + 5 / 2 * plain_divergence(*passes)
    torch.testing.assert_close(loss, expected)
    parameters = list(trainer.model.parameters())
    for ours, theirs in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    trainer.model.eval()
    once = F.cross_entropy(logits(), gold, label_smoothing=0.1, reduction="sum")
    passed = []
    with trainer.model.decoder.register_forward_pre_hook(lambda *_: passed.append(1)):
        torch.testing.assert_close(trainer._loss(batch, epsilon=0.1).smoothed, once)
    assert len(passed) == 1  # a second would be the same without dropout, and take as long


def test_an_evaluation_takes_the_product_of_the_output_in_float32(tmp_path: Path) -> None:
    """Whatever the training's products are in: a loss that models are compared by is not rounded to eight bits."""
    trainer = make_trainer(tmp_path, toy_pairs(6), precision="bf16")
    batch = batch_of(trainer.corpus, torch.arange(6).numpy(), trainer.bundle.target_tokenizer)
    gold, matrix = batch.target_output[batch.target_mask], trainer.model.output.weight
    trainer.model.eval()
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            memory = trainer.model.encode(batch.source, batch.source_mask)
            hidden = trainer.model.decode(batch.target_input, memory, batch.source_mask)[batch.target_mask]
        exact, rounded = (
            F.cross_entropy(hidden.to(dtype).float() @ matrix.to(dtype).float().T, gold, label_smoothing=0.1, reduction="sum")
            for dtype in (torch.float32, torch.bfloat16)
        )
        found = trainer._loss(batch, epsilon=0.1).smoothed
    assert abs(rounded - exact) > 1e-3
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


# Moving average


def test_golden_moving_average() -> None:
    """d is 2/11, 3/12, 4/13 at first, where ``decay`` is more; then ``decay``."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 1.0)
    average = MovingAverage(module, decay=0.28)
    expected = 1.0
    for step, decay in enumerate((2 / 11, 3 / 12, 0.28, 0.28), 1):
        nn.init.constant_(module.weight, step * step + 1.0)
        average.update(step)
        expected = decay * expected + (1 - decay) * (step * step + 1)
        assert average.average["weight"].item() == pytest.approx(expected, rel=1e-6)
    with average.in_place() as trained:
        assert (module.weight.item(), trained["weight"].item()) == (pytest.approx(expected, rel=1e-6), 17)
    assert module.weight.item() == 17


def test_checkpoints_and_evaluations_have_the_average_and_training_goes_on_with_the_rest(tmp_path: Path) -> None:
    """Six updates with and without: the trained weights are the same to the bit."""
    runs: dict[float, list[dict[str, Tensor]]] = {}
    for decay in (0.0, 0.5):
        trainer = make_trainer(tmp_path / str(decay), toy_pairs(20), ema=decay, max_steps=6, evaluate_every=3)
        weights, update = [weights_of(trainer.model)], trainer._update

        def follow(window: Any, update: Any = update, model: nn.Module = trainer.model, weights: list[Any] = weights) -> float:
            norm = update(window)
            weights.append(weights_of(model))
            return float(norm)

        trainer._update = follow  # type: ignore[method-assign]
        judged: list[dict[str, Tensor]] = []
        trainer.validation = trainer.corpus
        trainer.score = lambda bundle, judged=judged: judged.append(weights_of(bundle.model)) or {"bleu": 0.0}  # type: ignore[misc]
        trainer.train()
        runs[decay] = weights
        expected = weights[0]
        for step, trained in enumerate(weights[1:], 1):
            d = min(decay, (1 + step) / (10 + step))
            expected = {name: d * expected[name] + (1 - d) * trained[name] for name in expected}
        saved = final_weights(trainer.run)
        for name, value in expected.items():
            torch.testing.assert_close(saved[name], value, atol=1e-6, rtol=0)
            assert torch.equal(judged[-1][name], saved[name])
            assert torch.equal(value, weights[-1][name]) == (decay == 0)
        assert weights_of(load_bundle(trainer.run).model).keys() == saved.keys()
    for plain, averaged in zip(*runs.values(), strict=True):
        assert all(torch.equal(plain[name], averaged[name]) for name in plain)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
