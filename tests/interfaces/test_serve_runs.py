"""The routes of runs: what log.jsonl holds, from any byte on, while it grows; runs without a checkpoint; the page's files."""

import gzip
import json
import shutil
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import tiny_bundle
from dragoman.bundle import mark_checkpoint
from dragoman.cli import main
from dragoman.errors import DragomanError
from dragoman.serve import web
from dragoman.training.charts import thinned
from dragoman.training.records import read_log_from, read_run
from serving import Client, serving

HEAD = {"t": "event", "time": 1.5, "event": "start", "step": 0}


def train(step: int, **more: Any) -> dict[str, Any]:
    return {"t": "train", "time": 2.5, "step": step, "epoch": 0, "loss": 9 - step / 1000, "ppl": 100.5, "lr": step * 1e-5, **more}


def evaluation(step: int, **more: Any) -> dict[str, Any]:
    sample = {"source": "ona", "reference": "bek", "output": "<b>"}
    return {"t": "eval", "step": step, "loss": 5.5, "ppl": 50.0, "bleu": step / 100, "chrf": 12.5, "samples": [sample], **more}


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def begun(run: Path, *records: dict[str, Any]) -> Path:
    """A run folder as a training leaves it before its first checkpoint."""
    run.mkdir(parents=True)
    settings = {"data": {"source": "aa", "target": "bb"}, "training": {"warmup_steps": 77, "max_steps": 900}, "model": {"d_model": 16}}
    (run / "run.json").write_text(json.dumps({"status": "running", "settings": settings}), encoding="utf-8")
    (run / "log.jsonl").write_bytes(lines(HEAD, *records))
    return run


