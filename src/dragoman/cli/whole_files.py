"""Whole files through a translator: who does which windows, where the output goes, what can be gone on with, and what is said of it."""

import hashlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dragoman.cli.overwriting import check_outputs
from dragoman.cli.prefixes import check_prefixes, prefix_file, with_prefixes
from dragoman.cli.progress import Progress
from dragoman.cli.rounds import Done, Work, results, shared_results
from dragoman.cli.stops import terminable
from dragoman.cli.streams import few_of_a_kind, launched, notify, open_output, written_file
from dragoman.cli.tally import Tally
from dragoman.cli.unfinished import Unfinished
from dragoman.cli.windows import Window, check_files, is_stored, total_bytes, windows
from dragoman.errors import DragomanError, UsageError, unreadable

if TYPE_CHECKING:
    from dragoman.cli.attention_file import AttentionFile
    from dragoman.ranks import Place

_HARMLESS = {"model", "files", "output", "resume", "device", "quiet", "attention"}
"""Parameters of the command that change no byte of the output, or are checked by themselves."""

Load = Callable[[str, "AttentionFile | None", str, Callable[[], None]], Work]
"""Of a device, a file for attention, the precision that was chosen before, if one was, and what is asked between batches whether to stop:
what is done with each window."""


@dataclass(frozen=True)
class Job:
    """What a command line asks for: the text, where translations, alignments and attention go, and whether earlier work is gone on with.

    ``prefix`` is a file with what each translation must begin with; ``used`` are the other files and the models that are read.
    """

    files: list[Path]
    output: Path | None = None
    alignment: Path | None = None
    attention: Path | None = None
    resume: bool = False
    device: str = "auto"
    prefix: Path | None = None
    used: Sequence[Path] = ()

    @property
    def whole(self) -> bool:
        """Whether the output is a file that is written beside and can be gone on with, not a stream, a pipe or a device."""
        return self.output is not None and str(self.output) != "-" and (self.output.is_file() or not self.output.exists())


def translate_files(job: Job, identity: Callable[[], Mapping[str, Any]], load: Load) -> None:
    """Does a job: ``identity`` gives the facts that make the output.

    Among the processes of torchrun the first writes and speaks. Raises DragomanError or UsageError for what stands in the way.
    """
    _check(job)
    with few_of_a_kind():
        if launched():
            from dragoman.ranks import connected

            with connected(job.device, through_gpus=False) as place:
                _take_part(job, identity, load, place)
        else:
            _lead(job, identity, load, None)


