"""``dragoman inspect``: facts of a model or a run, and what looks wrong."""

import json
import math
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import AsJson
from dragoman.cli.streams import print_json
from dragoman.errors import DragomanError, counted

if TYPE_CHECKING:
    from dragoman.bundle import Bundle

SILENT_MINUTES = 30
RISE = 1.05
MANY_DROPPED = 0.1


def inspect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A run folder, a checkpoint folder, or a bundle.")],
    as_json: AsJson = False,
) -> None:
    """Facts of a model or a run, and what looks wrong.

    Of a model: languages, sizes, parameters, vocabulary, settings, step and scores, versions. Of a run: status, steps, checkpoints, the
    last and the best losses and scores, and the facts of its best model. Losses are natural logarithms per target token.
    """
    if not path.exists():
        raise DragomanError(f"{path}: no such file or folder; give a run folder, a checkpoint folder or a bundle")
    facts = _run_facts(path) if _is_run(path) else _model_facts(path)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _is_run(path: Path) -> bool:
    return not (path / "config.json").exists() and any((path / name).exists() for name in ("run.json", "log.jsonl", "checkpoints"))


def _model_facts(path: Path) -> dict[str, Any]:
    from dragoman.bundle import load_bundle, resolve_model
    from dragoman.explain.cost import cost_facts

    folder = resolve_model(path)
    bundle = load_bundle(folder)
    document = json.loads((folder / "config.json").read_bytes())
    data = bundle.config.data
    return {
        "kind": "model",
        "path": str(folder),
        "architecture": document.get("architecture"),
        "format_version": document["format_version"],
        "dragoman_version": document.get("dragoman_version"),
        "languages": {"source": data.source, "target": data.target},
        "parameters": sum(weight.numel() for weight in bundle.model.parameters()),
        "weight_types": _weight_types(folder),
        "cost": cost_facts(bundle.config.model),
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "vocabulary": {
            "tokenizer": bundle.source_tokenizer.kind,
            "joint": bundle.source_tokenizer is bundle.target_tokenizer,
            "source": len(bundle.source_tokenizer),
            "target": len(bundle.target_tokenizer),
            **({"tags": list(bundle.source_tokenizer.tags)} if bundle.source_tokenizer.tags else {}),
            **({} if bundle.source_tokenizer.mask is None else {"mask": bundle.source_tokenizer.token(bundle.source_tokenizer.mask)}),
        },
        "info": dict(bundle.info),
        "settings": bundle.config.model_dump(mode="json"),
        "problems": _model_problems(bundle),
    }


