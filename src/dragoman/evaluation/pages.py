"""An evaluation and a comparison, each as one HTML page (Section 6).

One file without scripts that fetches nothing. Everything that comes from a text, a file name or a setting is text, whatever it looks like.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from dragoman.evaluation.compare import SIGNIFICANT, Change, Comparison, MeasuredTogether
from dragoman.evaluation.evaluate import RANKED_BY, Sentence, TestReport
from dragoman.evaluation.measures import LABELS, Measured
from dragoman.evaluation.systems import System, per_second
from dragoman.html import escaped, page, table, text_table

_table = partial(table, written=True)


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
        _table("What was evaluated", ("", ""), known),
        "<h2>Scores</h2>",
        _table(
            "Scores, with where 95 % of resampled test sets lie", ("", "score", "±", "signature", "what it is"), map(_score, report.scores)
        ),
        _table("BLEU in parts", ("", "1- to 4-grams, %", "brevity penalty", "words", "for"), _details(report.scores)),
        "<h2>Where they fail</h2>",
        _table("Counts", ("", ""), [row for row in counted if row[1] is not None]),
        _table(
            f"By the length of the {report.lengths_of}",
            *bucket_rows(report, f"{report.length_unit} of the {report.lengths_of}", "exact matches, %"),
        ),
        f"<h2>Sentences</h2>\n<p>Ordered by {LABELS[RANKED_BY]} of the sentence: {escaped(report.sentence_signatures[RANKED_BY])}</p>",
        *(_sentences(f"{title} sentences", found, target) for title, found in (("Best", report.best(most)), ("Worst", report.worst(most)))),
    ]
    return page(f"Evaluation of {system.name}", body)


def comparison_page(comparison: Comparison, *, target: str, most: int) -> str:
    """The page of a comparison with the ``most`` largest gains and losses; ``target`` is the code of the translations' language."""
    parts = [_table("Systems", *system_rows(comparison)), "<h2>Scores</h2>", "<p>* p below 0.05, by sacreBLEU's paired bootstrap.</p>"]
    for together in comparison.scores:
        parts.append(_table(f"{together.measure.label}: {together.measure.explanation}", *score_rows(together)))
        parts.append(f"<p><code>{escaped(together.signature)}</code></p>")
    heading, rows = setting_rows(comparison)
    if rows:
        parts += ["<h2>Settings</h2>", _table("Settings that differ", heading, rows)]
    heading, rows = making_rows(comparison)
    if rows:
        parts += ["<h2>Making</h2>", _table("How each was made", heading, rows)]
    parts.append(f"<h2>Sentences</h2>\n<p>By {LABELS[RANKED_BY]} of the sentence: {escaped(comparison.sentence_signature)}</p>")
    for place, difference in enumerate(comparison.differences, start=2):
        counts = [("better", difference.better), ("worse", difference.worse), ("as good", difference.equal)]
        parts.append(f"<h3>System {place} beside system 1</h3>")
        parts.append(_table("Sentences", ("", ""), [*counts, ("the same text", difference.same_text)]))
        for title, changes in (("Largest gains", difference.gains(most)), ("Largest losses", difference.losses(most))):
            parts += [f"<h4>{title}</h4>"] if changes else []
            parts += [_change(change, place, target) for change in changes]
    return page(f"Comparison of {len(comparison.systems)} systems", parts)


def system_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The heading and a row for each system: its number, its name, its size and its speed."""
    rows = []
    for place, (system, exact) in enumerate(zip(comparison.systems, comparison.exact_matches, strict=True), start=1):
        seconds = system.seconds
        speeds = ["–"] * 3
        if seconds is not None and system.tokens is not None:
            speeds = [f"{seconds:.2f}", *(f"{per_second(count, seconds):,.1f}" for count in (comparison.sentences, system.tokens))]
        size = "–" if system.parameters is None else f"{system.parameters:,}"
        rows.append([str(place), system.name, size, *speeds, f"{exact:.2f}"])
    return ["", "system", "parameters", "seconds", "sentences/s", "tokens/s", "exact match"], rows


def score_rows(together: MeasuredTogether) -> tuple[list[str], list[list[str]]]:
    """The heading and a row for each system: its number, its score with the interval, the difference to the first, and p."""
    first, rows = together.results[0], []
    for place, result in enumerate(together.results, start=1):
        score = [str(place), f"{result.score:.2f}", f"± {result.interval.half:.2f}"]
        if result.p is None:
            rows.append([*score, "", "", ""])
        else:
            star = "*" if result.p < SIGNIFICANT else ""
            rows.append([*score, f"{result.score - first.score:+.2f}", f"{result.p:.4f}", star])
    return ["", "score", "95 %", "difference", "p", ""], rows


def bucket_rows(report: TestReport, lengths: str, exact: str) -> tuple[list[str], list[list[object]]]:
    """The heading, in which ``lengths`` and ``exact`` name two columns, and a row for each length: its sentences and their scores."""
    keys = list(report.buckets[0].scores)
    rows: list[list[object]] = []
    for bucket in report.buckets:
        ratio = "–" if bucket.length_ratio is None else f"{bucket.length_ratio:.3f}"
        scores = ["–" if score is None else f"{score:.2f}" for score in (*(bucket.scores[key] for key in keys), bucket.exact_match)]
        rows.append([bucket.range, bucket.sentences, *scores, ratio])
    return [lengths, "sentences", *(LABELS[key.replace("_", "-")] for key in keys), exact, "length ratio"], rows


def setting_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The heading and a row for each setting that differs: its name, and its value in each system."""
    return _side_by_side("setting", comparison, comparison.settings, str)


def making_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The heading and a row for each fact of how the models were made: its name, and its value in each system."""
    return _side_by_side("made", comparison, {name.replace("_", " "): values for name, values in comparison.making.items()}, _fact)


def _side_by_side(
    title: str, comparison: Comparison, facts: Mapping[str, Sequence[Any]], shown: Callable[[Any], str]
) -> tuple[list[str], list[list[str]]]:
    numbers = [str(place) for place in range(1, len(comparison.systems) + 1)]
    rows = [[name, *("–" if value is None else shown(value) for value in values)] for name, values in facts.items()]
    return [title, *numbers], rows


def _fact(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if type(value) is int else str(value)


def _speed(system: System, sentences: int) -> list[tuple[str, object]]:
    seconds = system.seconds
    return [
        ("Parameters", system.parameters),
        ("Seconds of translating", None if seconds is None else f"{seconds:.2f}"),
        ("Sentences a second", None if seconds is None else f"{per_second(sentences, seconds):.1f}"),
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


def _sentences(title: str, sentences: Iterable[Sentence], target: str) -> str:
    parts = [_line(each.number, f"{each.scores[RANKED_BY]:.2f}", each.texts(), target) for each in sentences]
    return "\n".join([f"<h3>{escaped(title)}</h3>", *parts]) if parts else ""


def _change(change: Change, other: int, target: str) -> str:
    scores = f"{change.gain:+.2f} ({change.score_before:.2f} to {change.score_after:.2f})"
    return _line(change.number, scores, change.texts("system 1", f"system {other}"), target)


def _line(line: int, score: str, texts: Iterable[tuple[str, str]], target: str) -> str:
    """A sentence's score and its texts, of which all but the source are marked as of the target language."""
    rows = [(name, text, None if name == "source" else target or None) for name, text in texts]
    return f"<p>Line {line:,}, {LABELS[RANKED_BY]} {score}</p>\n{text_table(rows)}"
