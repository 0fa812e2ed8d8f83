"""Language tags: one token at the head of a source, put there by a corpus's tag in training and by ``>>de<<`` in translation."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import tiny_bundle
from dragoman.bundle import load_bundle, save_bundle
from dragoman.cli import main
from dragoman.data.corpus import Corpus
from dragoman.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from dragoman.model.embedding import Embedding
from dragoman.training.start import fill_new_rows
from training_runs import final_weights, records, same_bits, toy_pairs, train, write_pairs

LINES = ["ona bek tilu", ">>de<< rem", "a >>fr<< b"] * 3
KINDS = pytest.mark.parametrize("kind", ["bpe", "whitespace"])


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    pairs = toy_pairs(44)
    write_pairs(folder / "valid-b", [(">>x<< onbek", "KEBNO"), *pairs[41:44]])
    write_pairs(folder / "valid-a", pairs[40:42])
    return write_pairs(folder / "a", pairs[:25]), write_pairs(folder / "b", [(">>de<< onbek", "KEBNO >>de<<"), *pairs[26:40]])


def tagged(run: Path, corpora: tuple[Path, Path], tags: str, *arguments: str, **settings: Any) -> int:
    first, second = corpora
    return train(run, first, "--train", str(second), "--set", f"data.tags={tags}", "--quiet", *arguments, **settings)


@pytest.fixture(scope="module")
def finished(corpora: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tags de and fr with validation; nothing changes it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    valid = [part for name in ("valid-a", "valid-b") for part in ("--valid", str(corpora[0].with_name(name)))]
    assert tagged(run, corpora, '["de","fr"]', *valid, "--max-steps", "4") == 0
    return run


def refusal(capsys: pytest.CaptureFixture[str], status: int, expected: int) -> str:
    out, err = capsys.readouterr()
    assert (status, out) == (expected, "")
    (line,) = err.splitlines()
    return line


# The vocabulary


@KINDS
def test_a_tag_is_one_entry_behind_the_others_that_no_text_becomes(kind: Any, tmp_path: Path) -> None:
    plain = Tokenizer.train(LINES, kind=kind, vocabulary_size=300 if kind == "bpe" else 0)
    known = plain.with_tags(["de", "fr", "de"])
    assert known.tags == {"de": len(plain), "fr": len(plain) + 1}
    assert len(known) == len(plain) + 2
    assert [known.token(id) for id in range(len(plain))] == [plain.token(id) for id in range(len(plain))]
    assert [known.token(id) for id in known.tags.values()] == [">>de<<", ">>fr<<"]
    texts = [">>de<<", ">>de<< ", " >>de<<", ">>de<< >>fr<<", "ona >>de<< bek", "x>>de<<", ">>de<<\u00a0"]
    assert known.encode_batch(texts) == plain.encode_batch(texts)
    assert not {*known.tags.values()} & {id for ids in known.encode_batch(texts) for id in ids}
    ids = known.encode("ona bek")
    assert known.decode([known.tags["fr"], *ids, known.eos]) == known.decode(ids) == "ona bek"
    assert known.with_tags(["fr"]) is known
    assert known.with_tags(["es", "de"]).tags == {**known.tags, "es": len(known)}
    assert (plain.tags, len(plain)) == ({}, len(known) - 2)


@KINDS
@pytest.mark.parametrize("normalization", ["none", "nfkc"])
def test_tags_are_kept_in_the_file(kind: Any, normalization: Any, tmp_path: Path) -> None:
    size = 300 if kind == "bpe" else 0
    tokenizer = Tokenizer.train(LINES, kind=kind, vocabulary_size=size, normalization=normalization, tags=["de", "zh-Hant"])
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.tags, loaded.fingerprint, len(loaded)) == (tokenizer.tags, tokenizer.fingerprint, len(tokenizer))
    assert loaded.encode_batch([*LINES, ">>de<<\u3000x"]) == tokenizer.encode_batch([*LINES, ">>de<<\u3000x"])
    saved = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert saved["format"] == 1
    without = Tokenizer.train(LINES, kind=kind, vocabulary_size=size)
    without.save(tmp_path / "tokenizer.json")
    assert "tags" not in json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))


@pytest.mark.parametrize("tags", [{"de": 3}, {"de": 9999}, {"fr": None}, {"d e": "same"}, ["de"], {"de": "same", "fr": "same"}], ids=str)
def test_damaged_tags_are_named(tags: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer.train(LINES, kind="bpe", vocabulary_size=300, tags=["de"])
    tokenizer.save(path)
    if isinstance(tags, dict):
        tags = {name: tokenizer.tags["de"] if id == "same" else id for name, id in tags.items()}
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"tags": tags}), encoding="utf-8")
    with pytest.raises(DragomanError, match=r"tokenizer\.json: not a tokenizer, or damaged"):
        Tokenizer.load(path)


def test_tags_count_in_the_size_of_the_vocabulary() -> None:
    assert len(Tokenizer.train(LINES, kind="bpe", vocabulary_size=270, tags=["de", "fr"])) == 270
    words = Tokenizer.train(["a a b b c"], kind="whitespace", vocabulary_size=8, tags=["de", "fr"])
    assert [words.token(id) for id in range(len(words))] == [*SPECIAL_TOKENS, "a", "b", ">>de<<", ">>fr<<"]
    with pytest.raises(DragomanError, match=r"vocabulary_size=261 is too small for tokenizer bpe; give 262 or more"):
        Tokenizer.train(LINES, kind="bpe", vocabulary_size=261, tags=["de", "fr"])


@KINDS
def test_a_corpus_has_the_tag_before_every_source_of_its_part_and_text_stays_text(kind: Any, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(LINES, kind=kind, vocabulary_size=300 if kind == "bpe" else 0, tags=["de", "fr"])
    limits = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer, "max_length": 50, "batch_tokens": 50}
    first, second = [("ona bek", "tilu"), (">>fr<< rem", ">>de<< rem")], [("tilu", "ona"), ("", "x")]
    corpus = Corpus.build(tmp_path / "train", first, second, **limits, tags=["fr", "de"])
    found = [(source.tolist(), target.tolist()) for source, target in (corpus[place] for place in range(len(corpus)))]
    heads = [tokenizer.tags["fr"], tokenizer.tags["fr"], tokenizer.tags["de"]]
    assert found == [
        ([head, *tokenizer.encode(source), tokenizer.eos], [*tokenizer.encode(target), tokenizer.eos])
        for head, (source, target) in zip(heads, [*first, second[0]], strict=True)
    ]
    assert (corpus.parts, corpus.dropped) == ((2, 1), {"empty side": 1})
    exact = len(found[0][0])
    fits = Corpus.build(tmp_path / "exact", first[:1], **(limits | {"max_length": exact}), tags=["fr"])
    assert fits.source_lengths.tolist() == [exact]
    with pytest.raises(DragomanError, match="longer than max_length"):
        Corpus.build(tmp_path / "less", first[:1], **(limits | {"max_length": exact - 1}), tags=["fr"])


# Translation


def tagged_bundle(folder: Path, *, kind: str = "whitespace") -> Path:
    """A model with random weights and the tags de and fr."""
    bundle = load_bundle(tiny_bundle(folder / "plain", kind=kind, max_positions=24))
    tokenizer = bundle.source_tokenizer.with_tags(["de", "fr"])
    config = bundle.config.with_values(model={"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer)})
    from dragoman.model.build import build_model

    model = build_model(config.model, seed=11)
    save_bundle(replace(bundle, config=config, model=model, source_tokenizer=tokenizer, target_tokenizer=tokenizer), folder / "tagged")
    return folder / "tagged"


def sources_seen(translator: Translator, texts: list[str]) -> list[list[int]]:
    """The rows of ids that the encoder gets, in the order of the texts' lengths."""
    seen: list[list[int]] = []

    def note(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.extend([token for token in row if token != 0] for row in inputs[0].tolist())

    with torch.no_grad():
        handle = translator.bundle.model.encoder.register_forward_pre_hook(note)
        translator.translate(texts, beam=1)
        handle.remove()
    return seen


@KINDS
def test_the_head_of_a_line_selects_the_tag_and_nothing_else_does(kind: str, tmp_path: Path) -> None:
    translator = Translator.load(tagged_bundle(tmp_path, kind=kind), device="cpu")
    tokenizer = translator.bundle.source_tokenizer
    german, french = tokenizer.tags["de"], tokenizer.tags["fr"]
    for text, ids in {
        ">>de<< ona bek": [german, *tokenizer.encode("ona bek")],
        ">>fr<< ona bek": [french, *tokenizer.encode("ona bek")],
        ">>de<<ona": [german, *tokenizer.encode("ona")],
        ">>de<<  ona": [german, *tokenizer.encode(" ona")],
        ">>de<< >>fr<< ona": [german, *tokenizer.encode(">>fr<< ona")],
        ">>fr<< ona >>de<<": [french, *tokenizer.encode("ona >>de<<")],
        ">>fr<< >>es<<": [french, *tokenizer.encode(">>es<<")],
    }.items():
        assert sources_seen(translator, [text]) == [[*ids, tokenizer.eos]]
    assert [each.text for each in translator.translate(["", "  ", ">>de<<", ">>fr<<  "])] == [""] * 4


@KINDS
def test_a_tag_is_never_generated(kind: str, tmp_path: Path) -> None:
    translator = Translator.load(tagged_bundle(tmp_path, kind=kind), device="cpu")
    model, tags = translator.bundle.model, translator.bundle.target_tokenizer.tags
    with torch.no_grad():
        rows = model.output.weight
        rows[list(tags.values())] = 100 * rows.mean(0)  # whatever the other rows are, these are probable
    for translation in translator.translate([">>de<< ona bek", ">>fr<< tilu"], beam=3, n_best=3):
        for each in (translation, *translation.alternatives):
            assert not {">>de<<", ">>fr<<"} & set(each.tokens)


def test_a_long_line_has_its_tag_before_every_piece(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    translator = Translator.load(tagged_bundle(tmp_path), device="cpu")
    tokenizer = translator.bundle.source_tokenizer
    seen = sources_seen(translator, [">>fr<< " + " ".join(["ona"] * 50)])
    assert len(seen) > 2
    assert all(row[0] == tokenizer.tags["fr"] and len(row) <= 24 for row in seen)
    assert sum(row.count(tokenizer.encode("ona")[0]) for row in seen) == 50
    assert "line 1: 51 tokens exceed the model's limit of 23" in caplog.text
    exact = sources_seen(translator, [">>fr<< " + " ".join(["ona"] * 22)])
    assert [len(row) for row in exact] == [24]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("ona bek", "the line begins with no language tag, which tells the model what to translate into; put one of >>de<<, >>fr<<"),
        (" >>de<< ona", "the line begins with no language tag"),
        (">>de <<", "the line begins with no language tag"),
        (">>es<< ona", "the language tag >>es<< is unknown to the model; it has >>de<<, >>fr<<"),
        (">>DE<< ona", "the language tag >>DE<< is unknown to the model"),
    ],
)
def test_a_missing_or_unknown_tag_is_an_error_with_the_line(
    line: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = tagged_bundle(tmp_path), tmp_path / "text"
    text.write_text(f">>de<< ona\n\n{line}\n", encoding="utf-8")
    assert main(["translate", str(model), str(text), "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert out.split("\n")[1:] == ["", ""]  # what comes before the line is translated
    assert f"{text}, line 3: {complaint}" in err
    assert err.count("\n") == 1
    (tmp_path / "test.tsv").write_text(f">>de<< ona\tona\n{line}\tona\n", encoding="utf-8")
    status = main(["score", str(model), "--test", str(tmp_path / "test.tsv"), "--device", "cpu"])
    assert f"test.tsv: pair 2: {complaint}" in refusal(capsys, status, 1)
    status = main(["evaluate", str(model), "--test", str(tmp_path / "test.tsv"), "--device", "cpu", "--quiet"])
    assert f"line 2: {complaint}" in refusal(capsys, status, 1)


def test_to_a_model_without_tags_they_are_text(tmp_path: Path) -> None:
    translator = Translator.load(tiny_bundle(tmp_path / "plain", kind="bpe"), device="cpu")
    tokenizer = translator.bundle.source_tokenizer
    for text in (">>de<< ona", "ona"):
        assert sources_seen(translator, [text]) == [[*tokenizer.encode(text), tokenizer.eos]]


def test_scores_are_of_the_tag(tmp_path: Path) -> None:
    translator = Translator.load(tagged_bundle(tmp_path), device="cpu")
    german, french = translator.score([">>de<< ona bek", ">>fr<< ona bek"], ["tilu", "tilu"])
    assert german.log_probability != french.log_probability
    best = translator.translate([">>fr<< ona bek"], beam=1)[0]
    (again,) = translator.score([">>fr<< ona bek"], [best.text])
    assert again.log_probability == pytest.approx(best.log_probability, abs=1e-4)


# A training


def test_a_server_counts_the_languages_of_a_run_by_its_training_text(finished: Path, tmp_path: Path) -> None:
    """Of a model with tags the sources only, for its targets are of several languages."""
    from dragoman.serve.detect import profiles_of

    run = Path(shutil.copytree(finished, tmp_path / "run"))
    folder = run / "checkpoints" / (run / "checkpoints" / "best").read_text(encoding="utf-8").strip()
    (profile,) = profiles_of(folder, load_bundle(folder)).values()
    assert profile.total > 0
    assert (run / "languages.json").is_file()


def test_a_run_has_tags_in_its_corpora_its_vocabulary_and_its_models(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = load_bundle(finished)
    tokenizer = bundle.source_tokenizer
    assert list(tokenizer.tags) == ["de", "fr"]
    assert bundle.config.model.source_vocabulary == bundle.config.model.target_vocabulary == len(tokenizer)
    for name, parts in (("train", (25, 15)), ("valid", (2, 4))):
        corpus = Corpus.open(finished / "corpus" / name)
        assert corpus.parts == parts
        heads = [int(corpus[place][0][0]) for place in range(len(corpus))]
        assert heads == [tokenizer.tags["de"]] * parts[0] + [tokenizer.tags["fr"]] * parts[1]
    text = (finished / "samples" / "valid.source").read_text("utf-8").splitlines()
    assert [line.partition(" ")[0] for line in text] == [">>de<<"] * 2 + [">>fr<<"] * 4
    assert text[2] == ">>fr<< >>x<< onbek"
    assert main(["inspect", str(finished)]) == 0
    assert "language tags   >>de<< >>fr<<\n" in capsys.readouterr().out
    assert main(["inspect", str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["vocabulary"]["tags"] == ["de", "fr"]
    card = next((finished / "checkpoints").glob("step-*/README.md")).read_text("utf-8")
    assert "- Language tags: >>de<< >>fr<<; each line to translate begins with one\n" in card


def test_validation_scores_are_those_of_evaluate_on_tagged_lines(
    corpora: tuple[Path, Path], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = (finished / "samples" / "valid.reference").read_text("utf-8").splitlines()
    source = (finished / "samples" / "valid.source").read_text("utf-8").splitlines()
    test = finished.with_name("test.tsv")
    test.write_text("".join(f"{left}\t{right}\n" for left, right in zip(source, reference, strict=True)), encoding="utf-8")
    last = sorted((finished / "checkpoints").glob("step-*"))[-1]
    assert main(["evaluate", str(last), "--test", str(test), "--beam", "1", "--json", "--quiet", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    logged = records(finished, "eval")[-1]
    assert (scores["bleu"], scores["chrf"]) == (pytest.approx(logged["bleu"], abs=1e-6), pytest.approx(logged["chrf"], abs=1e-6))


def test_resumed_equals_uninterrupted(corpora: tuple[Path, Path], tmp_path: Path) -> None:
    more = ("--set", "data.weights=[0.5,2]")
    assert tagged(tmp_path / "whole", corpora, '["de","fr"]', *more, "--max-steps", "6") == 0
    assert tagged(tmp_path / "parts", corpora, '["de","fr"]', *more, "--max-steps", "3") == 0
    assert train(tmp_path / "parts", None, "--quiet", "--max-steps", "6") == 0
    assert same_bits(final_weights(tmp_path / "parts"), final_weights(tmp_path / "whole"))


def test_of_separate_vocabularies_only_the_source_has_tags(corpora: tuple[Path, Path], tmp_path: Path) -> None:
    separate = {"data__joint_vocabulary": False, "model__tie": "none"}
    assert tagged(tmp_path / "run", corpora, '["de","fr"]', "--max-steps", "1", **separate) == 0
    bundle = load_bundle(tmp_path / "run")
    assert (list(bundle.source_tokenizer.tags), bundle.target_tokenizer.tags) == (["de", "fr"], {})
    assert Translator(bundle).translate([">>fr<< onbek"], beam=1)[0].tokens


@pytest.mark.parametrize(
    ("tags", "arguments", "part"),
    [
        ('["de"]', [], "tags has 1 entries for 2 training corpora; give one for each --train"),
        ('["de","d e"]', [], "data.tags.1='d e': string should match pattern"),
        ('["de",""]', [], "data.tags.1='': string should match pattern"),
        ('["de","fr"]', ["--valid", "valid-a"], "valid_tags has 0 entries for 1 validation corpora; give one for each --valid"),
        ('["de","fr"]', ["--valid", "valid-a", "--set", 'data.valid_tags=["es"]'], "valid_tags has es, which no training corpus has"),
        ("[]", ["--valid", "valid-a", "--set", 'data.valid_tags=["de"]'], "valid_tags has de, which no training corpus has"),
        ('["de","fr"]', ["--set", 'data.valid_tags=["de"]'], "valid_tags has 1 entries for 0 validation corpora"),
    ],
)
def test_tags_that_cannot_be(
    tags: str, arguments: list[str], part: str, corpora: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(corpora[0].with_name(argument)) if argument == "valid-a" else argument for argument in arguments]
    assert part in refusal(capsys, tagged(tmp_path / "run", corpora, tags, *given), 2)
    assert list(tmp_path.iterdir()) == []


def test_validation_corpora_may_have_tags_of_their_own(corpora: tuple[Path, Path], tmp_path: Path) -> None:
    valid = ("--valid", str(corpora[0].with_name("valid-a")), "--set", 'data.valid_tags=["fr"]')
    assert tagged(tmp_path / "run", corpora, '["de","fr"]', *valid, "--max-steps", "1") == 0
    corpus, tokenizer = Corpus.open(tmp_path / "run" / "corpus" / "valid"), load_bundle(tmp_path / "run").source_tokenizer
    assert {int(corpus[place][0][0]) for place in range(len(corpus))} == {tokenizer.tags["fr"]}


# New tags for a model that is there


def test_new_rows_are_the_mean_and_at_most_as_probable_as_that() -> None:
    torch.manual_seed(0)
    embedding = Embedding(12, 8, pad=0)
    before = embedding.weight.detach().clone()
    fill_new_rows(embedding, before=9, after=11)
    assert torch.equal(embedding.weight[:9], before[:9])
    assert torch.equal(embedding.weight[11:], before[11:])
    torch.testing.assert_close(embedding.weight[9:11].detach(), before[1:9].mean(0).expand(2, 8))
    hidden = 50 * torch.randn(200, 8)
    probabilities = embedding.logits(hidden)[:, :10].softmax(-1)  # with one new entry
    assert (probabilities[:, 9] <= probabilities[:, :9].sum(-1) / 8 * 1.0001).all()
    same = embedding.weight.detach().clone()
    fill_new_rows(embedding, before=11, after=11)
    assert torch.equal(embedding.weight, same)


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_a_model_gets_tags_behind_its_vocabulary_and_keeps_its_rows(tie: str, corpora: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = corpora
    assert train(tmp_path / "parent", first, "--max-steps", "2", "--quiet", model__tie=tie) == 0
    run = tmp_path / "run"
    command = ["train", "--train", str(first), "--train", str(second), "--from", str(tmp_path / "parent"), "--out", str(run), "--quiet"]
    sets = ["--set", 'data.tags=["de","fr"]', "--set", "training.schedule=constant", "--set", "training.learning_rate=1e-30"]
    assert main([*command, *sets, "--max-steps", "1"]) == 0
    before, after = load_bundle(tmp_path / "parent"), load_bundle(run)
    entries = len(before.source_tokenizer)
    assert after.source_tokenizer.tags == {"de": entries, "fr": entries + 1}
    assert [after.source_tokenizer.token(id) for id in range(entries)] == [before.source_tokenizer.token(id) for id in range(entries)]
    assert (after.config.model.source_vocabulary, after.config.model.target_vocabulary) == (entries + 2, entries + 2)
    old, new = dict(before.model.named_parameters()), dict(after.model.named_parameters())
    assert old.keys() == new.keys()
    for name, weight in new.items():
        torch.testing.assert_close(weight[: len(old[name])], old[name], rtol=0, atol=1e-29)
        if len(weight) > len(old[name]):
            torch.testing.assert_close(weight[entries:], old[name][1:].mean(0).expand(2, -1))
    assert sum(len(weight) > len(old[name]) for name, weight in new.items()) == {"all": 1, "decoder": 2, "none": 3}[tie]
    assert (after.model.output is after.model.decoder.embedding) is (tie != "none")
    assert (after.model.encoder.embedding is after.model.decoder.embedding) is (tie == "all")


def test_unknown_words_are_counted_among_words_without_the_tags(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_pairs(tmp_path / "odd", [("onbek wolf", "KEBNO"), ("onlo", "OLNO >>de<<")])
    command = ["train", "--train", str(data), "--from", str(finished), "--out", str(tmp_path / "run"), "--max-steps", "1"]
    assert main([*command, "--set", 'data.tags=["fr"]']) == 0
    assert "train: 1 of 6 words are not in the vocabulary" in capsys.readouterr().err  # >>de<< is a word of the text it learnt from


def test_more_tags_and_none_at_all(corpora: tuple[Path, Path], finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--train", str(corpora[0]), "--from", str(finished), "--quiet", "--max-steps", "1"]
    line = refusal(capsys, main([*command, "--out", str(tmp_path / "none")]), 2)
    assert "the model that training goes on from has the language tags >>de<<, >>fr<<; give data.tags, one for each --train" in line
    assert not (tmp_path / "none").exists()
    assert main([*command, "--out", str(tmp_path / "more"), "--set", 'data.tags=["es"]']) == 0
    before, after = load_bundle(finished).source_tokenizer, load_bundle(tmp_path / "more").source_tokenizer
    assert after.tags == {**before.tags, "es": len(before)}
    assert main([*command, "--out", str(tmp_path / "same"), "--set", 'data.tags=["fr"]']) == 0
    assert load_bundle(tmp_path / "same").source_tokenizer.fingerprint == before.fingerprint


# What they are for


def digits(count: int, *, seed: int) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choices("0123456789", k=choose.randint(1, 6))) for _ in range(count)]


def test_a_model_learns_to_obey_the_tag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same lines are to be copied behind one tag and reversed behind the other."""
    tasks: dict[str, Callable[[str], str]] = {"copy": str, "back": lambda line: " ".join(line.split()[::-1])}
    lines = digits(5000, seed=1)
    unseen = [line for line in dict.fromkeys(digits(600, seed=2)) if line not in set(lines) and line != tasks["back"](line)][:100]
    for name, task in tasks.items():
        write_pairs(tmp_path / name, [(line, task(line)) for line in lines])
    settings = {
        "model__d_model": 32, "model__d_ff": 64, "model__n_heads": 4, "model__encoder_layers": 2, "model__decoder_layers": 2,
        "model__dropout": 0.0, "training__batch_tokens": 256, "training__schedule": "cosine", "training__learning_rate": 0.006,
        "training__warmup_steps": 100, "training__label_smoothing": 0.0, "training__evaluate_every": 10_000, "training__log_every": 100,
    }  # fmt: skip
    corpora, run = (tmp_path / "copy", tmp_path / "back"), tmp_path / "run"
    assert tagged(run, corpora, '["copy","back"]', "--max-steps", "800", **settings) == 0
    translator = Translator.load(run, device="cpu")
    right = {}
    for name, task in tasks.items():
        found = [each.text for each in translator.translate([f">>{name}<< {line}" for line in unseen], beam=1)]
        right[name] = sum(text == task(line) for text, line in zip(found, unseen, strict=True))
    assert min(right.values()) >= 90, f"of 100 lines: {right}"
