"""POST /api/v1/stream: a translation as it is being found, step by step, as server-sent events.

``start`` has the source pieces and which are unknown; ``step`` the best translation so far, how much of it can no longer change, and the
beam; ``done`` is the object of `/api/v1/translate`, or ``error`` says what went wrong. Nothing of a search is kept when the client goes
away.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.decoding.beam import Hypothesis, Live, length_penalty
from dragoman.errors import DragomanError
from dragoman.serve.engine import Ask, Output, translate_together
from dragoman.serve.languages import AUTO
from dragoman.serve.models import Hop
from dragoman.serve.native import SEARCH_FIELDS, document_of, wish_of
from dragoman.serve.parameters import check_known, flag, read_fields, texts_of
from dragoman.serve.refusals import RefusalError, internal, invalid, too_slow
from dragoman.serve.segments import Document, sentences_of
from dragoman.serve.service import Client, Service
from dragoman.serve.translating import Detected, Line, Translated, Wish, capped, check_length, detected_in, joined, translate_sentences

HEARTBEAT_SECONDS = 10.0
Event = tuple[str, dict[str, Any]]


async def stream(request: Request) -> Response:
    """POST /api/v1/stream: one text, with the fields of /api/v1/translate."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    client = service.admit(request, fields)
    check_known(fields, SEARCH_FIELDS)
    texts, many = texts_of(fields)
    if many:
        raise invalid("q must be a string: one text is streamed at a time")
    check_length(texts, client, service)
    request.state.sizes = {"texts": 1, "characters": len(texts[0])}
    wish = wish_of(fields, service)
    work = _Stream(service, texts[0], wish, client, with_alignment=flag(fields, "alignment", default=False))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(work.lines(), media_type="text/event-stream", headers=headers)


