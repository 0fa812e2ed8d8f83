"""Given word alignments: the files, what they say of tokens, which pairs they stay with, and the model that has learnt from them."""

import gzip
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.bundle import load_bundle, load_config, resolve_model, save_bundle
from dragoman.cli import main
from dragoman.data.alignments import parse_links, read_aligned, token_links, words_at
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.alignment import align, attention
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError, UsageError
from dragoman.presets import resolve_config
from dragoman.training.distributed import Ranks
from dragoman.training.run import prepare
from dragoman.training.windows import windows
from equivalence.test_distributed import assert_same_training
from rank_runs import on_ranks
from small_bundles import fx_rand
from training_runs import WORDS, Pair, final_weights, records, same_bits, train, write_pairs

ON = ("--set", "training.alignment_weight=0.5")


def mirrored(count: int, *, seed: int = 0, longest: int = 8) -> list[Pair]:
    """Sentences with each word once, and their words in reverse order, each of them backwards and in upper case."""
    choose = random.Random(seed)
    sources = [choose.sample(WORDS, choose.randint(2, longest)) for _ in range(count)]
    return [(" ".join(words), " ".join(word[::-1].upper() for word in reversed(words))) for words in sources]


def links_of(pair: Pair) -> str:
    """The true links as a Pharaoh line."""
    source, target = (text.split() for text in pair)
    return " ".join(f"{source.index(word[::-1].lower())}-{place}" for place, word in enumerate(target) if word[::-1].lower() in source)


