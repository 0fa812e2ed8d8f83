"""Reported faults B59 and B61: references in the wrong shape, and a word splitter that does not fit the language."""

import json
import logging
from pathlib import Path

import pytest

from dragoman.bundle import save_bundle
from dragoman.cli import main
from dragoman.errors import DragomanError, UsageError
from dragoman.evaluation.evaluate import evaluate_texts
from dragoman.evaluation.measures import Measure, choose_measures, score_corpus
from dragoman.evaluation.metrics import matches_exactly
from dragoman.evaluation.testset import TestSet
from small_bundles import PARK, copier

HYPOTHESES = ["The ferry left at nine.", "Two cats slept on the warm roof.", "Nobody answered the old phone."]
REFERENCES = ["The ferry left at nine.", "Two cats were sleeping on the roof.", "No one picked up the old telephone."]
ALMOST_PARK = "我们明天上午去公园散步。"
BLEU, CHRF = Measure("bleu"), Measure("chrf")


def test_the_published_value_and_signature() -> None:
    bleu, chrf = (score_corpus(measure, HYPOTHESES, [REFERENCES]) for measure in (BLEU, CHRF))
    assert bleu.score == pytest.approx(37.95, abs=0.005)
    assert bleu.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert chrf.score == pytest.approx(51.93, abs=0.005)
    assert chrf.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no")
    assert bleu.details is not None
    assert (bleu.details.hypothesis_length, bleu.details.reference_length) == (20, 22)
    assert bleu.details.precisions == pytest.approx((75.0, 52.941, 28.571, 27.273), abs=0.001)
    assert bleu.details.brevity_penalty == pytest.approx(0.904837, abs=1e-6)


def test_transposed_references_are_refused_with_both_counts() -> None:
    with pytest.raises(DragomanError, match=r"reference set 1 has 1 line,.* 3 hypotheses"):
        score_corpus(BLEU, HYPOTHESES, [[line] for line in REFERENCES])


def test_a_short_reference_file_is_refused_with_both_counts() -> None:
    with pytest.raises(DragomanError, match=r"has 2 lines.* 3 hypotheses"):
        score_corpus(BLEU, HYPOTHESES, [REFERENCES[:2]])
    with pytest.raises(DragomanError, match=r"reference set 2 has 2 lines.* 3 hypotheses"):
        score_corpus(CHRF, HYPOTHESES, [REFERENCES, REFERENCES[:2]])
    with pytest.raises(DragomanError, match=r"has 2 lines.* 3 hypotheses"):
        evaluate_texts(HYPOTHESES, TestSet(None, [REFERENCES[:2]]), [BLEU])


@pytest.mark.parametrize("references", [[], [[]], REFERENCES, REFERENCES[0]])
def test_references_of_another_shape_are_refused(references: object) -> None:
    with pytest.raises(DragomanError):
        score_corpus(BLEU, HYPOTHESES, references)  # type: ignore[arg-type]


def test_no_hypotheses_are_refused() -> None:
    with pytest.raises(DragomanError, match="nothing to score"):
        score_corpus(BLEU, [], [[]])


def test_two_references_of_which_one_is_met() -> None:
    for measure in (BLEU, CHRF):
        found = score_corpus(measure, HYPOTHESES, [REFERENCES, HYPOTHESES])
        assert found.score == pytest.approx(100.0)
        assert "nrefs:2" in found.signature


def test_case_counts_unless_told_otherwise() -> None:
    shouted = [line.upper() for line in REFERENCES]
    assert score_corpus(BLEU, REFERENCES, [shouted]).score < 10
    for measure in choose_measures(["bleu", "chrf"], lowercase=True):
        lowered = score_corpus(measure, REFERENCES, [shouted])
        assert lowered.score == pytest.approx(100.0)
        assert "case:lc" in lowered.signature


def test_chinese_needs_its_splitter(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("dragoman"), "propagate", True)
    found = score_corpus(Measure("bleu", "zh"), [PARK], [[ALMOST_PARK]])
    assert found.score == pytest.approx(64.93, abs=0.005)
    assert "tok:zh" in found.signature
    assert not caplog.records

    assert score_corpus(BLEU, [PARK], [[ALMOST_PARK]]).score == pytest.approx(0.0)
    assert score_corpus(BLEU, [PARK], [[PARK]]).score == pytest.approx(0.0)
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
    assert found["zh"]["bleu"] == score_corpus(Measure("bleu", "zh"), [PARK], [[ALMOST_PARK]]).score
    assert found["13a"]["bleu"] == pytest.approx(0.0)
    assert ("tok:zh" in found["zh"]["bleu_signature"], "tok:13a" in found["13a"]["bleu_signature"]) == (True, True)


def test_unknown_splitters_are_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"13b.*13a, none, intl, zh, char"):
        choose_measures([], tokenize="13b")
    with pytest.raises(UsageError, match="network"):
        choose_measures([], tokenize="flores200")


def test_exact_matches_are_a_percentage_of_lines() -> None:
    assert evaluate_texts(HYPOTHESES, TestSet(None, [REFERENCES]), [CHRF], resamples=0).exact_match == pytest.approx(100 / 3)
    assert matches_exactly(" a b ", ["a b"])
