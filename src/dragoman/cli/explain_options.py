"""What `dragoman explain` may be asked: the options."""

from pathlib import Path
from typing import Annotated

import typer

Text = Annotated[str, typer.Argument(metavar="TEXT", help="The sentence; - reads it from standard input.")]
Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write all of it as one page without scripts. Default: none.")]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--attention",
        metavar="FILE.svg",
        help="Draw where the tokens look, as in the paper's Figures 3 to 5. Default: none.",
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="What --attention draws: encoder (the text looks at itself), decoder (the translation at itself) or cross (the translation "
        "at the text). Default: encoder.",
    ),
]
Layer = Annotated[int | None, typer.Option("--layer", min=1, metavar="N", help="The layer to look at, from 1. Default: the last but one.")]
Heads = Annotated[
    list[int] | None,
    typer.Option(
        "--head",
        min=1,
        metavar="N",
        show_default=False,
        help="The head to look at, from 1; several for --attention. Default: the one with the strongest link; all for --attention.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="WORD|N",
        help="The token of the text to follow, a word or its number from 1; --attention then draws from it alone. Default: one that looks "
        "most at another.",
    ),
]
TargetToken = Annotated[
    str | None,
    typer.Option(
        "--target-token",
        metavar="WORD|N",
        help="The token of the translation to follow. Default: the one that looks most at the token of the text.",
    ),
]
TensorName = Annotated[
    str | None,
    typer.Option("--tensor", metavar="NAME", help="Print one tensor of the pass, such as encoder.0.self.scores; --json lists the names."),
]
Array = Annotated[Path | None, typer.Option("--npy", metavar="FILE", help="Write the tensor of --tensor as NumPy's .npy too.")]
TargetPrefix = Annotated[
    str, typer.Option("--target-prefix", metavar="TEXT", show_default=False, help="What the translation must begin with. Default: nothing.")
]
Reference = Annotated[
    str | None, typer.Option("--reference", metavar="TEXT", help="A translation to compare with, token by token. Default: none.")
]
CandidateNumber = Annotated[int, typer.Option("--candidate", min=1, metavar="N", help="Which of the beam's translations to look into.")]
