"""Name tables: which weight of a foreign format is which of ours, written once and used both ways.

A table is a list of `Entry` for one model. `take` turns foreign weights into ours and says everything that is wrong with them at once;
`give` turns ours into foreign ones. Every foreign weight is taken, or listed with the reason why it is not needed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """One foreign weight, ``theirs``, and what it is here.

    ``ours`` are our parameters: one, or several that the foreign weight holds one after the other, such as fused queries, keys and values.
    ``copies`` are further names that may hold the same weight, where the format stores a shared weight more than once. ``transposed``: it
    is stored with the inputs first. ``row``: it has a first dimension of 1 that ours has not. ``rotary`` has the heads of each of ``ours``
    whose rotated pairs are numbers i and i + K/2 of a head there and 2i and 2i + 1 here (`RotaryPositions`), and 0 for the others.
    """

    ours: tuple[str, ...]
    theirs: str
    copies: tuple[str, ...] = ()
    transposed: bool = False
    row: bool = False
    rotary: tuple[int, ...] = ()

    def shape(self, ours: Sequence[Shape]) -> Shape:
        """The shape of the foreign weight, from those of ours."""
        first, *rest = ours[0]
        joined = (sum(shape[0] for shape in ours), *rest) if len(ours) > 1 else (first, *rest)
        stored = tuple(reversed(joined)) if self.transposed else joined
        return (1, *stored) if self.row else stored

    def to_ours(self, weight: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Our weights of the foreign one, given their shapes."""
        if self.row:
            weight = weight[0]
        if self.transposed:
            weight = weight.t()
        parts = torch.split(weight, [shape[0] for shape in shapes])
        return [_to_pairs(part, heads).contiguous() for part, heads in zip(parts, self._heads(), strict=True)]

    def to_theirs(self, weights: Sequence[Tensor]) -> Tensor:
        """The foreign weight of ours."""
        weight = torch.cat([_to_halves(each, heads) for each, heads in zip(weights, self._heads(), strict=True)])
        if self.transposed:
            weight = weight.t()
        return (weight[None] if self.row else weight).contiguous()

    def _heads(self) -> tuple[int, ...]:
        return self.rotary or (0,) * len(self.ours)


class Ignored(NamedTuple):
    """Foreign weights that are not needed: a pattern that their whole names match, and the reason."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Taken:
    """What `take` found: our weights by name, the foreign ones that are left out with the reason, and everything that is wrong."""

    weights: dict[str, Tensor]
    ignored: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def same(ours: str, theirs: str, *copies: str) -> Entry:
    """The entry of a weight that is the same there."""
    return Entry((ours,), theirs, copies)


def linear(ours: str, theirs: str, *, bias: bool = True, transposed: bool = False, rotary: int = 0) -> list[Entry]:
    """The entries of a linear layer: its matrix, and its bias where it has one. ``rotary`` is its heads, where they are rotated."""
    return fused((ours,), theirs, bias=bias, transposed=transposed, rotary=(rotary,))


def fused(ours: Sequence[str], theirs: str, *, bias: bool = True, transposed: bool = False, rotary: tuple[int, ...] = ()) -> list[Entry]:
    """The entries of linear layers that are one there, their outputs one after the other."""
    matrix = Entry(tuple(f"{name}.weight" for name in ours), f"{theirs}.weight", transposed=transposed, rotary=rotary)
    return [matrix, Entry(tuple(f"{name}.bias" for name in ours), f"{theirs}.bias", rotary=rotary)] if bias else [matrix]


def norm(ours: str, theirs: str, *, bias: bool = True) -> list[Entry]:
    """The entries of a norm: its weight, and its bias where it has one."""
    return linear(ours, theirs, bias=bias)


def take(table: Sequence[Entry], found: Mapping[str, Tensor], shapes: Mapping[str, Shape], *, ignored: Iterable[Ignored] = ()) -> Taken:
    """Our weights, whose names and shapes are ``shapes``, of the foreign ones, with everything that is missing, misshapen or left over.

    Weights become float32. Raises ValueError when the table forgets a weight of ours or names one twice.
    """
    _require_whole(table, shapes)
    taken, used, patterns = Taken({}), set(), list(ignored)
    for entry in table:
        names = [name for name in (entry.theirs, *entry.copies) if name in found]
        used.update(names)
        ours = [shapes[name] for name in entry.ours]
        problems = _problems(entry, {name: found[name] for name in names}, entry.shape(ours))
        taken.problems.extend(problems)
        if not problems:
            taken.weights.update(zip(entry.ours, entry.to_ours(found[names[0]].float(), ours), strict=True))
    for name in found:
        if name not in used:
            reason = next((each.reason for each in patterns if re.fullmatch(each.pattern, name)), None)
            if reason is None:
                taken.problems.append(f"weight {name} is not part of this model")
            else:
                taken.ignored[name] = reason
    return taken


def give(table: Sequence[Entry], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The foreign weights of ours, a shared one once, under the first of its names. ValueError as for `take`."""
    _require_whole(table, weights)
    return {entry.theirs: entry.to_theirs([weights[name].detach() for name in entry.ours]) for entry in table}


def _problems(entry: Entry, found: Mapping[str, Tensor], wanted: Shape) -> list[str]:
    if not found:
        return [f"weight {entry.theirs} is missing"]
    shapes = {name: tuple(weight.shape) for name, weight in found.items()}
    problems = [f"weight {name} has shape {shape}, not {wanted}" for name, shape in shapes.items() if shape != wanted]
    problems += [f"weight {name} is {each.dtype}, not floating point" for name, each in found.items() if not each.is_floating_point()]
    problems += [f"weight {name} holds what is no number; use an undamaged copy" for name, each in found.items() if _is_broken(each)]
    if not problems:
        first, *copies = found
        problems = [
            f"weight {name} differs from {first}, and in this model they are one"
            for name in copies
            if not torch.equal(found[name], found[first])
        ]
    return problems


def _is_broken(weight: Tensor) -> bool:
    return weight.is_floating_point() and bool(weight.float().isnan().any())


def _require_whole(table: Sequence[Entry], ours: Iterable[str]) -> None:
    named, there = [name for entry in table for name in entry.ours], set(ours)
    if len(named) != len(set(named)) or set(named) != there:
        raise ValueError(f"the name table does not fit the model: {sorted(set(named) ^ there) or 'a name twice'}")


def _to_pairs(weight: Tensor, heads: int) -> Tensor:
    """Rows of heads with rotated pairs (i, i + K/2) in the order of pairs (2i, 2i + 1); as they are without heads."""
    if not heads:
        return weight
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _to_halves(weight: Tensor, heads: int) -> Tensor:
    """The inverse of `_to_pairs`."""
    if not heads:
        return weight
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
