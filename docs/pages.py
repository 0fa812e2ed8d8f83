"""What MkDocs adds to the written pages: the README, the benchmarks from their results, and the reference from the code itself."""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import dragoman
import dragoman.model
from dragoman.cli import VERBS, main
from dragoman.config import Config, Settings
from dragoman.presets import PRESETS

PROJECT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"\[([^]]*)\]\((?:\.\./)*(?!docs/|http|#)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """The generated pages beside the written ones."""
    pages = {
        "overview.md": overview(),
        "benchmarks.md": benchmarks(),
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
    """The README and the folder of benchmarks have pages of their own; fences and folds in the form that MkDocs knows."""
    markdown = markdown.replace("```text output", "```output").replace("```python solution", "```python")
    markdown = markdown.replace("<details>", '<details markdown="1">')
    up = "../" * page.file.src_uri.count("/")
    for outside, inside in (("README\\.md", "overview.md"), ("CHANGELOG\\.md", "reference/changes.md"), ("benchmarks/?", "benchmarks.md")):
        markdown = re.sub(rf"\((?:\.\./)+{outside}(?=[)#])", f"({up}{inside}", markdown)
    return markdown


def overview() -> str:
    """The README, whose links go to the pages; what has no page is named without a link."""
    text = (PROJECT / "README.md").read_text(encoding="utf-8").replace("](benchmarks)", "](docs/benchmarks.md)")
    text = text.replace("](CHANGELOG.md)", "](docs/reference/changes.md)")
    return re.sub(r"\]\(docs/", "](", outside_unlinked(text))


def outside_unlinked(text: str) -> str:
    """A text whose links to files that are no pages are only their words."""
    return OUTSIDE.sub(r"\1", text)


def benchmarks() -> str:
    """Every script that measures: what, and the result that lies beside it, from its file."""
    parts = [
        "# Benchmarks", "",
        "Every figure of this project comes from a script in `benchmarks/`, and this page is made from the files that the scripts leave "
        "there. Times depend on the machine, which others may have used at the same time; compare what one script measured by turns, and "
        "nothing else.",
        "", "| script and command | result | when and where |", "|---|---|---|",
    ]  # fmt: skip
    silent = []
    for script in sorted((PROJECT / "benchmarks").glob("*.py")):
        what = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].replace("\n", " ")
        results = [*sorted(script.parent.glob(f"{script.stem}.json")), *sorted(script.parent.glob(f"{script.stem}.*.json"))]
        heads = [f"`{script.name}`: {what}", *[f"`{script.name}` again"] * (len(results) - 1)]
        for head, path in zip(heads, results, strict=False):
            parts += result_rows(head, json.loads(path.read_text(encoding="utf-8")))
        if not results and what and "main()" in script.read_text(encoding="utf-8"):
            silent.append(f"- `benchmarks/{script.name}`: {what}")
    parts += [
        "", "## Without a result beside them", "", "The tables of the first are on [their page](scaling.md); the others have no figures on "
        "record yet.", "", *sorted(silent, key=lambda line: "scaling_table" not in line), "",
    ]  # fmt: skip
    return "\n".join(parts)


def result_rows(what: str, result: dict[str, Any]) -> Iterator[str]:
    """A row for a result, or for each part of it that has a command of its own."""
    if "command" not in result:
        for name, part in result.items():
            if isinstance(part, dict) and "command" in part:
                yield from result_rows(f"{what} ({name})", part)
        return
    threads = result.get("threads", result.get("cores"))
    where = [str(result[name]) for name in ("device", "machine") if name in result]
    if threads and not isinstance(threads, list):  # else a figure: how many there were at the beginning and at the end
        where += [f"{threads} {'thread' if str(threads) == '1' else 'threads'}"]
    where += [f"PyTorch {result['torch']}"] if "torch" in result else []
    lines = "<br>".join(line.replace("|", "\\|") for line in figures(result))
    yield f"| {what}<br>`{result['command']}` | {lines} | {'<br>'.join([result.get('date', ''), *where])} |"


_ABOUT = (
    "command", "date", "machine", "device", "threads", "cores", "torch", "seed", "seeds", "settings", "rounds", "signatures", "rows",
    "matrix_products_gflops",
)  # fmt: skip


def figures(result: dict[str, Any]) -> Iterator[str]:
    """What a result says, a line each: of every contender or model its first figures, of anything else the single ones."""
    if "bleu" in result and "seeds" in result:
        for name, score in result["bleu"].items():
            spread = "" if score["spread"] is None else f" ± {score['spread']} over {len(result['seeds'])} seeds"
            yield f"BLEU {name}: {score['mean']}{spread}"
        return
    for name, value in result.items():
        if name in _ABOUT and not (name == "threads" and isinstance(value, list)):
            continue
        if name == "contenders":
            for contender, measured in value.items():
                yield f"{contender}: {' · '.join(single(measured))}"
        elif name == "models":
            for model, runs in value.items():
                for run in runs if isinstance(runs, list) else [runs]:
                    yield f"{model}: {' · '.join(single(run))}"
        elif isinstance(value, dict):
            if inner := " · ".join(single(value)):
                yield f"{spoken(name)}: {inner}"
        elif isinstance(value, list):
            numbers = all(isinstance(each, int | float) for each in value)
            yield f"{spoken(name)}: {', '.join(map(shown, value)) if numbers else len(value)}"
        else:
            yield f"{spoken(name)}: {shown(value)}"


def single(measured: dict[str, Any]) -> Iterator[str]:
    """The figures in a group that are one number or word each; of a group in it the first three."""
    for name, value in measured.items():
        if name in _ABOUT:
            continue
        if isinstance(value, dict):
            inner = [
                f"{spoken(key)} {shown(each)}" for key, each in value.items() if key not in _ABOUT and not isinstance(each, dict | list)
            ]
            yield f"{spoken(name)} ({', '.join(inner[:3])})"
        elif isinstance(value, list):
            yield f"{spoken(name)} {', '.join(shown(each) for each in value if not isinstance(each, dict | list))}".strip()
        else:
            yield f"{spoken(name)} {shown(value)}"


def spoken(name: str) -> str:
    """A key as words."""
    return name.replace("_", " ")


def shown(value: object) -> str:
    """A value as it is read."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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
        [
            "# Python", "", "The public names, which are imported from `dragoman`.", "", *(f"::: dragoman.{name}\n" for name in names),
            "# The parts of the model", "", "Section 3's, imported from `dragoman.model`: tensors in, tensors out.", "",
            *(f"::: dragoman.model.{name}\n" for name in dragoman.model.__all__ if name not in names),
        ]
    )  # fmt: skip
