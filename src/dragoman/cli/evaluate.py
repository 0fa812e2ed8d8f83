"""``dragoman evaluate``: a test set through a model, or translations that are there, scored."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.evaluation_options import (
    SEARCH,
    Bootstrap,
    Lowercase,
    Metrics,
    Page,
    Pair,
    References,
    Seed,
    Tokenize,
    check_page,
    languages_of,
    read_hypotheses,
)
from dragoman.cli.options import Alpha, AsJson, Beam, Device, MaxLength, Quiet, TestSets, TranslationProducts
from dragoman.cli.overwriting import check_outputs
from dragoman.cli.search_options import Ensemble, name_of
from dragoman.cli.stops import terminable
from dragoman.cli.streams import hush, notify, one_line, open_output, print_json
from dragoman.data.formats.treebank import is_treebank
from dragoman.errors import UsageError, counted
from dragoman.evaluation.measures import RESAMPLES, SEED, choose_measures

if TYPE_CHECKING:
    from dragoman.evaluation.evaluate import TestReport
    from dragoman.evaluation.systems import System
    from dragoman.evaluation.testset import TestSet

_EXAMPLES = 10

OptionalModel = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A run folder (its best checkpoint), a checkpoint folder, or a bundle; or --hypotheses instead.",
    ),
]
Hypotheses = Annotated[
    Path | None,
    typer.Option("--hypotheses", metavar="FILE", help="Score the translations of this file, one a line; - is standard input."),
]
SegmentLevel = Annotated[
    bool,
    typer.Option(
        "--segment-level",
        help="Print the scores of each sentence by --metric instead, a line each, tabs between; with --json, beside the others.",
    ),
]
Examples = Annotated[
    int | None,
    typer.Option("--examples", min=0, metavar="N", help=f"How many of the best and of the worst sentences to show. Default: {_EXAMPLES}."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="HYP", help="Also write the translations, one a line, to this file. Default: none."),
]


def evaluate(
    context: typer.Context,
    model: OptionalModel = None,
    test: TestSets = None,
    reference: References = None,
    hypotheses: Hypotheses = None,
    pair: Pair = None,
    metric: Metrics = None,
    tokenize: Tokenize = None,
    lowercase: Lowercase = False,
    bootstrap: Bootstrap = None,
    seed: Seed = None,
    segment_level: SegmentLevel = False,
    examples: Examples = None,
    html: Page = None,
    output: Output = None,
    beam: Beam = None,
    alpha: Alpha = None,
    max_length: MaxLength = None,
    ensemble: Ensemble = None,
    device: Device = "auto",
    precision: TranslationProducts = "fp32",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score the translations of a test set: by a MODEL, or those of --hypotheses.

    BLEU, chrF and TER by sacreBLEU, with its signatures and 95 % intervals, the BLEU of the paper's Table 2, and exact matches; then scores
    by the length of the source, counts of words unknown, copied and repeated, and the best and the worst sentences.

    Only figures with the same signature can be compared; bs and seed in it are those of the interval. A difference smaller than the
    interval may be chance: `dragoman compare` tells. The seconds are those of translating, without loading the model.

    On a treebank (.mrg, .ptb, .trees) the model parses, and labelled brackets are scored by evalb's rules; --hypotheses are trees.
    """
    if quiet:
        hush()
    asked = _checked(context.params)
    if any(map(is_treebank, test or ())):
        from dragoman.cli.tree_evaluation import evaluate_trees

        return evaluate_trees(asked)
    check_page(html)
    measures = choose_measures(metric or [], tokenize=tokenize, lowercase=lowercase)  # a wrong name is said before a model is at work
    languages = languages_of(pair) if model is None else _languages(model, test or [])
    _check_outputs({"-o": output, "--html": html}, [model, hypotheses, *(ensemble or ()), *(reference or ())], test or [], languages)
    with terminable() as check, open_output(html) if html else nullcontext() as page:
        if hypotheses is not None:
            system, plain, target = _given(hypotheses, test or [], reference or [], languages)
        else:
            system, plain, target = _translated(asked, check)
        from dragoman.evaluation.evaluate import evaluate_texts
        from dragoman.evaluation.pages import evaluation_page

        measures = [replace(each, language=target) for each in measures]
        resamples, seed, most = asked["bootstrap"], asked["seed"], asked["examples"]
        report = evaluate_texts(system.texts, plain, measures, resamples=resamples, seed=seed, every_sentence=segment_level)
        if page:
            page.write(evaluation_page(system, report, target=target, most=most))
    _print(asked, system, report)


def _print(asked: Mapping[str, Any], system: "System", report: "TestReport") -> None:
    """The report in the form that is asked for."""
    from dragoman.cli import evaluation_text as text

    most, segments = asked["examples"], asked["segment_level"]
    if asked["as_json"]:
        named = {"model" if asked["model"] else "hypotheses": system.name, "test": asked["test"] or []}
        named["references"] = list(map(str, asked["reference"] or []))
        print_json({**named, **text.document(system, report, most=most, segments=segments)})
    elif segments:
        text.print_segments(report)
    else:
        text.print_report(system, report, most=most)


