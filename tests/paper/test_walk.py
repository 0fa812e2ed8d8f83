"""The walk through the paper: every section has its line, every line is shown, every number comes out a second time."""

import linecache
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

import dragoman
from dragoman.data.tokenizer import Tokenizer
from dragoman.explain import equations
from dragoman.explain.answer import explain
from dragoman.explain.mathml import equation
from dragoman.explain.record import Line, tagged_lines
from dragoman.explain.steps import Check, focus_on
from dragoman.explain.walk import walk
from dragoman.model import build_model
from explained import DEPARTURES, TEXT, bundle_of, explained, walked

PLACES = ("(1)", "(2)", "(3)", "3.1", "3.2.2", "3.2.3", "3.4", "3.5", "5.1", "5.3", "5.4", "6.1")
PACKAGE = Path(dragoman.__file__).parent


def shown_lines(name: str) -> set[Line]:
    steps = {line for step in walked(name) for line in step.lines}
    return steps | {recorded.line for recorded in explained(name).trace.values() if recorded.line is not None}


def test_every_section_and_equation_of_the_walk_has_a_line() -> None:
    places = {line.place for line in tagged_lines()}
    assert [place for place in PLACES if place not in places] == []


def test_every_line_with_a_tag_is_shown_in_a_walk_of_two_layers() -> None:
    shown = {line for name in DEPARTURES for line in shown_lines(name)}
    one_token = explain(bundle_of("paper"), TEXT, max_length=1)  # a single position needs no mask
    shown |= {recorded.line for recorded in one_token.trace.values() if recorded.line is not None}
    assert [f"{line.file}:{line.number}" for line in tagged_lines() if line not in shown] == []


def test_the_papers_own_lines_are_shown_in_a_walk_of_the_papers_model() -> None:
    """What only a named departure computes is not among them."""
    others = {
        "inner = swish(",
        "turned",
        "learned positions",
        "x + Sublayer(LayerNorm(x))",
        "α · x",
        "inner W_2 + b_2",
        "weights = softmax",
    }
    missing = [line for line in tagged_lines() if line not in shown_lines("paper")]
    assert [line.text for line in missing if not any(other in line.text for other in others)] == []


def test_tags_are_of_one_form() -> None:
    """Every § in the code that is explained opens a tag that is read as one."""
    found = [
        (path.relative_to(PACKAGE).as_posix(), number)
        for path in sorted(PACKAGE.glob("*/*.py"))
        if path.parent.name != "explain"
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if "§" in text
    ]
    assert found == [(line.file, line.number) for line in tagged_lines()]
    assert len(found) > 25


@pytest.mark.parametrize("name", DEPARTURES)
def test_a_line_is_shown_as_it_is_installed(name: str) -> None:
    for line in shown_lines(name):
        assert line.text == linecache.getline(str(PACKAGE / line.file), line.number).rstrip("\n")
        assert (line.number, line.text) in line.around()
        assert f"§{line.place} {', '.join(line.names)}" in line.text


@pytest.mark.parametrize("name", DEPARTURES)
def test_what_was_computed_is_computed_again(name: str) -> None:
    checks = [(step.number, check) for step in walked(name) for check in step.checks]
    assert all(check.difference <= 1e-5 * max(1.0, abs(check.recomputed)) for _, check in checks), checks
    missing = {17} if explained(name).beams is None else set()
    assert {step.number for step in walked(name)} - {number for number, _ in checks} == set()
    whole = set(range(1, 21)) - missing - ({14} if "cross" not in explained(name).kinds else set())
    assert {step.number for step in walked(name)} == whole - ({13} if "decoder" not in explained(name).kinds else set())


@pytest.mark.parametrize("name", DEPARTURES)
def test_each_step_has_its_section_few_words_a_drawable_equation_and_a_line(name: str) -> None:
    for step in walked(name):
        assert re.fullmatch(r"[356]\.\d(\.\d)?", step.section)
        assert 10 < len(step.prose.split()) <= 80
        assert ElementTree.fromstring(step.mathml).tag.endswith("}math")
        assert step.lines
        assert step.tables
        for table in step.tables:
            assert {len(row) for row in table.rows} == {len(table.header)}
        if step.tensor:
            assert step.tensor in explained(name).trace


