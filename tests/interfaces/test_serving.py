"""``dragoman serve`` as LibreTranslate's clients see it: encodings, lines, languages, limits, and every error in one form."""

import gzip
import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import tiny_bundle
from dragoman.decoding.alignment import Alignment
from dragoman.serve import server as server_life
from serving import Client, bundle_of, echoing

BASE = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("models") / "made")


@pytest.fixture(scope="module")
def pair(made: Path) -> Path:
    return bundle_of(made, "en", "de")


@pytest.fixture(scope="module")
def server(pair: Path) -> Iterator[Client]:
    with echoing(pair) as client:
        yield client


@pytest.fixture(scope="module")
def many(made: Path) -> Iterator[Client]:
    """en to de and back, de to pt-BR; so en to pt-BR goes through de."""
    models = [bundle_of(made, *languages) for languages in (("en_GB", "de-DE"), ("de-DE", "en_GB"), ("de-DE", "pt_BR"))]
    with echoing(*models, change=lambda text: f"{text}'") as client:
        yield client


def test_one_text_or_a_list_in_every_encoding(server: Client) -> None:
    one, two = {"q": "ona", **BASE}, {"q": ["ona", "bek"], **BASE}
    assert server.post("/translate", one).json == {"translatedText": "ona"}
    assert server.post("/translate", two).json == {"translatedText": ["ona", "bek"]}
    assert server.form("/translate", one).json == {"translatedText": "ona"}
    assert server.form("/translate", two).json == {"translatedText": ["ona", "bek"]}
    assert server.multipart("/translate", one).json == {"translatedText": "ona"}
    assert server.ask("POST", "/translate?q=ona&source=en&target=de").json == {"translatedText": "ona"}
    assert server.post("/translate?q=query&source=en", {"q": "body", "target": "de"}).json == {"translatedText": "body"}
    assert server.post("/translate/", one).json == {"translatedText": "ona"}
    assert server.post("/translate", {**one, "api_key": "", "apiKey": 7, "unknown": [1]}).json == {"translatedText": "ona"}
    assert server.post("/translate", {"q": [], **BASE}).json == {"translatedText": []}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ona",
        "\n\n  ona bek.  \n\n",
        "ona. Bek?  Tilu!",
        "😀",
        "a\n😀\n\tb ",
        "\u2028x\u0085y",
        "שלום עולם",
        "我们走。你好！",
        "%1$s <b>",
    ],
)
def test_what_is_between_the_sentences_comes_back(server: Client, text: str) -> None:
    assert server.post("/translate", {"q": text, **BASE}).json == {"translatedText": text}
    assert server.form("/translate", {"q": text.replace("\n", "\r\n"), **BASE}).json == {"translatedText": text}


def test_a_line_goes_to_the_model_in_sentences_and_signs_do_not(pair: Path) -> None:
    with echoing(pair, change=lambda text: f"[{text}]") as client:
        text = "Mr. A rides. He falls!\n😀 …\n\nOn 3. May it ends."
        assert (
            client.post("/translate", {"q": text, **BASE}).json["translatedText"]
            == "[Mr. A rides.] [He falls!]\n😀 …\n\n[On 3. May it ends.]"
        )
    with echoing(pair, change=lambda text: f"[{text}]", split_sentences=False) as client:
        assert client.post("/translate", {"q": "One. Two.", **BASE}).json["translatedText"] == "[One. Two.]"


def test_alternatives(server: Client) -> None:
    asked = {"q": "ona bek", **BASE}
    assert server.post("/translate", {**asked, "alternatives": 2}).json["alternatives"] == ["ona bek (1)", "ona bek (2)"]
    assert server.form("/translate", {**asked, "alternatives": "2"}).json["alternatives"] == ["ona bek (1)", "ona bek (2)"]
    assert server.post("/translate", {**asked, "q": ["a", "b"], "alternatives": 1}).json["alternatives"] == [["a (1)"], ["b (1)"]]
    assert "alternatives" not in server.post("/translate", {**asked, "alternatives": 0}).json
    assert "alternatives" not in server.post("/translate", {**asked, "alternatives": None}).json
    assert server.post("/translate", {**asked, "alternatives": 2, "format": "html"}).json["alternatives"] == []
    assert server.post("/translate", {**asked, "alternatives": 11}).error == "Invalid request: alternatives parameter must be <= 10"
    for wrong in ("many", 2.5, True, [1], "1e1"):
        answer = server.post("/translate", {**asked, "alternatives": wrong})
        assert (answer.status, answer.error) == (400, "Invalid request: alternatives parameter is not a number")


