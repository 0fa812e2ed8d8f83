"""The paper's Figures 3 to 5 for any sentence: where each token looks, as SVG.

Shapes:  H heads   Tq, Tk query and key positions

Queries stand above, keys below, and a line says how much a query looks at a key, in the colour of its head: its width grows with the
weight, its opacity with the root of it, so that small weights are seen too.
Text is text in the picture, whatever a user wrote. A picture reads in light and in dark.
"""

import base64
import colorsys
import math
import struct
import unicodedata
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.explain.answer import Weights
from dragoman.explain.pieces import shown_piece
from dragoman.html import escaped

LEAST = 0.02
"""Weights below are not drawn: lines that nobody can see."""

_SIZE = 15  # of the letters
_NEAREST, _FARTHEST, _ROOM = 27, 46, 640  # from one token to the next, at least and at most; what all of them may take
_HEIGHT = 200  # of the lines
_WIDEST = 150  # of a label
_STYLE = (
    ":root{color:#1b1b1b;background:#fff}@media(prefers-color-scheme:dark){:root{color:#eaeaea;background:#14161a}}"
    ".q:hover path,.q:focus path{stroke-opacity:1}svg:has(.q:hover) .q:not(:hover) path{stroke-opacity:.03}"
)


def colour(head: int) -> str:
    """A colour for a head, from 0: hues that lie apart, at a lightness that stands out on white and on black."""
    hue = (0.6 + head * 0.381966) % 1.0
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, 0.52, 0.75))


