"""The models of a server, each for its language pairs; what leads from one language to another; what is known of each model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

from dragoman.bundle import Bundle, load_bundle, load_config, load_tokenizers, marked_checkpoint, resolve_model
from dragoman.config import Config
from dragoman.data.tokenizer import tag_text
from dragoman.decoding.translate import Translator
from dragoman.devices import pick_device
from dragoman.errors import DragomanError, UsageError
from dragoman.presets import count_parameters
from dragoman.serve.detect import Profile, profiles_of
from dragoman.serve.languages import AUTO, language_name, normal_code
from dragoman.training.records import read_log


@dataclass(frozen=True)
class Place:
    """A model as it was given: the path, the bundle that it means now, and its pairs, each with the tag to put before a text or none.

    A model of one text has no pairs. ``name`` is what requests call it.
    """

    path: Path
    folder: Path
    pairs: Mapping[tuple[str, str], str]
    name: str
    single: bool = False

    @classmethod
    def find(cls, path: Path, *, name: str = "") -> "Place":
        """The place of a model; DragomanError that says what is wrong with its folder, its settings or its languages."""
        folder = resolve_model(path)
        config = load_config(folder)
        pairs = {} if config.model.single else _pairs(folder, config)
        return cls(path, folder, pairs, name or names_of([path])[0], config.model.single)

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


def _pairs(folder: Path, config: Config) -> dict[tuple[str, str], str]:
    source, target = normal_code(config.data.source), normal_code(config.data.target)
    tags = load_tokenizers(folder)[0].tags
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


@dataclass(frozen=True, eq=False)
class Model:
    """A model at work that translates."""

    place: Place
    translator: Translator
    profiles: Mapping[str, Profile]
    scores: Mapping[str, float]

    @classmethod
    def load(cls, place: Place, *, device: str, precision: str) -> "Model":
        """Reads the weights; DragomanError that says what is wrong."""
        bundle = _loaded(place, device)
        translator = Translator(bundle, precision=precision)  # type: ignore[arg-type]  # checked there
        return cls(place, translator, profiles_of(place.folder, bundle), _scores(place.folder, bundle.info.get("step")))

    @property
    def bundle(self) -> Bundle:
        """The model itself, with its settings and vocabularies."""
        return self.translator.bundle

    @property
    def name(self) -> str:
        """The name that its place has."""
        return self.place.name

    @property
    def step(self) -> int | None:
        """The training step of the weights."""
        return _step(self.bundle)

    def facts(self) -> dict[str, Any]:
        """What `/api/v1/models` says of it."""
        return _facts(self.place, self.bundle, self.scores)


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model of one text, decoder-only or encoder-only: it translates nothing."""

    place: Place
    bundle: Bundle
    scores: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, place: Place, *, device: str) -> "TextModel":
        """Reads the weights; DragomanError that says what is wrong."""
        bundle = _loaded(place, device)
        return cls(place, bundle, _scores(place.folder, bundle.info.get("step")))

    @property
    def name(self) -> str:
        """The name that its place has."""
        return self.place.name

    @property
    def step(self) -> int | None:
        """The training step of the weights."""
        return _step(self.bundle)

    def facts(self) -> dict[str, Any]:
        """What `/api/v1/models` says of it."""
        return _facts(self.place, self.bundle, self.scores)


def _loaded(place: Place, device: str) -> Bundle:
    return load_bundle(place.folder, device=str(pick_device(device)))


def _step(bundle: Bundle) -> int | None:
    step = bundle.info.get("step")
    return step if isinstance(step, int) else None


def _facts(place: Place, bundle: Bundle, scores: Mapping[str, float]) -> dict[str, Any]:
    model, tokenizers = bundle.config.model, (bundle.source_tokenizer, bundle.target_tokenizer)
    return {
        "run": place.name,
        "step": _step(bundle),
        "architecture": model.architecture,
        "pairs": [{"source": source, "target": target} for source, target in place.pairs],
        "parameters": count_parameters(model),
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "d_model": model.d_model,
        "d_ff": model.d_ff,
        "heads": model.n_heads,
        "norm_place": model.norm_place,
        "vocabulary": {
            "kind": tokenizers[0].kind,
            "joint": tokenizers[0] is tokenizers[1],
            "source": len(tokenizers[0]),
            "target": len(tokenizers[1]),
        },
        "beam": bundle.config.decoding.beam,
        "alpha": bundle.config.decoding.alpha,
        "scores": dict(scores),
    }


