"""``dragoman average``: the mean of a run's last checkpoints (Section 6.1)."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Quiet
from dragoman.cli.streams import hush, notify
from dragoman.errors import DragomanError


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, which holds checkpoints.")],
    last: Annotated[
        int, typer.Option("--last", min=1, metavar="N", help="How many checkpoints, the newest first. The paper: 5 for base, 20 for big.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the new bundle; must not exist.")],
    quiet: Quiet = False,
) -> None:
    """Average the last N checkpoints of a run into one model, weight by weight (Section 6.1), and print its folder."""
    if quiet:
        hush()
    from dragoman.bundle import average_bundles, list_checkpoints, load_bundle

    checkpoints = list_checkpoints(run)
    # Beside the newest training.keep there may be an older best one, which belongs to no average of the last.
    newest = checkpoints[-load_bundle(checkpoints[-1]).config.training.keep :] if checkpoints else []
    if len(newest) < last:
        raise DragomanError(f"{run}: --last {last} but the run has {len(newest)}; give a smaller N, or train with more training.keep")
    chosen = newest[-last:]
    average_bundles(chosen, out)
    notify(f"averaged {', '.join(folder.name for folder in chosen)}")
    print(out)
