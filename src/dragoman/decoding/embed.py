"""The vectors of texts: hidden states of a model of one sequence, for each token or for each text.

Shapes:  B texts of a batch   T tokens of the longest, start and end included   D = d_model
"""

import logging
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.decoding.fill import check_length
from dragoman.decoding.generate import opening
from dragoman.decoding.step import evaluation_mode
from dragoman.errors import DragomanError, UsageError, as_texts

_log = logging.getLogger("dragoman")


def embed(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    pool: str = "mean",
    normalize: bool = False,
    truncate: bool = False,
    batch_tokens: int = 16_384,
    place: str = "",
    first_line: int = 1,
) -> Tensor:
    """A vector for each text, float32 (n, D) on the CPU, in order: the mean over its tokens, start and end token included (``mean``), the
    state of the start token (``first``), or what the model's pooler makes of that (``pooler``); of length 1 with ``normalize``.

    Of a decoder-only model only the mean. A text of more tokens than the model takes is refused, or, with ``truncate``, cut at its end,
    and a warning names ``place`` and its line, counted from ``first_line``. Raises UsageError for an unknown ``pool`` or a str as texts,
    DragomanError for a pool that the model does not have and for weights that give no numbers, too.
    """
    if pool not in ("mean", "first", "pooler"):
        raise UsageError(f"pool={pool}: unknown; choose among mean, first, pooler")
    if pool == "pooler" and bundle.config.model.architecture == "decoder-only":
        raise DragomanError("a decoder has no pooler; choose mean")
    if pool == "pooler" and bundle.masked_language_model.pooler is None:
        raise DragomanError("the model has no pooler; choose mean or first")
    if pool == "first" and bundle.config.model.architecture != "encoder-only":
        raise DragomanError("the first state of a decoder has seen the first token alone; choose mean")
    texts = as_texts(texts)
    vectors = torch.empty(len(texts), bundle.config.model.d_model)
    for batch, states, real in _states(bundle, texts, truncate=truncate, batch_tokens=batch_tokens, place=place, first_line=first_line):
        with torch.inference_mode():
            if pool == "mean":
                pooled = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)  # (B, D)
            else:
                pooled = states[:, 0] if pool == "first" else bundle.masked_language_model.pool(states)
        vectors[batch] = pooled.float().cpu()
    if len(broken := (~vectors.isfinite().all(1)).nonzero()[:, 0]):
        where = _where(place, first_line + int(broken[0]))
        raise DragomanError(f"{where} has a vector of what are no numbers: damaged weights; use another copy of the model")
    return torch.nn.functional.normalize(vectors, dim=1) if normalize else vectors


def features(bundle: Bundle, texts: Sequence[str], *, batch_tokens: int = 16_384) -> list[Tensor]:
    """The hidden states (T, D) of each text's tokens, start and end token included where the model has them, float32 on the CPU.

    Raises UsageError for a str as texts, DragomanError for an encoder-decoder and for a text of more tokens than the model takes.
    """
    texts = as_texts(texts)
    found: dict[int, Tensor] = {}
    for batch, states, real in _states(bundle, texts, truncate=False, batch_tokens=batch_tokens, place="", first_line=1):
        for number, row, tokens in zip(batch, states.float().cpu(), real.cpu(), strict=True):
            found[number] = row[tokens]
    return [found[number] for number in range(len(texts))]


def _states(
    bundle: Bundle, texts: Sequence[str], *, truncate: bool, batch_tokens: int, place: str, first_line: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Batches of similar length: the places of their texts, hidden states (B, T, D), and the mask (B, T), True at tokens."""
    if not bundle.config.model.single:
        raise DragomanError("the model is encoder-decoder, and not one that makes vectors of texts: use dragoman translate")
    tokenizer = bundle.source_tokenizer
    decoder = bundle.config.model.architecture == "decoder-only"
    model = bundle.language_model if decoder else bundle.masked_language_model
    head = opening(bundle) if decoder else [tokenizer.bos]
    tail = [] if decoder else [tokenizer.eos]
    rows = []
    for number, ids in enumerate(tokenizer.encode_batch(texts), start=first_line):
        row = [*head, *ids, *tail] or [tokenizer.bos]
        if truncate and len(row) > model.max_positions:
            _log.warning(
                "%s has %d tokens and the model takes %d; the rest is left out", _where(place, number), len(row), model.max_positions
            )
            row = [*row[: model.max_positions - len(tail)], *tail]
        check_length(row, model.max_positions, place, number)
        rows.append(row)
    for batch in batches_of([len(row) for row in rows], batch_tokens=batch_tokens):
        tokens, real = pad_rows([rows[number] for number in batch], pad=tokenizer.pad, device=model.output.weight.device)
        with evaluation_mode([model]), torch.inference_mode():
            states = bundle.language_model.hidden(tokens, real) if decoder else bundle.masked_language_model.encode(tokens, real)
        yield batch, states, real


def _where(place: str, line: int) -> str:
    return f"{place}, line {line}" if place else f"line {line}"
