"""``dragoman evaluate``: a test set through a model, or translations that are there, scored."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Alpha, AsJson, Beam, Device, MaxLength, Quiet
from dragoman.cli.streams import arriving_lines, hush, notify, one_line, open_output, print_json
from dragoman.data.formats.lines import decode_line
from dragoman.errors import DragomanError, UsageError

if TYPE_CHECKING:
    from dragoman.decoding.translate import Translator
    from dragoman.evaluation.evaluate import Sentence, TestReport
    from dragoman.evaluation.measures import Measured

TestSets = Annotated[
    list[str] | None,
    typer.Option(
        "--test",
        metavar="PATH",
        help="Parallel text: a prefix (PREFIX.en and PREFIX.de, also .gz, .xz, .zst), SOURCE_FILE,TARGET_FILE, a .tsv or a .jsonl file. "
        "May be given several times; they are concatenated.",
    ),
]
References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        metavar="FILE",
        help="A text file of further references, one a line, beside the target side of --test. May be given several times: each file is one "
        "more reference of every sentence.",
    ),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="bleu, paper-bleu, chrf, chrf++ or ter; may be given several times. Default: bleu, paper-bleu (unless --tokenize is for text "
        "without spaces), chrf and ter.",
    ),
]
Tokenize = Annotated[
    str,
    typer.Option(
        "--tokenize",
        metavar="NAME",
        help="sacreBLEU's word splitter for BLEU: 13a, none (text that is tokenised already), intl, zh, char, ja-mecab or ko-mecab.",
    ),
]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF; off by default, and part of the signatures.")]
Pair = Annotated[
    str | None,
    typer.Option(
        "--pair", metavar="SOURCE-TARGET", help="The languages, such as en-de, where no model tells them: of a prefix or a .jsonl file."
    ),
]
Bootstrap = Annotated[
    int,
    typer.Option("--bootstrap", min=0, metavar="N", help="Resamples of the test set behind the 95 % intervals; 0: no intervals."),
]
Seed = Annotated[int, typer.Option("--seed", min=1, help="Seed of the resamples; sacreBLEU's own by default. Part of the signatures.")]
Examples = Annotated[int, typer.Option("--examples", min=0, metavar="N", help="How many of the best and of the worst sentences to show.")]
Page = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write it all as one HTML page, without scripts, that fetches nothing. Default: none."),
]


def evaluate(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A run folder (its best checkpoint), a checkpoint folder, or a bundle.", show_default=False),
    ] = None,
    test: TestSets = None,
    references: References = None,
    hypotheses: Annotated[
        Path | None,
        typer.Option("--hypotheses", metavar="FILE", help="Instead of a MODEL: translations that are there, one a line; - is standard input."),
    ] = None,
    pair: Pair = None,
    metrics: Metrics = None,
    tokenize: Tokenize = "13a",
    lowercase: Lowercase = False,
    bootstrap: Bootstrap = 1000,
    seed: Seed = 12345,
    segment_level: Annotated[
        bool,
        typer.Option(
            "--segment-level", help="Print the scores of each sentence instead, tab-separated under a heading; with --json, beside the others."
        ),
    ] = False,
    examples: Examples = 10,
    html: Page = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="HYP", help="Also write the translations, one a line, to this file. Default: none."),
    ] = None,
    beam: Beam = None,
    alpha: Alpha = None,
    max_length: MaxLength = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Translate a test set with a MODEL, or take the translations of --hypotheses, and score them: BLEU, chrF and TER by sacreBLEU, with
    its signatures and 95 % intervals, the BLEU of the paper's Table 2, and exact matches; then where they fail.

    Only figures with the same signature can be compared, apart from bs and seed, which are about the interval. A difference smaller than
    the interval may be chance: `dragoman compare` tells. The seconds are those of translating, without loading the model.
    """
    if quiet:
        hush()
    search = {"--beam": beam, "--alpha": alpha, "--max-length": max_length, "--output": output}
    _check(model, hypotheses, pair, search)
    from dragoman.evaluation.measures import choose_measures

    choose_measures(metrics or [], tokenize=tokenize)
    evaluated = _translated(model, test, references, beam, alpha, max_length, device, output) if model else _given(hypotheses, test, references, pair)
    ...


