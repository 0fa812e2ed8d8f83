"""An evaluation and a comparison, each as one HTML page (Section 6).

One file without scripts that fetches nothing. Everything that comes from a text, a file name or a setting is text, whatever it looks like.
"""

from collections.abc import Iterable, Sequence

from dragoman.evaluation.analysis import Bucket
from dragoman.evaluation.evaluate import RANKED_BY, Sentence, TestReport
from dragoman.evaluation.measures import LABELS, Measured
from dragoman.evaluation.systems import System
from dragoman.training.charts import escaped, number
from dragoman.training.report import STYLE

Rows = Iterable[Sequence[object]]


def evaluation_page(system: System, report: TestReport, *, target: str, most: int) -> str:
    """The page of an evaluation with the ``most`` best and worst sentences; ``target`` is the code of the translations' language."""
    counts = report.counts
    known = [("Translations", system.name), ("Sentences", len(report.sentences)), ("Exact matches, %", f"{report.exact_match:.2f}")]
    known += [(name, value) for name, value in _speed(system, len(report.sentences)) if value is not None]
    counted: list[tuple[str, object]] = [
        (f"{counts.unit} of the translations", counts.words),
        (f"{counts.unit} of the reference", counts.reference_words),
        ("empty translations", counts.empty),
        (f"{counts.unit} said twice in a row", counts.repeated),
        ("sentences with such", counts.repeating_sentences),
        (f"{counts.unit} said twice in a row in the reference", counts.repeated_in_reference),
        (f"{counts.unit} copied from the source", counts.copied),
        ("of them in no reference", counts.copied_wrongly),
        ("whole sentences copied", counts.copied_sentences),
        ("<unk> in the translations", counts.unknown),
        ("unknown tokens in the sources", system.unknown_in_source),
        ("translations that reached the longest length allowed", system.reached_limit),
    ]
    body = [
        table("What was evaluated", ("", ""), known),
        "<h2>Scores</h2>",
        table(
            "Scores, with where 95 % of resampled test sets lie", ("", "score", "±", "signature", "what it is"), map(_score, report.scores)
        ),
        table("BLEU in parts", ("", "1- to 4-grams, %", "brevity penalty", "words", "for"), _details(report.scores)),
        "<h2>Where they fail</h2>",
        table("Counts", ("", ""), [row for row in counted if row[1] is not None]),
        _buckets(report),
        f"<h2>Sentences</h2>\n<p>Ordered by {LABELS[RANKED_BY]} of the sentence: {escaped(report.sentence_signatures[RANKED_BY])}</p>",
        *(_sentences(f"{title} sentences", found, target) for title, found in (("Best", report.best(most)), ("Worst", report.worst(most)))),
    ]
    return html_page(f"Evaluation of {system.name}", body)


def html_page(title: str, parts: Iterable[str]) -> str:
    """A page of these parts, light or dark as the reader's system is."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escaped(title)}</title>\n'
        f"<style>{STYLE}:root {{ color-scheme: light dark; }}\n</style>\n</head>\n<body>\n<main>\n<h1>{escaped(title)}</h1>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(caption: str, header: Sequence[str], rows: Rows) -> str:
    """A table whose first cell of a row names it; numbers stand to the right. Nothing without rows; no heading when it would be empty."""
    lines = [f"<table>\n<caption>{escaped(caption)}</caption>"]
    if any(header):
        lines.append("<tr>" + "".join(f'<th scope="col">{escaped(name)}</th>' for name in header) + "</tr>")
    body = [f'<tr><th scope="row">{number(name)}</th>{"".join(map(_cell, cells))}</tr>' for name, *cells in rows]
    return "\n".join([*lines, *body, "</table>"]) if body else ""


def text_table(rows: Iterable[tuple[str, str]], language: str) -> str:
    """Named texts below one another; those of the target language are marked as such."""
    lines = []
    for name, text in rows:
        mark = f' lang="{escaped(language)}"' if language and name != "source" else ""
        lines.append(f'<tr><th scope="row">{escaped(name)}</th><td{mark} dir="auto">{escaped(text)}</td></tr>')
    return "\n".join(["<table>", *lines, "</table>"])


def _cell(value: object) -> str:
    figure = isinstance(value, int | float) or (isinstance(value, str) and value.replace(".", "", 1).isdecimal())
    return f'<td class="n">{number(value)}</td>' if figure else f"<td>{number(value)}</td>"


def _speed(system: System, sentences: int) -> list[tuple[str, object]]:
    seconds = system.seconds
    return [
        ("Parameters", system.parameters),
        ("Seconds of translating", None if seconds is None else f"{seconds:.2f}"),
        ("Sentences a second", None if seconds is None else f"{sentences / max(seconds, 1e-9):.1f}"),
    ]


def _score(measured: Measured) -> tuple[object, ...]:
    half = f"{measured.interval.half:.2f}" if measured.interval else ""
    return measured.measure.label, f"{measured.score:.2f}", half, measured.signature, measured.measure.explanation


def _details(scores: Iterable[Measured]) -> list[tuple[object, ...]]:
    return [
        (
            each.measure.label,
            " / ".join(f"{precision:.1f}" for precision in each.details.precisions),
            f"{each.details.brevity_penalty:.3f}",
            each.details.hypothesis_length,
            each.details.reference_length,
        )
        for each in scores
        if each.details
    ]


def _buckets(report: TestReport) -> str:
    keys = list(report.buckets[0].scores)
    header = (f"{report.length_unit} of the {report.lengths_of}", "sentences", *(LABELS[key.replace("_", "-")] for key in keys))
    rows = [(_range(bucket), bucket.sentences, *(f"{bucket.scores[key]:.2f}" for key in keys), *_rest(bucket)) for bucket in report.buckets]
    return table(f"By the length of the {report.lengths_of}", (*header, "exact matches, %", "length ratio"), rows)


def _range(bucket: Bucket) -> str:
    return f"{bucket.shortest} or more" if bucket.longest is None else f"{bucket.shortest} to {bucket.longest}"


def _rest(bucket: Bucket) -> tuple[str, str]:
    return f"{bucket.exact_match:.2f}", "–" if bucket.length_ratio is None else f"{bucket.length_ratio:.3f}"


def _sentences(title: str, sentences: Iterable[Sentence], target: str) -> str:
    parts = []
    for sentence in sentences:
        rows = [("source", sentence.source)] if sentence.source is not None else []
        rows += [("output", sentence.hypothesis), *(("reference", reference) for reference in sentence.references)]
        score = f"{LABELS[RANKED_BY]} {sentence.scores[RANKED_BY]:.2f}"
        parts.append(f"<p>Line {sentence.number:,}, {score}</p>\n{text_table(rows, target)}")
    return "\n".join([f"<h3>{escaped(title)}</h3>", *parts]) if parts else ""
