"""Reported faults of servers (B67, B69; B55 over HTTP), and requests that mean no good."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import tiny_bundle
from dragoman.cli.streams import few_of_a_kind
from dragoman.errors import DragomanError
from serving import Answer, Client, bundle_of, echoing, serving

BASE = {"source": "en", "target": "de"}
TOO_SLOW = (
    "Not {} within 0.3 seconds, for much was asked or the server is busy; send less text, ask again later, or start the server "
    "with a larger {}"
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tiny_bundle(tmp_path_factory.mktemp("models") / "made"), "en", "de")


@pytest.fixture(scope="module")
def server(pair: Path) -> Iterator[Client]:
    with echoing(pair, char_limit=100) as client:
        yield client


def exchange(client: Client, data: bytes, *, wait: float = 5) -> bytes:
    """What comes back for these bytes until the server closes, or says no more."""
    with socket.create_connection(client.place, timeout=wait) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except (TimeoutError, ConnectionResetError):
            pass
        return answer


def alive(client: Client) -> None:
    assert client.post("/translate", {"q": "ona", **BASE}).json == {"translatedText": "ona"}


@pytest.mark.parametrize("text", ["x" * 99, "x" * 100, "😀x" * 50])
def test_b67_up_to_the_limit_all_is_translated(server: Client, text: str) -> None:
    assert server.post("/translate", {"q": text, **BASE}).json == {"translatedText": text}


@pytest.mark.parametrize("q", ["x" * 101, "😀" * 101, ["x" * 40] * 3])
def test_b67_beyond_it_the_limit_and_the_size_are_told(server: Client, q: str | list[str]) -> None:
    """A batch counts as one: the characters of all its texts together."""
    answer = server.post("/translate", {"q": q, **BASE})
    size = len(q) if isinstance(q, str) else 120
    assert (answer.status, answer.error) == (400, f"Invalid request: request ({size}) exceeds text limit (100)")
    alive(server)


def test_a_target_may_be_a_whole_address(server: Client) -> None:
    """As clients send it that take the server for a proxy; its host, and not the header's, is the one that was asked for."""
    body = b'{"q": "ona", "source": "en", "target": "de"}'
    head = b"POST %s/translate HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: 44\r\nConnection: close\r\n\r\n"
    for address in (b"http://localhost", b"HTTP://127.0.0.1:5000"):
        answer = exchange(server, head % (address, b"elsewhere.example") + body)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert json.loads(answer.rpartition(b"\r\n\r\n")[2]) == {"translatedText": "ona"}
    assert exchange(server, head % (b"http://elsewhere.example", b"localhost") + body).startswith(b"HTTP/1.1 403 ")
    get = b"GET http://127.0.0.1:5000/openapi.json HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n"
    described = json.loads(exchange(server, get).partition(b"\r\n\r\n")[2])
    assert [each["url"] for each in described["servers"]] == ["http://127.0.0.1:5000"]
    assert exchange(server, b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 302 ")


def test_b67_fifty_megabytes_are_refused_before_they_are_read(server: Client) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50000000\r\n\r\n"
    answer = exchange(server, head + b'{"q": "')
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2]) == {"error": "Request body too large: 50000000 bytes, and the limit is 1000000"}
    alive(server)


def test_b67_a_body_of_unknown_length_is_read_to_the_limit_only(server: Client) -> None:
    sent = 0
    with socket.create_connection(server.place, timeout=10) as connection:
        connection.sendall(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        try:
            for _ in range(800):
                connection.sendall(chunk)
                sent += 65536
        except OSError:
            pass
        try:
            answer = connection.recv(65536)
        except OSError:
            answer = b""
    assert sent < 20_000_000
    assert not answer or answer.startswith(b"HTTP/1.1 413 ")
    alive(server)


def test_b67_a_wrong_content_length_harms_nobody(server: Client) -> None:
    body = json.dumps({"q": "ona", **BASE}).encode()
    head = (
        "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n"
    )
    short = exchange(server, head.format(len(body) - 5).encode() + body)
    assert short.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":"Invalid JSON format"}' in short
    assert exchange(server, head.format(len(body) + 50).encode() + body, wait=0.5) == b""  # it waits for the rest, for its time
    for wrong in ("-1", "x", "1e3"):
        answer = exchange(server, head.format(wrong).encode() + body)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b'{"error":"Invalid HTTP request"}')
    alive(server)


