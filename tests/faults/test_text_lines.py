"""Reported faults of lines and encodings, where text is read."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.data.corpus import Corpus
from dragoman.data.formats.lines import decode_line, read_lines, split_lines
from dragoman.data.formats.pairs import read_pairs
from dragoman.data.tokenizer import Tokenizer

SOURCE = ["bek 1", "ona\u2028bek 2", "rem\u0085sova 3", "kip 4", "dal 5"]
TARGET = ["KEB 1", "ANO 2", "MER 3", "PI\x0bK\x1cX 4", "LAD\u2029 5"]


@pytest.mark.parametrize("kind", ["bpe", "whitespace"])
def test_b41_only_a_line_feed_ends_a_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.en").write_bytes("\n".join(SOURCE).encode())
    (tmp_path / "train.de").write_bytes(("\r\n".join(TARGET) + "\r\n").encode())
    pairs = list(read_pairs(str(tmp_path / "train"), "en", "de"))
    assert pairs == list(zip(SOURCE, TARGET, strict=True))
    tokenizer = Tokenizer.train([line for pair in pairs for line in pair], kind=kind, vocabulary_size=400)
    corpus = Corpus.build(
        tmp_path / "corpus", pairs, source_tokenizer=tokenizer, target_tokenizer=tokenizer, max_length=99, batch_tokens=999
    )
    for index, pair in enumerate(pairs):
        assert tuple(tokenizer.decode(ids) for ids in corpus[index]) == pair
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode_batch(SOURCE) == tokenizer.encode_batch(SOURCE)


@pytest.mark.parametrize("ends", [["\n"] * 4, ["\r\n"] * 4, ["\n", "\r\n", "\r\n", "\n"], ["\n", "\r\n", "\n", ""]])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_b43_line_ends_and_byte_order_mark_leave_no_trace(tmp_path: Path, ends: list[str], mark: str) -> None:
    lines = ["ona bek", "rem", "a\rb", "sova kip"]
    data = (mark + "".join(line + end for line, end in zip(lines, ends, strict=True))).encode()
    (tmp_path / "text").write_bytes(data)
    (tmp_path / "text.gz").write_bytes(gzip.compress(data))
    assert list(read_lines(tmp_path / "text")) == lines  # a lone carriage return is a character of its line
    assert list(read_lines(tmp_path / "text.gz")) == lines
    standard_input = split_lines([data[:5], data[5:9], data[9:]])
    assert [decode_line(raw, "standard input", number) for number, raw in enumerate(standard_input, start=1)] == lines


def test_b43_carriage_returns_on_one_side_only_do_not_reach_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_bytes(b"ona bek\r\nrem\r\n")
    (tmp_path / "train.de").write_bytes(b"KEB ANO\nMER\n")
    pairs = list(read_pairs(str(tmp_path / "train"), "en", "de"))
    tokenizer = Tokenizer.train([line for pair in pairs for line in pair], kind="whitespace", vocabulary_size=100)
    assert {tokenizer.token(id) for id in range(4, len(tokenizer))} == {"ona", "bek", "rem", "KEB", "ANO", "MER"}


def test_b49_files_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    text = "élan ñu łąka 東京 🐟"
    folder = tmp_path / "ä b"
    folder.mkdir()
    (folder / "δ.txt").write_bytes(f"{text}\n".encode())
    program = (
        "import sys, pathlib\n"
        "from dragoman.data.formats.lines import read_lines\n"
        "from dragoman.data.tokenizer import Tokenizer\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "lines = list(read_lines(path))\n"
        "tokenizer = Tokenizer.train(lines, kind='whitespace', vocabulary_size=50)\n"
        "tokenizer.save(path.with_suffix('.json'))\n"
        "tokenizer = Tokenizer.load(path.with_suffix('.json'))\n"
        "sys.stdout.buffer.write(tokenizer.decode(tokenizer.encode(lines[0])).encode())\n"
    )
    results = []
    for locale in (
        {"LC_ALL": "C", "LANG": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C.UTF-8"},
    ):
        command = [sys.executable, "-c", program, str(folder / "δ.txt")]
        done = subprocess.run(command, env=os.environ | locale, capture_output=True, check=True)
        results.append((done.stdout, (folder / "δ.json").read_bytes()))
    assert results[0] == results[1]
    assert results[0][0].decode() == text
