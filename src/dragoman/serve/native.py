"""Our own routes, under /api/v1: candidates, scores and probabilities of tokens, alignments, and the score of given translations."""

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dragoman.decoding.alignment import Alignment, align
from dragoman.decoding.score import Scored
from dragoman.decoding.translate import Translation
from dragoman.errors import DragomanError
from dragoman.serve.answers import as_json, with_warnings
from dragoman.serve.engine import Ask
from dragoman.serve.languages import AUTO
from dragoman.serve.models import Hop
from dragoman.serve.parameters import Fields, check_known, flag, language_of, number, read_fields, texts_of, whole_number
from dragoman.serve.refusals import RefusalError, invalid
from dragoman.serve.service import Client, Service
from dragoman.serve.translating import (
    LENGTHS,
    MOST_TIMES,
    Translated,
    Wish,
    beam_for,
    check_length,
    check_pair,
    in_time,
    translate_texts,
)

SEARCH_FIELDS = (
    "q", "source", "target", "beam", "alpha", "n_best", "max_length", "no_repeat_ngram", "split", "alignment", "api_key",
)  # fmt: skip
SCORE_FIELDS = ("q", "translation", "source", "target", "alpha", "api_key")


async def models(request: Request) -> Response:
    """GET /api/v1/models: what is loaded."""
    service: Service = request.app.state.service
    models = service.models
    explain = service.looking is not None
    facts = [model.facts() for model in models.everything]
    return as_json({"models": facts, "languages": models.listed(), "choices": models.choices(), "explain": explain})


async def translate(request: Request) -> Response:
    """POST /api/v1/translate: each text with its sentences, and each of these with candidates, scores and tokens."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    client = service.admit(request, fields)
    check_known(fields, SEARCH_FIELDS)
    texts, _ = texts_of(fields)
    check_length(texts, client, service)
    request.state.sizes = {"texts": len(texts), "characters": sum(map(len, texts))}
    wish = wish_of(fields, service)
    with_alignment = flag(fields, "alignment", default=False)

    async def documents() -> tuple[list[Translated], list[dict[str, Any]]]:
        done = await translate_texts(service, texts, wish, client=client)
        return done, [await document_of(service, each, client, with_alignment=with_alignment) for each in done]

    done, found = await in_time(service.settings.timeout, "translated", documents())
    return with_warnings(as_json({"translations": found}), (warning for each in done for warning in each.warnings))


def wish_of(fields: Fields, service: Service) -> Wish:
    """The languages and the search of a request; RefusalError for what cannot be."""
    settings = service.settings
    source, target = language_of(fields, "source"), language_of(fields, "target")
    check_pair(service.models, source, target)
    asked = whole_number(fields, "beam", least=1, most=settings.widest_beam)
    alpha = number(fields, "alpha", least=-10, most=10)
    n_best = whole_number(fields, "n_best", least=1, most=settings.widest_beam) or 1
    if asked is not None and n_best > asked:
        raise invalid(f"n_best ({n_best}) must be at most beam ({asked})")
    ask = Ask(
        beam=asked or beam_for(service, source, target, n_best=n_best),
        alpha=settings.alpha if alpha is None else alpha,
        n_best=n_best,
        max_length=_length_of(fields),
        no_repeat_ngram=whole_number(fields, "no_repeat_ngram", least=0, most=100) or 0,
    )
    return Wish(source, target, ask, split=flag(fields, "split", default=settings.split_sentences))


def _length_of(fields: Fields) -> int | str | None:
    """The longest output in tokens, or relative to the source as ``1.5x``."""
    value = fields.get("max_length")
    if value is None:
        return None
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, bool) or not isinstance(value, int | str) or not re.fullmatch(LENGTHS, str(value)):
        raise invalid(f"max_length must be a number of tokens from 1 to 9999, or at most {MOST_TIMES}x the source's")
    return value if str(value).endswith("x") else int(value)


async def document_of(service: Service, done: Translated, client: Client, *, with_alignment: bool = False) -> dict[str, Any]:
    """A translation as a JSON object: ``text``, and under ``sentences`` what each model on the way gave for each sentence."""
    alignments: Sequence[Alignment | None] = [None] * len(done.lines)
    if with_alignment and done.lines:
        alignments = await _alignments(service, done, client)
    return {
        "text": done.text,
        "alternatives": done.alternatives,
        "models": [hop.model.name for hop in done.hops],
        **({"detected": done.detected.document()} if done.detected else {}),
        "warnings": sorted(done.warnings),
        "sentences": [
            {
                "source": line.source,
                **({"between": line.outputs[0].translation.text} if len(line.outputs) > 1 else {}),
                **_record(line.translation),
                **({} if alignment is None else alignment.record()),
                "candidates": [_record(each) for each in line.translation.alternatives],
            }
            for line, alignment in zip(done.lines, alignments, strict=True)
        ],
    }


async def _alignments(service: Service, done: Translated, client: Client) -> list[Alignment]:
    """Of the last model on the way: its input, which is the source where there is but one model, with its output."""
    hop: Hop = done.hops[-1]
    texts = [line.source if len(line.outputs) == 1 else line.outputs[-2].translation.text for line in done.lines]
    translations = [line.translation for line in done.lines]
    bundle = hop.model.translator.bundle
    return await service.engine.run(lambda check: align(bundle, [hop.tag + text for text in texts], translations), client=client.name)


def _record(translation: Translation) -> dict[str, Any]:
    return {
        "text": translation.text,
        "score": translation.score,
        "log_probability": translation.log_probability,
        "tokens": translation.tokens,
        "token_scores": translation.token_scores,
        "stop": translation.stop,
    }


async def score(request: Request) -> Response:
    """POST /api/v1/score: what a model thinks of given translations; a pair has to be one that a single model translates."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    client = service.admit(request, fields)
    check_known(fields, SCORE_FIELDS)
    sources, _ = texts_of(fields)
    targets, _ = texts_of(fields, "translation")
    check_length(sources, client, service, given=targets)
    request.state.sizes = {"texts": len(sources), "characters": sum(map(len, [*sources, *targets]))}
    if len(sources) != len(targets):
        raise invalid(f"{len(sources)} texts in q but {len(targets)} in translation")
    source, target = language_of(fields, "source"), language_of(fields, "target")
    alpha = number(fields, "alpha", least=-10, most=10)
    check_pair(service.models, source, target)
    hop = service.models.pairs.get((source, target))
    if source == AUTO or hop is None:
        raise invalid(f"no single model translates {source} to {target}, so there is no score")
    tagged = [hop.tag + text for text in sources]

    def work(check: object) -> list[Scored]:
        return hop.model.translator.score(tagged, targets, alpha=alpha)

    try:
        scored = await in_time(service.settings.timeout, "scored", service.engine.run(work, client=client.name))
    except DragomanError as error:
        raise RefusalError(400, f"Invalid request: {error}") from None
    return as_json(
        {
            "scores": [
                {
                    "score": each.score,
                    "log_probability": each.log_probability,
                    "tokens": each.tokens,
                    "token_scores": each.token_scores,
                }
                for each in scored
            ]
        }
    )
