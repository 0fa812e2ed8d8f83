"""Settings as text: TOML files in and out, and the dotted overrides of the command line."""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman.config import Config, Settings, list_for_shell
from dragoman.errors import UsageError, unreadable


def read_toml(path: Path) -> dict[str, Any]:
    """The nested settings of a TOML file; UsageError that names the file when it cannot be read."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(unreadable(path, error, "cannot read the settings file")) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}; mend it there") from None


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Nested settings of ``GROUP.KEY=VALUE`` strings; a value is TOML, or plain text when it is not (``tokenizer=bpe``)."""
    nested: dict[str, Any] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        group, dot, key = path.strip().partition(".")
        if not (equals and dot and group and key):
            raise UsageError(f"--set {override}: expected GROUP.KEY=VALUE, such as training.warmup_steps=400")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            value = text.strip()
            if value.startswith("[") and value.endswith("]"):
                _check_no_list(override, group, key, value)
        nested.setdefault(group, {})[key] = value
    return nested


def _check_no_list(override: str, group: str, key: str, value: str) -> None:
    """UsageError for a list that TOML does not take, as without quotes, which a shell takes away."""
    texts = [text for part in value[1:-1].split(",") if (text := part.strip(" '\""))]
    if right := list_for_shell(group, key, texts):
        raise UsageError(f"--set {override}: not a list that can be read; write --set {right}") from None


def to_toml(config: Config) -> str:
    """The settings as TOML, each field under the sentence that explains it; fields without a value are left out."""
    lines = ["# The resolved settings of this run. `dragoman train --config THIS_FILE` repeats it.", f"preset = {_toml(config.preset)}"]
    for group in ("model", "data", "training", "decoding"):
        settings: Settings = getattr(config, group)
        lines += ["", f"[{group}]"]
        for name, field in type(settings).model_fields.items():
            value = getattr(settings, name)
            if value is not None:
                lines += [f"# {field.description}", f"{name} = {_toml(value)}"]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    # JSON's strings, numbers and booleans are TOML's too, but for the delete character.
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False).replace("\x7f", "\\u007f")
