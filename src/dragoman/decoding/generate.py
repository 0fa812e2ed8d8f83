"""A decoder-only model goes on with text: prompts in, as many continuations of each as are asked for, in order, or one as it comes.

Shapes:  B prompts of a batch   P tokens of the longest prompt
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.bundle import Bundle, load_bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.decoding.beam import Hypothesis, beam_search, length_penalty
from dragoman.decoding.continuing import LanguageModelStep, padded_left
from dragoman.decoding.ensemble import EnsembleStep, check_ensemble
from dragoman.decoding.generation_options import GenerationOptions
from dragoman.decoding.pieces import Ending, TextStream
from dragoman.decoding.products import Precision, check_products
from dragoman.decoding.rules import MinimumLength, NoRepeatedNgram, RepetitionGuard, Rule
from dragoman.decoding.sample import Step, sample, sample_keys, sampling_steps
from dragoman.decoding.step import StepModel, evaluation_mode
from dragoman.devices import pick_device
from dragoman.errors import DragomanError, LineError, UsageError, as_texts, option

_log = logging.getLogger("dragoman")


@dataclass(frozen=True)
class Continuation:
    """What a model adds to a prompt, with natural log-probabilities; or, of a stream, what it has added since the last one.

    ``tokens`` and ``token_scores`` run in parallel; the end token is the last where the model chose it. ``log_probability`` is their sum,
    ``score`` the sum over the length penalty. ``text`` ends before a stop string, and ``stop`` is why: ``end``, the model ended it;
    ``stop``, a stop string; ``length``, it has the most tokens allowed; ``context``, the model's positions are full; ``repetition``, it
    went round in a loop; in a stream it is empty until the last.
    """

    text: str
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    log_probability: float
    score: float
    stop: str


class Addition(NamedTuple):
    """What the sample ``number`` of the prompt ``prompt``, both counted from 0, has added in one step of many that are drawn together.

    Its ``stop`` is also ``lost``, where no token has a positive probability. ``best`` are the most probable tokens there, the most probable
    first, with their natural log-probabilities, and ``id`` the one that was drawn; None and nothing in an end that is not the model's own.
    """

    prompt: int
    number: int
    continuation: Continuation
    id: int | None
    best: tuple[tuple[int, float], ...] = ()


class _Row(NamedTuple):
    """A sample on its way: which it is, its text, and its ids so far."""

    prompt: int
    number: int
    text: TextStream
    ids: list[int]


@dataclass(frozen=True)
class _Prompt:
    """A prompt in ids, the most tokens that may follow it, and whether it is the model's positions that set this number."""

    ids: list[int]
    most: int
    full: bool


