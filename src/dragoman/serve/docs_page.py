"""The routes for people: one page, made of the OpenAPI document, with a line to copy for each."""

import json
from collections.abc import Mapping
from typing import Any

from dragoman.html import escaped, page


def docs_page(document: Mapping[str, Any]) -> str:
    """The page, without scripts; it fetches nothing."""
    base = document["servers"][0]["url"]
    parts = [
        f"<p>{escaped(document['info']['description'])}</p>",
        f'<p>Version {escaped(document["info"]["version"])}. For programs: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2><code>{escaped(method.upper())} {escaped(path)}</code></h2>\n<p>{escaped(operation['summary'])}</p>")
            parts.append(_fields(operation))
            parts.append(f"<pre><code>{escaped_lines(curl(base, method, path, operation))}</code></pre>")
    return page("Dragoman: the routes of this server", parts)


def curl(base: str, method: str, path: str, operation: Mapping[str, Any]) -> str:
    """A command that asks a route."""
    body = operation.get("requestBody", {}).get("content", {})
    if "application/json" in body:
        example = json.dumps(body["application/json"].get("example", {}), ensure_ascii=False).replace("'", "'\\''")
        return f"curl {base}{path} -H 'Content-Type: application/json' -d '{example}'"
    if body:
        return f"curl {base}{path} -F file=@letter.txt -F source=en -F target=de"
    return f"curl {'-X POST ' if method == 'post' else ''}{base}{path}"


def _fields(operation: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return ""
    schema = next(iter(content.values()))["schema"]
    items = []
    for name, field in schema["properties"].items():
        needed = "" if name in schema["required"] else " (optional)"
        items.append(f"<li><code>{escaped(name)}</code>{needed}{_said(field)}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _said(field: Mapping[str, Any]) -> str:
    facts = []
    if "description" in field:
        facts.append(str(field["description"]).rstrip("."))
    if "enum" in field:
        facts.append("one of " + ", ".join(json.dumps(value) for value in field["enum"]))
    for name, words in (("minimum", "at least"), ("maximum", "at most"), ("maxLength", "characters at most:")):
        if name in field:
            facts.append(f"{words} {field[name]}")
    return f": {escaped('; '.join(facts))}" if facts else ""


def escaped_lines(text: str) -> str:
    """Text for a block of code, its lines kept."""
    return "\n".join(map(escaped, text.split("\n")))
