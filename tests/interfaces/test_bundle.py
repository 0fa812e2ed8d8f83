"""The bundle: what is written comes back bit by bit, and every fault of a damaged or foreign folder is named at once."""

import json
import logging
import os
import pickle
import re
import shutil
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman import files
from dragoman.bundle import FORMAT_VERSION, Bundle, load_bundle, mark_checkpoint, resolve_model, save_bundle
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError, UsageError
from dragoman.model.build import build_model
from dragoman.presets import count_parameters
from training_runs import WORDS, same_bits

SIZES = {"d_model": 8, "d_ff": 12, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.1}
WEIGHT = "decoder.layers.1.feed_forward"


def make_bundle(*, joint: bool = True, **model: Any) -> Bundle:
    """Random weights over ten words, or over ten and six."""
    source = Tokenizer.train([" ".join(WORDS[:10])], kind="whitespace", vocabulary_size=50)
    target = source if joint else Tokenizer.train([" ".join(WORDS[10:16])], kind="whitespace", vocabulary_size=50)
    sizes = {"source_vocabulary": len(source), "target_vocabulary": len(target), "tie": "all" if joint else "decoder"}
    config = Config().with_values(
        model=SIZES | sizes | model, data={"source": "aa", "target": "bb", "tokenizer": "whitespace", "joint_vocabulary": joint}
    )
    return Bundle(config, build_model(config.model, seed=5), source, target, {"step": 7, "note": "ü"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_bundle(make_bundle(), tmp_path / "bundle")
    return tmp_path / "bundle"


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the document in config.json."""
    document = json.loads((folder / "config.json").read_text("utf-8"))
    change(document)
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")


def refused(folder: Path, *parts: str) -> str:
    """Loading fails with exit status 1 and one sentence that names the folder and has all these parts."""
    with pytest.raises(DragomanError) as caught:
        load_bundle(folder)
    message = str(caught.value)
    assert not isinstance(caught.value, UsageError)
    assert "\n" not in message
    for part in (str(folder), *parts):
        assert part in message
    return message


@pytest.mark.parametrize(
    "bundle",
    [
        make_bundle(),
        make_bundle(tie="decoder"),
        make_bundle(tie="none"),
        make_bundle(joint=False),
        make_bundle(joint=False, tie="none", positions="learned", norm_place="pre", attention_bias=False, d_k=3, d_v=5),
        make_bundle(positions="sinusoidal-concat", max_positions=9),
        make_bundle(positions="rotary", activation="swiglu", norm="rms", norm_place="deepnorm", kv_heads=1, qk_norm=True),
    ],
    ids=["all", "decoder", "none", "separate", "departures", "concat", "rotary"],
)
def test_a_round_trip_is_bit_equal(bundle: Bundle, tmp_path: Path) -> None:
    save_bundle(bundle, tmp_path / "out")
    found = load_bundle(tmp_path / "out")
    assert (found.config, dict(found.info)) == (bundle.config, dict(bundle.info))
    assert same_bits(dict(found.model.named_parameters()), dict(bundle.model.named_parameters()))
    assert not found.model.training
    assert all(weight.requires_grad for weight in found.model.parameters())
    tokens = torch.tensor([[4, 7, 2], [5, 2, 0]])
    mask = tokens != 0
    assert torch.equal(found.model(tokens, tokens, mask), bundle.model.eval()(tokens, tokens, mask))
    assert (found.source_tokenizer.fingerprint, found.target_tokenizer.fingerprint) == (
        bundle.source_tokenizer.fingerprint,
        bundle.target_tokenizer.fingerprint,
    )


@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_shared_weights_are_stored_once_and_shared_again(tie: str, matrices: int, tmp_path: Path) -> None:
    bundle = make_bundle(tie=tie)
    save_bundle(bundle, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    rows = len(bundle.source_tokenizer)
    assert sum(weight.shape == (rows, 8) for weight in stored.values()) == matrices
    assert sum(weight.numel() for weight in stored.values()) == count_parameters(bundle.config.model)
    model = load_bundle(tmp_path / "out").model
    assert (model.output.weight is model.decoder.embedding.weight) == (tie != "none")
    assert (model.encoder.embedding.weight is model.decoder.embedding.weight) == (tie == "all")


def test_a_joint_vocabulary_is_one_file_and_one_object_and_separate_ones_are_two(tmp_path: Path) -> None:
    for joint, names in ((True, {"tokenizer.json"}), (False, {"tokenizer.source.json", "tokenizer.target.json"})):
        out = tmp_path / str(joint)
        save_bundle(make_bundle(joint=joint), out)
        assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors", "README.md"} | names
        found = load_bundle(out)
        assert (found.source_tokenizer is found.target_tokenizer) == joint
        assert len(found.target_tokenizer) == (14 if joint else 10)


def test_the_document_and_the_card_say_what_it_is(folder: Path) -> None:
    document = json.loads((folder / "config.json").read_text("utf-8"))
    assert document["format_version"] == FORMAT_VERSION
    assert document["architecture"] == "transformer"
    assert document["config"]["model"]["d_ff"] == 12
    assert document["info"] == {"step": 7, "note": "ü"}
    card = (folder / "README.md").read_text("utf-8")
    assert "aa to bb" in card
    assert f"1 + 2 layers, d_model 8, d_ff 12, 2 heads, {count_parameters(make_bundle().config.model):,} parameters" in card
    assert "- Step: 7" in card


def test_loading_leaves_the_random_state(folder: Path) -> None:
    torch.manual_seed(1)
    right = torch.rand(3)
    torch.manual_seed(1)
    load_bundle(folder)
    assert torch.equal(torch.rand(3), right)


def test_a_folder_that_exists_is_never_overwritten_and_a_failure_leaves_nothing(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(DragomanError, match="already exists"):
        save_bundle(make_bundle(), folder)
    assert (folder / "model.safetensors").read_bytes() == before

    def fail(beside: Path) -> None:
        assert (beside / "model.safetensors").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_bundle(make_bundle(), folder.with_name("other"), also=fail)
    assert [path.name for path in folder.parent.iterdir()] == ["bundle"]


def test_what_is_written_is_synced_through_handles_that_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows refuses to sync others, and has none for folders."""
    synced: set[int] = set()

    def record(handle: int) -> None:
        facts = os.fstat(handle)
        if not stat.S_ISDIR(facts.st_mode):
            os.write(handle, b"")  # raises when the handle only reads
        synced.add(facts.st_ino)

    def names(place: Path) -> set[str]:
        return {path.name for path in (place, *place.rglob("*")) if path.stat().st_ino in synced}

    monkeypatch.setattr(os, "fsync", record)
    save_bundle(make_bundle(), tmp_path / "bundle")
    contents = {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert names(tmp_path) == {tmp_path.name, "bundle", *contents}

    synced.clear()
    monkeypatch.setattr(files, "os", SimpleNamespace(name="nt", fsync=record))
    save_bundle(make_bundle(), tmp_path / "other")
    assert names(tmp_path) == contents


def test_a_file_is_synced_before_it_takes_the_name_of_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or after a power cut the name may hold neither the old content nor the new."""
    synced: set[int] = set()
    replace = Path.replace

    def replace_synced(beside: Path, path: Path) -> Path:
        assert beside.stat().st_ino in synced
        assert tmp_path.stat().st_ino not in synced  # the folder, with the new name in it, comes after
        return replace(beside, path)

    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(os.fstat(handle).st_ino))
    monkeypatch.setattr(Path, "replace", replace_synced)
    files.write_file(tmp_path / "best", "step-000001\n")
    assert (tmp_path / "best").read_text() == "step-000001\n"
    assert tmp_path.stat().st_ino in synced


# Weights


def half(weights: dict[str, torch.Tensor], *types: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights in these types, in turn."""
    return {name: weight.to(types[place % len(types)]) for place, (name, weight) in enumerate(weights.items())}


@pytest.mark.parametrize(
    "types",
    [(torch.float16,), (torch.bfloat16,), (torch.float64,), (torch.float32, torch.bfloat16, torch.float16)],
    ids=["float16", "bfloat16", "float64", "mixed"],
)
def test_weights_of_any_type_translate_as_their_values_in_float32(types: tuple[torch.dtype, ...], folder: Path, tmp_path: Path) -> None:
    texts = [" ".join(WORDS[start : start + 4]) for start in range(5)]
    shortened = half(load_file(folder / "model.safetensors"), *types)
    save_file(shortened, folder / "model.safetensors")
    bundle = load_bundle(folder)
    assert same_bits(dict(bundle.model.named_parameters()), half(shortened, torch.float32))
    assert {value.dtype for value in bundle.model.state_dict().values()} == {torch.float32}
    assert bundle.model.output.weight is bundle.model.encoder.embedding.weight
    save_bundle(bundle, tmp_path / "plain")
    found, right = (Translator.load(path, device="cpu").translate(texts) for path in (folder, tmp_path / "plain"))
    assert found == right
    assert all(translation.tokens for translation in found)


@pytest.mark.parametrize(
    ("tie", "stored", "told"),
    [
        ("all", "none", ["weight output.weight is not part of this model", "weight decoder.embedding.weight is not part of this model"]),
        ("decoder", "none", ["weight output.weight is not part of this model"]),
        ("none", "all", ["weight output.weight is missing", "weight decoder.embedding.weight is missing"]),
        ("none", "decoder", ["weight output.weight is missing"]),
    ],
)
def test_weights_of_another_tying_are_refused_by_name(tie: str, stored: str, told: list[str], tmp_path: Path) -> None:
    """Reported fault B31: an output matrix that a file has beside the shared one, or lacks, and that nobody misses."""
    save_bundle(make_bundle(tie=tie), tmp_path / "model")
    save_bundle(make_bundle(tie=stored), tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").replace(tmp_path / "model" / "model.safetensors")
    message = refused(tmp_path / "model", *told)
    assert message.count("; ") == len(told)


def test_missing_foreign_and_misshapen_weights_are_named_together(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    names = sorted(name for name in weights if name.startswith(WEIGHT))
    gone, turned = names[0], next(name for name in names if weights[name].dim() == 2)
    del weights[gone]
    weights[turned] = weights[turned].T.contiguous()
    weights["decoder.embedding.weight"] = torch.zeros(14, 8)  # the shared matrix under its other name
    weights["lm_head.weight"] = torch.zeros(14, 8)
    save_file(weights, folder / "model.safetensors")
    rows, columns = weights[turned].shape
    refused(
        folder,
        f"weight {gone} is missing",
        f"weight {turned} has shape ({rows}, {columns}), not ({columns}, {rows})",
        "weight decoder.embedding.weight is not part of this model",
        "weight lm_head.weight is not part of this model",
    )


def test_weights_and_tokenizer_faults_are_named_together(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    refused(folder, "model.safetensors: No such file", "tokenizer.json")


def test_whole_numbers_are_no_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.startswith(WEIGHT))
    save_file(weights | {name: weights[name].int()}, folder / "model.safetensors")
    refused(folder, f"weight {name} is torch.int32, not floating point")


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.05, 0.5, 0.999])
def test_a_truncated_file_is_refused(kept: float, folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: int(len(whole) * kept)])
    refused(folder, "model.safetensors is not a whole safetensors file")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04N.",
        b"PK\x03\x04 not weights",
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,1000000]}} ' + b"\0" * 36,
    ],
    ids=["pickle", "zip", "huge header", "no names", "beyond the end"],
)
def test_a_foreign_file_is_refused(content: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, "model.safetensors is not a whole safetensors file")


