"""What may be asked, as OpenAPI 3.1: built from the settings and the languages that are loaded."""

from importlib.metadata import version
from typing import Any

from dragoman.serve.models import Models
from dragoman.serve.openapi_paths import paths
from dragoman.serve.openapi_schemas import ERROR
from dragoman.serve.settings import ServeSettings


def openapi_document(models: Models, settings: ServeSettings, base: str) -> dict[str, Any]:
    """The whole document, for a server that its clients reach at ``base``."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dragoman",
            "version": version("dragoman"),
            "description": "Translation by the models of this server. The routes outside /api/v1 are those of LibreTranslate.",
        },
        "servers": [{"url": base}],
        "paths": paths(models, settings),
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "The key, as well as in api_key."}},
        },
        **({"security": [{"bearer": []}]} if settings.keys else {}),
    }
