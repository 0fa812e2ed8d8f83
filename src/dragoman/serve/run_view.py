"""A run as the page shows it: where it stands, its curves as pictures, its numbers and its samples as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.training.charts import line_chart
from dragoman.training.records import Record, is_number
from dragoman.training.report import Report

MOST_ROWS = 12
"""Rows of a table of numbers, the last of them."""
MOST_CHANGES = 5
"""Of a sample's translation, the last of them."""
_LOSS = {"step": ("step", 0), "loss": ("smoothed loss", 4), "ppl": ("perplexity", 2)}
_EVALUATIONS = {**_LOSS, "bleu": ("BLEU", 2), "chrf": ("chrF", 2)}
_UPDATES = {**_LOSS, "lr": ("learning rate", 7), "grad_norm": ("gradient norm", 3), "tok_s": ("tokens a second", 0)}


def run_view(head: Mapping[str, Any], facts: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    """Of what run.json and the standing records of log.jsonl say; ``head`` is what the server says of a run.

    A chart is SVG, a table as in an explanation, with the decimals of its columns.
    """
    report = Report.of(facts, records)
    charts = [(title, line_chart(title, curves)) for title, curves in report.charts()]
    return {
        "title": ": ".join(filter(None, (head["name"], head["pair"]))),
        "said": _standing(head, report),
        "charts": [{"title": title, "svg": svg} for title, svg in charts if svg],
        "evaluations": _numbers("Evaluations", report.evaluations, _EVALUATIONS),
        "samples": _samples(report),
        "updates": _numbers("Updates", report.training, _UPDATES),
    }


def _standing(head: Mapping[str, Any], report: Report) -> str:
    last = max((record["step"] for record in (*report.training[-1:], *report.evaluations[-1:])), default=0)
    best = next((record for record in report.evaluations if record["step"] == head["best_step"]), None)
    facts = [head["status"], f"step {last:,}"]
    if best:
        loss, bleu = (f"{best[key]:.{digits}f}" if is_number(best.get(key)) else "–" for key, digits in (("loss", 4), ("bleu", 2)))
        facts.append(f"best at step {best['step']:,}: validation loss {loss}, BLEU {bleu}")
    return " · ".join([*facts, f"warm-up {head['warmup_steps']:,} steps"])


def _numbers(title: str, records: Sequence[Record], columns: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    rows = [[record[key] if is_number(record.get(key)) else "–" for key in columns] for record in records[-MOST_ROWS:]]
    caption = f"{title}, the last {MOST_ROWS}" if len(records) > MOST_ROWS else title
    return _table(caption, [name for name, _ in columns.values()], rows, digits=dict(columns.values()))


def _samples(report: Report) -> list[dict[str, Any]]:
    """What became of each sentence of the validation text wherever it changed."""
    return [
        _table(
            f"“{source}”", ["step", "translation"],
            [["reference", reference], *([f"step {step:,}", output] for step, output in history[-MOST_CHANGES:])],
        )
        for (source, reference), history in report.histories().items()
    ]  # fmt: skip


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Any]], digits: Mapping[str, int] | None = None) -> dict[str, Any]:
    return {"caption": caption, "header": list(header), "rows": list(rows), "shares": [], "digits": dict(digits or {})}
