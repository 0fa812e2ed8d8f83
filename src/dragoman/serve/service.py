"""What all routes share: the settings, the loaded models, the engine, who may ask; and the life of these."""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from dragoman.devices import give_back_code, give_back_memory
from dragoman.errors import DragomanError
from dragoman.serve.engine import Engine
from dragoman.serve.keys import Key, Keyring, Turnstile, presented_key
from dragoman.serve.metrics import Metrics
from dragoman.serve.models import Models
from dragoman.serve.parameters import Fields
from dragoman.serve.places import Place, find_models, runs_of
from dragoman.serve.refusals import RefusalError, busy
from dragoman.serve.settings import ServeSettings
from dragoman.serve.store import Store
from dragoman.serve.traces import Looking, Traces

_log = logging.getLogger("dragoman")


@dataclass(frozen=True)
class Client:
    """Who asks: the name under which its work waits and is counted, and the most characters it may send."""

    name: str
    char_limit: int


class Service:
    """A server's parts, made inside the event loop that they live in."""

    def __init__(
        self, settings: ServeSettings, paths: Sequence[Path], *, say: Callable[[str], None], looking: Looking | None = None
    ) -> None:
        """``paths`` are those of the models; ``say`` takes the lines of the access log; without ``looking`` no model is looked into."""
        self.settings, self.paths, self.say = settings, paths, say
        self.metrics = Metrics()
        self.engine = Engine(settings, self.metrics)
        self.keyring, self.turnstile = Keyring(settings.keys), Turnstile()
        self.store = Store()
        self.looking = looking if settings.explain else None
        self.traces = Traces()
        self.began = time.monotonic()
        self.ending = False
        self._models: Models | None = None
        self.runs = runs_of(paths)
        self._reloading = asyncio.Lock()
        self._reload_waits = False

    @property
    def models(self) -> Models:
        """The loaded models. Raises RefusalError while there are none."""
        if self._models is None:
            raise busy("Server is loading", seconds=2)
        return self._models

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        return self._models is not None and not self.ending

    async def load(self, places: Sequence[Place]) -> None:
        """Reads the models, if there are any; DragomanError for what is wrong with one. What the old ones computed is forgotten.

        They are read in the thread that computes with them: for a second one that computes OpenMP would keep a team of threads, and with
        more of these than there are cores each step of a translation waits for the system to wake one.
        """
        await self._read(places)
        await self._tidy()

    async def _read(self, places: Sequence[Place]) -> None:
        if places:
            device, precision = self.settings.device, self.settings.precision
            self._models = await self.engine.run(lambda _: Models.load(places, device=device, precision=precision), client=None)
            self.traces.clear()

    async def _tidy(self) -> None:
        with suppress(RefusalError):  # nothing is begun in a server that ends
            await self.engine.run(lambda _: _tidy(), client=None)

    async def reload(self) -> None:
        """Reads the models again, the newest checkpoints of runs, and takes them all at once; what waits or is being decoded keeps its own.

        Nothing is decoded while they are read. When one cannot be read the old ones stay, and that is said. However often it is asked for
        while they are being read, they are read once more.
        """
        if self._reload_waits:
            return
        self._reload_waits = True
        async with self._reloading:
            self._reload_waits = False
            try:
                places = await asyncio.to_thread(find_models, self.paths, watch=self.settings.watch)
                self._check_kept(places)
                await self._read(places)
            except Exception as error:  # memory that does not suffice, say
                reason = error if isinstance(error, DragomanError) else f"{type(error).__name__}: {error}"
                _log.warning("the models stay as they were: %s", reason)
                return
        if self._models is None:
            _log.info("there is no checkpoint yet")
            return
        loaded = ", ".join(f"{model.name} step {model.step}" for model in self.models.everything)
        _log.info("loaded again: %s", loaded)
        await self._tidy()

    def _check_kept(self, places: Sequence[Place]) -> None:
        """DragomanError for a run that is served and whose checkpoints are gone, as one that begins anew: it would be served no more."""
        kept = {place.path for place in places}
        for model in self._models.everything if self._models else ():
            if model.place.path not in kept:
                raise DragomanError(f"{model.place.path}: its checkpoints are gone; ask again once there is one")

    def close(self) -> None:
        """Ends the engine when its work is done, and forgets the files."""
        self.engine.stop()
        self.engine.join(2.0)
        self.store.close()

    def admit(self, request: Request, fields: Fields, *, counted: bool = True) -> Client:
        """The client of a request. Raises RefusalError without the key that is needed, or when it asks too often."""
        key = self.keyring.check(presented_key(fields, request.headers.get("authorization", "")))
        name = f"key {key.name}" if key else address_of(request, trust_proxy=self.settings.trust_proxy)
        if counted:
            self.turnstile.enter(name, _limit(key, "req_limit", self.settings.req_limit))
        return Client(name, _limit(key, "char_limit", self.settings.char_limit))


def _tidy() -> None:
    """Lets go of what reading models has left, and of the models before, if there were any."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # looking through all that stays would take a tenth of a second each time, in the middle of a request
    give_back_memory()
    give_back_code()


def _limit(key: Key | None, name: str, common: int) -> int:
    own: int | None = getattr(key, name) if key else None
    return common if own is None else own


def address_of(request: Request, *, trust_proxy: bool) -> str:
    """The address that a request came from: of a trusted proxy, the one that it saw."""
    if trust_proxy and (seen := forwarded(request, "for")):
        return seen
    return request.client.host if request.client else ""


def forwarded(request: Request, what: str) -> str:
    """What the proxy before this server says in X-Forwarded-…: the last, for it adds its own behind a client's, or in a line of its own."""
    return ",".join(request.headers.getlist(f"x-forwarded-{what}")).rpartition(",")[2].strip()