def test_the_walk_follows_the_layer_and_the_head() -> None:
    """The row of step 7 is that of the weights, in the layer and the head that were asked for."""
    found, steps = explained("paper"), {step.number: step for step in walked("paper")}
    assert steps[7].tensor == "encoder.1.self.weights"
    weights = [row[3] for row in steps[7].tables[0].rows]
    rows = found.weights("encoder")[1, 1]  # (T, T)
    assert any(np.array_equal(row, np.float32(weights)) for row in rows)
    assert math.fsum(weights) == pytest.approx(1, abs=1e-6)  # type: ignore[arg-type]


def test_a_wrong_number_would_be_seen() -> None:
    check = Check.of("a product", [1.0, 2.0, 3.0], [1.0, 2.5, 3.0])
    assert (check.difference, check.count, check.model, check.recomputed) == (0.5, 3, 3.0, 3.0)
    with pytest.raises(ValueError, match="2 numbers are compared with 3"):
        Check.of("a product", [1.0, 2.0], [1.0, 2.0, 3.0])


def test_the_second_computation_has_the_golden_values() -> None:
    """Those of the paper's formulas, worked out apart from this code."""
    query = equations.exact([[1, 0], [0, 1], [1, 1]])
    weights = equations.softmax(equations.scores(query, query))
    golden = [[3, 4], [3.406672556, 4.406672556], [3.510469530, 4.510469530]]
    assert np.allclose(weights @ [[1, 2], [3, 4], [5, 6]], golden, atol=1e-8)
    causal = equations.softmax(equations.scores(query, query), np.tril(np.ones((3, 3), bool)))
    assert np.allclose(causal @ [[1, 2], [3, 4], [5, 6]], [[1, 2], [2.339523099, 3.339523099], [3.510469530, 4.510469530]], atol=1e-8)
    assert np.allclose(
        equations.layer_norm(equations.exact([1, 2, 3, 4]), np.ones(4), np.zeros(4), 1e-6),
        [-1.34164025, -0.447213417, 0.447213417, 1.34164025],
        atol=1e-8,
    )
    assert np.allclose(equations.sinusoid(10, 512)[256:258], [0.0998334166, 0.9950041653], atol=1e-10)
    assert equations.learning_rate(4000, 512, 4000) == pytest.approx(6.9877124e-04, rel=1e-8)
    q = equations.smoothed(37_000, 5, 0.1)
    assert -(q * np.log(q)).sum() == pytest.approx(1.3769132, abs=1e-7)
    assert np.allclose(equations.adam_step(equations.exact([0.5, -2.0]), 0.1, 0.9, 0.98, 1e-9), [-0.1, 0.1], atol=1e-9)
    assert equations.softmax(equations.exact([[1.0, 2.0]]), np.zeros((1, 2), bool)).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("text", ["{a", "a}", "a_", "/ b", "√", "^2"])
def test_an_equation_that_cannot_be_drawn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"equation|brace"):
        equation(text)


def test_an_equation_is_drawn_as_it_is_written() -> None:
    drawn = ElementTree.fromstring(equation('{Q K^T}/√{d_k} = 1.5e-3 "is < it"'))
    text = re.sub(r"\{[^}]*\}", "", ElementTree.tostring(drawn, encoding="unicode"))
    assert "<mfrac" in ElementTree.tostring(drawn, encoding="unicode").replace("ns0:", "")
    assert re.sub(r"<[^>]*>", " ", text).split() == ["Q", "K", "T", "d", "k", "=", "1.5", "·", "10", "-3", "is", "&lt;", "it"]


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("q log p", "q log p"),
        ("log P(Y)", "log P(Y)"),
        ("memory W^K", "memory WK"),
        ("(1 - a) gold", "(1-a) gold"),
        ("softmax(x) V", "softmax(x)V"),
        ('a " for " j', "a for j"),
    ],
)
def test_a_name_stands_apart_from_what_it_is_multiplied_with(text: str, drawn: str) -> None:
    tree = ElementTree.fromstring(equation(text))
    for space in tree.findall(".//{*}mspace"):
        space.text = " "
    assert "".join(tree.itertext()).replace("\u00a0", " ") == drawn


def drawn_equation(name: str, number: int) -> str:
    """The letters and signs of a step's equation, without spaces."""
    (step,) = (step for step in walked(name) if step.number == number)
    return re.sub(r"\s", "", "".join(ElementTree.fromstring(step.mathml).itertext()))


