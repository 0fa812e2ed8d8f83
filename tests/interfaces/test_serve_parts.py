"""The parts of a server by themselves: turns in the queue, HTML, languages, keys and limits, settings from the environment."""

import asyncio
import gc
import html
import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import tiny_bundle
from dragoman.cli import main
from dragoman.errors import DragomanError, UsageError
from serving import ServeSettings, serving

from dragoman.serve.app import application  # isort: skip  # after serving, which skips where the extra is missing
from dragoman.serve.detect import Profile, detect  # isort: skip
from dragoman.serve.engine import Engine  # isort: skip
from dragoman.serve.html_text import html_document  # isort: skip
from dragoman.serve.keys import Keyring, Turnstile, changing, new_key, read_keys, write_keys  # isort: skip
from dragoman.serve.metrics import Metrics  # isort: skip
from dragoman.serve.models import Models  # isort: skip
from dragoman.serve.queue import FairQueue, Item  # isort: skip
from dragoman.serve.refusals import RefusalError  # isort: skip
from dragoman.serve.segments import assembled, document_of, sentences_of  # isort: skip
from dragoman.serve.service import Service  # isort: skip
from dragoman.serve.settings import from_environment  # isort: skip
from dragoman.serve.store import Store  # isort: skip


def items(name: str, count: int, *, key: Any = "search", gone: bool = False) -> list[Item]:
    return [Item(key, name, 10, lambda _: None, lambda: gone) for _ in range(count)]


def taken(queue: FairQueue, most: int = 8, budget: int = 1000) -> Counter[str]:
    return Counter(item.work for item in queue.take(most, budget))


def test_requests_take_turns_and_a_long_one_has_a_quarter_while_others_wait() -> None:
    queue = FairQueue()
    queue.put("one", 1, items("long", 40))
    for number in range(2, 5):
        queue.put("two", number, items(f"single {number}", 1))
    assert taken(queue) == {"long": 2, "single 2": 1, "single 3": 1, "single 4": 1}
    assert taken(queue) == {"long": 8}
    assert queue.waiting == 30


def test_clients_share_a_batch_whatever_the_number_of_their_requests() -> None:
    queue = FairQueue()
    for number in range(50):
        queue.put("greedy", number, items("greedy", 1))
    queue.put("modest", 100, items("modest", 1))
    assert taken(queue, most=2) == {"greedy": 1, "modest": 1}


def test_only_what_is_searched_alike_goes_together_and_other_work_goes_alone() -> None:
    queue = FairQueue()
    queue.put("a", 1, items("a", 2, key="beam 4"))
    queue.put("b", 2, items("b", 2, key="beam 5"))
    queue.put("c", 3, items("c", 1, key=None))
    queue.put("d", 4, items("d", 1, key="beam 4"))
    assert taken(queue) == {"a": 2, "d": 1}
    assert taken(queue) == {"b": 2}
    assert taken(queue) == {"c": 1}
    assert queue.waiting == 0
    assert not queue.clients


def test_the_queue_says_whether_what_is_next_is_done_alone() -> None:
    queue = FairQueue()
    assert not queue.next_is_alone
    queue.put("a", 1, items("stream", 1, key=None))
    queue.put("b", 2, items("text", 1))
    assert queue.next_is_alone
    assert [item.work for item in queue.take(8, 100)] == ["stream"]
    assert not queue.next_is_alone


def test_what_is_put_off_lets_the_rest_by_and_stays() -> None:
    queue = FairQueue()
    queue.put("a", 1, items("long", 2, key="long"))
    queue.put("b", 2, items("short", 1))
    assert Counter(item.work for item in queue.take(8, 1000, put_off=lambda key: key == "long")) == {"short": 1}
    assert queue.take(8, 1000, put_off=lambda key: key == "long") == []
    assert taken(queue) == {"long": 2}


def test_a_budget_of_tokens_and_at_least_one_text() -> None:
    queue = FairQueue()
    queue.put("a", 1, items("a", 9))
    assert taken(queue, budget=35) == {"a": 3}
    assert taken(queue, budget=1) == {"a": 1}


