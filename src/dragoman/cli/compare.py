"""``dragoman compare``: models, or translations that are there, on one test set."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.evaluation_options import (
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
from dragoman.cli.options import Alpha, AsJson, Beam, Device, MaxLength, Quiet, TestSets
from dragoman.cli.overwriting import check_outputs
from dragoman.cli.stops import terminable
from dragoman.cli.streams import hush, notify, open_output, print_json
from dragoman.errors import DragomanError, UsageError, counted
from dragoman.evaluation.measures import RESAMPLES, SEED, choose_measures

if TYPE_CHECKING:
    from dragoman.evaluation.compare import Comparison
    from dragoman.evaluation.systems import System
    from dragoman.evaluation.testset import TestSet

Systems = Annotated[
    list[Path],
    typer.Argument(
        metavar="SYSTEM",
        show_default=False,
        help="Two or more, each beside the first: folders are models (a run, a checkpoint, a bundle), files translations, one a line.",
    ),
]
Resamples = Annotated[int, typer.Option("--bootstrap", min=100, metavar="N", help="Resamples of the test set behind p and the intervals.")]
Examples = Annotated[int, typer.Option("--examples", min=0, metavar="N", help="How many of the largest gains and losses to show.")]


def compare(
    systems: Systems,
    test: TestSets = None,
    reference: References = None,
    pair: Pair = None,
    metric: Metrics = None,
    tokenize: Tokenize = None,
    lowercase: Lowercase = False,
    bootstrap: Resamples = RESAMPLES,
    seed: Seed = None,
    examples: Examples = 10,
    html: Page = None,
    beam: Beam = None,
    alpha: Alpha = None,
    max_length: MaxLength = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare models, or translations that are there, on one test set: each with the first.

    Scores with 95 % intervals; p, how often a difference as large as the one seen comes of chance alone (sacreBLEU's paired bootstrap;
    * below 0.05); how many sentences are better and worse by chrF, with the largest gains and losses; speed, parameters, and the settings
    in which the models differ. p is of each pair by itself: of twenty systems that are equal to the first, one has a p below 0.05.
    """
    if quiet:
        hush()
    check_page(html)
    search = {"beam": beam, "alpha": alpha, "max_length": max_length}
    _check(systems, test or [], pair, {**search, "device": None if device == "auto" else device})
    measures = choose_measures(metric or [], tokenize=tokenize, lowercase=lowercase)  # a wrong name is said before a model is at work
    from dragoman.evaluation.testset import files_of_test_set

    languages = _languages(systems) or languages_of(pair)
    check_outputs({"--html": html}, [*systems, *(reference or ()), *files_of_test_set(test or [], languages)])
    with terminable() as check, open_output(html) if html else nullcontext() as page:
        found, plain, target = _systems(systems, test or [], reference or [], languages, search=search, device=device, check=check)
        check()
        from dragoman.evaluation.compare import compare_systems
        from dragoman.evaluation.pages import comparison_page

        measures = [replace(each, language=target) for each in measures]
        comparison = compare_systems(found, plain, measures, resamples=bootstrap, seed=seed or SEED)
        if page:
            page.write(comparison_page(comparison, target=target, most=examples))
    if as_json:
        print_json({"test": test or [], "references": [str(path) for path in reference or []], **_document(comparison, examples)})
    else:
        print(*_lines(comparison, examples), sep="\n")


def _check(systems: list[Path], specs: list[str], pair: str | None, search: dict[str, Any]) -> None:
    """Raise before anything is read for systems that are not there, fewer than two, or options that none of them has a use for."""
    if len(systems) < 2:
        raise UsageError(f"{systems[0]} alone is nothing to compare; give two or more models or files of translations")
    for path in systems:
        if not path.exists():
            raise DragomanError(f"{path}: no such model and no such file; give model folders or files of translations")
    models = any(path.is_dir() for path in systems)
    useless = [f"--{name.replace('_', '-')}" for name, value in search.items() if value is not None]
    if useless and not models:
        raise UsageError(f"{', '.join(useless)}: for models that translate, and these are all files; leave it out")
    if pair is not None and models:
        raise UsageError("--pair: the models tell their languages; leave it out")
    if models and not specs:
        raise UsageError("no test set; give --test PATH, whose sources the models translate")


