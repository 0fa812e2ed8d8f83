"""The walk, steps 4 to 9, 13 and 14: attention, one head and one token at a time (Section 3.2)."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dragoman.explain import equations as again
from dragoman.explain import mathml as m
from dragoman.explain.answer import Explanation
from dragoman.explain.attention import matrix_png
from dragoman.explain.steps import Check, Focus, Given, Step, Table, first_numbers, layer_input, lines_of, quoted
from dragoman.html import figure
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.linear import Linear


def attention_of(found: Explanation, stack: str, layer: int, name: str) -> MultiHeadAttention:
    """The module of an attention: ``name`` is self or cross."""
    return cast(MultiHeadAttention, found.module(f"{stack}.layers.{layer}.{name}_attn"))


def input_of(found: Explanation, stack: str, layer: int) -> str:
    """The name of what the self-attention of a layer gets (T, D): the layer's input, in a model with norms first its norm."""
    first = found.bundle.config.model.norm_place == "pre"
    return f"{stack}.{layer}.norm1.output" if first else layer_input(found, stack, layer)


def again_linear(layer: Linear, x: NDArray[Any]) -> again.Numbers:
    """A linear layer once more."""
    bias = None if layer.bias is None else layer.bias.detach().cpu().numpy()
    return again.linear(again.exact(x), layer.weight.detach().cpu().numpy(), bias)


def row_of(layer: Linear, row: int) -> dict[str, Given]:
    """What one output of a linear layer follows from, beside its input."""
    bias = 0.0 if layer.bias is None else layer.bias[row].item()
    return {"weight": layer.weight[row].detach().cpu().numpy(), "bias": bias, "number": row}


