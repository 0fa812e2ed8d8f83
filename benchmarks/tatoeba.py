"""Tatoeba English to German with the preset small: BLEU and chrF of sentences never seen, after so many minutes.

    python benchmarks/tatoeba.py --minutes 60 --output benchmarks/tatoeba.json

The corpus repeats English sentences with other translations, so it is split by English sentence: all of them in the order of their SHA-256,
the first 1,000 for the test, the next 1,000 for the validation, each with its first translation; whatever else translates these is left
out. Everything goes through the command line. The data are looked for in DRAGOMAN_DATA or ../shared/data.
"""

import argparse
import gzip
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from multi30k import HERE, dragoman

DATA = Path(os.environ.get("DRAGOMAN_DATA", HERE.parents[1] / "shared" / "data")) / "tatoeba" / "en-de.tsv.gz"
HELD_OUT = 1000


def main() -> None:
    """Splits, trains, evaluates, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--last", type=int, default=5, help="checkpoints to average")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to dragoman train")
    parser.add_argument("--run", type=Path, help="where the run folder stays, and one that is there goes on; otherwise it goes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not DATA.is_file():
        sys.exit(f"{DATA}: not there; set DRAGOMAN_DATA to a folder with tatoeba/")
    with tempfile.TemporaryDirectory() as passing:
        facts = {
            "command": " ".join(["python", "benchmarks/tatoeba.py", *sys.argv[1:]]),
            "date": time.strftime("%Y-%m-%d"),
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "seed": options.seed,
            "pairs": split(Path(passing)),
            **measured(options, Path(passing)),
        }
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def split(folder: Path) -> dict[str, int]:
    """Writes train.tsv, valid.tsv and test.tsv; how many pairs each has."""
    pairs: dict[str, list[str]] = {}
    with gzip.open(DATA, "rt", encoding="utf-8", newline="\n") as lines:
        for english, german in (line.rstrip("\n").split("\t") for line in lines):
            pairs.setdefault(english, []).append(german)
    order = sorted(pairs, key=lambda english: hashlib.sha256(english.encode()).digest())
    parts = {"test": order[:HELD_OUT], "valid": order[HELD_OUT : 2 * HELD_OUT]}
    texts = {name: [(english, pairs[english][0]) for english in part] for name, part in parts.items()}
    held_out = set().union(*parts.values())
    texts["train"] = [(english, german) for english in pairs if english not in held_out for german in pairs[english]]
    for name, part in texts.items():
        (folder / f"{name}.tsv").write_text("".join(f"{english}\t{german}\n" for english, german in part), encoding="utf-8", newline="\n")
    return {name: len(part) for name, part in texts.items()}


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A training, and the test of its best checkpoint and of its last ones averaged."""
    run = options.run or folder / "run"
    limits = ["--out", run, "--max-minutes", options.minutes]
    if (run / "checkpoints").is_dir():
        dragoman("train", "--resume", *limits)
    else:
        settings = [part for setting in options.set for part in ("--set", setting)]
        texts = ["--train", folder / "train.tsv", "--valid", folder / "valid.tsv"]
        dragoman("train", "en-de", *texts, "--preset", "small", "--seed", options.seed, *settings, *limits)
    averaged = folder / "averaged"
    dragoman("average", run, "--last", options.last, "--out", averaged)
    models = {"best, beam 4": run, "averaged, beam 4": averaged}
    told = {name: json.loads(dragoman("evaluate", model, "--test", folder / "test.tsv", "--json")) for name, model in models.items()}
    record = json.loads((run / "run.json").read_text("utf-8"))
    trained = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    last = [each for each in trained if each["t"] == "train"][-1]
    return {
        **{measure: {name: round(each[measure], 2) for name, each in told.items()} for measure in ("bleu", "chrf")},
        "signatures": {key: value for key, value in told["best, beam 4"].items() if key.endswith("signature")},
        "steps": last["step"],
        "epochs": last["epoch"],
        "seconds": round(last["seconds"]),
        **{name: record.get(name) for name in ("parameters", "precision", "threads")},
    }


if __name__ == "__main__":
    main()
