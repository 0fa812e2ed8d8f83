"""Settings: where values come from, what is refused and in which words, and that TOML keeps everything."""

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dragoman.config import Config, Settings
from dragoman.errors import UsageError
from dragoman.presets import PRESETS, resolve_config
from dragoman.toml import parse_overrides, to_toml


def refusal(**sources: Any) -> str:
    """The one sentence that `resolve_config` answers with."""
    with pytest.raises(UsageError) as caught:
        resolve_config(**sources)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "settings.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# Where values come from


def test_the_defaults_are_the_papers_base_model_and_recipe() -> None:
    config = resolve_config()
    model, training, decoding = config.model, config.training, config.decoding
    assert (model.d_model, model.d_ff, model.n_heads, model.key_width, model.value_width) == (512, 2048, 8, 64, 64)
    assert (model.encoder_layers, model.decoder_layers, model.dropout, model.attention_dropout, model.activation_dropout) == (
        6,
        6,
        0.1,
        0,
        0,
    )
    assert (model.norm_place, model.norm_epsilon, model.positions, model.tie, model.attention_bias) == (
        "post",
        1e-6,
        "sinusoidal",
        "all",
        True,
    )
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon, training.clip_norm) == (0.9, 0.98, 1e-9, 0)
    assert (training.schedule, training.warmup_steps, training.factor, training.max_steps) == ("paper", 4000, 1, 100_000)
    assert (training.label_smoothing, training.batch_tokens) == (0.1, 25_000)
    assert (decoding.beam, decoding.alpha, decoding.extra_length) == (4, 0.6, 50)
    assert config == Config()


def test_later_sources_win_preset_then_file_then_overrides_then_flags(tmp_path: Path) -> None:
    path = written(tmp_path, "preset = 'base'\n[training]\nkeep = 2\nseed = 2\npatience = 2")
    config = resolve_config("big", path, ["training.seed=3", "training.patience=3"], {"training": {"patience": 4}})
    training = config.training
    assert (config.preset, config.model.d_model) == ("big", 1024)
    assert (training.max_steps, training.keep, training.seed, training.patience) == (300_000, 2, 3, 4)


def test_a_file_may_name_its_preset_and_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    config = resolve_config(path=written(tmp_path, "\ufeffpreset = 'tiny'\r\n[model]\r\ndropout = 0.2\r\n"))
    assert (config.preset, config.model.d_model, config.model.dropout) == ("tiny", 128, 0.2)


@pytest.mark.parametrize(
    ("override", "group", "key", "value"),
    [
        ("training.warmup_steps=400", "training", "warmup_steps", 400),
        ("training.adam_epsilon = 1e-8", "training", "adam_epsilon", 1e-8),
        ("data.joint_vocabulary=false", "data", "joint_vocabulary", False),
        ("data.source=no", "data", "source", "no"),
        ('data.source="12"', "data", "source", "12"),
        ("data.train=a=b.tsv", "data", "train", "a=b.tsv"),
        ("data.train=my data/x#1", "data", "train", "my data/x#1"),
        ('data.train=["a", "b"]', "data", "train", ["a", "b"]),
        ("data.joiner=", "data", "joiner", ""),
        ("model.tie= none ", "model", "tie", "none"),
    ],
)
def test_an_override_is_toml_or_else_plain_text(override: str, group: str, key: str, value: object) -> None:
    assert parse_overrides([override]) == {group: {key: value}}


def test_the_last_of_equal_overrides_wins_and_one_path_is_a_list_of_one() -> None:
    config = resolve_config(overrides=["training.seed=3", "data.train=a", "training.seed=4"])
    assert (config.training.seed, config.data.train) == (4, ("a",))


# What is refused


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("model.d_modle=64", "unknown setting model.d_modle; the nearest is model.d_model"),
        ("training.warmup=1", "unknown setting training.warmup; the nearest is training.warmup_steps"),
        ("trainning.seed=1", "unknown setting trainning; the nearest is training"),
        ("decoding.Beam=1", "unknown setting decoding.Beam; the nearest is decoding.beam"),
    ],
)
def test_an_unknown_setting_names_the_nearest(override: str, nearest: str, tmp_path: Path) -> None:
    assert refusal(overrides=[override]) == f"--set: {nearest}"
    group, key = override.partition("=")[0].split(".")
    path = written(tmp_path, f"[{group}]\n{key} = 1")
    assert refusal(path=path) == f"{path}: {nearest}"


