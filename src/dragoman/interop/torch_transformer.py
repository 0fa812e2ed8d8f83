"""A state dict of ``torch.nn.Transformer`` with embeddings and an output layer around it, by a file that says what it does not.

Shapes:  B batch   S source positions   T target positions   D = d_model   V target vocabulary
"""

import math
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationError
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from dragoman.bundle import Bundle, assemble_bundle, empty_model
from dragoman.config import Config, ModelConfig, Settings, merge
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, UsageError
from dragoman.interop.huggingface import Imported
from dragoman.interop.names import Entry, Ignored, linear, norm, same, take
from dragoman.interop.verify import Verification, compare
from dragoman.interop.weights import read_file
from dragoman.model.embedding import sinusoids
from dragoman.toml import read_toml

REMEDY = "give --config FILE that says its heads, the names of its embeddings and its vocabularies (docs/formats.md, torch.nn.Transformer)"


class Names(Settings):
    """The names of the weights around ``torch.nn.Transformer``."""

    transformer: str = Field("transformer", description="What stands before the names of torch.nn.Transformer's weights; may be empty.")
    source_embedding: str = Field(description="The source embedding's weight.")
    target_embedding: str = Field(description="The target embedding's weight, which may be the source's.")
    output: str = Field(description="The output layer's weight, which may be the target embedding's.")
    output_bias: str = Field("", description="The output layer's bias, if it has one.")
    positions: str = Field("", description="A stored table of positions, which is compared with the computed one.")
    ignored: list[str] = Field([], description="Weights that are not needed.")


class Side(Settings):
    """The vocabulary of a side and how text is cut into it."""

    vocabulary: list[str] = Field(description="The entries in the order of their ids.")
    pieces: Literal["characters", "words"] = Field(description="Text is cut into characters, or at spaces.")
    opening: bool = Field(False, description="Whether a source begins with the start token.")
    pad: str = Field("<pad>", description="The entry for padding.")
    bos: str = Field("<bos>", description="The entry that starts a text.")
    eos: str = Field("<eos>", description="The entry that ends a text.")
    unk: str = Field("<unk>", description="The entry for what is not in the vocabulary.")


class Recipe(Settings):
    """What a state dict does not say of its model."""

    n_heads: int = Field(gt=0, description="nhead.")
    norm_first: bool = Field(False, description="norm_first.")
    layer_norm_eps: float = Field(1e-5, gt=0, description="layer_norm_eps.")
    activation: Literal["relu", "gelu"] = Field("relu", description="activation.")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout, for training that goes on.")
    positions: Literal["sinusoidal", "sinusoidal-concat"] = Field("sinusoidal", description="What is added to the embeddings.")
    scale_embedding: bool = Field(True, description="Whether embeddings are multiplied by √d_model.")
    max_positions: int = Field(1024, gt=0, description="The longest sequence, where no table of positions says it.")
    names: Names = Field(description="Names of the weights around torch.nn.Transformer.")
    source: Side = Field(description="The source's vocabulary.")
    target: Side = Field(description="The target's vocabulary.")


def read_recipe(path: Path) -> Recipe:
    """The settings of a TOML file; UsageError that names the file and everything that is wrong."""
    try:
        return Recipe.model_validate(read_toml(path))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg'][:1].lower()}{each['msg'][1:]}" for each in error.errors()]
        raise UsageError(f"{path}: {'; '.join(problems)}") from None


def looks_like_torch_transformer(names: Collection[str]) -> bool:
    """Whether a state dict has the decoder layers of ``torch.nn.Transformer``."""
    return any(name.endswith("decoder.layers.0.multihead_attn.in_proj_weight") for name in names)


