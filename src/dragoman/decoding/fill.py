"""An encoder-only model at work: what is masked filled in, the vectors of texts, and how probable a text is to it.

Shapes:  B texts of a batch   T tokens of the longest, start and end included   D = d_model   V vocabulary
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.score import Scored
from dragoman.decoding.step import evaluation_mode
from dragoman.errors import DragomanError, UsageError

_log = logging.getLogger("dragoman")
_MASKED_AT_ONCE = 1024


@dataclass(frozen=True)
class Filling:
    """A token in the place of a mask: its id, its text and its probability there, and the whole text with it.

    ``ids`` are those of the whole text, start and end token included, in which the other masks stay; so do they in ``sentence``.
    """

    token: int
    text: str
    probability: float
    sentence: str
    ids: tuple[int, ...]


def fill(
    bundle: Bundle, texts: Sequence[str], *, top: int = 5, batch_tokens: int = 16_384, place: str = "", first_line: int = 1
) -> list[list[list[Filling]]]:
    """For each text, for each mask in it, the ``top`` most probable tokens there, each mask by itself.

    A mask is written as the tokenizer's own, `mask_text`. Raises DragomanError for a model of another kind, and, naming ``place`` and line
    counted from ``first_line``, for a text without a mask or of more tokens than the model takes.
    """
    model, tokenizer = bundle.masked_language_model, bundle.source_tokenizer
    mask = mask_text(tokenizer)
    where = [f"{place}, line {number}" if place else f"line {number}" for number, _ in enumerate(texts, start=first_line)]
    rows = [masked_ids(tokenizer, text) for text in texts]
    for name, row in zip(where, rows, strict=True):
        if tokenizer.mask not in row:
            raise DragomanError(f"{name} has nothing to fill in; write {mask} where a token is missing")
        _check_length(row, model.max_positions, name)
    top = min(top, len(tokenizer))
    found: dict[int, list[list[Filling]]] = {}
    with evaluation_mode([model]), torch.inference_mode():
        for batch in batches_of([len(row) for row in rows], batch_tokens=batch_tokens):
            ids, real = pad_rows([rows[number] for number in batch], pad=tokenizer.pad, device=model.output.weight.device)
            hidden = model.encode(ids, real)  # (B, T, D)
            for row, number in zip(hidden, batch, strict=True):
                places = [place for place, token in enumerate(rows[number]) if token == tokenizer.mask]
                logits = model.project(model.transform(row[places])).float()  # (masks, V)
                best = logits[:, : len(tokenizer)].topk(top)
                probabilities = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
                columns = zip(places, best.indices.tolist(), probabilities.tolist(), strict=True)
                found[number] = [
                    [_filling(tokenizer, rows[number], place, *pair) for pair in zip(*pairs, strict=True)] for place, *pairs in columns
                ]
    return [found[number] for number in range(len(texts))]


def _filling(tokenizer: Tokenizer, ids: list[int], place: int, token: int, probability: float) -> Filling:
    filled = [*ids[:place], token, *ids[place + 1 :]]
    shown = tokenizer.token(token) if token in tokenizer.textless else tokenizer.decode([token])
    return Filling(token, shown, probability, _with_masks(tokenizer, filled), tuple(filled))


def _with_masks(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids in which masks are seen."""
    if tokenizer.mask not in ids:
        return tokenizer.decode(ids)
    kept = [token for token in ids if token == tokenizer.mask or token not in tokenizer.textless]
    return tokenizer.plain(tokenizer.backend.decode(kept, skip_special_tokens=False))


