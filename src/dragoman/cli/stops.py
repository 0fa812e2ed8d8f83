"""How long work ends: a training or a translation at a signal, and what is said when a training has ended."""

import math
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dragoman.cli.streams import follows, launched, notify
from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.training.log import RunLog
    from dragoman.training.trainer import Trainer


Handler = Callable[[int, FrameType | None], Any] | int | None


class _TerminatedError(DragomanError):
    exit_status = 128 + signal.SIGTERM


@contextmanager
def terminable() -> Iterator[Callable[[], None]]:
    """SIGTERM while the block runs ends it as Ctrl-C does, so that what was done is recorded and said; status 143.

    Gives what ends the block if either has come: Python drops an exception that is raised in a finaliser or a weak reference's callback,
    where the signal may find it, so work that takes long asks now and then. After a failure SIGTERM does nothing more to a process that
    speaks for a job of torchrun (`_handler_after`).
    """
    received: list[int] = []
    over = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not over:  # and else what the work has come to stays what is told, while the handlers are put back
            received.append(number)
            raise KeyboardInterrupt

    def check() -> None:
        if received:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    if own_interrupt := signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as in the background
        signal.signal(signal.SIGINT, interrupt)
    failed = True
    try:
        try:
            with _unmentioned(KeyboardInterrupt, received):
                yield check
            failed = False
        finally:
            over = True
    except KeyboardInterrupt:
        if received[:1] == [signal.SIGTERM]:
            raise _TerminatedError("terminated") from None
        raise
    finally:
        signal.signal(signal.SIGTERM, _handler_after(failed, before))
        if own_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _unmentioned(kind: type[BaseException], received: list[int]) -> Iterator[None]:
    """Python says nothing of the exceptions of a kind that it drops once a signal was received, for they are the signal's."""
    before = sys.unraisablehook

    def tell(dropped: "sys.UnraisableHookArgs") -> None:
        if not (received and dropped.exc_type is kind):
            before(dropped)

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = before


def _handler_after(failed: bool, before: Handler) -> Handler:
    """What SIGTERM does when long work has ended: what it did before, but nothing to the process that speaks for a job that failed.

    torchrun sends it to all when one is gone, and what the first one has to say of that would be lost. It ends soon by itself.
    """
    return signal.SIG_IGN if failed and launched() and not follows() else before


@contextmanager
def undisturbed() -> Iterator[None]:
    """SIGTERM and Ctrl-C do nothing while the block runs: it has the last words of work that failed, which ends without them.

    So what is told, and the exit status, is of what came first.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible(trainer: "Trainer") -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM once: finish the step, save and leave; a second time: leave now. Gives the signals received.

    An evaluation is not finished: what it is of is saved, and the resumed run makes it first.

    After a failure SIGTERM does nothing more to a process that speaks for a job of torchrun (`_handler_after`).
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for known in before:
            signal.signal(known, signal.SIG_DFL)
        with suppress(RuntimeError):  # the signal may come while a line is being written
            doing = "leaving the evaluation, which --resume makes first" if trainer.evaluating else "finishing the step and saving"
            notify(f"{doing}; once more stops now")
        trainer.interrupt()

    for number in before:
        signal.signal(number, ask_to_stop)
    failed = True
    try:
        with _unmentioned(OSError, received):  # of a second signal that came before Python had looked at the first
            yield received
        failed = False
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
        signal.signal(signal.SIGTERM, _handler_after(failed, before[signal.SIGTERM]))


def say_farewell(log: "RunLog", run: Path, trainer: "Trainer", reason: str) -> None:
    """Why a training ended, its best checkpoint, and what one may do next."""
    from dragoman.training.outlook import cut_short
    from dragoman.training.report import Report

    progress, minutes = trainer.progress, trainer.settings.max_minutes or 0
    taken = progress.seconds / 60
    over = "the minute is over" if minutes == 1 else f"the {minutes:g} minutes are over"
    why = {
        "max_steps": "all steps done",
        "max_minutes": f"{over} ({taken:.1f} with the last evaluation)",
        "patience": "no better evaluation for long enough",
        "interrupted": "interrupted",
    }[reason]
    more = {
        "max_steps": f" --max-steps {2 * progress.step}",
        "max_minutes": f" --max-minutes {2 * minutes if 2 * minutes > taken else math.ceil(2 * taken):g}",
        "patience": " --set training.patience=0",
        "interrupted": "",
    }[reason]
    owed = ", before its evaluation, which --resume makes first" if progress.owed else ""
    best = f"; the best checkpoint is step {progress.best_step:,}" if progress.best_step else ""
    record = Report.read(run).best()
    if record and record["step"] == progress.best_step and "bleu" in record:
        best += f": BLEU {record['bleu']:.2f} {record['signature']}"
    cut = reason in ("max_minutes", "patience") and not trainer.outlook.told
    warnings = cut_short(trainer.settings, progress.step, by_minutes=reason == "max_minutes") if cut else []
    uses = {
        "decoder-only": [f'  dragoman generate {run} "PROMPT"', f"  dragoman score {run} --test FILE"],
        "encoder-only": [f'  dragoman fill {run} "TEXT WITH <mask>"', f"  dragoman embed {run} FILE"],
    }
    log.say(
        *warnings,
        f"{why} at step {progress.step:,}{owed}{best}",
        *uses.get(
            trainer.bundle.config.model.architecture,
            [f"  dragoman translate {run} < SOURCE_FILE", f"  dragoman evaluate {run} --test PATH"],
        ),
        f"  dragoman train --resume --out {run}{more}",
        f"  {run / 'report.html'}",
    )