def read_torch_transformer(path: Path, recipe_path: Path) -> tuple[Imported, Recipe]:
    """The bundle of a state dict and the settings that go with it.

    Raises DragomanError that lists missing, extra and misshapen weights, UsageError for wrong settings.
    """
    recipe, weights = read_recipe(recipe_path), read_file(path)
    names = recipe.names
    prefix = f"{names.transformer}." if names.transformer else ""
    sizes = _sizes(path, weights, recipe, prefix)
    source, target = (_tokenizer(side, recipe_path, name) for name, side in (("source", recipe.source), ("target", recipe.target)))
    for side, tokenizer in (("source", source), ("target", target)):
        if len(tokenizer) != sizes[f"{side}_vocabulary"]:
            count = sizes[f"{side}_vocabulary"]
            raise DragomanError(
                f"{recipe_path}: {side}.vocabulary has {len(tokenizer)} entries but the embedding has {count} rows; mend the list"
            )
    if source.pad != target.pad:
        raise DragomanError(
            f"{recipe_path}: padding has the id {source.pad} in the source and {target.pad} in the target; one is needed for both"
        )
    data = {"tokenizer": "foreign", "vocabulary_size": len(source), "joint_vocabulary": False, "max_length": sizes["max_positions"]}
    config = merge(Config().model_dump(), {"model": sizes | {"pad": target.pad}, "data": data}, place=str(recipe_path))
    model = empty_model(config)
    table = name_table(config.model, recipe, prefix)
    ignored = [Ignored(_literal(name), "as the settings say") for name in names.ignored]
    problems = []
    if names.positions:
        stored = weights.get(names.positions)
        problems = [f"weight {names.positions} is missing"] if stored is None else _wrong_table(names.positions, stored, config.model)
        ignored.append(Ignored(_literal(names.positions), "the table of positions, which is computed"))
    taken = take(table, weights, {name: tuple(weight.shape) for name, weight in model.named_parameters()}, ignored=ignored)
    if problems := problems + taken.problems:
        raise DragomanError(f"{path}: cannot import this model: {'; '.join(problems)}")
    info = {"imported_from": "torch.nn.Transformer"}
    bundle = assemble_bundle(config, taken.weights, source, target, info, model=model)
    return Imported(bundle, "torch.nn.Transformer", taken.ignored, [], table, weights), recipe


def _literal(name: str) -> str:
    return "".join(character if character.isalnum() else f"\\{character}" for character in name)


def _sizes(path: Path, weights: Mapping[str, Tensor], recipe: Recipe, prefix: str) -> dict[str, Any]:
    """The model's settings, from the shapes of the weights and the recipe; DragomanError where they cannot be seen."""
    names = recipe.names

    def shape(name: str) -> tuple[int, ...]:
        if name not in weights or weights[name].dim() != 2:
            raise DragomanError(f"{path}: cannot import this model: no matrix {name} in it; correct [names] in the settings' file")
        return tuple(weights[name].shape)

    inner, width = shape(f"{prefix}encoder.layers.0.linear1.weight")
    layers = {
        side: sum(f"{prefix}{side}.layers.{number}.linear1.weight" in weights for number in range(1000)) for side in ("encoder", "decoder")
    }
    table = weights.get(names.positions)
    biased = f"{prefix}encoder.layers.0.linear1.bias" in weights
    tie = "none"
    if names.output == names.target_embedding:
        tie = "all" if names.source_embedding == names.target_embedding else "decoder"
    elif names.source_embedding == names.target_embedding:
        raise DragomanError(f"{path}: source and target share an embedding that the output does not share, which is not supported")
    return {
        "d_model": width,
        "d_ff": inner,
        "n_heads": recipe.n_heads,
        "encoder_layers": layers["encoder"],
        "decoder_layers": layers["decoder"],
        "dropout": recipe.dropout,
        "activation": recipe.activation,
        "norm_place": "pre" if recipe.norm_first else "post",
        "norm_epsilon": recipe.layer_norm_eps,
        "final_norm": not recipe.norm_first and f"{prefix}encoder.norm.weight" in weights,
        "attention_bias": biased,
        "feed_forward_bias": biased,
        "norm_bias": biased,
        "positions": recipe.positions,
        "scale_embedding": recipe.scale_embedding,
        "output_bias": bool(names.output_bias),
        "max_positions": recipe.max_positions if table is None else table.numel() // width,
        "tie": tie,
        "source_vocabulary": shape(names.source_embedding)[0],
        "target_vocabulary": shape(names.target_embedding)[0],
    }


def name_table(config: ModelConfig, recipe: Recipe, prefix: str) -> list[Entry]:
    """Which of our weights is which of theirs."""
    names = recipe.names
    table = [same("encoder.embedding.weight", names.source_embedding)]
    table += [same("decoder.embedding.weight", names.target_embedding)] if config.tie != "all" else []
    table += [same("output.weight", names.output)] if config.tie == "none" else []
    table += [same("output_bias", names.output_bias)] if names.output_bias else []
    biased = config.attention_bias
    for side, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        table += chain.from_iterable(_layer(f"{side}.layers.{number}", prefix, side, biased) for number in range(count))
        if config.final_norm or config.norm_place == "pre":
            table += norm(f"{side}.final_norm", f"{prefix}{side}.norm", bias=biased)
    return table


