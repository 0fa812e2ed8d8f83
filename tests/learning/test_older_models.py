"""The models that the paper replaced learn to copy and to reverse through the real command line, and hold on lines never seen."""

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
    "training.batch_tokens": 400,
    "training.schedule": "cosine",
    "training.learning_rate": 0.01,
    "training.warmup_steps": 30,
    "training.clip_norm": 1.0,
    "training.label_smoothing": 0.0,
    "training.evaluate_every": 10_000,
}
CONVOLUTIONAL = {
    "model.architecture": "convolutional", "model.positions": "learned", "model.scale_embedding": False, "model.encoder_layers": 2,
    "model.decoder_layers": 2,
}  # fmt: skip
KINDS = {
    "lstm": {"model.architecture": "recurrent"},
    "gru": {"model.architecture": "recurrent", "model.cell": "gru"},
    "convolutional": CONVOLUTIONAL,
}


def letter_lines(count: int, *, seed: int) -> list[str]:
    """Lines of 1 to 6 letters with spaces between."""
    choose = random.Random(seed)
    return [" ".join(choose.choices("abcdefgh", k=choose.randint(1, 6))) for _ in range(count)]


def write_task(prefix: Path, lines: list[str], task: Callable[[str], str]) -> Path:
    """PREFIX.in with the lines, PREFIX.out with what is to become of them."""
    for language, texts in (("in", lines), ("out", map(task, lines))):
        prefix.with_name(f"{prefix.name}.{language}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return prefix


def reverse(line: str) -> str:
    return " ".join(line.split()[::-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", [str, reverse], ids=["copy", "reverse"])
def test_a_task_is_learnt_from_lines_and_holds_on_others(
    kind: str, task: Callable[[str], str], tmp_path: Path, run: Callable[..., str]
) -> None:
    lines = letter_lines(6000, seed=1)
    unseen = [line for line in dict.fromkeys(letter_lines(1000, seed=2)) if line not in set(lines)][:200]
    assert len(unseen) == 200
    data, test, folder = write_task(tmp_path / "train", lines, task), write_task(tmp_path / "test", unseen, task), tmp_path / "run"
    sets = [part for name, value in (SETTINGS | KINDS[kind]).items() for part in ("--set", f"{name}={json.dumps(value)}")]
    run("train", "in-out", "--train", data, "--out", folder, *sets, "--max-steps", 300, "--quiet")
    scores = json.loads(run("evaluate", folder, "--test", test, "--json", "--beam", 1))
    assert scores["sentences"] == 200
    assert scores["exact_match"] >= 98
