"""What each regulariser adds: Multi30k English to German on the published byte pairs, the recipe with one thing changed at a time.

    python benchmarks/regularisers.py --steps 2500 --output benchmarks/regularisers.json

Every training is `multi30k.py bpe` with one seed, and a cosine schedule over so many updates; `recipe` changes nothing. Differences below
the spread between seeds, which multi30k.bpe.json has, say nothing. BPE dropout is not among them: the published pieces are given, not
learnt. What a result has already is not trained again, so a run that was stopped goes on; --only does some of them.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from multi30k import DATA, one_seed

RECIPE = ["training.schedule=cosine"]
CHANGES: dict[str, list[str]] = {
    "recipe": [],
    "label smoothing 0 for 0.1": ["training.label_smoothing=0"],
    "dropout 0.1 for 0.3": ["model.dropout=0.1"],
    "attention dropout 0.1": ["model.attention_dropout=0.1"],
    "activation dropout 0.1": ["model.activation_dropout=0.1"],
    "moving average of weights 0.998": ["training.ema=0.998"],
    "weight decay 0.01": ["training.optimizer=adamw", "training.weight_decay=0.01"],
    "R-Drop 5": ["training.rdrop=5"],
}


def main() -> None:
    """Trains and evaluates each change, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2500, help="updates of each training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=[*CHANGES], metavar="NAME", help=f"some of: {', '.join(CHANGES)}")
    parser.add_argument("--runs", type=Path, help="where the run folders stay, and those that are there go on; otherwise they go")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA}: not there; set DRAGOMAN_DATA to a folder with multi30k/")
    models = known(options)
    for name in options.only:
        if name not in models:
            with tempfile.TemporaryDirectory() as passing:
                settings = argparse.Namespace(data="bpe", steps=options.steps, minutes=None, last=5, set=RECIPE + CHANGES[name])
                run = (options.runs or Path(passing)) / name.replace(" ", "-")
                models |= record(options, name, one_seed(settings, run, options.seed))
    print(json.dumps(models, indent=2))


def known(options: argparse.Namespace) -> dict[str, Any]:
    """What the output has of trainings of this length and seed, by the name of the change."""
    if not options.output or not options.output.exists():
        return {}
    facts = json.loads(options.output.read_text(encoding="utf-8"))
    models: dict[str, Any] = facts["models"] if (facts["steps"], facts["seed"]) == (options.steps, options.seed) else {}
    return models


def record(options: argparse.Namespace, name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Adds a training to the output, in the order of `CHANGES`: BLEU of the test of 2016, and what lies behind. Returns what is there."""
    bleu = found.pop("bleu")
    scores = {f"BLEU {search}": bleu["test 2016"][search] for search in ("best, greedy", "best, beam 4")}
    del found["seconds"]  # of a training that may have been stopped meanwhile
    models = known(options) | {name: {**scores, "details": {"bleu": bleu, **found}}}
    print(f"{name}: {scores}", file=sys.stderr, flush=True)
    seed = "" if options.seed == 1 else f" --seed {options.seed}"
    facts = {
        "command": f"python benchmarks/regularisers.py --steps {options.steps}{seed} --output benchmarks/regularisers.json",
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "steps": options.steps,
        "seed": options.seed,
        "models": {each: models[each] for each in CHANGES if each in models},
    }
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return models


if __name__ == "__main__":
    main()
