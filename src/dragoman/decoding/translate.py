"""Text in, translations out: tokenizer, batches, beam search, and text again (Section 6.1)."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from dragoman.bundle import Bundle, load_bundle
from dragoman.data.batching import batches_of, pad_rows
from dragoman.decoding.beam import Hypothesis, beam_search, check_alpha, length_penalty
from dragoman.decoding.score import Scored, score_texts
from dragoman.decoding.split import Piece, longest_taken, split_text
from dragoman.decoding.step import TransformerStep
from dragoman.devices import pick_device

_log = logging.getLogger("dragoman")
_SHORTEST = 16  # tokens that a shorter sentence counts as in a batch: its rows of the output layer take memory too


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
    sum over the length penalty ((5 + n) / 6)^α of the n tokens. ``reached_limit``: it has the most tokens allowed, so its end may be
    forced. ``alternatives`` are the next best, without alternatives of their own. A text that had to be translated in pieces has the
    tokens of all of them, each with its end token, and its i-th alternative joins the pieces' i-th. ``parts`` are these pieces in ids: one
    for most texts, none for a blank one.
    """

    text: str
    tokens: tuple[str, ...]
    score: float
    log_probability: float
    token_scores: tuple[float, ...]
    reached_limit: bool
    alternatives: tuple["Translation", ...] = ()
    parts: tuple[Part, ...] = field(default=(), repr=False, compare=False)


