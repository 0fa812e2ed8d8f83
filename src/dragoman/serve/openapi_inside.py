"""The routes of the OpenAPI document that look inside models, and those of the runs that they come from."""

from typing import Any

from dragoman.serve.inside import INDEX, KINDS, MOST_TOP, SLICE
from dragoman.serve.languages import AUTO
from dragoman.serve.models import Models
from dragoman.serve.openapi_schemas import Schema, a_list, an_object, errors, json_answer, operation, pairs_schema, texts_schema
from dragoman.serve.runs import MOST_BYTES
from dragoman.serve.settings import ServeSettings
from dragoman.serve.suggestions import HAS_TEXT

_STRING: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_YES: Schema = {"type": "boolean"}
_OPEN: Schema = {"type": "object"}
_SHAPE = a_list(_COUNT)
_SVG = {"type": "string", "description": "SVG."}
_TABLE = an_object(
    {
        "caption": _STRING, "header": a_list(_STRING), "rows": a_list(a_list({})), "shares": a_list(_STRING),
        "digits": {"type": "object", "additionalProperties": _COUNT, "description": "Decimals of the columns that have a number of them."},
    },
    optional=("digits",),
)  # fmt: skip


def inside_paths(models: Models, settings: ServeSettings) -> dict[str, Any]:
    """The routes that look inside, with the models that there are."""
    number = _path("id", pattern="^t_[0-9a-f]{32}$", description="Of an explanation.")
    part = an_object({"shape": _SHAPE, "f32": {"type": "string", "description": "float32, little-endian, in base64."}})
    walked = an_object({"focus": an_object(dict.fromkeys(("layer", "head", "source", "target"), _COUNT)), "steps": a_list(_step())})
    place: Schema = {"type": "integer", "minimum": 1, "maximum": 9999}
    token: Schema = {"type": "string", "description": "A place from 1, or a word."}
    return {
        "/api/v1/explain": {
            "post": operation(
                "One text through one model, with what was computed on the way.", _explanation(), body=_body(models, settings),
                example=_example(models),
            )
        },
        "/api/v1/trace/{id}/{name}": {
            "get": _get(
                "Exact numbers of one tensor of an explanation.", part, number,
                _path("name", description="As under walk in the explanation, or of a weight."),
                _query("index", pattern=INDEX, description="Places on the first axes, from 0, such as 0,3."),
                _query("rows", pattern=SLICE, description="Of what is left, from the first to the one behind the last."),
                _query("cols", pattern=SLICE, description="The same of the last axis."),
            )
        },
        "/api/v1/walk/{id}": {
            "get": _get(
                "The walk through the paper, with the numbers of an explanation.", walked, number,
                *({"name": name, "in": "query", "schema": place} for name in ("layer", "head")),
                *({"name": name, "in": "query", "schema": token} for name in ("token", "target_token")),
            )
        },
    }  # fmt: skip


