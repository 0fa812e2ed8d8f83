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
    examples = {
        **_of_all(models),
        **_of_inside(models),
        **(_of_translators(models, base) if models.pairs else {}),
        **(_of_completers(models)),
    }
    for path, methods in paths.items():
        for operation in methods.values():
            for kind, content in operation["responses"]["200"]["content"].items():
                if (path, kind) in examples:
                    content["example"] = examples[path, kind]
    return dict(paths)


def _of_all(models: Models) -> dict[tuple[str, str], Any]:
    ok = {"status": "ok"}
    listed = {"languages": models.listed(), "choices": models.choices()[:1]}
    facts = {"models": [each.facts() for each in models.everything[:1]], **listed, "explain": True}
    answers = {"/health": ok, "/livez": ok, "/api/v1/models": facts}
    return {("/metrics", "text/plain"): _METRICS, **{(path, "application/json"): answer for path, answer in answers.items()}}


def _of_inside(models: Models) -> dict[tuple[str, str], Any]:
    """Of routes that look inside and of runs: one token, one head, one step of each."""
    if not models.everything:
        return {}
    model, place = models.everything[0].name, "decoder.0.cross.weights"
    token = {"piece": "Ein", "logprob": -0.05, "entropy": 0.31, "rank": 1, "top": [["Ein", 0.95], ["Der", 0.02]], "said": "Token 1, …"}
    found = {"text": "Ein", "pieces": ["Ein"], "logprob": -0.05, "lp": 1.0, "score": -0.05, "finished": True, "stop": "end"}
    number = {"what": place, "model": 0.7, "recomputed": 0.7, "difference": 3e-8, "count": 1}
    line = {"file": "model/attention.py", "line": 41, "text": "weights = …", "around": [], "place": "1"}
    source = {"title": "model/attention.py:41", "lines": [["  41  weights = …", True]]}
    table = {"caption": "…", "header": ["step", "kept", "let go"], "rows": [[1, "Ein -0.05", ""]], "shares": []}
    kind = {"label": "the translation at the text", "note": "…", "queries": ["Ein"], "keys": ["A"], "rests": [0]}
    candidate = {**found, "path": [0], "behind_from": None, "why": "it is the first"}
    step = {
        "number": 7, "title": "Softmax", "section": "3.2.1", "equation": "softmax(s)", "place": "Section 3.2.1", "prose": "…",
        "mathml": "<math>…</math>", "tables": [], "checks": [number], "lines": [line], "sources": [source], "tensor": place,
        "given": {"weights": place}, "again": [], "picture": "",
        "difference": 3e-8, "command": "dragoman explain … -- MODEL …",
    }  # fmt: skip
    run = {"name": model, "pair": "en-de", "status": "running", "best_step": 500}
    evaluation = {
        "step": 500,
        "loss": 2.1,
        "bleu": 20.4,
        "samples": [{"source": "A man.", "reference": "Ein Mann.", "output": "Ein Mann."}],
    }
    answers = {
        "/api/v1/explain": {
            "id": f"t_{'5e' * 16}", "model": {"name": model, "heads": 1, "d_model": 128},
            "source": {"text": "A", "pieces": ["A"], "ids": [17], "unk": []},
            "target": {"text": "Ein", "pieces": ["Ein"], "ids": [23], "unk": []}, "read": ["<s>"],
            "kinds": {"cross": {**kind, "tensor": "decoder.%.cross.weights"}}, "beam": 4, "alpha": 0.6, "candidates": [candidate],
            "chosen": 0, "beam_tree": [], "tables": {"candidates": table, "tree": table},
            "pictures": {"tree": "<svg>…</svg>"}, "steps": [token], "reference": None,
            "attention": {"cross": {"shape": [1, 1, 1, 1], "u8": "/w=="}},
            "walk": [{"name": place, "eq": "1", "file": line["file"], "line": 41, "shape": [1, 1, 1]}], "timing_ms": {"search": 12.5},
        },
        "/api/v1/trace/{id}/{name}": {"shape": [1, 2], "f32": "AACAPwAAAD8="},
        "/api/v1/walk/{id}": {"focus": {"layer": 1, "head": 1, "source": 1, "target": 1}, "steps": [step]},
        "/api/v1/runs": {"runs": [run]},
        "/api/v1/runs/{name}": {
            **run, "warmup_steps": 400, "d_model": 128, "max_steps": 20_000, "from": 0, "next": 65_536,
            "train": [{"step": 500, "loss": 2.3, "lr": 0.001, "tok_s": 9000}], "eval": [evaluation],
        },
        "/api/v1/runs/{name}/drawn": {"stamp": "5e5e5e5e", "ended": True},
    }  # fmt: skip
    return {(path, "application/json"): answer for path, answer in answers.items()}


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
    answers = {"/v1/completions": answer, "/v1/models": listed, "/v1/models/{name}": listed["data"][0]}
    return {(path, "application/json"): found for path, found in answers.items()}