def test_what_nobody_waits_for_is_left_out() -> None:
    queue = FairQueue()
    queue.put("a", 1, items("gone", 5, gone=True))
    queue.put("a", 2, items("here", 1))
    assert taken(queue) == {"here": 1}
    assert queue.waiting == 0


PIECES = ["<", ">", "a", "Some text. ", "b ", "\n", "&", "&amp;", "&eacute;", "</", "p", "/", "!", "--", "<p class=x>", "</P >", "<code>",
          "</code>", "<pre>", "é", "?", "<script>", "</script>", ";", "<br/>", "<b translate=no>", "</b>", "😀"]  # fmt: skip


def changed(text: str, change: Callable[[str], str]) -> str:
    document = html_document(text, split=True)
    return assembled(document, [change(sentence.text) for sentence in sentences_of(document)])


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=40, deadline=None)
def test_html_that_is_not_changed_is_the_same_to_a_reader(text: str) -> None:
    def plain(text: str) -> str:
        return html.unescape(" ".join(text.split()))

    assert plain(changed(text, str)) == plain(text)


def test_a_line_of_many_sentences_is_cut_without_copying_it_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def seen(before: str) -> bool:
        looked_at.append(len(before))
        return False

    monkeypatch.setattr("dragoman.serve.segments._is_short_form", seen)
    assert len(sentences_of(document_of("Ona bek tilu. " * 1000, split=True))) == 1000
    assert max(looked_at) <= 40


@given(st.text(max_size=80))
@settings(max_examples=40, deadline=None)
def test_text_is_its_sentences_and_what_is_between_them(text: str) -> None:
    document = document_of(text, split=True)
    assert assembled(document, [sentence.text for sentence in sentences_of(document)]) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<p>ona</p><A HREF="x>y" >bek</A >', '<p>ONA</p><A HREF="x>y" >BEK</A >'),
        ("ona &lt; bek &amp; rem", "ONA &lt; BEK &amp; REM"),
        ("<p>one\n   two</p>\n<p> three </p>", "<p>ONE TWO</p>\n<p> THREE </p>"),
        ("<script>if (a<b) x()</script><style>p{}</style>a", "<script>if (a<b) x()</script><style>p{}</style>A"),
        ("a<code>b <i>c</i></code>d<i translate='no'>e<b>f</b></i>g", "A<code>b <i>c</i></code>D<i translate='no'>e<b>f</b></i>G"),
        ('<span class="x notranslate">a</span>b', '<span class="x notranslate">a</span>B'),
        ("<pre>a\n  b</pre>", "<pre>A\n  B</pre>"),
        ("<!-- a --><!DOCTYPE html>b<br/>c", "<!-- a --><!DOCTYPE html>B<br/>C"),
        ("a&nbsp;b &#8211; c", "A&nbsp;B &#8211; C"),
    ],
)
def test_tags_stay_and_text_is_translated(text: str, expected: str) -> None:
    assert changed(text, str.upper) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<b", "A<b"),
        ("a <!-- b", "A <!-- b"),
        ("<p>a</p><a href='b><p>c</p>", "<p>A</p><a href='b><p>c</p>"),
        ("a <", "A &lt;"),
        ("a &b", "A &amp;B"),
        ("a<script>b", "A<script>b"),
    ],
)
def test_markup_that_has_no_end_is_no_text(text: str, expected: str) -> None:
    assert changed(text, str.upper) == expected


@pytest.mark.parametrize(
    "text",
    ["<a " * 20_000, "<a b='" * 10_000, "<code>" + "<a>" * 28_000 + "</b>" * 28_000, "<code>" + "<a>" * 28_000 + "</a>" * 28_000],
    ids=["tags without end", "quotes without end", "ends of nothing", "many inside each other"],
)
def test_broken_html_takes_no_square_of_its_length(text: str) -> None:
    """Of the first, 6,666 took ten seconds, and more of them the square of that."""
    began = time.process_time()
    assert changed(text, str.upper) == text
    assert time.process_time() - began < 10


