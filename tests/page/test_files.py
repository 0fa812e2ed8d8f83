"""The page's files: few, small, readable, and with nothing in them that asks another machine or runs a text."""

import gzip
import re
from importlib.resources import files
from pathlib import Path

import pytest

WEB = Path(str(files("dragoman.serve"))) / "web"
FILES = sorted(path for path in WEB.rglob("*") if path.is_file())
MODULES = [path for path in FILES if path.suffix == ".js"]
BYTES = 26 * 1024  # of all that travels, once
WRITTEN = 60_000  # with its indentation and what it says of itself
LINES = 250


def test_the_page_is_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in FILES) <= BYTES
    assert sum(path.stat().st_size for path in FILES) <= WRITTEN


def test_every_module_is_short_and_says_what_it_is() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in MODULES}
    assert {name: text.count("\n") for name, text in texts.items() if text.count("\n") > LINES} == {}
    assert [name for name, text in texts.items() if not text.startswith("// ")] == []
    assert [name for name, text in texts.items() for line in text.splitlines() if len(line) > 140] == []


@pytest.mark.parametrize(
    "danger", [r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", r"\beval\(|new Function", r"\bsetAttribute\(\"style\""]
)
def test_no_text_becomes_markup_or_code(danger: str) -> None:
    assert [path.name for path in FILES if re.search(danger, path.read_text(encoding="utf-8"))] == []


def test_it_names_no_other_machine() -> None:
    addresses = {address for path in FILES for address in re.findall(r"https?://[^\"' )]+", path.read_text(encoding="utf-8"))}
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}


def test_what_the_page_names_is_there() -> None:
    named = {*re.findall(r'(?:href|src)="(web/[^"]+)"', (WEB / "index.html").read_text(encoding="utf-8"))}
    assert named == {"web/style.css", "web/js/main.js"}
    imported = {name for path in MODULES for name in re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8"))}
    views = set(re.findall(r'<section id="(\w+)"', (WEB / "index.html").read_text(encoding="utf-8")))
    assert imported | {f"{name}.js" for name in views} | {"main.js"} == {path.name for path in MODULES}
