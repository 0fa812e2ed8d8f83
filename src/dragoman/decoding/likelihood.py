"""How probable texts are to a decoder-only model, each token given those before it.

Shapes:  B windows of a batch   T positions of the longest   D = d_model   V vocabulary
"""

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.decoding.beam import check_alpha, length_penalty
from dragoman.decoding.generate import opening
from dragoman.decoding.score import Scored
from dragoman.decoding.side_by_side import Check
from dragoman.decoding.step import evaluation_mode
from dragoman.errors import DragomanError, as_texts
from dragoman.model import LanguageModel

_log = logging.getLogger("dragoman")
_POSITIONS_AT_ONCE = 1024


class _Window(NamedTuple):
    """Tokens of a text that the model reads at once, of which those from ``first`` on are predicted here."""

    text: int
    start: int
    first: int
    end: int


def score_lines(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    alpha: float = 0.0,
    batch_tokens: int = 16_384,
    place: str = "",
    first_line: int = 1,
    check: Check = lambda: None,
) -> list[Scored]:
    """The log-probability of each text as a whole one: its tokens after the start token, and the end token.

    A text of more tokens than the model has positions is read in windows that overlap by half, so that every token is predicted once, with
    at least half the positions before it; a warning names ``place`` and its line, counted from ``first_line``. ``check`` is called before
    each batch, and may raise. Raises UsageError for an ``alpha`` beyond ±10 or a str as texts, DragomanError for a model of another kind
    and for a text whose log-probability is no finite number.
    """
    check_alpha(alpha)
    texts = as_texts(texts)
    model, tokenizer = bundle.language_model, bundle.target_tokenizer
    where = [f"{place}, line {number}" if place else f"line {number}" for number, _ in enumerate(texts, start=first_line)]
    rows = [[tokenizer.bos, *ids, tokenizer.eos] for ids in tokenizer.encode_batch(texts)]
    most = model.max_positions
    for name, row in zip(where, rows, strict=True):
        if len(row) - 1 > most:
            notice = "%s has %d tokens, more than the model's %d positions; it is read in windows, each token after at least %d others"
            _log.warning(notice, name, len(row) - 1, most, most // 2)
    windows = [window for number, row in enumerate(rows) for window in _windows(number, len(row) - 1, most)]
    scores = [[0.0] * (len(row) - 1) for row in rows]
    with evaluation_mode([model]), torch.inference_mode():
        for batch in batches_of([window.end - window.start for window in windows], batch_tokens=batch_tokens):
            check()
            some = [windows[each] for each in batch]
            read = [rows[window.text][window.start : window.end] for window in some]
            following = [rows[window.text][window.start + 1 : window.end + 1] for window in some]
            for window, found in zip(some, _log_probs(model, read, following, pad=tokenizer.pad), strict=True):
                scores[window.text][window.first : window.end] = found[window.first - window.start :]
    scored = []
    for name, row, each in zip(where, rows, scores, strict=True):
        total = math.fsum(each)
        if not math.isfinite(total):
            raise DragomanError(f"{name} has log-probability {total}: damaged weights; use another copy of the model")
        scored.append(Scored(tuple(map(tokenizer.token, row[1:])), tuple(each), total, total / length_penalty(len(each), alpha)))
    return scored


class Read(NamedTuple):
    """A token of a prompt, its log-probability given those before it, None where nothing is before it, and the most probable ones there."""

    id: int
    score: float | None
    best: tuple[tuple[int, float], ...] = ()


def score_prompts(bundle: Bundle, prompts: Sequence[str], *, best: int = 0, batch_tokens: int = 16_384) -> list[list[Read]]:
    """The tokens of each prompt as a model that goes on with it reads them, without what stands before every prompt.

    ``best`` says how many of the most probable tokens are told with each. Raises DragomanError for a prompt of more tokens than the model
    has positions.
    """
    model, tokenizer, head = bundle.language_model, bundle.target_tokenizer, opening(bundle)
    rows = [[*head, *ids] or [tokenizer.bos] for ids in tokenizer.encode_batch(prompts)]
    for number, row in enumerate(rows, start=1):
        if len(row) > model.max_positions:
            raise DragomanError(f"prompt {number} has {len(row)} tokens, and the model {model.max_positions} positions; shorten it")
    found: list[list[Read]] = [[] for _ in rows]
    with evaluation_mode([model]), torch.inference_mode():
        for batch in batches_of([len(row) for row in rows], batch_tokens=batch_tokens):
            tokens, real = pad_rows([rows[place] for place in batch], pad=tokenizer.pad, device=model.output.weight.device)  # (B, T)
            for place, hidden in zip(batch, model.hidden(tokens, real), strict=True):
                found[place] = _read(model, rows[place], hidden, best)[len(head) :]
    return [[] if row == [tokenizer.bos] and not head else each for row, each in zip(rows, found, strict=True)]


def _read(model: LanguageModel, row: Sequence[int], hidden: Tensor, best: int) -> list[Read]:
    """The tokens of one row with what its hidden states (T, D) say of them."""
    read = [Read(row[0], None)]
    for start in range(0, len(row) - 1, _POSITIONS_AT_ONCE):
        following = row[start + 1 : start + 1 + _POSITIONS_AT_ONCE]
        log_probs = model.project(hidden[start : start + len(following)]).float().log_softmax(-1)  # (T, V)
        values, ids = (part.tolist() for part in log_probs.topk(min(best, log_probs.size(1))))
        scores = log_probs.gather(1, torch.tensor(following, device=log_probs.device)[:, None])[:, 0].tolist()
        told = [tuple(zip(own, value, strict=True)) for own, value in zip(ids, values, strict=True)]
        read += [Read(*each) for each in zip(following, scores, told, strict=True)]
    return read


def _windows(text: int, length: int, most: int) -> list[_Window]:
    """Windows of at most ``most`` of ``length`` tokens; after the first each goes on by half."""
    windows = [_Window(text, 0, 0, min(length, most))]
    step = most - most // 2
    while windows[-1].end < length:
        first = windows[-1].end
        end = min(first + step, length)
        windows.append(_Window(text, end - most, first, end))
    return windows


def _log_probs(model: LanguageModel, read: Sequence[Sequence[int]], following: Sequence[Sequence[int]], *, pad: int) -> list[list[float]]:
    """log P of each following token, given those read up to there."""
    device = model.output.weight.device
    tokens, real = pad_rows(read, pad=pad, device=device)  # (B, T)
    gold, _ = pad_rows(following, pad=pad, device=device)
    hidden = model.hidden(tokens, real).flatten(0, 1)  # (B·T, D)
    parts: list[Tensor] = []
    for some, wanted in zip(torch.split(hidden, _POSITIONS_AT_ONCE), torch.split(gold.flatten(), _POSITIONS_AT_ONCE), strict=True):
        parts.append(model.project(some).float().log_softmax(-1).gather(1, wanted[:, None])[:, 0])
    rows = torch.cat(parts).view(gold.shape).tolist()
    return [row[: len(ids)] for row, ids in zip(rows, following, strict=True)]
