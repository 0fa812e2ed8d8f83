"""Text files and parallel corpora: what is read, and how each mistake is named."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import zstandard

from dragoman.data.formats import lines
from dragoman.data.formats.lines import decode_line, read_lines, split_lines
from dragoman.data.formats.pairs import corpus_files, first_misaligned, read_pairs
from dragoman.errors import DragomanError

TEXT = "eins\nzwei ü\n\nvier\n"
LINES = ["eins", "zwei ü", "", "vier"]
PACK = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", PACK)
def test_compressed_files_of_one_and_several_members(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(PACK[suffix](TEXT.encode()))
    assert list(read_lines(path)) == LINES
    path.write_bytes(b"".join(PACK[suffix](part.encode()) for part in ("ei", "ns\nzwei", "", " ü\n\nvier\n")))
    assert list(read_lines(path)) == LINES


@pytest.mark.parametrize("suffix", PACK)
def test_a_compressed_file_cut_short_or_damaged_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    whole = PACK[suffix](np.random.default_rng(0).bytes(10_000).hex().encode())
    path.write_bytes(whole[:-20])
    with pytest.raises(DragomanError, match=rf"text\{suffix}: the compressed file is cut short"):
        list(read_lines(path))
    path.write_bytes(b"not packed at all\n")
    with pytest.raises(DragomanError, match=rf"text\{suffix}: damaged, or not a \{suffix} file"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", PACK)
def test_lines_before_the_cut_of_a_compressed_file_are_read_first(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    lines = [np.random.default_rng(n).bytes(500).hex() for n in range(800)]  # less than is read at once
    path.write_bytes(PACK[suffix]("".join(f"{line}\n" for line in lines).encode())[:-200_000])
    read: list[str] = []
    with pytest.raises(DragomanError, match="the compressed file is cut short"):
        read.extend(read_lines(path))
    assert read == lines[: len(read)]
    assert len(read) > 200


@pytest.mark.parametrize("suffix", PACK)
def test_what_cannot_be_unpacked_behind_a_whole_member_is_not_left_out_in_silence(tmp_path: Path, suffix: str) -> None:
    path, second = tmp_path / f"text{suffix}", bytearray(PACK[suffix](b"drei\n"))
    second[0] ^= 1
    path.write_bytes(PACK[suffix](TEXT.encode()) + second)
    with pytest.raises(DragomanError, match=rf"text\{suffix}: damaged, or not a \{suffix} file"):
        list(read_lines(path))


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_xz_streams_with_zeros_between_them(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", size)
    path = tmp_path / "text.xz"
    path.write_bytes(lzma.compress(b"eins\nzw") + bytes(8) + lzma.compress("ei ü\n\nvier\n".encode()) + bytes(4))
    assert list(read_lines(path)) == LINES


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match=r"none\.txt: cannot be read: No such file"):
        list(read_lines(tmp_path / "none.txt"))
    with pytest.raises(DragomanError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_the_size_of_the_chunks(size: int) -> None:
    data = TEXT.encode() + b"last without end"
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    assert [line.decode() for line in split_lines(chunks)] == [*LINES, "last without end"]


def test_a_line_comes_as_soon_as_it_is_whole() -> None:
    asked: list[int] = []

    def chunks() -> object:
        for number in range(3):
            asked.append(number)
            yield b"line %d\n" % number

    lines = split_lines(chunks())
    assert next(lines) == b"line 0"
    assert asked == [0]


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("gut\nfür\n".encode("latin-1"))
    with pytest.raises(DragomanError, match=r"latin\.txt, line 2: not UTF-8 \(byte 0xfc at position 2\)"):
        list(read_lines(path))
    with pytest.raises(DragomanError, match="standard input, line 7: not UTF-8"):
        decode_line(b"\xed\xa0\x80", "standard input", 7)


def test_a_byte_order_mark_is_dropped_at_the_start_of_a_file_only(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffeins\n\ufeffzwei\n".encode())
    assert list(read_lines(path)) == ["eins", "\ufeffzwei"]


def write(path: Path, text: str) -> Path:
    path.write_bytes(PACK.get(path.suffix, bytes)(text.encode()))
    return path


PAIRS = [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(
    ("files", "spec"),
    [
        ({"train.en": "one\ntwo\n", "train.de": "eins\nzwei\n"}, "train"),
        ({"train.en.gz": "one\ntwo\n", "train.de.zst": "eins\nzwei\n"}, "train"),
        ({"v1.2.en.xz": "one\ntwo\n", "v1.2.de": "eins\nzwei"}, "v1.2"),
        ({"a.txt": "one\ntwo\n", "b.txt.gz": "eins\nzwei\n"}, "a.txt,b.txt.gz"),
        ({"a.tsv": "one\teins\ntwo\tzwei\n"}, "a.tsv"),
        ({"a.tsv.gz": "one\teins\ntwo\tzwei\n"}, "a.tsv.gz"),
        ({"a.jsonl": '{"de": "eins", "en": "one"}\n{"en": "two", "de": "zwei", "id": 7}\n'}, "a.jsonl"),
        ({"a.jsonl.xz": '{"translation": {"en": "one", "de": "eins"}}\n{"translation": {"en": "two", "de": "zwei"}}\n'}, "a.jsonl.xz"),
    ],
)
def test_each_form_of_corpus_gives_the_same_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], spec: str
) -> None:
    for name, text in files.items():
        write(tmp_path / name, text)
    monkeypatch.chdir(tmp_path)
    assert list(read_pairs(spec, "en", "de")) == PAIRS
    assert [str(path) for path in corpus_files(spec, "en", "de")] == list(files)


def test_a_missing_corpus_lists_the_names_tried(tmp_path: Path) -> None:
    (tmp_path / "train.en").touch()
    with pytest.raises(DragomanError) as error:
        corpus_files(f"{tmp_path}/train", "en", "de")
    assert all(f"train.de{suffix}" in str(error.value) for suffix in ("", ".gz", ".xz", ".zst"))
    assert "train.en.gz" not in str(error.value)
    with pytest.raises(DragomanError, match=r"b\.txt.*give a prefix, a \.tsv or \.jsonl file, or SOURCE_FILE,TARGET_FILE"):
        list(read_pairs(f"{tmp_path}/train.en,{tmp_path}/b.txt", "en", "de"))
    with pytest.raises(DragomanError, match="a,b,c: 3 files with commas between them; give two, SOURCE_FILE,TARGET_FILE"):
        corpus_files("a,b,c", "en", "de")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", 'no text under "en"'),
        ('{"en": "a"}', 'no text under "de"'),
        ('{"en": "a", "de": null}', 'no text under "de"'),
        ('{"en": "a", "de": "b\\nc"}', 'the text under "de" holds a line break'),
        ('{"en": "a", "de": "\\ud83d"}', 'the text under "de" holds half a surrogate pair'),
    ],
)
def test_a_wrong_json_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({"en": "x", "de": "y"}) + "\n" + line + "\n")
    with pytest.raises(DragomanError, match=rf"a\.jsonl, line 2: {reason}"):
        list(read_pairs(str(path), "en", "de"))


def test_the_place_where_lines_were_lost_is_found_in_real_text(data_folder: Path) -> None:
    pairs = list(read_pairs(str(data_folder / "multi30k/raw/val"), "en", "de"))
    source, target = (np.array([len(pair[side]) for pair in pairs]) for side in (0, 1))
    random = np.random.default_rng(0)
    for lost in random.integers(0, len(pairs) - 3, 50):
        assert abs(first_misaligned(np.delete(source, [lost, lost + 1]), target) - lost) <= 12
        assert abs(first_misaligned(np.delete(target, lost), source) - lost) <= 12


def test_other_suffixes_are_read_as_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "text.bz2"
    path.write_bytes(bz2.compress(TEXT.encode()))
    with pytest.raises(DragomanError, match=r"text\.bz2, line 1: not UTF-8"):
        list(read_lines(path))
