"""``dragoman generate``: a decoder-only model goes on with a text, as it comes, or with many, in order."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from dragoman.cli import search_options as ask
from dragoman.cli.options import Alpha, Device, ModelPath, Products, Quiet
from dragoman.cli.overwriting import check_outputs
from dragoman.cli.stops import terminable
from dragoman.cli.streams import few_of_a_kind, hush, json_line, notify, one_line, open_output
from dragoman.cli.windows import Window, check_files, up_to_fault, windows
from dragoman.errors import UsageError

if TYPE_CHECKING:
    from dragoman.decoding.generate import Continuation, Generator
    from dragoman.decoding.generation_options import GenerationOptions

_BETWEEN = "-" * 15

Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT",
        show_default=False,
        help="The beginning of the text; - is standard input, a prompt a line. Default: standard input, unless there is --file.",
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="A file of prompts, one a line, plain or .gz, .xz, .zst; - is standard input; repeatable."
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where text goes; - is standard output. Default: standard output.")
]
Count = Annotated[int, typer.Option("--n", min=1, metavar="N", help="Continuations of each prompt; with --beam the best, best first.")]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", min=1, metavar="N", help="Most tokens of a continuation, as far as the model has positions.")
]
MinTokens = Annotated[int, typer.Option("--min-tokens", min=0, metavar="N", help="No end before so many tokens.")]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="STRING", help="End before this string, which is left out; repeatable. A line feed is $'\\n'."),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0,
        metavar="T",
        help="Probabilities are raised to 1/T before a token is drawn. Below 1 is safer; 0 is greedy, the most probable token. Default: 1.",
    ),
]
Beam = Annotated[
    int | None,
    typer.Option("--beam", min=1, metavar="K", help="Draw nothing: search for the most probable continuation with K hypotheses."),
]
Slide = Annotated[
    int | None,
    typer.Option(
        "--slide",
        min=1,
        metavar="N",
        help="Where all positions of the model are taken, forget all but the last N tokens and go on; a prompt that is too long is cut to "
        "its last N, with a warning. Default: stop there, and refuse such a prompt.",
    ),
]
NoPrompt = Annotated[bool, typer.Option("--no-prompt", help="Leave the prompt out of the output.")]
Guard = Annotated[
    int,
    typer.Option(
        "--repetition-guard",
        min=0,
        metavar="N",
        show_default=False,
        help="A continuation must end when it has gone round in a loop: its last N tokens or more only repeat a piece of at most 16. "
        "Default: 0, it need not.",
    ),
]
JsonLines = Annotated[
    bool,
    typer.Option("--json", help="One JSON object for each continuation: prompt, text, tokens, log-probabilities, and why it ended (stop)."),
]


def generate(
    context: typer.Context,
    model: ModelPath,
    prompt: Prompt = None,
    file: Files = None,
    output: Output = None,
    n: Count = 1,
    max_tokens: MaxTokens = 100,
    min_tokens: MinTokens = 0,
    stop: Stop = None,
    temperature: Temperature = None,
    top_k: ask.TopK = None,
    top_p: ask.TopP = None,
    seed: ask.Seed = None,
    beam: Beam = None,
    alpha: Alpha = None,
    no_repeat_ngram: ask.NoRepeatNgram = 0,
    repetition_guard: Guard = 0,
    slide: Slide = None,
    no_prompt: NoPrompt = False,
    ensemble: ask.Ensemble = None,
    as_json: JsonLines = False,
    device: Device = "auto",
    precision: Products = "fp32",
    quiet: Quiet = False,
) -> None:
    """Go on with a text: a decoder-only model draws what follows, token by token, or searches for it (--beam).

    One PROMPT is printed with its continuation, as it is, while it is drawn; of several (--n) a line of hyphens stands between two. Prompts
    from standard input or a file are lines, and so is each output, in order: n lines in, n lines out, where a line break of any kind is
    written as a space; with --n N each is a line `NUMBER<tab>TEXT`, where NUMBER is the prompt's line. --json keeps texts as they are.

    What is drawn is a function of the prompt, the options and --seed: the same command prints the same text.
    """
    _generate(context.params)


def _generate(asked: Mapping[str, Any]) -> None:
    """What the command does; ``asked`` are its parameters."""
    if asked["quiet"]:
        hush()
    prompt, ensemble = asked["prompt"], asked["ensemble"] or ()
    single = prompt not in (None, "-")
    if single and asked["file"]:
        raise UsageError("a PROMPT and --file: give one of them")
    files = [] if single else asked["file"] or [Path("-")]
    check_files(files)
    check_outputs({"-o": asked["output"]}, [asked["model"], *files, *ensemble])
    options = _options(asked)
    from dragoman.decoding.generate import Generator

    generator = Generator.load(asked["model"], device=asked["device"], ensemble=ensemble, precision=asked["precision"])
    with open_output(asked["output"]) as stream, few_of_a_kind(), terminable() as check:
        writer = _Writer(stream, as_json=asked["as_json"], with_prompt=not asked["no_prompt"])
        if single:
            _one(generator, prompt, options, writer, check)
        else:
            _lines(generator, files, options, writer, check)
    if full := writer.stops["context"]:
        notify(
            f"{full:,} {'text' if full == 1 else 'texts'} ended because the model's {generator.most_positions:,} positions were full; "
            "--slide N goes on with the last N tokens"
        )


def _options(asked: Mapping[str, Any]) -> "GenerationOptions":
    """Those among the parameters of the command."""
    from dragoman.decoding.generation_options import GenerationOptions

    values = {field.name: asked[field.name] for field in fields(GenerationOptions)}
    return GenerationOptions(**values | {"stop": tuple(values["stop"] or ())})


def _lines(generator: "Generator", files: list[Path], options: "GenerationOptions", writer: "_Writer", check: Callable[[], None]) -> None:
    """The continuations of the lines of files."""

    def work(window: Window) -> "list[list[Continuation]]":
        return generator.generate(window.texts, options, place=window.place, first_line=window.first_line, check=check)

    for window, answers in chain.from_iterable(up_to_fault(window, work) for window in windows(files)):
        for number, (text, some) in enumerate(zip(window.texts, answers, strict=True), start=window.number):
            writer.write_lines(number, text, some)
        writer.stream.flush()
        check()


def _one(generator: "Generator", prompt: str, options: "GenerationOptions", writer: "_Writer", check: Callable[[], None]) -> None:
    """The continuations of a prompt of the command line, the only one as it comes."""
    if options.n > 1 or options.beam or writer.as_json:
        (some,) = generator.generate([prompt], options)
        check()
        writer.write_whole(prompt, some)
        return
    parts = generator.stream(prompt, options)
    first = next(parts)  # a prompt that cannot be is refused before anything is printed
    writer.begin(prompt)
    for part in chain([first], parts):
        check()
        writer.go_on(part)
    writer.end()


class _Writer:
    """Continuations as they are printed, counted by why they ended."""

    def __init__(self, stream: TextIO, *, as_json: bool, with_prompt: bool) -> None:
        self.stream, self.as_json, self.with_prompt = stream, as_json, with_prompt
        self.stops: Counter[str] = Counter()

    def write_lines(self, number: int, prompt: str, some: "list[Continuation]") -> None:
        """The continuations of the prompt on line ``number``, a line each."""
        self._count(some)
        if self.as_json:
            self._write_json(number, prompt, some)
            return
        for each in some:
            text = one_line(self._text(prompt, each))
            self.stream.write(f"{number}\t{text}\n" if len(some) > 1 else f"{text}\n")

    def write_whole(self, prompt: str, some: "list[Continuation]") -> None:
        """The continuations of the only prompt, as they are."""
        self._count(some)
        if self.as_json:
            self._write_json(1, prompt, some)
            return
        for place, each in enumerate(some):
            self.stream.write(f"{_BETWEEN}\n" if place else "")
            self.stream.write(f"{self._text(prompt, each)}\n")

    def begin(self, prompt: str) -> None:
        """The prompt of a continuation that will come in parts."""
        if self.with_prompt:
            self._now(prompt)

    def go_on(self, part: "Continuation") -> None:
        """A part of it."""
        self.stops[part.stop] += 1
        if part.text:
            self._now(part.text)

    def end(self) -> None:
        """Nothing more comes."""
        self._now("\n")

    def _now(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

    def _text(self, prompt: str, continuation: "Continuation") -> str:
        return (prompt if self.with_prompt else "") + continuation.text

    def _count(self, some: "list[Continuation]") -> None:
        self.stops.update(each.stop for each in some)

    def _write_json(self, number: int, prompt: str, some: "list[Continuation]") -> None:
        for rank, each in enumerate(some, start=1):
            self.stream.write(json_line({"line": number, "number": rank, **self._record(prompt, each)}))

    def _record(self, prompt: str, continuation: "Continuation") -> dict[str, Any]:
        return {
            **({"prompt": prompt} if self.with_prompt else {}),
            "text": continuation.text,
            "score": continuation.score,
            "log_probability": continuation.log_probability,
            "tokens": continuation.tokens,
            "token_scores": continuation.token_scores,
            "stop": continuation.stop,
        }
