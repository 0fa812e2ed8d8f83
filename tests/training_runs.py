"""Trainings small enough for tests: FX-TOY of the reported faults in files, ``dragoman train`` in this process, and what it left."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.cli import main
from dragoman.config import Config
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizer import Tokenizer
from dragoman.model.build import build_model
from dragoman.training.log import RunLog
from dragoman.training.trainer import Trainer

WORDS = [a + b for a in ("on", "ti", "re", "ga", "lu", "ma") for b in ("bek", "lo", "vast", "i")]
TINY = {
    "data.tokenizer": "whitespace",
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.n_heads": 2,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "training.batch_tokens": 60,
    "training.schedule": "constant",
    "training.warmup_steps": 1,
    "training.learning_rate": 0.01,
    "training.log_every": 1,
    "training.evaluate_every": 5,
}
"""A run of a few milliseconds a step; the rate is high at once, so that weights move."""

Pair = tuple[str, str]


def toy_pairs(count: int, *, seed: int = 0, shortest: int = 2, longest: int = 8) -> list[Pair]:
    """Sentences of the made-up language, each with its words backwards and in upper case."""
    choose = random.Random(seed)
    sources = [" ".join(choose.choices(WORDS, k=choose.randint(shortest, longest))) for _ in range(count)]
    return [(source, " ".join(word[::-1].upper() for word in source.split())) for source in sources]


def write_pairs(prefix: Path, pairs: Sequence[Pair]) -> Path:
    """PREFIX.aa and PREFIX.bb."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(("aa", "bb")):
        prefix.with_name(f"{prefix.name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return prefix


def train(run: Path, data: Path | None, *arguments: str | Path, **settings: Any) -> int:
    """``dragoman train aa-bb --train DATA --out RUN`` with ``TINY`` and ``training__seed=3`` for training.seed; returns the exit status.

    Without data the run is resumed, and only the given settings are set.
    """
    chosen = (TINY if data else {}) | {name.replace("__", "."): value for name, value in settings.items()}
    start = ["aa-bb", "--train", data] if data else ["--resume"]
    sets = [part for name, value in chosen.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    return main(["train", *map(str, [*start, "--out", run, *sets, *arguments])])


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """The records of log.jsonl of a kind: train, eval or event."""
    return [record for record in map(json.loads, (run / "log.jsonl").read_text("utf-8").splitlines()) if record["t"] == kind]


def checkpoints(run: Path) -> dict[int, Path]:
    """The folders with a checkpoint's final name, by the step written inside."""
    folders = sorted((run / "checkpoints").glob("step-*"))
    return {json.loads((folder / "config.json").read_text("utf-8"))["info"]["step"]: folder for folder in folders}


def marked(run: Path, mark: str) -> str:
    """What ``best`` or ``last`` names."""
    return (run / "checkpoints" / mark).read_text("utf-8").strip()


def final_weights(run: Path) -> dict[str, Tensor]:
    """The weights of the last checkpoint."""
    return load_file(run / "checkpoints" / marked(run, "last") / "model.safetensors")


def same_bits(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """The same names with bit-equal values."""
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def make_trainer(folder: Path, pairs: Sequence[Pair], *, model: Mapping[str, Any] | None = None, **training: Any) -> Trainer:
    """A trainer of a tiny model with fixed weights on ``pairs``, without dropout, in a new run folder, outside the command line."""
    tokenizer = Tokenizer.train([side for pair in pairs for side in pair], kind="whitespace", vocabulary_size=100)
    sizes = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer), "dropout": 0.0}
    groups: dict[str, dict[str, Any]] = {"model": sizes, "training": {}}
    for name, value in TINY.items():
        group, _, key = name.partition(".")
        groups.setdefault(group, {})[key] = value
    groups["model"] |= model or {}
    groups["training"] |= training
    config = Config().with_values(**groups)
    run = folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    corpus = Corpus.build(
        run / "corpus", pairs, source_tokenizer=tokenizer, target_tokenizer=tokenizer, max_length=256, batch_tokens=10_000
    )
    bundle = Bundle(config, build_model(config.model, seed=7), tokenizer, tokenizer)
    log = RunLog(run, console=None, max_steps=config.training.max_steps)
    return Trainer(bundle, corpus, run=run, log=log, device=torch.device("cpu"))