def test_a_translation_is_never_markup() -> None:
    assert changed("<p>a</p>", lambda _: "<img src=x onerror=y> & <") == "<p>&lt;img src=x onerror=y&gt; &amp; &lt;</p>"


ENGLISH = ["A man rides a horse through the field.", "Two dogs play with the ball in the water.", "The woman is reading a book."] * 4
GERMAN = ["Ein Mann reitet ein Pferd über das Feld.", "Zwei Hunde spielen im Wasser mit dem Ball.", "Die Frau liest ein Buch."] * 4


def test_the_language_of_a_text_among_the_sources() -> None:
    profiles = {"en": Profile.of(ENGLISH), "de": Profile.of(GERMAN)}
    assert [code for code, _ in detect("The dogs ride in the field", profiles, ["de", "en"])] == ["en", "de"]
    found = dict(detect("Der Mann und die Frau", profiles, ["en", "de"]))
    assert found["de"] > 90
    assert sum(found.values()) == pytest.approx(100)
    assert dict(detect("Der Mann und die Frau", profiles, ["en"]))["en"] == pytest.approx(found["en"])
    assert detect("12 😀", profiles, ["en", "de"]) == [("en", 0.0), ("de", 0.0)]
    assert detect("text", {}, ["en"]) == [("en", 0.0)]


def test_keys_are_kept_as_digests_and_seen_as_soon_as_they_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    assert main(["keys", "add", "web", "--keys", str(path), "--req-limit", "120", "--char-limit", "10000"]) == 0
    text = capsys.readouterr().out.strip()
    assert text not in path.read_text("utf-8")
    ring = Keyring(path)
    key = ring.check(text)
    assert key is not None
    assert (key.name, key.req_limit, key.char_limit) == ("web", 120, 10000)
    for wrong, error in (("", "An API key is required"), ("x" + text, "Invalid API key")):
        with pytest.raises(RefusalError, match=error):
            ring.check(wrong)
    assert main(["keys", "add", "more", "--keys", str(path), "--json"]) == 0
    assert ring.check(json.loads(capsys.readouterr().out)["key"]) is not None
    assert main(["keys", "add", "more", "--keys", str(path)]) == 1
    assert main(["keys", "list", "--keys", str(path)]) == 0
    assert capsys.readouterr().out == "web\treq_limit=120\tchar_limit=10000\nmore\n"
    assert main(["keys", "remove", "web", "--keys", str(path)]) == 0
    with pytest.raises(RefusalError, match="Invalid API key"):
        ring.check(text)
    assert path.stat().st_mode & 0o077 == 0
    path.unlink()
    with pytest.raises(RefusalError, match="The keys of this server cannot be read") as refused:
        ring.check(text)
    assert refused.value.status == 503
    assert Keyring(None).check("") is None


