"""How soon `dragoman translate` gives its first line, and that its memory does not grow with the file.

    python benchmarks/translate_start.py runs/mine --text test.en --output benchmarks/translate_start.json

Start: seconds from the command until the first line comes, one being there from the beginning; the median of --rounds. Memory: the most
that is resident while files of 10,000, 100,000 and 1,000,000 lines, the text again and again, are translated greedily into a file. After
--seconds a translation is stopped, and how many lines it has written by then stands beside its memory.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from served import about, finish, resident, sentences_of

SIZES = (10_000, 100_000, 1_000_000)
COMMAND = [sys.executable, "-m", "dragoman", "translate"]


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="sentences, one a line; plain or compressed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each translation at most")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = sentences_of(options.text, 1000)
    facts: dict[str, Any] = about(options)
    facts["seconds_to_the_first_line"] = round(statistics.median(first_line(options.model, lines[0]) for _ in range(options.rounds)), 2)
    facts["memory"] = {f"{size:,} lines": memory(options.model, lines, size, options.seconds) for size in SIZES}
    finish(facts, options.output)


def first_line(model: Path, line: str) -> float:
    """Seconds from the command to the first line out, while standard input stays open."""
    began = time.perf_counter()
    with subprocess.Popen([*COMMAND, str(model), "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith("\n")
        return time.perf_counter() - began


def memory(model: Path, lines: list[str], size: int, seconds: float) -> dict[str, float]:
    """Megabytes at most, and the lines written, of so many lines in as many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        text, output = Path(folder) / "text", Path(folder) / "output"
        with text.open("w", encoding="utf-8") as file:
            file.writelines(f"{lines[number % len(lines)]}\n" for number in range(size))
        end, most = time.monotonic() + seconds, 0
        command = [*COMMAND, str(model), str(text), "--beam", "1", "--device", "cpu", "--quiet", "-o", str(output)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                most = max(most, resident(process.pid, "VmHWM"))
                if time.monotonic() > end:
                    process.terminate()
                    process.wait()
                time.sleep(0.05)
        written = output if output.exists() else output.with_name("output.partial")
        with written.open("rb") as file:
            return {"megabytes": round(most / 1e6, 1), "lines": sum(1 for _ in file)}


if __name__ == "__main__":
    main()
