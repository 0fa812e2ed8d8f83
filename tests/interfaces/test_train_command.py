"""``dragoman train`` from outside: what it refuses and how, what it leaves, how it stops and goes on."""

import errno
import hashlib
import io
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.bundle import load_bundle
from dragoman.cli import main
from dragoman.presets import count_parameters, resolve_config
from dragoman.training.log import RunLog, Screen
from dragoman.training.run import sole_writer
from dragoman.training.state import Progress
from training_runs import TINY, Pair, checkpoints, final_weights, marked, records, same_bits, toy_pairs, train, write_pairs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 pairs to learn from and 8 to look at."""
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder / "valid", toy_pairs(8, seed=9))
    return write_pairs(folder / "train", toy_pairs(40))


def valid(data: Path) -> tuple[str, str]:
    return ("--valid", str(data.with_name("valid")))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve steps with validation; nothing changes it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert train(run, data, *valid(data), "--max-steps", "12", "--seed", "4", model__dropout=0.1) == 0
    return run


def refuses(capsys: pytest.CaptureFixture[str], status: int, expected: int, *parts: str) -> str:
    """The exit status, nothing on standard output, and one line on standard error with all these parts; the line."""
    out, err = capsys.readouterr()
    assert (status, out) == (expected, "")
    (line,) = err.splitlines()
    assert line.startswith("dragoman: ")
    for part in parts:
        assert part in line
    return line


# Bad input: data


def test_unequal_line_counts(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = toy_pairs(30)
    prefix = write_pairs(tmp_path / "odd", pairs)
    lines = [pair[1] for pair in pairs]
    lines.insert(12, "a line too many that is far longer than the others, so that it stands out, and then some")
    (tmp_path / "odd.bb").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    status = train(tmp_path / "run", prefix)
    line = refuses(capsys, status, 1, "odd.aa has 30 lines but", "odd.bb has 31", "a line too many")
    assert "near line 13" in line
    assert not (tmp_path / "run").exists()
    assert train(tmp_path / "run", data, "--valid", str(prefix)) == 1
    assert "odd.aa has 30 lines but" in capsys.readouterr().err


def test_missing_and_empty_files(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, empty, written = tmp_path / "run", write_pairs(tmp_path / "empty", []), tmp_path / "text.txt"
    written.write_text("a b\n")
    refuses(capsys, train(run, tmp_path / "nothing"), 1, "no such corpus", "nothing.aa", "nothing.bb")
    refuses(capsys, train(run, data, "--valid", str(tmp_path / "nothing")), 1, "no such corpus", "nothing.aa")
    for side in ("aa", "bb"):
        one_of_two = f"{data}.{side}: one file, where a corpus has two; give {data} for both, a prefix"
        refuses(capsys, train(run, Path(f"{data}.{side}")), 1, one_of_two)
    refuses(capsys, train(run, written), 1, "text.txt: one file, where a corpus has two; give a prefix")
    refuses(capsys, train(run, empty), 1, "empty.aa and", "empty.bb: empty")
    refuses(capsys, train(run, data, "--valid", str(empty)), 1, "empty.aa and", "empty.bb: empty")
    assert not run.exists()
    refuses(capsys, main(["train", "aa-bb", "--out", str(run)]), 2, "no training data", "--train")


def test_text_that_is_empty_on_every_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blank = write_pairs(tmp_path / "blank", [(" ", "x"), ("y", "")])
    refuses(capsys, train(tmp_path / "run", blank), 1, "train: no pair of lines is left (", "2 empty side")
    refuses(capsys, train(tmp_path / "run", data, "--valid", str(blank)), 1, "valid: no pair of lines is left (", "2 empty side")


def test_invalid_text_is_named_by_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = write_pairs(tmp_path / "bad", toy_pairs(5))
    (tmp_path / "bad.bb").write_bytes(b"fine\nfine\nbr\xffken\nfine\nfine\n")
    refuses(capsys, train(tmp_path / "run", prefix), 1, "bad.bb, line 3")
    assert not (tmp_path / "run").exists()


def test_the_same_command_works_once_its_data_are_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix, run = write_pairs(tmp_path / "train", toy_pairs(9)), tmp_path / "run"
    with (tmp_path / "train.aa").open("a", encoding="utf-8") as file:
        file.write("one more\n")
    run.mkdir()  # an empty folder is as good as none
    assert train(run, prefix, "--max-steps", "1") == 1
    write_pairs(prefix, toy_pairs(9))
    assert train(run, prefix, "--max-steps", "1") == 0


# Bad input: where to


def test_an_output_folder_that_cannot_be_used(data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    refuses(capsys, train(finished, data), 2, f"{finished}: already a run", "--resume")
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("dear", encoding="utf-8")
    refuses(capsys, train(tmp_path / "full", data), 2, "full: not an empty folder")
    assert (tmp_path / "full" / "thesis.txt").read_text("utf-8") == "dear"
    refuses(capsys, train(tmp_path / "full" / "thesis.txt", data), 2, "thesis.txt: not an empty folder")
    refuses(capsys, train(tmp_path / "full" / "thesis.txt" / "run", data), 1, "cannot make the run folder: Not a directory")
    refuses(capsys, main(["train", "aa-bb", "--train", str(data)]), 2, "no run folder", "--out DIR")


def test_nothing_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuses(capsys, train(tmp_path / "nothing", None), 2, "nothing: no run to resume")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text("{}", encoding="utf-8")
    refuses(capsys, train(tmp_path / "half", None), 1, "half: the run has no config.toml; write it again", "run.json", "--out")


def test_a_place_that_is_no_place_is_refused_when_it_is_read() -> None:
    wrong: dict[str, Any]
    for wrong in ({"epoch": "1"}, {"step": -1}, {"unreported": [1]}, {"scale": 1}, {"best": ["x", 1]}):
        with pytest.raises(ValueError, match=r"number|whole"):
            Progress(**wrong)


def test_a_checkpoint_without_its_state_is_not_resumed_from(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, data, "--max-steps", "2") == 0
    state = checkpoints(run)[2] / "state"
    whole = {name: (state / name).read_bytes() for name in ("progress.json", "tensors.safetensors")}
    capsys.readouterr()
    for name, content in whole.items():
        for damaged in (b"", content[: len(content) // 2], b'{"progress": {"steps": 3}, "facts": {}}'):
            (state / name).write_bytes(damaged)
            assert train(run, None, "--quiet", "--max-steps", "3") == 1
            refuses(capsys, 1, 1, f"{state}: no whole training state to resume from")
        (state / name).write_bytes(content)
    assert train(run, None, "--quiet", "--max-steps", "3") == 0


# Bad input: settings


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--set", "training.warm_up=3"], ["unknown setting training.warm_up", "training.warmup_steps"]),
        (["--set", "trainign.seed=3"], ["unknown setting trainign", "training"]),
        (["--set", "training.warmup_steps"], ["--set training.warmup_steps", "GROUP.KEY=VALUE"]),
        (["--set", "training.warmup_steps=0"], ["training.warmup_steps=0"]),
        (["--set", "training.batch_tokens=0"], ["training.batch_tokens=0"]),
        (["--set", "model.d_model=15"], ["d_model=15", "even"]),
        (["--set", "model.n_heads=3"], ["d_model=16", "n_heads=3"]),
        (["--set", "data.joint_vocabulary=false"], ["tie", "data.joint_vocabulary=true", "model.tie=decoder"]),
        (["--set", "training.patience=2"], ["training.patience", "--valid"]),
        (
            ["--set", "training.best_by=loss", "--set", "training.bleu_tokenize=zh"],
            ["training.best_by=loss and training.bleu_tokenize=zh: for evaluations, and there is no validation text; give --valid PATH"],
        ),
        (["--set", "training.bleu_lowercase=true"], ["training.bleu_lowercase=True: for evaluations, and there is no validation text"]),
        (["--max-minutes", "0"], ["--max-minutes"]),
        (["--max-minutes", "-1"], ["--max-minutes"]),
        (["--max-steps", "0"], ["--max-steps"]),
        (["--max-steps", "many"], ["--max-steps"]),
        (["--seed", "-1"], ["--seed"]),
        (["--preset", "huge"], ["unknown preset 'huge'", "base", "tiny"]),
        (["--precision", "fp8"], ["precision='fp8'"]),
        (["--precision", "fp16", "--device", "cpu"], ["training.precision=fp16", "auto, fp32 or bf16"]),
        (["--device", "tpu"], ["'tpu'", "cpu", "cuda"]),
        (["--device", "meta"], ["'meta'", "cpu", "cuda"]),
        (["--config", "nowhere.toml"], ["nowhere.toml", "cannot read"]),
        (["--wat"], ["--wat"]),
    ],
    ids=" ".join,
)
def test_settings_that_cannot_be(
    arguments: list[str], parts: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuses(capsys, train(tmp_path / "run", data, "--max-steps", "1", *arguments), 2, *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuses(capsys, train(tmp_path / "run", data, "--device", "cuda"), 2, "'cuda' is not available here", "cpu")


@pytest.mark.parametrize("pair", ["en", "en-", "-de", "-", "", "de-de"])
def test_a_pair_that_is_none(pair: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["train", "--train", str(data), "--out", str(tmp_path / "run"), "--", pair])
    refuses(capsys, status, 2, f"{pair!r} is not SOURCE-TARGET", "en-de")


def test_no_pair_at_all(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuses(capsys, main(["train", "--train", str(data), "--out", str(tmp_path / "run")]), 2, "no languages", "PAIR")


def test_a_settings_file_that_is_none(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my.toml"
    for content, part in (
        ("[training\n", "not a TOML file"),
        ("[training]\nsteps = 3\n", "unknown setting training.steps"),
        ('[training]\nseed = "x"\n', "training.seed='x'"),
    ):
        file.write_text(content, encoding="utf-8")
        refuses(capsys, train(tmp_path / "run", data, "--config", str(file)), 2, "my.toml", part)


# Counted notices


@pytest.mark.parametrize(("budget", "kept"), [(50, 200), (3, None)])
def test_pairs_over_the_token_budget_are_counted_before_the_first_step(
    budget: int, kept: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B15: one pair of 60 words beside 200 short ones, in the training and in the validation text, under the same rule."""
    short = toy_pairs(200)
    long: Pair = (" ".join(["onbek"] * 60), " ".join(["KEBNO"] * 60))
    write_pairs(tmp_path / "valid", [*short[:20], long])
    data, run = write_pairs(tmp_path / "train", [*short[:100], long, *short[100:]]), tmp_path / "run"
    assert train(run, data, *valid(data), "--max-steps", "2", training__batch_tokens=budget) == 0
    told = capsys.readouterr().err
    fits = {name: sum(len(source.split()) < budget for source, _ in pairs) for name, pairs in (("train", short), ("valid", short[:20]))}
    if kept:
        assert fits["train"] == kept
    facts = json.loads((run / "run.json").read_text("utf-8"))
    assert facts["pairs"] == fits
    for name, total in (("train", 201), ("valid", 21)):
        lost = total - fits[name]
        notice = f"dragoman: warning: {name}: dropped {lost} of {total} pairs ({lost} longer than the batch budget)\n"
        assert told.index(notice) < told.index("1/2  loss")
        assert facts["dropped"][name] == {"longer than the batch budget": lost}


