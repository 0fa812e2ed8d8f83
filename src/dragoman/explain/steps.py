"""What a step of the walk through the paper is made of, and the layer, head and tokens that it looks at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.errors import UsageError
from dragoman.explain.answer import KINDS, Explanation, float_record
from dragoman.explain.equations import exact
from dragoman.explain.record import Line, Trace


@dataclass(frozen=True)
class Focus:
    """A layer and a head, from 0, and two tokens: one of the text, and one of the translation, each by its place."""

    layer: int
    head: int
    source: int
    target: int


@dataclass(frozen=True)
class Table:
    """Numbers of a step: a caption, a heading, and rows that begin with their name. ``shares`` are columns of numbers between 0 and 1."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    shares: tuple[str, ...] = ()

    @classmethod
    def of_vectors(cls, caption: str, header: tuple[str, ...], rows: Sequence[tuple[object, ...]], shares: tuple[str, ...] = ()) -> "Table":
        """Of rows that end with the first numbers of vectors of one width, whose places make the rest of the heading."""
        places = range(len(rows[0]) - len(header))
        return cls(caption, (*header, *(f"[{place}]" for place in places)), tuple(rows), shares)


@dataclass(frozen=True)
class Check:
    """A number of the model beside the same computed again by `equations`; ``difference`` is the largest among all ``count`` compared."""

    what: str
    model: float
    recomputed: float
    difference: float
    count: int

    @classmethod
    def of(cls, what: str, model: ArrayLike, recomputed: ArrayLike) -> "Check":
        """Of all numbers of two arrays of one shape; the one that is shown is the largest."""
        ours, again = exact(model).reshape(-1), exact(recomputed).reshape(-1)
        if ours.shape != again.shape:
            raise ValueError(f"{what}: {ours.size} numbers are compared with {again.size}")
        place = int(np.abs(again).argmax())
        return cls(what, float(ours[place]), float(again[place]), float(np.abs(ours - again).max()), ours.size)


@dataclass(frozen=True)
class SourceLine:
    """A line of a file with its number, ``marked`` where it computed what is shown; one without a number stands for lines left out."""

    number: int | None
    text: str
    marked: bool

    @property
    def place(self) -> str:
        """The number or "…" in a column for four digits; a longer number is whole."""
        return f"{'…' if self.number is None else self.number:>4}"

    def record(self) -> tuple[str, bool]:
        """As JSON: the place before the text, and whether it is marked."""
        return (self.place if self.number is None else f"{self.place}  {self.text}"), self.marked


Given = str | float | NDArray[Any]


@dataclass(frozen=True)
class Step:
    """One step: what the paper says in our words, its equation with this model's sizes, this sentence's numbers, the lines that made them.

    ``tensor`` is the name of what it is about in the trace, empty where no tensor is; ``picture`` is HTML, which JSON leaves out.
    ``given`` is what one number of the step follows from: names of the trace, numbers, and rows of weights, which no trace has.
    """

    number: int
    title: str
    section: str
    equation: str
    prose: str
    mathml: str
    tables: tuple[Table, ...]
    checks: tuple[Check, ...]
    lines: tuple[Line, ...]
    tensor: str = ""
    picture: str = ""
    given: Mapping[str, Given] = field(default_factory=dict)
    again: Sequence[Mapping[str, Any]] = ()  # as `computations` says

    @property
    def place(self) -> str:
        """Where in the paper it is."""
        return f"Section {self.section}" + (f", equation ({self.equation})" if self.equation else "")

    def sources(self) -> list[tuple[str, list[SourceLine]]]:
        """Of each file the name with the numbers of the lines that computed it, and these, marked, between those around them."""
        files: dict[str, list[Line]] = {}
        for line in self.lines:
            files.setdefault(line.file, []).append(line)
        return [(f"{file}:{', '.join(str(number) for number in _numbers(lines))}", _listing(lines)) for file, lines in files.items()]

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "number": self.number,
            "title": self.title,
            "section": self.section,
            "equation": self.equation,
            "place": self.place,
            "prose": self.prose,
            "mathml": self.mathml,
            "tables": [
                {"caption": table.caption, "header": list(table.header), "rows": list(table.rows), "shares": list(table.shares)}
                for table in self.tables
            ],
            "checks": [vars(check) for check in self.checks],
            "lines": [
                {"file": line.file, "line": line.number, "text": line.text, "around": line.around(), "place": line.place}
                for line in self.lines
            ],
            "sources": [{"title": title, "lines": [each.record() for each in lines]} for title, lines in self.sources()],
            "tensor": self.tensor,
            "given": {name: float_record(value) if isinstance(value, np.ndarray) else value for name, value in self.given.items()},
            "again": list(self.again),
        }


def _numbers(lines: Sequence[Line]) -> list[int]:
    return sorted({line.number for line in lines})


