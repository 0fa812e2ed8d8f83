"""What a server adds to a translation: its start and memory, HTTP around a translator that computes nothing, the latency of one client.

    python benchmarks/serve_latency.py runs/mine --text test.en --output result.json

Start: seconds from the command to the first good /health, those of reading the model in a process of its own, and the memory of the
idle server, that part of it which no other process shares, and what Python has taken when it has imported PyTorch and nothing else, beside
the size of the weights. Overhead: requests a second of 16 connections, and their 99th percentile, where texts are turned
round instead of translated; asked by wrk where it is installed, and by two processes of Python, which take more of the machine than the
server does, where it is not. Latency: the median for one client with a sentence of about 20 pieces and a beam of
4, beside that of the same call without HTTP; and the first step of a stream, beside the time until the search has made its first.
"""

import argparse
import asyncio
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from served import Connection, about, finish, resident, sentences_of, server

BASE = {"source": "en", "target": "de"}
PIECES = 20
UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}  # in milliseconds

_WITHOUT = """
import json, sys, time
from dragoman.decoding.translate import Translator

began = time.perf_counter()
translator = Translator.load(sys.argv[1], device="cpu")
print(json.dumps(time.perf_counter() - began), flush=True)
for line in sys.stdin:
    first = []
    began = time.perf_counter()
    translator.translate([line.rstrip("\\n")], beam=4, watch=lambda live, finished: first.append(time.perf_counter()))
    print(json.dumps([time.perf_counter() - began, first[0] - began]), flush=True)
"""
"""Reads a model, and then translates lines: says how long that took, and how long until the first step was done."""


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="sentences, one a line; plain or compressed")
    parser.add_argument("--rounds", type=int, default=50, help="translations of a sentence, each way, by turns")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the measurement of overhead")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sentence = _sentence(options.model, sentences_of(options.text, 200))
    facts = {
        **about(options),
        "start": start(options.model),
        "overhead": overhead(options.model, options.seconds),
        "latency": latency(options.model, sentence, options.rounds),
    }
    finish(facts, options.output)


def _sentence(model: Path, sentences: list[str]) -> str:
    """The one whose pieces are nearest to 20."""
    from dragoman.bundle import load_tokenizers, resolve_model

    tokenizer = load_tokenizers(resolve_model(model))[0]
    return min(sentences, key=lambda each: abs(len(tokenizer.encode(each)) - PIECES))


def start(model: Path) -> dict[str, Any]:
    """Seconds until a server is healthy, and of the model alone; its memory, and the weights' size."""
    from dragoman.bundle import resolve_model

    began = time.perf_counter()
    with server(model) as (host, port, process):
        with urllib.request.urlopen(f"http://{host}:{port}/health") as answer:
            assert answer.status == 200
        seconds = time.perf_counter() - began
        memory, private = resident(process), resident(process, "RssAnon")
    with _without(model) as other:
        assert other.stdout is not None
        alone = json.loads(other.stdout.readline())
    weights = (resolve_model(model) / "model.safetensors").stat().st_size
    return {
        "seconds_to_healthy": round(seconds, 2), "seconds_of_reading_the_model": round(alone, 2),
        "megabytes": round(memory / 1e6, 1), "private_megabytes": round(private / 1e6, 1),
        "megabytes_after_importing_torch": round(_megabytes_of_torch(), 1), "megabytes_of_weights": round(weights / 1e6, 1),
    }  # fmt: skip


