"""The log-probability that a model gives to translations that are already there.

Shapes:  B pairs   S, T source and target tokens, end token included   D = d_model   V target vocabulary
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.decoding.beam import check_alpha, length_penalty
from dragoman.decoding.ensemble import mean_log_prob
from dragoman.decoding.side_by_side import Check
from dragoman.decoding.split import longest_taken
from dragoman.errors import DragomanError, as_texts
from dragoman.model import EncoderDecoder

_POSITIONS_AT_ONCE = 1024


@dataclass(frozen=True)
class Scored:
    """What a model thinks of a given translation: natural log-probabilities, the end token's included.

    ``tokens`` and ``token_scores`` run in parallel; ``log_probability`` is the sum; ``score`` is the sum over the length penalty.
    """

    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    log_probability: float
    score: float


@dataclass
class Perplexity:
    """What a corpus of given translations, or texts, is worth to a model, added up one by one.

    ``tokens`` are the model's, ``words`` those between spaces of the plain text, ``bytes`` its size in UTF-8; all count one end for each
    text, whose probability is in the sum too, unless there are none.
    """

    pairs: int = 0
    tokens: int = 0
    words: int = 0
    log_probability: float = 0.0
    bytes: int = 0

    def add(self, scored: Scored, text: str, *, end: bool = True) -> None:
        """One pair more, with its target in plain text."""
        self.pairs += 1
        self.tokens += len(scored.tokens)
        self.words += len(text.split()) + end
        self.bytes += len(text.encode()) + end
        self.log_probability += scored.log_probability

    @property
    def per_token(self) -> float:
        """exp of the mean loss a token, in the unsmoothed likelihood: the paper's, which depends on the vocabulary."""
        return _exp(-self.log_probability / self.tokens)

    @property
    def per_word(self) -> float:
        """exp of the loss for each word: comparable between vocabularies, on the same text; infinite where there is none."""
        return _exp(-self.log_probability / self.words) if self.words else math.inf

    @property
    def per_byte(self) -> float:
        """exp of the loss for each byte: comparable between vocabularies and ways to cut words."""
        return _exp(-self.log_probability / self.bytes)

    @property
    def bits_per_byte(self) -> float:
        """The same as the bits that the model would need for a byte."""
        return -self.log_probability / self.bytes / math.log(2)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def score_pairs(model: EncoderDecoder, source: Tensor, source_mask: Tensor, target_input: Tensor, target_output: Tensor) -> Tensor:
    """log P(target_output[t] | source, target_input[0 … t]), float32 (B, T).

    source (B, S) and its mask, True at tokens; target_input (B, T) begins with the start token; target_output (B, T) ends with the end.
    """
    hidden = model.decode(target_input, model.encode(source, source_mask), source_mask).flatten(0, 1)  # (B·T, D)
    tokens = target_output.flatten()  # (B·T,)
    parts = []
    # In parts, because logits are far wider than hidden states.
    for start in range(0, len(tokens), _POSITIONS_AT_ONCE):
        here = slice(start, start + _POSITIONS_AT_ONCE)
        log_probs = model.project(hidden[here]).float().log_softmax(-1)  # (positions, V)
        parts.append(log_probs.gather(1, tokens[here, None])[:, 0])
    return torch.cat(parts).view(target_output.shape)  # (B, T)


def score_texts(
    bundle: Bundle,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    alpha: float,
    batch_tokens: int,
    ensemble: Sequence[Bundle] = (),
    first_line: int = 1,
    check: Check = lambda: None,
) -> list[Scored]:
    """The score of each target as the translation of its source, in order; by the mean probability of the models, ``ensemble`` included.

    Errors name a pair by its number, counted from ``first_line``. ``check`` is called before each batch, and may raise. Raises UsageError
    for an ``alpha`` beyond ±10 or a str as texts, and DragomanError when the counts differ, for a language tag that is missing or unknown
    and for a pair with more tokens than all models take: nothing is cut; or whose log-probability is no finite number.
    """
    check_alpha(alpha)
    sources, targets = as_texts(sources, "sources"), as_texts(targets, "targets")
    if len(sources) != len(targets):
        raise DragomanError(f"{len(sources)} sources but {len(targets)} targets; each target needs the source it translates")
    source_tokenizer, target_tokenizer = bundle.source_tokenizer, bundle.target_tokenizer
    heads = [source_tokenizer.split_tag(source, place=f"pair {number}") for number, source in enumerate(sources, start=first_line)]
    encoded = source_tokenizer.encode_batch([text for _, text in heads])
    source_ids = [source_tokenizer.as_source([*head, *ids]) for (head, _), ids in zip(heads, encoded, strict=True)]
    target_ids = [[*ids, target_tokenizer.eos] for ids in target_tokenizer.encode_batch(targets)]
    lengths = [max(len(source), len(target)) for source, target in zip(source_ids, target_ids, strict=True)]
    limit = min(longest_taken(each.config) for each in (bundle, *ensemble))
    for number, length in enumerate(lengths, start=first_line):
        if length > limit:
            raise DragomanError(f"pair {number} has {length} tokens on its longer side and the model takes {limit}; shorten the pair")
    device = bundle.model.output.weight.device
    scored: dict[int, Scored] = {}
    for batch in batches_of(lengths, batch_tokens=batch_tokens):
        check()
        source, source_mask = pad_rows([source_ids[place] for place in batch], pad=source_tokenizer.pad, device=device)
        target, _ = pad_rows([target_ids[place] for place in batch], pad=target_tokenizer.pad, device=device)
        target_input = torch.cat((torch.full_like(target[:, :1], target_tokenizer.bos), target[:, :-1]), 1)  # (B, T)
        by_model = [score_pairs(each.encoder_decoder, source, source_mask, target_input, target) for each in (bundle, *ensemble)]
        for place, row in zip(batch, mean_log_prob(by_model).tolist(), strict=True):
            ids = target_ids[place]
            total = sum(row[: len(ids)])
            tokens = tuple(target_tokenizer.token(token) for token in ids)
            scored[place] = Scored(tokens, tuple(row[: len(ids)]), total, total / length_penalty(len(ids), alpha))
    found = [scored[place] for place in range(len(sources))]
    for number, each in enumerate(found, start=first_line):
        if not math.isfinite(each.log_probability):
            raise DragomanError(f"pair {number} has log-probability {each.log_probability}: damaged weights; use another copy of the model")
    return found
