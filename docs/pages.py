"""What MkDocs adds to the written pages: the start page from the README, and the reference from the code itself."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import dragoman
from dragoman.cli import VERBS, main
from dragoman.config import Config, Settings
from dragoman.presets import PRESETS

PROJECT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\[([^]]*)\]\((?:\.\./)*(?!docs/|http|#)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """The generated pages beside the written ones."""
    pages = {
        "index.md": start(),
        "reference/commands.md": commands(),
        "reference/settings.md": settings(),
        "reference/presets.md": presets(),
        "reference/python.md": python(),
        "reference/changes.md": outside_unlinked((PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The README of the project is the start page, and has its place there; fences and folds in the form that MkDocs knows."""
    markdown = markdown.replace("```text output", "```output").replace("```python solution", "```python")
    markdown = markdown.replace("<details>", '<details markdown="1">')
    return re.sub(r"\((?:\.\./)+README\.md(?=[)#])", f"({'../' * page.file.src_uri.count('/')}index.md", markdown)


def start() -> str:
    """The README, whose links go to the pages; what has no page is named without a link."""
    text = outside_unlinked((PROJECT / "README.md").read_text(encoding="utf-8"))
    return re.sub(r"\]\(docs/", "](", text)


def outside_unlinked(text: str) -> str:
    """A text whose links to files that are no pages are only their words."""
    return OUTSIDE.sub(r"\1", text)


def commands() -> str:
    """``--help`` of every verb, as it is printed."""
    parts = ["# Commands", "", "What each verb says of itself, with `--help`.", ""]
    for verb in VERBS:
        with redirect_stdout(StringIO()) as printed:
            main([verb, "--help"])
        parts += [f"## dragoman {verb}", "", "```text", printed.getvalue().strip("\n"), "```", ""]
    return "\n".join(parts)


def settings() -> str:
    """Every setting with its default and its sentence."""
    parts = [
        "# Settings", "",
        "Given by `--set GROUP.NAME=VALUE`, in a TOML file (`--config`), or by a preset; later over earlier.", "",
    ]  # fmt: skip
    for name, group in Config.model_fields.items():
        kind = group.annotation
        if not (isinstance(kind, type) and issubclass(kind, Settings)):
            continue
        parts += [f"## {name}", "", group.description or "", "", "| setting | default | what it is |", "|---|---|---|"]
        parts += rows(name, kind)
        parts.append("")
    return "\n".join(parts)


def rows(group: str, kind: type[Settings]) -> Iterator[str]:
    """A table's row for each field of a group."""
    for name, field in kind.model_fields.items():
        default = "" if field.default in ("", None, ()) else f"`{field.default}`"
        yield f"| `{group}.{name}` | {default} | {(field.description or '').replace('|', chr(92) + '|')} |"


def presets() -> str:
    """Every preset in a sentence."""
    parts = ["# Presets", "", "`dragoman presets` gives their numbers of parameters; `dragoman train --preset NAME` starts from one.", ""]
    return "\n".join(
        [*parts, "| preset | what it is |", "|---|---|", *(f"| `{each.name}` | {each.summary} |" for each in PRESETS.values()), ""]
    )


def python() -> str:
    """The public names, from their own docstrings."""
    names = [name for name in dragoman.__all__ if not name.startswith("__")]
    return "\n".join(
        ["# Python", "", "The public names, which are imported from `dragoman`.", "", *(f"::: dragoman.{name}\n" for name in names)]
    )
