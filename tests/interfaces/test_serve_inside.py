"""The routes that look inside: the same numbers as the command line's, exact slices, bounds, and nothing of a text in the log."""

import base64
import json
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import tiny_bundle
from dragoman.bundle import load_bundle, save_bundle
from dragoman.cli import main
from dragoman.explain.answer import explain
from dragoman.explain.keeping import compacted, expected_bytes, held_bytes
from explained import DEPARTURES, TEXT
from explained import bundle_of as small
from serving import Client, serving

BASE = {"q": TEXT, "source": "aa", "target": "bb"}
SHORT = {**BASE, "beam": 1, "max_length": 2}
SECRET = "zyxxyz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's model in small, and one of each kind that reads one text."""
    place = tmp_path_factory.mktemp("models")
    for name in ("paper", "decoder-only", "encoder-only"):
        save_bundle(small(name), place / name)
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Client]:
    with serving(folder / "paper", folder / "decoder-only", folder / "encoder-only", device="cpu") as client:
        yield client


@pytest.fixture
def asked(server: Client, _last: dict[str, Any]) -> dict[str, Any]:
    """An explanation whose trace is there still."""
    if not _last or server.get(f"/api/v1/trace/{_last['id']}/cross").status == 404:
        answer = server.post("/api/v1/explain", BASE)
        assert answer.status == 200, answer.body
        _last.clear()
        _last.update(answer.json)
    return dict(_last)


