"""Many lines through a pipe into a file, and the memory that this takes: ``python many_lines.py FOLDER LINES`` prints it in bytes."""

import os
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

from dragoman.cli.rounds import Done
from dragoman.cli.streams import set_up
from dragoman.cli.whole_files import Job, translate_files
from dragoman.cli.windows import Window


def numbered(window: Window) -> Done:
    return Done("".join(f"{number}\n" for number, _ in enumerate(window.texts, start=window.number)), tokens=len(window.texts))


def faulty(window: Window) -> Done:
    """Every translation went round in a loop, one of its pieces to the longest length, and lacks a term."""
    numbers = range(window.number, window.last + 1)
    missed = [f"line {number}: ona -> nur" for number in numbers]
    return replace(numbered(window), loops=[*numbers], at_limit=[*numbers], terms=2 * len(missed), missed=missed)


def main() -> None:
    """Writes FOLDER/out and FOLDER/links."""
    folder, lines = Path(sys.argv[1]), int(sys.argv[2])
    pipe = folder / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb") as file:
            file.writelines(b"ona bek tilu rem sova kip dal\n" for _ in range(lines))

    threading.Thread(target=write, daemon=True).start()
    tracemalloc.start()
    with set_up():
        translate_files(Job([pipe], folder / "out", folder / "links"), lambda: {}, lambda *_: faulty)
    print(tracemalloc.get_traced_memory()[1])


if __name__ == "__main__":
    main()
