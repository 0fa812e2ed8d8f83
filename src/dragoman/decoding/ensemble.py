"""Several models as one: the average of their probabilities.

Shapes:  B sentences   K hypotheses of each   N = B·K rows   V target vocabulary
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.step import State, StepModel
from dragoman.errors import DragomanError


class EnsembleStep(StepModel[tuple[State, ...]]):
    """Step models of one vocabulary as one `StepModel`, whose probabilities are the arithmetic mean of theirs."""

    def __init__(self, members: Sequence[StepModel[State]]) -> None:
        self.members = members

    def start(self, source: Tensor, source_mask: Tensor) -> tuple[State, ...]:
        """A state for each member."""
        return tuple(member.start(source, source_mask) for member in self.members)

    def next(self, tokens: Tensor, state: tuple[State, ...]) -> tuple[Tensor, tuple[State, ...]]:
        """One step of each member; tokens (N,). Returns the logarithm of the mean probability (N, V)."""
        steps = [member.next(tokens, one) for member, one in zip(self.members, state, strict=True)]
        return mean_log_prob([log_probs for log_probs, _ in steps]), tuple(one for _, one in steps)

    def reorder(self, state: tuple[State, ...], rows: Tensor) -> tuple[State, ...]:
        """The states of the given rows (B, K)."""
        return tuple(member.reorder(one, rows) for member, one in zip(self.members, state, strict=True))


def as_one(members: Sequence[StepModel[Any]]) -> StepModel[Any]:
    """The only one of the step models, or all of them together."""
    return members[0] if len(members) == 1 else EnsembleStep(members)


def mean_log_prob(log_probs: Sequence[Tensor]) -> Tensor:
    """log of the mean probability of tensors of one shape; the tensor itself where there is one."""
    return log_probs[0] if len(log_probs) == 1 else torch.stack(list(log_probs)).logsumexp(0) - math.log(len(log_probs))


def check_ensemble(bundle: Bundle, name: str, other: Bundle, other_name: str) -> None:
    """Raise DragomanError that says what differs unless both models share their vocabularies, entry for entry, and have as many rows for
    the target's, which may be more than its entries.
    """
    sides = (
        ("source", bundle.source_tokenizer, other.source_tokenizer),
        ("target", bundle.target_tokenizer, other.target_tokenizer),
    )
    for side, ours, theirs in sides:
        if ours.fingerprint != theirs.fingerprint:
            raise DragomanError(
                f"{other_name}: cannot work together with {name}: the {side} vocabulary is another ({_difference(ours, theirs)}); "
                "use models trained with one vocabulary, as those of one corpus or of `train --from` are"
            )
    rows, others = (each.config.model.target_vocabulary for each in (bundle, other))
    if rows != others:
        raise DragomanError(
            f"{other_name}: cannot work together with {name}: its output layer has {others:,} rows, not {rows:,}; "
            "use models with as many rows"
        )


def _difference(ours: Tokenizer, theirs: Tokenizer) -> str:
    if len(ours) != len(theirs):
        return f"{len(theirs):,} entries, not {len(ours):,}"
    entries = ((token, ours.token(token), theirs.token(token)) for token in range(len(ours)))
    first = next(((token, one, two) for token, one, two in entries if one != two), None)
    if first is None:
        return "the same entries, but text is cut or normalised in another way"
    return f"entry {first[0]} is {first[2]!r}, not {first[1]!r}"
