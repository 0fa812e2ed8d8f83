"""What may be asked, as OpenAPI 3.1: built from the settings and the languages that are loaded."""

from importlib.metadata import version
from typing import Any

from dragoman.serve.models import Models
from dragoman.serve.openapi_completions import OPENAI_ERROR
from dragoman.serve.openapi_examples import with_examples
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
            "description": "Models at work. /api/v1 are Dragoman's own routes, /v1 OpenAI's, and the others LibreTranslate's.",
        },
        "servers": [{"url": base}],
        "paths": with_examples(paths(models, settings), models, base),
        "components": {
            "schemas": {"Error": ERROR, "OpenAIError": OPENAI_ERROR},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "The key, as well as in api_key."}},
        },
        **({"security": [{"bearer": []}]} if settings.keys else {}),
    }