def _weight_types(folder: Path) -> list[str]:
    """The types that the weights are stored in, such as float32."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        types = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 - not a mapping
    return sorted(str(dtype).removeprefix("torch.") for dtype in types)


def _model_problems(bundle: "Bundle") -> list[str]:
    problems = [
        f"weight {name} holds values that are not finite numbers; the model cannot be used"
        for name, weight in bundle.model.named_parameters()
        if not weight.isfinite().all()
    ]
    model, data = bundle.config.model, bundle.config.data
    if model.single:
        entries = len(bundle.source_tokenizer)
        if model.source_vocabulary > entries:
            problems.append(f"the embedding has {model.source_vocabulary} rows but the tokenizer only {entries} entries")
        if model.architecture == "encoder-only" and bundle.source_tokenizer.mask is None:
            problems.append("the tokenizer has no token for what is masked, so the model can embed texts and not fill in")
        return problems
    for side, rows, tokenizer in (
        ("source", model.source_vocabulary, bundle.source_tokenizer),
        ("target", model.target_vocabulary, bundle.target_tokenizer),
    ):
        if rows > len(tokenizer):
            problems.append(f"the {side} embedding has {rows} rows but the tokenizer only {len(tokenizer)} entries")
        if not getattr(data, side):
            problems.append(f"no {side} language is named, so corpora cannot be found by prefix")
    if not bundle.info.get("step") and not bundle.info.get("imported_from"):
        problems.append("no training step is recorded; the weights may be random")
    return problems


def _run_facts(run: Path) -> dict[str, Any]:
    from dragoman.bundle import list_checkpoints, marked_checkpoint
    from dragoman.training.records import read_log, read_run, standing

    record = read_run(run)
    records, broken = read_log(run)
    log = standing(records)
    training = [entry for entry in log if entry.get("t") == "train"]
    evaluations = [entry for entry in log if entry.get("t") == "eval"]
    marks = {mark: marked_checkpoint(run, mark) for mark in ("best", "last")}
    best = marks["best"]
    best_step = int(best.name.removeprefix("step-")) if best and best.name.removeprefix("step-").isdecimal() else None
    has_model = any(marks.values())
    return {
        "kind": "run",
        "path": str(run),
        "status": record.get("status", "unknown"),
        "step": max((entry.get("step", 0) for entry in log), default=0),
        "checkpoints": [folder.name for folder in list_checkpoints(run)],
        "best": best.name if best else None,
        "last": marks["last"].name if marks["last"] else None,
        "last_training": training[-1] if training else None,
        "last_evaluation": evaluations[-1] if evaluations else None,
        "best_evaluation": next((entry for entry in reversed(evaluations) if entry.get("step") == best_step), None),
        "run": record,
        "problems": _run_problems(run, record, training, evaluations, broken, has_model) + _end_problems(run, record, log),
        "model": _model_facts(run) if has_model else None,
    }


def _run_problems(
    run: Path,
    record: Mapping[str, Any],
    training: list[dict[str, Any]],
    evaluations: list[dict[str, Any]],
    broken: int,
    has_model: bool,
) -> list[str]:
    from dragoman.bundle import lost_checkpoints

    lost = lost_checkpoints(run)
    problems = [f"{folder.name} is no checkpoint, for its config.json is not there" for folder in lost]
    if not record:
        problems.append("there is no run.json, so how the run was made is not known")
    if not has_model and not lost:
        problems.append("there is no finished checkpoint yet")
    if broken:
        problems.append(f"{counted(broken, 'line')} of log.jsonl {'is no record' if broken == 1 else 'are no records'}")
    if record.get("error"):
        problems.append(f"it failed: {record['error']}")
    for side, reasons in record.get("dropped", {}).items():
        kept, dropped = record.get("pairs", {}).get(side, 0), sum(reasons.values())
        if dropped > MANY_DROPPED * (kept + dropped):
            why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
            problems.append(f"{dropped:,} of {kept + dropped:,} {side} pairs were dropped: {why}")
    log = run / "log.jsonl"
    silent = (time.time() - log.stat().st_mtime) / 60 if log.exists() else 0
    if record.get("status") == "running" and silent > SILENT_MINUTES:
        problems.append(
            f"the status is running, but nothing was logged for {silent:.0f} minutes; if it was killed, continue with {_going_on(run)}"
        )
    losses = [float(entry.get("loss", math.nan)) for entry in training]
    if losses and not all(map(math.isfinite, losses)):
        problems.append("a training loss is not a finite number")
    elif len(losses) > 2 and losses[-1] >= losses[0]:
        problems.append(f"the training loss did not fall: {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    return problems + _evaluation_problems(evaluations)


def _end_problems(run: Path, record: Mapping[str, Any], log: list[dict[str, Any]]) -> list[str]:
    """That a run was interrupted, or that it ended too early for its learning rate; nothing of one that has not come to an end."""
    from dragoman.training.outlook import looking_back
    from dragoman.training.records import training_of

    training = training_of(record)
    last: Mapping[str, Any] = next((entry for entry in reversed(log) if entry.get("event") in ("start", "resume", "stop")), {})
    if last.get("event") != "stop" or "step" not in last:
        return []
    if last.get("reason") == "interrupted":
        of = f" of {training.max_steps:,}" if training else ""
        return [f"it was interrupted at step {last['step']:,}{of}; continue with {_going_on(run)}"]
    if training is None:
        return []
    return looking_back(training, last["step"], by_minutes=last.get("reason") == "max_minutes" and training.max_minutes is not None)


def _going_on(run: Path) -> str:
    return f"dragoman train --resume --out {shlex.quote(str(run))}"


def _evaluation_problems(evaluations: list[dict[str, Any]]) -> list[str]:
    problems = []
    losses = [(float(entry["loss"]), entry["step"]) for entry in evaluations if "loss" in entry and "step" in entry]
    if losses:
        (lowest, lowest_step), (last, last_step) = min(losses), losses[-1]
        if last > RISE * lowest:
            problems.append(f"the validation loss rose from {lowest:.3f} at step {lowest_step:,} to {last:.3f} at step {last_step:,}")
    scores = [float(entry["bleu"]) for entry in evaluations if "bleu" in entry]
    if len(scores) > 2 and scores[-1] < 1:
        problems.append(f"BLEU on the validation text is {scores[-1]:.2f} after {len(scores)} evaluations; does the word splitter fit?")
    return problems


def _print(facts: Mapping[str, Any]) -> None:
    lines = _run_lines(facts) if facts["kind"] == "run" else _model_lines(facts)
    problems = facts["problems"] + (facts["model"]["problems"] if facts.get("model") else [])
    lines += [("looks wrong", problem) for problem in problems] or [("looks wrong", "nothing")]
    for name, value in lines:
        print(f"{name:<16}{value}")


def _run_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("run", facts["path"]),
        ("status", str(facts["status"])),
        ("step", f"{facts['step']:,}"),
        ("checkpoints", f"{len(facts['checkpoints'])} (best {facts['best'] or 'none'}, last {facts['last'] or 'none'})"),
    ]
    for name, key in (("last training", "last_training"), ("last evaluation", "last_evaluation"), ("best evaluation", "best_evaluation")):
        if facts[key]:
            lines.append((name, _summary(facts[key])))
    record = facts["run"]
    if "started" in record:
        lines.append(("started", record["started"]))
    if isinstance(record.get("from"), Mapping):
        lines.append(("began from", str(record["from"].get("bundle"))))
    lines += _command_lines(record)
    if "pairs" in record:
        lines.append(("pairs", ", ".join(f"{count:,} {side}" for side, count in record["pairs"].items())))
    return lines + (_model_lines(facts["model"]) if facts["model"] else [])


def _command_lines(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The command that began the run, and each that went on with it."""
    lines = [("command", shlex.join(map(str, record["argv"])))] if isinstance(record.get("argv"), list) else []
    resumed = record.get("resumed")
    for again in resumed if isinstance(resumed, list) else []:
        if isinstance(again, Mapping) and isinstance(again.get("argv"), list):
            lines.append(("resumed", f"at step {again.get('step', '?')}: {shlex.join(map(str, again['argv']))}"))
    return lines


