"""Whether a server answers, byte for byte, what the command line prints, for many sentences from many clients at once.

    python benchmarks/serve_equality.py runs/mine --text test.en --count 1000 --clients 16 --output result.json

Clients send single sentences and lists of up to eight at random, so that batches of every mix come about. The server gets
--no-split-sentences, as the command line does not split lines. Sentences whose best output goes round in a loop are counted apart: there a
server gives the best that does not.
"""

import argparse
import asyncio
import random
import sys
from pathlib import Path

from served import SEED, Connection, about, finish, offline, sentences_of, server


def main() -> int:
    """Compares, prints, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="sentences, one a line; plain or compressed")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sentences = sentences_of(options.text, options.count)
    expected, _ = offline(options.model, sentences)
    with server(options.model, "--no-split-sentences", "--timeout", "3600") as (host, port, _):
        found, loops = asyncio.run(ask_all(host, port, sentences, options.clients))
    other = [place for place, (one, two) in enumerate(zip(expected, found, strict=True)) if one != two and place not in loops]
    facts = {
        **about(options),
        "sentences": len(sentences),
        "clients": options.clients,
        "equal": sum(one == two for one, two in zip(expected, found, strict=True)),
        "loops": len(loops),
        "different": len(other),
    }
    for place in other[:5]:
        print(f"{sentences[place]!r}\n  {expected[place]!r}\n  {found[place]!r}", file=sys.stderr)
    finish(facts, options.output)
    return int(bool(other))


async def ask_all(host: str, port: int, sentences: list[str], clients: int) -> tuple[list[str], set[int]]:
    """The translations, and the places of those requests in which one went round in a loop."""
    choose = random.Random(SEED)
    jobs, start = [], 0
    while start < len(sentences):
        size = choose.choice([1, 1, 1, 2, 5, 8])
        jobs.append(range(start, min(start + size, len(sentences))))
        start += size
    choose.shuffle(jobs)
    found, loops = [""] * len(sentences), set()

    async def client() -> None:
        connection = Connection(host, port)
        while jobs:
            places = jobs.pop()
            texts = [sentences[place] for place in places]
            status, headers, answer = await connection.ask({"q": texts, "source": "en", "target": "de"})
            if status != 200:
                sys.exit(f"{status}: {answer}")
            for place, text in zip(places, answer["translatedText"], strict=True):
                found[place] = text
            if "repetition" in headers.get("x-warnings", ""):
                loops.update(places)

    await asyncio.gather(*(client() for _ in range(clients)))
    return found, loops


if __name__ == "__main__":
    sys.exit(main())