def test_an_equation_is_that_of_the_model_and_not_always_the_papers() -> None:
    assert "FFN(x)=max(0,xW1+b1)W2+b2," in drawn_equation("paper", 11)
    assert "FFN(x)=(swish(xWg+bg)⊙(xW1+b1))W2+b2," in drawn_equation("pre", 11)
    assert "FFN(x)=swish(xW1)W2," in drawn_equation("bare", 11)
    assert "FFN(x)=GELU(xW1+b1)W2+b2," in drawn_equation("rms", 11)
    assert "PEpos,i=sin" in drawn_equation("rms", 3)
    assert "PEpos,8+i=cos" in drawn_equation("rms", 3)
    assert "cosθi" in drawn_equation("deepnorm", 3)
    assert "5002i∕8" in drawn_equation("deepnorm", 3)
    assert ("+b" in drawn_equation("paper", 9), "+b" in drawn_equation("bare", 9)) == (True, False)
    assert ("+b" in drawn_equation("paper", 15), "+b" in drawn_equation("bare", 15)) == (False, True)
    assert drawn_equation("encoder-only", 6).endswith("forjthatispadding")
    assert drawn_equation("decoder-only", 6).endswith("forj>i")


def test_words_are_of_the_model_too() -> None:
    words = {name: {step.number: step.prose for step in walked(name)} for name in DEPARTURES}
    assert "The encoder sees all" in words["paper"][6]
    assert "encoder" not in words["decoder-only"][6].replace("decoder", "")
    assert "max(0, ·), and down" in words["paper"][11]
    assert "GELU, and down again" in words["deepnorm"][11]
    assert "added next" not in words["deepnorm"][2]
    rows = {name: next(step for step in walked(name) if step.number == 12).tables[0].rows for name in ("paper", "deepnorm")}
    assert [rows[name][0][0] for name in rows] == ["embedding + position", "embedding"]


def test_what_departs_in_training_is_said() -> None:
    found = explained("paper")
    settings = {"optimizer": "muon", "rdrop": 5.0, "factor": 2.0}
    other = replace(found, bundle=replace(found.bundle, config=found.bundle.config.with_values(training=settings)))
    words = {step.number: step.prose for step in walk(other, focus_on(other))}
    assert ["R-Drop" in words[18], "2 times the rate" in words[19], "Muon" in words[20]] == [True] * 3
    assert all(len(text.split()) <= 80 for text in words.values())


def test_the_query_that_is_rotated_is_normed_first_where_the_model_does() -> None:
    bundle = bundle_of("deepnorm")
    config = bundle.config.with_values(model={"qk_norm": True})
    normed = replace(bundle, config=config, model=build_model(config.model, seed=3).eval())
    found = explain(normed, TEXT)
    step = walk(found, focus_on(found))[2]
    assert [row[0] for row in step.tables[0].rows] == ["query", "normed", "rotated"]
    assert [check.difference < 1e-5 for check in step.checks] == [True]


def test_parentheses_hold_together_what_a_power_is_of() -> None:
    power = ElementTree.fromstring(equation("lp(Y) = ({5 + n}/6)^0.6")).find(".//{*}msup")
    assert power is not None
    assert "".join(power[0].itertext()) == "(5+n6)"
    with_one_alone = ElementTree.fromstring(equation("{a ( b} + c )"))
    assert "".join(with_one_alone.itertext()) == "a(b+c)"


def _word_pieces() -> Tokenizer:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "horse", "rid", "##es", "."]
    backend = Backend(models.WordPiece({entry: token for token, entry in enumerate(entries)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens(entries[:5])
    return Tokenizer(kind="foreign", joiner="", pad=0, bos=2, eos=3, unk=1, backend=backend, mask=4)


@pytest.mark.parametrize(
    ("tokenizer", "text", "known", "named"),
    [
        (_word_pieces(), "A horse rides [MASK] zebra.", 5, "the pieces of the tokenizer that came with the model"),
        (Tokenizer.train(["a horse"], kind="characters", vocabulary_size=0), "a shore, zoo", 10, "its characters"),
        (Tokenizer.train(["a horse"], kind="whitespace", vocabulary_size=0), "a zebra horse", 2, "the pieces between its spaces"),
    ],
)
def test_ids_of_any_tokenizer_come_back_but_for_those_without_a_text(tokenizer: Tokenizer, text: str, known: int, named: str) -> None:
    """An unknown word and a mask have none, so they are not compared: their names would be taken apart."""
    found = explain(replace(bundle_of("bert"), source_tokenizer=tokenizer, target_tokenizer=tokenizer), text)
    step = next(step for step in walk(found, focus_on(found)) if step.number == 1)
    (check,) = step.checks
    assert (check.count, check.model, check.recomputed, check.difference) == (known, known, known, 0)
    assert named in step.prose