def attention_svg(
    weights: Weights,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    heads: Sequence[int] | None = None,
    token: int | None = None,
    title: str = "Attention",
    alone: bool = True,
) -> str:
    """A picture of attention weights (H, Tq, Tk) for the given heads, all unless given, from every query or from one ``token`` alone.

    ``alone``: it is to be a file of its own, else a part of a page. Raises ValueError where the weights have other sizes than the tokens.
    """
    if weights.ndim != 3 or weights.shape[1:] != (len(queries), len(keys)):
        raise ValueError(f"weights of shape {weights.shape} for {len(queries)} queries and {len(keys)} keys; give (heads, queries, keys)")
    shown = list(range(len(weights))) if heads is None else list(heads)
    above, below = _room(queries), _room(keys)
    count = max(len(queries), len(keys))
    pitch = max(_NEAREST, min(_FARTHEST, _ROOM // count))
    width = pitch * (count + 2)
    top, bottom = above + 14, above + 14 + _HEIGHT
    height = bottom + 14 + below
    parts = [_head(title, width, height, alone), f"<desc>{escaped(_description(shown, token, queries))}</desc>"]
    xs = [pitch * (place + 1.5) for place in range(count)]
    marks = _marks(weights, shown, token, xs, bottom) if token is not None else []
    parts += marks
    for place, piece in enumerate(queries):
        lines = _lines(weights, shown, place, xs, top, bottom) if token in (None, place) else []
        parts.append(f'<g class="q" tabindex="0"><title>{escaped(_said(weights, shown, place, queries, keys))}</title>')
        parts.append(_label(piece, xs[place], top - 6, "start", strong=place == token))
        parts += [*lines, "</g>"]
    parts += [_label(piece, xs[place], bottom + (14 if marks else 6), "end") for place, piece in enumerate(keys)]
    return "".join([*parts, "</svg>"])


def _head(title: str, width: float, height: float, alone: bool) -> str:
    style = f"<style>{_STYLE}</style>" if alone else ""
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {size} role="img" '
        f'font-family="system-ui, sans-serif" font-size="{_SIZE}" fill="currentColor">{style}<title>{escaped(title)}</title>'
    )


def _description(heads: Sequence[int], token: int | None, queries: Sequence[str]) -> str:
    which = ", ".join(str(head + 1) for head in heads)
    origin = "every token" if token is None else f"the token {queries[token].strip()!r} alone"
    return f"Attention of head {which} from {origin}: queries above, keys below; links below {LEAST} are left out."


def _said(weights: Weights, heads: Sequence[int], place: int, queries: Sequence[str], keys: Sequence[str]) -> str:
    """Where a query looks most, in words."""
    mean = weights[list(heads), place].mean(0)
    best = np.argsort(-mean, kind="stable")[:3]
    return f"{queries[place].strip()}: " + ", ".join(f"{keys[key].strip()} {mean[key]:.2f}" for key in best)


def _lines(weights: Weights, heads: Sequence[int], place: int, xs: Sequence[float], top: float, bottom: float) -> list[str]:
    step = min(3.0, (_NEAREST - 8) / max(len(heads), 1))
    groups = []
    for number, head in enumerate(heads):
        shift = (number - (len(heads) - 1) / 2) * step
        lines = []
        for key in np.flatnonzero(weights[head, place] >= LEAST).tolist():
            weight = float(weights[head, place, key])
            way = f"M{xs[place] + shift:.0f} {top:.0f}L{xs[key] + shift:.0f} {bottom:.0f}"
            lines.append(f'<path d="{way}" stroke-width="{0.8 + 2.7 * weight:.1f}" stroke-opacity="{math.sqrt(weight):.2f}"/>')
        groups += [f'<g class="h{head}" stroke="{colour(head)}">{"".join(lines)}</g>'] if lines else []
    return groups


def _marks(weights: Weights, heads: Sequence[int], token: int, xs: Sequence[float], bottom: float) -> list[str]:
    """Below the lines, for each key a box in the colour of each head, as strong as its weight."""
    size = min(9.0, (_NEAREST - 4) / max(len(heads), 1))
    return [
        f'<rect class="h{head}" x="{xs[key] + (number - len(heads) / 2) * size:.1f}" y="{bottom + 1:.0f}" width="{size:.1f}" height="9" '
        f'fill="{colour(head)}" fill-opacity="{math.sqrt(weights[head, token, key]):.2f}"/>'
        for key in range(weights.shape[2])
        for number, head in enumerate(heads)
        if weights[head, token, key] >= LEAST
    ]


def _label(piece: str, x: float, y: float, anchor: str, *, strong: bool = False) -> str:
    text = shown_piece(piece)
    short = _cut(text)
    weight = ' font-weight="700"' if strong else ""
    whole = f"<title>{escaped(text)}</title>" if short != text else ""
    return (
        f'<text transform="translate({x + _SIZE / 3:.1f} {y:.0f}) rotate(-90)" text-anchor="{anchor}" unicode-bidi="plaintext"{weight}>'
        f"{whole}{escaped(short)}</text>"
    )


def text_width(text: str) -> float:
    """About how wide a text is, in the size of its letters: no font is at hand to measure it."""
    wide = sum(1.05 if unicodedata.east_asian_width(character) in "WF" else 0.62 for character in text if not _joins(character))
    return wide


def _joins(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Me", "Cf")


def _cut(text: str) -> str:
    if text_width(text) * _SIZE <= _WIDEST:
        return text
    kept = ""
    for character in text:
        if text_width(f"{kept}{character}…") * _SIZE > _WIDEST:
            break
        kept += character
    return f"{kept}…"


def _room(pieces: Sequence[str]) -> float:
    return max((text_width(_cut(shown_piece(piece))) * _SIZE for piece in pieces), default=0.0) + 8


def matrix_png(weights: NDArray[Any]) -> str:
    """Weights (Tq, Tk) as the address of a picture of one pixel each: one blue, as strong as the square root of the weight."""
    return _png(np.sqrt(np.clip(weights, 0, 1)))


def signed_png(values: NDArray[Any]) -> str:
    """Numbers between -1 and 1 as the address of a picture of one pixel each: blue above 0, orange below, as strong as they are large."""
    return _png(np.clip(values, -1, 1))


def _png(strength: NDArray[Any]) -> str:
    pixels: NDArray[np.uint8] = np.empty((*strength.shape, 4), np.uint8)
    pixels[..., :3] = np.where(strength[..., None] < 0, (217, 119, 6), (37, 99, 235))
    pixels[..., 3] = np.rint(np.abs(strength) * 255)
    rows = np.concatenate([np.zeros((len(pixels), 1), np.uint8), pixels.reshape(len(pixels), -1)], 1)  # a byte before each row: no filter
    height, width = strength.shape
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    data = b"".join(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks)
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


def head_habits(weights: Weights) -> list[dict[str, Any]]:
    """What each head (H, Tq, Tk) mostly does: how much of a token's attention goes to one place, and which place that mostly is.

    The places are of a sequence that looks at itself: itself, the token before, the one behind, the first, the last.
    """
    queries, keys = weights.shape[1:]
    rows = np.arange(queries)
    named = {
        "itself": rows,
        "the token before": rows - 1,
        "the token behind": rows + 1,
        "the first": rows * 0,
        "the last": rows * 0 + keys - 1,
    }
    habits = []
    for head, own in enumerate(weights):
        best = own.argmax(-1)
        counts = {name: int((best == places).sum()) for name, places in named.items()} if queries == keys else {}
        most = max(counts, key=lambda name: counts[name], default="")
        entropy = float(-(own * np.log(np.where(own > 0, own, 1.0))).sum(-1).mean())
        habits.append(
            {"head": head, "focus": float(own.max(-1).mean()), "entropy": entropy, "mostly": most, "share": counts.get(most, 0) / queries}
        )
    return habits
