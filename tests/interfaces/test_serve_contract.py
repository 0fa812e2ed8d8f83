"""The OpenAPI document is valid, and the server keeps to it: schemathesis asks what it allows and what it does not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import tiny_bundle
from dragoman.bundle import save_bundle
from language_models import GPT, random_bundle
from serving import Client, bundle_of, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    made = tiny_bundle(tmp_path_factory.mktemp("models") / "made")
    pairs = [("en", "de"), ("de", "en"), ("de", "fr")]
    save_bundle(random_bundle(GPT), made.with_name("story"))
    with serving(*(bundle_of(made, *pair) for pair in pairs), made.with_name("story"), device="cpu") as client:
        yield client


def test_the_document_is_openapi_3_1(server: Client) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="openapi-spec-validator is not installed")
    document = server.get("/openapi.json").json
    assert document["openapi"] == "3.1.0"
    validator.validate(document)


def test_the_document_has_every_route(server: Client) -> None:
    from dragoman.serve.app import ROUTES

    document = server.get("/openapi.json").json
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    hidden = {"/", "/docs", "/spec", "/openapi.json", "/web/{path:path}"}
    assert told == {(method, path) for methods, path, _ in ROUTES for method in methods.split() if path not in hidden}


def test_the_document_has_the_languages_that_are_loaded(server: Client) -> None:
    schema = server.get("/openapi.json").json["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    pairs = {each["properties"]["source"]["const"]: each["properties"]["target"]["enum"] for each in schema["anyOf"]}
    assert pairs == {"de": ["de", "en", "fr"], "en": ["de", "en", "fr"], "fr": ["fr"], "auto": ["de", "en", "fr"]}


@pytest.mark.parametrize("path", ["/translate", "/api/v1/translate", "/api/v1/score"])
def test_the_document_takes_lists_of_texts_where_the_server_does(path: str, server: Client) -> None:
    operation = server.get("/openapi.json").json["paths"][path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    kinds = [
        [each["type"] for each in schema["properties"][name]["anyOf"]] for name in ("q", "translation") if name in schema["properties"]
    ]
    assert kinds == [["string", "array"]] * len(kinds)
    assert kinds


def test_a_few_requests_of_every_kind_are_answered_as_it_says(server: Client) -> None:
    """`benchmarks/serve_contract.py` asks hundreds on every route; here are a few."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, seed, settings

    document = server.get("/openapi.json").json
    schema = schemathesis.openapi.from_dict(document)
    accepted = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")
    unsaid = ("/api/v1/translate", "/api/v1/explain")  # that n_best is at most beam, how many pieces a text may have
    asked = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path not in (
            "/translate", "/detect", "/health", "/languages", "/api/v1/translate", "/api/v1/explain", "/api/v1/trace/{id}/{name}",
            "/api/v1/walk/{id}", "/api/v1/runs/{name}", "/api/v1/runs/{name}/drawn", "/v1/completions", "/v1/models/{name}",
        ):  # fmt: skip
            continue
        strategy = operation.as_strategy()

        @seed(1)
        @settings(max_examples=2, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=strategy)
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            excluded = [accepted] if case.operation.path in unsaid else []
            case.call_and_validate(base_url=server.address, timeout=20, excluded_checks=excluded)

        ask()
    assert asked >= 18


def test_the_page_has_fields_a_line_to_copy_and_an_answer_of_each_route(server: Client) -> None:
    text = server.get("/docs").body.decode()
    assert "html leaves tags as they are; null is text; one of" in text
    assert '<th scope="row">s</th><td>yes</td><td>text</td><td>The better translation</td>' in text
    assert '<th scope="row">q</th><td>yes</td><td>text or list of text</td>' in text
    assert f"curl {server.address}/translate_file -F file=@letter.txt -F source=de -F target=en" in text
    assert f"curl --no-buffer {server.address}/api/v1/stream -H" in text
    assert "&quot;translatedFileUrl&quot;" in text
    assert "<p>Better translations, which this server refuses.</p>" in text
    assert "&#x27;{}&#x27;" not in text  # a body with nothing in it
    document = server.get("/openapi.json").json
    for path, methods in document["paths"].items():
        for method in methods:
            anchor = method + path.replace("/", "-").replace("{", "").replace("}", "")
            assert (text.count(f'href="#{anchor}"'), text.count(f'id="{anchor}"')) == (1, 1), path
    assert text.count("An answer:") == sum(len(methods) for methods in document["paths"].values()) - 2  # a stream, a file


def test_the_lines_to_copy_translate_where_the_first_language_is_only_a_target(tmp_path: Path) -> None:
    suggestions = tmp_path / "better.tsv"
    with serving(bundle_of(tiny_bundle(tmp_path / "made"), "en", "de"), device="cpu", suggestions=suggestions) as client:
        assert [language["code"] for language in client.get("/languages").json] == ["de", "en"]
        text = client.get("/docs").body.decode()
        assert f"curl {client.address}/translate_file -F file=@letter.txt -F source=en -F target=de" in text
        operation = client.get("/openapi.json").json["paths"]["/suggest"]["post"]
        assert operation["summary"] == "Send a better translation, for training."
        assert client.post("/suggest", operation["requestBody"]["content"]["application/json"]["example"]).json == {"success": True}
    assert suggestions.read_text("utf-8") == "A man rides a horse.\tEin Mann reitet auf einem Pferd.\ten\tde\n"


def test_the_answers_of_the_document_are_of_their_schemas(server: Client) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed; it comes with openapi-spec-validator")
    for methods in server.get("/openapi.json").json["paths"].values():
        for operation in methods.values():
            for content in operation["responses"]["200"]["content"].values():
                if "example" in content:
                    jsonschema.validate(content["example"], content["schema"])


def test_the_answers_that_are_drawn_are_of_their_schemas(server: Client) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed; it comes with openapi-spec-validator")
    content = server.get("/openapi.json").json["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]
    asked = {"model": "story", "prompt": ["ona", "bek"], "n": 2, "logprobs": 2, "echo": True}
    jsonschema.validate(server.post("/v1/completions", asked).json, content["application/json"]["schema"])


def test_the_examples_of_the_document_work(server: Client) -> None:
    for path, methods in server.get("/openapi.json").json["paths"].items():
        for operation in methods.values():
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                if "example" in content:
                    answer = server.post(path, json.dumps(content["example"]).encode())
                    status = 403 if path == "/suggest" else 200  # this server keeps no suggestions, and the summary says so
                    assert (answer.status, kind) == (status, "application/json"), path
