"""Clients of LibreTranslate as people install them, and the requests of those that cannot be installed here, against a server of ours."""

import asyncio
import json
import logging
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import tiny_bundle
from serving import Client, bundle_of, echoing

TEXTS = {
    "unicode": "Żółć 東京 🐟 👩‍🚀",
    "right to left": "שלום עולם",
    "lines": "a\n\n b. c\n",
    "signs": "a & b < c; d=e + f%20 \"g\" 'h'",
    "long": "ona bek tilu. " * 357,
}


def shout(text: str) -> str:
    return text.upper()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tiny_bundle(tmp_path_factory.mktemp("models") / "made"), "en", "de")


@pytest.fixture(scope="module")
def server(pair: Path) -> Iterator[Client]:
    with echoing(pair, change=shout) as client:
        yield client


@pytest.fixture(scope="module")
def locked(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, str]]:
    from dragoman.serve.keys import new_key, write_keys

    path = tmp_path_factory.mktemp("keys") / "keys.json"
    text, key = new_key("client", req_limit=None, char_limit=None)
    write_keys(path, [key])
    with echoing(pair, change=shout, keys=path) as client:
        yield client, text


def test_libretranslatepy(server: Client, locked: tuple[Client, str]) -> None:
    module = pytest.importorskip("libretranslatepy", reason="libretranslatepy is not installed")
    api = module.LibreTranslateAPI(server.address)
    for text in TEXTS.values():
        assert api.translate(text, "en", "de") == shout(text)
    assert api.translate("ona", "auto", "de") == "ONA"
    assert api.languages()[1] == {"code": "en", "name": "English", "targets": ["de"]}
    assert api.detect("ona") == [{"confidence": 0.0, "language": "en"}]
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.translate("ona", "zz", "de")
    assert json.loads(refused.value.read()) == {"error": "zz is not supported"}
    client, key = locked
    assert module.LibreTranslateAPI(client.address, key).translate("ona", "en", "de") == "ONA"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        module.LibreTranslateAPI(client.address, "wrong").translate("ona", "en", "de")


def test_deep_translator(server: Client, locked: tuple[Client, str]) -> None:
    """Everything in the query string of a POST without a body, a key whether it is asked for or not."""
    module = pytest.importorskip("deep_translator", reason="deep-translator is not installed")
    translator = module.LibreTranslator(source="en", target="de", custom_url=f"{server.address}/", api_key="any")
    for text in TEXTS.values():
        assert translator.translate(text) == shout(text)
    assert translator.translate("字" * 4999) == "字" * 4999
    assert translator.translate_batch(["a", "b"]) == ["A", "B"]
    client, key = locked
    assert module.LibreTranslator(source="en", target="de", custom_url=f"{client.address}/", api_key=key).translate("a b") == "A B"
    with pytest.raises(Exception, match=r"(?i)unauthorized|api key"):
        module.LibreTranslator(source="en", target="de", custom_url=f"{client.address}/", api_key="wrong").translate("a b")


def test_translate_from_pypi(server: Client) -> None:
    module = pytest.importorskip("translate", reason="translate is not installed")
    for source in ("en", "autodetect"):
        translator = module.Translator(provider="libre", from_lang=source, to_lang="de", secret_access_key=None, base_url=server.address)
        assert translator.translate("ona bek") == "ONA BEK"
    broken = module.Translator(provider="libre", from_lang="zz", to_lang="de", secret_access_key=None, base_url=server.address)
    with pytest.raises(Exception, match="400"):
        broken.translate("ona")


