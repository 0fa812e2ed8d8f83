"""From what is asked of a search to hypotheses: batches of sentences that are searched alike, their rules and their choice (Section 6.1).

Shapes:  B sentences of a batch
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dragoman.bundle import Bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.decoding.beam import Choose, Hypothesis, Watch, beam_search, most_probable
from dragoman.decoding.constraints import Phrase, RequiredPhrases
from dragoman.decoding.diverse import in_groups
from dragoman.decoding.glossary import Term
from dragoman.decoding.mbr import expected_chrf
from dragoman.decoding.options import SearchOptions, tokens_of
from dragoman.decoding.phrases import ForbiddenPhrases, Prefix, Spelling
from dragoman.decoding.rules import ForcedPrefix, MinimumLength, NoRepeatedNgram, RepetitionGuard, Rule
from dragoman.decoding.sample import sample, sample_keys
from dragoman.decoding.side_by_side import Check, side_by_side, workers_for
from dragoman.decoding.step import CheckedStep, StepModel
from dragoman.decoding.trees import OnlyTrees, TreeVocabulary, fewest_tokens
from dragoman.errors import DragomanError, UsageError, option

_SHORTEST = 16  # tokens that a shorter sentence counts as in a batch: its rows of the output layer take memory too
_WIDEST = 32  # hypotheses that a sentence gets for its phrases: each costs a step of the decoder as well


@dataclass(frozen=True)
class Wanted:
    """A text to find outputs for, in ids with the end token; how they must begin, what they must hold, and its place for messages.

    ``words`` is how many a tree over them must have.
    """

    ids: list[int]
    place: str
    prefix: Prefix
    terms: tuple[Term, ...]
    words: int = 0


@dataclass(frozen=True)
class Found:
    """An output, why it ended (``end``, ``length`` or ``repetition``), and under MBR how much it is like the samples."""

    hypothesis: Hypothesis
    stop: str
    utility: float | None = None


@dataclass(frozen=True)
class Search:
    """One search of many texts: a model, the settings of Section 6.1, and the options beside them."""

    bundle: Bundle
    model: StepModel[Any]
    longest: int  # tokens that the model takes
    beam: int
    alpha: float
    n_best: int
    max_length: int | str | None
    options: SearchOptions
    spelling: Callable[[], Spelling]
    watch: Watch | None = None
    check: Check = lambda: None

    def __call__(self, texts: Sequence[Wanted], batch_tokens: int) -> list[list[Found]]:
        """The n best outputs of each text, in order. What is searched at once has at most ``batch_tokens`` source tokens, once for each
        hypothesis, or is one text."""
        widths = [self._width(text) for text in texts]
        workers = 1 if self.watch else workers_for(sum(widths), self.bundle.model.output.weight)
        batches: list[tuple[list[int], int]] = []  # places of texts, and hypotheses of each
        for width in sorted(set(widths)):
            places = [place for place, wide in enumerate(widths) if wide == width]
            lengths = [max(len(texts[place].ids), _SHORTEST) for place in places]
            for batch in _even_batches(lengths, batch_tokens // workers // width, workers):
                batches.append(([places[each] for each in batch], width))
        # What takes the most steps first, so that all threads are done at about the same time.
        batches.sort(key=lambda batch: -max(len(texts[place].ids) for place in batch[0]))

        def work(batch: tuple[list[int], int], check: Check) -> list[list[Found]]:
            places, width = batch
            with torch.inference_mode():  # which another thread does not have from this one
                return self._batch([texts[place] for place in places], width, check)

        found: dict[int, list[Found]] = {}
        for (places, _), some in zip(batches, side_by_side(work, batches, workers=workers), strict=True):
            found.update(zip(places, some, strict=True))
        return [found[place] for place in range(len(texts))]

    def limits(self, text: Wanted) -> tuple[int, int]:
        """The least and most tokens of its outputs, end token included; UsageError or DragomanError when there are none between."""
        tokens = len(text.ids)
        extra = self.bundle.config.decoding.extra_length
        most = tokens + extra if self.max_length is None else tokens_of(self.max_length, tokens, name="max_length")
        most = min(most, self.longest)
        least = 1 if self.options.min_length is None else tokens_of(self.options.min_length, tokens, name="min_length")
        if least > most:
            raise UsageError(
                f"{text.place}: {option('min_length')} asks for {least} tokens and at most {most} are allowed; lower it or raise "
                f"{option('max_length')}"
            )
        if len(text.prefix.ids) >= most:
            raise DragomanError(
                f"{text.place}: the prefix has {len(text.prefix.ids)} tokens, and an output of at most {most} has room for {most - 1} "
                f"before its end; shorten it or raise {option('max_length')}"
            )
        if self.options.tree and most < fewest_tokens(text.words):
            raise DragomanError(
                f"{text.place}: a tree over {text.words} words has {fewest_tokens(text.words)} tokens or more, and at most {most} are "
                f"allowed; raise {option('max_length')}, or shorten the sentence"
            )
        return least, most

    def _width(self, text: Wanted) -> int:
        """Hypotheses of a text: one more than the tokens of its phrases, so that each may be said at another time, up to `_WIDEST`."""
        if self.options.samples_drawn:
            return self.options.drawn(self.n_best)
        return max(self.beam, min(1 + sum(len(phrase.ids) for phrase in self._phrases(text)), _WIDEST) if text.terms else 1)

    def _phrases(self, text: Wanted) -> list[Phrase]:
        spelling = self.spelling()
        targets = {term.target: term.place for term in text.terms}
        ids = {target: spelling.encode(target, place) for target, place in targets.items()}
        room = self.limits(text)[1] - 1  # what no output has room for is missed, and would only make outputs longer
        return [Phrase(ids[target], spelling.after_a_sign(ids[target], target)) for target in targets if len(ids[target]) <= room]

    def _batch(self, texts: Sequence[Wanted], width: int, check: Check) -> list[list[Found]]:
        target, device = self.bundle.target_tokenizer, self.bundle.model.output.weight.device
        source, source_mask = pad_rows([text.ids for text in texts], pad=self.bundle.source_tokenizer.pad, device=device)
        # Rows of the embedding beyond the tokenizer's entries have no text.
        banned = (target.pad, target.bos, *target.tags.values(), *range(len(target), self.bundle.config.model.target_vocabulary))
        limits = [self.limits(text) for text in texts]
        guard = RepetitionGuard([text.ids for text in texts], least=self.options.repetition_guard, eos=target.eos, device=device)
        common: dict[str, Any] = {
            "bos": target.bos, "eos": target.eos, "banned": banned, "alpha": self.alpha, "max_lengths": [most for _, most in limits],
            "rules": self._only_trees(texts, [most for _, most in limits]) or self._rules(texts, [least for least, _ in limits], guard),
        }  # fmt: skip
        options = self.options
        model = CheckedStep(self.model, (check, self.check))
        if options.samples_drawn:
            common |= {name: value for name in ("temperature", "top_k", "top_p") if (value := getattr(options, name)) is not None}
            outputs = sample(model, source, source_mask, keys=[self._keys(text) for text in texts], **common)
        else:
            common |= {"n_best": self.n_best, "choose": self._choice(texts), "watch": self.watch}
            outputs = beam_search(model, source, source_mask, beam=width, **common)
        return [self._found(hypotheses, place, text, guard) for place, (hypotheses, text) in enumerate(zip(outputs, texts, strict=True))]

    def _only_trees(self, texts: Sequence[Wanted], most: Sequence[int]) -> list[Rule]:
        """The one rule where trees are asked for: another could leave none, and a tree may repeat itself as often as it likes."""
        if not self.options.tree:
            return []
        return [OnlyTrees([text.words for text in texts], most, self._trees, eos=self.bundle.target_tokenizer.eos)]

    @cached_property
    def _trees(self) -> TreeVocabulary:
        size, device = self.bundle.config.model.target_vocabulary, self.bundle.model.output.weight.device
        return TreeVocabulary.of(self.bundle.target_tokenizer, size=size, device=device)

    def _rules(self, texts: Sequence[Wanted], least: Sequence[int], guard: RepetitionGuard) -> list[Rule]:
        options, eos, device = self.options, self.bundle.target_tokenizer.eos, self.bundle.model.output.weight.device
        rules: list[Rule] = []
        if max(least) > 1:
            rules.append(MinimumLength(least, eos=eos, device=device))
        if options.no_repeat_ngram:
            rules.append(NoRepeatedNgram(options.no_repeat_ngram))
        if options.forbid:
            rules.append(self._forbidden.of_batch())
        if options.repetition_guard:
            rules.append(guard)
        prefixes = [text.prefix for text in texts]
        if any(prefix.ids for prefix in prefixes):
            instead = {(row, place): ids for row, prefix in enumerate(prefixes) for place, ids in prefix.instead.items()}
            return [ForcedPrefix([prefix.ids for prefix in prefixes], instead, rules, device=device)]
        return rules

    @cached_property
    def _forbidden(self) -> ForbiddenPhrases:
        spelling = self.spelling()
        return ForbiddenPhrases([spelling.normal(phrase) for phrase in self.options.forbid], spelling, eos=self.bundle.target_tokenizer.eos)

    def _choice(self, texts: Sequence[Wanted]) -> Choose:
        options, eos = self.options, self.bundle.target_tokenizer.eos
        if options.diverse_groups > 1:
            return in_groups(options.diverse_groups, diversity=0.5 if options.diversity is None else options.diversity, eos=eos)
        if any(text.terms for text in texts):
            phrases = [self._phrases(text) for text in texts]
            return RequiredPhrases(phrases, self.spelling().edges, eos=eos, device=self.bundle.model.output.weight.device)
        return most_probable

    def _keys(self, text: Wanted) -> list[int]:
        """The streams of random numbers of a text's samples: a function of seed, text and sample, wherever the text stands."""
        return sample_keys(text.ids, 1 if self.options.seed is None else self.options.seed, self.options.drawn(self.n_best))

    def _found(self, hypotheses: list[Hypothesis], place: int, text: Wanted, guard: RepetitionGuard) -> list[Found]:
        """The n best of what a search gave: of samples each once, by score or by what they have in common with the others."""
        if not hypotheses:
            raise DragomanError(
                f"{text.place}: no output of positive probability: the settings of the search leave none, so relax them (lengths, n-grams, "
                "prefix, phrases); or the model's weights are damaged, so use an undamaged copy"
            )
        utilities: list[float | None] = [None] * len(hypotheses)
        if self.options.mbr:
            utilities = [*expected_chrf([self.bundle.target_tokenizer.decode(hypothesis.tokens) for hypothesis in hypotheses])]
        if self.options.samples_drawn:
            distinct = {hypothesis.tokens: (hypothesis, utility) for hypothesis, utility in zip(hypotheses, utilities, strict=True)}
            ranked = sorted(distinct.values(), key=lambda pair: (-(pair[1] or 0.0), -pair[0].score))[: self.n_best]
        else:
            ranked = list(zip(hypotheses, utilities, strict=True))
        return [
            Found(each, "length" if each.reached_limit else "repetition" if self._looped(guard, each, place) else "end", utility)
            for each, utility in ranked
        ]

    def _looped(self, guard: RepetitionGuard, hypothesis: Hypothesis, place: int) -> bool:
        if self.options.tree:
            return False
        return 0 < self.options.repetition_guard < len(hypothesis.tokens) and guard.ended(hypothesis.tokens, place)


def _even_batches(lengths: Sequence[int], batch_tokens: int, workers: int) -> list[list[int]]:
    """As few batches of at most ``batch_tokens`` tokens as there can be of which each worker has as many, all about as large."""
    batches = batches_of(lengths, batch_tokens=batch_tokens)
    if workers == 1:
        return batches
    count, too_few, enough = -(-len(batches) // workers) * workers, 0, batch_tokens
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if len(batches_of(lengths, batch_tokens=middle)) > count:
            too_few = middle
        else:
            enough = middle
    return batches_of(lengths, batch_tokens=enough)


Engine = Callable[[Search, Sequence[Wanted], int], list[list[Found]]]
"""Another program that does a search: called with it, the texts and the batch tokens, it gives what the search itself would give."""
