"""Everything about one sentence: its pieces, what the search tried, every number of the pass that chose each token.

Shapes:  L layers   H heads   T, S target and source tokens, end token included   V target vocabulary
"""

import base64
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dragoman.bundle import Bundle
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.beam import check_alpha
from dragoman.decoding.fill import masked_ids
from dragoman.decoding.split import longest_taken
from dragoman.errors import DragomanError, UsageError
from dragoman.explain.beams import BeamRecord, search_beams
from dragoman.explain.record import Trace, modules_of, parameters_of, plain_copy, recording
from dragoman.explain.words import candidates_table, kind_words, reference_table, reference_words, token_words, tree_table
from dragoman.model import LanguageModel, MaskedLanguageModel, Transformer

Weights = NDArray[np.float32]
KINDS = {"encoder": ("encoder", "self"), "decoder": ("decoder", "self"), "cross": ("decoder", "cross")}
"""Attention of the encoder to itself, of the decoder to itself, and of the decoder to the memory (3.2.3): the stack and the name in it."""


@dataclass(frozen=True)
class Side:
    """A text in ids, the end token last, and the pieces that they stand for."""

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    unknown: tuple[int, ...]  # places of pieces that are not in the vocabulary

    @classmethod
    def of(cls, text: str, ids: Sequence[int], tokenizer: Tokenizer) -> "Side":
        """With the pieces of a tokenizer."""
        places = tuple(place for place, token in enumerate(ids) if token == tokenizer.unk)
        return cls(text, tuple(ids), tuple(tokenizer.token(token) for token in ids), places)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {"text": self.text, "pieces": list(self.pieces), "ids": list(self.ids), "unk": list(self.unknown)}


def piece_of(tokenizer: Tokenizer, token: int) -> str:
    """The piece of an id; of a row of the output matrix that the vocabulary has no entry for, its number."""
    return tokenizer.token(token) if token < len(tokenizer) else f"<row {token}>"


