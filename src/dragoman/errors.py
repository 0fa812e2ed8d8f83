"""What a user can mend: one sentence that says the cause, the place and the remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_OPTION = re.compile("\0(\\w+)\0")


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
