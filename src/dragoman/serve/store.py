"""Translated files that wait to be fetched: for an hour, each under a number that nobody guesses."""

import re
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_SECONDS = 3600.0
_MOST = 200  # files at a time; older ones make room


@dataclass(frozen=True)
class Stored:
    """A file, the name that it is fetched under, and its type."""

    path: Path
    name: str
    media_type: str
    until: float


class Store:
    """A folder of its own, which goes with the server; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: TemporaryDirectory[str] | None = None
        self._files: dict[str, Stored] = {}

    def put(self, content: bytes, *, name: str, media_type: str) -> str:
        """Keeps a file, and returns its number: 128 random bits."""
        with self._lock:
            self._forget(room=1)
            if self._folder is None or not Path(self._folder.name).is_dir():  # systems clear away what has been temporary for days
                self._folder = TemporaryDirectory(prefix="dragoman-files-", ignore_cleanup_errors=True)
            number = secrets.token_hex(16)
            path = Path(self._folder.name) / number
            path.write_bytes(content)
            self._files[number] = Stored(path, name, media_type, time.monotonic() + _SECONDS)
        return number

    def get(self, number: str) -> Stored | None:
        """The file of a number, if there is one still."""
        with self._lock:
            self._forget()
            stored = self._files.get(number)
            return stored if stored is not None and stored.path.is_file() else None

    def close(self) -> None:
        """Removes all files."""
        with self._lock:
            self._files.clear()
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def _forget(self, *, room: int = 0) -> None:
        now = time.monotonic()
        surplus = max(len(self._files) - _MOST + room, 0)
        for place, (number, stored) in enumerate(list(self._files.items())):
            if stored.until < now or place < surplus:
                stored.path.unlink(missing_ok=True)
                del self._files[number]


def translated_name(name: str, target: str) -> str:
    """The name of a translated file: ``letter.txt`` into de is ``letter_de.txt``; no path and no sign that a header cannot carry."""
    plain = re.sub(r"[^\w.-]", "_", re.split(r"[/\\]", name)[-1], flags=re.ASCII).strip(".") or "file"
    stem, dot, suffix = plain.rpartition(".")
    return f"{stem}_{target}.{suffix}" if dot else f"{plain}_{target}"