class Generator:
    """A decoder-only bundle at work: `generate` and `stream`. The model computes in evaluation mode and is left in the mode it had.

    With an ``ensemble`` of other bundles of the same vocabulary, probabilities are the mean of all models'.
    """

    def __init__(self, bundle: Bundle, *, ensemble: Mapping[str, Bundle] | None = None, precision: Precision = "fp32") -> None:
        """``ensemble`` holds the other bundles by name; ``precision`` is that of the matrix products.

        Raises DragomanError for a bundle of another kind or vocabulary, UsageError for a precision that the device does not have.
        """
        self.bundle, self.precision = bundle, precision
        self.bundles = (bundle, *(ensemble or {}).values())
        self.models = [each.language_model for each in self.bundles]
        for name, other in (ensemble or {}).items():
            check_ensemble(bundle, "the first model", other, name)
        check_products(precision, self._device)
        self._made: dict[int | None, StepModel[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all but what this one has laid out for its searches, which that one will do for itself."""
        return self.__dict__ | {"_made": {}}

    @classmethod
    def load(
        cls, path: str | Path, *, device: str = "auto", ensemble: Sequence[str | Path] = (), precision: Precision = "fp32"
    ) -> "Generator":
        """That of a run folder, checkpoint or bundle, on a device: auto (a GPU where there is one), cpu, cuda, cuda:N or mps.

        ``ensemble`` are the paths of models that work together with it. Raises DragomanError for what is wrong with a model, a device that
        is not there, or a precision that it does not have.
        """
        where = str(pick_device(device))
        others = {str(other): load_bundle(other, device=where) for other in ensemble}
        return cls(load_bundle(path, device=where), ensemble=others, precision=precision)

    @property
    def most_positions(self) -> int:
        """The most tokens, prompt and continuation together, that all models take."""
        return min(model.max_positions for model in self.models)

    def prompt_tokens(self, prompts: Sequence[str]) -> list[int]:
        """How many tokens each prompt is to the model."""
        return [len(ids) for ids in self._encode(prompts)]

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        tokenizer = self.bundle.target_tokenizer
        head = opening(self.bundle)
        return [[*head, *ids] or [tokenizer.bos] for ids in tokenizer.encode_batch(prompts)]

    @property
    def _device(self) -> torch.device:
        return self.models[0].output.weight.device

    def generate(
        self,
        prompts: Sequence[str],
        options: GenerationOptions | None = None,
        *,
        batch_tokens: int = 16_384,
        place: str = "",
        first_line: int = 1,
        check: Callable[[], None] = lambda: None,
    ) -> list[list[Continuation]]:
        """The ``n`` continuations of each prompt, in order: as they were drawn, or of beam search the best first, all with text only that
        follows the prompt.

        A batch has at most ``batch_tokens`` tokens, prompts and continuations, once for each hypothesis. An empty prompt is the beginning
        of a text. A prompt that leaves no room in the model's positions is refused, or, with ``slide``, cut to its last tokens, and a
        warning says how many of ``place`` and its line, counted from ``first_line``, are left. ``check`` is called before each batch, and
        may end all by raising. Raises UsageError for a str as prompts, DragomanError for a prompt that is refused, which names its line.
        """
        options = options or GenerationOptions()
        before = f"{place}, " if place else ""
        given = [
            self._prompt(ids, options, f"{before}line {number}", number)
            for number, ids in enumerate(self._encode(as_texts(prompts, "prompts")), start=first_line)
        ]
        width = options.beam or options.n
        lengths = [len(prompt.ids) + prompt.most for prompt in given]
        found: dict[int, list[Continuation]] = {}
        with evaluation_mode(self.models), torch.inference_mode():
            for batch in batches_of(lengths, batch_tokens=batch_tokens // width):
                check()
                some = [given[place] for place in batch]
                found.update(zip(batch, self._batch(some, options), strict=True))
        for number in range(len(prompts)):
            if len(found[number]) < options.n:
                raise DragomanError(
                    f"{before}line {first_line + number}: {len(found[number])} continuations of positive probability, and {options.n} are "
                    "asked for: relax the settings of the search (lengths, n-grams); or the model's weights are damaged"
                )
        return [found[number] for number in range(len(prompts))]

    def stream(self, prompt: str, options: GenerationOptions | None = None) -> Iterator[Continuation]:
        """One continuation as it comes, the same as `generate` gives: each step's new text, in whole characters, and its token.

        Text that may be the beginning of a stop string waits until it is known; the last one has the rest of the text, no token, and says
        why the text ended. Raises UsageError for beam search and more than one continuation, whose text is not known before the end.
        """
        options = options or GenerationOptions()
        if options.beam or options.n > 1:
            raise UsageError("a stream is of one continuation that is drawn, or greedy: leave beam out, and n at 1")
        for additions in self.streams([prompt], [options]):
            for addition in additions:
                if addition.continuation.stop == "lost":
                    raise DragomanError(
                        "no continuation of positive probability: relax the settings of the search (lengths, n-grams), or use an undamaged "
                        "copy of the model, as its weights may be damaged"
                    )
                yield addition.continuation

    def streams(self, prompts: Sequence[str], options: Sequence[GenerationOptions], *, best: int = 0) -> Iterator[list[Addition]]:
        """Many continuations as they come, drawn together: at each step what each unfinished one has added.

        ``options`` are those of each prompt. They draw, and differ in n, max_tokens and seed alone, as what is drawn together is drawn
        alike. ``best`` says how many of the most probable tokens are told with each. A prompt without room for a continuation is refused.
        """
        shared = options[0]
        names = ["the prompt"] if len(prompts) == 1 else [f"prompt {number}" for number in range(1, len(prompts) + 1)]
        asked = zip(self._encode(prompts), options, names, strict=True)
        given = [self._prompt(ids, own, name, number) for number, (ids, own, name) in enumerate(asked, start=1)]
        source, mask = self._padded(given)
        keys = [sample_keys(prompt.ids, own.seed_used, own.n) for prompt, own in zip(given, options, strict=True)]
        tokenizer, guard = self.bundle.target_tokenizer, self._guard(given, shared)
        rows = [
            _Row(place, number, TextStream(tokenizer, given[place].ids, shared.stop), [])
            for place, some in enumerate(keys)
            for number in range(len(some))
        ]
        with evaluation_mode(self.models):
            for step in sampling_steps(
                self._steps(shared.slide), source, mask, keys=keys, best=best, **self._common(given, self._rules(given, shared)),
                **shared.drawing,
            ):  # fmt: skip
                yield [
                    self._addition(rows[row], drawn, given, guard, shared)
                    for row, drawn in zip(step.rows.tolist(), _drawn(step), strict=True)
                ]

    def _addition(
        self, row: _Row, drawn: "_Drawn", prompts: Sequence[_Prompt], guard: RepetitionGuard, options: GenerationOptions
    ) -> Addition:
        """What a row has added with a token that was drawn for it."""
        if drawn.lost:
            return Addition(row.prompt, row.number, self._part("", [], [], options, "lost"), None)
        text, stop = "", ""
        if drawn.ended:
            text = row.text.finish()
            stop = self._stop(row.ids, row.text.stopped, prompts[row.prompt], guard, row.prompt)
            if stop not in ("end", "repetition"):
                return Addition(row.prompt, row.number, self._part(text, [], [], options, stop), None)
        else:
            row.ids.append(drawn.token)
            text = row.text.add(drawn.token)
        part = self._part(text, [drawn.token], [drawn.score], options, stop)
        return Addition(row.prompt, row.number, part, drawn.token, drawn.best)

    def _alpha(self, options: GenerationOptions) -> float:
        """Of the length penalty; 0, the plain sum, where nothing is searched."""
        own = self.bundle.config.decoding.alpha if options.alpha is None else options.alpha
        return own if options.beam else 0.0

    def _prompt(self, ids: list[int], options: GenerationOptions, where: str, line: int) -> _Prompt:
        positions = self.most_positions
        if options.slide is not None:
            if len(ids) >= positions:
                kept = min(options.slide, positions - 1)
                notice = "%s has %d tokens and the model %d positions; it goes on from the last %d"
                _log.warning(notice, where, len(ids), positions, kept)
                ids = ids[-kept:]
            return _Prompt(ids, options.max_tokens, False)
        room = positions - len(ids)
        if room < 1:
            raise LineError(
                f"{where} has {len(ids)} tokens, and the model's {positions} positions take at most {positions - 1} before a "
                f"continuation; shorten it, or let {option('slide')} keep its last tokens",
                line,
            )
        if room < options.min_tokens:
            raise LineError(
                f"{where}: {option('min_tokens')} asks for {options.min_tokens} tokens, and after the prompt's {len(ids)} the model's "
                f"{positions} positions have room for {room}; lower it, shorten the prompt, or give {option('slide')}",
                line,
            )
        return _Prompt(ids, min(options.max_tokens, room), room < options.max_tokens)

    def _steps(self, slide: int | None) -> StepModel[Any]:
        if self.precision == "fp32" or slide not in self._made:  # narrow weights take time to make
            made = [LanguageModelStep(model, slide=slide, precision=self.precision) for model in self.models]
            self._made = {slide: EnsembleStep(made) if len(made) > 1 else made[0]}
        return self._made[slide]

    def _padded(self, prompts: Sequence[_Prompt]) -> tuple[Tensor, Tensor]:
        return pad_rows([prompt.ids for prompt in prompts], pad=self.bundle.target_tokenizer.pad, device=self._device)

    def _common(self, prompts: Sequence[_Prompt], rules: Sequence[Rule]) -> dict[str, Any]:
        """What sampling and beam search are given alike."""
        tokenizer = self.bundle.target_tokenizer
        # Rows of the embedding beyond the tokenizer's entries have no text; of what has none the end alone is an answer.
        never = (tokenizer.textless - {tokenizer.eos}) | {*range(len(tokenizer), self.bundle.config.model.target_vocabulary)}
        limits = [prompt.most + 1 for prompt in prompts]
        return {"bos": tokenizer.bos, "eos": tokenizer.eos, "banned": sorted(never), "max_lengths": limits, "rules": rules}

    def _rules(self, prompts: Sequence[_Prompt], options: GenerationOptions) -> list[Rule]:
        tokenizer, device = self.bundle.target_tokenizer, self._device
        rules: list[Rule] = []
        if options.min_tokens:
            rules.append(MinimumLength([options.min_tokens + 1] * len(prompts), eos=tokenizer.eos, device=device))
        if options.no_repeat_ngram:
            ids, mask = padded_left(*self._padded(prompts))  # (B, P)
            rules.append(NoRepeatedNgram(options.no_repeat_ngram, ids.masked_fill(~mask, -1)))
        if options.repetition_guard:
            rules.append(self._guard(prompts, options))
        given = [prompt.ids for prompt in prompts]
        return [*rules, Ending(tokenizer, given, [prompt.most for prompt in prompts], options.stop)]

    def _guard(self, prompts: Sequence[_Prompt], options: GenerationOptions) -> RepetitionGuard:
        eos = self.bundle.target_tokenizer.eos
        return RepetitionGuard([prompt.ids for prompt in prompts], least=options.repetition_guard, eos=eos, device=self._device)

    def _batch(self, prompts: Sequence[_Prompt], options: GenerationOptions) -> list[list[Continuation]]:
        source, mask = self._padded(prompts)
        common = self._common(prompts, self._rules(prompts, options))
        model, alpha = self._steps(options.slide), self._alpha(options)
        if options.beam:
            outputs = beam_search(model, source, mask, beam=options.beam, n_best=options.n, alpha=alpha, **common)
        else:
            keys = [sample_keys(prompt.ids, options.seed_used, options.n) for prompt in prompts]
            outputs = sample(model, source, mask, keys=keys, alpha=alpha, **common, **options.drawing)
        guard = self._guard(prompts, options)
        return [
            [self._continuation(hypothesis, prompt, guard, place, options) for hypothesis in hypotheses]
            for place, (prompt, hypotheses) in enumerate(zip(prompts, outputs, strict=True))
        ]

    def _continuation(
        self, hypothesis: Hypothesis, prompt: _Prompt, guard: RepetitionGuard, place: int, options: GenerationOptions
    ) -> Continuation:
        ids, scores = [*hypothesis.tokens], [*hypothesis.token_scores]
        stream = TextStream(self.bundle.target_tokenizer, prompt.ids, options.stop)
        text = "".join(stream.add(token) for token in ids[:-1]) + stream.finish()
        stop = self._stop(ids[:-1], stream.stopped, prompt, guard, place)
        if stop not in ("end", "repetition"):
            del ids[-1], scores[-1]
        return self._part(text, ids, scores, options, stop)

    def _stop(self, content: list[int], stopped: bool, prompt: _Prompt, guard: RepetitionGuard, place: int = 0) -> str:
        """Why an output of these ids, without its end, ended."""
        if stopped:
            return "stop"
        if len(content) >= prompt.most:
            return "context" if prompt.full else "length"
        looped = 0 < guard.least <= len(content) and guard.ended([*content, guard.eos], place)
        return "repetition" if looped else "end"

    def _part(self, text: str, ids: Sequence[int], scores: Sequence[float], options: GenerationOptions, stop: str) -> Continuation:
        tokenizer, total = self.bundle.target_tokenizer, math.fsum(scores)
        penalty = length_penalty(len(ids), self._alpha(options))
        return Continuation(text, tuple(map(tokenizer.token, ids)), tuple(scores), total, total / penalty, stop)


class _Drawn(NamedTuple):
    """What a step has drawn for one row."""

    token: int
    score: float
    ended: bool
    lost: bool
    best: tuple[tuple[int, float], ...]


def _drawn(step: Step) -> Iterator[_Drawn]:
    """What a step has drawn, row by row."""
    columns = step.seen[:, -1], step.token_scores[:, -1], step.ended, step.lost
    told: list[tuple[tuple[int, float], ...]] = [()] * len(step.rows)
    if step.best is not None:
        scores, tokens = (part.tolist() for part in step.best)
        told = [tuple(zip(own, score, strict=True)) for own, score in zip(tokens, scores, strict=True)]
    for token, score, ended, lost, best in zip(*(column.tolist() for column in columns), told, strict=True):
        yield _Drawn(token, score, ended, lost, best)


def opening(bundle: Bundle) -> list[int]:
    """What stands before the ids of every prompt: what a foreign vocabulary has there; else the start token, unless the model knows it as
    the beginning of whole files alone.
    """
    tokenizer = bundle.target_tokenizer
    if tokenizer.kind == "foreign":
        return [*tokenizer.opening]
    return [] if bundle.config.data.documents == "file" else [tokenizer.bos]
