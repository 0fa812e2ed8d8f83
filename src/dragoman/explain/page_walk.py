"""Of the page: the walk through the paper."""

from collections.abc import Iterable, Sequence
from html import escape

from dragoman.explain.page_search import bar
from dragoman.explain.steps import Check, SourceLine, Step, Table
from dragoman.html import escaped, number


def walk_html(steps: Iterable[Step]) -> str:
    """All steps, one after another."""
    return "\n".join(map(step_html, steps))


def step_html(step: Step) -> str:
    """One step: words and equation, the numbers, the lines that computed them, and how to have them."""
    tables = "\n".join(map(_table, step.tables))
    checks = "".join(map(_check, step.checks))
    command = (
        f'<p class="command"><code>dragoman explain MODEL TEXT --tensor {escaped(step.tensor)} --npy FILE</code></p>' if step.tensor else ""
    )
    return (
        f'<article class="step" id="step-{step.number}">\n<h3><span class="number">{step.number}</span> {escaped(step.title)} '
        f'<small>{escaped(step.place)}</small></h3>\n<div class="sides"><div>\n<p>{escaped(step.prose)}</p>\n{step.mathml}\n'
        f'<ul class="checks">{checks}</ul>\n{step.picture}\n</div>\n<div>{tables}</div></div>\n'
        f"{sources_html(step)}\n{command}\n</article>"
    )


def _check(check: Check) -> str:
    exact = check.difference == 0
    difference = "no difference" if exact else f"difference at most {check.difference:.1e}"
    return (
        f"<li>{escaped(check.what)}: model <b>{number(check.model)}</b>, computed again <b>{number(check.recomputed)}</b>; {difference} "
        f"in {check.count:,} {'number' if check.count == 1 else 'numbers'}</li>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.header)
    rows = []
    for name, *cells in table.rows:
        shown = "".join(_cell(cell, column in table.shares) for column, cell in zip(table.header[1:], cells, strict=True))
        rows.append(f'<tr><th scope="row" dir="auto">{number(name) if isinstance(name, int) else escaped(_visible(name))}</th>{shown}</tr>')
    return f"<table>\n<caption>{escaped(table.caption)}</caption>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>"


def _cell(value: object, share: bool) -> str:
    if not isinstance(value, int | float):
        return f'<td dir="auto">{escaped(value)}</td>'
    return f'<td class="n">{f"{bar(value)} {value:.4f}" if share else value_text(value)}</td>'


def _visible(name: object) -> str:
    text = str(name)
    return text.strip() or "␣" * len(text)


def value_text(value: float) -> str:
    """A number in few digits; a whole one with all of them."""
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e5):
        return f"{value:.2e}"
    return f"{value:.4f}"


def sources_html(step: Step) -> str:
    """The lines that computed it, marked, between those around them, as they are installed."""
    return "\n".join(_source(title, lines) for title, lines in step.sources())


def _source(title: str, lines: Sequence[SourceLine]) -> str:
    rows = []
    for line in lines:
        row = f'<span class="at">{line.place}</span> {escape(line.text)}'
        rows.append(f"<mark>{row}</mark>" if line.marked else row)
    return f'<figure class="source"><figcaption>{escaped(title)}</figcaption><pre>' + "\n".join(rows) + "</pre></figure>"