def mask_text(tokenizer: Tokenizer) -> str:
    """How a mask is written in text, such as [MASK]; DragomanError for a tokenizer that has none."""
    if tokenizer.mask is None:
        raise DragomanError("the model's vocabulary has no token for what is masked; use a model that was trained to fill in masks")
    return tokenizer.token(tokenizer.mask)


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text with masks, start and end token included; a space before a mask belongs to what the mask stands for."""
    assert tokenizer.mask is not None
    first, *others = text.split(mask_text(tokenizer))
    ids = [tokenizer.bos, *tokenizer.encode(first.removesuffix(" ") if others else first)]
    for number, part in enumerate(others, start=1):
        last = number == len(others)
        ids += [tokenizer.mask, *_following(tokenizer, part if last else part.removesuffix(" "))]
    return [*ids, tokenizer.eos]


def _following(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text that follows a mask: without the space that the beginning of a text is given."""
    if text.startswith(" "):
        return tokenizer.encode(text[1:])
    if not text or tokenizer.kind == "whitespace":
        return tokenizer.encode(text)
    # Behind a sign that never joins with what follows, for a text alone would be taken for the beginning of one.
    sign = "x" if not text[0].isalnum() else "."
    before, both = tokenizer.encode(sign), tokenizer.encode(sign + text)
    return both[len(before) :] if both[: len(before)] == before else tokenizer.encode(text)


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

    Of a decoder-only model only the mean. A text of more tokens than the model takes is refused, or, with ``truncate``, cut at its end, and a
    warning names ``place`` and its line, counted from ``first_line``.
    """
    if pool not in ("mean", "first", "pooler"):
        raise UsageError(f"pool={pool}: unknown; choose among mean, first, pooler")
    if pool == "pooler" and bundle.masked_language_model.pooler is None:
        raise DragomanError("the model has no pooler; choose mean or first")
    if pool == "first" and bundle.config.model.architecture != "encoder-only":
        raise DragomanError("the first state of a decoder has seen the first token alone; choose mean")
    vectors = torch.empty(len(texts), bundle.config.model.d_model)
    for batch, states, real in _states(bundle, texts, truncate=truncate, batch_tokens=batch_tokens, place=place, first_line=first_line):
        if pool == "mean":
            pooled = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)  # (B, D)
        else:
            pooled = states[:, 0] if pool == "first" else bundle.masked_language_model.pool(states)
        vectors[batch] = pooled.float().cpu()
    return torch.nn.functional.normalize(vectors, dim=1) if normalize else vectors


def features(bundle: Bundle, texts: Sequence[str], *, batch_tokens: int = 16_384) -> list[Tensor]:
    """The hidden states (T, D) of each text's tokens, start and end token included where the model has them, float32 on the CPU.

    Raises DragomanError for an encoder-decoder, and for a text of more tokens than the model takes.
    """
    found: dict[int, Tensor] = {}
    for batch, states, real in _states(bundle, texts, truncate=False, batch_tokens=batch_tokens, place="", first_line=1):
        for number, row, tokens in zip(batch, states.float().cpu(), real.cpu(), strict=True):
            found[number] = row[tokens]
    return [found[number] for number in range(len(texts))]


def _states(
    bundle: Bundle, texts: Sequence[str], *, truncate: bool, batch_tokens: int, place: str, first_line: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Batches of similar length: the places of their texts, hidden states (B, T, D), and the mask (B, T), True at tokens."""
    from dragoman.decoding.generate import opening

    tokenizer = bundle.source_tokenizer
    decoder = bundle.config.model.architecture == "decoder-only"
    model = bundle.language_model if decoder else bundle.masked_language_model
    head = opening(bundle) if decoder else [tokenizer.bos]
    tail = [] if decoder else [tokenizer.eos]
    rows = []
    for number, ids in enumerate(tokenizer.encode_batch(texts), start=first_line):
        row = [*head, *ids, *tail] or [tokenizer.bos]
        where = f"{place}, line {number}" if place else f"line {number}"
        if truncate and len(row) > model.max_positions:
            _log.warning("%s has %d tokens and the model takes %d; the rest is left out", where, len(row), model.max_positions)
            row = [*row[: model.max_positions - len(tail)], *tail]
        _check_length(row, model.max_positions, where)
        rows.append(row)
    for batch in batches_of([len(row) for row in rows], batch_tokens=batch_tokens):
        ids, real = pad_rows([rows[number] for number in batch], pad=tokenizer.pad, device=model.output.weight.device)
        with evaluation_mode([model]), torch.inference_mode():
            states = bundle.language_model.hidden(ids, real) if decoder else bundle.masked_language_model.encode(ids, real)
        yield batch, states, real


def pseudo_score(bundle: Bundle, texts: Sequence[str], *, batch_tokens: int = 16_384) -> list[Scored]:
    """The pseudo-log-likelihood of each text (Salazar et al. 2020): the sum over its tokens of log P(token | all the others).

    Each token is masked in turn; start and end token are not counted. ``score`` is the same sum. Raises DragomanError for a model of another
    kind, one that knows no mask, and a text of more tokens than the model takes.
    """
    model, tokenizer = bundle.masked_language_model, bundle.source_tokenizer
    mask_text(tokenizer)
    rows = [[tokenizer.bos, *ids, tokenizer.eos] for ids in tokenizer.encode_batch(texts)]
    for number, row in enumerate(rows, start=1):
        _check_length(row, model.max_positions, f"line {number}")
    jobs = [(number, place) for number, row in enumerate(rows) for place in range(1, len(row) - 1)]
    scores = {number: [0.0] * (len(row) - 2) for number, row in enumerate(rows)}
    with evaluation_mode([model]), torch.inference_mode():
        for batch in batches_of([len(rows[number]) for number, _ in jobs], batch_tokens=batch_tokens):
            some = [jobs[job] for job in batch]
            for (number, place), score in zip(some, _masked_scores(bundle, rows, some).tolist(), strict=True):
                scores[number][place - 1] = score
    found = []
    for number, row in enumerate(rows):
        total = sum(scores[number])
        found.append(Scored(tuple(map(tokenizer.token, row[1:-1])), tuple(scores[number]), total, total))
    return found


def _masked_scores(bundle: Bundle, rows: Sequence[list[int]], jobs: Sequence[tuple[int, int]]) -> Tensor:
    """log P of the token at each (row, place), which is masked there, given the rest of its row: (jobs,)."""
    model, tokenizer = bundle.masked_language_model, bundle.source_tokenizer
    device = model.output.weight.device
    ids, real = pad_rows([rows[number] for number, _ in jobs], pad=tokenizer.pad, device=device)
    places = torch.tensor([place for _, place in jobs], device=device)[:, None]
    gold = ids.gather(1, places)  # (jobs, 1)
    hidden = model.encode(ids.scatter(1, places, tokenizer.mask or 0), real)  # (jobs, T, D)
    chosen = model.transform(hidden.gather(1, places[..., None].expand(-1, -1, hidden.size(2)))[:, 0])  # (jobs, D)
    parts = [
        model.project(some).float().log_softmax(-1).gather(1, tokens)[:, 0]
        for some, tokens in zip(chosen.split(_MASKED_AT_ONCE), gold.split(_MASKED_AT_ONCE), strict=True)
    ]
    return torch.cat(parts)


def _check_length(ids: Sequence[int], most: int, where: str) -> None:
    if len(ids) > most:
        raise DragomanError(f"{where} has {len(ids)} tokens and the model takes {most}; shorten it")
