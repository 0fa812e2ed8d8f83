"""Small models with random weights, for the tests of the model/ room."""

from typing import Any

import torch
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.model import Transformer, build_model

SIZES: dict[str, Any] = {
    "d_model": 24, "d_ff": 40, "n_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "source_vocabulary": 19, "target_vocabulary": 19,
    "max_positions": 32,
}  # fmt: skip


def small_model(**changes: Any) -> Transformer:
    """A model in evaluation mode whose biases and norms are random too, so that none of them can be forgotten unseen."""
    model = build_model(ModelConfig(**SIZES | changes), seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def random_ids(*shape: int, seed: int = 3) -> Tensor:
    """Ids of ordinary tokens: no specials."""
    return torch.randint(4, SIZES["target_vocabulary"], shape, generator=torch.Generator().manual_seed(seed))


def random_numbers(*shape: int, seed: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Independent N(0, 1)."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def token_mask(*lengths: int) -> Tensor:
    """The mask (B, S) of a batch of sentences of these lengths: True at tokens, False at the padding after them."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
