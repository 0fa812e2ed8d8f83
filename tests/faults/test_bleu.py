"""Reported faults B59 and B61: references in the wrong shape, and a word splitter that does not fit the language."""

import json
import logging
from pathlib import Path

import pytest

from dragoman.bundle import save_bundle
from dragoman.cli import main
from dragoman.errors import DragomanError, UsageError
from dragoman.evaluation.metrics import corpus_scores, exact_matches
from small_bundles import PARK, copier

HYPOTHESES = ["The ferry left at nine.", "Two cats slept on the warm roof.", "Nobody answered the old phone."]
REFERENCES = ["The ferry left at nine.", "Two cats were sleeping on the roof.", "No one picked up the old telephone."]
ALMOST_PARK = "我们明天上午去公园散步。"


def test_the_published_value_and_signature() -> None:
    scores = corpus_scores(HYPOTHESES, [REFERENCES])
    assert scores.bleu == pytest.approx(37.95, abs=0.005)
    assert scores.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert scores.chrf == pytest.approx(51.93, abs=0.005)
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no")
    assert scores.lines == 3
    assert (scores.bleu_details.hypothesis_length, scores.bleu_details.reference_length) == (20, 22)
    assert scores.bleu_details.precisions == pytest.approx((75.0, 52.941, 28.571, 27.273), abs=0.001)
    assert scores.bleu_details.brevity_penalty == pytest.approx(0.904837, abs=1e-6)


def test_transposed_references_are_refused_with_both_counts() -> None:
    with pytest.raises(DragomanError, match=r"reference set 1 has 1 lines.* 3 hypotheses"):
        corpus_scores(HYPOTHESES, [[line] for line in REFERENCES])


def test_a_short_reference_file_is_refused_with_both_counts() -> None:
    with pytest.raises(DragomanError, match=r"has 2 lines.* 3 hypotheses"):
        corpus_scores(HYPOTHESES, [REFERENCES[:2]])
    with pytest.raises(DragomanError, match=r"reference set 2 has 2 lines.* 3 hypotheses"):
        corpus_scores(HYPOTHESES, [REFERENCES, REFERENCES[:2]])
    with pytest.raises(DragomanError, match=r"has 2 lines.* 3 hypotheses"):
        exact_matches(HYPOTHESES, REFERENCES[:2])


@pytest.mark.parametrize("references", [[], [[]], REFERENCES, REFERENCES[0]])
def test_references_of_another_shape_are_refused(references: object) -> None:
    with pytest.raises(DragomanError):
        corpus_scores(HYPOTHESES, references)  # type: ignore[arg-type]


def test_no_hypotheses_are_refused() -> None:
    with pytest.raises(DragomanError, match="nothing to score"):
        corpus_scores([], [[]])


def test_two_references_of_which_one_is_met() -> None:
    scores = corpus_scores(HYPOTHESES, [REFERENCES, HYPOTHESES])
    assert scores.bleu == pytest.approx(100.0)
    assert "nrefs:2" in scores.bleu_signature
    assert "nrefs:2" in scores.chrf_signature


def test_case_counts_unless_told_otherwise() -> None:
    shouted = [line.upper() for line in REFERENCES]
    assert corpus_scores(REFERENCES, [shouted]).bleu < 10
    lowered = corpus_scores(REFERENCES, [shouted], lowercase=True)
    assert lowered.bleu == pytest.approx(100.0)
    assert lowered.chrf == pytest.approx(100.0)
    assert "case:lc" in lowered.bleu_signature
    assert "case:lc" in lowered.chrf_signature


def test_chinese_needs_its_splitter(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("dragoman"), "propagate", True)
    scores = corpus_scores([PARK], [[ALMOST_PARK]], tokenize="zh")
    assert scores.bleu == pytest.approx(64.93, abs=0.005)
    assert "tok:zh" in scores.bleu_signature
    assert not caplog.records

    assert corpus_scores([PARK], [[ALMOST_PARK]]).bleu == pytest.approx(0.0)
    assert corpus_scores([PARK], [[PARK]]).bleu == pytest.approx(0.0)
    assert "choose zh" in caplog.text


def test_evaluation_of_a_model_takes_the_splitter_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_bundle(copier(), tmp_path / "model")
    (tmp_path / "test.tsv").write_text(f"{PARK}\t{ALMOST_PARK}\n", encoding="utf-8")
    found = {}
    for splitter in ("zh", "13a"):
        arguments = ["evaluate", tmp_path / "model", "--test", tmp_path / "test.tsv", "--tokenize", splitter, "--json", "--device", "cpu"]
        assert main(list(map(str, arguments))) == 0
        out, err = capfd.readouterr()
        found[splitter] = json.loads(out)
        assert ("choose zh" in err) == (splitter == "13a")
    assert found["zh"]["bleu"] == corpus_scores([PARK], [[ALMOST_PARK]], tokenize="zh").bleu
    assert found["13a"]["bleu"] == pytest.approx(0.0)
    assert ("tok:zh" in found["zh"]["bleu_signature"], "tok:13a" in found["13a"]["bleu_signature"]) == (True, True)


def test_unknown_splitters_are_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"13b.*13a, none, intl, zh, char"):
        corpus_scores(HYPOTHESES, [REFERENCES], tokenize="13b")
    with pytest.raises(UsageError, match="network"):
        corpus_scores(HYPOTHESES, [REFERENCES], tokenize="flores200")


def test_exact_matches_are_a_percentage_of_lines() -> None:
    assert exact_matches(HYPOTHESES, REFERENCES) == pytest.approx(100 / 3)
    assert exact_matches([" a b "], ["a b"]) == 100
