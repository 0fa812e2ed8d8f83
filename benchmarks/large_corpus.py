"""A training on a corpus of many generated pairs: time to the first step, memory, and whether a step takes longer than with few pairs.

    python benchmarks/large_corpus.py --pairs 10000 1000000 10000000 --output benchmarks/large_corpus.json

Each size is written as two text files and trained on by the command line, in a process of its own: `dragoman train … --preset tiny`
with `--max-steps`. Pairs are words of a made-up language in a random order, 4 to 40 of them.
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Measures each size, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the text and the runs go while it lasts; the system's own otherwise")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes = {}
    for pairs in options.pairs:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            write_corpus(Path(folder), pairs, seed=options.seed)
            sizes[pairs] = measure(Path(folder), steps=options.steps)
            print(f"{pairs:,} pairs: {sizes[pairs]}", file=sys.stderr, flush=True)
    facts = {
        "command": " ".join(["python", "benchmarks/large_corpus.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
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


def measure(folder: Path, *, steps: int) -> dict[str, Any]:
    """Seconds to the first step, the median seconds of a step, and the peak of resident memory."""
    run = folder / "run"
    command = [sys.executable, "-m", "dragoman", "train", "en-de", "--train", str(folder / "train"), "--preset", "tiny", "--out", str(run)]
    command += ["--max-steps", str(steps), "--set", "training.log_every=1", "--quiet"]
    began = time.time()
    subprocess.run(command, check=True)
    records = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    trained = [record for record in records if record["t"] == "train"]
    seconds = [later["seconds"] - earlier["seconds"] for earlier, later in pairwise(trained)]
    return {
        "seconds_to_first_step": round(trained[0]["time"] - began, 1),
        "seconds_a_step": round(statistics.median(seconds[len(seconds) // 2 :]), 4),
        "target_tokens_a_second": round(statistics.median(record["tok_s"] for record in trained[len(trained) // 2 :])),
        "peak_resident_bytes": trained[-1]["mem"],
    }


if __name__ == "__main__":
    main()
