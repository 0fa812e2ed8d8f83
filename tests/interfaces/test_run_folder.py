"""What a run leaves to read: fixed samples at every evaluation, records with memory, and a terminal without control characters."""

import json
import math
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from command_line import dragoman, environment
from dragoman.cli import main
from dragoman.training.log import RunLog
from dragoman.training.records import best_evaluation, read_log, read_log_from, standing
from dragoman.training.samples import choose_samples, write_outputs
from dragoman.training.state import Progress
from dragoman.training.validation import judge
from training_runs import TINY, records, toy_pairs, train, write_pairs

VALID = toy_pairs(9, seed=9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps with two evaluations."""
    folder = tmp_path_factory.mktemp("run")
    data, valid = write_pairs(folder / "data" / "train", toy_pairs(40)), write_pairs(folder / "data" / "valid", VALID)
    assert train(folder / "run", data, "--valid", valid, "--quiet", "--max-steps", "10") == 0
    return folder / "run"


def lines_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


def test_the_validation_text_and_every_translation_of_it_lie_in_samples(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run / "samples"
    assert sorted(path.name for path in folder.iterdir()) == ["step-000005.txt", "step-000010.txt", "valid.reference", "valid.source"]
    assert list(zip(lines_of(folder / "valid.source"), lines_of(folder / "valid.reference"), strict=True)) == VALID
    for step in (5, 10):
        checkpoint = run / "checkpoints" / f"step-{step:06}"
        assert main(["translate", str(checkpoint), str(folder / "valid.source"), "--beam", "1"]) == 0
        assert capsys.readouterr().out == (folder / f"step-{step:06}.txt").read_text(encoding="utf-8")


def test_the_same_three_sentences_are_in_every_evaluation(run: Path) -> None:
    evaluations = records(run, "eval")
    assert [record["step"] for record in evaluations] == [5, 10]
    places = choose_samples(VALID)
    assert len(places) == 3
    for record in evaluations:
        outputs = lines_of(run / "samples" / f"step-{record['step']:06}.txt")
        wanted = [{"source": VALID[place][0], "reference": VALID[place][1], "output": outputs[place]} for place in places]
        assert record["samples"] == wanted
        assert "outputs" not in record


def test_samples_are_a_short_a_middling_and_a_long_sentence() -> None:
    pairs = [("x" * length, "y") for length in (9, 1, 7, 5, 3, 2, 8, 4)]
    assert [len(pairs[place][0]) for place in choose_samples(pairs)] == [3, 5, 8]
    assert choose_samples([("  ", "y"), ("bb", "y"), ("a", "y"), ("c", " ")]) == [2, 1]
    assert choose_samples([]) == []


def test_a_translation_with_a_line_feed_is_one_line_still(tmp_path: Path) -> None:
    write_outputs(tmp_path, 7, ["one\ntwo", "", "three\u2028four"])
    assert (tmp_path / "samples" / "step-000007.txt").read_bytes() == "one two\n\nthree\u2028four\n".encode()


def test_records_tell_the_most_memory_so_far(run: Path) -> None:
    peaks = [record["mem"] for record in records(run, "train")]
    assert len(peaks) == 10
    assert peaks == sorted(peaks)
    assert 50e6 < peaks[0] < 50e9


def test_the_peak_is_that_of_the_process_and_remains() -> None:
    program = (
        "import torch; from dragoman.devices import peak_memory; cpu = torch.device('cpu'); before = peak_memory(cpu)['mem'];"
        "torch.ones(100_000_000); print(peak_memory(cpu)['mem'] - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment(), timeout=60)
    assert int(done.stdout) == pytest.approx(400e6, rel=0.2)


def test_run_json_says_where_it_ran(run: Path) -> None:
    import platform

    import torch

    facts = json.loads((run / "run.json").read_bytes())
    assert (facts["host"], facts["device"], facts["threads"]) == (platform.node(), "cpu", torch.get_num_threads())


def test_the_log_is_one_line_a_record_to_every_reader(tmp_path: Path) -> None:
    sample = {"source": "a\u2028b", "reference": "c\u2029d\x85e", "output": "f\x1b\n"}
    with RunLog(tmp_path, console=None, max_steps=1) as log:
        log.evaluation({"step": 1, "loss": 1.0, "ppl": 2.0, "seconds": 0.1, "samples": [sample]})
    (line,) = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["samples"] == [sample]


GOLDEN = """\
aa→bb  40 pairs  vocabulary 52  1+1 layers  d_model 16  # parameters  cpu fp32  → run
an epoch: # source and # target tokens in # steps; no pair dropped
memory: about #B (weights #B, gradients #B, Adam #B, activations #B); #B free
1/4  loss #  ppl #  acc #%  lr #  |g| #  #k tok/s  ETA #
2/4  loss #  ppl #  acc #%  lr #  |g| #  #k tok/s  ETA #
✓ step 2  valid loss #  ppl #  BLEU # (best)  chrF #  # s
  src  {0[source]}
  ref  {0[reference]}
  out  {0[output]}
  src  {1[source]}
  ref  {1[reference]}
  out  {1[output]}
  src  {2[source]}
  ref  {2[reference]}
  out  {2[output]}
3/4  loss #  ppl #  acc #%  lr #  |g| #  #k tok/s  ETA #
4/4  loss #  ppl #  acc #%  lr #  |g| #  #k tok/s  ETA #
✓ step 4  valid loss #  ppl #  BLEU #{gain}  chrF #  # s
  src  {3[source]}
  ref  {3[reference]}
  out  {3[output]}
  src  {4[source]}
  ref  {4[reference]}
  out  {4[output]}
  src  {5[source]}
  ref  {5[reference]}
  out  {5[output]}
all steps done at step 4; the best checkpoint is step {best}: BLEU # nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:#
  dragoman translate run < SOURCE_FILE
  dragoman evaluate run --test PATH
  dragoman train --resume --out run --max-steps 8
  run/report.html
"""


def masked(text: str) -> str:
    """The parts of a transcript that differ from one machine to another as ``#``."""
    text = re.sub(r"(ETA )[\d:]+", r"\1#", text)
    text = re.sub(r"(version:)[\d.]+", r"\1#", text)
    text = re.sub(r"(loss|ppl|acc|lr|\|g\||BLEU|chrF) [-+\de.]+", r"\1 #", text)
    text = re.sub(r"[\d.]+(k tok/s)|[\d.]+( s\n)", r"#\1\2", text)
    text = re.sub(r"[\d,]+( parameters| source and)|(?<=and )[\d,]+( target)|(?<= in )[\d,]+( steps)", r"#\1\2\3", text)
    return re.sub(r"[\d.,]+ [kMG]?B", "#B", text)


def test_what_a_pipe_gets_to_read(tmp_path: Path) -> None:
    write_pairs(tmp_path / "train", toy_pairs(40))
    write_pairs(tmp_path / "valid", VALID)
    sets = [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    more = ("--set", "training.evaluate_every=2", "--max-steps", "4", "--out", "run")
    done = dragoman("train", "aa-bb", "--train", "train", "--valid", "valid", *sets, *more, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"\x1b" not in done.stderr
    assert b"\r" not in done.stderr
    evaluations = records(tmp_path / "run", "eval")
    first, second = (record["bleu"] for record in evaluations)
    best = best_evaluation(evaluations, best_by="bleu")
    assert best is not None
    samples = [sample for record in evaluations for sample in record["samples"]]
    gain = f" (best, {second - first:+.2f})" if second > first else ""
    text = done.stderr.decode()
    golden = GOLDEN.format(*samples, gain=gain, best=best["step"])
    assert masked(text) == golden
    for record in evaluations:
        figures = f"valid loss {record['loss']:.3f}  ppl {record['ppl']:.2f}  BLEU {record['bleu']:.2f}"
        assert f"✓ step {record['step']}  {figures}" in text
    for record in records(tmp_path / "run", "train"):
        assert f"{record['step']}/4  loss {record['loss']:.3f}  ppl {record['ppl']:.2f}  acc {record['acc']:.1%}" in text


def test_a_sentence_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = {"source": "red \x1b[31m alert", "reference": "bell \x07 \x9b2J back\r", "output": "two\nlines\u2028three"}
    with RunLog(tmp_path, console=Console(stderr=True, highlight=False), max_steps=1) as log:
        log.evaluation({"step": 1, "loss": 1.0, "ppl": 2.0, "seconds": 0.1, "samples": [sample]})
    assert capsys.readouterr().err == (
        "✓ step 1  valid loss 1.000  ppl 2.00  0.1 s\n  src  red  [31m alert\n  ref  bell    2J back \n  out  two lines three\n"
    )


def test_a_terminal_keeps_the_evaluations_and_rewrites_the_progress(tmp_path: Path) -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, highlight=False, width=150)
    step = {"loss": 1.0, "ppl": 2.0, "acc": 0.5, "lr": 1e-3, "grad_norm": 0.5, "tok_s": 2000.0}
    with RunLog(tmp_path, console=console, max_steps=4) as log:
        log.train({"step": 1, **step}, seconds_left=65)
        sample = {"source": "a", "reference": "b", "output": "c"}
        log.evaluation({"step": 1, "loss": 1.0, "ppl": 2.0, "seconds": 0.1, "samples": [sample]}, best={"loss": None})
        log.train({"step": 2, **step}, seconds_left=60)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "✓ step 1  valid loss 1.000 (best)  ppl 2.00  0.1 s\n" in text
    assert "  src  a\n" in text
    assert "  ref  b\n" in text
    assert "  out  c\n" in text
    assert " 2/4 ━━━━━━━━━━━━━━────────────── 50%  loss 1.000" in text
    assert "ETA 1:00" in text


@pytest.mark.parametrize(
    ("best", "shown"),
    [
        (None, "valid loss 2.000  ppl 7.39  BLEU 10.00  chrF 20.00  1.5 s"),
        ({"bleu": None}, "valid loss 2.000  ppl 7.39  BLEU 10.00 (best)  chrF 20.00  1.5 s"),
        ({"bleu": 0.7}, "valid loss 2.000  ppl 7.39  BLEU 10.00 (best, +0.70)  chrF 20.00  1.5 s"),
        ({"loss": -0.25}, "valid loss 2.000 (best, -0.250)  ppl 7.39  BLEU 10.00  chrF 20.00  1.5 s"),
    ],
)
def test_the_figure_that_decides_says_what_it_gained(
    best: dict[str, float | None] | None, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunLog(tmp_path, console=Console(stderr=True, highlight=False), max_steps=1) as log:
        log.evaluation({"step": 1200, "loss": 2.0, "ppl": 7.389, "bleu": 10.0, "chrf": 20.0, "seconds": 1.5}, best=best)
    assert capsys.readouterr().err == f"✓ step 1,200  {shown}\n"


def test_what_an_evaluation_gained_and_a_loss_that_is_no_number_is_never_better() -> None:
    progress, judged = Progress(), []
    for step, loss in enumerate((2.0, 1.5, math.nan, 1.75, 1.25), start=1):
        progress.step = step
        found = judge(progress, {"loss": loss, "bleu": 1.0}, best_by="loss", measure="the loss")
        judged.append((found, progress.best_step, progress.evaluations_since_best))
    assert judged == [({"loss": None}, 1, 0), ({"loss": -0.5}, 2, 0), (None, 2, 1), (None, 2, 2), ({"loss": -0.25}, 5, 0)]


def test_what_a_resumed_run_did_again_counts_once(tmp_path: Path) -> None:
    logged = [
        {"t": "event", "event": "start", "step": 0},
        {"t": "train", "step": 1, "loss": 3},
        {"t": "eval", "step": 2, "loss": 2, "bleu": 9},
        {"t": "train", "step": 3, "loss": 7},
        {"t": "event", "event": "resume", "step": 2},
        {"t": "train", "step": 3, "loss": 1},
        {"t": "eval", "step": 4, "loss": 3, "bleu": 8},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in logged) + '{"t": "tra', encoding="utf-8")
    found, broken = read_log(tmp_path)
    assert (found, broken) == (logged, 1)
    kept = standing(found)
    assert [(record["t"], record["step"], record.get("loss")) for record in kept if record["t"] != "event"] == [
        ("train", 1, 3), ("eval", 2, 2), ("train", 3, 1), ("eval", 4, 3),
    ]  # fmt: skip
    evaluations = [record for record in kept if record["t"] == "eval"]
    assert best_evaluation(evaluations, best_by="bleu") == logged[2]
    assert best_evaluation([{"step": 2, "loss": 4}, *evaluations], best_by="loss") == logged[2]
    assert best_evaluation([], best_by="bleu") is None


def test_inspect_knows_what_a_resumed_run_makes_once_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged = [{"t": "train", "step": 2, "loss": 3}, {"t": "train", "step": 4, "loss": 9}, {"t": "event", "event": "resume", "step": 2}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in logged), encoding="utf-8")
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["step"], facts["last_training"]) == (2, logged[0])


