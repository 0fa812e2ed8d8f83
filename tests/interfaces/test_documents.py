"""The documents cannot rot: what they name exists, and what they tell a reader to type is typed."""

import ast
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from warm_command import warm_command

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
SYMBOL = re.compile(r"`((?:\w+/)*\w+\.py):([\w.]+)`")
TEST = re.compile(r"`((?:\w+/)*test_\w+\.py)::(\w+)`")
DECISIONS = (
    "Norm", "LayerNorm ε", "Attention biases", "d_k and d_v", "Positions", "Tying", "Embedding init", "Dropout", "Label smoothing",
    "Schedule", "Adam", "Batch", "Loss normaliser", "Beam", "Averaging", "Start and end", "Mask", "Line", "Settings files", "Weights",
)  # fmt: skip
SECTIONS = ("3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "5.1", "5.2", "5.3", "5.4", "6.1", "6.2", "6.3")
EQUATIONS = ("equation (1)", "equation (2)", "equation (3)")


@cache
def names_in(path: Path) -> frozenset[str]:
    """Dotted names of the classes, functions, methods and module variables that a file defines; none when there is no such file."""
    names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign):
                names.update(prefix + target.id for target in node.targets if isinstance(target, ast.Name))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(prefix + node.target.id)

    if path.is_file():
        collect(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(names)


def named_in_pages(pattern: re.Pattern[str]) -> list[tuple[str, str, str]]:
    return [(page.name, *found) for page in PAGES for found in pattern.findall(page.read_text(encoding="utf-8"))]


def test_every_named_piece_of_code_exists() -> None:
    named = named_in_pages(SYMBOL)
    assert len(named) > 50
    missing = [(page, file, symbol) for page, file, symbol in named if symbol not in names_in(PROJECT / "src/dragoman" / file)]
    assert missing == []


def test_every_named_test_exists() -> None:
    named = named_in_pages(TEST)
    assert len(named) > 50
    missing = [(page, file, test) for page, file, test in named if test not in names_in(PROJECT / "tests" / file)]
    assert missing == []


def test_every_link_leads_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))]
    assert len(links) > 5
    assert [(page.name, target) for page, target in links if "://" not in target and not (page.parent / target).exists()] == []


def test_every_row_of_the_map_has_code_and_a_test() -> None:
    rows = [line for line in (PROJECT / "docs/paper-map.md").read_text(encoding="utf-8").splitlines() if re.match(r"\| \d", line)]
    assert [row for row in rows if not (SYMBOL.search(row.split("|")[2]) and TEST.search(row.split("|")[3]))] == []
    starts = [row.split("|")[1].strip() for row in rows]
    assert [section for section in SECTIONS if not any(re.match(rf"{re.escape(section)}[ ,]", start) for start in starts)] == []
    assert [equation for equation in EQUATIONS if not any(equation in start for start in starts)] == []


def test_every_decision_is_explained_and_has_its_code_and_test() -> None:
    text = (PROJECT / "docs/exactness.md").read_text(encoding="utf-8")
    chapter = text.partition("\n## Decisions\n")[2].partition("\n## ")[0]
    sections = {part.partition("\n")[0]: part for part in chapter.split("\n### ")[1:]}
    assert tuple(sections) == DECISIONS
    assert [name for name, part in sections.items() if not (SYMBOL.search(part) and TEST.search(part))] == []


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and why the tests leave it out, if they do."""

    line: int
    language: str
    text: str
    reason: str
    output: str | None


def blocks_of(page: Path) -> list[Block]:
    """The page's blocks in sh and python, in order."""
    fence = re.compile(
        r"(?:<!-- not run by the tests: (?P<reason>[^>]*) -->\n)?```(?P<language>sh|python)\n(?P<text>.*?)^```$"
        r"(?:\n\n```text output\n(?P<output>.*?)^```$)?",
        re.M | re.S,
    )
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start("language")) + 1, found["language"], found["text"], found["reason"] or "", found["output"])
        for found in fence.finditer(text)
    ]


