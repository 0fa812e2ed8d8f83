"""Table 1, measured: what a layer of each kind takes on growing lengths, how much of it must wait, and how far a gradient has to go.

    python benchmarks/table1.py --output benchmarks/table1.json

One thread. At each length the kinds take turns, and a figure is the median of the rounds: milliseconds of the processor for the forward
pass alone, and for the forward and the backward pass. Layers are those of the models: multi-head attention with its projections, PyTorch's
LSTM, a gated convolution, and multi-head attention in which each position sees r/2 positions to either side (computed in blocks, so that
its work grows with n and not with n²).

Beside the times stand what is counted and what Table 1 says. `products` is the longest chain of matrix products of which each needs the one
before, found in autograd's graph. `path` is the number of steps from the last output to the first input: layers on top of one another until
the gradient of the last position reaches the first, which is found by following it; within the recurrent layer it is the number of steps
from one position to the next, found in the graph. Table 1's log_k(n) is for dilated convolutions; these are not, so n / k stands there.

The plot, table1.svg beside the result, shows the time of forward and backward passes.
"""

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.explain.cost import LayerCost, convolutional_cost, recurrent_cost, restricted_cost, self_attention_cost
from dragoman.html import escaped
from dragoman.model.attention import Attended, MultiHeadAttention
from dragoman.model.convolutional import GatedConvolution
from dragoman.model.recurrent import CellState, LSTMCell

PRODUCTS = ("MmBackward", "AddmmBackward", "BmmBackward", "BaddbmmBackward", "ScaledDotProduct")
KINDS = ("self-attention", "recurrent", "convolutional", "restricted self-attention")


