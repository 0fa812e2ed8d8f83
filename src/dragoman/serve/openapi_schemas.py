"""The schemas that the routes of the OpenAPI document share."""

from collections.abc import Sequence
from typing import Any

from dragoman.serve.languages import AUTO
from dragoman.serve.models import Models
from dragoman.serve.settings import ServeSettings

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
ERROR: Schema = {
    "type": "object",
    "properties": {"error": {"type": "string", "description": "What is wrong, in a sentence."}},
    "required": ["error"],
    "additionalProperties": False,
}
_ERRORS = {
    "400": "The request must be another.",
    "401": "The key is missing or wrong.",
    "403": "The key is missing or wrong, or the server does not do this.",
    "404": "There is no such thing.",
    "405": "The route takes another method.",
    "408": "The request did not arrive in time.",
    "413": "The request is too large.",
    "415": "The body is neither JSON nor a form.",
    "429": "Too many requests; ask again after Retry-After seconds.",
    "500": "A fault of the server, which its log has under the same id.",
    "503": "The server is busy, loading or stopping; ask again after Retry-After seconds.",
}
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def operation(
    summary: str, answer: Schema, *, body: Schema | None = None, kinds: Sequence[str] = ("application/json",), example: Any = None
) -> dict[str, Any]:
    """One route: its summary, the schema of a good answer, and of the body with the forms it may have."""
    found: dict[str, Any] = {"summary": summary, "responses": {"200": json_answer("The answer.", answer), **errors()}}
    if body is not None:
        content = {
            kind: {
                "schema": as_form(body) if kind in FORMS else body,
                **({"example": example} if example and kind == "application/json" else {}),
            }
            for kind in kinds
        }
        found["requestBody"] = {"required": True, "content": content}
    return found


def as_form(body: Schema) -> Schema:
    """The same body as a form, which has no null and no list without an entry."""
    properties = {name: _in_form(schema) for name, schema in body["properties"].items()}
    return {**body, "properties": properties}


def _in_form(schema: Schema) -> Schema:
    found = dict(schema)
    if isinstance(found.get("type"), list):
        found["type"] = next(kind for kind in found["type"] if kind != "null")
    if "enum" in found:
        found["enum"] = [value for value in found["enum"] if value is not None]
    if "anyOf" in found:
        found["anyOf"] = [_in_form(each) for each in found["anyOf"]]
    if found.get("type") == "array":
        found["minItems"] = 1
    return found


def json_answer(sentence: str, schema: Schema) -> dict[str, Any]:
    """An answer in JSON."""
    return {"description": sentence, "content": {"application/json": {"schema": schema}}}


def errors(schema: str = "Error") -> dict[str, Any]:
    """The answers that any route may give, in the form of this schema; OpenAI's routes alone know 401."""
    form = {"$ref": f"#/components/schemas/{schema}"}
    return {status: json_answer(said, form) for status, said in _ERRORS.items() if status != "401" or schema != "Error"}


def an_object(properties: Schema, *, optional: Sequence[str] = ()) -> Schema:
    """An object whose properties are all there but for the optional ones."""
    return {"type": "object", "properties": properties, "required": [name for name in properties if name not in optional]}


def a_list(schema: Schema, **more: Any) -> Schema:
    """A list of one kind."""
    return {"type": "array", "items": schema, **more}


def pairs_schema(models: Models, *, auto: bool = True, direct: bool = False) -> list[Schema]:
    """The combinations of source and target that are answered: for each source its targets, itself among them."""
    found = []
    for source in models.codes:
        targets = sorted({target for start, target in models.pairs if start == source} if direct else {*models.targets(source), source})
        if targets:
            found.append({"properties": {"source": {"const": source}, "target": {"enum": targets}}})
    if auto:
        targets = [code for code in models.codes if code in models.sources or models.sources_of(code)]
        found.append({"properties": {"source": {"const": AUTO}, "target": {"enum": targets}}})
    return found


def texts_schema(settings: ServeSettings, *, many: bool = True, least: int = 0) -> Schema:
    """A text, or a list of texts, at least so many."""
    one: Schema = {"type": "string", **({"maxLength": settings.char_limit} if settings.char_limit else {})}
    if not many:
        return one
    each: Schema = {"type": "string", "description": "All of them together have no more characters than one may have."}
    limits: Schema = {"minItems": least} if least else {}
    if settings.batch_limit:
        limits["maxItems"] = settings.batch_limit
    return {"anyOf": [one, a_list(each, **limits)]}


def request_schema(properties: Schema, required: Sequence[str], pairs: Sequence[Schema], *, more: bool = True) -> Schema:
    """A body with languages; without ``more`` it has no other fields."""
    languages: Schema = {"source": _STRING, "target": _STRING} if pairs else {}
    return {
        "type": "object",
        "properties": {**properties, **languages, "api_key": {"type": ["string", "null"]}},
        "required": [*required, *languages],
        **({} if more else {"additionalProperties": False}),
        **({"anyOf": list(pairs)} if pairs else {}),
    }
