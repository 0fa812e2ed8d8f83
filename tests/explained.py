"""Bundles for tests of looking inside: the paper's model in small, and others of the family."""

from functools import cache
from typing import Any

import torch

from dragoman.bundle import Bundle
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.explain.answer import Explanation, explain
from dragoman.explain.steps import Step, focus_on
from dragoman.explain.walk import walk
from dragoman.model import build_model
from small_bundles import WORDS

TEXT = "ona bek tilu rem sova"
DEPARTURES: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre": {"norm_place": "pre", "activation": "swiglu", "positions": "learned", "tie": "none"},
    "deepnorm": {"norm_place": "deepnorm", "positions": "rotary", "rotary_base": 500.0, "kv_heads": 1, "activation": "gelu"},
    "rms": {"norm": "rms", "norm_place": "pre", "qk_norm": True, "positions": "sinusoidal-concat", "activation": "gelu-tanh"},
    "bare": {"d_k": 3, "d_v": 2, "norm_bias": False, "attention_bias": False, "feed_forward_bias": False, "scale_embedding": False,
             "activation": "swish", "output_bias": True},
    "decoder-only": {"architecture": "decoder-only"},
    "gpt": {"architecture": "decoder-only", "positions": "learned", "norm_place": "pre", "activation": "gelu-tanh"},
    "encoder-only": {"architecture": "encoder-only"},
    "bert": {"architecture": "encoder-only", "positions": "learned", "activation": "gelu", "scale_embedding": False, "embedding_norm": True,
             "token_types": 2, "output_transform": True, "pooler": True, "output_bias": True},
}  # fmt: skip


@cache
def bundle_of(name: str) -> Bundle:
    """A model of 2 layers and 2 heads a stack, with random weights, biases and norms: 20 words, d_model 16."""
    tokenizer = Tokenizer.train([" ".join(WORDS[:20])], kind="whitespace", vocabulary_size=24)
    stacks = {"decoder-only": ("decoder",), "encoder-only": ("encoder",)}.get(
        str(DEPARTURES[name].get("architecture")), ("encoder", "decoder")
    )
    sizes = {
        "d_model": 16, "d_ff": 24, "n_heads": 2, "max_positions": 40, **{f"{stack}_layers": 2 for stack in stacks},
        "source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer),
    }  # fmt: skip
    config = Config().with_values(
        model=sizes | DEPARTURES[name], data={"source": "aa", "target": "bb", "tokenizer": "whitespace"}, decoding={"extra_length": 4}
    )
    model = build_model(config.model, seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return Bundle(config, model, tokenizer, tokenizer, {"step": 700})


@cache
def explained(name: str) -> Explanation:
    """What is to be said of `TEXT`; of a model that translates, beside a reference."""
    bundle = bundle_of(name)
    return explain(bundle, TEXT, **({} if bundle.config.model.single else {"reference": "tilu rem ona"}))


@cache
def walked(name: str) -> tuple[Step, ...]:
    """The walk at layer 2, head 2."""
    found = explained(name)
    return tuple(walk(found, focus_on(found, layer=2, head=2)))
