"""What is said before a training: memory against what autograd keeps, an epoch against its batches, a dry run that leaves nothing."""

import itertools
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import Config
from dragoman.data.batching import padded_sizes, plan_batches
from dragoman.devices import free_memory
from dragoman.model import attention
from dragoman.model.build import build_model
from dragoman.presets import count_parameters
from dragoman.training import preflight as preflight_module
from dragoman.training.preflight import estimate_memory, measured_lines, preflight, products_will_be_narrow, readable_bytes
from training_runs import TINY, checkpoints, final_weights, make_trainer, records, same_bits, toy_pairs, train, write_pairs

CPU = torch.device("cpu")
RISING = r"warning: the run ends at (about )?step [\d,]+, where the learning rate is still rising, as it does"
SIZES = {"d_model": 64, "d_ff": 256, "n_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
SIZES |= {"source_vocabulary": 100, "target_vocabulary": 100}


def kept_by_autograd(model: Any, batch: int, length: int, *, bfloat16: bool) -> int:
    """Bytes that the forward pass to the hidden states keeps for the backward pass, weights not counted."""
    built = build_model(model, seed=1).train()
    own = {value.untyped_storage().data_ptr() for value in (*built.parameters(), *built.buffers())}
    ids = torch.randint(4, 100, (batch, length))
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        mask = torch.ones(batch, length, dtype=torch.bool)
        hidden = built.decode(ids, built.encode(ids, mask), mask)
    assert hidden.shape == (batch, length, model.d_model)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"encoder_layers": 4}, {"decoder_layers": 4}, {"d_ff": 1024}, {"d_model": 128}, {"dropout": 0.0}, {"norm_place": "pre"},
        {"attention_dropout": 0.1}, {"activation_dropout": 0.1}, {"d_k": 32, "d_v": 8},
    ],
    ids=lambda changes: ",".join(changes) or "base",
)  # fmt: skip
def test_the_estimate_of_activations_is_what_autograd_keeps(changes: dict[str, Any], bfloat16: bool) -> None:
    model = Config().with_values(model=SIZES | changes).model
    estimates = [
        estimate_memory(model, np.array([batch * 25]), np.array([25]), narrow=bfloat16).activations for batch in (20, 40)
    ]  # their difference leaves out what does not grow with the batch
    kept = [kept_by_autograd(model, batch, 25, bfloat16=bfloat16) for batch in (20, 40)]
    assert estimates[1] - estimates[0] == pytest.approx(kept[1] - kept[0], rel=0.12)


def test_a_second_pass_and_an_average_of_the_weights_are_counted() -> None:
    model = Config().with_values(model=SIZES).model
    plain, twice, averaged = (
        [
            estimate_memory(model, np.array([batch * 25]), np.array([25]), training=Config().with_values(training=training).training)
            for batch in (20, 40)
        ]
        for training in ({}, {"rdrop": 1.0}, {"ema": 0.9})
    )
    assert twice[1].activations - twice[0].activations == 2 * (plain[1].activations - plain[0].activations)
    assert twice[0][:3] == plain[0][:3]
    assert averaged[0].total - plain[0].total == 4 * count_parameters(model)


def test_weights_gradients_and_moments_are_four_numbers_a_parameter(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, toy_pairs(20))
    model = trainer.bundle.config.model
    memory = estimate_memory(model, np.array([60]), np.array([9]))
    assert memory[:3] == (4 * count_parameters(model), 4 * count_parameters(model), 8 * count_parameters(model))
    assert memory.total == sum(memory)
    trainer.rehearse(updates=1, seconds=0)
    moments = [value for state in trainer.optimizer.state.values() for name, value in state.items() if name.startswith("exp_avg")]
    assert sum(value.nbytes for value in moments) == memory.moments
    assert sum(weight.nbytes for weight in trainer.model.parameters()) == memory.weights


def test_an_epoch_is_known_from_the_lengths() -> None:
    random = np.random.default_rng(5)
    lengths = [random.integers(1, 40, 500, dtype=np.int32) for _ in range(2)]
    sizes, longest = padded_sizes(*lengths, batch_tokens=200)
    sides = np.maximum(*lengths)
    for epoch in range(3):
        batches = plan_batches(*lengths, batch_tokens=200, seed=1, epoch=epoch)
        planned = [(len(batch) * sides[batch].max(), sides[batch].max()) for batch in batches]
        assert sorted(planned) == sorted(zip(sizes.tolist(), longest.tolist(), strict=True))


