"""The walk, steps 10 to 12: what stands around a sub-layer, the feed-forward network, and layer upon layer (Sections 3.1 and 3.3)."""

import re
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dragoman.explain import equations as again
from dragoman.explain import mathml as m
from dragoman.explain.answer import Explanation
from dragoman.explain.steps import Check, Focus, Given, Step, Table, first_numbers, last_norm, layer_input, layer_output, lines_of, quoted
from dragoman.explain.walk_attention import again_linear, row_of
from dragoman.model.layers import FeedForward, GatedFeedForward
from dragoman.model.linear import Linear

_ORDERS = {
    "post": ("the norm follows the sum, as in the paper", "{norm}(x + Sublayer(x))"),
    "pre": ("the norm comes before the sub-layer, which is not the paper's order", "x + Sublayer({norm}(x))"),
    "deepnorm": ("the sum weighs its input by α, which is not the paper's", "{norm}(α x + Sublayer(x)) , α = {alpha:.4f}"),
}
_INSIDE = {
    "relu": ("max(0, ·)", "max(0 , x W_1 + b_1)"),
    "gelu": ("GELU", "GELU(x W_1 + b_1)"),
    "gelu-tanh": ("GELU by tanh", "GELU(x W_1 + b_1)"),
    "swish": ("swish", "swish(x W_1 + b_1)"),
    "swiglu": ("twice, one times the swish of the other", "(swish(x W_g + b_g) ⊙ (x W_1 + b_1))"),
}


def norm_again(module: nn.Module, x: NDArray[Any]) -> again.Numbers:
    """A norm once more."""
    if isinstance(module, nn.LayerNorm):
        bias = 0.0 if module.bias is None else module.bias.detach().cpu().numpy()
        return again.layer_norm(again.exact(x), module.weight.detach().cpu().numpy(), bias, module.eps)
    module = cast(nn.RMSNorm, module)
    return again.rms_norm(again.exact(x), module.weight.detach().cpu().numpy(), cast(float, module.eps))


