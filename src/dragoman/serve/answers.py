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


def refused(error: RefusalError) -> Response:
    """An error, always ``{"error": sentence}``."""
    return as_json({"error": error.sentence}, status=error.status, headers=error.headers)


def with_warnings(response: Response, warnings: Iterable[str]) -> Response:
    """The same with ``X-Warnings: repetition, length`` where there is something to warn of."""
    if found := sorted(set(warnings)):
        response.headers["X-Warnings"] = ", ".join(found)
    return response
