"""The type of the products where a translator may choose it: the fastest here whose scores stay near float32's.

Shapes:  B sentences   K hypotheses of each   N = B·K rows   S source positions   T output tokens   V target vocabulary
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batching import pad_rows
from dragoman.decoding.beam import Hypothesis, length_penalty
from dragoman.decoding.ensemble import as_one
from dragoman.decoding.matrices import FEWEST_NARROW
from dragoman.decoding.prepared import can_prepare, step_of
from dragoman.decoding.products import Precision
from dragoman.decoding.search import Search, Wanted
from dragoman.decoding.side_by_side import threads_of_one, workers_for
from dragoman.decoding.step import StepModel, largest
from dragoman.model import EncoderDecoder

NEAR = 0.05
"""Nats a token that log-probabilities may be from float32's, in the mean of any sentence: probabilities that differ by a twentieth.

Errors of tokens mostly cancel in a sentence, so a whole one is off by far less, and two hypotheses seldom change places.
"""
WORSE = 0.01
"""Nats a token that outputs may lose of float32's score, in the mean of all sentences: a hundredth of the probability of each."""
_FASTER = 0.9  # of float32's time, so that a choice does not hang on noise
_SENTENCES = 16  # to be checked
_ROWS = 128  # of a step that is timed
_ENCODED = 4  # sentences whose memory all its rows share
_ROUNDS, _SECONDS = 6, 0.5  # of timing: at most so many, three at least, and no more after so long
_HOPELESS = 4.0  # of float32's time, where a step takes long: such a type is not timed again
_BATCH_TOKENS = 16_384


@dataclass(frozen=True)
class Choice:
    """The type that is taken, and why."""

    precision: Precision
    why: str

    def __str__(self) -> str:
        return f"precision: {self.precision} ({self.why})"


@dataclass(frozen=True)
class Harm:
    """What another type does to the scores, in nats a token.

    ``apart``: how far its log-probabilities of float32's outputs are from float32's, in the sentence where they are farthest; ``worse``:
    what its own outputs lose of float32's score, in the mean, 0 while it is not known.
    """

    apart: float
    worse: float = 0.0

    @property
    def safe(self) -> bool:
        """Whether both are within their bounds."""
        return self.apart <= NEAR and self.worse <= WORSE

    def __str__(self) -> str:
        if self.apart <= NEAR and not self.safe:
            return f"its outputs score {self.worse:.2g} a token less"
        return f"log-probabilities differ by up to {self.apart:.2g} a token"


def choose_precision(search: Search, texts: Sequence[Wanted], models: Sequence[EncoderDecoder]) -> Choice:
    """The type in which ``models`` take clearly less time for a decoder step, here, and that is safe on the first of ``texts``.

    ``search`` is plain and in float32; texts are one or more, without prefixes and terms. Measuring takes as long as to encode four
    sentences in each type and half a second more, or three steps of each where they are slow; the check as long as it takes to translate a
    few sentences in each type. Raises DragomanError for damaged weights.
    """
    output = search.bundle.model.output.weight
    others = other_types(output.device)
    if not all(map(can_prepare, models)):
        return Choice("fp32", "the only type of models of this kind")
    if not others:
        return Choice("fp32", f"the only type on {output.device.type}")
    steps: dict[Precision, StepModel[Any]] = {"fp32": search.model}
    steps |= {name: as_one([step_of(model, precision=name) for model in models]) for name in others}
    with threads_of_one(workers_for(_ROWS, output)):  # as such steps are taken
        times = step_times(steps, search, texts)
    faster = sorted((name for name in others if times[name] <= _FASTER * times["fp32"]), key=times.__getitem__)
    if not faster:
        return Choice("fp32", f"{' and '.join(others)} {'is' if len(others) == 1 else 'are'} not clearly faster here")
    texts = texts[:_SENTENCES]
    exact = [found[0].hypothesis for found in search(texts, _BATCH_TOKENS)]
    on = f"on {len(texts)} {'sentence' if len(texts) == 1 else 'sentences'}"
    refused: list[str] = []
    for name in faster:
        harm, speed = harm_of(steps[name], search, texts, exact), times["fp32"] / times[name]
        if harm.safe:
            why = f"{speed:.1f} times as fast as fp32 here; {harm} {on}"
            return Choice(name, "; ".join([why, *refused]))
        refused.append(f"{name} is {speed:.1f} times as fast, but {harm} {on}")
    return Choice("fp32", "; ".join(refused))


def other_types(device: torch.device) -> list[Precision]:
    """The types beside float32 that a device has products of, whether fast or slow."""
    if device.type == "cpu":
        return ["bf16", "int8"] if torch.backends.quantized.engine != "none" else ["bf16"]
    return ["bf16"] if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else []


