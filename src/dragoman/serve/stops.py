"""Signals: SIGTERM and Ctrl-C are kept from the first moment on and told to the server once there is one. Imports nothing slow."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self


class Stops:
    """While it is entered, neither signal interrupts anything, and SIGHUP, which would end a process, does nothing.

    Ctrl-C amid an import may be lost, leave as a fault of what was being imported, or end the process by the signal, whatever catches the
    exception. In another thread than the first, which gets no signals, nothing changes.
    """

    def __init__(self) -> None:
        self.asked = self._told = False
        self._tell: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        actions = {"SIGTERM": self._take, "SIGINT": self._take, "SIGHUP": _nothing}  # before there are models, none are to be read again
        with suppress(ValueError):  # in another thread
            for number, action in ((getattr(signal, name), action) for name, action in actions.items() if hasattr(signal, name)):
                self._before[number] = signal.signal(number, action)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was not set from Python

    @contextmanager
    def told_to(self, tell: Callable[[], None]) -> Iterator[None]:
        """While the block runs ``tell`` is called at each signal, and at once if there has been one."""
        self._tell = tell
        if self.asked and not self._told:
            tell()
        try:
            yield
        finally:
            self._tell = None

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._tell is not None:
            self._told = True
            self._tell()


def _nothing(number: int, frame: FrameType | None) -> None:
    """What SIGHUP does while nothing can be read again."""
