"""The routes of the OpenAPI document."""

from typing import Any

from dragoman.serve.models import Models
from dragoman.serve.openapi_completions import completion_paths
from dragoman.serve.openapi_inside import inside_paths, run_paths
from dragoman.serve.openapi_schemas import (
    FORMS,
    Schema,
    a_list,
    an_object,
    errors,
    json_answer,
    operation,
    pairs_schema,
    request_schema,
    texts_schema,
)
from dragoman.serve.settings import ServeSettings
from dragoman.serve.suggestions import HAS_TEXT
from dragoman.serve.translating import LENGTHS

_STRING: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_YES: Schema = {"type": "boolean"}
_DETECTED = an_object({"confidence": _NUMBER, "language": _STRING})
_LANGUAGES = a_list(an_object({"code": _STRING, "name": _STRING, "targets": a_list(_STRING)}))
_PAIR: Schema = {"anyOf": [{"type": "null"}, an_object({"source": _STRING, "target": _STRING})]}
_CHOICE = an_object({"label": _STRING, "run": {"type": ["string", "null"]}, "pair": _PAIR})
_ALL = ("application/json", *FORMS)


def paths(models: Models, settings: ServeSettings) -> dict[str, Any]:
    """Every route with its methods, but those for which there is no model."""
    return {
        **(_libretranslate(models, settings) | _own(models, settings) if models.pairs else _models()),
        **(inside_paths(models, settings) if settings.explain else {}),
        **run_paths(),
        **(completion_paths(models, settings) if models.completers else {}),
        **_operations(settings),
    }


def _example(models: Models, **more: Any) -> dict[str, Any]:
    source, target = next(iter(models.pairs))
    return {"q": "A man rides a horse.", "source": source, "target": target, **more}


def _libretranslate(models: Models, settings: ServeSettings) -> dict[str, Any]:
    texts, pairs = texts_schema(settings), pairs_schema(models)
    options: Schema = {
        "format": {"enum": ["text", "html", "", None], "description": "html leaves tags as they are; null is text."},
        "alternatives": {
            "anyOf": [{"type": ["integer", "null"], "minimum": 0, "maximum": settings.alternatives_limit}, {"const": ""}],
            "description": "How many beside the best; empty is none.",
        },
    }
    answer = an_object(
        {
            "translatedText": {"anyOf": [_STRING, a_list(_STRING)]},
            "detectedLanguage": {"anyOf": [_DETECTED, a_list(_DETECTED)]},
            "alternatives": {"anyOf": [a_list(_STRING), a_list(a_list(_STRING))]},
        },
        optional=("detectedLanguage", "alternatives"),
    )
    confidences = a_list(_DETECTED)
    language = an_object({"code": _STRING, "name": _STRING})
    names = an_object(
        {
            "apiKeys": _YES, "charLimit": {"type": "integer"}, "filesTranslation": _YES, "frontendTimeout": _COUNT, "keyRequired": _YES,
            "language": an_object({"source": language, "target": language}), "suggestions": _YES, "supportedFilesFormat": a_list(_STRING),
        }
    )  # fmt: skip
    found = {
        "/translate": {
            "post": operation(
                "Translate a text, or a list of texts.", answer, kinds=_ALL, example=_example(models),
                body=request_schema({"q": texts, **options}, ["q"], pairs),
            )
        },
        "/languages": {"get": operation("The languages.", _LANGUAGES), "post": operation("The same, for clients that post.", _LANGUAGES)},
        "/detect": {
            "post": operation(
                "Which language a text is in.", {"anyOf": [confidences, a_list(confidences)]}, kinds=_ALL,
                body=request_schema({"q": texts}, ["q"], []), example={"q": "A man rides a horse."},
            )
        },
        "/frontend/settings": {"get": operation("What the server does.", names)},
        "/suggest": {"post": _suggest(models, settings)},
    }  # fmt: skip
    return {**found, **(_files(models) if settings.files else {})}


def _suggest(models: Models, settings: ServeSettings) -> dict[str, Any]:
    text: Schema = {"type": "string", "pattern": HAS_TEXT}
    better = {**text, "description": "The better translation."}
    code = {"enum": models.codes}
    body = request_schema({"q": text, "s": better}, ["q", "s"], [{"properties": {"source": code, "target": code}}])
    example = _example(models, s="Ein Mann reitet auf einem Pferd.")
    summary = "Send a better translation, for training." if settings.suggestions else "Better translations, which this server refuses."
    return operation(summary, an_object({"success": _YES}), body=body, kinds=_ALL, example=example)


def _files(models: Models) -> dict[str, Any]:
    file = {"type": "string", "contentMediaType": "application/octet-stream", "description": "A .txt, .html or .htm file in UTF-8."}
    body = request_schema({"file": file}, ["file"], pairs_schema(models))
    number = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"}}
    content = {"text/plain": {"schema": _STRING}, "text/html": {"schema": _STRING}}
    return {
        "/translate_file": {
            "post": operation("Translate a file.", an_object({"translatedFileUrl": _STRING}), body=body, kinds=["multipart/form-data"])
        },
        "/download_file/{id}": {
            "get": {
                "summary": "A translated file, for an hour.",
                "parameters": [number],
                "responses": {"200": {"description": "The file.", "content": content}, **errors()},
            }
        },
    }


