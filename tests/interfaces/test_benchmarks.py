"""The scripts of benchmarks/ that need no long measurement: what they count, and that the pages say what they print."""

import json
import re
import runpy
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dragoman.explain.cost import EXAMPLE, cost_facts, readable
from dragoman.model.attention import ScaledDotProductAttention
from dragoman.model.build import build_model
from dragoman.presets import PRESETS, count_parameters, resolve_config
from dragoman.training.loss import smoothed_cross_entropy

PROJECT = Path(__file__).parents[2]


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(PROJECT / "benchmarks" / f"{name}.py"), run_name=name)


def run_script(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
    script(name)["main"]()


def test_the_page_has_the_tables_that_the_script_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_script("scaling_table", monkeypatch)
    tables = capsys.readouterr().out.strip().split("\n\n")
    page = (PROJECT / "docs/scaling.md").read_text("utf-8")
    assert len(tables) == 4
    assert [table for table in tables if f"\n\n{table}\n" not in page] == []


def test_the_page_has_the_measurements_of_the_data_path() -> None:
    page = (PROJECT / "docs/scaling.md").read_text("utf-8")
    measured = json.loads((PROJECT / "benchmarks/data_path.json").read_text("utf-8"))
    spelled = measured["bpe_dropout"]
    for shown in (
        f"{measured['collated_tokens_a_second'] / 1e6:.1f} million", f"{measured['seconds_to_plan_an_epoch']:.2f} s",
        f"{measured['pairs']:,} pairs",
        f"{spelled['collated_tokens_a_second'] / 1e6:.1f} million", f"{spelled['collated_tokens_a_second_without'] / 1e6:.1f} (",
        f"{spelled['seconds_to_spell_an_epoch']:.2f} s for {spelled['tokens_an_epoch'] / 1e6:.1f} million",
        f"in {spelled['seconds_to_find_the_words_once']:.0f} s",
    ):  # fmt: skip
        assert shown in page, shown


def test_the_page_has_the_measurements_of_compiling() -> None:
    page = (PROJECT / "docs/training.md").read_text("utf-8")
    for preset, found in json.loads((PROJECT / "benchmarks/compile.json").read_text("utf-8"))["presets"].items():
        ratios, seconds = (
            [f"{found[precision][name]:{form}}" for precision in ("fp32", "bf16")]
            for name, form in (("compiled_over_plain", ".2f"), ("compiling_seconds", "d"))
        )
        assert f"| `{preset}` | {' | '.join(ratios)} | {' s | '.join(seconds)} s |" in page


def test_the_page_has_the_measurements_of_threads_side_by_side() -> None:
    page = " ".join((PROJECT / "docs/translating.md").read_text("utf-8").split())
    faster = json.loads((PROJECT / "benchmarks/side_by_side.json").read_text("utf-8"))["faster"]
    sentences = {"trained": "Multi30k is {} times as fast with a beam of 5 and {} greedily", "base": "`base` {} and {} times"}
    for model, named in sentences.items():
        five, one = (f"{faster[model][f'beam {beam}']:.2f}" for beam in (5, 1))
        assert named.format(five, one) in page, model


def test_the_page_has_the_measurements_of_a_server() -> None:
    page = (PROJECT / "docs/serving.md").read_text("utf-8")
    latency, load, soak, contract = (
        json.loads((PROJECT / f"benchmarks/serve_{name}.json").read_text("utf-8")) for name in ("latency", "load", "soak", "contract")
    )
    start, overhead, once, answers = latency["start"], latency["overhead"], latency["latency"], load["overload"]["answers"]
    for shown in (
        f"| {start['seconds_to_healthy']:.1f} s |",
        f"| {start['megabytes']:.0f} MB; Python with PyTorch and nothing else has {start['megabytes_after_importing_torch']:.0f} MB |",
        f"| {overhead['requests_a_second']:,} requests a second, 99 % within {overhead['p99_milliseconds']:.1f} ms |",
        f"| {once['served']:.1f} ms; the same call without a server {once['alone']:.1f} ms |",
        f"| {once['first_step_served']:.1f} ms; without a server {once['first_step_alone']:.1f} ms |",
        f"| {load['throughput']['to_batch_1']:.1f} times those of `--batch 1`; {load['throughput']['to_offline']:.2f} times those of",
        f"translate {load['throughput']['two_servers_to_one']:.1f} times as many sentences for 16 clients as one does",
        f"are translated {load['throughput']['16_at_a_time_to_all_at_once']:.2f} times as fast as all at once",
        f"| 95 % within {load['fairness']['p95_beside_lists_to_alone']:.1f} times",
        f"| {answers['200']:,} answers, {answers['503']:,} refusals",
        f"{soak['cut'] + soak['streams_cut']:,} requests cut off | memory {soak['memory_growth']:.1%} more".replace("%", " %"),
        f"| {sum(int(run['cases'].split()[0]) for run in contract['runs']):,} requests that schemathesis",
    ):
        assert shown in page, shown
    assert {run["status"] for run in contract["runs"]} == {0}


def test_the_page_has_the_memory_of_whole_files() -> None:
    page = (PROJECT / "docs/files.md").read_text("utf-8")
    found = json.loads((PROJECT / "benchmarks/translate_start.json").read_text("utf-8"))
    few, more, most = (found["memory"][f"{size:,} lines"] for size in (10_000, 100_000, 1_000_000))
    assert [each["lines"] for each in (few, more, most)] == [10_000, 100_000, 1_000_000]
    shown = f"{few['megabytes']:.0f} MB for 10,000 lines, {more['megabytes']:.0f} for 100,000 and {most['megabytes']:.0f} for a million"
    assert shown in page.replace("\n", " ")
    assert f"{found['seconds_to_the_first_line']:.1f} s" in page


def test_the_page_has_the_measurements_of_parsing() -> None:
    page = (PROJECT / "docs/parsing.md").read_text("utf-8")
    models = json.loads((PROJECT / "benchmarks/parsing.json").read_text("utf-8"))["models"]
    for name, found in models.items():
        for each in found:
            scores = f"{each['f1_with_errors']:.2f} | {each['f1']:.2f} | {each['sentences_without_a_tree']}"
            row = f"| {name.split()[0]} | {each['beam']} | {'yes' if each['only_trees'] else 'no'} | {scores} |"
            assert row in page, row


def test_the_page_of_budgets_has_what_the_sizes_and_the_measurements_say() -> None:
    """docs/choosing.md: the row of each preset that it names, the speeds, and what came of twenty minutes."""
    page = (PROJECT / "docs/choosing.md").read_text("utf-8")
    names = re.findall(r"^\| `([\w-]+)` \| [\d,]{7,} \|", page, re.M)
    assert {"tiny", "small", "base", "big"} <= set(names)
    for name in names:
        entries = PRESETS[name].changes.get("data", {}).get("vocabulary_size", 40_960)
        model = resolve_config(name, flags={"model": {"source_vocabulary": entries, "target_vocabulary": entries}}).model
        facts, tokens = cost_facts(model), EXAMPLE if model.single else 2 * EXAMPLE
        kept, work = facts["bytes"], readable(facts["flops"]["training"] / tokens, "FLOP")
        memory = f"{readable(kept['weights'], 'B')} | {readable(kept['training'], 'B')}"
        row = f"| `{name}` | {count_parameters(model):,} | {entries:,} | {memory} | {work} |"
        assert row in page, row
    for name in ("tiny", "small", "base"):
        measured = json.loads((PROJECT / f"benchmarks/training_speed.{name}.json").read_text("utf-8"))["contenders"]
        speeds = " | ".join(f"{measured[f'dragoman-{kind}']['tokens_a_second']:,}" for kind in ("fp32", "bf16"))
        row = f"| `{name}` | {speeds} | {measured['dragoman-fp32']['peak_memory_bytes']['mem'] / 1e9:.2f} GB |"
        assert row in page, row
    assert (
        f"{json.loads((PROJECT / 'benchmarks/multi30k.raw.json').read_text('utf-8'))['bleu']['test 2016, best, beam 4']['mean']:.2f} BLEU"
        in page
    )
    for result in ("multi30k.bpe", "multi30k.muon", "multi30k.long", "multi30k.rdrop", "distillation"):
        facts = json.loads((PROJECT / f"benchmarks/{result}.json").read_text("utf-8"))
        figures = [
            f"{facts['bleu'][f'test {year}, {search}']['mean']:.2f}"
            for year, search in product(("2016", "2017"), ("best, beam 4", "averaged, beam 5 α 1"))
        ]
        row = next(line for line in page.splitlines() if f"`{result}.json`" in line)
        assert row.endswith(f"| {' | '.join(figures)} | `{result}.json` |"), row
        for setting in ("dropout", "rdrop"):
            told = re.search(rf"{setting}=([\d.]+)", facts["command"])
            assert told is None or {"dropout": "dropout ", "rdrop": "R-Drop "}[setting] + told[1] in row
        assert f"{facts['seeds']['1']['steps']:,} updates" in row
        assert ("muon" in facts["command"]) == ("Muon" in row)
        assert ("three seeds" in row) == (len(facts["seeds"]) == 3)
    regularisers = json.loads((PROJECT / "benchmarks/regularisers.json").read_text("utf-8"))
    assert f"{regularisers['steps']:,} updates" in page
    for change, found in regularisers["models"].items():
        name = "nothing" if change == "recipe" else change
        assert f"| {name} | {found['BLEU best, greedy']:.2f} | {found['BLEU best, beam 4']:.2f} |" in page, change
    large = json.loads((PROJECT / "benchmarks/large_corpus.json").read_text("utf-8"))["pairs"]
    for pairs, found in large.items():
        seconds, memory = f"{found['seconds_to_first_step']:.0f} s", f"{found['peak_resident_bytes'] / 1e9:.2f} GB"
        assert f"| {int(pairs):,} | {seconds} | {memory} | {found['to_a_step_with_the_fewest']:.2f} |" in page, pairs
    tatoeba = json.loads((PROJECT / "benchmarks/tatoeba.json").read_text("utf-8"))
    bleu, chrf = (tatoeba[metric]["best, beam 4"] for metric in ("bleu", "chrf"))
    assert f"{tatoeba['pairs']['train']:,} pairs" in page
    assert f"{bleu:.2f} BLEU (cased, `tok:13a`) and {chrf:.2f} chrF" in page


def test_its_arguments_are_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_script("scaling_table", monkeypatch, "--peak", "100", "--share", "0.1", "1")
    hours = next(line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| big, 1 × GPU"))
    tenth, all_of_it = (float(cell.split()[0]) * {"days": 24, "h": 1}[cell.split()[1]] for cell in hours[1:3])
    assert tenth == pytest.approx(10 * all_of_it, rel=0.02)
    table = script("scaling_table")
    assert all_of_it == pytest.approx(table["whole"]("big", 30.0) / 1e14 / 3600, rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [{}, {"d_k": 16, "d_v": 8}, {"kv_heads": 2}, {"activation": "swiglu"}, {"encoder_layers": 5}],
    ids=lambda each: str(list(each)),
)
def test_operations_are_those_that_pytorch_counts(changes: dict[str, Any]) -> None:
    """For as many source as target tokens, none of them padding; attention by the equation, for the counter does not know every kernel."""
    sizes = {"d_model": 64, "d_ff": 96, "n_heads": 4, "encoder_layers": 3, "decoder_layers": 2, "source_vocabulary": 50}
    config = resolve_config().with_values(model={**sizes, "target_vocabulary": 50, "dropout": 0.0, **changes}).model
    model = build_model(config).train()
    for layer in model.modules():
        for name, child in list(layer.named_children()):
            if type(child).__name__ == "FusedAttention":
                setattr(layer, name, ScaledDotProductAttention())
    ids = torch.randint(4, 50, (2, 12))
    with FlopCounterMode(display=False) as counter:
        logits = model(ids, ids)
        smoothed_cross_entropy(logits.flatten(0, 1), ids.flatten(), epsilon=0.1).backward()
    products, attention = script("scaling_table")["operations_of_pair"](config, 12)
    assert counter.get_total_flops() == pytest.approx(2 * (products + attention), rel=0.03)


def test_the_data_path_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = ("--pairs", "2000", "--batches", "3", "--batch-tokens", "2000", "--spelled-pairs", "300")
    run_script("data_path", monkeypatch, *small, "--output", tmp_path / "result.json")
    facts = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert facts == json.loads(capsys.readouterr().out)
    assert facts["tokens_an_epoch"] == pytest.approx(2 * 2000 * 30, rel=0.1)
    assert facts["collated_tokens_a_second"] > 0
    assert facts["bpe_dropout"]["tokens_an_epoch"] > 0


def test_the_speed_of_several_presets_in_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = ("--steps", "1", "--rounds", "2", "--warm", "1", "--batch-tokens", "200", "--threads", "1")
    few += ("--vocabulary", "60", "--pairs", "200")
    few += ("--minutes", "1e-9", "--contenders", "dragoman-fp32", "--output", str(tmp_path / "speed.json"))
    run_script("training_speed", monkeypatch, "--preset", "tiny", "small", *few)
    facts = json.loads((tmp_path / "speed.json").read_text("utf-8"))
    assert facts == json.loads(capsys.readouterr().out)
    assert list(facts) == ["tiny", "small"]
    for found in facts.values():
        assert list(found["contenders"]) == ["dragoman-fp32"]
        assert len(found["contenders"]["dragoman-fp32"]["rounds"]) == 1  # no second one begins after the minutes
        assert found["contenders"]["dragoman-fp32"]["tokens_a_second"] > 0
        assert found["contenders"]["dragoman-fp32"]["peak_memory_bytes"]
        assert found["matrix_products_gflops"].keys() == {"fp32", "bf16"}
        assert found["batch_tokens"] == 200
