"""Section 3.4: embeddings times √d_model, one matrix for three uses, and how weights start."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model import Embedding, LearnedPositions, Transformer, build_model
from paper.models import SIZES, random_ids, random_numbers, small_model, token_mask

NAMES = ("encoder.embedding.weight", "decoder.embedding.weight", "output.weight")


def matrices(model: Transformer) -> list[Tensor]:
    return [model.get_parameter(name) for name in NAMES]


def test_the_root_of_d_model_multiplies_in_the_embedding_and_not_in_the_output() -> None:
    embedding = Embedding(7, 16, pad=0)
    tokens, hidden = torch.tensor([[3, 0, 6]]), random_numbers(2, 16)
    torch.testing.assert_close(embedding(tokens), embedding.weight[tokens] * 4)
    torch.testing.assert_close(embedding.logits(hidden), hidden @ embedding.weight.T)


def test_the_model_embeds_and_projects_with_its_matrices() -> None:
    model = small_model(tie="none")
    source, target, output = matrices(model)
    tokens, hidden = random_ids(2, 5), random_numbers(2, 24)
    torch.testing.assert_close(model.encoder.embedding(tokens), source[tokens] * math.sqrt(24))
    torch.testing.assert_close(model.decoder.embedding(tokens), target[tokens] * math.sqrt(24))
    torch.testing.assert_close(model.project(hidden), hidden @ output.T)


@pytest.mark.parametrize(("tie", "distinct"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_tied_matrices_are_one_storage_under_three_names(tie: str, distinct: int) -> None:
    model = small_model(tie=tie)
    source, target, output = matrices(model)
    assert len({matrix.data_ptr() for matrix in matrices(model)}) == distinct
    assert (source is target, target is output) == (tie == "all", tie != "none")
    assert set(NAMES) <= set(model.state_dict())


@pytest.mark.parametrize("tie", ["all", "decoder"])
def test_the_gradient_of_a_tied_matrix_is_the_sum_of_its_uses(tie: str) -> None:
    tied, untied = small_model(tie=tie), small_model(tie="none")
    untied.load_state_dict(tied.state_dict())
    for model in (tied, untied):
        model(random_ids(2, 5), random_ids(2, 4, seed=5), token_mask(3, 5)).square().sum().backward()
    source, target, output = (matrix.grad for matrix in matrices(untied))
    uses = [source, target, output] if tie == "all" else [target, output]
    assert all(use.abs().max() > 1 for use in uses)
    torch.testing.assert_close(tied.output.weight.grad, sum(uses), rtol=1e-5, atol=1e-3)
    if tie == "decoder":
        torch.testing.assert_close(tied.encoder.embedding.weight.grad, source)


@pytest.mark.parametrize("pad", [0, 3])
def test_embeddings_start_normal_with_variance_one_over_d_model_and_a_zero_row_for_padding(pad: int) -> None:
    vocabulary = {"source_vocabulary": 4000, "target_vocabulary": 4000}
    model = build_model(ModelConfig(**SIZES | vocabulary | {"d_model": 64, "pad": pad, "tie": "none"}), seed=1)
    for matrix in matrices(model):
        assert (matrix == 0).all(1).nonzero().tolist() == [[pad]]
        numbers = matrix * 8
        assert numbers.mean().item() == pytest.approx(0, abs=0.01)
        assert numbers.std().item() == pytest.approx(1, rel=0.01)
        assert (numbers.abs() > 2).double().mean().item() == pytest.approx(0.0455, abs=0.002)  # a normal distribution's tails


def test_learned_positions_start_as_embeddings_do_and_no_row_is_zero() -> None:
    weight = LearnedPositions(64, 4000).weight * 8
    assert weight.std().item() == pytest.approx(1, rel=0.01)
    assert weight.abs().amax(1).min() > 0.1


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_matrices_start_xavier_uniform_biases_zero_norms_one(positions: str) -> None:
    sizes = {"d_model": 64, "d_ff": 256, "d_k": 8, "d_v": 48, "norm_place": "pre", "positions": positions}
    model = build_model(ModelConfig(**SIZES | sizes), seed=1)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 2 * (4 + 2) + 2 * (8 + 2)
    for linear in linears:
        bound = math.sqrt(6 / (linear.in_features + linear.out_features))
        assert 0.99 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert linear.bias.count_nonzero() == 0
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


def weights(model: Transformer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_seed_fixes_the_weights_and_leaves_the_random_state() -> None:
    config = ModelConfig(**SIZES)
    before = torch.get_rng_state()
    first = weights(build_model(config, seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(weights(build_model(config, seed=5)), first)
    assert not torch.equal(weights(build_model(config, seed=6)), first)


@pytest.mark.parametrize("ending", [lambda: build_model(ModelConfig(**SIZES)), lambda: build_model(ModelConfig(**SIZES), seed=0)])
def test_a_new_model_is_in_training_mode(ending: Callable[[], Transformer]) -> None:
    assert all(module.training for module in ending().modules())
