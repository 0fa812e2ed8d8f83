"""report.html: a run on one page, from run.json and log.jsonl alone (Section 5).

One file without scripts that fetches nothing. Everything that comes from the run is text, whatever it looks like.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dragoman.config import Config
from dragoman.errors import DragomanError
from dragoman.files import write_file
from dragoman.html import escaped, number, page, table, text_table
from dragoman.training.charts import Point, line_chart, thinned
from dragoman.training.log import clock
from dragoman.training.records import Record, best_evaluation, is_number, read_log, read_run, setting_of, standing
from dragoman.training.schedule import paper_rate

MOST_ROWS = 40
"""Rows of the table below a chart; log.jsonl has them all."""


@dataclass(frozen=True)
class Report:
    """What the page is made of: the facts of run.json, the settings among them, and the records that stand."""

    facts: Mapping[str, Any]
    training: Sequence[Record]
    evaluations: Sequence[Record]

    @classmethod
    def read(cls, run: Path) -> "Report":
        """Of a run folder; DragomanError when it has neither run.json nor log.jsonl."""
        facts, (records, _) = read_run(run), read_log(run)
        if not facts and not records:
            raise DragomanError(f"{run}: no run.json and no log.jsonl, so there is nothing to report; give a run folder")
        return cls.of(facts, standing(record for record in records if isinstance(record.get("step"), int)))

    @classmethod
    def of(cls, facts: Mapping[str, Any], records: Iterable[Record]) -> "Report":
        """Of the facts and the records that stand, those of updates and evaluations that have a step."""
        kept = [record for record in records if "step" in record]
        return cls(facts, *([record for record in kept if record.get("t") == kind] for kind in ("train", "eval")))

    def setting(self, group: str, name: str) -> Any:
        """A setting of the run, the paper's where run.json does not tell."""
        return setting_of(self.facts, group, name)

    def best(self) -> Record | None:
        """The best evaluation so far."""
        return best_evaluation(self.evaluations, best_by=self.setting("training", "best_by"))

    def charts(self) -> list[tuple[str, dict[str, list[Point]]]]:
        """The curves over steps of each chart, by its title; those of which there are no records are empty."""
        training, evaluations = self.training, self.evaluations
        rate = points(training, "lr")
        d_model, warmup = self.setting("model", "d_model"), self.setting("training", "warmup_steps")
        known = all(is_number(value) and value > 0 for value in (d_model, warmup))
        equation = [(step, paper_rate(int(step), d_model=d_model, warmup_steps=warmup)) for step, _ in rate if known and step >= 1]
        estimated = [record for record in evaluations if "sampled" in record]
        return [
            ("Loss", {"training, smoothed": points(training, "loss"), "validation, smoothed": points(evaluations, "loss")}),
            ("Alignment loss of the head that learns to align", {"training": points(training, "alignment")}),
            ("Score on the validation text", {"BLEU": points(evaluations, "bleu"), "chrF": points(evaluations, "chrf")}),
            ("Loss at places by chance", {"validation, all of it": points(estimated, "nll"), "estimate": points(estimated, "sampled")}),
            ("Learning rate", {"as trained": rate, "equation (3) of the paper": equation}),
            ("Speed, target tokens a second", {"tokens a second": points(training, "tok_s")}),
            ("Norm of the gradient, before clipping", {"norm": points(training, "grad_norm")}),
        ]

    def histories(self) -> dict[tuple[str, str], list[tuple[int, str]]]:
        """By source and reference of each sample: the steps where its output changed, with the outputs. What is no sample is left out."""
        found: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for record in self.evaluations:
            samples = record.get("samples")
            for sample in samples if isinstance(samples, list) else ():
                if not isinstance(sample, Mapping):
                    continue
                source, reference, output = (str(sample.get(key, "")) for key in ("source", "reference", "output"))
                history = found.setdefault((source, reference), [])
                if not history or history[-1][1] != output:
                    history.append((record["step"], output))
        return found

    def html(self) -> str:
        """The page."""
        languages = " → ".join(filter(None, (str(self.setting("data", side)) for side in ("source", "target"))))
        parts = (
            _head(self), _curves(self), _evaluations(self), _samples(self), _data(self), _settings(self), _environment(self),
        )  # fmt: skip
        return page(f"{languages}: a training report", parts, heading=languages)


