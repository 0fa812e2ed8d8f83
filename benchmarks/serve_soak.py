"""Whether a server stays as it is for a long time: three jobs of subtitles side by side, clients that go away, streams that are cut.

    python benchmarks/serve_soak.py runs/mine --text test.en --minutes 30 --output result.json

Its memory after a tenth of the time is compared with that at the end, its threads must stay the same, and no request may be left behind.
"""

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from served import Connection, about, finish, resident, sentences_of, server, threads

BASE = {"source": "en", "target": "de"}


def main() -> int:
    """Runs, prints and writes what was found; 1 if memory grew by 5 % or more, or something was left behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="sentences, one a line; plain or compressed")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sentences = sentences_of(options.text, 1000)
    with server(options.model) as (host, port, process):
        facts = asyncio.run(soak(host, port, process, sentences, 60 * options.minutes))
    facts = {
        **about(options),
        **facts,
    }
    finish(facts, options.output)
    return int(facts["memory_growth"] >= 0.05 or facts["threads"][0] != facts["threads"][1] or facts["left_behind"] > 0)


async def soak(host: str, port: int, process: int, sentences: list[str], seconds: float) -> dict[str, Any]:
    """What has changed between the first tenth of the time and its end."""
    began = time.perf_counter()
    counts = {"lists": 0, "cut": 0, "streams_cut": 0}

    def going() -> bool:
        return time.perf_counter() - began < seconds

    async def subtitles(seed: int) -> None:
        choose, connection = random.Random(seed), Connection(host, port)
        while going():
            texts = choose.choices(sentences, k=choose.randint(5, 40))
            status, _, answer = await connection.ask({"q": texts, **BASE})
            if status != 200 or len(answer["translatedText"]) != len(texts):
                sys.exit(f"{status}: {answer}")
            counts["lists"] += 1

    async def fickle(path: str, name: str) -> None:
        choose = random.Random(name)
        while going():
            connection = Connection(host, port)
            task = asyncio.create_task(connection.ask({"q": " ".join(choose.choices(sentences, k=4)), **BASE}, path))
            await asyncio.sleep(choose.random())
            task.cancel()
            connection.close()
            counts[name] += 1

    work = [subtitles(seed) for seed in range(3)] + [fickle("/translate", "cut"), fickle("/api/v1/stream", "streams_cut")]
    tasks = [asyncio.create_task(each) for each in work]
    await asyncio.sleep(seconds / 10)
    before = resident(process), threads(process)
    await asyncio.gather(*tasks)
    after = resident(process), threads(process)
    await asyncio.sleep(5)
    with urllib.request.urlopen(f"http://{host}:{port}/health?verbose=1") as answer:
        health = json.load(answer)
    return {
        "seconds": round(seconds),
        **counts,
        "megabytes": [round(each / 1e6, 1) for each in (before[0], after[0])],
        "memory_growth": round(after[0] / before[0] - 1, 4),
        "threads": [before[1], after[1]],
        "left_behind": health["queue_depth"] + health["inflight"] - 1,
    }


if __name__ == "__main__":
    sys.exit(main())