def test_a_folder_in_place_of_the_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    refused(folder, "model.safetensors: Is a directory")


class _Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "tokenizer.pkl", "training_args.bin", "model.safetensors"])
def test_pickles_are_not_opened(name: str, folder: Path, tmp_path: Path) -> None:
    """Beside a whole model they are left alone; in place of its weights they are refused."""
    mark = tmp_path / "exploded"
    bomb = pickle.dumps(_Bomb(mark))
    pickle.loads(bomb)
    assert mark.exists()  # the bomb is a bomb
    mark.unlink()
    (folder / name).write_bytes(bomb)
    if name == "model.safetensors":
        refused(folder, "model.safetensors is not a whole safetensors file")
    else:
        load_bundle(folder)
        (folder / "model.safetensors").unlink()
        refused(folder, "model.safetensors")
    assert not mark.exists()


# Tokenizers


def test_a_tokenizer_with_more_entries_than_rows_is_refused_with_both_sizes(tmp_path: Path) -> None:
    for joint, sides in ((True, ["source", "target"]), (False, ["target"])):
        bundle, out = make_bundle(joint=joint), tmp_path / str(joint)
        larger = Tokenizer.train([" ".join(WORDS[:12])], kind="whitespace", vocabulary_size=50)
        source = larger if joint else bundle.source_tokenizer
        save_bundle(replace(bundle, source_tokenizer=source, target_tokenizer=larger), out)
        rows = 14 if joint else 10
        message = refused(out, *(f"the {side} tokenizer has 16 entries but the embedding has {rows} rows" for side in sides))
        assert ("source tokenizer" in message) == joint


