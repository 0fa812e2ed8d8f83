"""Equations as MathML, which browsers draw without a script, from one line of text.

``_`` and ``^`` put what follows below and above, ``/`` makes a fraction, ``√`` a root, braces hold together what belongs together and
are not shown, parentheses are as high as what is in them, quotation marks hold words: ``head = softmax({Q K^T}/√{d_k}) V``.
A name of several letters stands a little apart from what it is multiplied with, and 1e-9 is written with a power of ten.
"""

import re
from collections.abc import Sequence

from dragoman.html import escaped

_TOKEN = re.compile(r'"[^"]*"|\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?|[^\W\d_]+[\u0302]?|\S')


def equation(text: str) -> str:
    """An equation on a line of its own. Raises ValueError for braces that do not match, or a sign that lacks what it acts on."""
    tokens = _TOKEN.findall(text)
    parts, rest = _row(tokens)
    if rest:
        raise ValueError(f"{text!r}: nothing opens the brace before {' '.join(rest)!r}")
    return f'<math display="block" xmlns="http://www.w3.org/1998/Math/MathML">{parts}</math>'


def _row(tokens: Sequence[str], closing: str = "}") -> tuple[str, Sequence[str]]:
    """Parts up to a closing brace, to ``closing``, or to the end, and the tokens from there on."""
    parts: list[str] = []
    before = ""
    while tokens and tokens[0] not in ("}", closing):
        parts += ['<mspace width="0.2em"/>'] if _apart(before, tokens[0]) else []
        before = tokens[0]
        part, tokens = _with_scripts(tokens)
        if tokens and tokens[0] == "/":
            below, tokens = _with_scripts(tokens[1:])
            part = f"<mfrac>{part}{below}</mfrac>"
        parts.append(part)
    return f"<mrow>{''.join(parts)}</mrow>", tokens


def _apart(before: str, first: str) -> bool:
    """Whether a name of several letters is multiplied with what is beside it; in front of a parenthesis it is a function."""
    names = [len(each) > 1 and each.isalpha() for each in (before, first)]
    return (names[0] and (first.isalnum() or first in "{√")) or (names[1] and (before.isalnum() or before in tuple("{(√")))


def _with_scripts(tokens: Sequence[str]) -> tuple[str, Sequence[str]]:
    part, tokens = _atom(tokens)
    scripts: dict[str, str] = {}
    while tokens and tokens[0] in ("_", "^"):
        sign = tokens[0]
        scripts[sign], tokens = _atom(tokens[1:])
    if len(scripts) == 2:
        return f"<msubsup>{part}{scripts['_']}{scripts['^']}</msubsup>", tokens
    for sign, script in scripts.items():
        kind = "msub" if sign == "_" else "msup"
        part = f"<{kind}>{part}{script}</{kind}>"
    return part, tokens


def _atom(tokens: Sequence[str]) -> tuple[str, Sequence[str]]:
    if not tokens or tokens[0] in ("}", "_", "^", "/"):
        raise ValueError(f"an equation ends, or goes on with {' '.join(tokens[:1])!r}, where a part of it should stand")
    first, rest = tokens[0], tokens[1:]
    if first == "{":
        part, rest = _row(rest)
        if not rest:
            raise ValueError("a brace of an equation is not closed")
        return part, rest[1:]
    if first == "(":
        part, after = _row(rest, ")")
        if after[:1] == [")"]:
            return f"<mrow><mo>(</mo>{part}<mo>)</mo></mrow>", after[1:]
    if first == "√":
        part, rest = _atom(rest)
        return f"<msqrt>{part}</msqrt>", rest
    if first.startswith('"'):
        return f"<mtext>{escaped(first[1:-1].replace(' ', chr(160)))}</mtext>", rest
    number, power, exponent = first.partition("e") if first[0].isdigit() else ("", "", "")
    if power:
        return f"<mrow><mn>{number}</mn><mo>·</mo><msup><mn>10</mn><mn>{int(exponent)}</mn></msup></mrow>", rest
    kind = "mn" if first[0].isdigit() else "mi" if first[0].isalpha() else "mo"
    return f"<{kind}>{escaped(first)}</{kind}>", rest
