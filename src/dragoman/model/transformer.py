"""Encoder, decoder and the Transformer they make (Section 3, Figure 1), and the models of one sequence that came of its halves.

Shapes:  B batch   S source positions   T target positions   D = d_model   V target vocabulary
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from dragoman.model.cache import Cache, DecoderCache, SelfCache
from dragoman.model.dropout import as_module
from dragoman.model.embedding import Embedding, LearnedPositions, NoPositions, PositionalEncoding
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.model.masks import causal_mask, padding_mask

Positions = PositionalEncoding | LearnedPositions | NoPositions


class Encoder(nn.Module):
    """Embedding plus positions, dropout on their sum (5.4), then N layers; a final norm only with pre-norm layers.

    Named departures of BERT: ``token_types``, learned vectors (kinds, D) added to the sum, and ``embedding_norm``, a norm on it.
    """

    def __init__(
        self, *, embedding: Embedding, positions: Positions, layers: Iterable[EncoderLayer], dropout: float | nn.Module,
        final_norm: nn.Module | None = None, token_types: nn.Embedding | None = None, embedding_norm: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.token_types = token_types
        self.embedding_norm = embedding_norm or nn.Identity()
        self.dropout = as_module(dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm or nn.Identity()

    def forward(self, source: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        """source (B, S) of ids; mask broadcastable to (B, H, S, S); types (B, S), all 0 when not given. Returns the memory (B, S, D)."""
        x = self.positions(self.embedding(source))  # (B, S, D)
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros_like(source) if types is None else types)
        x = self.dropout(self.embedding_norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        memory: Tensor = self.final_norm(x)
        return memory


class Decoder(nn.Module):
    """Embedding plus positions, dropout on their sum (5.4), then N layers that also attend to the memory."""

    def __init__(
        self, *, embedding: Embedding, positions: Positions, layers: Iterable[DecoderLayer],
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


class EncoderDecoder(nn.Module):
    """Source ids to a memory, and target ids after one another to what comes next; ``output`` is the pre-softmax matrix.

    ``encoder`` makes the memory of source ids (B, S) and a mask (B, S) or None, True at tokens. ``decoder`` has ``start``, the cache before
    the first target position, and makes hidden states (B, T, D) of target ids (B, T) and a cache. Both have an ``embedding``.
    ``output_bias`` (V,) on the logits is a named departure.
    """

    def __init__(
        self, *, encoder: nn.Module, decoder: nn.Module, output: Embedding, max_positions: int, output_bias: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output
        self.output_bias = output_bias
        self.max_positions = max_positions

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """source (B, S) and target (B, T) of ids, the target starting with <s>; source_mask (B, S), True at tokens.

        Position i of the result sees target positions up to i only. Returns logits (B, T, V).
        """
        return self.project(self.decode(target, self.encode(source, source_mask), source_mask))

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The memory (B, S, …) of source ids (B, S)."""
        memory: Tensor = self.encoder(source, source_mask)
        return memory

    def decode(self, target: Tensor, memory: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) of a whole target (B, T), each position blind to later ones."""
        return self.step(target, self.start(memory, source_mask))[0]

    def project(self, hidden: Tensor) -> Tensor:
        """Logits (…, V) of hidden states (…, D)."""
        return self.output.logits(hidden, self.output_bias)

    def start(self, memory: Tensor, source_mask: Tensor | None = None) -> DecoderCache:
        """The cache before the first target position."""
        decoder: Any = self.decoder
        cache: DecoderCache = decoder.start(memory, source_mask)
        return cache

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, DecoderCache]:
        """Hidden states (B, T, D) of the next tokens (B, T) after those in the cache, and the cache with them."""
        hidden, cache = self.decoder(tokens, cache)
        return hidden, cache


class Transformer(EncoderDecoder):
    """The paper's encoder-decoder (Figure 1); ``output`` is the pre-softmax matrix, often the decoder's embedding itself (3.4).

    ``output_bias`` (V,) on the logits is a named departure.
    """

    encoder: Encoder
    decoder: Decoder

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """The memory (B, S, D) of source ids (B, S)."""
        memory: Tensor = self.encoder(source, _attention_mask(source_mask))
        return memory

    def start(self, memory: Tensor, source_mask: Tensor | None = None) -> Cache:
        """The cache before the first target position."""
        return self.decoder.start(memory, _attention_mask(source_mask))

    def step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Hidden states (B, T, D) of the next tokens (B, T) after those in the cache, and the cache with them."""
        hidden, cache = self.decoder(tokens, cache)
        return hidden, cache


