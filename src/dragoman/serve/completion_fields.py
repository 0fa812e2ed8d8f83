"""What a request of /v1/completions asks for: OpenAI's fields, each read, or refused with a sentence that names it."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dragoman.decoding.generation_options import GenerationOptions
from dragoman.errors import DragomanError
from dragoman.serve.completers import Completer, Drawing, Prompt
from dragoman.serve.models import Models
from dragoman.serve.parameters import Fields, check_known, flag, number, texts_of, whole_number
from dragoman.serve.refusals import RefusalError, invalid

MOST_CHOICES = 16
MOST_TOP = 5
MOST_STOPS = 4
MOST_TOKENS = 100_000
MOST_SEED = 2**63 - 1
DEFAULT_TOKENS = 16
HOTTEST = 2.0

FIELDS = (
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "stream", "stream_options", "stop", "echo", "logprobs", "seed",
    "user", "api_key",
)  # fmt: skip
"""What a request may have; and `ABSENT`, if it says what is done without them."""
ABSENT: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",), "best_of": (), "logit_bias": ({},), "presence_penalty": (0,), "frequency_penalty": (0,),
}  # fmt: skip
"""Fields of OpenAI's that there are not, with the values, beside null, that ask for nothing; of best_of it is n."""


@dataclass(frozen=True)
class Asked:
    """A request: ``drawing`` says how each of the ``prompts`` is gone on with ``n`` times; None: there is only an echo.

    ``logprobs`` is how many of the most probable tokens are told beside each, None for no log-probabilities at all.
    """

    completer: Completer
    prompts: list[Prompt]
    drawing: Drawing | None
    n: int
    echo: bool
    logprobs: int | None
    stream: bool
    with_usage: bool

    @property
    def sizes(self) -> list[int]:
        """The most tokens of each prompt and what follows, over all its continuations."""
        most = self.completer.generator.most_positions
        return [each.options.n * min(each.tokens + each.options.max_tokens, most) for each in self.prompts]


def completer_of(fields: Fields, models: Models) -> Completer:
    """The model of a request; it need not be named where there is but one. Raises RefusalError for one that there is not."""
    with about("model"):
        name = fields.get("model")
        if name is None and len(models.completers) == 1:
            return models.completers[0]
        known = ", ".join(each.name for each in models.completers)
        if name is None and known:
            raise invalid(f"missing model parameter; it is one of {known}")
        if name is not None and not isinstance(name, str):
            raise invalid("model must be a string")
        found = [each for each in models.completers if each.name == name]
        if not found:
            there = f"there is {known}" if known else "this server has no model that goes on with text"
            shown = f"The model {name[:80]!r} does not exist: " if name else ""
            raise RefusalError(404, f"{shown}{there}", param="model", code="model_not_found")
        return found[0]


def asked_of(fields: Fields, texts: list[str], completer: Completer) -> Asked:
    """What is asked of these prompts, every field of it checked. Raises RefusalError that names the field which must be another."""
    check_known(fields, (*FIELDS, *ABSENT))
    if not texts:
        raise invalid("prompt is an empty list", param="prompt")
    echo = _flag(fields, "echo")
    n = _whole(fields, "n", least=1, most=MOST_CHOICES) or 1
    _refuse_what_is_not_there(fields, n)
    logprobs = _whole(fields, "logprobs", least=0, most=MOST_TOP)
    most = _whole(fields, "max_tokens", least=0, most=MOST_TOKENS)
    most = DEFAULT_TOKENS if most is None else most
    if not most and not echo:
        raise invalid("max_tokens parameter must be >= 1, or 0 with echo", param="max_tokens")
    options = _options(fields, n, most or 1)
    stream = _flag(fields, "stream")
    with_usage = _with_usage(fields, stream=stream)
    prompts = _prompts(texts, completer, options, nothing=not most)
    drawing = Drawing(completer, _shared(options), logprobs or 0) if most else None
    return Asked(completer, prompts, drawing, n, echo, logprobs, stream, with_usage)


