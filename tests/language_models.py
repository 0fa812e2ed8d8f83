"""Small bundles of one sequence for tests: decoder-only and encoder-only, with random weights."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from dragoman.bundle import Bundle
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.model import build_model

WORDS = "ona bek tilu rem sova kip dal nur afi gost huma jelo lira mok pest"
SIZES: dict[str, Any] = {"d_model": 24, "d_ff": 40, "n_heads": 4, "dropout": 0.0, "max_positions": 32}
GPT: dict[str, Any] = {
    "architecture": "decoder-only", "decoder_layers": 2, "positions": "learned", "norm_place": "pre", "activation": "gelu-tanh",
    "scale_embedding": False,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "architecture": "decoder-only", "decoder_layers": 2, "positions": "rotary", "norm_place": "pre", "norm": "rms", "kv_heads": 2,
    "activation": "swiglu", "attention_bias": False, "feed_forward_bias": False, "scale_embedding": False, "tie": "none",
}  # fmt: skip
BERT: dict[str, Any] = {
    "architecture": "encoder-only", "encoder_layers": 2, "positions": "learned", "activation": "gelu", "scale_embedding": False,
    "embedding_norm": True, "token_types": 2, "output_transform": True, "pooler": True, "output_bias": True,
}  # fmt: skip


def words_tokenizer(*, mask: bool = False) -> Tokenizer:
    """A tokenizer that splits at spaces and knows WORDS; with ``mask`` one of its entries stands for what is masked."""
    tokenizer = Tokenizer.train([WORDS + (" <mask>" if mask else "")], kind="whitespace", vocabulary_size=0)
    fields = {name: getattr(tokenizer, name) for name in ("kind", "joiner", "pad", "bos", "eos", "unk", "backend")}
    return Tokenizer(**fields, mask=tokenizer.backend.token_to_id("<mask>")) if mask else tokenizer


def bytes_tokenizer() -> Tokenizer:
    """A byte-pair tokenizer of a few merges: most characters beyond ASCII are several tokens."""
    return Tokenizer.train([WORDS, "a man rides a horse, said the man; ñandú 東京 🐟"] * 4, kind="bpe", vocabulary_size=300)


def random_bundle(changes: dict[str, Any], tokenizer: Tokenizer | None = None, *, seed: int = 1, **more: Any) -> Bundle:
    """A tiny model with random weights that are far from all alike."""
    tokenizer = tokenizer or words_tokenizer(mask=changes["architecture"] == "encoder-only")
    sizes = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer)}
    data = {"source": "aa", "target": "", "tokenizer": tokenizer.kind, "documents": "line"}
    config = Config().with_values(model=SIZES | sizes | changes | more, data=data)
    model = build_model(config.model, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return Bundle(config, model, tokenizer, tokenizer, {"step": 1})


@cache
def storyteller() -> Bundle:
    """A byte-pair language model that has learnt a sentence by heart: `SENTENCE`, over and over, until the end token."""
    tokenizer = Tokenizer.train([SENTENCE] * 4, kind="bpe", vocabulary_size=300)
    bundle = random_bundle(GPT, tokenizer, max_positions=64, d_model=32, d_ff=64)
    ids = torch.tensor([[tokenizer.bos, *tokenizer.encode(SENTENCE), tokenizer.eos]])
    steps = 60
    for step in range(steps):  # by the signs of the gradients: PyTorch's optimisers take seconds to import
        bundle.model.zero_grad()
        F.cross_entropy(bundle.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        with torch.no_grad():
            for parameter in bundle.model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.02 * (1 - step / steps) * parameter.grad.sign()
    bundle.model.eval()
    return bundle


SENTENCE = "Once upon a time 🐟 swam to 東京. The end."