def with_checkpoint(run: Path, bundle: Path, step: int) -> None:
    shutil.copytree(bundle, run / "checkpoints" / f"step-{step:06}")
    mark_checkpoint(run, "best", run / "checkpoints" / f"step-{step:06}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("models") / "made")


@pytest.fixture
def served(made: Path, tmp_path: Path) -> Iterator[tuple[Client, Path]]:
    """A server of a run with one checkpoint, and of a bundle without a run."""
    run = begun(tmp_path / "mine", train(20), train(40), evaluation(40))
    with_checkpoint(run, made, 40)
    other = shutil.copytree(made, tmp_path / "alone")
    document = json.loads((other / "config.json").read_bytes())
    document["config"]["data"] |= {"source": "cc", "target": "dd"}
    (other / "config.json").write_text(json.dumps(document), encoding="utf-8")
    with serving(run, other, device="cpu") as client:
        yield client, run


def test_the_curves_of_a_run_are_those_of_its_log(served: tuple[Client, Path]) -> None:
    client, run = served
    assert client.get("/api/v1/runs").json == {"runs": [{"name": "mine", "pair": "aa-bb", "status": "running", "best_step": 40}]}
    found = client.get("/api/v1/runs/mine").json
    records = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    kept = {"train": ("step", "loss", "ppl", "lr"), "eval": ("step", "loss", "ppl", "bleu", "chrf", "samples")}
    for kind, names in kept.items():
        assert found.pop(kind) == [{name: record[name] for name in names} for record in records if record["t"] == kind]
    assert found == {
        "name": "mine", "pair": "aa-bb", "status": "running", "best_step": 40, "warmup_steps": 77, "d_model": 16, "max_steps": 900,
        "from": 0, "next": (run / "log.jsonl").stat().st_size,
    }  # fmt: skip
    answer = client.get("/api/v1/runs/alone")
    assert (answer.status, answer.error) == (404, "alone is a bundle without its run, so there is no log of it")
    for name in ("none", "..%2Fmine", "%2e%2e", "mine%00"):
        assert client.get(f"/api/v1/runs/{name}").status == 404
    for wrong in ("-1", "x", "1.5", "10000000000", ""):
        assert client.get(f"/api/v1/runs/mine?from={wrong}").status == 400
    with (run / "log.jsonl").open("ab") as log:
        log.write(b"[" * 100_000 + b"\n")
    mark_checkpoint(run, "best", (run / "checkpoints" / "step-000040").rename(run / "checkpoints" / "mean"))
    assert client.get("/api/v1/runs").json["runs"][0]["best_step"] is None
    assert client.get("/api/v1/runs/mine").json["next"] == (run / "log.jsonl").stat().st_size


def test_a_run_is_drawn_and_sent_again_only_when_it_has_changed(served: tuple[Client, Path]) -> None:
    client, run = served
    first = client.get("/api/v1/runs/mine/drawn").json
    assert first["title"] == "mine: aa-bb"
    assert first["said"] == "running · step 40 · best at step 40: validation loss 5.5000, BLEU 0.40 · warm-up 77 steps"
    assert [chart["title"] for chart in first["charts"]] == ["Loss", "Score on the validation text", "Learning rate"]
    drawn = [ElementTree.fromstring(chart["svg"]) for chart in first["charts"]]
    assert [len(list(chart.iter("{http://www.w3.org/2000/svg}polyline"))) for chart in drawn] == [1, 0, 2]  # one evaluation is a dot
    assert first["updates"]["rows"] == [[20, 8.98, 100.5, 2e-4, "–", "–"], [40, 8.96, 100.5, 4e-4, "–", "–"]]
    assert first["evaluations"]["header"] == ["step", "smoothed loss", "perplexity", "BLEU", "chrF"]
    assert first["evaluations"]["rows"] == [[40, 5.5, 50.0, 0.4, 12.5]]
    assert first["evaluations"]["digits"] == {"step": 0, "smoothed loss": 4, "perplexity": 2, "BLEU": 2, "chrF": 2}
    known = {"stamp": first["stamp"], "ended": False}
    assert client.get(f"/api/v1/runs/mine/drawn?since={first['stamp']}").json == known
    with (run / "log.jsonl").open("ab") as file:
        file.write(lines(*(train(step) for step in range(41, 60)), evaluation(60, samples=["x", {"source": "ona", "output": 7}])))
    second = client.get(f"/api/v1/runs/mine/drawn?since={first['stamp']}").json
    assert second["stamp"] != first["stamp"]
    assert second["said"].startswith("running · step 60 · ")
    assert (second["updates"]["caption"], [row[0] for row in second["updates"]["rows"]]) == ("Updates, the last 12", list(range(48, 60)))
    assert [(table["caption"], table["rows"]) for table in second["samples"]] == [
        ("“ona”", [["reference", "bek"], ["step 40", "<b>"]]), ("“ona”", [["reference", ""], ["step 60", "7"]]),
    ]  # fmt: skip
    (run / "run.json").write_text((run / "run.json").read_text("utf-8").replace("running", "preparing"), encoding="utf-8")
    assert not client.get("/api/v1/runs/mine/drawn").json["ended"]
    (run / "run.json").write_text((run / "run.json").read_text("utf-8").replace("preparing", "done"), encoding="utf-8")
    third = client.get(f"/api/v1/runs/mine/drawn?since={second['stamp']}").json
    assert (third["ended"], third["said"].split(" · ")[0]) == (True, "done")


def test_a_sample_is_listed_where_it_changed(served: tuple[Client, Path]) -> None:
    client, run = served
    outputs = ["a", "a", "b", "a", "c", "d", "e", "e"]
    records = [evaluation(at, samples=[{"source": "s", "reference": "r", "output": output}]) for at, output in enumerate(outputs, start=1)]
    (run / "log.jsonl").write_bytes(lines(HEAD, *records))
    (table,) = client.get("/api/v1/runs/mine/drawn").json["samples"]
    assert table["rows"] == [["reference", "r"], *([f"step {at}", outputs[at - 1]] for at in (3, 4, 5, 6, 7))]


@pytest.mark.parametrize(
    ("path", "status"), [("mine/drawn?since=1&since=2", 400), ("mine/drawn?from=3", 400), ("alone/drawn", 404), ("none/drawn", 404)]
)
def test_what_cannot_be_drawn_is_refused(served: tuple[Client, Path], path: str, status: int) -> None:
    client, _ = served
    assert client.get(f"/api/v1/runs/{path}").status == status


def test_a_run_is_drawn_as_far_as_it_can_be(served: tuple[Client, Path]) -> None:
    client, run = served
    (run / "log.jsonl").write_bytes(lines(HEAD, {"t": "train", "step": 3, "loss": float("inf"), "ppl": True, "lr": float("nan")}))
    assert client.get("/api/v1/runs/mine/drawn").json["updates"]["rows"] == [[3, "–", "–", "–", "–", "–"]]
    (run / "run.json").write_text('{"settings": {"training": 3}}', encoding="utf-8")
    (run / "log.jsonl").unlink()
    found = client.get("/api/v1/runs/mine/drawn").json
    assert (found["charts"], found["samples"], found["updates"]["rows"], found["ended"]) == ([], [], [], True)
    assert found["said"] == "unknown · step 0 · warm-up 4,000 steps"
    (run / "run.json").write_text('{"settings": {"training": {"warmup_steps": null}}}', encoding="utf-8")
    assert client.get("/api/v1/runs/mine/drawn").json["said"] == "unknown · step 0 · warm-up 4,000 steps"


@pytest.mark.parametrize("wrong", [[], {"settings": None}, {"versions": [3]}, {"data": {}}, {"data": [{"path": "x"}]}])
def test_facts_of_another_form_are_damage(tmp_path: Path, wrong: object) -> None:
    (tmp_path / "run.json").write_text(json.dumps(wrong), encoding="utf-8")
    with pytest.raises(DragomanError, match=r"run\.json: not the facts of a run"):
        read_run(tmp_path)


def test_a_log_is_read_on_from_a_byte(served: tuple[Client, Path]) -> None:
    client, run = served
    log = run / "log.jsonl"
    first = client.get("/api/v1/runs/mine").json
    with log.open("ab") as file:
        file.write(lines(train(60)))
        file.write(b'{"t": "train", "step": 80, "lo')  # a writer is in the middle of it
    second = client.get(f"/api/v1/runs/mine?from={first['next']}").json
    assert (second["from"], [row["step"] for row in second["train"]], second["eval"]) == (first["next"], [60], [])
    nothing = client.get(f"/api/v1/runs/mine?from={second['next']}").json
    assert (nothing["train"], nothing["from"], nothing["next"]) == ([], second["next"], second["next"])
    with log.open("ab") as file:
        file.write(b'ss": 1.5}\n')
    third = client.get(f"/api/v1/runs/mine?from={second['next']}").json
    assert third["train"] == [{"step": 80, "loss": 1.5}]
    assert third["next"] == log.stat().st_size


def test_a_log_that_went_back_is_sent_from_its_beginning(served: tuple[Client, Path]) -> None:
    client, run = served
    log = run / "log.jsonl"
    end = log.stat().st_size
    with log.open("ab") as file:
        file.write(lines({"t": "event", "event": "resume", "step": 20}, train(40, loss=1.25)))
    found = client.get(f"/api/v1/runs/mine?from={end}").json
    assert (found["from"], [row["step"] for row in found["train"]], found["train"][-1]["loss"]) == (0, [20, 40], 1.25)
    assert found["eval"] == []
    for start in (end - 5, 10**8):  # within a line, and behind the end: another log than the one that was read
        assert client.get(f"/api/v1/runs/mine?from={start}").json == found
    log.write_bytes(lines(HEAD, train(1)))
    assert client.get(f"/api/v1/runs/mine?from={found['next']}").json["train"] == [{"step": 1, "loss": 8.999, "ppl": 100.5, "lr": 1e-5}]


def test_long_curves_are_thinned_and_what_is_no_number_left_out(served: tuple[Client, Path]) -> None:
    client, run = served
    records = [train(step, grad_norm=float(step % 7), tok_s=float("nan") if step % 2 else 1.5) for step in range(1, 2001)]
    (run / "log.jsonl").write_bytes(lines(HEAD, *records))
    found = client.get("/api/v1/runs/mine").json
    for name in ("loss", "grad_norm", "tok_s"):
        points = [(float(record["step"]), record[name]) for record in records if record[name] == record[name]]
        sent = [(float(row["step"]), row[name]) for row in found["train"] if name in row]
        assert sent == thinned(points)
        assert len(sent) <= 300
    part = client.get(f"/api/v1/runs/mine?from={len(lines(HEAD))}").json
    assert [row["step"] for row in part["train"]] == list(range(1, 2001))


def test_a_log_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Each record comes once, whole and in order, wherever the writer is."""
    run = tmp_path / "mine"
    run.mkdir()
    log = run / "log.jsonl"
    log.write_bytes(b"")
    whole = lines(*(train(step) for step in range(1, 201)))
    done = threading.Event()

    def write() -> None:
        with log.open("ab", buffering=0) as file:
            for place in range(0, len(whole), 37):
                file.write(whole[place : place + 37])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    steps, start = [], 0
    while True:
        last = done.is_set()
        stretch = read_log_from(run, start)
        assert stretch.start == start
        steps += [record["step"] for record in stretch.records]
        start = stretch.end
        if last:
            break
    writer.join()
    assert steps == list(range(1, 201))


def test_a_damaged_run_is_told_as_far_as_it_can_be(served: tuple[Client, Path]) -> None:
    client, run = served
    (run / "run.json").write_text("{", encoding="utf-8")
    (run / "log.jsonl").write_bytes(b'\xff\n{"t": "train"}\n[1]\n' + lines(train(7)))
    found = client.get("/api/v1/runs/mine").json
    assert (found["status"], [row["step"] for row in found["train"]]) == ("unknown", [7])
    (run / "log.jsonl").unlink()
    (run / "run.json").unlink()
    assert client.get("/api/v1/runs/mine").status == 404
    assert client.get("/api/v1/runs").json == {"runs": []}


def test_a_run_without_a_checkpoint_is_watched(made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = begun(tmp_path / "young", train(20))
    with serving(run, device="cpu", watch=True) as client:
        health = client.get("/health")
        assert (health.status, health.json) == (503, {"status": "loading"})
        assert client.get("/api/v1/runs").json["runs"] == [{"name": "young", "pair": "aa-bb", "status": "running", "best_step": None}]
        assert [row["step"] for row in client.get("/api/v1/runs/young").json["train"]] == [20]
        for path in ("/api/v1/models", "/openapi.json"):
            assert (client.get(path).status, client.get(path).error) == (503, "Server is loading")
        assert client.post("/api/v1/explain", {"q": "ona", "source": "aa", "target": "bb"}).error == "Server is loading"
        with_checkpoint(run, made, 20)
        time.sleep(0.05)
        assert client.get("/health").status == 503  # nothing is picked up that was not asked for
        assert client.get("/api/v1/runs/young").json["best_step"] == 20
    with serving(run, device="cpu", watch=True) as client:
        assert client.get("/health").status == 200
        assert client.get("/api/v1/models").json["models"][0]["run"] == "young"


def test_without_watch_a_run_needs_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun(tmp_path / "young")
    assert main(["serve", str(run)]) == 1
    remedy = "serve it once its training has written one, or give --watch to see its curves until then"
    assert capsys.readouterr().err == f"dragoman: {run}: this run has no checkpoint yet; {remedy}\n"
    assert main(["serve", str(tmp_path / "none"), "--watch"]) == 1
    assert "none: no such model; give a run folder" in capsys.readouterr().err
    (run / "checkpoints" / "step-000020").mkdir(parents=True)
    assert main(["serve", str(run)]) == 1
    assert "step-000020: config.json is not there, so this is no checkpoint; put it back, or give another folder" in capsys.readouterr().err


def test_a_watched_run_is_loaded_when_told_to(made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import asyncio

    from dragoman.cli.looking import Looking
    from dragoman.serve.places import find_models
    from dragoman.serve.service import Service
    from dragoman.serve.settings import ServeSettings

    run = begun(tmp_path / "young")

    async def live() -> list[bool]:
        service = Service(ServeSettings(device="cpu", watch=True), [run], say=print, looking=Looking())
        await service.load(find_models([run], watch=True))
        ready = [service.ready]
        await service.reload()
        ready.append(service.ready)
        with_checkpoint(run, made, 20)
        await service.reload()
        ready.append(service.ready)
        shutil.rmtree(run / "checkpoints")  # as by a training that begins anew
        await service.reload()
        ready.append(service.ready and bool(service.models.pairs))
        service.close()
        return ready

    assert asyncio.run(live()) == [False, False, True, True]
    assert f"the models stay as they were: {run}: its checkpoints are gone; ask again once there is one" in caplog.text


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files, made here."""
    place = tmp_path / "web"
    (place / "js").mkdir(parents=True)
    (place / "index.html").write_text("<!DOCTYPE html><title>x</title>", encoding="utf-8")
    (place / "js" / "main.js").write_text("export const ü = 1;\n", encoding="utf-8")
    (place / "secret.txt").write_text("secret", encoding="utf-8")
    (tmp_path / "style.css").write_text("secret", encoding="utf-8")
    monkeypatch.setattr(web, "ROOT", place)
    return place


def test_the_page_is_for_browsers_and_fetches_nothing_from_elsewhere(made: Path, files: Path) -> None:
    with serving(made, device="cpu") as client:
        page = client.get("/", Accept="text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")
        assert (page.status, page.body) == (200, (files / "index.html").read_bytes())
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        script = client.get("/web/js/main.js")
        assert (script.status, script.body) == (200, (files / "js" / "main.js").read_bytes())
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        for answer in (page, script):
            assert answer.headers["content-security-policy"] == (
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
                "form-action 'none'; frame-ancestors 'none'"
            )
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-cache"
            assert "access-control-allow-origin" not in answer.headers
        same = client.get("/web/js/main.js", **{"If-None-Match": f'W/"x", {script.headers["etag"]}'})
        assert (same.status, same.body, same.headers["etag"]) == (304, b"", script.headers["etag"])
        assert client.get("/web/js/main.js", **{"If-None-Match": "*"}).status == 304
        small = client.get("/web/js/main.js", **{"Accept-Encoding": "br, gzip"})
        assert (small.headers["content-encoding"], small.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert gzip.decompress(small.body) == script.body
        assert small.headers["etag"] != script.headers["etag"]
        assert "content-encoding" not in client.get("/web/js/main.js", **{"Accept-Encoding": "gzip;q=0"}).headers
        (files / "js" / "main.js").write_text("export const x = 2;\n", encoding="utf-8")
        assert client.get("/web/js/main.js", **{"If-None-Match": script.headers["etag"]}).body == b"export const x = 2;\n"
        program = client.get("/", Accept="application/json")
        assert (program.status, program.headers["location"]) == (302, "/docs")
        assert client.ask("HEAD", "/", headers={"Accept": "text/html"}).status == 200


@pytest.mark.parametrize(
    "name",
    [
        "",
        "none.js",
        "js",
        "js/",
        "secret.txt",
        "../style.css",
        "%2e%2e/style.css",
        "js/%2e%2e/%2e%2e/style.css",
        "..%5Cstyle.css",
        "%00.js",
    ],
)
def test_other_files_are_not_sent(name: str, made: Path, files: Path) -> None:
    with serving(made, device="cpu") as client:
        answer = client.get(f"/web/{name}")
    assert (answer.status, answer.error) == (404, "Not found")


def test_the_page_below_a_prefix(made: Path, files: Path) -> None:
    with serving(made, device="cpu", url_prefix="/translator") as client:
        base = client.address.removesuffix("/translator")
        client.address = base
        bare = client.get("/translator", Accept="text/html")
        assert (bare.status, bare.headers["location"]) == (302, "/translator/")
        assert client.get("/translator/", Accept="text/html").status == 200
        assert client.get("/translator/web/js/main.js").status == 200
        assert client.get("/web/js/main.js").status == 404


def test_every_file_of_the_page_can_be_asked_for(made: Path) -> None:
    place = Path(str(web.ROOT))
    names = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    if not names:
        pytest.skip("the package has no page")
    assert "index.html" in names
    with serving(made, device="cpu") as client:
        assert {name: client.get(f"/web/{name}").status for name in names} == dict.fromkeys(names, 200)


def test_the_options_reach_the_server(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.cli.looking import Looking

    asked: list[tuple[bool, bool, bool]] = []

    def serve(paths: object, settings: Any, *, say: object, stops: object, looking: object) -> None:
        asked.append((settings.explain, settings.watch, isinstance(looking, Looking)))

    monkeypatch.setattr("dragoman.serve.server.serve", serve)
    assert main(["serve", str(made)]) == 0
    assert main(["serve", str(made), "--no-explain", "--watch"]) == 0
    assert asked == [(True, False, True), (False, True, True)]
