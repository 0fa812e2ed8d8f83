"""``dragoman serve`` as a process: what it says, how it ends, and what stands in its way; keys, limits, new checkpoints."""

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line import COMMAND, environment, tiny_bundle
from dragoman.bundle import mark_checkpoint
from dragoman.cli import main
from dragoman.data.tokenizer import Tokenizer
from dragoman.serve.front import is_logged
from dragoman.serve.models import Models
from dragoman.serve.server import serve
from dragoman.serve.settings import ServeSettings
from dragoman.serve.stops import Stops
from serving import Client, bundle_of, echoing, serving


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("models") / "made")


@contextmanager
def started(*arguments: str | Path, said: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Client]]:
    """The command with its standard error in a file, once it listens."""
    with said.open("wb") as errors, subprocess.Popen(
        [*COMMAND, "serve", *map(str, arguments), "--port", "0"], stdout=subprocess.PIPE, stderr=errors, env=environment()
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + 100
            while b"ready: " not in said.read_bytes() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            line = said.read_text("utf-8").splitlines()[0]
            yield process, Client(line.partition("listening on ")[2].partition(",")[0])
        finally:
            process.kill()


def test_a_run_is_served_reloaded_and_ended(made: Path, tmp_path: Path) -> None:
    run, said = tmp_path / "run", tmp_path / "said"
    for step in (100, 200):
        folder = run / "checkpoints" / f"step-{step:06}"
        shutil.copytree(made, folder)
        document = json.loads((folder / "config.json").read_bytes())
        document["info"]["step"] = step
        (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    mark_checkpoint(run, "best", run / "checkpoints" / "step-000100")
    with started(run, "--device", "cpu", said=said) as (process, client):
        (model,) = client.get("/api/v1/models").json["models"]
        assert (model["run"], model["step"], model["pairs"]) == ("run", 100, [{"source": "aa", "target": "bb"}])
        mark_checkpoint(run, "best", run / "checkpoints" / "step-000200")
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while client.get("/api/v1/models").json["models"][0]["step"] != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert client.get("/api/v1/models").json["models"][0]["step"] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b""
    lines = said.read_text("utf-8").splitlines()
    notices = [line for line in lines if not line.startswith("{")]
    assert notices[0].startswith("dragoman: listening on http://127.0.0.1:")
    assert notices[1:3] == ["dragoman: ready: aa-bb", "dragoman: loaded again: run step 200"]
    assert notices[-1] == "dragoman: stopped"
    assert {json.loads(line)["route"] for line in lines if line.startswith("{")} == {"/api/v1/models"}


def test_what_stands_in_the_way_is_one_line(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = shutil.copytree(made, tmp_path / "other")
    broken = shutil.copytree(made, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"none")
    nameless = bundle_of(shutil.copytree(made, tmp_path / "x"), "", "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, status, fault in (
            ([made, "--port", port], 1, f"127.0.0.1:{port}: cannot listen there (Address already in use); give another --port"),
            ([made, "--host", "192.0.2.1"], 1, "192.0.2.1:5000: cannot listen there"),
            ([made, "--host", "no host"], 1, "no host: no address of this machine"),
            ([tmp_path / "nowhere"], 1, "nowhere: no such model"),
            ([broken, "--port", 0], 1, "broken: cannot load this model: model.safetensors is not a whole safetensors file"),
            ([made, other], 2, "other: translates aa-bb as"),
            ([nameless], 1, "the model does not say its languages"),
            ([made, "--keys", tmp_path / "none.json"], 1, "none.json: cannot read the keys"),
            ([made, "--url-prefix", "mt"], 2, "url_prefix=mt: it must begin with /"),
        ):
            assert main(["serve", *map(str, arguments)]) == status, fault
            out, err = capsys.readouterr()
            assert out == ""
            assert fault in err.splitlines()[-1]
            assert len(err.splitlines()) <= 2


def test_without_the_extra_nothing_of_it_is_imported_and_serve_says_what_to_install() -> None:
    program = """\
import sys, dragoman.cli.serve, dragoman.cli.keys
print(sorted({"starlette", "uvicorn", "torch"} & set(sys.modules)))
sys.modules["uvicorn"] = None
sys.exit(dragoman.cli.main(["serve", "anything"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout) == (1, "[]\n")
    assert done.stderr == "dragoman: serving needs the package uvicorn; pip install 'dragoman[serve]'\n"


IDLE = """\
import sys
from pathlib import Path
from dragoman.cli.looking import Looking
from dragoman.serve.server import serve
from dragoman.serve.settings import ServeSettings

def ready(running):
    print(*sorted(sys.modules))
    running.stop()

serve([Path(sys.argv[1])], ServeSettings(port=0, device="cpu"), say=print, ready=ready, looking=Looking())
"""


def test_an_idle_server_has_not_imported_what_only_some_requests_need(made: Path) -> None:
    done = subprocess.run([sys.executable, "-c", IDLE, str(made)], capture_output=True, text=True, env=environment(), check=True)
    imported = set(done.stdout.split())
    assert {"torch", "dragoman.serve.server", "dragoman.decoding.translate"} <= imported
    unneeded = {"rich", "sacrebleu", "sympy", "torch._dynamo", "html.parser", "babel"}
    unneeded |= {f"dragoman.{name}" for name in ("training.report", "training.trainer", "serve.openapi", "serve.docs_page")}
    assert imported & unneeded == set()
    assert {name for name in imported if name.startswith(("dragoman.explain", "dragoman.evaluation", "dragoman.interop"))} == set()


def test_a_poll_that_is_answered_is_not_logged(made: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with started(made, "--device", "cpu", said=said) as (process, client):
        for _ in range(3):
            assert (client.get("/health").status, client.get("/livez").status) == (200, 200)
        assert client.get("/health", Host="rebound.example").status == 403
        assert client.get("/health?verbose=2").status == 400
        assert client.get("/languages").status == 200
        assert 'requests_total{route="/health",status="200"} 3' in client.get("/metrics").body.decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    lines = said.read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    assert [(entry["route"], entry["status"]) for entry in entries] == [
        ("/health", 403), ("/health", 400), ("/languages", 200), ("/metrics", 200),
    ]  # fmt: skip
    assert all(line.startswith("dragoman: ") for line in lines if not line.startswith("{"))
    # 503: the models are being read.
    assert [is_logged("/health", status) for status in (200, 503, 500)] == [False, False, True]
    assert [is_logged("/translate", status) for status in (200, 503, 500)] == [True, True, True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["torch", "dragoman.serve.server", "dragoman.serve.detect"])
def test_a_signal_amid_the_imports_ends_it_in_peace(module: str, number: signal.Signals, made: Path) -> None:
    """Ctrl-C there used to be lost, to leave with a fault of the import, or to kill the process; SIGTERM to kill it."""
    program = """\
import builtins, os, sys
from dragoman.cli import main
number, module, model = int(sys.argv[1]), sys.argv[2], sys.argv[3]

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, Finder())
sys.exit(main(["serve", model, "--port", "0", "--device", "cpu"]))
"""
    command = [sys.executable, "-c", program, str(int(number)), module, str(made)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "dragoman: stopped\n")


def test_a_server_that_is_told_to_stop_does_not_wait_for_its_models(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def load(cls: type[Models], places: object, **_: object) -> Models:
        os.kill(os.getpid(), signal.SIGTERM)
        go_on.wait(30)
        return Models([])

    monkeypatch.setattr(Models, "load", classmethod(load))
    began = time.monotonic()
    with Stops() as stops:
        serve([bundle_of(made, "en", "nl")], ServeSettings(port=0), say=print, stops=stops)
    assert time.monotonic() - began < 10
    go_on.set()


def test_sighup_while_it_starts_is_nothing_and_one_signal_is_told_once() -> None:
    """Without models there is nothing to read again; a server that is told twice to stop does so at once, in the midst of answers."""
    before = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
    told: list[int] = []
    with Stops() as stops:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stops.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops.asked
        with stops.told_to(lambda: told.append(1)):
            assert told == [1]
            os.kill(os.getpid(), signal.SIGTERM)
            assert told == [1, 1]
    assert [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)] == before


@pytest.mark.parametrize("place", ["find_models", "Service"])
def test_a_signal_before_the_models_are_read_ends_it_too(place: str, made: Path) -> None:
    program = """\
import os, signal, sys
from dragoman.cli import main
from dragoman.serve import server

inner = getattr(server, sys.argv[1])

def outer(*arguments, **others):
    os.kill(os.getpid(), signal.SIGINT)
    return inner(*arguments, **others)

setattr(server, sys.argv[1], outer)
sys.exit(main(["serve", sys.argv[2], "--port", "0", "--device", "cpu"]))
"""
    command = [sys.executable, "-c", program, place, str(made)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=100)
    assert (done.returncode, done.stdout) == (0, "")
    said = done.stderr.splitlines()
    assert said[0].startswith("dragoman: listening on ")
    assert said[-1] == "dragoman: stopped"
    assert not [line for line in said if "ready" in line or "Error" in line]


def test_what_loading_leaves_is_collected_in_the_thread_that_computes(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    collect = gc.collect
    monkeypatch.setattr("dragoman.serve.service.gc.collect", lambda: threads.append(threading.current_thread().name) or collect())
    monkeypatch.setattr("dragoman.serve.service.give_back_memory", lambda: threads.append(threading.current_thread().name))
    with serving(made, device="cpu"):
        assert threads == ["dragoman-engine"] * 2


def test_what_serves_is_imported_without_looking_for_garbage_and_leaves_no_source_text(tmp_path: Path) -> None:
    program = """\
import gc, json, linecache, sys
from pathlib import Path

collecting = {}

class Spy:
    @staticmethod
    def find_spec(name, *others):
        collecting[name] = gc.isenabled()

sys.meta_path.insert(0, Spy)
from dragoman.cli.serve import _serve
from dragoman.errors import DragomanError
from dragoman.serve.stops import Stops

try:
    _serve([Path(sys.argv[1])], {}, say=print, stops=Stops())
except DragomanError as error:
    said = str(error)
names = ("dragoman.serve.stops", "torch", "torch.nn", "dragoman.serve.server", "uvicorn")
sources = [name for name in linecache.cache if "torch" in name]
print(json.dumps([said, [collecting[name] for name in names], gc.isenabled(), gc.get_freeze_count() > 10_000, sources]))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=100, check=True)
    said, collecting, enabled, frozen, sources = json.loads(done.stdout)
    assert said.startswith(f"{tmp_path / 'nowhere'}: no such model")
    assert collecting == [True, False, False, False, False]
    assert (enabled, frozen, sources) == (True, True, [])


def test_the_vocabulary_of_a_model_is_read_once_and_goes_with_it(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.serve.server import Running, serve
    from dragoman.serve.settings import ServeSettings

    read: list[weakref.ref[Tokenizer]] = []
    seen: list[object] = []
    load = Tokenizer.load

    def counting(path: Path) -> Tokenizer:
        tokenizer = load(path)
        read.append(weakref.ref(tokenizer))
        return tokenizer

    def after_another_loading(server: Running) -> None:
        seen.append(len(read))
        os.kill(os.getpid(), signal.SIGHUP)
        deadline = time.monotonic() + 60
        while (len(read) < 2 or read[0]() is not None) and time.monotonic() < deadline:
            time.sleep(0.05)
        seen.append([each() is not None for each in read])
        server.stop()

    monkeypatch.setattr(Tokenizer, "load", counting)
    settings = ServeSettings(port=0, device="cpu")
    serve([made], settings, say=print, ready=lambda server: threading.Thread(target=after_another_loading, args=[server]).start())
    assert seen == [1, [False, True]]


def test_keys_have_their_own_limits(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, base = tmp_path / "keys.json", {"source": "aa", "target": "bb"}
    keys = []
    for name, limits in (("small", ["--req-limit", "2", "--char-limit", "10"]), ("plain", [])):
        assert main(["keys", "add", name, "--keys", str(path), *limits]) == 0
        keys.append(capsys.readouterr().out.strip())
    with echoing(made, keys=path, char_limit=20, req_limit=3) as client:
        answer = client.post("/translate", {"q": "a", **base})
        assert (answer.status, answer.error) == (403, "An API key is required")
        answer = client.post("/translate", {"q": "a", "api_key": "wrong", **base})
        assert (answer.status, answer.error) == (403, "Invalid API key")
        small, plain = ({"api_key": key, **base} for key in keys)
        assert client.post("/translate", {"q": "x" * 11, **small}).error == "Invalid request: request (11) exceeds text limit (10)"
        assert client.post("/translate", {"q": "x" * 10, **small}).status == 200
        answer = client.post("/translate", {"q": "x", **small})
        assert (answer.status, answer.error) == (429, "Slowdown: 2 per 1 minute")
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        assert client.post("/translate", {"q": "x" * 20, **plain}).status == 200
        assert client.post("/translate", {"q": "x", **base}, Authorization=f"Bearer {keys[1]}").status == 200
        assert client.get("/languages").status == 200
        assert client.get("/frontend/settings").json["keyRequired"] is True
        files = client.multipart("/translate_file", {"file": ("a.txt", b"x"), **plain})
        assert client.get(files.json["translatedFileUrl"].removeprefix(client.address)).status == 200
        assert client.post("/translate", {"q": "x", **plain}).status == 429
        assert main(["keys", "remove", "plain", "--keys", str(path)]) == 0
        assert client.post("/translate", {"q": "x", **plain}).error == "Invalid API key"


def test_a_loop_gives_way_to_the_best_that_is_none(made: Path) -> None:
    from dataclasses import replace

    from dragoman.serve.engine import Ask, translate_together
    from dragoman.serve.models import Place
    from serving import Echo, echoes

    model = echoes([Place.find(made)]).models[0]
    echo = model.translator
    assert isinstance(echo, Echo)
    whole = echo.translate

    def looping(texts: list[str], *, n_best: int = 1, **others: object) -> list[object]:
        found = whole(texts, n_best=n_best)
        return [
            replace(
                each,
                stop="repetition" if each.text == "ha" else "end",
                alternatives=tuple(
                    replace(other, stop="repetition" if rank == 0 else "end") for rank, other in enumerate(each.alternatives)
                ),
            )
            for each in found
        ]

    echo.translate = looping  # type: ignore[method-assign, assignment]
    found = translate_together(model, ["ona", "ha"], Ask(n_best=2), batch_tokens=100)
    assert [(each.translation.text, each.looped) for each in found] == [("ona", False), ("ha (2)", True)]
    assert [each.text for each in found[1].translation.alternatives] == ["ha (3)"]


def test_a_tag_of_a_model_for_several_languages_is_a_target(tmp_path: Path) -> None:
    from dragoman.bundle import Bundle, save_bundle
    from dragoman.data.tokenizer import Tokenizer
    from small_bundles import WORDS, make_bundle

    tokenizer = Tokenizer.train([" ".join(WORDS)], kind="whitespace", vocabulary_size=60, tags=["de", "pt_BR"])
    bundle = make_bundle(tokenizer, tokenizer)
    config = bundle.config.with_values(data={"source": "en", "target": "mul"})
    save_bundle(Bundle(config, bundle.model, tokenizer, tokenizer, {"step": 1}), tmp_path / "tagged")
    with serving(tmp_path / "tagged", device="cpu") as client:
        assert client.get("/languages").json[1] == {"code": "en", "name": "English", "targets": ["de", "pt-br"]}
        answers = [client.post("/translate", {"q": "ona bek", "source": "en", "target": code}).json for code in ("de", "pt-BR")]
        from dragoman.decoding.translate import Translator

        expected = Translator(bundle).translate([">>de<< ona bek", ">>pt_BR<< ona bek"])
        assert [answer["translatedText"] for answer in answers] == [each.text for each in expected]


def test_more_connections_than_files_are_told_once_and_wait(made: Path, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="no limits on this system")
    if not hasattr(resource, "prlimit"):
        pytest.skip("no limits of other processes on this system")
    said = tmp_path / "said"
    with started(made, "--device", "cpu", said=said) as (process, client):
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == min(hard, 65_536) or hard == resource.RLIM_INFINITY  # it allows itself what it may
        files = len(list(Path(f"/proc/{process.pid}/fd").iterdir())) + 20
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
        crowd = [socket.create_connection(client.place, timeout=10) for _ in range(60)]
        time.sleep(2.5)  # in which it tries again
        for connection in crowd:
            connection.close()
        assert client.get("/health").status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    told = [line for line in said.read_text("utf-8").splitlines() if not line.startswith("{")]
    assert [line for line in told if "too many connections" in line] == [
        "dragoman: warning: too many connections (Too many open files): others wait until some end; allow more files with `ulimit -n`"
    ]
    assert len(told) == 5, told[:10]
