"""Text in, translations out: tokenizer, batches, beam search, and text again (Section 6.1)."""

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from dragoman.bundle import Bundle, load_bundle
from dragoman.data.trees import restore, words_of
from dragoman.decoding.beam import Watch, check_alpha, check_n_best, length_penalty
from dragoman.decoding.ensemble import as_one, check_ensemble
from dragoman.decoding.fastest import Choice, choose_precision
from dragoman.decoding.glossary import Term
from dragoman.decoding.options import SearchOptions, check_prefixes
from dragoman.decoding.phrases import Prefix, Spelling, stands_in
from dragoman.decoding.prepared import can_prepare, check_precision, modules_of, step_of
from dragoman.decoding.products import AskedPrecision
from dragoman.decoding.score import Scored, score_texts
from dragoman.decoding.search import Engine, Found, Search, Wanted
from dragoman.decoding.side_by_side import Check
from dragoman.decoding.split import Piece, longest_taken, split_text
from dragoman.decoding.step import StepModel, evaluation_mode
from dragoman.devices import pick_device
from dragoman.errors import DragomanError, LineError, UsageError, as_texts, of_line, option
from dragoman.model import EncoderDecoder

_log = logging.getLogger("dragoman")
_choosing = threading.Lock()  # steps are timed one at a time, and all threads of a translator have one choice
_STOPS = ("length", "repetition", "end", "empty")  # of a text in pieces the first of these that one of them has


class Part(NamedTuple):
    """What the model gets and gives at once, a text or a piece of one, in ids with the end token.

    ``text`` is the piece, ``start`` the characters of the whole text before it, ``separator`` the white space behind it.
    """

    source: list[int]
    text: str
    start: int
    separator: str = ""
    target: tuple[int, ...] = ()