def test_the_facts_of_a_corpus(tmp_path: Path) -> None:
    pairs = [*toy_pairs(40), ("", "x"), ("y", " ")]
    trainer = make_trainer(tmp_path, pairs, accumulate=3)
    known = preflight(trainer.bundle.config, trainer.corpus, device=CPU)
    words = sum(len(source.split()) + 1 for source, _ in toy_pairs(40))
    batches = plan_batches(trainer.corpus.source_lengths, trainer.corpus.target_lengths, batch_tokens=60, seed=1, epoch=0)
    assert (known.source_tokens, known.target_tokens, known.pairs) == (words, words, 40)
    assert known.epoch_steps == -(-len(batches) // 3)
    assert known.parameters == sum(weight.numel() for weight in trainer.model.parameters())
    epoch = f"an epoch: {words} source and {words} target tokens in {known.epoch_steps} steps; 2 of 42 pairs dropped (2 empty side)"
    assert known.lines()[0] == epoch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_pairs(tmp_path / "data" / "valid", toy_pairs(5, seed=9))
    return write_pairs(tmp_path / "data" / "train", [*toy_pairs(40), ("", "x")])


def test_a_dry_run_tells_everything_and_leaves_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.rglob("*"))
    limits = ("--max-steps", "5000", "--max-minutes", "0.01")
    assert train(tmp_path / "new" / "run", data, "--valid", data.with_name("valid"), "--dry-run", *limits) == 0
    assert sorted(tmp_path.rglob("*")) == before
    out, err = capsys.readouterr()
    assert err == "dragoman: warning: train: dropped 1 of 41 pairs (1 empty side)\n"
    head, epoch, memory, measured, end, within = out.splitlines()
    assert re.fullmatch(r"aa→bb  40 pairs  vocabulary 53  1\+1 layers  d_model 16  [\d,]+ parameters  cpu fp32", head)
    steps = int(re.search(r"in (\d+) steps; 1 of 41 pairs dropped \(1 empty side\)$", epoch)[1])  # type: ignore[index]
    assert memory.startswith("memory: about ")
    found = re.fullmatch(r"measured on 8 updates: ([\d,]+) target tokens a second, ([\d.e-]+) s an update, most memory .*B", measured)
    assert found is not None
    speed, seconds = float(found[1].replace(",", "")), float(found[2])
    assert 10 <= speed * seconds <= 60  # the target tokens of an update, of which a batch has at most 60
    assert re.fullmatch(rf"to the end: 5,000 steps \({5000 / steps:,.1f} epochs\) in [\d:]+, evaluations not counted", end)
    reached = int(0.6 / seconds)
    (told,) = re.findall(r"about ([\d,]+) steps", within)
    assert within.startswith("within training.max_minutes=0.01: ")
    assert int(told) == pytest.approx(reached, abs=1 + 0.01 * reached)


@pytest.mark.parametrize(
    ("limits", "warmup", "short"),
    [(("--max-steps", "5"), 6, True), (("--max-steps", "5"), 5, False), (("--max-steps", "90000", "--max-minutes", "0.01"), 80_000, True)],
)
def test_a_dry_run_tells_when_the_warm_up_is_longer_than_the_run(
    limits: tuple[str, ...], warmup: int, short: bool, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", data, "--dry-run", "--quiet", *limits, training__warmup_steps=warmup) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    told = rf"{RISING} to step {warmup:,} \(training.warmup_steps\), .*"
    assert [bool(re.fullmatch(told, warning)) for warning in warnings] == [True] * short


def warnings_of(said: str) -> list[int]:
    """The numbers of the lines that are warnings; none is there twice."""
    lines = said.splitlines()
    found = [number for number, line in enumerate(lines) if line.startswith("warning: ")]
    assert len({lines[number] for number in found}) == len(found)
    return found


def test_a_run_tells_first_of_all_that_its_steps_are_fewer_than_the_warm_up(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And does not say it again; resumed it says it again, or no more when it is longer."""
    run = tmp_path / "run"
    assert train(run, data, "--max-steps", "5", training__warmup_steps=6) == 0
    said = capsys.readouterr().err
    lines = said.splitlines()
    (place,) = warnings_of(said)
    assert re.fullmatch(rf"{RISING} to step 6 \(training.warmup_steps\), so the model learns little: .*", lines[place])
    assert "ends at step 5, where" in lines[place]
    assert lines[place - 1].startswith("memory: about ")
    assert lines[place + 1].startswith("1/5  ")
    assert train(run, None, "--max-steps", "6") == 0
    assert warnings_of(capsys.readouterr().err) == []


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_a_run_tells_what_its_minutes_will_cut_off_while_there_is_time_left(
    schedule: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of a second a step, and ten seconds."""
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) / 2)  # the trainer looks twice a step
    settings = {"training__warmup_steps": 50, "training__schedule": schedule, "training__log_every": 2}
    assert train(tmp_path / "run", data, "--max-steps", "60", "--max-minutes", str(1 / 6), **settings) == 0
    said = capsys.readouterr().err
    lines, found = said.splitlines(), warnings_of(said)
    assert lines[found[0] - 1].startswith("2/60  ")
    assert len(found) == (2 if schedule == "linear" else 1)
    told = [int(re.search(r" at about step (\d+)[,;]", lines[number])[1]) for number in found]  # type: ignore[index]
    reached = records(tmp_path / "run", "event")[-1]["step"]
    assert told == [pytest.approx(reached, abs=3)] * len(found)
    if schedule == "linear":
        assert lines[found[1]].startswith(
            "warning: training.schedule=linear falls to 0 at step 60 (training.max_steps), but the minutes of "
        )


