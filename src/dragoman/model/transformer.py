"""Encoder, decoder and the Transformer they make (Section 3, Figure 1).

Shapes:  B batch   S source positions   T target positions   D = d_model   V target vocabulary
"""

from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from dragoman.model.cache import Cache
from dragoman.model.dropout import as_module
from dragoman.model.embedding import Embedding, LearnedPositions, NoPositions, PositionalEncoding
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.masks import causal_mask, padding_mask


class Encoder(nn.Module):
    """Embedding plus positions, dropout on their sum (5.4), then N layers; a final norm only with pre-norm layers."""

    def __init__(
        self, *, embedding: Embedding, positions: PositionalEncoding | LearnedPositions | NoPositions, layers: Iterable[EncoderLayer],
        dropout: float | nn.Module, final_norm: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.dropout = as_module(dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm or nn.Identity()

    def forward(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """source (B, S) of ids; mask broadcastable to (B, H, S, S). Returns the memory (B, S, D)."""
        x = self.dropout(self.positions(self.embedding(source)))  # (B, S, D)
        for layer in self.layers:
            x = layer(x, mask)
        memory: Tensor = self.final_norm(x)
        return memory


class Decoder(nn.Module):
    """Embedding plus positions, dropout on their sum (5.4), then N layers that also attend to the memory."""

    def __init__(
        self, *, embedding: Embedding, positions: PositionalEncoding | LearnedPositions | NoPositions, layers: Iterable[DecoderLayer],
        dropout: float | nn.Module, final_norm: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.dropout = as_module(dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm or nn.Identity()

    def start(self, memory: Tensor, memory_mask: Tensor | None = None) -> Cache:
        """The cache before the first target position; memory (B, S, D), memory_mask (B, 1, 1, S)."""
        return Cache(tuple(cast(DecoderLayer, layer).start(memory) for layer in self.layers), memory_mask)

    def forward(self, target: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """New target ids (B, T) after those in the cache. Returns hidden states (B, T, D) and the cache with them."""
        x = self.dropout(self.positions(self.embedding(target), cache.length))  # (B, T, D)
        # A single new position sees everything before it, so it needs no mask.
        mask = causal_mask(target.size(1), past=cache.length, device=target.device) if target.size(1) > 1 else None
        layers = []
        for layer, seen in zip(self.layers, cache.layers, strict=True):
            x, seen = layer(x, seen, mask, cache.memory_mask)
            layers.append(seen)
        return self.final_norm(x), Cache(tuple(layers), cache.memory_mask)


class Transformer(nn.Module):
    """The paper's encoder-decoder (Figure 1); ``output`` is the pre-softmax matrix, often the decoder's embedding itself (3.4)."""

    def __init__(self, *, encoder: Encoder, decoder: Decoder, output: Embedding, max_positions: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output
        self.max_positions = max_positions

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """source (B, S) and target (B, T) of ids, the target starting with <s>; source_mask (B, S), True at tokens.

        Position i of the result sees target positions up to i only. Returns logits (B, T, V).
        """
        return self.project(self.decode(target, self.encode(source, source_mask), source_mask))

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The memory (B, S, D) of source ids (B, S)."""
        memory: Tensor = self.encoder(source, _attention_mask(source_mask))
        return memory

    def decode(self, target: Tensor, memory: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) of a whole target (B, T), each position blind to later ones."""
        return self.step(target, self.start(memory, source_mask))[0]

    def project(self, hidden: Tensor) -> Tensor:
        """Logits (…, V) of hidden states (…, D)."""
        return self.output.logits(hidden)

    def start(self, memory: Tensor, source_mask: Tensor | None = None) -> Cache:
        """The cache before the first target position."""
        return self.decoder.start(memory, _attention_mask(source_mask))

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Hidden states (B, T, D) of the next tokens (B, T) after those in the cache, and the cache with them."""
        hidden, cache = self.decoder(tokens, cache)
        return hidden, cache


def _attention_mask(source_mask: Tensor | None) -> Tensor | None:
    return None if source_mask is None else padding_mask(source_mask)
