"""Who may ask, and how often: keys that are kept as their SHA-256 only, and a limit of requests a minute for each client."""

import hashlib
import hmac
import json
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.files import write_file
from dragoman.serve.refusals import RefusalError, busy

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT_VERSION = 1
_MINUTE = 60.0
_SHA256 = re.compile("[0-9a-f]{64}")
_log = logging.getLogger("dragoman")
_CLIENTS = 10_000  # remembered, before those that have long been quiet are forgotten


@dataclass(frozen=True)
class Key:
    """A key by name: the SHA-256 of its text, and its own limits, of which None leaves the server's."""

    name: str
    sha256: str
    req_limit: int | None = None
    char_limit: int | None = None

    def document(self) -> dict[str, Any]:
        """What stands in the file."""
        limits = {"req_limit": self.req_limit, "char_limit": self.char_limit}
        return {"name": self.name, "sha256": self.sha256, **{name: value for name, value in limits.items() if value is not None}}


def read_keys(path: Path) -> list[Key]:
    """The keys of a file; DragomanError that names it when it is missing or damaged."""
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT_VERSION:
            raise ValueError(f"format {document['format']!r}")
        keys = [_checked(Key(**entry)) for entry in document["keys"]]
    except OSError as error:
        raise DragomanError(f"{path}: cannot read the keys: {error.strerror}; make one with `dragoman keys add NAME`") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DragomanError(f"{path}: not a file of keys ({error}); restore it, or make a new one with `dragoman keys add NAME`") from None
    return keys


def _checked(key: Key) -> Key:
    if not isinstance(key.name, str) or not isinstance(key.sha256, str) or not _SHA256.fullmatch(key.sha256):
        raise ValueError(f"key {key.name!r}")
    for limit in (key.req_limit, key.char_limit):
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise ValueError(f"limit {limit!r} of key {key.name!r}")
    return key


def write_keys(path: Path, keys: list[Key]) -> None:
    """Replaces the file, which only its owner may read."""
    document = {"format": FORMAT_VERSION, "keys": [key.document() for key in keys]}
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    write_file(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    path.chmod(mode)


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """While the block runs no other command changes keys in the folder of this file: what it adds would be lost. Not on Windows."""
    try:
        folder = os.open(path.parent, os.O_RDONLY) if fcntl is not None else None
    except OSError as error:
        raise DragomanError(f"{path}: cannot write: {error.strerror}; give another file") from None
    try:
        if folder is not None:
            with suppress(OSError):  # some disks of a network know no locks
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        if folder is not None:
            os.close(folder)


def new_key(name: str, *, req_limit: int | None, char_limit: int | None) -> tuple[str, Key]:
    """The text of a new key, which is nowhere else, and what is kept of it."""
    text = secrets.token_urlsafe(24)
    return text, Key(name, _digest(text), req_limit, char_limit)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class Keyring:
    """The keys of a file, read again when it changes; without a file everyone may ask."""

    path: Path | None
    _keys: list[Key] = field(default_factory=list)
    _read_at: tuple[int, int] | None = None
    _told: tuple[tuple[int, int], float] | None = None  # of what file, and when, it was said that it cannot be read

    def check(self, text: str) -> Key | None:
        """The key of this text, None where none is needed. Raises RefusalError for a key that is missing or wrong."""
        if self.path is None:
            return None
        self._refresh(self.path)
        if not text:
            raise RefusalError(403, "An API key is required")
        digest = _digest(text)
        found = [key for key in self._keys if hmac.compare_digest(key.sha256, digest)]  # all are compared, whichever it is
        if not found:
            raise RefusalError(403, "Invalid API key")
        return found[0]

    def _refresh(self, path: Path) -> None:
        try:
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size)
        except OSError:
            mark = (0, 0)
        if mark != self._read_at:
            try:
                self._keys, self._read_at = read_keys(path), mark
            except DragomanError as error:
                now = time.monotonic()
                if self._told is None or self._told[0] != mark or now >= self._told[1] + _MINUTE:
                    self._told = mark, now
                    _log.error("nobody may ask: %s", error)
                raise busy("The keys of this server cannot be read", seconds=30) from None


class Turnstile:
    """Requests a minute of each client: so many at once, then one whenever its share of the minute has passed."""

    def __init__(self) -> None:
        self._free_at: dict[str, float] = {}  # when a client would have all its requests again
        self._most = _CLIENTS

    def enter(self, client: str, limit: int) -> None:
        """Counts a request. Raises RefusalError 429 that says when to ask again."""
        if not limit:
            return
        now, share = time.monotonic(), _MINUTE / limit
        free_at = max(self._free_at.get(client, 0.0), now)
        wait = free_at - now + share - _MINUTE
        if wait > 1e-9:
            headers = {"Retry-After": str(math.ceil(wait))}
            raise RefusalError(429, f"Slowdown: {limit} per 1 minute", headers=headers)
        self._free_at[client] = free_at + share
        if len(self._free_at) > self._most:
            self._free_at = {name: time_ for name, time_ in self._free_at.items() if time_ > now}
            self._most = max(2 * len(self._free_at), _CLIENTS)  # all are gone through again when there are twice as many, not each time


def presented_key(fields: Mapping[str, Any], authorization: str) -> str:
    """The key of a request: ``api_key`` among its fields, else of ``Authorization: Bearer``; empty when there is none."""
    given = fields.get("api_key")
    if given is not None and not isinstance(given, str):
        raise RefusalError(400, "Invalid request: api_key must be a string")
    scheme, _, token = authorization.partition(" ")
    return given or (token.strip() if scheme.lower() == "bearer" else "")
