"""One reading of all that clients send: the query string, and a body of JSON or of either kind of form, field by field.

A field of the body counts before one of the query. A field that comes several times in a form is a list.
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from dragoman.serve.languages import AUTO, normal_code
from dragoman.serve.refusals import RefusalError, invalid

Fields = Mapping[str, Any]

_MOST_FIELDS = 2000
_NO_FORM = f"the multipart form cannot be read; it may have one file and {_MOST_FIELDS:,} fields"
_SURROGATE = re.compile("[\ud800-\udfff]")


async def read_fields(request: Request) -> Fields:
    """All fields of a request. Raises RefusalError for what cannot be read."""
    query = _pairs(_text(request.scope["query_string"]))
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method in ("GET", "HEAD"):
        return query
    if kind == "multipart/form-data":
        return {**query, **await _multipart(request)}
    body = await request.body()
    if not body:
        return query
    if kind in ("", "application/json") or kind.endswith("+json"):
        return {**query, **_json(body)}
    if kind == "application/x-www-form-urlencoded":
        return {**query, **_pairs(_text(body))}
    raise RefusalError(415, "Content-Type must be application/json or a form")


def _json(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise RefusalError(400, "Invalid JSON format") from None
    if not isinstance(document, dict):
        raise RefusalError(400, "Invalid JSON format")
    return document


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise invalid("the form is not UTF-8") from None


def _pairs(text: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except UnicodeDecodeError:
        raise invalid("the form is not UTF-8") from None
    except ValueError:
        raise invalid(f"more than {_MOST_FIELDS} fields") from None
    return _gathered(pairs)


def _gathered(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name, with line breaks as they are in text; those that come several times as lists."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        value = value.replace("\r\n", "\n") if isinstance(value, str) else value
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]
    return fields


async def _multipart(request: Request) -> dict[str, Any]:
    try:
        form = await request.form(max_files=1, max_fields=_MOST_FIELDS, max_part_size=1 << 30)  # the body as a whole has its limit
    except (MultiPartException, ValueError, KeyError, LookupError):
        raise invalid(_NO_FORM) from None
    except Exception as error:  # Starlette turns what it cannot read into an exception of its own kind
        if getattr(error, "status_code", None) == 400:
            raise invalid(_NO_FORM) from None
        raise
    return _gathered(list(form.multi_items()))


def check_known(fields: Fields, known: Collection[str]) -> None:
    """Raises RefusalError for a field that a route does not know, naming the nearest that it does."""
    if unknown := [name for name in fields if name not in known]:
        shown = unknown[0][:40]
        nearest = difflib.get_close_matches(shown, list(known), n=1)
        there = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(sorted(known))}"
        raise invalid(f"unknown field {shown}; {there}", param=shown, code="unknown_parameter")


def texts_of(fields: Fields, name: str = "q") -> tuple[list[str], bool]:
    """The texts of a field, and whether it was a list of them."""
    value = fields.get(name)
    if value is None:
        raise invalid(f"missing {name} parameter")
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise invalid(f"{name} must be a string or a list of strings")
    check_text(name, *texts)
    return texts, isinstance(value, list)


def check_text(name: str, *texts: str) -> None:
    """Raises RefusalError for halves of surrogate pairs, which JSON can spell and no text has."""
    if any(_SURROGATE.search(text) for text in texts):
        raise invalid(f"{name} holds half a surrogate pair, which is not text")


def string_of(fields: Fields, name: str, *, default: str | None = None) -> str:
    """A field that is one string; required without a default."""
    value = fields.get(name)
    if value is None:
        if default is None:
            raise invalid(f"missing {name} parameter")
        return default
    if not isinstance(value, str):
        raise invalid(f"{name} must be a string")
    check_text(name, value)
    return value


def language_of(fields: Fields, name: str) -> str:
    """A field that is a language code, in normal form."""
    code = normal_code(string_of(fields, name))
    if not code:
        raise invalid(f"missing {name} parameter")
    return code


def whole_number(fields: Fields, name: str, *, least: int, most: int) -> int | None:
    """A field that is a whole number, also as text, or not there."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,9}", value.strip()):
        value = int(value)
    if isinstance(value, float) and value.is_integer():  # JSON has one kind of number
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(f"{name} parameter is not a number")
    if value < least:
        raise invalid(f"{name} parameter must be >= {least}")
    if value > most:
        raise invalid(f"{name} parameter must be <= {most}")
    return value


def number(fields: Fields, name: str, *, least: float, most: float) -> float | None:
    """A field that is a number, also as text, or not there."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{name} parameter is not a number")
    if not least <= value <= most:
        raise invalid(f"{name} parameter must be between {least:g} and {most:g}")
    return float(value)


def flag(fields: Fields, name: str, *, default: bool) -> bool:
    """A field that is yes or no."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, str) and value.lower() in ("true", "1", "false", "0"):
        return value.lower() in ("true", "1")
    if not isinstance(value, bool):
        raise invalid(f"{name} parameter is neither true nor false")
    return value


def format_of(fields: Fields) -> str:
    """``text`` or ``html``; text when it is not there."""
    value = fields.get("format")
    if value is None or value == "":
        return "text"
    if value not in ("text", "html"):
        shown = value[:40] if isinstance(value, str) else json.dumps(value)[:40]
        raise RefusalError(400, f"{shown} format is not supported")
    return str(value)


def file_of(fields: Fields) -> UploadFile:
    """The file of a multipart form."""
    file = fields.get("file")
    if not isinstance(file, UploadFile):
        raise invalid("missing file parameter")
    return file


def is_auto(code: str) -> bool:
    """Whether a source language is to be found out."""
    return code == AUTO
