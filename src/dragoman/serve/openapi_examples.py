"""An answer of each route, as an example in the OpenAPI document and on the page of routes."""

from collections.abc import Mapping
from typing import Any

from dragoman.serve.languages import language_name
from dragoman.serve.models import Models

_KNOWN = {"de": ("Ein Mann reitet auf einem Pferd.", ["Ein", "Mann", "reitet", "auf", "einem", "Pferd", ".", "</s>"])}
_ANY = ("…", ["…", "</s>"])
_METRICS = (
    "# HELP dragoman_queue_depth Texts that wait.\n# TYPE dragoman_queue_depth gauge\ndragoman_queue_depth 0\n"
    "# HELP dragoman_requests_total Requests answered, by route and status.\n# TYPE dragoman_requests_total counter\n"
    'dragoman_requests_total{route="/translate",status="200"} 3\n'
)


def with_examples(paths: Mapping[str, Any], models: Models, base: str) -> dict[str, Any]:
    """The same paths, with an example in every good answer for which there is one."""
    examples = {**_of_all(), **(_of_translators(models, base) if models.pairs else {}), **(_of_completers(models))}
    for path, methods in paths.items():
        for operation in methods.values():
            for kind, content in operation["responses"]["200"]["content"].items():
                if (path, kind) in examples:
                    content["example"] = examples[path, kind]
    return dict(paths)


def _of_all() -> dict[tuple[str, str], Any]:
    ok = {"status": "ok"}
    return {("/health", "application/json"): ok, ("/livez", "application/json"): ok, ("/metrics", "text/plain"): _METRICS}


def _of_translators(models: Models, base: str) -> dict[tuple[str, str], Any]:
    source, target = next(iter(models.pairs))
    text, tokens = _KNOWN.get(target, _ANY)
    scores = [round(-0.05 - 0.03 * place, 2) for place in range(len(tokens))]
    total = round(sum(scores), 2)
    found = {
        "text": text, "score": round(total / 2, 2), "log_probability": total, "tokens": tokens, "token_scores": scores, "stop": "end",
    }  # fmt: skip
    sentence = {"source": "A man rides a horse.", **found, "candidates": [found]}
    whole = {"text": text, "alternatives": ["…"], "models": [models.models[0].name], "warnings": [], "sentences": [sentence]}
    settings = {
        "apiKeys": False, "charLimit": 5000, "filesTranslation": True, "frontendTimeout": 500, "keyRequired": False,
        "language": {
            "source": {"code": source, "name": language_name(source)}, "target": {"code": target, "name": language_name(target)},
        },
        "suggestions": False, "supportedFilesFormat": [".txt", ".html", ".htm"],
    }  # fmt: skip
    scored = {name: found[name] for name in ("score", "log_probability", "tokens", "token_scores")}
    answers = {
        "/translate": {"translatedText": text},
        "/languages": models.listed(),
        "/detect": [{"confidence": 98.2, "language": source}],
        "/frontend/settings": settings,
        "/suggest": {"success": True},
        "/translate_file": {"translatedFileUrl": f"{base}/download_file/{'5e' * 16}"},
        "/api/v1/models": {"models": [models.models[0].facts()], "languages": models.listed()},
        "/api/v1/translate": {"translations": [whole]},
        "/api/v1/score": {"scores": [scored]},
    }
    return {(path, "application/json"): answer for path, answer in answers.items()}


def _of_completers(models: Models) -> dict[tuple[str, str], Any]:
    if not models.completers:
        return {}
    answer = {
        "id": "cmpl-5e5e5e5e5e5e5e5e5e5e5e5e",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": models.completers[0].name,
        "choices": [{"index": 0, "text": ", a fish swam far away", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21},
    }
    listed = {"object": "list", "data": [each.facts() for each in models.completers]}
    return {("/v1/completions", "application/json"): answer, ("/v1/models", "application/json"): listed}
