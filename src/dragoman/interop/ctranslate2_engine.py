"""Translating with CTranslate2 in place of the search here: the same text in and out, the same meaning of beam, alpha and lengths.

Greedy search finds what the search here finds. A beam is CTranslate2's own search: it stops when as many hypotheses as the beam is wide
have ended; their log-probabilities are then ranked by the length penalty here, which CTranslate2 has not.
"""

import hashlib
import logging
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import Bundle
from dragoman.decoding.beam import Hypothesis, length_penalty
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.rules import RepetitionGuard
from dragoman.decoding.search import Found, Search, Wanted
from dragoman.errors import DragomanError, UsageError
from dragoman.interop.ctranslate2 import export_model
from dragoman.interop.ctranslate2_check import installed_version
from dragoman.interop.ctranslate2_vocabulary import as_given, entries_of
from dragoman.interop.verify import Verification

_log = logging.getLogger("dragoman")
_COMPUTED = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8_float32"}
_ALMOST_NONE = 1e-6
"""CTranslate2's exponent of the length: with none at all it stops at the first hypothesis that ends ahead of all others."""

_LAYOUT = 1
"""Another number makes all folders anew: to be raised when the export writes something else."""

_Output = tuple[tuple[int, ...], float]
"""The ids of an output, its end with them, and their log-probability; no number where the end was not CTranslate2's own."""


@dataclass(frozen=True)
class Prepared:
    """A folder that CTranslate2 can translate from: where it is, and what the check found if it was made now."""

    folder: Path
    made: Verification | None
    temporary: tempfile.TemporaryDirectory[str] | None = None

    def sentence(self) -> str:
        """Which program translates from where, and what came of making it."""
        how = "made before" if self.made is None else f"made now, {self.made.sentence()}"
        place = f"{self.folder}, for this time only as the model's folder cannot be written" if self.temporary else str(self.folder)
        return f"CTranslate2 {installed_version()} translates, from {place} ({how})"


def require_ctranslate2() -> None:
    """Raise DragomanError that says what to install where CTranslate2 is not."""
    if not installed_version():
        raise DragomanError("CTranslate2 is not installed; pip install 'dragoman[ctranslate2]', or leave --engine out")


def refuse_options(options: SearchOptions) -> None:
    """Raise UsageError that names everything asked of a search that CTranslate2 cannot do as it is done here."""
    asked = {
        "--tree": options.tree,
        "--sample": options.sample,
        "--mbr": options.mbr is not None,
        "--diverse-groups": options.diverse_groups > 1,
        "--glossary": options.glossary is not None,
        "--require": bool(options.require),
        "--forbid": bool(options.forbid),
    }
    if unable := [name for name, wanted in asked.items() if wanted]:
        raise UsageError(f"--engine ctranslate2 cannot do {', '.join(unable)} as it is done here; leave that out, or --engine")


def prepare(model: Path, bundle: Bundle) -> Prepared:
    """The CTranslate2 folder of a bundle that was loaded from ``model``, inside it: made now, if it is not there yet.

    Its name holds a fingerprint of the model's files, so that a changed model gets another. Where the bundle cannot be written to, the
    folder is a temporary one. Raises DragomanError for a model that CTranslate2 cannot compute.
    """
    require_ctranslate2()
    folder = model / f"ctranslate2-{_fingerprint(model)}"
    if (folder / "model.bin").is_file():
        return Prepared(folder, None)
    try:
        with tempfile.TemporaryDirectory(dir=model, prefix=".ctranslate2-") as scratch:
            made, _ = export_model(bundle, Path(scratch) / "made")
            try:
                (Path(scratch) / "made").rename(folder)
            except OSError:
                if not (folder / "model.bin").is_file():  # unless another process was faster
                    raise
        return Prepared(folder, made)
    except OSError:
        temporary = tempfile.TemporaryDirectory(prefix="dragoman-ctranslate2-")
        folder = Path(temporary.name) / "made"
        return Prepared(folder, export_model(bundle, folder)[0], temporary)


def _fingerprint(model: Path) -> str:
    digest = hashlib.sha256(f"{_LAYOUT}\n".encode())
    for path in sorted(path for path in model.iterdir() if path.suffix in (".json", ".safetensors")):
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:12]


