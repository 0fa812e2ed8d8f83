"""A model behind the calls that users of `transformers` know, with the results that they know: ``dragoman.pipeline(task, model)``."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

from torch import Tensor

from dragoman.bundle import Bundle, load_bundle
from dragoman.decoding.embed import features
from dragoman.decoding.fill import Filling, fill
from dragoman.decoding.generate import Continuation, Generator
from dragoman.decoding.generation_options import GenerationOptions
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.translate import Translator
from dragoman.devices import pick_device
from dragoman.errors import DragomanError, UsageError

TASKS = ("text-generation", "fill-mask", "feature-extraction", "translation", "translation_xx_to_yy")
_NEW_TOKENS = 256


class TextGenerationPipeline:
    """``text-generation``: ``[{"generated_text": ...}]`` for a prompt, a list of such lists for a list of prompts."""

    def __init__(self, bundle: Bundle) -> None:
        self.generator = Generator(bundle)

    def __call__(
        self,
        text_inputs: str | Sequence[str],
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        min_new_tokens: int = 0,
        do_sample: bool = True,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_beams: int = 1,
        num_return_sequences: int = 1,
        no_repeat_ngram_size: int = 0,
        return_full_text: bool = True,
        seed: int | None = None,
    ) -> list[Any]:
        """Goes on with each prompt, drawing unless ``do_sample`` is off or ``num_beams`` given.

        ``temperature`` is 0.7 and ``top_k`` 50 when not given, as there. At most ``max_new_tokens`` (256) are added; ``max_length`` counts
        the prompt's as well. Without ``return_full_text`` the prompt is left out. Another ``seed`` gives other samples, the same call the
        same. Raises UsageError for what cannot be, and for what would do nothing.
        """
        prompts = [text_inputs] if isinstance(text_inputs, str) else list(text_inputs)
        asked: dict[str, Any] = {"n": num_return_sequences, "min_tokens": min_new_tokens, "no_repeat_ngram": no_repeat_ngram_size}
        if num_beams < 1:
            raise UsageError(f"num_beams={num_beams}: it must be 1 or more")
        drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        if num_beams > 1:
            asked |= {**drawing, "beam": num_beams}
        elif do_sample:
            asked |= {**drawing, "temperature": 0.7 if temperature is None else temperature, "top_k": 50 if top_k is None else top_k}
        elif temperature:
            raise UsageError(f"temperature={temperature} with do_sample=False: nothing is drawn; leave one of the two out")
        else:
            asked |= {**drawing, "temperature": 0.0}
        found: dict[int, list[dict[str, str]]] = {}
        limits = self._limits(prompts, max_new_tokens, max_length)
        for most in sorted(set(limits)):
            places = [place for place, limit in enumerate(limits) if limit == most]
            answers = self.generator.generate([prompts[place] for place in places], GenerationOptions(max_tokens=most, **asked))
            for place, some in zip(places, answers, strict=True):
                found[place] = [_generated(prompts[place] if return_full_text else "", each) for each in some]
        results = [found[place] for place in range(len(prompts))]
        return results[0] if isinstance(text_inputs, str) else results

    def _limits(self, prompts: list[str], new_tokens: int | None, length: int | None) -> list[int]:
        """The most tokens after each prompt, as far as the model has positions."""
        counts = self.generator.prompt_tokens(prompts)
        if new_tokens is not None and length is not None:
            raise UsageError(f"max_new_tokens={new_tokens} with max_length={length}: both say where to stop; leave one of the two out")
        if length is None:
            return [_NEW_TOKENS if new_tokens is None else new_tokens for _ in counts]
        if too_long := [f"{count} tokens" for count in counts if count >= length]:
            raise UsageError(
                f"max_length={length} counts the prompt's tokens too, and one has {too_long[0]}; raise it, or give max_new_tokens"
            )
        return [length - count for count in counts]


def _generated(before: str, continuation: Continuation) -> dict[str, str]:
    return {"generated_text": before + continuation.text}


class FillMaskPipeline:
    """``fill-mask``: for a text with a mask ``[{"score", "token", "token_str", "sequence"}, ...]``, with several masks a list for each."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        fill(bundle, [])  # says at once when the model is of another kind

    def __call__(self, inputs: str | Sequence[str], *, top_k: int = 5, targets: str | Sequence[str] | None = None) -> list[Any]:
        """The ``top_k`` most probable tokens for each mask, among ``targets`` if they are given; a list of results for a list of texts."""
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        among = None if targets is None else self._ids([targets] if isinstance(targets, str) else targets)
        results = []
        for masks in fill(self.bundle, texts, top=top_k, among=among):
            lists = [[self._record(each, single=len(masks) == 1) for each in some] for some in masks]
            results.append(lists[0] if len(lists) == 1 else lists)
        return results[0] if len(results) == 1 else results

    def _ids(self, targets: Sequence[str]) -> list[int]:
        """The entries that these are; DragomanError for one that is not an entry by itself."""
        tokenizer, ids = self.bundle.source_tokenizer, []
        for target in targets:
            encoded = tokenizer.encode(target)
            if len(encoded) != 1 or encoded[0] == tokenizer.unk:
                raise DragomanError(f"targets: {target!r} is not one token of the model's vocabulary; give words that are")
            ids += encoded
        return ids

    def _record(self, filling: Filling, *, single: bool) -> dict[str, Any]:
        tokenizer = self.bundle.source_tokenizer
        # With several masks all special tokens are shown, as there; with one, none.
        sequence = tokenizer.decode(filling.ids) if single else tokenizer.backend.decode(filling.ids, skip_special_tokens=False)
        return {"score": filling.probability, "token": filling.token, "token_str": filling.text, "sequence": sequence}


