"""What of the walk others can compute again without the model: which equation, of which tensors, and the model's number beside it.

The page does so in the browser. An operand is a number, a list of numbers, or a part of a tensor as ``/api/v1/trace`` gives it:
``{"tensor": name, "index": [head]}`` is the matrix of a head, ``{"tensor": name, "rows": "3:4"}`` one row, also with ``"cols"``. What an
equation needs beside its operands is in the step's ``given``.
"""

from collections.abc import Mapping
from typing import Any

from dragoman.explain.answer import Explanation
from dragoman.explain.steps import Focus, Step

Operand = Any
"""A number, a list of numbers, or a mapping that names a part of a tensor."""


def computations(step: Step, found: Explanation, focus: Focus) -> list[dict[str, Any]]:
    """``{"what", "by", "of", "model"}`` of each: its name in words, its equation, operands, and what the model has; none needs too much."""
    given, tensor = step.given, step.tensor
    place, output = focus.source, focus.target
    match step.number:
        case 2:
            return [_again("the whole vector", "scaled", [], _row(tensor, place))]
        case 3 if "x" in given:
            concatenated = found.bundle.config.model.positions == "sinusoidal-concat"
            return [_again("embedding + PE", "placed", [_row(given["x"], place), place, concatenated], _row(given["sum"], place))]
        case 4 | 9 | 15 if "x" in given:
            at = place if step.number < 15 else output
            number = int(str(given["number"]))
            return [_again(f"number {number} of {tensor}", "linear", [_row(given["x"], at)], _number(tensor, at, number))]
        case 5:
            return [_scores(given, focus.head)]
        case 6 if tensor:
            blocked = found.trace.array(tensor)
            return [_again("masked pairs", "masked", list(blocked.shape), int(blocked.sum()))]
        case 7:
            return [_weights(given, focus.head, found)]
        case 8:
            operands = [_head(given[name], focus.head) for name in ("weights", "values")]
            return [_again("the head's output for every token", "joined", operands, _head(given["heads"], focus.head))]
        case 10:
            x, added, summed, normed = (_row(given[name], place) for name in ("x", "added", "sum", "normed"))
            first = x if given["norm_first"] else summed
            return [_again("the sum", "summed", [x, added], summed), _again(str(given["kind"]), "normed", [first], normed)]
        case 11 if "inner" in given:
            unit, number = int(str(given["number"])), int(str(given["number_2"]))
            inner = _row(given["inner"], place)
            return [
                _again(f"unit {unit}, max(0, x W_1 + b_1)", "unit", [_row(given["x"], place)], _number(given["inner"], place, unit)),
                _again(f"number {number} of FFN(x)", "unitsJoined", [inner], _number(tensor, place, number)),
            ]
        case 12:
            x, first, (_, length, _, cosine) = _row(given["x"], place), _row(given["first"], place), step.tables[0].rows[-1]
            return [
                _again("the length after the last layer", "length", [x], length),
                _again("its cosine with the first", "cosine", [x, first], cosine),
            ]
        case 13 | 14:
            head = int(str(given["head"]))
            return [_scores(given, head), _weights(given, head, found)]
        case 16:
            score = float(found.target.token_scores[output])
            return [_again("log p of what stands there", "logProbability", [_row(given["x"], output)], score)]
        case 17 if found.beams is not None:
            each = [candidate.hypothesis for candidate in found.beams.candidates]
            operands = [[one.log_probability for one in each], [len(one.tokens) for one in each], found.beams.alpha]
            return [_again("all scores", "penalised", operands, [one.score for one in each])]
        case 18 if "x" in given:
            return [_again("the loss of the chosen token", "loss", [_row(given["x"], output)], given["loss"])]
        case 19:
            return [_again("equation (3)", "rate", [], given["rate"])]
    return []


def _again(what: str, by: str, of: list[Operand], model: Operand) -> dict[str, Any]:
    return {"what": what, "by": by, "of": of, "model": model}


def _scores(given: Mapping[str, Any], head: int) -> dict[str, Any]:
    queries, keys, model = (_head(given[name], head) for name in ("queries", "keys", "scores"))
    return _again("all scores of the head", "scores", [queries, keys], model)


def _weights(given: Mapping[str, Any], head: int, found: Explanation) -> dict[str, Any]:
    mask = str(given["weights"]).replace("weights", "blocked")
    operands = [_head(given["scores"], head), *([{"tensor": mask}] if mask in found.trace else [])]
    return _again("all weights of the head", "weights", operands, _head(given["weights"], head))


def _head(name: object, head: int) -> Operand:
    return {"tensor": name, "index": [head]}


def _row(name: object, place: int) -> Operand:
    return {"tensor": name, "rows": f"{place}:{place + 1}"}


def _number(name: object, place: int, number: int) -> Operand:
    return {**_row(name, place), "cols": f"{number}:{number + 1}"}
