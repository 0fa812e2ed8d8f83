"""Multi30k English to German: what a model of the preset tiny gains by the translations of three of its kind, and leaves none larger.

    python benchmarks/distillation.py --teachers RUNS --runs FOLDER --seeds 1 --output benchmarks/distillation.json

RUNS holds the three runs and averages of benchmarks/multi30k.rdrop.json, as its command leaves them with `--runs RUNS`. Together they
translate the training text (sequence-level distillation, Kim and Rush 2016), which is cut into pieces by the published merges; each of them
then goes on with the true pairs and these beside them, as often. What is in FOLDER already is not made again. The figures are those of
benchmarks/multi30k.py, beside the 41.02 and 33.36 of Wu et al. 2021. The data are looked for in DRAGOMAN_DATA or ../shared/data.
"""

import argparse
import gzip
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from tokenizers import models

from multi30k import DATA, PAIRS, dragoman, means, scores

SEEDS = (1, 2, 3)
PIECES = DATA / "bpe10k" / "en-de"
TRAINING = (
    "training.schedule=cosine", "training.optimizer=muon", "training.learning_rate=0.0015", "training.warmup_steps=200", "training.rdrop=3",
    "model.dropout=0.2", "training.batch_tokens=2048", "training.bleu_tokenize=none",
)  # fmt: skip


def main() -> None:
    """Translates, trains, evaluates, and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teachers", type=Path, required=True, help="the folder of the three runs")
    parser.add_argument("--runs", type=Path, required=True, help="where the translations and the run stay")
    parser.add_argument("--seeds", type=int, nargs="+", choices=SEEDS, default=[1], help="of the runs that go on")
    parser.add_argument("--steps", type=int, default=4000, help="updates of the training")
    parser.add_argument("--last", type=int, default=5, help="checkpoints to average")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA}: not there; set DRAGOMAN_DATA to a folder with multi30k/")
    options.runs.mkdir(parents=True, exist_ok=True)
    text, pieces = options.runs / "distilled.de", options.runs / "distilled.bpe.de"
    if not text.exists():
        first, *others = (options.teachers / f"multi30k-bpe-{seed}-averaged" for seed in SEEDS)
        together = [part for other in others for part in ("--ensemble", other)]
        dragoman("translate", first, PIECES / "train.en.gz", *together, "--beam", 5, "--alpha", 1, "-o", text)
    pieces.write_text(in_pieces(text.read_text("utf-8")), encoding="utf-8")
    seeds = {seed: one_seed(options, pieces, seed) for seed in options.seeds}
    facts = {
        "command": " ".join(["python", "benchmarks/distillation.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "settings": TRAINING,
        "bleu": means(seeds),
        "seeds": seeds,
    }
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def one_seed(options: argparse.Namespace, pieces: Path, seed: int) -> dict[str, Any]:
    """The run of this seed goes on with ``pieces`` as other targets of the training text, and is evaluated."""
    run, limit = options.runs / f"multi30k-distilled-{seed}", ("--max-steps", options.steps)
    if (run / "checkpoints").is_dir():
        dragoman("train", "--resume", "--out", run, *limit)
    else:
        train, valid, _ = PAIRS["bpe"]
        corpora = ("--train", DATA / train, "--train", f"{PIECES / 'train.en.gz'},{pieces}", "--valid", DATA / valid)
        settings = [part for setting in TRAINING for part in ("--set", setting)]
        teacher = options.teachers / f"multi30k-bpe-{seed}"
        dragoman("train", "en-de", "--from", teacher, *corpora, "--seed", seed, *settings, *limit, "--out", run)
    return scores(run, "bpe", last=options.last)


def in_pieces(text: str) -> str:
    """Its lines with every word in pieces, by the published merges, which mark the end of a word with </w>."""
    rules = gzip.decompress((PIECES / "code.gz").read_bytes()).decode("utf-8").splitlines()
    merges = [(first, second) for first, second, *_ in (rule.split() for rule in rules if not rule.startswith("#"))]
    signs = {sign for sign in text if not sign.isspace()}
    entries = dict.fromkeys([*signs, *(sign + "</w>" for sign in signs), *(part for pair in merges for part in (*pair, "".join(pair)))])
    known = models.BPE(vocab={entry: number for number, entry in enumerate(entries)}, merges=merges, end_of_word_suffix="</w>")

    def cut(word: str) -> str:
        return "@@ ".join(token.value for token in known.tokenize(word)).removesuffix("</w>")

    return "".join(" ".join(map(cut, line.split())) + "\n" for line in text.split("\n")[:-1])


if __name__ == "__main__":
    main()
