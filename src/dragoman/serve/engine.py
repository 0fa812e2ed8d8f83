"""The one thread that computes: texts of many requests are decoded together, all else is done alone, each in its turn.

Translations are short and done at once. Continuations may be long: some batches of them go on side by side, a little of each at a time, so
that what is short does not wait for what is long.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch

from dragoman.decoding.beam import Watch
from dragoman.decoding.generate import Addition
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.side_by_side import Check
from dragoman.decoding.translate import Translation
from dragoman.errors import DragomanError
from dragoman.serve.completers import Drawing, Prompt
from dragoman.serve.metrics import Metrics
from dragoman.serve.models import Model
from dragoman.serve.queue import FairQueue, Item
from dragoman.serve.refusals import RefusalError, busy
from dragoman.serve.settings import ServeSettings

Result = TypeVar("Result")

_NEWCOMER_SECONDS = 0.001  # that a batch with room waits for company, and again while some comes,
_ROUNDS = 5  # so often at most
_GOING = 4  # batches of continuations side by side
_SLICE_SECONDS = 0.05  # of one of them, before others have their turn
_CHARACTERS = 3  # that a token has at least on average; what has more tokens makes two batches of one


@dataclass(frozen=True)
class Ask:
    """The search of a request: equal ones are decoded together. None: the model's own."""

    beam: int | None = None
    alpha: float | None = None
    n_best: int = 1
    max_length: int | str | None = None
    no_repeat_ngram: int = 0


class Output(NamedTuple):
    """A translation, and whether the model's own best went round in a loop, so that another may stand in its place."""

    translation: Translation
    looped: bool


class Drawn(NamedTuple):
    """What has been added to one of several prompts, which is told by its place."""

    place: int
    addition: Addition


class StoppedError(Exception):
    """Nobody waits for what is being computed."""


@dataclass
class _Going:
    """A batch of prompts on its way, what it still has to add, and what it has taken so far."""

    batch: Sequence[Item]
    additions: Iterator[list[tuple[int, Addition]]]
    seconds: float = 0.0
    tokens: int = 0
    began: bool = False

    @classmethod
    def on(cls, batch: Sequence[Item]) -> "_Going":
        """That of a batch whose key is a `Drawing`."""
        drawing: Drawing = batch[0].key  # type: ignore[assignment]
        return cls(batch, drawing.together([item.work for item in batch]))


