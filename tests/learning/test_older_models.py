"""The models that the paper replaced learn to reverse lines through the real command line, and do so with lines never seen."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

SETTINGS = {
    "data.tokenizer": "whitespace",
    "model.d_model": 32,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.dropout": 0.0,
    "model.scale_embedding": False,
    "training.batch_tokens": 250,
    "training.schedule": "cosine",
    "training.learning_rate": 0.01,
    "training.warmup_steps": 30,
    "training.clip_norm": 1.0,
    "training.label_smoothing": 0.0,
    "training.evaluate_every": 10_000,
}
CONVOLUTIONAL = {
    "model.architecture": "convolutional", "model.positions": "learned", "model.encoder_layers": 2,
    "model.decoder_layers": 2,
}  # fmt: skip
KINDS = {
    "lstm": {"model.architecture": "recurrent"},
    "gru": {"model.architecture": "recurrent", "model.cell": "gru"},
    "convolutional": CONVOLUTIONAL,
}


def letter_lines(count: int, *, seed: int) -> list[str]:
    """Lines of 1 to 4 letters with spaces between."""
    choose = random.Random(seed)
    return [" ".join(choose.choices("abcdef", k=choose.randint(1, 4))) for _ in range(count)]


def reverse(line: str) -> str:
    return " ".join(line.split()[::-1])


def write_task(prefix: Path, lines: list[str]) -> Path:
    """PREFIX.in with the lines, PREFIX.out with them backwards."""
    for language, texts in (("in", lines), ("out", map(reverse, lines))):
        prefix.with_name(f"{prefix.name}.{language}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return prefix


@pytest.mark.parametrize("kind", KINDS)
def test_reversing_is_learnt_from_lines_and_holds_on_others(kind: str, tmp_path: Path, run: Callable[..., str]) -> None:
    lines = letter_lines(3000, seed=1)
    unseen = [line for line in dict.fromkeys(letter_lines(3000, seed=2)) if line not in set(lines)][:150]
    assert len(unseen) == 150
    data, test, folder = write_task(tmp_path / "train", lines), write_task(tmp_path / "test", unseen), tmp_path / "run"
    sets = [part for name, value in (SETTINGS | KINDS[kind]).items() for part in ("--set", f"{name}={json.dumps(value)}")]
    run("train", "in-out", "--train", data, "--out", folder, *sets, "--max-steps", 160, "--quiet")
    scores = json.loads(run("evaluate", folder, "--test", test, "--json", "--beam", 1))
    assert scores["sentences"] == 150
    assert scores["exact_match"] >= 97