def write_links(path: Path, pairs: Sequence[Pair]) -> Path:
    path.write_text("".join(f"{links_of(pair)}\n" for pair in pairs))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with its links beside it, in train.links."""
    prefix = tmp_path_factory.mktemp("data") / "train"
    write_links(prefix.with_suffix(".links"), mirrored(41))
    return write_pairs(prefix, mirrored(41))


def aligned(run: Path, data: Path, *arguments: str | Path, **settings: Any) -> int:
    return train(run, data, "--alignments", data.with_suffix(".links"), *ON, "--quiet", *arguments, **settings)


def refusal(capsys: pytest.CaptureFixture[str], status: int, expected: int) -> str:
    out, err = capsys.readouterr()
    assert (status, out) == (expected, ""), err
    (line,) = err.splitlines()
    return line


# The files


def test_a_line_is_its_pairs_in_any_order_once_each() -> None:
    pair = ("a b\u00a0c", " x\ty ")
    assert parse_links("2-1  0-0 2-1\t1-0", pair, place="") == {(0, 0), (1, 0), (2, 1)}
    assert parse_links("", pair, place="") == parse_links(" ", pair, place="") == frozenset()


@pytest.mark.parametrize("link", ["0", "0-", "-1", "0-1-0", "0–1", "a-b", "0-0:S", "0?0", "٠-٠", "1.0-0", "0-0,", "9999999999-0"])
def test_what_is_no_link_is_refused_with_its_place(link: str, tmp_path: Path) -> None:
    write_pairs(tmp_path / "train", [("a b", "x y")] * 3)
    path = tmp_path / "links"
    path.write_text(f"0-0\n1-1 {link}\n0-0\n")
    with pytest.raises(DragomanError) as caught:
        list(read_aligned(str(tmp_path / "train"), "aa", "bb", path))
    assert str(caught.value) == f"{path}, line 2: {link!r} is not SOURCE-TARGET; a line looks like 0-0 1-2, places of words counted from 0"


@pytest.mark.parametrize(
    ("link", "said"), [("2-0", "2-0 links source word 2, and the line has 2"), ("0-3", "0-3 links target word 3, and the line has 3")]
)
def test_a_link_beyond_the_words_is_refused_with_its_place(link: str, said: str, tmp_path: Path) -> None:
    write_pairs(tmp_path / "train", [("a b", "x y z")] * 3)
    path = tmp_path / "links"
    path.write_text(f"1-2\n0-0\n1-1 {link}\n")
    with pytest.raises(DragomanError) as caught:
        list(read_aligned(str(tmp_path / "train"), "aa", "bb", path))
    assert str(caught.value) == f"{path}, line 3: {said}; count words from 0, as white space parts them"


@pytest.mark.parametrize("lines", [0, 2, 4, 7])
def test_another_number_of_lines_is_refused_with_both(lines: int, tmp_path: Path) -> None:
    write_pairs(tmp_path / "train", [("a b", "x y z")] * 3)
    path = tmp_path / "links"
    path.write_text("0-0\n" * lines)
    with pytest.raises(DragomanError) as caught:
        list(read_aligned(str(tmp_path / "train"), "aa", "bb", path))
    told = f"{path}: {lines} lines for the 3 pairs of {tmp_path / 'train'}; give one line for each pair, empty for no link"
    assert str(caught.value) == told


# Tokens


def test_tokens_of_linked_words_are_linked_each_with_each() -> None:
    assert token_links([(1, 0), (0, 2)], [-1, 0, 1, 1, -1], [0, 0, 1, 2, -1]) == [(0, 2), (0, 3), (1, 2), (1, 3), (3, 1)]


def test_pieces_belong_to_the_words_of_the_line_as_it_is_given() -> None:
    """Byte pairs in pieces; white space at the ends and twice; characters of several bytes."""
    pieces = Tokenizer.train(["ab"], kind="bpe", vocabulary_size=261)
    text = "  ab  c\u00e9\t東 "
    words = words_at(text, pieces.encoded_spans(text))
    spelled: dict[int, bytes] = {}
    for word, id in zip(words, pieces.encode(text), strict=True):
        spelled[word] = spelled.get(word, b"") + pieces.piece(id)
    assert {word: piece.decode().strip() for word, piece in spelled.items() if word >= 0} == {0: "ab", 1: "cé", 2: "東"}


@pytest.mark.parametrize("kind", ["whitespace", "bpe"])
def test_links_stay_with_their_pair_whatever_is_dropped_and_however_it_is_drawn(kind: str, tmp_path: Path) -> None:
    """Three corpora, one without links and one packed, pairs that are dropped in between, weights, tags and the batches of two epochs."""
    odd: list[Pair] = [("", "X"), (" ", " "), ("onbek " * 60, "KEBNO " * 60), ("onbek", "")]
    parts = [mirrored(12, seed=1), mirrored(9, seed=2), mirrored(10, seed=3)]
    parts[0][3:3], parts[0][8:8], parts[2][0:0] = odd[:2], odd[2:], odd
    for name, pairs in zip("abc", parts, strict=True):
        write_pairs(tmp_path / name, pairs)
    write_links(tmp_path / "a.links", parts[0])
    with gzip.open(tmp_path / "c.links.gz", "wt") as file:
        file.write("".join(f"{links_of(pair)}\n" for pair in parts[2]))
    names = [str(tmp_path / "a.links"), "", str(tmp_path / "c.links.gz")]
    sets = {"data.alignments": names, "data.weights": [1.5, 1, 2], "data.tags": ["de", "fr", "de"], "training.alignment_weight": 0.05}
    more = {"data.tokenizer": kind, "data.vocabulary_size": 300, "data.max_length": 58, "training.batch_tokens": 200, "data.target": "bb"}
    overrides = [f"{name}={json.dumps(value)}" for name, value in (sets | more).items()]
    config = resolve_config("tiny", None, overrides, {"data": {"source": "aa", "train": [str(tmp_path / name) for name in "abc"]}})
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    prepared = prepare(run, config)
    assert prepared.config.model.alignment_layer == 3
    assert len(prepared.corpus) == 31
    assert prepared.corpus.dropped == {"empty side": 6, "longer than max_length": 2}
    source, target = prepared.source_tokenizer, prepared.target_tokenizer
    seen: dict[int, int] = {}
    found = windows(prepared.corpus, prepared.config, target, Ranks())
    for window in found:
        if window.epoch == 2:
            break
        (part,) = window.parts
        batch = part.batch
        assert batch.links is not None
        for row, pair in enumerate(batch.pairs):
            seen[int(pair)] = seen.get(int(pair), 0) + 1
            ids = [batch.source[row][batch.source_mask[row]].tolist(), batch.target_output[row][batch.target_mask[row]].tolist()]
            assert source.token(ids[0][0]) in (">>de<<", ">>fr<<")
            texts = [source.decode(ids[0]), target.decode(ids[1])]
            spans = [source.decoded_spans(ids[0]), target.decoded_spans(ids[1])]
            words = [words_at(text, each) for text, each in zip(texts, spans, strict=True)]
            links = {(words[1][to], words[0][origin]) for _, to, origin in batch.links[batch.links[:, 0] == row].tolist()}
            expected = {tuple(map(int, link.split("-")))[::-1] for link in links_of((texts[0], texts[1])).split()}
            assert links == (expected if 1 <= pair + 1 <= 12 or pair >= 21 else set())
            tokens = [{at for at, word in enumerate(side) if word >= 0} for side in words]
            if links:
                assert {to for each, to, _ in batch.links.tolist() if each == row} == tokens[1]
                assert {origin for each, _, origin in batch.links.tolist() if each == row} == tokens[0]
        assert window.aligned == len({(row, to) for row, to, _ in batch.links.tolist()})
    assert set(seen) == set(range(31))
    assert [seen[pair] for pair in (12, 20, 21, 30)] == [2, 2, 4, 4]


# Settings


def test_one_without_the_other_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    links = data.with_suffix(".links")
    line = refusal(capsys, train(run, data, "--alignments", links), 2)
    assert "--alignments without training.alignment_weight teach nothing; set training.alignment_weight=0.05" in line
    line = refusal(capsys, train(run, data, *ON), 2)
    assert "training.alignment_weight=0.5 needs alignments; give --alignments FILE for each --train" in line
    line = refusal(capsys, train(run, data, model__alignment_layer=1), 2)
    assert "model.alignment_layer=1 without alignments is a head that nobody trains to align" in line
    line = refusal(capsys, train(run, data, model__alignment_head=2), 2)
    assert "model.alignment_head=2 without alignments is a head that nobody trains to align" in line
    line = refusal(capsys, aligned(run, data, "--train", data), 2)
    assert "alignments has 1 files for 2 training corpora; give one for each --train" in line
    line = refusal(capsys, train(run, data, "--alignments", "", *ON), 2)
    assert "alignments names no file" in line
    line = refusal(capsys, train(run, data, "--alignments", tmp_path / "none", *ON), 2)
    assert f"--alignments {tmp_path / 'none'}: no such file" in line
    line = refusal(capsys, aligned(run, data, data__tokenizer="bpe", data__bpe_dropout=0.1), 2)
    assert "alignments need pieces that stay the same, and with bpe_dropout=0.1" in line
    assert not run.exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alignment_layer": 2}, "alignment_layer=2 is more than the decoder_layers=1"),
        ({"alignment_head": 3}, "alignment_head=3 is more than the n_heads=2"),
        ({"architecture": "decoder-only", "encoder_layers": 6, "alignment_layer": 1}, "alignment_layer=1 means nothing"),
    ],
)
def test_a_head_that_the_model_has_not_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve_config(overrides=[f"model.{name}={value}" for name, value in ({"decoder_layers": 1, "n_heads": 2} | settings).items()])


@pytest.mark.parametrize("architecture", ["recurrent", "decoder-only"])
def test_a_model_without_such_heads_is_refused(architecture: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset = {"recurrent": "recurrent", "decoder-only": "gpt-mini"}[architecture]
    command = ["train", "aa-bb", "--train", str(data), "--alignments", str(data.with_suffix(".links")), *ON, "--preset", preset]
    line = refusal(capsys, main([*command, "--out", str(tmp_path / "run")]), 2)
    assert f"model.architecture={architecture}" in line


def test_a_faulty_file_leaves_no_run_behind(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fault is told before a vocabulary is learnt, and the same command works once it is mended."""
    prefix, run = write_pairs(tmp_path / "train", mirrored(41)), tmp_path / "run"
    links = prefix.with_suffix(".links")
    links.write_text(data.with_suffix(".links").read_text() + "0-0\n")
    line = refusal(capsys, aligned(run, prefix, "--max-steps", "1"), 1)
    assert line.endswith(f"{links}: 42 lines for the 41 pairs of {prefix}; give one line for each pair, empty for no link")
    assert not run.exists()
    links.write_text("\n" * 41)
    assert "no pair that is kept has a link" in refusal(capsys, aligned(run, prefix, "--max-steps", "1"), 1)
    write_links(links, mirrored(41))
    assert aligned(run, prefix, "--max-steps", "1") == 0


