"""Treebanks: files of trees in brackets as the Penn Treebank has them, a tree over one line or several.

``( (S (NP-SBJ-1 (DT The) (NN dog)) (VP (VBZ barks)) (. .)) )``: a bracket holds a tag and a word, or a label and other brackets. Read
as is usual for parsing (and as evalb counts): traces, which are tagged ``-NONE-``, are taken out with every bracket that holds nothing
else; labels lose their function tags, ``NP-SBJ-1`` is ``NP``; and a bracket without a label, or labelled TOP, ROOT or S1, is taken off
when it holds a whole tree and nothing beside it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.data.formats.lines import COMPRESSED, read_lines
from dragoman.data.trees import Tree
from dragoman.errors import DragomanError

SUFFIXES = (".mrg", ".ptb", ".trees")
TRACE = "-NONE-"

_AROUND = ("", "TOP", "ROOT", "S1")
_TOKENS = re.compile(r"[()]|[^\s()]+", re.ASCII)
_FUNCTION_TAGS = re.compile(r"^([^-=]+)[-=].*")


def is_treebank(name: str | Path) -> bool:
    """Whether a file is a treebank by its name: ``.mrg``, ``.ptb`` or ``.trees``, maybe compressed."""
    path = Path(name)
    return "," not in str(name) and (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix in SUFFIXES


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file, in order; one of nothing but traces has no words.

    Raises DragomanError that names file and line for brackets that do not make trees, for a file without any, and as `read_lines` does.
    """
    empty = True
    for tree in trees_of(read_lines(path), str(path)):
        empty = False
        yield tree
    if empty:
        raise DragomanError(f"{path}: no tree in it; a treebank has trees in brackets, such as (S (NP (NN rain)) (VP (VBZ falls)))")


def trees_of(lines: Iterable[str], place: str) -> Iterator[Tree]:
    """The trees in lines of text. Raises DragomanError that names ``place`` and line for brackets that do not make trees."""
    reader = _Reader(place)
    for number, line in enumerate(lines, start=1):
        for token in _TOKENS.findall(line):
            if tree := reader.read(token, number):
                yield tree
    reader.end()


def read_tree(text: str) -> Tree:
    """The one tree in a text. Raises DragomanError for brackets that do not make one."""
    trees = list(trees_of(text.split("\n"), "tree"))
    if len(trees) != 1:
        raise DragomanError(f"{text!r}: {len(trees)} trees; give one")
    return trees[0]


@dataclass
class _Bracket:
    """An open bracket: the line it is in, where its part is among the tree's, its label or tag, its word, whether others are inside."""

    line: int
    place: int
    label: str | None = None
    word: str | None = None
    parent: bool = False


@dataclass
class _Reader:
    """The brackets that are open, and the parts and words of the tree so far."""

    place: str
    open: list[_Bracket] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def read(self, token: str, line: int) -> Tree | None:
        """Takes the next token; returns the tree that it completes."""
        if token == "(":
            self._open(line)
        elif token == ")":
            return self._close(line)
        else:
            self._name(token, line)
        return None

    def end(self) -> None:
        """The file ends here."""
        if self.open:
            raise self._fault(
                self.open[0].line, "the tree that begins here is not closed at the end of the file; add the missing ), or take it out"
            )

    def _open(self, line: int) -> None:
        if self.open:
            bracket = self.open[-1]
            if bracket.word is not None:
                raise self._fault(line, f"a bracket beside the word {bracket.word!r}; a bracket holds one word, or brackets")
            self._hold_brackets(bracket)
        self.open.append(_Bracket(line, len(self.parts)))

    def _hold_brackets(self, bracket: _Bracket) -> None:
        if not bracket.parent:
            bracket.parent = True
            bracket.label = _FUNCTION_TAGS.sub(r"\1", bracket.label or "")
            self.parts.append(f"({bracket.label}")

    def _name(self, token: str, line: int) -> None:
        if not self.open:
            raise self._fault(
                line, f"{token!r} stands outside all brackets; a treebank has trees alone: take it out, or put it in brackets"
            )
        bracket = self.open[-1]
        if bracket.label is None:
            bracket.label = token
        elif bracket.parent or bracket.word is not None:
            beside = "brackets" if bracket.parent else f"the word {bracket.word!r}"
            raise self._fault(line, f"the word {token!r} beside {beside}; give it a bracket of its own with its tag, such as (NN {token})")
        else:
            bracket.word = token

    def _close(self, line: int) -> Tree | None:
        if not self.open:
            raise self._fault(line, "a ) that closes nothing; take it out, or add the ( that is missing")
        bracket = self.open.pop()
        if bracket.word is not None:
            if bracket.label != TRACE:
                self.parts.append(str(bracket.label))
                self.words.append(bracket.word)
        elif not bracket.parent:
            raise self._fault(
                line, f"nothing is in the bracket ({bracket.label or ''}); a bracket holds a word behind its tag, or brackets"
            )
        elif len(self.parts) == bracket.place + 1:
            self.parts.pop()  # nothing but traces was inside
        else:
            self.parts.append(f"){bracket.label}")
        if self.open:
            return None
        tree = Tree(tuple(_bare(self.parts)), tuple(self.words))
        self.parts, self.words = [], []
        return tree

    def _fault(self, line: int, what: str) -> DragomanError:
        return DragomanError(f"{self.place}, line {line}: {what}")


def _bare(parts: list[str]) -> list[str]:
    """Without the brackets around the whole that say nothing."""
    while parts and parts[0][0] == "(" and parts[0][1:] in _AROUND and _is_whole(parts[1:-1]):
        parts = parts[1:-1]
    return parts


def _is_whole(parts: list[str]) -> bool:
    """Whether one bracket, or the one word, is all there is."""
    depth = 0
    for place, part in enumerate(parts, start=1):
        depth += {"(": 1, ")": -1}.get(part[0], 0)
        if depth == 0:
            return place == len(parts)
    return False
