"""The documents cannot rot: what they name exists, and what they tell a reader to type is typed."""

import ast
import html
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from documents import PAGES, PROJECT, Block, blocks_of, marks_of, run_slow
from warm_command import warm_command

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
    assert len(named) > 20
    missing = [(page, file, symbol) for page, file, symbol in named if symbol not in names_in(PROJECT / "src/dragoman" / file)]
    assert missing == []


def test_every_named_test_exists() -> None:
    named = named_in_pages(TEST)
    assert len(named) > 20
    missing = [(page, file, test) for page, file, test in named if test not in names_in(PROJECT / "tests" / file)]
    assert missing == []


def headings_of(page: Path) -> set[str]:
    """The anchors that MkDocs and GitHub give the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    heads = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", head).strip().lower() for head in re.findall(r"^#+ (.*)$", text, re.M)]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", head)) for head in heads}


def test_every_link_leads_somewhere() -> None:
    """To a file, and to a heading of it where it names one."""
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page))]
    links = [(page, *target.partition("#")[::2]) for page, target in links if "://" not in target]
    assert len(links) > 100
    places = [(page, (page.parent / target).resolve() if target else page, anchor) for page, target, anchor in links]
    assert [(page.name, place) for page, place, _ in places if not place.exists()] == []
    named = [(page.name, place, anchor) for page, place, anchor in places if anchor and place.suffix == ".md"]
    assert len(named) > 5
    assert [(page, place.name, anchor) for page, place, anchor in named if anchor not in headings_of(place)] == []


def code_in(page: Path) -> list[str]:
    """What stands between single backticks in the text of a page."""
    return [code.replace("\n", " ") for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose_of(page))]


def prose_of(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


@cache
def options_of(verb: str) -> frozenset[str]:
    """The options that a verb takes."""
    import typer

    from dragoman.cli import _application

    command = typer.main.get_command(_application(verb)).commands[verb]  # type: ignore[attr-defined]
    return frozenset(name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)) | {"--help", "-h"}


OTHER_PROGRAMS = re.compile(r"torchrun|python|pip|make|curl|pytest|ruff|mypy|mkdocs|mteval|git|docker|subword-nmt|ffmpeg")
OPTIONS_OF_OTHERS = {"--nproc-per-node", "--master-addr", "--master-port", "--version"}


def test_every_setting_that_a_page_names_is_one() -> None:
    from dragoman.config import Config

    groups = {name: set(getattr(Config(), name).model_dump()) for name in ("model", "data", "training", "decoding")}
    named = [
        (page.name, code, *found.groups())
        for page in PAGES
        for code in [*code_in(page), *re.findall(r"--set '?(\S+=)", page.read_text(encoding="utf-8"))]
        if (found := re.match(r"(?:--set )?(model|data|training|decoding)\.(\w+)( ?=.*)?$", code))
    ]
    assert len(named) > 100
    files = {"safetensors", "bin", "md", "py", "pt", "onnx", "json"}
    assert [(page, code) for page, code, group, name, _ in named if name not in groups[group] | files] == []


def test_every_verb_and_option_that_a_page_names_is_one() -> None:
    """An option beside its verb is one of that verb, one alone of any verb."""
    from dragoman.cli import VERBS

    everywhere = frozenset[str]().union(*map(options_of, VERBS)) | OPTIONS_OF_OTHERS
    wrong, seen = [], 0
    for page in PAGES:
        for code in code_in(page):
            words = code.split()
            if len(words) > 1 and words[0] == "dragoman" and words[1].isalpha() and words[1].islower():
                known = options_of(words[1]) if words[1] in VERBS else frozenset()
                wrong += [(page.name, code)] * (words[1] not in VERBS)
            elif words[:1] == ["dragoman"] or not OTHER_PROGRAMS.search(words[0] if words else ""):
                known = everywhere
            else:
                continue
            options = re.findall(r"(?<!\S)--[a-z][\w-]*", code)
            seen += len(options)
            wrong += [(page.name, code, option) for option in options if option not in known]
    assert seen > 200
    assert wrong == []


def test_every_file_of_the_project_that_a_page_names_is_there() -> None:
    """Paths of the project, of the package and of the tests; paths of the reader's own folder are told by their beginning."""
    places = (PROJECT, PROJECT / "src/dragoman", PROJECT / "tests", PROJECT / "docs", PROJECT / "docs/course")
    own = re.compile(r"(?:[\w-]+/)+[\w.-]+\.(?:py|md|toml|json|svg)|(?:src|tests|docs|benchmarks)/[\w./-]*")
    named = [(page.name, code) for page in PAGES for code in code_in(page) if own.fullmatch(code)]
    named = [
        (page, code)
        for page, code in named
        if not re.match(r"(?:runs|my|models|checkpoints|corpus|samples|site|state|exported|none)/", code)
    ]
    assert len(named) > 20
    assert [(page, code) for page, code in named if not any((place / code).exists() for place in places)] == []


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


def test_every_mark_of_a_slow_block_stands_before_one() -> None:
    """Or nobody would run it; and its date is a day."""
    for page in PAGES:
        dated = [block for block in blocks_of(page) if block.last]
        assert len(marks_of(page)) == len(dated), page.name
        assert all(date.fromisoformat(block.last) for block in dated)


def test_slow_blocks_are_run_together_and_dated(tmp_path: Path) -> None:
    mark = "<!-- slow: run by make docs-slow, last on 2001-02-03 -->\n"
    text = f"{mark}```sh\necho 1 > one\n```\n\n```sh\nexit 1\n```\n\n"
    text += f"{mark}```python\nprint(open('one').read())\n```\n\n```text output\n1\n\n```\n"
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert run_slow(page, data=tmp_path) == ""
    assert page.read_text("utf-8") == text.replace("2001-02-03", date.today().isoformat())
    for wrong, said in (("echo 1", "echo 2"), "line 11: it printed\n2"), (("echo 1 >", "exit 3 #"), "line 2: exit status 3"):
        page.write_text(text.replace(*wrong), encoding="utf-8")
        assert run_slow(page, data=tmp_path).startswith(said)
        assert "2001-02-03" in page.read_text("utf-8")
    page.write_text(text.replace("echo 1", "ls $DRAGOMAN_DATA"), encoding="utf-8")
    assert run_slow(page, data=tmp_path / "none") == f"left out, for there are no real data at {tmp_path / 'none'}; set DRAGOMAN_DATA"


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
    styles = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css")}
    assert styles
    assert [name for name, text in styles.items() if re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", text)] == []
    assert [name for name, text in pages.items() if "```" in re.sub(r"<code.*?</code>", "", text, flags=re.S)] == []
    assert "model.kv_heads" in pages["reference/settings.html"]
    assert "dragoman translate [OPTIONS]" in pages["reference/commands.html"]
    assert "dragoman.model.MultiHeadAttention" in pages["reference/python.html"]
    results = [path.name for path in (PROJECT / "benchmarks").glob("*.json")]
    commands = [json.loads((PROJECT / "benchmarks" / name).read_text("utf-8")).get("command", "") for name in results]
    assert [command for command in commands if command not in html.unescape(pages["benchmarks.html"])] == []
    assert "38.53 ± 0.12 over 3 seeds" in pages["benchmarks.html"] or "multi30k.bpe.json" not in results