def test_a_budget_below_every_pair_is_refused_with_the_shortest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_pairs(tmp_path / "train", toy_pairs(20, shortest=4))
    status = train(tmp_path / "run", data, training__batch_tokens=3)
    refuses(capsys, status, 1, "no pair of lines is left", "20 longer than the batch budget", "has 5 tokens", "training.batch_tokens=3")


def test_empty_sides_and_long_pairs_are_counted_and_lines_keep_their_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [("", "x"), *toy_pairs(5), ("y", "  "), toy_pairs(1, shortest=20, longest=20)[0]]
    run = tmp_path / "run"
    assert train(run, write_pairs(tmp_path / "train", pairs), "--max-steps", "1", data__max_length=15) == 0
    told = capsys.readouterr().err
    assert "train: dropped 3 of 8 pairs (2 empty side, 1 longer than max_length)" in told
    facts = json.loads((run / "run.json").read_text("utf-8"))
    assert facts["data"][0]["lines"] == 8
    assert facts["pairs"] == {"train": 5, "valid": 0}


# What a run leaves


def test_the_run_folder(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        "run.json",
        "config.toml",
        "log.jsonl",
        "tokenizer.json",
        "checkpoints",
        "corpus",
        "samples",
        "report.html",
    }
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {
        "best", "last", "step-000005", "step-000010", "step-000012"
    }  # fmt: skip


