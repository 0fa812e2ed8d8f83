"""The models of a server at work, each for its language pairs; what leads from one language to another; what is known of each model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dragoman.bundle import Bundle, load_bundle
from dragoman.decoding.translate import Translator
from dragoman.devices import pick_device
from dragoman.presets import count_parameters
from dragoman.serve.completers import Completer
from dragoman.serve.detect import Profile, profiles_of
from dragoman.serve.languages import language_name
from dragoman.serve.places import Place
from dragoman.training.records import read_log


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
    """A model of one text, which translates nothing: encoder-only, or decoder-only with what goes on with a text."""

    place: Place
    bundle: Bundle
    scores: Mapping[str, float] = field(default_factory=dict)
    completer: Completer | None = None

    @classmethod
    def load(cls, place: Place, *, device: str, precision: str) -> "TextModel":
        """Reads the weights; DragomanError that says what is wrong."""
        bundle = _loaded(place, device)
        decoder_only = bundle.config.model.architecture == "decoder-only"
        completer = Completer.of(place, bundle, precision=precision) if decoder_only else None
        return cls(place, bundle, _scores(place.folder, bundle.info.get("step")), completer)

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
    return load_bundle(place.folder, device=str(pick_device(device)), tokenizers=place.tokenizers)


def _step(bundle: Bundle) -> int | None:
    step = bundle.info.get("step")
    return step if isinstance(step, int) else None


def _facts(place: Place, bundle: Bundle, scores: Mapping[str, float]) -> dict[str, Any]:
    model, tokenizers = bundle.config.model, (bundle.source_tokenizer, bundle.target_tokenizer)
    parameters, step, bleu = count_parameters(model), _step(bundle), scores.get("bleu")
    said = [place.name, step and f"step {step:,}", bleu and f"BLEU {bleu:.1f}", f"{parameters:,} parameters"]
    return {
        "run": place.name,
        "said": ", ".join(str(each) for each in said if each),
        "step": step,
        "architecture": model.architecture,
        "pairs": [{"source": source, "target": target} for source, target in place.pairs],
        "parameters": parameters,
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
        others = [TextModel.load(place, device=device, precision=precision) for place in places if place.single]
        return cls(models, profiles, others)

    @property
    def completers(self) -> list[Completer]:
        """The decoder-only ones, which go on with a text."""
        return [model.completer for model in self.others if model.completer is not None]

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

    def choices(self) -> list[dict[str, Any]]:
        """What a user can choose: a pair of languages with the one model that translates it, if it is one, or a model of one text."""
        pairs = [(model.name, pair) for model in self.models for pair in model.place.pairs]
        through = [(source, target) for source in self.codes for target in self.targets(source) if (source, target) not in self.pairs]
        return [
            *(_choice(_languages(*pair), run, pair) for run, pair in pairs),
            *(_choice(f"{_languages(*pair)}, through a third", None, pair) for pair in through),
            *(_choice(f"{model.name}: {model.bundle.config.model.architecture}", model.name, None) for model in self.others),
        ]

    def listed(self) -> list[dict[str, Any]]:
        """What `/languages` says: every language, also one that is only a target, for some clients ask for no other targets."""
        return [{"code": code, "name": language_name(code), "targets": self.targets(code)} for code in self.codes]


def _choice(label: str, run: str | None, pair: tuple[str, str] | None) -> dict[str, Any]:
    return {"label": label, "run": run, "pair": None if pair is None else {"source": pair[0], "target": pair[1]}}


def _languages(source: str, target: str) -> str:
    return f"{language_name(source)} → {language_name(target)}"