@pytest.mark.parametrize(("name", "meant"), [("tniy", "; did you mean tiny?"), ("", ""), ("BASE", "; did you mean base?")])
def test_an_unknown_preset_names_the_nearest_and_the_known(name: str, meant: str, tmp_path: Path) -> None:
    for sources in ({"preset": name}, {"path": written(tmp_path, f"preset = '{name}'")}):
        assert refusal(**sources).startswith(f"unknown preset {name!r}{meant}; known: base, ")


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("training.warmup_steps=0", "training.warmup_steps=0: input should be greater than 0"),
        ("model.d_model=-2", "model.d_model=-2: input should be greater than 0"),
        ("model.n_heads=0", "model.n_heads=0: input should be greater than 0"),
        ("model.d_model=64.5", "model.d_model=64.5: input should be a valid integer"),
        ("model.dropout=1", "model.dropout=1: input should be less than 1"),
        ("model.dropout=-0.1", "model.dropout=-0.1: input should be greater than or equal to 0"),
        ("training.label_smoothing=nan", "training.label_smoothing=nan: input should be a finite number"),
        ("training.learning_rate=inf", "training.learning_rate=inf: input should be a finite number"),
        ("training.batch_tokens=many", "training.batch_tokens='many': input should be a valid integer"),
        ("data.tokenizer=bep", "data.tokenizer='bep': input should be 'bpe', 'whitespace', 'characters' or 'foreign'"),
        ("model.d_model=511", "d_model=511 must be even for sinusoidal positions"),
        ("model.n_heads=7", "d_model=512 does not divide by n_heads=7; change one, or give both d_k and d_v"),
        (
            "model.source_vocabulary=90",
            "tie='all' needs one vocabulary, but source_vocabulary=90 and target_vocabulary=40960; set tie='decoder'",
        ),
        ("model.pad=40960", "pad=40960 lies outside the vocabulary"),
        ("data.joiner=@@", "joiner is for tokenizer='whitespace' only; leave it empty for bpe"),
        ("model=3", "expected GROUP.KEY=VALUE, such as training.warmup_steps=400"),
        ("model.d_model", "expected GROUP.KEY=VALUE, such as training.warmup_steps=400"),
        ("model.=3", "expected GROUP.KEY=VALUE, such as training.warmup_steps=400"),
    ],
)
def test_a_wrong_value_is_refused_with_place_and_reason(override: str, complaint: str) -> None:
    message = refusal(overrides=[override])
    assert message.startswith(("--set", "settings: "))  # what must fit together is judged when all settings are known
    assert complaint in message


def test_what_must_fit_together_may_come_from_two_places(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[data]\njoiner = "@@"\n[model]\nn_heads = 6\n')
    config = resolve_config(None, file, ["data.tokenizer=whitespace"], {"model": {"d_model": 96}})
    assert (config.data.joiner, config.model.n_heads) == ("@@", 6)


@pytest.mark.parametrize("override", ["training.warmup_steps=true", 'model.d_model="64"', "data.joint_vocabulary=no", "training.seed=1.0"])
def test_a_value_of_another_type_is_refused_and_not_converted(override: str) -> None:
    assert "input should be a valid" in refusal(overrides=[override])


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (f"training.batch_tokens={10**22}", "input should be less than 2^63"),
        (f"training.warmup_steps={'9' * 5000}", "input should be a valid integer"),
        ("model.encoder_layers=100000000", "input should be less than or equal to 1000"),
        ("data.vocabulary_size=9000000000000000000", "input should be less than or equal to 10000000"),
        (f"model.d_ff={'[' * 20_000}", "input should be a valid integer"),
        ("data.source=a/b", "string should match pattern"),
        ('data.train=["a\udcff"]', "is not UTF-8"),
    ],
)
def test_what_no_machine_can_hold_is_refused_at_once(override: str, complaint: str) -> None:
    assert complaint in refusal(overrides=[override])


@pytest.mark.parametrize(
    ("override", "right"),
    [
        ("data.tags=[de,fr]", """'data.tags=["de","fr"]'"""),
        ("data.tags=[de]", """'data.tags=["de"]'"""),
        ("data.valid_tags=['de', fr]", """'data.valid_tags=["de","fr"]'"""),
        ("data.train=[my/a, my/b]", """'data.train=["my/a","my/b"]'"""),
        ("data.valid=[a,]", """'data.valid=["a"]'"""),
        ("data.alignments=[,]", """'data.alignments=["first","second"]'"""),
        ("data.weights=[one]", "'data.weights=[1,3]'"),
    ],
)
def test_a_list_without_quotes_is_refused_with_the_right_one(override: str, right: str) -> None:
    assert refusal(overrides=[override]) == f"--set {override}: not a list that can be read; write --set {right}"
    assert "not a list" not in refusal(overrides=[shlex.split(right)[0], "training.nope=1"])


def test_a_text_where_a_list_should_be_names_the_list(tmp_path: Path) -> None:
    message = "data.tags.0='de,fr': string should match pattern '^[A-Za-z0-9_-]+$'; write 'data.tags=[\"de\",\"fr\"]'"
    assert refusal(overrides=["data.tags=de,fr"]) == f"--set: {message}"
    path = written(tmp_path, "[data]\ntags = 'de,fr'")
    assert refusal(path=path) == f"{path}: {message}"
    assert refusal(overrides=["data.tags=de, fr,"]).endswith("""; write 'data.tags=["de","fr"]'""")
    assert refusal(overrides=["data.train=true"]).endswith("""input should be a list; write 'data.train=["first","second"]'""")
    assert resolve_config(overrides=["data.train=a.en,a.de", "training.start_from=[x]"]).data.train == ("a.en,a.de",)


