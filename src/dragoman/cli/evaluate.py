"""``dragoman evaluate``: a test set through a model, scored."""

import os
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import Alpha, AsJson, Beam, Device, MaxLength, ModelPath, Quiet, TestPaths
from dragoman.cli.streams import hush, notify, one_line, open_output, print_json
from dragoman.errors import UsageError

if TYPE_CHECKING:
    from dragoman.evaluation.evaluate import Evaluation


def evaluate(
    model: ModelPath,
    test: TestPaths,
    tokenize: Annotated[
        str,
        typer.Option(
            "--tokenize",
            metavar="NAME",
            help="sacreBLEU's word splitter for BLEU: 13a, none (text that is tokenised already), intl, zh, char, ja-mecab or ko-mecab.",
        ),
    ] = "13a",
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF; off by default, and part of the signatures.")
    ] = False,
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
    """Translate a test set and score it: BLEU and chrF from 0 to 100 with sacreBLEU's signatures, and the percentage of exact matches.

    Only figures with the same signature can be compared. The seconds are those of translating, without loading the model.
    """
    if quiet:
        hush()
    if str(output) == "-":
        raise UsageError("--output -: standard output holds the scores; give a file")
    from dragoman.evaluation.metrics import check_tokenizer

    check_tokenizer(tokenize)
    from dragoman.data.formats.pairs import read_pairs
    from dragoman.decoding.translate import Translator
    from dragoman.evaluation.evaluate import evaluate_translator

    translator = Translator.load(model, device=device)
    languages = translator.bundle.config.data
    pairs = list(chain.from_iterable(read_pairs(spec, languages.source, languages.target) for spec in test))
    notify(f"translating {len(pairs):,} sentences")
    with open_output(output or Path(os.devnull)) as stream:
        evaluation = evaluate_translator(
            translator, pairs, tokenize=tokenize, lowercase=lowercase, beam=beam, alpha=alpha, max_length=max_length
        )
        stream.writelines(f"{one_line(translation.text)}\n" for translation in evaluation.translations)
    if as_json:
        print_json({"model": str(model), "test": test, **_facts(evaluation)})
    else:
        _print(evaluation)


def _facts(evaluation: "Evaluation") -> dict[str, Any]:
    scores = asdict(evaluation.scores)
    sentences = scores.pop("lines")
    return {"sentences": sentences, **scores, "exact_match": evaluation.exact_match, "seconds": evaluation.seconds}


def _print(evaluation: "Evaluation") -> None:
    scores = evaluation.scores
    details = scores.bleu_details
    precisions = "/".join(f"{precision:.1f}" for precision in details.precisions)
    print(f"BLEU         {scores.bleu:6.2f}  {scores.bleu_signature}")
    print(
        f"                     n-grams {precisions}, brevity penalty {details.brevity_penalty:.3f}, "
        f"{details.hypothesis_length:,} words for {details.reference_length:,}"
    )
    print(f"chrF         {scores.chrf:6.2f}  {scores.chrf_signature}")
    print(f"exact match  {evaluation.exact_match:6.2f}  % of {scores.lines:,} sentences")
    print(f"seconds      {evaluation.seconds:6.1f}  {scores.lines / max(evaluation.seconds, 1e-9):,.1f} sentences a second")
