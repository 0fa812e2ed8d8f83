"""``dragoman score`` for models of one sequence: how probable the lines of text files are."""

import math
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.streams import few_of_a_kind, json_line, notify, one_line, print_json
from dragoman.errors import DragomanError, UsageError, counted

if TYPE_CHECKING:
    from dragoman.bundle import Bundle
    from dragoman.decoding.score import Perplexity, Scored

_LINES_AT_ONCE = 1024


def print_scores(
    bundle: "Bundle", model: str, files: list[str], *, text: bool, alpha: float | None, perplexity: bool, as_json: bool,
    check: Callable[[], None],
) -> None:  # fmt: skip
    """A line for each line of the files, or the perplexity of all of them; ``check`` is called before each batch, and may raise."""
    from dragoman.decoding.score import Perplexity

    ends = bundle.config.model.architecture == "decoder-only"
    if alpha is not None and not ends:
        raise UsageError("--alpha: a pseudo-likelihood has no length penalty; leave it out")
    if missing := [file for file in files if not Path(file).is_file()]:
        raise DragomanError(
            f"{', '.join(missing)}: no such file; the model is {bundle.config.model.architecture}, so give text files, one text a line"
        )
    total = Perplexity()
    with few_of_a_kind():
        for file in files:
            for number, (line, scored) in enumerate(_scored(bundle, file, alpha, check), start=1):
                total.add(scored, bundle.target_tokenizer.plain(line), end=ends)
                if perplexity:
                    continue
                if as_json:
                    sys.stdout.write(_json_line(number, line, scored))
                else:
                    columns = [f"{scored.log_probability:.6f}", str(len(scored.tokens))]
                    columns += [f"{scored.score:.6f}"] if alpha is not None else []
                    print("\t".join([*columns, one_line(line)] if text else columns))
    if not total.tokens:
        raise DragomanError(f"{', '.join(files)}: nothing to score; give files with text")
    facts = _facts(total)
    if not perplexity:
        notify(
            f"{'' if ends else 'pseudo-'}perplexity {total.per_token:.3f} a token ({counted(total.tokens, 'token')}), "
            f"{total.per_word:.3f} a word ({counted(total.words, 'word')}), {total.per_byte:.3f} a byte ({counted(total.bytes, 'byte')})"
            + (f", one end for each of {counted(total.pairs, 'line')} among them" if ends else "")
        )
    elif as_json:
        print_json({"model": model, "test": files, **facts})
    else:
        for name, value in facts.items():
            print(f"{name.replace('_', ' '):<21}{value:,.4f}" if isinstance(value, float) else f"{name.replace('_', ' '):<21}{value}")


def _scored(bundle: "Bundle", file: str, alpha: float | None, check: Callable[[], None]) -> "Iterator[tuple[str, Scored]]":
    from dragoman.data.formats.lines import read_lines
    from dragoman.decoding.fill import pseudo_score
    from dragoman.decoding.likelihood import score_lines

    lines, first = read_lines(Path(file)), 1
    own = bundle.config.decoding.alpha if alpha is None else alpha
    while some := list(islice(lines, _LINES_AT_ONCE)):
        if bundle.config.model.architecture == "decoder-only":
            scored = score_lines(bundle, some, alpha=own, place=file, first_line=first, check=check)
        else:
            scored = pseudo_score(bundle, some, place=file, first_line=first, check=check)
        yield from zip(some, scored, strict=True)
        first += len(some)


def _facts(total: "Perplexity") -> dict[str, int | float | None]:
    shown = {
        "perplexity_per_token": total.per_token,
        "perplexity_per_word": total.per_word,
        "perplexity_per_byte": total.per_byte,
        "bits_per_byte": total.bits_per_byte,
    }
    return {
        **{name: value if math.isfinite(value) else None for name, value in shown.items()},  # JSON knows no infinity
        "log_probability": total.log_probability,
        "lines": total.pairs,
        "tokens": total.tokens,
        "words": total.words,
        "bytes": total.bytes,
    }


def _json_line(number: int, line: str, scored: "Scored") -> str:
    return json_line(
        {
            "line": number,
            "text": line,
            "log_probability": scored.log_probability,
            "score": scored.score,
            "tokens": scored.tokens,
            "token_scores": scored.token_scores,
        }
    )