class _Stream:
    """A text on its way; events come from the loop and from the engine's thread, and leave in order."""

    def __init__(self, service: Service, text: str, wish: Wish, client: Client, *, with_alignment: bool) -> None:
        self.service, self.text, self.wish, self.client, self.with_alignment = service, text, wish, client, with_alignment
        self.document: Document = wish.document(text)
        self.detected: Detected | None = None
        if wish.source == AUTO:
            self.detected = detected_in(service.models, text, wish.target)
        source = self.detected.language if self.detected else wish.source
        self.hops = [] if source == wish.target else service.models.route(source, wish.target)
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.steps = 0
        self.loop = asyncio.get_running_loop()

    async def lines(self) -> AsyncIterator[bytes]:
        """The events as they are sent, with a comment now and then when there are none."""
        task = asyncio.create_task(self._work())
        try:
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        event = await self.events.get()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if event is None:
                    return
                name, data = event
                yield f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
        finally:
            task.cancel()

    async def _work(self) -> None:
        try:
            async with asyncio.timeout(self.service.settings.timeout):
                self._put("start", self._start())
                done = await self._done()
                self._put("done", await document_of(self.service, done, self.client, with_alignment=self.with_alignment))
        except TimeoutError:
            self._put("error", {"error": too_slow("translated", self.service.settings.timeout).sentence})
        except (RefusalError, DragomanError) as error:
            self._put("error", {"error": str(error)})
        except Exception as error:
            self._put("error", {"error": internal(error).sentence})
        self.events.put_nowait(None)

    def _put(self, name: str, data: dict[str, Any]) -> None:
        self.events.put_nowait((name, data))

    def _start(self) -> dict[str, Any]:
        texts = [sentence.text for sentence in sentences_of(self.document)]
        sentences: list[dict[str, Any]] = []
        if self.hops:
            tokenizer = self.hops[0].model.translator.bundle.source_tokenizer
            for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
                unknown = [place for place, token in enumerate(ids) if token == tokenizer.unk]
                sentences.append({"source": text, "pieces": [tokenizer.token(token) for token in ids], "unk": unknown})
        return {
            "sentences": sentences,
            "models": [{"run": hop.model.name, "step": hop.model.step} for hop in self.hops],
            **({"detected": self.detected.document()} if self.detected else {}),
        }

    async def _done(self) -> Translated:
        if not self.hops:
            return Translated(self.text, [], detected=self.detected)
        lines: list[Line] = []
        before = ""
        sentences = iter(sentences_of(self.document))
        for part in self.document:
            if isinstance(part, str):
                before += part
                continue
            sentence = next(sentences)
            between = Ask(beam=self.wish.ask.beam, alpha=self.wish.ask.alpha)
            earlier = await translate_sentences(self.service, [sentence], self.hops[:-1], between, client=self.client)
            text = earlier[0].translation.text if self.hops[1:] else sentence.text
            output = await self._decode(self.hops[-1], text, before)
            lines.append(Line(sentence.text, (*earlier[0].outputs, output)))
            before += output.translation.text
        done = joined(self.document, lines, self.wish)
        return Translated(done.text, done.alternatives, lines, self.hops, self.detected, done.warnings)

    async def _decode(self, hop: Hop, text: str, before: str) -> Output:
        """A sentence through the last model, alone; ``before`` is what stands before it in the translation."""
        service, (ask,) = self.service, capped(hop, [text], self.wish.ask)

        def work(check: Callable[[], None]) -> Output:
            def watch(live: Live, finished: Sequence[Sequence[Hypothesis]]) -> None:
                check()
                if len(finished) == 1:  # a text too long for the model is several sentences to it, whose order is not the text's
                    self.loop.call_soon_threadsafe(self._put, "step", self._step(hop, live, finished[0], before))

            began = time.perf_counter()
            found = translate_together(hop.model, [hop.tag + text], ask, watch=watch, batch_tokens=service.settings.batch_tokens)[0]
            service.metrics.decoded(1, time.perf_counter() - began)
            service.metrics.tokens(sum(len(part.source) for part in found.translation.parts), len(found.translation.tokens))
            return found

        return await service.engine.run(work, client=self.client.name)

    def _step(self, hop: Hop, live: Live, finished: Sequence[Hypothesis], before: str) -> dict[str, Any]:
        self.steps += 1
        return {"i": self.steps, **beam_facts(hop, live, finished, before, alpha=self.wish.ask.alpha)}


def beam_facts(hop: Hop, live: Live, finished: Sequence[Hypothesis], before: str, *, alpha: float | None) -> dict[str, Any]:
    """The beam of one sentence after a step: ``best`` so far, how many of its pieces are ``stable``, and all hypotheses with scores.

    Stable is what the live hypotheses and the best finished one share: the end is one of these, or goes on from one.
    """
    bundle = hop.model.translator.bundle
    alpha = bundle.config.decoding.alpha if alpha is None else alpha
    tokenizer = bundle.target_tokenizer
    hypotheses = [(list(each.tokens[:-1]), each.score) for each in finished]
    penalty = length_penalty(max(live.tokens.size(2), 1), alpha)
    if len(live.total):
        for total, tokens in zip(live.total[0].tolist(), live.tokens[0].tolist(), strict=True):
            if total > float("-inf"):
                hypotheses.append((tokens, total / penalty))
    beams = sorted(hypotheses, key=lambda each: -each[1])
    kept = [tokens for tokens, _ in hypotheses[len(finished) :]] + [list(each.tokens[:-1]) for each in finished[:1]]
    best = beams[0][0] if beams else []
    stable = min((_shared(best, tokens) for tokens in kept), default=0)

    def text(tokens: Sequence[int]) -> str:
        return tokenizer.decode(tokens).rstrip("\ufffd")  # of a character that is not whole yet

    return {
        "best": before + text(best),
        "stable": stable,
        "stable_text": before + text(best[:stable]),
        "pieces": [tokenizer.token(token) for token in best],
        "beams": [[text(tokens), score] for tokens, score in beams],
    }


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two hypotheses begin with together."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))