@pytest.mark.parametrize("text", ["ona < bek & rem", "<p>ona</p>", "ona &amp; bek", "%1$s ona", '"q\'q"', "<script>alert(1)</script>"])
def test_b69_plain_text_stays_plain_text(server: Client, text: str) -> None:
    assert server.post("/translate", {"q": text, **BASE}).json == {"translatedText": text}
    assert server.form("/translate", {"q": text, "format": "text", **BASE}).json == {"translatedText": text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>ona</p>", "<p>ona</p>"),
        ("ona &amp; bek", "ona &amp; bek"),
        ("ona < bek & rem", "ona &lt; bek &amp; rem"),
        ("<P Class='a' data-x=\"1>2\"><b>ona</b> <i>bek</i></P >", "<P Class='a' data-x=\"1>2\"><b>ona</b> <i>bek</i></P >"),
        ('"q\'q"', '"q\'q"'),
    ],
)
def test_b69_html_keeps_its_tags_and_stays_what_it_means(server: Client, text: str, expected: str) -> None:
    assert server.post("/translate", {"q": text, "format": "html", **BASE}).json == {"translatedText": expected}


def test_html_that_takes_long_to_read_has_a_limit_of_its_own(pair: Path) -> None:
    broken = "<!" * 100_001
    with echoing(pair, char_limit=0) as client:
        answer = client.post("/translate", {"q": broken, "format": "html", **BASE})
        assert (answer.status, answer.error) == (413, "A text that is HTML may have at most 200000 characters")
        assert client.multipart("/translate_file", {"file": ("a.html", broken.encode()), **BASE}).status == 413
        assert client.post("/translate", {"q": broken, **BASE}).json == {"translatedText": broken}


@pytest.mark.parametrize("text", ["ona </s> bek", "<pad><pad> rem", "[SEP]", "<|endoftext|>", "<s>", "<unk>", ">>de<< ona"])
def test_b55_control_tokens_in_a_request_are_text(pair: Path, text: str, server: Client) -> None:
    assert server.post("/translate", {"q": text, **BASE}).json == {"translatedText": text}


def test_bytes_that_are_no_request(server: Client) -> None:
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / SPDY/3\r\n\r\n", b"\r\n\r\n\0\0\0\r\n\r\n", b"G" * 200_000):
        answer = exchange(server, data, wait=2)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"application/json" in answer
        assert answer.endswith(b'{"error":"Invalid HTTP request"}')
    alive(server)


@pytest.mark.parametrize(
    "document",
    [
        {"q": "\0a\0", **BASE},
        {"q": "a", "source": "en\0", "target": "de"},
        {"q": {"a": 1}, **BASE},
        {"q": [["a"]], **BASE},
        {"q": "a", "source": "en", "target": {"$ne": ""}},
        {"q": "a", "format": ["html"], **BASE},
        {"q": "a", "alternatives": 10**400, **BASE},
        {"q": "\n" * 100, **BASE},
    ],
    ids=range(8),
)
def test_odd_documents_are_answered_in_json(server: Client, document: object) -> None:
    answer = server.post("/translate", document)
    assert answer.status in (200, 400)
    assert answer.json.keys() <= {"translatedText", "error"}


