"""A trace of a pass through a model: what every line with a tag of the paper computed, in every layer and for every head.

A tag ends a line of the package: ``§``, the section or the equation in brackets, the name of what the line makes, and maybe a formula:
``§(1) scores = Q Kᵀ / √d_k``. Several names are of the last tensors that the line makes, in the order of its calls. The model knows nothing
of it: PyTorch's calls are watched while a pass runs, and each result belongs to the innermost line on the stack that has a tag.
"""

import copy
import linecache
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dragoman.model.attention import MultiHeadAttention, ScaledDotProductAttention
from dragoman.model.transformer import LanguageModel

Given = ParamSpec("Given")
Returned = TypeVar("Returned")
Module = TypeVar("Module", bound=nn.Module)

PACKAGE = Path(__file__).parents[1]
_TAG = re.compile(r"#.*§(?P<place>\(\d\)|\d(?:\.\d)+) (?P<names>[a-z_]+(?:, [a-z_]+)*)(?: = (?P<formula>.+))?$")
_SHORTER = {"self_attn": "self", "cross_attn": "cross"}


@dataclass(frozen=True)
class Line:
    """A line of the package with a tag: file below the package, number, text as it is installed; and what the tag says."""

    file: str
    number: int
    text: str
    place: str  # a section such as 3.2.2, or an equation such as (1)
    names: tuple[str, ...]
    formula: str

    @property
    def path(self) -> str:
        """The installed file."""
        return str(PACKAGE / self.file)

    def around(self, count: int = 2) -> list[tuple[int, str]]:
        """The lines of the file from ``count`` before to ``count`` after this one, each with its number."""
        numbers = range(max(1, self.number - count), self.number + count + 1)
        found = [(number, linecache.getline(self.path, number)) for number in numbers]
        return [(number, text.rstrip("\n")) for number, text in found if text]


@cache
def line_at(path: str, number: int) -> Line | None:
    """The line of an installed file, if it has a tag."""
    text = linecache.getline(path, number).rstrip("\n")
    found = _TAG.search(text) if "§" in text else None
    if found is None:
        return None
    names = tuple(found["names"].split(", "))
    return Line(Path(path).relative_to(PACKAGE).as_posix(), number, text, found["place"], names, found["formula"] or "")


def tagged_lines(pattern: str = "*/*.py") -> list[Line]:
    """Every line with a tag in the files of the package that fit a pattern, by file and number."""
    files = [path for path in sorted(PACKAGE.glob(pattern)) if path.parent != Path(__file__).parent]
    counts = [(str(path), len(linecache.getlines(str(path)))) for path in files]
    found = (line_at(path, number) for path, count in counts for number in range(1, count + 1))
    return [line for line in found if line is not None]


@dataclass
class Recorded:
    """What has one name in a trace: the line that made it, none where a hook saw it, and its values in order, mostly one."""

    line: Line | None
    values: list[Any] = field(default_factory=list)


@dataclass
class Trace(Mapping[str, Recorded]):
    """What was computed, by names such as ``encoder.0.self.scores``: the module's place in the model, then the name in the tag.

    What no module made begins with its file: ``schedule.rate``. Layers and heads are counted from 0, as everywhere in Python.
    While it is ``paused``, lines add nothing.
    """

    recorded: dict[str, Recorded] = field(default_factory=dict)
    paused: bool = False

    def __getitem__(self, name: str) -> Recorded:
        return self.recorded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recorded)

    def __len__(self) -> int:
        return len(self.recorded)

    def add(self, name: str, value: Any, line: Line | None = None) -> None:
        """One value more under a name."""
        self.recorded.setdefault(name, Recorded(line)).values.append(value)

    def array(self, name: str) -> NDArray[Any]:
        """The last value of a name as numbers, without the axis of a batch of one; KeyError for a name that there is not."""
        value = self.recorded[name].values[-1]
        if not isinstance(value, Tensor):
            return np.asarray(value)
        value = value[0] if value.dim() > 2 and value.size(0) == 1 else value
        return value.detach().cpu().numpy()

    def line(self, name: str) -> Line:
        """The line that made what has this name; KeyError where none did."""
        line = self.recorded[name].line
        if line is None:
            raise KeyError(name)
        return line


@contextmanager
def recording(trace: Trace, model: nn.Module | None = None, *, files: Sequence[str] = ()) -> Iterator[None]:
    """While the block runs, what tagged lines make goes into the trace, with names by the modules of ``model``.

    ``files`` are those below the package whose lines count; all where none are given. What no line with a tag makes comes from hooks:
    inputs of stacks and of equation (1), outputs of norms and stacks. The numbers that are computed stay as they are, to the last bit.
    """
    names: dict[int, list[str]] = {}
    for path, module in modules_of(model) if model is not None else ():
        if path != "output":  # has the matrix of an embedding, and is known by what it does
            names.setdefault(id(module), []).append(path)
    watcher = _Watcher(trace, names, frozenset(str(PACKAGE / file) for file in files))
    with ExitStack() as stack:
        for handle in _hooks(trace, model) if model is not None else ():
            stack.callback(handle.remove)
        with watcher:
            yield
        watcher.finish()


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights by the names that a trace gives to what they make: ``encoder.0.self.w_q.weight``."""
    found: dict[str, Tensor] = {}
    for path, module in modules_of(model):
        for name, parameter in module.named_parameters(recurse=False):
            found[".".join(filter(None, (short_place(path), name)))] = parameter
    return found


def modules_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module with its place, a shared one with each of its places. What a decoder-only model is made of stands below ``decoder``."""
    for path, module in model.named_modules(remove_duplicate=False):
        inside = isinstance(model, LanguageModel) and path and path != "output"
        yield f"decoder.{path}" if inside else path, module


