"""An evaluation as text for people, as lines for programs, and as one JSON document."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from dragoman.cli.streams import one_line
from dragoman.errors import counted
from dragoman.evaluation.evaluate import RANKED_BY, TestReport
from dragoman.evaluation.measures import LABELS, Measured
from dragoman.evaluation.pages import bucket_rows
from dragoman.evaluation.systems import System, per_second


def document(system: System, report: TestReport, *, most: int, segments: bool) -> dict[str, Any]:
    """All of an evaluation for JSON; the scores of each sentence with ``segments``."""
    found: dict[str, Any] = {"sentences": len(report.sentences)}
    for measured in report.scores:
        key, interval = measured.measure.key, measured.interval and asdict(measured.interval)
        found |= {key: measured.score, f"{key}_signature": measured.signature, f"{key}_interval": interval}
        if measured.details:
            found[f"{key}_details"] = asdict(measured.details)
        found[f"{key}_explanation"] = measured.measure.explanation
    found |= {"exact_match": report.exact_match, "seconds": system.seconds, "system": system.facts()}
    found |= {"decoding": system.settings.get("decoding")}  # None of translations that were there
    found |= {"counts": {**asdict(report.counts), "length_ratio": report.counts.length_ratio}}
    found |= {"lengths_of": report.lengths_of, "length_unit": report.length_unit, "lengths": [asdict(bucket) for bucket in report.buckets]}
    found |= {"sentence_signatures": report.sentence_signatures}
    found |= {"best": [asdict(each) for each in report.best(most)], "worst": [asdict(each) for each in report.worst(most)]}
    return found | ({"segments": [asdict(each) for each in report.sentences]} if segments else {})


def print_segments(report: TestReport) -> None:
    """A heading, then a line for each sentence: its number, its scores by the measures asked for, 1 or 0 for an exact match."""
    keys = [measured.measure.key for measured in report.scores]  # a sentence has its chrF too, whatever was asked for
    print("\t".join(["line", *keys, "exact"]))
    for sentence in report.sentences:
        print("\t".join([str(sentence.number), *(f"{sentence.scores[key]:.4f}" for key in keys), str(int(sentence.exact))]))


def print_report(system: System, report: TestReport, *, most: int) -> None:
    """The scores, each with what it is; counts; scores by length; the best and the worst sentences."""
    for measured in report.scores:
        print(*_score_lines(measured), sep="\n")
    print(f"{'exact match':<12} {report.exact_match:6.2f}  % of {counted(len(report.sentences), 'sentence')}")
    if system.seconds is not None:
        speed = per_second(len(report.sentences), system.seconds)
        print(f"{'seconds':<12} {system.seconds:6.1f}  {speed:,.1f} sentences a second")
    print()
    for name, value in _count_lines(system, report):
        print(f"{name:<12} {value}")
    print()
    print(*table(*bucket_rows(report, f"{report.lengths_of} {report.length_unit}", "exact match")), sep="\n")
    for title, sentences in (("best", report.best(most)), ("worst", report.worst(most))):
        if sentences:
            print(f"\n{title} sentences, by {LABELS[RANKED_BY]}")
            for each in sentences:
                print(*text_lines(f"{each.number:>6}  {each.scores[RANKED_BY]:.2f}", each.texts()), sep="\n")


def _score_lines(measured: Measured) -> list[str]:
    """A score with its interval and its signature, what it is, and what a BLEU is made of."""
    interval = f" ± {measured.interval.half:.2f}" if measured.interval else ""
    lines = [
        f"{measured.measure.label:<12} {measured.score:6.2f}{interval}  {measured.signature}",
        f"{'':21}{measured.measure.explanation}",
    ]
    if details := measured.details:
        precisions = "/".join(f"{precision:.1f}" for precision in details.precisions)
        lengths = f"{details.hypothesis_length:,} words for {details.reference_length:,}"
        lines.append(f"{'':21}n-grams {precisions}, brevity penalty {details.brevity_penalty:.3f}, {lengths}")
    return lines


def _count_lines(system: System, report: TestReport) -> list[tuple[str, str]]:
    """The counts in words."""
    counts = report.counts
    ratio = "" if counts.length_ratio is None else f" ({counts.length_ratio:.3f} for one)"
    usual = f"in the reference {counts.repeated_in_reference:,}"
    lines = [
        ("length", f"{counts.words:,} {counts.unit} for {counts.reference_words:,} of the reference{ratio}; {counts.empty:,} empty lines"),
        (
            "repeated",
            f"{counts.repeated:,} {counts.unit} said twice in a row, in {counted(counts.repeating_sentences, 'sentence')}; {usual}",
        ),
    ]
    if counts.copied is not None:
        whole = counted(counts.copied_sentences or 0, "whole sentence")
        lines.append(
            ("copied", f"{counts.copied:,} {counts.unit} of the source, {counts.copied_wrongly:,} of them in no reference; {whole}")
        )
    known = "" if system.unknown_in_source is None else f"; {system.unknown_in_source:,} tokens of the sources are not in the vocabulary"
    lines.append(("unknown", f"{counts.unknown:,} <unk> in the translations{known}"))
    if system.reached_limit is not None:
        lines.append(("cut", f"{system.reached_limit:,} translations reached the longest length allowed"))
    return lines


def table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of columns, the first to the left and the others to the right."""
    lines = [heading, *([f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first, *others = widths
    return [
        "  ".join([cells[0].ljust(first), *(cell.rjust(width) for cell, width in zip(cells[1:], others, strict=True))]).rstrip()
        for cells in lines
    ]


def text_lines(head: str, texts: Iterable[tuple[str, str]]) -> list[str]:
    """A line about a sentence, and below it its texts, each behind its name."""
    return [head, *(f"        {name:<10} {one_line(text)}".rstrip() for name, text in texts)]
