"""Trainings of models of one sequence, small enough for tests: ``dragoman train aa`` in this process."""

import json
import random
from pathlib import Path
from typing import Any

from dragoman.cli import main

TINY_GPT: dict[str, Any] = {
    "model.architecture": "decoder-only", "model.decoder_layers": 1, "model.d_model": 16, "model.d_ff": 32, "model.n_heads": 2,
    "model.norm_place": "pre", "model.max_positions": 12, "data.tokenizer": "characters", "training.batch_tokens": 60,
    "training.schedule": "constant", "training.warmup_steps": 1, "training.learning_rate": 0.01, "training.log_every": 1,
    "training.evaluate_every": 5, "training.label_smoothing": 0.0, "training.sampled_batches": 2,
}  # fmt: skip
"""A run of a few milliseconds a step; the rate is high at once, so that weights move."""
TINY_BERT: dict[str, Any] = {name: value for name, value in TINY_GPT.items() if name != "model.decoder_layers"} | {
    "model.architecture": "encoder-only", "model.encoder_layers": 1, "model.output_transform": True, "model.output_bias": True,
}  # fmt: skip


def words(count: int, *, seed: int = 0) -> str:
    """Lines of made-up words."""
    choose = random.Random(seed)
    lines = [" ".join(choose.choices(["rema", "lubek", "ona", "ti", "é"], k=choose.randint(1, 5))) for _ in range(count)]
    return "".join(f"{line}\n" for line in lines)


def train_text(run: Path, data: Path | None, *arguments: str | Path, base: dict[str, Any] = TINY_GPT, **settings: Any) -> int:
    """``dragoman train aa --train DATA --out RUN`` with ``base`` and ``training__seed=3`` for training.seed; returns the exit status.

    Without data the run is resumed, and only the given settings are set.
    """
    chosen = (base if data else {}) | {name.replace("__", "."): value for name, value in settings.items()}
    start = ["aa", "--train", data] if data else ["--resume"]
    sets = [part for name, value in chosen.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    return main(["train", *map(str, [*start, "--out", run, *sets, *arguments])])
