"""Parsing as in Section 6.3, on an artificial treebank: bracket F1 of a small model whose search may find trees alone, and of the same
model whose search may find anything.

    python benchmarks/parsing.py --steps 900 --early 300 --test 200 --set model.d_model=64 --set model.d_ff=256 \\
        --set model.encoder_layers=2 --set model.decoder_layers=2 --set training.learning_rate=4e-3 --output benchmarks/parsing.json

The trees are those of `dragoman.data.made_trees`, some of their nouns replaced by made-up words that hardly ever come twice. No sentence of
the test set is in the training text. Training goes through the command line, with the preset parsing-tiny. A search that may find anything
can write sequences that are no trees over the words: evalb leaves such sentences out of its F1, `f1_with_errors` counts them as sentences
without a bracket. Figures of artificial trees say nothing about how well English is parsed.
"""

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.data.made_trees import made_trees
from dragoman.data.trees import Tree, restore
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from dragoman.evaluation.brackets import score_brackets

RARE = 0.05
"""Share of the nouns that are replaced by a made-up word."""


def main() -> None:
    """Trains, parses, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=4000, help="of the training text")
    parser.add_argument("--test", type=int, default=300, help="trees of the test set")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--early", type=int, help="steps of a model that has not learnt all yet; a third of --steps when not given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4, 21])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to dragoman train")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/parsing.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "seed": options.seed,
        "trees": options.trees,
    }
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing)
        test = write_treebanks(folder, options)
        facts |= {"test_sentences": len(test), "test_words": sum(len(tree.words) for tree in test), "models": {}}
        for steps in (options.early or max(options.steps // 3, 1), options.steps):
            train(folder, steps, options)
            facts["models"][f"{steps} steps"] = [
                measured(folder / "run", test, beam, only_trees) for beam in options.beams for only_trees in (True, False)
            ]
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def write_treebanks(folder: Path, options: argparse.Namespace) -> list[Tree]:
    """train.mrg and valid.mrg in the folder; returns the trees of the test set, whose sentences are in neither."""
    choose = random.Random(options.seed)
    trees = with_rare_words(made_trees(2 * options.trees + options.test + 200, seed=options.seed), choose)
    train = [next(trees) for _ in range(options.trees)]
    valid = [next(trees) for _ in range(100)]
    for name, some in (("train", train), ("valid", valid)):
        (folder / f"{name}.mrg").write_text("".join(f"( {tree} )\n" for tree in some), encoding="utf-8")
    seen = {tree.words for tree in (*train, *valid)}
    return [tree for tree in trees if tree.words not in seen][: options.test]


def with_rare_words(trees: Iterator[Tree], choose: random.Random) -> Iterator[Tree]:
    """The trees with a share of their nouns replaced, each by a word that is hardly ever drawn twice."""
    for tree in trees:
        words = [
            "".join(choose.choices("bdfgklmnprst", k=1)[0] + choose.choices("aeiou", k=1)[0] for _ in range(4))
            if tag == "NN" and choose.random() < RARE
            else word
            for tag, word in zip(tree.tags(), tree.words, strict=True)
        ]
        yield replace(tree, words=tuple(words))


def train(folder: Path, steps: int, options: argparse.Namespace) -> None:
    """Trains so many steps in all, going on from where it stopped."""
    changes = [part for change in options.set for part in ("--set", change)]
    began = ["--resume"] if (folder / "run").exists() else [
        "words-tree", "--train", f"{folder / 'train.mrg'}", "--valid", f"{folder / 'valid.mrg'}", "--preset", "parsing-tiny",
        "--seed", f"{options.seed}", "--set", f"training.evaluate_every={options.steps}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "dragoman", "train", *began, *changes, "--out", f"{folder / 'run'}", "--max-steps", f"{steps}"]
    subprocess.run(command, check=True, stdout=sys.stderr)


def measured(run: Path, gold: Sequence[Tree], beam: int, only_trees: bool) -> dict[str, Any]:
    """The scores of the newest model with a beam."""
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    translator = Translator.load(newest, device="cpu")
    found = translator.translate([" ".join(tree.words) for tree in gold], beam=beam, options=SearchOptions(tree=only_trees))
    trees = [restored(each.parts[0].target, translator, tree.words) for each, tree in zip(found, gold, strict=True)]
    report = score_brackets(gold, trees)
    return {
        "beam": beam,
        "only_trees": only_trees,
        "f1": round(report.score.f1, 2),
        "f1_interval": report.interval and [round(report.interval.low, 2), round(report.interval.high, 2)],
        "f1_with_errors": round(report.score_with_errors.f1, 2),
        "complete_match": round(report.complete_match, 2),
        "sentences_without_a_tree": len(report.errors),
    }


def restored(ids: Sequence[int], translator: Translator, words: tuple[str, ...]) -> Tree:
    """The tree that a sequence writes over the words; one without words where it writes none."""
    try:
        return restore(translator.bundle.target_tokenizer.decode(ids), words)
    except DragomanError:
        return Tree((), ())


if __name__ == "__main__":
    main()