def projections(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 4: queries, keys, values."""
    at, place, head = f"{stack}.{focus.layer}.self", focus.source, focus.head
    module, name_of_x = attention_of(found, stack, focus.layer, "self"), input_of(found, stack, focus.layer)
    x, rows, checks = found.trace.array(name_of_x), [], []
    for name, layer, heads in (
        ("queries", module.w_q, module.n_heads),
        ("keys", module.w_k, module.kv_heads),
        ("values", module.w_v, module.kv_heads),
    ):
        ours = found.trace.array(f"{at}.{name}")[place].reshape(heads, -1)[head * heads // module.n_heads]
        computed = again_linear(layer, x[place]).reshape(heads, -1)[head * heads // module.n_heads]
        rows.append((name, *first_numbers(ours, min(6, module.d_k, module.d_v))))
        checks.append(Check.of(name, ours, computed))
    shared = (
        "" if module.kv_heads == module.n_heads else f" Here {module.kv_heads} heads of keys and values serve {module.n_heads} of queries."
    )
    bias, h = " + b" if module.w_q.bias is not None else "", head + 1
    return Step(
        4, "Queries, keys and values", "3.2.2", "",
        "Three learnt matrices make three vectors of every token: the query says what it looks for, the key what it offers, the value "
        f"what it gives. Each of the h = {module.n_heads} heads has its own matrices and d_k = {module.d_k} numbers.{shared}"
        + ("" if not bias else " The biases are the authors' code's; the paper writes none."),
        m.equation(f"Q_{h} = X W_{h}^Q{bias} , W_{h}^Q ∈ ℝ^{{{found.bundle.config.model.d_model} × {module.d_k}}}"),
        (Table.of_vectors(f"Layer {focus.layer + 1}, head {head + 1}, of {quoted(found.source.pieces[place])}", ("",), rows),),
        tuple(checks), lines_of(found.trace, f"{at}.queries"), f"{at}.queries",
        given={"x": name_of_x, **row_of(module.w_q, head * module.d_k)},
    )  # fmt: skip


def scores(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 5: scores."""
    at, head, place = f"{stack}.{focus.layer}.self", focus.head, focus.source
    query, key = (again.exact(found.trace.array(f"{at}.head_{name}")[head]) for name in ("queries", "keys"))  # (T, K)
    ours, d_k = found.trace.array(f"{at}.scores")[head, place], query.shape[-1]
    rows = tuple((piece, float(query[place] @ key[j]), float(ours[j])) for j, piece in enumerate(found.source.pieces))
    return Step(
        5, "Scores", "3.2.1", "1",
        f"The query of {quoted(found.source.pieces[place])} is multiplied with every key. A large product means: this is what I look "
        "for. Products of d_k independent numbers have variance d_k, so they are divided by √d_k; otherwise the softmax would see "
        "extremes and learn nothing.",
        m.equation(f"scores = {{Q K^T}}/√{{d_k}} = {{Q K^T}}/√{d_k} = {{Q K^T}}/{d_k**0.5:.4f}"),
        (Table(f"From {quoted(found.source.pieces[place])} to", ("key", "q · k", "score"), rows),),
        (Check.of("all scores of the head", found.trace.array(f"{at}.scores")[head], again.scores(query, key)),),
        lines_of(found.trace, f"{at}.scores"), f"{at}.scores", given=_heads(at),
    )  # fmt: skip


def mask(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 6: the mask."""
    causal = "decoder" in found.kinds
    layer = min(focus.layer, found.layers("decoder") - 1) if causal else focus.layer
    name = f"decoder.{layer}.self.blocked" if causal else f"{stack}.{layer}.self.blocked"
    blocked = found.trace.array(name) if name in found.trace else np.zeros((1, 1), bool)
    pieces = found.read if causal else found.source.pieces
    count, place = len(pieces), focus.target if causal else focus.source
    may = np.broadcast_to(~blocked.reshape(-1, blocked.shape[-1]), (count, count))
    wanted = np.tril(np.ones((count, count), bool)) if causal else np.ones((count, count), bool)
    rows = tuple((piece, "yes" if may[place, j] else "no") for j, piece in enumerate(pieces))
    prose = (
        "The decoder must not see what it has yet to say: position i attends to itself and to what is before it. The scores of all others "
        "become -∞ inside the softmax, so their weights are exactly 0 and their gradients too."
        + (" The encoder sees all of its text." if "encoder" in found.kinds else "")
        if causal
        else "This model reads in both directions: every token may attend to every other. Only padding is masked, and this "
        "sentence has none."
    )
    return Step(
        6, "The mask", "3.2.3", "", prose,
        m.equation('scores_{i j} = {- ∞} " for " j ' + ("> i" if causal else '" that is padding"')),
        (Table(f"What position {place} may attend to", ("key", "may"), rows),),
        (Check("pairs of positions that may or may not", int(may.sum()), int(wanted.sum()), float((may != wanted).sum()), may.size),),
        lines_of(found.trace, "decoder.causal", name, f"{stack}.{focus.layer}.self.blocked"), name if name in found.trace else "",
    )  # fmt: skip


def softmax(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 7: softmax."""
    at, head, place = f"{stack}.{focus.layer}.self", focus.head, focus.source
    given, ours = found.trace.array(f"{at}.scores")[head], found.trace.array(f"{at}.weights")[head]
    may = _may(found, at, given.shape)
    grown = np.exp(again.exact(given[place]) - given[place].max())
    rows = tuple((piece, float(given[place, j]), float(grown[j]), float(ours[place, j])) for j, piece in enumerate(found.source.pieces))
    return Step(
        7, "Softmax", "3.2.1", "1",
        "The exponentials of the scores, divided by their sum, are weights between 0 and 1 that add up to 1 in each row: how the token "
        "shares out its attention. The greatest score is subtracted first, which changes nothing but keeps the exponentials small.",
        m.equation("α_{i j} = {exp(s_{i j})}/{∑_k exp(s_{i k})}"),
        (Table(f"Where {quoted(found.source.pieces[place])} looks", ("key", "score", "exp", "weight"), rows, ("weight",)),),
        (Check.of("all weights of the head", ours, again.softmax(again.exact(given), may)),),
        lines_of(found.trace, f"{at}.weights"), f"{at}.weights", _matrix(ours, place), _heads(at),
    )  # fmt: skip


def _heads(at: str) -> dict[str, Given]:
    """The names of what equation (1) is made of, of an attention."""
    names = ("head_queries", "head_keys", "head_values", "scores", "weights", "heads")
    return {name.removeprefix("head_"): f"{at}.{name}" for name in names}


def _matrix(weights: NDArray[Any], place: int) -> str:
    side = min(320, 18 * len(weights))
    picture = f'<img src="{matrix_png(weights)}" width="{side}" height="{side}" alt="the weights of the head"/>'
    return figure(picture, f"The head's weights: row {place + 1} is the one beside")


def _may(found: Explanation, at: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Where a query may attend to a key; everywhere without a mask."""
    name = f"{at}.blocked"
    if name not in found.trace:
        return np.ones(shape, bool)
    blocked = found.trace.array(name)
    return np.broadcast_to(~blocked.reshape(-1, blocked.shape[-1]), shape)


def weighted_sum(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 8: the weighted sum of values."""
    at, head, place = f"{stack}.{focus.layer}.self", focus.head, focus.source
    weights, values = found.trace.array(f"{at}.weights")[head], again.exact(found.trace.array(f"{at}.head_values")[head])
    ours = found.trace.array(f"{at}.heads")[head]
    rows = [
        (piece, float(weights[place, j]), *first_numbers(values[j], 4)) for j, piece in enumerate(found.source.pieces)
    ]  # fmt: skip
    total = ("sum", float(again.exact(weights[place]).sum()), *first_numbers(ours[place], 4))
    return Step(
        8, "The weighted sum of the values", "3.2.1", "1",
        f"The values of all tokens, each times its weight, are added up. The head's answer for {quoted(found.source.pieces[place])} is a "
        "mixture of what the others give, mostly of those that it looks at.",
        m.equation(f"head = softmax({{Q K^T}}/√{values.shape[-1]}) V"),
        (Table.of_vectors(f"Layer {focus.layer + 1}, head {head + 1}", ("value of", "weight"), (*rows, total), ("weight",)),),
        (Check.of("the head's output for every token", ours, again.exact(weights) @ values),),
        lines_of(found.trace, f"{at}.heads"), f"{at}.heads", given=_heads(at),
    )  # fmt: skip


def concatenation(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 9: the heads together."""
    at, place = f"{stack}.{focus.layer}.self", focus.source
    module = attention_of(found, stack, focus.layer, "self")
    joined, ours = found.trace.array(f"{at}.concatenated"), found.trace.array(f"{at}.projected")
    h, bias = module.n_heads, "" if module.w_concat.bias is None else " + b"
    matrix = again.exact(module.w_concat.weight.detach().cpu().numpy()).reshape(-1, module.n_heads, module.d_v)  # (D, H, V)
    parts = again.exact(joined[place]).reshape(module.n_heads, module.d_v)
    shares = [float(np.linalg.norm(matrix[:, head] @ parts[head])) for head in range(module.n_heads)]
    rows = tuple((f"head {head + 1}", float(np.linalg.norm(parts[head])), share) for head, share in enumerate(shares))
    return Step(
        9, "All heads together", "3.2.2", "",
        f"The outputs of the {module.n_heads} heads stand side by side, {module.n_heads} · {module.d_v} = {module.n_heads * module.d_v} "
        f"numbers, and one more matrix W^O mixes them into d_model = {module.d_model}. The length of a head's part says how much it adds.",
        m.equation(f"MultiHead = Concat(head_1 , … , head_{h}) W^O{bias} , W^O ∈ ℝ^{{{h * module.d_v} × {module.d_model}}}"),
        (Table(f"Lengths for {quoted(found.source.pieces[place])}", ("", "‖head‖", "‖head · its part of W^O‖"), rows),),
        (Check.of("MultiHead of every token", ours, again_linear(module.w_concat, joined)),),
        lines_of(found.trace, f"{at}.concatenated", f"{at}.projected"), f"{at}.projected",
        given={"x": f"{at}.concatenated", **row_of(module.w_concat, 0)},
    )  # fmt: skip


def masked_self_attention(found: Explanation, focus: Focus) -> Step:
    """Step 13: the decoder's own attention."""
    layer = min(focus.layer, found.layers("decoder") - 1)
    at, head, place = f"decoder.{layer}.self", min(focus.head, found.weights("decoder").shape[1] - 1), focus.target
    query, key = (again.exact(found.trace.array(f"{at}.head_{name}")[head]) for name in ("queries", "keys"))
    ours = found.trace.array(f"{at}.weights")[head]
    computed = again.softmax(again.scores(query, key), np.tril(np.ones(ours.shape, bool)))
    rows = tuple((piece, float(ours[place, j])) for j, piece in enumerate(found.read))
    return Step(
        13, "The decoder's own attention, masked", "3.2.3", "1",
        f"The same equation over what has been said: the start token and what followed so far. The position that chooses "
        f"{quoted(found.target.side.pieces[place])} has just read {quoted(found.read[place])} and sees nothing behind it; its weights "
        "there are exactly 0.",
        m.equation(f"head = softmax(mask({{Q K^T}}/√{query.shape[-1]})) V"),
        (Table(f"Decoder layer {layer + 1}, head {head + 1}, position {place}", ("key", "weight"), rows, ("weight",)),),
        (Check.of("all weights of the head", ours, computed),),
        lines_of(found.trace, f"{at}.blocked", f"{at}.scores", f"{at}.weights"), f"{at}.weights",
        given={**_heads(at), "head": head},
    )  # fmt: skip


def cross_attention(found: Explanation, focus: Focus) -> Step:
    """Step 14: the decoder looks at the text."""
    layer = min(focus.layer, found.layers("cross") - 1)
    at, place = f"decoder.{layer}.cross", focus.target
    module = attention_of(found, "decoder", layer, "cross")
    head, memory = min(focus.head, module.n_heads - 1), found.trace.array("encoder.output")  # (S, D)
    ours = found.trace.array(f"{at}.weights")  # (H, T, S)
    query, key = (again.exact(found.trace.array(f"{at}.head_{name}")[head]) for name in ("queries", "keys"))
    shares = (f"head {head + 1}", "mean of heads")
    rows = tuple((piece, float(ours[head, place, j]), float(ours[:, place, j].mean())) for j, piece in enumerate(found.source.pieces))
    return Step(
        14, "The decoder looks at the text", "3.2.3", "1",
        f"Queries come from the decoder, one for each of the {ours.shape[1]} tokens to say; keys and values from the encoder's output, "
        f"one for each of the {ours.shape[2]} tokens of the text. So the matrix has a row for each target token and a column for each "
        "source token. In the last layer it is often shifted by one; attention is no proof of cause.",
        m.equation("Q = Y W^Q , K = memory W^K , V = memory W^V"),
        (Table(f"To say {quoted(found.target.side.pieces[place])} it looks at", ("source", *shares), rows, shares),),
        (
            Check.of("keys of the memory", found.trace.array(f"{at}.keys"), again_linear(module.w_k, memory)),
            Check.of("all weights of the head", ours[head], again.softmax(again.scores(query, key), _may(found, at, ours[head].shape))),
        ),
        lines_of(found.trace, f"{at}.keys", f"{at}.queries", f"{at}.weights"), f"{at}.weights",
        given={**_heads(at), "head": head},
    )  # fmt: skip
