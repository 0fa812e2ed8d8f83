"""A training on a corpus of many generated pairs: time to the first step, memory, and whether a step takes longer than with few pairs.

    python benchmarks/large_corpus.py --pairs 10000 1000000 10000000 --output benchmarks/large_corpus.json

Each size is written as two text files and trained on by the command line, in a process of its own: `dragoman train … --preset tiny`
with `--max-steps`. Pairs are words of a made-up language in a random order, 4 to 40 of them. Then the trainings go on by turns,
--rounds times, so that a step of one is compared with a step of another while the machine is the same.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Measures each size, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=30, help="of a training, and again of each of its turns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the text and the runs go while it lasts; the system's own otherwise")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes: dict[int, dict[str, Any]] = {}
    with ExitStack() as stack:
        folders = {pairs: Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder))) for pairs in sorted(options.pairs)}
        for pairs, folder in folders.items():
            write_corpus(folder, pairs, seed=options.seed)
            sizes[pairs] = begin(folder, steps=options.steps)
            print(f"{pairs:,} pairs: {sizes[pairs]}", file=sys.stderr, flush=True)
        turns: list[list[float]] = []
        for number in range(options.rounds):
            turns.append([go_on(folder, steps=options.steps, until=options.steps * (number + 2)) for folder in folders.values()])
            print(f"round {number + 1}: {turns[-1]} seconds a step", file=sys.stderr, flush=True)
    for place, size in enumerate(sizes.values()):
        size["seconds_a_step"] = round(statistics.median(turn[place] for turn in turns), 4)
        size["to_a_step_with_the_fewest"] = round(statistics.median(turn[place] / turn[0] for turn in turns), 2)
    facts = {
        "command": " ".join(["python", "benchmarks/large_corpus.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "pairs": sizes,
    }
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def write_corpus(folder: Path, pairs: int, *, seed: int) -> None:
    """train.en and train.de: words drawn by a law of few frequent ones, a block of pairs at a time."""
    random = np.random.default_rng(seed)
    for language, vowels in (("en", "aeiou"), ("de", "äöüeo")):
        words = np.array([a + b + c + d for a in "bdfgklmnprst" for b in vowels for c in "bdklmnrst" for d in ("", "en", "ig", "a")])
        with open(folder / f"train.{language}", "w", encoding="utf-8") as file:
            for start in range(0, pairs, 100_000):
                lengths = np.clip(random.normal(14, 4, min(100_000, pairs - start)).round().astype(int), 4, 40)
                chosen = iter(words[(random.pareto(1.0, lengths.sum()) * 20).astype(int) % len(words)].tolist())
                file.writelines(" ".join(next(chosen) for _ in range(length)) + "\n" for length in lengths)


def begin(folder: Path, *, steps: int) -> dict[str, Any]:
    """Seconds to the first step of a training, and the peak of resident memory."""
    command = ["en-de", "--train", str(folder / "train"), "--preset", "tiny", "--set", "training.log_every=1"]
    began = time.time()
    trained = train(folder, *command, until=steps)
    return {"seconds_to_first_step": round(trained[0]["time"] - began, 1), "peak_resident_bytes": trained[-1]["mem"]}


def go_on(folder: Path, *, steps: int, until: int) -> float:
    """The median seconds of the later half of so many more steps of the training."""
    seconds: list[float] = [record["seconds"] for record in train(folder, "--resume", until=until)[-steps // 2 :]]
    return statistics.median(later - earlier for earlier, later in pairwise(seconds))


def train(folder: Path, *arguments: str, until: int) -> list[dict[str, Any]]:
    """What is on record of the steps of a training that went on until there."""
    run = folder / "run"
    command = [sys.executable, "-m", "dragoman", "train", *arguments, "--out", str(run), "--max-steps", str(until), "--quiet"]
    subprocess.run(command, check=True)
    records = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [record for record in records if record["t"] == "train"]


if __name__ == "__main__":
    main()
