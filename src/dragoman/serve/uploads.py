"""Whole files: POST /translate_file, and GET /download_file for what became of them."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from dragoman.serve.answers import as_json, with_warnings
from dragoman.serve.engine import Ask
from dragoman.serve.languages import AUTO
from dragoman.serve.models import Hop
from dragoman.serve.parameters import file_of, language_of, read_fields
from dragoman.serve.refusals import RefusalError, invalid
from dragoman.serve.segments import Document, assembled, sentences_of
from dragoman.serve.service import Client, Service, forwarded
from dragoman.serve.store import translated_name
from dragoman.serve.translating import Wish, check_pair, detected_in, in_time, translate_sentences, warnings_of

FORMATS = {".txt": "text/plain; charset=utf-8", ".html": "text/html; charset=utf-8", ".htm": "text/html; charset=utf-8"}
_AT_ONCE = 128  # sentences of a file in the queue


async def translate_file(request: Request) -> Response:
    """POST /translate_file: a text or HTML file in UTF-8; the answer says where its translation is, for an hour."""
    service: Service = request.app.state.service
    if not service.settings.files:
        raise RefusalError(403, "Files translation are disabled on this server.")
    fields = await read_fields(request)
    client = service.admit(request, fields)
    file = file_of(fields)
    source, target = language_of(fields, "source"), language_of(fields, "target")
    models = service.models
    check_pair(models, source, target)
    name = file.filename or ""
    suffix = f".{name.rpartition('.')[2].lower()}" if "." in name else ""
    if suffix not in FORMATS:
        raise invalid(f"file format not supported; it is one of {', '.join(FORMATS)}")
    text = _text(await file.read())
    request.state.sizes = {"texts": 1, "characters": len(text)}
    wish = Wish(source, target, html=suffix != ".txt", split=service.settings.split_sentences)
    document = await asyncio.to_thread(wish.document, text)
    if source == AUTO:
        source = detected_in(models, "\n".join(each.text for each in sentences_of(document)[:100]), target).language
    warnings: set[str] = set()
    if source != target:
        work = _translated(service, document, models.route(source, target), client, warnings)
        text = await in_time(service.settings.file_timeout, "translated", work, option="--file-timeout")
    number = await asyncio.to_thread(service.store.put, text.encode(), name=translated_name(name, target), media_type=FORMATS[suffix])
    return with_warnings(as_json({"translatedFileUrl": f"{base_url(request, service)}/download_file/{number}"}), warnings)


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise invalid("the file is not UTF-8") from None


async def _translated(service: Service, document: Document, hops: Sequence[Hop], client: Client, warnings: set[str]) -> str:
    """The document in the other language, some sentences at a time, so that a long file leaves the queue to others too."""
    sentences = sentences_of(document)
    ask = Ask(beam=service.settings.beam, alpha=service.settings.alpha)
    translations: list[str] = []
    for start in range(0, len(sentences), _AT_ONCE):
        lines = await translate_sentences(service, sentences[start : start + _AT_ONCE], hops, ask, client=client)
        translations += [line.translation.text for line in lines]
        warnings |= warnings_of(lines)
    return assembled(document, translations)


async def download_file(request: Request) -> Response:
    """GET /download_file/{id}: a translated file, under its own name."""
    service: Service = request.app.state.service
    stored = service.store.get(request.path_params["id"])
    if stored is None:
        raise RefusalError(404, "No such file, or its hour is over")
    return FileResponse(stored.path, media_type=stored.media_type, filename=stored.name)


def base_url(request: Request, service: Service) -> str:
    """Where this server is for its clients: as it was told, else as the request says, and the proxy before it if that is trusted."""
    settings = service.settings
    if settings.public_url:
        return settings.public_url.rstrip("/")
    scheme, host = request.scope["scheme"], request.headers.get("host", "")
    if settings.trust_proxy:
        scheme, host = forwarded(request, "proto") or scheme, forwarded(request, "host") or host
    if scheme not in ("http", "https"):
        scheme = "http"
    return f"{scheme}://{host or f'{settings.host}:{settings.port}'}{settings.url_prefix}"