def test_what_could_not_be_told_before_is_told_at_the_end(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"training__warmup_steps": 50, "training__schedule": "cosine"}
    assert train(tmp_path / "run", data, "--max-steps", "60", "--max-minutes", "0.00001", **settings) == 0
    said = capsys.readouterr().err
    lines, found = said.splitlines(), warnings_of(said)
    assert [" step 1, where" in lines[found[0]], "are over at step 1; choose max_steps to fit" in lines[found[1]]] == [True, True]
    assert lines[found[1] + 1].startswith("the 1e-05 minutes are over")


def test_patience_that_ends_within_the_warm_up_is_told(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"training__warmup_steps": 50, "training__learning_rate": 1e-30, "training__evaluate_every": 1, "training__patience": 1}
    valid = ("--valid", data.with_name("valid"))
    assert train(tmp_path / "run", data, *valid, "--max-steps", "60", training__schedule="linear", **settings) == 0
    said = capsys.readouterr().err
    (place,) = warnings_of(said)
    assert "the run ends at step 2, where the learning rate is still rising" in said.splitlines()[place]


def test_the_speed_is_that_of_most_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of eight wait for another program."""
    trainer = make_trainer(tmp_path, toy_pairs(40))
    update, calls = trainer._update, itertools.count()

    def disturbed(window: Any) -> float | None:
        if next(calls) in (2, 5, 6):
            time.sleep(1)
        return update(window)

    monkeypatch.setattr(trainer, "_update", disturbed)
    known = preflight(trainer.bundle.config, trainer.corpus, device=CPU)
    (seconds,) = re.findall(r"measured on 8 updates: .* a second, ([\d.e-]+) s an update", measured_lines(trainer, known)[0])
    assert float(seconds) < 0.3


def test_a_dry_run_changes_nothing_of_the_run_that_follows(data: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "run", data, "--quiet", "--dry-run") == 0
    assert train(tmp_path / "run", data, "--quiet", "--max-steps", "6") == 0
    assert train(tmp_path / "other", data, "--quiet", "--max-steps", "6") == 0
    assert same_bits(final_weights(tmp_path / "run"), final_weights(tmp_path / "other"))


def test_a_dry_run_refuses_what_the_run_would(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, data, "--quiet", "--max-steps", "2") == 0
    files = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    for arguments, fault in (
        ((run, data), "already a run"),
        ((run, None), "leave out --resume"),
        ((tmp_path / "data", data), "not an empty folder"),
        ((tmp_path / "new", tmp_path / "nowhere"), "no such corpus"),
    ):
        assert train(*arguments, "--dry-run", "--quiet") in (1, 2)
        (line,) = capsys.readouterr().err.splitlines()
        assert fault in line
    assert train(tmp_path / "new", data, "--dry-run", "--quiet", data__max_length=2) == 1
    assert "no pair of lines is left" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == files


def test_a_model_that_cannot_fit_is_refused_with_the_setting_to_change(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory for batches of 30 tokens, that budget is told, and it fits."""
    sizes = {name.removeprefix("model."): value for name, value in TINY.items() if name.startswith("model.")}
    model = Config().with_values(model=sizes | {"source_vocabulary": 53, "target_vocabulary": 53}).model
    room = estimate_memory(model, np.array([30]), np.array([9])).total
    monkeypatch.setattr("dragoman.training.preflight.free_memory", lambda device: room)
    run = tmp_path / "run"
    for dry in ((), ("--dry-run",)):
        assert train(run, data, "--quiet", "--max-steps", "2", *dry) == 1
        (line,) = capsys.readouterr().err.splitlines()
        found = re.search(r"a batch of training.batch_tokens=60 does not fit: training needs about (.*) but (.*) is free on cpu; ", line)
        assert found is not None
        assert found[2] == readable_bytes(room)
        told = re.search(r"lower it to (\d+), and set training.accumulate=(\d+) for updates of the same size$", line)
        assert told is not None
        assert not run.exists()
    assert told.groups() == ("30", "2")
    settings = {"training__batch_tokens": 30, "training__accumulate": 2}
    assert train(run, data, "--quiet", "--max-steps", "2", **settings) == 0
    assert list(checkpoints(run)) == [2]

    monkeypatch.setattr("dragoman.training.preflight.free_memory", lambda device: 50_000)
    assert train(tmp_path / "other", data, "--quiet", "--max-steps", "2") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "parameters does not fit: training needs about" in line
    assert "but 50.0 kB is free on cpu" in line
    assert "choose a smaller --preset, or lower model.d_model" in line
    assert not (tmp_path / "other").exists()
    assert train(run, None, "--quiet", "--max-steps", "4") == 1
    assert list(checkpoints(run)) == [2]  # nothing of a run that was is lost