class CTranslate2Engine:
    """CTranslate2 as the `Engine` of a translator of ``bundle``.

    With ``scored`` each output gets the log-probability of each token, by a second pass; without, only the sum that the search has.
    """

    def __init__(self, bundle: Bundle, prepared: Prepared, *, precision: str = "fp32", scored: bool = False) -> None:
        """Raises UsageError for a device or a precision that CTranslate2 has not here."""
        require_ctranslate2()
        import ctranslate2

        device = bundle.model.output.weight.device
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"--engine ctranslate2 does not compute on {device}; give --device cpu or cuda")
        computed, known = _COMPUTED[precision], sorted(ctranslate2.get_supported_compute_types(device.type))
        if computed not in known:
            raise UsageError(f"--precision {precision}: CTranslate2 has no {computed} on this {device.type}; it has {', '.join(known)}")
        threads = max(1, torch.get_num_threads()) if device.type == "cpu" else 1
        self.prepared, self.scored = prepared, scored
        self._translator: Any = ctranslate2.Translator(
            str(prepared.folder), device=device.type, device_index=device.index or 0, compute_type=computed,
            inter_threads=threads, intra_threads=1,
        )  # fmt: skip
        model, target = bundle.config.model, bundle.target_tokenizer
        self._sources = entries_of(bundle.source_tokenizer, model.source_vocabulary)
        self._targets = entries_of(target, model.target_vocabulary)
        self._ids = {entry: token for token, entry in enumerate(self._targets)}
        self._tokenizer = bundle.source_tokenizer
        self._eos = target.eos
        never = (target.pad, target.bos, *target.tags.values(), *range(len(target), model.target_vocabulary))
        self._never = frozenset(never) - {target.eos}

    def __call__(self, search: Search, texts: Sequence[Wanted], batch_tokens: int) -> list[list[Found]]:
        """The n best outputs of each text, in order, as `Search` gives them. Texts that it must do itself are told and given to it."""
        refuse_options(search.options)
        if search.watch is not None:
            raise UsageError("CTranslate2 shows no steps of a search: leave watch out, or the engine")
        if any(text.prefix.ids for text in texts):
            raise UsageError("--engine ctranslate2 cannot do --prefix as it is done here; leave that out, or --engine")
        groups: dict[tuple[int, int], list[int]] = {}
        for place, text in enumerate(texts):
            groups.setdefault(search.limits(text), []).append(place)
        asked = [
            (places, limits, self._ask(search, [texts[place] for place in places], limits, batch_tokens))
            for limits, places in groups.items()
        ]
        found: dict[int, list[Found]] = {}
        for places, (_, most), answers in asked:
            some = [texts[place] for place in places]
            found |= zip(places, self._outputs(search, some, most, [_result(answer, search) for answer in answers]), strict=True)
        left = [place for place, outputs in found.items() if not outputs]
        if left:
            notice = (
                "%s%s: goes round in a loop or has no room for a token, which the search here sees to and CTranslate2 does not; done here"
            )
            _log.info(notice, texts[left[0]].place, f" and {len(left) - 1} more" if len(left) > 1 else "")
            found |= zip(left, search([texts[place] for place in left], batch_tokens), strict=True)
        return [found[place] for place in range(len(texts))]

    def _ask(self, search: Search, texts: Sequence[Wanted], limits: tuple[int, int], batch_tokens: int) -> list[Any]:
        """The answers to come for texts that share their least and most tokens. The end token, which counts here, does not count there."""
        least, most = limits
        if most < 2:
            return [_Nothing() for _ in texts]
        answers: list[Any] = self._translator.translate_batch(
            [self._tokens(text) for text in texts], asynchronous=True, beam_size=search.beam, num_hypotheses=search.beam,
            length_penalty=_ALMOST_NONE if search.beam > 1 else 0, no_repeat_ngram_size=search.options.no_repeat_ngram,
            min_decoding_length=least - 1, max_decoding_length=most - 1, max_input_length=0,
            return_end_token=True, return_scores=True, max_batch_size=max(batch_tokens // search.beam, 1), batch_type="tokens",
        )  # fmt: skip
        return answers

    def _tokens(self, text: Wanted) -> list[str]:
        """What CTranslate2 is given of a source."""
        return [self._sources[token] for token in as_given(self._tokenizer, text.ids)]

    def _outputs(self, search: Search, texts: Sequence[Wanted], most: int, answers: Sequence[Any]) -> list[list[Found]]:
        """The outputs of texts with one limit; none for those that the search here must do."""
        outputs: list[list[_Output]] = []
        for answer in answers:
            some = []
            for tokens, score in zip(answer.hypotheses, answer.scores, strict=True):
                ids = tuple(self._ids[token] for token in tokens)
                total = score * len(ids) ** _ALMOST_NONE if search.beam > 1 else score
                some.append((ids if ids[-1:] == (self._eos,) else (*ids, self._eos), total if ids[-1:] == (self._eos,) else math.nan))
            outputs.append(some)
        loops = [self._unusable(search, text, some) for text, some in zip(texts, outputs, strict=True)]
        # What may not come next has no part in CTranslate2's probabilities; here scores are the model's own.
        scored = self.scored or search.options.min_length is not None or search.options.no_repeat_ngram > 0
        scores = self._scores(texts, outputs, [bool(some) and not loop for some, loop in zip(outputs, loops, strict=True)], scored=scored)
        return [[] if loop else _ranked(search, some, rows, most) for some, rows, loop in zip(outputs, scores, loops, strict=True)]

    def _unusable(self, search: Search, text: Wanted, outputs: Sequence[_Output]) -> bool:
        """Whether an output holds what may never come, or the guard against loops would have ended one before it ended by itself."""
        if any(self._never.intersection(ids) for ids, _ in outputs):
            return True
        least = search.options.repetition_guard
        if not least or all(len(ids) <= least for ids, _ in outputs):
            return False
        guard = RepetitionGuard([text.ids], least=least, eos=self._eos, device=torch.device("cpu"))
        return any(guard.ended(ids[:end], 0) for ids, _ in outputs for end in range(least + 1, len(ids) + 1))

    def _scores(
        self, texts: Sequence[Wanted], outputs: Sequence[Sequence[_Output]], wanted: Sequence[bool], *, scored: bool
    ) -> list[list[tuple[float, ...]]]:
        """The log-probabilities of the tokens of each output, the end token's with them, where they are asked for or an end was forced."""
        sources: list[list[str]] = []
        targets: list[list[str]] = []
        rows: list[list[tuple[float, ...]]] = [[() for _ in some] for some in outputs]
        places: list[tuple[int, int]] = []
        for place, (text, some) in enumerate(zip(texts, outputs, strict=True)):
            if wanted[place] and (scored or any(math.isnan(total) for _, total in some)):
                places += [(place, rank) for rank in range(len(some))]
                sources += [self._tokens(text)] * len(some)
                targets += [[self._targets[token] for token in ids[:-1]] for ids, _ in some]
        found = self._translator.score_batch(sources, targets, max_input_length=0) if places else []
        for (place, rank), each in zip(places, found, strict=True):
            rows[place][rank] = tuple(each.log_probs)
        return rows


def _ranked(search: Search, outputs: Sequence[_Output], rows: Sequence[tuple[float, ...]], most: int) -> list[Found]:
    found = []
    for (ids, total), row in zip(outputs, rows, strict=True):
        log_probability = sum(row) if row else total
        limited = len(ids) >= most
        score = log_probability / length_penalty(len(ids), search.alpha)
        found.append(Found(Hypothesis(ids, log_probability, score, row, limited), "length" if limited else "end"))
    return sorted(found, key=lambda each: -each.hypothesis.score)[: search.n_best]


def _result(answer: Any, search: Search) -> Any:
    """An answer when it has come, unless the search is to end."""
    search.check()
    return answer.result()


class _Nothing:
    """The answer for a text whose output may hold nothing but the end token: left to the search here."""

    hypotheses: tuple[()] = ()
    scores: tuple[()] = ()

    def result(self) -> "_Nothing":
        """Itself, at once."""
        return self
