"""Requests that mean no good, at a server with a real model: each must get an answer of 4xx in JSON, or none, and the server must live.

    python benchmarks/serve_hostile.py runs/mine --output result.json

Heads that trickle, bodies that are never sent whole, a line of a million characters, a hundred thousand lines, NULs, halves of surrogate
pairs, JSON of a hundred thousand brackets, forms that are none, paths that climb, and clients that hang up in the middle.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from served import Connection, about, finish, resident, server

HEAD = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n"
BASE = {"source": "en", "target": "de"}
JSON, FORM, PARTS = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"


def main() -> int:
    """Sends everything, prints and writes what came back; 1 if something was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--slow", type=int, default=200, help="connections whose heads trickle")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with server(options.model) as (host, port, process):
        before = resident(process)
        answers = asyncio.run(all_of(host, port, options.slow))
        after = resident(process)
    wrong = {name: answer for name, answer in answers.items() if answer not in EXPECTED.get(name, ("400",))}
    facts = {**about(options), "answers": answers, "wrong": wrong, "megabytes": [round(each / 1e6, 1) for each in (before, after)]}
    finish(facts, options.output)
    return int(bool(wrong))


def requests() -> dict[str, tuple[str, str, bytes]]:
    """Path, type and body of each whole request, by name."""

    def document(**fields: Any) -> bytes:
        return json.dumps({**BASE, **fields}).encode()

    deep = b"[" * 100_000
    return {
        "a line of a million characters": ("/translate", JSON, document(q="a" * 990_000)),
        "a hundred thousand lines": ("/translate", JSON, document(q="a\n" * 100_000)),
        "a list of two thousand": ("/translate", JSON, document(q=["a"] * 2000)),
        "more than a megabyte": ("/translate", JSON, document(q="a" * 1_100_000)),
        "NULs in a text": ("/translate", JSON, document(q="\0a\0")),
        "NULs in a language": ("/translate", JSON, document(q="a", target="de\0")),
        "half a surrogate pair": ("/translate", JSON, b'{"q": "\\ud800", "source": "en", "target": "de"}'),
        "deep JSON": ("/translate", JSON, deep),
        "deep JSON in a field": ("/api/v1/translate", JSON, b'{"q": ' + deep),
        "a number of four hundred digits": ("/translate", JSON, document(q="a", alternatives=10**400)),
        "a form that is no UTF-8": ("/translate", FORM, b"q=%ff&source=en&target=de"),
        "three thousand fields": ("/translate", FORM, b"a=1&" * 3000),
        "parts without a boundary": ("/translate", PARTS, b"nothing"),
        "parts without a name": ("/translate", PARTS, b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n"),
        "a file called ../../x.txt": (
            "/translate_file?source=en&target=de", PARTS,
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="../../x.txt"\r\n\r\na\r\n--x--\r\n',
        ),
        "completions of no model": ("/v1/completions", JSON, document(prompt="a", model="../../x")),
    }  # fmt: skip


EXPECTED = {
    "NULs in a text": ("200",),
    "more than a megabyte": ("413",),
    "a file called ../../x.txt": ("200",),
    "completions of no model": ("404",),
    "a path that climbs": ("404",),
    "a path that climbs in disguise": ("404",),
    "heads that trickle": ("closed",),
    "a body that never comes": ("408", "closed"),
    "a client that hangs up": ("closed",),
}


async def all_of(host: str, port: int, slow: int) -> dict[str, str]:
    """The status of each, while so many heads trickle; after each the server must translate."""
    found: dict[str, str] = {}
    trickling = asyncio.create_task(_trickle(host, port, slow))
    waiting = asyncio.create_task(_exchange(host, port, HEAD.format("/translate", JSON, 100).encode() + b"{", seconds=90))
    for name, (path, kind, body) in requests().items():
        found[name] = await _exchange(host, port, HEAD.format(path, kind, len(body)).encode() + body)
        await _alive(host, port)
    for name, path in (
        ("a path that climbs", "/download_file/../../etc/passwd"),
        ("a path that climbs in disguise", "/download_file/%2e%2e%2fx"),
    ):
        found[name] = await _exchange(host, port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    found["bytes that are no HTTP"] = await _exchange(host, port, b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
    for _ in range(100):
        body = json.dumps({"q": "A man rides a horse.", **BASE}).encode()
        _, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD.format("/api/v1/stream", JSON, len(body)).encode() + body)
        await writer.drain()
        writer.close()
    found["a client that hangs up"] = "closed"
    found["heads that trickle"] = await trickling
    found["a body that never comes"] = await waiting
    await _alive(host, port)
    return found


async def _exchange(host: str, port: int, data: bytes, *, seconds: float = 60.0) -> str:
    """The status of an answer in JSON; ``closed`` without one, and what is wrong with any other."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        async with asyncio.timeout(seconds):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            json.loads(await reader.readexactly(length))
        return head.split()[1]
    except (asyncio.IncompleteReadError, ConnectionError):
        return "closed"
    except TimeoutError:
        return "no answer"
    except ValueError as error:
        return f"not JSON: {error}"
    finally:
        writer.close()


async def _trickle(host: str, port: int, count: int) -> str:
    """``closed`` if the server gives all of them up."""
    connections = [await asyncio.open_connection(host, port) for _ in range(count)]
    end = time.perf_counter() + 60
    left = list(connections)
    for _, writer in left:
        writer.write(b"POST /translate HTTP/1.1\r\nHost: local")
    while left and time.perf_counter() < end:
        await asyncio.sleep(1.0)
        left = [(reader, writer) for reader, writer in left if not reader.at_eof() and not writer.is_closing()]
        for reader, writer in left:
            try:
                writer.write(b"h")
                async with asyncio.timeout(0.001):
                    await reader.read(100)
            except (TimeoutError, ConnectionError):
                continue
    for _, writer in connections:
        writer.close()
    return "closed" if not left else f"{len(left)} still open"


async def _alive(host: str, port: int) -> None:
    connection = Connection(host, port)
    status, _, answer = await connection.ask({"q": "A dog runs.", **BASE})
    connection.close()
    if status != 200:
        sys.exit(f"the server is not itself any more: {status} {answer}")


if __name__ == "__main__":
    sys.exit(main())
