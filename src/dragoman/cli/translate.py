"""``dragoman translate``: lines in, as many lines out, in order, each as soon as it is translated."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from dragoman.cli import search_options as ask
from dragoman.cli.options import (
    AlignFile,
    AlignLayer,
    Alpha,
    AttentionPath,
    Beam,
    Device,
    Engine,
    JsonLines,
    ModelPath,
    Quiet,
    Resume,
    Scores,
    TextFiles,
    TranslationProducts,
    Translations,
)
from dragoman.cli.prefixes import prefix_file, separated
from dragoman.cli.rounds import Done, Work
from dragoman.cli.streams import hush, json_line, launched, notify, one_line
from dragoman.cli.tally import what_to_say
from dragoman.cli.whole_files import Job, identity_of, translate_files
from dragoman.cli.windows import Window
from dragoman.errors import UsageError

if TYPE_CHECKING:
    from dragoman.cli.attention_file import AttentionFile
    from dragoman.decoding.alignment import Alignment
    from dragoman.decoding.options import SearchOptions
    from dragoman.decoding.translate import Translation, Translator

Write = Callable[[TextIO, int, "Translation", "Alignment | None"], None]
_LOOKED_AT_ONCE = 64


def translate(
    context: typer.Context,
    model: ModelPath,
    files: TextFiles = None,
    output: Translations = None,
    beam: Beam = None,
    alpha: Alpha = None,
    n_best: ask.NBest = 1,
    scores: Scores = False,
    max_length: ask.LongestOutput = None,
    min_length: ask.ShortestOutput = None,
    no_repeat_ngram: ask.NoRepeatNgram = 0,
    repetition_guard: ask.RepetitionGuard = 24,
    prefix: ask.Beginnings = None,
    glossary: ask.GlossaryFile = None,
    require: ask.Require = None,
    forbid: ask.Forbid = None,
    tree: ask.OnlyTrees = False,
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
    as_json: JsonLines = False,
    resume: Resume = False,
    align: AlignFile = None,
    align_layer: AlignLayer = None,
    attention: AttentionPath = None,
    device: Device = "auto",
    precision: TranslationProducts = "fp32",
    engine: Engine = "torch",
    quiet: Quiet = False,
) -> None:
    """Translate text: n lines in, n lines out, in order.

    Only LF or CRLF ends a line. Answers are written as soon as the lines that have arrived are translated, so a program that keeps the
    pipe open gets an answer for each line it sends. An empty line gives an empty line. To a model with language tags every other line
    begins with one, such as >>de<<; `dragoman inspect MODEL` shows them.

    With --n-best N each translation is a line `NUMBER<tab>SCORE<tab>TEXT`, where NUMBER is the input line, from 1, over all files. A line
    break of any kind inside a translation is written as a space; --json keeps the text as it is.

    With -o FILE the translations gather in FILE.partial, which becomes FILE when all is done; after an interruption --resume goes on from
    there. `torchrun --nproc-per-node N -m dragoman translate ...` shares the text out among N processes, with the same output.
    """
    if quiet:
        hush()
    _check(context.params)
    alignment = _alignment_file(align, align_layer, as_json, tree=tree)
    write = _write_json if as_json else _write_n_best if n_best > 1 else _write_scores if scores else _write_text
    used = [model, *(ensemble or ()), *filter(None, [glossary])]
    job = Job(files or [Path("-")], output, alignment, attention, resume, device, prefix_file(prefix), used)
    layer = align_layer if align is None else align_layer or 0
    translate_files(job, partial(identity_of, model, context.params), partial(_load, context.params, write, layer))


def _alignment_file(path: Path | None, layer: int | None, as_json: bool, *, tree: bool) -> Path | None:
    if path is not None and tree:
        raise UsageError("--align: the words of a --tree are those of its line, in order; leave one of the two out")
    if path is None and layer is not None:
        raise UsageError("--align-layer chooses what --align writes; give --align FILE as well, or with --json --align -")
    if str(path) == "-" and not as_json:
        raise UsageError("--align -: standard output is for the translations; give a file, or --json, whose objects have the alignments")
    return None if str(path) == "-" else path


def _check(asked: Mapping[str, Any]) -> None:
    """UsageError for parameters of the command that do not go together."""
    if asked["scores"] and (asked["as_json"] or asked["n_best"] > 1):
        name = "--json" if asked["as_json"] else "--n-best"
        raise UsageError(f"--scores: the output of {name} has the score anyway; leave --scores out")
    if str(asked["attention"]) == "-":
        raise UsageError("--attention -: standard output is for the translations; give a file, such as attention.npz")
    engine = asked["engine"]
    if engine not in ("torch", "ctranslate2"):
        raise UsageError(f"--engine {engine}: unknown; give torch or ctranslate2")
    if unable := [f"--{name}" for name in ("ensemble", "prefix") if asked[name] and engine != "torch"]:
        raise UsageError(f"--engine {engine} cannot do {', '.join(unable)} as it is done here; leave that out, or --engine")
    if asked["precision"] == "auto":
        if engine != "torch":
            raise UsageError(f"--precision auto does not choose for --engine {engine}; give fp32, bf16 or int8")
        if launched():
            raise UsageError("--precision auto: each of several processes would choose for itself; give fp32, bf16 or int8")


def _load(
    asked: Mapping[str, Any], write: Write, layer: int | None, device: str, attention: "AttentionFile | None", chosen: str,
    check: Callable[[], None],
) -> Work:  # fmt: skip
    """What is done with a window of lines; ``asked`` are the parameters of the command.

    ``layer`` is that of the alignments, 0 for the usual one, None for no alignments. ``chosen`` is the precision that the translation was
    begun with, where that was chosen. ``check`` is called before each step, and may end the work by raising.
    """
    settings = {name: asked[name] for name in ("beam", "alpha", "n_best", "max_length")} | {"options": ask.search_options(asked)}
    from dragoman.decoding.translate import Translator
    from dragoman.devices import keep_freed_memory

    keep_freed_memory()
    if asked["engine"] == "torch":
        if chosen:
            notify(f"precision: {chosen} (chosen when the translation was begun)")
        precision: Any = chosen or asked["precision"]
        translator = Translator.load(asked["model"], device=device, ensemble=asked["ensemble"] or (), precision=precision)
    else:
        translator = _with_ctranslate2(asked, settings["options"], device, scored=write is not _write_text)
    if layer is not None:
        from dragoman.decoding.alignment import check_layer

        check_layer(translator.bundle.encoder_decoder, layer)

    def work(window: Window) -> Done:
        window = separated(window, asked["prefix"])
        translations = translator.translate(
            window.texts, **settings, prefixes=window.prefixes, place=window.place, first_line=window.first_line, check=check
        )
        alignments = _alignments(translator, window, translations, layer)
        stream = StringIO()
        for number, translation, alignment in zip(count(window.number), translations, alignments, strict=False):
            write(stream, number, translation, alignment)
        if attention is not None:
            _write_attention(attention, translator, window, translations)
        return Done(
            stream.getvalue(),
            "".join(f"{each.pharaoh()}\n" for each in alignments if each is not None),
            tokens=sum(len(translation.tokens) for translation in translations),
            split=sum(len(translation.parts) > 1 for translation in translations),
            chosen=chosen or (translator.choice.precision if translator.choice else ""),
            **what_to_say(window.number, translations),
        )

    return work


def _with_ctranslate2(asked: Mapping[str, Any], options: "SearchOptions", device: str, *, scored: bool) -> "Translator":
    """A translator whose searches CTranslate2 does, and on standard error where its folder is."""
    from dragoman.bundle import load_bundle, resolve_model
    from dragoman.decoding.translate import Translator
    from dragoman.devices import pick_device
    from dragoman.interop.ctranslate2_engine import CTranslate2Engine, prepare, refuse_options, require_ctranslate2

    require_ctranslate2()
    refuse_options(options)
    folder = resolve_model(asked["model"])
    bundle = load_bundle(folder, device=str(pick_device(device)))
    prepared = prepare(folder, bundle)
    engine = CTranslate2Engine(bundle, prepared, precision=asked["precision"], scored=scored)
    notify(prepared.sentence())
    return Translator(bundle, engine=engine)


def _alignments(
    translator: "Translator", window: Window, translations: Sequence["Translation"], layer: int | None
) -> Sequence["Alignment | None"]:
    if layer is None:
        return [None] * len(translations)
    from dragoman.decoding.alignment import align

    return align(translator.bundle, window.texts, translations, layer=layer or None)


def _write_attention(file: "AttentionFile", translator: "Translator", window: Window, translations: Sequence["Translation"]) -> None:
    """A few lines at a time, for all heads of all layers are much."""
    from dragoman.decoding.alignment import attention, source_tokens

    for start in range(0, len(translations), _LOOKED_AT_ONCE):
        some = translations[start : start + _LOOKED_AT_ONCE]
        for place, (translation, weights) in enumerate(zip(some, attention(translator.bundle, some), strict=True), start=start):
            file.add(window.number + place, weights, source_tokens(translator.bundle, translation), translation.tokens)


def _write_text(stream: TextIO, number: int, translation: "Translation", alignment: "Alignment | None" = None) -> None:
    stream.write(f"{one_line(translation.text)}\n")


def _write_scores(stream: TextIO, number: int, translation: "Translation", alignment: "Alignment | None" = None) -> None:
    stream.write(f"{translation.score:.6f}\t{one_line(translation.text)}\n")


def _write_n_best(stream: TextIO, number: int, translation: "Translation", alignment: "Alignment | None" = None) -> None:
    for each in (translation, *translation.alternatives):
        stream.write(f"{number}\t{each.score:.6f}\t{one_line(each.text)}\n")


def _write_json(stream: TextIO, number: int, translation: "Translation", alignment: "Alignment | None" = None) -> None:
    alternatives = [_record(each) for each in translation.alternatives]
    links = {} if alignment is None else alignment.record()
    stream.write(json_line({"line": number, **_record(translation), **links, "alternatives": alternatives}))


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
