"""Word alignments that are given with a corpus: Pharaoh lines (``0-0 1-2``), and what they say of its tokens.

A word is what stands between white space in a line of the text as it is given, counted from 0. The tokens of two words that are linked are
linked, each with each. The links of a corpus are a folder beside it: ``links`` (target and source token of each), ``counts`` (the links of
each pair), ``aligned`` (the target tokens of each pair that have one), and ``alignments.json``. Numbers are little-endian.

Shapes:  A links   N pairs
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import Corpus
from dragoman.data.formats.lines import count_lines, read_lines
from dragoman.data.formats.pairs import read_pairs
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, counted
from dragoman.files import new_folder

FORMAT_VERSION = 1
FILES = ("links", "counts", "aligned")

WordLinks = frozenset[tuple[int, int]]
"""Linked words as (source, target)."""

_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_NONE = np.empty(0, np.int64)


def words_at(text: str, spans: Sequence[tuple[int, int]], joiner: str = "", *, start: int = 0) -> list[int]:
    """The number of the word that each span begins in, its white space aside; -1 for a span without any.

    With a ``joiner`` pieces of segmented text that belong together are one word. What is before ``start`` is no word.
    """
    word_of, number, joined = np.full(len(text) + 1, -1), -1, False
    for found in re.finditer(r"\S+", text[start:]):
        number += 0 if joined else 1
        word_of[start + found.start() : start + found.end()] = number
        joined = bool(joiner) and found.group().endswith(joiner) and text[start + found.end() :].startswith(" ")
    return [next((int(word_of[place]) for place in range(*span) if word_of[place] >= 0), -1) for span in spans]


def parse_links(line: str, pair: tuple[str, str], *, place: str) -> WordLinks:
    """The links of a Pharaoh line for a pair of texts; DragomanError that names ``place`` for what is no link, or of no word."""
    links, words = set(), [len(text.split()) for text in pair]
    for link in line.split():
        found = _LINK.fullmatch(link)
        if found is None:
            raise DragomanError(f"{place}: {link!r} is not SOURCE-TARGET; a line looks like 0-0 1-2, places of words counted from 0")
        numbers = int(found[1]), int(found[2])
        for side, number, most in zip(("source", "target"), numbers, words, strict=True):
            if number >= most:
                raise DragomanError(
                    f"{place}: {link} links {side} word {number}, and the line has {most}; count words from 0, as white space parts them"
                )
        links.add(numbers)
    return frozenset(links)


def read_aligned(spec: str, source: str, target: str, path: Path | None) -> Iterator[tuple[tuple[str, str], WordLinks]]:
    """The pairs of the corpus ``spec``, each with the links of the same line of ``path``, or with none where that is None.

    Raises DragomanError as `read_pairs` and `parse_links` do, and when there are not as many lines as pairs.
    """
    pairs = read_pairs(spec, source, target)
    if path is None:
        yield from ((pair, frozenset()) for pair in pairs)
        return
    for number, (pair, line) in enumerate(zip_longest(pairs, read_lines(path)), start=1):
        if pair is None or line is None:
            found, given = number - 1 + (pair is not None) + sum(1 for _ in pairs), count_lines(path)
            raise DragomanError(
                f"{path}: {counted(given, 'line')} for the {counted(found, 'pair')} of {spec}; "
                "give one line for each pair, empty for no link"
            )
        yield pair, parse_links(line, pair, place=f"{path}, line {number}")


@dataclass(frozen=True)
class AlignedCorpus(Corpus):
    """A corpus whose pairs have links between tokens: ``links`` (A, 2) of target and source, those of each pair after one another.

    ``link_counts`` and ``aligned_counts`` (N,) are the links of each pair, and its target tokens that have one.
    """

    links: NDArray[np.int32] = field(default_factory=lambda: _NONE.astype(np.int32).reshape(0, 2))
    link_starts: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    link_counts: NDArray[np.int32] = field(default_factory=lambda: _NONE.astype(np.int32))
    aligned_counts: NDArray[np.int32] = field(default_factory=lambda: _NONE.astype(np.int32))

    def aligned(self, indices: NDArray[Any]) -> int:
        """Target tokens of the pairs at ``indices`` that have a link."""
        return int(self.aligned_counts[indices].sum())

    def links_of(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        """The links (A, 3) of the pairs at ``indices``: the place of the pair there, the target token, the source token."""
        counts = self.link_counts[indices].astype(np.int64)
        ends = counts.cumsum()
        places = np.repeat(self.link_starts[indices] - (ends - counts), counts) + np.arange(counts.sum())
        return np.column_stack((np.repeat(np.arange(len(indices)), counts), self.links[places].astype(np.int64)))


def aligned_corpus(
    folder: Path, corpus: Corpus, pairs: Iterable[tuple[tuple[str, str], WordLinks]], source: Tokenizer, target: Tokenizer, *, tagged: bool
) -> AlignedCorpus:
    """``corpus``, encoded by these tokenizers, with links: ``folder`` has them, or gets them from ``pairs`` if it is not there.

    ``pairs`` are all pairs of the text that the corpus was built of, of which it keeps those of its line numbers. ``tagged`` is whether
    its sources begin with a language tag. Raises DragomanError when the folder is not that corpus's or damaged.
    """
    if not folder.exists():
        with new_folder(folder) as partial:
            _write(partial, corpus, pairs, source, target, head=len(source.opening) + tagged)
    try:
        facts = json.loads((folder / "alignments.json").read_bytes())
        if facts["format"] != FORMAT_VERSION or facts["corpus"] != corpus.fingerprint:
            raise ValueError("of another corpus")
        links, counts, aligned = (np.memmap(folder / name, "<i4", "r").view(np.ndarray) for name in FILES)
        if len(counts) != len(corpus) or len(aligned) != len(corpus) or 2 * counts.sum(dtype=np.int64) != len(links):
            raise ValueError("not whole")
        fingerprint = hashlib.sha256(f"{corpus.fingerprint}{facts['fingerprint']}".encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DragomanError(f"{folder}: not the alignments of this corpus ({error}); remove the folder, and it is made again") from None
    return AlignedCorpus(
        **vars(corpus) | {"fingerprint": fingerprint},
        links=links.reshape(-1, 2),
        link_starts=counts.cumsum(dtype=np.int64) - counts,
        link_counts=counts,
        aligned_counts=aligned,
    )


def _write(
    folder: Path, corpus: Corpus, pairs: Iterable[tuple[tuple[str, str], WordLinks]], source: Tokenizer, target: Tokenizer, *, head: int
) -> None:
    digest, kept, any_link = hashlib.sha256(), 0, False
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in FILES}
        for (texts, links), number in zip(pairs, count(1), strict=False):
            if kept == len(corpus) or corpus.line_numbers[kept] != number:
                continue  # dropped, and its links with it
            source_words = [-1] * head + words_at(texts[0], source.encoded_spans(texts[0])) + [-1] * source.source_end
            target_words = [*words_at(texts[1], target.encoded_spans(texts[1])), -1]
            lengths = corpus.source_lengths[kept], corpus.target_lengths[kept]
            if (len(source_words), len(target_words)) != lengths:
                raise DragomanError(f"{folder.name}: pair {number} has other tokens than in the corpus; start a new run")
            found = token_links(links, source_words, target_words)
            values = {"links": found, "counts": [len(found)], "aligned": [len({token for token, _ in found})]}
            for name, value in values.items():
                data = np.array(value, "<i4").tobytes()
                digest.update(data)
                files[name].write(data)
            kept, any_link = kept + 1, any_link or bool(found)
    if kept != len(corpus):
        raise DragomanError(f"{folder.name}: the text has fewer pairs than when the corpus was built; start a new run")
    if not any_link:
        raise DragomanError("data.alignments: no pair that is kept has a link, so there is nothing to learn; leave the setting out")
    facts = {"format": FORMAT_VERSION, "corpus": corpus.fingerprint, "fingerprint": digest.hexdigest()}
    (folder / "alignments.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def token_links(links: Iterable[tuple[int, int]], source_words: Sequence[int], target_words: Sequence[int]) -> list[tuple[int, int]]:
    """Links between words as links (target, source) between all of their tokens, sorted; the words are those of each token in turn."""
    tokens: list[defaultdict[int, list[int]]] = [defaultdict(list), defaultdict(list)]
    for side, words in zip(tokens, (source_words, target_words), strict=True):
        for token, word in enumerate(words):
            side[word].append(token)
    return sorted((to, origin) for source, target in links for origin in tokens[0][source] for to in tokens[1][target])
