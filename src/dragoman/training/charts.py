"""Line charts as SVG.

Presentation attributes only, so that a chart reads where styles are blocked, in light and in dark; curves differ by dash as well as colour.
"""

import math
from collections.abc import Mapping, Sequence

from dragoman.html import escaped, number

Point = tuple[float, float]

MOST_POINTS = 300
_BEYOND = 1e300
"""A number as large is not drawn, for an axis around it may end beyond float; the ends of any axis are at least 1 / _BEYOND apart."""
WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 84, 34, 34, 44
STROKES = (("#3b82f6", "none"), ("#d97706", "8 4"), ("#16a34a", "2 3"))  # at least 3:1 on white and on near-black


def line_chart(title: str, curves: Mapping[str, Sequence[Point]]) -> str:
    """An SVG of up to three named curves over training steps; empty text when no curve has a point that can be drawn."""
    drawn = {name: thinned([point for point in points if _is_drawn(point)]) for name, points in curves.items()}
    drawn = {name: points for name, points in drawn.items() if points}
    if not drawn:
        return ""
    steps, values = ([point[axis] for points in drawn.values() for point in points] for axis in (0, 1))
    x_ticks, y_ticks = [step for step in ticks(0, max(steps)) if step >= 0], ticks(min(values), max(values))
    names = ", ".join(drawn)
    low, high, last = min(y_ticks[0], *values), max(y_ticks[-1], *values), max(x_ticks[-1], *steps)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" '
        f'aria-label="{escaped(f"{title}, over steps: {names}")}" font-family="sans-serif" font-size="14" fill="currentColor">'
    ]
    for value in y_ticks:
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity="0.2"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 5:.1f}" text-anchor="end">{number(value)}</text>')
    for step in x_ticks:
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 19}" text-anchor="middle">{number(step)}</text>')
    parts.append(f'<text x="{WIDTH / 2:g}" y="{HEIGHT - 4}" text-anchor="middle">step</text>')
    start = LEFT
    for (name, points), (colour, dash) in zip(drawn.items(), STROKES, strict=False):
        look = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<path d="M{start} 14h32" {look}/><text x="{start + 38}" y="19">{escaped(name)}</text>')
        start += 62 + 12 * len(name)
        if len(points) == 1:
            parts.append(f'<circle cx="{x(points[0][0]):.1f}" cy="{y(points[0][1]):.1f}" r="3" fill="{colour}"/>')
        else:
            parts.append(f'<polyline points="{" ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)}" {look}/>')
    return "".join([*parts, "</svg>"])


def _is_drawn(point: Point) -> bool:
    """Whether both are finite numbers, and so small that float has those around them too."""
    return abs(point[0]) < _BEYOND and abs(point[1]) < _BEYOND


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most ``most`` of the points, in order: the first, the last, and of each stretch between them the lowest and the highest."""
    if len(points) <= most:
        return list(points)
    inner, stretches = points[1:-1], (most - 2) // 2
    kept = [points[0]]
    for index in range(stretches):
        places = range(len(inner) * index // stretches, len(inner) * (index + 1) // stretches)
        extremes = {chooser(places, key=lambda place: inner[place][1]) for chooser in (min, max)}
        kept += [inner[place] for place in sorted(extremes)]
    return [*kept, points[-1]]


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers from at most ``low`` to at least ``high``, at equal distances of 1, 2 or 5 times a power of ten."""
    if high <= low:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    power = 10 ** math.floor(math.log10(max(high - low, 1 / _BEYOND)))
    for distance in (power * factor for factor in (0.2, 0.5, 1, 2, 5)):
        first, last = math.floor(low / distance), math.ceil(high / distance)
        if last - first <= 6:
            break
    return [index * distance for index in range(first, last + 1)]
