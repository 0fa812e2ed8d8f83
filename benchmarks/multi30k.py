"""Multi30k English to German with the preset tiny: how good it gets in so many minutes or updates, over several seeds.

    python benchmarks/multi30k.py raw --minutes 20 --output benchmarks/multi30k.raw.json
    python benchmarks/multi30k.py bpe --steps 7000 --set training.schedule=cosine --seeds 1 2 --output benchmarks/multi30k.bpe.json

`raw` is the README's own-files command on the raw text: cased BLEU (13a) and chrF of test_2016_flickr and test_2017_flickr. `bpe` takes the
published byte pairs, and BLEU of lower-cased tokens (`--tokenize none`), which stands beside the 41.02 and 33.36 of Wu et al. 2021
(Transformer-Tiny, 2,568,192 parameters, post-norm). Everything goes through the command line. The data are looked for in DRAGOMAN_DATA or
../shared/data.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("DRAGOMAN_DATA", HERE.parents[1] / "shared" / "data")) / "multi30k"
PAIRS = {
    "raw": ("raw/train", "raw/val", {year: f"raw/test_{year}_flickr" for year in ("2016", "2017")}),
    "bpe": (
        "bpe10k/en-de/train",
        "bpe10k/en-de/valid",
        {year: f"bpe10k/en-de/test.{year}.en.gz,tok/test_{year}_flickr.lc.norm.tok.de.gz" for year in ("2016", "2017")},
    ),
}
SETTINGS = {
    "raw": [],
    "bpe": ["data.tokenizer=whitespace", "data.joiner=@@", "data.vocabulary_size=0", "training.bleu_tokenize=none"],
}
WORDS = {"raw": "13a", "bpe": "none"}


def main() -> None:
    """Trains and evaluates each seed, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=sorted(PAIRS))
    parser.add_argument("--minutes", type=float, help="how long each training takes; 20 where --steps are not given either")
    parser.add_argument("--steps", type=int, help="updates of each training; as many as fit the minutes when not given")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--last", type=int, default=5, help="checkpoints to average")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to dragoman train")
    parser.add_argument("--runs", type=Path, help="where the run folders stay, and those that are there go on; otherwise they go")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA}: not there; set DRAGOMAN_DATA to a folder with multi30k/")
    with tempfile.TemporaryDirectory() as passing:
        runs = options.runs or Path(passing)
        seeds = {seed: one_seed(options, runs / f"multi30k-{options.data}-{seed}", seed) for seed in options.seeds}
    facts = {
        "command": " ".join(["python", "benchmarks/multi30k.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "bleu": means(seeds),
        "seeds": seeds,
    }
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def means(seeds: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Of each test and model the mean BLEU over the seeds, and their standard deviation."""
    return {
        f"{test}, {model}": {
            "mean": round(statistics.mean(values), 2), "spread": round(statistics.stdev(values), 2) if len(values) > 1 else None,
        }
        for test in next(iter(seeds.values()))["bleu"]
        for model in next(iter(seeds.values()))["bleu"][test]
        if (values := [facts["bleu"][test][model] for facts in seeds.values()])
    }  # fmt: skip


def one_seed(options: argparse.Namespace, run: Path, seed: int) -> dict[str, Any]:
    """A training and its evaluations."""
    train, valid, _ = PAIRS[options.data]
    settings = [part for setting in SETTINGS[options.data] + options.set for part in ("--set", setting)]
    limits = ["--out", str(run)]
    limits += ["--max-steps", str(options.steps)] if options.steps else []
    limits += ["--max-minutes", str(options.minutes or 20)] if options.minutes or not options.steps else []
    if (run / "checkpoints").is_dir():
        dragoman("train", "--resume", *limits)
    else:
        dragoman("train", "en-de", "--train", DATA / train, "--valid", DATA / valid, "--preset", "tiny", "--seed", seed, *settings, *limits)
    return scores(run, options.data, last=options.last)


def scores(run: Path, data: str, *, last: int) -> dict[str, Any]:
    """What a run is worth on the test sets: its best checkpoint greedily and with beam search, and the mean of its ``last`` ones."""
    tests, averaged = PAIRS[data][2], run.with_name(f"{run.name}-averaged")
    shutil.rmtree(averaged, ignore_errors=True)
    dragoman("average", run, "--last", last, "--out", averaged)
    models: dict[str, tuple[object, ...]] = {
        "best, greedy": (run, "--beam", 1),
        "best, beam 4": (run,),
        "averaged, beam 4": (averaged,),
        "averaged, beam 5 α 1": (averaged, "--beam", 5, "--alpha", 1),
    }
    bleu: dict[str, dict[str, float]] = {}
    signatures: dict[str, str] = {}
    chrf: dict[str, dict[str, float]] = {}
    for name, (model, *search) in models.items():
        for year, test in tests.items():
            parts = ",".join(str(DATA / part) for part in test.split(","))
            told = json.loads(dragoman("evaluate", model, "--test", parts, "--tokenize", WORDS[data], "--json", *search))
            bleu.setdefault(f"test {year}", {})[name] = round(told["bleu"], 2)
            chrf.setdefault(f"test {year}", {})[name] = round(told["chrf"], 2)
            signatures |= {key: value for key, value in told.items() if key.endswith("signature")}  # the same for all
    record = json.loads((run / "run.json").read_text("utf-8"))
    trained = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    newest = [each for each in trained if each["t"] == "train"][-1]
    facts = {"bleu": bleu, "chrf": chrf, "signatures": signatures}
    facts |= {"steps": newest["step"], "epochs": newest["epoch"], "seconds": round(newest["seconds"])}
    return facts | {name: record.get(name) for name in ("parameters", "precision", "threads")}


def dragoman(*arguments: object) -> str:
    """The output of a verb; its progress goes where ours goes."""
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
