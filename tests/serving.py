"""A server inside this process, on a port that is free, and a client for it that hides nothing."""

import http.client
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

pytest.importorskip("starlette", reason="starlette is not installed; pip install 'dragoman[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed; pip install 'dragoman[serve]'")

from dragoman.bundle import Bundle, load_bundle
from dragoman.cli.looking import Looking
from dragoman.decoding.translate import Part, Translation
from dragoman.serve.models import Model, Models
from dragoman.serve.places import Place
from dragoman.serve.server import Running, serve
from dragoman.serve.settings import ServeSettings


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON, which it says it is."""
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of an error, which is all that its body has."""
        assert self.json.keys() == {"error"}, self
        return str(self.json["error"])


@dataclass
class Client:
    """Requests to one address, each on a connection of its own."""

    address: str
    log: list[str] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.address)
        return parts.hostname or "", parts.port or 0

    def ask(self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request."""
        connection = http.client.HTTPConnection(*self.place, timeout=30)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """GET."""
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, document: Any, **headers: str) -> Answer:
        """POST of JSON."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", path, body=body, headers={"Content-Type": "application/json", **headers})

    def form(self, path: str, fields: Any, **headers: str) -> Answer:
        """POST of an urlencoded form; a list of values is a field several times."""
        body = urlencode(fields, doseq=True).encode()
        return self.ask("POST", path, body=body, headers={"Content-Type": "application/x-www-form-urlencoded", **headers})

    def multipart(self, path: str, fields: Mapping[str, Any]) -> Answer:
        """POST of a multipart form; a pair of name and bytes is a file."""
        parts = []
        for name, value in fields.items():
            file = f'; filename="{value[0]}"' if isinstance(value, tuple) else ""
            content = value[1] if isinstance(value, tuple) else str(value).encode()
            parts.append(f'--limit\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n")
        return self.ask(
            "POST", path, body=b"".join(parts) + b"--limit--\r\n", headers={"Content-Type": "multipart/form-data; boundary=limit"}
        )


@contextmanager
def serving(*paths: Path, **settings: Any) -> Iterator[Client]:
    """A server of these models while the block runs; it must end by itself and leave nothing."""
    client, started, faults = Client(""), threading.Event(), []
    running: list[Running] = []

    def ready(server: Running) -> None:
        running.append(server)
        started.set()

    def run() -> None:
        try:
            serve(paths, ServeSettings(**{"port": 0, **settings}), say=client.log.append, ready=ready, looking=Looking())
        except BaseException as error:
            faults.append(error)
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    if faults:
        raise faults[0]
    client.address = running[0].address
    try:
        yield client
    finally:
        running[0].stop()
        thread.join(20)
        assert not thread.is_alive()
        assert not faults, faults


class Echo:
    """In place of a translator: each translation is its text, or what ``change`` makes of it; alternatives are numbered."""

    def __init__(self, bundle: Bundle, change: Callable[[str], str]) -> None:
        self.bundle, self.change = bundle, change
        self.batches: list[list[str]] = []

    def translate(self, texts: Sequence[str], *, n_best: int = 1, **others: Any) -> list[Translation]:
        """Of every text its change."""
        self.batches.append(list(texts))
        return [self._one(text, n_best) for text in texts]

    def _one(self, text: str, n_best: int) -> Translation:
        changed = self.change(text)
        more = tuple(self._made(f"{changed} ({rank})") for rank in range(1, n_best))
        return Translation(**{**vars(self._made(changed)), "alternatives": more, "parts": (Part([1], text, 0),)})

    def _made(self, text: str) -> Translation:
        return Translation(text=text, tokens=(text, "</s>"), score=-1.0, log_probability=-1.0, token_scores=(-1.0, 0.0), stop="end")


@contextmanager
def echoing(folder: Path, *paths: Path, change: Callable[[str], str] = str, **settings: Any) -> Iterator[Client]:
    """A server whose models give back what they get; ``folder`` is a bundle, ``paths`` more of them."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # while the models load, and no longer
            patch.setattr(Models, "load", classmethod(lambda cls, places, **_: echoes(places, change)))
            client = stack.enter_context(serving(folder, *paths, **settings))
        yield client


def echoes(places: Sequence[Place], change: Callable[[str], str] = str) -> Models:
    """Models that give back what they get."""
    return Models([Model(place, Echo(load_bundle(place.folder), change), {}, {}) for place in places])  # type: ignore[arg-type]


def bundle_of(made: Path, source: str, target: str) -> Path:
    """The bundle of `tiny_bundle`, copied beside it for another pair of languages."""
    folder = made.with_name(f"{source}-{target}")
    shutil.copytree(made, folder)
    document = json.loads((folder / "config.json").read_bytes())
    document["config"]["data"] |= {"source": source, "target": target}
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return folder