def test_keys_that_cannot_be_read_are_told_once_a_minute_and_when_they_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the log would grow with the requests."""
    path, now = tmp_path / "keys.json", 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    ring, told = Keyring(path), []
    for seconds, content in ((0.0, None), (1.0, None), (1.0, "[]"), (1.0, "[]"), (61.0, "[]"), (1.0, "[1]")):
        now += seconds
        if content:
            path.write_text(content)
            os.utime(path, (len(content), len(content)))
        with pytest.raises(RefusalError, match="The keys of this server cannot be read"):
            ring.check("key")
        told.append(len(caplog.records))
    assert told == [1, 1, 2, 2, 3, 4]


def test_a_damaged_file_of_keys_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    digests = (json.dumps({"format": 1, "keys": [{"name": "a", "sha256": digest}]}) for digest in ("1", "A" * 64, "é" * 64))
    for content in ("{", "[]", '{"format": 2, "keys": []}', *digests):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(DragomanError, match="not a file of keys"):
            read_keys(path)
    path.write_text(json.dumps({"format": 1, "keys": [{"name": "a", "sha256": "é" * 64}]}), encoding="utf-8")
    with pytest.raises(DragomanError, match="not a file of keys"):
        read_keys(path)
    write_keys(path, [new_key("a", req_limit=None, char_limit=0)[1]])
    assert [key.char_limit for key in read_keys(path)] == [0]


def test_files_that_come_at_once_are_all_kept_and_none_is_forgotten_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(TemporaryDirectory[str]):
        def __init__(self, **named: Any) -> None:
            super().__init__(**named)
            time.sleep(0.1)

    monkeypatch.setattr("dragoman.serve.store.TemporaryDirectory", Slow)
    monkeypatch.setattr("dragoman.serve.store._MOST", 8)
    store = Store()

    def put(number: int) -> str:
        return store.put(b"%d" % number, name="a.txt", media_type="text/plain")

    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(put, range(8)))
        gc.collect()
        kept = [store.get(number) for number in first]
        assert [each.path.read_bytes() for each in kept if each] == [b"%d" % number for number in range(8)]
        assert len(set(pool.map(put, range(400)))) == 400
    assert store.get(first[0]) is None
    store.close()


def test_files_go_on_when_the_system_has_cleared_its_temporary_ones_away() -> None:
    store = Store()
    first = store.put(b"1", name="a.txt", media_type="text/plain")
    found = store.get(first)
    assert found is not None
    shutil.rmtree(found.path.parent)
    assert store.get(first) is None
    assert store.get(store.put(b"2", name="a.txt", media_type="text/plain")) is not None
    store.close()


def test_work_that_nobody_waits_for_any_more_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    take = FairQueue.take

    def late(self: FairQueue, most: int, budget: int, *, put_off: Callable[[object], bool]) -> list[Item]:
        time.sleep(0.1)  # until what was done before has been delivered
        return take(self, most, budget, put_off=put_off)

    monkeypatch.setattr(FairQueue, "take", late)

    async def main_() -> str:
        engine, go_on = Engine(ServeSettings(queue=1, max_wait=60), Metrics()), threading.Event()
        first = asyncio.create_task(engine.run(lambda check: go_on.wait(20), client="a"))
        await asyncio.sleep(0.3)
        gone = asyncio.create_task(engine.run(lambda check: "gone", client="b"))
        await asyncio.sleep(0)
        last = asyncio.create_task(engine.run(lambda check: "done", client="c"))
        await asyncio.sleep(0.1)
        assert engine.waiting == 1
        gone.cancel()
        go_on.set()
        assert await first
        found = await asyncio.wait_for(last, 5)
        engine.stop()
        engine.join(5)
        return found

    assert asyncio.run(main_()) == "done"


@pytest.mark.parametrize(
    ("batch", "here", "come", "waits"),
    [
        (4, [1], [], 1),
        (4, [1], [1], 2),
        (4, [1], [1] * 9, 3),
        (9, [1], [1] * 9, 5),
        (4, [4], [1], 1),
        (4, [3, 1], [], 0),
        (1, [1], [], 0),
    ],
    ids=["nobody comes", "one comes", "until a batch is full", "five times at most", "one long request", "several fill it", "no room"],
)
def test_a_batch_with_room_waits_while_somebody_comes(
    batch: int, here: list[int], come: list[int], waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, slept = threading.Event(), []

    async def main_() -> None:
        engine = Engine(ServeSettings(batch=batch), Metrics())

        def put(texts: int) -> None:
            number = next(engine._numbers)
            engine._queue.put(str(number), number, [Item("key", None, 1, lambda result: None, over.is_set)] * texts)

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            for texts in come[len(slept) - 1 : len(slept)]:
                put(texts)

        monkeypatch.setattr("dragoman.serve.engine.time", SimpleNamespace(sleep=sleep))
        for texts in here:
            put(texts)
        assert engine._next_batch()
        over.set()
        engine.stop()
        engine.join(5)

    asyncio.run(main_())
    assert slept == [0.001] * waits


def test_what_is_done_alone_waits_for_no_company(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def main_() -> str:
        engine = Engine(ServeSettings(), Metrics())
        monkeypatch.setattr("dragoman.serve.engine.time", SimpleNamespace(sleep=slept.append, perf_counter=time.perf_counter))
        found = await asyncio.wait_for(engine.run(lambda check: "done", client="a"), 5)
        engine.stop()
        engine.join(5)
        return found

    assert asyncio.run(main_()) == "done"
    assert slept == []


def test_the_servers_own_work_has_a_place_and_is_done_where_all_is_computed() -> None:
    """Models are read there: OpenMP would keep a team of threads for a second one that computes, and each step of a search would wait."""

    async def main_() -> tuple[str, str]:
        engine, go_on = Engine(ServeSettings(queue=1, max_wait=0), Metrics()), threading.Event()
        first = asyncio.create_task(engine.run(lambda check: go_on.wait(20), client="a"))
        await asyncio.sleep(0.3)
        second = asyncio.create_task(engine.run(lambda check: "done", client="b"))
        await asyncio.sleep(0)
        assert engine.waiting == 1
        own = asyncio.create_task(engine.run(lambda check: threading.current_thread().name, client=None))
        with pytest.raises(RefusalError, match="busy"):
            await engine.run(lambda check: "refused", client="c")
        go_on.set()
        found = await asyncio.wait_for(asyncio.gather(first, second, own), 5)
        engine.stop()
        engine.join(5)
        return found[1], found[2]

    assert asyncio.run(main_()) == ("done", "dragoman-engine")


def test_models_are_read_in_the_thread_that_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    load = Models.load
    monkeypatch.setattr(Models, "load", lambda *args, **more: threads.append(threading.current_thread().name) or load(*args, **more))
    gc.unfreeze()
    with serving(tiny_bundle(tmp_path / "model"), device="cpu") as client:
        assert client.get("/health").status == 200
        assert gc.get_freeze_count() > 10_000  # what stays is not looked through again
    assert threads == ["dragoman-engine"]


def test_models_that_are_being_read_are_read_once_more_however_often_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests wait while models are read, so a storm of SIGHUP would keep them waiting."""
    model, reads, begun, go_on = tiny_bundle(tmp_path / "model"), [], threading.Event(), threading.Event()
    load = Models.load

    def slow(*args: Any, **more: Any) -> Models:
        reads.append(args)
        begun.set()
        assert go_on.wait(30)
        return load(*args, **more)

    monkeypatch.setattr(Models, "load", slow)

    async def main_() -> None:
        service = Service(ServeSettings(device="cpu"), [model], say=lambda line: None)
        first = asyncio.create_task(service.reload())
        assert await asyncio.to_thread(begun.wait, 30)
        more = [asyncio.create_task(service.reload()) for _ in range(20)]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, *more)
        assert service.ready
        await service.reload()  # and again when it is asked for later
        service.close()

    asyncio.run(main_())
    assert len(reads) == 3