def identity_of(model: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that must be the same for work to go on: the SHA-256 of the model's files, and of every option what it says.

    An option that names a file stands for what is in it; prefixes are compared with the text, line by line.
    """
    facts: dict[str, Any] = {"the model": _model_fact(model)}
    for name, value in parameters.items():
        if name not in _HARMLESS:
            facts[f"--{name.replace('_', '-').removeprefix('as-')}"] = _fact_of(name, value)
    return facts


def _fact_of(name: str, value: Any) -> Any:
    if name == "prefix" and prefix_file(value) is not None:
        return "a file"
    if name == "ensemble":
        return [*map(_model_fact, value or ())]
    return str(value) if name == "align" and value else _fact(value)


def _model_fact(model: Path) -> str:
    from dragoman.bundle import resolve_model

    return _sha256(sorted(path for path in resolve_model(model).iterdir() if path.suffix in (".json", ".safetensors")))


def _fact(value: object) -> Any:
    if isinstance(value, list | tuple):
        return [_fact(each) for each in value]
    if isinstance(value, Path):
        return _sha256([value]) if value.is_file() else str(value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _sha256(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        except OSError as error:
            raise DragomanError(unreadable(path, error)) from None
    return digest.hexdigest()


def _check(job: Job) -> None:
    check_files(job.files)
    if job.resume and not job.whole:
        raise UsageError("--resume goes on with an output file that was interrupted; give it by -o FILE")
    if job.attention is not None and (job.resume or launched()):
        raise UsageError("--attention is for one process from the beginning to the end; leave out --resume and torchrun, or --attention")
    read = [*job.files, *filter(None, [job.prefix])]
    written = {"-o": job.output, "--align": job.alignment, "--attention": job.attention}
    check_outputs(written, [*read, *job.used])
    if job.prefix is not None:
        check_prefixes(job.prefix, job.files)
    if launched() and (unshared := [path for path in read if not is_stored(path)]):
        place = "standard input" if str(unshared[0]) == "-" else unshared[0]
        raise UsageError(f"{place}: only one of several processes can read it; give a FILE to share, or start one process without torchrun")


def _take_part(job: Job, identity: Callable[[], Mapping[str, Any]], load: Load, place: "Place") -> None:
    from dragoman.ranks import tell

    if place.rank == 0:
        _lead(job, identity, load, place)
    elif (start := tell(place, 0)) >= 0:
        for _ in shared_results(_text(job), load(str(place.device), None, "", _go_on), place, start=start):
            pass


def _text(job: Job) -> Iterator[Window]:
    return windows(job.files) if job.prefix is None else with_prefixes(windows(job.files), job.prefix)


def _lead(job: Job, identity: Callable[[], Mapping[str, Any]], load: Load, place: "Place | None") -> None:
    with terminable() as check:
        sink = _whole_sink(job, identity()) if job.whole else _Stream(job)
        start = sink.tally.lines
        if isinstance(sink, Unfinished) and sink.complete:
            _tell(place, -1)
            sink.finish(_text(job))
            notify(f"{job.output}: was complete but for its name")
        else:
            try:
                summary = _write(job, sink, load, place, check)
            except BaseException:
                if sink.tally.lines > start:
                    sink.tally.report()
                raise
            if summary:
                notify(f"{job.output if job.whole else 'standard output'}: {summary}")
        sink.tally.report()


def _write(job: Job, sink: "Unfinished | _Stream", load: Load, place: "Place | None", check: Callable[[], None]) -> str:
    """Translates what is left and writes it, unless ``check`` raises; returns the summary of a progress that was shown."""
    with sink.writing(), nullcontext() if job.attention is None else _attention_file(job.attention) as attention:
        start = sink.tally.lines
        _tell(place, start)
        work = load(job.device if place is None else str(place.device), attention, sink.chosen, check)
        check()
        source = sink.skip(_text(job))
        done = results(source, work, start=start) if place is None else shared_results(source, work, place, start=start)
        progress = _run(done, sink, job, check)
    return "" if progress is None else progress.summary()


def _run(done: Iterator[tuple[Window, Done]], sink: "Unfinished | _Stream", job: Job, check: Callable[[], None]) -> Progress | None:
    """Writes all that comes, and shows how far it is: of a file, and on a terminal that does not show the translations themselves."""
    if not (job.whole or (sys.stderr is not None and sys.stderr.isatty() and not sys.stdout.isatty())):
        for window, what in done:
            sink.add(window, what)
            check()
        return None
    progress = Progress(total=total_bytes(job.files), lines=sink.tally.lines, size=sink.tally.size, tokens=sink.tally.tokens)
    logger = logging.getLogger("dragoman")
    logger.handlers = [progress, *logger.handlers]
    try:
        for window, what in done:
            sink.add(window, what)
            progress.add(lines=len(window.texts), size=window.size, tokens=what.tokens)
            check()
    finally:
        progress.clear()
        logger.handlers = [each for each in logger.handlers if each is not progress]
    return progress


def _whole_sink(job: Job, identity: Mapping[str, Any]) -> Unfinished:
    assert job.output is not None
    output = written_file(job.output)
    alignment = None if job.alignment is None else written_file(job.alignment)
    if alignment is not None and alignment.exists() and not alignment.is_file():
        raise UsageError(f"--align {job.alignment}: not a file; with -o FILE the alignments go into a file too")
    return Unfinished(output, alignment, identity, resume=job.resume)


def _attention_file(path: Path) -> AbstractContextManager["AttentionFile"]:
    from dragoman.cli.attention_file import open_attention

    return open_attention(path)


def _tell(place: "Place | None", number: int) -> None:
    if place is not None:
        from dragoman.ranks import tell

        tell(place, number)


def _go_on() -> None:
    """What a process asks that a signal ends at once."""


class _Stream:
    """Standard output, a pipe or a device: each window is written when it is done, and nothing is gone on with."""

    chosen = ""  # nothing before it

    def __init__(self, job: Job) -> None:
        self.tally = Tally()
        self._job = job
        self._output: TextIO = sys.stdout
        self._alignment: TextIO | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Opens what is written until the block ends."""
        with ExitStack() as stack:
            self._output = stack.enter_context(open_output(self._job.output))
            if self._job.alignment is not None:
                self._alignment = stack.enter_context(open_output(self._job.alignment))
            yield

    def skip(self, windows: Iterable[Window]) -> Iterator[Window]:
        """All windows."""
        return iter(windows)

    def add(self, window: Window, done: Done) -> None:
        """Writes what became of a window."""
        self._output.write(done.output)
        self._output.flush()
        if self._alignment is not None:
            self._alignment.write(done.alignment)
        self.tally.add(window, done)