def _checked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked, with the usual numbers where none are given; UsageError unless there is either a model or a file of translations,
    and options that belong to it.
    """
    model, hypotheses = asked["model"], asked["hypotheses"]
    if (model is None) == (hypotheses is None):
        both = "not both" if model else "one of them"
        raise UsageError(f"give a MODEL to translate with, or --hypotheses FILE with translations that are there: {both}")
    if model is not None and model.is_file():
        raise UsageError(f"{model}: a file, and a MODEL is a folder; for translations that are there, write --hypotheses {model}")
    if model is not None and asked["pair"] is not None:
        raise UsageError("--pair: the model tells its languages; leave it out")
    of_model = {name: asked[name] for name in SEARCH} | {name: asked[name] or None for name in ("ensemble", "output")}
    of_model["precision"] = None if asked["precision"] == "fp32" else asked["precision"]
    of_model["device"] = None if asked["device"] == "auto" else asked["device"]
    useless = [f"--{name.replace('_', '-')}" for name, value in of_model.items() if value is not None]
    if hypotheses is not None and useless:
        raise UsageError(f"{', '.join(useless)}: for a MODEL that translates; with --hypotheses leave it out")
    if str(asked["output"]) == "-":
        raise UsageError("--output -: standard output holds the scores; give a file")
    if asked["bootstrap"] == 0 and asked["seed"] is not None:
        raise UsageError(f"--seed {asked['seed']} with --bootstrap 0: nothing is drawn; leave one of the two out")
    idle = [f"--{name}" for name in ("examples", "bootstrap", "seed") if asked[name] is not None]
    segments_alone = asked["segment_level"] and not asked["as_json"] and asked["html"] is None
    if idle and segments_alone:
        raise UsageError(
            f"{', '.join(idle)} with --segment-level: the scores of each sentence are all it prints; leave one out, or add --json"
        )
    usual = {"bootstrap": 0 if segments_alone else RESAMPLES, "seed": SEED, "examples": _EXAMPLES}
    return {**asked, **{name: value for name, value in usual.items() if asked[name] is None}}


def _check_outputs(written: dict[str, Path | None], read: list[Path | None], specs: list[str], languages: tuple[str, str] | None) -> None:
    from dragoman.evaluation.testset import files_of_test_set

    check_outputs(written, [*read, *files_of_test_set(specs, languages)])


def _languages(model: Path, specs: list[str]) -> tuple[str, str]:
    """The languages of a model; UsageError where there is nothing for it to translate."""
    if not specs:
        raise UsageError("no test set; give --test PATH, whose sources the model translates")
    from dragoman.bundle import load_config, resolve_model

    data = load_config(resolve_model(model)).data
    return data.source, data.target


def _translated(asked: Mapping[str, Any], check: Callable[[], None]) -> tuple["System", "TestSet", str]:
    """A model's translations, which are in the file ``output`` before anything is scored; the test set in plain text; its target's code."""
    from dragoman.decoding.translate import Translator
    from dragoman.devices import keep_freed_memory
    from dragoman.evaluation.systems import translating_system
    from dragoman.evaluation.testset import read_test_set

    keep_freed_memory()
    model, output, ensemble = asked["model"], asked["output"], asked["ensemble"] or ()
    translator = Translator.load(model, device=asked["device"], ensemble=ensemble, precision=asked["precision"])
    bundle, search = translator.bundle, {name: asked[name] for name in SEARCH}
    test = read_test_set(asked["test"], asked["reference"] or [], (bundle.config.data.source, bundle.config.data.target))
    with open_output(output) if output else nullcontext() as stream:
        notify(f"translating {counted(len(test), 'sentence')}")
        # A type is chosen on what is translated first, before time is taken.
        name, warm_up = name_of(model, ensemble), asked["precision"] == "auto"
        system = translating_system(name, translator, test, warm_up=warm_up, check=check, **search)
        if stream:
            stream.writelines(f"{one_line(text)}\n" for text in system.texts)
    check()
    return system, test.plain(bundle.source_tokenizer, bundle.target_tokenizer), bundle.config.data.target


def _given(path: Path, specs: list[str], references: list[Path], languages: tuple[str, str] | None) -> tuple["System", "TestSet", str]:
    """Translations that are there, the test set, and the code of its target language, if it is known."""
    from dragoman.evaluation.systems import given_system, warn_of_pieces
    from dragoman.evaluation.testset import read_test_set

    test = read_test_set(specs, references, languages)
    warn_of_pieces("the references", chain.from_iterable(test.references))
    return given_system(str(path), read_hypotheses(path), test), test, languages[1] if languages else ""
