"""Routes for the run that a model comes from: what its log holds, from a byte on, while it is being trained or afterwards."""

import asyncio
import re
import threading
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dragoman.bundle import marked_checkpoint
from dragoman.errors import DragomanError
from dragoman.serve.answers import as_json
from dragoman.serve.parameters import Fields, check_known, read_fields, string_of, whole_number
from dragoman.serve.refusals import RefusalError
from dragoman.serve.service import Service
from dragoman.training.charts import thinned
from dragoman.training.records import Record, is_number, read_log_from, read_run, setting_of

MOST_BYTES = 999_999_999
_TRAIN = ("loss", "ppl", "lr", "grad_norm", "tok_s", "acc", "seconds")
_EVAL = ("loss", "ppl", "bleu", "chrf", "acc")
_drawing = threading.Lock()


async def runs(request: Request) -> Response:
    """GET /api/v1/runs: the runs that the models come from, and those that have no model yet."""
    service: Service = request.app.state.service
    service.admit(request, await read_fields(request), counted=False)
    found = await asyncio.to_thread(lambda: [_head(name, run) for name, run in service.runs.items() if _is_run(run)])
    return as_json({"runs": [{key: head[key] for key in ("name", "pair", "status", "best_step")} for head in found]})


async def run(request: Request) -> Response:
    """GET /api/v1/runs/{name}: the curves of a run; with ``from`` what its log has got since that byte."""
    fields = await read_fields(request)
    name, folder = _asked(request, fields, "from")
    start = whole_number(fields, "from", least=0, most=MOST_BYTES) or 0
    return as_json(await asyncio.to_thread(_document, name, folder, start))


async def drawn(request: Request) -> Response:
    """GET /api/v1/runs/{name}/drawn: a run as the page shows it; its stamp alone where nothing has changed ``since`` that stamp."""
    fields = await read_fields(request)
    name, folder = _asked(request, fields, "since")
    return as_json(await asyncio.to_thread(_view, name, folder, string_of(fields, "since", default="")))


def _asked(request: Request, fields: Fields, own: str) -> tuple[str, Path]:
    """The run of a request by its name, and its folder; RefusalError where there is none, or a field that is not known."""
    service: Service = request.app.state.service
    service.admit(request, fields, counted=False)
    check_known(fields, (own, "api_key"))
    name = request.path_params["name"]
    folder = service.runs.get(name)
    if folder is None or not _is_run(folder):
        known = service.ready and service.models.named(name) is not None
        why = "is a bundle without its run, so there is no log of it" if known else "is no run of this server"
        raise RefusalError(404, f"{name[:80]} {why}")
    return name, folder


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("run.json", "log.jsonl"))


def _facts(folder: Path) -> dict[str, Any]:
    """What run.json says; nothing where it is damaged."""
    try:
        return read_run(folder)
    except DragomanError:
        return {}


def _head(name: str, folder: Path) -> dict[str, Any]:
    """What run.json says of a run; the paper's settings where it does not tell."""
    facts = _facts(folder)
    setting = partial(setting_of, facts)
    best = marked_checkpoint(folder, "best")  # perhaps one that somebody made, without a step in its name
    step = re.fullmatch(r"step-(\d{1,12})", best.name, re.ASCII) if best else None
    return {
        "name": name,
        "pair": "-".join(filter(None, (str(setting("data", side) or "") for side in ("source", "target")))),
        "status": str(facts.get("status", "unknown")),
        "best_step": int(step[1]) if step else None,
        "warmup_steps": setting("training", "warmup_steps"),
        "d_model": setting("model", "d_model"),
        "max_steps": setting("training", "max_steps"),
    }


def _view(name: str, folder: Path, since: str) -> dict[str, Any]:
    """What `drawn` answers. A stamp tells one state of run.json, the best checkpoint and log.jsonl from another."""
    head = _head(name, folder)  # first, so that a run that says it is done has its last records
    try:
        log = (folder / "log.jsonl").stat()
        seen = (head, log.st_size, log.st_mtime_ns)
    except FileNotFoundError:
        seen = (head, 0, 0)
    stamp = f"{zlib.crc32(repr(seen).encode()):08x}"
    found = {"stamp": stamp, "ended": head["status"] not in ("running", "preparing")}
    if stamp == since:
        return found
    with _drawing:  # once for all who watch
        return {**found, **_drawn_at(stamp, name, folder)}


@lru_cache(maxsize=8)
def _drawn_at(stamp: str, name: str, folder: Path) -> dict[str, Any]:
    """What is to be seen of a run; kept as long as it has this stamp."""
    from dragoman.serve.run_view import run_view

    return run_view(_head(name, folder), _facts(folder), read_log_from(folder, 0).records)


def _document(name: str, folder: Path, start: int) -> dict[str, Any]:
    from dragoman.training.report import Report

    head = _head(name, folder)  # first, so that a run that says it is done has its last records
    stretch = read_log_from(folder, start)
    report = Report.of({}, stretch.records)
    return {
        **head,
        "from": stretch.start,
        "next": stretch.end,
        "train": _rows(report.training, _TRAIN, thin=stretch.start == 0),
        "eval": _rows(report.evaluations, _EVAL, thin=stretch.start == 0),
    }


def _rows(records: Sequence[Record], keys: Iterable[str], *, thin: bool) -> list[dict[str, Any]]:
    """A row for each step that has a point: of each curve all, or at most 300 with ``thin``; what is no finite number is left out."""
    rows: dict[int, dict[str, Any]] = {}
    for key in keys:
        points = [(float(place), record[key]) for place, record in enumerate(records) if is_number(record.get(key))]
        for place, value in thinned(points) if thin else points:
            rows.setdefault(int(place), {})[key] = value
    for place, record in enumerate(records):
        if isinstance(samples := record.get("samples"), list):
            rows.setdefault(place, {})["samples"] = [
                {key: text for key, text in sample.items() if isinstance(text, str)} for sample in samples if isinstance(sample, dict)
            ]
    return [{"step": records[place]["step"], **rows[place]} for place in sorted(rows)]
