"""The Transformer and what it replaced, on Multi30k's raw text: BLEU against minutes of training, and tokens a second.

    python benchmarks/older_models.py --minutes 6 --output benchmarks/older_models.json

Four presets of about as many parameters (tiny, recurrent, recurrent-gru, convolutional) train for the same time, one thread each and never
two at once: they take turns of a minute (--turn), so that whatever else the machine does happens to all of them. After each turn the model
translates the validation text greedily. At the end stands BLEU (13a, cased) of test_2016_flickr with a beam of 4. Minutes are those of the
training alone, by the clock, without evaluations; `busy` is the part of them that the process had its core, by the CPU's own time (with
what it takes to start), and 1.0 on a machine that does nothing else. Everything goes through the command line. The data are looked for in
DRAGOMAN_DATA or ../shared/data.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("DRAGOMAN_DATA", HERE.parents[1] / "shared" / "data")) / "multi30k" / "raw"
PRESETS = ("tiny", "recurrent", "recurrent-gru", "convolutional")


def main() -> None:
    """Trains in turns, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=6, help="of training for each")
    parser.add_argument("--turn", type=float, default=1, help="minutes of a turn")
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to each dragoman train")
    parser.add_argument("--runs", type=Path, help="where the run folders stay; otherwise they go")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA}: not there; set DRAGOMAN_DATA to a folder with multi30k/")
    with tempfile.TemporaryDirectory() as passing:
        runs = options.runs or Path(passing)
        kinds: dict[str, dict[str, Any]] = {preset: {"bleu": {}, "cpu": 0.0} for preset in options.presets}
        for turn in range(1, round(options.minutes / options.turn) + 1):
            for preset, facts in kinds.items():
                take_turn(options, preset, runs / preset, turn * options.turn, facts)
        for preset, facts in kinds.items():
            facts |= last_facts(runs / preset, facts.pop("cpu"))
    result = {
        "command": " ".join(["python", "benchmarks/older_models.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": 1,
        "minutes": options.minutes,
        "models": kinds,
    }
    print(json.dumps(result, indent=2))
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def take_turn(options: argparse.Namespace, preset: str, run: Path, minutes: float, facts: dict[str, Any]) -> None:
    """Trains until so many minutes are over in all, and translates the validation text."""
    before = used()
    limit = ["--max-minutes", minutes, "--max-steps", 10**6, "--out", run, "--quiet"]
    if run.exists():
        dragoman("train", "--resume", *limit)
    else:
        given = [f"training.evaluate_every={10**6}", *options.set]
        settings = [part for setting in given for part in ("--set", setting)]
        fixed = ["--preset", preset, "--seed", options.seed, "--precision", options.precision, "--device", "cpu"]
        dragoman("train", "en-de", "--train", DATA / "train", *fixed, *settings, *limit)
    facts["cpu"] += used() - before
    told = json.loads(dragoman("evaluate", run, "--test", DATA / "val", "--beam", 1, "--json", "--device", "cpu"))
    facts["bleu"][f"{minutes:g} minutes"] = round(told["bleu"], 2)
    print(f"{preset}: {facts['bleu']}", file=sys.stderr)


def last_facts(run: Path, cpu: float) -> dict[str, Any]:
    """What the run's folder and an evaluation of its last model say."""
    told = json.loads(dragoman("evaluate", run, "--test", DATA / "test_2016_flickr", "--json", "--device", "cpu"))
    record = json.loads((run / "run.json").read_text("utf-8"))
    log = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    trained = [each for each in log if each["t"] == "train"]
    last = trained[-1]
    rates = sorted(each["tok_s"] for each in trained)
    return {
        "test_2016": round(told["bleu"], 2),
        "parameters": record["parameters"],
        "steps": last["step"],
        "epochs": last["epoch"],
        "loss": round(last["loss"], 3),
        "target_tokens_a_second": {"median": round(rates[len(rates) // 2]), "best": round(rates[-1])},
        "seconds": round(last["seconds"]),
        "busy": round(cpu / last["seconds"], 2),
    }


def used() -> float:
    """Seconds of processor time that the commands before have taken."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def dragoman(*arguments: object) -> str:
    """The output of a verb, with one thread; its progress goes where ours goes."""
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


if __name__ == "__main__":
    main()
