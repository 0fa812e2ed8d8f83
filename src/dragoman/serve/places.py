"""The models of a server as they were given, before their weights are read: folders, languages, names, and what cannot go together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from dragoman.bundle import list_checkpoints, load_config, load_tokenizers, lost_checkpoints, marked_checkpoint, resolve_model
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer, tag_text
from dragoman.errors import DragomanError, UsageError
from dragoman.serve.languages import AUTO, normal_code


@dataclass(frozen=True)
class Place:
    """A model as it was given: the path, the bundle that it means now, and its pairs, each with the tag to put before a text or none.

    A model of one text has no pairs. ``name`` is what requests call it; ``tokenizers`` are those of the folder, if its pairs needed them:
    to read them twice would take time and memory.
    """

    path: Path
    folder: Path
    pairs: Mapping[tuple[str, str], str]
    name: str
    single: bool = False
    tokenizers: tuple[Tokenizer, Tokenizer] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def find(cls, path: Path, *, name: str = "") -> "Place":
        """The place of a model; DragomanError that says what is wrong with its folder, its settings or its languages."""
        if is_awaited(path) and not lost_checkpoints(path) and not list_checkpoints(path):
            remedy = "serve it once its training has written one, or give --watch to see its curves until then"
            raise DragomanError(f"{path}: this run has no checkpoint yet; {remedy}")
        folder = resolve_model(path)
        config = load_config(folder)
        tokenizers = None if config.model.single else load_tokenizers(folder)
        pairs = _pairs(folder, config, tokenizers[0].tags) if tokenizers else {}
        return cls(path, folder, pairs, name or names_of([path])[0], config.model.single, tokenizers)

    @property
    def run(self) -> Path | None:
        """The run folder that the bundle is a checkpoint of."""
        return run_of(self.folder)


def run_of(path: Path) -> Path | None:
    """The run folder that a path means, itself or that of a checkpoint; None for a bundle without its run."""
    if not (path / "config.json").is_file():
        return path
    return path.parents[1] if path.parent.name == "checkpoints" else None


def names_of(paths: Sequence[Path]) -> list[str]:
    """What the models of paths are called: as the run, or as the bundle's folder, without the path to it; the second of a name NAME-2."""
    names: list[str] = []
    for path in paths:
        name = (run_of(path) or path).resolve().name
        choices = chain([name], (f"{name}-{number}" for number in count(2)))
        names.append(next(choice for choice in choices if choice not in names))
    return names


def runs_of(paths: Sequence[Path]) -> dict[str, Path]:
    """The run folders that paths mean, by their names."""
    found = ((name, run_of(path)) for name, path in zip(names_of(paths), paths, strict=True))
    return {name: run for name, run in found if run is not None}


def is_awaited(path: Path) -> bool:
    """Whether this is a run that has no checkpoint yet."""
    begun = any((path / name).is_file() for name in ("run.json", "log.jsonl"))
    return begun and run_of(path) is path and not any(marked_checkpoint(path, mark) for mark in ("best", "last"))


def _pairs(folder: Path, config: Config, tags: Mapping[str, int]) -> dict[tuple[str, str], str]:
    source, target = normal_code(config.data.source), normal_code(config.data.target)
    if not source or not (target or tags):
        raise DragomanError(f"{folder}: the model does not say its languages, so no request can name them; put them into its config.json")
    if not tags:
        return {(source, target): ""}
    return {(source, normal_code(tag)): f"{tag_text(tag)} " for tag in tags if normal_code(tag) != source}


def find_models(paths: Sequence[Path], *, watch: bool = False) -> list[Place]:
    """The places of the models, with no weights read; with ``watch`` of runs without a checkpoint none.

    UsageError when two translate the same pair.
    """
    named = zip(paths, names_of(paths), strict=True)
    places = [Place.find(path, name=name) for path, name in named if not (watch and is_awaited(path))]
    seen: dict[tuple[str, str], Path] = {}
    for place in places:
        for pair in place.pairs:
            if pair in seen:
                raise UsageError(f"{place.path}: translates {'-'.join(pair)} as {seen[pair]} does; give one model for each pair")
            if AUTO in pair:
                raise UsageError(f"{place.path}: a language cannot be called {AUTO}, which asks a server to find it out; name it otherwise")
            seen[pair] = place.path
    return places
