"""``dragoman average``: the mean of a run's last checkpoints (Section 6.1)."""

from itertools import pairwise
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
    from dragoman.bundle import average_bundles, load_config, step_of
    from dragoman.files import require_new
    from dragoman.training.outlook import averaged_early

    require_new(out)
    chosen = _newest(run, last)
    average_bundles(chosen, out)
    notify(f"averaged {', '.join(folder.name for folder in chosen)}")
    if len(chosen) > 1:
        for sentence in averaged_early(load_config(chosen[-1]).training, step_of(chosen[0]), chosen[-1]):
            notify(sentence)
    print(out)


def _newest(run: Path, last: int) -> list[Path]:
    """The newest checkpoints in a row; DragomanError when there are fewer, as when an old one is there only because it is the best, or
    when the newest is not whole.
    """
    from dragoman.bundle import list_checkpoints, load_config, marked_checkpoint, newest_checkpoint, step_of

    newest_checkpoint(run)  # or it says what is wrong with that one
    checkpoints = list_checkpoints(run)
    remedy = "give a smaller N, or train longer, with a lower training.evaluate_every or with more training.keep"
    if not checkpoints:
        raise DragomanError(f"{run}: no run with a finished checkpoint; give a run folder")
    if len(checkpoints) < last:
        raise DragomanError(f"{run}: --last {last} but the run has {len(checkpoints)}; {remedy}")
    chosen = checkpoints[-last:]
    for place, (older, newer) in enumerate(pairwise(chosen), start=1):
        gap, every = step_of(newer) - step_of(older), load_config(newer).training.evaluate_every
        if gap > every:
            why = "kept as the best" if older == marked_checkpoint(run, "best") else "those between are gone"
            raise DragomanError(
                f"{older}: not one of the last {last}, for it is {gap:,} steps older than {newer.name} and checkpoints of this run are "
                f"training.evaluate_every={every:,} apart ({why}), so only {last - place} are in a row; {remedy}"
            )
    return chosen