def test_an_evaluation_that_a_resumed_run_still_owed_counts_once(tmp_path: Path) -> None:
    """A kill may come after its record was written and before the checkpoint knew of it; to every reader of the log."""
    logged: list[dict[str, Any]] = [
        {"t": "train", "step": 2, "loss": 3},
        {"t": "eval", "step": 2, "loss": 2},
        {"t": "event", "event": "resume", "step": 2},
        {"t": "eval", "step": 4, "loss": 2},
    ]
    again = [{"t": "event", "event": "resume", "step": 4, "owed": True}, {"t": "eval", "step": 4, "loss": 2}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in logged), encoding="utf-8")
    read = read_log_from(tmp_path, 0)
    assert read.records == logged
    with (tmp_path / "log.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in again)
    assert read_log_from(tmp_path, read.end) == (standing(logged + again), 0, (tmp_path / "log.jsonl").stat().st_size)
    assert standing(logged + again) == [*logged[:3], *again]


def test_tensorboard_has_the_numbers_of_the_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard's files need its package")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    data = write_pairs(tmp_path / "train", toy_pairs(20))
    valid = ("--valid", str(write_pairs(tmp_path / "valid", toy_pairs(4, seed=9))))
    run = tmp_path / "run"
    assert train(run, data, *valid, "--quiet", "--tensorboard", "--max-steps", "4", training__evaluate_every=2) == 0
    assert train(run, None, "--quiet", "--max-steps", "6") == 0
    shown = EventAccumulator(str(run / "tensorboard"))
    shown.Reload()
    for kind, names in (("train", ("loss", "lr", "grad_norm", "tok_s")), ("eval", ("loss", "bleu", "chrf"))):
        for name in names:
            points = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in shown.Scalars(f"{kind}/{name}")]
            assert [(record["step"], record[name]) for record in records(run, kind)] == points
    assert {tag.partition("/")[0] for tag in shown.Tags()["scalars"]} == {"train", "eval"}


def test_tensorboard_is_refused_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    data = write_pairs(tmp_path / "train", toy_pairs(20))
    assert train(tmp_path / "run", data, "--quiet", "--tensorboard") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "dragoman: training.tensorboard needs the tensorboard package; pip install 'dragoman[tensorboard]'"
    assert not (tmp_path / "run").exists()
