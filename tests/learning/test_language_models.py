"""Models of one sequence learn: a text whose entropy is known, to near that; what is masked in it; and they say it."""

import random
from pathlib import Path

from text_runs import TINY_BERT, TINY_GPT, train_text
from training_runs import records

FAST = {
    "model.max_positions": 32, "model.dropout": 0.0, "model.positions": "rotary", "training.batch_tokens": 256,
    "training.learning_rate": 0.02, "training.warmup_steps": 10, "training.schedule": "cosine", "training.log_every": 1000,
    "training.evaluate_every": 1000,
}  # fmt: skip


def pairs(count: int, *, seed: int) -> str:
    """One of eight letters by chance, then the same in upper case: three bits for two characters."""
    choose = random.Random(seed)
    return "".join(letter + letter.upper() for letter in choose.choices("abcdefgh", k=count))


def write(folder: Path) -> Path:
    (folder / "valid.txt").write_text(pairs(600, seed=2), encoding="utf-8")
    (folder / "train.txt").write_text(pairs(4000, seed=1), encoding="utf-8")
    return folder / "train.txt"


def test_a_decoder_learns_a_text_to_near_its_entropy_and_goes_on_with_it(tmp_path: Path) -> None:
    run, valid = tmp_path / "run", ("--valid", tmp_path / "valid.txt", "--quiet", "--max-steps", "120")
    assert train_text(run, write(tmp_path), *valid, base=TINY_GPT | FAST, training__sampled_batches=40) == 0
    (record,) = records(run, "eval")
    assert 1.48 < record["bits_per_character"] < 1.55
    assert record["bits_per_byte"] == record["bits_per_character"]
    assert abs(record["sampled"] - record["nll"]) < 0.02
    assert 0 < record["sampled_error"] < 0.01
    for sample in record["samples"]:
        text = (sample["source"] + sample["output"])[sample["source"][0].isupper() :]
        assert len(sample["output"]) == 16
        assert all(small.upper() == large for small, large in zip(text[0::2], text[1::2], strict=False)), text


def test_an_encoder_learns_to_fill_in_what_the_rest_tells(tmp_path: Path) -> None:
    """In a text of long runs of one letter, any other letter near by tells what is masked."""
    for name, runs in (("train", 40), ("valid", 16)):
        text = "".join("abcdefgh"[5 * place % 8] * 300 for place in range(runs))
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    run, valid = tmp_path / "run", ("--valid", tmp_path / "valid.txt", "--quiet", "--max-steps", "100")
    assert train_text(run, tmp_path / "train.txt", *valid, base=TINY_BERT | FAST, training__learning_rate=0.01) == 0
    (record,) = records(run, "eval")
    assert record["acc"] > 0.9  # a guess is right one time in eight
    assert record["nll"] < 0.5
    samples = record["samples"]
    assert all("<mask>" in sample["source"] for sample in samples)
    assert sum(sample["output"] == sample["reference"] for sample in samples) >= 2
