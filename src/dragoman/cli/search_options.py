"""What `dragoman translate` may be asked beside the paper's search: the options."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.decoding.options import SearchOptions


def _length(value: str) -> str:
    """A number of tokens, or a multiple of the source's such as 1.5x."""
    from dragoman.decoding.options import tokens_of

    try:
        tokens_of(value, 1, name="it")
    except DragomanError as error:
        shown = value if len(value) <= 40 else f"{value[:40]}…"
        raise typer.BadParameter(f"{shown}: {str(error).partition(': ')[2]}") from None
    return value


NBest = Annotated[
    int,
    typer.Option("--n-best", metavar="N", min=1, help="Translations of each line, best first, at most as many as --beam, or as --samples."),
]
LongestOutput = Annotated[
    str | None,
    typer.Option(
        "--max-length",
        parser=_length,
        metavar="N|Nx",
        help="Longest output in tokens, end token included, or so many times the source's tokens, as 1.5x. Default: the source's tokens "
        "plus the model's extra_length (50 in the paper).",
    ),
]
ShortestOutput = Annotated[
    str | None,
    typer.Option(
        "--min-length",
        parser=_length,
        metavar="N|Nx",
        help="Shortest output in tokens, end token included, or so many times the source's tokens, as 0.5x. Default: 1.",
    ),
]
NoRepeatNgram = Annotated[
    int,
    typer.Option(
        "--no-repeat-ngram",
        min=0,
        metavar="N",
        show_default=False,
        help="No N tokens in a row come twice in an output. Default: 0, they may.",
    ),
]
RepetitionGuard = Annotated[
    int,
    typer.Option(
        "--repetition-guard",
        min=0,
        metavar="N",
        help="An output must end when it has gone round in a loop: its last N tokens or more only repeat a piece of at most 16, which "
        "stands there 4 times or more, and more than twice as often in a row as anything in the source. Such lines are counted at the end. "
        "0: never.",
    ),
]
Sample = Annotated[
    bool, typer.Option("--sample", help="Draw translations at random from the model's distribution instead of searching for the best.")
]
Samples = Annotated[
    int | None,
    typer.Option(
        "--samples",
        min=1,
        metavar="N",
        help="Samples drawn of each line, of which the --n-best are written. Default: as many as are written; 32 with --mbr.",
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0,
        metavar="T",
        help="Sampling: probabilities are raised to 1/T. Below 1 is safer, 0 the most probable token. Default: 1.",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", min=0, metavar="K", help="Sampling: draw from so many most probable tokens. Default: 0, from all of them."),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        min=0,
        max=1,
        metavar="P",
        help="Sampling: draw from the fewest most probable tokens that have this probability together. Default: 1.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Sampling: a line's samples are a function of its text and this number, whatever stands around it. Default: 1.",
    ),
]
Mbr = Annotated[
    str | None,
    typer.Option(
        "--mbr",
        metavar="chrf",
        help="Draw samples and choose the one that is most like all of them by chrF (minimum Bayes risk); takes the options of sampling.",
    ),
]
DiverseGroups = Annotated[
    int,
    typer.Option(
        "--diverse-groups",
        min=1,
        metavar="G",
        show_default=False,
        help="Share the beam among G groups, of which each keeps away from the words that earlier ones have just chosen. Default: 1.",
    ),
]
Diversity = Annotated[
    float | None,
    typer.Option("--diversity", min=0, metavar="D", help="How far diverse groups keep away, as a log-probability. Default: 0.5."),
]
Beginnings = Annotated[
    Path | None,
    typer.Option(
        "--prefix",
        metavar="FILE|column",
        help="What translations must begin with: a file with a line for each input line, or the word column when each input line is "
        "TEXT<tab>PREFIX. An empty prefix asks for nothing; the last word may go on unless a space follows it.",
    ),
]
GlossaryFile = Annotated[
    Path | None,
    typer.Option(
        "--glossary",
        metavar="FILE.tsv",
        help="Terms, one SOURCE<tab>TARGET a line: TARGET must stand in the translation of a line that has SOURCE in it.",
    ),
]
Require = Annotated[
    list[str] | None, typer.Option("--require", metavar="PHRASE", help="A phrase that must stand in every translation; repeatable.")
]
Forbid = Annotated[
    list[str] | None,
    typer.Option("--forbid", metavar="PHRASE", help="A phrase that must stand in no translation, as whole words; repeatable."),
]
OnlyTrees = Annotated[
    bool,
    typer.Option(
        "--tree",
        help="Parse: write a constituency tree over the words of each line, in brackets, by a MODEL trained on a treebank. Words stand "
        "between spaces; only trees over all of them are searched.",
    ),
]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="MODEL",
        help="Another model with the same vocabulary, whose probabilities are averaged with MODEL's; repeatable.",
    ),
]


def name_of(model: Path, ensemble: Iterable[Path] | None) -> str:
    """What a model and those that work together with it are called in a report."""
    return " + ".join(map(str, (model, *(ensemble or ()))))


def search_options(parameters: Mapping[str, Any]) -> "SearchOptions":
    """The options of a search among the parameters of a command; DragomanError for a glossary that cannot be used."""
    from dragoman.decoding.options import SearchOptions

    values = {field.name: parameters[field.name] for field in fields(SearchOptions)}
    values |= {name: tuple(values[name] or ()) for name in ("require", "forbid")}
    if values["glossary"] is not None:
        from dragoman.decoding.glossary import Glossary

        values["glossary"] = Glossary.load(values["glossary"])
    return SearchOptions(**values)
