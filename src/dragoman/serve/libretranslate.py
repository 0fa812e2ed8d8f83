"""LibreTranslate's routes, as its clients were seen to use them."""

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dragoman.serve.answers import as_json, with_warnings
from dragoman.serve.detect import detect
from dragoman.serve.engine import Ask
from dragoman.serve.languages import AUTO, language_name
from dragoman.serve.parameters import Fields, format_of, language_of, read_fields, string_of, texts_of, whole_number
from dragoman.serve.refusals import RefusalError, invalid
from dragoman.serve.service import Service
from dragoman.serve.settings import ServeSettings
from dragoman.serve.suggestions import HAS_TEXT, keep_suggestion
from dragoman.serve.translating import Wish, beam_for, check_length, check_pair, translate_texts
from dragoman.serve.uploads import FORMATS


async def translate(request: Request) -> Response:
    """POST /translate: a text or a list of texts, and as many translations."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    client = service.admit(request, fields)
    texts, many = texts_of(fields)
    wish = wish_of(fields, service)
    check_length(texts, client, service)
    request.state.sizes = {"texts": len(texts), "characters": sum(map(len, texts))}
    done = await translate_texts(service, texts, wish, client=client)
    answer: dict[str, Any] = {"translatedText": _one_or_all([each.text for each in done], many)}
    if wish.source == AUTO:
        answer["detectedLanguage"] = _one_or_all([each.detected.document() for each in done if each.detected], many)
    if wish.ask.n_best > 1 or (wish.html and _alternatives(fields, service.settings)):
        answer["alternatives"] = _one_or_all([each.alternatives for each in done], many)
    return with_warnings(as_json(answer), (warning for each in done for warning in each.warnings))


def _one_or_all(values: list[Any], many: bool) -> Any:
    return values if many else values[0]


def wish_of(fields: Fields, service: Service) -> Wish:
    """Languages, format and alternatives of a request; RefusalError for what is missing or cannot be."""
    settings = service.settings
    source, target = language_of(fields, "source"), language_of(fields, "target")
    html = format_of(fields) == "html"
    alternatives = _alternatives(fields, settings)
    check_pair(service.models, source, target)
    n_best = 1 if html else alternatives + 1
    ask = Ask(beam=beam_for(service, source, target, n_best=n_best), alpha=settings.alpha, n_best=n_best)
    return Wish(source, target, ask, html, settings.split_sentences)


def _alternatives(fields: Fields, settings: ServeSettings) -> int:
    """How many beside the best; none where the field is empty, as pages of forms send it."""
    empty = fields.get("alternatives") == ""
    return 0 if empty else whole_number(fields, "alternatives", least=0, most=settings.alternatives_limit) or 0


async def languages(request: Request) -> Response:
    """GET and POST /languages: every language with the targets that there are from it. The body is not looked at."""
    service: Service = request.app.state.service
    return as_json(service.models.listed())


async def detect_language(request: Request) -> Response:
    """POST /detect: the loaded source languages, the most probable first; of a list the answer is a list of these."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    client = service.admit(request, fields)
    texts, many = texts_of(fields)
    check_length(texts, client, service)
    request.state.sizes = {"texts": len(texts), "characters": sum(map(len, texts))}
    models = service.models
    found = [
        [{"confidence": round(confidence, 1), "language": code} for code, confidence in detect(text, models.profiles, models.sources)]
        for text in texts
    ]
    return as_json(_one_or_all(found, many) if texts else [])


async def frontend_settings(request: Request) -> Response:
    """GET /frontend/settings: what LibreTranslate's own page asks for, and some clients too."""
    service: Service = request.app.state.service
    settings, models = service.settings, service.models
    if not models.pairs:
        raise RefusalError(404, "This server has no model that translates")
    source, target = next(iter(models.pairs))
    return as_json(
        {
            "apiKeys": settings.keys is not None,
            "charLimit": settings.char_limit or -1,
            "filesTranslation": settings.files,
            "frontendTimeout": 500,
            "keyRequired": settings.keys is not None,
            "language": {
                "source": {"code": source, "name": language_name(source)},
                "target": {"code": target, "name": language_name(target)},
            },
            "suggestions": settings.suggestions is not None,
            "supportedFilesFormat": list(FORMATS) if settings.files else [],
        }
    )


async def suggest(request: Request) -> Response:
    """POST /suggest: a better translation, kept for training where the server keeps them."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    if service.settings.suggestions is None:
        raise RefusalError(403, "Suggestions are disabled on this server.")
    client = service.admit(request, fields)
    source, target = language_of(fields, "source"), language_of(fields, "target")
    pair = string_of(fields, "q"), string_of(fields, "s")
    check_length(pair[:1], client, service, given=pair[1:])
    models = service.models
    for code in (source, target):
        if code not in models.codes:
            raise RefusalError(400, f"{code} is not supported")
    if not all(re.search(HAS_TEXT, text) for text in pair):
        raise invalid("q and s must have text")
    keep_suggestion(service.settings.suggestions, (source, target), pair)
    return as_json({"success": True})
