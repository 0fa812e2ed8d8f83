"""Faults of position tables that users of peer tools reported: B09 and B11."""

import pytest
import torch

from dragoman.errors import UsageError
from dragoman.model import PositionalEncoding, sinusoids
from dragoman.presets import resolve_config
from paper.models import small_model


@pytest.mark.parametrize("width", [5, 1])
@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-concat"])
def test_b09_an_odd_width_is_an_error_of_the_settings(width: int, positions: str) -> None:
    with pytest.raises(UsageError, match=f"d_model={width} must be even"):
        resolve_config(overrides=[f"model.d_model={width}", "model.n_heads=1", f"model.positions={positions}"])


@pytest.mark.parametrize("width", [5, 1])
def test_b09_an_odd_width_is_an_error_of_the_table(width: int) -> None:
    for table in (sinusoids, lambda length, width: PositionalEncoding(width, length)):
        with pytest.raises(ValueError, match=f"d_model={width} must be even"):
            table(4, width)


def test_b09_learned_positions_may_have_an_odd_width() -> None:
    config = resolve_config(overrides=["model.d_model=5", "model.n_heads=1", "model.positions=learned"])
    assert config.model.d_model == 5


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.004), (torch.float16, 0.0005)])
def test_b11_the_table_is_computed_in_double_precision_and_cast_last(dtype: torch.dtype, tolerance: float) -> None:
    position = torch.tensor([256, 257, 3001], dtype=torch.float64)[:, None]
    angles = position / 10_000 ** (torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    exact = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    table = PositionalEncoding(16).to(dtype)(torch.zeros(1, 5000, 16, dtype=dtype))[0, [256, 257, 3001]]
    assert table.dtype == dtype
    assert (table.double() - exact).abs().max() <= tolerance
    assert (table[0] - table[1]).abs().max().item() == pytest.approx(0.859, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_b11_a_model_in_half_precision_tells_position_256_from_257(dtype: torch.dtype) -> None:
    model = small_model(max_positions=300).to(dtype)
    same_token = torch.full((1, 300), 7)
    for stack in (model.encoder, model.decoder):
        embedded = stack.positions(stack.embedding(same_token))
        assert (embedded[0, 256] - embedded[0, 257]).abs().max() > 0.5


def test_b11_a_default_of_half_precision_does_not_reach_the_table() -> None:
    exact = sinusoids(3002, 16)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(sinusoids(3002, 16), exact)
    finally:
        torch.set_default_dtype(torch.float32)
