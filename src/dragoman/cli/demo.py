"""``dragoman demo``: everything once, on written dates made on the spot, through the same commands that a user types."""

import random
import shlex
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import more_than_zero
from dragoman.errors import DragomanError, UsageError

if TYPE_CHECKING:
    from babel import Locale

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)
DATES = {"test": 200, "valid": 50, "train": 6000}
SETTINGS = """\
# A model small enough to learn dates on a laptop within a minute.
preset = "tiny"

[model]
d_model = 64
d_ff = 128
encoder_layers = 1
decoder_layers = 1
dropout = 0.0
norm_place = "post"  # as in the paper; one layer does not need the other order

[data]
vocabulary_size = 400

[training]
batch_tokens = 1024
schedule = "linear"
learning_rate = 5e-3
warmup_steps = 100
max_steps = 900
evaluate_every = 300
log_every = 100
"""


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The folder to make. Default: runs/demo, or runs/demo-2 … when it is taken.")
    ] = None,
    pairs: Annotated[
        str,
        typer.Option("--pairs", metavar="PAIR,…", help="Languages of source and target; any that Babel has locale data for."),
    ] = "en-de,ja-fr",
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", callback=more_than_zero, metavar="M", help="Most minutes of training for each pair. Default: no limit."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the dates, the weights and the order of the data.")] = 1,
) -> None:
    """Everything once: makes dates in two languages, trains, evaluates on dates never seen, translates, says what to do next."""
    languages = [_languages(pair) for pair in pairs.split(",")]
    folder = _new_folder(out)
    import torch

    torch.set_num_threads(1)  # a second thread costs matrices this small more than it gives, and far more where the machine is busy
    settings = folder / "demo.toml"
    settings.write_text(SETTINGS, encoding="utf-8")
    for source, target in languages:
        name = f"{source}-{target}"
        text, run = folder / "text" / name, folder / name
        print(f"\n{source.get_display_name('en')} to {target.get_display_name('en')}: dates as they are written, in {text}\n", flush=True)
        examples = _write_dates(text, source, target, random.Random(f"{seed} {name}"))
        limit = [] if minutes is None else ["--max-minutes", f"{minutes:g}"]
        data = ["--train", f"{text / 'train'}", "--valid", f"{text / 'valid'}"]
        _run("train", name, "--config", f"{settings}", *data, "--seed", f"{seed}", *limit, "--out", f"{run}")
        print(f"\n{DATES['test']} dates that are in no training line, each in {len(examples)} forms:\n")
        _run("evaluate", f"{run}", "--test", f"{text / 'test'}", "--examples", "2")
        print(f"\n$ cat {text / 'examples'}.{source}", *examples, sep="\n")
        print()
        _run("translate", f"{run}", f"{text / 'examples'}.{source}")
    _say_what_next(folder, *languages[0])


def _languages(pair: str) -> tuple["Locale", "Locale"]:
    """The locales of SOURCE-TARGET."""
    try:
        from babel import Locale, UnknownLocaleError
    except ImportError:
        raise DragomanError(
            "dragoman demo makes its dates with Babel, which is not installed; install it with: pip install babel"
        ) from None
    source, dash, target = pair.strip().partition("-")
    if not (source and dash and target) or source == target:
        raise UsageError(f"--pairs: {pair!r} is not SOURCE-TARGET; give two different languages, such as en-de")
    try:
        return Locale.parse(source), Locale.parse(target)
    except (UnknownLocaleError, ValueError) as error:
        raise UsageError(f"--pairs: {pair!r}: {error}; give languages that Babel has locale data for, such as en-de") from None


def _new_folder(wanted: Path | None) -> Path:
    """The folder, made; the first free one of runs/demo, runs/demo-2 … when none is named."""
    folder = wanted or Path("runs/demo")
    number = 2
    while wanted is None and folder.exists():
        folder, number = Path(f"runs/demo-{number}"), number + 1
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise DragomanError(f"{folder}: cannot make the folder: {error.strerror}; choose another --out") from None
    return folder


def _write_dates(folder: Path, source: "Locale", target: "Locale", chance: random.Random) -> list[str]:
    """Parallel text train, valid and test, and the source text examples, in the folder; returns the examples.

    No date is in two of them, however it is written, so a test line can be right only by what was learnt from other dates.
    """
    folder.mkdir(parents=True)
    days = [FIRST_DAY + timedelta(days=number) for number in range((LAST_DAY - FIRST_DAY).days + 1)]
    chosen = iter(chance.sample(days, sum(DATES.values()) + 1))
    for name, count in DATES.items():
        lines = [pair for _ in range(count) for pair in written_forms(next(chosen), source, target)]
        for side, locale in enumerate((source, target)):
            (folder / f"{name}.{locale}").write_text("".join(f"{pair[side]}\n" for pair in lines), encoding="utf-8")
    examples = [form for form, _ in written_forms(next(chosen), source, target)]
    (folder / f"examples.{source}").write_text("".join(f"{form}\n" for form in examples), encoding="utf-8")
    return examples


def written_forms(day: date, source: "Locale", target: "Locale") -> list[tuple[str, str]]:
    """A day in five forms of the source language, each with its translation: the full form if the weekday is told, else the long one."""
    from babel.dates import format_date, format_skeleton

    full, long = format_date(day, "full", locale=target), format_date(day, "long", locale=target)
    return [
        (format_date(day, "full", locale=source), full),
        (format_skeleton("yMMMEd", day, locale=source), full),
        (format_date(day, "long", locale=source), long),
        (format_date(day, "medium", locale=source), long),
        (format_skeleton("yMd", day, locale=source), long),
    ]


def _run(*arguments: str) -> None:
    """Show a command as it would be typed, and do what it does; leaves with its status when it fails."""
    from dragoman.cli import main

    print(f"$ {shlex.join(['dragoman', *arguments])}", flush=True)
    typed = sys.argv
    try:
        sys.argv = ["dragoman", *arguments]  # run.json keeps the command that repeats the run
        status = main(arguments)
    finally:
        sys.argv = typed
    if status:
        raise typer.Exit(status)


def _say_what_next(folder: Path, source: "Locale", target: "Locale") -> None:
    run = folder / f"{source}-{target}"
    commands: Sequence[tuple[str, str]] = (
        (f"dragoman translate {run}", "type dates yourself"),
        (f"dragoman inspect {run}", "what the model is"),
        ("dragoman presets", "models of other sizes"),
        ("dragoman train en-de --train my/train --valid my/valid --preset tiny --out runs/mine", "your own my/train.en and my/train.de"),
    )
    width = max(len(command) for command, _ in commands)
    print("\nWhat to do next:", *(f"  {command:<{width}}  # {what}" for command, what in commands), sep="\n")
