"""An encoder and a decoder behind one interface (Section 3), which training, search and evaluation talk to, whatever is inside.

Shapes:  B batch   S source positions   T target positions   D = d_model   V target vocabulary
"""

from typing import Any

from torch import Tensor, nn

from dragoman.model.cache import DecoderCache
from dragoman.model.embedding import Embedding


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
        return logits_of(hidden, self.output, self.output_bias)

    def start(self, memory: Tensor, source_mask: Tensor | None = None) -> DecoderCache:
        """The cache before the first target position."""
        decoder: Any = self.decoder
        cache: DecoderCache = decoder.start(memory, source_mask)
        return cache

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, DecoderCache]:
        """Hidden states (B, T, D) of the next tokens (B, T) after those in the cache, and the cache with them."""
        hidden, cache = self.decoder(tokens, cache)
        return hidden, cache


def logits_of(hidden: Tensor, output: Embedding, bias: Tensor | None) -> Tensor:
    """Logits (…, V) of hidden states (…, D) by the output matrix, and its bias (V,) where there is one."""
    logits = output.logits(hidden)
    return logits if bias is None else logits + bias  # §3.4 biased = x Eᵀ + b
