"""Reported faults B63, B65, B41 and B43 at the command line: answers that wait, results mixed with notices, lines that shift."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import COMMAND, but_for_limits, dragoman, environment, tiny_bundle
from dragoman.cli import main
from dragoman.cli.streams import CHUNK_BYTES, arriving_lines, json_line, one_line, open_bytes, open_output
from dragoman.cli.translate import _write_json, _write_n_best, _write_text
from dragoman.decoding.translate import Translation, Translator

LINES = ["ona bek", "tilu", "", "rem sova kip dal"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("models") / "words")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    """Translations of LINES, each from a call of its own."""
    translator = Translator.load(model, device="cpu")
    return [translator.translate([line])[0].text for line in LINES]


class Conversation:
    """A child process with pipes that is asked line by line."""

    def __init__(self, *arguments: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment())

    def ask(self, raw: bytes, *, seconds: float) -> bytes:
        """Send bytes and return the line that comes back; a failure when none does in time."""
        assert self.process.stdin
        assert self.process.stdout
        answer: list[bytes] = []
        self.process.stdin.write(raw)
        self.process.stdin.flush()
        reader = threading.Thread(target=lambda: answer.append(self.process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(seconds)
        assert answer, f"no answer to {raw!r} within {seconds} seconds"
        return answer[0]


@pytest.fixture
def conversation(model: Path) -> Iterator[Conversation]:
    talk = Conversation("translate", str(model), "--device", "cpu")
    yield talk
    talk.process.kill()
    talk.process.communicate()


def test_a_pipe_that_stays_open_is_answered_line_by_line(conversation: Conversation, expected: list[str]) -> None:
    answers = [conversation.ask(f"{LINES[0]}\n".encode(), seconds=60)]
    answers += [conversation.ask(f"{line}\n".encode(), seconds=10) for line in LINES[1:]]
    answers.append(conversation.ask(b"ona bek\nti", seconds=10))
    answers.append(conversation.ask(b"lu\n", seconds=10))
    assert [answer.decode() for answer in answers] == [f"{text}\n" for text in [*expected, expected[0], expected[1]]]
    out, err = conversation.process.communicate()
    assert (out, conversation.process.returncode) == (b"", 0)
    assert err == b"dragoman: warning: 5 translations reached the longest length allowed and may be cut; lines: 1, 2, 4, 5, 6\n"


def test_an_interruption_is_one_line_and_status_130(conversation: Conversation) -> None:
    conversation.ask(b"ona\n", seconds=60)
    conversation.process.send_signal(signal.SIGINT)
    _, err = conversation.process.communicate(timeout=20)
    assert (conversation.process.returncode, but_for_limits(err.decode())) == (130, "dragoman: interrupted\n")


def test_ctrl_c_before_the_first_import_is_done_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = dragoman("--version", variables={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"dragoman: interrupted\n")


@pytest.mark.parametrize("arguments", [["presets"], ["translate"]])
def test_a_closed_pipe_ends_the_program_quietly(arguments: list[str], model: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    if arguments == ["translate"]:
        arguments = ["translate", str(model)]
    done = subprocess.run([*COMMAND, *arguments], input=b"ona\n" * 9, stdout=write_end, stderr=subprocess.PIPE, env=environment())
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_failure() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*COMMAND, "presets"], stdout=full, stderr=subprocess.PIPE, env=environment())
    assert done.returncode == 1
    assert done.stderr.startswith(b"dragoman: ")
    assert done.stderr.count(b"\n") == 1


def test_standard_output_holds_results_only(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without a GPU, with a deprecation warning and a notice on the way."""
    text = tmp_path / "text"
    text.write_text("ona\n" + "bek " * 200 + "\nrem\n")
    translate = Translator.translate

    def warn_and_translate(*arguments: object, **options: object) -> object:
        warnings.warn("forced", DeprecationWarning, stacklevel=1)
        return translate(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Translator, "translate", warn_and_translate)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *place: print(message, file=sys.stderr))
        assert main(["translate", str(model), str(text)]) == 0
        out, err = capfd.readouterr()
        assert out.count("\n") == 3
        assert "forced" in err
        assert re.search(f"^dragoman: warning: {text}, line 2\\b.* 200 tokens.* 63\\b", err, re.MULTILINE)

        assert main(["translate", str(model), str(text), "--quiet"]) == 0
        quiet_out, quiet_err = capfd.readouterr()
        assert (quiet_out, quiet_err) == (out, "")

        assert main(["translate", str(model), str(text)]) == 0
        assert f"dragoman: warning: {text}, line 2" in capfd.readouterr().err, "--quiet is over when its command is"