def test_a_tokenizer_with_fewer_entries_than_rows_is_taken(tmp_path: Path) -> None:
    """Tables are padded to round numbers by some."""
    save_bundle(make_bundle(source_vocabulary=16, target_vocabulary=16), tmp_path / "out")
    assert len(load_bundle(tmp_path / "out").source_tokenizer) == 14


def test_each_missing_tokenizer_is_named(tmp_path: Path) -> None:
    save_bundle(make_bundle(joint=False), tmp_path / "out")
    (tmp_path / "out" / "tokenizer.source.json").unlink()
    assert "tokenizer.target.json" not in refused(tmp_path / "out", "tokenizer.source.json: cannot read")
    (tmp_path / "out" / "tokenizer.target.json").unlink()
    refused(tmp_path / "out", "neither tokenizer.json nor tokenizer.source.json and tokenizer.target.json is there")


def test_a_byte_pair_vocabulary_that_is_not_of_bytes_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([" ".join(WORDS)], kind="bpe", vocabulary_size=300)
    sizes = {"source_vocabulary": 300, "target_vocabulary": 300}
    config = Config().with_values(model=SIZES | sizes)
    save_bundle(Bundle(config, build_model(config.model), tokenizer, tokenizer), tmp_path / "out")
    path = tmp_path / "out" / "tokenizer.json"
    whole = json.loads(path.read_bytes())
    assert load_bundle(tmp_path / "out").source_tokenizer.token(4) == "!"

    last = max(whole["tokenizer"]["model"]["vocab"], key=whole["tokenizer"]["model"]["vocab"].get)
    for entry, new in ((last, "▁ona"), ("!", "ab!ab")):
        vocabulary = {new if name == entry else name: id for name, id in whole["tokenizer"]["model"]["vocab"].items()}
        model = whole["tokenizer"]["model"] | {"vocab": vocabulary, "merges": []}
        path.write_text(json.dumps(whole | {"tokenizer": whole["tokenizer"] | {"model": model}}), encoding="utf-8")
        told = "['▁ona'] in it, [] not in it" if entry == last else "[] in it, ['!'] not in it"
        refused(tmp_path / "out", "tokenizer.json: not a tokenizer, or damaged", "not a byte-level vocabulary", told)


