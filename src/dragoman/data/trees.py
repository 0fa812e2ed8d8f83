"""Constituency trees as sequences for a sequence-to-sequence model (Section 6.3, after Vinyals et al. 2014): written, read back, checked.

A tree over n words is written as brackets that carry their label at both ends, with ``XX`` for each word:
``(S (NP XX XX )NP (VP XX )VP )S``. The words are not repeated, for they are those of the source, and neither are their tags.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError

WORD = "XX"
"""What stands for each word, and for its tag."""

_SPACES = re.compile(r"[ \t\n\r\f\v]+")


@dataclass(frozen=True)
class Tree:
    """A tree over ``words``. ``brackets`` are its parts from left to right: ``(LABEL`` and ``)LABEL`` around each constituent, and for each
    word its tag. One without words has no parts.
    """

    brackets: tuple[str, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        """The tree on one line as treebanks write it: ``(S (NP (DT the) (NN dog)) (VP (VBZ barks)))``."""
        words = iter(self.words)
        parts = (")" if part[0] == ")" else f" {part}" if part[0] == "(" else f" ({part} {next(words)})" for part in self.brackets)
        return "".join(parts).lstrip(" ")

    def constituents(self) -> Iterator[tuple[str, int, int]]:
        """The label of each constituent, its first word, and the one after its last, counted from 0; inner ones before outer ones."""
        open_brackets, words = [], 0
        for part in self.brackets:
            if part[0] == "(":
                open_brackets.append(words)
            elif part[0] == ")":
                yield part[1:], open_brackets.pop(), words
            else:
                words += 1

    def tags(self) -> tuple[str, ...]:
        """The tag of each word."""
        return tuple(part for part in self.brackets if part[0] not in "()")


def linearise(tree: Tree) -> str:
    """The sequence that a model learns: the parts of a tree with spaces between them, and `WORD` for each tag."""
    return " ".join(part if part[0] in "()" else WORD for part in tree.brackets)


def restore(sequence: str, words: Sequence[str]) -> Tree:
    """The tree that ``sequence`` writes over these words; the inverse of `linearise`, but for the tags, which are as the sequence has them.

    Raises DragomanError that says what is wrong with a sequence that writes no tree over so many words.
    """
    parts = tuple(sequence.split(" ")) if sequence else ()
    if fault := fault_of(parts, len(words)):
        raise DragomanError(f"{sequence!r} is no tree over {len(words)} words: {fault}")
    return Tree(parts, tuple(words))


def fault_of(parts: Sequence[str], words: int) -> str:
    """Why these parts are no tree over so many words; empty when they are one.

    In a tree every bracket is closed under its own label and has a word inside, all words are there, and one bracket is around all; a
    single word may stand without any.
    """
    labels: list[str] = []
    seen = 0
    for place, part in enumerate(parts):
        outside = not labels and place > 0
        if outside:
            return f"{part} stands behind its end"
        if part.startswith("("):
            labels.append(part[1:])
        elif part.startswith(")"):
            if not labels or labels[-1] != part[1:]:
                return f"{part} closes {f'({labels[-1]}' if labels else 'nothing'}"
            if parts[place - 1].startswith("("):
                return f"nothing is between {parts[place - 1]} and {part}"
            labels.pop()
        elif not part:
            return "a space is too many"
        elif not labels and words != 1:
            return f"no bracket is around {part}"
        else:
            seen += 1
    if labels:
        return f"({labels[-1]} is not closed"
    return "" if seen == words else f"it has {seen}"


def fewest_parts(words: int) -> int:
    """The parts of the smallest tree over so many words: its words and one bracket around them, which a single word may do without."""
    return words + 2 if words > 1 else words


def words_of(text: str) -> list[str]:
    """The words of a line to parse: what stands between spaces. A ( in it becomes -LRB- and a ) becomes -RRB-, as treebanks write them."""
    return [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in _SPACES.split(text) if word]
