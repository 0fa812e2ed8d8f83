"""Guided alignment, a named departure: one head of the decoder's attention to the source learns where given alignments say.

Garg, Peitz, Nallasamy and Paulik, "Jointly Learning to Align and Translate with Transformer Models" (EMNLP 2019). There the head
is trained in a second pass over the whole target; here it is in the pass that learns to translate, so that what is read off when
translating is what was trained: position t has seen the target up to token t - 1, and its row, which chooses token t, learns the
alignment of token t.

The head is watched from outside, by a hook that is there for a pass whose batch has links. Without them nothing is done.

Shapes:  B pairs   H heads   T, S target and source tokens   K = d_k   A links between tokens
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from dragoman.config import Config, ModelConfig
from dragoman.errors import UsageError
from dragoman.model.layers import DecoderLayer
from dragoman.model.masks import as_boolean
from dragoman.model.transformer import Model, Transformer
from dragoman.training.loss import GuidedLoss, Loss

ARTICLE = 0.05
"""The weight that the article found best."""


def check_alignment_settings(config: Config) -> None:
    """UsageError for alignments without a weight, a weight without alignments, and a model or a head that cannot learn from them."""
    data, model, weight = config.data, config.model, config.training.alignment_weight
    if weight and not data.alignments:
        raise UsageError(f"training.alignment_weight={weight:g} needs alignments; give --alignments FILE for each --train, or set it to 0")
    if data.alignments and not weight:
        raise UsageError(
            f"--alignments without training.alignment_weight teach nothing; set training.alignment_weight={ARTICLE}, or leave them out"
        )
    if weight and model.architecture != "encoder-decoder":
        raise UsageError(
            f"training.alignment_weight={weight:g}: a model with model.architecture={model.architecture} has no heads that look at the "
            "source; leave it out, and --alignments"
        )
    chosen = [name for name, usual in (("alignment_layer", 0), ("alignment_head", 1)) if getattr(model, name) != usual]
    if chosen and not weight and not config.training.start_from:
        raise UsageError(
            f"{' and '.join(f'model.{name}={getattr(model, name)}' for name in chosen)} without alignments is a head that nobody trains to "
            "align; give --alignments and training.alignment_weight, or leave it out"
        )


def layer_to_align(config: Config) -> int:
    """model.alignment_layer of a training with these settings: with alignments the last layer but one, or the only one, unless given."""
    given = config.model.alignment_layer
    return given or (max(config.model.decoder_layers - 1, 1) if config.training.alignment_weight else 0)


@contextmanager
def watched_head(model: Model, config: ModelConfig) -> Iterator[list[Tensor]]:
    """While the block runs each pass adds the logarithms of the weights (B, T, S) of the head that learns to align to the list."""
    seen: list[Tensor] = []

    def look(_: torch.nn.Module, given: tuple[Any, ...], __: object) -> None:
        query, key, _value, mask = given
        seen.append(log_weights(query, key, mask, head=config.alignment_head - 1))

    layer = cast(DecoderLayer, cast(Transformer, model).decoder.layers[config.alignment_layer - 1])
    handle = layer.cross_attn.attention.register_forward_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def watched(model: Model, config: ModelConfig, links: Tensor | None) -> AbstractContextManager[list[Tensor]]:
    """`watched_head` for a batch with links; for one without, a block in which nothing is seen."""
    return nullcontext([]) if links is None else watched_head(model, config)


def log_weights(query: Tensor, key: Tensor, mask: Tensor | None, *, head: int) -> Tensor:
    """log softmax(Q Kᵀ / √d_k), of equation (1), of one head, in float32 at least and without dropout.

    query (B, H, T, K), key (B, H, S, K), mask broadcastable to (B, H, T, S), True where a query may attend. Returns (B, T, S); what is
    masked is finite, and far below all else.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        scores = query[:, head].to(wide) @ key[:, head].to(wide).transpose(1, 2) / math.sqrt(query.size(-1))  # (B, T, S)
        if mask is not None:
            allowed = as_boolean(mask).expand(*query.shape[:3], key.size(2))[:, head]
            scores = scores.masked_fill(~allowed, torch.finfo(wide).min)
        return scores.log_softmax(-1)


def alignment_loss(logarithms: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    """-Σ G · log A, and the number of aligned target tokens, over which the mean is to be taken.

    A are the head's weights, given as ``logarithms`` (B, T, S), and G, one row for each target token, has the share 1 / n at each of the n
    source tokens that ``links`` (A, 3), rows of (pair, target, source), give it. A target token without a link has no row in the sum.
    """
    pairs, targets, sources = links.unbind(1)
    rows = pairs * logarithms.size(1) + targets
    counts = torch.zeros(logarithms.shape[:2].numel(), dtype=torch.int64, device=links.device).index_add_(0, rows, torch.ones_like(rows))
    return -(logarithms[pairs, targets, sources] / counts[rows]).sum(), (counts > 0).sum()


def with_alignment(loss: Loss, seen: list[Tensor], links: Tensor | None) -> Loss | GuidedLoss:
    """``loss`` with the alignment's beside it, the mean of all passes that were ``seen``; as it is where none was."""
    if links is None or not seen:
        return loss
    found = [alignment_loss(each, links) for each in seen]
    return GuidedLoss(*loss, torch.stack([each for each, _ in found]).mean(), found[0][1])


def objective(loss: Loss | GuidedLoss, *, tokens: int, aligned: int, weight: float, factor: float) -> Tensor:
    """What is differentiated of one batch, so that over all batches and ranks of an update it adds up to

    (Σ smoothed) / ``tokens`` + ``weight`` · (Σ alignment) / ``aligned``, times ``factor``,

    with ``tokens`` all target tokens of the update, and ``aligned`` those of them that have a link: the mean over the ones and the mean
    over the others, however they lie in batches.
    """
    translation = loss.smoothed * factor / tokens
    return translation + loss.alignment * (factor * weight / max(aligned, 1)) if isinstance(loss, GuidedLoss) else translation
