"""The Transformer of "Attention Is All You Need": train it on your own text, translate with it, look inside it.

The public names are imported when they are first used, so that ``import dragoman`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from dragoman.bundle import Bundle, load_bundle
    from dragoman.config import Config, ModelConfig
    from dragoman.data.tokenizer import Tokenizer
    from dragoman.decoding.generate import Continuation, Generator
    from dragoman.decoding.generation_options import GenerationOptions
    from dragoman.decoding.options import SearchOptions
    from dragoman.decoding.translate import Translation, Translator
    from dragoman.errors import DragomanError, UsageError
    from dragoman.model.build import build_model
    from dragoman.model.transformer import Transformer
    from dragoman.pipelines import pipeline

    __version__: str

__all__ = [
    "Bundle",
    "Config",
    "Continuation",
    "DragomanError",
    "GenerationOptions",
    "Generator",
    "ModelConfig",
    "SearchOptions",
    "Tokenizer",
    "Transformer",
    "Translation",
    "Translator",
    "UsageError",
    "__version__",
    "build_model",
    "load",
    "load_bundle",
    "pipeline",
]

_HOMES = {
    "Bundle": "dragoman.bundle",
    "Config": "dragoman.config",
    "Continuation": "dragoman.decoding.generate",
    "DragomanError": "dragoman.errors",
    "GenerationOptions": "dragoman.decoding.generation_options",
    "Generator": "dragoman.decoding.generate",
    "ModelConfig": "dragoman.config",
    "SearchOptions": "dragoman.decoding.options",
    "Tokenizer": "dragoman.data.tokenizer",
    "Transformer": "dragoman.model.transformer",
    "Translation": "dragoman.decoding.translate",
    "Translator": "dragoman.decoding.translate",
    "UsageError": "dragoman.errors",
    "build_model": "dragoman.model.build",
    "load_bundle": "dragoman.bundle",
    "pipeline": "dragoman.pipelines",
}


def load(path: "str | Path", *, device: str = "auto") -> "Translator":
    """The translator of a run folder (its best checkpoint), a checkpoint folder or a bundle: ``load("runs/en-de").translate([...])``.

    ``device`` is auto (a GPU where there is one), cpu, cuda, cuda:N or mps. Raises DragomanError that names what is wrong with ``path``.
    """
    from dragoman.decoding.translate import Translator

    return Translator.load(path, device=device)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("dragoman")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
