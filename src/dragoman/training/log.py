"""What a training tells: log.jsonl for programs, one line at a time for people (Section 5).

A person at a terminal sees one line that is rewritten in place; a file or a pipe gets plain lines without control characters.
"""

import json
import os
import time
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dragoman.errors import DragomanError
from dragoman.training.tensorboard import TensorBoard

BAR_WIDTH = 28
_LINE_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}  # JSON's other form of what some readers end a line at


class Screen(Console):
    """A console whose reader may go away: that is an exception for `RunLog`, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        """Raises the BrokenPipeError that is being handled."""
        raise


class RunLog:
    """Appends records to a run's log.jsonl and shows them on ``console``; nothing is shown without one. Use as a context manager.

    ``tensorboard`` gets the numbers too, if given. A console that can no longer be written to is dropped, and the training goes on.
    """

    def __init__(self, run: Path, *, console: Screen | None, max_steps: int, tensorboard: TensorBoard | None = None) -> None:
        self._path = run / "log.jsonl"
        self._console = console
        self._max_steps = max_steps
        self._tensorboard = tensorboard
        self._live = Live(Text(), console=console, auto_refresh=False, transient=True) if console and console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._show(self._live.start)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._show(self._live.stop)
        if self._tensorboard:
            self._tensorboard.close()

    def train(self, record: Mapping[str, Any], *, seconds_left: float) -> None:
        """The means of the steps since the last such record, and an estimate of the seconds to the end."""
        self._append("train", record)
        step, total = int(record["step"]), self._max_steps
        facts = (
            f"loss {record['loss']:.3f}  ppl {record['ppl']:.2f}  acc {record['acc']:.1%}  "
            + (f"align {record['alignment']:.3f}  " if "alignment" in record else "")
            + f"lr {record['lr']:.1e}  "
            f"|g| {record['grad_norm']:.2f}  {record['tok_s'] / 1000:.1f}k tok/s  ETA {clock(seconds_left)}"
        )
        if self._live:
            live, filled = self._live, BAR_WIDTH * step // total
            text = Text(f" {step:,}/{total:,} {'━' * filled}{'─' * (BAR_WIDTH - filled)} {step / total:.0%}  {facts}")
            self._show(lambda: live.update(text, refresh=True))
        else:
            self.say(f"{step:,}/{total:,}  {facts}")

    def evaluation(self, record: Mapping[str, Any], *, best: Mapping[str, float | None] | None = None) -> None:
        """The losses, scores and samples of an evaluation.

        When no earlier one was better, ``best`` has under the name of the figure that decides, loss or bleu, what it gained on the best
        before, or None for the first.
        """
        self._append("eval", record)
        marks = {
            key: " (best)" if gain is None else f" (best, {gain:+.{3 if key == 'loss' else 2}f})" for key, gain in (best or {}).items()
        }
        shown = [f"valid loss {record['loss']:.3f}{marks.get('loss', '')}", f"ppl {record['ppl']:.2f}"]
        for name, key in (("BLEU", "bleu"), ("chrF", "chrf")):
            if key in record:
                shown.append(f"{name} {record[key]:.2f}{marks.get(key, '')}")
        if "bits_per_character" in record:
            shown.append(f"{record['bits_per_character']:.3f} bits a character")
        if "sampled" in record:
            shown.append(f"sampled {record['sampled']:.3f}" + (f" ± {error:.3f}" if (error := record.get("sampled_error")) else ""))
        self.say(f"✓ step {record['step']:,}  {'  '.join(shown)}  {record['seconds']:.1f} s")
        for sample in record.get("samples", ()):
            for name, key in (("src", "source"), ("ref", "reference"), ("out", "output")):
                self.say(f"  {name}  {plain_line(sample[key])}")

    def event(self, name: str, **facts: Any) -> None:
        """Something that happened: start, resume, stop, skip."""
        self._append("event", {"event": name, **facts})

    def say(self, *lines: str) -> None:
        """Lines for the person."""
        if self._console:
            console, text = self._console, Text("\n").join(map(Text, lines))
            self._show(lambda: console.print(text, soft_wrap=True))

    def _show(self, write: Callable[[], object]) -> None:
        try:
            write()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            if isinstance(error, BrokenPipeError) and self._console:
                with suppress(OSError, ValueError):  # what is in the stream's buffer would make the interpreter end with a failure
                    os.dup2(os.open(os.devnull, os.O_WRONLY), self._console.file.fileno())
            self._console = self._live = None

    def _append(self, kind: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({"t": kind, "time": round(time.time(), 3), **record}, ensure_ascii=False).translate(_LINE_BREAKS)
        try:
            with self._path.open("a+b") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # what a killed process wrote of its last record stays a line of its own
                        file.write(b"\n")
                file.write(f"{line}\n".encode())
        except OSError as error:
            raise DragomanError(f"{self._path}: cannot write: {error.strerror}; make room, then continue with --resume") from error
        if self._tensorboard and kind != "event":
            self._tensorboard.write(kind, record)


def plain_line(text: str) -> str:
    """``text`` with a space for each control character and line break, so that no sentence can move the cursor or colour the terminal."""
    return "".join(" " if unicodedata.category(character) in ("Cc", "Zl", "Zp") else character for character in text)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds as 1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
