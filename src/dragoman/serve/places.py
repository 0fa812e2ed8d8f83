"""The models of a server as they were given, before their weights are read: folders, languages, names, and what cannot go together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.bundle import load_config, load_tokenizers, resolve_model
from dragoman.config import Config
from dragoman.data.tokenizer import tag_text
from dragoman.errors import DragomanError, UsageError
from dragoman.serve.languages import AUTO, normal_code


@dataclass(frozen=True)
class Place:
    """A model as it was given: the path, the bundle that it means now, and its pairs, each with the tag to put before a text or none.

    A decoder-only model, which goes on with text, has no pairs.
    """

    path: Path
    folder: Path
    pairs: Mapping[tuple[str, str], str]

    @classmethod
    def find(cls, path: Path) -> "Place":
        """The place of a model; DragomanError that says what is wrong with its folder, its settings or its languages."""
        folder = resolve_model(path)
        return cls(path, folder, _pairs(folder, load_config(folder)))

    @property
    def name(self) -> str:
        """The run's name, or the folder's, without the path to it."""
        return (self.folder.parents[1] if self.folder.parent.name == "checkpoints" else self.folder).resolve().name


def _pairs(folder: Path, config: Config) -> dict[tuple[str, str], str]:
    if config.model.architecture == "decoder-only":
        return {}
    if config.model.single:
        kind = config.model.architecture
        raise DragomanError(
            f"{folder}: the model is {kind}, and a server translates or goes on with text; give an encoder-decoder or a decoder-only model"
        )
    source, target = normal_code(config.data.source), normal_code(config.data.target)
    tags = load_tokenizers(folder)[0].tags
    if not source or not (target or tags):
        raise DragomanError(f"{folder}: the model does not say its languages, so no request can name them; put them into its config.json")
    if not tags:
        return {(source, target): ""}
    return {(source, normal_code(tag)): f"{tag_text(tag)} " for tag in tags if normal_code(tag) != source}


def find_models(paths: Sequence[Path]) -> list[Place]:
    """The places of the models, with no weights read; UsageError when two answer to one name: a pair of languages, or a model's own."""
    places = [Place.find(path) for path in paths]
    seen: dict[tuple[str, str] | str, Path] = {}
    for place in places:
        if not place.pairs and place.name in seen:
            other = seen[place.name]
            raise UsageError(f"{place.path}: is called {place.name}, as {other} is, and requests name models; rename one of the folders")
        if not place.pairs:
            seen[place.name] = place.path
        for pair in place.pairs:
            if pair in seen:
                raise UsageError(f"{place.path}: translates {'-'.join(pair)} as {seen[pair]} does; give one model for each pair")
            if AUTO in pair:
                raise UsageError(f"{place.path}: a language cannot be called {AUTO}, which asks a server to find it out; name it otherwise")
            seen[pair] = place.path
    return places