def test_libretranslate_aio(server: Client, locked: tuple[Client, str], tmp_path: Path) -> None:
    module = pytest.importorskip("libretranslate_aio", reason="libretranslate-aio is not installed")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with module.LibreTranslate(server.address) as api:
        for text in TEXTS.values():
            assert api.translate(text, "en", "de").translated_text == shout(text)
        assert api.translate(["a", "b"], "en", "de", alternatives=2).alternatives == [["A (1)", "A (2)"], ["B (1)", "B (2)"]]
        found = api.translate(["a", "b"], "auto", "de")
        assert (found.translated_text, [each.language for each in found.detected_language]) == (["A", "B"], ["en", "en"])
        assert api.translate("<b>a</b>", "en", "de", format="html").translated_text == "<b>A</b>"
        assert api.frontend_settings().language.source.code == "en"
        assert api.health() is True
        path = tmp_path / "letter.txt"
        path.write_text("ona\nbek\n", encoding="utf-8")
        address = api.translate_file(path, "en", "de").translated_file_url
        assert server.get(address.removeprefix(server.address)).body == b"ONA\nBEK\n"
        with pytest.raises(module.BadRequestError, match="zz is not supported"):
            api.translate("a", "zz", "de")
        with pytest.raises(module.ForbiddenError, match="disabled"):
            api.suggest("a", "b", "en", "de")
    with module.LibreTranslate(locked[0].address) as api, pytest.raises(module.ForbiddenError, match="An API key is required"):
        api.translate("a", "en", "de")

    async def ask() -> Any:
        async with module.AsyncLibreTranslate(locked[0].address, api_key=locked[1]) as api:
            return await asyncio.gather(*(api.translate(str(number), "en", "de") for number in range(8)))

    assert [each.translated_text for each in asyncio.run(ask())] == [str(number) for number in range(8)]


def recorded(server: Client, head: str, body: str) -> Any:
    """The answer to a request as a client sends it, header by header."""
    request, *lines = head.strip().split("\n")
    method, path = request.split(" ")
    headers = dict(line.strip().split(": ", 1) for line in lines)
    return server.ask(method, path, body=body.encode(), headers=headers).json


def test_weblate(server: Client) -> None:
    """Batches of 20 in one list; an answer of another length is thrown away, and languages must list the target at the top."""
    head = """POST /translate
    Content-Type: application/json
    User-Agent: Weblate/5.15
    Accept: */*
    Accept-Encoding: gzip, deflate, br"""
    texts = [f"String {number} with %(count)d" for number in range(19)] + [""]
    answer = recorded(server, head, json.dumps({"api_key": "", "q": texts, "source": "en", "target": "de"}))
    assert answer == {"translatedText": [text.upper() for text in texts]}
    assert {entry["code"] for entry in server.get("/languages", **{"User-Agent": "Weblate/5.15"}).json} == {"de", "en"}


def test_omegat(server: Client) -> None:
    head = """POST /translate
    Content-Type: application/x-www-form-urlencoded
    User-Agent: OmegaT
    Accept: text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"""
    body = "q=The+%3Cf0%3Ered%3C%2Ff0%3E+house&source=en&target=de&api_key="
    assert recorded(server, head, body) == {"translatedText": "THE <F0>RED</F0> HOUSE"}


def test_mastodon(server: Client) -> None:
    """A list with HTML, the source perhaps to be found out; ``targets`` in the languages."""
    head = """POST /translate
    Content-Type: application/json
    User-Agent: Mastodon/4.5.0 (http.rb/5.3.1; +https://social.example/)
    Accept-Encoding: gzip
    Authorization: none"""
    post = '<p>Good <strong>day</strong>, <span class="h-card" translate="no"><a href="https://x.example/@a">@<span>a</span></a></span></p>'
    body = json.dumps({"q": [post, "", "spoiler"], "source": "auto", "target": "de", "format": "html", "api_key": ""})
    answer = recorded(server, head, body)
    assert answer["translatedText"] == [post.replace("Good", "GOOD").replace(">day<", ">DAY<"), "", "SPOILER"]
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en"] * 3
    assert all("targets" in entry for entry in server.get("/languages").json)


def test_the_two_clients_of_npm(server: Client) -> None:
    """One leaves the key out, the other calls it ``apiKey``, and asks for the languages with a JSON header before."""
    head = """POST /translate
    Content-Type: application/json
    accept: */*
    accept-language: *
    sec-fetch-mode: cors
    user-agent: node"""
    assert recorded(server, head, json.dumps({"q": "Hello", "source": "en", "target": "de"})) == {"translatedText": "HELLO"}
    assert server.get("/languages", **{"Content-Type": "application/json"}).json[0]["code"] == "de"
    body = json.dumps({"q": "Hello", "source": "en", "target": "de", "format": "text", "apiKey": "unused"})
    assert recorded(server, head, body) == {"translatedText": "HELLO"}


def test_libretranslates_own_page(server: Client) -> None:
    answer = server.multipart(
        "/translate", {"q": "one", "source": "auto", "target": "de", "format": "text", "alternatives": 3, "api_key": ""}
    )
    assert answer.json["alternatives"] == ["ONE (1)", "ONE (2)", "ONE (3)"]
    assert answer.json["detectedLanguage"]["language"] == "en"
