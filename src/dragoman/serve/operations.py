"""Routes for those who run a server: is it alive, is it ready, what has it done, what does it offer."""

import hashlib
import hmac
import re
import time
from base64 import b64encode
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dragoman.serve.answers import as_json
from dragoman.serve.metrics import CONTENT_TYPE
from dragoman.serve.refusals import RefusalError, invalid
from dragoman.serve.service import Service
from dragoman.serve.uploads import base_url


async def live(request: Request) -> Response:
    """GET /livez: the process answers."""
    return as_json({"status": "ok"})


async def health(request: Request) -> Response:
    """GET /health: 200 when requests can be answered, else 503; with ``verbose=1`` how much waits, and for how long it has run."""
    service: Service = request.app.state.service
    status = "ok" if service.ready else "stopping" if service.ending else "loading"
    facts: dict[str, object] = {"status": status}
    verbose = request.query_params.getlist("verbose")
    if verbose not in ([], ["0"], ["1"]):
        raise invalid("verbose must be 0 or 1")
    if verbose == ["1"]:
        facts |= {
            "queue_depth": service.engine.waiting,
            "inflight": service.metrics.inflight,
            "uptime_seconds": round(time.monotonic() - service.began, 1),
            "models": [{"run": model.name, "step": model.step} for model in (service.models.everything if service.ready else [])],
        }
    return as_json(facts) if service.ready else as_json(facts, status=503, headers={"Retry-After": "2"})


async def metrics(request: Request) -> Response:
    """GET /metrics: for Prometheus; with a token where the server has been given one."""
    service: Service = request.app.state.service
    token = service.settings.metrics_token
    if token and not hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {token}".encode()):
        raise RefusalError(401, "The metrics need their token", headers={"WWW-Authenticate": "Bearer"})
    models = [(model.name, model.step) for model in (service.models.everything if service.ready else [])]
    return Response(service.metrics.text(waiting=service.engine.waiting, models=models), media_type=CONTENT_TYPE)


async def openapi(request: Request) -> Response:
    """GET /openapi.json and /spec: what may be asked, as OpenAPI 3.1, with the loaded languages."""
    return as_json(_document(request))


async def docs(request: Request) -> Response:
    """GET /docs: the same for people, one page without scripts."""
    from dragoman.serve.docs_page import docs_page

    page = docs_page(_document(request))
    style = re.search(r"<style>(.*?)</style>", page, re.S)
    digest = hashlib.sha256((style[1] if style else "").encode()).digest()
    return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": _policy(digest)})


def _document(request: Request) -> dict[str, Any]:
    from dragoman.serve.openapi import openapi_document  # its tables are large, and few ask for them

    service: Service = request.app.state.service
    return openapi_document(service.models, service.settings, base_url(request, service))


def _policy(style: bytes) -> str:
    return (
        f"default-src 'none'; style-src 'sha256-{b64encode(style).decode()}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
