"""What an architecture's module says of it: settings, names, and what Hugging Face's folder for one of our models holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.interop.names import Shape


@dataclass(frozen=True)
class Settings:
    """What a foreign config.json says in our words: fields of the model and of decoding, and notices of what differs in use."""

    model: dict[str, Any]
    decoding: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def with_biases(config: ModelConfig, *, output_bias: bool) -> ModelConfig:
    """The same model with every bias that the settings may leave out; ``output_bias`` is whether the output has one."""
    biases = {"attention_bias": True, "feed_forward_bias": True, "output_bias": output_bias}
    return ModelConfig(**config.model_dump() | biases | ({"norm_bias": True} if config.norm == "layer" else {}))


def filled(weights: dict[str, Tensor], shapes: dict[str, Shape]) -> dict[str, Tensor]:
    """The weights with zeros for the biases that ``shapes`` has and they have not: adding nothing is having none."""
    like = next(iter(weights.values()))
    return {name: weights[name] if name in weights else like.new_zeros(shape) for name, shape in shapes.items()}


def misfits(config: ModelConfig, wanted: dict[str, Sequence[object]]) -> list[str]:
    """The settings that a format cannot express, given the values of each that it can."""
    return [
        f"model.{name}={getattr(config, name)} (it has {' or '.join(map(str, values))})"
        for name, values in wanted.items()
        if getattr(config, name) not in values
    ]


def lost_dropouts(config: ModelConfig, *names: str) -> list[str]:
    """A notice for each dropout of the model that a format has not: the model computes the same, and is trained on without it."""
    return [f"model.{name}={value} is not in the folder: it matters in training only" for name in names if (value := getattr(config, name))]


def head_misfits(config: ModelConfig) -> list[str]:
    """Heads of other widths or numbers than d_model / n_heads, which most formats cannot express."""
    return [
        f"model.{name}={value} (it has {expected})"
        for name, value, expected in (
            ("d_k", config.key_width, config.d_model // config.n_heads),
            ("d_v", config.value_width, config.d_model // config.n_heads),
            ("kv_heads", config.key_value_heads, config.n_heads),
        )
        if value != expected
    ]
