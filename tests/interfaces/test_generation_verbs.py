"""`dragoman generate`, `fill`, `embed` and `score` as a user types them for models of one sequence, and what other verbs say of these."""

import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dragoman.bundle import load_bundle, save_bundle
from dragoman.cli import main
from dragoman.cli.generate import _Writer
from dragoman.decoding.embed import embed
from dragoman.decoding.fill import pseudo_score
from dragoman.decoding.generate import Continuation, Generator
from dragoman.decoding.generation_options import GenerationOptions
from dragoman.decoding.likelihood import score_lines
from language_models import BERT, LLAMA, SENTENCE, WORDS, random_bundle, storyteller

Run = Callable[..., str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_bundle(storyteller(), folder / "story")
    save_bundle(random_bundle(LLAMA), folder / "llama")
    save_bundle(random_bundle(BERT), folder / "bert")
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("ona bek\n\ntilu\u2028rem <mask>\n", encoding="utf-8")
    return tmp_path / "text"


def test_one_prompt_is_printed_with_what_follows(models: Path, run: Run) -> None:
    assert run("generate", models / "story", "Once upon", "--temperature", "0") == f"{SENTENCE}\n"
    assert run("generate", models / "story", "Once upon", "--beam", "2", "--no-prompt") == f"{SENTENCE.removeprefix('Once upon')}\n"
    assert run("generate", models / "story", "Once", "--temperature", "0", "--stop", "swam", "--stop", "x") == "Once upon a time 🐟 \n"
    assert run("generate", models / "story", "Once", "--temperature", "0", "--max-tokens", "2") == "Once upon a\n"
    two = run("generate", models / "llama", "ona", "--n", "2", "--max-tokens", "6", "--seed", "3").split("---------------\n")
    wanted = Generator(random_bundle(LLAMA)).generate(["ona"], GenerationOptions(n=2, max_tokens=6, seed=3))[0]
    assert two == [f"ona{each.text}\n" for each in wanted]


def test_lines_in_lines_out(models: Path, run: Run, text: Path) -> None:
    lines = run("generate", models / "llama", "--file", text, "--top-k", "3", "--max-tokens", "5").split("\n")
    assert len(lines) == 4
    assert lines[0].startswith("ona bek ")
    assert lines[2].startswith("tilu rem <mask> ")
    numbered = run("generate", models / "llama", "-f", text, "--n", "2", "--max-tokens", "5").splitlines()
    assert [line.split("\t")[0] for line in numbered] == ["1", "1", "2", "2", "3", "3"]
    output = text.with_name("out")
    assert run("generate", models / "llama", "-f", text, "--top-k", "3", "--max-tokens", "5", "-o", output) == ""
    assert output.read_text("utf-8").split("\n") == lines


def test_one_object_for_each_continuation(models: Path, run: Run, text: Path) -> None:
    records = [json.loads(line) for line in run("generate", models / "llama", "-f", text, "--n", "2", "--json").splitlines()]
    assert [(each["line"], each["number"]) for each in records] == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    assert records[4]["prompt"] == "tilu\u2028rem <mask>"
    wanted = Generator(random_bundle(LLAMA)).generate(["ona bek"], GenerationOptions(n=2))[0]
    for found, each in zip(records, wanted, strict=False):
        assert (found["text"], found["tokens"], found["stop"]) == (each.text, list(each.tokens), each.stop)
        assert found["token_scores"] == pytest.approx(each.token_scores, abs=1e-4)
        assert found["log_probability"] == pytest.approx(sum(found["token_scores"]))
    (one,) = [json.loads(line) for line in run("generate", models / "story", "Once", "--json", "--no-prompt").splitlines()]
    assert "prompt" not in one


class Shown(io.StringIO):
    """What was on the screen each time it was refreshed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def flush(self) -> None:
        self.seen.append(self.getvalue())


def test_text_is_shown_as_it_comes(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Shown()
    monkeypatch.setattr("sys.stdout", screen)
    assert main(["generate", str(models / "story"), "Once upon", "--temperature", "0"]) == 0
    assert screen.seen[0] == "Once upon"
    assert len(set(screen.seen)) > 8
    assert all(f"{SENTENCE}\n".startswith(seen) for seen in screen.seen)


@contextmanager
def standard_input(text: str) -> Iterator[None]:
    """While the block runs, a pipe that holds this text is the standard input."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    yield
    os.dup2(before, 0)
    os.close(reader)


def test_prompts_come_from_a_pipe_too(models: Path, run: Run) -> None:
    for prompt in (["-"], []):
        with standard_input("Once upon\nOnce upon a\n"):
            assert run("generate", models / "story", *prompt, "--temperature", "0") == f"{SENTENCE}\n{SENTENCE}\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["generate", "story", "x", "--beam", "2", "--temperature", "1"], 2, "--temperature=1.0 with --beam=2: a search draws nothing"),
        (["generate", "story", "x", "--file", "y"], 2, "a PROMPT and --file: give one of them"),
        (["generate", "story", "--file", "nowhere"], 1, "nowhere: no such file"),
        (["generate", "bert", "x"], 1, "encoder-only, and not one that goes on with a text: use dragoman fill or dragoman embed"),
        (["generate", "llama", f"{WORDS} {WORDS} {WORDS}"], 1, "the prompt has 46 tokens, and the model's 32 positions take at most 31"),
        (["fill", "bert", "ona"], 1, "line 1 has nothing to fill in; write <mask> where a token is missing"),
        (["fill", "story", "x"], 1, "decoder-only, and not one that fills in what is masked: use dragoman generate"),
        (["embed", "bert", "text", "--pool", "max"], 2, "--pool max: unknown; choose among mean, first, pooler"),
        (["embed", "story", "text", "--pool", "pooler"], 1, "a decoder has no pooler; choose mean"),
        (
            ["embed", "bert", "text", "-o", "none/v.npz"],
            1,
            "none/v.npz: cannot write: No such file or directory; make its folder first, or give another file",
        ),
        (["score", "bert", "--test", "text", "--alpha", "1"], 2, "--alpha: a pseudo-likelihood has no length penalty"),
        (["score", "llama", "--test", "nowhere"], 1, "nowhere: no such file; the model is decoder-only, so give text files"),
        (["score", "llama", "--test", "text", "--ensemble", "gpt"], 2, "llama is decoder-only; leave it out"),
        (["translate", "story", "text"], 1, "decoder-only, and not one that translates: use dragoman generate"),
        (["translate", "bert", "text"], 1, "encoder-only, and not one that translates: use dragoman fill or dragoman embed"),
        (["evaluate", "story", "--test", "pairs.tsv"], 1, "decoder-only, and not one that translates: use dragoman generate"),
        (["compare", "story", "bert", "--test", "pairs.tsv"], 1, "decoder-only, and not one that translates: use dragoman generate"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    models: Path,
    text: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    said: str,
) -> None:
    monkeypatch.chdir(text.parent)
    Path("pairs.tsv").write_text("a\tb\n", encoding="utf-8")
    arguments = [str(models / each) if each in ("story", "llama", "bert") else each for each in arguments]
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_what_was_written_before_a_signal_is_kept_and_said(
    models: Path, text: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, write = text.with_name("out"), _Writer.write_lines

    def write_and_end(self: _Writer, number: int, prompt: str, some: list[Continuation]) -> None:
        write(self, number, prompt, some)
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(_Writer, "write_lines", write_and_end)
    assert main(["generate", str(models / "llama"), "-f", str(text), "--max-tokens", "2", "-o", str(output)]) == 143
    partial = output.with_name("out.partial")
    assert capfd.readouterr().err.splitlines() == [
        f"dragoman: warning: {partial}: holds what was written before the failure", "dragoman: terminated"
    ]  # fmt: skip
    assert partial.read_text("utf-8").count("\n") == 2
    assert not output.exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("model", "good", "bad", "said", "options"),
    [
        ("llama", "ona bek", f"{WORDS} {WORDS} {WORDS}", "tokens, and the model's 32 positions take at most 31", ["generate", "-f"]),
        ("bert", "ona <mask>", "ona", "has nothing to fill in", ["fill"]),
        ("bert", "ona bek", f"{WORDS} {WORDS} {WORDS}", "tokens and the model takes", ["embed"]),
    ],
)
def test_a_line_that_cannot_be_used_is_named_and_those_before_it_are_done(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], model: str, good: str, bad: str, said: str, options: list[str]
) -> None:
    verb, *before = options
    text = f"{good}\n{good} bek\n{bad}\n{good}\n"
    (tmp_path / "text").write_text(text, encoding="utf-8")
    place = [] if verb == "fill" else [*before, str(tmp_path / "text")]
    with standard_input(text):
        assert main([verb, str(models / model), *place, "--json"] if verb != "embed" else [verb, str(models / model), *place]) == 1
    out, err = capfd.readouterr()
    assert [json.loads(line)["line"] for line in out.splitlines()] == [1, 2]
    assert "line 3" in err
    assert said in err
    assert err.count("\n") == 1


