"""``/v1/completions`` in OpenAI's form: the text of `dragoman generate`, streams, log-probabilities, errors; beside others or alone."""

import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from command_line import tiny_bundle
from dragoman.bundle import save_bundle
from dragoman.cli import main
from dragoman.decoding import generate as generating
from dragoman.decoding.generate import Generator
from dragoman.decoding.generation_options import GenerationOptions
from dragoman.decoding.likelihood import Read, score_lines
from language_models import BERT, GPT, SENTENCE, bytes_tokenizer, random_bundle, storyteller
from serving import Answer, Client, bundle_of, serving

PATH = "/v1/completions"
PROMPT = "a man rides"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows a sentence by heart."""
    folder = tmp_path_factory.mktemp("models") / "story"
    save_bundle(storyteller(), folder)
    return folder


@pytest.fixture(scope="module")
def chance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says anything."""
    folder = tmp_path_factory.mktemp("models") / "chance"
    save_bundle(random_bundle(GPT, bytes_tokenizer(), max_positions=48), folder)
    return folder


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tiny_bundle(tmp_path_factory.mktemp("models") / "made"), "en", "de")


@pytest.fixture(scope="module")
def server(story: Path, chance: Path, translator: Path) -> Iterator[Client]:
    with serving(translator, story, chance, device="cpu") as client:
        yield client


def chunks(answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream, which ends as it should."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") for line in lines[:-1])
    return [json.loads(line[6:]) for line in lines[:-2]]


