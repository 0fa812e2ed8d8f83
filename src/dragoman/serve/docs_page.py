"""The routes for people: one page, made of the OpenAPI document, with a line to copy and an answer for each."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.html import escaped, page, table

# One click into a line to copy marks all of it; long lines go on below, so that nothing has to be moved sideways.
_STYLE = """
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #8888; padding: .5rem; margin: .25rem 0 1rem; }
pre.ask { user-select: all; }
h2 { margin-top: 2.5rem; }
nav ul { list-style: none; padding: 0; }
"""
_KINDS = {"application/json": "JSON", "application/x-www-form-urlencoded": "a form", "multipart/form-data": "a form with parts"}
_EVENTS = "text/event-stream"


def docs_page(document: Mapping[str, Any]) -> str:
    """The page, without scripts; it fetches nothing."""
    routes = [(path, method, operation) for path, methods in document["paths"].items() for method, operation in methods.items()]
    links = (
        f'<li><a href="#{_anchor(*route[:2])}"><code>{_name(*route[:2])}</code></a> {escaped(route[2]["summary"])}</li>' for route in routes
    )
    parts = [
        f"<p>{escaped(document['info']['description'])}</p>",
        f'<p>Version {escaped(document["info"]["version"])}. For programs: <a href="openapi.json">openapi.json</a>.</p>',
        f'<nav aria-label="Routes">\n<ul>\n{chr(10).join(links)}\n</ul>\n</nav>',
    ]
    for path, method, operation in routes:
        parts.append(f'<h2 id="{_anchor(path, method)}"><code>{_name(path, method)}</code></h2>\n<p>{escaped(operation["summary"])}</p>')
        parts += _fields(operation)
        command = curl(document["servers"][0]["url"], method, path, operation, key=bool(document.get("security")))
        parts.append(f'<pre class="ask"><code>{escaped_lines(command)}</code></pre>')
        parts += _answers(operation)
    return page("Dragoman: the routes of this server", parts).replace("</style>", f"{_STYLE}</style>", 1)


def _name(path: str, method: str) -> str:
    return f"{escaped(method.upper())} {escaped(path)}"


def _anchor(path: str, method: str) -> str:
    return escaped(method + path.replace("/", "-").replace("{", "").replace("}", ""))


def curl(base: str, method: str, path: str, operation: Mapping[str, Any], *, key: bool = False) -> str:
    """A command that asks a route."""
    body = operation.get("requestBody", {}).get("content", {})
    good = operation["responses"]["200"]["content"]
    slowly = "--no-buffer " if [*good] == [_EVENTS] else ""
    header = " -H 'Authorization: Bearer KEY'" if key else ""
    start = f"curl {slowly}{base}{path}{header}"
    if "application/json" in body:
        example = json.dumps(body["application/json"].get("example", {}), ensure_ascii=False).replace("'", "'\\''")
        return f"{start} -H 'Content-Type: application/json' -d '{example}'"
    if body:
        pairs = [
            (pair["properties"]["source"]["const"], target)
            for pair in next(iter(body.values()))["schema"]["anyOf"]
            for target in pair["properties"]["target"]["enum"]
        ]
        source, target = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
        return f"{start} -F file=@letter.txt -F source={source} -F target={target}"
    return f"{start}{' -X POST' if method == 'post' else ''}"


def _fields(operation: Mapping[str, Any]) -> Iterator[str]:
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return
    yield f"<p>Takes {escaped(', '.join(_KINDS[kind] for kind in content))}.</p>"
    schema = next(iter(content.values()))["schema"]
    required = schema["required"]
    rows = [(name, "yes" if name in required else "", _kind(field), _said(field)) for name, field in schema["properties"].items()]
    yield table("Fields", ("name", "needed", "kind", "what it is"), rows)


def _kind(field: Mapping[str, Any]) -> str:
    """What a value is: ``text or list of text``."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(kind for each in field["anyOf"] if (kind := _kind(each))))
    kinds = field.get("type", [])
    names = {"string": "text", "integer": "whole number", "boolean": "true or false", "array": "list", "object": "object"}
    found = [names.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    return f"list of {_kind(field['items'])}" if found == ["list"] else " or ".join(found)


def _said(field: Mapping[str, Any]) -> str:
    facts = []
    if "description" in field:
        facts.append(str(field["description"]).rstrip("."))
    if "enum" in field:
        facts.append("one of " + ", ".join(json.dumps(value) for value in field["enum"]))
    for name, words in (("minimum", "at least"), ("maximum", "at most"), ("maxLength", "characters at most:")):
        if name in field:
            facts.append(f"{words} {field[name]}")
    return "; ".join(facts)


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    """What a good answer looks like."""
    good = operation["responses"]["200"]
    shown = [content["example"] for content in good["content"].values() if "example" in content]
    if not shown:
        yield f"<p>Answers: {escaped(good['description'])}</p>"
    for example in shown:
        text = example if isinstance(example, str) else json.dumps(example, ensure_ascii=False, indent=2)
        yield f"<p>An answer:</p>\n<pre><code>{escaped_lines(text)}</code></pre>"


def escaped_lines(text: str) -> str:
    """Text for a block of code, its lines kept."""
    return "\n".join(map(escaped, text.split("\n")))
