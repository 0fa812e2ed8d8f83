"""What has been looked into and may be asked about for a while: the last few passes, within a bound of memory."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dragoman.bundle import Bundle

MOST_TRACES = 8
MOST_BYTES = 256_000_000


class Pass(Protocol):
    """One text's way through a model, with every number of it."""

    @property
    def size(self) -> int:
        """Bytes of memory that it takes."""

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of attention that the model has."""

    @property
    def pieces(self) -> int:
        """The pieces of the text or of what became of it, whichever are more."""

    def record(self, *, kinds: Sequence[str], top_k: int) -> dict[str, Any]:
        """All of it as JSON, with the pictures of some kinds of attention."""

    def names(self, name: str) -> bool:
        """Whether there is a tensor of this name."""

    def near(self, name: str) -> list[str]:
        """The names that are most like this one."""

    def shape(self, name: str) -> Sequence[int]:
        """The shape of a tensor."""

    def slice_of(self, name: str, *, index: Sequence[int], rows: slice, cols: slice) -> dict[str, Any]:
        """Exact numbers of a tensor as JSON; UsageError for an index that there is not."""

    def walk(self, *, layer: int | None, head: int | None, token: int | str | None, target_token: int | str | None) -> dict[str, Any]:
        """The walk through the paper as JSON; UsageError for a layer, a head or a token that there is not."""


class Looking(Protocol):
    """What looks into models; it is given to the server, which does not know how it is done."""

    def expected_bytes(self, bundle: Bundle, source: int, target: int, reference: int) -> int:
        """About how much memory a pass of so many pieces takes; of a model of one text they are the target's."""

    def look(
        self,
        bundle: Bundle,
        text: str,
        wish: "Wished",
        *,
        name: str,
        run: Path | None,
        check: Callable[[], None],
    ) -> Pass:
        """A pass; DragomanError for a text that cannot be looked into.

        ``name`` is the model's, for what the commands of the walk say of it, and ``run`` the folder of its log. ``check`` is called now and
        then, and may raise.
        """


@dataclass(frozen=True)
class Wished:
    """The search of a pass, for models that translate; None: the model's own. ``chosen`` of the candidates, from 0, is looked into."""

    beam: int | None = None
    alpha: float | None = None
    max_length: int | None = None
    target_prefix: str = ""
    reference: str | None = None
    chosen: int = 0


class Traces:
    """The last passes by their numbers, which nobody guesses; every method may be called from any thread."""

    def __init__(self, *, most: int = MOST_TRACES, most_bytes: int = MOST_BYTES) -> None:
        """Room for so many, and for so many bytes together; the newest stays in any case."""
        self.most, self.most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Pass] = OrderedDict()
        self.cleared = 0  # how often all were forgotten

    def put(self, passed: Pass, *, cleared: int | None = None) -> str:
        """Keeps a pass, and returns its number; the oldest make room.

        ``cleared`` is what it was when the pass was asked for: one whose model has gone since is not kept.
        """
        number = f"t_{secrets.token_hex(16)}"
        with self._lock:
            if cleared is not None and cleared != self.cleared:
                return number
            self._kept[number] = passed
            while len(self._kept) > self.most or (len(self._kept) > 1 and self._size() > self.most_bytes):
                self._kept.popitem(last=False)
        return number

    def get(self, number: str) -> Pass | None:
        """The pass of a number, if it is there still."""
        with self._lock:
            return self._kept.get(number)

    def clear(self) -> None:
        """Forgets all, as when the models that they were made by have gone."""
        with self._lock:
            self._kept.clear()
            self.cleared += 1

    @property
    def size(self) -> int:
        """Bytes of all."""
        with self._lock:
            return self._size()

    def _size(self) -> int:
        return sum(each.size for each in self._kept.values())