@pytest.mark.parametrize("budget", [60, "auto"])
def test_of_a_model_that_cannot_fit_nothing_is_measured(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, budget: object
) -> None:
    """Its layers would fill the memory before the refusal: which type is faster is measured on one of them."""

    def measure(*_: int) -> float:
        raise AssertionError

    monkeypatch.setattr("dragoman.training.precision.bfloat16_time", measure)
    for place in ("preflight", "budget"):
        monkeypatch.setattr(f"dragoman.training.{place}.free_memory", lambda device: 50_000)
    settings = {"training__precision": "auto", "training__batch_tokens": budget}
    assert train(tmp_path / "run", data, "--quiet", "--max-steps", "2", **settings) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "parameters does not fit: training needs about" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("found", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("precision", "device", "asked"), [("auto", "cpu", False), ("bf16", "cpu", True), ("auto", "cuda", True)])
def test_only_what_would_be_measured_is_not_asked_of_a_model_that_cannot_fit(
    precision: str, device: str, asked: bool, found: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_module, "compute_dtype", lambda config, device: found)
    config = Config().with_values(training={"precision": precision})
    narrow = products_will_be_narrow(config, torch.device(device), free=50_000, shards=1)
    assert narrow == (asked and found == torch.bfloat16)


def test_where_the_system_does_not_tell_nothing_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.training.preflight.free_memory", lambda device: None)
    assert train(tmp_path / "run", data, "--max-steps", "1") == 0
    (memory,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("memory: ")]
    assert memory.endswith("B)")
    assert len(records(tmp_path / "run", "train")) == 1


def test_free_memory_is_the_least_of_the_machines_and_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n", "max": "3000000\n", "current": "1500000\n",
        "stat": "file 9\ninactive_file 200000\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr("dragoman.devices._MEMINFO", tmp_path / "meminfo")
    group = (*(str(tmp_path / name) for name in ("max", "current", "stat")), "inactive_file")
    monkeypatch.setattr("dragoman.devices._CGROUPS", (group,))
    assert free_memory(CPU) == 3_000_000 - 1_500_000 + 200_000
    (tmp_path / "max").write_text("max\n", encoding="utf-8")
    assert free_memory(CPU) == 4000 * 1024


@pytest.mark.parametrize(
    ("count", "shown"),
    [(27, "27 B"), (1500, "1.50 kB"), (32_060_000, "32.1 MB"), (999_600, "1,000 kB"), (150e6, "150 MB"), (3.2e9, "3.20 GB")],
)
def test_bytes_for_people(count: int, shown: str) -> None:
    assert readable_bytes(count) == shown


def test_the_estimate_knows_from_how_many_keys_on_attention_keeps_no_weights() -> None:
    assert preflight_module._EQUATION_BELOW == attention._FUSED_FROM
    model = Config().with_values(model=SIZES).model
    short, long = (estimate_memory(model, np.array([5120]), np.array([longest]), narrow=True).activations for longest in (511, 512))
    assert short - long == 5120 * 511 * 2 * 4 * (2 + 2 * 2)  # two bytes for each of four heads, in two layers and twice in two
