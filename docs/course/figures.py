"""The course's pictures, made by Dragoman's own functions: `python figures.py` writes them into figures/, for light and dark pages.

A test holds that the pictures in figures/ are what this program writes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

import torch

from dragoman.model import scaled_dot_product_attention, sinusoids
from dragoman.training.schedule import paper_rate

HERE = Path(__file__).resolve().parent
STYLE = """
svg { background: #fff; font: 13px system-ui, sans-serif }
text { fill: #222 } .quiet { fill: #666 } .line { stroke: #999; fill: none } .ink { fill: #1f5fa8 } .pen { stroke: #1f5fa8; fill: none }
.other { stroke: #b35c00; fill: none } .otherink { fill: #b35c00 } .low { fill: #c8642d } .high { fill: #1f5fa8 }
@media (prefers-color-scheme: dark) {
  svg { background: #14171a } text { fill: #e6e6e6 } .quiet { fill: #a0a0a0 } .line { stroke: #777 } .ink, .high { fill: #7db4f0 }
  .pen { stroke: #7db4f0 } .other { stroke: #f0a35c } .otherink, .low { fill: #f0a35c }
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


PICTURES: dict[str, Callable[[], str]] = {
    "attention-by-hand": attention_by_hand,
    "positions": positions,
    "schedule": schedule,
    "smoothing": smoothing,
}


def main() -> None:
    """Writes every picture."""
    folder = HERE / "figures"
    folder.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