def write_report(run: Path) -> None:
    """Writes RUN/report.html anew, whole or not at all; DragomanError when the disk refuses or there is nothing to tell."""
    write_file(run / "report.html", Report.read(run).html())


def _head(report: Report) -> str:
    facts, best = report.facts, report.best()
    last = report.training[-1] if report.training else {}
    rows = [("Status", facts.get("status", "unknown"))]
    if isinstance(facts.get("from"), Mapping):
        rows.append(("Began from", facts["from"].get("bundle", "")))
    if facts.get("error"):
        rows.append(("Error", facts["error"]))
    if best:
        scores = [f"{name} {number(best[key])}" for name, key in (("BLEU", "bleu"), ("chrF", "chrf")) if key in best]
        rows.append(("Best", ", ".join([f"step {best['step']:,}", *scores, f"validation loss {number(best['loss'])}"])))
    if best and "signature" in best:
        rows.append(("BLEU signature", best["signature"]))
    step = max((record["step"] for record in (*report.training, *report.evaluations)), default=0)
    rows.append(("Steps", f"{step:,} of at most {report.setting('training', 'max_steps'):,}"))
    if is_number(last.get("seconds")):
        rows.append(("Time", clock(last["seconds"])))
    if speeds := [value for _, value in points(report.training, "tok_s")]:
        rows.append(("Speed", f"{median(speeds):,.0f} target tokens a second (median)"))
    if is_number(last.get("mem")):
        rows.append(("Peak memory", f"{last['mem'] / 1e6:,.0f} MB"))
    if "device" in facts:
        rows.append(("Device", " ".join(str(facts[key]) for key in ("device", "device_name") if key in facts)))
    if "parameters" in facts:
        rows.append(("Parameters", number(facts["parameters"])))
    if typed := _typed(facts):
        rows.append(("Repeat with", typed))
    resumed = facts.get("resumed")
    for again in resumed if isinstance(resumed, list) else []:
        if typed := _typed(again):
            rows.append((f"Then, at step {number(again.get('step'))}", typed))
    return table("The run", ("", ""), [(name, str(value)) for name, value in rows])


def _typed(facts: object) -> str:
    """The command of ``argv`` as it can be typed; none where there is no such thing."""
    given = facts.get("argv") if isinstance(facts, Mapping) else None
    return shlex.join(["dragoman", *map(str, given[1:])]) if isinstance(given, list) and given else ""


def _curves(report: Report) -> str:
    shown = "\n".join(_figure(title, curves) for title, curves in report.charts())
    return f"<h2>Curves</h2>\n{shown.strip()}" if shown.strip() else ""


def _figure(title: str, curves: Mapping[str, Sequence[Point]]) -> str:
    chart = line_chart(title, curves)
    if not chart:
        return ""
    columns = {name: dict(thinned(values, MOST_ROWS)) for name, values in curves.items() if values}
    steps = sorted({step for column in columns.values() for step in column})
    rows = [(step, *(column.get(step, "") for column in columns.values())) for step in steps]
    numbers = f"<details><summary>Numbers</summary>\n{table(title, ('step', *columns), rows)}\n</details>"
    return f"<figure>\n<figcaption>{escaped(title)}</figcaption>\n{chart}\n{numbers}\n</figure>"


def points(records: Iterable[Record], key: str) -> list[Point]:
    """(step, value) of the records that have a number under ``key``, which may be NaN or infinite."""
    return [(record["step"], record[key]) for record in records if isinstance(record.get(key), float) or is_number(record.get(key))]


def learning_rates(run: Path) -> list[Point]:
    """(step, learning rate) of a run, as its log tells; none where there is no log."""
    kept = standing(record for record in read_log(run)[0] if isinstance(record.get("step"), int))
    return points([record for record in kept if record.get("t") == "train"], "lr")


def _evaluations(report: Report) -> str:
    if not report.evaluations:
        return ""
    names = {"loss": "loss", "nll": "nll", "ppl": "perplexity", "acc": "accuracy", "bleu": "BLEU", "chrf": "chrF"}
    names |= {
        "bits_per_character": "bits a character",
        "bits_per_byte": "bits a byte",
        "sampled": "sampled nll",
        "sampled_error": "± of it",
    }
    names["seconds"] = "seconds"
    shown = {key: name for key, name in names.items() if any(key in record for record in report.evaluations)}
    best = report.best()
    rows = [(record["step"], *(record.get(key, "") for key in shown), "best" if record is best else "") for record in report.evaluations]
    note = "Loss is smoothed and in nats a target token; perplexity is exp(nll), of the unsmoothed loss."
    return f"<h2>Evaluations</h2>\n<p>{note}</p>\n{table('On the validation text', ('step', *shown.values(), 'mark'), rows)}"


