"""``dragoman evaluate`` on a treebank: trees by a model, or trees that are there, scored by their brackets (Section 6.3)."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli.evaluation_options import SEARCH, read_hypotheses
from dragoman.cli.evaluation_text import table, text_lines
from dragoman.cli.overwriting import check_outputs
from dragoman.cli.search_options import name_of
from dragoman.cli.stops import terminable
from dragoman.cli.streams import notify, open_output, print_json
from dragoman.data.formats.treebank import SUFFIXES, is_treebank, read_tree, read_trees, trees_of
from dragoman.data.trees import Tree
from dragoman.errors import DragomanError, UsageError, counted

if TYPE_CHECKING:
    from dragoman.evaluation.brackets import BracketReport, ParsedSentence

RULES = "labelled brackets by the rules of evalb (COLLINS.prm)"

_OF_TRANSLATIONS = ("reference", "pair", "metric", "tokenize", "lowercase", "html")
"""Options that mean nothing here."""


def evaluate_trees(asked: Mapping[str, Any]) -> None:
    """Print the scores of a model's trees for the sentences of treebanks, or of trees that are there; ``asked`` are the parameters of
    `dragoman evaluate`.
    """
    test: list[str] = asked["test"]
    if given := [f"--{name.replace('_', '-')}" for name in _OF_TRANSLATIONS if asked[name]]:
        raise UsageError(f"{', '.join(given)}: for translations, and {test[0]} is a treebank, scored by its brackets; leave it out")
    if other := [spec for spec in test if not is_treebank(spec)]:
        raise UsageError(f"--test {other[0]}: no treebank ({', '.join(SUFFIXES)}) beside one; evaluate them one by one")
    model, hypotheses, output = asked["model"], asked["hypotheses"], asked["output"]
    check_outputs({"-o": output}, [model, hypotheses, *(asked["ensemble"] or ()), *map(Path, test)])
    gold = [tree for spec in test for tree in read_trees(Path(spec))]
    if hypotheses is not None:
        trees, facts = list(trees_of(read_hypotheses(hypotheses), str(hypotheses))), {"hypotheses": str(hypotheses)}
        if len(trees) != len(gold):
            raise DragomanError(f"{hypotheses}: {len(trees):,} trees, but the test set has {len(gold):,}; give one for each sentence")
    else:
        with terminable() as check, open_output(output) if output else nullcontext() as stream:
            trees, facts = _parsed(asked, gold, check)
            check()
            if stream:
                stream.writelines(f"{tree}\n" for tree in trees)
    from dragoman.evaluation.brackets import score_brackets

    report = score_brackets(gold, trees, resamples=asked["bootstrap"], seed=asked["seed"])
    _warn(report)
    if asked["as_json"]:
        print_json({**facts, "test": test, **_document(report, asked["examples"], asked["segment_level"])})
    elif asked["segment_level"]:
        _print_segments(report)
    else:
        _print_report(report, facts, asked["examples"])


def _parsed(asked: Mapping[str, Any], gold: Sequence[Tree], check: Callable[[], None]) -> tuple[list[Tree], dict[str, Any]]:
    """A model's trees, and how it made them."""
    from dragoman.decoding.options import SearchOptions
    from dragoman.decoding.translate import Translator
    from dragoman.evaluation.systems import WARM_UP, search_settings

    ensemble: list[Path] = asked["ensemble"] or []
    translator = Translator.load(asked["model"], device=asked["device"], ensemble=ensemble, precision=asked["precision"])
    search: dict[str, Any] = {name: asked[name] for name in SEARCH}
    trees_alone = SearchOptions(tree=True)
    sentences = [" ".join(tree.words) for tree in gold]
    notify(f"parsing {counted(len(gold), 'sentence')}")
    if asked["precision"] == "auto":
        translator.translate(sentences[:WARM_UP], options=trees_alone, check=check, **search)  # before time is taken
    start = time.perf_counter()
    found = translator.translate(sentences, options=trees_alone, check=check, **search)
    seconds = time.perf_counter() - start
    trees = [read_tree(each.text) if each.text else Tree((), ()) for each in found]
    facts = {"model": name_of(asked["model"], ensemble), "seconds": seconds, "reached_limit": sum(each.reached_limit for each in found)}
    return trees, facts | {"decoding": search_settings(translator, **search)}


def _warn(report: "BracketReport") -> None:
    if report.errors:
        count, all_of_them, first = len(report.errors), len(report.sentences), report.errors[0]
        notice = "%d of %d sentences do not count, such as line %d: %s"
        logging.getLogger("dragoman").warning(notice, count, all_of_them, first.number, first.error)


