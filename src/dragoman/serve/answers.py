"""How answers are written: JSON in UTF-8, errors in LibreTranslate's form, and warnings in a header."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from dragoman.serve.refusals import RefusalError


def as_json(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document; what is no text becomes a question mark, and that is only in errors that repeat it."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
    return Response(content, status_code=status, headers=dict(headers or {}), media_type="application/json")


def refused(error: RefusalError, *, openai: bool = False) -> Response:
    """An error, ``{"error": sentence}``, or in OpenAI's form."""
    document = openai_error(error) if openai else {"error": error.sentence}
    return as_json(document, status=error.status, headers=error.headers)


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def openai_error(error: RefusalError) -> dict[str, Any]:
    """An error in OpenAI's form."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    code = error.code or _CODES.get(error.status)
    return {"error": {"message": error.sentence, "type": kind, "param": error.param, "code": code}}


def with_warnings(response: Response, warnings: Iterable[str]) -> Response:
    """The same with ``X-Warnings: repetition, length`` where there is something to warn of."""
    if found := sorted(set(warnings)):
        response.headers["X-Warnings"] = ", ".join(found)
    return response