def step_times(steps: Mapping[Precision, StepModel[Any]], search: Search, texts: Sequence[Wanted]) -> dict[Precision, float]:
    """Seconds of a decoder step with its choice of tokens in each type, by turns: the least of a few, after one that does not count.

    The step has 128 rows or so, as 32 sentences with a beam of 4 have. A few texts are encoded for it once in each type, and their memory
    is repeated.
    """
    count = max(1, _ROWS // search.beam)
    source, mask = _sources(search, texts[: min(_ENCODED, count)])  # (E, S) of E sentences
    rows = (torch.arange(count, device=source.device) % len(source))[:, None].expand(-1, search.beam)  # (B, K)
    tokens = torch.full((rows.numel(),), search.bundle.target_tokenizer.bos, device=source.device)  # (N,)
    states = {name: step.reorder(step.start(source, mask), rows) for name, step in steps.items()}
    best = dict.fromkeys(steps, math.inf)
    began = time.perf_counter()
    for turn in range(_ROUNDS):
        for name in list(states):
            start = time.perf_counter()
            log_probs, states[name] = steps[name].next(tokens, states[name])
            float(largest(log_probs, min(search.beam, log_probs.size(1)))[0][0, 0])  # a GPU has finished when its number is here
            taken = time.perf_counter() - start
            if turn:
                best[name] = min(best[name], taken)
            if taken > _SECONDS and taken > _HOPELESS * best["fp32"]:
                del states[name]
        if turn > 1 and time.perf_counter() - began > _SECONDS:
            break
    return best


def harm_of(rough: StepModel[Any], search: Search, texts: Sequence[Wanted], exact: Sequence[Hypothesis]) -> Harm:
    """What ``rough`` does to the scores of ``exact``, the outputs that the search in float32 has for ``texts``.

    The rows are enough for all products to be in the type: hypotheses and texts are repeated, for few rows are computed in float32.
    """
    forced = forced_scores(rough, search, texts, [each.tokens for each in exact])
    pairs = [zip(own, each.token_scores, strict=True) for own, each in zip(forced, exact, strict=True)]
    differences = [fmean(abs(one - other) for one, other in pair) for pair in pairs]
    apart = max(differences, key=lambda each: math.inf if math.isnan(each) else each)  # what is no number is the farthest
    if not apart <= NEAR:
        return Harm(apart)
    repeated = [*texts] * -(-FEWEST_NARROW // (len(texts) * search.beam))
    outputs = [found[0].hypothesis.tokens for found in replace(search, model=rough)(repeated, _BATCH_TOKENS)[: len(texts)]]
    lost = []
    for own, output, each in zip(forced_scores(search.model, search, texts, outputs), outputs, exact, strict=True):
        score = sum(own) / length_penalty(len(output), search.alpha)
        a_token = length_penalty(len(each.tokens), search.alpha) / len(each.tokens)
        lost.append(0.0 if output == each.tokens else (each.score - score) * a_token)
    return Harm(apart, fmean(lost))


def forced_scores(
    model: StepModel[Any], search: Search, texts: Sequence[Wanted], outputs: Sequence[tuple[int, ...]]
) -> list[tuple[float, ...]]:
    """The log-probability of each token of given outputs, one for each text, step by step as a search computes them."""
    copies = -(-FEWEST_NARROW // len(texts))
    source, mask = _sources(search, texts)  # (B, S)
    target, _ = pad_rows([[*output] for output in outputs], pad=search.bundle.target_tokenizer.pad, device=source.device)  # (B, T)
    rows = torch.arange(len(texts), device=source.device)[:, None].expand(-1, copies)  # (B, K)
    state = model.reorder(model.start(source, mask), rows)
    tokens = torch.full((rows.numel(),), search.bundle.target_tokenizer.bos, device=source.device)  # (N,)
    scores = []
    for wanted in target.unbind(1):  # (B,)
        log_probs, state = model.next(tokens, state)  # (N, V)
        scores.append(log_probs[::copies].gather(1, wanted[:, None]))  # (B, 1)
        tokens = wanted.repeat_interleave(copies)
    return [tuple(row[: len(output)]) for row, output in zip(torch.cat(scores, 1).tolist(), outputs, strict=True)]


def _sources(search: Search, texts: Sequence[Wanted]) -> tuple[Tensor, Tensor]:
    device = search.bundle.model.output.weight.device
    return pad_rows([text.ids for text in texts], pad=search.bundle.source_tokenizer.pad, device=device)
