"""The blocks of the pages that a reader is to type, and the slow ones of them at work: ``python tests/documents.py [PAGE…]``.

A block behind ``<!-- slow: run by make docs-slow, last on DATE -->`` takes minutes, so the suite leaves it out, and ``make docs-slow`` runs
it: those of a page one after another in one empty folder, with the ``dragoman`` of this environment. What they print must be what the page
says, where it says so, and DATE becomes the day on which they last ran well. A block that names ``$DRAGOMAN_DATA`` wants the real data,
which are looked for there or in ../shared/data; where they are missing, it is left out with a sentence.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

PROJECT = Path(__file__).resolve().parents[1]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
_FENCE = re.compile(
    r"(?:<!-- (?:not run by the tests: (?P<reason>[^>]*)|slow: run by make docs-slow, last on (?P<last>\d{4}-\d\d-\d\d)) -->\n)?"
    r"```(?P<language>sh|python)\n(?P<text>.*?)^```$"
    r"(?:\n\n```text output\n(?P<output>.*?)^```$)?",
    re.M | re.S,
)
_MARK = re.compile(r"<!-- slow[^>]*-->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and why the tests leave it out, if they do.

    ``last`` is the day of a slow block's last run, and ``output`` what it must print, if the page says it.
    """

    line: int
    language: str
    text: str
    reason: str
    output: str | None
    last: str = ""


def blocks_of(page: Path) -> list[Block]:
    """The page's blocks in sh and python, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["text"],
            found["reason"] or (f"slow: run by make docs-slow, last on {found['last']}" if found["last"] else ""),
            found["output"],
            found["last"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


def marks_of(page: Path) -> list[str]:
    """Every comment of the page that begins as the mark of a slow block."""
    return _MARK.findall(page.read_text(encoding="utf-8"))


def run_slow(page: Path, *, data: Path) -> str:
    """Runs the slow blocks of a page and writes the day into it; returns what stands in the way, empty when all went well."""
    slow = [block for block in blocks_of(page) if block.last]
    if any("$DRAGOMAN_DATA" in block.text for block in slow) and not data.is_dir():
        return f"left out, for there are no real data at {data}; set DRAGOMAN_DATA"
    variables = {
        "DRAGOMAN_DATA": str(data),
        "PROJECT": str(PROJECT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with TemporaryDirectory() as folder:
        for block in slow:
            command = ["bash", "-euo", "pipefail", "-c", block.text] if block.language == "sh" else [sys.executable, "-c", block.text]
            result = subprocess.run(command, cwd=folder, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=False)
            if result.returncode:
                return f"line {block.line}: exit status {result.returncode}"
            if block.output not in (None, result.stdout):
                return f"line {block.line}: it printed\n{result.stdout}"
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"(?<=<!-- slow: run by make docs-slow, last on )[\d-]{10}", date.today().isoformat(), text), encoding="utf-8")
    return ""


def main() -> int:
    """Runs the slow blocks of the pages that are named, or of all; the exit status is that of the worst."""
    data = Path(os.environ.get("DRAGOMAN_DATA") or PROJECT.parent / "shared" / "data").absolute()
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
    bad = False
    for page in chosen:
        if any(block.last for block in blocks_of(page)):
            print(f"{page.relative_to(PROJECT)} …", flush=True)
            fault = run_slow(page, data=data)
            print(f"{page.relative_to(PROJECT)}: {fault or 'as it says'}", flush=True)
            bad |= bool(fault) and not fault.startswith("left out")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