def main() -> None:
    """Measures, prints, and writes the result and its plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--width", type=int, default=128, help="d")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kernel", type=int, default=3, help="k")
    parser.add_argument("--neighbourhood", type=int, default=32, help="r")
    parser.add_argument("--batch", type=int, default=8, help="sequences at once")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = layers_of(options)
    rows = [row for n in options.lengths for row in at_length(n, layers, options)]
    facts = {
        "command": " ".join(["python", "benchmarks/table1.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": 1,
        "torch": torch.__version__,
        "width": options.width,
        "kernel": options.kernel,
        "neighbourhood": options.neighbourhood,
        "batch": options.batch,
        "rounds": options.rounds,
        "faster": {kind: turning_point(rows, kind) for kind in KINDS[1:]},
        "rows": rows,
    }
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        options.output.with_suffix(".svg").write_text(plot(rows, options), encoding="utf-8")


class Neighbourhood(nn.Module):
    """Equation (1) where each position sees those at most ``reach`` away: blocks of so many queries, each with three of keys."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Attended:
        """query, key, value (B, H, T, K); the output, without weights. Takes no mask."""
        reach, length = self.reach, query.size(2)
        blocks = -(-length // reach)
        padded = [F.pad(each, (0, 0, 0, blocks * reach - length)) for each in (query, key, value)]
        query, key, value = (each.unflatten(2, (blocks, reach)) for each in padded)  # (B, H, blocks, reach, K)
        keys, values = (torch.cat([F.pad(each, (0, 0, 0, 0, 1, 1))[:, :, place : place + blocks] for place in range(3)], 3)
                        for each in (key, value))  # (B, H, blocks, 3·reach, K)  # fmt: skip
        place = torch.arange(blocks * reach).view(blocks, reach, 1)
        seen = torch.arange(3 * reach).view(1, 1, -1) + (torch.arange(blocks).view(blocks, 1, 1) - 1) * reach
        allowed = ((place - seen).abs() <= reach) & (seen >= 0) & (seen < length) | (place >= length)
        output = F.scaled_dot_product_attention(query, keys, values, attn_mask=allowed)
        return Attended(output.flatten(2, 3)[:, :, :length], None)


def layers_of(options: argparse.Namespace) -> dict[str, Callable[[Tensor], Tensor]]:
    """A layer of each kind, from (B, n, d) to (B, n, d)."""
    attention, restricted = (MultiHeadAttention(options.width, options.heads) for _ in range(2))
    restricted.attention = Neighbourhood(options.neighbourhood // 2)
    recurrent = nn.LSTM(options.width, options.width, batch_first=True)
    convolution, side = GatedConvolution(options.width, options.kernel), (options.kernel - 1) // 2
    ends = (0, 0, side, options.kernel - 1 - side)
    calls: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: attention(x, x, x), lambda x: recurrent(x)[0], lambda x: convolution(F.pad(x, ends)), lambda x: restricted(x, x, x),
    )  # fmt: skip
    return dict(zip(KINDS, calls, strict=True))


def at_length(n: int, layers: dict[str, Callable[[Tensor], Tensor]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The facts of every kind on sequences of n positions."""
    x = torch.randn(options.batch, n, options.width, requires_grad=True)
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in layers}
    for turn in range(options.rounds + 1):
        for kind, layer in layers.items():
            measured = seconds_of(layer, x)
            if turn:  # the first warms up
                times[kind].append(measured)
    formulas = {
        "self-attention": self_attention_cost(n, options.width),
        "recurrent": recurrent_cost(n, options.width),
        "convolutional": convolutional_cost(n, options.width, options.kernel, dilated=False),
        "restricted self-attention": restricted_cost(n, options.width, options.neighbourhood),
    }
    rows = []
    for kind, layer in layers.items():
        forward, both = (statistics.median(each) for each in zip(*times[kind], strict=True))
        path = cells_between(n, options.width) if kind == "recurrent" else hops(layer, n, options.width)
        with torch.backends.mkldnn.flags(enabled=False):  # oneDNN's LSTM is one node, in which nothing is seen
            chain = longest_chain(layer(x[:1]))
        rows.append({
            "n": n, "kind": kind, "forward_ms": round(1000 * forward, 3), "forward_backward_ms": round(1000 * both, 3),
            "products": chain, "path": path, "table_1": as_record(formulas[kind]),
        })  # fmt: skip
    return rows


def as_record(cost: LayerCost) -> dict[str, float]:
    """Table 1's row with numbers of at most one decimal."""
    return {name: round(value, 1) for name, value in cost._asdict().items()}


def seconds_of(layer: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """Of the processor, for a forward pass without a graph, and for a forward and a backward pass."""
    with torch.no_grad():
        began = time.process_time()
        layer(x)
        forward = time.process_time() - began
    began = time.process_time()
    layer(x).sum().backward()
    return forward, time.process_time() - began


def longest_chain(output: Tensor) -> int:
    """The most matrix products on any way through autograd's graph of a tensor: each needs the result of the one before."""
    longest: dict[Any, int] = {}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        before = [each for each, _ in node.next_functions if each is not None]  # type: ignore[union-attr]
        if missing := [each for each in before if each not in longest]:
            waiting += missing
            continue
        waiting.pop()
        longest[node] = max((longest[each] for each in before), default=0) + is_product(node)
    return longest[output.grad_fn]


def is_product(node: Any) -> bool:
    """Whether a node of autograd's graph is a matrix product (or attention as a whole)."""
    return node.name().startswith(PRODUCTS)


def hops(layer: Callable[[Tensor], Tensor], n: int, width: int) -> int:
    """Layers until the gradient of the last position reaches the first: each goes from where the last came to as far as it gets."""
    position, count = n - 1, 0
    while position > 0:
        x = torch.randn(1, n, width, requires_grad=True)
        (gradient,) = torch.autograd.grad(layer(x)[:, position].square().sum(), x)
        reached = int(gradient.abs().amax((0, 2)).nonzero()[0])
        if reached >= position:
            raise SystemExit(f"a gradient at position {position} gets no further")
        position, count = reached, count + 1
    return count


class Between(torch.autograd.Function):
    """The identity, which leaves a mark in autograd's graph between two steps."""

    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> tuple[Tensor, ...]:
        """The same values."""
        return tuple(value.clone() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """The same gradients."""
        return gradients


def cells_between(n: int, width: int) -> int:
    """Steps on the shortest way in autograd's graph from the last output of an LSTM's cell to the first input: its marks."""
    cell, inputs = LSTMCell(width, width), [torch.randn(1, width, requires_grad=True) for _ in range(n)]
    state = cell.start(torch.zeros(1, width))
    for place, each in enumerate(inputs):
        if place:
            state = CellState(*Between.apply(*state))  # type: ignore[no-untyped-call]
        state = cell(cell.w_input(each), state)
    seen, edge = {state.hidden.grad_fn}, [state.hidden.grad_fn]
    for steps in range(n):  # first all that lies before the next mark, then what lies behind it
        behind = []
        while edge:
            node = edge.pop()
            if getattr(node, "variable", None) is inputs[0]:
                return steps
            for each, _ in node.next_functions:  # type: ignore[union-attr]
                if each is not None and each not in seen:
                    seen.add(each)
                    (behind if each.name() == "BetweenBackward" else edge).append(each)
        edge = behind
    raise SystemExit("the last output does not depend on the first input")


def turning_point(rows: Sequence[dict[str, Any]], kind: str) -> list[int]:
    """The lengths at which forward and backward through self-attention is faster than through this kind."""
    times = {(row["n"], row["kind"]): row["forward_backward_ms"] for row in rows}
    return [n for n in sorted({row["n"] for row in rows}) if times[n, "self-attention"] < times[n, kind]]


WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 720, 400, 70, 34, 46, 190
STROKES = (("#3b82f6", "none"), ("#d97706", "8 4"), ("#16a34a", "2 3"), ("#db2777", "10 3 2 3"))


def plot(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> str:
    """Milliseconds of forward and backward over n, both axes logarithmic."""
    lengths = sorted({row["n"] for row in rows})
    values = [row["forward_backward_ms"] for row in rows]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    span = math.log2(lengths[-1] / lengths[0]) or 1

    def x(n: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(n / lengths[0]) / span

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(value) - low) / max(high - low, 1)

    title = f"A layer of each kind, d = {options.width}: forward and backward, ms"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escaped(title)}" '
        'font-family="sans-serif" font-size="12" fill="#6b7280">',
        f'<text x="{LEFT}" y="18" font-size="14">{escaped(title)}</text>',
    ]
    for power in range(low, high + 1):
        parts.append(f'<path d="M{LEFT} {y(10**power):.1f}H{WIDTH - RIGHT}" stroke="#9ca3af" stroke-opacity="0.4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:g}</text>')
    parts += [f'<text x="{x(n):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{n}</text>' for n in lengths]
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">n, positions</text>')
    ends = {kind: y([row["forward_backward_ms"] for row in rows if row["kind"] == kind][-1]) for kind in KINDS}
    lowest = TOP
    for kind, _ in sorted(ends.items(), key=lambda each: each[1]):  # labels in the order of the curves' ends, none over another
        colour, dash = STROKES[KINDS.index(kind)]
        points = " ".join(f"{x(row['n']):.1f},{y(row['forward_backward_ms']):.1f}" for row in rows if row["kind"] == kind)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
        lowest = max(lowest + 16, ends[kind])
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{lowest + 4:.1f}" fill="{colour}">{escaped(kind)}</text>')
    return "".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()
