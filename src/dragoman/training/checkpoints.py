"""What becomes of a run's checkpoints once one is written: the marks, and the removal of older ones (Section 6.1)."""

import shutil
from pathlib import Path

from dragoman.bundle import list_checkpoints, mark_checkpoint, marked_checkpoint


def mark_newest(run: Path, newest: Path, *, best: bool) -> None:
    """Makes ``checkpoints/last`` name the newest checkpoint, and ``checkpoints/best`` too if no earlier one is better."""
    mark_checkpoint(run, "last", newest)
    if best:
        mark_checkpoint(run, "best", newest)


def remove_older(run: Path, newest: Path, *, keep: int) -> None:
    """Leaves the newest ``keep`` checkpoints and the best, and the state of the newest; what a killed process left half done goes."""
    checkpoints = list_checkpoints(run)
    for checkpoint in checkpoints[:-keep]:
        if checkpoint != marked_checkpoint(run, "best"):
            removed = checkpoint.with_name(f".{checkpoint.name}.removed")
            checkpoint.rename(removed)  # a checkpoint that bears its name is whole
            shutil.rmtree(removed)
    for checkpoint in checkpoints:
        if checkpoint != newest:
            shutil.rmtree(checkpoint / "state", ignore_errors=True)
    for leftover in newest.parent.glob(".step-*"):
        shutil.rmtree(leftover, ignore_errors=True)
