"""Lines of text: UTF-8 whatever the locale, and only ``\\n`` ends a line.

The other characters that Python's ``splitlines`` breaks at (U+2028, U+0085, form feed ...) are ordinary characters of a line.
"""

import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from dragoman.errors import DragomanError, unreadable

COMPRESSED = (".gz", ".xz", ".zst")
CHUNK_BYTES = 1 << 20


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or compressed (.gz, .xz, .zst) by its suffix.

    Raises DragomanError that names the file, and the line where there is one: missing, not UTF-8, damaged or cut short.
    """
    for number, raw in enumerate(split_lines(_read_chunks(path)), start=1):
        yield decode_line(raw, str(path), number)


def read_text(path: Path) -> Iterator[str]:
    """The text of a file as `read_lines` reads it, line by line with the line ends that it has; joined they are the text itself.

    Raises DragomanError as `read_lines` does.
    """
    end = b"\n"

    def watched() -> Iterator[bytes]:
        nonlocal end
        for chunk in _read_chunks(path):
            end = chunk[-1:] or end
            yield chunk

    line = None
    for number, raw in enumerate(split_lines(watched()), start=1):
        if line is not None:
            yield line
        line = decode_line(raw + b"\n", str(path), number)  # before the line feed a carriage return stays
    if line:
        yield line if end == b"\n" else line[:-1]


def count_lines(path: Path) -> int:
    """How many lines `read_lines` gives, whatever is in them. Raises DragomanError where the file is missing, damaged or cut short."""
    count, end = 0, b""
    for chunk in _read_chunks(path):
        count += chunk.count(b"\n")
        end = chunk[-1:] or end
    return count + (end not in (b"", b"\n"))


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream of bytes, without their ``\\n``, each as soon as it is whole; a last line may lack its ``\\n``."""
    parts: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for part in others:
            yield b"".join(parts)
            parts = [part]
    if last := b"".join(parts):
        yield last


def decode_line(raw: bytes, place: str, number: int) -> str:
    """Line ``number`` (from 1) of ``place`` as text, without a byte-order mark on line 1 and without the ``\\r`` of ``\\r\\n``.

    Raises DragomanError that names place and line when the bytes are not UTF-8.
    """
    if number == 1:
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        where = f"{place}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at position {error.start + 1})"
        raise DragomanError(f"{where}; convert the text to UTF-8, for example with iconv") from None


def _read_chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file) as unpacked:
                    while chunk := unpacked.read1(CHUNK_BYTES):  # as much as there is: `read` gives nothing of what ends too soon
                        yield chunk
            elif path.suffix == ".xz":
                yield from _xz_chunks(file)
            elif path.suffix == ".zst":
                yield from _zstandard_chunks(file, path)
            else:
                yield from _chunks(file)
    except EOFError:
        raise DragomanError(f"{path}: the compressed file is cut short; fetch or write it again") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DragomanError(f"{path}: damaged, or not a {path.suffix} file ({error}); fetch or write it again") from None
    except OSError as error:
        raise DragomanError(unreadable(path, error)) from None


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _xz_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The text of one stream of xz and of those behind it; `lzma.open` would leave out in silence what it cannot read behind the first."""
    stream = None
    for chunk in _chunks(file):
        data = chunk if stream else chunk.lstrip(b"\0")  # between streams there may be zeros, to fill them up
        while data:  # a chunk may end one stream and begin others
            stream = stream or lzma.LZMADecompressor()
            yield stream.decompress(data, CHUNK_BYTES)
            while not (stream.eof or stream.needs_input):
                yield stream.decompress(b"", CHUNK_BYTES)
            data, stream = (stream.unused_data.lstrip(b"\0"), None) if stream.eof else (b"", stream)
    if stream is not None:
        raise EOFError


def _zstandard_chunks(file: IO[bytes], path: Path) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise DragomanError(f"{path}: .zst files need the zstandard package; pip install 'dragoman[formats]'") from None
    frame = None
    for data in _chunks(file):
        while data:  # a chunk may end one frame and begin others
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as error:
                raise DragomanError(f"{path}: damaged, or not a .zst file ({error}); fetch or write it again") from None
            data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError
