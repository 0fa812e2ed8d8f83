"""OpenAI's routes in the OpenAPI document."""

from typing import Any

from dragoman.serve.completion_fields import DEFAULT_TOKENS, HOTTEST, MOST_CHOICES, MOST_SEED, MOST_STOPS, MOST_TOKENS, MOST_TOP
from dragoman.serve.models import Models
from dragoman.serve.openapi_schemas import Schema, a_list, an_object, errors, operation, texts_schema
from dragoman.serve.settings import ServeSettings

_STRING: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_MODEL = an_object({"id": _STRING, "object": {"const": "model"}, "created": _COUNT, "owned_by": _STRING, "max_model_len": _COUNT})
_NAME = {"name": "name", "in": "path", "required": True, "schema": _STRING}
OPENAI_ERROR = an_object({"error": an_object({"message": _STRING, "type": _STRING, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT})})
"""An error in OpenAI's form."""


def completion_paths(models: Models, settings: ServeSettings) -> dict[str, Any]:
    """The routes of models that go on with text."""
    listed = an_object({"object": {"const": "list"}, "data": a_list(_MODEL)})
    return {
        "/v1/models": {"get": _operation("The models that go on with text.", listed)},
        "/v1/models/{name}": {"get": {**_operation("One of them.", _MODEL), "parameters": [_NAME]}},
        "/v1/completions": {"post": _completions(models, settings)},
    }


def _operation(summary: str, answer: Schema, **more: Any) -> dict[str, Any]:
    """A route whose errors are in OpenAI's form."""
    found = operation(summary, answer, **more)
    found["responses"] |= errors("OpenAIError")
    return found


def _completions(models: Models, settings: ServeSettings) -> dict[str, Any]:
    names = [each.name for each in models.completers]
    example = {"model": names[0], "prompt": "Once upon a time", "max_tokens": DEFAULT_TOKENS, "temperature": 0.8, "seed": 1}
    found = _operation("Go on with a text.", _answer(), body=_body(names, settings), example=example)
    found["responses"]["200"]["content"]["text/event-stream"] = {"schema": an_object({"data": _STRING}, optional=("data",))}
    return found


def _body(names: list[str], settings: ServeSettings) -> Schema:
    prompt = texts_schema(settings, least=1)
    stop: Schema = {"type": "string", "minLength": 1}
    properties: Schema = {
        "model": {
            "enum": [*names, None] if len(names) == 1 else names,
            "description": "May be left out where there is but one.",
        },
        "prompt": {**prompt, "description": "What is gone on with. An empty one is the beginning of a text."},
        "max_tokens": {
            "type": ["integer", "null"], "minimum": 1, "maximum": MOST_TOKENS,
            "description": f"{DEFAULT_TOKENS} unless given, as far as the model has positions; 0 with echo.",
        },
        "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": HOTTEST, "description": "1 unless given; 0 draws nothing."},
        "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1, "description": "Draw from the most probable tokens of this sum."},
        "top_k": {"type": ["integer", "null"], "minimum": 0, "maximum": MOST_TOKENS, "description": "Draw from so many; not OpenAI's."},
        "n": {"type": ["integer", "null"], "minimum": 1, "maximum": MOST_CHOICES, "description": "Continuations of each prompt."},
        "stream": {"type": ["boolean", "null"], "description": "Send the text as it comes."},
        "stream_options": {
            "type": ["object", "null"], "properties": {"include_usage": {"type": ["boolean", "null"]}}, "additionalProperties": False,
            "description": "With include_usage a stream ends with its count of tokens.",
        },
        "stop": {"anyOf": [{"type": "null"}, stop, a_list(stop, maxItems=MOST_STOPS)], "description": "End before one of these."},
        "echo": {"type": ["boolean", "null"], "description": "Begin the text with the prompt."},
        "logprobs": {
            "type": ["integer", "null"], "minimum": 0, "maximum": MOST_TOP,
            "description": "Tell log-probabilities, and so many of the most probable tokens.",
        },
        "seed": {"type": ["integer", "null"], "minimum": -MOST_SEED, "maximum": MOST_SEED, "description": "The same seed, the same text."},
        "user": {"description": "Is not looked at."},
        "api_key": {"type": ["string", "null"]},
    }  # fmt: skip
    one: Schema = {"properties": {"n": {"enum": [1, None]}}}
    drawn: Schema = {"properties": {"temperature": {"anyOf": [{"type": "null"}, {"type": "number", "exclusiveMinimum": 0}]}}}
    required = ["prompt"] if len(names) == 1 else ["model", "prompt"]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, "anyOf": [one, drawn]}


def _answer() -> Schema:
    logs = an_object(
        {
            "tokens": a_list(_STRING), "token_logprobs": a_list({"type": ["number", "null"]}),
            "top_logprobs": {"type": ["array", "null"], "items": {"type": ["object", "null"], "additionalProperties": _NUMBER}},
            "text_offset": a_list(_COUNT),
        }
    )  # fmt: skip
    choice = an_object(
        {
            "index": _COUNT, "text": _STRING, "logprobs": {"anyOf": [{"type": "null"}, logs]},
            "finish_reason": {"enum": ["stop", "length"]},
        }
    )  # fmt: skip
    usage = an_object({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT})
    head: Schema = {"id": _STRING, "object": {"const": "text_completion"}, "created": _COUNT, "model": _STRING}
    return an_object({**head, "choices": a_list(choice), "usage": usage})
