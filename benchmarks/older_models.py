"""The Transformer and what it replaced, on Multi30k's raw text: BLEU against minutes of training, and tokens a second.

    python benchmarks/older_models.py --minutes 20 --turn 2 --output benchmarks/older_models.json
    python benchmarks/older_models.py --small --minutes 2 --turn 0.5 --output benchmarks/older_models.small.json

Three presets of about as many parameters (tiny, recurrent, convolutional; --presets takes recurrent-gru too) train for the same time, one
thread each and never two at once: they take turns, so that whatever else the machine does happens to all of them. Minutes are those that
the processor has spent on the training alone, without starting, evaluations and other programs; on a machine that does nothing else they
are the clock's. After each turn the model translates the validation text (its first --lines) greedily; at the end stands BLEU (13a, cased)
of the test text of 2016 with a beam of 4. --small makes the models half as wide with half the vocabulary and batches, to learn in minutes
where the presets take an hour. Everything goes through the command line. The data are looked for in DRAGOMAN_DATA or ../shared/data.
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
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.data.formats.pairs import read_pairs

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("DRAGOMAN_DATA", HERE.parents[1] / "shared" / "data")) / "multi30k" / "raw"
PRESETS = ("tiny", "recurrent", "convolutional")
SMALL: dict[str, list[str]] = {
    "tiny": ["model.d_model=64", "model.d_ff=128"],
    "recurrent": ["model.d_model=88"],
    "recurrent-gru": ["model.d_model=96"],
    "convolutional": ["model.d_model=64", "model.max_positions=256"],
}
FIRST = 10
"""Updates of the first turn's beginning, after which it is known what one takes."""


def main() -> None:
    """Trains in turns, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="of the processor, for each")
    parser.add_argument("--turn", type=float, default=2, help="minutes of a turn")
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--small", action="store_true", help="models of half the width")
    parser.add_argument("--lines", type=int, default=300, help="of the validation text and of the test text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to each dragoman train")
    parser.add_argument("--output", type=Path, help="written after each turn, too")
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA}: not there; set DRAGOMAN_DATA to a folder with multi30k/")
    with tempfile.TemporaryDirectory() as folder:
        texts = {name: first_lines(DATA / name, Path(folder) / name, options.lines) for name in ("val", "test_2016_flickr")}
        trainings = [Training(preset, Path(folder) / preset, options) for preset in options.presets]
        for turn in range(1, round(options.minutes / options.turn) + 1):
            for training in trainings:
                training.until(60 * turn * options.turn)
                training.evaluate(f"{turn * options.turn:g} minutes", texts["val"])
                write(options, trainings)
        for training in trainings:
            training.finish(texts["test_2016_flickr"])
    print(write(options, trainings))


def write(options: argparse.Namespace, trainings: "list[Training]") -> str:
    """The result so far, as JSON, and in the file of --output."""
    facts = {
        "command": " ".join(["python", "benchmarks/older_models.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": 1,
        "minutes": options.minutes,
        "lines": options.lines,
        "models": {training.preset: training.facts for training in trainings},
    }
    text = json.dumps(facts, indent=2)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    return text


def first_lines(prefix: Path, target: Path, count: int) -> Path:
    """So many lines of both sides of a corpus, compressed or not, as a corpus."""
    kept = list(islice(read_pairs(str(prefix), "en", "de"), count))
    for side, language in enumerate(("en", "de")):
        target.with_name(f"{target.name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in kept), "utf-8")
    return target


class Training:
    """A run of a preset that goes on turn by turn, and what is known of it."""

    def __init__(self, preset: str, run: Path, options: argparse.Namespace) -> None:
        self.preset, self.run, self.seed = preset, run, options.seed
        self.settings = [f"training.evaluate_every={10**6}", *options.set]
        if options.small:
            self.settings += [*SMALL[preset], "data.vocabulary_size=2000", "training.batch_tokens=1024", "training.warmup_steps=200"]
        self.steps, self.seconds, self.starting = 0, 0.0, 0.0
        self.facts: dict[str, Any] = {"bleu": {}}

    def until(self, seconds: float) -> None:
        """Trains until the processor has spent so many seconds on it in all."""
        if not self.steps:
            self.train(FIRST)
            self.starting = self.train(FIRST)  # again, which takes what it takes to start and no update
            self.seconds = 0.0
            self.steps = FIRST
            before = self.train(2 * FIRST) - self.starting
            self.steps, self.seconds = 2 * FIRST, 2 * before
        more = max(round((seconds - self.seconds) * self.steps / self.seconds), 1)
        self.seconds += self.train(self.steps + more) - self.starting
        self.steps += more
        self.facts |= {"updates": self.steps, "seconds": round(self.seconds, 1)}

    def train(self, steps: int) -> float:
        """Trains to the step of that number; returns the processor's seconds, with those it takes to start."""
        before = used()
        limit = ["--max-steps", steps, "--out", self.run, "--quiet"]
        if self.run.exists():
            dragoman("train", "--resume", *limit)
        else:
            settings = [part for setting in self.settings for part in ("--set", setting)]
            fixed = ["--preset", self.preset, "--seed", self.seed, "--precision", "fp32", "--device", "cpu"]
            dragoman("train", "en-de", "--train", DATA / "train", *fixed, *settings, *limit)
        return used() - before

    def evaluate(self, when: str, text: Path) -> None:
        """Greedy BLEU of the model as it is."""
        told = json.loads(dragoman("evaluate", self.run, "--test", text, "--beam", 1, "--json", "--device", "cpu"))
        self.facts["bleu"][when] = round(told["bleu"], 2)
        print(f"{self.preset}: {self.facts}", file=sys.stderr)

    def finish(self, text: Path) -> None:
        """What the run's folder and an evaluation of its last model say."""
        before = used()
        told = json.loads(dragoman("evaluate", self.run, "--test", text, "--json", "--device", "cpu"))
        last = (self.run / "checkpoints" / "last").read_text("utf-8").strip()
        progress = json.loads((self.run / "checkpoints" / last / "state" / "progress.json").read_text("utf-8"))["progress"]
        record = json.loads((self.run / "run.json").read_text("utf-8"))
        log = [json.loads(line) for line in (self.run / "log.jsonl").read_text("utf-8").splitlines()]
        self.facts |= {
            "test_2016": round(told["bleu"], 2),
            "seconds_to_translate": round(used() - before, 1),
            "parameters": record["parameters"],
            "target_tokens_a_second": round(progress["target_tokens"] / self.seconds),
            "loss": round([each["loss"] for each in log if each["t"] == "train"][-1], 3),
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
