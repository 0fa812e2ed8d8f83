"""Copying and reversing are learnt through the real command line (Sockeye's sizes: paper.md 4.9) and hold on lines never seen.

10,000 random lines of at most 9 digits, 2 + 2 layers of width 32 and 64, 4 heads, Adam at a few thousandths; Sockeye's system test
takes 4000 updates of 16 lines, these about 1000 of 40.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.cli import main

SETTINGS = {
    "data.tokenizer": "whitespace",
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.n_heads": 4,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "model.dropout": 0.0,
    "training.batch_tokens": 256,
    "training.schedule": "cosine",
    "training.learning_rate": 0.006,
    "training.warmup_steps": 150,
    "training.label_smoothing": 0.0,
    "training.evaluate_every": 10_000,
}


def digit_lines(count: int, *, seed: int) -> list[str]:
    """Lines of 1 to 9 digits with spaces between."""
    choose = random.Random(seed)
    return [" ".join(choose.choices("0123456789", k=choose.randint(1, 9))) for _ in range(count)]


def write_task(prefix: Path, lines: list[str], task: Callable[[str], str]) -> Path:
    """PREFIX.in with the lines, PREFIX.out with what is to become of them."""
    for language, texts in (("in", lines), ("out", map(task, lines))):
        prefix.with_name(f"{prefix.name}.{language}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return prefix


def reverse(line: str) -> str:
    return " ".join(line.split()[::-1])


@pytest.mark.parametrize(("task", "steps"), [(str, 900), (reverse, 1300)], ids=["copy", "reverse"])
def test_a_task_is_learnt_from_lines_and_holds_on_others(
    task: Callable[[str], str], steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = digit_lines(10_000, seed=1)
    unseen = [line for line in dict.fromkeys(digit_lines(1000, seed=2)) if line not in set(lines)][:400]
    assert len(unseen) == 400
    data, test, run = write_task(tmp_path / "train", lines, task), write_task(tmp_path / "test", unseen, task), tmp_path / "run"
    sets = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    assert main(["train", "in-out", "--train", str(data), "--out", str(run), *sets, "--max-steps", str(steps), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--test", str(test), "--json", "--beam", "1"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["sentences"] == 400
    assert scores["exact_match"] >= 99
    assert scores["bleu"] >= 98
