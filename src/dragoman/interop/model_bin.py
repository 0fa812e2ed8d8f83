"""CTranslate2's file of weights, ``model.bin``: read, whatever version wrote it, and written.

The file, all of it little-endian: the version of this layout; from version 2 on the name and the revision of the model's kind; the
variables, each with name, shape, type and values; from version 3 on aliases, other names of variables. A matrix of whole numbers has
beside it a variable with its scale, by which its values are to be divided.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dragoman.errors import DragomanError, unreadable

NEWEST_VERSION = 6
"""Of the layout: what CTranslate2 4 writes."""

_TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)  # in the order of their numbers in the file
_OLD_TYPES = {4: torch.float32, 2: torch.int16, 1: torch.int8}  # before version 4 only the size of a number was written
_INT16_SCALE = 1000.0  # of int16 weights that have none: what CTranslate2 itself takes


@dataclass(frozen=True)
class ModelBin:
    """What the file holds: the kind of model and its revision, the variables as they are stored, and other names of some of them."""

    kind: str
    revision: int
    variables: Mapping[str, Tensor]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def numbers(self) -> dict[str, Tensor]:
        """The variables in float32 under all their names, quantised ones divided by their scales, which are left out.

        What is no weight, such as the number of heads, is a tensor without dimensions.
        """
        found = {name: self._number(name) for name in self.variables if not self._is_scale(name)}
        return found | {alias: found[name] for alias, name in self.aliases.items() if name in found}

    @property
    def types(self) -> list[str]:
        """The types in which weights are stored, such as float32 and int8."""
        names = {
            str(value.dtype).removeprefix("torch.") for name, value in self.variables.items() if value.dim() and name.endswith("weight")
        }
        return sorted(names)

    def _is_scale(self, name: str) -> bool:
        return name.endswith("_scale") and name.removesuffix("_scale") in self.variables

    def _number(self, name: str) -> Tensor:
        value = self.variables[name]
        if value.is_floating_point() or not value.dim():
            return value.float()
        scale = self.variables.get(f"{name}_scale", torch.tensor(_INT16_SCALE))
        return value.float() / scale.float().reshape(-1, *[1] * (value.dim() - 1))


def read_model_bin(path: Path) -> ModelBin:
    """The contents of the file; DragomanError that names it, and the place where it ends too early or what is newer than is known here."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DragomanError(unreadable(path, error)) from None
    reader = _Reader(path, memoryview(content))
    version = reader.number("I", "the version")
    if version > NEWEST_VERSION:
        raise DragomanError(
            f"{path}: written by a newer CTranslate2 (version {version} of the file) or no such file; this Dragoman reads versions up to "
            f"{NEWEST_VERSION}: convert the model with an older CTranslate2, or update Dragoman"
        )
    kind, revision = (reader.text("the kind of model"), reader.number("I", "the revision")) if version >= 2 else ("", 1)
    count = reader.number("I", "the number of variables")
    variables = dict(reader.variable(version) for _ in range(count))
    aliases = dict(reader.alias() for _ in range(reader.number("I", "the number of aliases"))) if version >= 3 else {}
    reader.require_end()
    for name, scale in ((name, variables.get(f"{name}_scale")) for name in variables):
        if scale is not None and scale.numel() != 1 and scale.numel() != len(variables[name]):
            raise DragomanError(f"{path}: {name} has {len(variables[name])} rows and {scale.numel()} scales; the file is damaged")
    return ModelBin(kind, revision, variables, aliases)


def write_model_bin(path: Path, model: ModelBin) -> None:
    """Writes the file in the newest version; raises OSError when the disk refuses."""
    with path.open("wb") as file:
        for part in _parts(model):
            file.write(part)


def quantize(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with every matrix in int8 and, behind it, its scale a row, as CTranslate2's own converter makes them.

    A row is multiplied by 127 over its largest magnitude and rounded to the nearest whole number, halves to the even one. Positions and
    vectors stay float32.
    """
    stored: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() != 2 or not name.endswith("/weight"):
            stored[name] = weight
            continue
        largest = weight.abs().amax(1)  # (rows,)
        scale = 127.0 / torch.where(largest == 0, 127.0, largest).clamp(min=127.0 / torch.finfo(torch.float32).max)
        stored[name] = (weight * scale[:, None]).round().to(torch.int8)
        stored[f"{name}_scale"] = scale
    return stored


class _Reader:
    """Goes through the bytes of the file and says where they end too early."""

    def __init__(self, path: Path, content: memoryview) -> None:
        self.path, self.content, self.place = path, content, 0

    def take(self, size: int, what: str) -> memoryview:
        part = self.content[self.place : self.place + size]
        if len(part) < size:
            raise DragomanError(
                f"{self.path}: the file ends at byte {len(self.content)} inside {what}, which needs {size - len(part)} bytes more; "
                "it is cut off or no model.bin, so get it again"
            )
        self.place += size
        return part

    def number(self, kind: str, what: str) -> int:
        return int(struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}"), what))[0])

    def text(self, what: str) -> str:
        content = bytes(self.take(self.number("H", what), what))
        try:
            return content.rstrip(b"\0").decode()
        except UnicodeDecodeError:
            raise DragomanError(f"{self.path}: {what} at byte {self.place} is no text; the file is damaged, so get it again") from None

    def variable(self, version: int) -> tuple[str, Tensor]:
        name = self.text("the name of a variable")
        shape = [self.number("I", f"the shape of {name}") for _ in range(self.number("B", f"the shape of {name}"))]
        number = self.number("B", f"the type of {name}")
        dtype = _TYPES[number] if version >= 4 and number < len(_TYPES) else _OLD_TYPES.get(number) if version < 4 else None
        if dtype is None:
            raise DragomanError(f"{self.path}: {name} has a type of the unknown number {number}; the file is damaged or newer than it says")
        size = self.number("I", f"the size of {name}") * (1 if version >= 4 else dtype.itemsize)
        if size != math.prod(shape) * dtype.itemsize:
            raise DragomanError(
                f"{self.path}: {name} has {size} bytes, which its shape {tuple(shape)} of {dtype} does not; the file is damaged"
            )
        if not size:
            return name, torch.empty(shape, dtype=dtype)
        values = np.frombuffer(self.take(size, name), np.uint8).copy()
        return name, torch.from_numpy(values).view(dtype).reshape(shape)

    def alias(self) -> tuple[str, str]:
        return self.text("an alias"), self.text("the variable of an alias")

    def require_end(self) -> None:
        if self.place < len(self.content):
            left = len(self.content) - self.place
            raise DragomanError(f"{self.path}: {left} bytes follow the end of the model; the file is damaged or newer than it says")


def _parts(model: ModelBin) -> Iterator[bytes]:
    yield struct.pack("<I", NEWEST_VERSION) + _text(model.kind) + struct.pack("<II", model.revision, len(model.variables))
    for name, value in sorted(model.variables.items()):
        shape = struct.pack(f"<B{value.dim()}I", value.dim(), *value.shape)
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        yield _text(name) + shape + struct.pack("<BI", _TYPES.index(value.dtype), len(content))
        yield content
    yield struct.pack("<I", len(model.aliases))
    for alias, name in sorted(model.aliases.items()):
        yield _text(alias) + _text(name)


def _text(text: str) -> bytes:
    content = text.encode() + b"\0"
    return struct.pack("<H", len(content)) + content