def _scores(folder: Path, step: object) -> dict[str, float]:
    """What the run's log says of the checkpoint's evaluation; nothing for a bundle without its run."""
    if folder.parent.name != "checkpoints":
        return {}
    records = [record for record in read_log(folder.parents[1])[0] if record.get("t") == "eval" and record.get("step") == step]
    return {name: records[-1][name] for name in ("bleu", "chrf", "loss") if records and isinstance(records[-1].get(name), int | float)}


@dataclass(frozen=True, eq=False)
class Hop:
    """One model for one pair."""

    model: Model
    source: str
    target: str

    @property
    def beam(self) -> int:
        """The model's own beam."""
        return self.model.translator.bundle.config.decoding.beam

    @property
    def tag(self) -> str:
        """What stands before a text for the model."""
        return self.model.place.pairs[self.source, self.target]


@dataclass(frozen=True)
class Models:
    """All models of a server; what they share is asked here. It is replaced as a whole when models are loaded anew.

    ``models`` translate, ``others`` are of one text.
    """

    models: Sequence[Model]
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    others: Sequence[TextModel] = ()

    @classmethod
    def load(cls, places: Iterable[Place], *, device: str, precision: str) -> "Models":
        """Reads the weights of all; DragomanError for what is wrong with one."""
        places = list(places)
        models = [Model.load(place, device=device, precision=precision) for place in places if not place.single]
        profiles: dict[str, Profile] = {}
        for model in models:
            for code, profile in model.profiles.items():
                if code not in profiles or profile.total > profiles[code].total:
                    profiles[code] = profile
        return cls(models, profiles, [TextModel.load(place, device=device) for place in places if place.single])

    @property
    def everything(self) -> list[Model | TextModel]:
        """Those that translate, then those of one text."""
        return [*self.models, *self.others]

    @property
    def title(self) -> str:
        """What there is, in a line: the pairs, and the names of models of one text."""
        pairs = [f"{source}-{target}" for source, target in self.pairs]
        return ", ".join([*pairs, *(f"{model.name} ({model.bundle.config.model.architecture})" for model in self.others)])

    def named(self, name: str) -> Model | TextModel | None:
        """The model of a name, if there is one."""
        return next((model for model in self.everything if model.name == name), None)

    @cached_property
    def pairs(self) -> Mapping[tuple[str, str], Hop]:
        """The pairs that one model translates."""
        return {pair: Hop(model, *pair) for model in self.models for pair in model.place.pairs}

    @cached_property
    def codes(self) -> list[str]:
        """All languages, in alphabetical order."""
        return sorted({code for pair in self.pairs for code in pair})

    @cached_property
    def sources(self) -> list[str]:
        """The languages that can be translated from."""
        return sorted({source for source, _ in self.pairs})

    def route(self, source: str, target: str) -> list[Hop]:
        """The model from one language to another, or two with a language between; none where there is no way."""
        if (source, target) in self.pairs:
            return [self.pairs[source, target]]
        between = [middle for start, middle in self.pairs if start == source and (middle, target) in self.pairs]
        return [self.pairs[source, between[0]], self.pairs[between[0], target]] if between and source != target else []

    def targets(self, source: str) -> list[str]:
        """The languages that one can be translated into."""
        return [code for code in self.codes if self.route(source, code)]

    def sources_of(self, target: str) -> list[str]:
        """The languages that can be translated into this one."""
        return [code for code in self.sources if self.route(code, target)]

    def listed(self) -> list[dict[str, Any]]:
        """What `/languages` says: every language, also one that is only a target, for some clients ask for no other targets."""
        return [{"code": code, "name": language_name(code), "targets": self.targets(code)} for code in self.codes]
