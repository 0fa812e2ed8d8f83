"""For the other serve_*.py: a server as its own process, and a client that keeps its connection."""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SEED = 1
"""Of all that is chosen at random."""

_FAKE = """
import sys
from dragoman.bundle import load_bundle
from dragoman.cli import main
from dragoman.decoding.translate import Part, Translation
from dragoman.serve.models import Model, Models

class Reverse:
    def __init__(self, bundle):
        self.bundle = bundle

    def translate(self, texts, **others):
        common = {"score": -1.0, "log_probability": -1.0, "token_scores": (-1.0,), "stop": "end"}
        return [Translation(text=text[::-1], tokens=(text,), parts=(Part([1], text, 0),), **common) for text in texts]

def load(cls, places, **others):
    return Models([Model(place, Reverse(load_bundle(place.folder)), {}, {}) for place in places])

Models.load = classmethod(load)
sys.exit(main(sys.argv[1:]))
"""
"""`dragoman` whose translations are their sources backwards."""


def about(options: argparse.Namespace) -> dict[str, Any]:
    """What stands at the head of every result: how it was made, when, and by which random numbers; names of files without their folders."""
    given = [Path(each).name if os.sep in each else each for each in sys.argv[1:]]
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *given])
    return {"command": command, "date": time.strftime("%Y-%m-%d"), "seed": getattr(options, "seed", SEED)}


def finish(facts: Mapping[str, Any], output: Path | None) -> None:
    """Prints what was found, and writes it where that is asked for."""
    text = json.dumps(facts, indent=2)
    print(text)
    if output:
        output.write_text(f"{text}\n", encoding="utf-8")


@contextmanager
def server(model: Path, *options: str, fake: bool = False) -> Iterator[tuple[str, int, int]]:
    """``dragoman serve`` on a free port: host, port and process id. A ``fake`` one computes nothing: it turns texts round."""
    program = ["-c", _FAKE] if fake else ["-m", "dragoman"]
    command = [sys.executable, *program, "serve", str(model), "--port", "0", "--no-access-log", "--device", "cpu", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://([^:]+):(\d+)", process.stderr.readline())
        if found is None:
            sys.exit("the server did not start")
        while "ready: " not in (line := process.stderr.readline()):
            if not line:
                sys.exit("the server ended before it was ready")
        try:
            yield found[1], int(found[2]), process.pid
        finally:
            process.terminate()


class Connection:
    """One client, one request after another."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, document: Mapping[str, Any] | None, path: str = "/translate") -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of the answer to a POST, or without a document to a GET."""
        body = b"" if document is None else json.dumps(document).encode()
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n"
        for attempt in range(2):
            if self.streams is None:
                self.streams = await asyncio.open_connection(self.host, self.port)
            reader, writer = self.streams
            try:
                writer.write(head.encode() + body)
                await writer.drain()
                status = int((await reader.readline()).split()[1])
                headers = {}
                while (line := (await reader.readline()).decode().strip()) != "":
                    name, _, value = line.partition(": ")
                    headers[name.lower()] = value
                answer = json.loads(await reader.readexactly(int(headers["content-length"])))
            except (OSError, IndexError, EOFError):  # an idle connection that the server has closed
                self.close()
                if attempt:
                    raise
                continue
            if headers.get("connection") == "close":
                self.close()
            return status, headers, answer
        raise AssertionError

    def close(self) -> None:
        """Goes away, whatever is under way."""
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


def sentences_of(path: Path, count: int, *, seed: int = SEED) -> list[str]:
    """So many lines of a text file, which may be compressed, chosen at random."""
    from dragoman.data.formats.lines import read_lines

    lines = [line for line in read_lines(path) if line.strip()]
    return random.Random(seed).choices(lines, k=count) if count > len(lines) else random.Random(seed).sample(lines, count)


def offline(model: Path, sentences: Sequence[str], *options: str) -> tuple[list[str], float]:
    """What `dragoman translate` prints, and the seconds that it took beside those for one line."""
    command = [sys.executable, "-m", "dragoman", "translate", str(model), "--quiet", "--device", "cpu", *options]
    seconds, text = [], ""
    for lines in (sentences[:1], sentences):
        began = time.perf_counter()
        text = subprocess.run(command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, check=True).stdout
        seconds.append(time.perf_counter() - began)
    return text.split("\n")[:-1], seconds[1] - seconds[0]


def resident(process: int, kind: str = "VmRSS") -> int:
    """Bytes of memory of a process; of ``RssAnon`` those that are its alone, without the files of programs that are mapped into it."""
    for line in Path(f"/proc/{process}/status").read_text("utf-8").splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    return 0


def threads(process: int) -> int:
    """Threads of a process."""
    return len(os.listdir(f"/proc/{process}/task"))
