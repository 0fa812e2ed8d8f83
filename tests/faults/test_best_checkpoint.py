"""B61 and what "best" means: the checkpoint with the best score by the measure that was chosen, and patience that counts from it."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cli import main
from dragoman.training.records import best_evaluation, merit
from dragoman.training.trainer import Trainer
from training_runs import WORDS, Pair, checkpoints, final_weights, make_trainer, marked, records, toy_pairs, train, write_pairs


def judged(folder: Path, scores: Sequence[float], **settings: Any) -> tuple[Trainer, str]:
    """A training of an evaluation a step that score as scripted; the trainer, and why it stopped."""
    trainer = make_trainer(folder, toy_pairs(6), max_steps=len(scores), evaluate_every=1, **settings)
    script: Iterator[float] = iter(scores)
    trainer.validation, trainer.score = trainer.corpus, lambda bundle: {"bleu": next(script), "chrf": 0.0}
    return trainer, trainer.train()


@pytest.mark.parametrize(
    ("scores", "best", "since"),
    [
        ([1.0, 5.0, 3.0, 4.0, 2.0], 2, 3),
        ([1.0, 5.0, 5.0], 3, 0),
        ([3.0, 1.0, 7.0], 3, 0),
        ([0.0, 0.0], 2, 0),
        ([math.nan, 3.0, math.nan, 2.0], 2, 2),
    ],
    ids=str,
)
def test_the_best_has_the_highest_score_and_of_equals_the_lower_loss(scores: list[float], best: int, since: int, tmp_path: Path) -> None:
    trainer, _ = judged(tmp_path, scores, keep=1)
    assert trainer.progress.best is not None
    assert (trainer.progress.best[0], trainer.progress.best_step) == (scores[best - 1], best)
    assert trainer.progress.evaluations_since_best == since
    assert marked(trainer.run, "best") == f"step-{best:06}"
    assert set(checkpoints(trainer.run)) == {best, len(scores)}


def test_a_score_that_is_never_a_number_is_never_the_best(tmp_path: Path) -> None:
    trainer, _ = judged(tmp_path, [math.nan, math.nan])
    assert (trainer.progress.best, trainer.progress.best_step, trainer.progress.evaluations_since_best) == (None, 0, 2)
    assert not (trainer.run / "checkpoints" / "best").exists()


@pytest.mark.parametrize(
    ("patience", "stops", "reason"), [(3, 8, "patience"), (2, 4, "patience"), (4, 9, "max_steps"), (0, 9, "max_steps")]
)
def test_patience_counts_from_the_best_and_begins_again_with_a_better_one(patience: int, stops: int, reason: str, tmp_path: Path) -> None:
    trainer, why = judged(tmp_path, [1.0, 5.0, 3.0, 4.0, 6.0, 2.0, 1.0, 0.0, 9.0], patience=patience)
    assert (trainer.progress.step, why) == (stops, reason)


@pytest.mark.parametrize(("best_by", "best"), [("loss", 4), ("bleu", 1)])
def test_best_by_loss_is_the_lowest_loss(best_by: str, best: int, tmp_path: Path) -> None:
    """Three steps down the gradient, then up again; BLEU says something else."""
    trainer = make_trainer(tmp_path, toy_pairs(6), max_steps=7, evaluate_every=1, best_by=best_by)
    script = iter([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    trainer.validation, trainer.score = trainer.corpus, lambda bundle: {"bleu": next(script), "chrf": 0.0}
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0)
    trainer.rate = lambda step: 0.1 if step <= 4 else -0.1
    trainer.train()
    losses = [record["loss"] for record in records(trainer.run, "eval")]
    assert losses.index(min(losses)) == 3
    assert (trainer.progress.best_step, marked(trainer.run, "best")) == (best, f"step-{best:06}")
    assert trainer.progress.best is not None
    assert trainer.progress.best[0] == (-losses[3] if best_by == "loss" else 9.0)


def chinese_pairs(count: int, *, seed: int, shout: bool = False) -> list[Pair]:
    """Words and what they mean: a Chinese character, or every third a Latin word; the end is a full stop. ``shout`` in upper case."""
    words, choose = WORDS[:6], random.Random(seed)
    meaning = {word: f"w{place}@@" if place % 3 == 0 else f"{chr(0x4E00 + 37 * place)}@@" for place, word in enumerate(words)}
    sources = [choose.choices(words, k=choose.randint(5, 7)) for _ in range(count)]
    targets = [" ".join([*(meaning[word] for word in source), "."]) for source in sources]
    return [(" ".join(source), target.upper() if shout else target) for source, target in zip(sources, targets, strict=True)]


def test_both_settings_of_bleu_reach_the_evaluations_and_the_best_is_what_they_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text without spaces whose references are in upper case: only both settings together give the number; it is well above 0."""
    write_pairs(tmp_path / "valid", chinese_pairs(12, seed=1, shout=True))
    data, run = write_pairs(tmp_path / "train", chinese_pairs(80, seed=2) + chinese_pairs(12, seed=1)), tmp_path / "run"
    splitter = {"training__bleu_tokenize": "zh", "training__bleu_lowercase": True}
    valid = ("--valid", str(tmp_path / "valid"), "--quiet", "--max-steps", "150")
    sizes = {"training__batch_tokens": 120, "model__d_model": 32, "model__dropout": 0.0, "data__joiner": "@@"}
    pace = {"training__learning_rate": 0.005, "training__warmup_steps": 30, "training__evaluate_every": 50}
    assert train(run, data, *valid, **splitter, **sizes, **pace) == 0
    evaluations = {record["step"]: record for record in records(run, "eval")}
    found = {}
    capsys.readouterr()
    last = str(run / "checkpoints" / marked(run, "last"))
    for options in (("zh", "--lowercase"), ("zh",), ("13a", "--lowercase")):
        test = ["evaluate", last, "--test", str(tmp_path / "valid"), "--beam", "1", "--json", "--tokenize"]
        assert main([*test, *options]) == 0
        found[options] = json.loads(capsys.readouterr().out)["bleu"]
    right = found["zh", "--lowercase"]
    assert right > 20
    assert evaluations[150]["bleu"] == pytest.approx(right, abs=0.005)
    assert all(abs(right - other) > 5 for options, other in found.items() if options != ("zh", "--lowercase"))
    assert all(part in evaluations[150]["signature"] for part in ("case:lc", "tok:zh"))
    best = max(evaluations.values(), key=lambda record: record["bleu"])
    assert best["bleu"] > evaluations[50]["bleu"]
    assert marked(run, "best") == f"step-{best['step']:06}"


