"""A training killed with SIGKILL at many random moments, and one left alone: are the weights and the log the same?

    python benchmarks/kill_and_resume.py --kills 30 --seed 1 --output benchmarks/kill_and_resume.json

The moments are drawn over the whole life of the process: preparing the data, steps, evaluations, checkpoints. After each kill the same
command line goes on with --resume (or starts again, when nothing was there to resume), until the run is done. Compared are the final
weights, bit for bit, and what the log says of every step and evaluation, but for times. A run that is done before its share of the kills is
compared, and the next one begins.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PLACES = ("before a checkpoint", "after a checkpoint", "within a checkpoint", "within an evaluation")
TIMES = ("time", "seconds", "tok_s", "mem", "device_mem")
WORDS = [first + second for first in ("on", "ti", "re", "ga", "lu", "ma") for second in ("bek", "lo", "vast", "i")]


def main() -> None:
    """Runs both trainings, prints and writes what was found; the exit status is 1 when they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    choose = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pairs(folder / "train", 400, choose)
        write_pairs(folder / "valid", 200, choose)  # so that kills fall into evaluations, too
        began = time.monotonic()
        subprocess.run(command(folder, folder / "whole", options.steps), check=True, env=environment())
        alone = time.monotonic() - began
        places, finished = survive(folder, options, choose, alone)
    facts = {
        "command": " ".join(["python", "benchmarks/kill_and_resume.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "machine": platform.machine(),
        "kills": places,
        "runs_compared": finished,
    }
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(run["weights"] and run["log"] for run in finished) else 1)


def write_pairs(prefix: Path, count: int, choose: random.Random) -> None:
    """Sentences of a made-up language, and their words backwards in upper case."""
    sources = [" ".join(choose.choices(WORDS, k=choose.randint(2, 9))) for _ in range(count)]
    targets = [" ".join(word[::-1].upper() for word in source.split()) for source in sources]
    for language, lines in (("aa", sources), ("bb", targets)):
        prefix.with_name(f"{prefix.name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def command(folder: Path, run: Path, steps: int) -> list[str]:
    """The training, in float32, with a checkpoint every few steps."""
    start = [sys.executable, "-m", "dragoman", "train", "aa-bb", "--train", str(folder / "train"), "--valid", str(folder / "valid")]
    settings = {
        "model.d_model": 32, "model.d_ff": 64, "model.n_heads": 4, "model.encoder_layers": 2, "model.decoder_layers": 2,
        "data.vocabulary_size": 300, "training.batch_tokens": 300, "training.accumulate": 2, "training.evaluate_every": 20,
        "training.log_every": 1, "training.ema": 0.9, "training.precision": "fp32",
    }  # fmt: skip
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [*start, "--preset", "tiny", *sets, "--max-steps", str(steps), "--out", str(run), "--quiet"]


def environment() -> dict[str, str]:
    """One thread, so that two runs add in the same order."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def survive(folder: Path, options: argparse.Namespace, choose: random.Random, alone: float) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Trainings with kills, until there were enough: when they came, as the run folder shows it, and how each finished run compares."""
    run, places = folder / "killed", dict.fromkeys(PLACES, 0)
    finished: list[dict[str, Any]] = []
    kills = 0
    while True:
        resumable = any((run / "checkpoints").glob("step-*"))
        if not resumable:
            shutil.rmtree(run, ignore_errors=True)
        start = [sys.executable, "-m", "dragoman", "train", "--resume", "--out", str(run), "--quiet"] if resumable else None
        process = subprocess.Popen(start or command(folder, run, options.steps), env=environment())
        try:
            process.wait(choose.uniform(0, alone) if sum(places.values()) < options.kills else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            places[place(run)] += 1
            continue
        if process.returncode:
            sys.exit(f"the resumed training ended with status {process.returncode}")
        finished.append({"kills": kills, **compare(folder / "whole", run)})
        if sum(places.values()) >= options.kills:
            return places, finished
        shutil.rmtree(run)
        kills = 0


def place(run: Path) -> str:
    """Where a kill came, as the run folder shows it."""
    if any((run / "checkpoints").glob(".step-*")):
        return "within a checkpoint"
    newest = max((run / "checkpoints").glob("step-*"), default=None)
    if newest is None:
        return "before a checkpoint"
    known = json.loads((newest / "state" / "progress.json").read_text("utf-8"))["progress"]
    return "within an evaluation" if known["owed"] else "after a checkpoint"


def compare(whole: Path, killed: Path) -> dict[str, bool]:
    """Whether the weights and the standing records are equal."""
    from dragoman.training.records import read_log, standing  # what a resume took back does not stand

    last = [run / "checkpoints" / (run / "checkpoints" / "last").read_text("utf-8").strip() for run in (whole, killed)]
    weights = [(checkpoint / "model.safetensors").read_bytes() for checkpoint in last]
    logs = [[plain(record) for record in standing(read_log(run)[0]) if record["t"] != "event"] for run in (whole, killed)]
    return {"weights": weights[0] == weights[1], "log": logs[0] == logs[1]}


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its times."""
    return {name: value for name, value in record.items() if name not in TIMES}


if __name__ == "__main__":
    main()
