"""Section 3.5: the sinusoids against golden values and the properties that the paper claims for them."""

import math

import pytest
import torch
from torch import Tensor

from dragoman.model import LearnedPositions, PositionalEncoding, RotaryPositions, sinusoids
from paper.models import random_ids, random_numbers, small_model

GOLDEN_512 = {
    (1, 0): 0.8414709848, (1, 1): 0.5403023059, (1, 2): 0.8218561900, (1, 3): 0.5696950087, (10, 256): 0.0998334166,
    (10, 257): 0.9950041653, (100, 510): 0.0103661436, (100, 511): 0.9999462701, (511, 510): 0.0529471727, (511, 511): 0.9985973147,
}  # fmt: skip


def test_golden_sinusoids() -> None:
    table = sinusoids(512, 512)
    assert {place: table[place].item() for place in GOLDEN_512} == pytest.approx(GOLDEN_512, abs=1e-7)
    assert table[0].tolist() == [0.0, 1.0] * 256
    assert sinusoids(2, 4)[1].tolist() == pytest.approx([0.841471, 0.540302, 0.0099998, 0.99995], abs=1e-6)


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_a_shift_in_position_is_a_rotation_of_each_pair(offset: int) -> None:
    table = sinusoids(300, 64).double().view(300, 32, 2)  # sine and cosine of each frequency
    sine, cosine = table[offset].unbind(-1)
    rotation = torch.stack((torch.stack((cosine, sine), -1), torch.stack((-sine, cosine), -1)), -2)  # (32, 2, 2)
    shifted = (rotation @ table[:-offset, :, :, None]).squeeze(-1)
    torch.testing.assert_close(shifted, table[offset:], atol=1e-6, rtol=0)


def test_wavelengths_are_a_geometric_progression_that_ends_at_9647_times_two_pi() -> None:
    """The text says 10000·2π, which its own formula reaches only in the limit of wide models."""
    sine, cosine = sinusoids(2, 512)[1].double().view(256, 2).unbind(-1)
    wavelengths = 2 * math.pi / torch.atan2(sine, cosine)
    assert wavelengths[0].item() == pytest.approx(2 * math.pi)
    assert wavelengths[-1].item() == pytest.approx(9646.62 * 2 * math.pi, rel=1e-6)
    torch.testing.assert_close(wavelengths[1:] / wavelengths[:-1], torch.full((255,), 10_000 ** (2 / 512)).double(), atol=0, rtol=1e-6)


def test_the_authors_code_has_another_formula_which_is_not_ours() -> None:
    exponent = torch.arange(256, dtype=torch.float64) / 255  # k / (d/2 − 1), where the paper has 2i / d
    theirs = (10_000**-exponent).sin()
    assert theirs[:4].tolist() == pytest.approx([0.841471, 0.821779, 0.801805, 0.781650], abs=1e-6)
    ours = sinusoids(2, 512)[1, 0::2].double()
    assert (ours - theirs)[1:].abs().max() > 0.001
    assert (ours - theirs)[1].item() == pytest.approx(0.8218561900 - 0.821779, abs=1e-6)


def test_the_concatenated_variant_moves_columns_and_nothing_else() -> None:
    paper = sinusoids(50, 16)
    assert torch.equal(sinusoids(50, 16, concatenated=True), torch.cat((paper[:, 0::2], paper[:, 1::2]), 1))


@pytest.mark.parametrize("module", [PositionalEncoding(16, 40), LearnedPositions(16, 40)], ids=["sinusoids", "learned"])
def test_positions_are_added_from_the_start_given_and_end_with_the_table(module: PositionalEncoding | LearnedPositions) -> None:
    x = random_numbers(2, 10, 16)
    table = module(torch.zeros(1, 40, 16))[0]
    assert torch.equal(module(x), x + table[:10])
    assert torch.equal(module(x, 30), x + table[30:])
    with pytest.raises(ValueError, match=r"41 positions exceeds the model's 40.*max_positions"):
        module(x, 31)


def table_of(positions: str) -> Tensor | None:
    return None if positions == "learned" else sinusoids(32, 24, concatenated=positions == "sinusoidal-concat")


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-concat", "learned"])
def test_both_stacks_add_the_positions_of_the_settings(positions: str) -> None:
    model = small_model(positions=positions)
    for stack in (model.encoder, model.decoder):
        expected = stack.positions.weight if isinstance(stack.positions, LearnedPositions) else table_of(positions)
        assert expected is not None
        assert torch.equal(stack.positions(torch.zeros(1, 32, 24))[0], expected)
    assert ("encoder.positions.weight" in dict(model.named_parameters())) == (positions == "learned")


def test_a_model_built_without_storage_has_its_table_all_the_same() -> None:
    """No bundle stores the table, so weights read into such a model do not bring it."""
    with torch.device("meta"):
        module = PositionalEncoding(16, 40)
    assert torch.equal(module.pe[0], sinusoids(40, 16))
    assert list(module.parameters()) == []


def test_only_positions_tell_word_order_apart() -> None:
    """Without them attention sees a set (3.5), so equal tokens at different places would have equal memories."""
    model = small_model()
    tokens = random_ids(1, 1).expand(1, 5)
    assert model.encode(tokens).diff(dim=1).abs().amax(-1).min() > 0.01
    model.encoder.positions.pe.zero_()
    assert model.encode(tokens).diff(dim=1).abs().max() < 1e-5


@pytest.mark.parametrize(("positions", "places"), [("sinusoidal", 2), ("sinusoidal-concat", 2), ("rotary", 4), ("learned", 0)])
def test_all_parts_of_a_model_have_one_table_in_memory(positions: str, places: int) -> None:
    """It is as large as d_model · max_positions numbers, and rotations of positions have one in every layer."""
    model = small_model(positions=positions)
    tables = [module.pe for module in model.modules() if isinstance(module, PositionalEncoding | RotaryPositions)]
    assert len(tables) == places
    assert len({table.data_ptr() for table in tables}) == min(places, 1)
