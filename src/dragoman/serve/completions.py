"""OpenAI's routes for models that go on with text: POST /v1/completions, whole or as it comes, and GET /v1/models, all or one."""

import asyncio
import json
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.generate import Addition
from dragoman.decoding.likelihood import Read, score_prompts
from dragoman.decoding.pieces import TextStream
from dragoman.serve.answers import as_json, openai_error
from dragoman.serve.completion_fields import Asked, about, asked_of, completer_of
from dragoman.serve.engine import Drawn
from dragoman.serve.parameters import Fields, read_fields, texts_of
from dragoman.serve.refusals import RefusalError, internal, too_slow
from dragoman.serve.service import Client, Service
from dragoman.serve.translating import check_length, in_time

_REASONS = {"end": "stop", "stop": "stop", "repetition": "stop", "length": "length", "context": "length"}
_ECHOED = "length"  # why an echo that nothing follows ends: it has all of no tokens


async def models(request: Request) -> Response:
    """GET /v1/models: the models that go on with text."""
    service: Service = request.app.state.service
    return as_json({"object": "list", "data": [each.facts() for each in service.models.completers]})


async def model(request: Request) -> Response:
    """GET /v1/models/{name}: one of them."""
    service: Service = request.app.state.service
    return as_json(completer_of({"model": request.path_params["name"]}, service.models).facts())


async def completions(request: Request) -> Response:
    """POST /v1/completions: what follows a prompt or several, at once or as server-sent events."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    client = _admitted(service, request, fields)
    completer = completer_of(fields, service.models)
    with about("prompt"):
        texts, _ = texts_of(fields, "prompt")
        check_length(texts, client, service)
    asked = asked_of(fields, texts, completer)
    request.state.sizes = {"texts": len(texts), "characters": sum(map(len, texts))}
    deadline = asyncio.get_running_loop().time() + service.settings.timeout
    answer = _Answer(asked, await _read(service, asked, client))
    drawn = _drawn(service, asked, client, deadline)
    if not asked.stream:
        async with aclosing(drawn) as each_drawn:
            async for each in each_drawn:
                answer.add(each)
        return as_json(answer.document())
    first = await anext(drawn, None)  # what cannot be answered is refused before the answer begins
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_lines(answer, first, drawn), media_type="text/event-stream", headers=headers)


def _admitted(service: Service, request: Request, fields: Fields) -> Client:
    try:
        return service.admit(request, fields)
    except RefusalError as error:
        if error.status == 403:  # as OpenAI's clients expect it of a key
            raise RefusalError(401, error.sentence) from None
        raise


async def _read(service: Service, asked: Asked, client: Client) -> list[list[Read]]:
    """What the model thinks of the prompts themselves, where they are echoed with log-probabilities."""
    if not asked.echo or asked.logprobs is None:
        return [[] for _ in asked.prompts]
    texts, bundle, best = [each.text for each in asked.prompts], asked.completer.generator.bundle, asked.logprobs
    limit = service.settings.batch_tokens
    work = service.engine.run(lambda check: score_prompts(bundle, texts, best=best, batch_tokens=limit), client=client.name)
    return await in_time(service.settings.timeout, "read", work)


async def _drawn(service: Service, asked: Asked, client: Client, deadline: float) -> AsyncGenerator[Drawn, None]:
    """What follows the prompts, as it comes. Raises RefusalError when the time of an answer is over."""
    if asked.drawing is None:
        return
    try:
        async with aclosing(service.engine.draw(asked.drawing, asked.prompts, asked.sizes, client=client.name)) as found:
            while True:
                async with asyncio.timeout_at(deadline):
                    drawn = await anext(found, None)
                if drawn is None:
                    return
                if drawn.addition.continuation.stop == "lost":
                    raise RefusalError(500, "The model gives no token a positive probability; its weights may be damaged")
                yield drawn
    except TimeoutError:
        raise too_slow("completed", service.settings.timeout, less="ask for fewer tokens") from None


async def _lines(answer: "_Answer", first: Drawn | None, drawn: AsyncGenerator[Drawn, None]) -> AsyncIterator[bytes]:
    """The events of a stream: what is echoed, what is added, what it has cost if that is asked for, and ``[DONE]``; or an error."""
    try:
        for event in answer.echoed():
            yield _event(event)
        if first is not None:
            yield _event(answer.part(first))
            async for each in drawn:
                yield _event(answer.part(each))
        if answer.asked.with_usage:
            yield _event({**answer.chunk([]), "usage": answer.usage()})
        yield b"data: [DONE]\n\n"
    except RefusalError as error:
        yield _event(openai_error(error))
    except Exception as error:
        yield _event(openai_error(internal(error)))
    finally:
        await drawn.aclose()


def _event(document: Any) -> bytes:
    content = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {content}\n\n".encode("utf-8", "replace")


class _Answer:
    """An answer on its way: its choices, n of each prompt, in order."""

    def __init__(self, asked: Asked, read: Sequence[Sequence[Read]]) -> None:
        self.asked, self.read = asked, read
        self.head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": asked.completer.name,
        }
        tokenizer = asked.completer.generator.bundle.target_tokenizer
        places = [place for place, _ in enumerate(asked.prompts) for _ in range(asked.n)]
        self.texts = [asked.prompts[place].text if asked.echo else "" for place in places]
        self.reasons = ["" if asked.drawing else _ECHOED for _ in places]
        self.logs: list[_Log | None] = [None] * len(places)
        if asked.logprobs is not None:
            texts = [asked.prompts[place].text for place in places]
            self.logs = [
                _Log(tokenizer, text, read[place] if asked.echo else None, asked.logprobs)
                for place, text in zip(places, texts, strict=True)
            ]
        self.tokens = 0

    def part(self, drawn: Drawn) -> dict[str, Any]:
        """Takes in what has been added; returns it as an event of a stream."""
        return self.chunk([self._choice(self.add(drawn), drawn.addition.continuation.text)])

    def add(self, drawn: Drawn) -> int:
        """Takes in what has been added; returns to which choice."""
        place, addition = drawn.place * self.asked.n + drawn.addition.number, drawn.addition
        self.texts[place] += addition.continuation.text
        self.reasons[place] = _REASONS.get(addition.continuation.stop, "")
        if addition.id is not None:
            self.tokens += 1
            if (log := self.logs[place]) is not None:
                log.add(addition)
        return place

    def _choice(self, place: int, text: str) -> dict[str, Any]:
        log = self.logs[place]
        told = None if log is None else log.take()
        return {"index": place, "text": text, "logprobs": told, "finish_reason": self.reasons[place] or None}

    def echoed(self) -> list[dict[str, Any]]:
        """What stands in a stream before everything else: each prompt, where that is asked for."""
        return [self.chunk([self._choice(place, text)]) for place, text in enumerate(self.texts)] if self.asked.echo else []

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An event of a stream."""
        return {**self.head, "choices": choices}

    def usage(self) -> dict[str, int]:
        """The tokens of the prompts and of all that followed."""
        read = sum(each.tokens for each in self.asked.prompts)
        return {"prompt_tokens": read, "completion_tokens": self.tokens, "total_tokens": read + self.tokens}

    def document(self) -> dict[str, Any]:
        """The whole answer."""
        return {**self.chunk([self._choice(place, text) for place, text in enumerate(self.texts)]), "usage": self.usage()}


