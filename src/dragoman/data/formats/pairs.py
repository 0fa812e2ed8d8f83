"""Parallel text: pairs of a source and a target line.

A corpus is named by a prefix (``data/train`` means ``data/train.en`` and ``data/train.de``), by two files ``A,B``, or by one file that
holds both sides (``.tsv``, ``.jsonl``, or a treebank's ``.mrg``, ``.ptb``, ``.trees``); each file may be compressed.
"""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.data.formats.lines import COMPRESSED, read_lines
from dragoman.data.formats.treebank import is_treebank, read_trees
from dragoman.data.trees import linearise
from dragoman.errors import DragomanError, counted

PREVIEW = 60  # characters of a line in a message
_REMEDY = "give one line of each file for each pair"


def read_pairs(spec: str, source: str, target: str) -> Iterator[tuple[str, str]]:
    """The (source, target) lines of the corpus ``spec`` with the language codes ``source`` and ``target``, in order.

    Of a treebank, whatever the codes, the words of each tree and the tree as a sequence.

    Raises DragomanError that names file and line: a missing or empty file, unequal line counts, a wrong number of columns, a missing
    or unusable field.
    """
    files = corpus_files(spec, source, target)
    if len(files) == 2:
        pairs = _read_two_files(*files)
    elif is_treebank(files[0]):
        pairs = ((" ".join(tree.words), linearise(tree)) for tree in read_trees(files[0]))
    elif _format(files[0]) == ".tsv":
        pairs = _read_tsv(files[0])
    else:
        pairs = _read_jsonl(files[0], source, target)
    empty = True
    for pair in pairs:
        empty = False
        yield pair
    if empty:
        raise DragomanError(f"{' and '.join(map(str, files))}: empty; a corpus has at least one pair of lines")


def corpus_files(spec: str, source: str, target: str) -> list[Path]:
    """The one or two files that ``spec`` names; DragomanError that lists the names tried when a file is missing."""
    if (_format(Path(spec)) and "," not in spec) or is_treebank(spec):
        candidates = [[Path(spec)]]
    elif "," in spec:
        candidates = [[Path(name)] for name in spec.split(",")]
        if len(candidates) != 2:
            raise DragomanError(f"{spec}: {len(candidates)} files with commas between them; give two, SOURCE_FILE,TARGET_FILE")
    else:
        candidates = [[Path(f"{spec}.{language}{suffix}") for suffix in ("", *COMPRESSED)] for language in (source, target)]
    found = [next((path for path in names if path.is_file()), None) for names in candidates]
    missing = [str(name) for names, path in zip(candidates, found, strict=True) if path is None for name in names]
    if missing:
        remedy = "give a prefix, a .tsv or .jsonl file, or SOURCE_FILE,TARGET_FILE"
        if Path(spec).is_file():
            plain = Path(spec).with_suffix("") if Path(spec).suffix in COMPRESSED else Path(spec)
            prefix = f"{plain.with_suffix('')} for both, " if plain.suffix in (f".{source}", f".{target}") else ""
            raise DragomanError(f"{spec}: one file, where a corpus has two; give {prefix}{remedy.removeprefix('give ')}")
        raise DragomanError(f"{spec}: no such corpus (looked for {', '.join(missing)}); {remedy}")
    return [path for path in found if path]


def _format(path: Path) -> str | None:
    """``.tsv`` or ``.jsonl`` for a file that holds both sides, compressed or not."""
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    return suffix if suffix in (".tsv", ".jsonl") else None


def _read_two_files(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    for source_line, target_line in zip_longest(read_lines(source), read_lines(target)):
        if source_line is None or target_line is None:
            raise DragomanError(_unequal(source, target))
        yield source_line, target_line


def _read_tsv(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")  # quotes are ordinary characters
        if len(columns) != 2:
            raise DragomanError(f"{path}, line {number}: {len(columns)} columns; each line is SOURCE, one tab, TARGET")
        yield columns[0], columns[1]


def _read_jsonl(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DragomanError(f"{path}, line {number}: not JSON ({error}); each line is one object with both texts") from None
        if isinstance(record, dict):
            record = record.get("translation", record)
        place = f"{path}, line {number}"
        yield _field(record, source, place), _field(record, target, place)


def _field(record: Any, language: str, place: str) -> str:
    text = record.get(language) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise DragomanError(f'{place}: no text under "{language}"; a line looks like {{"{language}": "...", ...}}')
    if "\n" in text:
        raise DragomanError(f'{place}: the text under "{language}" holds a line break; a text is one line')
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DragomanError(f'{place}: the text under "{language}" holds half a surrogate pair; mend the text') from None
    return text


def _unequal(source: Path, target: Path) -> str:
    source_lengths, target_lengths = (np.fromiter((len(line) for line in read_lines(path)), np.int32) for path in (source, target))
    counts = f"{source} has {counted(len(source_lengths), 'line')} but {target} has {len(target_lengths):,}"
    shorter, longer = sorted((source_lengths, target_lengths), key=len)
    if not len(shorter):
        return f"{counts}; {_REMEDY}"
    number = first_misaligned(shorter, longer) + 1
    longer_file = source if longer is source_lengths else target
    text = next(line for at, line in enumerate(read_lines(longer_file), start=1) if at == number)
    place = f"near line {number} of {longer_file} ({text[:PREVIEW]!r})"
    return f"{counts}; going by their lengths, the lines part {place}; look there, and {_REMEDY}"


def first_misaligned(shorter: np.ndarray, longer: np.ndarray) -> int:
    """The index in ``longer`` from which ``len(longer) - len(shorter)`` lines have most likely been put in.

    Lengths in characters. For each k, lines before k are compared in place and later ones after the shift; the k wins at which
    the log ratios of the lengths stray least, in sum, from the ratio of the two texts.
    """
    shift = len(longer) - len(shorter)
    short, long = np.log(shorter + 1.0), np.log(longer + 1.0)
    in_place, shifted = long[: len(short)] - short, long[shift:] - short
    usual = np.median(np.concatenate((in_place, shifted)))
    in_place, shifted = np.abs(in_place - usual), np.abs(shifted - usual)
    cost = np.concatenate(([0.0], np.cumsum(in_place - shifted)))  # plus a constant: the sum of shifted
    return int(cost.argmin())
