"""What the JSON of an explanation says in words and in tables, so that what shows it need not find words of its own.

A table is ``{"caption", "header", "rows", "shares"}``; ``shares`` are the columns of numbers between 0 and 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.explain.beams import BeamRecord, Candidate
from dragoman.explain.pieces import shown_piece

Json = dict[str, Any]
_LOOKS = {"encoder": "the text at itself", "decoder": "the translation at itself", "cross": "the translation at the text"}
_NOTE = "Attention shows where numbers come from. That is no proof of why the model says what it says."
_SHIFTED = (
    " In the last layer the attention to the text is often shifted by one token: what is looked at belongs to the token before or behind."
)


def kind_words(kind: str, *, single: bool) -> Json:
    """Who looks at what, and what to know about it; the decoder of a model of one text looks at the text itself."""
    return {"label": _LOOKS["encoder" if single else kind], "note": _NOTE + (_SHIFTED if kind == "cross" else "")}


def token_words(number: int, piece: str, score: float, rank: int, entropy: float) -> str:
    """Of a token its number, its probability and its rank, and the doubt of the model at its place."""
    return f"Token {number}, “{shown_piece(piece)}”: probability {math.exp(score):.4f}, rank {rank:,}, entropy {entropy:.3f} nats."


def candidates_table(beams: BeamRecord, why: Sequence[str]) -> Json:
    """The finished hypotheses, best first."""
    rows = [
        [number, _ended(each), each.hypothesis.score, each.hypothesis.log_probability, each.penalty, len(each.hypothesis.tokens), reason]
        for number, (each, reason) in enumerate(zip(beams.candidates, why, strict=True), start=1)
    ]
    caption = f"Finished hypotheses, total = log P / lp, beam {beams.beam}, α = {beams.alpha:g}. The other views show the chosen one."
    return _table(caption, ["rank", "text", "total", "log P", "lp", "tokens", "why it is not the first"], rows)


def _ended(candidate: Candidate) -> str:
    return candidate.text if candidate.stop == "end" else f"{candidate.text} (ended by {candidate.stop})"


def tree_table(steps: Sequence[Mapping[str, Any]]) -> Json:
    """The tree of the search, as `BeamRecord.record` gives it, in words."""

    def said(nodes: Sequence[Sequence[Any]], *, kept: bool) -> str:
        return " · ".join(f"{shown_piece(piece)} {total:.2f}" for _, piece, _, is_kept, total, _ in nodes if is_kept is kept)

    rows = [[step["step"] + 1, said(step["nodes"], kept=True), said(step["nodes"], kept=False)] for step in steps]
    return _table("Each continuation with the log P of the whole up to it", ["step", "kept", "let go"], rows)


def reference_table(text: str, steps: Sequence[Mapping[str, Any]]) -> Json:
    """What the model thinks of each token of a translation that was given."""
    rows = [
        [
            shown_piece(step["piece"]), math.exp(step["logprob"]), step["rank"], step["entropy"],
            "the same" if step["rank"] == 1 else shown_piece(step["top"][0][0]),
        ]
        for step in steps
    ]  # fmt: skip
    return _table(f"“{text}”, token by token", ["token", "probability", "rank", "entropy", "the model's first"], rows)


def reference_words(pieces: Sequence[str], steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """At each token of the translation what the model thought of the one given, as long as both say the same before it."""
    said, apart = [], next((at for at, piece in enumerate(pieces) if at >= len(steps) or steps[at]["piece"] != piece), len(pieces))
    for at in range(len(pieces)):
        if at > apart or at >= len(steps):
            said.append(f"Your translation went another way at token {min(apart, at) + 1}; the table below follows it.")
            continue
        piece, rank, p = steps[at]["piece"], steps[at]["rank"], math.exp(steps[at]["logprob"])
        said.append(f"Your translation has “{shown_piece(piece)}” here: rank {rank:,}, probability {p:.4f}.")
    return said


def _table(caption: str, header: list[str], rows: list[list[Any]]) -> Json:
    return {"caption": caption, "header": header, "rows": rows, "shares": []}
