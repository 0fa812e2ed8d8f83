"""SIGTERM and Ctrl-C: kept from the first moment on, and told to the server once there is one. Imports nothing that takes time."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Stops:
    """While it is entered, neither signal interrupts anything.

    Ctrl-C amid an import may be lost, leave as a fault of what was being imported, or end the process by the signal, whatever catches the
    exception. In another thread than the first, which gets no signals, nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False
        self._tell: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._take)
            except ValueError:  # in another thread
                break
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def told_to(self, tell: Callable[[], None]) -> Iterator[None]:
        """While the block runs ``tell`` is called at each signal, and at once if there has been one."""
        self._tell = tell
        if self.asked:
            tell()
        try:
            yield
        finally:
            self._tell = None

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._tell is not None:
            self._tell()
