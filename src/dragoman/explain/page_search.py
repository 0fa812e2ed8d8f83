"""Of the page: the translation token by token, the candidates, and the tree of the search."""

import math
from collections.abc import Sequence

from dragoman.explain.answer import Explanation, ScoredTarget, piece_of
from dragoman.explain.attention import text_width
from dragoman.explain.beams import BeamRecord
from dragoman.explain.pieces import shown_piece
from dragoman.html import escaped, table

_BOX, _LINE, _LETTERS = 112, 26, 15


def tinted(scored: ScoredTarget) -> str:
    """The tokens, each marked by its probability: paler the less probable, and dotted below one half."""
    parts = []
    for piece, score, rank in zip(scored.side.pieces, scored.token_scores.tolist(), scored.ranks(), strict=True):
        p = math.exp(score)
        mark = " doubt" if p < 0.5 else ""
        parts.append(f'<span class="token{mark}" style="--p:{p:.3f}" title="p = {p:.4f}, rank {rank}">{escaped(shown_piece(piece))}</span>')
    return f'<p class="tokens" dir="auto">{" ".join(parts)}</p>'


def pieces(found: Explanation) -> str:
    """The text in pieces, with their ids."""
    unknown = set(found.source.unknown)
    parts = [
        f'<span class="token{" unknown" if place in unknown else ""}" title="id {token}">{escaped(shown_piece(piece))}</span>'
        for place, (piece, token) in enumerate(zip(found.source.pieces, found.source.ids, strict=True))
    ]
    return f'<p class="tokens" dir="auto">{" ".join(parts)}</p>'


def candidates(found: Explanation, beams: BeamRecord) -> str:
    """The finished hypotheses, and in words why each is not the first."""
    rows = [
        (
            rank,
            each.text,
            f"{each.hypothesis.score:.4f}",
            f"{each.hypothesis.log_probability:.4f}",
            f"{each.penalty:.4f}",
            len(each.hypothesis.tokens),
            beams.why_behind(each, found.bundle.target_tokenizer),
        )
        for rank, each in enumerate(beams.candidates, start=1)
    ]
    heading = ("rank", "text", "score", "log P", "lp", "tokens", "why it is not the first")
    return table(f"Finished hypotheses, score = log P / lp, α = {beams.alpha:g}", heading, rows, written=True)


def tree_svg(found: Explanation, beams: BeamRecord) -> str:
    """What the search kept and what it let go, step by step; the way of the chosen candidate stands out."""
    tokenizer = found.bundle.target_tokenizer
    way = dict(enumerate(beams.candidates[found.chosen].path))
    rows = max((len(step) for step in beams.tree), default=0)
    width, height = _BOX * len(beams.tree) + 40, _LINE * rows + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="{_LETTERS}" fill="currentColor"><title>The tree of the search</title>'
        f"<desc>{escaped(_tree_in_words(beams))}</desc>"
    ]
    for step, nodes in enumerate(beams.tree):
        parts.append(f'<text x="{_x(step)}" y="14" fill-opacity=".65">{step + 1}</text>')
        for place, node in enumerate(nodes):
            best = way.get(step) == place and (step == 0 or way.get(step - 1) == node.parent)
            x, y = _x(step), _y(place)
            if node.parent is not None:
                parent = shown_piece(tokenizer.token(beams.tree[step - 1][node.parent].token))
                before = f"{_x(step - 1) + _end(parent):.0f} {_y(node.parent) - 4}"
                look = (
                    'stroke-width="2.5" stroke="#2563eb"'
                    if best
                    else 'stroke="currentColor" ' + ('stroke-opacity=".45"' if node.kept else 'stroke-opacity=".3" stroke-dasharray="2 3"')
                )
                parts.append(f'<path d="M{before}L{x - 4} {y - 4}" fill="none" {look}/>')
            look = ' font-weight="700"' if best else "" if node.kept else ' fill-opacity=".65"'
            piece = shown_piece(tokenizer.token(node.token))
            said = f"“{piece}”: log p {node.log_probability:.3f}, in all {node.total:.3f}, {'kept' if node.kept else 'let go'}"
            text = _short(piece)
            end = "■ " if node.ended else ""
            parts.append(f'<text x="{x}" y="{y}"{look} unicode-bidi="plaintext"><title>{escaped(said)}</title>{end}{escaped(text)}</text>')
    return "".join([*parts, "</svg>"])


def _tree_in_words(beams: BeamRecord) -> str:
    kept = sum(node.kept for step in beams.tree for node in step)
    return f"{len(beams.tree)} steps; {kept} continuations were kept, the next best ones beside them were not; ■ is an end."


def _x(step: int) -> int:
    return 8 + _BOX * step


def _y(place: int) -> int:
    return 38 + _LINE * place


def _end(piece: str) -> float:
    """Where the text of a node ends and its lines begin, from its own left edge."""
    return min(text_width(_short(piece)) * _LETTERS + 12, _BOX - 16)


def _short(text: str) -> str:
    kept = text
    while text_width(kept) * _LETTERS > _BOX - 34:
        kept = kept[:-1]
    return kept if kept == text else f"{kept[:-1]}…"


def token_steps(found: Explanation, scored: ScoredTarget, caption: str, count: int = 5) -> str:
    """Each token with its probability, the doubt of the model, and what could have stood there instead."""
    tokenizer = found.bundle.target_tokenizer
    parts = [f"<table>\n<caption>{escaped(caption)}</caption>"]
    heads = ("", "token", "p", "rank", "entropy", "what else")
    parts.append("<tr>" + "".join(f'<th scope="col">{name}</th>' for name in heads) + "</tr>")
    columns = (scored.side.pieces, scored.token_scores.tolist(), scored.ranks(), scored.entropy(), scored.top(count + 1), scored.side.ids)
    for place, (piece, score, rank, entropy, top, token) in enumerate(zip(*columns, strict=True)):
        others = [(piece_of(tokenizer, one), p) for one, p in top if one != token][:count]
        p = math.exp(score)
        numbers = "".join(f'<td class="n">{cell}</td>' for cell in (f"{bar(p)} {p:.4f}", f"{rank:,}", f"{entropy:.3f}"))
        name = f'<th scope="row">{place + 1}</th><td dir="auto" class="chosen">{escaped(shown_piece(piece))}</td>'
        parts.append(f'<tr>{name}{numbers}<td dir="auto">{_others(others)}</td></tr>')
    return "\n".join([*parts, "</table>"])


def _others(others: Sequence[tuple[str, float]]) -> str:
    return " · ".join(f"{escaped(shown_piece(piece))} <small>{p:.3f}</small>" for piece, p in others)


def bar(value: float, width: int = 60) -> str:
    """A number between 0 and 1 as a bar."""
    return (
        f'<svg class="bar" width="{width}" height="10" viewBox="0 0 {width} 10" aria-hidden="true"><rect width="{width}" height="10" '
        f'fill="currentColor" fill-opacity=".12"/><rect width="{width * min(max(value, 0.0), 1.0):.1f}" height="10" fill="#2563eb"/></svg>'
    )
