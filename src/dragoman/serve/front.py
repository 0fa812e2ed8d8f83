"""What stands before all routes: sizes and hosts that are refused, origins that are allowed, errors as JSON, counting and the log.

Nothing of a text, a key or an address is written down anywhere.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from dragoman.errors import DragomanError
from dragoman.serve.answers import as_json, refused
from dragoman.serve.engine import StoppedError
from dragoman.serve.refusals import RefusalError, busy, internal
from dragoman.serve.service import Service

_SHARED = {"/translate", "/detect", "/languages", "/frontend/settings", "/translate_file"}
"""Routes that pages of other origins may ask: LibreTranslate's, which browser extensions use."""
_FILES = "/translate_file"
_ALWAYS = {"/livez", "/health"}
"""Routes that answer while the server ends, too."""
_WHOLE = re.compile(r"https?://(?P<host>[^/]*)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)
"""A target that is a whole address, as a client sends it that takes the server for a proxy; servers must take it (RFC 9112, 3.2.2)."""
_BODY_SECONDS = 60.0  # that the body of a request may take to arrive

_CLOSE = {"Connection": "close"}  # what is still to come of the body is not read
_SECURITY = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}


def _ending() -> RefusalError:
    return busy("Server is shutting down", seconds=10)


def is_logged(route: str, status: int) -> bool:
    """Whether a request goes into the access log: all do but polls answered with 200 or 503, whose news the notices tell."""
    return route not in _ALWAYS or status not in (200, 503)


