"""The program as a user starts it, and a small model with random weights for it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dragoman.bundle import Bundle, save_bundle
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.model.build import build_model

WORDS = "ona bek tilu rem sova kip dal élan ñu łąka 東京 🐟"
COMMAND = (sys.executable, "-m", "dragoman")


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with one thread, no terminal width of the caller's, and the given variables."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **variables}


def dragoman(
    *arguments: str | Path, stdin: bytes = b"", variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line to its end, for at most two minutes."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], input=stdin, capture_output=True, timeout=120, env=environment(**(variables or {})), cwd=folder
    )


def but_for_limits(said: str) -> str:
    """What was said on standard error without the outputs at their longest: those of random weights seldom end by themselves."""
    return "".join(line for line in said.splitlines(keepends=True) if "reached the longest length allowed" not in line)


def tiny_bundle(folder: Path, *, kind: str = "whitespace", joiner: str = "", max_positions: int = 64) -> Path:
    """A bundle of 1 + 1 layers with random weights: ``WORDS`` split at spaces, or bytes (``bpe``)."""
    lines = [WORDS, WORDS.replace("a", f"{joiner} a ")] if joiner else [WORDS]
    tokenizer = Tokenizer.train(lines, kind=kind, vocabulary_size=300 if kind == "bpe" else 40, joiner=joiner)  # type: ignore[arg-type]
    config = Config().with_values(
        model={
            "d_model": 16,
            "d_ff": 32,
            "n_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "dropout": 0.0,
            "max_positions": max_positions,
            "source_vocabulary": len(tokenizer),
            "target_vocabulary": len(tokenizer),
        },
        data={"source": "aa", "target": "bb", "tokenizer": kind, "joiner": joiner},
        decoding={"extra_length": 3},
    )
    save_bundle(Bundle(config, build_model(config.model, seed=7), tokenizer, tokenizer, {"step": 1}), folder)
    return folder
