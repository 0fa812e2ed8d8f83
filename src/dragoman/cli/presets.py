"""``dragoman presets``: the named settings, with exact parameter counts (Table 3's last column)."""

import sys
from typing import Annotated, Any

import typer

from dragoman.cli.options import AsJson
from dragoman.cli.streams import print_json
from dragoman.config import ModelConfig
from dragoman.explain.cost import cost_facts, cost_lines
from dragoman.presets import PRESETS, Preset, count_parameters, find_preset, resolve_config


def presets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False, help="Only this preset. Default: all.")] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary",
            metavar="V",
            min=5,
            help="Vocabulary entries V that parameters are counted with. Default: a preset's own vocabulary_size, "
            "or 40,960 as in the authors' first code, which reproduces Table 3.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The presets: the paper's base and big models, the rows of its Table 3, and small ones for laptops.

    Each comes with its exact number of parameters, counted with a joint vocabulary of V entries, and the paper's figure in millions
    where it gives one; with NAME, and with --json, operations and bytes are told too. `dragoman train --preset NAME` starts from one;
    `--set GROUP.KEY=VALUE` changes it.
    """
    chosen = [find_preset(name)] if name else list(PRESETS.values())
    facts = [_facts(preset, vocabulary) for preset in chosen]
    if as_json:
        print_json(facts[0] if name else facts)
        return
    if sys.stdout.isatty():
        _print_table(facts)
    else:
        _print_columns(facts)
    if name:
        for label, line in cost_lines(_model(chosen[0], facts[0]["vocabulary"])):
            print(f"{label}: {line}")


def _model(preset: Preset, vocabulary: int) -> ModelConfig:
    return resolve_config(preset.name, flags={"model": {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary}}).model


def _facts(preset: Preset, vocabulary: int | None) -> dict[str, Any]:
    own: int = vocabulary or preset.changes.get("data", {}).get("vocabulary_size", 40_960)
    model = _model(preset, own)
    return {
        "name": preset.name,
        "summary": preset.summary,
        "parameters": count_parameters(model),
        "vocabulary": own,
        "paper_millions": preset.paper_millions,
        "note": preset.note,
        "cost": cost_facts(model),
        "changes": preset.changes,
    }


_COLUMNS = ("name", "parameters", "vocabulary", "paper_millions", "summary")
_HEADINGS = ("preset", "parameters", "V", "paper, millions", "what it is")


def _cells(fact: dict[str, Any]) -> list[str]:
    cells = (fact[column] for column in _COLUMNS)
    return [f"{cell:,}" if isinstance(cell, int) else cell or "" for cell in cells]


def _notes(facts: list[dict[str, Any]]) -> list[str]:
    return [f"{fact['name']}: {fact['note']}" for fact in facts if fact["note"]]


def _print_columns(facts: list[dict[str, Any]]) -> None:
    rows = [_HEADINGS, *map(_cells, facts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        numbers = [cell.rjust(width) for cell, width in zip(row[1:4], widths[1:4], strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *numbers, row[4]]))
    for note in _notes(facts):
        print(note)


def _print_table(facts: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*_HEADINGS, box=None, header_style="bold")
    for column in table.columns[1:4]:
        column.justify = "right"
    for fact in facts:
        table.add_row(*_cells(fact))
    console = Console(highlight=False)
    console.print(table)
    for note in _notes(facts):
        console.print(note, markup=False)
