"""A test set: sources where they are known, and one or more references of each, line by line."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.data.formats.lines import read_lines
from dragoman.data.formats.pairs import corpus_files, read_pairs
from dragoman.errors import DragomanError, UsageError, counted

if TYPE_CHECKING:
    from dragoman.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class TestSet:
    """``references`` holds a list for each set, all as long as ``sources``, which are None where only references were given."""

    __test__ = False  # not a test, whatever its name says to pytest

    sources: list[str] | None
    references: list[list[str]]

    def __len__(self) -> int:
        return len(self.references[0])

    def plain(self, source: "Tokenizer", target: "Tokenizer") -> "TestSet":
        """The same in plain text: without the joiners of a model's segmented text, and without language tags."""
        sources = None
        if self.sources is not None:
            heads = [source.split_tag(text, place=f"line {number}") for number, text in enumerate(self.sources, start=1)]
            sources = [source.plain(text) for _, text in heads]
        return TestSet(sources, [[target.plain(line) for line in lines] for lines in self.references])


def read_test_set(specs: Sequence[str], references: Sequence[Path], languages: tuple[str, str] | None) -> TestSet:
    """The pairs of ``specs`` one after another, and beside their targets further references, one line for each pair; or references alone.

    Raises DragomanError that names the file: missing, empty, or with another number of lines than the first; UsageError when nothing is
    given, or when only ``languages`` can tell what a name means and there are none.
    """
    if not specs and not references:
        raise UsageError("nothing to compare with; give --test PATH, or --reference FILE")
    for spec in specs:
        _check_languages(spec, languages)
    source, target = languages or ("", "")
    pairs = list(chain.from_iterable(read_pairs(spec, source, target) for spec in specs))
    named = [("--test", [text for _, text in pairs])] if specs else []
    named += [(str(path), read_reference(path)) for path in references]
    (first, lines), *others = named
    for name, each in others:
        if len(each) != len(lines):
            raise DragomanError(f"{name}: {counted(len(each), 'line')}, but {first} has {len(lines):,}; give one line for each sentence")
    sources = [text for text, _ in pairs] if specs else None
    return TestSet(sources, [each for _, each in named])


def files_of_test_set(specs: Sequence[str], languages: tuple[str, str] | None) -> list[Path]:
    """The files that `read_test_set` reads for ``specs``, with its errors for those that are not there."""
    for spec in specs:
        _check_languages(spec, languages)
    source, target = languages or ("", "")
    return [path for spec in specs for path in corpus_files(spec, source, target)]


def read_reference(path: Path) -> list[str]:
    """The lines of a text file; DragomanError that names it when it has none."""
    lines = list(read_lines(path))
    if not lines:
        raise DragomanError(f"{path}: empty; give a text with one line for each sentence")
    return lines


def check_length(place: str, hypotheses: Sequence[str], test: TestSet) -> None:
    """Raise DragomanError that names ``place``, with both counts, unless there is one hypothesis for each sentence of the test set."""
    if len(hypotheses) != len(test):
        raise DragomanError(
            f"{place}: {counted(len(hypotheses), 'line')}, but the test set has {len(test):,}; give one line for each sentence"
        )


def _check_languages(spec: str, languages: tuple[str, str] | None) -> None:
    """A prefix and a .jsonl file are read by the codes of the languages, which only a model or the user knows."""
    if languages is None and "," not in spec and ".tsv" not in Path(spec).suffixes[-2:]:
        raise UsageError(f"--test {spec}: its languages are not known without a model; add --pair SOURCE-TARGET, such as --pair en-de")