def _layer(ours: str, prefix: str, side: str, biased: bool) -> list[Entry]:
    theirs = f"{prefix}{ours}"
    table = []
    for mine, other in (("self_attn", "self_attn"), ("cross_attn", "multihead_attn"))[: 2 if side == "decoder" else 1]:
        for kind in ("weight", "bias")[: 2 if biased else 1]:
            table.append(Entry(tuple(f"{ours}.{mine}.{name}.{kind}" for name in ("w_q", "w_k", "w_v")), f"{theirs}.{other}.in_proj_{kind}"))
        table += linear(f"{ours}.{mine}.w_concat", f"{theirs}.{other}.out_proj", bias=biased)
    table += linear(f"{ours}.feed_forward.0", f"{theirs}.linear1", bias=biased)
    table += linear(f"{ours}.feed_forward.2", f"{theirs}.linear2", bias=biased)
    for number in range(1, 4 if side == "decoder" else 3):
        table += norm(f"{ours}.norm{number}", f"{theirs}.norm{number}", bias=biased)
    return table


def _wrong_table(name: str, stored: Tensor, config: ModelConfig) -> list[str]:
    """Whether a stored table, of any shape with the positions first, is not that which is computed."""
    computed = sinusoids(config.max_positions, config.d_model, concatenated=config.positions == "sinusoidal-concat")
    fits = stored.numel() == computed.numel() and bool((stored.reshape(computed.shape) - computed).abs().max() < 2e-3)
    return [] if fits else [f"weight {name} is not the table of positions='{config.positions}'"]


def _tokenizer(side: Side, path: Path, name: str) -> Tokenizer:
    ids = {entry: token for token, entry in enumerate(side.vocabulary)}
    special = {key: ids.get(getattr(side, key)) for key in ("pad", "bos", "eos", "unk")}
    if len(ids) != len(side.vocabulary) or None in special.values():
        missing = [f"{name}.{key}={getattr(side, key)!r}" for key, token in special.items() if token is None]
        what = f"{', '.join(missing)} is not in the vocabulary" if missing else f"{name}.vocabulary has an entry twice"
        raise UsageError(f"{path}: {what}; mend the file")
    backend = Backend(models.WordLevel(ids, unk_token=side.unk))
    if side.pieces == "characters":
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
    else:
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    opening = (ids[side.bos],) if side.opening else ()
    pad, bos, eos, unk = (ids[entry] for entry in (side.pad, side.bos, side.eos, side.unk))
    return Tokenizer(kind="foreign", joiner="", pad=pad, bos=bos, eos=eos, unk=unk, backend=backend, opening=opening)


def verify_torch_transformer(imported: Imported, recipe: Recipe, bundle: Bundle) -> Verification:
    """The written ``bundle`` against ``torch.nn``'s own layers with the file's weights."""
    config, weights, names = imported.bundle.config.model, imported.weights, recipe.names
    prefix = f"{names.transformer}." if names.transformer else ""
    stacks = {side: _stack(side, config, weights, prefix) for side in ("encoder", "decoder")}
    table = sinusoids(config.max_positions, config.d_model, concatenated=config.positions == "sinusoidal-concat")
    table = weights[names.positions].float().reshape(table.shape) if names.positions else table
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0

    def embed(ids: Tensor, name: str) -> Tensor:
        return F.embedding(ids, weights[name].float()) * scale + table[: ids.size(1)]

    def logits(source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        memory = stacks["encoder"](embed(source, names.source_embedding), src_key_padding_mask=~mask)
        causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        given = {"tgt_mask": causal, "memory_key_padding_mask": ~mask}
        hidden = stacks["decoder"](embed(target, names.target_embedding), memory, **given)
        bias = weights[names.output_bias].float() if names.output_bias else None
        return F.linear(hidden, weights[names.output].float(), bias)

    return compare(bundle, logits, against=f"torch.nn.Transformer of PyTorch {torch.__version__}")


def _stack(side: str, config: ModelConfig, weights: Mapping[str, Tensor], prefix: str) -> nn.Module:
    pre, biased, epsilon = config.norm_place == "pre", config.attention_bias, config.norm_epsilon
    final = nn.LayerNorm(config.d_model, epsilon, bias=biased) if config.final_norm or pre else None
    sizes = config.d_model, config.n_heads, config.d_ff, 0.0, config.activation, epsilon
    whole: nn.Module
    if side == "encoder":
        layer = nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=pre, bias=biased)
        whole = nn.TransformerEncoder(layer, config.encoder_layers, final, enable_nested_tensor=False)
    else:
        whole = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*sizes, batch_first=True, norm_first=pre, bias=biased), config.decoder_layers, final
        )
    start = f"{prefix}{side}."
    whole.load_state_dict({name.removeprefix(start): weight.float() for name, weight in weights.items() if name.startswith(start)})
    return whole.eval()
