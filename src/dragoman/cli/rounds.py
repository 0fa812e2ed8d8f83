"""Windows of text through a translator, in order: one after another, or by turns among the processes that torchrun started."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from dragoman.cli.windows import Window, up_to_fault
from dragoman.errors import DragomanError, UsageError

if TYPE_CHECKING:
    from dragoman.ranks import Place


@dataclass(frozen=True)
class Done:
    """What became of a window: the output, the lines of its alignments, how many output tokens, and how many texts went in pieces.

    ``loops`` are lines that went round in a loop, ``at_limit`` those with the most tokens allowed; of ``terms`` that had to
    stand in the output ``missed`` are those that do not. ``chosen`` is the precision, where it was chosen.
    """

    output: str
    alignment: str = ""
    tokens: int = 0
    split: int = 0
    loops: list[int] = field(default_factory=list)
    at_limit: list[int] = field(default_factory=list)
    terms: int = 0
    missed: list[str] = field(default_factory=list)
    chosen: str = ""


Work = Callable[[Window], Done]


def results(windows: Iterable[Window], work: Work, *, start: int) -> Iterator[tuple[Window, Done]]:
    """Every window behind line ``start`` with what became of it. A fault is raised after what is before it has been given."""
    for window in _behind(windows, start):
        yield from up_to_fault(window, work)


def shared_results(windows: Iterable[Window], work: Work, place: "Place", *, start: int) -> Iterator[tuple[Window, Done]]:
    """As `results`, with the work shared out among the ranks: all on the first rank, nothing on the others.

    Each rank reads the same windows and works on every so-manieth; a round is gathered when all of its windows are done.
    """
    from dragoman.ranks import gather

    source = _behind(windows, start)
    while True:
        turn, fault = _next_round(source, place.size)
        own = turn[place.rank] if place.rank < len(turn) else None
        answers = gather(place, _attempt(work, own))
        for window, answer in zip(turn, answers, strict=False):
            yield from _opened(window, answer)
        if fault is not None:
            raise fault
        if len(turn) < place.size:
            return


def _behind(windows: Iterable[Window], start: int) -> Iterator[Window]:
    for window in windows:
        if window.last > start:
            yield window.without(max(start - window.number + 1, 0))


def _next_round(source: Iterator[Window], size: int) -> tuple[list[Window], DragomanError | None]:
    turn: list[Window] = []
    try:
        for window in islice(source, size):
            turn.append(window)
    except DragomanError as fault:
        return turn, fault
    return turn, None


def _attempt(work: Work, window: Window | None) -> bytes:
    """The work as bytes; a fault of it as well, for the first rank is to raise it when its turn has come."""
    answer: dict[str, Any] = {}
    try:
        if window is not None:
            for part, done in up_to_fault(window, work):
                answer |= {"lines": len(part.texts), "done": asdict(done)}
    except DragomanError as fault:
        answer |= {"fault": fault.on_command_line, "usage": isinstance(fault, UsageError)}
    return json.dumps(answer).encode()


def _opened(window: Window, answer: bytes) -> Iterator[tuple[Window, Done]]:
    fields = json.loads(answer)
    if "done" in fields:
        yield window.first(fields["lines"]), Done(**fields["done"])
    if "fault" in fields:
        raise (UsageError if fields["usage"] else DragomanError)(fields["fault"])
