"""``dragoman report``: a run on one page, made again from its log."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.streams import open_output


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is standard output. Default: RUN/report.html."),
    ] = None,
) -> None:
    """Make the report of a run again, from its run.json and log.jsonl alone, and print where it is.

    One HTML file without scripts that fetches nothing: losses, scores, learning rate and speed as curves with their numbers, the
    evaluations, the fixed samples over time, what was dropped from the data, the settings and how they differ from the paper's base
    model, versions and hashes. Training itself writes it at every evaluation.
    """
    from dragoman.cli.overwriting import check_outputs
    from dragoman.training.report import Report, write_report

    if output is None:
        write_report(run)
        print(run / "report.html")
        return
    check_outputs({"-o": output}, [run, run / "run.json", run / "log.jsonl", run / "config.toml"])
    page = Report.read(run).html()
    with open_output(output) as stream:
        stream.write(page)
    if str(output) != "-":
        print(output)