def _options(fields: Fields, n: int, most: int) -> GenerationOptions:
    """How to draw; where nothing is drawn, at temperature 0, what would change the draw is left out."""
    with about("temperature"):
        temperature = number(fields, "temperature", least=0, most=HOTTEST)
    with about("top_p"):
        top_p = number(fields, "top_p", least=0, most=1)
    top_k = _whole(fields, "top_k", least=0, most=MOST_TOKENS)
    seed = _whole(fields, "seed", least=-MOST_SEED, most=MOST_SEED)
    if temperature == 0 and n > 1:
        raise invalid(f"n={n} with temperature 0: all would be the same; ask for one, or give a temperature", param="n")
    drawn = {} if temperature == 0 else {"top_p": top_p, "top_k": top_k, "seed": seed}
    with about("stop"):
        return GenerationOptions(n=n, max_tokens=most, stop=_stops(fields), temperature=temperature, **drawn)  # type: ignore[arg-type]


def _shared(options: GenerationOptions) -> GenerationOptions:
    """What must be equal for prompts to be drawn together."""
    return GenerationOptions(temperature=options.temperature, top_p=options.top_p, top_k=options.top_k, stop=options.stop)


def _prompts(texts: list[str], completer: Completer, options: GenerationOptions, *, nothing: bool) -> list[Prompt]:
    """The prompts, each of which leaves room for a token, if one is to follow; without a seed each has one of its own, by chance."""
    generator = completer.generator
    most = generator.most_positions - (0 if nothing else 1)
    prompts = []
    for place, (text, tokens) in enumerate(zip(texts, generator.prompt_tokens(texts), strict=True), start=1):
        if tokens > most:
            which = f"prompt {place}" if len(texts) > 1 else "the prompt"
            sentence = f"{which} has {tokens} tokens, and the model's {generator.most_positions} positions take at most {most}; shorten it"
            raise invalid(sentence, param="prompt", code="context_length_exceeded")
        own = options
        if options.seed is None and options.temperature != 0:
            own = GenerationOptions(**{**vars(options), "seed": secrets.randbits(62)})
        prompts.append(Prompt(text, tokens, own))
    return prompts


def _refuse_what_is_not_there(fields: Fields, n: int) -> None:
    for name, neutral in ABSENT.items():
        value = fields.get(name)
        if value is None or (value in neutral and not isinstance(value, bool)) or (name == "best_of" and value == n and value is not True):
            continue
        raise invalid(f"{name} is not there on this server; leave it out", param=name, code="unsupported_parameter")


def _stops(fields: Fields) -> tuple[str, ...]:
    if fields.get("stop") is None:
        return ()
    stops, _ = texts_of(fields, "stop")
    if len(stops) > MOST_STOPS:
        raise invalid(f"{len(stops)} strings in stop: at most {MOST_STOPS}")
    if not all(stops):
        raise invalid("stop must not be empty")
    return tuple(stops)


def _with_usage(fields: Fields, *, stream: bool) -> bool:
    """Whether a stream ends with what it has cost."""
    with about("stream_options"):
        value = fields.get("stream_options")
        if value is None:
            return False
        if not isinstance(value, dict) or value.keys() - {"include_usage", "include_obfuscation"}:
            raise invalid("stream_options must be an object with include_usage")
        return flag(value, "include_usage", default=False) and stream


def _flag(fields: Fields, name: str) -> bool:
    with about(name):
        return flag(fields, name, default=False)


def _whole(fields: Fields, name: str, *, least: int, most: int) -> int | None:
    with about(name):
        return whole_number(fields, name, least=least, most=most)


@contextmanager
def about(name: str) -> Iterator[None]:
    """A refusal in the block is of this field."""
    try:
        yield
    except RefusalError as error:
        error.param = error.param or name
        raise
    except DragomanError as error:
        raise invalid(str(error), param=name) from None
