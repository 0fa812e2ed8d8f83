"""Pages of HTML: one file without scripts that fetches nothing, in which whatever a user wrote is text."""

import html
import sys
import unicodedata
from collections.abc import Iterable, Sequence

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1.5rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; font-size: .9rem; display: block; overflow-x: auto; }
th, td { border: 1px solid #8888; padding: .15rem .5rem; text-align: start; vertical-align: top; }
td.n { text-align: end; font-variant-numeric: tabular-nums; }
caption { text-align: start; padding-bottom: .25rem; }
code { overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
@media (max-width: 50rem) { figure > svg { font-size: 20px; } }
"""


def page(title: str, parts: Iterable[str], *, heading: str = "") -> str:
    """A page of these parts, light or dark as the reader's system is; without ``heading`` the title is at its head too."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escaped(title)}</title>\n'
        f"<style>{STYLE}:root {{ color-scheme: light dark; }}\n</style>\n</head>\n<body>\n<main>\n<h1>{escaped(heading or title)}</h1>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def figure(picture: str, caption: str) -> str:
    """A picture with what is to be said of it; well-formed as XML too, if the picture is."""
    return f'<figure xmlns="http://www.w3.org/1999/xhtml">{picture}<figcaption>{escaped(caption)}</figcaption></figure>'


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]], *, written: bool = False) -> str:
    """A table whose first cell of a row names it; numbers stand to the right, with ``written`` those that are text already too.

    Nothing without rows; no heading when it would be empty.
    """
    lines = [f"<table>\n<caption>{escaped(caption)}</caption>"]
    if any(header):
        lines.append("<tr>" + "".join(f'<th scope="col">{escaped(name)}</th>' for name in header) + "</tr>")
    body = []
    for name, *cells in rows:
        marks = (' class="n"' if _is_number(cell, written=written) else "" for cell in cells)
        shown = "".join(f"<td{mark}>{number(cell)}</td>" for mark, cell in zip(marks, cells, strict=True))
        body.append(f'<tr><th scope="row">{number(name)}</th>{shown}</tr>')
    return "\n".join([*lines, *body, "</table>"]) if body else ""


def _is_number(value: object, *, written: bool) -> bool:
    return isinstance(value, int | float) or (
        written and isinstance(value, str) and value.removeprefix("-").replace(".", "", 1).isdecimal()
    )


def text_table(rows: Iterable[tuple[str, str, str | None]]) -> str:
    """Texts below one another, each with its name before and the code of its language behind it, which None leaves out."""
    lines = []
    for name, text, language in rows:
        mark = "" if language is None else f' lang="{escaped(language)}"'
        lines.append(f'<tr><th scope="row">{escaped(name)}</th><td{mark} dir="auto">{escaped(text)}</td></tr>')
    return "\n".join(["<table>", *lines, "</table>"])


def number(value: object) -> str:
    """A number for people: whole ones with commas, others to six digits; any other value as text for HTML."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escaped(value)
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}"
    return f"{value:.6g}" if isinstance(value, float) or abs(value) <= sys.float_info.max else escaped(value)


def escaped(value: object) -> str:
    """Text that stands in HTML and XML for what it is, in an element or in a quoted attribute; what they have no place for reads U+FFFD.

    That is control characters, halves of a pair, and the two other characters that XML forbids.
    """
    text = "".join("\ufffd" if unicodedata.category(each) in ("Cc", "Cs") or each in "\ufffe\uffff" else each for each in str(value))
    return html.escape(text, quote=True)