def _listing(lines: Sequence[Line]) -> list[SourceLine]:
    marked, around = _numbers(lines), dict(sorted(pair for line in lines for pair in line.around()))
    found: list[SourceLine] = []
    for number, text in around.items():
        if found and number - 1 not in around:
            found.append(SourceLine(None, "", marked=False))
        found.append(SourceLine(number, text, marked=number in marked))
    return found


def layer_input(found: Explanation, stack: str, layer: int) -> str:
    """The name of what goes into a layer (T, D): the embeddings, or what left the layer before."""
    return f"{stack}.input" if layer == 0 else layer_output(found, stack, layer - 1)


def layer_output(found: Explanation, stack: str, layer: int) -> str:
    """The name of what leaves a layer: its last sum, or with norms behind the sums the last norm."""
    return f"{stack}.{layer}.norm{last_norm(found, stack, layer)}.{'summed' if found.bundle.config.model.norm_place == 'pre' else 'output'}"


def last_norm(found: Explanation, stack: str, layer: int) -> int:
    """The number of a layer's last norm."""
    return 3 if f"{stack}.{layer}.norm3.output" in found.trace else 2


def lines_of(trace: Trace, *names: str) -> tuple[Line, ...]:
    """The lines that made what has these names, each once; a name that is not in the trace has none."""
    found = (trace[name].line for name in names if name in trace)
    return tuple(dict.fromkeys(line for line in found if line is not None))


def quoted(piece: str) -> str:
    """A piece in a sentence: in quotation marks, without the space before it."""
    return repr(piece.strip() or piece)


def first_numbers(vector: ArrayLike, count: int = 6) -> tuple[float, ...]:
    """The first numbers of a vector."""
    return tuple(float(value) for value in exact(vector)[:count])


def find_token(pieces: Sequence[str], text: str, wanted: str | int, side: str) -> int:
    """The place of a token that is given by its number from 1 or by its text: a piece, or the first piece of a word.

    A number that is text may be a piece too, and is that first. Raises UsageError for what is not there.
    """
    if isinstance(wanted, int) or (wanted.isdecimal() and not any(piece.strip() == wanted for piece in pieces)):
        if 1 <= int(wanted) <= len(pieces):
            return int(wanted) - 1
        raise UsageError(f"token {wanted}: the {side} has {len(pieces)} tokens; give a number from 1 to {len(pieces)}, or a word")
    found = [place for place, piece in enumerate(pieces) if piece.strip() == wanted.strip()]
    if found:
        return found[0]
    whole = "".join(pieces)
    start = whole.find(wanted.strip()) if wanted.strip() in text else -1
    if start < 0:
        raise UsageError(f"token {wanted!r}: the {side} has no such piece; its pieces are {' '.join(piece.strip() for piece in pieces)}")
    ends = np.cumsum([len(piece) for piece in pieces])
    return int(np.searchsorted(ends, start, side="right"))


def focus_on(
    found: Explanation,
    *,
    layer: int | None = None,
    head: int | None = None,
    token: str | int | None = None,
    target_token: str | int | None = None,
) -> Focus:
    """The layer and the head, counted from 1, and the tokens to look at: places from 1, or as `find_token` takes them.

    What is not given is chosen.
    The layer is the last but one, as in the paper's Figures 3 to 5; head and token are those of the strongest link there between two
    different tokens, the end token aside; the token of the translation is the one that looks most at the token of the text. Raises
    UsageError for what is not there.
    """
    kind = found.kinds[0]
    weights = found.weights(kind)  # (L, H, S, S)
    layers, heads = weights.shape[:2]
    if not 1 <= (layer or 1) <= layers:
        raise UsageError(f"layer {layer}: the model has layers 1 to {layers}; give one of them")
    if not 1 <= (head or 1) <= heads:
        raise UsageError(f"head {head}: the model has heads 1 to {heads}; give one of them")
    at = max(layers - 2, 0) if layer is None else layer - 1
    links = weights[at].copy()  # (H, S, S)
    links[:, range(links.shape[1]), range(links.shape[1])] = -1
    if links.shape[1] > 2:
        links[:, -1], links[..., -1] = -1, -1
    chosen = range(heads) if head is None else [head - 1]
    places = range(links.shape[1]) if token is None else [find_token(found.source.pieces, found.source.text, token, "text")]
    best = max(((h, s) for h in chosen for s in places), key=lambda pair: float(links[pair].max()))
    return Focus(at, best[0], best[1], _target(found, at, best[1], target_token))


def _target(found: Explanation, layer: int, source: int, wanted: str | int | None) -> int:
    target = found.target.side
    if wanted is not None:
        return find_token(target.pieces, target.text, wanted, "translation")
    if "cross" not in found.kinds:
        return source  # of a model of one text: what is chosen at the place that is followed
    stack, name = KINDS["cross"]
    weights = found.trace.array(f"{stack}.{min(layer, found.layers('cross') - 1)}.{name}.weights").mean(0)  # (T, S)
    return int(weights[: max(len(weights) - 1, 1), source].argmax())
