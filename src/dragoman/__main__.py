"""The command ``dragoman``, which ``python -m dragoman`` is as well."""

import sys


def main() -> int:
    """Run the command line and return the exit status; Ctrl-C is one line and no traceback from the first import on."""
    try:
        from dragoman.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("dragoman: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    status = main()
    # An interrupt that went through a text that is run, as those in which named tuples are made, would end Python by SIGINT in spite of the
    # status, if no other text were run after it.
    exec("")
    sys.exit(status)