def _samples(report: Report) -> str:
    """Each sentence with its output wherever it changed."""
    histories = report.histories()
    if not histories:
        return ""
    source, target = (str(report.setting("data", side)) for side in ("source", "target"))
    parts = ["<h2>Samples over time</h2>\n<p>A step is listed where the output changed.</p>"]
    for (text, reference), history in histories.items():
        outputs = [(f"step {step:,}", output, target) for step, output in history]
        parts.append(text_table([("source", text, source), ("reference", reference, target), *outputs]))
    return "\n".join(parts)


def _data(report: Report) -> str:
    facts = report.facts
    rows: list[tuple[object, object]] = []
    for side, kept in facts.get("pairs", {}).items():
        name = {"train": "training", "valid": "validation"}.get(side, side)
        rows.append((f"Pairs for {name}", kept))
        reasons = facts.get("dropped", {}).get(side, {})
        rows += [(f"Dropped from {name}: {reason}", count) for reason, count in reasons.items()] or [(f"Dropped from {name}", 0)]
    for name, counts in ((name, facts.get(name, {})) for name in ("documents", "tokens", "characters")):
        rows += [(f"{name.capitalize()} for {'training' if side == 'train' else 'validation'}", count) for side, count in counts.items()]
    if facts.get("tokens"):
        rows.append(("Vocabulary", report.setting("model", "target_vocabulary")))
    if facts.get("pairs"):
        rows += [(f"Vocabulary, {side}", report.setting("model", f"{side}_vocabulary")) for side in ("source", "target")]
    if not rows:
        return ""
    files = [(entry.get("path", ""), entry.get("lines", "")) for entry in facts.get("data", [])]
    return f"<h2>Data</h2>\n{table('Counts', ('', ''), rows)}\n" + table("Files", ("file", "lines"), files)


def _settings(report: Report) -> str:
    groups: Mapping[str, Any] = report.facts.get("settings", {})
    base = Config().model_dump(mode="json")
    settings = {
        f"{group}.{name}": value for group, values in groups.items() if isinstance(values, Mapping) for name, value in values.items()
    }
    if not settings:
        return ""
    before = {f"{group}.{name}": value for group, values in base.items() if isinstance(values, dict) for name, value in values.items()}
    names_of_data = {f"data.{name}" for name in ("source", "target", "train", "valid")}
    other = [(name, before.get(name, "–"), value) for name, value in settings.items() if before.get(name, "–") != value]
    changed = [row for row in other if row[0] not in names_of_data]
    difference = table("Other than the paper's base model", ("setting", "base", "here"), [tuple(map(_value, row)) for row in changed])
    everything = table("All settings", ("setting", "value"), [(name, _value(value)) for name, value in settings.items()])
    return (
        f"<h2>Settings</h2>\n<p>Preset: {escaped(groups.get('preset', ''))}</p>\n"
        + (difference if changed else "<p>All as in the paper's base model.</p>")
        + f"\n<details><summary>All settings</summary>\n{everything}\n</details>"
    )


def _environment(report: Report) -> str:
    facts = report.facts
    names = ("started", "seed", "host", "platform", "device", "device_name", "precision", "threads", "processes")
    rows = [(name.replace("_", " "), _value(facts[name])) for name in names if name in facts]
    rows += [(f"version of {name}", version) for name, version in facts.get("versions", {}).items()]
    rows += [(f"fingerprint: {name}", digest) for name, digest in facts.get("fingerprints", {}).items()]
    rows += [(f"SHA-256 of {entry.get('path')}", entry.get("sha256", "")) for entry in facts.get("data", [])]
    shown = table("Where and with what", ("", ""), [(name, str(value)) for name, value in rows])
    return f"<h2>Environment</h2>\n{shown}" if rows else ""


def _value(value: object) -> object:
    """A setting as a person writes it."""
    if value is None:
        return "not given"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else value
