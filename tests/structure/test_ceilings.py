"""Ceilings, so that growth is noticed, and what every file and name must say of itself."""

import ast
import re

import pytest

from structure.sources import Function, sources

FILE_LINES = 400
FUNCTION_LINES = 60
LAYER_PARAMETERS = 8


def parameters(function: Function) -> list[str]:
    """Names of all parameters but self."""
    arguments = function.args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if argument.arg != "self"]


def test_no_file_is_longer_than_its_ceiling() -> None:
    lengths = {str(source.path.name): source.text.count("\n") for source in sources()}
    assert {name: length for name, length in lengths.items() if length > FILE_LINES} == {}


def test_no_function_is_longer_than_its_ceiling() -> None:
    lengths = {
        f"{source.place(node)} {name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for source in sources()
        for name, node in source.functions()
    }
    assert {place: length for place, length in lengths.items() if length > FUNCTION_LINES} == {}


def test_layers_take_few_parameters() -> None:
    counts = {
        f"{source.place(node)} {name}": len(parameters(node))
        for source in sources()
        if source.room == "model"
        for name, node in source.functions()
        if node.name == "__init__"
    }
    assert counts, "model/ has layers"
    assert {place: count for place, count in counts.items() if count > LAYER_PARAMETERS} == {}


def test_no_unnamed_keywords_in_the_model() -> None:
    assert [
        f"{source.place(node)} {name}"
        for source in sources()
        if source.room == "model"
        for name, node in source.functions()
        if node.args.kwarg
    ] == []


def test_public_names_have_docstrings() -> None:
    """A method may leave it to the class of the package that it overrides."""
    documented = {name for source in sources() for name, node in source.definitions() if ast.get_docstring(node)}
    silent = []
    for source in sources():
        bases: dict[str, list[str]] = {}
        for name, node in source.definitions():
            if isinstance(node, ast.ClassDef):
                bases[name] = [ast.unparse(base) for base in node.bases]
            owner, _, method = name.rpartition(".")
            inherited = any(f"{base}.{method}" in documented for base in bases.get(owner, []))
            if not any(part.startswith("_") for part in name.split(".")) and not (ast.get_docstring(node) or inherited):
                silent.append(f"{source.place(node)} {name}")
    assert silent == []


def test_every_module_says_what_it_is() -> None:
    assert [source.module for source in sources() if not ast.get_docstring(source.tree)] == []


def test_model_files_open_with_their_section() -> None:
    opening = {
        source.path.name: (ast.get_docstring(source.tree) or "").partition("\n\n")[0] for source in sources() if source.room == "model"
    }
    assert [name for name, text in opening.items() if not re.search(r"Sections? \d|\(?\b3\.\d", text)] == []


CODE_RUNNERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
NETWORK = {"socket", "urllib.request", "http.client", "requests", "httpx", "ftplib", "smtplib"}


@pytest.mark.parametrize("names", [CODE_RUNNERS, NETWORK], ids=["pickle", "network"])
def test_no_dangerous_import(names: set[str]) -> None:
    found = [
        f"{source.place(node)} {name}"
        for source in sources()
        if source.room != "serve" or names is CODE_RUNNERS
        for name, node in source.imports()
        if any(name == danger or name.startswith(f"{danger}.") for danger in names)
    ]
    assert found == []


def test_no_call_runs_code_from_data() -> None:
    found = []
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and runs_code(node):
                found.append(f"{source.place(node)} {ast.unparse(node)}")
    assert found == []


def runs_code(call: ast.Call) -> bool:
    """True for eval, exec, torch.load without weights_only=True, and numpy.load with allow_pickle."""
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    name = ast.unparse(call.func)
    if name == "torch.load":
        return keywords.get("weights_only") != "True"
    return name in {"eval", "exec", "builtins.eval", "builtins.exec"} or keywords.get("allow_pickle", "False") != "False"


@pytest.mark.parametrize(
    ("code", "dangerous"),
    [
        ("eval('1')", True),
        ("model.eval()", False),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("torch.load(path, weights_only=True)", False),
        ("numpy.load(path, allow_pickle=True)", True),
        ("numpy.load(path)", False),
    ],
)
def test_the_check_knows_dangerous_calls(code: str, dangerous: bool) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert runs_code(call) is dangerous


def test_only_the_command_line_prints() -> None:
    prints = [
        source.place(node)
        for source in sources()
        if source.room not in {"cli", "__main__"}
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.stdout.write"}
    ]
    assert prints == []