QUICK = [
    *("--set", "training.max_steps=2", "--set", "training.evaluate_every=1", "--set", "training.batch_tokens=512"),
    *("--set", "decoding.extra_length=5", "--set", "model.d_model=16"),
    *("--set", "model.encoder_layers=1", "--set", "model.decoder_layers=1"),
]
PAIRS = [("A man rides a horse.", "Ein Mann reitet ein Pferd."), ("Two dogs play.", "Zwei Hunde spielen.")]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A ``dragoman`` that is quick to start and trains for two steps only."""
    script = tmp_path_factory.mktemp("bin") / "dragoman"
    with warm_command(script, more=QUICK):
        yield script


@pytest.fixture
def desk(command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder as the pages suppose it: my/train, my/valid, my/test and a letter."""
    (tmp_path / "my").mkdir()
    for name, copies in (("train", 40), ("valid", 4), ("test", 4)):
        for language, side in (("en", 0), ("de", 1)):
            text = "".join(f"{number} {pair[side]}\n" for number in range(copies) for pair in PAIRS)
            (tmp_path / "my" / f"{name}.{language}").write_text(text, encoding="utf-8")
    (tmp_path / "letter.en").write_text("A man rides a dog.\nTwo men play.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROJECT", str(PROJECT))
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if any(not block.reason for block in blocks_of(page))], ids=lambda page: page.name)
def test_what_a_page_tells_to_type_works(page: Path, desk: Path) -> None:
    """And prints what the page says it prints, where it does; the Python of a page is one program, block after block."""
    names: dict[str, object] = {}
    for block in blocks_of(page):
        if block.reason:
            continue
        if block.language == "python":
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
            assert block.output in (None, printed.getvalue()), f"{page.name}, line {block.line}:\n{printed.getvalue()}"
            continue
        result = subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, f"{page.name}, line {block.line}:\n{block.text}\n{result.stdout}\n{result.stderr}"
        assert block.output in (None, result.stdout), f"{page.name}, line {block.line}:\n{result.stdout}"
    if page.name == "README.md":
        assert len((desk / "letter.de").read_text(encoding="utf-8").splitlines()) == 2
        assert (desk / "runs/mine-averaged/model.safetensors").is_file()


@pytest.mark.parametrize("block", [block for page in PAGES for block in blocks_of(page) if block.reason], ids=lambda block: block.text[:9])
def test_what_is_not_run_says_why(block: Block) -> None:
    pytest.skip(block.reason)


def test_the_commands_of_the_readme_are_the_makefiles() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    wanted = re.findall(r"(?:^|`)make (\w+)", (PROJECT / "README.md").read_text(encoding="utf-8"), re.M)
    assert {"demo", "test"} <= set(wanted)
    assert [target for target in wanted if not re.search(rf"^{target}:", makefile, re.M)] == []
    assert "make test" in (PROJECT / ".ci/run").read_text(encoding="utf-8")


def test_every_verb_is_in_the_readme() -> None:
    from dragoman.cli import VERBS

    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"`dragoman {verb}" not in readme] == []


def test_the_lock_pins_every_package_that_is_asked_for() -> None:
    """By exact version, without hashes, addresses or paths."""
    import tomllib

    lock = [line for line in (PROJECT / "requirements.lock").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert [line for line in lock if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line)] == []
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lock}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    wanted += [requirement for extra in project["project"]["optional-dependencies"].values() for requirement in extra]
    names = {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in wanted}  # type: ignore[index]
    assert names - pinned == {"dragoman"}


def test_the_pages_build_without_a_warning_and_load_nothing_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs, of the extra docs, is not installed")
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    assert {f"{page.relative_to(PROJECT / 'docs').with_suffix('.html')}".replace("README", "index") for page in PAGES[1:]} <= set(pages)
    fetched = r'<(?:script|img|link|iframe|source)[^>]*(?:src|href)="(?:https?:)?//'
    assert [name for name, text in pages.items() if re.search(fetched, text)] == []
    assert [name for name, text in pages.items() if "```" in re.sub(r"<code.*?</code>", "", text, flags=re.S)] == []
    assert "model.kv_heads" in pages["reference/settings.html"]
    assert "dragoman translate [OPTIONS]" in pages["reference/commands.html"]
