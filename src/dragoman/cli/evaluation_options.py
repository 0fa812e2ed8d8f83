"""Options that `evaluate` and `compare` share, and what reads the texts they name."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.streams import arriving_lines, require_input
from dragoman.data.formats.lines import decode_line, read_lines
from dragoman.errors import DragomanError, UsageError
from dragoman.evaluation.measures import RESAMPLES, SEED

SEARCH = ("beam", "alpha", "max_length")
"""The parameters of a model's search."""
References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        metavar="FILE",
        help="A text with one more reference of every sentence, one a line, beside the target side of --test. May be given several times.",
    ),
]
Pair = Annotated[
    str | None,
    typer.Option("--pair", metavar="SOURCE-TARGET", help="The languages, such as en-de, where no model tells them."),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="bleu, paper-bleu, chrf, chrf++ or ter; may be given several times. Default: bleu, paper-bleu, chrf and ter; without "
        "paper-bleu where --tokenize is for text without spaces.",
    ),
]
Tokenize = Annotated[
    str | None,
    typer.Option(
        "--tokenize",
        metavar="NAME",
        help="sacreBLEU's word splitter for BLEU: 13a, none (text that is tokenised already; for paper-bleu too), intl, or for text "
        "without spaces zh, char, ja-mecab or ko-mecab (for ter too). Default: 13a.",
    ),
]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF; off by default, and part of the signatures.")]
Bootstrap = Annotated[
    int | None,
    typer.Option(
        "--bootstrap",
        min=0,
        metavar="N",
        help=f"Resamples of the test set behind the 95 % intervals; 0: no intervals. Default: {RESAMPLES}.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="N", min=1, help=f"Seed of the resamples, part of the signatures. Default: {SEED}, which is sacreBLEU's own."
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Also write all of it as one HTML page without scripts that fetches nothing. Default: none."
    ),
]


def read_hypotheses(path: Path) -> list[str]:
    """The lines of a file, or of standard input for ``-``; DragomanError that names it when there are none."""
    if path.is_dir():
        raise UsageError(f"{path}: a folder; translations are a text file, and a model is given without an option")
    if str(path) != "-":
        lines = list(read_lines(path))
    else:
        require_input()
        raw = [line for group in arriving_lines(0, "standard input") for line in group]
        lines = [decode_line(line, "standard input", number) for number, line in enumerate(raw, start=1)]
    if not lines:
        raise DragomanError(f"{'standard input' if str(path) == '-' else path}: empty; give a text with one translation for each sentence")
    return lines


def languages_of(pair: str | None) -> tuple[str, str] | None:
    """The two codes of SOURCE-TARGET; UsageError for anything else."""
    if pair is None:
        return None
    source, dash, target = pair.partition("-")
    if not (source and dash and target):
        raise UsageError(f"--pair {pair}: not SOURCE-TARGET; give two language codes, such as en-de")
    return source, target


def check_page(page: Path | None) -> None:
    """Raise UsageError for ``--html -``."""
    if str(page) == "-":
        raise UsageError("--html -: standard output holds the scores; give a file")