class FeatureExtractionPipeline:
    """``feature-extraction``: for a text the hidden states of its tokens, [[[…], …]]: one text, its tokens, their numbers."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        features(bundle, [])

    def __call__(self, inputs: str | Sequence[str], *, return_tensors: bool = False) -> Any:
        """Nested lists of floats, or with ``return_tensors`` a tensor (1, tokens, d_model); a list of these for a list of texts."""
        found = features(self.bundle, [inputs] if isinstance(inputs, str) else list(inputs))
        results = [_nested(states[None], return_tensors) for states in found]
        return results[0] if isinstance(inputs, str) else results


def _nested(states: Tensor, as_tensor: bool) -> Any:
    return states if as_tensor else states.tolist()


class TranslationPipeline:
    """``translation`` and ``translation_xx_to_yy``: ``[{"translation_text": ...}]``, one for each text."""

    def __init__(self, bundle: Bundle, languages: tuple[str, str] | None = None) -> None:
        """``languages`` are those that the model must have. Raises UsageError where it has others."""
        own = bundle.config.data.source, bundle.config.data.target
        if languages and any(one and one != other for one, other in zip(own, languages, strict=True)):
            raise UsageError(f"the task is from {languages[0]} to {languages[1]}, and the model translates from {own[0]} to {own[1]}")
        self.translator = Translator(bundle)

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        num_beams: int | None = None,
        max_length: int | None = None,
        num_return_sequences: int = 1,
        do_sample: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> list[Any]:
        """Translates each text, as `Translator.translate` does; with more ``num_return_sequences`` a list of texts has a list for each."""
        drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        options = SearchOptions(sample=do_sample, **drawing)  # type: ignore[arg-type]
        translations = self.translator.translate(
            [inputs] if isinstance(inputs, str) else list(inputs),
            beam=num_beams, n_best=num_return_sequences, max_length=max_length, options=options,
        )  # fmt: skip
        results = [[{"translation_text": each.text} for each in (best, *best.alternatives)] for best in translations]
        if isinstance(inputs, str):
            return results[0]
        return [result[0] for result in results] if num_return_sequences == 1 else results


@overload
def pipeline(task: Literal["text-generation"], model: str | Path | Bundle, *, device: str | int = "auto") -> TextGenerationPipeline:
    """Goes on with text."""


@overload
def pipeline(task: Literal["fill-mask"], model: str | Path | Bundle, *, device: str | int = "auto") -> FillMaskPipeline:
    """Fills in masks."""


@overload
def pipeline(task: Literal["feature-extraction"], model: str | Path | Bundle, *, device: str | int = "auto") -> FeatureExtractionPipeline:
    """Gives hidden states."""


@overload
def pipeline(task: str, model: str | Path | Bundle, *, device: str | int = "auto") -> Any:
    """Translates, where the task begins with ``translation``."""


def pipeline(task: str, model: str | Path | Bundle, *, device: str | int = "auto") -> Any:
    """What does ``task`` with a model: text-generation, fill-mask, feature-extraction, translation, or translation_xx_to_yy.

    ``model`` is a bundle, its folder, a run folder, a checkpoint, or a Hugging Face folder or hub name; ``device`` a name as elsewhere, or
    a number: of a GPU, or -1 for the CPU. Raises UsageError for another task, DragomanError for a model that cannot be loaded or is of
    another kind.
    """
    languages = re.fullmatch(r"translation_([\w-]+)_to_([\w-]+)", task)
    if task not in TASKS and languages is None:
        raise UsageError(f"task={task!r}: unknown; choose among {', '.join(TASKS)}")
    bundle = model if isinstance(model, Bundle) else _load(model, device)
    if task == "text-generation":
        return TextGenerationPipeline(bundle)
    if task == "fill-mask":
        return FillMaskPipeline(bundle)
    if task == "feature-extraction":
        return FeatureExtractionPipeline(bundle)
    return TranslationPipeline(bundle, (languages[1], languages[2]) if languages and task != TASKS[-1] else None)


def _load(model: str | Path, device: str | int) -> Bundle:
    name = device if isinstance(device, str) else "cpu" if device < 0 else f"cuda:{device}"
    where, path = pick_device(name), Path(model)
    if path.exists() and not _is_huggingface(path):
        return load_bundle(path, device=str(where))
    from dragoman.interop.huggingface import load_huggingface

    bundle = load_huggingface(model)
    bundle.model.to(where)
    return bundle


def _is_huggingface(path: Path) -> bool:
    """Whether it is a folder as `transformers` writes it."""
    try:
        settings = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and "model_type" in settings
