"""What a user can mend: one sentence that says the cause, the place and the remedy."""


class DragomanError(Exception):
    """A condition outside the program that stops it (a missing file, a damaged model); exit status 1."""

    exit_status = 1


class UsageError(DragomanError):
    """A wrong setting or argument; exit status 2."""

    exit_status = 2
