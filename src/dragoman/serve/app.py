"""All routes of a server, each with its methods."""

from starlette.routing import Route, Router

from dragoman.serve import completions, inside, libretranslate, native, operations, runs, streaming, uploads, web
from dragoman.serve.front import Front
from dragoman.serve.service import Service

ROUTES = (
    ("POST", "/translate", libretranslate.translate),
    ("GET POST", "/languages", libretranslate.languages),
    ("POST", "/detect", libretranslate.detect_language),
    ("GET", "/frontend/settings", libretranslate.frontend_settings),
    ("POST", "/suggest", libretranslate.suggest),
    ("POST", "/translate_file", uploads.translate_file),
    ("GET", "/download_file/{id}", uploads.download_file),
    ("GET", "/api/v1/models", native.models),
    ("POST", "/api/v1/translate", native.translate),
    ("POST", "/api/v1/stream", streaming.stream),
    ("POST", "/api/v1/score", native.score),
    ("POST", "/api/v1/explain", inside.explain),
    ("GET", "/api/v1/trace/{id}/{name}", inside.trace),
    ("GET", "/api/v1/walk/{id}", inside.walk),
    ("GET", "/api/v1/runs", runs.runs),
    ("GET", "/api/v1/runs/{name}", runs.run),
    ("GET", "/api/v1/runs/{name}/drawn", runs.drawn),
    ("GET", "/v1/models", completions.models),
    ("GET", "/v1/models/{name}", completions.model),
    ("POST", "/v1/completions", completions.completions),
    ("GET", "/livez", operations.live),
    ("GET", "/health", operations.health),
    ("GET", "/metrics", operations.metrics),
    ("GET", "/openapi.json", operations.openapi),
    ("GET", "/spec", operations.openapi),
    ("GET", "/docs", operations.docs),
    ("GET", "/", web.page),
    ("GET", "/web/{path:path}", web.file),
)
"""What is served; routes that look inside a model run their work by `Engine.run`, in its turn."""


def application(service: Service) -> Front:
    """The ASGI application."""
    routes = [Route(path, endpoint, methods=methods.split()) for methods, path, endpoint in ROUTES]
    return Front(service, Router(routes, redirect_slashes=False))