@dataclass(frozen=True)
class Translation:
    """A translation with what the model thinks of it: natural log-probabilities.

    ``tokens`` (the end token last) and ``token_scores`` run in parallel; ``log_probability`` is the sum of the scores; ``score`` is that
    sum over the length penalty ((5 + n) / 6)^α of the n tokens. ``stop`` is why it ended: ``end``, the model ended it; ``length``, it has
    the most tokens allowed, so its end may be forced; ``repetition``, it went round in a loop, so its end was forced; ``empty``, there was
    nothing to translate. ``met`` and ``missed`` are the terms that were to stand in it, and do or do not. ``utility`` is its mean chrF
    against the samples, when it was chosen by that. ``alternatives`` are the next best, without alternatives of their own. A text that had
    to be translated in pieces has the tokens of all of them, each with its end token, and its i-th alternative joins the pieces' i-th.
    ``parts`` are these pieces in ids: one for most texts, none for a blank one.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_probability: float
    token_scores: tuple[float, ...]
    stop: str
    met: tuple[Term, ...] = ()
    missed: tuple[Term, ...] = ()
    utility: float | None = None
    alternatives: tuple["Translation", ...] = ()
    parts: tuple[Part, ...] = field(default=(), repr=False, compare=False)

    @property
    def reached_limit(self) -> bool:
        """Whether it has the most tokens allowed."""
        return self.stop == "length"


class Translator:
    """A bundle at work: `translate` and `score`. The model computes in evaluation mode and is left in the mode it had.

    With an ``ensemble`` of other bundles of the same vocabularies, probabilities are the mean of all models'.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        ensemble: Mapping[str, Bundle] | None = None,
        precision: AskedPrecision = "fp32",
        engine: Engine | None = None,
    ) -> None:
        """``ensemble`` holds the other bundles by name; ``precision`` is that of the products of `translate`, where scores stay float32.

        With auto it is fp32 unless another type is measured to be clearly faster and is safe for the scores of the first texts that are
        translated: ``choice`` is then what was chosen, which the log says and which stays. An ``engine`` takes the place of the search
        here, and has products of its own. Raises DragomanError that names a bundle with another vocabulary, UsageError for a precision that
        the models or their device do not have.
        """
        self.bundle, self.precision, self.engine = bundle, precision, engine
        self.choice: Choice | None = None
        self.bundles = (bundle, *(ensemble or {}).values())
        for name, other in (ensemble or {}).items():
            check_ensemble(bundle, "the first model", other, name)
        check_precision(precision, self._models)
        self._checked: SearchOptions | None = None
        self._made: tuple[object, StepModel[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all but what this one has laid out for its searches, which that one will do for itself."""
        return self.__dict__ | {"_made": None}

    @classmethod
    def load(
        cls, path: str | Path, *, device: str = "auto", ensemble: Sequence[str | Path] = (), precision: AskedPrecision = "fp32"
    ) -> "Translator":
        """The translator of a run folder, checkpoint or bundle, on a device: auto (a GPU where there is one), cpu, cuda, cuda:N or mps.

        ``ensemble`` are the paths of models that work together with it, ``precision`` that of the products. Raises DragomanError for what
        is wrong with a model, a device that is not there, or a precision that it does not have.
        """
        where = str(pick_device(device))
        others = {str(other): load_bundle(other, device=where) for other in ensemble}
        return cls(load_bundle(path, device=where), ensemble=others, precision=precision)

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        max_length: int | str | None = None,
        options: SearchOptions | None = None,
        prefixes: Sequence[str] | None = None,
        batch_tokens: int = 16_384,
        place: str = "",
        first_line: int = 1,
        watch: Watch | None = None,
        check: Check = lambda: None,
    ) -> list[Translation]:
        """The translation of each text, in order; an empty text, or one of white space, gives an empty one, which misses what ``options``
        require; a warning says that it leaves out its prefix.

        ``beam`` and ``alpha`` are the bundle's own when not given. ``max_length`` is the most target tokens, end token included, or
        ``"1.5x"`` for so many times the source's; when not given it is the source's tokens plus the bundle's extra_length; it is never
        more than the model takes. ``options`` are departures from this search; ``prefixes``, one for each text, are what the translations
        must begin with. A batch has at most ``batch_tokens`` source tokens, counted once for each hypothesis of the beam. A text too long
        for the model is translated in pieces, which are joined with the white space that was between them; a warning names ``place`` and
        its line, counted from ``first_line``, as another does for a text longer than any in training. A model with language tags needs one
        at the head of each text. Many texts are searched by several threads of a CPU side by side. ``check`` is called before a step, or up
        to eight, in the thread that takes it, and may end the search by raising; ``watch``, which sees each step of a beam search, batch by
        batch and all in one thread, may do so too. Raises UsageError for impossible settings or a str as texts, DragomanError naming a line
        for a tag that is missing or unknown, a prefix or a term too long or that cannot be spelled, and a text too long for a tree.
        """
        options = options or SearchOptions()
        texts = as_texts(texts)
        texts = [" ".join(words_of(text)) for text in texts] if options.tree else texts
        alpha = self.bundle.config.decoding.alpha if alpha is None else alpha
        search = replace(self._search(beam, alpha, n_best, max_length, options), watch=watch, check=check)
        if prefixes is not None:
            check_prefixes(prefixes, len(texts), tree=options.tree)
        notices: list[tuple[object, ...]] = []  # said once no line has a fault, for those before a fault may be translated again
        parts = self._parts(texts, place, first_line, notices, whole=options.tree)
        wanted = []
        for number, line in enumerate(parts):
            prefix = prefixes[number] if prefixes else ""
            where = f"{f'{place}, ' if place else ''}line {first_line + number}"
            if prefix.strip() and not line:
                notices.append(("%s: there is nothing to translate, so the prefix %r is left out", where, prefix))
            with of_line(first_line + number):
                wanted.append([self._wanted(part, where, options, "" if rank else prefix, rank == 0) for rank, part in enumerate(line)])
                for each in wanted[-1]:
                    search.limits(each)  # now, and not after others were translated in vain
        for notice in notices:
            _log.warning(*notice)
        with evaluation_mode([bundle.model for bundle in self.bundles]), torch.inference_mode():
            every = [part for line in wanted for part in line]
            find = self._settled(search, every) if self.engine is None else partial(self.engine, search)
            found = iter(find(every, batch_tokens))
        translations = [
            self._translation([(next(found), part) for part in line], _terms(asked, options), alpha)
            for line, asked in zip(parts, wanted, strict=True)
        ]
        return [*map(_as_tree, translations)] if options.tree else translations

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, alpha: float | None = None, batch_tokens: int = 4096,
        first_line: int = 1, check: Check = lambda: None,
    ) -> list[Scored]:  # fmt: skip
        """What the model thinks of given translations: each target after its source, the end token included.

        ``check`` is called before each batch, and may raise. Raises UsageError for an impossible ``alpha``, DragomanError when the counts
        differ or a pair, counted from ``first_line``, is longer than the model takes.
        """
        alpha = self.bundle.config.decoding.alpha if alpha is None else alpha
        with evaluation_mode([bundle.model for bundle in self.bundles]), torch.inference_mode():
            return score_texts(
                self.bundle, sources, targets, alpha=alpha, batch_tokens=batch_tokens, ensemble=self.bundles[1:], first_line=first_line,
                check=check,
            )  # fmt: skip

    def _parts(
        self, texts: Sequence[str], place: str, first_line: int, notices: list[tuple[object, ...]], *, whole: bool
    ) -> list[list[Part]]:
        """What the model gets of each text: nothing of a blank one, one part of most, several of one that is too long, with a notice.

        With ``whole`` raises DragomanError that names the line for one that is too long.
        """
        tokenizer = self.bundle.source_tokenizer
        before = f"{place}, " if place else ""
        heads = []
        for number, text in enumerate(texts, start=first_line):
            with of_line(number):
                heads.append(tokenizer.split_tag(text, place=f"{before}line {number}"))
        limit, learnt = self._longest - len(tokenizer.as_source(())), self.bundle.config.data.max_length - 1
        lines: list[list[Part]] = []
        encoded = tokenizer.encode_batch([text for _, text in heads])
        for number, (line, (head, text), ids) in enumerate(zip(texts, heads, encoded, strict=True), start=first_line):
            length, start = len(head) + len(ids), len(line) - len(text)
            if not ids or not text.strip():
                lines.append([])
            elif length <= limit:
                lines.append([Part(tokenizer.as_source([*head, *ids]), text, start)])
                if length > learnt:
                    notice = "%sline %d: %d tokens are more than the %d of the longest sentences in training; translated whole"
                    notices.append((notice, before, number, length, learnt))
            elif whole:
                raise LineError(
                    f"{before}line {number}: {length} tokens exceed the model's limit of {limit}, and a tree cannot be made in pieces; "
                    "shorten the sentence",
                    number,
                )
            else:
                pieces = split_text(text, fits=partial(self._fits, most=limit - len(head)))
                lines.append(self._pieces(head, pieces, start + len(text) - len(text.lstrip())))
                notice = "%sline %d: %d tokens exceed the model's limit of %d; translated in %d pieces"
                notices.append((notice, before, number, length, limit, len(pieces)))
        return lines

    def _pieces(self, head: list[int], pieces: list[Piece], start: int) -> list[Part]:
        """The parts of a text that was cut, each with the tag of the whole."""
        tokenizer, parts = self.bundle.source_tokenizer, []
        for piece in pieces:
            parts.append(Part(tokenizer.as_source([*head, *tokenizer.encode(piece.text)]), piece.text, start, piece.separator))
            start += len(piece.text) + len(piece.separator)
        return parts

    def _fits(self, piece: str, *, most: int) -> bool:
        return len(self.bundle.source_tokenizer.encode(piece)) <= most

    def _search(self, beam: int | None, alpha: float, n_best: int, max_length: int | str | None, options: SearchOptions) -> Search:
        """A search by these settings; UsageError for those that do not go together."""
        check_alpha(alpha)
        if options.samples_drawn:
            if beam is not None:
                named = f"{option('beam')}={beam} with {option(options.drawn_by)}"
                raise UsageError(f"{named}: samples are drawn one by one; leave one of the two out")
            if not 1 <= n_best <= options.drawn(n_best):
                more = f"; ask for more with {option('samples')}" if n_best > 1 else ""
                raise UsageError(
                    f"{option('n_best')}={n_best} of {options.drawn(n_best)} samples: it must be at least 1 and at most the samples{more}"
                )
        beam = self.bundle.config.decoding.beam if beam is None else beam
        if not options.samples_drawn:
            check_n_best(n_best, beam)
        if beam % options.diverse_groups:
            raise UsageError(
                f"{option('diverse_groups')}={options.diverse_groups} with {option('beam')}={beam}: the groups must share the beam equally"
            )
        self._check_phrases(options)
        return Search(
            self.bundle, self._step(), longest=self._longest, beam=beam, alpha=alpha, n_best=n_best,
            max_length=max_length, options=options, spelling=lambda: self._spelling,
        )  # fmt: skip

    @property
    def _longest(self) -> int:
        """The most tokens of a side that all models take."""
        return min(longest_taken(bundle.config) for bundle in self.bundles)

    def _settled(self, search: Search, texts: Sequence[Wanted]) -> Search:
        """The search in the type that may have to be chosen first, by a plain search of these texts."""
        if self.precision != "auto" or not texts:
            return search
        with _choosing:
            if self.choice is None:
                plain = replace(search, n_best=1, max_length=None, options=SearchOptions(), watch=None)
                self.choice = choose_precision(plain, [replace(text, prefix=Prefix([], {}), terms=()) for text in texts], self._models)
                _log.info("%s", self.choice)
        return replace(search, model=self._step())  # another thread may have chosen since the search was made

    @property
    def _models(self) -> list[EncoderDecoder]:
        return [bundle.encoder_decoder for bundle in self.bundles]

    def _step(self) -> StepModel[Any]:
        """The step model of the weights as they are, for it takes time to make; in float32 until a type is chosen."""
        models = self._models
        precision = self.precision
        if precision == "auto":  # what was chosen for layers that are watched now is not for them
            precision = self.choice.precision if self.choice and all(map(can_prepare, models)) else "fp32"
        made_of = [precision, *((*_marks(model), can_prepare(model)) for model in models)]
        made = self._made
        if made is None or made[0] != made_of:
            self._made = made = made_of, as_one([step_of(model, precision=precision) for model in models])
        return made[1]

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.bundle.target_tokenizer, self.bundle.config.model.target_vocabulary)

    def _check_phrases(self, options: SearchOptions) -> None:
        """Raise DragomanError that says where, of an option UsageError, for a phrase that no output can hold; once for the same options."""
        if options is self._checked:
            return
        terms = [*_required(options), *(options.glossary.terms if options.glossary else ())]
        for term in [*(Term("", phrase, "forbid") for phrase in options.forbid), *terms]:
            if not self._spelling.normal(term.target).strip():
                raise term.error("is no text to the model, as its joiner alone is none; give words, or leave it out")
        for term in terms:
            self._spelling.encode(term.target, term.named)
            if fault := self._forbidden_in(term.target, options.forbid):
                raise term.error(fault)
        self._checked = options

    def _forbidden_in(self, text: str, forbidden: Sequence[str]) -> str:
        """What is wrong with a text that holds a forbidden phrase; empty for another."""
        for phrase in forbidden:
            if stands_in(self._spelling.normal(phrase), self._spelling.normal(text)):
                return f"holds {phrase!r}, which is forbidden by {option('forbid')}; leave it out on one side"
        return ""

    def _wanted(self, part: Part, place: str, options: SearchOptions, prefix: str, first: bool) -> Wanted:
        """A part with what its output must begin with and hold; of a text in pieces the first holds what every output must."""
        terms = _required(options) if first else []
        if options.glossary:
            terms += options.glossary.found_in(self.bundle.source_tokenizer.plain(part.text))
        if prefix and (fault := self._forbidden_in(prefix, options.forbid)):
            raise DragomanError(f"{place}: the prefix {fault}")
        spelled = self._spelling.prefix(prefix, f"{place}: the prefix") if prefix.strip() else Prefix([], {})
        return Wanted(part.source, place, spelled, tuple(terms), words=len(words_of(part.text)) if options.tree else 0)

    def _translation(self, parts: list[tuple[list[Found], Part]], terms: list[Term], alpha: float) -> Translation:
        """One translation of all parts of a text, each with its n best outputs."""
        ranks = min((len(found) for found, _ in parts), default=1)
        best, *others = [self._joined([(found[rank], part) for found, part in parts], terms, alpha) for rank in range(ranks)]
        return replace(best, alternatives=tuple(others)) if others else best

    def _joined(self, parts: list[tuple[Found, Part]], terms: list[Term], alpha: float) -> Translation:
        tokenizer = self.bundle.target_tokenizer
        hypotheses = [found.hypothesis for found, _ in parts]
        ids = [token for hypothesis in hypotheses for token in hypothesis.tokens]
        log_probability = math.fsum(hypothesis.log_probability for hypothesis in hypotheses)
        text = "".join(tokenizer.decode(found.hypothesis.tokens) + part.separator for found, part in parts)
        stands = [stands_in(self._spelling.normal(term.target), text) for term in terms]
        stops = {found.stop for found, _ in parts} or {"empty"}
        utilities = [found.utility for found, _ in parts if found.utility is not None]
        return Translation(
            text=text,
            tokens=tuple(tokenizer.token(token) for token in ids),
            score=log_probability / length_penalty(len(ids), alpha),
            log_probability=log_probability,
            token_scores=tuple(score for hypothesis in hypotheses for score in hypothesis.token_scores),
            stop=next(stop for stop in _STOPS if stop in stops),
            met=tuple(term for term, there in zip(terms, stands, strict=True) if there),
            missed=tuple(term for term, there in zip(terms, stands, strict=True) if not there),
            utility=math.fsum(utilities) / len(utilities) if utilities else None,
            parts=tuple(part._replace(target=found.hypothesis.tokens) for found, part in parts),
        )


def _marks(model: nn.Module) -> list[tuple[int, int]]:
    """What is another as soon as a parameter has other values: where they are, and how often they were changed there."""
    parameters = [each for module in modules_of(model) for each in module._parameters.values() if each is not None]
    return [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in parameters]


def _required(options: SearchOptions) -> list[Term]:
    """The phrases that every translation must hold, as terms without a source."""
    return [Term("", phrase, "require") for phrase in options.require]


def _as_tree(translation: Translation) -> Translation:
    """The same with its text, and that of its alternatives, in a treebank's brackets with the words in them."""
    if not translation.parts:
        return translation
    text = str(restore(translation.text, words_of(translation.parts[0].text)))
    return replace(translation, text=text, alternatives=tuple(map(_as_tree, translation.alternatives)))


def _terms(parts: list[Wanted], options: SearchOptions) -> list[Term]:
    """The terms of a text, each once: those of all its parts, and what is required of a blank one as well, which misses it."""
    return list(dict.fromkeys([*_required(options), *(term for part in parts for term in part.terms)]))
