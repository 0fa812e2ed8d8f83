"""Reported fault B49: UTF-8 in and out whatever the locale, for texts, arguments, file names and messages."""

import json
import sys
from pathlib import Path

import pytest

from command_line import dragoman, tiny_bundle

TEXT = "élan ñu łąka 東京 🐟"
PLAIN_LOCALE = {"LC_ALL": "C", "LANG": "", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
UTF8_LOCALE = {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locales")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with letters and a space in its name that holds a model, a text and a test set."""
    folder = tmp_path_factory.mktemp("encoding") / "ä b"
    tiny_bundle(folder / "modèle")
    (folder / "δ.txt").write_text(f"{TEXT}\n🐟 ona\n", encoding="utf-8")
    (folder / "é.aa").write_text(f"{TEXT}\n", encoding="utf-8")
    (folder / "é.bb").write_text("東京 🐟\n", encoding="utf-8")
    return folder


def test_text_and_paths_are_the_same_in_both_locales(folder: Path) -> None:
    arguments = ("translate", folder / "modèle", folder / "δ.txt", "-", "--json", "-o", folder / "ö.jsonl", "--quiet")
    results = []
    for locale in (PLAIN_LOCALE, UTF8_LOCALE):
        done = dragoman(*arguments, stdin=f"{TEXT}\n".encode(), variables=locale)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        results.append((folder / "ö.jsonl").read_bytes())
        (folder / "ö.jsonl").unlink()
    assert results[0] == results[1]
    records = [json.loads(line) for line in results[0].decode().splitlines()]
    assert len(records) == 3
    assert records[0]["text"] == records[2]["text"], "file and standard input are read alike"


def test_documents_are_utf8(folder: Path) -> None:
    done = dragoman("score", folder / "modèle", "--test", folder / "é", "--json", "--quiet", variables=PLAIN_LOCALE)
    assert (done.returncode, done.stderr) == (0, b"")
    record = json.loads(done.stdout.decode())
    assert (record["source"], record["target"], record["tokens"]) == (TEXT, "東京 🐟", ["東京", "🐟", "</s>"])
    assert "東京".encode() in done.stdout


def test_messages_are_utf8(folder: Path) -> None:
    done = dragoman("presets", "größte", variables=PLAIN_LOCALE)
    assert done.returncode == 2
    assert "größte" in done.stderr.decode()

    done = dragoman("translate", folder / "modèle", folder / "ungültig", variables=PLAIN_LOCALE)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"dragoman: {folder / 'ungültig'}: no such file")


def test_a_name_that_is_not_utf8_is_said_in_utf8(tmp_path: Path) -> None:
    done = dragoman("inspect", b"\xff\xfe".decode("utf-8", "surrogateescape"), variables=UTF8_LOCALE, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("dragoman: \\udcff\\udcfe: no such file")
