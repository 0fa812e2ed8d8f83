"""How far a long translation is: one line on a terminal that is written over, a notice now and then elsewhere, a summary at the end."""

import logging
import sys
import time
from contextlib import suppress

from dragoman.cli.streams import notify
from dragoman.errors import counted

_TERMINAL_SECONDS, _NOTICE_SECONDS = 0.2, 60.0
_ERASE = "\r\x1b[K"


class Progress(logging.Handler):
    """Lines and bytes of text done, of ``total`` bytes where that is known; as a log handler it makes room for the notices of others.

    ``lines``, ``size`` and ``tokens`` say where an earlier part of the work ended: speed is that of this part.
    """

    def __init__(self, *, total: int | None, lines: int = 0, size: int = 0, tokens: int = 0) -> None:
        super().__init__()
        self.total, self.lines, self.size, self.tokens = total, lines, size, tokens
        self._before = (lines, size, tokens)
        self._start = self._shown = time.monotonic()
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._visible = False

    def add(self, *, lines: int, size: int, tokens: int) -> None:
        """So many more lines, bytes of text and output tokens are done."""
        self.lines, self.size, self.tokens = self.lines + lines, self.size + size, self.tokens + tokens
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_SECONDS if self._terminal else _NOTICE_SECONDS):
            return
        self._shown = now
        if not self._terminal:
            notify(self._sentence(now))
        elif logging.getLogger("dragoman").isEnabledFor(logging.INFO):
            self._write(_ERASE + self._sentence(now))
            self._visible = True

    def emit(self, record: logging.LogRecord) -> None:
        """Before a notice is written: takes the line away, which comes again with the next window."""
        self.clear()

    def clear(self) -> None:
        """Takes the line from the terminal."""
        if self._visible:
            self._write(_ERASE)
            self._visible = False

    def summary(self) -> str:
        """Lines, tokens and seconds, in one line."""
        seconds = time.monotonic() - self._start
        lines, tokens = self.lines - self._before[0], self.tokens - self._before[2]
        rates = f"{lines / seconds:,.0f} lines and {tokens / seconds:,.0f} tokens a second" if seconds else "at once"
        earlier = f" ({self._before[0]:,} of the lines before)" if self._before[0] else ""
        return f"{counted(self.lines, 'line')}, {counted(self.tokens, 'output token')}{earlier}; {seconds:.1f} seconds, {rates}"

    def _sentence(self, now: float) -> str:
        rate = (self.lines - self._before[0]) / max(now - self._start, 1e-9)
        parts = [counted(self.lines, "line")]
        if self.total:
            parts.append(f"{min(100 * self.size / self.total, 100):.1f} %")
        parts.append(f"{rate:,.0f} lines/s")
        done = self.size - self._before[1]
        if self.total and done:
            parts.append(f"{_duration((now - self._start) * max(self.total - self.size, 0) / done)} left")
        return ", ".join(parts)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