class Front:
    """The ASGI application: one of its routes, with all that they share around it."""

    def __init__(self, service: Service, router: Router) -> None:
        self.service, self.router = service, router
        self.state = _State(service)
        self.methods = {route.path: ", ".join(sorted(route.methods or ())) for route in router.routes if isinstance(route, Route)}
        self.names: dict[object, str] = {route.endpoint: route.path for route in router.routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An HTTP request; there are no others."""
        if scope["type"] == "http":
            await _Exchange(self, scope, receive, send).run()


class _State:
    """What routes find under ``request.app.state``."""

    def __init__(self, service: Service) -> None:
        self.service = service


class _Exchange:
    """One request and its answer."""

    def __init__(self, front: Front, scope: Scope, receive: Receive, send: Send) -> None:
        self.front, self.service, self.receive, self.send_on = front, front.service, receive, send
        target, headers = scope["path"], scope["headers"]
        if whole := _WHOLE.fullmatch(target):  # whose host counts, and not the header's
            target = whole["path"] or "/"
            headers = [*((name, value) for name, value in headers if name != b"host"), (b"host", whole["host"].encode())]
        self.path = _path(target, self.service.settings.url_prefix)
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        self.scope: Scope = {**scope, "app": front, "path": self.path or "", "headers": headers, "root_path": "", "state": {}}
        self.status, self.began, self.started, self.read = 0, time.perf_counter(), False, 0
        self.whole, self.gone = asyncio.Event(), asyncio.Event()
        self.due = asyncio.get_running_loop().time() + _BODY_SECONDS  # of the whole body, however it trickles

    async def run(self) -> None:
        """Answers, counts, and writes a line into the log."""
        metrics = self.service.metrics
        metrics.inflight += 1
        try:
            await self._until_gone(self._answer())
        finally:
            metrics.inflight -= 1
            seconds = time.perf_counter() - self.began
            route = self.front.names.get(self.scope.get("endpoint"), "other")
            if self.path in self.front.methods:  # also where it was refused before its route, or has its endpoint with another
                route = self.path
            metrics.answered(route, self.status, seconds)
            if self.service.settings.access_log and is_logged(route, self.status):
                self.service.say(self._line(route, seconds))

    async def _until_gone(self, work: Any) -> None:
        """The work, which ends when the client goes away."""
        task = asyncio.ensure_future(work)
        watcher = asyncio.create_task(self._watch(task))
        try:
            await task
        except asyncio.CancelledError:
            if not self.gone.is_set():  # the server ends
                task.cancel()
                if self.started:
                    raise
                await self._refuse(_ending())
            self.status = self.status or 499
        finally:
            watcher.cancel()

    async def _watch(self, task: "asyncio.Task[None]") -> None:
        await self.whole.wait()
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.gone.set()
        task.cancel()

    async def _answer(self) -> None:
        try:
            self._check()
            if self.scope["method"] == "OPTIONS" and self.path in _SHARED:
                answer = as_json({}, headers={"Access-Control-Max-Age": "86400", "Allow": f"{self.front.methods[self.path]}, OPTIONS"})
                await answer(self.scope, self._receive, self._send)
                return
            await self.front.router(self.scope, self._receive, self._send)
        except asyncio.CancelledError:
            raise
        except ClientDisconnect:  # before its request was whole: nobody is there to be answered
            self.status = self.status or 499
        except Exception as error:
            if self.started:
                internal(error)
                raise
            await self._refuse(_refusal_of(error))

    async def _refuse(self, error: RefusalError) -> None:
        answer = refused(error, openai=(self.path or "").startswith("/v1/"))
        await answer(self.scope, self._receive, self._send)

    def _check(self) -> None:
        settings = self.service.settings
        if self.path is None:
            raise RefusalError(404, "Not found")
        if settings.on_loopback and not settings.trust_proxy:
            if not self._is_own(self.headers.get("host")):
                raise RefusalError(403, "This server answers to its own host name only")
            # A form is sent without asking first; that its answer cannot be read undoes nothing that it did.
            if not self.shared and not self._is_own(self.headers.get("origin", "").rpartition("//")[2] or None):
                raise RefusalError(403, "This route is not for pages of other origins")
        if self.service.ending and self.path not in _ALWAYS:
            raise _ending()
        coding = self.headers.get("content-encoding", "").strip().lower()
        if self.scope["method"] == "POST" and coding not in ("", "identity"):
            raise RefusalError(415, f"Content-Encoding {coding[:40]} is not supported; send the body as it is", headers=_CLOSE)
        if "transfer-encoding" in self.headers and "content-length" in self.headers:  # a proxy may take another for the end of the body
            raise RefusalError(400, "Content-Length and Transfer-Encoding exclude each other", headers=_CLOSE)
        limit = self.limit
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise RefusalError(413, f"Request body too large: {int(length)} bytes, and the limit is {limit}", headers=_CLOSE)

    @property
    def shared(self) -> bool:
        """Whether pages of other origins may ask this route."""
        return self.path in _SHARED or (self.path or "").startswith("/download_file/")

    @property
    def limit(self) -> int:
        """The largest body in bytes."""
        settings = self.service.settings
        return settings.file_limit + 65_536 if self.path == _FILES else settings.body_limit

    def _is_own(self, host: str | None) -> bool:
        """Whether this is a name of this machine, or none is given: a page of another origin whose name was bent to here gives its own."""
        if host is None:
            return True
        name = _host_name(host)
        own = {"localhost", "127.0.0.1", "::1", self.service.settings.host.lower()}
        if self.service.settings.public_url:
            own.add(_host_name(urlsplit(self.service.settings.public_url).netloc))
        return name in own

    async def _receive(self) -> Message:
        if self.whole.is_set():
            await self.gone.wait()
            return {"type": "http.disconnect"}
        try:
            async with asyncio.timeout_at(self.due):
                message = await self.receive()
        except TimeoutError:
            raise RefusalError(408, f"The request did not arrive within {_BODY_SECONDS:g} seconds", headers=_CLOSE) from None
        if message["type"] == "http.request":
            self.read += len(message.get("body", b""))
            if self.read > self.limit:
                raise RefusalError(413, f"Request body too large: more than {self.limit} bytes", headers=_CLOSE)
            if not message.get("more_body", False):
                self.whole.set()
        else:
            self.whole.set()
            self.gone.set()
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            names = {name.lower() for name, _ in message["headers"]}
            added = {name: value for name, value in _SECURITY.items() if name not in names}
            if self.shared:
                added |= {
                    b"access-control-allow-origin": b"*",
                    b"access-control-allow-methods": b"GET, POST, OPTIONS",
                    b"access-control-allow-headers": b"authorization, content-type",
                    b"access-control-expose-headers": b"x-warnings, retry-after",
                }
            message = {**message, "headers": [*message["headers"], *added.items()]}
        await self.send_on(message)

    def _line(self, route: str, seconds: float) -> str:
        sizes: Mapping[str, int] = self.scope["state"].get("sizes", {})
        facts = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "method": self.scope["method"][:16],
            "route": route,
            "status": self.status,
            "seconds": round(seconds, 4),
            **sizes,
        }
        return json.dumps(facts, ensure_ascii=True)


def _path(path: str, prefix: str) -> str | None:
    """The path below the prefix, without a slash at its end; None when it is not below it."""
    if prefix:
        if path != prefix and not path.startswith(f"{prefix}/"):
            return None
        path = path[len(prefix) :]
    return path.rstrip("/") or "/"


def _host_name(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and ":" in host else host


def _refusal_of(error: Exception) -> RefusalError:
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, StoppedError):
        return busy("The request was given up")
    if isinstance(error, HTTPException):
        sentence = {404: "Not found", 405: "Method not allowed"}.get(error.status_code, str(error.detail))
        return RefusalError(error.status_code, sentence, headers=error.headers)
    if isinstance(error, DragomanError):  # a text that a model cannot take
        return RefusalError(400, f"Invalid request: {error}")
    return internal(error)
