"""Better translations that users send, one a line in a TSV file: source text, their translation, and the two languages behind."""

import logging
import os
import re
from pathlib import Path

from dragoman.serve.refusals import RefusalError

HAS_TEXT = r"[^ \t\r\n]"
"""A pattern for a text that is not blank."""
_LARGEST = 100_000_000

_log = logging.getLogger("dragoman")


def keep_suggestion(path: Path, languages: tuple[str, str], pair: tuple[str, str]) -> None:
    """Appends a line; tabs and line breaks in a text become spaces, for a line is a pair. Raises RefusalError when it cannot be written."""
    line = "\t".join(re.sub(r"[ \t\r\n]+", " ", text).strip(" ") for text in (*pair, *languages)) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size > _LARGEST:
                raise RefusalError(503, "No more suggestions are taken", headers={"Retry-After": "86400"})
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.error("%s: a suggestion cannot be kept: %s", path, error.strerror)
        raise RefusalError(503, "The suggestion cannot be kept", headers={"Retry-After": "3600"}) from None