@pytest.mark.parametrize("version", [0, 0.5, True, "1", None])
def test_a_tokenizer_format_that_is_no_version_is_refused(version: object, folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_bytes())
    (folder / "tokenizer.json").write_text(json.dumps(document | {"format": version}), encoding="utf-8")
    refused(folder, "tokenizer.json: not a tokenizer, or damaged", f"format {version!r}")


# Settings


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda document: document.update(format_version=FORMAT_VERSION + 1), "format version 2 is newer than the 1 this Dragoman reads"),
        *(
            (
                lambda document, found=found: document.update(format_version=found),
                f"format_version={json.dumps(found)} is not a whole number",
            )
            for found in (0.5, 1.0, 1e9, True, 0, -1, "1", "one", None, [1])
        ),
        (lambda document: document.pop("format_version"), "format_version=null is not a whole number"),
        *(
            (lambda document, info=info: document.update(info=info), f"info={json.dumps(info)} is not a JSON object")
            for info in ([1], None, "text", 3)
        ),
        (lambda document: document.update(architecture="recurrent"), 'architecture="recurrent" is not "transformer"'),
        (lambda document: document.pop("architecture"), 'architecture=null is not "transformer"'),
        (lambda document: document["config"]["model"].update(max_positions=10**13), "model.max_positions=10000000000000: "),
        (lambda document: document.pop("config"), "'config'"),
        (lambda document: document.update(config=[1]), "not the settings of a Dragoman model"),
        (lambda document: document["config"].update(model=3), "model=3"),
        (lambda document: document["config"]["model"].update(d_modle=3), "unknown setting model.d_modle; the nearest is model.d_model"),
        (lambda document: document["config"]["model"].update(d_model="wide", n_heads=0), "model.d_model='wide'"),
        (lambda document: document["config"]["model"].update(n_heads=3), "d_model=8 does not divide by n_heads=3"),
        (lambda document: document["config"]["model"].update(d_ff=13), "has shape"),
    ],
)
def test_damaged_settings_are_named(change: Callable[[dict[str, Any]], object], told: str, folder: Path) -> None:
    edit(folder, change)
    message = refused(folder, told)
    assert ("newer" in message) == ("newer" in told)


