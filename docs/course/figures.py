"""The course's pictures, made by Dragoman's own functions: `python figures.py` writes them into figures/, for light and dark pages.

What was measured is read from the results in benchmarks/ and from heads.json. A test holds that the pictures in figures/ are what this
program writes.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.explain.attention import head_habits
from dragoman.explain.cost import total_operations
from dragoman.model import causal_mask, padding_mask, scaled_dot_product_attention, sinusoids
from dragoman.presets import count_parameters, resolve_config
from dragoman.training.schedule import paper_rate

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
STYLE = """
svg { background: #fff; font: 13px system-ui, sans-serif }
text { fill: #222 } .quiet { fill: #666 } .line { stroke: #999; fill: none } .ink { fill: #1f5fa8 } .pen { stroke: #1f5fa8; fill: none }
.other { stroke: #b35c00; fill: none } .otherink { fill: #b35c00 } .third { stroke: #1c7a46; fill: none } .thirdink { fill: #1c7a46 }
.dashed { stroke-dasharray: 4 4 } .small { font-size: 11px } .plain { fill-opacity: .1 }
.low { fill: #c8642d } .high { fill: #1f5fa8 }
@media (prefers-color-scheme: dark) {
  svg { background: #14171a } text { fill: #e6e6e6 } .quiet { fill: #a0a0a0 } .line { stroke: #777 } .ink, .high { fill: #7db4f0 }
  .pen { stroke: #7db4f0 } .other { stroke: #f0a35c } .otherink, .low { fill: #f0a35c }
  .third { stroke: #6fd39b } .thirdink { fill: #6fd39b }
}
"""


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """An SVG of these parts, with a title for those who hear it."""
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    return f"{head}\n<style>{STYLE}</style>\n{body}\n</svg>\n"


def word(x: float, y: float, text: str, *, kind: str = "", anchor: str = "middle") -> str:
    """A text at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def block(x: float, y: float, width: float, height: float, *, kind: str = "ink", opacity: float = 1.0) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}" opacity="{opacity:.2f}"/>'


def curve(points: Sequence[tuple[float, float]], *, kind: str = "pen") -> str:
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" class="{kind}" stroke-width="2"/>'


def dot(x: float, y: float, *, kind: str) -> str:
    """A point of a line."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{kind}"/>'


def frame(x: float, y: float, width: float, height: float | None = None) -> str:
    """The outline of a rectangle, or of a square."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{width if height is None else height:g}" class="line"/>'


def attention_by_hand() -> str:
    """Scores, weights and outputs of the three words of attention-by-hand.md."""
    words = ("the", "dog", "sleeps")
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    output, weights = scaled_dot_product_attention(query, query, value)
    scores = query @ query.T / math.sqrt(2)
    parts = []
    for left, title, numbers in ((70, "scores q·k / √2", scores), (310, "weights", weights)):
        parts.append(word(left + 90, 24, title, kind="quiet"))
        for place, name in enumerate(words):
            parts += [word(left + 60 * place + 30, 50, name), word(left - 8, 84 + 44 * place, name, anchor="end")]
            for other in range(3):
                number = float(numbers[place, other])
                x, y = left + 60 * other, 60 + 44 * place
                parts += [block(x, y, 56, 38, opacity=0.15 + 0.6 * number / float(numbers.max())), word(x + 28, y + 24, f"{number:.2f}")]
    parts += [
        word(280, 212, "each row of the left goes through a softmax", kind="quiet"),
        word(598, 24, "what each word takes", kind="quiet"),
    ]
    for place, name in enumerate(words):
        mixed = ", ".join(f"{number:.2f}" for number in output[place].tolist())
        parts.append(word(598, 84 + 44 * place, f"{name}: ({mixed})"))
    return picture(700, 220, "Nine scores, nine weights and three mixtures of values for the words the, dog, sleeps", parts)


def positions() -> str:
    """A strip of the first 32 positions, width 32: a row each, blue above 0, orange below."""
    table, size = sinusoids(32, 32), 14
    parts = [word(8, 18, "position 0", anchor="start", kind="quiet"), word(8, 40 + 32 * size, "position 31", anchor="start", kind="quiet")]
    parts.append(word(8 + 32 * size, 18, "column 31", anchor="end", kind="quiet"))
    for row, numbers in enumerate(table.tolist()):
        for column, number in enumerate(numbers):
            kind = "high" if number >= 0 else "low"
            parts.append(block(8 + size * column, 26 + size * row, size, size, kind=kind, opacity=abs(number)))
    return picture(
        16 + 64 * size, 48 + 50 * size, "The sinusoids of Section 3.5: short waves in the left columns, long ones in the right", parts
    )


def schedule() -> str:
    """Equation (3) for the base and the big model."""

    def line(d_model: int) -> list[tuple[float, float]]:
        steps = [1, *range(500, 100_001, 500)]
        return [(60 + step / 200, 220 - 2.8e5 * paper_rate(step, d_model=d_model, warmup_steps=4000)) for step in steps]

    parts = [curve([(60, 20), (60, 220), (560, 220)], kind="line"), curve(line(512)), curve(line(1024), kind="other")]
    for step in (4000, 50_000, 100_000):
        parts.append(word(60 + step / 200, 238, f"{step:,}", kind="quiet"))
    for rate in (0.0002, 0.0004, 0.0006):
        parts.append(word(54, 224 - 2.8e5 * rate, f"{rate:g}", kind="quiet", anchor="end"))
    parts += [
        word(120, 40, "base, d_model 512", kind="ink", anchor="start"),
        word(96, 205, "big, d_model 1024", kind="otherink", anchor="start"),
    ]
    return picture(600, 250, "The learning rate rises for 4,000 steps and falls with the root of the step", parts)


def smoothing() -> str:
    """The target distribution over ten words, the third of which is right, with ε 0 and 0.3."""
    parts = []
    for left, epsilon in ((20, 0.0), (310, 0.3)):
        parts.append(word(left + 125, 20, f"ε = {epsilon:g}" + (", drawn larger than the paper's 0.1" if epsilon else ""), kind="quiet"))
        for place in range(10):
            share = epsilon / 10 + (1 - epsilon if place == 2 else 0)
            parts.append(block(left + 25 * place, 180 - 140 * share, 20, 140 * share, kind="ink" if place == 2 else "otherink"))
        parts.append(curve([(left, 180), (left + 245, 180)], kind="line"))
        parts.append(word(left + 60, 198, "the right word", kind="quiet"))
    return picture(580, 210, "All on the right word, or some for every word", parts)


def result(path: Path) -> Any:
    """What a script has measured and left."""
    return json.loads(path.read_text(encoding="utf-8"))


def distance() -> str:
    """The share of right answers at growing distances, after the same time, from benchmarks/distance.json."""
    found = result(BENCHMARKS / "distance.json")
    rows = found["rows"]
    last = math.log2(rows[-1]["distance"] / rows[0]["distance"])

    def place(row: dict[str, Any], kind: str) -> tuple[float, float]:
        return 70 + 420 * math.log2(row["distance"] / rows[0]["distance"]) / last, 220 - 190 * float(row[kind]["right"])

    parts = [curve([(60, 20), (60, 220), (500, 220)], kind="line"), curve([(60, 196.25), (500, 196.25)], kind="line dashed")]
    for kind, pen, ink, y in (
        ("Transformer", "pen", "ink", 52),
        ("LSTM with attention", "third", "thirdink", 92),
        ("LSTM", "other", "otherink", 150),
    ):
        points = [place(row, kind) for row in rows]
        parts += [curve(points, kind=pen), *(dot(x, y_, kind=ink) for x, y_ in points), word(512, y, kind, kind=ink, anchor="start")]
    for row in rows:
        parts.append(word(place(row, "LSTM")[0], 238, str(row["distance"]), kind="quiet"))
    parts += [word(54, y, text, kind="quiet", anchor="end") for y, text in ((34, "100 %"), (129, "50 %"), (224, "0"))]
    parts += [
        word(280, 258, "signs between the cause and the answer", kind="quiet"),
        word(512, 200, "guessing", kind="quiet", anchor="start"),
    ]
    title = f"Right answers after {found['seconds']:g} seconds of learning: the LSTM's end at a distance, the Transformer's do not"
    return picture(670, 268, title, parts)


def heads() -> str:
    """Where the encoder's heads look in one sentence, from heads.json: a square for each, a row of it for each token that looks."""
    found, size = result(HERE / "heads.json"), 8
    count, parts = len(found["pieces"]), []
    for layer, weights in enumerate(found["encoder"]):
        for head, habit in enumerate(head_habits(np.array(weights))):
            left, top = 22 + (size * count + 44) * head, 34 + (size * count + 44) * layer
            parts.append(word(left + size * count / 2, top - 8, f"{layer + 1}.{head + 1}: {habit['mostly']}", kind="quiet"))
            parts.append(frame(left, top, size * count))
            for query, row in enumerate(weights[head]):
                parts += [
                    block(left + size * key, top + size * query, size, size, opacity=math.sqrt(weight))
                    for key, weight in enumerate(row)
                    if weight >= 0.02
                ]
    side = len(found["encoder"][0]) * (size * count + 44)
    return picture(
        side, len(found["encoder"]) * (size * count + 44) + 10, "Sixteen heads of a trained encoder, and where each token looks", parts
    )


def residual_and_norm() -> str:
    """The losses of the four variants, from benchmarks/residual_and_norm.json."""
    found = result(BENCHMARKS / "residual_and_norm.json")
    parts, depths = [], list(found["depths"])
    for number, depth in enumerate(depths):
        left = 60 + 210 * number
        parts += [curve([(left, 30), (left, 190), (left + 170, 190)], kind="line"), word(left + 85, 20, f"{depth} layers", kind="quiet")]
        for (name, variant), (pen, ink) in zip(found["depths"][depth].items(), PENS, strict=True):
            losses = [min(loss, 3.0) for loss in variant["losses"]]
            step = 170 / max(len(losses) - 1, 1)
            parts.append(curve([(left + step * place, 190 - 160 * loss / 3) for place, loss in enumerate(losses)], kind=pen))
            if number == 0:
                parts.append(word(60 + 165 * list(found["depths"][depth]).index(name), 226, name, kind=ink, anchor="start"))
        parts.append(word(left + 85, 206, f"{found['updates']} updates", kind="quiet"))
    parts += [word(54, y, text, kind="quiet", anchor="end") for y, text in ((34, "3"), (194, "0"))]
    return picture(700, 236, "With sums and norms the loss falls at every depth; without the sums it stays high from six layers on", parts)


def feed_forward() -> str:
    """The share of right answers after so many updates, for each width, from benchmarks/feed_forward.json."""
    found = result(BENCHMARKS / "feed_forward.json")["right"]
    parts = [curve([(60, 20), (60, 220), (500, 220)], kind="line"), curve([(60, 196.25), (500, 196.25)], kind="line dashed")]
    moments = [int(moment) for moment in next(iter(found.values()))]
    places = {moment: 70 + 420 * math.log2(moment / moments[0]) / math.log2(moments[-1] / moments[0]) for moment in moments}
    for (width, shares), (pen, ink) in zip(found.items(), reversed(PENS), strict=True):
        points = [(places[int(moment)], 220 - 190 * share) for moment, share in shares.items()]
        parts += [curve(points, kind=pen), *(dot(x, y, kind=ink) for x, y in points)]
        text = f"d_ff {width}" if int(width) else "none"
        parts.append(word(512, 120 - 24 * list(found).index(width), text, kind=ink, anchor="start"))
    parts += [word(x, 238, f"{moment:,}", kind="quiet") for moment, x in places.items()]
    parts += [word(54, y, text, kind="quiet", anchor="end") for y, text in ((34, "100 %"), (129, "50 %"), (224, "0"))]
    parts += [word(280, 258, "updates", kind="quiet"), word(512, 200, "guessing", kind="quiet", anchor="start")]
    return picture(590, 268, "Right answers after so many updates: the wider the feed-forward network, the sooner", parts)


def masks() -> str:
    """Who may look at whom: the decoder's mask, and that of a sentence of three words padded to five."""
    parts = []
    padded = padding_mask(torch.tensor([[7, 8, 9, 0, 0]]) != 0)
    rows = (("decoder: nothing that comes later", causal_mask(5)), ("padding: at no time", padded))
    for number, (title, mask) in enumerate(rows):
        left = 70 + 300 * number
        parts.append(word(left + 75, 20, title, kind="quiet"))
        for query, keys in enumerate(mask.expand(*mask.shape[:-2], 5, 5).reshape(5, 5).tolist()):
            parts.append(word(left - 8, 52 + 30 * query, f"{query + 1}", kind="quiet", anchor="end"))
            parts += [block(left + 30 * key, 34 + 30 * query, 26, 26, kind="ink" if may else "ink plain") for key, may in enumerate(keys)]
        parts.append(word(left + 75, 206, "full: may look", kind="quiet small"))
    return picture(600, 216, "The decoder's mask is a triangle; padding is a column that nobody sees", parts)


def three_models() -> str:
    """The stacks of the three kinds of model, and who looks at whom in them."""
    kinds = {
        "encoder-decoder": ("the source looks at itself", "the target looks back", "and at the source", "next token"),
        "decoder-only": ("the text looks back", "next token"),
        "encoder-only": ("the text looks at itself", "the masked tokens"),
    }
    parts = []
    for number, (name, boxes) in enumerate(kinds.items()):
        left = 12 + 226 * number
        parts.append(word(left + 100, 216, name))
        for place, text in enumerate(boxes):
            last = place == len(boxes) - 1
            parts += [
                block(left, 166 - 42 * place, 200, 30, kind="otherink plain" if last else "ink plain"),
                frame(left, 166 - 42 * place, 200, 30),
            ]
            parts.append(word(left + 100, 186 - 42 * place, text, kind="otherink" if last else "ink"))
            parts += [] if last else [curve([(left + 100, 166 - 42 * place), (left + 100, 154 - 42 * place)], kind="line")]
    return picture(690, 226, "The same layers three times: what looks at what, and what is predicted, from below upwards", parts)


def chain(title: str, boxes: Sequence[tuple[str, str]], *, columns: int) -> str:
    """Boxes with a title and a line each, one leading to the next, so many in a row."""
    parts = []
    for place, (name, line) in enumerate(boxes):
        left, top = 10 + 172 * (place % columns), 12 + 76 * (place // columns)
        parts += [block(left, top, 150, 54, kind="ink plain"), frame(left, top, 150, 54)]
        parts += [word(left + 75, top + 23, name, kind="ink"), word(left + 75, top + 42, line, kind="quiet small")]
        if place % columns < columns - 1 and place < len(boxes) - 1:
            parts.append(curve([(left + 150, top + 27), (left + 172, top + 27)], kind="line"))
    return picture(10 + 172 * columns, 14 + 76 * math.ceil(len(boxes) / columns), title, parts)


def from_scratch() -> str:
    """The eight functions of the exercise, and what each needs."""
    boxes = (
        ("attention", "equation (1)"), ("heads", "3.2.2"), ("mask", "3.2.3"), ("positions", "3.5"),
        ("encoder layer", "all of these"), ("loss", "5.4"), ("schedule", "equation (3)"), ("beam step", "6.1"),
    )  # fmt: skip
    return chain("Eight functions: four parts of a layer, the layer, and what trains and uses it", boxes, columns=4)


def first_translator() -> str:
    """From two files to a better translator."""
    boxes = (("two files", "a sentence a line"), ("train", "a run folder"), ("report.html", "how it went"), ("evaluate", "where it fails"))
    return chain("Two files are trained on, the report is read, errors are found, and the next training is better", boxes, columns=4)


def imported() -> str:
    """What an import does, from left to right."""
    parts = []
    steps = (
        (10, "their folder", "config.json, weights, tokenizer"),
        (240, "a table of names", "every weight used, or said why not"),
        (470, "a bundle", "left only if both agree"),
    )
    for left, title, line in steps:
        parts += [frame(left, 30, 200, 60), word(left + 100, 56, title), word(left + 100, 76, line, kind="quiet small")]
    parts += [curve([(210, 60), (240, 60)]), curve([(440, 60), (470, 60)])]
    parts += [curve([(110, 90), (110, 130), (570, 130), (570, 90)], kind="other")]
    parts.append(word(340, 150, "the same input through both programs: logits, outputs, ids of texts", kind="otherink"))
    return picture(680, 164, "An import reads a folder, names every weight, and compares both programs before it leaves a bundle", parts)


def many_gpus() -> str:
    """Milliseconds of an update of the base model on 1, 8 and 64 GPUs: computing at 35 % of an A100, adding up at 100 GB/s."""
    config = resolve_config("base")
    whole, gradients = total_operations(config, 30.0) / config.training.max_steps, 4 * count_parameters(config.model)
    parts = [
        word(90, 20, "computing", kind="ink", anchor="start"),
        word(190, 20, "adding up gradients at 100 GB/s", kind="otherink", anchor="start"),
    ]
    for number, gpus in enumerate((1, 8, 64)):
        computing = 1000 * whole / (gpus * 312e12 * 0.35)
        adding = 1000 * 2 * gradients * (gpus - 1) / gpus / 100e9
        y = 34 + 44 * number
        parts += [word(80, y + 20, f"{gpus} GPU{'s' if gpus > 1 else ''}", anchor="end"), block(90, y, 5 * computing, 30)]
        parts += [block(90 + 5 * computing, y, 5 * adding, 30, kind="otherink")] if adding else []
        parts.append(word(96 + 5 * (computing + adding), y + 20, f"{computing:.3g} + {adding:.3g} ms", kind="quiet", anchor="start"))
    return picture(690, 170, "Computing shrinks with the GPUs, adding up the gradients does not", parts)


def since_the_paper() -> str:
    """What stands around attention and feed-forward in the paper's layer, GPT-2's, BERT's and Llama's; from below upwards."""
    stacks = {
        "the paper": ("sinusoids", "attention", "+ then norm", "ReLU", "+ then norm"),
        "GPT-2": ("learned table", "norm", "attention", "+", "norm", "GELU", "+"),
        "BERT": ("learned table, norm", "attention", "+ then norm", "GELU", "+ then norm"),
        "Llama": ("no table", "RMSNorm", "attention, rotated", "+", "RMSNorm", "SwiGLU", "+"),
    }
    parts = []
    for number, (name, boxes) in enumerate(stacks.items()):
        left = 12 + 172 * number
        parts.append(word(left + 75, 262, name))
        for place, text in enumerate(boxes):
            kind = "otherink" if "norm" in text.lower() else "ink"
            parts += [block(left, 214 - 32 * place, 150, 26, kind=f"{kind} plain"), frame(left, 214 - 32 * place, 150, 26)]
            parts.append(word(left + 75, 231 - 32 * place, text, kind=kind if "norm" in text.lower() else ""))
            parts.append(curve([(left + 75, 214 - 32 * place), (left + 75, 208 - 32 * place)], kind="line"))
    return picture(700, 272, "One layer of the paper, of GPT-2, of BERT and of Llama, read from below", parts)


PENS = (("pen", "ink"), ("other", "otherink"), ("third", "thirdink"), ("line", "quiet"))

PICTURES: dict[str, Callable[[], str]] = {
    "attention-by-hand": attention_by_hand,
    "positions": positions,
    "schedule": schedule,
    "smoothing": smoothing,
    "distance": distance,
    "heads": heads,
    "masks": masks,
    "three-models": three_models,
    "from-scratch": from_scratch,
    "first-translator": first_translator,
    "feed-forward": feed_forward,
    "residual-and-norm": residual_and_norm,
    "imported": imported,
    "many-gpus": many_gpus,
    "since-the-paper": since_the_paper,
}


def main() -> None:
    """Writes every picture."""
    folder = HERE / "figures"
    folder.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