def test_models_that_do_not_fit_beside_the_old_ones_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_bundle(tmp_path / "model")

    def full(*_: Any, **__: Any) -> Models:
        raise RuntimeError("out of memory")

    async def main_() -> bool:
        service = Service(ServeSettings(device="cpu"), [model], say=lambda line: None)
        await service.reload()
        monkeypatch.setattr(Models, "load", full)
        before = service.models
        await service.reload()
        service.close()
        return service.models is before

    assert asyncio.run(main_())
    assert caplog.messages == ["the models stay as they were: RuntimeError: out of memory"]


def test_a_server_that_ends_still_says_how_it_is() -> None:
    async def asked(path: str) -> tuple[int, dict[str, Any]]:
        service = Service(ServeSettings(), [], say=lambda line: None)
        service.ending = True
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", b"localhost")]}
        await application(service)(scope, receive, send)
        service.close()
        return sent[0]["status"], json.loads(sent[1]["body"])

    assert asyncio.run(asked("/livez")) == (200, {"status": "ok"})
    assert asyncio.run(asked("/health")) == (503, {"status": "stopping"})
    assert asyncio.run(asked("/languages")) == (503, {"error": "Server is shutting down"})


@pytest.mark.parametrize("name", ["", "a\tb", "a\nb", "\udcff"])
def test_a_name_that_is_no_line_is_refused_and_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["keys", "add", name, "--keys", str(tmp_path / "keys.json")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "not a name of a key" in err
    assert not list(tmp_path.iterdir())
    assert main(["keys", "add", "a", "--keys", str(tmp_path / "none" / "keys.json")]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_keys_that_are_added_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def add(first: int) -> None:
        for number in range(first, first + 10):
            with changing(path):
                known = read_keys(path) if path.exists() else []
                write_keys(path, [*known, new_key(str(number), req_limit=None, char_limit=None)[1]])

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(key.name) for key in read_keys(path)) == list(range(40))


def test_requests_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    gate = Turnstile()
    for _ in range(3):
        gate.enter("a", 3)
    gate.enter("b", 3)
    gate.enter("a", 0)
    with pytest.raises(RefusalError, match="Slowdown: 3 per 1 minute") as refused:
        gate.enter("a", 3)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "20"})
    now += 20
    gate.enter("a", 3)
    with pytest.raises(RefusalError):
        gate.enter("a", 3)