def test_all_wrong_settings_are_named(folder: Path) -> None:
    edit(folder, lambda document: document["config"]["model"].update(d_model="wide", n_heads=0, dropout=2))
    refused(folder, "config.json", "model.d_model='wide'", "model.n_heads=0", "model.dropout=2")


def test_faults_of_settings_tokenizer_and_weights_are_named_together(folder: Path) -> None:
    edit(folder, lambda document: document["config"]["model"].update(d_model="wide"))
    edit(folder, lambda document: document.update(info=[], architecture="other", format_version=0.5))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
    wrong = ("model.d_model='wide'", "info=[]", 'architecture="other"', "format_version=0.5")
    refused(
        folder,
        *wrong,
        "neither tokenizer.json nor tokenizer.source.json and tokenizer.target.json is there",
        "model.safetensors: No such file",
    )
    (folder / "config.json").write_text("[]", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"PK")
    refused(folder, "not the settings of a Dragoman model", "tokenizer.source.json", "model.safetensors is not a whole safetensors file")


def test_more_positions_than_any_model_has_are_refused() -> None:
    """A table of 10¹³ positions takes more memory than there is."""
    assert Config().with_values(model={"max_positions": 1_000_000}).model.max_positions == 1_000_000
    with pytest.raises(UsageError, match=r"model\.max_positions=10000000000000: .*1000000"):
        Config().with_values(model={"max_positions": 10**13})


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe\x00", b"[" * 100_000, b'{"format_version": 1}', b'{"model_type": "marian"}'],
)
def test_something_else_named_config_json_is_refused(content: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(content)
    refused(folder, "config.json", "not the settings of a Dragoman model")


# Which folder


def test_a_run_means_its_best_checkpoint_or_else_its_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="dragoman")
    run = tmp_path / "run"
    for step in (5, 10):
        save_bundle(replace(make_bundle(), info={"step": step}), run / "checkpoints" / f"step-{step:06}")
    with pytest.raises(DragomanError, match=r"neither a bundle .* nor a run with a finished checkpoint"):
        resolve_model(run)
    mark_checkpoint(run, "last", run / "checkpoints" / "step-000010")
    assert load_bundle(run).info["step"] == 10
    mark_checkpoint(run, "best", run / "checkpoints" / "step-000005")
    assert load_bundle(run).info["step"] == 5
    assert load_bundle(run / "checkpoints" / "step-000010").info["step"] == 10
    assert [load_bundle(run / "checkpoints" / mark).info["step"] for mark in ("best", "last")] == [5, 10]
    assert caplog.messages == []
    mark_checkpoint(run, "best", run / "checkpoints" / "step-000099")
    assert load_bundle(run).info["step"] == 10
    best = run / "checkpoints" / "best"
    with pytest.raises(DragomanError, match="best: neither a bundle"):
        load_bundle(best)
    assert caplog.messages == [f"{best}: the checkpoint that it names is gone; using the last, step-000010, until another is the best"]


