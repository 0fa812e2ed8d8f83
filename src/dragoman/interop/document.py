"""A foreign config.json, read field by field: what is wrong or not supported is collected, so that all of it is said at once."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dragoman.errors import DragomanError, unreadable

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh",
    "swish": "swish", "silu": "swish",
}  # fmt: skip
"""Hugging Face's names of activations, and ours."""

FOREIGN_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "swish": "silu"}
"""Our names of activations, and Hugging Face's."""

_Kind = TypeVar("_Kind", int, float, str)


class Document:
    """The fields of a JSON object, asked for one by one; ``problems`` is what cannot be used."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.problems: list[str] = []

    @classmethod
    def read(cls, path: Path) -> "Document":
        """That of a file; DragomanError when there is no JSON object in it."""
        try:
            values = json.loads(path.read_bytes())
        except OSError as error:
            raise DragomanError(unreadable(path, error)) from None
        except (ValueError, RecursionError) as error:
            raise DragomanError(f"{path}: not JSON ({error}); use an undamaged copy") from None
        if not isinstance(values, dict):
            raise DragomanError(f"{path}: not a JSON object; use an undamaged copy")
        return cls(values)

    def get(self, key: str) -> Any:
        """The value as it is, or None."""
        return self.values.get(key)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 0, as used when not given; without a default it is required."""
        return self._of(key, int, default, "a whole number from 0", 0)

    def token(self, key: str, default: int) -> int:
        """The id of a token: the first where several are given."""
        value = self.get(key)
        return self._checked(key, value[0] if isinstance(value, list) and value else value, int, default, "the id of a token", 0)

    def number(self, key: str, default: float) -> float:
        """A number."""
        value = self.get(key)
        if value is None:
            return default
        try:
            if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
                return float(value)
        except OverflowError:
            pass
        self.problems.append(f"{key}={value!r:.40} is not a number that can be used")
        return default

    def flag(self, key: str, default: bool) -> bool:
        """Whether something is so."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            self.problems.append(f"{key}={value!r} is neither true nor false")
        return value if isinstance(value, bool) else default

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self._of(key, str, default, "text", "")

    def activation(self, key: str, default: str) -> str:
        """Our name of an activation."""
        name = self.text(key, default)
        if name not in ACTIVATIONS:
            self.problems.append(f"{key}={name!r} is not supported; supported are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS.get(name, "relu")

    def require(self, key: str, *allowed: object, default: object = None) -> None:
        """Notes a problem unless the value, or its default, is one of those allowed."""
        value = self.values.get(key, default)
        if value not in allowed:
            self.problems.append(f"{key}={value!r} is not supported; supported is {' or '.join(map(repr, allowed))}")

    def _of(self, key: str, kind: type[_Kind], default: _Kind | None, what: str, instead: _Kind) -> _Kind:
        return self._checked(key, self.get(key), kind, default, what, instead)

    def _checked(self, key: str, value: Any, kind: type[_Kind], default: _Kind | None, what: str, instead: _Kind) -> _Kind:
        if value is None and default is not None:
            return default
        if isinstance(value, kind) and not isinstance(value, bool) and not (isinstance(value, int) and value < 0):
            return value
        self.problems.append(f"{key} is missing" if value is None else f"{key}={value!r} is not {what}")
        return instead
