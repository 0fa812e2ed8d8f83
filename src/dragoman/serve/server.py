"""The life of a server: a socket, models that load while it listens already, signals, and a graceful end."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dragoman.errors import DragomanError
from dragoman.serve.answers import refused
from dragoman.serve.app import application
from dragoman.serve.keys import read_keys
from dragoman.serve.places import Place, find_models, is_awaited
from dragoman.serve.refusals import RefusalError
from dragoman.serve.service import Service
from dragoman.serve.settings import ServeSettings
from dragoman.serve.stops import Stops
from dragoman.serve.traces import Looking

GRACE_SECONDS = 10
_HEADER_SECONDS = 15.0  # that the head of a request may take to arrive
_BACKLOG = 2048
_ACCEPTED = 16
"""Connections taken at once: of each that the system refuses asyncio tries so many times more, and tells each."""
_MOST_FILES = 65_536
_TOLD_SECONDS = 60.0  # between two notices that there are too many connections

_log = logging.getLogger("dragoman")


class Running(NamedTuple):
    """A server that answers: its address, and what ends it, which may be called from any thread."""

    address: str
    stop: Callable[[], None]


def serve(
    paths: Sequence[Path],
    settings: ServeSettings,
    *,
    say: Callable[[str], None],
    stops: Stops | None = None,
    ready: Callable[[Running], None] | None = None,
    looking: Looking | None = None,
) -> None:
    """Serves the models until ``stops`` has SIGTERM or Ctrl-C, or what ``ready`` gets is asked to stop; SIGHUP loads them again.

    ``say`` takes the lines of the access log; ``ready`` is told when requests are answered, of a run without a checkpoint those about the
    run; ``looking`` looks into the models, if requests may. Raises DragomanError or UsageError
    for what stands in the way: a model, the keys, the port.
    """
    stops = stops or Stops()
    places = find_models(paths, watch=settings.watch)
    if settings.keys is not None:
        read_keys(settings.keys)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "python_multipart"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with _listening(settings) as listener:
        address = _address(settings, listener)
        _log.info("listening on %s, loading %s", address, ", ".join(str(place.path) for place in places) or "nothing yet")
        for path in paths:
            if settings.watch and is_awaited(path):
                _log.info("%s: no checkpoint yet; send SIGHUP to load it once there is one", path)

        async def live() -> None:
            service = Service(settings, paths, say=say, looking=looking)
            server = _server(service)
            end = _from_any_thread(partial(_end, service, server))
            with stops.told_to(end), _reloading(service):
                serving = asyncio.create_task(server.serve(sockets=[listener]))
                try:
                    if not stops.asked:
                        await _load(service, places, unless=serving)
                        places.clear()  # or their vocabularies would stay when others are loaded
                    if not (stops.asked or service.ending):
                        if service.ready:
                            _log.info("ready: %s", service.models.title)
                        if ready is not None:
                            ready(Running(address, end))
                    await serving
                finally:
                    service.ending = server.should_exit = True
                    with suppress(asyncio.CancelledError):
                        await serving
                    service.close()

        asyncio.run(live())
    _log.info("stopped")


async def _load(service: Service, places: Sequence[Place], *, unless: "asyncio.Task[None]") -> None:
    """Loads the models, but waits no longer once the server has ended, as when it is told to stop meanwhile."""
    loading = asyncio.create_task(service.load(places))
    await asyncio.wait((loading, unless), return_when=asyncio.FIRST_COMPLETED)
    if loading.done():
        loading.result()
    else:
        loading.cancel()


@contextmanager
def _listening(settings: ServeSettings) -> Iterator[socket.socket]:
    """A socket at the address, listening; DragomanError that says why there is none."""
    _allow_files()
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise DragomanError(f"{settings.host}: no address of this machine ({error.strerror or error}); give another --host") from None
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            raise DragomanError(
                f"{settings.host}:{settings.port}: cannot listen there ({error.strerror}); give another --port, or stop what is using it"
            ) from None
        yield listener


def _address(settings: ServeSettings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.url_prefix}"


def _server(service: Service) -> "_Server":
    settings = service.settings
    return _Server(
        uvicorn.Config(
            application(service),
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_ACCEPTED,
            timeout_graceful_shutdown=GRACE_SECONDS,
            # deep-translator sends its text in the address, where a character may take twelve.
            h11_max_incomplete_event_size=max(65_536, 12 * (settings.char_limit or 20_000) + 16_384),
        )
    )


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets more wait to be accepted than are at once, and tells when there are too many."""
        asyncio.get_running_loop().set_exception_handler(_Crowded())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `Stops`."""
        yield


def _allow_files() -> None:
    """As many open files, each connection being one, as this process may have: shells allow 1024 of them until asked for more."""
    with suppress(ImportError, OSError, ValueError):  # Windows, and systems that refuse
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if resource.RLIM_INFINITY != soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Crowded:
    """What the event loop complains of: connections for which there are no more files are told once in a while, with no traceback."""

    def __init__(self) -> None:
        self.quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "accept" not in context.get("message", "") or not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif loop.time() >= self.quiet_until:
            self.quiet_until = loop.time() + _TOLD_SECONDS
            _log.warning("too many connections (%s): others wait until some end; allow more files with `ulimit -n`", error.strerror)


def _from_any_thread(action: Callable[[], None]) -> Callable[[], None]:
    loop = asyncio.get_running_loop()

    def act() -> None:
        loop.call_soon_threadsafe(action)

    return act


def _end(service: Service, server: _Server) -> None:
    if service.ending:
        server.force_exit = True
    else:
        _log.info("finishing what is being translated, for at most %d seconds; once more stops now", GRACE_SECONDS)
    service.ending = server.should_exit = True


@contextmanager
def _reloading(service: Service) -> Iterator[None]:
    """SIGHUP loads the models again."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.create_task(service.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    with suppress(AttributeError, NotImplementedError, ValueError, RuntimeError):  # Windows, and threads other than the first
        before = signal.getsignal(signal.SIGHUP)
        loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        with suppress(AttributeError, NotImplementedError):
            if loop.remove_signal_handler(signal.SIGHUP):
                signal.signal(signal.SIGHUP, before)


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that waits for the head of a request, but not for ever, and whose own errors are JSON too."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come: its request must follow."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Some bytes: the head of a request that they begin must be whole in time, however they trickle."""
        super().data_received(data)
        waiting = self.conn.their_state is h11.IDLE
        if self._deadline is not None and not waiting:
            self._deadline.cancel()
            self._deadline = None
        elif self._deadline is None and waiting and not self.transport.is_closing():
            self._deadline = self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP, or a head that is too long."""
        answer = refused(RefusalError(400, "Invalid HTTP request"))
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [*answer.raw_headers, (b"connection", b"close")]
            event = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for part in (event, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()