def test_run_json_says_how_to_repeat_it(data: Path, finished: Path) -> None:
    facts = json.loads((finished / "run.json").read_text("utf-8"))
    files = [data.with_suffix(f".{side}") for side in ("aa", "bb")] + [data.with_name(f"valid.{side}") for side in ("aa", "bb")]
    assert facts["data"] == [
        {"path": str(path), "lines": lines, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path, lines in zip(files, (40, 40, 8, 8), strict=True)
    ]
    assert (facts["status"], facts["seed"], facts["step"]) == ("done", 4, 12)
    assert facts["versions"].keys() == {"dragoman", "torch", "tokenizers", "numpy", "python"}
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["argv"] == sys.argv
    bundle = load_bundle(finished / "checkpoints" / "step-000012")
    assert facts["settings"] == bundle.config.model_dump(mode="json")
    assert facts["settings"]["model"]["source_vocabulary"] == len(bundle.source_tokenizer)
    assert facts["parameters"] == sum(weight.numel() for weight in bundle.model.parameters()) == count_parameters(bundle.config.model)


def test_config_toml_holds_every_setting_and_repeats_the_run(data: Path, finished: Path, tmp_path: Path) -> None:
    settings = tomllib.loads((finished / "config.toml").read_text("utf-8"))
    resolved = resolve_config(None, finished / "config.toml")
    assert resolved == load_bundle(finished).config
    assert settings["training"]["seed"] == 4
    assert settings["training"].keys() | {"max_minutes"} == type(resolved.training).model_fields.keys()
    assert main(["train", "--config", str(finished / "config.toml"), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert same_bits(final_weights(tmp_path / "again"), final_weights(finished))
    assert (tmp_path / "again" / "config.toml").read_bytes() == (finished / "config.toml").read_bytes()


def test_the_log_has_every_record(finished: Path) -> None:
    steps = records(finished, "train")
    assert [record["step"] for record in steps] == list(range(1, 13))
    for record in steps:
        assert record.keys() == {"t", "time", "step", "epoch", "loss", "nll", "ppl", "acc", "lr", "grad_norm", "tok_s", "seconds", "mem"}
        assert record["lr"] == 0.01
        assert record["grad_norm"] > 0
        assert 0 <= record["acc"] <= 1
    assert [record["seconds"] for record in steps] == sorted(record["seconds"] for record in steps)
    evaluations = records(finished, "eval")
    assert [record["step"] for record in evaluations] == [5, 10, 12]
    for record in evaluations:
        assert record.keys() == {"t", "time", "step", "loss", "nll", "ppl", "acc", "bleu", "chrf", "signature", "samples", "seconds"}
        assert record["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert [(record["event"], record["step"]) for record in records(finished, "event")] == [("start", 0), ("stop", 12)]


def test_validation_scores_are_those_of_the_greedy_translations(data: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def scores(checkpoint: Path, beam: int) -> list[float]:
        assert main(["evaluate", str(checkpoint), "--test", str(data.with_name("valid")), "--beam", str(beam), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        return [found["bleu"], found["chrf"]]

    greedy, wide = ([scores(checkpoint, beam) for checkpoint in checkpoints(finished).values()] for beam in (1, 3))
    logged = [[record["bleu"], record["chrf"]] for record in records(finished, "eval")]
    assert greedy == [pytest.approx(each, abs=0.005) for each in logged]
    assert wide != [pytest.approx(each, abs=0.005) for each in logged]


def test_the_best_checkpoint_has_the_best_score(finished: Path) -> None:
    best = max(records(finished, "eval"), key=lambda record: (record["bleu"], -record["loss"]))
    assert marked(finished, "best") == f"step-{best['step']:06}"


def test_plain_lines_on_standard_error_only(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", data, *valid(data), "--max-steps", "6", training__log_every=3) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", err)
    lines = err.splitlines()
    assert lines[0].startswith("aa→bb  40 pairs  vocabulary 52  1+1 layers  d_model 16  ")
    told = [line for line in lines if re.match(r"\d/6|✓", line)]
    assert [line.split("  ")[0] for line in told] == ["3/6", "✓ step 5", "6/6", "✓ step 6"]
    assert re.fullmatch(r"3/6  loss \d\.\d{3}  ppl [\d.]+  acc [\d.]+%  lr 1.0e-02  \|g\| [\d.]+  [\d.]+k tok/s  ETA 0:0\d", told[0])
    assert re.fullmatch(r"✓ step 5  valid loss [\d.]+  ppl [\d.]+  BLEU [\d.]+ \(best\)  chrF [\d.]+  [\d.]+ s", told[1])
    farewell = lines[-5:]
    assert farewell[0].startswith("all steps done at step 6; the best checkpoint is step ")
    assert farewell[3:] == [f"  dragoman train --resume --out {tmp_path / 'run'} --max-steps 12", f"  {tmp_path / 'run' / 'report.html'}"]


def on_screen(text: str) -> list[str]:
    """The lines that a terminal shows in the end, by the few controls that are used: CR, LF, up and erase the line."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\r\n\x1b]+", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            rows[row] = ""
        elif not part.startswith("\x1b"):
            rows[row] = rows[row][:column] + part + rows[row][column + len(part) :]
            column += len(part)
    return [line for line in rows if line]


@pytest.mark.parametrize("width", [160, 60])
def test_on_a_terminal_progress_is_rewritten_in_place(width: int, tmp_path: Path) -> None:
    facts = {"loss": 2.5, "nll": 2.0, "ppl": 7.389, "acc": 0.25, "lr": 1e-3, "grad_norm": 1.5, "tok_s": 1234.0, "seconds": 9.0}
    screen, shown = io.StringIO(), []
    with RunLog(tmp_path, console=Screen(file=screen, force_terminal=True, width=width), max_steps=100) as log:
        log.train({"step": 25, **facts}, seconds_left=3700)
        shown.append(" ".join(on_screen(screen.getvalue())))
        log.evaluation({"step": 25, "loss": 2.0, "ppl": 7.0, "bleu": 12.345, "chrf": 30.0, "seconds": 1.0}, best={"bleu": 0.5})
        log.train({"step": 50, **facts}, seconds_left=65)
        shown.append(" ".join(on_screen(screen.getvalue())))
    first, second = (" ".join(text.split()) for text in shown)
    bars = [f"{'━' * filled}{'─' * (28 - filled)}" for filled in (7, 14)]
    assert first == f"25/100 {bars[0]} 25% loss 2.500 ppl 7.39 acc 25.0% lr 1.0e-03 |g| 1.50 1.2k tok/s ETA 1:01:40"
    evaluation = "✓ step 25  valid loss 2.000  ppl 7.00  BLEU 12.35 (best, +0.50)  chrF 30.00  1.0 s"
    assert second.startswith(f"{' '.join(evaluation.split())} 50/100 {bars[1]} 50% ")
    assert second.endswith("ETA 1:05")
    assert on_screen(screen.getvalue()) == [evaluation]


def test_quiet_is_quiet(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", data, "--max-steps", "1", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_separate_vocabularies(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, data, "--max-steps", "1", data__joint_vocabulary=False, model__tie="decoder") == 0
    bundle = load_bundle(run)
    assert (len(bundle.source_tokenizer), len(bundle.target_tokenizer)) == (28, 28)
    assert bundle.source_tokenizer.decode(bundle.source_tokenizer.encode("onbek")) == "onbek"
    assert bundle.target_tokenizer.decode(bundle.target_tokenizer.encode("KEBNO onbek")) == "KEBNO <unk>"


def test_several_corpora_are_one_after_the_other(data: Path, tmp_path: Path) -> None:
    pairs = toy_pairs(40)
    parts = [write_pairs(tmp_path / "a", pairs[:15]), tmp_path / "b.tsv"]
    parts[1].write_text("".join(f"{source}\t{target}\n" for source, target in pairs[15:]), encoding="utf-8")
    assert train(tmp_path / "parts", parts[0], "--train", str(parts[1]), "--max-steps", "3", "--quiet") == 0
    assert train(tmp_path / "whole", data, "--max-steps", "3", "--quiet") == 0
    assert same_bits(final_weights(tmp_path / "parts"), final_weights(tmp_path / "whole"))


def test_seed_zero_is_a_seed(data: Path, tmp_path: Path) -> None:
    """Also of the first weights, which is all that a rate of almost 0 leaves to differ."""
    weights = []
    for seed in ("0", "1"):
        assert train(tmp_path / seed, data, "--max-steps", "1", "--seed", seed, "--quiet", training__learning_rate=1e-30) == 0
        weights.append(final_weights(tmp_path / seed))
    assert json.loads((tmp_path / "0" / "run.json").read_text("utf-8"))["seed"] == 0
    assert not torch.allclose(*(weight["encoder.embedding.weight"] for weight in weights))


# Stopping and going on


def test_the_time_is_up(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, data, *valid(data), "--max-minutes", "0.00001") == 0
    said = capsys.readouterr().err.splitlines()
    assert said[-2] == f"  dragoman train --resume --out {run} --max-minutes 1"  # twice 1e-05 are over as well
    assert [line for line in said if re.match(r"the 1e-05 minutes are over \(\d+\.\d with the last evaluation\) at step 1; ", line)]
    assert list(checkpoints(run)) == [1]
    assert records(run, "event")[-1]["reason"] == "max_minutes"
    assert [record["step"] for record in records(run, "eval")] == [1]
    assert train(run, None, "--quiet") == 0
    assert list(checkpoints(run)) == [1]  # it is still up
    assert train(run, None, "--quiet", "--max-minutes", "1", "--max-steps", "2") == 0
    assert list(checkpoints(run)) == [1, 2]


def test_going_on_with_more_steps(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, data, "--max-steps", "3", "--quiet") == 0
    assert train(run, None, "--quiet") == 0
    assert list(checkpoints(run)) == [3]
    assert train(run, None, "--max-steps", "6") == 0
    assert "changed settings: training.max_steps from 3 to 6" in capsys.readouterr().err
    assert [record["step"] for record in records(run, "train")] == [1, 2, 3, 4, 5, 6]
    assert resolve_config(None, run / "config.toml").training.max_steps == 6


def test_control_c_finishes_the_step_and_saves(data: Path, tmp_path: Path) -> None:
    """A process of its own, as a person would stop it; then it goes on to where it was to end."""
    run = tmp_path / "run"
    sets = [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    command = [sys.executable, "-m", "dragoman", "train", "aa-bb", "--train", str(data), "--out", str(run), *sets, "--max-steps", "1000000"]

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(list(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")

    def wait_for(step: int) -> None:
        for _ in range(3600):
            if (run / "log.jsonl").exists() and any(record["step"] >= step for record in records(run, "train")):
                return
            time.sleep(0.05)
        raise AssertionError(f"step {step} was not reached in three minutes")

    process = start(*command, "--set", "training.evaluate_every=1000000")
    wait_for(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (130, "")
    assert "dragoman: finishing the step and saving; once more stops now" in err.splitlines()
    (step,) = checkpoints(run)
    assert f"interrupted at step {step:,}" in err.splitlines()
    assert json.loads((run / "run.json").read_text("utf-8"))["status"] == "stopped"
    assert dragoman.load(run).bundle.info["step"] == step
    assert train(run, None, "--quiet", "--max-steps", str(step + 2)) == 0
    assert [record["step"] for record in records(run, "train")] == list(range(1, step + 3))


# Settings that do nothing


@pytest.mark.parametrize(
    ("settings", "notice"),
    [
        ({"training__schedule": "paper"}, "training.learning_rate=0.01 does nothing under training.schedule=paper; factor scales it"),
        ({"training__factor": 2}, "training.factor=2 does nothing under training.schedule=constant; its peak is learning_rate"),
        (
            {"model__source_vocabulary": 99, "model__tie": "decoder"},
            "model.source_vocabulary=99 does nothing in training; the tokenizer sets it to 52",
        ),
        (
            {"training__rdrop": 2, "model__dropout": 0.0},
            "training.rdrop=2 does nothing but take time without model.dropout; both passes are the same",
        ),
        ({"training__rdrop": 2}, ""),
        ({"training__schedule": "cosine"}, ""),
        ({"training__schedule": "cosine", "training__max_minutes": 5}, ""),  # its one step ends it
        ({}, ""),
    ],
    ids=str,
)
def test_settings_that_do_nothing_are_told_once(
    settings: dict[str, object], notice: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", data, "--max-steps", "1", **settings) == 0
    notices = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dragoman: ")]
    assert notices == ([f"dragoman: {notice}"] if notice else [])


# Nobody reads


def test_a_training_whose_progress_nobody_reads_any_more_goes_on(data: Path, tmp_path: Path) -> None:
    """As ``2>&1 | head -2``: the reader takes the first lines and leaves."""
    run = tmp_path / "run"
    sets = [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    arguments = ["train", "aa-bb", "--train", str(data), "--out", str(run), *sets, "--max-steps", "40"]
    process = subprocess.Popen([sys.executable, "-m", "dragoman", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(timeout=120) == 0
    assert json.loads((run / "run.json").read_text("utf-8"))["status"] == "done"
    assert list(checkpoints(run))[-1] == 40


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "gone"), OSError(errno.ENOSPC, "full"), ValueError("closed")])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_screen_that_cannot_be_written_to_is_dropped(
    terminal: bool, error: Exception, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard output stays as it is, and so does the log."""

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    facts = {"loss": 2.5, "nll": 2.0, "ppl": 7.389, "acc": 0.25, "lr": 1e-3, "grad_norm": 1.5, "tok_s": 1234.0, "seconds": 9.0}
    with RunLog(tmp_path, console=Screen(file=Broken(), force_terminal=terminal), max_steps=9) as log:
        for step in (1, 2):
            log.train({"step": step, **facts}, seconds_left=1)
            log.say("hello")
    assert [record["step"] for record in records(tmp_path, "train")] == [1, 2]
    print("still here")
    assert capfd.readouterr().out == "still here\n"


def test_two_trainings_never_write_into_one_run(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, data, "--max-steps", "2", "--quiet") == 0
    before = (run / "run.json").read_bytes()
    with sole_writer(run):
        assert train(run, None, "--max-steps", "4", "--quiet") == 1
    assert capsys.readouterr().err == f"dragoman: {run}: another process is training in it; wait for its end, or choose another --out\n"
    assert (run / "run.json").read_bytes() == before
    assert train(run, None, "--max-steps", "4", "--quiet") == 0


def test_a_file_system_without_locks_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks available")))
    with sole_writer(tmp_path), sole_writer(tmp_path):
        assert tmp_path.is_dir()
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"), sole_writer(tmp_path):
        pass


def test_what_fails_while_a_run_is_held_is_not_taken_for_another_process(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="a pipe is full"), sole_writer(tmp_path):
        raise BlockingIOError("a pipe is full")


def test_a_folder_that_was_there_stays_when_nothing_can_be_learnt(tmp_path: Path) -> None:
    ours, linked = tmp_path / "ours", tmp_path / "linked"
    ours.mkdir(mode=0o770)
    linked.symlink_to(ours)
    empty = write_pairs(tmp_path / "empty", [("", "x")])
    for out in (ours, linked):
        assert train(out, empty, "--max-steps", "1", "--quiet") == 1
        assert list(ours.iterdir()) == []
    assert train(tmp_path / "new", empty, "--max-steps", "1", "--quiet") == 1
    assert not (tmp_path / "new").exists()


def test_a_folder_whose_name_no_record_can_hold_is_refused(data: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "x\udcff", data, "--max-steps", "1", "--quiet") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_record_cut_short_by_a_kill_takes_no_other_with_it(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"t": "event"}\n{"t": "tra', encoding="utf-8")
    with RunLog(tmp_path, console=None, max_steps=1) as log:
        log.event("resume", step=3)
        log.event("stop", step=4)
    first, broken, *later = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert (first, broken) == ('{"t": "event"}', '{"t": "tra')
    assert [json.loads(line)["event"] for line in later] == ["resume", "stop"]
