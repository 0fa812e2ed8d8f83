"""What a server answers when it does not do what was asked: a status, a sentence, and whether it is worth asking again."""

import logging
import secrets
import traceback
from collections.abc import Mapping

_log = logging.getLogger("dragoman")


class RefusalError(Exception):
    """An answer other than 200: ``{"error": sentence}`` with a status, and headers beside it.

    ``param`` is the field that it is about, ``code`` a word for programs; only answers in OpenAI's form tell them.
    """

    def __init__(
        self, status: int, sentence: str, *, headers: Mapping[str, str] | None = None, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})
        self.param, self.code = param, code


def invalid(sentence: str, *, param: str | None = None, code: str | None = None) -> RefusalError:
    """400: the request itself must be another."""
    return RefusalError(400, f"Invalid request: {sentence}", param=param, code=code)


def busy(sentence: str, *, seconds: int = 5) -> RefusalError:
    """503: the same request may be answered after so many seconds."""
    return RefusalError(503, sentence, headers={"Retry-After": str(seconds)})


def too_slow(done: str, seconds: float, *, less: str = "send less text", option: str = "--timeout") -> RefusalError:
    """503 for what was not ``done`` in the time there is: what the client may do, and the option of whoever runs the server."""
    return busy(
        f"Not {done} within {seconds:g} seconds, for much was asked or the server is busy; {less}, ask again later, or start the server "
        f"with a larger {option}"
    )


def internal(error: Exception) -> RefusalError:
    """500, with an id under which the log says where in the program it was; never what was said, for that may have a text in it."""
    number = secrets.token_hex(2)
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    _log.error("internal error (id %s): %s at %s", number, type(error).__name__, places)
    return RefusalError(500, f"Internal error (id {number})")
