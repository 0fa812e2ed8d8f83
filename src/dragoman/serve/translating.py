"""From the texts of a request to translations: sentences, the models that lead from one language to the other, and the text again."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dragoman.decoding.translate import Translation
from dragoman.serve.detect import detect
from dragoman.serve.engine import Ask, Output
from dragoman.serve.languages import AUTO, language_name
from dragoman.serve.models import Hop, Models
from dragoman.serve.refusals import RefusalError, invalid, too_slow
from dragoman.serve.segments import Document, Sentence, assembled, document_of, sentences_of
from dragoman.serve.service import Client, Service

Result = TypeVar("Result")

MOST_TIMES, MOST_MORE = 2, 50
"""An output that is asked to have more tokens than so many times the source's and so many more ends there."""
HTML_CHARACTERS = 200_000
"""The longest text that is HTML: it is read as a whole, for seconds if each character is a piece of its own."""
LENGTHS = r"^([1-9][0-9]{0,3}|[01](\.[0-9]{1,9})?x|2(\.0{1,9})?x)$"
"""How the longest output may be given: in tokens, or in times the source's."""


@dataclass(frozen=True)
class Detected:
    """The language that a text was found to be in, and how sure that is, of 100."""

    language: str
    confidence: float

    def document(self) -> dict[str, object]:
        """As LibreTranslate writes it."""
        return {"confidence": round(self.confidence, 1), "language": self.language}


@dataclass(frozen=True)
class Line:
    """A sentence and what each model on the way made of it, the last one's being the translation."""

    source: str
    outputs: tuple[Output, ...]

    @property
    def translation(self) -> Translation:
        """In the language that was asked for."""
        return self.outputs[-1].translation


@dataclass(frozen=True)
class Translated:
    """A text in another language, its sentences, and what its reader should know: ``repetition``, ``length``."""

    text: str
    alternatives: list[str]
    lines: Sequence[Line] = ()
    hops: Sequence[Hop] = ()
    detected: Detected | None = None
    warnings: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Wish:
    """What is asked of the texts of a request."""

    source: str
    target: str
    ask: Ask = field(default_factory=Ask)
    html: bool = False
    split: bool = True

    def document(self, text: str) -> Document:
        """A text with its sentences. Raises RefusalError for HTML that is too long."""
        if self.html and len(text) > HTML_CHARACTERS:
            raise RefusalError(413, f"A text that is HTML may have at most {HTML_CHARACTERS} characters")
        if not self.html:
            return document_of(text, split=self.split)
        from dragoman.serve.html_text import html_document

        return html_document(text, split=self.split)


def check_length(texts: Sequence[str], client: Client, service: Service, *, given: Sequence[str] = ()) -> None:
    """Raises RefusalError for more texts than the client may send at once, or more characters in them and their ``given`` translations."""
    size, limit = sum(map(len, [*texts, *given])), service.settings.batch_limit
    if limit and len(texts) > limit:
        raise invalid(f"request ({len(texts)} texts) exceeds batch limit ({limit})")
    if client.char_limit and size > client.char_limit:
        raise invalid(f"request ({size}) exceeds text limit ({client.char_limit})")


def check_pair(models: Models, source: str, target: str) -> None:
    """Raises RefusalError for a language that no model has, or a pair that none leads through."""
    for code in (source, target):
        if code not in models.codes and not (code == AUTO and code is source):
            raise RefusalError(400, f"{code} is not supported")
    if source == target or (source == AUTO and (target in models.sources or models.sources_of(target))):
        return
    if source == AUTO or not models.route(source, target):
        start = "any" if source == AUTO else f"{language_name(source)} ({source})"
        raise RefusalError(400, f"{language_name(target)} ({target}) is not available as a target language from {start}")


def detected_in(models: Models, text: str, target: str) -> Detected:
    """The language of a text among those that lead to the target, and the target itself where it is a source as well."""
    candidates = [code for code in models.sources if code == target or models.route(code, target)]
    return Detected(*detect(text, models.profiles, candidates)[0])


def beam_for(service: Service, source: str, target: str, *, n_best: int) -> int | None:
    """The beam of a request that names none: the server's or the models' own (None), but as wide as ``n_best`` needs."""
    models, common = service.models, service.settings.beam
    starts = models.sources_of(target) if source == AUTO else [source]
    narrowest = min((hop.beam for start in starts for hop in models.route(start, target)), default=n_best)
    return common if n_best <= (common or narrowest) else n_best


