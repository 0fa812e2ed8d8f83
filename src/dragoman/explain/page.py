"""Everything about one sentence on one page: HTML without scripts, which fetches nothing and forbids that anything in it does."""

from collections.abc import Sequence
from importlib.resources import files

from dragoman.explain.answer import KINDS, Explanation, Weights
from dragoman.explain.attention import attention_svg, colour, matrix_png
from dragoman.explain.page_search import candidates, pieces, tinted, token_steps, tree_svg
from dragoman.explain.page_walk import walk_html
from dragoman.explain.pieces import shown_piece
from dragoman.explain.steps import Focus, Step
from dragoman.html import escaped

_NAMES = {
    "encoder": "The text looks at itself",
    "decoder": "The translation looks at itself",
    "cross": "The translation looks at the text",
}
_FEW = 32
"""Tokens up to which the picture of every layer is on the page; of longer texts that of the chosen layer alone."""


def explanation_page(found: Explanation, focus: Focus, steps: Sequence[Step]) -> str:
    """The page: translation, attention, search, and the walk at the chosen layer, head and tokens."""
    title = found.source.text if found.beams is None else f"{found.source.text} → {found.target.side.text}"
    sections = [
        ("Text", _text(found)) if found.beams is None else ("Translation", _translation(found)),
        ("Attention", _attention(found, focus)),
        ("Tokens", _tokens(found)),
        ("Walk through the paper", f"<p>{escaped(_where(found, focus))}</p>\n{walk_html(steps)}"),
    ]
    if found.beams is not None:
        search = f'{candidates(found, found.beams)}\n<div class="wide">{tree_svg(found, found.beams)}</div>'
        sections.insert(2, ("Search", search))
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name, _ in sections)
    body = "\n".join(f'<section id="{_anchor(name)}">\n<h2>{name}</h2>\n{content}\n</section>' for name, content in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'\">\n"
        f'<meta name="color-scheme" content="light dark">\n<title>{escaped(title)}</title>\n<style>{_style()}</style>\n</head>\n'
        f'<body>\n<header><h1>Inside one sentence</h1><nav aria-label="Parts">{links}</nav></header>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _style() -> str:
    return files("dragoman.explain").joinpath("page.css").read_text(encoding="utf-8")


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _where(found: Explanation, focus: Focus) -> str:
    target = (
        ""
        if found.beams is None
        else (f", and of the translation's token {focus.target + 1}, {shown_piece(found.target.side.pieces[focus.target])!r}")
    )
    return (
        f"Numbers are those of layer {focus.layer + 1}, head {focus.head + 1}; of the text's token {focus.source + 1}, "
        f"{shown_piece(found.source.pieces[focus.source])!r}{target}. Each is computed a second time, in NumPy, from the numbers before it."
    )


def kind_name(found: Explanation, kind: str) -> str:
    """A kind of attention in words; the decoder of a model of one text looks at the text itself."""
    return _NAMES["encoder" if found.beams is None else kind]


def _facts(found: Explanation) -> str:
    data, info, model = found.bundle.config.data, found.bundle.info, found.bundle.config.model
    languages = " → ".join(filter(None, (data.source, data.target)))
    step = f"step {info['step']:,}" if isinstance(info.get("step"), int) else ""
    facts = ", ".join(filter(None, (languages, step, model.architecture, f"d_model {model.d_model}", f"{model.n_heads} heads")))
    return f'<p class="facts">{escaped(facts)}</p>'


def _text(found: Explanation) -> str:
    return f'{_facts(found)}\n<p class="said target" dir="auto">{escaped(found.source.text)}</p>\n{tinted(found.target)}'


def _translation(found: Explanation) -> str:
    data = found.bundle.config.data
    reference = f'<p class="said" dir="auto"><small>reference</small> {escaped(found.reference.side.text)}</p>' if found.reference else ""
    return (
        f'{_facts(found)}\n<p class="said" dir="auto"{_lang(data.source)}>{escaped(found.source.text)}</p>\n'
        f"{pieces(found)}\n"
        f'<p class="said target" dir="auto"{_lang(data.target)}>{escaped(found.target.side.text)}</p>\n{tinted(found.target)}\n{reference}'
    )


def _lang(code: str) -> str:
    return f' lang="{escaped(code)}"' if code else ""


def _attention(found: Explanation, focus: Focus) -> str:
    parts = [
        "<p>Above stands the token that looks, below what it looks at; each head has its colour, and a line is as strong as its weight. "
        "Tick more heads to see them together; point at a token to see it alone. Attention shows where numbers come from, which is not yet "
        "why the model says what it says.</p>"
    ]
    parts += [_kind(found, focus, kind) for kind in found.kinds]
    return "\n".join(parts)


def _kind(found: Explanation, focus: Focus, kind: str) -> str:
    weights, queries, keys = found.weights(kind), found.queries(kind), found.keys(kind)
    at = min(focus.layer, len(weights) - 1)
    token = focus.source if kind == "encoder" else focus.target
    layers = range(len(weights)) if max(len(queries), len(keys)) <= _FEW else [at]
    radios = "".join(
        f'<label><input type="radio" name="{kind}" id="{kind}-{layer}"{" checked" if layer == at else ""}/> layer {layer + 1}</label>'
        for layer in layers
    )
    shown = min(focus.head, weights.shape[1] - 1)
    boxes = "".join(
        f'<label><input type="checkbox" id="{kind}-head-{head}"{" checked" if head == shown else ""}/> '
        f'<span class="swatch" style="background:{colour(head)}"></span> head {head + 1}</label>'
        for head in range(weights.shape[1])
    )
    name = kind_name(found, kind)
    figures = "".join(
        f'<figure class="wide all layer-{layer}">{_figure(weights[layer], queries, keys, f"{name}, layer {layer + 1}")}</figure>'
        for layer in layers
    )
    one = _figure(weights[at], queries, keys, f"{name}, from one token", token)
    rules = [f".{kind}:has(#{kind}-{layer}:checked) .layer-{layer}{{display:block}}" for layer in layers]
    rules += [f".{kind}:has(#{kind}-head-{head}:not(:checked)) .all .h{head}{{display:none}}" for head in range(weights.shape[1])]
    alone = f"From {shown_piece(queries[token])} alone, all heads of layer {at + 1}"
    return (
        f'<div class="kind {kind}">\n<h3>{escaped(name)}</h3>\n<style>{"".join(rules)}</style>\n'
        f"<fieldset><legend>Layer</legend>{radios}</fieldset>\n<fieldset><legend>Heads</legend>{boxes}</fieldset>\n"
        f'<div class="figures">{figures}\n'
        f'<figure class="wide"><figcaption>{escaped(alone)}</figcaption>{one}</figure></div>\n'
        f"{_grid(found, kind)}\n</div>"
    )


def _figure(weights: Weights, queries: Sequence[str], keys: Sequence[str], title: str, token: int | None = None) -> str:
    return attention_svg(weights, queries, keys, token=token, title=title, alone=False)


def _grid(found: Explanation, kind: str) -> str:
    """Every head of every layer as a small matrix."""
    weights, stack = found.weights(kind), KINDS[kind]
    heads = "".join(f'<th scope="col">head {head + 1}</th>' for head in range(weights.shape[1]))
    rows = []
    for layer, own in enumerate(weights):
        cells = "".join(
            f'<td><img src="{matrix_png(matrix)}" width="84" height="84" alt="layer {layer + 1}, head {head + 1}"/></td>'
            for head, matrix in enumerate(own)
        )
        rows.append(f'<tr><th scope="row">layer {layer + 1}</th>{cells}</tr>')
    caption = f"All heads: rows are the tokens that look, columns what they look at ({'.'.join((stack[0], 'LAYER', stack[1]))}.weights)"
    head = f'<table class="grid">\n<caption>{caption}</caption>\n<tr><td></td>{heads}</tr>'
    return "\n".join(["<details><summary>All heads of all layers</summary>", head, *rows, "</table></details>"])


def _tokens(found: Explanation) -> str:
    note = "<p>Entropy is in nats: 0 is no doubt at all. What else: the next most probable tokens, after what stands before them.</p>"
    parts = [note, token_steps(found, found.target, f"The {'text' if found.beams is None else 'translation'}, token by token")]
    if found.reference:
        parts.append(token_steps(found, found.reference, "The reference, token by token"))
    return "\n".join(parts)