def test_the_warning_names_the_file_and_counts_its_lines_over_chunks(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.streams.CHUNK_BYTES", 8)
    monkeypatch.setattr("dragoman.cli.windows.CHUNK_BYTES", 8)
    first, second, third = (tmp_path / name for name in ("a", "b", "c.gz"))
    first.write_text("ona\n\nbek\n")
    second.write_text("rem\ntilu\n\n" + "bek " * 100)
    third.write_bytes(gzip.compress(b"rem\n" * 7 + b"bek " * 90))
    assert main(["translate", str(model), *map(str, (first, second, third)), "--json"]) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["line"] for line in out.splitlines()] == list(range(1, 16))
    assert re.search(f"warning: {second}, line 4: 100 tokens.* 63\\b", err)
    assert re.search(f"warning: {third}, line 8: 90 tokens.* 63\\b", err)
    assert but_for_limits(err).splitlines()[2:] == ["dragoman: 2 lines were longer than the model takes, and translated in pieces"]


def variants(lines: list[str]) -> dict[str, bytes]:
    """The same lines as files of several systems."""
    text = "\n".join(lines).encode()
    return {
        "LF": text + b"\n",
        "CRLF": text.replace(b"\n", b"\r\n") + b"\r\n",
        "mixed": text.replace(b"\n", b"\r\n", 2) + b"\n",
        "no last LF": text,
        "mark": b"\xef\xbb\xbf" + text + b"\n",
    }


def test_line_ends_and_marks_do_not_matter(
    model: Path, expected: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    wanted = "".join(f"{text}\n" for text in expected).encode()
    for name, raw in variants(LINES).items():
        for suffix, packed in (("", raw), (".gz", gzip.compress(raw[:9]) + gzip.compress(raw[9:]))):
            path = tmp_path / f"text{suffix}"
            path.write_bytes(packed)
            assert main(["translate", str(model), str(path)]) == 0
            assert capfdbinary.readouterr().out == wanted, (name, suffix)


def test_standard_input_is_read_as_a_file_is(model: Path, expected: list[str]) -> None:
    done = dragoman("translate", model, "-", stdin=b"\xef\xbb\xbf" + variants(LINES)["CRLF"])
    assert (done.returncode, done.stdout.decode()) == (0, "".join(f"{text}\n" for text in expected))
    assert but_for_limits(done.stderr.decode()) == ""


def test_other_breaks_are_characters_of_a_line(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = ["1", "ona\u2028bek", "rem\u0085sova", "dal\x0b\x1ckip", "\u2029", "6\ftilu\rona"]
    text = tmp_path / "text"
    text.write_bytes("".join(f"{line}\n" for line in lines).encode())
    for flags, count in ((["--scores"], 6), (["--json"], 6), (["--n-best", "2"], 11)):
        assert main(["translate", str(model), str(text), *flags]) == 0
        assert len(capfd.readouterr().out.splitlines()) == count, flags
    out, links = tmp_path / "out", tmp_path / "links"
    assert main(["translate", str(model), str(text), "-o", str(out), "--align", str(links), "--quiet"]) == 0
    assert [len(path.read_text("utf-8").splitlines()) for path in (out, links)] == [6, 6]
    assert [len(path.read_bytes().split(b"\n")) for path in (out, links)] == [7, 7]


BROKEN = Translation("a\nb\r\nc\u2028d\u0085e\x0bf\x0cg\rh\x1ci", ("a",), -1.5, -2.0, (-2.0,), "end")


def test_breaks_inside_a_translation_do_not_break_lines() -> None:
    stream = io.StringIO()
    _write_text(stream, 1, BROKEN)
    _write_n_best(stream, 1, BROKEN)
    assert stream.getvalue() == "a b c d e f g h i\n1\t-1.500000\ta b c d e f g h i\n"

    stream = io.StringIO()
    _write_json(stream, 3, BROKEN)
    assert len(stream.getvalue().splitlines()) == 1
    record = json.loads(stream.getvalue())
    assert record["text"] == BROKEN.text
    assert (record["line"], record["score"], record["log_probability"]) == (3, -1.5, -2.0)


@given(st.text())
def test_one_line_is_one_line_to_every_reader(text: str) -> None:
    assert len(f"{one_line(text)}\n".splitlines()) == 1
    assert len(json_line([text]).splitlines()) == 1
    assert json.loads(json_line([text])) == [text]


@given(st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"a", b"\n")), max_size=12))
def test_lines_are_the_same_however_the_bytes_arrive(pieces: list[bytes]) -> None:
    read_end, write_end = os.pipe()
    groups = arriving_lines(read_end, "a pipe")
    lines: list[bytes] = []
    seen = b""
    try:
        for piece in pieces:
            os.write(write_end, piece)
            seen += piece
            if b"\n" in piece:  # whole lines are there, so they come while the pipe is open
                lines += next(groups)
                assert lines == seen.split(b"\n")[:-1]
        os.close(write_end)
        lines += [line for group in groups for line in group]
    finally:
        os.close(read_end)
    wanted = b"".join(pieces).split(b"\n")
    assert lines == (wanted if wanted[-1] else wanted[:-1])


