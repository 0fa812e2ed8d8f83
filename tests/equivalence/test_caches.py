"""Keys and values as a search keeps them, beside plain tensors that are copied whole each time."""

import random

import pytest
import torch
from torch import Tensor

from dragoman.decoding.caches import Growing, Memory, write

HEADS, SIZES = 3, (2, 5)


def alike(found: Growing | Memory, expected: tuple[Tensor, Tensor], length: int) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one[:, :, :length], other)


@pytest.mark.parametrize("as_columns", [False, True])
def test_a_memory_of_other_sentences(as_columns: bool) -> None:
    made = [torch.randn(6, 4, HEADS, size) for size in SIZES]  # (B, S, H, w)
    memory = Memory.of(*made, as_columns=as_columns)
    assert memory.as_columns == as_columns
    assert memory.keys.transpose(2, 3).is_contiguous() == as_columns
    assert memory.keys.is_contiguous() != as_columns
    expected = [each.transpose(1, 2).clone() for each in made]
    alike(memory, (expected[0], expected[1]), 4)

    memory.move(torch.tensor([5, 4]), torch.tensor([0, 2]))
    for each in expected:
        each[[0, 2]] = each[[5, 4]]
    memory = memory.first(4)
    alike(memory, (expected[0][:4], expected[1][:4]), 4)

    filled = Memory.of(*made, as_columns=as_columns, fewest=7)
    assert filled.keys.shape == (6, HEADS, 7, SIZES[0])
    assert all(torch.equal(each, torch.zeros_like(each)) for each in (filled.keys[:, :, 4:], filled.values[:, :, 4:]))
    assert torch.equal(filled.keys[:, :, :4], made[0].transpose(1, 2))

    memory = memory.select(torch.tensor([3, 3, 1]))
    assert memory.as_columns == as_columns
    alike(memory, (expected[0][[3, 3, 1]], expected[1][[3, 3, 1]]), 4)


def test_positions_of_all_sentences_lie_one_after_another() -> None:
    """Read in any other order, a product of many sentences takes several times as long."""
    several, alone = (Growing.of(torch.empty(0), sentences, HEADS, SIZES, 8) for sentences in (4, 1))
    for each in several:
        assert each.permute(2, 0, 1, 3).is_contiguous()
    assert alone.keys.untyped_storage().data_ptr() == alone.values.untyped_storage().data_ptr()  # written by one call


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("sentences", [1, 7])
def test_what_grows_is_what_was_written_whatever_happens_to_it(seed: int, sentences: int) -> None:
    """Positions are written, room is made, sentences leave, change places and are doubled, positions close up."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    cache, length = Growing.of(torch.empty(0), sentences, HEADS, SIZES, 4), 0
    keys, values = (torch.empty(sentences, HEADS, 0, size) for size in SIZES)
    for _ in range(40):
        now = len(keys)
        what = draw.choice(["write", "write", "leave", "move", "select", "close up"])
        if what == "write":
            count = draw.randint(1, 3)
            if length + count > cache.room:
                cache = Growing.holding(cache, 2 * (length + count))
            made = torch.randn(now * count, HEADS * sum(SIZES))
            write(cache, length, made)
            new = made.split([HEADS * size for size in SIZES], 1)
            keys, values = (
                torch.cat((old, part.view(now, count, HEADS, -1).transpose(1, 2)), 2) for old, part in zip((keys, values), new, strict=True)
            )
            length += count
        elif what == "leave" and now > 1:
            cache, keys, values = cache.first(now - 1), keys[:-1], values[:-1]
        elif what == "move" and now > 2:
            origin, place = torch.tensor([now - 1, now - 2]), torch.tensor([0, now - 1])
            positions = torch.arange(length)[:, None]
            cache.move(cache.rows(positions, origin), cache.rows(positions, place))
            keys, values = (each.clone().index_copy_(0, place, each[origin]) for each in (keys, values))
        elif what == "select":
            chosen = torch.tensor([draw.randrange(now) for _ in range(draw.choice([1, 2, now]))])
            cache = cache.select(cache.rows(torch.arange(cache.room)[:, None], chosen), len(chosen))
            keys, values = keys[chosen], values[chosen]
        elif what == "close up" and length > 2:
            kept = torch.stack([torch.randperm(length)[:2].sort().values for _ in range(now)])  # (B, 2) of each sentence
            cache.begin_with(cache.taken(cache.rows(kept.t(), torch.arange(now)), now))
            keys, values = (each.gather(2, kept[:, None, :, None].expand(-1, HEADS, -1, each.size(3))) for each in (keys, values))
            length = 2
        alike(cache, (keys, values), length)
    alike(Growing.holding(cache.part(0, length), length + 1), (keys, values), length)
