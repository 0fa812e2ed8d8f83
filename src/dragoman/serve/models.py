"""The models of a server, each for its language pairs; what leads from one language to another; what is known of each model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dragoman.bundle import load_bundle, load_config, load_tokenizers, resolve_model
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
    """A model as it was given: the path, the bundle that it means now, and its pairs, each with the tag to put before a text or none."""

    path: Path
    folder: Path
    pairs: Mapping[tuple[str, str], str]

    @classmethod
    def find(cls, path: Path) -> "Place":
        """The place of a model; DragomanError that says what is wrong with its folder, its settings or its languages."""
        folder = resolve_model(path)
        return cls(path, folder, _pairs(folder, load_config(folder)))


def _pairs(folder: Path, config: Config) -> dict[tuple[str, str], str]:
    if config.model.single:
        raise DragomanError(f"{folder}: the model is {config.model.architecture}, and a server translates; give an encoder-decoder model")
    source, target = normal_code(config.data.source), normal_code(config.data.target)
    tags = load_tokenizers(folder)[0].tags
    if not source or not (target or tags):
        raise DragomanError(f"{folder}: the model does not say its languages, so no request can name them; put them into its config.json")
    if not tags:
        return {(source, target): ""}
    return {(source, normal_code(tag)): f"{tag_text(tag)} " for tag in tags if normal_code(tag) != source}


def find_models(paths: Sequence[Path]) -> list[Place]:
    """The places of the models, with no weights read; UsageError when two translate the same pair."""
    places = [Place.find(path) for path in paths]
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
    """A model at work."""

    place: Place
    translator: Translator
    profiles: Mapping[str, Profile]
    scores: Mapping[str, float]

    @classmethod
    def load(cls, place: Place, *, device: str, precision: str) -> "Model":
        """Reads the weights; DragomanError that says what is wrong."""
        bundle = load_bundle(place.folder, device=str(pick_device(device)))
        translator = Translator(bundle, precision=precision)  # type: ignore[arg-type]  # checked there
        return cls(place, translator, profiles_of(place.folder, bundle), _scores(place.folder, bundle.info.get("step")))

    @property
    def name(self) -> str:
        """The run's name, or the folder's, without the path to it."""
        folder = self.place.folder
        return (folder.parents[1] if folder.parent.name == "checkpoints" else folder).resolve().name

    @property
    def step(self) -> int | None:
        """The training step of the weights."""
        step = self.translator.bundle.info.get("step")
        return step if isinstance(step, int) else None

    def facts(self) -> dict[str, Any]:
        """What `/api/v1/models` says of it."""
        bundle = self.translator.bundle
        model, tokenizers = bundle.config.model, (bundle.source_tokenizer, bundle.target_tokenizer)
        return {
            "run": self.name,
            "step": self.step,
            "pairs": [{"source": source, "target": target} for source, target in self.place.pairs],
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
            "scores": dict(self.scores),
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
    """All models of a server; what they share is asked here. It is replaced as a whole when models are loaded anew."""

    models: Sequence[Model]
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @classmethod
    def load(cls, places: Iterable[Place], *, device: str, precision: str) -> "Models":
        """Reads the weights of all; DragomanError for what is wrong with one."""
        models = [Model.load(place, device=device, precision=precision) for place in places]
        profiles: dict[str, Profile] = {}
        for model in models:
            for code, profile in model.profiles.items():
                if code not in profiles or profile.total > profiles[code].total:
                    profiles[code] = profile
        return cls(models, profiles)

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
