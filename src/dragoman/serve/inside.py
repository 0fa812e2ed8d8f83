"""Routes that look inside a model at work on one text: all of a pass at once, exact numbers of it, the walk through the paper.

A pass is made in its turn by the engine, as every decode is, and kept for a while under a number that nobody guesses.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from dragoman.decoding.split import longest_taken
from dragoman.errors import UsageError
from dragoman.serve.answers import as_json
from dragoman.serve.detect import detect
from dragoman.serve.languages import AUTO
from dragoman.serve.models import Hop, Model, Models, TextModel
from dragoman.serve.parameters import Fields, check_known, language_of, number, read_fields, string_of, texts_of, whole_number
from dragoman.serve.refusals import RefusalError, invalid
from dragoman.serve.service import Service
from dragoman.serve.traces import MOST_BYTES, Looking, Pass, Wished
from dragoman.serve.translating import MOST_MORE, MOST_TIMES, Detected, check_length, check_pair, in_time

KINDS = ("encoder", "decoder", "cross")
MOST_TOP = 50
FEW_PIECES = 64
"""Pieces up to which all kinds of attention are sent without being asked for."""
MOST_NUMBERS = 1_000_000
"""Numbers of a tensor that one answer may have."""
EXPLAIN_FIELDS = (
    "q", "source", "target", "model", "beam", "alpha", "max_length", "target_prefix", "reference", "chosen", "top_k", "attention",
    "api_key",
)  # fmt: skip
TRACE_FIELDS = ("index", "rows", "cols", "api_key")
WALK_FIELDS = ("layer", "head", "token", "target_token", "api_key")
INDEX = r"^(\d{1,6}(,\d{1,6}){0,4})?$"
SLICE = r"^\d{0,9}:\d{0,9}$"


class _Asked(NamedTuple):
    """The model that is looked into, and what it reads."""

    model: Model | TextModel
    text: str
    detected: Detected | None = None


async def explain(request: Request) -> Response:
    """POST /api/v1/explain: one text through one model, and what was computed on the way."""
    service: Service = request.app.state.service
    looking = _looking(service)
    fields = await read_fields(request)
    client = service.admit(request, fields)
    check_known(fields, EXPLAIN_FIELDS)
    texts, many = texts_of(fields)
    if many:
        raise invalid("q must be a string: one text is looked into at a time")
    prefix, reference = string_of(fields, "target_prefix", default=""), fields.get("reference")
    reference = None if reference is None or reference == "" else string_of(fields, "reference")
    whole = texts[0] + prefix + (reference or "")  # one text, whatever comes with it
    check_length([whole], client, service)
    request.state.sizes = {"texts": 1, "characters": len(whole)}
    cleared, asked = service.traces.cleared, _asked(fields, service.models, texts[0])
    wish = _wish(fields, service, asked, prefix, reference)
    kinds, top_k = _kinds(fields), whole_number(fields, "top_k", least=1, most=MOST_TOP) or 8
    model = asked.model

    def work(check: Callable[[], None]) -> Response:
        _check_size(looking, asked, wish)
        passed = looking.look(model.bundle, asked.text, wish, name=model.name, run=model.place.run, check=check)
        document = _document(asked, passed, kinds, top_k)
        return as_json({"id": service.traces.put(passed, cleared=cleared), **document})

    return await in_time(service.settings.timeout, "explained", service.engine.run(work, client=client.name))


def _looking(service: Service) -> Looking:
    if service.looking is None:
        raise RefusalError(403, "Looking inside is disabled on this server.")
    return service.looking


def _asked(fields: Fields, models: Models, text: str) -> _Asked:
    """The model of a request: of its name, or of its languages. Raises RefusalError where there is none."""
    name = fields.get("model")
    model = None
    for code in ("source", "target"):
        if fields.get(code) is not None:
            string_of(fields, code)  # also where they are not needed
    if name is not None:
        model = models.named(string_of(fields, "model"))
        if model is None:
            raise RefusalError(404, f"there is no model {str(name)[:80]!r}; there are {', '.join(each.name for each in models.everything)}")
        if isinstance(model, TextModel):
            return _Asked(model, text)
    if isinstance(model, Model) and fields.get("source") is None is fields.get("target") and len(model.place.pairs) == 1:
        (pair,) = model.place.pairs
        hop = Hop(model, *pair)
        return _Asked(model, hop.tag + text)
    source, target = language_of(fields, "source"), language_of(fields, "target")
    check_pair(models, source, target)
    detected = _detected(models, text, target) if source == AUTO else None
    found = models.pairs.get((detected.language if detected else source, target))
    if found is None or (model is not None and found.model is not model):
        whose = "no single model" if model is None else f"the model {model.name} does not"
        raise invalid(f"{whose} translate{'s' if model is None else ''} {source} to {target}, so there is nothing to look into")
    return _Asked(found.model, found.tag + text, detected)


def _detected(models: Models, text: str, target: str) -> Detected | None:
    """The language of a text among those that one model translates into the target from."""
    candidates = [start for start, end in models.pairs if end == target]
    return Detected(*detect(text, models.profiles, candidates)[0]) if candidates else None


def _wish(fields: Fields, service: Service, asked: _Asked, prefix: str, reference: str | None) -> Wished:
    settings, model = service.settings, asked.model
    beam = whole_number(fields, "beam", least=1, most=settings.widest_beam)
    alpha = number(fields, "alpha", least=-10, most=10)
    longest = whole_number(fields, "max_length", least=1, most=9999)
    chosen = whole_number(fields, "chosen", least=0, most=settings.widest_beam - 1) or 0
    if isinstance(model, TextModel):
        if prefix or chosen or reference is not None or (beam, alpha, longest) != (None, None, None):
            raise invalid(
                f"{model.name} translates nothing, so beam, alpha, max_length, target_prefix, reference and chosen are not for it"
            )
        return Wished()
    if longest is not None:
        longest = min(longest, MOST_TIMES * len(model.bundle.source_tokenizer.encode(asked.text)) + MOST_MORE)
    return Wished(
        beam=settings.beam if beam is None else beam,
        alpha=settings.alpha if alpha is None else alpha,
        max_length=longest,
        target_prefix=prefix,
        reference=reference,
        chosen=chosen,
    )


def _check_size(looking: Looking, asked: _Asked, wish: Wished) -> None:
    """Raises RefusalError for a text whose numbers would take more memory than there is for them."""
    bundle = asked.model.bundle
    pieces = len(bundle.source_tokenizer.encode(asked.text)) + 2
    reference = len(bundle.target_tokenizer.encode(wish.reference or "")) + 1 if wish.reference else 0

    def fits(count: int) -> bool:
        if isinstance(asked.model, TextModel):
            return looking.expected_bytes(bundle, 0, count, 0) <= MOST_BYTES
        longest = count + bundle.config.decoding.extra_length if wish.max_length is None else wish.max_length
        return looking.expected_bytes(bundle, count, min(longest, longest_taken(bundle.config)), reference) <= MOST_BYTES

    if not fits(pieces):
        most = next((count for count in range(pieces, 0, -1) if fits(count)), 0)
        raise invalid(f"the text has about {pieces} pieces, and the numbers of at most {most} can be kept; look into a shorter one")


def _kinds(fields: Fields) -> Sequence[str] | None:
    """The kinds of attention whose pictures are wanted; None where the request does not say."""
    value = fields.get("attention")
    if value is None:
        return None
    kinds = value if isinstance(value, list) else [value]
    if not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise invalid(f"attention must be a list of {', '.join(KINDS)}")
    return list(dict.fromkeys(kinds))


def _document(asked: _Asked, passed: Pass, kinds: Sequence[str] | None, top_k: int) -> dict[str, Any]:
    if kinds is None:
        kinds = passed.kinds if passed.pieces <= FEW_PIECES else ()
    if missing := [kind for kind in kinds if kind not in passed.kinds]:
        raise invalid(f"this model has no {missing[0]} attention; it has {', '.join(passed.kinds)}")
    record = passed.record(kinds=kinds, top_k=top_k)
    record["model"] = {"name": asked.model.name, **record["model"]}
    return {**record, **({"detected": asked.detected.document()} if asked.detected else {})}


def _kept(service: Service, number: str) -> Pass:
    _looking(service)
    passed = service.traces.get(number)
    if passed is None:
        raise RefusalError(404, "trace expired")
    return passed


async def trace(request: Request) -> Response:
    """GET /api/v1/trace/{id}/{name}: exact numbers of one tensor, whole or a part of it."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    service.admit(request, fields, counted=False)
    check_known(fields, TRACE_FIELDS)
    passed, name = _kept(service, request.path_params["id"]), request.path_params["name"]
    if not passed.names(name):
        near = ", ".join(passed.near(name)) or "none"
        raise RefusalError(404, f"there is no tensor {name[:80]!r}; near it are {near}; the explanation lists them all under walk")
    shape = passed.shape(name)
    index = _index(fields)
    left = shape[len(index) :]
    rows = _slice(fields, "rows", left[-2] if len(left) > 1 else None)
    cols = _slice(fields, "cols", left[-1] if left else None)
    asked = [*left[:-2], *([rows.stop - rows.start] if len(left) > 1 else []), *([cols.stop - cols.start] if left else [])]
    count = math.prod(asked)
    if count > MOST_NUMBERS:
        raise invalid(
            f"that is {count:,} numbers of {name}, and an answer has at most {MOST_NUMBERS:,}; ask for a part, by index, rows or cols"
        )
    try:
        return as_json(passed.slice_of(name, index=index, rows=rows, cols=cols))
    except UsageError as error:
        raise invalid(str(error)) from None