@dataclass(frozen=True)
class ScoredTarget:
    """A target, the hidden states (T, D) that choose its tokens, and the log-probabilities (T, V) of all that could stand there."""

    side: Side
    hidden: Weights
    log_probs: Weights

    @cached_property
    def token_scores(self) -> NDArray[Any]:
        """Log-probabilities (T,) of the tokens."""
        return self.log_probs[np.arange(len(self.side.ids)), list(self.side.ids)]

    def ranks(self) -> list[int]:
        """The place of each token among all by probability, from 1."""
        return [1 + int((row > row[token]).sum()) for row, token in zip(self.log_probs, self.side.ids, strict=True)]

    def entropy(self) -> list[float]:
        """-Σ p log p of each place, in nats."""
        log_probs = self.log_probs.astype(np.float64)
        return [float(-(np.exp(row) * np.maximum(row, -1e9)).sum()) for row in log_probs]

    def top(self, count: int) -> list[list[tuple[int, float]]]:
        """The most probable tokens of each place, with their probabilities."""
        best = np.argsort(-self.log_probs, axis=-1, kind="stable")[:, :count]
        return [[(int(token), math.exp(row[token])) for token in tokens] for row, tokens in zip(self.log_probs, best, strict=True)]

    def steps(self, tokenizer: Tokenizer, count: int) -> list[dict[str, Any]]:
        """As JSON, a record for each token."""
        columns = zip(self.side.pieces, self.token_scores.tolist(), self.entropy(), self.ranks(), self.top(count), strict=True)
        return [
            {
                "piece": piece, "logprob": score, "entropy": entropy, "rank": rank,
                "top": [[piece_of(tokenizer, one), p] for one, p in top], "said": token_words(number, piece, score, rank, entropy),
            }
            for number, (piece, score, entropy, rank, top) in enumerate(columns, start=1)
        ]  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """What was asked and what was found; `trace` has the names and the numbers of the pass, in which target token t is chosen in row t."""

    bundle: Bundle
    source: Side
    target: ScoredTarget
    beams: BeamRecord | None  # of a model that translates
    chosen: int
    reference: ScoredTarget | None
    trace: Trace
    timing_ms: dict[str, float] = field(default_factory=dict)

    def module(self, path: str) -> nn.Module:
        """The module of a place in the model, by its names as in `modules_of`."""
        return next(module for place, module in modules_of(self.bundle.model) if place == path)

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention that the model has, of `KINDS`."""
        return [kind for kind, (stack, name) in KINDS.items() if f"{stack}.0.{name}.weights" in self.trace]

    def layers(self, kind: str) -> int:
        """The layers that have this kind of attention."""
        stack, name = KINDS[kind]
        return next(count for count in range(len(self.trace)) if f"{stack}.{count}.{name}.weights" not in self.trace)

    def weights(self, kind: str) -> Weights:
        """The weights of a kind of attention in all layers and heads, (L, H, queries, keys): a row says where a query looks."""
        stack, name = KINDS[kind]
        return np.stack([self.trace.array(f"{stack}.{layer}.{name}.weights") for layer in range(self.layers(kind))])

    def queries(self, kind: str) -> tuple[str, ...]:
        """What the rows of a kind of attention stand for: the decoder's are the tokens that it has just read, the start token first."""
        return {"encoder": self.source.pieces, "decoder": self.read, "cross": self.target.side.pieces}[kind]

    def keys(self, kind: str) -> tuple[str, ...]:
        """What the columns of a kind of attention stand for."""
        return self.read if kind == "decoder" else self.source.pieces

    @cached_property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The weights of the model, by their names."""
        return parameters_of(self.bundle.model)

    @cached_property
    def read(self) -> tuple[str, ...]:
        """What the decoder reads: the start token, then the target without its last."""
        target = self.bundle.target_tokenizer
        return (target.token(target.bos), *self.target.side.pieces[:-1])

    def record(self, *, kinds: Sequence[str] | None = None, top_k: int = 8) -> dict[str, Any]:
        """As JSON: numbers of pictures in 8 bits, for all others there is `slice_of`."""
        config, tokenizer = self.bundle.config, self.bundle.target_tokenizer
        model = config.model
        return {
            "model": {
                "architecture": model.architecture, "languages": [code for code in (config.data.source, config.data.target) if code],
                "step": self.bundle.info.get("step"),
                "layers": {kind: self.layers(kind) for kind in self.kinds}, "heads": model.n_heads, "d_model": model.d_model,
                "norm": model.norm_place, "positions": model.positions,
            },
            "source": self.source.record(),
            "target": self.target.side.record(),
            "read": list(self.read) if "decoder" in self.kinds else [],
            "kinds": {kind: self._kind(kind) for kind in self.kinds},
            **self._search(),
            "steps": self.target.steps(tokenizer, top_k),
            "reference": None if self.reference is None else self._reference(self.reference, top_k),
            "attention": {kind: eight_bits(self.weights(kind)) for kind in (self.kinds if kinds is None else kinds)},
            "walk": self.names(),
            "timing_ms": {name: round(value, 3) for name, value in self.timing_ms.items()},
        }  # fmt: skip

    def _kind(self, kind: str) -> dict[str, Any]:
        """As JSON: of a kind of attention its rows and columns, the columns where heads rest that look for nothing, and its tensors."""
        (stack, name), keys = KINDS[kind], self.keys(kind)
        rests = [0] if kind == "decoder" else [len(keys) - 1] if self.beams is not None else [0, len(keys) - 1]
        places = {"queries": self.queries(kind), "keys": keys, "rests": rests, "tensor": f"{stack}.%.{name}.weights"}
        return {**kind_words(kind, single=self.beams is None), **places}

    def _reference(self, reference: ScoredTarget, top_k: int) -> dict[str, Any]:
        """As JSON, with what is to be said of it beside each token of the target."""
        steps = reference.steps(self.bundle.target_tokenizer, top_k)
        said = reference_words(self.target.side.pieces, steps)
        return {**reference.side.record(), "steps": steps, "table": reference_table(reference.side.text, steps), "said": said}

    def _search(self) -> dict[str, Any]:
        """As JSON; nothing of a model that does not translate."""
        if self.beams is None:
            return {}
        tokenizer, beams = self.bundle.target_tokenizer, self.beams
        candidates = [
            {
                "text": each.text,
                "pieces": [tokenizer.token(token) for token in each.hypothesis.tokens],
                "logprob": each.hypothesis.log_probability,
                "lp": each.penalty,
                "score": each.hypothesis.score,
                "finished": each.stop == "end",
                "stop": each.stop,
                "path": list(each.path),
                "behind_from": each.behind_from,
                "why": beams.why_behind(each, tokenizer),
            }
            for each in beams.candidates
        ]
        tree = beams.record(tokenizer)
        tables = {"candidates": candidates_table(beams, [str(each["why"]) for each in candidates]), "tree": tree_table(tree)}
        found = {"beam": beams.beam, "alpha": beams.alpha, "candidates": candidates, "chosen": self.chosen}
        return {**found, "beam_tree": tree, "tables": tables}

    def names(self) -> list[dict[str, Any]]:
        """Every tensor of the pass that a tagged line made, with its shape, its place in the paper and the line."""
        lines = ((name, recorded.line) for name, recorded in self.trace.items())
        return [
            {
                "name": name, "eq": line.place.strip("()"), "file": line.file, "line": line.number,
                "shape": list(self.trace.array(name).shape),
            }
            for name, line in lines
            if line is not None
        ]  # fmt: skip

    def array(self, name: str) -> NDArray[Any]:
        """The numbers of a name of the trace, of all layers of a kind of attention, or of a weight of the model.

        UsageError that says what there is.
        """
        if name in self.kinds:
            return self.weights(name)
        if name in self.parameters:
            return self.parameters[name].detach().float().cpu().numpy()
        if name not in self.trace:
            near = ", ".join(self.near(name)) or "none"
            raise UsageError(f"there is no tensor {name!r}; near it are {near}; --json lists them all under walk")
        return self.trace.array(name)

    def names_tensor(self, name: str) -> bool:
        """Whether `array` has this name."""
        return name in self.trace or name in self.kinds or name in self.parameters

    def near(self, name: str) -> list[str]:
        """The names of tensors that are most like this one."""
        from difflib import get_close_matches

        return get_close_matches(name, [*self.kinds, *self.trace, *self.parameters], n=3, cutoff=0.4)

    def slice_of(self, name: str, *, index: Sequence[int] = (), rows: slice = slice(None), cols: slice = slice(None)) -> dict[str, Any]:
        """Exact numbers as JSON, float32 in little-endian base64: at ``index`` on the first axes, some rows and columns of the last two.

        Raises UsageError for a name or an index that there is not.
        """
        numbers = self.array(name)
        if len(index) > numbers.ndim or any(not 0 <= place < size for place, size in zip(index, numbers.shape, strict=False)):
            raise UsageError(f"{name} has the shape {list(numbers.shape)}, in which there is no index {list(index)}")
        part = numbers[tuple(index)]
        part = part[..., rows, cols] if part.ndim > 1 else part[..., cols] if part.ndim else part
        return float_record(part)


def float_record(numbers: NDArray[Any]) -> dict[str, Any]:
    """Exact numbers as JSON: their shape, and float32 in little-endian base64."""
    return {"shape": list(numbers.shape), "f32": base64.b64encode(np.ascontiguousarray(numbers, "<f4").tobytes()).decode()}


def eight_bits(weights: Weights) -> dict[str, Any]:
    """Weights between 0 and 1 for a picture: their shape, and each in 8 bits, in base64; at most 1/510 off."""
    return {"shape": list(weights.shape), "u8": base64.b64encode(np.rint(weights * 255).astype(np.uint8).tobytes()).decode()}


def explain(
    bundle: Bundle,
    text: str,
    *,
    beam: int | None = None,
    alpha: float | None = None,
    max_length: int | None = None,
    target_prefix: str = "",
    reference: str | None = None,
    chosen: int = 0,
    check: Callable[[], None] | None = None,
) -> Explanation:
    """Looks at a model at work on a text; the model is left as it was.

    Of a model that translates: translates as `Translator` does, and looks at the pass that gives the ``chosen`` of the candidates, the
    best unless asked for. ``beam`` and ``alpha`` are the model's own when not given; ``target_prefix`` is what the translation must begin
    with; a ``reference`` is a translation to compare with, token by token. Of a decoder-only model: how each token of the text follows from
    those before; of an encoder-only one: what it puts at each place, and where a mask stands in the text, written as for `fill`.
    ``check`` is called at each step of the search, and what it raises ends all. Raises DragomanError for a text that is empty, lacks a
    language tag or is longer than the model takes, UsageError for settings that cannot be.
    """
    clock = _Clock()
    if not isinstance(bundle.model, Transformer | LanguageModel | MaskedLanguageModel):
        raise DragomanError(
            f"explain looks into the paper's attention, and this model is {bundle.config.model.architecture}; give a Transformer"
        )
    if bundle.model.training:
        bundle = replace(bundle, model=plain_copy(bundle.model))  # in evaluation mode, while the model keeps its own
    if not isinstance(bundle.model, Transformer):
        if target_prefix or reference is not None or chosen or (beam, alpha, max_length) != (None, None, None):
            raise UsageError(
                f"the model is {bundle.config.model.architecture} and translates nothing: leave beam, alpha, max-length, target-prefix, "
                "reference and candidate out"
            )
        return _of_one_text(bundle, cast("LanguageModel | MaskedLanguageModel", bundle.model), text, clock)
    decoding, bos = bundle.config.decoding, bundle.target_tokenizer.bos
    beam, alpha = decoding.beam if beam is None else beam, decoding.alpha if alpha is None else alpha
    check_alpha(alpha)
    source = _source(bundle, text)
    given = None if reference is None else _target(bundle, reference, "the reference")
    clock.lap("tokenize")
    beams = search_beams(bundle, source.ids, beam=beam, alpha=alpha, max_length=max_length, prefix=target_prefix, check=check)
    if not 0 <= chosen < len(beams.candidates):
        raise UsageError(f"candidate {chosen + 1}: the search gave {len(beams.candidates)}; choose one of them, or a larger beam")
    clock.lap("search")
    candidate = beams.candidates[chosen]
    target = Side.of(candidate.text, candidate.hypothesis.tokens, bundle.target_tokenizer)
    trace, plain = Trace(), plain_copy(bundle.model)
    with torch.inference_mode():
        with recording(trace, plain):
            scored = _scored(plain, source, target, bos)
        clock.lap("trace")
        compared = None if given is None else _scored(plain, source, given, bos)
    return Explanation(bundle, source, scored, beams, chosen, compared, trace, clock.laps)


def _of_one_text(bundle: Bundle, model: LanguageModel | MaskedLanguageModel, text: str, clock: "_Clock") -> Explanation:
    """Of a model of one sequence: what it makes of the text itself, between start and end tokens."""
    tokenizer = bundle.target_tokenizer
    whole = _whole(tokenizer, text, masks=isinstance(model, MaskedLanguageModel))
    read = whole[:-1] if isinstance(model, LanguageModel) else whole
    target = whole[1:] if isinstance(model, LanguageModel) else whole
    sides = [_checked(bundle, Side.of(text, ids, tokenizer), "the text") for ids in (read, target)]
    clock.lap("tokenize")
    trace, plain = Trace(), plain_copy(model)
    with torch.inference_mode(), recording(trace, plain):
        ids = torch.tensor([read], device=plain.output.weight.device)  # (1, T)
        if isinstance(plain, LanguageModel):
            hidden = plain.hidden(ids)  # (1, T, D)
        else:
            hidden = plain.transform(plain.encode(ids, torch.ones_like(ids, dtype=torch.bool)))
        log_probs = plain.project(hidden).float().log_softmax(-1)  # (1, T, V)
    clock.lap("trace")
    scored = ScoredTarget(sides[1], hidden[0].float().cpu().numpy(), log_probs[0].cpu().numpy())
    return Explanation(bundle, sides[0], scored, None, 0, None, trace, clock.laps)


def _whole(tokenizer: Tokenizer, text: str, *, masks: bool) -> list[int]:
    """The ids of a text between start and end token; of a masked language model with its mask where the text has it, as for `fill`."""
    if not text.strip():
        raise DragomanError("the text is empty, so there is nothing to explain; give a sentence")
    if masks and tokenizer.mask is not None:
        return masked_ids(tokenizer, text)
    return [tokenizer.bos, *tokenizer.encode(text), tokenizer.eos]


class _Clock:
    """Milliseconds of one thing after another."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        """The time since the last lap is of this name."""
        now = time.perf_counter()
        self.laps[name], self.last = 1000 * (now - self.last), now


def _source(bundle: Bundle, text: str) -> Side:
    tokenizer = bundle.source_tokenizer
    head, rest = tokenizer.split_tag(text, place="the text")
    ids = [*head, *tokenizer.encode(rest)]
    if not rest.strip() or not ids:
        raise DragomanError("the text is empty, so there is nothing to explain; give a sentence")
    return _checked(bundle, Side.of(text, [*ids, tokenizer.eos], tokenizer), "the text")


def _target(bundle: Bundle, text: str, name: str) -> Side:
    tokenizer = bundle.target_tokenizer
    return _checked(bundle, Side.of(text, [*tokenizer.encode(text), tokenizer.eos], tokenizer), name)


def _checked(bundle: Bundle, side: Side, name: str) -> Side:
    limit = longest_taken(bundle.config)
    if len(side.ids) > limit:
        raise DragomanError(
            f"{name} has {len(side.ids)} tokens and the model takes {limit}; give a shorter one, such as one sentence of it"
        )
    return side


def _scored(model: Transformer, source: Side, target: Side, bos: int) -> ScoredTarget:
    """A whole target in one pass, without a cache; a trace that is on gets every number of it."""
    device = model.output.weight.device
    ids = torch.tensor([source.ids], device=device)  # (1, S)
    given = torch.tensor([(bos, *target.ids[:-1])], device=device)  # (1, T)
    mask = torch.ones_like(ids, dtype=torch.bool)
    hidden = model.decode(given, model.encode(ids, mask), mask)  # (1, T, D)
    log_probs = model.project(hidden).float().log_softmax(-1)  # (1, T, V)
    return ScoredTarget(target, hidden[0].float().cpu().numpy(), log_probs[0].cpu().numpy())