def test_a_damaged_checkpoint_is_named_and_a_whole_one_to_use(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = (run / "checkpoints" / f"step-{step:06}" for step in (5, 10))
    for folder in (first, second):
        save_bundle(make_bundle(), folder)
        mark_checkpoint(run, "last", folder)
    (second / "config.json").unlink()
    damaged = f"{second}: config.json is not there, so this is no checkpoint; put it back, or give"
    with pytest.raises(DragomanError) as found:
        resolve_model(run)
    assert str(found.value) == f"{damaged} {first}, which is whole"
    (first / "config.json").unlink()
    with pytest.raises(DragomanError) as found:
        resolve_model(run)
    assert str(found.value) == f"{damaged} another folder"
    shutil.rmtree(second)
    save_bundle(make_bundle(), second)
    shutil.rmtree(first)
    (run / "checkpoints" / "last").unlink()
    with pytest.raises(DragomanError, match=rf"nor a run with a finished checkpoint; give {second}, which is whole"):
        resolve_model(run)


def test_nothing_and_something_else_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="nowhere: no such model"):
        load_bundle(tmp_path / "nowhere")
    with pytest.raises(DragomanError, match="neither a bundle"):
        load_bundle(tmp_path)
    (tmp_path / "file").write_text("text", encoding="utf-8")
    with pytest.raises(DragomanError, match="file: neither a bundle"):
        load_bundle(tmp_path / "file")


def test_a_folder_of_models_names_some_of_them(tmp_path: Path) -> None:
    """Runs, bundles and checkpoints; what is none of these is passed over."""
    runs = tmp_path / "runs"
    save_bundle(make_bundle(), runs / "mean")
    for name in ("c", "b"):
        save_bundle(make_bundle(), runs / name / "checkpoints" / "step-000005")
    (runs / "a" / "checkpoints").mkdir(parents=True)
    (runs / "notes").write_text("text", encoding="utf-8")
    save_bundle(make_bundle(), runs / ".mean.partial")

    def instead() -> str:
        with pytest.raises(DragomanError, match="neither a bundle") as found:
            resolve_model(runs)
        return str(found.value).partition("finished checkpoint; ")[2]

    assert instead() == f"give one that lies in it: {runs / 'b'}, {runs / 'c'}, {runs / 'mean'}"
    save_bundle(make_bundle(), runs / "a" / "checkpoints" / "step-000005")
    assert instead() == f"give one that lies in it: {runs / 'a'}, {runs / 'b'}, {runs / 'c'} and 1 more"


def test_a_folder_that_may_not_be_looked_into_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that other users have beside ours; nobody stops the superuser, so the system is made to say that it would."""
    for name in ("ours", "theirs"):
        save_bundle(make_bundle(), tmp_path / name)
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode == os.X_OK and path.name == "theirs"))
    with pytest.raises(DragomanError, match=f"give one that lies in it: {re.escape(str(tmp_path / 'ours'))}$"):
        resolve_model(tmp_path)


def test_a_model_that_was_read_no_longer_hangs_on_its_file(folder: Path) -> None:
    """Another copied over it in place, as `cp` does, would change the weights of a server that runs, and a shorter one would kill it."""
    model = load_bundle(folder).model
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