def test_full_positions_are_said_and_slide_goes_on(models: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", models / "llama", "ona bek", "--temperature", "0", "--min-tokens", "28", "--max-tokens", "60"]
    assert main([*map(str, arguments)]) == 0
    assert "dragoman: 1 text ended because the model's 32 positions were full; --slide N goes on" in capsys.readouterr().err
    assert len(run(*arguments, "--slide", "20", "--min-tokens", "50").split()) > 50


def test_fill_prints_a_line_for_each_token(models: Path, run: Run) -> None:
    lines = [line.split("\t") for line in run("fill", models / "bert", "ona <mask> bek", "-k", "2").splitlines()]
    assert [sentence for _, _, sentence in lines] == [f"ona {token} bek" for _, token, _ in lines]
    two = [line.split("\t") for line in run("fill", models / "bert", "<mask> ona <mask>", "-k", "3").splitlines()]
    assert [mask for mask, *_ in two] == ["1", "1", "1", "2", "2", "2"]
    document = json.loads(run("fill", models / "bert", "<mask> ona <mask>", "--json"))
    assert [each["token"] for each in document["masks"][1]][:3] == [token for _, _, token, _ in two[3:]]
    with standard_input("ona <mask>\n<mask> bek\n"):
        assert [line.split("\t")[0] for line in run("fill", models / "bert", "-k", "1").splitlines()] == ["1", "2"]


def test_embed_gives_a_vector_for_each_line(models: Path, run: Run, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = text.read_text("utf-8").removesuffix("\n").split("\n")
    wanted = embed(load_bundle(models / "bert"), texts, pool="pooler", normalize=True)
    options = ["--pool", "pooler", "--normalize"]
    records = [json.loads(line) for line in run("embed", models / "bert", text, *options).splitlines()]
    assert [each["line"] for each in records] == [1, 2, 3]
    np.testing.assert_allclose([each["embedding"] for each in records], wanted.numpy(), atol=1e-6)
    run("embed", models / "bert", text, "-o", text.with_name("v.npz"), *options)
    with np.load(text.with_name("v.npz")) as arrays:
        np.testing.assert_allclose(arrays["embeddings"], wanted.numpy(), atol=1e-6)
    assert sorted(path.name for path in text.parent.iterdir()) == ["text", "v.npz"]
    nowhere = text.with_name("nowhere") / "v.npz"
    assert main(["embed", str(models / "bert"), str(text), "-o", str(nowhere)]) == 1
    assert f"{nowhere}: cannot write: No such file or directory; make its folder first, or give another file" in capsys.readouterr().err


def test_score_says_how_probable_each_line_is(models: Path, run: Run, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = text.read_text("utf-8").removesuffix("\n").split("\n")
    for name, found in (
        ("llama", score_lines(load_bundle(models / "llama"), texts)),
        ("bert", pseudo_score(load_bundle(models / "bert"), texts)),
    ):
        assert main(["score", str(models / name), "--test", str(text)]) == 0
        out, err = capsys.readouterr()
        assert [line.split("\t") for line in out.splitlines()] == [[f"{each.log_probability:.6f}", str(len(each.tokens))] for each in found]
        assert err.startswith(f"dragoman: {'pseudo-' if name == 'bert' else ''}perplexity ")
        document = json.loads(run("score", models / name, "--test", text, "--perplexity", "--json"))
        total, ends = sum(each.log_probability for each in found), 3 * (name == "llama")
        counts = {"lines": 3, "tokens": sum(len(each.tokens) for each in found), "words": 5 + ends, "bytes": 24 + ends}
        assert {key: document[key] for key in counts} == counts
        for unit in ("token", "word", "byte"):
            assert document[f"perplexity_per_{unit}"] == pytest.approx(np.exp(-total / counts[f"{unit}s"]), rel=1e-5)
        assert [json.loads(line)["text"] for line in run("score", models / name, "--test", text, "--json").splitlines()] == texts


def test_inspect_knows_what_kind_of_model_it_is(models: Path, run: Run) -> None:
    facts = dict(line.split(maxsplit=1) for line in run("inspect", models / "bert").splitlines())
    assert facts["architecture"] == "encoder-only"
    assert facts["language"] == "aa"
    assert facts["sizes"].startswith("2 layers, d_model 24")
    assert facts["mask"] == "<mask>"
    assert "looks wrong     nothing" in run("inspect", models / "story")


def test_inspect_writes_the_whole_numbers_of_a_model_with_commas_as_those_of_its_run(models: Path, run: Run, tmp_path: Path) -> None:
    shutil.copytree(models / "bert", tmp_path / "bert")
    file = tmp_path / "bert" / "config.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps({**written, "info": {"step": 6500, "target_tokens": 12463203, "note": "6500"}}))
    facts = dict(re.split("  +", line, maxsplit=1) for line in run("inspect", tmp_path / "bert").splitlines())
    assert (facts["step"], facts["target tokens"], facts["note"]) == ("6,500", "12,463,203", "6500")