def _index(fields: Fields) -> list[int]:
    value = fields.get("index") or ""
    if not isinstance(value, str) or not re.fullmatch(INDEX, value, re.ASCII):
        raise invalid("index must be whole numbers with commas between them, such as 0,3")
    return [int(each) for each in value.split(",")] if value else []


def _slice(fields: Fields, name: str, size: int | None) -> slice:
    """Rows or columns of a tensor that has ``size`` of them, None where it has none."""
    value = fields.get(name)
    if value is None or value == "":
        return slice(0, size or 0)
    if not isinstance(value, str) or not re.fullmatch(SLICE, value, re.ASCII):
        raise invalid(f"{name} must be as 0:8, from the first to the one behind the last")
    if size is None:
        raise invalid(f"{name}: what is left of the tensor after its index has no {name}")
    first, last = value.split(":")
    found = slice(int(first or 0), int(last or size))
    if not found.start <= found.stop <= size:
        raise invalid(f"{name}={value}: there are {size}, so it must be within 0:{size}")
    return found


async def walk(request: Request) -> Response:
    """GET /api/v1/walk/{id}: the walk through the paper, at a layer, a head and two tokens."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    client = service.admit(request, fields)
    check_known(fields, WALK_FIELDS)
    passed = _kept(service, request.path_params["id"])
    layer, head = (whole_number(fields, name, least=1, most=9999) for name in ("layer", "head"))
    token, target_token = (_token(fields, name) for name in ("token", "target_token"))

    def work(check: Callable[[], None]) -> Response:
        check()
        return as_json(passed.walk(layer=layer, head=head, token=token, target_token=target_token))

    return await in_time(service.settings.timeout, "explained", service.engine.run(work, client=client.name))


def _token(fields: Fields, name: str) -> int | str | None:
    """A token by its place from 1, or by its text."""
    value = fields.get(name)
    if value is None or value == "":
        return None
    text = string_of(fields, name)
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else text