def test_a_large_file_comes_in_large_groups(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"ona bek tilu rem\n" * 200_000)
    descriptor = os.open(path, os.O_RDONLY)
    groups = list(arriving_lines(descriptor, "large"))
    os.close(descriptor)
    assert sum(map(len, groups)) == 200_000
    assert max(map(len, groups)) <= CHUNK_BYTES // 17 + 1
    assert len(groups) == -(-200_000 * 17 // CHUNK_BYTES)


def test_invalid_text_is_named_after_the_lines_before_it(
    model: Path, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"ona bek\ntilu\nre\xffm\nsova\n")
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    for path in (text, packed):
        assert main(["translate", str(model), str(path)]) == 1
        out, err = capfd.readouterr()
        err = but_for_limits(err)
        assert out.splitlines() == expected[:2]
        assert err.startswith(f"dragoman: {path}, line 3: not UTF-8")
        assert err.count("\n") == 1


def test_an_output_file_is_whole_or_keeps_its_old_content(
    model: Path, expected: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, out = tmp_path / "text", tmp_path / "out"
    out.write_text("old\n")
    text.write_bytes(b"ona bek\ntilu\nre\xffm\n")
    assert main(["translate", str(model), str(text), "-o", str(out)]) == 1
    assert out.read_text() == "old\n"
    assert (tmp_path / "out.partial").read_text().splitlines() == expected[:2]
    assert "out.partial" in capfd.readouterr().err

    text.write_text("".join(f"{line}\n" for line in LINES))
    assert main(["translate", str(model), str(text), "-o", str(out)]) == 1, "nothing that was written is lost"
    assert main(["translate", str(model), str(text), "-o", str(out), "--resume", "--quiet"]) == 0
    assert out.read_text() == "".join(f"{line}\n" for line in expected)
    before = text.read_text()
    assert main(["translate", str(model), str(text), "-o", str(text), "--quiet"]) == 2
    assert f"{text}: is to be read and would be written over" in capfd.readouterr().err
    assert text.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text"]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("kind", "written"), [(open_output, "four"), (open_bytes, b"four")])
def test_what_is_written_is_on_the_disk_before_it_has_its_name(
    kind: Callable[[Path], AbstractContextManager[IO[Any]]], written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power cut soon after a translation leaves an empty file."""
    path, synced = tmp_path / "out", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((os.fstat(descriptor).st_size, path.exists())))
    with kind(path) as stream:
        stream.write(written)
    assert synced[0] == (4, False)
    assert path.read_bytes() == b"four"


@pytest.mark.parametrize("place", ["missing/out", "."])
def test_an_output_that_cannot_be_written_is_named(place: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("ona\n")
    assert main(["translate", str(model), str(tmp_path / "text"), "-o", str(tmp_path / place)]) == 1
    err = capfd.readouterr().err
    assert str(tmp_path / place).rstrip(".") in err
    assert err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("verb", ["translate", "evaluate"])
def test_an_output_on_a_full_disk_is_named(verb: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("ona\n")
    texts = [str(tmp_path / "text")] if verb == "translate" else ["--test", f"{tmp_path / 'text'},{tmp_path / 'text'}", "--quiet"]
    assert main([verb, str(model), *texts, "-o", "/dev/full"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("dragoman: /dev/full: cannot write: ")
    assert err.count("\n") == 1


def test_a_missing_input_stops_before_anything_is_done(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("ona\n")
    assert main(["translate", str(model), str(tmp_path / "text"), str(tmp_path / "nowhere")]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"dragoman: {tmp_path / 'nowhere'}: no such file")


def test_empty_input_gives_empty_output(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(b"")
    assert main(["translate", str(model), str(tmp_path / "text")]) == 0
    assert capfd.readouterr() == ("", "")


def test_n_best_and_scores(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("ona bek\n\ntilu\n")
    arguments = ["translate", str(model), str(tmp_path / "text"), "--beam", "3"]
    best = Translator.load(model, device="cpu").translate(["ona bek", "", "tilu"], beam=3, n_best=3)

    assert main([*arguments, "--n-best", "3"]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [int(row[0]) for row in rows] == [1, 1, 1, 2, 3, 3, 3]
    flat = [each for translation in best for each in (translation, *translation.alternatives)]
    assert [row[2] for row in rows] == [each.text for each in flat]
    assert [float(row[1]) for row in rows] == pytest.approx([each.score for each in flat], abs=1e-5)

    assert main([*arguments, "--scores"]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert [(pytest.approx(float(row[0]), abs=1e-5), row[1]) for row in rows] == [(each.score, each.text) for each in best]

    assert main([*arguments, "--n-best", "3", "--json"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert [len(record["alternatives"]) for record in records] == [2, 0, 2]
    assert [record["text"] for record in records] == [each.text for each in best]
    for record in (records[0], *records[0]["alternatives"]):
        tokens = len(record["tokens"])
        assert len(record["token_scores"]) == tokens
        assert record["log_probability"] == pytest.approx(sum(record["token_scores"]), abs=1e-4)
        assert record["score"] == pytest.approx(record["log_probability"] / ((5 + tokens) / 6) ** 0.6, abs=1e-4)

    assert main([*arguments, "--n-best", "4"]) == 2
    assert "--n-best=4" in capfd.readouterr().err