def test_the_text_is_that_of_the_command_line(server: Client, chance: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(chance), PROMPT, "--json", "--n", "2", "--seed", "7", "--temperature", "0.8", "--top-p", "0.9"]
    assert main([*command, "--max-tokens", "9", "--device", "cpu", "--quiet"]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    asked = {"model": "chance", "prompt": PROMPT, "n": 2, "seed": 7, "temperature": 0.8, "top_p": 0.9, "max_tokens": 9, "logprobs": 0}
    answer = server.post(PATH, asked).json
    assert [choice["text"] for choice in answer["choices"]] == [each["text"] for each in expected]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice, each in zip(answer["choices"], expected, strict=True):
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(each["token_scores"], abs=1e-5)
        assert choice["logprobs"]["top_logprobs"] is None
        assert choice["finish_reason"] == {"end": "stop", "length": "length"}[each["stop"]]
    assert (answer["object"], answer["model"], answer["id"][:5]) == ("text_completion", "chance", "cmpl-")
    (read,) = Generator.load(chance, device="cpu").prompt_tokens([PROMPT])
    written = sum(len(each["tokens"]) for each in expected)
    assert answer["usage"] == {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def test_a_model_that_knows_a_sentence_ends_it(server: Client) -> None:
    answer = server.post(PATH, {"model": "story", "prompt": "Once upon", "temperature": 0, "max_tokens": 60}).json
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (SENTENCE.removeprefix("Once upon"), "stop", None)
    asked = {"model": "story", "prompt": ["Once upon", "Once upon a"], "temperature": 0, "max_tokens": 60, "stop": ["東"], "echo": True}
    before = SENTENCE.partition("東")[0]
    assert [each["text"] for each in server.post(PATH, asked).json["choices"]] == [before, before]
    default = server.post(PATH, {"model": "chance", "prompt": "", "seed": 2}).json
    assert (default["usage"]["completion_tokens"], default["choices"][0]["finish_reason"]) == (16, "length")


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"prompt": [PROMPT, "ona"], "n": 2, "echo": True}, {"logprobs": 2, "stop": ["a"]}])
def test_a_stream_is_the_whole_in_parts(server: Client, more: dict[str, Any]) -> None:
    asked = {"model": "chance", "prompt": PROMPT, "seed": 3, "max_tokens": 12, **more}
    whole = server.post(PATH, asked).json
    parts = chunks(server.post(PATH, {**asked, "stream": True, "stream_options": {"include_usage": True}}))
    assert len({part["id"] for part in parts}) == 1
    assert (parts[-1]["choices"], parts[-1]["usage"]) == ([], whole["usage"])
    for index, choice in enumerate(whole["choices"]):
        own = [each for part in parts for each in part["choices"] if each["index"] == index]
        assert "".join(each["text"] for each in own) == choice["text"]
        assert [each["finish_reason"] for each in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        if choice["logprobs"]:
            for name, values in choice["logprobs"].items():
                assert [value for each in own for value in each["logprobs"][name]] == values
    assert len(parts) > len(whole["choices"]) + 1


def test_log_probabilities_of_tokens_and_of_the_prompt(server: Client, chance: Path) -> None:
    asked = {"model": "chance", "prompt": PROMPT, "seed": 5, "max_tokens": 6, "logprobs": 3, "echo": True}
    (choice,) = server.post(PATH, asked).json["choices"]
    told, bundle = choice["logprobs"], Generator.load(chance, device="cpu").bundle
    ids = bundle.target_tokenizer.encode(PROMPT)
    (scored,) = score_lines(bundle, [PROMPT])
    assert told["token_logprobs"][: len(ids)] == pytest.approx(scored.token_scores[:-1], abs=1e-4)
    assert len({*map(len, told.values())}) == 1
    for token, score, top, offset in zip(*told.values(), strict=True):
        assert top[token] == score
        assert 3 <= len(top) <= 4 or min(top.values()) <= score
        assert choice["text"][offset:].startswith(token) or token.startswith("\\x")  # of a character that is not whole yet
    (only,) = server.post(PATH, {**asked, "max_tokens": 0}).json["choices"]
    assert (only["text"], only["finish_reason"]) == (PROMPT, "length")
    assert only["logprobs"]["token_logprobs"] == pytest.approx(told["token_logprobs"][: len(ids)], abs=1e-5)


def test_what_is_no_number_is_an_error_and_never_in_an_answer(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.serve.completions.score_prompts", lambda *_, **__: [[Read(5, math.nan)]])
    asked = {"model": "chance", "prompt": "a", "echo": True, "max_tokens": 0, "logprobs": 0}
    assert server.post(PATH, asked).status == 500
    (event,) = server.post(PATH, {**asked, "stream": True}).body.decode().removesuffix("\n\n").split("\n\n")
    assert json.loads(event.removeprefix("data: "))["error"]["type"] == "server_error"


def test_places_of_tokens_are_those_in_a_prompt_that_the_vocabulary_does_not_keep(tmp_path: Path) -> None:
    save_bundle(random_bundle(GPT), tmp_path / "words")
    with serving(tmp_path / "words", device="cpu") as client:
        asked = {"prompt": "ona 東京  bek", "seed": 5, "max_tokens": 3, "logprobs": 0, "echo": True}
        (choice,) = client.post(PATH, asked).json["choices"]
    told = choice["logprobs"]
    assert told["tokens"][1].strip() == "<unk>"
    assert told["text_offset"][:3] == [0, 4, 8]
    assert [choice["text"][at:].startswith(token) for token, at in zip(told["tokens"][3:], told["text_offset"][3:], strict=True)] == [
        True
    ] * 3


def test_without_a_seed_texts_differ_and_with_one_they_do_not(server: Client) -> None:
    asked = {"model": "chance", "prompt": [PROMPT] * 3, "max_tokens": 12}
    free = [each["text"] for _ in range(2) for each in server.post(PATH, asked).json["choices"]]
    assert len({*free}) > 3
    seeded = [each["text"] for _ in range(2) for each in server.post(PATH, {**asked, "seed": 1}).json["choices"]]
    assert len({*seeded}) == 1


def test_many_at_once_get_what_they_get_alone(server: Client, chance: Path) -> None:
    generator = Generator.load(chance, device="cpu")
    prompts = [f"{PROMPT} {word}" for word in ("ona", "bek", "tilu", "rem", "sova", "kip", "dal", "nur")]

    def ask(place: int) -> str:
        asked = {"model": "chance", "prompt": prompts[place], "seed": place, "max_tokens": 10 + place % 3}
        return str(server.post(PATH, asked).json["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    for place, text in enumerate(found):
        options = GenerationOptions(seed=place, max_tokens=10 + place % 3)
        assert text == generator.generate([prompts[place]], options)[0][0].text


def test_models_of_both_kinds_side_by_side(server: Client) -> None:
    found = server.get("/v1/models").json
    assert [(each["id"], each["object"], each["max_model_len"]) for each in found["data"]] == [
        ("story", "model", 64),
        ("chance", "model", 48),
    ]
    assert server.get("/v1/models/chance").json == found["data"][1]
    gone = server.get("/v1/models/en-de")
    assert (gone.status, gone.json["error"]["code"]) == (404, "model_not_found")
    assert gone.json["error"]["message"] == "The model 'en-de' does not exist: there is story, chance"
    assert [each["code"] for each in server.get("/languages").json] == ["de", "en"]
    assert [each["run"] for each in server.get("/api/v1/models").json["models"]] == ["en-de", "story", "chance"]
    assert [each["run"] for each in server.get("/health?verbose=1").json["models"]] == ["en-de", "story", "chance"]
    assert server.post("/translate", {"q": "ona", "source": "en", "target": "de"}).status == 200
    assert "POST /v1/completions" in server.get("/docs").body.decode()


def test_a_server_of_one_language_model_is_healthy(story: Path) -> None:
    with serving(story, device="cpu") as client:
        assert client.get("/health").json == {"status": "ok"}
        assert client.get("/languages").json == []
        answer = client.post("/translate", {"q": "ona", "source": "en", "target": "de"})
        assert (answer.status, answer.error) == (400, "en is not supported")
        assert client.get("/frontend/settings").error == "This server has no model that translates"
        document = client.get("/openapi.json").json
        assert PATH in document["paths"]
        assert "/translate" not in document["paths"]
        assert client.get("/docs").status == 200
        (choice,) = client.post(PATH, {"prompt": "Once", "temperature": 0}).json["choices"]  # the only model need not be named
        assert SENTENCE.startswith("Once" + choice["text"])


def test_a_server_of_translators_has_none_to_complete(translator: Path) -> None:
    with serving(translator, device="cpu") as client:
        assert client.get("/v1/models").json == {"object": "list", "data": []}
        answer = client.post(PATH, {"model": "gpt", "prompt": "a"})
        assert answer.status == 404
        assert answer.json["error"]["message"] == "The model 'gpt' does not exist: this server has no model that goes on with text"
        assert PATH not in client.get("/openapi.json").json["paths"]


@pytest.mark.parametrize(
    ("change", "status", "param", "code", "said"),
    [
        ({"model": "gpt"}, 404, "model", "model_not_found", "The model 'gpt' does not exist: there is story, chance"),
        ({"model": None}, 400, "model", None, "Invalid request: missing model parameter; it is one of story, chance"),
        ({"model": 3}, 400, "model", None, "Invalid request: model must be a string"),
        ({"prompt": None}, 400, "prompt", None, "Invalid request: missing prompt parameter"),
        ({"prompt": [1, 2]}, 400, "prompt", None, "Invalid request: prompt must be a string or a list of strings"),
        ({"prompt": []}, 400, "prompt", None, "Invalid request: prompt is an empty list"),
        ({"prompt": ["a"] * 65}, 400, "prompt", None, "Invalid request: request (65 texts) exceeds batch limit (64)"),
        ({"prompt": "a" * 5001}, 400, "prompt", None, "Invalid request: request (5001) exceeds text limit (5000)"),
        ({"prompt": ["a", "xyz " * 30]}, 400, "prompt", "context_length_exceeded", "Invalid request: prompt 2 has "),
        ({"max_tokens": 0}, 400, "max_tokens", None, "Invalid request: max_tokens parameter must be >= 1, or 0 with echo"),
        ({"temperature": 3}, 400, "temperature", None, "Invalid request: temperature parameter must be between 0 and 2"),
        ({"top_p": "x"}, 400, "top_p", None, "Invalid request: top_p parameter is not a number"),
        ({"n": 17}, 400, "n", None, "Invalid request: n parameter must be <= 16"),
        ({"n": 2, "temperature": 0}, 400, "n", None, "Invalid request: n=2 with temperature 0: all would be the same"),
        ({"logprobs": 6}, 400, "logprobs", None, "Invalid request: logprobs parameter must be <= 5"),
        ({"stop": [""]}, 400, "stop", None, "Invalid request: stop must not be empty"),
        ({"stop": ["a"] * 5}, 400, "stop", None, "Invalid request: 5 strings in stop: at most 4"),
        ({"stream": "often"}, 400, "stream", None, "Invalid request: stream parameter is neither true nor false"),
        ({"stream_options": {"usage": True}}, 400, "stream_options", None, "Invalid request: stream_options must be an object with"),
        ({"suffix": "b"}, 400, "suffix", "unsupported_parameter", "Invalid request: suffix is not there on this server; leave it out"),
        ({"best_of": 3}, 400, "best_of", "unsupported_parameter", "Invalid request: best_of is not there"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias", "unsupported_parameter", "Invalid request: logit_bias is not there"),
        ({"presence_penalty": 1}, 400, "presence_penalty", "unsupported_parameter", "Invalid request: presence_penalty is not there"),
        ({"temprature": 1}, 400, "temprature", "unknown_parameter", "Invalid request: unknown field temprature; did you mean temperature?"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_wrong_request_is_an_error_in_openais_form(
    server: Client, change: dict[str, Any], status: int, param: str, code: str | None, said: str
) -> None:
    answer = server.post(PATH, {"model": "chance", "prompt": "a", **change})
    error = answer.json["error"]
    assert (answer.status, error["param"], error["code"], error["type"]) == (status, param, code, "invalid_request_error")
    assert error["message"].startswith(said)


def test_what_asks_for_nothing_is_taken(server: Client) -> None:
    neutral = {"suffix": None, "best_of": 1, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "u", "n": 1}
    assert server.post(PATH, {"model": "chance", "prompt": "a", **neutral}).status == 200


def test_other_errors_and_keys_are_in_openais_form_too(
    server: Client, story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.get(PATH).json["error"] == {
        "message": "Method not allowed", "type": "invalid_request_error", "param": None, "code": None,
    }  # fmt: skip
    assert server.get("/v1/nothing").json["error"]["message"] == "Not found"
    assert server.post(PATH, b"{").json["error"]["message"] == "Invalid JSON format"
    assert main(["keys", "add", "me", "--keys", str(tmp_path / "keys.json")]) == 0
    key = capsys.readouterr().out.strip()
    with serving(story, device="cpu", keys=tmp_path / "keys.json") as client:
        answer = client.post(PATH, {"prompt": "Once"}, Authorization="Bearer wrong")
        assert (answer.status, answer.json["error"]["type"]) == (401, "authentication_error")
        assert answer.json["error"]["code"] == "invalid_api_key"
        assert client.post(PATH, {"prompt": "Once"}, Authorization=f"Bearer {key}").status == 200


def test_a_stream_that_nobody_reads_ends_and_what_is_short_does_not_wait_for_what_is_long(
    chance: Path, translator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    steps, pace, whole = [0], threading.Event(), generating.sampling_steps

    def slow(*given: Any, **more: Any) -> Iterator[Any]:
        for step in whole(*given, **more):
            steps[0] += 1
            pace.wait(0.1)
            yield step

    monkeypatch.setattr(generating, "sampling_steps", slow)
    body = json.dumps({"prompt": "ona", "stream": True, "max_tokens": 40, "seed": 1}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with serving(chance, translator, device="cpu") as client:
        with socket.create_connection(client.place, timeout=20) as connection:
            connection.sendall(head.encode() + body)
            seen = b""
            while seen.count(b"data: ") < 3:
                part = connection.recv(65536)
                assert part, (seen, client.log)
                seen += part
            before = steps[0]
            assert client.post("/translate", {"q": "ona", "source": "en", "target": "de"}).status == 200
            assert steps[0] < 40, "the translation came before the end of the text"
            assert before >= 3
        deadline = time.monotonic() + 10
        while not any(PATH in line for line in client.log) and time.monotonic() < deadline:
            time.sleep(0.02)
        gone = steps[0]
        time.sleep(0.5)
        assert steps[0] <= gone + 2
        pace.set()
        assert client.post(PATH, {"prompt": "ona", "max_tokens": 2}).status == 200
        assert client.get("/health?verbose=1").json["queue_depth"] == 0


def test_a_time_limit_holds_for_completions(chance: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generating.sampling_steps

    def slow(*given: Any, **more: Any) -> Iterator[Any]:
        for step in whole(*given, **more):
            time.sleep(0.1)
            yield step

    monkeypatch.setattr(generating, "sampling_steps", slow)
    with serving(chance, device="cpu", timeout=0.4) as client:
        slow_answer = (
            "Not completed within 0.4 seconds, for much was asked or the server is busy; ask for fewer tokens, ask again later, or start "
            "the server with a larger --timeout"
        )
        asked = {"prompt": "ona", "max_tokens": 40, "seed": 1}
        answer = client.post(PATH, asked)
        assert (answer.status, answer.json["error"]["message"]) == (503, slow_answer)
        assert answer.headers["retry-after"] == "5"
        last = client.post(PATH, {**asked, "stream": True}).body.decode().split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == slow_answer


def test_only_models_that_go_on_with_text_are_listed_and_none_has_the_name_of_another(story: Path, tmp_path: Path) -> None:
    save_bundle(random_bundle(BERT), tmp_path / "bert")
    save_bundle(storyteller(), tmp_path / "story")
    with serving(tmp_path / "bert", story, tmp_path / "story", device="cpu") as client:
        assert [each["id"] for each in client.get("/v1/models").json["data"]] == ["story", "story-2"]
        answer = client.post(PATH, {"model": "bert", "prompt": "ona"})
        assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
        assert client.post(PATH, {"model": "story-2", "prompt": "Once upon", "temperature": 0, "max_tokens": 8}).status == 200


def test_openais_own_client(server: Client) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed; pip install openai")
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
    assert [each.id for each in client.models.list()] == ["story", "chance"]
    assert client.models.retrieve("chance").id == "chance"
    asked: dict[str, Any] = {"model": "story", "prompt": "Once upon", "temperature": 0, "max_tokens": 60}
    whole = client.completions.create(**asked, logprobs=1)
    assert whole.choices[0].text == SENTENCE.removeprefix("Once upon")
    assert len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens
    assert "".join(part.choices[0].text for part in client.completions.create(**asked, stream=True)) == whole.choices[0].text
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(**asked, suffix="b")
    assert "openai" in sys.modules