def test_many_clients_at_once_are_not_gone_through_at_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("dragoman.serve.keys._CLIENTS", 10)
    gate, remade = Turnstile(), 0
    for number in range(1000):
        before = gate._free_at
        gate.enter(f"{number}", 3)
        remade += gate._free_at is not before
    assert (remade, len(gate._free_at)) == (7, 1000)
    now += 60
    for number in range(1000):
        gate.enter(f"later {number}", 3)
    assert "0" not in gate._free_at


def test_libretranslates_environment_is_read() -> None:
    found = from_environment({"LT_CHAR_LIMIT": "100", "LT_BATCH_LIMIT": "-1", "LT_API_KEYS": "true", "LT_PORT": "5001", "OTHER": "x",
                              "LT_SUGGESTIONS": "false", "LT_DISABLE_FILES_TRANSLATION": "true", "LT_REQ_LIMIT": ""})  # fmt: skip
    assert found == {"char_limit": 100, "batch_limit": 0, "keys": Path("keys.json"), "port": 5001, "files": False}
    assert from_environment({"LT_API_KEYS": "/etc/keys.json"}) == {"keys": Path("/etc/keys.json")}
    with pytest.raises(UsageError, match="LT_PORT=five"):
        from_environment({"LT_PORT": "five"})


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"port": 70000}, {"timeout": 0}, {"url_prefix": "mt"}, {"public_url": "x"}, {"beam": 99}])
def test_impossible_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        ServeSettings(**wrong)


def test_a_run_gets_the_trigrams_of_its_training_text_once(tmp_path: Path) -> None:
    from dragoman.data.corpus import Corpus
    from dragoman.data.tokenizer import Tokenizer
    from dragoman.serve.detect import profiles_of
    from small_bundles import make_bundle

    tokenizer = Tokenizer.train([*ENGLISH, *GERMAN], kind="bpe", vocabulary_size=400)
    made = make_bundle(tokenizer, tokenizer)
    bundle = type(made)(made.config.with_values(data={"source": "en", "target": "de"}), made.model, tokenizer, tokenizer)
    pairs = list(zip(ENGLISH, GERMAN, strict=True))
    Corpus.build(
        tmp_path / "corpus" / "train", pairs, source_tokenizer=tokenizer, target_tokenizer=tokenizer, max_length=99, batch_tokens=999
    )
    folder = tmp_path / "checkpoints" / "step-000001"
    counted = profiles_of(folder, bundle)
    assert counted == {"en": Profile.of(ENGLISH), "de": Profile.of(GERMAN)}
    assert profiles_of(folder, bundle) == counted
    (tmp_path / "languages.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DragomanError, match=r"languages\.json: not the languages of a run"):
        profiles_of(folder, bundle)
    assert profiles_of(tmp_path / "elsewhere", bundle) == {}
