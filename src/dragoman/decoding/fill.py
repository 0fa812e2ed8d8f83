"""An encoder-only model fills in what is masked, and says by that how probable a text is.

Shapes:  B texts of a batch   T tokens of the longest, start and end included   D = d_model   V vocabulary
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.score import Scored
from dragoman.decoding.side_by_side import Check
from dragoman.decoding.step import evaluation_mode
from dragoman.errors import DragomanError, LineError, UsageError, as_texts

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
    bundle: Bundle,
    texts: Sequence[str],
    *,
    top: int = 5,
    among: Sequence[int] | None = None,
    batch_tokens: int = 16_384,
    place: str = "",
    first_line: int = 1,
    check: Check = lambda: None,
) -> list[list[list[Filling]]]:
    """For each text, for each mask in it, the ``top`` most probable tokens there, ``among`` these if they are given, each mask by itself.

    A mask is written as the tokenizer's own, `mask_text`. ``check`` is called before each batch, and may raise. Raises UsageError when no
    token is asked for and for a str as texts, DragomanError for a model of another kind, and, naming ``place`` and line counted from
    ``first_line``, for a text without a mask, of more tokens than the model takes, or whose probabilities are no numbers.
    """
    if top < 1 or (among is not None and not among):
        raise UsageError(f"top={top} among {'all' if among is None else len(among)} tokens: ask for at least one of at least one")
    texts = as_texts(texts)
    model, tokenizer = bundle.masked_language_model, bundle.source_tokenizer
    mask = mask_text(tokenizer)
    where = [f"{place}, line {number}" if place else f"line {number}" for number, _ in enumerate(texts, start=first_line)]
    rows = [masked_ids(tokenizer, text) for text in texts]
    for number, (name, row) in enumerate(zip(where, rows, strict=True), start=first_line):
        if tokenizer.mask not in row:
            raise LineError(f"{name} has nothing to fill in; write {mask} where a token is missing", number)
        check_length(row, model.max_positions, place, number)
    allowed = torch.tensor(sorted(set(range(len(tokenizer)) if among is None else among)), device=model.output.weight.device)
    found: dict[int, list[list[Filling]]] = {}
    with evaluation_mode([model]), torch.inference_mode():
        for batch in batches_of([len(row) for row in rows], batch_tokens=batch_tokens):
            check()
            ids, real = pad_rows([rows[number] for number in batch], pad=tokenizer.pad, device=model.output.weight.device)
            hidden = model.encode(ids, real)  # (B, T, D)
            for row, number in zip(hidden, batch, strict=True):
                places = [place for place, token in enumerate(rows[number]) if token == tokenizer.mask]
                logits = model.project(model.transform(row[places])).float()  # (masks, V)
                best = logits[:, allowed].topk(min(top, len(allowed)))
                probabilities = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
                if not probabilities.isfinite().all():
                    raise DragomanError(
                        f"{where[number]} has probabilities that are no numbers: damaged weights; use another copy of the model"
                    )
                columns = zip(places, allowed[best.indices].tolist(), probabilities.tolist(), strict=True)
                found[number] = [
                    [_filling(tokenizer, rows[number], at, *pair) for pair in zip(tokens, shares, strict=True)]
                    for at, tokens, shares in columns
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
    """The ids of a text with masks, start and end token included; a space before a mask belongs to the word that the mask stands for."""
    assert tokenizer.mask is not None
    *others, last = text.split(mask_text(tokenizer))
    parts = [part if tokenizer.kind == "characters" else part.removesuffix(" ") for part in others] + [last]
    ids = [tokenizer.bos, *tokenizer.encode(parts[0])]
    for part in parts[1:]:
        ids += [tokenizer.mask, *_following(tokenizer, part)]
    return [*ids, tokenizer.eos]


def _following(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text that follows a mask: without the space that some vocabularies put before the beginning of a text."""
    if tokenizer.kind == "whitespace" or not text:
        return tokenizer.encode(text.removeprefix(" "))
    # Behind a sign that does not join with what follows.
    sign = "." if text[0].isalnum() else "x"
    before, both = tokenizer.encode(sign), tokenizer.encode(sign + text)
    return both[len(before) :] if both[: len(before)] == before else tokenizer.encode(text)


def pseudo_score(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    batch_tokens: int = 16_384,
    place: str = "",
    first_line: int = 1,
    check: Check = lambda: None,
) -> list[Scored]:
    """The pseudo-log-likelihood of each text (Salazar et al. 2020): the sum over its tokens of log P(token | all the others).

    Each token is masked in turn; start and end token are not counted. ``score`` is the same sum. ``check`` is called before each batch, and
    may raise. Raises UsageError for a str as texts, DragomanError for a model of another kind, one that knows no mask, and, naming
    ``place`` and line, a text of more tokens than the model takes.
    """
    texts = as_texts(texts)
    model, tokenizer = bundle.masked_language_model, bundle.source_tokenizer
    mask_text(tokenizer)
    rows = [[tokenizer.bos, *ids, tokenizer.eos] for ids in tokenizer.encode_batch(texts)]
    for number, row in enumerate(rows, start=first_line):
        check_length(row, model.max_positions, place, number)
    jobs = [(number, at) for number, row in enumerate(rows) for at in range(1, len(row) - 1)]
    scores = {number: [0.0] * (len(row) - 2) for number, row in enumerate(rows)}
    with evaluation_mode([model]), torch.inference_mode():
        for batch in batches_of([len(rows[number]) for number, _ in jobs], batch_tokens=batch_tokens):
            check()
            some = [jobs[job] for job in batch]
            for (number, at), score in zip(some, _masked_scores(bundle, rows, some).tolist(), strict=True):
                scores[number][at - 1] = score
    found = []
    for number, row in enumerate(rows):
        total = math.fsum(scores[number])
        if not math.isfinite(total):
            where = f"{place}, line {first_line + number}" if place else f"line {first_line + number}"
            raise DragomanError(f"{where} has log-probability {total}: damaged weights; use another copy of the model")
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
        for some, tokens in zip(torch.split(chosen, _MASKED_AT_ONCE), torch.split(gold, _MASKED_AT_ONCE), strict=True)
    ]
    return torch.cat(parts)


def check_length(ids: Sequence[int], most: int, place: str, line: int) -> None:
    """Raise LineError that begins with ``place``, if there is one, and the line for more ids than ``most``."""
    if len(ids) > most:
        where = f"{place}, line {line}" if place else f"line {line}"
        raise LineError(f"{where} has {len(ids)} tokens and the model takes {most}; shorten it", line)
