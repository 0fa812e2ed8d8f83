"""dragoman translate --engine ctranslate2: the same text in and out, the same greedy outputs and scores, refusals by name."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import tiny_bundle
from dragoman.bundle import load_bundle, save_bundle
from dragoman.cli import main
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.translate import Translator
from small_bundles import EMOJI, PARK, fx_rand, fx_toy, random_sentences

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
engine = pytest.importorskip("dragoman.interop.ctranslate2_engine")
LINES = [*random_sentences(30, words=24, seed=3), "", "   ", "unknown words here", "ona " * 80, "</s> ona", *random_sentences(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "toy"
    save_bundle(fx_toy(), folder)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def translate(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    assert main(["translate", *map(str, arguments), "--device", "cpu"]) == 0, capsys.readouterr().err
    found = capsys.readouterr()
    return found.out, found.err


@pytest.mark.parametrize(
    "options", [[], ["--max-length", "4"], ["--no-repeat-ngram", "2"], ["--max-length", "1.2x", "--min-length", "0.8x"]]
)
def test_greedy_search_finds_the_same(options: list[str], model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, _ = translate(capsys, model, text, "--beam", 1, *options)
    there, said = translate(capsys, model, text, "--beam", 1, *options, "--engine", "ctranslate2")
    assert there == here
    assert len(there.splitlines()) == len(LINES)
    assert "dragoman: CTranslate2 " in said
    assert "translates, from " in said


def test_scores_and_reasons_are_the_same_where_outputs_are(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for beam, least in ((1, len(LINES)), (4, len(LINES) - 6)):
        here, there = (
            [json.loads(line) for line in translate(capsys, model, text, "--beam", beam, "--json", "--engine", name)[0].splitlines()]
            for name in ("torch", "ctranslate2")
        )
        pairs = [(one, other) for one, other in zip(here, there, strict=True) if one["text"] == other["text"]]
        assert len(pairs) >= least
        for one, other in pairs:
            assert one["stop"] == other["stop"]
            assert one["tokens"] == other["tokens"]
            assert other["token_scores"] == pytest.approx(one["token_scores"], abs=1e-4)
            assert other["log_probability"] == pytest.approx(one["log_probability"], abs=1e-3)
            assert other["score"] == pytest.approx(one["score"], abs=1e-3)


def test_alpha_means_what_it_means_here(model: Path) -> None:
    bundle = fx_toy()
    there = Translator(bundle, engine=engine.CTranslate2Engine(bundle, engine.prepare(model, bundle)))
    lines = LINES[:12]
    for alpha in (0.0, 0.6, 2.0):
        for translation in there.translate(lines, beam=4, alpha=alpha, n_best=4):
            every = [translation, *translation.alternatives]
            assert [each.score for each in every] == sorted((each.score for each in every), reverse=True)
            assert len({each.tokens for each in every}) == len(every)
            for each in every:
                n = len(each.tokens)
                assert each.score == pytest.approx(each.log_probability / ((5 + n) / 6) ** alpha)
    # Without --json only the search's own sum is at hand; it is the forced one.
    sums = [each.log_probability for each in there.translate(lines, beam=4)]
    assert sums == pytest.approx([each.log_probability for each in there.translate(lines, beam=4)])
    scored = Translator(bundle, engine=engine.CTranslate2Engine(bundle, engine.prepare(model, bundle), scored=True))
    assert sums == pytest.approx([sum(each.token_scores) for each in scored.translate(lines, beam=4)], abs=1e-3)


def test_byte_pairs_give_plain_text(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "bytes", kind="bpe"))
    there = Translator(bundle, engine=engine.CTranslate2Engine(bundle, engine.prepare(tmp_path / "bytes", bundle)))
    texts = [*EMOJI, PARK, "ona bek </s> tilu", " x  y ", "", "\u2028"]
    assert [each.text for each in there.translate(texts, beam=1)] == [each.text for each in Translator(bundle).translate(texts, beam=1)]


def test_tokens_without_text_are_never_said(tmp_path: Path) -> None:
    bundle = fx_rand(seed=4)
    bundle.model.eval()
    with torch.no_grad():
        bundle.model.output.weight[0] = 3 * bundle.model.output.weight[5]  # padding, which is then the most probable at times
    save_bundle(bundle, tmp_path / "model")
    here, there = (
        Translator(bundle),
        Translator(bundle, engine=engine.CTranslate2Engine(bundle, engine.prepare(tmp_path / "model", bundle))),
    )
    texts = random_sentences(20)
    assert [each.tokens for each in there.translate(texts, beam=1)] == [each.tokens for each in here.translate(texts, beam=1)]


def test_loops_are_ended_as_here(model: Path) -> None:
    bundle, line = fx_toy(), "ona bek tilu rem"
    there = Translator(bundle, engine=engine.CTranslate2Engine(bundle, engine.prepare(model, bundle), scored=True))
    for guard in (0, 4):
        options: dict[str, Any] = {"beam": 1, "max_length": 60, "options": SearchOptions(min_length=50, repetition_guard=guard)}
        here, other = (each.translate([line], **options)[0] for each in (Translator(bundle), there))
        assert (other.tokens, other.stop) == (here.tokens, here.stop)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--tree"], "--tree"),
        (["--sample"], "--sample"),
        (["--mbr", "chrf"], "--mbr"),
        (["--diverse-groups", "2"], "--diverse-groups"),
        (["--require", "ONA", "--forbid", "KEB"], "--require, --forbid"),
        (["--prefix", "column"], "--prefix"),
        (["--ensemble", "MODEL"], "--ensemble"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(
    options: list[str], named: str, model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [str(model) if option == "MODEL" else option for option in options]
    assert main(["translate", str(model), str(text), "--engine", "ctranslate2", *options]) == 2
    found = capsys.readouterr()
    assert f"--engine ctranslate2 cannot do {named} as it is done here" in found.err
    assert found.out == ""


def test_unknown_engines_and_types_that_it_has_not_are_refused(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", str(model), str(text), "--engine", "onnx"]) == 2
    assert "--engine onnx: unknown; give torch or ctranslate2" in capsys.readouterr().err
    import ctranslate2

    if "bfloat16" not in ctranslate2.get_supported_compute_types("cpu"):
        assert main(["translate", str(model), str(text), "--engine", "ctranslate2", "--precision", "bf16", "--device", "cpu"]) == 2
        assert "--precision bf16: CTranslate2 has no bfloat16 on this cpu; it has " in capsys.readouterr().err


def test_eight_bits_give_as_many_lines(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there, _ = translate(capsys, model, text, "--engine", "ctranslate2", "--precision", "int8")
    assert len(there.splitlines()) == len(LINES)
    assert there.splitlines()[30:32] == ["", ""]


def test_the_folder_is_made_once_and_for_these_weights(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("ctranslate2-*"))
    bundle = fx_toy()
    first, second = engine.prepare(copy, bundle), engine.prepare(copy, bundle)
    assert first.folder == second.folder
    assert first.folder.parent == copy
    assert first.made is not None
    assert second.made is None
    assert "made before" in second.sentence()
    (copy / "config.json").write_text((copy / "config.json").read_text("utf-8") + "\n", encoding="utf-8")
    assert engine.prepare(copy, bundle).folder != first.folder


def test_where_the_model_cannot_be_written_to_a_temporary_folder_is_used(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("ctranslate2-*"))
    usual = tempfile.TemporaryDirectory

    def refusing(dir: Path | None = None, **options: Any) -> Any:
        if dir is not None:
            raise PermissionError(13, "Permission denied")
        return usual(**options)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refusing)
    bundle = fx_toy()
    prepared = engine.prepare(copy, bundle)
    assert not prepared.folder.is_relative_to(copy)
    assert "for this time only as the model's folder cannot be written" in prepared.sentence()
    assert not [*copy.glob("*ctranslate2*")]
    found = Translator(bundle, engine=engine.CTranslate2Engine(bundle, prepared)).translate(LINES[:3], beam=1)
    assert [each.text for each in found] == [each.text for each in Translator(bundle).translate(LINES[:3], beam=1)]


def test_a_model_that_does_not_fit_is_named(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bundle(fx_rand(norm_place="deepnorm"), tmp_path / "deep")
    assert main(["translate", str(tmp_path / "deep"), str(text), "--engine", "ctranslate2"]) == 1
    assert "CTranslate2 has nothing for norm_place='deepnorm'" in capsys.readouterr().err


def test_what_is_not_installed_is_said(
    model: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "installed_version", lambda: "")
    assert main(["translate", str(model), str(text), "--engine", "ctranslate2"]) == 1
    assert "CTranslate2 is not installed; pip install 'dragoman[ctranslate2]'" in capsys.readouterr().err
