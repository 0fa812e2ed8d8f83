"""Adam (Section 5.3): β₁ 0.9, β₂ 0.98, ε 1e-9, against steps worked out by hand."""

import math

import pytest
import torch
from torch import nn

from dragoman.config import Config
from dragoman.model.build import build_model
from dragoman.training.optimizer import build_optimizer


def step_through(gradients: list[float], *, rate: float, start: float = 0.0) -> list[float]:
    """The parameter after each step of the paper's Adam with these gradients."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, start)
    optimizer = build_optimizer(module, Config().training)
    found = []
    for gradient in gradients:
        module.weight.grad = torch.full_like(module.weight, gradient)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        found.append(module.weight.item())
    return found


def test_steps_worked_out_by_hand() -> None:
    # Step 1, g = 2:   m̂ = 2, v̂ = 4, so the step is 0.1 · 2/2.
    # Step 2, g = -1:  m = 0.9·0.2 - 0.1 = 0.08, m̂ = 0.08/0.19; v = 0.98·0.08 + 0.02 = 0.0984, v̂ = 0.0984/0.0396.
    # Step 3, g = 0:   m = 0.072, m̂ = 0.072/0.271; v = 0.096432, v̂ = 0.096432/0.058808.
    second = 0.1 * (0.08 / 0.19) / math.sqrt(0.0984 / 0.0396)
    third = 0.1 * (0.072 / 0.271) / math.sqrt(0.096432 / 0.058808)
    assert (second, third) == pytest.approx((0.02671077, 0.02074774), abs=1e-8)
    assert step_through([2.0, -1.0, 0.0], rate=0.1, start=1.0) == pytest.approx([0.9, 0.9 - second, 0.9 - second - third], abs=1e-6)


@pytest.mark.parametrize(("gradient", "step"), [(1e-9, 0.5), (9e-9, 0.9), (-3e-9, -0.75), (1e-3, 1.0)])
def test_epsilon_is_a_billionth_and_stands_outside_the_root(gradient: float, step: float) -> None:
    """The first step is rate · g / (|g| + ε), whatever the betas."""
    assert step_through([gradient], rate=1.0) == pytest.approx([-step], rel=1e-5)


def test_settings_reach_the_optimiser() -> None:
    training = Config().with_values(training={"adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-3}).training
    (group,) = build_optimizer(nn.Linear(1, 1), training).param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.9), 1e-3, 0)


def test_a_shared_matrix_is_stepped_once() -> None:
    sizes = {"d_model": 8, "d_ff": 8, "n_heads": 1, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    config = Config().with_values(model=sizes | {"source_vocabulary": 9, "target_vocabulary": 9})
    model = build_model(config.model, seed=1)
    optimizer = build_optimizer(model, config.training)
    stepped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert len(stepped) == len(set(stepped))
    assert stepped.count(id(model.output.weight)) == 1
    before = model.output.weight.detach().clone()
    tokens = torch.tensor([[4, 5, 6]])
    model(tokens, tokens).sum().backward()
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.step()
    moved = (model.encoder.embedding.weight.detach() - before).abs()
    assert model.encoder.embedding.weight is model.output.weight
    assert moved.max().item() == pytest.approx(0.25, rel=1e-4)  # twice would be 0.5
