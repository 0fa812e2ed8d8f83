"""How a server carries load: throughput beside the command line's, fairness, overload.

    python benchmarks/serve_load.py runs/mine --text test.en --output result.json

Ratios are of measurements taken by turns on one machine, --rounds times; the medians count. Throughput: 16 clients with single sentences,
beside `translate` of the same file without its start, beside the same server with --batch 1, and beside two servers of one thread each,
eight clients at each; and how fast 16 sentences at a time are without any server, beside all at once: no server with 16 clients can be much
faster than that. Fairness: the 95th percentile of eight clients with single sentences while another sends lists of 64, beside theirs alone.
Overload: four times as many clients as fill the queue for --seconds; every answer must be 200, or 503 with Retry-After, the texts that wait
no more than the queue has places (64), and the server itself again within five seconds. `serve_latency.py` measures the start, the overhead
of HTTP, and latency.
"""

import argparse
import asyncio
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from served import Connection, about, finish, offline, sentences_of, server

BASE = {"source": "en", "target": "de"}


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="sentences, one a line; plain or compressed")
    parser.add_argument("--sentences", type=int, default=400, help="of a measurement of throughput")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--skip", nargs="*", default=[], choices=["throughput", "fairness", "overload"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sentences = sentences_of(options.text, options.sentences)
    facts: dict[str, Any] = about(options)
    if "throughput" not in options.skip:
        facts["throughput"] = throughput(options.model, sentences, options.rounds)
    if "fairness" not in options.skip:
        facts["fairness"] = fairness(options.model, sentences, options.rounds)
    if "overload" not in options.skip:
        facts["overload"] = overload(options.model, sentences, options.seconds)
    finish(facts, options.output)


def throughput(model: Path, sentences: list[str], rounds: int) -> dict[str, float]:
    """The ratios of sentences a second: served to offline and to served one by one, two servers to one, 16 at a time to all at once."""
    ratios: dict[str, list[float]] = {}
    with ExitStack() as stack:
        one, single, *two = (
            stack.enter_context(server(model, "--no-split-sentences", *more))[:2]
            for more in ([], ["--batch", "1"], ["--threads", "1"], ["--threads", "1"])
        )
        for _ in range(rounds):
            served, each, shared = (asyncio.run(seconds_of(places, sentences, 16)) for places in ([one], [single], two))
            whole, parts = offline(model, sentences)[1], in_parts(model, sentences, 16)
            for name, ratio in (
                ("to_offline", whole / served), ("to_batch_1", each / served), ("two_servers_to_one", served / shared),
                ("16_at_a_time_to_all_at_once", parts),
            ):  # fmt: skip
                ratios.setdefault(name, []).append(ratio)
    return {name: round(statistics.median(values), 2) for name, values in ratios.items()}


def in_parts(model: Path, sentences: list[str], size: int) -> float:
    """How fast so many sentences at a time are translated, in this process, to how fast all at once are."""
    from dragoman.decoding.translate import Translator

    translator = Translator.load(model, device="cpu")
    translator.translate(sentences)
    began = time.perf_counter()
    translator.translate(sentences)
    between = time.perf_counter()
    for start in range(0, len(sentences), size):
        translator.translate(sentences[start : start + size])
    return (between - began) / (time.perf_counter() - between)


async def seconds_of(places: list[tuple[str, int]], sentences: list[str], clients: int) -> float:
    """The time in which so many clients, which take turns at the servers, have all sentences translated, one by one."""
    left = list(sentences)

    async def client(place: tuple[str, int]) -> None:
        connection = Connection(*place)
        while left:
            status, _, answer = await connection.ask({"q": left.pop(), **BASE})
            if status != 200:
                sys.exit(f"{status}: {answer}")

    began = time.perf_counter()
    await asyncio.gather(*(client(places[number % len(places)]) for number in range(clients)))
    return time.perf_counter() - began


def fairness(model: Path, sentences: list[str], rounds: int) -> dict[str, float]:
    """How much longer single sentences take while somebody sends long lists."""
    ratios = []
    with server(model, "--no-split-sentences", "--char-limit", "0") as (host, port, _):
        for _ in range(rounds):
            alone = asyncio.run(_percentile(host, port, sentences, lists=0))
            beside = asyncio.run(_percentile(host, port, sentences, lists=1))
            ratios.append(beside / alone)
    return {"p95_beside_lists_to_alone": round(statistics.median(ratios), 2)}


async def _percentile(host: str, port: int, sentences: list[str], *, lists: int) -> float:
    seconds: list[float] = []
    left = sentences[: max(len(sentences) // 2, 40)]

    async def single() -> None:
        connection = Connection(host, port)
        while left:
            began = time.perf_counter()
            await connection.ask({"q": left.pop(), **BASE})
            seconds.append(time.perf_counter() - began)

    async def long() -> None:
        connection = Connection(host, port)
        while left:
            await connection.ask({"q": (sentences * 64)[:64], **BASE})

    tasks = [asyncio.create_task(long()) for _ in range(lists)]
    await asyncio.gather(*(single() for _ in range(8)))
    for task in tasks:
        task.cancel()
    return statistics.quantiles(seconds, n=20)[-1]


def overload(model: Path, sentences: list[str], seconds: float) -> dict[str, Any]:
    """What is answered when four times as much is asked as there is room for."""
    queue = 64
    with server(model, "--no-split-sentences", "--queue", str(queue), "--max-wait", "1") as (host, port, _):
        return asyncio.run(_overload(host, port, sentences, seconds, clients=4 * (queue + 32)))


async def _overload(host: str, port: int, sentences: list[str], seconds: float, *, clients: int) -> dict[str, Any]:
    end = time.perf_counter() + seconds
    statuses: dict[str, int] = {}
    usual = await _one(host, port, sentences)

    async def client(number: int) -> None:
        connection = Connection(host, port)
        while time.perf_counter() < end:
            status, headers, _ = await connection.ask({"q": sentences[number % len(sentences)], **BASE})
            name = str(status) if status == 200 or "retry-after" in headers else f"{status} without Retry-After"
            statuses[name] = statuses.get(name, 0) + 1

    async def watch() -> int:
        """The most texts that waited."""
        connection, most = Connection(host, port), 0
        while time.perf_counter() < end:
            _, _, health = await connection.ask(None, "/health?verbose=1")
            most = max(most, health["queue_depth"])
            await asyncio.sleep(0.05)
        return most

    most, *_ = await asyncio.gather(watch(), *(client(number) for number in range(clients)))
    began = time.perf_counter()
    while await _one(host, port, sentences) > 2 * usual and time.perf_counter() - began < 60:
        pass
    return {
        "clients": clients,
        "answers": statuses,
        "most_waiting": most,
        "seconds_to_be_itself_again": round(time.perf_counter() - began, 2),
    }


async def _one(host: str, port: int, sentences: list[str]) -> float:
    connection, seconds = Connection(host, port), []
    for sentence in sentences[:5]:
        began = time.perf_counter()
        await connection.ask({"q": sentence, **BASE})
        seconds.append(time.perf_counter() - began)
    connection.close()
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
