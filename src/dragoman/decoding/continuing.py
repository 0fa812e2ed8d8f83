"""A decoder-only model as search drives it: the prompt at once, then one position after another.

Shapes:  B prompts   S positions of the longest   K hypotheses of each   N = B·K rows   T positions so far, padding included   V vocabulary
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.decoding.products import Precision, Product, with_products
from dragoman.decoding.step import StepModel
from dragoman.errors import UsageError, option
from dragoman.model import LanguageModel
from dragoman.model.cache import SelfCache


@dataclass(frozen=True)
class Continued:
    """What a `LanguageModelStep` has seen. ``next`` (N, V) is what follows the prompt, until it is asked for.

    ``tokens`` (N, T), padded at the left, are kept where the model may have to see the last of them again.
    """

    cache: SelfCache
    next: Tensor | None
    tokens: Tensor | None


class LanguageModelStep(StepModel[Continued]):
    """A `LanguageModel` as a `StepModel` whose sources are prompts: what it is asked first follows the prompt, whatever token is given.

    With ``slide`` a row that fills all positions of the model goes on with its last ``slide`` tokens alone, computed anew as the first
    positions; without, the caller stays within them. The weights are those of the moment it is made, unless ``precision`` is fp32.
    """

    def __init__(self, model: LanguageModel, *, slide: int | None = None, precision: Precision = "fp32") -> None:
        self.model, self.slide = model, slide
        if slide is not None and not 1 <= slide < model.max_positions:
            raise UsageError(f"{option('slide')}={slide}: it must be at least 1 and less than the model's {model.max_positions} positions")
        # Of float32 one is made for each call (`Generator`), which sees weights that have changed: nothing is laid out for so short a time.
        self.inner = model if precision == "fp32" else with_products(model, precision)
        self.project = model.project if precision == "fp32" else Product(model.output, precision=precision, bias=model.output_bias)

    def start(self, source: Tensor, source_mask: Tensor) -> Continued:
        """All of the prompts (B, S), in one pass; the mask (B, S) is True at tokens, which stand together."""
        tokens, mask = padded_left(source, source_mask)
        hidden, cache = self.inner.step(tokens, self.inner.start(mask))  # (B, S, D)
        return Continued(cache, self._log_probs(hidden), tokens if self.slide else None)

    def next(self, tokens: Tensor, state: Continued) -> tuple[Tensor, Continued]:
        """One position; tokens (N,). Returns log-probabilities (N, V) and the state with it."""
        if state.next is not None:
            return state.next, replace(state, next=None)
        cache, seen = state.cache, state.tokens
        if seen is not None:
            cache, seen = self._with_room(cache, seen)
        hidden, cache = self.inner.step(tokens[:, None], cache)  # (N, 1, D)
        return self._log_probs(hidden), Continued(cache, None, None if seen is None else torch.cat((seen, tokens[:, None]), 1))

    def reorder(self, state: Continued, rows: Tensor) -> Continued:
        """The state of the given rows (B, K)."""
        flat = rows.flatten()
        kept = (None if part is None else part.index_select(0, flat) for part in (state.next, state.tokens))
        return Continued(state.cache.reorder(flat), *kept)

    def _log_probs(self, hidden: Tensor) -> Tensor:
        """Of what follows the last of hidden states (N, T, D)."""
        return self.project(hidden[:, -1]).float().log_softmax(-1)  # (N, V)

    def _with_room(self, cache: SelfCache, tokens: Tensor) -> tuple[SelfCache, Tensor]:
        """The cache and its tokens (N, T) with room for one position more in each row: full rows begin anew with their last tokens."""
        assert self.slide is not None
        padding = torch.zeros_like(tokens[:, 0]) if cache.padding is None else cache.padding  # (N,)
        lengths = cache.length - padding
        full = lengths >= self.model.max_positions
        if not full.any():
            return cache, tokens
        lengths = torch.where(full, self.slide, lengths)
        tokens = tokens[:, -int(lengths.max()) :]
        mask = torch.arange(tokens.size(1), device=tokens.device) >= tokens.size(1) - lengths[:, None]  # (N, T)
        return self.inner.step(tokens, self.inner.start(mask))[1], tokens


def padded_left(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (B, S) and their mask, True at tokens, moved so that all padding stands before the tokens; what is there is any token."""
    lengths = mask.sum(1, keepdim=True)  # (B, 1)
    places = torch.arange(mask.size(1), device=mask.device) - (mask.size(1) - lengths)  # (B, S)
    first = mask.long().argmax(1, keepdim=True)  # where the tokens begin
    return tokens.gather(1, places.clamp(min=0) + first), places >= 0
