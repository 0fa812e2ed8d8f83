"""``dragoman train`` with one language code: what it says and leaves, and what it refuses in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.bundle import load_bundle
from dragoman.cli import main
from dragoman.config import Config, TrainingConfig
from dragoman.errors import UsageError
from dragoman.presets import PRESETS, count_parameters, resolve_config
from dragoman.training.log import RunLog
from dragoman.training.schedule import cosine_rate, linear_rate, rate_of
from text_runs import TINY_BERT, TINY_GPT, train_text, words
from training_runs import records


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "valid.txt").write_text(words(6, seed=9), encoding="utf-8")
    (folder / "train.txt").write_text(words(30), encoding="utf-8")
    return folder / "train.txt"


def test_a_run_says_and_keeps_what_it_is_made_of(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, more = tmp_path / "run", data.with_name("valid.txt")
    assert train_text(run, data, "--train", more, "--valid", more, "--max-steps", "10") == 0
    out, err = capfd.readouterr()
    texts = [path.read_text("utf-8") for path in (data, more)]
    count = sum(map(len, texts))
    assert out == ""
    assert err.startswith(f"aa  {count:,} characters, {count + 2:,} tokens  vocabulary ")
    assert f"an epoch: {count + 2:,} tokens in " in err
    assert "bits a character  sampled " in err
    assert f'dragoman generate {run} "PROMPT"' in err
    facts = json.loads((run / "run.json").read_bytes())
    assert facts["documents"] == {"train": 2, "valid": 1}
    assert facts["tokens"] == {"train": count + 2, "valid": len(texts[1]) + 1}
    assert facts["characters"] == {"train": count, "valid": len(texts[1])}
    assert "pairs" not in facts
    report = (run / "report.html").read_text("utf-8")
    assert "<h1>aa</h1>" in report
    assert all(heading in report for heading in ("bits a character", "sampled nll", "Loss at places by chance", "Tokens for training"))
    assert "target" not in load_bundle(run).config.data.target


def test_the_samples_are_of_the_same_places_at_each_evaluation(data: Path, tmp_path: Path) -> None:
    for base in (TINY_GPT, TINY_BERT):
        run = tmp_path / base["model.architecture"]
        assert train_text(run, data, "--valid", data.with_name("valid.txt"), "--quiet", "--max-steps", "10", base=base) == 0
        first, second = (record["samples"] for record in records(run, "eval"))
        assert [(each["source"], each["reference"]) for each in first] == [(each["source"], each["reference"]) for each in second]
        text = data.with_name("valid.txt").read_text("utf-8")
        shown = [line.replace("\n", " ") for line in (run / "samples/valid.source").read_text("utf-8").splitlines()]
        assert [each["source"].replace("\n", " ") for each in first] == shown
        assert len((run / "samples/step-000010.txt").read_text("utf-8").splitlines()) == len(first) == 3
        for each in first:
            if base is TINY_GPT:
                assert each["source"] + each["reference"] in text
                assert len({each["output"] for each in first}) == 3  # drawn by a seed of each place's own
            else:
                assert each["reference"] in text
                assert "<mask>" in each["source"]


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"data__weights": [2.0]}, "data.weights: not for a model with model.architecture=decoder-only"),
    ({"data__bpe_dropout": 0.1, "data__tokenizer": "bpe"}, "data.bpe_dropout: not for a model"),
    ({"training__shard": True}, "training.shard: not for a model"),
    ({"data__mask_probability": 0.3}, "data.mask_probability: not for a model"),
    ({"data__tokenizer": "whitespace"}, "data.tokenizer=whitespace has no entry for the end of a line; set data.documents=line"),
    ({"training__validation_stride": 13}, "training.validation_stride=13 would pass over text"),
    ({"training__validation_stride": 6}, "training.validation_stride=6: for evaluations, and there is no validation text; give --valid"),
    ({"training__best_by": "loss"}, "training.best_by=loss: for evaluations, and there is no validation text; give --valid PATH, or leave"),
    ({"training__batch_tokens": 11}, "training.batch_tokens=11 is less than a block of text, which has model.max_positions=12 tokens"),
    ({"training__minimum_rate": 0.001}, "minimum_rate=0.001 is for schedule='cosine' or 'linear' only"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSALS, ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_what_does_not_fit_is_refused(
    settings: dict[str, Any], sentence: str, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = {name: value for name, value in TINY_GPT.items() if name.replace(".", "__") not in settings}
    assert train_text(tmp_path / "run", data, base=chosen, **settings) == 2
    assert sentence in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_kind_and_languages_must_fit(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_text(tmp_path / "run", data, base={}) == 2
    assert "'aa' is not SOURCE-TARGET, and the model is encoder-decoder" in capfd.readouterr().err
    assert main(["train", "aa-bb", "--preset", "gpt-mini", "--train", str(data), "--out", str(tmp_path / "run")]) == 2
    assert "aa-bb: a model that is decoder-only learns from text in one language; give one code, such as aa" in capfd.readouterr().err
    assert train_text(tmp_path / "run", data, base=TINY_BERT, training__validation_stride=2) == 2
    assert "training.validation_stride: not for a model with model.architecture=encoder-only" in capfd.readouterr().err
    assert train_text(tmp_path / "run", data, base=TINY_BERT, model__pooler=True) == 2
    assert "masked text trains no pooler" in capfd.readouterr().err
    assert train_text(tmp_path / "run", data.with_name("none.txt")) == 1
    assert "none.txt: no such file" in capfd.readouterr().err
    with pytest.raises(UsageError, match=r"minimum_rate=0.2 is above learning_rate=0.1"):
        Config().with_values(training={"schedule": "cosine", "minimum_rate": 0.2, "learning_rate": 0.1})


def test_a_dry_run_measures_and_leaves_nothing(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_text(tmp_path / "run", data, "--dry-run", training__batch_tokens="auto") == 0
    out, _ = capfd.readouterr()
    assert "batches: at most 12 tokens a side" in out  # an epoch keeps its 50 updates
    assert "measured on 8 updates" in out
    assert not (tmp_path / "run").exists()


def test_schedules_fall_to_the_minimum_rate() -> None:
    training = (
        Config()
        .with_values(training={"schedule": "cosine", "learning_rate": 1e-3, "minimum_rate": 1e-4, "warmup_steps": 100, "max_steps": 2000})
        .training
    )
    rate = rate_of(training, d_model=128)
    assert [rate(step) for step in (50, 100, 1050, 2000, 3000)] == pytest.approx([5e-4, 1e-3, 5.5e-4, 1e-4, 1e-4])
    shape = {"peak": 1.0, "warmup_steps": 10, "max_steps": 110}
    assert [linear_rate(step, **shape, least=0.2) for step in (5, 10, 60, 110)] == pytest.approx([0.5, 1.0, 0.6, 0.2])
    assert [cosine_rate(step, **shape, least=0.0) for step in (5, 60, 110)] == pytest.approx([0.5, 0.5, 0.0])
    assert TrainingConfig().minimum_rate == 0


COUNTS = {  # with the vocabularies of their publishers, and for nanoGPT the four special tokens beside the 65 characters
    "gpt2": (50_257, 124_439_808),
    "nano-cpu": (69, 795_904 + 8_192 + 4 * 128),
    "nano-gpu": (69, 10_646_784 + 98_304 + 4 * 384),
}


@pytest.mark.parametrize("name", COUNTS)
def test_presets_have_the_published_sizes(name: str) -> None:
    vocabulary, parameters = COUNTS[name]
    config = resolve_config(name, flags={"model": {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary}})
    assert count_parameters(config.model) == parameters


def test_nano_presets_train_as_published() -> None:
    for name, (steps, blocks, context) in {"nano-cpu": (2000, 12, 64), "nano-gpu": (5000, 64, 256)}.items():
        training, model = resolve_config(name).training, resolve_config(name).model
        assert (training.max_steps, training.batch_budget, model.max_positions) == (steps, blocks * context, context)
        assert (training.learning_rate, training.minimum_rate, training.warmup_steps, training.schedule) == (1e-3, 1e-4, 100, "cosine")
        assert (training.optimizer, training.adam_beta1, training.adam_beta2, training.weight_decay) == ("adamw", 0.9, 0.99, 0.1)
        assert (training.clip_norm, training.label_smoothing, training.best_by) == (1.0, 0.0, "loss")
        assert [model.attention_bias, model.feed_forward_bias, model.norm_bias, model.output_bias] == [False] * 4
    assert {preset for preset in PRESETS if resolve_config(preset).model.single} == {"gpt-mini", "bert-mini", *COUNTS}
    for name in ("gpt-mini", "bert-mini"):
        assert f"{count_parameters(_sized(name)) / 1e6:.1f} million" in PRESETS[name].summary


def _sized(name: str) -> Any:
    size = resolve_config(name).data.vocabulary_size
    return resolve_config(name, flags={"model": {"source_vocabulary": size, "target_vocabulary": size}}).model


def test_the_estimate_without_an_error_is_shown_alone(tmp_path: Path) -> None:
    record = {"step": 1, "loss": 1.0, "ppl": 2.0, "seconds": 0.1, "sampled": 1.5}
    shown: list[str] = []
    log = RunLog(tmp_path, console=None, max_steps=1)
    log.say = lambda *lines: shown.extend(lines)  # type: ignore[method-assign]
    log.evaluation(record)
    log.evaluation(record | {"sampled_error": 0.25, "bits_per_character": 1.25})
    assert "sampled 1.500  0.1 s" in shown[0]
    assert "1.250 bits a character  sampled 1.500 ± 0.250" in shown[1]


def test_the_page_has_the_loss_that_the_benchmark_measured() -> None:
    project = Path(__file__).parents[2]
    measured = json.loads((project / "benchmarks/shakespeare.cpu.json").read_text("utf-8"))
    page, last = (project / "docs/language-models.md").read_text("utf-8"), measured["changed"]["last"]
    assert last["nll"] < measured["published_loss"] == 1.88
    assert last["step"] == 2000
    assert f"is {last['nll']:.3f} after 2,000 updates, and the estimate {last['sampled']:.3f} ± {last['sampled_error']:.3f}" in page