# Runs


def test_a_resumed_run_is_the_run_and_other_links_are_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = write_pairs(tmp_path / "train", mirrored(41))
    links = write_links(prefix.with_suffix(".links"), mirrored(41))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    noise = {"model__dropout": 0.2, "training__log_every": 4}
    assert aligned(whole, prefix, "--max-steps", "10", **noise) == 0
    assert aligned(parts, prefix, "--max-steps", "6", **noise) == 0
    assert train(parts, None, "--quiet", "--max-steps", "10") == 0
    assert same_bits(final_weights(whole), final_weights(parts))
    curves = [[record["alignment"] for record in records(run, "train")] for run in (whole, parts)]
    assert curves[0][-1] == curves[1][-1]  # of the steps before and after the interruption
    links.write_text(links.read_text().replace("0-", "1-", 1))
    line = refusal(capsys, train(parts, None, "--quiet", "--max-steps", "12"), 1)
    assert f"{links}: changed since the run {parts} began; restore the file, or start a new run" in line
    write_links(links, mirrored(41))
    plain = tmp_path / "plain"
    assert train(plain, prefix, "--quiet", "--max-steps", "2") == 0
    told = json.loads((plain / "run.json").read_text()), json.loads((whole / "run.json").read_text())
    assert told[0]["fingerprints"]["training data"] != told[1]["fingerprints"]["training data"]
    assert [entry["path"] for entry in told[1]["data"]] == [f"{prefix}.aa", f"{prefix}.bb", str(links)]