@pytest.mark.parametrize(
    ("document", "status", "error"),
    [
        ({"source": "en", "target": "de"}, 400, "Invalid request: missing q parameter"),
        ({"q": "a", "target": "de"}, 400, "Invalid request: missing source parameter"),
        ({"q": "a", "source": "en"}, 400, "Invalid request: missing target parameter"),
        (b"{", 400, "Invalid JSON format"),
        (b"[1]", 400, "Invalid JSON format"),
        (b"\xff\xfe\x00", 400, "Invalid JSON format"),
        (b"[" * 100_000, 400, "Invalid JSON format"),
        (b'{"q": NaN}', 400, "Invalid JSON format"),
        ({"q": "a", "source": "zz", "target": "de"}, 400, "zz is not supported"),
        ({"q": "a", "source": "en", "target": "auto"}, 400, "auto is not supported"),
        ({"q": "a", "source": "de", "target": "en"}, 400, "English (en) is not available as a target language from German (de)"),
        ({"q": "x" * 5001, **BASE}, 400, "Invalid request: request (5001) exceeds text limit (5000)"),
        ({"q": ["x" * 2501] * 2, **BASE}, 400, "Invalid request: request (5002) exceeds text limit (5000)"),
        ({"q": ["x"] * 65, **BASE}, 400, "Invalid request: request (65 texts) exceeds batch limit (64)"),
        ({"q": "a", "format": "xml", **BASE}, 400, "xml format is not supported"),
        ({"q": 3, **BASE}, 400, "Invalid request: q must be a string or a list of strings"),
        ({"q": ["a", None], **BASE}, 400, "Invalid request: q must be a string or a list of strings"),
        ({"q": "a", "source": ["en"], "target": "de"}, 400, "Invalid request: source must be a string"),
        ({"q": "a", "api_key": 3, **BASE}, 400, "Invalid request: api_key must be a string"),
        ({"q": "\ud800", **BASE}, 400, "Invalid request: q holds half a surrogate pair, which is not text"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_wrong_request_is_a_sentence(server: Client, document: object, status: int, error: str) -> None:
    answer = server.post("/translate", document)
    assert (answer.status, answer.error) == (status, error)


def test_every_other_error_is_json_too(server: Client) -> None:
    assert server.get("/nonesuch").error == "Not found"
    answer = server.ask("PUT", "/translate")
    assert (answer.status, answer.error, answer.headers["allow"]) == (405, "Method not allowed", "POST")
    answer = server.post("/translate", b"<q/>", **{"Content-Type": "text/xml"})
    assert (answer.status, answer.error) == (415, "Content-Type must be application/json or a form")
    assert server.form("/translate", b"").error == "Invalid request: missing q parameter"
    answer = server.ask("POST", "/translate", body=b"q=%ff", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert (answer.status, answer.error) == (400, "Invalid request: the form is not UTF-8")
    answer = server.ask("POST", "/translate", body=b"nothing", headers={"Content-Type": "multipart/form-data"})
    assert (answer.status, answer.error) == (
        400,
        "Invalid request: the multipart form cannot be read; it may have one file and 2,000 fields",
    )
    assert server.post("/suggest", {"q": "a", "s": "b", **BASE}).error == "Suggestions are disabled on this server."


def test_languages_lists_both_sides_and_takes_any_method_and_body(server: Client, many: Client) -> None:
    expected = [{"code": "de", "name": "German", "targets": []}, {"code": "en", "name": "English", "targets": ["de"]}]
    assert server.get("/languages").json == expected
    assert server.form("/languages", {"api_key": "x"}).json == expected
    odd = server.ask("GET", "/languages", body=b"a=b", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert odd.json == expected
    assert {each["code"]: each["targets"] for each in many.get("/languages").json} == {
        "de-de": ["en-gb", "pt-br"],
        "en-gb": ["de-de", "pt-br"],
        "pt-br": [],
    }


def test_codes_in_any_spelling_and_a_way_through_a_third_language(many: Client) -> None:
    assert many.post("/translate", {"q": "a", "source": "EN_gb", "target": "de-DE"}).json == {"translatedText": "a'"}
    assert many.post("/translate", {"q": "a", "source": "en-GB", "target": "pt_BR"}).json == {"translatedText": "a''"}
    (found,) = many.post("/api/v1/translate", {"q": "a", "source": "en-gb", "target": "pt-br"}).json["translations"]
    assert found["models"] == ["en_GB-de-DE", "de-DE-pt_BR"]
    assert (found["sentences"][0]["between"], found["text"]) == ("a'", "a''")
    wrong = many.post("/translate", {"q": "a", "source": "pt-br", "target": "en-gb"})
    assert wrong.error == "en-gb (en-gb) is not available as a target language from Portuguese (Brazil) (pt-br)"


def test_the_same_language_comes_back_unchanged(server: Client, many: Client) -> None:
    for code in ("en", "de"):
        assert server.post("/translate", {"q": "a. B", "source": code, "target": code}).json == {"translatedText": "a. B"}
    assert many.post("/translate", {"q": ["a"], "source": "pt-br", "target": "pt-br"}).json == {"translatedText": ["a"]}


def test_auto_says_what_it_found(server: Client) -> None:
    detected = {"confidence": 0.0, "language": "en"}
    assert server.post("/translate", {"q": "ona", "source": "auto", "target": "de"}).json == {
        "translatedText": "ona",
        "detectedLanguage": detected,
    }
    answer = server.post("/translate", {"q": ["a", "b"], "source": "auto", "target": "de"}).json
    assert answer["detectedLanguage"] == [detected, detected]
    assert server.form("/detect", {"q": "ona"}).json == [detected]
    assert server.post("/detect", {"q": ["a", "b"]}).json == [[detected], [detected]]


def test_the_settings_that_clients_index(server: Client) -> None:
    found = server.get("/frontend/settings").json
    assert found == {
        "apiKeys": False, "charLimit": 5000, "filesTranslation": True, "frontendTimeout": 500, "keyRequired": False,
        "language": {"source": {"code": "en", "name": "English"}, "target": {"code": "de", "name": "German"}},
        "suggestions": False, "supportedFilesFormat": [".txt", ".html", ".htm"],
    }  # fmt: skip


def test_a_file_is_translated_and_fetched_under_its_own_name(server: Client) -> None:
    content = "\ufeffona. Bek.\r\n\r\n😀\nkip".encode()
    answer = server.multipart("/translate_file", {"file": ("a/../brief für.txt", content), **BASE}).json
    address = answer["translatedFileUrl"]
    assert address.startswith(f"{server.address}/download_file/")
    fetched = server.get(address.removeprefix(server.address))
    assert fetched.body.decode() == "ona. Bek.\r\n\r\n😀\nkip"
    assert fetched.headers["content-disposition"] == 'attachment; filename="brief_f_r_de.txt"'
    for path in ("0" * 32, "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00"):
        assert server.get(f"/download_file/{path}").status == 404
    wrong = [
        ({**BASE}, "Invalid request: missing file parameter"),
        ({"file": ("a.pdf", b"x"), **BASE}, "Invalid request: file format not supported; it is one of .txt, .html, .htm"),
        ({"file": ("a.txt", b"\xff"), **BASE}, "Invalid request: the file is not UTF-8"),
    ]
    for fields, error in wrong:
        assert server.multipart("/translate_file", fields).error == error
    html = server.multipart("/translate_file", {"file": ("a.html", b"<p>ona &amp; b</p>"), **BASE}).json["translatedFileUrl"]
    assert server.get(html.removeprefix(server.address)).body == b"<p>ona &amp; b</p>"


def test_only_pages_of_libretranslate_routes_may_come_from_elsewhere(server: Client) -> None:
    for path in ("/translate", "/detect", "/languages", "/frontend/settings", "/translate_file"):
        answer = server.ask("OPTIONS", path, headers={"Origin": "http://x.example", "Access-Control-Request-Method": "POST"})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-origin" not in server.get("/api/v1/models").headers
    assert server.ask("OPTIONS", "/api/v1/translate").status == 405


def test_a_form_of_a_page_from_elsewhere_reaches_no_other_route(pair: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.tsv"
    with echoing(pair, suggestions=kept) as client:
        for origin in ("http://x.example", "null", "https://[::2]:1"):
            answer = client.form("/suggest", {"q": "a man", "s": "spam", **BASE}, Origin=origin)
            assert (answer.status, answer.error) == (403, "This route is not for pages of other origins")
            assert client.form("/api/v1/translate", {"q": "ona", **BASE}, Origin=origin).status == 403
            assert client.form("/translate", {"q": "ona", **BASE}, Origin=origin).json == {"translatedText": "ona"}
            assert client.get("/download_file/0", Origin=origin).status == 404
        assert not kept.exists()
        assert client.form("/suggest", {"q": "a man", "s": "ein Mann", **BASE}, Origin=client.address).json == {"success": True}


@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:80", "127.0.0.1.example", "[::2]:5000", "", "localhost@x"])
def test_a_foreign_host_name_is_refused_on_loopback(server: Client, host: str) -> None:
    answer = server.get("/languages", Host=host)
    assert (answer.status, answer.error) == (403, "This server answers to its own host name only")
    assert server.get("/languages", Host="LOCALHOST:1").status == 200
    assert server.get("/languages", Host="[::1]:1").status == 200


def test_the_log_and_the_metrics_have_lengths_only(pair: Path) -> None:
    with echoing(pair) as client:
        client.post("/translate", {"q": "secret text", "api_key": "hidden", **BASE})
        client.ask("POST", "/translate?q=secret&source=en&target=de&api_key=hidden")
        client.get("/secret")
        metrics = client.get("/metrics").body.decode()
        deadline = time.monotonic() + 5
        while len(client.log) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    entries = [json.loads(line) for line in client.log]
    assert [(entry["route"], entry["status"], entry.get("characters")) for entry in entries[:3]] == [
        ("/translate", 200, 11), ("/translate", 200, 6), ("other", 404, None),
    ]  # fmt: skip
    for hidden in ("secret", "hidden", "127.0.0.1"):
        assert hidden not in metrics
        assert not any(hidden in line for line in client.log)
    assert 'dragoman_requests_total{route="/translate",status="200"} 2' in metrics
    assert "dragoman_batch_size_count 2" in metrics
    assert 'dragoman_model_info{run="en-de",step="1"} 1' in metrics


def test_what_is_refused_before_its_route_is_counted_there(pair: Path) -> None:
    with echoing(pair, body_limit=1000) as client:
        assert client.get("/languages", Host="rebound.example").status == 403
        assert client.post("/translate", {"q": "x" * 2000, **BASE}).status == 413
        assert client.get("/nothing", Host="rebound.example").status == 403
        metrics = client.get("/metrics").body.decode()
    for route, status in (("/languages", 403), ("/translate", 413), ("other", 403)):
        assert f'dragoman_requests_total{{route="{route}",status="{status}"}} 1' in metrics


def test_a_prefix_a_public_address_and_a_token(pair: Path) -> None:
    settings = {"url_prefix": "/mt", "public_url": "https://mt.example/mt", "metrics_token": "t", "char_limit": 0}
    with echoing(pair, **settings) as client:
        client.address = client.address.removesuffix("/mt")
        assert client.get("/languages").error == "Not found"
        assert client.get("/mt/languages").status == 200
        assert client.get("/mt/languages", Host="mt.example").status == 200
        answer = client.multipart("/mt/translate_file", {"file": ("a.txt", b"x"), **BASE}).json
        assert answer["translatedFileUrl"].startswith("https://mt.example/mt/download_file/")
        assert client.get("/mt/metrics").status == 401
        assert client.get("/mt/metrics", Authorization="Bearer t").status == 200
        assert client.get("/mt/frontend/settings").json["charLimit"] == -1
        assert client.get("/mt/").headers["location"] == "/mt/docs"


def test_forwarded_addresses_count_only_when_the_proxy_is_trusted(pair: Path) -> None:
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "a.example", "X-Forwarded-For": "1.2.3.4"}
    for trusted, start in ((True, "https://a.example/"), (False, "http://127.0.0.1:")):
        with echoing(pair, trust_proxy=trusted) as client:
            body = b'--l\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nx\r\n--l--\r\n'
            headers = {"Content-Type": "multipart/form-data; boundary=l", **forwarded}
            answer = client.ask("POST", "/translate_file?source=en&target=de", body=body, headers=headers)
            assert answer.json["translatedFileUrl"].startswith(start)


@pytest.mark.parametrize("lines", [["{}, 9.9.9.9"], ["{}", "9.9.9.9"]], ids=["one line", "a line of its own"])
def test_a_limit_is_not_passed_by_naming_an_address_before_the_proxys(pair: Path, lines: list[str]) -> None:
    """nginx appends what it sees to the line of the client; HAProxy adds a line."""
    with echoing(pair, trust_proxy=True, req_limit=2) as client:
        statuses = []
        for number in range(3):
            connection = http.client.HTTPConnection(*client.place, timeout=30)
            connection.putrequest("POST", "/translate?q=ona&source=en&target=de")
            for line in lines:
                connection.putheader("X-Forwarded-For", line.format(f"1.2.3.{number}"))
            connection.putheader("Content-Length", "0")
            connection.endheaders()
            statuses.append(connection.getresponse().status)
            connection.close()
        assert statuses == [200, 200, 429]


def test_each_route_is_counted_under_its_own_name(pair: Path) -> None:
    with echoing(pair) as client:
        for path in ("/openapi.json", "/spec", "/spec", "/download_file/0"):
            client.get(path)
        counted = client.get("/metrics").body.decode()
    for route, status, many in (("/openapi.json", 200, 1), ("/spec", 200, 2), ("/download_file/{id}", 404, 1)):
        assert f'dragoman_requests_total{{route="{route}",status="{status}"}} {many}\n' in counted


def test_the_time_of_an_answer_holds_for_all_its_alignments(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> list[Alignment]:
        time.sleep(0.4)
        return [Alignment((), (), ())]

    monkeypatch.setattr("dragoman.serve.native.align", slow)
    with echoing(pair, timeout=1.0) as client:
        asked = {"q": ["ona"] * 6, "alignment": True, **BASE}
        assert client.post("/api/v1/translate", {**asked, "q": "ona"}).status == 200
        assert client.post("/api/v1/translate", asked).status == 503


def test_an_empty_number_is_none_in_a_form_of_a_page_and_wrong_elsewhere(server: Client) -> None:
    page = server.form("/translate", {"q": "a man", "alternatives": "", "format": "", **BASE})
    assert (page.status, "alternatives" in page.json) == (200, False)
    for name in ("beam", "alpha", "n_best", "no_repeat_ngram"):
        answer = server.post("/api/v1/translate", {"q": "a man", name: "", **BASE})
        assert (answer.status, answer.error) == (400, f"Invalid request: {name} parameter is not a number")


def test_suggestions_become_training_data(pair: Path, tmp_path: Path) -> None:
    path = tmp_path / "better.tsv"
    with echoing(pair, suggestions=path, batch_limit=1) as client:
        assert client.form("/suggest", {"q": "a\tman\n", "s": "ein Mann", **BASE}).json == {"success": True}
        assert client.post("/suggest", {"q": " ", "s": "b", **BASE}).error == "Invalid request: q and s must have text"
    assert path.read_text("utf-8") == "a man\tein Mann\ten\tde\n"


def test_the_documents_of_a_server(server: Client) -> None:
    page = server.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    text = page.body.decode()
    assert "<script" not in text
    assert all(f"<code>{route}</code>" in text for route in ("POST /translate", "GET /api/v1/models", "POST /api/v1/stream"))
    assert server.get("/spec").json == server.get("/openapi.json").json
    assert server.get("/livez").json == {"status": "ok"}
    health = server.get("/health?verbose=1").json
    assert (health["status"], health["queue_depth"], health["models"]) == ("ok", 0, [{"run": "en-de", "step": 1}])


def test_what_cannot_be_finished_when_the_server_ends_is_told_as_any_refusal(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_life, "GRACE_SECONDS", 0.2)
    open_, begun, answers = threading.Event(), threading.Event(), []

    def slow(text: str) -> str:
        begun.set()
        open_.wait(20)
        return text

    with echoing(made, change=slow) as client:
        thread = threading.Thread(target=lambda: answers.append(client.post("/translate", {"q": "ona", "source": "aa", "target": "bb"})))
        thread.start()
        assert begun.wait(10)
    open_.set()
    thread.join(10)
    assert [(each.status, each.error, each.headers["retry-after"]) for each in answers] == [(503, "Server is shutting down", "10")]


def test_a_packed_body_and_one_of_two_lengths_are_refused(server: Client) -> None:
    body = json.dumps({"q": "ona", "source": "en", "target": "de"}).encode()
    kind = {"Content-Type": "application/json"}
    packed = server.ask("POST", "/translate", body=gzip.compress(body), headers={**kind, "Content-Encoding": "gzip"})
    assert (packed.status, packed.error) == (415, "Content-Encoding gzip is not supported; send the body as it is")
    plain = server.ask("POST", "/translate", body=body, headers={**kind, "Content-Encoding": "identity"})
    assert plain.status == 200
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    both = server.ask(
        "POST", "/translate", body=chunked, headers={**kind, "Transfer-Encoding": "chunked", "Content-Length": str(len(chunked))}
    )
    assert (both.status, both.headers["connection"]) == (400, "close")
    assert both.error == "Content-Length and Transfer-Encoding exclude each other"