def test_the_scores_are_of_the_pairs_that_the_loss_is_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pairs left out of the validation text are counted once, and change neither loss nor scores; nothing is said of them again."""
    pairs, long = toy_pairs(8, seed=9), toy_pairs(1, seed=5, shortest=40, longest=40)[0]
    with_more = [*pairs[:3], long, ("", "GOLD"), *pairs[3:], ("on", " ")]
    data = write_pairs(tmp_path / "train", toy_pairs(40))
    for name, text in (("plain", pairs), ("more", with_more)):
        prefix = write_pairs(tmp_path / name / "valid", text)
        arguments = ("--valid", str(prefix), "--max-steps", "10")
        assert train(tmp_path / name / "run", data, *arguments, model__max_positions=16) == 0
    told = capsys.readouterr().err
    assert told.count("valid: dropped 3 of 11 pairs (1 longer than max_length, 2 empty side)") == 1
    assert "exceed" not in told
    plain, more = (
        [record | {"seconds": 0, "time": 0} for record in records(tmp_path / name / "run", "eval")] for name in ("plain", "more")
    )
    assert plain == more
    assert all(
        torch.equal(weight, final_weights(tmp_path / "more" / "run")[name])
        for name, weight in final_weights(tmp_path / "plain" / "run").items()
    )


def test_of_equal_bleu_the_lower_loss_is_better() -> None:
    """A splitter that does not fit the language gives 0 throughout, and the first checkpoint would stay the best."""
    first, later = {"bleu": 0.0, "loss": 3.0}, {"bleu": 0.0, "loss": 1.0}
    assert best_evaluation([first, later], best_by="bleu") is later
    assert merit({"bleu": 1.0, "loss": 9.0}, best_by="bleu") > merit(later, best_by="bleu")
    assert merit({"bleu": 1.0, "loss": 9.0}, best_by="loss") < merit(later, best_by="loss")
