"""What is evaluated: translations of a test set, with what is known of what made them."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dragoman.evaluation.testset import TestSet, check_length

if TYPE_CHECKING:
    from dragoman.decoding.translate import Translator

WARM_UP = 8
"""Sentences that are translated before time is taken."""
_WORDS_A_PIECE = 100  # at most, in segmented text; in other text words that end as pieces do are fewer, if there are any


@dataclass(frozen=True)
class System:
    """Translations in plain text, one for each sentence of a test set.

    Of a model also its settings, what its bundle says of its ``making`` (the step, which checkpoints it is the mean of), its number
    of parameters, the seconds that translating took (loading not counted), the tokens it said, end tokens included, the sources' tokens
    that it does not know, and how many translations reached the longest length allowed. Of an ensemble the settings and the making are the
    first model's, and the parameters all models'.
    """

    name: str
    texts: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    making: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    unknown_in_source: int | None = None
    reached_limit: int | None = None

    def facts(self) -> dict[str, Any]:
        """What is known of it, but its texts, its settings and its making."""
        names = ("parameters", "seconds", "tokens", "unknown_in_source", "reached_limit")
        return {"name": self.name} | {name: getattr(self, name) for name in names}


def per_second(count: int, seconds: float) -> float:
    """How many a second; a number also where no time has passed."""
    return count / max(seconds, 1e-9)


def search_settings(translator: "Translator", *, beam: int | None, alpha: float | None, max_length: int | None) -> dict[str, Any]:
    """How a translator searches: its bundle's settings, what was asked instead, and the type of its products where it is not float32."""
    precision = translator.choice.precision if translator.choice else translator.precision
    asked = {"beam": beam, "alpha": alpha, "max_length": max_length, "precision": None if precision == "fp32" else precision}
    own = translator.bundle.config.decoding.model_dump(mode="json")
    return own | {name: value for name, value in asked.items() if value is not None}


def given_system(name: str, texts: Sequence[str], test: TestSet) -> System:
    """Translations that are there; DragomanError with both counts unless there is one for each sentence."""
    check_length(name, texts, test)
    warn_of_pieces(name, texts)
    return System(name, tuple(texts))


def warn_of_pieces(name: str, texts: Iterable[str]) -> None:
    """A warning where texts look as if they had the pieces of words that a segmentation leaves, of which a score would count each."""
    words = [word for text in texts for word in text.split()]
    pieces = sum(word.endswith("@@") for word in words)
    if pieces and pieces * _WORDS_A_PIECE >= len(words):
        message = "%s: %d of %d words end in @@, as pieces of words do, and each counts as a word; join them first, as with sed 's/@@ //g'"
        logging.getLogger("dragoman").warning(message, name, pieces, len(words))


def translating_system(
    name: str,
    translator: "Translator",
    test: TestSet,
    *,
    beam: int | None = None,
    alpha: float | None = None,
    max_length: int | None = None,
    warm_up: bool = False,
    check: Callable[[], None] = lambda: None,
) -> System:
    """A model's translations of the sources of ``test``, which are as the model takes them: segmented, with language tags.

    ``warm_up``: some sentences are translated once before time is taken, for the first are slower whatever the model.
    ``check`` is called before each step of a search, and may raise.
    """
    sources = test.sources or []
    translate = partial(translator.translate, beam=beam, alpha=alpha, max_length=max_length, check=check)
    if warm_up:
        translate(sources[:WARM_UP])
    start = time.perf_counter()
    translations = translate(sources)
    seconds = time.perf_counter() - start
    config, tokenizer = translator.bundle.config, translator.bundle.source_tokenizer
    settings = config.model_dump(mode="json")
    settings["decoding"] = search_settings(translator, beam=beam, alpha=alpha, max_length=max_length)
    heads = [tokenizer.split_tag(text, place=f"line {number}") for number, text in enumerate(sources, start=1)]
    return System(
        name=name,
        texts=tuple(translation.text for translation in translations),
        settings=settings,
        making=dict(translator.bundle.info),
        parameters=sum(weight.numel() for bundle in translator.bundles for weight in bundle.model.parameters()),
        seconds=seconds,
        tokens=sum(len(translation.tokens) for translation in translations),
        unknown_in_source=sum(ids.count(tokenizer.unk) for ids in tokenizer.encode_batch([text for _, text in heads])),
        reached_limit=sum(translation.reached_limit for translation in translations),
    )
