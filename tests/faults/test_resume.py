"""Resuming: what it changes and records, what a refused one leaves as it was, and that only like scores are compared."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.errors import UsageError
from dragoman.presets import resolve_config
from dragoman.training.optimizer import build_optimizer
from dragoman.training.run import _check_evaluations
from dragoman.training.sharding import whole_moments
from dragoman.training.state import Progress, load_state, save_state
from dragoman.training.trainer import Trainer
from training_runs import checkpoints, make_trainer, marked, records, toy_pairs, train, write_pairs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "valid", toy_pairs(4, seed=9))
    return write_pairs(folder / "train", toy_pairs(20))


def begin(run: Path, data: Path, steps: int, *arguments: str, **settings: Any) -> None:
    """A run of so many steps with validation."""
    valid = ("--valid", str(data.with_name("valid")), "--quiet", "--max-steps", str(steps))
    assert train(run, data, *valid, *arguments, **settings) == 0


def facts(run: Path) -> Any:
    return json.loads((run / "run.json").read_text("utf-8"))


def progress(run: Path) -> Any:
    return json.loads((run / "checkpoints" / marked(run, "last") / "state" / "progress.json").read_text("utf-8"))["progress"]


def test_run_json_is_true_after_a_failure_and_a_resume_with_other_settings(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, data, "--quiet", "--max-steps", "9", training__learning_rate=1e30, training__evaluate_every=1) == 1
    failed = facts(run)
    assert (failed["status"], "resumed" in failed) == ("failed", False)
    assert "not a finite number" in failed["error"]
    changes = {"training__learning_rate": 1e-9, "training__clip_norm": 1e-9}
    assert train(run, None, "--quiet", "--max-steps", "1", "--seed", "7", decoding__beam=2, **changes) == 0
    done = facts(run)
    assert (done["status"], "error" in done, done["seed"], done["step"]) == ("done", False, 7, 1)
    assert done["settings"] == resolve_config(None, run / "config.toml").model_dump(mode="json")
    assert (done["settings"]["training"]["learning_rate"], done["settings"]["decoding"]["beam"]) == (1e-9, 2)
    assert done["started"] == failed["started"]
    (again,) = done["resumed"]
    assert (again["argv"], again["step"]) == (sys.argv, 1)
    assert set(again["changed"]) == {
        "training.max_steps from 9 to 1", "training.seed from 1 to 7", "training.learning_rate from 1e+30 to 1e-09",
        "training.clip_norm from 0.0 to 1e-09", "decoding.beam from 4 to 2",
    }  # fmt: skip
    assert train(run, None, "--quiet") == 0
    assert [entry["changed"] for entry in facts(run)["resumed"]] == [again["changed"], []]


def test_a_budget_that_the_corpus_does_not_fit_is_refused_and_not_kept(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    begin(run, data, 2)
    before = [(run / name).read_bytes() for name in ("config.toml", "run.json")]
    assert train(run, None, "--quiet", training__batch_tokens=3) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dragoman: training.batch_tokens=3 is less than the 9 tokens of the longest pair in ")
    assert [(run / name).read_bytes() for name in ("config.toml", "run.json")] == before
    assert train(run, None, "--quiet", "--max-steps", "3") == 0
    assert list(checkpoints(run))[-1] == 3


def test_a_resume_that_is_refused_late_leaves_the_settings_too(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    begin(run, data, 2)
    before = [(run / name).read_bytes() for name in ("config.toml", "run.json")]
    state = run / "checkpoints" / marked(run, "last") / "state" / "progress.json"
    whole = state.read_bytes()
    state.write_bytes(b"{}")
    assert train(run, None, "--quiet", "--max-steps", "9", "--seed", "5") == 1
    assert "no whole training state" in capsys.readouterr().err
    assert [(run / name).read_bytes() for name in ("config.toml", "run.json")] == before
    state.write_bytes(whole)
    assert train(run, None, "--quiet") == 0
    assert facts(run)["seed"] == 1


def test_a_file_that_goes_before_one_of_the_run_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """valid.aa is read where it is there, whatever is in valid.aa.gz: evaluations would be of another text than those before."""
    data, run, valid = write_pairs(tmp_path / "train", toy_pairs(20)), tmp_path / "run", tmp_path / "valid.aa"
    write_pairs(tmp_path / "valid", toy_pairs(4, seed=9))
    valid.with_name("valid.aa.gz").write_bytes(gzip.compress(valid.read_bytes()))
    valid.unlink()
    begin(run, data, 2)
    before = facts(run)
    valid.write_text("another\n" * 4, encoding="utf-8")
    capsys.readouterr()
    assert train(run, None, "--quiet", "--max-steps", "4") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dragoman: {valid}: not a file that the run {run} began with, which are {data}.aa, {data}.bb, {valid}.gz, ")
    assert facts(run)["data"] == before["data"]
    valid.unlink()
    assert train(run, None, "--quiet", "--max-steps", "4") == 0


def test_patience_without_validation_is_refused_also_when_resuming(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", data, "--quiet", "--max-steps", "1") == 0
    assert train(tmp_path / "run", None, "--quiet", training__patience=2) == 2
    assert "training.patience needs evaluations" in capsys.readouterr().err
    assert train(tmp_path / "run", None, "--quiet", training__evaluate_every=7) == 0


def test_a_run_goes_on_that_was_begun_with_settings_of_evaluations_and_none(data: Path, tmp_path: Path) -> None:
    """Older versions began such runs, with what their configuration says."""
    run = tmp_path / "run"
    assert train(run, data, "--quiet", "--max-steps", "1") == 0
    settings = (run / "config.toml").read_text("utf-8")
    assert settings.count('best_by = "bleu"') == 1
    (run / "config.toml").write_text(settings.replace('best_by = "bleu"', 'best_by = "loss"'), encoding="utf-8")
    assert train(run, None, "--quiet", "--max-steps", "2") == 0
    assert facts(run)["step"] == 2


@pytest.mark.parametrize(("preset", "name"), [("gpt-mini", "best_by"), ("parsing", "bleu_tokenize")])
def test_what_a_preset_sets_of_evaluations_is_no_wish(preset: str, name: str) -> None:
    settings = resolve_config(preset)
    assert getattr(settings.training, name) != getattr(resolve_config(None).training, name)
    _check_evaluations(settings)
    with pytest.raises(UsageError, match=rf"^training\.{name}=[a-z]+: for evaluations, and there is no validation text"):
        _check_evaluations(resolve_config(preset, overrides=[f"training.{name}={'bleu' if name == 'best_by' else 'zh'}"]))


def test_a_run_may_return_to_any_device(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, data, "--quiet", "--max-steps", "1", "--device", "cpu") == 0
    assert train(run, None, "--quiet") == 0
    assert resolve_config(None, run / "config.toml").training.device == "cpu"
    if not torch.cuda.is_available():
        assert train(run, None, "--quiet", "--device", "auto") == 0
        assert resolve_config(None, run / "config.toml").training.device == "auto"


@pytest.mark.parametrize(
    ("change", "now"),
    [
        ({"best_by": "loss"}, "loss with label_smoothing 0.1"),
        ({"bleu_tokenize": "char"}, "BLEU with char words"),
        ({"bleu_lowercase": True}, "BLEU with 13a words in lower case"),
    ],
    ids=str,
)
def test_a_best_of_another_measure_is_forgotten(
    change: dict[str, Any], now: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    begin(run, data, 2, training__evaluate_every=1)
    state = run / "checkpoints" / marked(run, "last") / "state" / "progress.json"
    document = json.loads(state.read_text("utf-8"))
    assert document["progress"]["measure"] == "BLEU with 13a words"
    document["progress"] |= {"best": [1000.0, 0.0], "best_step": 1, "evaluations_since_best": 7}
    state.write_text(json.dumps(document), encoding="utf-8")
    capsys.readouterr()
    assert train(run, None, "--max-steps", "3", **{f"training__{name}": value for name, value in change.items()}) == 0
    notice = f"dragoman: the best so far was by BLEU with 13a words and is forgotten, for now it is by {now}"
    assert notice in capsys.readouterr().err.splitlines()
    found = progress(run)
    (evaluation,) = [record for record in records(run, "eval") if record["step"] == 3]
    assert found["best"][0] == (-evaluation["loss"] if "best_by" in change else evaluation["bleu"])
    assert (found["best_step"], found["evaluations_since_best"], found["measure"]) == (3, 0, now)
    assert marked(run, "best") == "step-000003"


def test_a_best_of_the_same_measure_or_from_before_measures_were_named_is_kept(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(run, data, 1, training__evaluate_every=1)
    state = run / "checkpoints" / marked(run, "last") / "state" / "progress.json"
    document = json.loads(state.read_text("utf-8"))
    del document["progress"]["measure"]
    document["progress"] |= {"best": [1000.0, 0.0]}
    state.write_text(json.dumps(document), encoding="utf-8")
    for steps in ("2", "3"):
        assert train(run, None, "--quiet", "--max-steps", steps) == 0
    found = progress(run)
    assert (found["best"][0], found["best_step"], found["evaluations_since_best"]) == (1000.0, 1, 2)


def test_the_random_state_is_that_of_the_device_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what PyTorch would be asked."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: asked.append(("get", str(device))) or torch.zeros(4, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: asked.append(("set", str(device))))
    trainer = make_trainer(tmp_path, toy_pairs(4))
    optimizer = build_optimizer(trainer.model, trainer.settings)
    for name in ("cuda:1", "cpu"):
        folder = tmp_path / name
        folder.mkdir()
        save_state(folder, Progress(), whole_moments(optimizer, keep=True), {}, {}, device=torch.device(name))
        load_state(folder, optimizer, trainer.model, device=torch.device(name))
    assert asked == [("get", "cuda:1"), ("set", "cuda:1")]


def test_a_record_over_a_kill_is_that_of_a_run_left_alone(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of step 6 lies between the records of steps 4 and 8; the process dies in step 7."""
    settings: dict[str, Any] = {"training__log_every": 4, "training__evaluate_every": 6, "model__dropout": 0.1}
    begin(tmp_path / "whole", data, 12, **settings)
    update = Trainer._update

    def dying(self: Trainer, window: Any) -> float:
        if self.progress.step == 6:
            raise MemoryError
        return update(self, window)

    monkeypatch.setattr(Trainer, "_update", dying)
    valid = ("--valid", str(data.with_name("valid")), "--quiet", "--max-steps", "12")
    assert train(tmp_path / "killed", data, *valid, **settings) == 1
    monkeypatch.undo()
    assert train(tmp_path / "killed", None, "--quiet") == 0
    told = [
        [
            (record["step"], record["loss"], record["nll"], record["acc"], record["grad_norm"])
            for record in records(tmp_path / name, "train")
        ]
        for name in ("whole", "killed")
    ]
    assert [step for step, *_ in told[0]] == [4, 8, 12]
    assert told[1] == told[0]
