"""What a run folder says of itself: the facts of run.json, the records of log.jsonl. Needs neither PyTorch nor the run's model."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.config import Config, TrainingConfig, merge
from dragoman.errors import DragomanError, UsageError

Record = dict[str, Any]

_MOST_STEPS = 10**12
"""What says that it is of a step beyond is no record."""


def is_number(value: object) -> bool:
    """Whether a value of a log is a finite number that float has too; JSON has whole numbers beyond."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def setting_of(facts: Mapping[str, Any], group: str, name: str) -> Any:
    """A setting of the run that has these facts; the paper's where they do not tell it, or something of another type."""
    default, settings = getattr(getattr(Config(), group), name), facts.get("settings")
    own = settings.get(group) if isinstance(settings, Mapping) else None
    value = own[name] if isinstance(own, Mapping) and name in own else default
    return value if isinstance(value, type(default)) and not isinstance(value, bool) else default


def training_of(facts: Mapping[str, Any]) -> TrainingConfig | None:
    """How the run that has these facts trained; None where its settings are not told, or are not those of this Dragoman."""
    try:
        return merge(Config().model_dump(), facts["settings"], place="run.json").training
    except (KeyError, UsageError):
        return None


def read_run(run: Path) -> dict[str, Any]:
    """The facts of run.json; empty when there is none yet. Raises DragomanError when it is damaged."""
    try:
        facts = json.loads((run / "run.json").read_bytes())
        if not isinstance(facts, dict):
            raise ValueError("not a JSON object")
        kinds: dict[str, type[Any]] = {"settings": dict, "versions": dict, "data": list}
        for name, kind in kinds.items():
            if name in facts and not isinstance(facts[name], kind):
                raise ValueError(f"{name} is {json.dumps(facts[name])[:40]}")
        if not all(isinstance(entry, dict) and {"path", "sha256"} <= entry.keys() for entry in facts.get("data", [])):
            raise ValueError("data does not list files")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DragomanError(f"{run / 'run.json'}: not the facts of a run ({error}); restore the file or start a new run") from None
    return facts


def read_log(run: Path) -> tuple[list[Record], int]:
    """The records of log.jsonl, and how many of its lines are no record, as the last is while it is being written."""
    try:
        lines = (run / "log.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return [], 0
    records = _records(lines)
    return records, len(lines) - len(records)


class Stretch(NamedTuple):
    """Records of log.jsonl from the byte ``start`` to the byte ``end``."""

    records: list[Record]
    start: int
    end: int


def read_log_from(run: Path, start: int) -> Stretch:
    """The records of the whole lines of log.jsonl from a byte on.

    From the first byte where no line begins at ``start``, for then the log has been begun anew, and where a run was resumed since, for
    then some of what came before no longer stands. The records that are given stand.
    """
    try:
        with (run / "log.jsonl").open("rb") as file:
            file.seek(max(start - 1, 0))
            content = file.read()
            if start and not content.startswith(b"\n"):
                return read_log_from(run, 0)
    except FileNotFoundError:
        return Stretch([], 0, 0)
    content = content[bool(start) : content.rfind(b"\n") + 1]
    records = _records(content.splitlines())
    if start and any(record.get("event") in ("start", "resume") for record in records):
        return read_log_from(run, 0)
    return Stretch(standing(records), start, start + len(content))


def _records(lines: Iterable[bytes]) -> list[Record]:
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and _is_record(record):
            records.append(record)
    return records


def _is_record(record: Record) -> bool:
    step, judged = record.get("step", 0), (record.get("loss", 0.0), record.get("bleu", 0.0))
    known = isinstance(record.get("t", ""), str) and isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= _MOST_STEPS
    return known and all(isinstance(value, float) or is_number(value) for value in judged)  # the loss of a run that failed is NaN


def standing(records: Iterable[Record]) -> list[Record]:
    """The records without those of updates that a run did once more: resumed at a step, it knows nothing of what came after that step.

    Nor of the step's own evaluation, where that was still ``owed``.
    """
    kept: list[Record] = []
    for record in records:
        if record.get("event") in ("start", "resume"):
            step, owed = record.get("step", 0), bool(record.get("owed"))
            last = {"eval": step - 1 if owed else step}  # that still stands, by kind
            kept = [each for each in kept if each.get("t") == "event" or each.get("step", 0) <= last.get(each.get("t", ""), step)]
        kept.append(record)
    return kept


def last_step(run: Path) -> int:
    """The last update that log.jsonl tells of and that still stands; 0 when there is none."""
    return max((record.get("step", 0) for record in standing(read_log(run)[0]) if record.get("t") != "event"), default=0)


def best_evaluation(evaluations: Iterable[Record], *, best_by: str) -> Record | None:
    """The first evaluation that no other beats: in BLEU if ``best_by`` is bleu and there is one, else in loss."""
    measured = [record for record in evaluations if "loss" in record]
    return max(measured, key=lambda record: merit(record, best_by=best_by), default=None)


def merit(record: Mapping[str, Any], *, best_by: str) -> tuple[float, float]:
    """What of an evaluation is to be high: its BLEU, or its loss with the sign turned; then the loss, which parts equals in BLEU."""
    turned = -float(record["loss"])
    return (float(record["bleu"]), turned) if judged_by(record, best_by=best_by) == "bleu" else (turned, turned)


def judged_by(record: Mapping[str, Any], *, best_by: str) -> str:
    """bleu or loss: the one that decides."""
    return "bleu" if best_by == "bleu" and "bleu" in record else "loss"
