"""Imports run one way: down the levels of the house, never between neighbours, never in a circle."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

from structure.sources import in_package, sources

LEVELS = (
    {"errors", "files", "devices", "ranks", "html", "config", "toml", "presets"},
    {"model", "data"},
    {"bundle"},
    {"training", "decoding"},
    {"evaluation", "interop", "explain", "serve"},
    {"pipelines"},
    {"__init__"},  # the public names, each imported when it is first used
    {"cli"},
    {"__main__"},
)
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def room_of(module: str) -> str:
    """The first name below ``dragoman``."""
    return module.split(".")[1] if "." in module else "__init__"


def internal_imports() -> list[tuple[str, str, str]]:
    """(place, importing module, imported module) for every import inside the package."""
    found = []
    for source in sources():
        for name, node in source.imports():
            target = in_package(name)
            if target is not None:
                found.append((source.place(node), source.module, target))
    return found


def test_every_room_has_a_level() -> None:
    assert {source.room for source in sources()} - set(LEVEL_OF) == set()


def test_imports_go_down() -> None:
    wrong = []
    for place, importer, imported in internal_imports():
        above, below = room_of(importer), room_of(imported)
        both_on_the_floor = LEVEL_OF[above] == LEVEL_OF[below] == 0
        if above != below and not both_on_the_floor and LEVEL_OF[below] >= LEVEL_OF[above]:
            wrong.append(f"{place}: {above} imports {below}, which does not lie below it")
    assert wrong == []


def test_no_module_imports_itself_through_others() -> None:
    graph: dict[str, set[str]] = {}
    for _, importer, imported in internal_imports():
        if importer != imported:
            graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_only_build_reads_the_settings_in_model() -> None:
    readers = {
        source.path.name for source in sources() if source.room == "model" for name, _ in source.imports() if "dragoman.config" in name
    }
    assert readers == {"build.py"}


def test_importing_dragoman_is_light() -> None:
    heavy = ["torch", "tokenizers", "sacrebleu", "transformers", "ctranslate2", "onnx", "http.server", "starlette", "babel"]
    program = f"import sys, dragoman; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