def _candidate() -> Schema:
    return {
        "text": _STRING, "score": _NUMBER, "log_probability": _NUMBER, "tokens": a_list(_STRING), "token_scores": a_list(_NUMBER),
        "stop": {"enum": ["end", "length", "repetition", "empty"]},
    }  # fmt: skip


def _translation() -> Schema:
    links = a_list(a_list(_COUNT, minItems=2, maxItems=2))
    sentence = an_object(
        {
            "source": _STRING, "between": _STRING, **_candidate(), "candidates": a_list(an_object(_candidate())),
            "alignment": links, "token_alignment": links, "source_tokens": a_list(_STRING),
        },
        optional=("between", "alignment", "token_alignment", "source_tokens"),
    )  # fmt: skip
    return an_object(
        {
            "text": _STRING, "alternatives": a_list(_STRING), "models": a_list(_STRING), "detected": _DETECTED,
            "warnings": a_list({"enum": ["repetition", "length"]}), "sentences": a_list(sentence),
        },
        optional=("detected",),
    )  # fmt: skip


def _search(settings: ServeSettings) -> Schema:
    return {
        "beam": {"type": ["integer", "null"], "minimum": 1, "maximum": settings.widest_beam},
        "alpha": {"type": ["number", "null"], "minimum": -10, "maximum": 10},
        "n_best": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": settings.widest_beam,
            "description": "At most beam, where that is given.",
        },
        "max_length": {"anyOf": [{"type": ["integer", "null"], "minimum": 1, "maximum": 9999}, {"type": "string", "pattern": LENGTHS}]},
        "no_repeat_ngram": {"type": ["integer", "null"], "minimum": 0, "maximum": 100},
        "split": {"type": ["boolean", "null"], "description": "Translate each sentence of a line by itself."},
        "alignment": {"type": ["boolean", "null"], "description": "Which words came from which."},
    }


def _models() -> dict[str, Any]:
    facts = an_object({"models": a_list({"type": "object"}), "languages": _LANGUAGES, "choices": a_list(_CHOICE), "explain": _YES})
    return {"/api/v1/models": {"get": operation("The models: sizes, languages, scores.", facts)}}


def _own(models: Models, settings: ServeSettings) -> dict[str, Any]:
    search, pairs = _search(settings), pairs_schema(models)
    many = request_schema({"q": texts_schema(settings), **search}, ["q"], pairs, more=False)
    one = request_schema({"q": texts_schema(settings, many=False), **search}, ["q"], pairs, more=False)
    event = an_object({"event": {"enum": ["start", "step", "done", "error"]}, "data": _STRING}, optional=("event", "data"))
    streamed = {"description": "start, then a step each, then done or error.", "content": {"text/event-stream": {"schema": event}}}
    stream = operation("A translation as it is being found.", {}, body=one, example=_example(models))
    stream["responses"]["200"] = streamed
    score = request_schema(
        {"q": texts_schema(settings), "translation": texts_schema(settings), "alpha": search["alpha"]}, ["q", "translation"],
        pairs_schema(models, auto=False, direct=True),
        more=False,
    )  # fmt: skip
    scored = an_object({name: schema for name, schema in _candidate().items() if name not in ("text", "stop")})
    return {
        **_models(),
        "/api/v1/translate": {
            "post": operation(
                "Translations with candidates, scores, tokens and alignments.", an_object({"translations": a_list(_translation())}),
                body=many, example=_example(models, beam=4, n_best=2),
            )
        },
        "/api/v1/stream": {"post": stream},
        "/api/v1/score": {
            "post": operation(
                "The log-probability of translations that are there; lists in q and translation go pair by pair.",
                an_object({"scores": a_list(scored)}), body=score, example=_example(models, translation="Ein Mann reitet."),
            )
        },
    }  # fmt: skip


def _operations(settings: ServeSettings) -> dict[str, Any]:
    verbose = {"name": "verbose", "in": "query", "required": False, "schema": {"enum": ["0", "1"]}}
    status = an_object({"status": {"enum": ["ok", "loading", "stopping"]}})
    health = operation("Whether requests can be answered.", status)
    health["parameters"] = [verbose]
    health["responses"]["503"] = json_answer("Not now.", {"anyOf": [status, {"$ref": "#/components/schemas/Error"}]})
    metrics = {"200": {"description": "The metrics.", "content": {"text/plain": {"schema": _STRING}}}, **errors()}
    return {
        "/health": {"get": health},
        "/livez": {"get": operation("Whether the process answers at all.", status)},
        **({} if settings.metrics_token else {"/metrics": {"get": {"summary": "For Prometheus.", "responses": metrics}}}),
    }
