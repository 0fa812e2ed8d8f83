"""evaluate, score, average and inspect at the command line, on models with random weights that are their own reference."""

import json
import math
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import tiny_bundle
from dragoman.bundle import Bundle, load_bundle, mark_checkpoint, save_bundle
from dragoman.cli import main
from dragoman.decoding.score import Perplexity, Scored
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from dragoman.evaluation.evaluate import evaluate_translator
from dragoman.model.build import build_model

SOURCES = ["ona bek", "tilu rem sova kip", "東京 🐟 dal", "kip"]

Run = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("models") / "words")


@pytest.fixture(scope="module")
def own(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of a test set whose references are the model's own greedy translations."""
    prefix = tmp_path_factory.mktemp("corpus") / "own"
    texts = [translation.text for translation in Translator.load(model, device="cpu").translate(SOURCES, beam=1)]
    assert all(texts)
    prefix.with_suffix(".aa").write_text("".join(f"{line}\n" for line in SOURCES), encoding="utf-8")
    prefix.with_suffix(".bb").write_text("".join(f"{line}\n" for line in texts), encoding="utf-8")
    return prefix


def test_a_model_agrees_with_itself(model: Path, own: Path, tmp_path: Path, run: Run) -> None:
    document = json.loads(run("evaluate", model, "--test", own, "--beam", 1, "--output", tmp_path / "hyp", "--json"))
    assert (document["sentences"], document["exact_match"]) == (4, 100.0)
    assert document["bleu"] == pytest.approx(100.0)
    assert document["chrf"] == pytest.approx(100.0)
    assert "tok:13a" in document["bleu_signature"]
    assert document["bleu_details"]["hypothesis_length"] == document["bleu_details"]["reference_length"]
    assert document["seconds"] > 0
    assert (tmp_path / "hyp").read_bytes() == own.with_suffix(".bb").read_bytes()

    text = run("evaluate", model, "--test", own, "--beam", 1)
    assert f"BLEU         100.00 ± 0.00  {document['bleu_signature']}\n" in text
    assert f"chrF         100.00 ± 0.00  {document['chrf_signature']}\n" in text
    assert "exact match  100.00  % of 4 sentences\n" in text


def test_settings_of_an_evaluation_reach_it(model: Path, own: Path, tmp_path: Path, run: Run) -> None:
    shouted = tmp_path / "shouted.bb"
    shouted.write_text(own.with_suffix(".bb").read_text(encoding="utf-8").upper(), encoding="utf-8")
    spec = f"{own}.aa,{shouted}"
    mixed = json.loads(run("evaluate", model, "--test", spec, "--beam", 1, "--json"))
    assert mixed["exact_match"] < 100
    lowered = json.loads(run("evaluate", model, "--test", spec, "--beam", 1, "--json", "--lowercase", "--tokenize", "char"))
    assert lowered["bleu"] == pytest.approx(100.0)
    assert "case:lc" in lowered["bleu_signature"]
    assert "tok:char" in lowered["bleu_signature"]

    short = json.loads(run("evaluate", model, "--test", own, "--beam", 1, "--max-length", 2, "--json"))
    assert short["bleu_details"]["hypothesis_length"] <= len(SOURCES)

    twice = json.loads(run("evaluate", model, "--test", own, "--test", own, "--beam", 1, "--json"))
    assert (twice["sentences"], twice["exact_match"]) == (8, 100.0)


def test_segmented_references_count_as_plain_text(tmp_path: Path, run: Run) -> None:
    model = tiny_bundle(tmp_path / "joined", joiner="@@")
    best = Translator.load(model, device="cpu").translate(SOURCES)
    segmented = [" ".join(translation.tokens[:-1]) for translation in best]
    assert any("@@" in line for line in segmented)
    (tmp_path / "t.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(SOURCES, segmented, strict=True)), encoding="utf-8")
    document = json.loads(run("evaluate", model, "--test", tmp_path / "t.tsv", "--json"))
    assert document["exact_match"] == 100.0


def test_an_empty_test_set_is_refused(model: Path) -> None:
    with pytest.raises(DragomanError, match="no pairs"):
        evaluate_translator(Translator.load(model, device="cpu"), [])


def test_given_translations_score_as_the_search_scored_them(model: Path, own: Path, tmp_path: Path, run: Run) -> None:
    found = [json.loads(line) for line in run("translate", model, own.with_suffix(".aa"), "--beam", 1, "--json").splitlines()]
    given = [json.loads(line) for line in run("score", model, "--test", own, "--json").splitlines()]
    assert [record["line"] for record in given] == [1, 2, 3, 4]
    assert [record["source"] for record in given] == SOURCES
    for ours, theirs in zip(found, given, strict=True):
        assert theirs["tokens"] == ours["tokens"]
        assert theirs["token_scores"] == pytest.approx(ours["token_scores"], abs=1e-4)
        assert theirs["log_probability"] == pytest.approx(ours["log_probability"], abs=1e-4)
        assert theirs["score"] == pytest.approx(ours["score"], abs=1e-4)

    rows = [line.split("\t") for line in run("score", model, "--test", own, "--text").splitlines()]
    assert [float(row[0]) for row in rows] == pytest.approx([record["log_probability"] for record in given], abs=1e-5)
    assert [int(row[1]) for row in rows] == [len(record["tokens"]) for record in given]
    assert [row[2] for row in rows] == [record["target"] for record in given]

    rows = [line.split("\t") for line in run("score", model, "--test", own, "--alpha", 0.6, "--text").splitlines()]
    assert [float(row[2]) for row in rows] == pytest.approx([record["score"] for record in given], abs=1e-5)
    assert [row[3] for row in rows] == [record["target"] for record in given]

    raw = [json.loads(line)["score"] for line in run("score", model, "--test", own, "--alpha", 0, "--json").splitlines()]
    assert raw == pytest.approx([record["log_probability"] for record in given], abs=1e-5)


def test_the_perplexity_of_a_corpus_is_of_all_its_tokens_and_words(
    model: Path, own: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [json.loads(line) for line in run("score", model, "--test", own, "--json").splitlines()]
    total, tokens = sum(record["log_probability"] for record in given), sum(len(record["tokens"]) for record in given)
    words = sum(len(record["target"].split()) + 1 for record in given)
    document = json.loads(run("score", model, "--test", own, "--perplexity", "--json"))
    assert (document["pairs"], document["tokens"], document["words"]) == (4, tokens, words)
    assert document["log_probability"] == pytest.approx(total, rel=1e-6)
    assert document["perplexity_per_token"] == pytest.approx(math.exp(-total / tokens), rel=1e-5)
    assert document["perplexity_per_word"] == pytest.approx(math.exp(-total / words), rel=1e-5)
    twice = json.loads(run("score", model, "--test", own, "--test", own, "--perplexity", "--json"))
    assert (twice["pairs"], twice["perplexity_per_token"]) == (8, pytest.approx(document["perplexity_per_token"], rel=1e-6))

    lines = run("score", model, "--test", own, "--perplexity").splitlines()
    assert lines[0].split() == ["perplexity", "per", "token", f"{document['perplexity_per_token']:,.4f}"]
    assert lines[-1].split() == ["words", str(words)]
    assert main(["score", str(model), "--test", str(own)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert f"dragoman: perplexity {document['perplexity_per_token']:.3f} a token ({tokens} tokens)" in err
    assert main(["score", str(model), "--test", str(own), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["score", str(model), "--test", str(own), "--perplexity", "--text"]) == 2
    assert "--perplexity: there are no lines for --text" in capsys.readouterr().err


def test_the_perplexity_a_word_counts_words_of_plain_text(tmp_path: Path, run: Run) -> None:
    model = tiny_bundle(tmp_path / "joined", joiner="@@")
    (tmp_path / "t.tsv").write_text("ona bek\tb@@ a bek\n", encoding="utf-8")
    document = json.loads(run("score", model, "--test", tmp_path / "t.tsv", "--perplexity", "--json"))
    assert (document["tokens"], document["words"]) == (4, 3)


def test_a_pair_too_long_is_named_by_its_own_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also among those that are read after the first few thousand."""
    monkeypatch.setattr("dragoman.cli.score.PAIRS_AT_ONCE", 3)
    longest = load_bundle(model).config.model.max_positions
    (tmp_path / "t.tsv").write_text("ona bek\tbek\n" * 4 + "ona\t" + "bek " * longest + "\n", encoding="utf-8")
    assert main(["score", str(model), "--test", str(tmp_path / "t.tsv"), "--perplexity"]) == 1
    assert f"t.tsv: pair 5 has {longest + 1} tokens on its longer side" in capsys.readouterr().err


def test_weights_that_are_no_numbers_give_no_score(model: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = load_bundle(model)
    with torch.no_grad():
        next(bundle.model.parameters())[:] = torch.nan
    save_bundle(bundle, tmp_path / "nan")
    assert main(["score", str(tmp_path / "nan"), "--test", str(own)]) == 1
    assert ": pair 1 has log-probability nan: damaged weights;" in capsys.readouterr().err


def test_a_perplexity_beyond_all_numbers_is_infinite() -> None:
    total = Perplexity()
    total.add(Scored(("a",), (-1e4,), -1e4, -1e4), "")
    assert (total.per_token, total.per_word) == (math.inf, math.inf)


def test_lines_with_other_breaks_or_an_empty_side_are_scored_too(model: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "t.aa").write_bytes("ona\u2028bek\nrem\u0085\n\nona\n".encode())
    (tmp_path / "t.bb").write_bytes(b"a\x0b\nb\x1c\nona\n\n")
    assert len(run("score", model, "--test", tmp_path / "t", "--text").splitlines()) == 4
    assert len(run("score", model, "--test", tmp_path / "t", "--json").splitlines()) == 4
    assert json.loads(run("evaluate", model, "--test", tmp_path / "t", "--json"))["sentences"] == 4


def save_checkpoint(run: Path, model: Path, step: int, *, every: int = 10) -> None:
    """A checkpoint of random weights in a run that evaluates after so many steps."""
    bundle = load_bundle(model)
    config = bundle.config.with_values(training={"evaluate_every": every})
    changed = replace(bundle, config=config, model=build_model(config.model, seed=step), info={"step": step})
    save_bundle(changed, run / "checkpoints" / f"step-{step:06}")


@pytest.fixture
def checkpoints(model: Path, tmp_path: Path) -> Path:
    """A run with three checkpoints of different weights, a log and a record."""
    folder = tmp_path / "run"
    for step in (10, 20, 30):
        save_checkpoint(folder, model, step)
    mark_checkpoint(folder, "best", folder / "checkpoints" / "step-000020")
    mark_checkpoint(folder, "last", folder / "checkpoints" / "step-000030")
    records: list[dict[str, Any]] = []
    for step, loss, valid, bleu in ((10, 5.0, 4.0, 3.0), (20, 4.0, 3.5, 9.0), (30, 3.0, 4.5, 8.0)):
        records += [{"t": "train", "step": step, "loss": loss}, {"t": "eval", "step": step, "loss": valid, "bleu": bleu}]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "run.json").write_text(json.dumps({"status": "finished", "seed": 1}))
    return folder


def test_the_average_is_the_mean_of_the_last(checkpoints: Path, tmp_path: Path, run: Run) -> None:
    assert run("average", checkpoints, "--last", 2, "--out", tmp_path / "mean") == f"{tmp_path / 'mean'}\n"
    mean, second, third = (
        dict(load_bundle(folder).model.named_parameters())
        for folder in (tmp_path / "mean", checkpoints / "checkpoints" / "step-000020", checkpoints / "checkpoints" / "step-000030")
    )
    assert mean.keys() == second.keys()
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (second[name] + third[name]) / 2)


@pytest.mark.parametrize(("options", "told"), [((), 1), (("--quiet",), 0)])
def test_an_average_that_begins_within_the_warm_up_is_told(
    options: tuple[str, ...], told: int, checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps 20 and 30, with the paper's warm-up of 4,000; one checkpoint alone is no mean."""
    assert main(["average", str(checkpoints), "--last", "2", "--out", str(tmp_path / "mean"), *options]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "rising" in line]
    assert len(said) == told
    for line in said:
        assert line.startswith(
            "dragoman: the checkpoints begin at step 20, where the learning rate is still rising, as it does to step 4,000"
        )
        assert str(checkpoints / "checkpoints" / "step-000030") in line
    assert main(["average", str(checkpoints), "--last", "1", "--out", str(tmp_path / "newest"), *options]) == 0
    assert "rising" not in capsys.readouterr().err


def test_an_average_of_more_than_there_are_is_refused(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["average", str(checkpoints), "--last", "4", "--out", str(tmp_path / "mean")]) == 1
    assert "--last 4 but the run has 3;" in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()


def test_the_last_are_those_in_a_row(checkpoints: Path, model: Path, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """An old best one is beside them, whatever training.keep is; the last may be nearer, and a resume may change the distance."""
    save_checkpoint(checkpoints, model, 40)
    for step in (10, 30):
        shutil.rmtree(checkpoints / "checkpoints" / f"step-{step:06}")
    save_checkpoint(checkpoints, model, 50)
    save_checkpoint(checkpoints, model, 53)
    save_checkpoint(checkpoints, model, 60, every=20)
    (checkpoints / "checkpoints" / "step-notes").mkdir()

    def average(last: int) -> int:
        return main(["average", str(checkpoints), "--last", str(last), "--out", str(tmp_path / f"mean{last}")])

    assert average(5) == 1
    told = capsys.readouterr().err
    stray = checkpoints / "checkpoints" / "step-000020"
    assert told.startswith(
        f"dragoman: {stray}: not one of the last 5, for it is 20 steps older than step-000040 and checkpoints of this run"
    )
    assert "training.evaluate_every=10 apart (kept as the best), so only 4 are in a row; give a smaller N" in told
    assert told.count("\n") == 1
    assert average(4) == 0
    info = load_bundle(tmp_path / "mean4").info
    assert info == {"step": 60, "average_of": [f"step-{step:06}" for step in (40, 50, 53, 60)]}

    mark_checkpoint(checkpoints, "best", checkpoints / "checkpoints" / "step-000060")
    assert average(5) == 1
    assert "(those between are gone)" in capsys.readouterr().err


def test_a_name_that_is_taken_is_said_before_the_run_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["average", str(tmp_path / "no run"), "--last", "2", "--out", str(tmp_path)]) == 2
    assert f"dragoman: {tmp_path}: already exists" in capsys.readouterr().err


def test_all_commands_of_a_run_are_told(checkpoints: Path, run: Run) -> None:
    facts = json.loads((checkpoints / "run.json").read_text("utf-8"))
    facts["argv"] = ["dragoman", "train", "aa-bb", "--out", "my run"]
    resumed = [{"argv": ["dragoman", "train", "--resume", "--out", "my run", "--seed", str(seed)], "step": 10 * seed} for seed in (1, 2)]
    for known in ([], resumed, {"step": 1}, [None, {"argv": "train"}]):
        (checkpoints / "run.json").write_text(json.dumps({**facts, "resumed": known}), encoding="utf-8")
        shown = [line for line in run("inspect", checkpoints).splitlines() if line.startswith(("command", "resumed"))]
        assert shown == ["command         dragoman train aa-bb --out 'my run'"] + [
            f"resumed         at step {10 * seed}: dragoman train --resume --out 'my run' --seed {seed}"
            for seed in (1, 2)
            if known is resumed
        ]


def test_facts_of_a_model(model: Path, run: Run) -> None:
    facts = json.loads(run("inspect", model, "--json"))
    bundle = load_bundle(model)
    assert facts["kind"] == "model"
    assert facts["parameters"] == sum(weight.numel() for weight in bundle.model.parameters())
    assert facts["languages"] == {"source": "aa", "target": "bb"}
    entries = len(bundle.source_tokenizer)
    assert facts["vocabulary"] == {"tokenizer": "whitespace", "joint": True, "source": entries, "target": entries}
    assert facts["settings"]["model"]["d_model"] == 16
    assert facts["info"] == {"step": 1}
    assert facts["format_version"] == 1
    assert facts["problems"] == []
    text = run("inspect", model)
    assert f"{facts['parameters']:,}" in text
    assert text.splitlines()[-1].split() == ["looks", "wrong", "nothing"]


def test_what_looks_wrong_with_a_model(model: Path, tmp_path: Path, run: Run) -> None:
    bundle = load_bundle(model)
    damaged = build_model(bundle.config.model.model_copy(update={"target_vocabulary": 40, "source_vocabulary": 40}), seed=1)
    with torch.no_grad():
        next(damaged.parameters())[3] = torch.nan
    config = bundle.config.with_values(model={"target_vocabulary": 40, "source_vocabulary": 40}, data={"target": ""})
    save_bundle(Bundle(config, damaged, bundle.source_tokenizer, bundle.target_tokenizer), tmp_path / "damaged")
    problems = json.loads(run("inspect", tmp_path / "damaged", "--json"))["problems"]
    for fault in ("not finite", "source embedding has 40 rows", "target embedding has 40 rows", "no target language", "no training step"):
        assert sum(fault in problem for problem in problems) == 1, fault
    assert len(problems) == 5


def test_facts_of_a_run(checkpoints: Path, run: Run) -> None:
    facts = json.loads(run("inspect", checkpoints, "--json"))
    assert (facts["kind"], facts["status"], facts["step"]) == ("run", "finished", 30)
    assert facts["checkpoints"] == ["step-000010", "step-000020", "step-000030"]
    assert (facts["best"], facts["last"]) == ("step-000020", "step-000030")
    assert facts["last_training"]["loss"] == 3.0
    assert (facts["last_evaluation"]["bleu"], facts["best_evaluation"]["bleu"]) == (8.0, 9.0)
    assert facts["model"]["info"] == {"step": 20}
    assert facts["problems"] == ["the validation loss rose from 3.500 at step 20 to 4.500 at step 30"]
    assert "looks wrong     the validation loss rose" in run("inspect", checkpoints)


def ended(run: Path, step: int, reason: str, settings: Any) -> None:
    """Record in a run how it ended."""
    with (run / "log.jsonl").open("a") as log:
        log.write(json.dumps({"t": "event", "event": "stop", "step": step, "reason": reason}) + "\n")
    (run / "run.json").write_text(json.dumps({"status": "done", "settings": settings}))


@pytest.mark.parametrize(("reason", "most"), [("max_minutes", 100_000), ("patience", 100_000), ("max_steps", 30)])
def test_a_run_that_ended_within_its_warm_up_looks_wrong(reason: str, most: int, checkpoints: Path, run: Run) -> None:
    training = {"max_steps": most, "max_minutes": 3.0, "warmup_steps": 600, "schedule": "linear"}
    ended(checkpoints, 30, reason, {"training": training})
    found = json.loads(run("inspect", checkpoints, "--json"))["problems"][1:]
    assert found[0].startswith("the run ends at step 30, where the learning rate is still rising, as it does to step 600 ")
    assert found[0].endswith("(--set training.warmup_steps=8)")
    assert [" at step 100,000 (training.max_steps), but the minutes" in each for each in found[1:]] == [True] * (reason == "max_minutes")
    assert f"looks wrong     {found[0]}\n" in run("inspect", checkpoints)
    ended(checkpoints, 600, reason, {"training": training | {"max_steps": 600}})
    assert len(json.loads(run("inspect", checkpoints, "--json"))["problems"]) == 1


def test_a_run_that_was_interrupted_looks_wrong_until_it_goes_on(checkpoints: Path, run: Run) -> None:
    ended(checkpoints, 30, "interrupted", {"training": {"max_steps": 20_000}})
    command = f"continue with dragoman train --resume --out {shlex.quote(str(checkpoints))}"
    assert json.loads(run("inspect", checkpoints, "--json"))["problems"][1:] == [f"it was interrupted at step 30 of 20,000; {command}"]
    ended(checkpoints, 30, "interrupted", {"training": {"warmup_steps": -3}})
    assert json.loads(run("inspect", checkpoints, "--json"))["problems"][1:] == [f"it was interrupted at step 30; {command}"]
    with (checkpoints / "log.jsonl").open("a") as log:
        log.write(json.dumps({"t": "event", "event": "resume", "step": 30}) + "\n")
    assert len(json.loads(run("inspect", checkpoints, "--json"))["problems"]) == 1


@pytest.mark.parametrize("settings", [{"training": None}, {"training": {"nonsense": 1}}, {"model": {"d_model": -1}}])
def test_settings_that_are_not_known_say_nothing_of_the_end(settings: Any, checkpoints: Path, run: Run) -> None:
    ended(checkpoints, 30, "max_steps", settings)
    assert len(json.loads(run("inspect", checkpoints, "--json"))["problems"]) == 1


def test_a_run_whose_best_checkpoint_is_gone_uses_its_last_and_says_so(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(checkpoints / "checkpoints" / "step-000020")
    assert main(["inspect", str(checkpoints), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["model"]["info"] == {"step": 30}
    assert err.startswith("dragoman: warning: ")
    assert "best: the checkpoint that it names is gone; using the last, step-000030" in err


@pytest.mark.parametrize("content", ["[]", "null", '"text"'])
def test_a_record_of_a_run_that_is_none_is_one_line(content: str, checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoints / "run.json").write_text(content)
    assert main(["inspect", str(checkpoints)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"dragoman: {checkpoints / 'run.json'}: not the facts of a run")
    assert err.count("\n") == 1


def test_the_types_on_disk_are_told(model: Path, tmp_path: Path, run: Run) -> None:
    bundle = load_bundle(model)
    bundle.model.encoder.bfloat16()  # with the embedding that all share
    save_bundle(bundle, tmp_path / "half")
    assert json.loads(run("inspect", tmp_path / "half", "--json"))["weight_types"] == ["bfloat16", "float32"]


def test_memory_that_torch_is_refused_is_one_line(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dragoman.bundle.build_model", lambda config: torch.empty(1 << 60, dtype=torch.uint8, device="cpu"))
    assert main(["inspect", str(model)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("dragoman: out of memory; ")
    assert err.count("\n") == 1


def test_what_looks_wrong_with_a_run(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    losses = [{"t": "train", "step": step, "loss": 5.0} for step in (1, 2, 3)]
    scores = [{"t": "eval", "step": step, "loss": 5.0, "bleu": 0.0} for step in (1, 2, 3)]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in losses + scores) + '{"t": "tr')
    record = {"status": "running", "error": "no room", "pairs": {"train": 8}, "dropped": {"train": {"empty side": 2, "too long": 0}}}
    (folder / "run.json").write_text(json.dumps(record))
    hours_later = time.time() + 2 * 3600
    monkeypatch.setattr(time, "time", lambda: hours_later)
    facts = json.loads(run("inspect", folder, "--json"))
    assert facts["model"] is None
    assert facts["step"] == 3
    faults = (
        *("no finished checkpoint", "1 line of log.jsonl is no record", "120 minutes", "did not fall"),
        *("BLEU on the validation text is 0.00", "it failed: no room", "2 of 10 train pairs were dropped: 2 empty side"),
    )
    for fault in faults:
        assert sum(fault in problem for problem in facts["problems"]) == 1, fault
    assert len(facts["problems"]) == len(faults)
