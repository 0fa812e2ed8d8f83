"""The command ``dragoman``: one verb, one module, imported only when that verb is used.

Results go to standard output, everything else to standard error, all in UTF-8 whatever the locale. Exit status: 0 the work is done;
2 a wrong command line or setting; 1 any other failure, with one line that begins with ``dragoman:``; 130 interrupted; 141 the reader
of a pipe went away, as for other programs of the kind, and nothing is said.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Annotated

import typer

from dragoman.cli import streams
from dragoman.cli.help import Verb
from dragoman.errors import DragomanError, UsageError

VERBS = {
    "train": "Train a model on parallel text.",
    "translate": "Translate text: n lines in, n lines out.",
    "evaluate": "Score the translations of a test set: BLEU, chrF, TER, and where they fail.",
    "compare": "Models or translations on one test set: significance, differences, speed.",
    "score": "Log-probability of given translations or texts, and perplexity.",
    "generate": "Go on with a text: sample, greedy or beam, from a decoder-only model.",
    "fill": "Fill in what is masked, with an encoder-only model.",
    "embed": "Vectors of texts: n lines in, n vectors out.",
    "report": "The report of a run: curves, evaluations, samples, settings on one page.",
    "average": "Average the last checkpoints of a run into one model.",
    "import": "A model of another program as one of Dragoman's, verified.",
    "export": "A model in another program's format, verified.",
    "explain": "Look inside a model at work on one sentence: numbers, pictures, a walk through the paper.",
    "inspect": "Facts of a model or a run, and what looks wrong.",
    "serve": "Serve models over HTTP, for LibreTranslate's clients and others.",
    "keys": "Keys of a server: add, list, remove.",
    "presets": "The paper's models with their parameter counts.",
    "demo": "Everything once, on data made on the spot.",
}
SHARED = ("train", "translate")
"""The verbs whose work several processes of torchrun share."""
MODULE_OF = {"import": "importing", "export": "exporting"}
"""Modules, and functions in them, that are not named as their verbs; `import` is a word of Python's own."""


_SMALLER = {"train": "use smaller batches (training.batch_tokens)", "demo": "use smaller batches (training.batch_tokens)"} | dict.fromkeys(
    ("translate", "evaluate", "compare", "generate"), "use a smaller --beam, shorter lines"
)
"""What takes less memory, for the verbs that can take much."""


_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_SHAPES = "64"
"""How many products by oneDNN PyTorch remembers on a CPU, with the code that it wrote for each; by itself 1,024. A batch has dozens of
shapes, often new ones. It looks at these names when it is imported."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, ``sys.argv`` unless given, and return the exit status."""
    if arguments is None:
        streams.restart_in_utf8()
        for name in _CACHES:
            os.environ.setdefault(name, _SHAPES)
        arguments = sys.argv[1:]
    if sys.stdout is None:
        return streams.complain("standard output is closed; redirect it to a file or to /dev/null", 1)
    try:
        os.getcwd()
    except FileNotFoundError:  # in which a library that PyTorch needs ends the program
        return streams.complain("the working directory is not there any more; change to one that is, with cd", 1)
    with streams.set_up():
        return _guarded(list(arguments))


def _guarded(arguments: list[str]) -> int:
    """Run the verb; a failure that a user can mend is one line and a status, a fault of the program keeps its traceback."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        streams.drop_output()
        return 141
    except KeyboardInterrupt:
        return streams.complain("interrupted", 130)
    except DragomanError as error:
        return streams.complain(error.on_command_line, error.exit_status)
    except OSError as error:
        streams.drop_output()
        remedy = "give another file" if error.filename else "make room there, or give another file"
        return streams.complain(f"{error.filename or 'input or output'}: {error.strerror or error}; {remedy}", 1)
    except Exception as error:
        sentence, status = _known_mishap(error, _wanted(arguments))
        if not sentence:
            raise
        return streams.complain(sentence, status)


def _run(arguments: list[str]) -> int:
    """Parse and invoke, without typer's own handling of exceptions, which prints several lines and takes a closed pipe for a failure."""
    wanted = _wanted(arguments)
    if wanted in VERBS and wanted not in SHARED and streams.in_company() and not {"-h", "--help"} & {*arguments}:
        raise UsageError(f"{wanted} works in one process, and each of several would do all of it and write it; start it without torchrun")
    command = typer.main.get_command(_application(wanted))
    try:
        if not arguments:
            with redirect_stdout(sys.stderr), command.make_context("dragoman", ["--help"]):
                pass
        with command.make_context("dragoman", [*arguments]) as context:
            command.invoke(context)
    except typer.Exit as leave:
        return leave.exit_code if arguments else 2
    return 0


def _wanted(arguments: list[str]) -> str | None:
    """The word where a verb stands, whether there is such a verb or not."""
    return next((argument for argument in arguments if not argument.startswith("-")), None)


def _application(wanted: str | None) -> typer.Typer:
    """The group of all verbs, of which only the wanted one is more than a name and a sentence."""
    app = typer.Typer(
        help=_root.__doc__,
        epilog="`dragoman VERB --help` explains a verb.",
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback()(_root)
    for verb, sentence in VERBS.items():
        if verb == wanted:
            name = MODULE_OF.get(verb, verb)
            app.command(verb, cls=Verb)(getattr(import_module(f"dragoman.cli.{name}"), name))
        else:
            app.command(verb, help=sentence)(_nothing)
    return app


def _nothing() -> None:
    """Stands for a verb that was not asked for."""


def _print_version(asked: bool) -> None:
    if asked:
        import dragoman

        print(f"dragoman {dragoman.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """The Transformer of "Attention Is All You Need": train it on your own text, translate with it, look inside it."""


def _known_mishap(error: Exception, wanted: str | None) -> tuple[str, int]:
    """Sentence and exit status of an exception that is a user's condition and not a fault of the program; empty for any other."""
    if isinstance(error, typer.Abort):
        return "interrupted", 130
    refused = isinstance(error, RuntimeError) and "allocate memory" in str(error)  # torch has no type for it on the CPU
    if refused or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        smaller = _SMALLER.get(wanted or "", "give less at once")
        return f"out of memory; {smaller}, a smaller model, or another device", 1
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's and click's usage errors, wherever they live
        context = getattr(error, "ctx", None)
        verb = context.command_path if context else f"dragoman {wanted}" if wanted in VERBS else "dragoman"  # a bare option has no context
        message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")  # pydantic's word for ours
        return f"{message} (see `{verb} --help`)", int(error.exit_code)
    return "", 1