def run_paths() -> dict[str, Any]:
    """The routes of the runs."""
    head = {"name": _STRING, "pair": _STRING, "status": _STRING, "best_step": {"type": ["integer", "null"]}}
    sizes = {"warmup_steps": _COUNT, "d_model": _COUNT, "max_steps": _COUNT, "from": _COUNT, "next": _COUNT}
    points = ("loss", "ppl", "acc")
    training = _row(*points, "lr", "grad_norm", "tok_s", "seconds")
    sample = an_object(dict.fromkeys(("source", "reference", "output"), _STRING), optional=("source", "reference", "output"))
    evaluation = _row(*points, "bleu", "chrf")
    evaluation["properties"]["samples"] = a_list(sample)
    start = {"name": "from", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": MOST_BYTES}}
    curves = an_object({**head, **sizes, "train": a_list(training), "eval": a_list(evaluation)})
    since = {"name": "since", "in": "query", "schema": _STRING, "description": "The stamp of what is known already."}
    chart = an_object({"title": _STRING, "svg": _SVG})
    news = {
        "title": _STRING, "said": _STRING, "charts": a_list(chart), "evaluations": _TABLE, "samples": a_list(_TABLE), "updates": _TABLE,
    }  # fmt: skip
    view = an_object({"stamp": _STRING, "ended": _YES, **news}, optional=tuple(news))
    return {
        "/api/v1/runs": {"get": operation("The runs that the models come from.", an_object({"runs": a_list(an_object(head))}))},
        "/api/v1/runs/{name}": {
            "get": _get("The curves of a run, or what was added to them since a byte of its log.", curves, _path("name"), start)
        },
        "/api/v1/runs/{name}/drawn": {
            "get": _get("A run in pictures and tables; its stamp alone where it is still what was seen.", view, _path("name"), since)
        },
    }


def _row(*names: str) -> Schema:
    return an_object({"step": _COUNT, **dict.fromkeys(names, _NUMBER)}, optional=names)


def _get(summary: str, answer: Schema, *parameters: Schema) -> dict[str, Any]:
    return {"summary": summary, "parameters": list(parameters), "responses": {"200": json_answer("The answer.", answer), **errors()}}


def _path(name: str, *, description: str = "", **schema: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {**_STRING, **schema}, **_said(description)}


def _query(name: str, *, description: str = "", **schema: str) -> Schema:
    return {"name": name, "in": "query", "schema": {**_STRING, **schema}, **_said(description)}


def _said(description: str) -> Schema:
    return {"description": description} if description else {}


def _example(models: Models) -> dict[str, Any]:
    if models.pairs:
        source, target = next(iter(models.pairs))
        return {"q": "A man rides a horse.", "source": source, "target": target, "attention": ["cross"]}
    return {"q": "A man rides a horse.", **({"model": models.others[0].name} if models.others else {})}


def _body(models: Models, settings: ServeSettings) -> Schema:
    """A translation by its languages, or a model of one text by its name."""
    search: Schema = {
        "beam": {"type": ["integer", "null"], "minimum": 1, "maximum": settings.widest_beam},
        "alpha": {"type": ["number", "null"], "minimum": -10, "maximum": 10},
        "max_length": {"type": ["integer", "null"], "minimum": 1, "maximum": 9999},
        "target_prefix": {"type": ["string", "null"], "description": "What the translation must begin with."},
        "reference": {"type": ["string", "null"], "description": "A translation to compare with."},
        "chosen": {
            "type": ["integer", "null"], "minimum": 0, "maximum": settings.widest_beam - 1,
            "description": "Which of the candidates to look into, from 0.",
        },
    }  # fmt: skip
    none: Schema = {name: {"type": "null"} for name in search}
    pairs = pairs_schema(models, auto=False, direct=True)
    if models.pairs:
        pairs.append({"properties": {"source": {"const": AUTO}, "target": {"enum": sorted({target for _, target in models.pairs})}}})
    translators = [{**pair, "required": ["source", "target"]} for pair in pairs]
    unnamed: Schema = {"source": {"type": "null"}, "target": {"type": "null"}}
    of_one_pair = {"enum": [model.name for model in models.models if len(model.place.pairs) == 1]}
    of_one_text = {"enum": [model.name for model in models.others]}
    others = [
        {"properties": {"model": named, **also}, "required": ["model"]}
        for named, also in ((of_one_pair, unnamed), (of_one_text, none))
        if named["enum"]
    ]
    kinds: Schema = {
        "anyOf": [a_list({"enum": list(KINDS)}), {"type": "null"}],
        "description": "The attention to send pictures of. Of up to 64 pieces all kinds, of more none, unless this says.",
    }
    return {
        "type": "object",
        "properties": {
            "q": {**texts_schema(settings, many=False), "pattern": HAS_TEXT},
            "source": {"type": ["string", "null"]},
            "target": {"type": ["string", "null"]},
            "model": {
                "enum": [*(model.name for model in models.everything), None],
                "description": "Its name; one of a single pair, or of one text, needs no source and target.",
            },
            **search,
            "top_k": {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_TOP, "description": "Tokens that could have stood there."},
            "attention": kinds,
            "api_key": {"type": ["string", "null"]},
        },
        "required": ["q"],
        "anyOf": [*translators, *others],
    }  # fmt: skip


def _explanation() -> Schema:
    side: Schema = {"text": _STRING, "pieces": a_list(_STRING), "ids": a_list(_COUNT), "unk": a_list(_COUNT)}
    scored = an_object(
        {
            "piece": _STRING, "logprob": _NUMBER, "entropy": _NUMBER, "rank": _COUNT,
            "top": a_list(a_list({"type": ["string", "number"]}, minItems=2, maxItems=2)), "said": _STRING,
        }
    )  # fmt: skip
    candidate = an_object(
        {
            "text": _STRING, "pieces": a_list(_STRING), "logprob": _NUMBER, "lp": _NUMBER, "score": _NUMBER, "finished": _YES,
            "stop": _STRING, "path": a_list(_COUNT), "behind_from": {"type": ["integer", "null"]}, "why": _STRING,
        }
    )  # fmt: skip
    picture = an_object({"shape": _SHAPE, "u8": {"type": "string", "description": "Weights times 255, a byte each, in base64."}})
    tensor = an_object({"name": _STRING, "eq": _STRING, "file": _STRING, "line": _COUNT, "shape": _SHAPE})
    tables = an_object({"candidates": _TABLE, "tree": _TABLE})
    pictures = an_object({"tree": _SVG})
    chosen: Schema = {"candidates": a_list(candidate), "chosen": _COUNT}
    search: Schema = {"beam": _COUNT, "alpha": _NUMBER, **chosen, "beam_tree": a_list(_OPEN), "tables": tables, "pictures": pictures}
    reference: Schema = {**side, "steps": a_list(scored), "table": _TABLE, "said": a_list(_STRING)}
    kind = an_object(
        {
            "label": _STRING,
            "note": _STRING,
            "queries": a_list(_STRING),
            "keys": a_list(_STRING),
            "rests": a_list(_COUNT),
            "tensor": _STRING,
        }
    )
    kinds: Schema = {"type": "object", "additionalProperties": kind}
    return an_object(
        {
            "id": _STRING, "model": _OPEN, "source": an_object(side), "target": an_object(side), "read": a_list(_STRING), "kinds": kinds,
            **search,
            "steps": a_list(scored),
            "reference": {"anyOf": [{"type": "null"}, an_object(reference)]},
            "attention": {"type": "object", "additionalProperties": picture}, "walk": a_list(tensor), "timing_ms": _OPEN,
            "detected": an_object({"confidence": _NUMBER, "language": _STRING}),
        },
        optional=("detected", *search),
    )  # fmt: skip


def _step() -> Schema:
    check = an_object({"what": _STRING, "model": _NUMBER, "recomputed": _NUMBER, "difference": _NUMBER, "count": _COUNT})
    again = an_object({"what": _STRING, "by": _STRING, "of": a_list({}), "model": {}})
    source = an_object({"title": _STRING, "lines": a_list(a_list({}, minItems=2, maxItems=2))})
    line = an_object({"file": _STRING, "line": _COUNT, "text": _STRING, "around": a_list(a_list({})), "place": _STRING})
    return an_object(
        {
            "number": _COUNT, "title": _STRING, "section": _STRING, "equation": _STRING, "place": _STRING, "prose": _STRING,
            "mathml": _STRING,
            "tables": a_list(_TABLE), "checks": a_list(check), "lines": a_list(line), "sources": a_list(source), "tensor": _STRING,
            "difference": _NUMBER,
            "given": _OPEN, "again": a_list(again), "command": _STRING,
            "picture": {"type": "string", "description": "XHTML, or nothing."},
        }
    )  # fmt: skip
