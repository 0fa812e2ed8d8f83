"""Name tables: used both ways, and everything that is wrong with foreign weights is said at once."""

import pytest
import torch

from dragoman.interop.names import Entry, Ignored, fused, give, linear, norm, same, take

OURS = {
    "embedding.weight": (5, 4), "q.weight": (4, 4), "q.bias": (4,), "k.weight": (2, 4), "k.bias": (2,), "v.weight": (2, 4), "v.bias": (2,),
    "out.weight": (4, 4), "norm.weight": (4,), "bias": (5,),
}  # fmt: skip
TABLE = [
    same("embedding.weight", "wte", "head"),
    *fused(("q", "k", "v"), "attn", transposed=True, rotary=(2, 1, 0)),
    *linear("out", "proj", bias=False),
    *norm("norm", "ln", bias=False),
    Entry(("bias",), "logits_bias", row=True),
]


def foreign() -> dict[str, torch.Tensor]:
    shapes = {"wte": (5, 4), "attn.weight": (4, 8), "attn.bias": (8,), "proj.weight": (4, 4), "ln.weight": (4,), "logits_bias": (1, 5)}
    return {name: torch.randn(shape, generator=torch.Generator().manual_seed(1)) for name, shape in shapes.items()}


def test_there_and_back_is_the_identity() -> None:
    weights = foreign()
    taken = take(TABLE, weights, OURS)
    assert taken.problems == []
    assert {name: tuple(weight.shape) for name, weight in taken.weights.items()} == OURS
    back = give(TABLE, taken.weights)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_fused_transposed_and_rotated_halves() -> None:
    taken = take(TABLE, foreign(), OURS)
    fused_rows = foreign()["attn.weight"].t()  # queries, then keys, then values
    # Two heads of width 2 have one pair each, whose halves are one number; a head of width 4 shows the order.
    assert torch.equal(taken.weights["q.weight"], fused_rows[:4])
    assert torch.equal(taken.weights["v.weight"], fused_rows[6:])
    four = Entry(("x",), "y", rotary=(1,))
    assert four.to_ours(torch.tensor([0.0, 1.0, 2.0, 3.0]), [(4,)])[0].tolist() == [0.0, 2.0, 1.0, 3.0]
    assert four.to_theirs([torch.tensor([0.0, 2.0, 1.0, 3.0])]).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    weights = foreign()
    del weights["ln.weight"]
    weights["attn.bias"] = torch.zeros(7)
    weights["proj.weight"] = torch.zeros(4, 4, dtype=torch.int64)
    weights["head"] = weights["wte"] + 1
    weights |= {"extra": torch.zeros(1), "h.attn.mask": torch.zeros(1)}
    taken = take(TABLE, weights, OURS, ignored=[Ignored(r".*\.mask", "computed")])
    assert taken.ignored == {"h.attn.mask": "computed"}
    assert sorted(taken.problems) == [
        "weight attn.bias has shape (7,), not (8,)",
        "weight extra is not part of this model",
        "weight head differs from wte, and in this model they are one",
        "weight ln.weight is missing",
        "weight proj.weight is torch.int64, not floating point",
    ]


def test_a_shared_weight_under_any_of_its_names() -> None:
    weights = foreign()
    weights["head"] = weights.pop("wte")
    taken = take(TABLE, weights, OURS)
    assert taken.problems == []
    assert torch.equal(taken.weights["embedding.weight"], weights["head"])


def test_weights_of_half_precision_become_float32() -> None:
    taken = take(TABLE, {name: weight.half() for name, weight in foreign().items()}, OURS)
    assert {weight.dtype for weight in taken.weights.values()} == {torch.float32}


@pytest.mark.parametrize("table", [TABLE[1:], [*TABLE, same("bias", "again")]])
def test_a_table_that_forgets_a_weight_or_names_it_twice_is_a_fault_of_the_program(table: list[Entry]) -> None:
    with pytest.raises(ValueError, match="the name table does not fit the model"):
        take(table, foreign(), OURS)
