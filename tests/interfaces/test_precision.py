"""``training.precision``: what auto chooses, that a resumed run computes as before, and memory that is kept for the next step."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dragoman.config import Config
from dragoman.errors import DragomanError
from dragoman.training import precision
from dragoman.training.precision import LossScale, bfloat16_time, compute_dtype
from training_runs import checkpoints, final_weights, make_trainer, records, same_bits, toy_pairs, train, write_pairs

CPU = torch.device("cpu")


def choice(asked: str, *, before: torch.dtype | None = None) -> torch.dtype:
    return compute_dtype(Config().with_values(training={"precision": asked}), CPU, before=before)


def measured(monkeypatch: pytest.MonkeyPatch, time: float) -> None:
    """As if bfloat16 took that multiple of float32's time."""
    monkeypatch.setattr(precision, "bfloat16_time", lambda d_model, d_ff: time)


@pytest.mark.parametrize(("time", "chosen"), [(0.3, torch.bfloat16), (0.95, torch.float32), (9.0, torch.float32)])
def test_auto_takes_what_is_clearly_faster(time: float, chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, time)
    assert choice("auto") == chosen
    assert choice("fp32") == torch.float32
    assert choice("bf16") == torch.bfloat16


@pytest.mark.parametrize(
    ("before", "time", "chosen"),
    [(torch.float32, 0.1, torch.float32), (torch.bfloat16, 1.1, torch.bfloat16), (torch.bfloat16, 9.0, torch.float32)],
)
def test_what_was_chosen_stays_unless_it_is_slow_here(
    before: torch.dtype, time: float, chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, time)
    assert choice("auto", before=before) == chosen


def test_measuring_draws_nothing_from_the_random_state() -> None:
    """Else a run with precision=auto would not have the weights and the dropout of one with fp32."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    bfloat16_time.cache_clear()
    assert bfloat16_time(16, 32) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_resumed_run_computes_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_pairs(tmp_path / "train", toy_pairs(40))
    settings = {"training__evaluate_every": 3, "model__dropout": 0.1}
    measured(monkeypatch, 0.3)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(whole, data, "--max-steps", "6", **settings) == 0
    assert train(parts, data, "--max-steps", "3", **settings) == 0
    measured(monkeypatch, 1.1)
    assert train(parts, None, "--max-steps", "6") == 0
    assert json.loads((parts / "run.json").read_text("utf-8"))["precision"] == "bf16"
    expected = final_weights(whole)
    for name, weight in final_weights(parts).items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the settings")
def test_freed_memory_is_kept_when_asked_for() -> None:
    script = """
import sys, torch
from dragoman.devices import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
blocks = [torch.ones(5 * 2**20) for _ in range(10)]  # 20 MiB each
del blocks
with open("/proc/self/statm") as facts:
    print(int(facts.read().split()[1]) * 4096)
"""
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", script, what], capture_output=True, text=True, check=True).stdout)
        for what in ("keep", "give back")
    )
    assert kept - given_back > 150 * 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the function")
def test_freed_memory_is_given_back_when_asked_for() -> None:
    script = """
from dragoman.devices import give_back_memory
def resident():
    with open("/proc/self/statm") as facts:
        return int(facts.read().split()[1]) * 4096
blocks = [bytearray(2000) for _ in range(50_000)]
del blocks[:-1]  # the last one keeps what is before it
before = resident()
give_back_memory()
print(before - resident())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes pages back in this way")
def test_code_that_only_the_start_used_is_given_back() -> None:
    script = """
import torch
from dragoman.devices import give_back_code
def resident():
    with open("/proc/self/statm") as facts:
        return int(facts.read().split()[1]) * 4096
before = resident()
give_back_code()
print(before - resident(), (torch.arange(6.0).view(2, 3) @ torch.ones(3, 1)).flatten().tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    given_back, product = done.stdout.split(maxsplit=1)
    assert int(given_back) > 30 * 10**6
    assert product == "[3.0, 12.0]\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes pages back in this way")
def test_code_that_somebody_has_written_to_stays(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(bytes(1 << 16))
    script = """
import ctypes, mmap, sys
from dragoman.devices import give_back_code
with open(sys.argv[1], "r+b") as file:
    code = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
code[:4] = b"mine"
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(code)))
assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC) == 0
with open("/proc/self/maps") as facts:
    assert [line.split()[1] for line in facts if line.rstrip().endswith(sys.argv[1])] == ["r-xp"]
give_back_code()
print(code[:4].decode())
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "code")], capture_output=True, text=True, check=True)
    assert done.stdout == "mine\n"


def test_a_run_calls_its_type_as_the_settings_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_pairs(tmp_path / "train", toy_pairs(40))
    for name in ("fp32", "bf16"):
        assert train(tmp_path / name, data, "--max-steps", "2", "--device", "cpu", "--precision", name) == 0
        first, *_ = capsys.readouterr().err.splitlines()
        assert first.endswith(f" parameters  cpu {name}  → {tmp_path / name}")
        assert json.loads((tmp_path / name / "run.json").read_text("utf-8"))["precision"] == name


