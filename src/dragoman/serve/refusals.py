"""What a server answers when it does not do what was asked: a status, a sentence, and whether it is worth asking again."""

from collections.abc import Mapping


class RefusalError(Exception):
    """An answer other than 200: ``{"error": sentence}`` with a status, and headers beside it."""

    def __init__(self, status: int, sentence: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})


def invalid(sentence: str) -> RefusalError:
    """400: the request itself must be another."""
    return RefusalError(400, f"Invalid request: {sentence}")


def busy(sentence: str, *, seconds: int = 5) -> RefusalError:
    """503: the same request may be answered after so many seconds."""
    return RefusalError(503, sentence, headers={"Retry-After": str(seconds)})