def watched_call(trace: Trace, function: Callable[Given, Returned], *given: Given.args, **named: Given.kwargs) -> Returned:
    """What a function returns; the value of each tagged line with ``return`` that ran goes into the trace, also one that is no tensor."""

    def on_call(frame: FrameType, event: str, value: Any) -> Callable[..., Any] | None:
        return partial(on_line, []) if frame.f_code.co_filename.startswith(str(PACKAGE)) else None

    def on_line(seen: list[Line], frame: FrameType, event: str, value: Any) -> Callable[..., Any]:
        line = line_at(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line is not None:
            seen[:] = [line]
        elif event == "return" and seen and value is not None and len(seen[0].names) == 1:
            trace.add(f"{Path(seen[0].file).stem}.{seen[0].names[0]}", value, seen[0])
        return partial(on_line, seen)

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        return function(*given, **named)
    finally:
        sys.settrace(before)


def plain_copy(model: Module) -> Module:
    """The model with the same weights, not copied, in evaluation mode, and the equation itself in place of the fused kernel.

    The model is left as it was and may go on working meanwhile.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, shared).eval()
    for module in copied.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        if isinstance(module, MultiHeadAttention):
            module.attention = ScaledDotProductAttention().eval()
    return copied


class _Watcher(TorchFunctionMode):
    """Gives each tensor that PyTorch returns to the innermost tagged line on the stack, and what a line made in the end to a trace."""

    def __init__(self, trace: Trace, names: Mapping[int, Sequence[str]], files: frozenset[str]) -> None:
        super().__init__()
        self.trace, self.names, self.files = trace, names, files
        self.open: dict[str, tuple[FrameType, Line, deque[Tensor]]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not self.trace.paused:
            self._note(result, sys._getframe(1))
        return result

    def _note(self, result: Tensor, frame: FrameType | None) -> None:
        while frame is not None:
            path = frame.f_code.co_filename
            line = line_at(path, frame.f_lineno) if path.startswith(str(PACKAGE)) and (not self.files or path in self.files) else None
            if line is not None:
                self._add(result, frame, line)
                return
            frame = frame.f_back

    def _add(self, result: Tensor, frame: FrameType, line: Line) -> None:
        owner = "output" if frame.f_code.co_name == "logits" else self._owner(frame)
        key = Path(line.file).stem if owner is None else short_place(owner)
        place = f"{key} {line.file}:{line.number}"
        if place in self.open and self.open[place][0] is not frame:
            self._close(place)
        made = self.open.setdefault(place, (frame, line, deque(maxlen=len(line.names))))
        made[2].append(result)

    def _owner(self, frame: FrameType | None) -> str | None:
        """The place in the model of the module whose line it is; of one with several places that below the next module outwards."""
        candidates: Sequence[str] = ()
        while frame is not None:
            for name in ("norm", "self"):  # what stands around a sub-layer is a function, and has the sub-layer's norm
                places = self.names.get(id(frame.f_locals.get(name)), ())
                if len(candidates or places) == 1:
                    return (candidates or places)[0]
                if candidates and places and places != candidates:
                    return next((each for each in candidates if each.rpartition(".")[0] in places), candidates[0])
                candidates = candidates or places
            frame = frame.f_back
        return candidates[0] if candidates else None

    def _close(self, place: str) -> None:
        _, line, made = self.open.pop(place)
        prefix = place.partition(" ")[0]
        for name, value in zip(line.names, made, strict=False):
            self.trace.add(".".join(part for part in (prefix, name) if part), value, line)

    def finish(self) -> None:
        """What the last lines made."""
        for place in list(self.open):
            self._close(place)


def short_place(path: str) -> str:
    """``encoder.layers.0.self_attn.attention`` as ``encoder.0.self``."""
    parts = [_SHORTER.get(part, part) for part in path.split(".") if part != "layers"]
    return ".".join(parts[:-1] if parts[-1] == "attention" else parts)


def _hooks(trace: Trace, model: nn.Module) -> Iterator[Any]:
    """What no single line makes: heads as equation (1) gets them, outputs of norms, what goes into a stack and leaves it."""
    for path, module in modules_of(model):
        short, (stack, _, name) = short_place(path), path.partition(".")
        if isinstance(module, ScaledDotProductAttention):
            yield module.register_forward_pre_hook(partial(_heads, trace, short))
        elif stack in ("encoder", "decoder") and name in ("dropout", "final_norm"):
            yield module.register_forward_hook(partial(_output, trace, f"{stack}.{'input' if name == 'dropout' else 'output'}"))
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and not path.endswith(("query_norm", "key_norm")):
            yield module.register_forward_hook(partial(_output, trace, f"{short}.output"))


def _heads(trace: Trace, short: str, module: nn.Module, given: Sequence[Any]) -> None:
    for name, value in zip(("queries", "keys", "values"), given, strict=False):
        trace.add(f"{short}.head_{name}", value)


def _output(trace: Trace, name: str, module: nn.Module, given: Sequence[Any], output: Tensor) -> None:
    trace.add(name, output)
