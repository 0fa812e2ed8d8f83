"""A small artificial treebank: English-like sentences drawn from a grammar, for tests and for trying parsing without a treebank.

The grammar leaves little to guess: the words tell what belongs to what. ``of`` and ``with`` belong to the noun before them, ``at`` and
``near`` to the verb, and each verb has one pattern.
"""

import random
from collections.abc import Iterator

from dragoman.data.trees import Tree

# A label's right-hand sides with their weights; what is no label here is a kind of word.
_RULES: dict[str, list[tuple[float, str]]] = {
    "S": [(6, "NP VP ."), (2, "PP , NP VP ."), (1, "ADVP , NP VP ."), (1, "SBAR , NP VP .")],
    "Clause": [(1, "NP VP")],
    "NP": [(5, "DT NN"), (3, "DT JJ NN"), (2, "NNP"), (2, "PRP"), (2, "Base Of"), (1, "Base Relative"), (1, "NP CC NP"), (1, "DT ADJP NN")],
    "Base": [(2, "DT NN"), (1, "DT JJ NN"), (1, "NNP")],
    "VP": [
        (3, "VBI"),
        (4, "VBT NP"),
        (3, "VBT NP PP"),
        (2, "VBI PP"),
        (2, "VBP PRT NP"),
        (2, "VBS SBAR"),
        (1, "VBI ADVP"),
        (2, "MD Plain"),
    ],
    "Plain": [(2, "VBB NP"), (1, "VBB NP PP")],
    "PP": [(1, "IN NP")],
    "Of": [(1, "OF NP")],
    "Relative": [(1, "WHNP VP")],
    "WHNP": [(1, "WDT")],
    "SBAR": [(1, "SUB Clause")],
    "ADJP": [(1, "RBJ JJ")],
    "ADVP": [(2, "RB"), (1, "RBJ RB")],
    "PRT": [(1, "RP")],
}
_LABELS = {"Clause": "S", "Base": "NP", "Plain": "VP", "Of": "PP", "Relative": "SBAR"}
_WORDS = {
    "DT": "the a every this", "NN": "gardener lantern river teacher bridge violin harbour painter window island kettle orchard",
    "NNP": "Mara Oskar Linden Tove", "PRP": "she he it they", "JJ": "old green quiet heavy narrow distant",
    "VBI": "waited laughed arrived slept", "VBT": "painted repaired carried watched found", "VBP": "picked gave took handed",
    "VBS": "thought said knew", "VBB": "paint repair carry watch find", "MD": "will may should", "IN": "at near behind under",
    "OF": "of with", "SUB": "that because", "WDT": "which who", "RB": "slowly often today", "RBJ": "very rather", "RP": "up back",
    ",": ",", ".": ". ? !", "CC": "and or",
}  # fmt: skip
_TAGS = {"VBI": "VBD", "VBT": "VBD", "VBP": "VBD", "VBS": "VBD", "VBB": "VB", "OF": "IN", "SUB": "IN", "RBJ": "RB"}
_DEEPEST = 7
"""Brackets inside each other beyond which only a label's first right-hand side is taken."""


def made_trees(count: int, *, seed: int) -> Iterator[Tree]:
    """``count`` trees, the same for the same seed."""
    choose = random.Random(seed)
    for _ in range(count):
        parts: list[str] = []
        words: list[str] = []
        _grow("S", choose, 0, parts, words)
        yield Tree(tuple(parts), tuple(words))


def _grow(symbol: str, choose: random.Random, depth: int, parts: list[str], words: list[str]) -> None:
    if symbol not in _RULES:
        parts.append(_TAGS.get(symbol, symbol))
        words.append(choose.choice(_WORDS[symbol].split()))
        return
    label, rules = _LABELS.get(symbol, symbol), _RULES[symbol]
    weights = [weight for weight, _ in rules] if depth < _DEEPEST else [1.0] + [0.0] * (len(rules) - 1)
    (chosen,) = choose.choices([symbols for _, symbols in rules], weights)
    parts.append(f"({label}")
    for each in chosen.split():
        _grow(each, choose, depth + 1, parts, words)
    parts.append(f"){label}")