async def translate_texts(service: Service, texts: Sequence[str], wish: Wish, *, client: Client) -> list[Translated]:
    """The translation of each text, in order. Raises RefusalError when that cannot be, or takes too long."""
    models = service.models
    check_pair(models, wish.source, wish.target)
    found: list[Detected | None] = [None] * len(texts)
    documents = await asyncio.to_thread(lambda: [*map(wish.document, texts)]) if wish.html else [*map(wish.document, texts)]
    if wish.source == AUTO:
        found = [detected_in(models, "\n".join(each.text for each in sentences_of(document)), wish.target) for document in documents]
    sources = [each.language if each else wish.source for each in found]
    lines = await in_time(service.settings.timeout, "translated", _lines(service, models, documents, sources, wish, client=client))
    results = []
    for text, document, source, done, each in zip(texts, documents, sources, lines, found, strict=True):
        if source == wish.target:
            results.append(Translated(text, [], detected=each))
        else:
            results.append(replace(joined(document, done, wish), hops=models.route(source, wish.target), detected=each))
    return results


async def in_time(seconds: float, done: str, work: Awaitable[Result], *, option: str = "--timeout") -> Result:
    """What ``work`` gives within so many seconds, of ``option``; ``done`` says what is done to a text. Raises RefusalError after that."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise too_slow(done, seconds, option=option) from None


async def _lines(
    service: Service, models: Models, documents: Sequence[Document], sources: Sequence[str], wish: Wish, *, client: Client
) -> list[list[Line]]:
    """The sentences of each document, translated: those from one language together, one language beside the other."""

    async def from_one(source: str) -> list[Line]:
        sentences = [each for document, own in zip(documents, sources, strict=True) if own == source for each in sentences_of(document)]
        return await translate_sentences(service, sentences, models.route(source, wish.target), wish.ask, client=client)

    wanted = [source for source in dict.fromkeys(sources) if source != wish.target]
    done = dict(zip(wanted, map(iter, await asyncio.gather(*map(from_one, wanted))), strict=True))
    return [
        [] if source == wish.target else [next(done[source]) for _ in sentences_of(document)]
        for document, source in zip(documents, sources, strict=True)
    ]


async def translate_sentences(
    service: Service, sentences: Sequence[Sentence], hops: Sequence[Hop], ask: Ask, *, client: Client
) -> list[Line]:
    """Each sentence through each model; only the last one's search has more outputs than one."""
    outputs: list[list[Output]] = []
    texts = [sentence.text for sentence in sentences]
    for hop in hops:
        asks = capped(hop, texts, ask) if hop is hops[-1] else [Ask(beam=ask.beam, alpha=ask.alpha)] * len(texts)
        outputs.append(await service.engine.translate(hop.model, [hop.tag + text for text in texts], asks, client=client.name))
        texts = [each.translation.text for each in outputs[-1]]
    return [Line(sentence.text, tuple(each[place] for each in outputs)) for place, sentence in enumerate(sentences)]


def capped(hop: Hop, texts: Sequence[str], ask: Ask) -> list[Ask]:
    """The search of each text: a longest output in tokens is no more than a server allows for a text of that length."""
    if not isinstance(ask.max_length, int):
        return [ask] * len(texts)
    counts = map(len, hop.model.translator.bundle.source_tokenizer.encode_batch(texts))
    return [replace(ask, max_length=min(ask.max_length, MOST_TIMES * count + MOST_MORE)) for count in counts]


def joined(document: Document, lines: Sequence[Line], wish: Wish) -> Translated:
    """A document with its sentences translated; the i-th alternative is of each sentence's i-th, or best where it has fewer."""
    best = [line.translation for line in lines]
    text = assembled(document, [each.text for each in best])
    alternatives: dict[str, None] = {}
    for rank in range(0 if wish.html else max((len(each.alternatives) for each in best), default=0)):
        chosen = [each.alternatives[rank].text if rank < len(each.alternatives) else each.text for each in best]
        alternatives[assembled(document, chosen)] = None
    alternatives.pop(text, None)
    return Translated(text, list(alternatives), lines, warnings=frozenset(warnings_of(lines)))


def warnings_of(lines: Sequence[Line]) -> set[str]:
    """``repetition`` where a model went round in a loop, ``length`` where an output has the most tokens allowed."""
    outputs = [output for line in lines for output in line.outputs]
    return {"repetition" for output in outputs if output.looped} | {"length" for each in outputs if each.translation.stop == "length"}