class Translator:
    """A bundle at work: `translate` and `score`. The model computes in evaluation mode and is left in the mode it had."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> "Translator":
        """The translator of a run folder, checkpoint or bundle, on a device: auto (a GPU where there is one), cpu, cuda, cuda:N or mps.

        Raises DragomanError for what is wrong with the model, or a device that is not there.
        """
        return cls(load_bundle(path, device=str(pick_device(device))))

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        max_length: int | None = None,
        batch_tokens: int = 16_384,
        place: str = "",
        first_line: int = 1,
    ) -> list[Translation]:
        """The translation of each text, in order; an empty text, or one of white space, gives an empty one.

        ``beam`` and ``alpha`` are the bundle's own when not given. ``max_length`` is the most target tokens, end token included; when not
        given it is the source's tokens plus the bundle's extra_length; it is never more than the model takes. A batch has at most
        ``batch_tokens`` source tokens, counted once for each hypothesis of the beam. A text too long for the model is translated in
        pieces, which are joined with the white space that was between them; a warning names ``place`` and its line, counted from
        ``first_line``, as another does for a text longer than any in training. A model with language tags needs one at the head of each
        text. Raises UsageError for impossible settings, DragomanError that names the line for a tag that is missing or unknown.
        """
        settings = self.bundle.config.decoding
        alpha = settings.alpha if alpha is None else alpha
        beam = settings.beam if beam is None else beam
        check_alpha(alpha)
        parts = self._parts(texts, place, first_line)
        all_ids = [part.source for line in parts for part in line]
        found = iter(self._search(all_ids, beam=beam, alpha=alpha, n_best=n_best, max_length=max_length, batch_tokens=batch_tokens))
        return [self._translation([(next(found), part) for part in line], alpha) for line in parts]

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, alpha: float | None = None, batch_tokens: int = 4096
    ) -> list[Scored]:
        """What the model thinks of given translations: each target after its source, the end token included.

        Raises UsageError for an impossible ``alpha``, DragomanError when the counts differ or a pair is longer than the model takes.
        """
        alpha = self.bundle.config.decoding.alpha if alpha is None else alpha
        with self._evaluating():
            return score_texts(self.bundle, sources, targets, alpha=alpha, batch_tokens=batch_tokens)

    def _parts(self, texts: Sequence[str], place: str, first_line: int) -> list[list[Part]]:
        """What the model gets of each text: nothing of a blank one, one part of most, several of one that is too long."""
        tokenizer = self.bundle.source_tokenizer
        before = f"{place}, " if place else ""
        heads = [tokenizer.split_tag(text, place=f"{before}line {number}") for number, text in enumerate(texts, start=first_line)]
        limit, learnt = longest_taken(self.bundle.config) - 1, self.bundle.config.data.max_length - 1
        lines: list[list[Part]] = []
        encoded = tokenizer.encode_batch([text for _, text in heads])
        for number, (line, (head, text), ids) in enumerate(zip(texts, heads, encoded, strict=True), start=first_line):
            length, start = len(head) + len(ids), len(line) - len(text)
            if not ids or not text.strip():
                lines.append([])
            elif length <= limit:
                lines.append([Part([*head, *ids, tokenizer.eos], text, start)])
                if length > learnt:
                    notice = "%sline %d: %d tokens are more than the %d of the longest sentences in training; translated whole"
                    _log.warning(notice, before, number, length, learnt)
            else:
                pieces = split_text(text, fits=partial(self._fits, most=limit - len(head)))
                lines.append(self._pieces(head, pieces, start + len(text) - len(text.lstrip())))
                notice = "%sline %d: %d tokens exceed the model's limit of %d; translated in %d pieces"
                _log.warning(notice, before, number, length, limit, len(pieces))
        return lines

    def _pieces(self, head: list[int], pieces: list[Piece], start: int) -> list[Part]:
        """The parts of a text that was cut, each with the tag of the whole."""
        tokenizer, parts = self.bundle.source_tokenizer, []
        for piece in pieces:
            parts.append(Part([*head, *tokenizer.encode(piece.text), tokenizer.eos], piece.text, start, piece.separator))
            start += len(piece.text) + len(piece.separator)
        return parts

    def _fits(self, piece: str, *, most: int) -> bool:
        return len(self.bundle.source_tokenizer.encode(piece)) <= most

    def _search(
        self, sources: list[list[int]], *, beam: int, alpha: float, n_best: int, max_length: int | None, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses of each source, in order."""
        model, target = self.bundle.model, self.bundle.target_tokenizer
        extra, limit = self.bundle.config.decoding.extra_length, longest_taken(self.bundle.config)
        # Rows of the embedding beyond the tokenizer's entries have no text.
        banned = (target.pad, target.bos, *target.tags.values(), *range(len(target), self.bundle.config.model.target_vocabulary))
        found: dict[int, list[Hypothesis]] = {}
        with self._evaluating():
            for batch in batches_of([max(len(ids), _SHORTEST) for ids in sources], batch_tokens=batch_tokens // max(beam, 1)):
                rows = [sources[place] for place in batch]
                source, source_mask = pad_rows(rows, pad=self.bundle.source_tokenizer.pad, device=model.output.weight.device)
                longest = [len(ids) + extra if max_length is None else max_length for ids in rows]
                hypotheses = beam_search(
                    TransformerStep(model), source, source_mask, bos=target.bos, eos=target.eos, banned=banned,
                    beam=beam, alpha=alpha, max_lengths=[min(length, limit) for length in longest], n_best=n_best,
                )  # fmt: skip
                found.update(zip(batch, hypotheses, strict=True))
        return [found[place] for place in range(len(sources))]

    def _translation(self, parts: list[tuple[list[Hypothesis], Part]], alpha: float) -> Translation:
        """One translation of all parts of a text, each with its n best hypotheses."""
        ranks = min((len(hypotheses) for hypotheses, _ in parts), default=1)
        best, *others = [self._joined([(hypotheses[rank], part) for hypotheses, part in parts], alpha) for rank in range(ranks)]
        return replace(best, alternatives=tuple(others))

    def _joined(self, parts: list[tuple[Hypothesis, Part]], alpha: float) -> Translation:
        tokenizer = self.bundle.target_tokenizer
        ids = [token for hypothesis, _ in parts for token in hypothesis.tokens]
        log_probability = math.fsum(hypothesis.log_probability for hypothesis, _ in parts)
        return Translation(
            text="".join(tokenizer.decode(hypothesis.tokens) + part.separator for hypothesis, part in parts),
            tokens=tuple(tokenizer.token(token) for token in ids),
            score=log_probability / length_penalty(len(ids), alpha),
            log_probability=log_probability,
            token_scores=tuple(score for hypothesis, _ in parts for score in hypothesis.token_scores),
            reached_limit=any(hypothesis.reached_limit for hypothesis, _ in parts),
            parts=tuple(part._replace(target=hypothesis.tokens) for hypothesis, part in parts),
        )

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients; afterwards the mode the model had, which a training loop still needs."""
        model = self.bundle.model
        training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            model.train(training)
