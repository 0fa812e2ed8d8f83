"""Of the page: the walk through the paper."""

from collections.abc import Iterable
from html import escape

from dragoman.explain.record import Line
from dragoman.explain.steps import Check, Step, Table
from dragoman.html import escaped, number


def walk_html(steps: Iterable[Step]) -> str:
    """All steps, one after another."""
    return "\n".join(map(step_html, steps))


def step_html(step: Step) -> str:
    """One step: words and equation, the numbers, the lines that computed them, and how to have them."""
    place = f"Section {step.section}" + (f", equation ({step.equation})" if step.equation else "")
    tables = "\n".join(map(_table, step.tables))
    checks = "".join(map(_check, step.checks))
    lines = "\n".join(map(source_html, step.lines))
    command = (
        f'<p class="command"><code>dragoman explain MODEL TEXT --tensor {escaped(step.tensor)} --npy FILE</code></p>' if step.tensor else ""
    )
    return (
        f'<article class="step" id="step-{step.number}">\n<h3><span class="number">{step.number}</span> {escaped(step.title)} '
        f'<small>{escaped(place)}</small></h3>\n<div class="sides"><div>\n<p>{escaped(step.prose)}</p>\n{step.mathml}\n'
        f'<ul class="checks">{checks}</ul>\n{step.picture}\n{lines}\n{command}\n</div>\n<div>{tables}</div></div>\n</article>'
    )


def _check(check: Check) -> str:
    exact = check.difference == 0
    difference = "no difference" if exact else f"difference at most {check.difference:.1e}"
    return (
        f"<li>{escaped(check.what)}: model <b>{_short(check.model)}</b>, computed again <b>{_short(check.recomputed)}</b>; {difference} "
        f"in {check.count:,} {'number' if check.count == 1 else 'numbers'}</li>"
    )


def _short(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.header)
    rows = []
    for name, *cells in table.rows:
        shown = "".join(
            f'<td class="n">{value_text(cell)}</td>' if isinstance(cell, int | float) else f'<td dir="auto">{escaped(cell)}</td>'
            for cell in cells
        )
        rows.append(f'<tr><th scope="row" dir="auto">{number(name) if isinstance(name, int) else escaped(_visible(name))}</th>{shown}</tr>')
    return f"<table>\n<caption>{escaped(table.caption)}</caption>\n<tr>{head}</tr>\n" + "\n".join(rows) + "\n</table>"


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


def source_html(line: Line) -> str:
    """The line that computed it, marked, between those around it, as they are installed."""
    rows = []
    for count, text in line.around():
        shown = f'<span class="at">{count:4}</span> {escape(text)}'
        rows.append(f"<mark>{shown}</mark>" if count == line.number else shown)
    return f'<figure class="source"><figcaption>{escaped(line.file)}:{line.number}</figcaption><pre>' + "\n".join(rows) + "</pre></figure>"
