"""What the entries of other programs' vocabularies spell, by how their ``tokenizers`` decoder joins them."""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tokenizers

Style = Literal["bytes", "sentencepiece", "wordpiece", "characters", "words"]

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def style_of(backend: tokenizers.Tokenizer) -> Style:
    """How entries spell text: as byte-level characters; with ▁ for a space and <0xE2> for a byte; with ## inside a word; as they are; or
    with a space between them.
    """
    if backend.decoder is None:
        return "words"
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = {step["type"]: step for step in decoder.get("decoders", [decoder])}
    if "ByteLevel" in steps:
        return "bytes"
    if "WordPiece" in steps:
        return "wordpiece"
    return "sentencepiece" if steps.keys() & {"Metaspace", "Replace", "ByteFallback"} else "characters"


def piece_of(entry: str, style: str) -> bytes:
    """What an entry of a vocabulary without byte-level characters adds to a text, in UTF-8."""
    if style == "words":
        return f"{entry} ".encode()
    entry = entry.removesuffix(" ")
    if style == "wordpiece":
        return entry[2:].encode() if entry.startswith("##") else f" {entry}".encode()
    if style == "sentencepiece":
        byte = _BYTE.fullmatch(entry)
        return bytes((int(byte[1], 16),)) if byte else entry.replace("▁", " ").encode()
    return entry.encode()


def spans_of_pieces(pieces: Sequence[bytes], text: str) -> list[tuple[int, int]]:
    """Where in ``text``, which the pieces spell but for spaces at its ends, each of them is; those that share a character all have it."""
    decoder = getincrementaldecoder("utf-8")("replace")
    whole = b"".join(pieces).decode(errors="replace")
    lead, count, spans = max(whole.find(text), 0), 0, []  # characters so far
    for piece in pieces:
        places = []
        for byte in piece:
            count += len(decoder.decode(bytes((byte,))))
            places.append(count - (0 if decoder.getstate()[0] else 1))
        spans.append((places[0], places[-1] + 1) if places else (count, count))
    return [tuple(min(max(place - lead, 0), len(text)) for place in span) for span in spans]  # type: ignore[misc]


def spans_by_decoding(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where in ``decode(ids)`` each id is, by what it adds to the text of those before it, its space aside."""
    place, spans, text = 0, [], decode(ids)
    for count in range(1, len(ids) + 1):
        end = min(max(len(decode(ids[:count])), place), len(text))
        spans.append((min(place + int(text[place:end].startswith(" ")), end), end))
        place = end
    return spans