def test_one_language_is_no_pair() -> None:
    assert "source and target are both 'de'" in refusal(overrides=["data.source=de", "data.target=de"])


def test_all_that_does_not_fit_together_is_listed() -> None:
    message = refusal(overrides=["model.d_model=511", "model.pad=50000"])
    for part in ("d_model=511 must be even", "does not divide by n_heads=8", "pad=50000"):
        assert part in message


@pytest.mark.parametrize("value", ["3", "['base']", "{}"])
def test_a_preset_that_is_no_text_is_unknown(value: str, tmp_path: Path) -> None:
    assert "unknown preset" in refusal(path=written(tmp_path, f"preset = {value}"))


def test_heads_need_not_divide_when_both_widths_are_given() -> None:
    model = resolve_config(overrides=["model.n_heads=7", "model.d_k=60", "model.d_v=70"]).model
    assert (model.key_width, model.value_width) == (60, 70)
    assert "d_model=512 does not divide by n_heads=7" in refusal(overrides=["model.n_heads=7", "model.d_k=60"])


def test_every_wrong_field_is_named_at_once() -> None:
    message = refusal(overrides=["model.d_model=-1", "model.dropout=2", "training.nope=3", "data.joiner=x", "decoding.beam=0"])
    for part in ("model.d_model=-1", "model.dropout=2", "training.nope", "joiner is for", "decoding.beam=0"):
        assert part in message


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[model]\nd_model = 64\nd_model = 32", "not a TOML file"),
        ("model: d_model", "not a TOML file"),
        (b"preset = '\xff'", "not a TOML file"),
        ("model = 3", "model=3: input should be a valid dictionary"),
        ("seed = 3", "unknown setting seed; the nearest is "),
        ("[model.d_model]\nwidth = 64", "model.d_model={'width': 64}: input should be a valid integer"),
        ("[data]\ntrain = [1]", "data.train.0=1: input should be a valid string"),
    ],
)
def test_a_wrong_file_is_named(content: str | bytes, complaint: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    message = refusal(path=path)
    assert message.startswith(f"{path}: ")
    assert complaint in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert refusal(path=missing) == f"{missing}: cannot read the settings file: No such file or directory; check its name"
    assert refusal(path=tmp_path) == f"{tmp_path}: cannot read the settings file: Is a directory; give a file, for this is a folder"


def test_settings_are_frozen_and_changed_by_checked_copies() -> None:
    config = Config()
    with pytest.raises(ValidationError, match="frozen"):
        config.model.d_model = 4  # type: ignore[misc]
    assert config.with_values(model={"d_model": 64}).model.d_model == 64
    assert config.model.d_model == 512
    with pytest.raises(UsageError, match=r"the nearest is model\.d_ff"):
        config.with_values(model={"d_f": 64})


# TOML

ODD = [
    "",
    'a "quoted" \\ word',
    "tab\tnew\nline\rreturn",
    "\x00\x1f\x7f\x85",
    "\u2028\u2029\ufeff",
    "Ελλάδα 🐎",
    "# not a comment",
    "no",
    "''' \"\"\"",
]


def reread(config: Config, folder: Path) -> Config:
    return resolve_config(path=written(folder, to_toml(config)))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_resolved_settings_of_a_preset_survive_toml(preset: str, tmp_path: Path) -> None:
    config = resolve_config(preset)
    assert reread(config, tmp_path) == config


@pytest.mark.parametrize("text", ODD)
def test_odd_text_survives_toml(text: str, tmp_path: Path) -> None:
    config = Config().with_values(data={"train": (text, "plain", text), "tokenizer": "whitespace", "joiner": text})
    assert reread(config, tmp_path) == config


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    small=st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True),
    number=st.integers(0, 2**63 - 1),
)
def test_any_text_and_number_survive_toml(text: str, small: float, number: int) -> None:
    values = {
        "data": {"joiner": text, "tokenizer": "whitespace", "valid": (text,)},
        "training": {"adam_epsilon": small, "seed": number, "max_minutes": small},
    }
    nested = tomllib.loads(to_toml(Config().with_values(**values)))
    assert Config().with_values(**{group: nested[group] for group in values}) == Config().with_values(**values)


def test_every_field_is_explained_by_a_sentence_above_it() -> None:
    lines = to_toml(resolve_config(overrides=["model.d_k=64", "model.d_v=64", "training.max_minutes=1"])).splitlines()
    fields = {
        name: field
        for group in Config().__dict__.values()
        if isinstance(group, Settings)
        for name, field in type(group).model_fields.items()
    }
    for name, field in fields.items():
        assert field.description is not None
        assert field.description.endswith(".")
        (place,) = (index for index, line in enumerate(lines) if line.startswith(f"{name} = "))
        assert lines[place - 1] == f"# {field.description}"