class LanguageModel(nn.Module):
    """Decoder only, as GPT: embedding plus positions, then N layers of causal self-attention and feed-forward, without cross-attention.

    Its layers are those of the encoder (3.1) under the decoder's mask (3.2.3). Departures as in `Encoder` and `Transformer`.
    """

    def __init__(
        self, *, embedding: Embedding, positions: Positions, layers: Iterable[EncoderLayer], dropout: float | nn.Module, output: Embedding,
        max_positions: int, final_norm: nn.Module | None = None, output_bias: nn.Parameter | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.dropout = as_module(dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm or nn.Identity()
        self.output = output
        self.output_bias = output_bias
        self.max_positions = max_positions

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """tokens (B, T) of ids; mask (B, T), True at tokens, False at padding before or after them.

        Position i of the result sees positions up to i only. Returns logits (B, T, V).
        """
        return self.project(self.hidden(tokens, mask))

    def hidden(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D); arguments as for the model itself."""
        return self.step(tokens, self.start(mask))[0]

    def project(self, hidden: Tensor) -> Tensor:
        """Logits (…, V) of hidden states (…, D)."""
        return self.output.logits(hidden, self.output_bias)

    def start(self, mask: Tensor | None = None) -> SelfCache:
        """The cache before the first position of a batch whose first tokens have this mask (B, T), True at tokens.

        Padding before them attends to nothing and is not counted as positions; what is behind them no token sees.
        """
        if mask is None or bool(mask[:, 0].all()):
            return SelfCache()
        return SelfCache(padding=(~mask).long().cumprod(1).sum(1))  # (B,)

    def step(self, tokens: Tensor, cache: SelfCache) -> tuple[Tensor, SelfCache]:
        """Hidden states (B, T, D) of the next tokens (B, T) after those in the cache, and the cache with them."""
        start, padding = cache.length, cache.padding
        places = start if padding is None else start - padding
        x = self.dropout(self.positions(self.embedding(tokens), places))  # (B, T, D)
        mask = causal_mask(tokens.size(1), past=start, device=tokens.device) if tokens.size(1) > 1 else None
        if padding is not None:
            real = (torch.arange(start + tokens.size(1), device=tokens.device) >= padding[:, None])[:, None, None]  # (B, 1, 1, Tk)
            mask = real if mask is None else mask & real
        layers = []
        for layer, past in zip(self.layers, cache.layers or (None,) * len(self.layers), strict=True):
            x, seen = cast(EncoderLayer, layer).extend(x, past, mask, padding=padding)
            layers.append(seen)
        return self.final_norm(x), SelfCache(tuple(layers), padding)


class MaskedLanguageModel(nn.Module):
    """Encoder only, as BERT: every position sees all others, and says which token a masked one was.

    ``transform`` (D to D) comes before the output matrix, ``pooler`` (D to D) and tanh make one vector of the first position's state.
    """

    def __init__(
        self, *, encoder: Encoder, output: Embedding, max_positions: int, transform: nn.Module | None = None,
        output_bias: nn.Parameter | None = None, pooler: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = encoder
        self.transform = transform or nn.Identity()
        self.output = output
        self.output_bias = output_bias
        self.pooler = pooler
        self.max_positions = max_positions

    def forward(self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        """tokens (B, T) of ids; mask (B, T), True at tokens; types (B, T) of segments, all 0 when not given. Returns logits (B, T, V)."""
        return self.project(self.transform(self.encode(tokens, mask, types)))

    def encode(self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D); arguments as for the model itself."""
        hidden: Tensor = self.encoder(tokens, _attention_mask(mask), types)
        return hidden

    def project(self, transformed: Tensor) -> Tensor:
        """Logits (…, V) of what ``transform`` made of hidden states (…, D)."""
        return self.output.logits(transformed, self.output_bias)

    def pool(self, hidden: Tensor) -> Tensor:
        """The pooler's vector (B, D) of hidden states (B, T, D); ValueError for a model without one."""
        if self.pooler is None:
            raise ValueError("this model has no pooler; take the mean or the first position")
        pooled: Tensor = self.pooler(hidden[:, 0])
        return pooled.tanh()


Model = EncoderDecoder | LanguageModel | MaskedLanguageModel
"""What settings can make (`build_model`)."""


def _attention_mask(source_mask: Tensor | None) -> Tensor | None:
    return None if source_mask is None else padding_mask(source_mask)
