"""What the page's modules compute without a model, computed in the browser."""

import struct
from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest

from page_browser import module

pytest.importorskip("starlette", reason="starlette is not installed; pip install 'dragoman[serve]'")


def test_numbers_are_unpacked_to_the_last_bit(modules: Any) -> None:
    numbers = [0.0, -1.5, 3.4028234663852886e38, 1.401298464324817e-45, 0.10000000149011612]
    packed = b64encode(struct.pack("<5f", *numbers)).decode()
    assert module(modules, "api", "return [...m.unpackFloats(a)]", packed) == numbers
    assert module(modules, "api", "return [...m.unpackBytes(a)]", b64encode(bytes(range(256))).decode()) == list(range(256))


def test_events_are_read_whole_however_they_come(modules: Any) -> None:
    text = 'event: start\ndata: {"a": 1}\n\n: still here\n\nevent: step\ndata: {"b": "line\\n"}\n\nevent: do'
    events = module(modules, "api", "return m.eventsIn(a)", text)
    assert events == {"events": [{"event": "start", "data": {"a": 1}}, {"event": "step", "data": {"b": "line\n"}}], "rest": "event: do"}
    body = """let rest = "", events = [];
    for (const letter of a) { const found = m.eventsIn(rest + letter); rest = found.rest; events.push(...found.events); }
    return {events, rest};"""
    assert module(modules, "api", body, text) == events


def test_an_answer_that_breaks_off_is_told_in_words(modules: Any) -> None:
    body = """const whole = fetch, start = (body) => body.error(new TypeError("network error"));
    globalThis.fetch = async () => new Response(new ReadableStream({start}));
    const told = (answer) => answer.then(() => "", (error) => error.message);
    try { return await Promise.all([told(m.getJson("x")), told(m.postJson("x", {})), told(m.stream("x", {}).next())]); }
    finally { globalThis.fetch = whole; }"""
    assert module(modules, "api", body) == ["The connection ended before the answer did; try again."] * 3


def test_what_is_waited_for_is_busy_until_the_last_that_was_asked_for_is_there(modules: Any) -> None:
    body = """
        const place = m.h("div"), ends = [], seen = [], ask = () => m.arrive(place, new Promise((...both) => ends.push(both)));
        const look = () => seen.push([place.ariaBusy, place.innerHTML]);
        const asked = [ask(), ask()];
        look();
        ends[0][0]("the first");
        await asked[0];
        look();
        ends[1][0]("the second");
        await asked[1];
        look();
        asked.push(ask());
        look();
        ends[2][1](new Error("<gone>"));
        await asked[2];
        look();
        return seen;"""
    said = '<p class="error">&lt;gone&gt;</p>'
    assert module(modules, "dom", body) == [
        ["true", ""], ["true", ""], ["false", "the second"], ["true", "the second"], ["false", said],
    ]  # fmt: skip


def test_the_numbers_of_a_table_have_the_decimals_that_the_server_says(modules: Any) -> None:
    table = {
        "caption": "c",
        "header": ["step", "loss", "p", "n"],
        "rows": [[12000, 5.5, 0.25, 1234]],
        "shares": ["p"],
        "digits": {"step": 0, "loss": 2},
    }
    cells = "return [...m.tableOf(a).querySelectorAll('tbody :is(th, td)')].map((cell) => cell.textContent.trim())"
    assert module(modules, "dom", cells, table) == ["12,000", "5.50", "0.2500", "1,234"]


def test_an_address_is_read_and_written(modules: Any) -> None:
    place = module(modules, "main", "return m.placeIn(a)", "#view=paper&layer=3&head=mean&token=4&target=0&step=-1&kind=<b>&text=secret")
    assert place == {"view": "paper", "layer": 3, "head": "mean", "token": 4, "target": None, "kind": None, "step": None}
    assert module(modules, "main", "return m.hashOf(a)", place) == "#view=paper&layer=3&head=mean&token=4"
    assert module(modules, "main", "return m.hashOf(a, 'run')", place) == "#view=run&layer=3&head=mean&token=4"
    assert module(modules, "main", "return m.placeIn(a).view", "#view=secret") == "translate"


@pytest.mark.parametrize(
    ("pieces", "text", "begun"),
    [
        (["Ein", " ro", "tes", " Rad", "</s>"], "Ein rotes Rad", "Ein ro X"),
        (["ein", "ro@@", "tes", "rad", "</s>"], "ein rotes rad", "ein ro@@ X"),  # a prefix is in pieces, as the text of such a model is
        (["ein", "\\xc3", "\\xb6", "rad", "</s>"], "ein ö rad", None),
    ],
)
def test_another_piece_goes_on_from_those_before_it(modules: Any, pieces: list[str], text: str, begun: str | None) -> None:
    piece = " X" if pieces[1].startswith(" ") else "X"
    assert module(modules, "steps", "return m.beginning(a[0], 2, a[1])", [{"target": {"pieces": pieces, "text": text}}, piece]) == begun


def test_every_pair_and_every_model_can_be_chosen() -> None:
    from dragoman.serve.models import Models

    def named(name: str, *pairs: tuple[str, str]) -> Any:
        config = SimpleNamespace(model=SimpleNamespace(architecture="decoder-only"))
        return SimpleNamespace(name=name, place=SimpleNamespace(pairs=pairs), bundle=SimpleNamespace(config=config))

    models = Models([named("first", ("en", "de")), named("second", ("de", "fr"))], others=[named("third")])
    assert models.choices() == [
        {"label": "English → German", "run": "first", "pair": {"source": "en", "target": "de"}},
        {"label": "German → French", "run": "second", "pair": {"source": "de", "target": "fr"}},
        {"label": "English → French, through a third", "run": None, "pair": {"source": "en", "target": "fr"}},
        {"label": "third: decoder-only", "run": "third", "pair": None},
    ]


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (1234567, None, "1,234,567"), (0.123456, None, "0.1235"), (62, 2, "62.00"), (0.00001234, 7, "1.2e-5"), (0, 3, "0.000"),
        (-2.5, None, "-2.5000"), (None, None, "–"),
    ],
)  # fmt: skip
def test_numbers_are_written_for_people(modules: Any, value: float | None, digits: int | None, shown: str) -> None:
    assert module(modules, "dom", "return m.number(a[0], a[1] ?? undefined)", [value, digits]) == shown


@pytest.mark.parametrize(("piece", "shown"), [(" man", "man"), ("ing", "ing"), ("  ", "␣␣"), ("", "␣")])
def test_a_piece_is_shown_without_the_space_before_it(modules: Any, piece: str, shown: str) -> None:
    assert module(modules, "dom", "return m.shown(a)", piece) == shown


@pytest.mark.parametrize(
    ("own", "count", "said"),
    [("1.5", 1, "1.5000 – model: 1.5000, no difference"), ("1.25", 3, "1.2500 – model: 1.5000, difference 3e-1 at most in 3 numbers"),
     ("NaN", 1, "NaN – model: 1.5000, difference NaN")],
)  # fmt: skip
def test_what_is_no_number_is_no_agreement(modules: Any, own: str, count: int, said: str) -> None:
    body = "const browser = Number(a[0]), model = 1.5; "
    body += "return m.checked({what: 'a sum', model, browser, difference: Math.abs(model - browser), count: a[1]}).textContent"
    assert module(modules, "paper", body, [own, count]) == f"a sum: recomputed in your browser: {said}"