class TestFloat16:
    """On a CPU, which computes it slowly but alike; users get it on a GPU only."""

    @pytest.mark.parametrize(
        ("narrow", "capability", "chosen"),
        [(True, (8, 0), torch.bfloat16), (False, (7, 5), torch.float16), (False, (7, 0), torch.float16), (False, (6, 1), torch.float32)],
    )
    def test_auto_takes_it_on_a_gpu_that_is_fast_in_nothing_else(
        self, narrow: bool, capability: tuple[int, int], chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: narrow)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        for asked, right in (("auto", chosen), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
            assert compute_dtype(Config().with_values(training={"precision": asked}), torch.device("cuda")) == right

    def test_elsewhere_it_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data = write_pairs(tmp_path / "train", toy_pairs(40))
        for dry in ((), ("--dry-run",)):
            assert train(tmp_path / "run", data, "--precision", "fp16", "--device", "cpu", *dry) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("dragoman: training.precision=fp16 is for GPUs")
            assert "give auto, fp32 or bf16" in line
            assert not (tmp_path / "run").exists()

    def test_the_scale_halves_at_once_and_doubles_after_many_good_updates(self) -> None:
        scale = LossScale()
        assert scale == LossScale(65536.0, 0)
        for _ in range(1999):
            scale.take(finite=True)
        assert scale == LossScale(65536.0, 1999)
        scale.take(finite=True)
        assert scale == LossScale(131072.0, 0)
        scale.take(finite=True)
        scale.take(finite=False)
        assert scale == LossScale(65536.0, 0)

    def test_the_scale_is_that_of_pytorch(self) -> None:
        theirs, ours = torch.amp.GradScaler("cpu"), LossScale()
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight])
        for number in range(4100):
            finite = number not in (5, 6, 3000)
            theirs.scale(weight.sum() * (1.0 if finite else float("inf"))).backward()
            theirs.step(optimizer)
            theirs.update()
            optimizer.zero_grad()
            ours.take(finite=finite)
            assert (theirs.get_scale(), theirs._get_growth_tracker()) == (ours.scale, ours.good), number

    @pytest.fixture
    def narrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dragoman.training.trainer.compute_dtype", lambda config, device, before: torch.float16)

    def test_the_loss_is_that_of_float32_and_nothing_overflows(self, tmp_path: Path, narrow: None, monkeypatch: pytest.MonkeyPatch) -> None:
        data = write_pairs(tmp_path / "train", toy_pairs(40))
        assert train(tmp_path / "narrow", data, "--max-steps", "10", model__dropout=0.0) == 0
        monkeypatch.undo()
        assert train(tmp_path / "wide", data, "--max-steps", "10", "--precision", "fp32", model__dropout=0.0) == 0
        for found, right in zip(*(records(tmp_path / run, "train") for run in ("narrow", "wide")), strict=True):
            assert found["loss"] != right["loss"]
            assert found["loss"] == pytest.approx(right["loss"], abs=1e-2)
            assert found["grad_norm"] == pytest.approx(right["grad_norm"], rel=0.05)
        assert json.loads((tmp_path / "narrow" / "run.json").read_text("utf-8"))["precision"] == "fp16"

    def test_an_update_that_overflows_is_left_out_and_is_no_step(self, tmp_path: Path, narrow: None) -> None:
        trainer = make_trainer(tmp_path, toy_pairs(40), max_steps=2, evaluate_every=1)
        trainer.progress.scale.scale = 2.0**40
        before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
        first = next(iter(trainer._windows()))
        assert trainer._update(first) is None
        progress = trainer.progress
        assert (progress.step, progress.position, progress.target_tokens, progress.scale) == (0, 1, 0, LossScale(2.0**39, 0))
        assert same_bits(before, dict(trainer.model.named_parameters()))
        assert not trainer.optimizer.state_dict()["state"]
        assert all(weight.grad is None for weight in trainer.model.parameters())

        assert trainer.train() == "max_steps"
        skips = [record for record in records(trainer.run, "event") if record["event"] == "skip"]
        assert [skip["scale"] for skip in skips] == [2.0**power for power in range(39, 39 - len(skips), -1)]
        assert {skip["step"] for skip in skips} <= {0, 1}
        assert list(checkpoints(trainer.run)) == [1, 2]  # each due once
        (rate,) = [record["lr"] for record in records(trainer.run, "train")][-1:]
        assert rate == trainer.rate(2)

    def test_a_gradient_that_is_no_number_with_any_scale_stops_the_run(
        self, tmp_path: Path, narrow: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trainer = make_trainer(tmp_path, toy_pairs(40), max_steps=2)
        monkeypatch.setattr(trainer, "_clip", lambda: float("nan"))
        with pytest.raises(DragomanError, match="step 1: the gradient is not a finite number on lines"):
            trainer.train()
        assert len([record for record in records(trainer.run, "event") if record["event"] == "skip"]) == 31

    def test_a_resumed_run_goes_on_with_the_scale(self, tmp_path: Path, narrow: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(precision, "_DOUBLE_AFTER", 4)
        data = write_pairs(tmp_path / "train", toy_pairs(40))
        assert train(tmp_path / "whole", data, "--max-steps", "9", model__dropout=0.1) == 0
        assert train(tmp_path / "parts", data, "--max-steps", "6", model__dropout=0.1) == 0
        assert train(tmp_path / "parts", None, "--max-steps", "9") == 0
        states = [json.loads((checkpoints(tmp_path / run)[9] / "state/progress.json").read_text("utf-8")) for run in ("whole", "parts")]
        assert states[0]["progress"]["scale"] == states[1]["progress"]["scale"]
        assert states[0]["progress"]["scale"]["scale"] != 2.0**16
        assert same_bits(final_weights(tmp_path / "whole"), final_weights(tmp_path / "parts"))
