"""The package's source files as syntax trees, read once."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "dragoman"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A file of the package: its module name, its room (the first name below ``dragoman``), its text and its tree."""

    path: Path
    module: str
    room: str
    text: str
    tree: ast.Module

    def place(self, node: ast.AST) -> str:
        """FILE:LINE of a node, for messages."""
        return f"{self.path.relative_to(PROJECT)}:{getattr(node, 'lineno', 1)}"

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function and method, nested ones too, with its dotted name inside the module."""
        yield from _functions(self.tree, "")

    def definitions(self) -> Iterator[tuple[str, ast.ClassDef | Function]]:
        """Classes and functions that importers see: module level, and the methods of classes at module level."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        yield f"{node.name}.{inner.name}", inner

    def imports(self) -> Iterator[tuple[str, ast.AST]]:
        """Absolute names that the file imports, anywhere in it; ``from a import b`` gives ``a.b``."""
        package = self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, node
            elif isinstance(node, ast.ImportFrom):
                parents = package.split(".")
                base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
                origin = ".".join(part for part in (base, node.module) if part)
                for alias in node.names:
                    yield f"{origin}.{alias.name}", node


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        name = getattr(child, "name", None) if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else None
        yield from _functions(child, f"{prefix}{name}." if name else prefix)


@cache
def sources() -> tuple[Source, ...]:
    """All files of the package, sorted by path."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names = parts[:-1] if parts[-1] == "__init__" else parts
        text = path.read_text(encoding="utf-8")
        found.append(Source(path, ".".join(("dragoman", *names)), parts[0], text, ast.parse(text, str(path))))
    return tuple(found)


def in_package(name: str) -> str | None:
    """The module of the package that an imported name comes from (``dragoman.model.masks.causal_mask`` -> ``dragoman.model.masks``)."""
    modules = {source.module for source in sources()}
    while name.partition(".")[0] == "dragoman":
        if name in modules:
            return name
        name = name.rpartition(".")[0]
    return None
