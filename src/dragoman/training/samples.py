"""The validation text in a run folder: samples/valid.source, samples/valid.reference, and what each evaluation made of it."""

from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.files import write_file

SHOWN = 3
"""Sentences that the terminal, the log and the report show at every evaluation."""


def choose_samples(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """The places of a short, a middling and a long source that have a reference, the same whenever the text is; of fewer, all."""
    usable = [place for place, (source, reference) in enumerate(pairs) if source.strip() and reference.strip()]
    by_length = sorted(usable, key=lambda place: len(pairs[place][0]))
    if len(by_length) <= SHOWN:
        return by_length
    return [by_length[len(by_length) * quarter // (SHOWN + 1)] for quarter in range(1, SHOWN + 1)]


def write_validation_text(run: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """Writes the sources and the references, a sentence a line."""
    for side, name in enumerate(("source", "reference")):
        _write_lines(run / "samples" / f"valid.{name}", [pair[side] for pair in pairs])


def write_outputs(run: Path, step: int, outputs: Sequence[str]) -> None:
    """Writes the translations of the validation text after ``step`` updates, line by line beside valid.source."""
    _write_lines(run / "samples" / f"step-{step:06}.txt", outputs)


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise DragomanError(f"{path.parent}: cannot write: {error.strerror}; make room, then continue with --resume") from error
    write_file(path, "".join(line.replace("\n", " ") + "\n" for line in lines))  # a model may say any byte, a line feed too
