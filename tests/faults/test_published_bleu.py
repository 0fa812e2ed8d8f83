"""BLEU as others have published it: on the test bed of WMT 2015, and in the words of the paper's Table 2."""

import html
import json
import re
import zipfile
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.data.formats.lines import read_lines
from dragoman.evaluation.measures import Measure, choose_measures, score_corpus
from dragoman.evaluation.paper_bleu import moses_words, paper_words, split_compounds

FOLDER = "wmt15_eval/"
RAW = FOLDER + "newstest-2015-100sents.en-ru."


@pytest.fixture(scope="module")
def wmt15(data_folder: Path) -> zipfile.ZipFile:
    archive = data_folder / "metrics" / "wmt15_eval.zip"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    return zipfile.ZipFile(archive)


def lines(archive: zipfile.ZipFile, name: str) -> list[str]:
    return archive.read(name).decode().rstrip("\n").split("\n")


def segments(archive: zipfile.ZipFile, name: str) -> list[str]:
    found = re.findall(r"<seg[^>]*>(.*?)</seg>", archive.read(FOLDER + name).decode())
    return [html.unescape(segment).strip() for segment in found]


def test_mteval_13a_gave_23_18(wmt15: zipfile.ZipFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The official log in the archive says BLEU = 0.2318, 1998 words for 1862, n-grams .5415 .2972 .1752 .1025."""
    log = wmt15.read(FOLDER + "mteval-13a.output").decode()
    assert "BLEU score = 0.2318" in log
    texts = [segments(wmt15, f"newstest2015-100sents-enru-{name}.ru.sgm") for name in ("google", "ref")]
    for name, text in zip(("hyp.ru", "ref.ru"), texts, strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    assert main(["evaluate", "--hypotheses", str(tmp_path / "hyp.ru"), "--reference", str(tmp_path / "ref.ru"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bleu"] == pytest.approx(23.18, abs=0.005)
    assert "|tok:13a|smooth:exp|" in document["bleu_signature"]
    details = document["bleu_details"]
    assert (details["hypothesis_length"], details["reference_length"], details["brevity_penalty"]) == (1998, 1862, 1.0)
    assert details["precisions"] == pytest.approx([54.15, 29.72, 17.52, 10.25], abs=0.02)
    low, high = (document["bleu_interval"][end] for end in ("low", "high"))
    assert low < 23.18 < high


@pytest.mark.parametrize("name", ["ref.ru", "google.ru", "src.en"])
def test_words_are_split_as_moses_splits_them(wmt15: zipfile.ZipFile, name: str) -> None:
    ours = [moses_words(line, language=name.rpartition(".")[2]) for line in lines(wmt15, RAW + name)]
    theirs = [html.unescape(line).split() for line in lines(wmt15, FOLDER + name)]
    assert len(ours) == 100
    assert ours == theirs


def test_multi_bleu_gave_23_17(wmt15: zipfile.ZipFile) -> None:
    """README of the archive: BLEU = 23.17, 53.8/29.6/17.6/10.3 (BP=1.000, hyp_len=1989, ref_len=1852); no compounds split."""
    raw = [lines(wmt15, RAW + name) for name in ("google.ru", "ref.ru")]
    hypotheses, references = ([" ".join(moses_words(line, language="ru")) for line in text] for text in raw)
    found = score_corpus(Measure("bleu", "none"), hypotheses, [references])
    assert found.score == pytest.approx(23.17, abs=0.005)
    assert found.details is not None
    assert found.details.precisions == pytest.approx((53.8, 29.6, 17.6, 10.3), abs=0.05)
    assert (found.details.hypothesis_length, found.details.reference_length) == (1989, 1852)

    split = score_corpus(Measure("paper-bleu", language="ru"), raw[0], [raw[1]])
    by_hand = [[re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in text] for text in (hypotheses, references)]
    assert split.score == pytest.approx(score_corpus(Measure("bleu", "none"), by_hand[0], [by_hand[1]]).score)
    assert "|tok:moses-ru+compounds|smooth:none|" in split.signature


def test_german_is_split_as_the_published_captions_are(data_folder: Path) -> None:
    """Multi30k's files went through Moses too; but before through a normaliser, so lines with typographic signs are left out."""
    texts = []
    for name in ("raw/test_2016_flickr.de.gz", "tok/test_2016_flickr.lc.norm.tok.de.gz"):
        texts.append(list(read_lines(data_folder / "multi30k" / name)))
    pairs = [(raw.lower(), html.unescape(tokenised)) for raw, tokenised in zip(*texts, strict=True) if not re.search('[–„“”‘’"]', raw)]
    assert len(pairs) > 990
    assert [tokenised.split() for _, tokenised in pairs] == [moses_words(raw, language="de") for raw, _ in pairs]


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        ("It's the dogs' 1990's car, isn't it?", "en", "It 's the dogs ' 1990 's car , isn 't it ?"),
        ("L'homme d'en face", "fr", "L' homme d' en face"),
        ("Wie geht's?", "de", "Wie geht ' s ?"),
        ("Prices rose 1,5 % to 3.14, then fell...", "en", "Prices rose 1,5 % to 3.14 , then fell ..."),
        ("J. Smith met Dr. Who in the U.S. today.", "en", "J. Smith met Dr . Who in the U.S. today ."),
        ("Am 24. Dezember 1999. Ende.", "de", "Am 24. Dezember 1999 . Ende ."),
        ("approx. five (or six)", "en", "approx. five ( or six )"),
        ("a_b c\td", "en", "a _ b c d"),
        ("cafe\u0301 – ok", "en", "cafe\u0301 – ok"),
        ("", "en", ""),
        (" . ", "en", "."),
    ],
)
def test_the_rules(text: str, language: str, words: str) -> None:
    assert " ".join(moses_words(text, language=language)) == words


def test_punctuation_becomes_ascii_and_compounds_come_apart() -> None:
    assert paper_words("“Rich-text” – das Format…", language="de") == '" Rich ##AT##-##AT## text " – das Format ...'
    assert split_compounds("a well-known - thing") == "a well ##AT##-##AT## known - thing"


def test_table_2_is_explained_beside_the_usual_bleu() -> None:
    by_name = {measure.name: measure.explanation for measure in choose_measures([])}
    assert "Table 2" in by_name["paper-bleu"]
    assert "compounds" in by_name["paper-bleu"]
    assert all(sentence and "\n" not in sentence for sentence in by_name.values())
    hypothesis, reference = ["Ein gut gekleideter Mann-Hund bellt laut"], ["Ein gut gekleideter Mann-Hund bellt leise"]
    plain, paper = (score_corpus(Measure(name, language="de"), hypothesis, [reference]) for name in ("bleu", "paper-bleu"))
    assert plain.details is not None
    assert paper.details is not None
    assert (plain.details.hypothesis_length, paper.details.hypothesis_length) == (6, 8)
    assert paper.score > plain.score
