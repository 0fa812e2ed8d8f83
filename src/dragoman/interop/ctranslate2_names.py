"""What our weights and settings are in a CTranslate2 folder: the name table, and the numbers beside the weights, both ways.

CTranslate2 knows each weight by a path such as ``decoder/layer_0/attention/linear_1/weight``. Queries, keys and values of one input are
one matrix there; numbers such as the number of heads stand among the weights.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.interop.document import Document
from dragoman.interop.names import Entry, Ignored
from dragoman.model.embedding import sinusoids

ACTIVATIONS = {0: "relu", 1: "gelu-tanh", 2: "swish", 3: "gelu", 4: "x · sigmoid(1.702 x)", 5: "tanh", 6: "sigmoid"}
OLD_POSITIONS = 1024
"""Positions of a table that CTranslate2 makes by itself for a model that stores none."""

IGNORED = (Ignored(r"decoder/alignment_(layer|heads)", "it says which attention gives alignments; --align-layer does here"),)
_ATTENTION = ("num_heads_kv", "head_dim", "rotary_dim", "rotary_interleave", "rotary_base")
_SIDE = (
    "num_heads",
    "pre_norm",
    "activation",
    "scale_embeddings",
    "embeddings_merge",
    "multi_query_attention",
)  # num_heads_kv tells the last
_OFF = ("alibi", "scale_alibi", "start_from_zero_embedding")
NUMBERS = {*_ATTENTION, *_SIDE, *_OFF, "multiply_by_sqrt_depth"}
"""What is no weight: each one number."""


class Sides(NamedTuple):
    """The stacks of a kind of model: the name of each there, its number of layers, and whether it attends to a memory."""

    encoder: int
    decoder: int

    @property
    def names(self) -> list[str]:
        """Of the stacks that there are."""
        return [name for name, layers in (("encoder", self.encoder), ("decoder", self.decoder)) if layers]


def table(config: ModelConfig, *, halves: bool = False) -> list[Entry]:
    """The weights of an encoder-decoder or decoder-only model of these settings and their names there.

    ``halves``: the rotated pairs of a head are its numbers i and i + K/2 there, not neighbours as here.
    """
    single = config.single
    entries = _outer(config)
    sides = {"decoder": config.decoder_layers} | ({} if single else {"encoder": config.encoder_layers})
    for side, layers in sides.items():
        for number in range(layers):
            ours = f"layers.{number}" if single else f"{side}.layers.{number}"
            entries += _layer(config, ours, f"{side}/layer_{number}", crossed=side == "decoder" and not single, halves=halves)
        if config.norm_place == "pre" or config.final_norm:
            entries += _norm(config, "final_norm" if single else f"{side}.final_norm", f"{side}/layer_norm")
        if config.positions == "learned":
            name = "positions.weight" if single else f"{side}.positions.weight"
            entries += [Entry((name,), f"{side}/position_encodings/encodings")]
    return entries


def _outer(config: ModelConfig) -> list[Entry]:
    """Embeddings and output; a matrix that is shared has its name in the model and the others as copies."""
    source, target, output = "encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"
    bias = [Entry(("output_bias",), "decoder/projection/bias")] if config.output_bias else []
    if config.single:
        untied = [Entry(("embedding.weight",), target), Entry(("output.weight",), output)]
        return bias + ([Entry(("embedding.weight",), target, (output,))] if config.tie == "all" else untied)
    if config.tie == "all":
        return [*bias, Entry(("encoder.embedding.weight",), source, (target, output))]
    apart = [Entry(("encoder.embedding.weight",), source)]
    if config.tie == "decoder":
        return [*bias, *apart, Entry(("decoder.embedding.weight",), target, (output,))]
    return [*bias, *apart, Entry(("decoder.embedding.weight",), target), Entry(("output.weight",), output)]


def _layer(config: ModelConfig, ours: str, theirs: str, *, crossed: bool, halves: bool) -> list[Entry]:
    attention, network = f"{theirs}/self_attention", f"{ours}.feed_forward"
    rotary = (config.n_heads, config.key_value_heads, 0) if halves else (0, 0, 0)
    entries = [
        *_norm(config, f"{ours}.norm1", f"{attention}/layer_norm"),
        *_linear([f"{ours}.self_attn.{name}" for name in ("w_q", "w_k", "w_v")], f"{attention}/linear_0", config.attention_bias, rotary),
        *_linear([f"{ours}.self_attn.w_concat"], f"{attention}/linear_1", config.attention_bias),
        *_head_norms(config, f"{ours}.self_attn", attention),
    ]
    if crossed:
        attention = f"{theirs}/attention"
        entries += [
            *_norm(config, f"{ours}.norm2", f"{attention}/layer_norm"),
            *_linear([f"{ours}.cross_attn.w_q"], f"{attention}/linear_0", config.attention_bias),
            *_linear([f"{ours}.cross_attn.{name}" for name in ("w_k", "w_v")], f"{attention}/linear_1", config.attention_bias),
            *_linear([f"{ours}.cross_attn.w_concat"], f"{attention}/linear_2", config.attention_bias),
            *_head_norms(config, f"{ours}.cross_attn", attention),
        ]
    entries += _norm(config, f"{ours}.norm{3 if crossed else 2}", f"{theirs}/ffn/layer_norm")
    gated = config.activation == "swiglu"
    parts = {"linear_0": "w_gate", "linear_0_noact": "w_in", "linear_1": "w_out"} if gated else {"linear_0": "0", "linear_1": "2"}
    for name, part in parts.items():
        entries += _linear([f"{network}.{part}"], f"{theirs}/ffn/{name}", config.feed_forward_bias)
    return entries


def _norm(config: ModelConfig, ours: str, theirs: str) -> list[Entry]:
    biased = config.norm == "layer" and config.norm_bias
    return [Entry((f"{ours}.weight",), f"{theirs}/gamma"), *([Entry((f"{ours}.bias",), f"{theirs}/beta")] if biased else [])]


def _head_norms(config: ModelConfig, ours: str, theirs: str) -> list[Entry]:
    names = (("query_norm", "q_norm"), ("key_norm", "k_norm")) if config.qk_norm else ()
    return [Entry((f"{ours}.{name}.weight",), f"{theirs}/{there}/gamma") for name, there in names]


def _linear(ours: Sequence[str], theirs: str, bias: bool, rotary: tuple[int, ...] = ()) -> list[Entry]:
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Entry(tuple(f"{name}.{kind}" for name in ours), f"{theirs}/{kind}", rotary=rotary) for kind in kinds]


# Out


def misfits(config: ModelConfig) -> list[str]:
    """The settings that CTranslate2 has nothing for."""
    problems = []
    if config.architecture not in ("encoder-decoder", "decoder-only"):
        problems.append(f"architecture={config.architecture!r}")
    if config.norm_place == "deepnorm":
        problems.append("norm_place='deepnorm'")
    if config.value_width != config.key_width:
        problems.append(f"d_v={config.value_width}, another width than d_k={config.key_width}")
    if config.kv_heads not in (0, config.n_heads) and not config.single:
        problems.append(f"kv_heads={config.kv_heads} in a model that also attends to a source")
    if config.qk_norm and not config.single:
        problems.append("qk_norm=True in a model that also attends to a source")
    return problems


def extras(config: ModelConfig) -> dict[str, Tensor]:
    """What CTranslate2 wants beside the weights: the numbers of a model of these settings, tables of positions, and norms' biases of 0."""
    sides = ["decoder"] if config.single else ["encoder", "decoder"]
    activation = "swish" if config.activation == "swiglu" else config.activation
    found: dict[str, Tensor] = {}
    for side in sides:
        found |= {
            f"{side}/num_heads": _number(config.n_heads, torch.int16),
            f"{side}/pre_norm": _number(config.norm_place == "pre", torch.int8),
            f"{side}/activation": _number(next(n for n, name in ACTIVATIONS.items() if name == activation), torch.int8),
            f"{side}/scale_embeddings": _number(config.scale_embedding, torch.int8),
        }
        if config.positions.startswith("sinusoidal"):
            concatenated = config.positions == "sinusoidal-concat"
            found[f"{side}/position_encodings/encodings"] = sinusoids(config.max_positions, config.d_model, concatenated=concatenated)
    if not config.single:
        found["encoder/embeddings_merge"] = _number(0, torch.int8)
    # As --align does, but that CTranslate2 takes the mean of the first heads, so a trained one must be the first.
    trained = config.alignment_layer and config.alignment_head == 1
    layer = config.alignment_layer - 1 if trained else max(config.decoder_layers - 2, 0)
    found |= {
        "decoder/alignment_layer": _number(layer, torch.int16),
        "decoder/alignment_heads": _number(1 if trained else config.n_heads, torch.int16),
    }
    found |= {f"decoder/{name}": _number(0, torch.int8) for name in _OFF}
    found["decoder/alibi_use_positive_positions"] = _number(0, torch.int8)
    return found | _of_attentions(config) | _zero_biases(config)