def residual(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 10: residual and norm around the self-attention."""
    at, place, config = f"{stack}.{focus.layer}", focus.source, found.bundle.config.model
    module = found.module(f"{stack}.layers.{focus.layer}.norm1")
    goes_in = layer_input(found, stack, focus.layer)
    x, added = again.exact(found.trace.array(goes_in)), again.exact(found.trace.array(f"{at}.self.projected"))
    summed, normed = found.trace.array(f"{at}.norm1.summed"), found.trace.array(f"{at}.norm1.output")
    weight = _deepnorm_alpha(found, stack) if config.norm_place == "deepnorm" else 1.0
    before = x if config.norm_place == "pre" else again.exact(summed)
    words, formula = _ORDERS[config.norm_place]
    name = "RMSNorm" if config.norm == "rms" else "LayerNorm"
    does = "brings each vector to a mean square of 1" if config.norm == "rms" else "brings each vector to mean 0 and deviation 1"
    vectors = (("x", x), ("Sublayer", added), ("sum", summed), ("normed", normed))
    rows = tuple(
        (label, float(vector[place].mean()), float(vector[place].std()), *first_numbers(vector[place], 4)) for label, vector in vectors
    )
    return Step(
        10, "Residual and norm", "3.1", "",
        f"What attention gives is added to what went in, so a layer changes the vector rather than replaces it, and gradients have a "
        f"straight way down. The norm {does}, then scales it by a learnt gain. Here: {words}.",
        m.equation(formula.format(norm=name, alpha=weight)),
        (Table.of_vectors(f"Of {quoted(found.source.pieces[place])}", ("", "mean", "deviation"), rows),),
        (
            Check.of("the sums of every token", summed, weight * x + added),
            Check.of(f"{name} of every token", normed, norm_again(module, before)),
        ),
        lines_of(found.trace, f"{at}.norm1.summed"), f"{at}.norm1.summed",
        given={
            "x": goes_in, "added": f"{at}.self.projected", "alpha": weight, "sum": f"{at}.norm1.summed", "normed": f"{at}.norm1.output",
            "norm_first": config.norm_place == "pre",
            **_norm_given(module),
        },
    )  # fmt: skip


def _norm_given(module: nn.Module) -> dict[str, Given]:
    """What a norm has learnt, and its ε; of RMSNorm nothing is shifted, and nothing subtracted."""
    norm = cast(nn.LayerNorm, module)
    bias = getattr(norm, "bias", None)
    learnt = {"gain": norm.weight.detach().cpu().numpy(), **({} if bias is None else {"shift": bias.detach().cpu().numpy()})}
    return {**learnt, "epsilon": norm.eps, "kind": "LayerNorm" if isinstance(module, nn.LayerNorm) else "RMSNorm"}


def _deepnorm_alpha(found: Explanation, stack: str) -> float:
    """The weight of x in DeepNorm's sums, by its own formula."""
    layers = {kind: found.layers(kind) for kind in found.kinds}
    encoder, decoder = layers.get("encoder", 0), layers.get("decoder", 0)
    if "cross" not in layers:
        return float((2 * (encoder or decoder)) ** 0.25)
    return float((3 * decoder) ** 0.25) if stack == "decoder" else float(0.81 * (encoder**4 * decoder) ** (1 / 16))


def feed_forward(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 11: the feed-forward network."""
    at, place, config = f"{stack}.{focus.layer}", focus.source, found.bundle.config.model
    last = last_norm(found, stack, focus.layer)
    name_of_x = f"{at}.norm{last if config.norm_place == 'pre' else last - 1}.output"
    x = found.trace.array(name_of_x)
    module = found.module(f"{stack}.layers.{focus.layer}.feed_forward")
    ours, inner = found.trace.array(f"{at}.feed_forward.output"), found.trace.array(f"{at}.feed_forward.inner")[place]
    hidden, computed = _feed_forward_again(module, x)
    strongest = np.argsort(-np.abs(inner), kind="stable")[:5]
    active = int((inner > 0).sum())
    rows = (*((f"unit {unit}", float(inner[unit])) for unit in strongest), ("units above 0", active), ("units", inner.size))
    does, inside = _INSIDE[config.activation]
    formula = f"{inside} W_2 + b_2" if config.feed_forward_bias else re.sub(r" \+ b_.", "", f"{inside} W_2")
    note = "" if config.activation == "relu" else " The paper's is max(0, ·)."
    return Step(
        11, "The feed-forward network", "3.3", "2",
        f"Each position goes by itself, and all through the same network: from d_model = {ours.shape[-1]} up to d_ff = {inner.size} "
        f"numbers, {does}, and down again. {active} of the {inner.size} units are above 0 for this token.{note}",
        m.equation(f"FFN(x) = {formula} , W_1 ∈ ℝ^{{{ours.shape[-1]} × {inner.size}}}"),
        (Table(f"The strongest units for {quoted(found.source.pieces[place])}", ("", "value"), rows),),
        (Check.of("inside, of this token", inner, hidden[place]), Check.of("the outputs of every token", ours, computed)),
        lines_of(found.trace, f"{at}.feed_forward.inner", f"{at}.feed_forward.output"), f"{at}.feed_forward.output",
        given=_feed_forward_given(module, at, name_of_x, int(strongest[0])),
    )  # fmt: skip


def _feed_forward_given(module: nn.Module, at: str, x: str, unit: int) -> dict[str, Given]:
    """Of the paper's network what its strongest unit and its first output follow from."""
    if isinstance(module, GatedFeedForward):
        return {}
    first, inner, second = cast(FeedForward, module)
    activation = inner[0] if isinstance(inner, nn.Sequential) else inner
    if not isinstance(activation, nn.ReLU):
        return {}
    inside = {"x": x, "inner": f"{at}.feed_forward.inner", **row_of(cast(Linear, first), unit)}
    return {**inside, **{f"{name}_2": value for name, value in row_of(cast(Linear, second), 0).items()}}


def _feed_forward_again(module: nn.Module, x: NDArray[Any]) -> tuple[again.Numbers, again.Numbers]:
    """Inside and output once more."""
    if isinstance(module, GatedFeedForward):
        hidden = again.swish(again_linear(module.w_gate, x)) * again_linear(module.w_in, x)
        return hidden, again_linear(module.w_out, hidden)
    first, inner, second = cast(FeedForward, module)
    activation = inner[0] if isinstance(inner, nn.Sequential) else inner
    before = again_linear(cast(Linear, first), x)
    if isinstance(activation, nn.GELU):
        hidden = again.gelu_tanh(before) if activation.approximate == "tanh" else again.gelu(before)
    else:
        hidden = again.swish(before) if isinstance(activation, nn.SiLU) else again.relu(before)
    return hidden, again_linear(cast(Linear, second), hidden)


def stack_of_layers(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 12: layer upon layer."""
    place, count = focus.source, found.layers("encoder" if stack == "encoder" else "decoder")
    vectors = [again.exact(found.trace.array(layer_input(found, stack, layer))[place]) for layer in range(count)]
    output = found.trace.array(f"{stack}.output")
    leaves = layer_output(found, stack, count - 1)
    end = found.trace.array(leaves)
    vectors.append(again.exact(end[place]))
    goes_in = "embedding" if found.bundle.config.model.positions == "rotary" else "embedding + position"
    names = [goes_in, *(f"after layer {layer + 1}" for layer in range(count))]
    rows = tuple(
        (name, float(np.linalg.norm(vector)), _cosine(vector, vectors[max(number - 1, 0)]), _cosine(vector, vectors[0]))
        for number, (name, vector) in enumerate(zip(names, vectors, strict=True))
    )
    final = found.module(f"{stack}.final_norm")
    expected = again.exact(end) if isinstance(final, nn.Identity) else norm_again(final, end)
    return Step(
        12, f"N = {count} layers", "3.1", "",
        f"The same two sub-layers, {count} times, each with weights of its own: what comes out of one layer goes into the next. The "
        f"vector of {quoted(found.source.pieces[place])} moves away from the embedding that it was, and takes in what stands around it."
        + ("" if isinstance(final, nn.Identity) else " As the norms come first here, a last one follows the stack."),
        m.equation(f"x_{{l + 1}} = Layer_l(x_l) , l = 0 … {count - 1}"),
        (Table(f"Of {quoted(found.source.pieces[place])}", ("", "length", "cosine with the one before", "with the first"), rows),),
        (Check.of("what leaves the stack", output, expected),),
        lines_of(found.trace, leaves.replace(".output", ".summed")), leaves, given={"x": leaves, "first": f"{stack}.input"},
    )  # fmt: skip


def _cosine(one: again.Numbers, other: again.Numbers) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0
