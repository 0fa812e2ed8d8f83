"""What the server says in words and in tables, so that the page finds none of its own."""

import json

import pytest

from dragoman.explain.answer import explain
from dragoman.explain.words import reference_words
from explained import DEPARTURES, explained, walked
from small_bundles import fx_rand


def test_a_candidate_that_is_behind_says_where_and_by_how_much() -> None:
    found = explain(fx_rand(), "ona bek tilu rem sova kip")
    assert found.beams is not None
    record = found.record(kinds=[])
    first, *others = record["candidates"]
    assert first["why"] == "it is the first"
    for each, candidate in zip(others, found.beams.candidates[1:], strict=True):
        at = candidate.behind_from
        if at is None:
            assert each["why"].endswith("the length penalty decides")
            continue
        sums = [sum(one.hypothesis.token_scores[: at + 1]) for one in (candidate, found.beams.candidates[0])]
        said = f"it fell behind at token {at + 1}, “{each['pieces'][at]}”: log P so far {sums[0]:.2f}, of the first {sums[1]:.2f}"
        assert each["why"] == said
    table = record["tables"]["candidates"]
    assert [row[1].removesuffix(f" (ended by {each['stop']})") for row, each in zip(table["rows"], record["candidates"], strict=True)] == [
        each["text"] for each in record["candidates"]
    ]
    assert [row[-1] for row in table["rows"]] == [each["why"] for each in record["candidates"]]
    kept = [sum(node[3] for node in step["nodes"]) for step in record["beam_tree"]]
    assert [row[1].count(" · ") + 1 for row in record["tables"]["tree"]["rows"]] == kept


def test_a_reference_is_followed_until_it_goes_another_way() -> None:
    steps = [{"piece": piece, "rank": 2, "logprob": 0.0} for piece in ("a", " b", "</s>")]
    here = "Your translation has “{}” here: rank 2, probability 1.0000."
    apart = "Your translation went another way at token {}; the table below follows it."
    assert reference_words(["a", " b", "</s>"], steps) == [here.format(piece) for piece in ("a", "b", "</s>")]
    assert reference_words(["a", "c", "d", "e"], steps) == [here.format("a"), here.format("b"), *[apart.format(2)] * 2]


@pytest.mark.parametrize("name", DEPARTURES)
def test_every_kind_and_every_computation_names_what_is_there(name: str) -> None:
    found = explained(name)
    record = found.record(kinds=[])
    for kind, said in record["kinds"].items():
        weights = found.weights(kind)
        assert weights.shape[2:] == (len(said["queries"]), len(said["keys"]))
        assert all(0 <= at < len(said["keys"]) for at in said["rests"])
        assert all(said["tensor"].replace("%", str(layer)) in found.trace for layer in range(len(weights)))
    steps = [step.record() for step in walked(name)]
    assert json.loads(json.dumps(steps))
    parts = [part for step in steps for each in step["again"] for part in (*each["of"], each["model"]) if isinstance(part, dict)]
    assert parts
    assert {part["tensor"] for part in parts} <= set(found.trace)
    for step, walked_step in zip(steps, walked(name), strict=True):
        marked = [text for source in step["sources"] for text, is_marked in source["lines"] if is_marked]
        assert sorted(text.split(maxsplit=1)[1] for text in marked) == sorted(line.text.strip() for line in walked_step.lines)