def _systems(
    paths: list[Path], specs: list[str], references: list[Path], languages: tuple[str, str] | None, *, search: dict[str, Any], device: str,
    check: Callable[[], None],
) -> tuple[list["System"], "TestSet", str]:  # fmt: skip
    """The systems, the test set in plain text, and the code of its target language, if it is known. All is read before a model works."""
    from dragoman.evaluation.systems import given_system, warn_of_pieces
    from dragoman.evaluation.testset import read_test_set

    test = read_test_set(specs, references, languages)
    found = {path: given_system(str(path), read_hypotheses(path), test) for path in paths if path.is_file()}
    models = list(dict.fromkeys(path for path in paths if path.is_dir()))
    plain = _plain(models, test)
    warn_of_pieces("the references", chain.from_iterable(plain.references))
    for path in models:
        found[path] = _translated(path, test, search, device, check)
    return [found[path] for path in paths], plain, languages[1] if languages else ""


def _languages(systems: list[Path]) -> tuple[str, str] | None:
    """The languages of all models, None without any; UsageError when they differ."""
    models = [path for path in systems if path.is_dir()]
    if not models:
        return None
    from dragoman.bundle import load_config, resolve_model

    data = [load_config(resolve_model(path)).data for path in models]
    codes = [(each.source, each.target) for each in data]
    for path, other in zip(models, codes, strict=True):
        if other != codes[0]:
            raise UsageError(f"{path}: translates {'-'.join(other)}, and {models[0]} {'-'.join(codes[0])}; compare models of one direction")
    return codes[0]


def _plain(models: list[Path], test: "TestSet") -> "TestSet":
    """The test set in plain text. Each model is opened whole, one at a time: a damaged one is told before another has translated for long.

    Raises DragomanError for a model that cannot be loaded, UsageError for one with another segmentation.
    """
    plain = test
    for path in models:
        from dragoman.bundle import load_bundle

        bundle = load_bundle(path)
        tidy = test.plain(bundle.source_tokenizer, bundle.target_tokenizer)
        if plain is test:
            plain = tidy
        elif plain.references != tidy.references:
            raise UsageError(f"{path}: segments text in another way than {models[0]}; translate with each and compare the files")
    return plain


def _translated(path: Path, test: "TestSet", search: dict[str, Any], device: str, check: Callable[[], None]) -> "System":
    from dragoman.decoding.translate import Translator
    from dragoman.devices import keep_freed_memory
    from dragoman.evaluation.systems import translating_system

    keep_freed_memory()  # as where it translates for good, for its speed is compared
    translator = Translator.load(path, device=device)
    notify(f"{path}: translating {counted(len(test), 'sentence')}")
    return translating_system(str(path), translator, test, **search, warm_up=True, check=check)


def _document(comparison: "Comparison", most: int) -> dict[str, Any]:
    scores = {
        together.measure.key: {
            "signature": together.signature,
            "explanation": together.measure.explanation,
            "systems": [asdict(result) for result in together.results],
        }
        for together in comparison.scores
    }
    differences = [
        {
            "system": system.name,
            **{name: getattr(difference, name) for name in ("better", "worse", "equal", "same_text")},
            "gains": [asdict(change) for change in difference.gains(most)],
            "losses": [asdict(change) for change in difference.losses(most)],
        }
        for system, difference in zip(comparison.systems[1:], comparison.differences, strict=True)
    ]
    return {
        "sentences": comparison.sentences,
        "systems": [
            {**system.facts(), "exact_match": exact} for system, exact in zip(comparison.systems, comparison.exact_matches, strict=True)
        ],
        "scores": scores,
        "sentence_signature": comparison.sentence_signature,
        "differences": differences,
        "settings": comparison.settings,
        "making": comparison.making,
    }


def _lines(comparison: "Comparison", most: int) -> list[str]:
    from dragoman.cli.evaluation_text import table, text_lines
    from dragoman.evaluation.pages import making_rows, score_rows, setting_rows, system_rows

    lines = table(*system_rows(comparison))
    for together in comparison.scores:
        lines += ["", f"{together.measure.label}  {together.signature}", f"    {together.measure.explanation}"]
        lines += table(*score_rows(together))
    lines += ["", "* p below 0.05"]
    for heading, rows in (setting_rows(comparison), making_rows(comparison)):
        lines += ["", *table(heading, rows)] if rows else []
    for number, difference in enumerate(comparison.differences, start=2):
        counts = f"{difference.better:,} better, {difference.worse:,} worse, {difference.equal:,} as good"
        lines += ["", f"{number} beside 1, by chrF of each sentence: {counts}; {difference.same_text:,} the same text"]
        for title, changes in (("largest gains", difference.gains(most)), ("largest losses", difference.losses(most))):
            lines += [f"  {title}"] if changes else []
            for change in changes:
                head = f"{change.number:>6}  {change.gain:+.2f}  ({change.score_before:.2f} to {change.score_after:.2f})"
                lines += text_lines(head, change.texts("1", str(number)))
    return lines