class Engine:
    """Takes what waits, and computes it in a thread of its own; its methods are for the event loop."""

    def __init__(self, settings: ServeSettings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self._queue = FairQueue()
        self._going: deque[_Going] = deque()  # the engine's thread's own
        self._ready = threading.Condition()
        self._numbers = count(1)
        self._ending = False
        self._room = asyncio.Event()
        self._room.set()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="dragoman-engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Texts in the queue."""
        return self._queue.waiting

    async def translate(self, model: Model, texts: Sequence[str], asks: Sequence[Ask], *, client: str) -> list[Output]:
        """The translations of texts, each by its search, in order. Raises RefusalError when there is no place for them for too long."""
        if not texts:
            return []
        work = [((model, ask), (model, ask, text), len(text) // _CHARACTERS + 2) for text, ask in zip(texts, asks, strict=True)]
        futures = await self._submit(client, work)
        return [future.result() for future in await _all_done(futures)]

    async def run(self, work: Callable[[Callable[[], None]], Result], *, client: str | None) -> Result:
        """What ``work`` returns, done alone in the engine's thread. It gets a function that raises once nobody waits any more.

        Without a client it is the server's own work, for which there is always a place.
        """
        (future,) = await _all_done(await self._submit(client, [(None, work, 1)]))
        result: Result = future.result()
        return result

    async def draw(self, drawing: Drawing, prompts: Sequence[Prompt], sizes: Sequence[int], *, client: str) -> AsyncGenerator[Drawn, None]:
        """What follows prompts, as it comes, in whatever order; ``sizes`` are the most tokens of each with its prompt.

        Raises RefusalError when there is no place for them for too long, or one of them cannot be. Who goes away closes this.
        """
        drawn: asyncio.Queue[tuple[int, Addition | BaseException | None]] = asyncio.Queue()
        closed = threading.Event()
        items = [
            Item(drawing, prompt, size, partial(_into, drawn, place), closed.is_set)
            for place, (prompt, size) in enumerate(zip(prompts, sizes, strict=True))
        ]
        await self._enter(client, items)
        left = len(items)
        try:
            while left:
                place, result = await drawn.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    left -= 1
                else:
                    yield Drawn(place, result)
        finally:
            closed.set()

    async def _submit(self, client: str | None, work: Sequence[tuple[Any, Any, int]]) -> list["asyncio.Future[Any]"]:
        futures = [self._loop.create_future() for _ in work]
        items = [Item(key, job, size, self._answer(future), future.done) for future, (key, job, size) in zip(futures, work, strict=True)]
        await self._enter(client, items)
        return futures

    async def _enter(self, client: str | None, items: Sequence[Item]) -> None:
        """Puts items into the queue once there is room."""
        deadline = self._loop.time() + self.settings.max_wait
        while client is not None and self._queue.waiting >= self.settings.queue:
            self._room.clear()
            left = deadline - self._loop.time()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(left, 0)):
                    await self._room.wait()
            if left <= 0:
                raise busy("Server is busy")
        if self._ending:
            raise busy("Server is shutting down", seconds=10)
        with self._ready:
            self._queue.put(client or "", next(self._numbers), items)
            self._ready.notify()

    def _answer(self, future: "asyncio.Future[Any]") -> Callable[[Any], None]:
        def answer(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        return answer

    def stop(self) -> None:
        """No new work; what waits is still done, and then the thread ends."""
        with self._ready:
            self._ending = True
            self._ready.notify()

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread, but not for ever."""
        self._thread.join(seconds)

    # In the thread of the engine

    def _run(self) -> None:
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)
        while (batch := self._next_batch()) is not None:
            self._tell(self._tell_of_room)
            if batch and isinstance(batch[0].key, Drawing):
                self._going.append(_Going.on(batch))
            elif batch:  # else nobody waited for what was there
                self._do(batch)
            if self._going:
                first = self._going.popleft()
                if self._goes_on(first):
                    self._going.append(first)

    def _next_batch(self) -> list[Item] | None:
        """What to do now, waiting for it where nothing is going on; None at the end."""
        settings = self.settings
        with self._ready:
            if not self._going:
                self._ready.wait_for(lambda: self._queue.waiting or self._ending)
                if not self._queue.waiting:
                    return None
        if not self._going and settings.batch > 1:
            self._wait_for_company()
        with self._ready:
            full = len(self._going) >= _GOING
            return self._queue.take(settings.batch, settings.batch_tokens, put_off=lambda key: full and isinstance(key, Drawing))

    def _wait_for_company(self) -> None:
        """Until nobody else comes, several requests fill a batch, or it has been long enough; without being woken for each that comes.

        Clients that have just got their answers ask again at once: without this they and those that wait would take turns for ever, in two
        batches of half the size, or one long request would have every second batch for itself.
        """
        for _ in range(_ROUNDS):
            with self._ready:
                before, requests, alone = self._queue.waiting, self._queue.requests, self._queue.next_is_alone
            if self._ending or alone or (before >= self.settings.batch and requests > 1):
                return
            time.sleep(_NEWCOMER_SECONDS)
            if self._queue.waiting == before:
                return

    def _do(self, batch: Sequence[Item]) -> None:
        """All of a batch that is done at once."""
        began = time.perf_counter()
        try:
            results = self._alone(batch[0]) if batch[0].key is None else self._together(batch)
        except BaseException as error:
            results = [error] * len(batch)
        if batch[0].key is not None:
            self.metrics.decoded(len(batch), time.perf_counter() - began)
        self._tell(self._deliver, batch, results)

    def _goes_on(self, going: _Going) -> bool:
        """Some more of a batch of continuations, for a moment only while others wait; whether there is still more."""
        batch, began, more = going.batch, time.perf_counter(), True
        end = began + _SLICE_SECONDS
        while more and (time.perf_counter() < end or not (self._going or self._queue.waiting)):
            additions: Sequence[tuple[int, Any]]
            try:
                if all(item.gone() for item in batch):
                    return False
                additions = next(going.additions)
                going.began = True
                going.tokens += sum(addition.id is not None for _, addition in additions)
            except StopIteration:
                additions, more = [(place, None) for place in range(len(batch))], False
            except BaseException as error:
                if len(batch) > 1 and not going.began:  # a fault of one harms nobody else: each by itself
                    self._going.extend(_Going.on([item]) for item in batch)
                    return False
                refusal = RefusalError(400, str(error)) if isinstance(error, DragomanError) else error
                additions, more = [(place, refusal) for place in range(len(batch))], False
            self._tell(self._deliver, [batch[place] for place, _ in additions], [addition for _, addition in additions])
        going.seconds += time.perf_counter() - began
        if not more:
            self.metrics.decoded(len(batch), going.seconds)
            self.metrics.tokens(sum(item.work.tokens for item in batch), going.tokens)
        return more

    def _tell(self, what: Callable[..., None], *about: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(what, *about)

    def _deliver(self, batch: Sequence[Item], results: Sequence[Any]) -> None:
        for item, result in zip(batch, results, strict=True):
            item.done(result)

    def _tell_of_room(self) -> None:
        if self._queue.waiting < self.settings.queue:
            self._room.set()

    def _alone(self, item: Item) -> list[Any]:
        def check() -> None:
            if item.gone():
                raise StoppedError

        try:
            return [item.work(check)]
        except StoppedError:
            return [StoppedError()]

    def _together(self, batch: Sequence[Item]) -> list[Any]:
        """The translations of a batch; of one that cannot be, each text's own, so that a fault harms nobody else."""
        model, ask, _ = batch[0].work

        def check() -> None:
            if all(item.gone() for item in batch):
                raise StoppedError

        texts = [text for _, _, text in (item.work for item in batch)]
        try:
            found = translate_together(model, texts, ask, check=check, batch_tokens=self.settings.batch_tokens)
        except StoppedError:
            return [StoppedError()] * len(batch)
        except Exception as error:
            if len(batch) == 1:
                return [RefusalError(400, str(error)) if isinstance(error, DragomanError) else error]
            return [self._together([item])[0] for item in batch]
        translations = [each.translation for each in found]
        read = sum(len(part.source) for each in translations for part in each.parts)
        self.metrics.tokens(read, sum(len(each.tokens) for each in translations))
        return found


def translate_together(
    model: Model, texts: Sequence[str], ask: Ask, *, batch_tokens: int, watch: Watch | None = None, check: Check = lambda: None
) -> list[Output]:
    """What the command line gives for these lines, but for outputs that go round in a loop: the best that does not, if the beam has one."""
    translator = model.translator
    beam = ask.beam or translator.bundle.config.decoding.beam
    options = SearchOptions(no_repeat_ngram=ask.no_repeat_ngram)
    common: dict[str, Any] = {
        "beam": beam, "alpha": ask.alpha, "max_length": ask.max_length, "options": options, "batch_tokens": batch_tokens * beam,
        "place": "a request", "watch": watch, "check": check,
    }  # fmt: skip
    found = translator.translate(texts, n_best=ask.n_best, **common)
    outputs = [Output(each, each.stop == "repetition") for each in found]
    loops = [place for place, each in enumerate(outputs) if each.looped]
    if loops and beam > 1:
        wider = translator.translate([texts[place] for place in loops], n_best=beam, **common)
        for place, each in zip(loops, wider, strict=True):
            outputs[place] = Output(_without_loops(each, ask.n_best), True)
    return outputs


def _without_loops(found: Translation, n_best: int) -> Translation:
    """The candidates that do not go round in a loop first, else in their order; ``stop`` of the best says whether it does."""
    candidates = [replace(found, alternatives=()), *found.alternatives]
    best, *others = sorted(candidates, key=lambda each: each.stop == "repetition")[:n_best]
    return replace(best, alternatives=tuple(others))


def _into(drawn: "asyncio.Queue[tuple[int, Any]]", place: int, result: Any) -> None:
    """Says what became of the prompt at a place."""
    drawn.put_nowait((place, result))


async def _all_done(futures: Sequence["asyncio.Future[Any]"]) -> Sequence["asyncio.Future[Any]"]:
    """Waits for all; when the waiting is cancelled so are they, which tells the engine that nobody waits."""
    try:
        await asyncio.wait(futures)
    except asyncio.CancelledError:
        for future in futures:
            future.cancel()
        raise
    for future in futures:
        if not future.cancelled():
            future.exception()  # looked at, also where another's is raised
    return futures