def _model_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    from dragoman.config import ModelConfig
    from dragoman.data.tokenizer import tag_text
    from dragoman.explain.cost import cost_lines
    from dragoman.presets import describe_sizes

    sizes, vocabulary = ModelConfig(**facts["settings"]["model"]), facts["vocabulary"]
    joint, separate = f"{vocabulary['source']:,} entries", f"{vocabulary['source']:,} source and {vocabulary['target']:,} target entries"
    languages = ("languages", f"{facts['languages']['source'] or '?'} to {facts['languages']['target'] or '?'}")
    if sizes.single:
        languages = ("language", facts["languages"]["source"] or "?")
    return [
        ("model", facts["path"]),
        *([] if sizes.architecture == "encoder-decoder" else [("architecture", sizes.architecture)]),
        languages,
        ("sizes", f"{describe_sizes(sizes)}, at most {sizes.max_positions:,} tokens"),
        ("parameters", f"{facts['parameters']:,} ({', '.join(facts['weight_types'])}; {facts['bytes'] / 1e6:,.1f} MB on disk)"),
        *cost_lines(sizes),
        *([("alignments", f"from head {sizes.alignment_head} of decoder layer {sizes.alignment_layer}")] if sizes.alignment_layer else []),
        ("vocabulary", f"{joint if vocabulary['joint'] else separate} ({vocabulary['tokenizer']})"),
        *([("mask", vocabulary["mask"])] if "mask" in vocabulary else []),
        *([("language tags", " ".join(map(tag_text, vocabulary["tags"])))] if "tags" in vocabulary else []),
        *([] if "imported_from" in facts["info"] else [("preset", facts["settings"]["preset"])]),  # whose settings are no preset's
        *((name.replace("_", " "), f"{value:,}" if type(value) is int else str(value)) for name, value in facts["info"].items()),
        ("written by", f"Dragoman {facts['dragoman_version']}, format {facts['format_version']}"),
    ]


def _summary(record: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in record.items() if key not in ("t", "time") and isinstance(value, int | float)}
    return ", ".join(f"{key} {value:,}" if isinstance(value, int) else f"{key} {value:.4g}" for key, value in shown.items())