def _figures(report: "BracketReport") -> dict[str, tuple[float | None, str]]:
    """Each score in percent, and what it is."""
    score, short, errors = report.score, report.short, len(report.errors)
    from dragoman.evaluation.brackets import LONGEST, BracketScore

    figures: dict[str, tuple[float | None, str]] = {
        "f1": (score.f1, RULES),
        "recall": (score.recall, f"{score.matched:,} of {score.gold:,} gold brackets"),
        "precision": (score.precision, f"{score.matched:,} of {score.found:,} brackets found"),
        f"f1_up_to_{LONGEST}": (BracketScore.of(short).f1, f"of the {len(short):,} sentences of at most {LONGEST} words"),
        "complete_match": (report.complete_match, f"% of {len(report.valid):,} sentences have the gold brackets and no others"),
        "no_crossing": (report.without_crossing, f"% of them have none that crosses a gold one; a sentence has {report.crossing:.2f}"),
        "tag_accuracy": (report.tag_accuracy, "% of the words, punctuation left out"),
        "f1_with_errors": (report.score_with_errors.f1, f"when the {errors:,} sentences that do not count have found no bracket"),
    }
    return {name: figure for name, figure in figures.items() if figure[0] is not None and (errors or name != "f1_with_errors")}


def _document(report: "BracketReport", most: int, segments: bool) -> dict[str, Any]:
    errors = [{"line": each.number, "error": each.error} for each in report.errors]
    found: dict[str, Any] = {"sentences": len(report.sentences), "valid": len(report.valid), "errors": errors}
    found |= {"skipped": sum(each.skipped for each in report.sentences), "rules": RULES}
    found |= {name: value for name, (value, _) in _figures(report).items()} | {"crossing": report.crossing}
    found["f1_interval"] = report.interval and asdict(report.interval)
    found["labels"] = {
        label: {**asdict(score), "recall": score.recall, "precision": score.precision, "f1": score.f1}
        for label, score in report.labels().items()
    }
    found["worst"] = [_segment(each) | dict(_texts(each)) for each in report.worst(most)]
    return found | ({"segments": [_segment(each) for each in report.sentences]} if segments else {})


def _segment(each: "ParsedSentence") -> dict[str, Any]:
    counts = {name: getattr(each, name).total() for name in ("matched", "gold", "found")}
    facts = {"words": each.words, "crossing": each.crossing, "complete": each.complete and not each.error, "error": each.error}
    return {"line": each.number, "f1": each.f1, **counts, **facts}


def _texts(each: "ParsedSentence") -> list[tuple[str, str]]:
    return [("gold", str(each.gold_tree)), ("tree", str(each.tree))]


def _print_segments(report: "BracketReport") -> None:
    """A heading, then a line for each sentence."""
    names = ("line", "f1", "matched", "gold", "found", "words", "crossing", "complete", "error")
    print(*names, sep="\t")
    for each in map(_segment, report.sentences):
        print(*(f"{each[name]:.2f}" if name == "f1" else int(each[name]) if name == "complete" else each[name] for name in names), sep="\t")


def _print_report(report: "BracketReport", facts: Mapping[str, Any], most: int) -> None:
    """The scores, each with what it is, those of each label, and the worst sentences."""
    for name, (value, what) in _figures(report).items():
        spread = f" ± {report.interval.half:.2f}" if name == "f1" and report.interval else ""
        print(f"{name.replace('_', ' ').replace('f1', 'F1'):<14} {value:6.2f}{spread}  {what}")
    if "seconds" in facts:
        print(f"{'seconds':<14} {facts['seconds']:6.1f}  {len(report.sentences) / max(facts['seconds'], 1e-9):,.1f} sentences a second")
        print(f"{'cut':<14} {facts['reached_limit']:6,}  trees reached the longest length allowed")
    rows = [
        [label, score.gold, score.found, f"{score.recall:.2f}", f"{score.precision:.2f}", f"{score.f1:.2f}"]
        for label, score in report.labels().items()
    ]
    print("", *table(["label", "gold", "found", "recall", "precision", "F1"], rows), sep="\n")
    if worst := report.worst(most):
        print("\nworst sentences, by F1")
        for each in worst:
            print(*text_lines(f"{each.number:>6}  {each.error or f'{each.f1:.2f}'}", _texts(each)), sep="\n")