def test_a_folder_with_the_links_of_another_corpus_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert aligned(run, data, "--max-steps", "1") == 0
    (run / "corpus" / "train-alignments" / "counts").write_bytes(b"\0\0\0\0")
    line = refusal(capsys, train(run, None, "--quiet", "--max-steps", "2"), 1)
    assert "train-alignments: not the alignments of this corpus (not whole); remove the folder, and it is made again" in line


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("shard", [False, True], ids=["whole", "shared out"])
def test_two_processes_train_as_one(shard: bool, data: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    steps = ("--max-steps", "6", "--device", "cpu", "--precision", "fp32")
    settings = {"model__dropout": 0.0, "model__decoder_layers": 2}
    assert aligned(one, data, *steps, **settings) == 0
    assert on_ranks(2, tmp_path, lambda: aligned(two, data, *steps, **settings, training__shard=shard)) == [0, 0]
    losses = [[record["alignment"] for record in records(run, "train")] for run in (one, two)]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_same_training(two, one)


# The model


def test_the_bundle_remembers_the_head_and_alignments_are_its(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert aligned(run, data, "--max-steps", "3", model__decoder_layers=3, model__alignment_head=2) == 0
    assert "alignment_layer = 2" in (run / "config.toml").read_text()
    bundle = load_bundle(run)
    assert (bundle.config.model.alignment_layer, bundle.config.model.alignment_head) == (2, 2)
    assert main(["inspect", str(run / "checkpoints" / "step-000003")]) == 0
    assert "from head 2 of decoder layer 2" in capsys.readouterr().out
    going_on = tmp_path / "more"
    more = ["train", "--train", str(data), "--from", str(run), "--out", str(going_on), "--max-steps", "1", "--quiet"]
    assert main([*more, "--set", "data.source=aa", "--set", "data.target=bb"]) == 0
    assert load_config(resolve_model(going_on)).model.alignment_layer == 2


def test_of_a_trained_head_its_attention_alone_counts() -> None:
    known = fx_rand(seed=4)
    trained = fx_rand(seed=4, alignment_layer=2, alignment_head=2)
    texts = ["ona bek tilu rem", "sova kip dal"]
    translations = Translator(known).translate(texts)
    for bundle, layer, wanted in (
        (trained, None, lambda weights: weights[1, 1]),
        (trained, 0, lambda weights: weights[1, 1]),
        (trained, 2, lambda weights: weights[1].mean(0)),
        (trained, 1, lambda weights: weights[0].mean(0)),
        (known, None, lambda weights: weights[0].mean(0)),
    ):
        found = align(bundle, texts, translations, layer=layer)
        for alignment, weights in zip(found, attention(bundle, translations), strict=True):
            best = np.where(np.arange(weights.shape[-1]) < weights.shape[-1] - 1, wanted(weights), -1).argmax(-1)
            assert alignment.tokens == sorted((int(place), token) for token, place in enumerate(best[:-1]))


def test_a_bundle_of_before_opens_and_aligns_as_before(tmp_path: Path) -> None:
    bundle = fx_rand(seed=4)
    save_bundle(bundle, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    document = json.loads(path.read_text())
    for name in ("alignment_layer", "alignment_head"):
        del document["config"]["model"][name]
    del document["config"]["training"]["alignment_weight"], document["config"]["data"]["alignments"]
    path.write_text(json.dumps(document))
    assert load_bundle(tmp_path / "model").config == bundle.config
