"""What `dragoman explain` prints: a sentence, its translation, where the model looked, and the walk in short."""

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.explain.answer import Explanation
    from dragoman.explain.steps import Check, Focus, Step

_HEADS = 5


def summary(found: "Explanation", focus: "Focus", steps: Sequence["Step"]) -> str:
    """All of it as lines of text."""
    labels = _labels(found.source.pieces)
    lines = [f"text         {_plain(found.source.text)}", f"pieces       {' | '.join(labels)}"]
    if found.beams is not None:
        best = found.beams.candidates[found.chosen]
        scores = f"score {best.hypothesis.score:.4f}, log P {best.hypothesis.log_probability:.4f}, length penalty {best.penalty:.4f}"
        lines += [f"translation  {_plain(found.target.side.text)}", f"             {scores}"]
    else:
        lines.append(f"log P        {found.target.token_scores.sum():.4f}")
    if found.source.unknown:
        lines.append(f"             not in the vocabulary: {_plain(', '.join(_unknown(found)))}")
    parts = [lines, _tokens(found), _candidates(found), _heads(found), _walk(found, focus, steps)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _unknown(found: "Explanation") -> list[str]:
    """The source's unknown pieces as its text has them, where the pieces are its words."""
    source, tokenizer = found.source, found.bundle.source_tokenizer
    words = [*filter(None, source.text.split(" "))]
    standing = [place for place, token in enumerate(source.ids) if token not in tokenizer.textless]
    of_words = tokenizer.kind == "whitespace" and len(words) == len(standing)
    spelled = dict(zip(standing, words, strict=True)) if of_words else dict(enumerate(_labels(source.pieces)))
    return [spelled[place] for place in source.unknown]


def _tokens(found: "Explanation") -> list[str]:
    from dragoman.explain.answer import piece_of

    looked = found.weights("cross")[max(found.layers("cross") - 2, 0)].mean(0) if "cross" in found.kinds else None  # (T, S)
    target, sources = found.target, _labels(found.source.pieces)
    rows = [("token", "p", "rank", "entropy", "looks at" if looked is not None else "", "could have been")]
    columns = zip(
        _labels(target.side.pieces), target.token_scores.tolist(), target.ranks(), target.entropy(), target.top(3), target.side.ids,
        strict=True,
    )  # fmt: skip
    for place, (label, score, rank, entropy, top, token) in enumerate(columns):
        at = "" if looked is None else f"{sources[int(looked[place].argmax())]} {looked[place].max():.2f}"
        others = [f"{_plain(piece_of(found.bundle.target_tokenizer, one))} {p:.3f}" for one, p in top if one != token][:2]
        rows.append((label, f"{math.exp(score):.4f}", f"{rank:,}", f"{entropy:.3f}", at, ", ".join(others)))
    lines = _aligned(rows)
    if found.reference is not None:
        ranks = ", ".join(
            f"{_plain(piece)} {rank:,}" for piece, rank in zip(found.reference.side.pieces, found.reference.ranks(), strict=True)
        )
        lines.append(f"the reference's tokens have log P {found.reference.token_scores.sum():.4f} and the ranks {ranks}")
    return lines


def _candidates(found: "Explanation") -> list[str]:
    if found.beams is None or len(found.beams.candidates) == 1:
        return []
    rows = [("", "score", "log P", "translation", "")]
    for rank, each in enumerate(found.beams.candidates, start=1):
        scores = (f"{each.hypothesis.score:.4f}", f"{each.hypothesis.log_probability:.4f}")
        rows.append((str(rank), *scores, _plain(each.text), found.beams.why_behind(each, found.bundle.target_tokenizer)))
    return _aligned(rows)


def _heads(found: "Explanation") -> list[str]:
    """The heads that look most at one place, of each kind of attention."""
    from dragoman.explain.attention import head_habits

    rows = [("heads that look most at one place", "focus", "mostly at")]
    for kind in found.kinds:
        habits = [(layer, habit) for layer, weights in enumerate(found.weights(kind)) for habit in head_habits(weights)]
        for layer, habit in sorted(habits, key=lambda pair: -pair[1]["focus"])[:_HEADS]:
            told = habit["mostly"] and kind != "cross"  # where two sequences happen to be as long, a place of one is none of the other
            at = f"{habit['mostly']} ({habit['share']:.0%} of the tokens)" if told else ""
            rows.append((f"{kind} layer {layer + 1} head {habit['head'] + 1}", f"{habit['focus']:.3f}", at))
    return _aligned(rows)


def _walk(found: "Explanation", focus: "Focus", steps: Sequence["Step"]) -> list[str]:
    source, target = found.source.pieces[focus.source], found.target.side.pieces[focus.target]
    head = f"the walk through the paper: layer {focus.layer + 1}, head {focus.head + 1}, text token {focus.source + 1} ({_plain(source)})"
    if found.beams is not None:
        head += f", translation token {focus.target + 1} ({_plain(target)})"
    rows = [("", "step", "section", "model", "again", "difference", "of")]
    for step in steps:
        place = step.section + (f" ({step.equation})" if step.equation else "")
        for number, check in enumerate(step.checks):
            first = (str(step.number), step.title, place) if number == 0 else ("", "", "")
            rows.append((*first, *_check(check)))
    return [head, *_aligned(rows)]


def _check(check: "Check") -> tuple[str, str, str, str]:
    return f"{check.model:.6g}", f"{check.recomputed:.6g}", f"{check.difference:.1e}" if check.difference else "0", check.what


def _labels(pieces: Sequence[str]) -> list[str]:
    """Each piece in one line of a terminal, and behind one that recurs its number from 1, which ``--token`` takes: ``a (2)``."""
    plain = [_plain(piece) for piece in pieces]
    counts = Counter(plain)
    return [f"{piece} ({place})" if counts[piece] > 1 else piece for place, piece in enumerate(plain, start=1)]


def _plain(piece: str) -> str:
    """A piece in one line of a terminal: without the space before it, and without what would steer the terminal."""
    text = piece.strip() or "␣" * max(len(piece), 1)
    return "".join("\ufffd" if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") else character for character in text)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _width(text: str) -> int:
    """The columns that a terminal gives a text."""
    joined = ("Mn", "Me", "Cf")
    return sum(
        2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text if unicodedata.category(character) not in joined
    )
