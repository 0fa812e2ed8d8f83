"""``dragoman translate``: lines in, as many lines out, in order, each as soon as it is translated."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from dragoman.cli import search_options as ask
from dragoman.cli.options import Alpha, Beam, Device, ModelPath, Quiet, TextFiles, Translations
from dragoman.cli.streams import CHUNK_BYTES, arriving_lines, hush, json_line, notify, one_line, open_descriptor, open_output
from dragoman.data.formats.lines import COMPRESSED, decode_line, read_lines
from dragoman.errors import DragomanError, UsageError

if TYPE_CHECKING:
    from dragoman.decoding.translate import Translation


Write = Callable[[TextIO, int, "Translation"], None]


def translate(
    context: typer.Context,
    model: ModelPath,
    files: TextFiles = None,
    output: Translations = None,
    beam: Beam = None,
    alpha: Alpha = None,
    n_best: ask.NBest = 1,
    scores: Annotated[
        bool,
        typer.Option(
            "--scores",
            help="Put the score (log-probability over the length penalty) and a tab before each line; --n-best and --json have it anyway.",
        ),
    ] = False,
    max_length: ask.LongestOutput = None,
    min_length: ask.ShortestOutput = None,
    no_repeat_ngram: ask.NoRepeatNgram = 0,
    repetition_guard: ask.RepetitionGuard = 24,
    prefix: ask.Beginnings = None,
    glossary: ask.GlossaryFile = None,
    require: ask.Require = None,
    forbid: ask.Forbid = None,
    ensemble: ask.Ensemble = None,
    diverse_groups: ask.DiverseGroups = 1,
    diversity: ask.Diversity = None,
    sample: ask.Sample = False,
    samples: ask.Samples = None,
    temperature: ask.Temperature = None,
    top_k: ask.TopK = None,
    top_p: ask.TopP = None,
    seed: ask.Seed = None,
    mbr: ask.Mbr = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object for each line: text, scores, tokens and, with --n-best, alternatives.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Translate text: n lines in, n lines out, in order.

    Only LF or CRLF ends a line. Answers are written as soon as the lines that have arrived are translated, so a program that keeps the
    pipe open gets an answer for each line it sends. An empty line gives an empty line. To a model with language tags every other line
    begins with one, such as >>de<<; `dragoman inspect MODEL` shows them.

    With --n-best N each translation is a line `NUMBER<tab>SCORE<tab>TEXT`, where NUMBER is the input line, from 1, over all files. A line
    break of any kind inside a translation is written as a space; --json keeps the text as it is. With -o the file appears when all is done.
    """
    if quiet:
        hush()
    if scores and (as_json or n_best > 1):
        raise UsageError(f"--scores: the output of {'--json' if as_json else '--n-best'} has the score anyway; leave --scores out")
    _check_files(files or [Path("-")])
    write = _write_json if as_json else _write_n_best if n_best > 1 else _write_scores if scores else _write_text
    _translate(files or [Path("-")], output, write, context.params)


def _translate(files: list[Path], output: Path | None, write: Write, asked: Mapping[str, Any]) -> None:
    """``asked`` are the parameters of the command by name."""
    settings = {name: asked[name] for name in ("beam", "alpha", "n_best", "max_length")} | {"options": ask.search_options(asked)}
    from dragoman.decoding.translate import Translator

    translator = Translator.load(asked["model"], device=asked["device"], ensemble=asked["ensemble"] or ())
    done, beginnings, tally = 0, ask.PrefixLines(asked["prefix"]), ask.Tally()
    with open_output(output) as stream:
        for place, first_line, chunk in _texts(files):
            texts, prefixes = beginnings.split(chunk, done + 1)
            translations = translator.translate(texts, **settings, prefixes=prefixes, place=place, first_line=first_line)
            for line, translation in enumerate(translations, start=done + 1):
                write(stream, line, translation)
                tally.add(line, translation)
            stream.flush()
            done += len(chunk)
        beginnings.finish(done)
    tally.report()


def _texts(files: list[Path]) -> Iterator[tuple[str, int, list[str]]]:
    """The lines of all files in groups that have arrived together, each with its file and the number of its first line there.

    A fault is raised after the lines before it have been given.
    """
    for path in files:
        place = "standard input" if str(path) == "-" else str(path)
        first_line = 1
        for texts in _groups(path, place):
            yield place, first_line, texts
            first_line += len(texts)


def _groups(path: Path, place: str) -> Iterator[list[str]]:
    if str(path) == "-":
        _check_standard_input()
        yield from _decoded(arriving_lines(0, place), place)
    elif path.suffix in COMPRESSED:
        yield from _grouped(read_lines(path))
    else:
        with open_descriptor(path) as descriptor:
            yield from _decoded(arriving_lines(descriptor, place), place)


def _check_files(files: list[Path]) -> None:
    for path in files:
        if str(path) != "-" and not path.exists():
            raise DragomanError(f"{path}: no such file; give text files, or - for standard input")


def _check_standard_input() -> None:
    if sys.stdin is None:
        raise DragomanError("standard input is closed; give a file, or redirect text into the command")
    if sys.stdin.isatty():
        notify("type or paste text, one sentence a line; Ctrl-D ends")


def _decoded(groups: Iterable[list[bytes]], place: str) -> Iterator[list[str]]:
    number = 0
    for group in groups:
        texts = []
        try:
            for raw in group:
                number += 1
                texts.append(decode_line(raw, place, number))
        except DragomanError:
            if texts:
                yield texts
            raise
        yield texts


def _grouped(lines: Iterator[str]) -> Iterator[list[str]]:
    texts: list[str] = []
    size = 0
    try:
        for line in lines:
            texts.append(line)
            size += len(line)
            if size >= CHUNK_BYTES:
                yield texts
                texts, size = [], 0
    except DragomanError:
        if texts:
            yield texts
        raise
    if texts:
        yield texts


def _write_text(stream: TextIO, number: int, translation: "Translation") -> None:
    stream.write(f"{one_line(translation.text)}\n")


def _write_scores(stream: TextIO, number: int, translation: "Translation") -> None:
    stream.write(f"{translation.score:.6f}\t{one_line(translation.text)}\n")


def _write_n_best(stream: TextIO, number: int, translation: "Translation") -> None:
    for each in (translation, *translation.alternatives):
        stream.write(f"{number}\t{each.score:.6f}\t{one_line(each.text)}\n")


def _write_json(stream: TextIO, number: int, translation: "Translation") -> None:
    alternatives = [_record(each) for each in translation.alternatives]
    stream.write(json_line({"line": number, **_record(translation), "alternatives": alternatives}))


def _record(translation: "Translation") -> dict[str, Any]:
    terms = [
        {"source": term.source, "target": term.target, "met": term in translation.met} for term in (*translation.met, *translation.missed)
    ]
    return {
        "text": translation.text,
        "score": translation.score,
        "log_probability": translation.log_probability,
        "tokens": translation.tokens,
        "token_scores": translation.token_scores,
        "reached_limit": translation.reached_limit,
        "stop": translation.stop,
        **({"terms": terms} if terms else {}),
        **({"utility": translation.utility} if translation.utility is not None else {}),
    }
