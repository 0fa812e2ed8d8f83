"""What a user can mend: one sentence that says the cause, the place and the remedy."""

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_OPTION = re.compile("\0(\\w+)\0")
_TO_READ = {
    errno.ENOENT: "check its name",
    errno.ENOTDIR: "check its name, for a part of it is a file and no folder",
    errno.EISDIR: "give a file, for this is a folder",
    errno.EACCES: "make it readable, or give another",
    errno.ENAMETOOLONG: "give the name of a file",
}
_TO_WRITE = {
    errno.ENOENT: "make its folder first, or give another file",
    errno.ENOTDIR: "give another name, for a part of it is a file and no folder",
    errno.EEXIST: "give another name, for a part of it is a file and no folder",
    errno.EISDIR: "give a file, for this is a folder",
    errno.EACCES: "choose a folder that can be written",
    errno.EROFS: "choose a folder that can be written",
    errno.ENAMETOOLONG: "give a shorter name",
}


class DragomanError(Exception):
    """A condition outside the program that stops it (a missing file, a damaged model); exit status 1."""

    exit_status = 1

    def __init__(self, sentence: str) -> None:
        """``sentence`` may name options by `option`: ``n_best`` to who calls from Python, ``--n-best`` on the command line."""
        super().__init__(_OPTION.sub(r"\1", sentence))
        self.sentence = sentence
        self.on_command_line = _OPTION.sub(lambda found: f"--{found[1].replace('_', '-')}", sentence)


class UsageError(DragomanError):
    """A wrong setting or argument; exit status 2."""

    exit_status = 2


class LineError(DragomanError):
    """A line of a text that cannot be used; what comes before it can."""

    def __init__(self, sentence: str, line: int) -> None:
        """``line`` is its number in its file; the sentence has it too."""
        super().__init__(sentence)
        self.line = line


@contextmanager
def of_line(line: int) -> Iterator[None]:
    """What is wrong in the block is wrong with that line, counted in its file: a LineError."""
    try:
        yield
    except UsageError:  # of the options, whatever the line
        raise
    except DragomanError as error:
        raise LineError(error.sentence, line) from None


def option(name: str) -> str:
    """The name of an option in the sentence of an error."""
    return f"\0{name}\0"


def as_texts(texts: Iterable[str], name: str = "texts") -> list[str]:
    """The texts as a list; UsageError for one text alone, each of whose characters would be taken for a text, and for what is no text."""
    refuse_one_text(texts, name)
    listed = [*texts]
    for number, text in enumerate(listed, start=1):
        if not isinstance(text, str):
            raise UsageError(f"{name}: number {number} is a {type(text).__name__}, and not a text; give a list of str")
    return listed


def refuse_one_text(texts: object, name: str) -> None:
    """Raises UsageError for a str, whose characters would be taken for texts, and for what else is not a list of them."""
    if isinstance(texts, str | bytes | dict):
        raise UsageError(f"{name}: give a list of texts, with one in it where there is only one, and not a {type(texts).__name__}")


def counted(number: int, noun: str) -> str:
    """A number with its noun, which has an s unless the number is 1: ``1 line``, ``2,000 lines``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def unreadable(place: Path | str, error: OSError, fault: str = "cannot be read") -> str:
    """The sentence for a file that the system does not let be read: place, cause and remedy."""
    return f"{place}: {fault}: {error.strerror or error}; {_TO_READ.get(error.errno or 0, 'give another file, or an undamaged copy')}"


def unwritable(place: Path | str, error: OSError) -> str:
    """The sentence for a file that the system does not let be written: place, cause and remedy."""
    return f"{place}: cannot write: {error.strerror or error}; {_TO_WRITE.get(error.errno or 0, 'make room there, or give another file')}"