def _megabytes_of_torch() -> float:
    command = [sys.executable, "-c", "import torch; print(open('/proc/self/status').read())"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return int(re.findall(r"VmRSS:\s+(\d+)", said)[0]) * 1024 / 1e6


def _without(model: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _WITHOUT, str(model)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def overhead(model: Path, seconds: float) -> dict[str, Any]:
    """Requests a second and the 99th percentile in milliseconds, around a translator that turns texts round."""
    with server(model, "--batch", "64", fake=True) as (host, port, _):
        return _by_wrk(host, port, seconds) if shutil.which("wrk") else _by_python(host, port, seconds)


def _by_wrk(host: str, port: int, seconds: float) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        body = json.dumps({"q": "A man rides a horse.", **BASE})
        script.write(f"wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = '{body}'\n")
        script.flush()
        command = ["wrk", "--threads", "1", "--connections", "16", "--duration", f"{seconds:.0f}s", "--latency", "--script", script.name]
        said = subprocess.run([*command, f"http://{host}:{port}/translate"], stdout=subprocess.PIPE, text=True, check=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        sys.exit(said)
    percentiles = {name: float(value) * UNITS[unit] for name, value, unit in re.findall(r"(\d\d)%\s+([\d.]+)(us|ms|s)", said)}
    return {
        "asked_by": "wrk",
        "requests_a_second": round(float(re.findall(r"Requests/sec:\s+([\d.]+)", said)[0])),
        "p50_milliseconds": percentiles["50"],
        "p99_milliseconds": percentiles["99"],
    }


def _by_python(host: str, port: int, seconds: float) -> dict[str, Any]:
    with ProcessPoolExecutor(2) as pool:
        jobs = [pool.submit(_ask_for, host, port, seconds, 8) for _ in range(2)]
        taken = [each for job in jobs for each in job.result()]
    return {
        "asked_by": "two processes of Python",
        "requests_a_second": round(len(taken) / seconds),
        "p50_milliseconds": round(1000 * statistics.median(taken), 2),
        "p99_milliseconds": round(1000 * statistics.quantiles(taken, n=100)[-1], 2),
    }


def _ask_for(host: str, port: int, seconds: float, clients: int) -> list[float]:
    """What each request of so many connections took."""
    taken: list[float] = []

    async def client() -> None:
        connection, end = Connection(host, port), time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            status, _, _ = await connection.ask({"q": "A man rides a horse.", **BASE})
            if status != 200:
                sys.exit(f"{status}")
            taken.append(time.perf_counter() - began)

    async def all_clients() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    asyncio.run(all_clients())
    return taken


def latency(model: Path, sentence: str, rounds: int) -> dict[str, float]:
    """Medians in milliseconds, with and without a server, taken by turns after one of each that is not counted."""
    served, alone, first_served, first_alone = [], [], [], []
    with server(model, "--no-split-sentences") as (host, port, _), _without(model) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        for number in range(rounds + 1):
            whole, first = asyncio.run(_once(host, port, sentence))
            other.stdin.write(f"{sentence}\n")
            other.stdin.flush()
            whole_alone, step_alone = json.loads(other.stdout.readline())
            if number:
                served.append(whole)
                first_served.append(first)
                alone.append(whole_alone)
                first_alone.append(step_alone)
        other.stdin.close()
    milliseconds = {
        "served": served, "alone": alone, "first_step_served": first_served, "first_step_alone": first_alone,
    }  # fmt: skip
    found = {name: round(1000 * statistics.median(values), 2) for name, values in milliseconds.items()}
    return {**found, "added": round(found["served"] - found["alone"], 2)}


async def _once(host: str, port: int, sentence: str) -> tuple[float, float]:
    """The seconds of a translation, and those until the first step of a stream."""
    connection, body = Connection(host, port), json.dumps({"q": sentence, "beam": 4, **BASE}).encode()
    await connection.ask(None, "/livez")  # the connection is there
    began = time.perf_counter()
    await connection.ask({"q": sentence, "beam": 4, **BASE}, "/api/v1/translate")
    whole = time.perf_counter() - began
    assert connection.streams is not None
    reader, writer = connection.streams
    head = f"POST /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    began = time.perf_counter()
    writer.write(head.encode() + body)
    while not (line := await reader.readline()).startswith(b"event: step"):
        if not line:
            sys.exit("the stream ended without a step")
    first = time.perf_counter() - began
    while not (await reader.readline()).startswith(b"event: done"):
        pass
    connection.close()
    return whole, first


if __name__ == "__main__":
    main()