@pytest.fixture(scope="module")
def _last() -> dict[str, Any]:
    return {}


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What `dragoman explain --json` prints."""
    assert main(["explain", *map(str, arguments), "--json", "--device", "cpu"]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


def without(document: Mapping[str, Any], *names: str) -> str:
    """A document as text, without what differs from one pass to the next."""
    return json.dumps({key: value for key, value in document.items() if key not in ("timing_ms", *names)})


def numbers(answer: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(answer["f32"]), "<f4").reshape(answer["shape"])


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, []),
        ({"beam": 2, "alpha": 1.2, "chosen": 1, "top_k": 8}, ["--beam", 2, "--alpha", 1.2, "--candidate", 2]),
        ({"target_prefix": "rem", "reference": "tilu rem ona"}, ["--target-prefix", "rem", "--reference", "tilu rem ona"]),
        ({"max_length": 3}, ["--max-length", 3]),
    ],
)
def test_an_explanation_is_that_of_the_command_line(
    fields: dict[str, Any], options: list[object], server: Client, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = server.post("/api/v1/explain", {**BASE, **fields})
    assert answer.status == 200, answer.body
    found = answer.json
    assert next(iter(found)) == "id"
    assert found["model"].pop("name") == "paper"
    expected = printed(capsys, folder / "paper", TEXT, *options)
    focus, paper = expected.pop("focus"), expected.pop("paper")
    assert without(found, "id", "pictures") == without(expected)
    walked = server.get(f"/api/v1/walk/{found['id']}").json
    assert walked["focus"] == focus
    assert json.dumps([without(step, "difference", "command", "picture") for step in walked["steps"]]) == json.dumps(
        list(map(without, paper))
    )
    assert [step["number"] for step in walked["steps"]] == list(range(1, 21))
    drawn = [found["pictures"]["tree"], *(step["picture"] for step in walked["steps"] if step["picture"])]
    names = [ElementTree.fromstring(picture).tag for picture in drawn]  # the page reads them as XML
    assert names == ["{http://www.w3.org/2000/svg}svg", *["{http://www.w3.org/1999/xhtml}figure"] * 3]
    assert all(step["difference"] == max((check["difference"] for check in step["checks"]), default=0) for step in walked["steps"])


def test_the_command_of_a_step_writes_its_tensor(
    server: Client, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    found = server.post("/api/v1/explain", {**BASE, "beam": 2, "chosen": 1}).json
    step = server.get(f"/api/v1/walk/{found['id']}?layer=1&head=2&token=3").json["steps"][4]
    monkeypatch.chdir(tmp_path)
    command, comment = step["command"].split("\n")
    assert comment == "# MODEL: the folder of the model paper, which whoever runs the server knows"
    assert str(folder) not in json.dumps(step)  # where its files are is nothing that a server tells
    words = [str(folder / "paper") if word == "MODEL" else word for word in shlex.split(command)]
    assert main(words[1:]) == 0, capsys.readouterr().err
    written = np.load(tmp_path / "tensor.npy")
    told = numbers(server.get(f"/api/v1/trace/{found['id']}/{step['tensor']}").json)
    assert step["tensor"] == "encoder.0.self.scores"
    assert np.array_equal(written, told)


def test_a_slice_has_the_numbers_of_the_pass_to_the_last_bit(server: Client, asked: dict[str, Any]) -> None:
    found = explain(small("paper"), TEXT)
    for name in ("encoder.0.self.scores", "cross", "output.logits", "decoder.1.feed_forward.inner", "decoder.0.self.blocked"):
        assert np.array_equal(numbers(server.get(f"/api/v1/trace/{asked['id']}/{name}").json), found.array(name).astype("<f4")), name
    part = server.get(f"/api/v1/trace/{asked['id']}/cross?index=1,0&rows=2:5&cols=1:4").json
    assert part["shape"] == [3, 3]
    assert np.array_equal(numbers(part), found.weights("cross")[1, 0, 2:5, 1:4])
    row = server.get(f"/api/v1/trace/{asked['id']}/cross?index=1,0,4&cols=:2").json
    assert np.array_equal(numbers(row), found.weights("cross")[1, 0, 4, :2])
    one = server.get(f"/api/v1/trace/{asked['id']}/cross?index=1,0,4,2").json
    assert (one["shape"], numbers(one)) == ([], found.weights("cross")[1, 0, 4, 2])
    weight = server.get(f"/api/v1/trace/{asked['id']}/encoder.0.norm1.weight").json
    norm = small("paper").model.state_dict()["encoder.layers.0.norm1.weight"]
    assert np.array_equal(numbers(weight), norm.numpy())


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("{id}/cross?index=2", 400, "cross has the shape [2, 2, 10, 6], in which there is no index [2]"),
        ("{id}/cross?index=-1", 400, "index must be whole numbers with commas between them"),
        ("{id}/cross?index=0,0,0,0,0", 400, "there is no index [0, 0, 0, 0, 0]"),
        ("{id}/cross?rows=0:11", 400, "rows=0:11: there are 10, so it must be within 0:10"),
        ("{id}/cross?cols=4:2", 400, "cols=4:2: there are 6"),
        ("{id}/cross?rows=2", 400, "rows must be as 0:8"),
        ("{id}/cross?index=0,0,0&rows=0:1", 400, "what is left of the tensor after its index has no rows"),
        ("{id}/cross?index=0&index=1", 400, "index must be whole numbers"),
        ("{id}/encoder.0.self.score", 404, "there is no tensor 'encoder.0.self.score'; near it are encoder.0.self.scores"),
        ("{id}/..%2F..%2Fetc%2Fpasswd", 404, "Not found"),
        ("{id}/..", 404, "there is no tensor '..'"),
        ("{id}/", 404, "Not found"),
        ("t_" + "0" * 32 + "/cross", 404, "trace expired"),
        ("../cross", 404, "trace expired"),
        ("%00/cross", 404, "trace expired"),
    ],
)
def test_what_there_is_not_is_said(path: str, status: int, said: str, server: Client, asked: dict[str, Any]) -> None:
    answer = server.get(f"/api/v1/trace/{path.format(id=asked['id'])}")
    assert answer.status == status
    assert said in answer.error


def test_a_walk_refuses_what_there_is_not(server: Client, asked: dict[str, Any]) -> None:
    for query, said in (
        ("layer=3", "the model has layers 1 to 2"),
        ("layer=0", "layer parameter must be >= 1"),
        ("head=9", "the model has heads 1 to 2"),
        ("token=7", "the text has 6 tokens"),
        ("token=nobody", "the text has no such piece"),
        ("target_token=11", "the translation has 10 tokens"),
    ):
        answer = server.get(f"/api/v1/walk/{asked['id']}?{query}")
        assert (answer.status, said in answer.error) == (400, True), answer.body
    assert server.get(f"/api/v1/walk/{asked['id']}?layer=1&head=2&token=2&target_token=3").json["focus"] == {
        "layer": 0, "head": 1, "source": 1, "target": 2,
    }  # fmt: skip
    assert server.get(f"/api/v1/walk/{asked['id']}?token=rem").json["focus"]["source"] == 3
    assert server.get("/api/v1/walk/t_none").error == "trace expired"


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"q": " "}, 400, "the text is empty"),
        ({"q": ["ona", "bek"]}, 400, "q must be a string: one text is looked into at a time"),
        ({"q": "x" * 5001}, 400, "request (5001) exceeds text limit (5000)"),
        ({"q": "x" * 3000, "reference": "y" * 2001}, 400, "request (5001) exceeds text limit (5000)"),
        ({"q": "ona " * 60}, 400, "the text has 61 tokens and the model takes 40"),
        ({"source": "bb", "target": "aa"}, 400, "not available as a target language"),
        ({"source": "aa", "target": "aa"}, 400, "no single model translates aa to aa"),
        ({"model": "none"}, 404, "there is no model 'none'; there are paper, decoder-only, encoder-only"),
        ({"model": "decoder-only", "beam": 2}, 400, "decoder-only translates nothing"),
        ({"model": "decoder-only", "chosen": 1}, 400, "decoder-only translates nothing"),
        ({"model": "decoder-only", "source": 5}, 400, "Invalid request: source must be a string"),
        ({"beam": 17}, 400, "beam parameter must be <= 16"),
        ({"top_k": 51}, 400, "top_k parameter must be <= 50"),
        ({"beam": 2, "chosen": 2}, 400, "candidate 3: the search gave 2"),
        ({"attention": ["self"]}, 400, "attention must be a list of encoder, decoder, cross"),
        ({"attention": 3}, 400, "attention must be a list of encoder, decoder, cross"),
        ({"model": "decoder-only", "attention": ["cross"]}, 400, "this model has no cross attention; it has decoder"),
        ({"reference": 3}, 400, "reference must be a string"),
    ],
)
def test_what_cannot_be_looked_into_is_said(fields: dict[str, Any], status: int, said: str, server: Client) -> None:
    answer = server.post("/api/v1/explain", {**BASE, **fields})
    assert (answer.status, said in answer.error) == (status, True), answer.body


def test_pictures_are_sent_as_they_are_asked_for(server: Client) -> None:
    def kinds(**fields: object) -> list[str]:
        return list(server.post("/api/v1/explain", {**SHORT, **fields}).json["attention"])

    assert kinds() == ["encoder", "decoder", "cross"]
    assert kinds(attention=["cross"]) == ["cross"]
    assert kinds(attention="decoder") == ["decoder"]
    assert kinds(attention=[]) == []
    assert list(server.form("/api/v1/explain", {**SHORT, "attention": ["cross", "encoder"]}).json["attention"]) == ["cross", "encoder"]


def test_above_64_pieces_no_picture_is_sent_unless_asked_for(tmp_path: Path) -> None:
    with serving(tiny_bundle(tmp_path / "long", max_positions=200), device="cpu") as client:
        counts = {}
        for words in (63, 64):  # and the end token
            text = {"q": "ona " * words, "source": "aa", "target": "bb", "beam": 1, "max_length": 2}
            counts[words] = len(client.post("/api/v1/explain", text).json["attention"])
        assert list(client.post("/api/v1/explain", {**text, "attention": ["cross"]}).json["attention"]) == ["cross"]
        assert counts == {63: 3, 64: 0}


def test_the_language_can_be_found_out_and_a_model_be_named(server: Client) -> None:
    expected = without(server.post("/api/v1/explain", SHORT).json, "id")
    found = server.post("/api/v1/explain", {**SHORT, "source": "auto"}).json
    assert found["detected"] == {"confidence": 0.0, "language": "aa"}
    assert without(found, "id", "detected") == expected
    named = {name: value for name, value in SHORT.items() if name not in ("source", "target")}
    assert without(server.post("/api/v1/explain", {**named, "model": "paper"}).json, "id") == expected


@pytest.mark.parametrize(("name", "steps"), [("decoder-only", 18), ("encoder-only", 17)])
def test_models_of_one_text_are_looked_into_by_their_names(
    name: str, steps: int, server: Client, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = server.post("/api/v1/explain", {"q": TEXT, "model": name}).json
    assert found["model"].pop("name") == name
    expected = printed(capsys, folder / name, TEXT)
    assert len(expected.pop("paper")) == steps
    del expected["focus"]
    assert without(found, "id") == without(expected)
    assert found["read"] == (found["source"]["pieces"] if name == "decoder-only" else [])  # what a decoder has read
    assert len(server.get(f"/api/v1/walk/{found['id']}").json["steps"]) == steps


def test_a_server_of_models_of_one_text_alone(folder: Path) -> None:
    with serving(folder / "decoder-only", device="cpu") as client:
        assert client.get("/health").json == {"status": "ok"}
        assert client.get("/languages").json == []
        assert client.get("/frontend/settings").status == 404
        assert client.post("/translate", {"q": "ona", "source": "aa", "target": "bb"}).error == "aa is not supported"
        (model,) = client.get("/api/v1/models").json["models"]
        assert (model["run"], model["architecture"], model["pairs"]) == ("decoder-only", "decoder-only", [])
        document = client.get("/openapi.json").json
        assert "/translate" not in document["paths"]
        example = document["paths"]["/api/v1/explain"]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert client.post("/api/v1/explain", example).status == 200


def test_two_models_of_one_folder_name_have_two_names(folder: Path, tmp_path: Path) -> None:
    more = [tmp_path / "decoder-only", tmp_path / "decoder-only-2"]
    for each in more:
        save_bundle(small("decoder-only"), each)
    with serving(folder / "decoder-only", *more, device="cpu") as client:
        names = [model["run"] for model in client.get("/api/v1/models").json["models"]]
        assert names == ["decoder-only", "decoder-only-2", "decoder-only-2-2"]
        assert client.post("/api/v1/explain", {"q": TEXT, "model": "decoder-only-2"}).status == 200


def test_the_last_eight_traces_are_kept(server: Client) -> None:
    numbers = [server.post("/api/v1/explain", {**SHORT, "attention": []}).json["id"] for _ in range(9)]
    statuses = [server.get(f"/api/v1/trace/{number}/cross?index=0,0").status for number in numbers]
    assert statuses == [404, *[200] * 8]
    assert server.get(f"/api/v1/trace/{numbers[0]}/cross").error == "trace expired"
    assert server.get(f"/api/v1/walk/{numbers[0]}").error == "trace expired"


class _Sized:
    def __init__(self, size: int) -> None:
        self.size = size


def test_the_store_keeps_within_its_bounds() -> None:
    from dragoman.serve.traces import Traces

    store = Traces(most=3, most_bytes=100)
    first, second, third = (store.put(_Sized(40)) for _ in range(3))  # type: ignore[arg-type]
    assert [store.get(number) is None for number in (first, second, third)] == [True, False, False]
    large = store.put(_Sized(1000))  # type: ignore[arg-type]
    assert [store.get(number) is None for number in (second, third, large)] == [True, True, False]
    for _ in range(3):
        store.put(_Sized(0))  # type: ignore[arg-type]
    assert store.get(large) is None
    store.clear()
    assert store.size == 0


def test_the_store_may_be_used_by_many_threads() -> None:
    from dragoman.serve.traces import Traces

    store, faults = Traces(most=4, most_bytes=1000), []

    def work() -> None:
        try:
            for _ in range(300):
                store.get(store.put(_Sized(300)))  # type: ignore[arg-type]
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert store.size <= 1000


@pytest.mark.parametrize("name", DEPARTURES)
def test_what_a_pass_takes_is_known_before(name: str) -> None:
    bundle = small(name)
    for text in (TEXT, " ".join([TEXT] * 4)):
        more: dict[str, Any] = {} if bundle.config.model.single else {"reference": text, "beam": 1, "max_length": 4}
        found = compacted(explain(bundle, text, **more))
        source, target = len(found.source.ids), len(found.target.side.ids)
        given = len(found.reference.side.ids) if found.reference else 0
        assert held_bytes(found) <= expected_bytes(bundle.config.model, source, target, reference=given) <= 1.5 * held_bytes(found)


def test_a_text_whose_numbers_do_not_fit_is_refused_before(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.serve import inside

    monkeypatch.setattr(inside, "MOST_BYTES", 60_000)
    answer = server.post("/api/v1/explain", {**BASE, "q": "ona " * 30})
    assert (answer.status, answer.error) == (
        400,
        "Invalid request: the text has about 32 pieces, and the numbers of at most 5 can be kept; look into a shorter one",
    )
    assert server.post("/api/v1/explain", {**SHORT, "q": "ona bek"}).status == 200


def test_the_numbers_of_an_answer_have_a_bound(server: Client, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.serve import inside

    monkeypatch.setattr(inside, "MOST_NUMBERS", 60)
    assert "that is 240 numbers of cross" in server.get(f"/api/v1/trace/{asked['id']}/cross").error
    assert server.get(f"/api/v1/trace/{asked['id']}/cross?index=0,1").status == 200
    assert server.get(f"/api/v1/trace/{asked['id']}/cross?index=0&rows=0:5").status == 200


def test_no_text_comes_into_the_log(folder: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(folder / "paper", device="cpu") as client:
        text = f"ona {SECRET}"
        fields = {**SHORT, "q": text, "reference": SECRET}
        number = client.post("/api/v1/explain", fields).json["id"]
        assert client.get(f"/api/v1/walk/{number}?token={SECRET}").status in (200, 400)
        assert client.get(f"/api/v1/trace/{number}/{SECRET}").status == 404
        assert client.post("/api/v1/explain", {**fields, "q": f"{text} " * 50}).status == 400
        assert client.post("/api/v1/explain", {**fields, "target_prefix": SECRET, "chosen": 9}).status == 400
        assert client.get(f"/api/v1/runs/{SECRET}").status == 404
        metrics = client.get("/metrics").body.decode()
    said = "\n".join([*client.log, caplog.text, metrics, *capsys.readouterr()])
    assert SECRET not in said
    assert number not in said
    assert {json.loads(line)["route"] for line in client.log} >= {"/api/v1/explain", "/api/v1/walk/{id}", "/api/v1/trace/{id}/{name}"}


def test_one_text_is_one_text_with_all_that_comes_with_it(folder: Path) -> None:
    with serving(folder / "paper", device="cpu", batch_limit=1) as client:
        answer = client.post("/api/v1/explain", {**SHORT, "model": None, "reference": "ona", "target_prefix": "rem", "attention": []})
        assert answer.status == 200, answer.body
        scored = client.post("/api/v1/score", {"q": "ona", "translation": "bek", "source": "aa", "target": "bb"})
        assert scored.status == 200, scored.body


def test_looking_inside_can_be_turned_off(folder: Path) -> None:
    with serving(folder / "paper", device="cpu", explain=False) as client:
        assert client.get("/api/v1/models").json["explain"] is False
        answers = [client.post("/api/v1/explain", BASE), client.get("/api/v1/trace/t/cross"), client.get("/api/v1/walk/t")]
        assert [(each.status, each.error) for each in answers] == [(403, "Looking inside is disabled on this server.")] * 3
        paths = client.get("/openapi.json").json["paths"]
        assert not [path for path in paths if path.startswith(("/api/v1/explain", "/api/v1/trace", "/api/v1/walk"))]
        assert client.post("/translate", {"q": "ona", "source": "aa", "target": "bb"}).status == 200


def test_keys_hold_for_looking_inside(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys.json"
    assert main(["keys", "add", "me", "--keys", str(keys), "--char-limit", "30"]) == 0
    key = capsys.readouterr().out.strip()
    with serving(folder / "paper", device="cpu", keys=keys) as client:
        bearer = {"Authorization": f"Bearer {key}"}
        assert client.post("/api/v1/explain", BASE).status == 403
        number = client.post("/api/v1/explain", SHORT, **bearer).json["id"]
        for path in (f"/api/v1/trace/{number}/cross", f"/api/v1/walk/{number}", "/api/v1/runs", "/api/v1/runs/paper"):
            assert client.get(path).status == 403
            assert client.get(path, **bearer).status in (200, 404)
        assert client.post("/api/v1/explain", {**BASE, "q": "x" * 31}, **bearer).error.endswith("exceeds text limit (30)")


def test_it_takes_turns_with_translations_and_ends_when_nobody_waits(folder: Path) -> None:
    """A pass that takes too long is given up at the next step of its search, and leaves nothing."""
    with serving(folder / "paper", device="cpu", timeout=0.001) as client:
        answer = client.post("/api/v1/explain", BASE)
        assert (answer.status, answer.error) == (
            503,
            "Not explained within 0.001 seconds, for much was asked or the server is busy; send less text, ask again later, or start the "
            "server with a larger --timeout",
        )
        assert answer.headers["retry-after"]
    steps = 0

    class GoneError(Exception):
        pass

    def check() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise GoneError

    with pytest.raises(GoneError):
        explain(small("paper"), TEXT, check=check)
    assert steps == 3


def test_models_that_are_loaded_again_leave_no_trace(folder: Path) -> None:
    import asyncio

    from dragoman.cli.looking import Looking
    from dragoman.serve.places import find_models
    from dragoman.serve.service import Service
    from dragoman.serve.settings import ServeSettings

    async def live() -> list[int]:
        service = Service(ServeSettings(device="cpu"), [folder / "paper"], say=print, looking=Looking())
        await service.load(find_models([folder / "paper"]))
        begun = service.traces.cleared
        service.traces.put(_Sized(7), cleared=begun)  # type: ignore[arg-type]
        sizes = [service.traces.size]
        await service.reload()
        sizes.append(service.traces.size)
        service.traces.put(_Sized(5), cleared=begun)  # type: ignore[arg-type]  # made by the model before
        service.close()
        return [*sizes, service.traces.size]

    assert asyncio.run(live()) == [7, 0, 0]


def test_a_model_in_use_stays_as_it_is(folder: Path, server: Client) -> None:
    text = {"q": TEXT, "source": "aa", "target": "bb"}
    before = server.post("/translate", text).json
    server.post("/api/v1/explain", SHORT)
    assert server.post("/translate", text).json == before
    assert load_bundle(folder / "paper").model.training is False