class _Log:
    """Log-probabilities of tokens in OpenAI's form, since they were last taken."""

    def __init__(self, tokenizer: Tokenizer, prompt: str, read: Sequence[Read] | None, most: int) -> None:
        """``read`` are the tokens of the prompt if they are told, too; ``most`` is how many others are told with each."""
        self.tokenizer, self.most = tokenizer, most
        self.ids = tokenizer.encode(prompt) if read is None and prompt else []
        self.stream = TextStream(tokenizer, self.ids)
        self.offset = 0
        self.rows: list[tuple[str, float | None, dict[str, float] | None, int]] = []
        for each in read or ():
            self._add(each.id, each.score, each.best)
        if read is not None and self.offset != len(prompt):  # a vocabulary that does not keep every text as it is
            spans = tokenizer.encoded_spans(prompt)
            self.rows = [(*row[:3], start) for row, (start, _) in zip(self.rows, spans, strict=False)]
            self.offset = len(prompt)

    def add(self, addition: Addition) -> None:
        """A token that was drawn."""
        assert addition.id is not None
        self._add(addition.id, addition.continuation.token_scores[0], addition.best)

    def _add(self, id: int, score: float | None, best: Sequence[tuple[int, float]]) -> None:
        text = self.stream.add(id)
        shown = text or self.tokenizer.token(id)
        top: dict[str, float] | None = None
        if self.most and score is not None:
            before = self.ids[-8:]
            start = len(self.tokenizer.decode(before))
            top = {}
            for other, value in best:
                written = shown if other == id else self.tokenizer.decode([*before, other])[start:]
                if value > -math.inf:
                    top.setdefault(self.tokenizer.token(other) if not written or "\ufffd" in written else written, value)
            top[shown] = score
        self.rows.append((shown, score, top, self.offset))
        self.offset += len(text)
        self.ids.append(id)

    def take(self) -> dict[str, Any]:
        """What is to be told now."""
        rows, self.rows = self.rows, []
        return {
            "tokens": [row[0] for row in rows],
            "token_logprobs": [row[1] for row in rows],
            "top_logprobs": [row[2] for row in rows] if self.most else None,
            "text_offset": [row[3] for row in rows],
        }