@pytest.mark.parametrize(
    "body",
    [b"", b"--x", b"--x\r\n\r\n\r\n--x--",
     b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n", b"\r\n--x--\r\n", b"--x\r\n" * 3000,
     b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n' + b"\xff" * 50 + b"\r\n--x--\r\n"],
    ids=range(7),
)  # fmt: skip
def test_broken_forms_are_answered_in_json(server: Client, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = server.ask("POST", "/translate", body=body, headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert answer.status == 400
    assert answer.error.startswith("Invalid request: ")
    assert [record for record in caplog.records if not record.name.startswith("dragoman")] == []  # as lines that begin otherwise
    alive(server)


def test_a_head_that_trickles_is_given_up(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.serve.server._HEADER_SECONDS", 0.5)
    monkeypatch.setattr("dragoman.serve.front._BODY_SECONDS", 0.5)
    with echoing(pair) as client:
        slow = [socket.create_connection(client.place, timeout=10) for _ in range(50)]
        for connection in slow:
            connection.sendall(b"POST /translate HTTP/1.1\r\nHost: local")
        alive(client)
        for _ in range(2):
            time.sleep(0.1)
            for connection in slow:
                connection.sendall(b"h")
        assert [connection.recv(100) for connection in slow] == [b""] * 50
        body = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        assert exchange(client, body).startswith(b"HTTP/1.1 408 ")
        alive(client)
        for connection in slow:
            connection.close()


def test_a_body_that_trickles_is_given_up(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.serve.front._BODY_SECONDS", 0.5)
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    with echoing(pair) as client, socket.create_connection(client.place, timeout=0.1) as connection:
        connection.sendall(head)
        answer = b""
        for _ in range(30):
            try:
                connection.sendall(b"{")
                answer = connection.recv(1000)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")
        alive(client)


def test_a_fault_of_the_program_is_an_id_and_no_text(pair: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(text: str) -> str:
        raise ValueError(f"cannot do {text}")

    with echoing(pair, change=fail) as client:
        answer = client.post("/translate", {"q": "secret", **BASE})
    assert answer.status == 500
    assert answer.error.startswith("Internal error (id ")
    assert "secret" not in answer.error + "".join(client.log) + capfd.readouterr().err


def test_a_text_that_cannot_be_harms_no_other_of_its_batch(pair: Path) -> None:
    """Whatever is wrong with it: a sentence of ours, or a fault of the program."""

    def fail(text: str) -> str:
        if text == "broken":
            raise ValueError
        if text == "impossible":
            raise DragomanError("this text cannot be translated")
        return text

    texts = ["ona", "broken", "bek", "impossible", "tilu", "rem"]
    answers: dict[str, Answer] = {}
    with echoing(pair, change=fail) as client:

        def ask(text: str) -> None:
            answers[text] = client.post("/translate", {"q": text, **BASE})

        for _ in range(5):  # until they have come together
            threads = [threading.Thread(target=ask, args=[text]) for text in texts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert [answers[text].status for text in texts] == [200, 500, 200, 400, 200, 200]
        assert answers["impossible"].error == "this text cannot be translated"
        assert answers["bek"].json == {"translatedText": "bek"}


def test_a_file_has_a_time_limit_too(pair: Path) -> None:
    def slow(text: str) -> str:
        time.sleep(0.05)
        return text

    with echoing(pair, change=slow, file_timeout=0.3, batch=1) as client:
        answer = client.multipart("/translate_file", {"file": ("a.txt", b"ona bek.\n" * 400), **BASE})
        assert (answer.status, answer.error) == (503, TOO_SLOW.format("translated", "--file-timeout"))
        assert client.multipart("/translate_file", {"file": ("a.txt", b"ona"), **BASE}).status == 200


def test_every_fault_is_in_the_log_under_its_id(pair: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> str:
        raise ValueError

    with echoing(pair, change=fail) as client, few_of_a_kind():
        ids = [client.post("/translate", {"q": "ona", **BASE}).error.partition("(")[2].rstrip(")") for _ in range(25)]
    assert [each for each in ids if each not in caplog.text] == []


def test_a_client_that_hangs_up_before_its_request_is_whole_is_no_fault_of_the_program(
    pair: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    with echoing(pair) as client:
        with socket.create_connection(client.place, timeout=10) as connection:
            connection.sendall(head + b'{"q": "')
            time.sleep(0.2)
        deadline = time.monotonic() + 10
        while not client.log and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [json.loads(line)["status"] for line in client.log] == [499]
        alive(client)
    assert "internal error" not in caplog.text


def test_a_full_queue_waits_then_says_when_to_come_again_and_recovers(pair: Path) -> None:
    open_ = threading.Event()

    def slow(text: str) -> str:
        open_.wait(20)
        return text

    with echoing(pair, change=slow, queue=2, batch=1, max_wait=0.3) as client:
        answers: list[int] = []

        def ask() -> None:
            answer = client.post("/translate", {"q": "ona", **BASE})
            answers.append(answer.status)
            if answer.status == 503:
                assert answer.headers["retry-after"] == "5"
                assert answer.error == "Server is busy"

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while answers.count(503) < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert client.get("/health?verbose=1").json["queue_depth"] == 2
        open_.set()
        for thread in threads:
            thread.join(20)
        assert sorted(answers) == [200] * 3 + [503] * 5
        alive(client)


def test_a_request_that_takes_too_long_gives_up_its_place(pair: Path) -> None:
    open_ = threading.Event()
    with echoing(pair, change=lambda text: str(open_.wait(20)) if text == "slow" else text, timeout=0.3, batch=1) as client:
        answer = client.post("/translate", {"q": "slow", **BASE})
        assert (answer.status, answer.error) == (503, TOO_SLOW.format("translated", "--timeout"))
        assert answer.headers["retry-after"] == "5"
        stream = client.post("/api/v1/stream", {"q": "slow", **BASE}).body.decode()
        assert json.dumps({"error": TOO_SLOW.format("translated", "--timeout")}) in stream
        answer = client.post("/api/v1/score", {"q": "ona", "translation": "bek", **BASE})
        assert (answer.status, answer.error) == (503, TOO_SLOW.format("scored", "--timeout"))
        open_.set()
        alive(client)


def test_a_client_that_goes_away_leaves_the_queue(pair: Path) -> None:
    open_ = threading.Event()
    with echoing(pair, change=lambda text: str(open_.wait(20)) if text == "slow" else text, batch=1) as client:
        connections = [http.client.HTTPConnection(*client.place, timeout=20) for _ in range(3)]
        for connection, text in zip(connections, ("slow", "gone", "stays"), strict=True):
            connection.request("POST", "/translate", json.dumps({"q": text, **BASE}), {"Content-Type": "application/json"})
            time.sleep(0.2)
        connections[1].close()
        deadline = time.monotonic() + 10
        while not any('"status": 499' in line for line in client.log) and time.monotonic() < deadline:
            time.sleep(0.02)
        open_.set()
        assert json.loads(connections[2].getresponse().read()) == {"translatedText": "stays"}
        assert json.loads(connections[0].getresponse().read()) == {"translatedText": "True"}
        assert client.get("/metrics").body.decode().count("dragoman_batch_size_count 2") == 1
        for connection in connections:
            connection.close()


def test_a_stream_that_nobody_reads_ends_within_two_steps(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's steps wait for each other here, so that they can be counted against the client's leaving."""
    import dragoman.decoding.prepared as prepared

    steps, pace = [], threading.Semaphore(3)
    whole = prepared.PreparedStep.likeliest

    def counted(self: object, *given: object) -> object:
        assert pace.acquire(timeout=20)
        steps.append(1)
        return whole(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(prepared.PreparedStep, "likeliest", counted)
    with serving(pair, device="cpu") as client:
        connection = socket.create_connection(client.place, timeout=20)
        body = json.dumps({"q": "ona bek tilu rem sova kip dal", "no_repeat_ngram": 0, **BASE}).encode()
        head = f"POST /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        seen = b""
        while b'"i": 3' not in seen:
            part = connection.recv(65536)
            assert part, (seen, client.log)
            seen += part
        connection.close()
        deadline = time.monotonic() + 10
        while not any("/api/v1/stream" in line for line in client.log) and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(50):
            pace.release()
        answer = client.post("/translate", {"q": "ona", "source": "en", "target": "en"})
        assert answer.json == {"translatedText": "ona"}
        deadline = time.monotonic() + 5
        while client.get("/health?verbose=1").json["inflight"] > 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
    assert 3 <= len(steps) <= 5