def _number(value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


def _of_attentions(config: ModelConfig) -> dict[str, Tensor]:
    numbers: dict[str, Tensor] = {}
    if config.key_width * config.n_heads != config.d_model:
        numbers["head_dim"] = _number(config.key_width, torch.int32)
    if config.key_value_heads != config.n_heads:
        numbers["num_heads_kv"] = _number(config.key_value_heads, torch.int32)
    rotary = {
        "rotary_dim": _number(config.key_width, torch.int32),
        "rotary_interleave": _number(1, torch.int8),
        "rotary_base": _number(config.rotary_base, torch.float32),
    }
    found: dict[str, Tensor] = {}
    for entry in table(config):
        scope = entry.theirs.removesuffix("/linear_0/weight")
        if scope.endswith("attention"):
            here = rotary if config.positions == "rotary" and scope.endswith("self_attention") else {}
            found |= {f"{scope}/{name}": value for name, value in (numbers | here).items()}
    return found


def _zero_biases(config: ModelConfig) -> dict[str, Tensor]:
    """A norm without a bias is an RMSNorm there, so a LayerNorm without one gets zeros."""
    if config.norm == "rms" or config.norm_bias:
        return {}
    scales = [entry.theirs for entry in table(config) if entry.theirs.endswith("layer_norm/gamma")]
    return {f"{name.removesuffix('gamma')}beta": torch.zeros(config.d_model) for name in scales}


# In


class Found(NamedTuple):
    """What the settings of a folder's model are, whether heads rotate in halves, and everything that does not fit."""

    model: dict[str, Any]
    halves: bool
    problems: list[str]


def settings_of(found: Mapping[str, Tensor], document: Mapping[str, Any], *, heads: int) -> Found:
    """The settings of a model from its numbers and the shapes of its weights.

    ``found`` are all its variables in float32, ``document`` its config.json, ``heads`` the number of heads where none is written.
    """
    reader = _Settings(found, heads)
    norms = any(name.endswith("layer_norm/beta") for name in found)
    usual = 1e-5 if norms else 1e-6
    given, pre = Document(document), bool(reader.both("pre_norm", 1))
    model: dict[str, Any] = {
        **reader.sizes(),
        **reader.attentions(),
        **reader.feed_forward(),
        "norm": "layer" if norms else "rms",
        "norm_place": "pre" if pre else "post",
        "final_norm": not pre and "decoder/layer_norm/gamma" in found,
        "norm_epsilon": given.number("layer_norm_epsilon", usual),
        "scale_embedding": reader.scaled(),
        "output_bias": "decoder/projection/bias" in found,
        "attention_bias": any(re.search(r"attention/linear_\d/bias$", name) for name in found),
        "feed_forward_bias": any("/ffn/linear_" in name and name.endswith("bias") for name in found),
        "qk_norm": any(name.endswith("/q_norm/gamma") for name in found),
    }
    return Found(model, reader.halves, [*given.problems, *reader.problems, *reader.unknown()])


class _Settings:
    """Reads settings one by one, and notes what is wrong with them and which numbers were looked at."""

    def __init__(self, found: Mapping[str, Tensor], heads: int) -> None:
        self.found, self.heads = found, heads
        self.problems: list[str] = []
        self.halves = False
        self.layers = Sides(*(self._count(side) for side in ("encoder", "decoder")))
        self._seen = {f"{side}/{name}" for side in self.layers.names for name in _SIDE}
        self._seen |= {name for name in found if name.rpartition("/")[2] in _ATTENTION}

    def both(self, name: str, usual: float) -> float:
        """A number that encoder and decoder must share."""
        values = {side: self._number(f"{side}/{name}", usual) for side in self.layers.names}
        if len(set(values.values())) > 1:
            self.problems.append(f"{name} is {values['encoder']:g} in the encoder and {values['decoder']:g} in the decoder")
        return values[self.layers.names[-1]] if values else usual

    def sizes(self) -> dict[str, Any]:
        """Layers, widths and vocabularies."""
        target = self._shape("decoder/embeddings/weight", 2)
        source = self._shape("encoder/embeddings_0/weight", 2) if self.layers.encoder else target
        sizes: dict[str, Any] = {"d_model": target[1], "source_vocabulary": source[0], "target_vocabulary": target[0]}
        sizes["n_heads"] = int(self.both("num_heads", self.heads))
        sizes |= {f"{side}_layers": getattr(self.layers, side) for side in self.layers.names}
        if not self.layers.encoder:
            sizes["architecture"] = "decoder-only"
        if int(self.both("embeddings_merge", 0)) or "encoder/embeddings_1/weight" in self.found:
            self.problems.append("it has several embeddings of the source (features), and a model here has one")
        for name in _OFF[:2]:
            self._must_be_off(f"decoder/{name}", "attention with linear biases (ALiBi)")
        self._seen |= {"decoder/start_from_zero_embedding", "decoder/alibi_use_positive_positions"}
        return sizes

    def attentions(self) -> dict[str, Any]:
        """Widths and sharing of heads, and rotary positions."""
        values = {name: self._of_attentions(name) for name in _ATTENTION}
        heads = int(self.both("num_heads", self.heads))
        settings: dict[str, Any] = {}
        if values["head_dim"]:
            settings |= {"d_k": int(values["head_dim"]), "d_v": int(values["head_dim"])}
        if values["num_heads_kv"] and values["num_heads_kv"] != heads:
            settings["kv_heads"] = int(values["num_heads_kv"])
        if values["rotary_dim"] is not None:
            width = settings.get("d_k") or self._shape("decoder/embeddings/weight", 2)[1] // max(heads, 1)
            if values["rotary_dim"] not in (0, width):
                self.problems.append(f"rotary_dim={values['rotary_dim']:g}: only a part of each head of {width} is rotated")
            self.halves = values["rotary_interleave"] == 0
            settings |= {"positions": "rotary", "rotary_base": values["rotary_base"] or 10_000.0}
        return settings

    def feed_forward(self) -> dict[str, Any]:
        """Width and activation."""
        number = int(self.both("activation", 0))
        name = ACTIVATIONS.get(number, f"of the number {number}")
        gated = {side for side in self.layers.names if f"{side}/layer_0/ffn/linear_0_noact/weight" in self.found}
        if gated and (name != "swish" or gated != set(self.layers.names)):
            self.problems.append(f"gated feed-forward networks with the activation {name} in {' and '.join(sorted(gated))}")
        if number > 3:
            self.problems.append(f"the activation {name}")
        activation = "swiglu" if gated else name if number <= 3 else "relu"
        return {"d_ff": self._shape("decoder/layer_0/ffn/linear_0/weight", 2)[0], "activation": activation}

    def scaled(self) -> bool:
        """Whether embeddings are multiplied by √d_model."""
        old = "multiply_by_sqrt_depth"
        names = {side: [f"{side}/scale_embeddings", f"{side}/embeddings/{old}", f"{side}/embeddings_0/{old}"] for side in self.layers.names}
        self._seen |= {name for some in names.values() for name in some}
        root = math.sqrt(self._shape("decoder/embeddings/weight", 2)[1])
        values = [float(next((self.found[name] for name in some if name in self.found), torch.tensor(1.0))) for some in names.values()]
        # A number of one byte is yes or no; any other is the factor itself, and a factor of 1 is none.
        factors = {root if value == 1 else 1.0 if value == 0 else value for value in values}
        if len(factors) > 1 or not all(math.isclose(each, root, rel_tol=1e-5) or each == 1 for each in factors):
            self.problems.append(f"embeddings are multiplied by {', '.join(f'{each:g}' for each in sorted(factors))}, not √d_model or 1")
        return math.isclose(max(factors, default=root), root, rel_tol=1e-5)

    def unknown(self) -> list[str]:
        """The numbers that nobody looked at: settings that a model here has not."""
        left = [name for name, value in self.found.items() if not value.dim() and name not in self._seen]
        left = [name for name in left if not any(re.fullmatch(each.pattern, name) for each in IGNORED)]
        return [f"{name}={float(self.found[name]):g} is no setting of a model here" for name in left]

    def _count(self, side: str) -> int:
        numbers = {int(match[1]) for name in self.found if (match := re.match(rf"{side}/layer_(\d+)/", name))}
        return max(numbers, default=-1) + 1

    def _number(self, name: str, usual: float) -> float:
        self._seen.add(name)
        return float(self.found[name]) if name in self.found and not self.found[name].dim() else usual

    def _shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        if name not in self.found or self.found[name].dim() != dimensions:
            return (1,) * dimensions  # that it is missing or misshapen is said with the other weights
        return tuple(self.found[name].shape)

    def _must_be_off(self, name: str, what: str) -> None:
        if self._number(name, 0):
            self.problems.append(what)

    def _of_attentions(self, name: str) -> float | None:
        """A number of the attention sub-layers, which must be the same in all that have it."""
        values = sorted({float(self.found[each]) for each in self.found if each.endswith(f"attention/{name}")})
        if len(values) > 1:
            self.problems.append(f"{name} is {' and '.join(f'{value:g}' for value in values)} in different layers")
        return values[0] if values else None
