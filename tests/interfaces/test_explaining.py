"""``dragoman explain``: what it prints, draws and writes, from Python and from the command line."""

import base64
import dataclasses
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.bundle import mark_checkpoint, save_bundle
from dragoman.cli import main
from dragoman.cli.explain_text import summary
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.fill import mask_text, masked_ids
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError, UsageError
from dragoman.explain.answer import Explanation, explain
from dragoman.explain.attention import attention_svg, head_habits, matrix_png, signed_png
from dragoman.explain.page import explanation_page
from dragoman.explain.page_search import tree_svg
from dragoman.explain.page_walk import sources_html
from dragoman.explain.record import Line
from dragoman.explain.steps import Step, find_token, focus_on
from dragoman.explain.walk import walk
from explained import DEPARTURES, TEXT, bundle_of, explained, walked
from html_pages import ATTACKS, Page
from small_bundles import fx_rand, make_bundle, random_sentences

SVG = "{http://www.w3.org/2000/svg}"
ODD = ["👩‍🚀 ", " سلام", "<b>&\"'", "x" * 90, "\\xe2\\x98", "   ", "東京東京", " Law", "a\u0301\u0301", "\x1b[31m", ""]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "paper"
    save_bundle(bundle_of("paper"), folder)
    return folder


def page_of(found: Explanation, name: str = "paper") -> str:
    return explanation_page(found, focus_on(found), walked(name))


def test_it_says_what_translate_says() -> None:
    bundle = fx_rand()
    translator = Translator(bundle)
    for text in random_sentences(6):
        found = explain(bundle, text)
        assert found.beams is not None
        (wanted,) = translator.translate([text], n_best=4)
        assert [each.text for each in found.beams.candidates] == [each.text for each in (wanted, *wanted.alternatives)]
        assert found.target.side.pieces == wanted.tokens
        assert np.allclose(found.target.token_scores, wanted.token_scores, atol=1e-5)
        assert found.beams.candidates[0].hypothesis.score == pytest.approx(wanted.score, abs=1e-6)


def test_words_that_are_not_in_the_vocabulary_are_told_as_they_stand(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model), f"{TEXT} Zxqy  ona ½ "]) == 0
    assert "             not in the vocabulary: Zxqy, ½\n" in capsys.readouterr().out


def test_the_tree_is_drawn_with_the_way_of_the_chosen_candidate() -> None:
    """A text for each step and each node, which tells its whole piece, and lines from all but the first step's."""
    found = explain(fx_rand(), random_sentences(1)[0], beam=3, chosen=1)
    assert found.beams is not None
    root = ElementTree.fromstring(tree_svg(found, found.beams))
    nodes = [node for step in found.beams.tree for node in step]
    texts, tokenizer = list(root.iter(f"{SVG}text")), found.bundle.target_tokenizer
    assert len(texts) == len(found.beams.tree) + len(nodes)
    said = [str(title.text) for text in texts for title in text.iter(f"{SVG}title")]
    assert [each.split("”")[0] for each in said] == [f"“{tokenizer.token(node.token).strip()}" for node in nodes]
    assert sum(each.endswith("kept") for each in said) == sum(node.kept for node in nodes)
    assert len(list(root.iter(f"{SVG}path"))) == sum(node.parent is not None for node in nodes)
    bold = [str(title.text).split("”")[0][1:] for text in texts if text.get("font-weight") for title in text.iter(f"{SVG}title")]
    assert bold == [tokenizer.token(token).strip() for token in found.beams.candidates[1].hypothesis.tokens]


def test_a_piece_that_its_column_of_the_tree_has_no_room_for_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    found = explain(fx_rand(), "ona bek", beam=1)
    assert found.beams is not None
    for piece, shown in (("bek", "bek"), ("Mannschaften", "Mannsch…"), ("宇宙船の乗組員", "宇宙船…")):
        monkeypatch.setattr("dragoman.explain.page_search.shown_piece", lambda _, piece=piece: piece)
        texts = ElementTree.fromstring(tree_svg(found, found.beams)).iter(f"{SVG}text")
        assert {str(title.tail).removeprefix("■ ") for text in texts for title in text.iter(f"{SVG}title")} == {shown}


def test_the_tree_is_the_search() -> None:
    """Each node adds its token to its parent, the kept ones are the best of all continuations, and every candidate has its way."""
    found = explain(fx_rand(), "ona bek tilu rem sova kip", beam=3)
    beams = found.beams
    assert beams is not None
    before: tuple[Any, ...] = ()
    for step in beams.tree:
        for node in step:
            start = 0.0 if node.parent is None else before[node.parent].total
            assert node.total == pytest.approx(start + node.log_probability, abs=1e-5)
            assert node.parent is None or (before[node.parent].kept and not before[node.parent].ended)
        kept, pruned = ([node.total for node in step if node.kept is state] for state in (True, False))
        assert len(kept) <= 3
        assert not pruned or max(pruned) <= min(kept)
        before = step
    for each in beams.candidates:
        nodes = [step[place] for step, place in zip(beams.tree, each.path, strict=False)]
        assert [node.token for node in nodes] == list(each.hypothesis.tokens)
        assert nodes[-1].ended
        assert nodes[-1].total == pytest.approx(each.hypothesis.log_probability, abs=1e-5)
    assert len(beams.trace["beam.totals"].values) == len(beams.tree)


def test_why_a_candidate_is_behind() -> None:
    beams = explain(fx_rand(), "ona bek tilu rem sova kip").beams
    assert beams is not None
    best, *others = beams.candidates
    assert best.behind_from is None
    for each in others:
        ours, theirs = (np.cumsum(one.hypothesis.token_scores) for one in (each, best))
        count = len(ours)
        padded = np.concatenate([theirs, np.full(max(count - len(theirs), 0), theirs[-1])])[:count]
        below = ours < padded
        assert each.behind_from == (None if not below[-1] else count - 1 - int(np.argmin(below[::-1])) + 1 if not below.all() else 0)


def test_a_prefix_and_a_reference() -> None:
    found = explained("paper")
    assert found.reference is not None
    assert found.reference.side.text == "tilu rem ona"
    assert found.reference.ranks() == [
        1 + int((row > row[token]).sum()) for row, token in zip(found.reference.log_probs, found.reference.side.ids, strict=True)
    ]
    begun = explain(bundle_of("paper"), TEXT, target_prefix="rem kip")
    assert begun.target.side.pieces[:2] == ("rem", "kip")
    steps = begun.record()["steps"]
    assert steps[0]["rank"] == begun.target.ranks()[0]
    assert sum(p for _, p in steps[0]["top"]) <= 1 + 1e-6


def test_json_is_what_it_says(run: Callable[..., str], model: Path) -> None:
    document = json.loads(run("explain", model, TEXT, "--json", "--reference", "tilu rem", "--layer", "2", "--head", "1"))
    found = explain(bundle_of("paper"), TEXT, reference="tilu rem")
    assert document["source"]["pieces"] == [*TEXT.split(), "</s>"]
    assert document["candidates"][0]["text"] == found.target.side.text
    assert [step["piece"] for step in document["steps"]] == list(found.target.side.pieces)
    assert document["reference"]["pieces"] == ["tilu", "rem", "</s>"]
    assert len(document["beam_tree"]) == len(found.beams.tree if found.beams else ())
    assert [step["number"] for step in document["paper"]] == list(range(1, 21))
    assert (document["focus"]["layer"], document["focus"]["head"]) == (1, 0)
    for kind, picture in document["attention"].items():
        weights = found.weights(kind)
        assert picture["shape"] == list(weights.shape)
        shown = np.frombuffer(base64.b64decode(picture["u8"]), np.uint8).reshape(weights.shape) / 255
        assert np.abs(shown - weights).max() <= 1 / 510 + 1e-6
    names = {entry["name"]: entry for entry in document["walk"]}
    assert names["encoder.0.self.scores"]["eq"] == "1"
    assert names["encoder.0.self.scores"]["shape"] == [2, 6, 6]
    assert names["encoder.0.self.scores"]["file"] == "model/attention.py"


def test_slices_are_exact() -> None:
    found = explained("paper")
    scores = found.trace.array("decoder.1.cross.scores")  # (H, T, S)
    part = found.slice_of("decoder.1.cross.scores", index=(1,), rows=slice(0, 2), cols=slice(1, 4))
    assert part["shape"] == [2, 3]
    assert np.array_equal(np.frombuffer(base64.b64decode(part["f32"]), "<f4").reshape(2, 3), scores[1, :2, 1:4])
    assert found.slice_of("cross", index=(0, 1))["shape"] == list(found.weights("cross").shape[2:])
    with pytest.raises(UsageError, match=r"there is no tensor 'encoder\.0\.self\.score'; near it are encoder\.0\.self\.scores"):
        found.slice_of("encoder.0.self.score")
    with pytest.raises(UsageError, match=r"in which there is no index \[2\]"):
        found.slice_of("decoder.1.cross.scores", index=(2,))


def test_a_tensor_as_a_file_and_as_text(run: Callable[..., str], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.npy"
    printed = run("explain", model, TEXT, "--tensor", "encoder.0.self.scores", "--npy", out)
    wanted = explain(bundle_of("paper"), TEXT).trace.array("encoder.0.self.scores")
    assert np.array_equal(np.load(out), wanted)
    assert "shape 2 × 6 × 6" in printed
    assert "model/attention.py" in printed
    document = json.loads(run("explain", model, TEXT, "--tensor", "encoder.0.self.scores", "--json"))
    assert document["from"]["place"] == "(1)"
    assert np.allclose(document["values"], wanted)


def test_rows_of_cross_attention_are_targets(run: Callable[..., str], model: Path, tmp_path: Path) -> None:
    """In a picture that is not square each query is a group with its text, and its lines begin above its own place."""
    out = tmp_path / "cross.svg"
    run("explain", model, TEXT, "--target-prefix", "rem kip", "--max-length", 3, "--attention", out, "--kind", "cross", "--layer", 1)
    found = explain(bundle_of("paper"), TEXT, target_prefix="rem kip", max_length=3)
    weights, tree = found.weights("cross")[0], ElementTree.fromstring(out.read_text(encoding="utf-8"))
    assert weights.shape == (2, 3, 6)
    groups = [group for group in tree.iter(f"{SVG}g") if group.get("class") == "q"]
    assert [group.findall(f"{SVG}text")[0].text for group in groups] == ["rem", "kip", "</s>"]
    assert [text.text for text in tree.findall(f"{SVG}text")] == [*TEXT.split(), "</s>"]
    places = [float(re.findall(r"[\d.]+", str(text.get("transform")))[0]) for text in tree.findall(f"{SVG}text")]
    for query, group in enumerate(groups):
        for head, lines in enumerate(group.findall(f"{SVG}g")):
            drawn = {}
            for path in lines:
                x = float(re.findall(r"[\d.]+", str(path.get("d")))[2])
                drawn[int(np.argmin([abs(place - x) for place in places]))] = float(str(path.get("stroke-opacity")))
            wanted = {key: weight for key, weight in enumerate(weights[head, query].tolist()) if weight >= 0.02}
            assert drawn.keys() == wanted.keys()
            assert all(abs(drawn[key] - weight**0.5) <= 0.005 + 1e-6 for key, weight in wanted.items())


def test_a_picture_may_be_of_a_layer_that_only_its_own_stack_has(
    run: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, out = fx_rand(encoder_layers=1, decoder_layers=3), tmp_path / "deep.svg"
    save_bundle(bundle, tmp_path / "deep")
    run("explain", tmp_path / "deep", TEXT, "--attention", out, "--kind", "cross", "--layer", 3)
    assert "Attention, cross, layer 3" in out.read_text(encoding="utf-8")
    for kind, layer, most in (("cross", 4, 3), ("encoder", 2, 1)):
        assert main(["explain", str(tmp_path / "deep"), TEXT, "--attention", str(out), "--kind", kind, "--layer", str(layer)]) == 2
        assert f"layer {layer}: {kind} attention has layers 1 to {most}; give one of them" in capsys.readouterr().err


def test_a_line_of_the_tree_begins_behind_the_words_that_it_comes_from() -> None:
    found = explained("paper")
    assert found.beams is not None
    lines = re.findall(r'<path d="M([\d.]+) [\d.]+L([\d.]+)', tree_svg(found, found.beams))
    assert lines
    assert all(float(end) - float(begin) > 40 for begin, end in lines)


def test_from_one_token_and_one_head(run: Callable[..., str], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.svg"
    run("explain", model, TEXT, "--attention", out, "--token", "tilu", "--head", 2, "--head", 1)
    tree = ElementTree.fromstring(out.read_text(encoding="utf-8"))
    groups = [group for group in tree.iter(f"{SVG}g") if group.get("class") == "q"]
    with_lines = [group for group in groups if group.findall(f"{SVG}g")]
    assert [str(group.findall(f"{SVG}text")[0].text) for group in with_lines] == ["tilu"]
    assert {lines.get("class") for lines in with_lines[0].findall(f"{SVG}g")} == {"h0", "h1"}
    assert tree.findall(f"{SVG}rect")


@pytest.mark.parametrize("token", [None, 2])
def test_odd_text_in_a_picture_is_text(token: int | None) -> None:
    weights = np.full((2, len(ODD), len(ODD)), 1 / len(ODD), np.float32)
    tree = ElementTree.fromstring(attention_svg(weights, ODD, ODD, token=token, title=ODD[2]))
    texts = ["".join(node.itertext()) for node in tree.iter(f"{SVG}text")]
    assert len(texts) == 2 * len(ODD)
    assert {"سلام", "<b>&\"'", "👩‍🚀", "東京東京", "Law"} <= set(texts)
    assert {node.tag.removeprefix(SVG) for node in tree.iter()} <= {"svg", "style", "title", "desc", "g", "path", "rect", "text"}
    assert any(text.startswith("x" * 90) for text in texts)  # cut in the picture, whole in its title
    with pytest.raises(ValueError, match=r"give \(heads, queries, keys\)"):
        attention_svg(weights[:, :3], ODD, ODD)


def test_pictures_of_matrices_are_pictures() -> None:
    from zlib import decompress

    weights = np.array([[0.0, 0.25, 1.0], [0.5, 0.5, 0.0]])
    data = base64.b64decode(matrix_png(weights).removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[16:20], "big") == 3
    assert int.from_bytes(data[20:24], "big") == 2
    start = data.index(b"IDAT") + 4
    rows = np.frombuffer(decompress(data[start:-16]), np.uint8).reshape(2, 13)[:, 1:].reshape(2, 3, 4)
    assert rows[..., 3].tolist() == np.rint(np.sqrt(weights) * 255).astype(int).tolist()
    signed = base64.b64decode(signed_png(np.array([[1.0, -1.0]])).removeprefix("data:image/png;base64,"))
    start = signed.index(b"IDAT") + 4
    assert np.frombuffer(decompress(signed[start:-16]), np.uint8)[1:].tolist() == [37, 99, 235, 255, 217, 119, 6, 255]


def test_habits_of_heads() -> None:
    previous = np.eye(5, k=-1, dtype=np.float32)
    previous[0, 0] = 1
    flat = np.full((5, 5), 0.2, np.float32)
    first, second = head_habits(np.stack([previous, flat]))
    assert (first["mostly"], first["share"], first["focus"], first["entropy"]) == ("the token before", 0.8, 1.0, 0.0)
    assert second["focus"] == pytest.approx(0.2)
    assert second["entropy"] == pytest.approx(np.log(5), abs=1e-6)


def test_the_page_is_one_closed_file(run: Callable[..., str], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    run("explain", model, TEXT, "--html", out, "--reference", "tilu rem")
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    assert "default-src 'none'" in text
    assert not [tag for tag, _ in page.elements if tag in ("script", "iframe", "object", "embed", "form", "base", "link")]
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/png;base64,"))
    assert "url(" not in text
    assert "@import" not in text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    found = explain(bundle_of("paper"), TEXT, reference="tilu rem")
    assert found.beams is not None
    caption = next(caption for caption in page.tables if caption.startswith("Finished hypotheses"))
    assert [row[1] for row in page.tables[caption][1:]] == [each.text for each in found.beams.candidates]
    assert all(page.tables[caption][0])
    assert f'<td class="n">{found.beams.candidates[0].hypothesis.score:.4f}</td>' in text
    assert [row[1] for row in page.tables["The reference, token by token"][1:]] == ["tilu", "rem", "</s>"]
    assert text.count('<article class="step"') == 20


@pytest.mark.parametrize("name", DEPARTURES)
def test_every_model_of_the_family_has_a_page(name: str) -> None:
    page = Page(page_of(explained(name), name))
    assert sum(tag == "article" for tag, _ in page.elements) == len(walked(name))
    assert ("Translation" in "".join(page.visible)) is not bundle_of(name).config.model.single


@pytest.mark.parametrize("text", [*ATTACKS[:5], "".join(ODD)])
def test_typed_text_stays_text(text: str) -> None:
    tokenizer = Tokenizer.train([*ATTACKS, *ODD, TEXT], kind="bpe", vocabulary_size=300)
    found = explain(make_bundle(tokenizer, tokenizer), text, beam=2)
    focus = focus_on(found)

    page = Page(explanation_page(found, focus, walk(found, focus)))
    shown = "".join(page.visible)
    assert all(character in shown or ord(character) < 32 for character in text)
    assert not [tag for tag, _ in page.elements if tag in ("script", "iframe", "object")]
    pictures = [str(attributes["src"]) for tag, attributes in page.elements if tag == "img"]
    assert all(picture.startswith("data:image/png;base64,") for picture in pictures)
    assert json.loads(json.dumps(found.record()))["source"]["text"] == text


def test_models_of_one_text() -> None:
    gpt, bert = explained("gpt"), explained("bert")
    assert gpt.source.pieces == ("<s>", *TEXT.split())
    assert gpt.target.side.pieces == (*TEXT.split(), "</s>")
    assert gpt.kinds == ["decoder"]
    bundle = bundle_of("gpt")
    single = dataclasses.replace(bundle, config=bundle.config.with_values(data={"source": "en", "target": ""}))
    assert explain(single, TEXT).record()["model"]["languages"] == ["en"]
    assert bert.source.pieces == bert.target.side.pieces == ("<s>", *TEXT.split(), "</s>")
    assert bert.kinds == ["encoder"]
    assert np.triu(gpt.weights("decoder"), 1).max() == 0
    assert "candidates" not in gpt.record()
    with pytest.raises(UsageError, match="the model is decoder-only and translates nothing: leave beam, alpha"):
        explain(bundle_of("gpt"), TEXT, beam=2)


def test_a_mask_in_the_text_hides_a_token() -> None:
    from dataclasses import replace

    bundle = bundle_of("bert")
    masked = replace(bundle, source_tokenizer=(tokenizer := replace(bundle.target_tokenizer, mask=23)), target_tokenizer=tokenizer)
    text = f"ona {mask_text(tokenizer)} tilu"
    found = explain(masked, text)
    assert found.source.ids[2] == 23
    assert list(found.source.ids) == masked_ids(tokenizer, text)
    assert found.source.ids[1] == bundle.target_tokenizer.encode("ona")[0]


def test_a_summary_on_the_terminal(run: Callable[..., str], model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run("explain", model, TEXT, "--reference", "tilu rem", "--candidate", 2)
    found = explain(bundle_of("paper"), TEXT, chosen=1)
    assert f"translation  {found.target.side.text}\n" in printed
    assert "the reference's tokens have log P" in printed
    assert [int(number) for number in re.findall(r"(?m)^(\d+) +[A-Z].*  [356]\.\d", printed)] == list(range(1, 21))
    assert "\x1b" not in printed
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(f"{TEXT}\n".encode())))
    assert run("explain", model, "-").startswith(f"text         {TEXT}\n")


def test_a_piece_that_recurs_has_its_number() -> None:
    found = explain(bundle_of("paper"), "ona bek ona tilu")
    lines = summary(found, focus_on(found), walked("paper")).splitlines()
    labels = ["ona (1)", "bek", "ona (3)", "tilu", "</s>"]
    assert lines[1].split(maxsplit=1)[1].split(" | ") == labels
    start = next(place for place, line in enumerate(lines) if line.startswith("token")) + 1
    rows = [re.split("  +", line) for line in lines[start : start + len(found.target.side.pieces)]]
    looked = found.weights("cross")[0].mean(0).argmax(-1)
    assert [row[4].rpartition(" ")[0] for row in rows] == [labels[place] for place in looked]
    pieces = found.target.side.pieces
    assert [row[0] for row in rows] == [
        f"{piece} ({place})" if pieces.count(piece) > 1 else piece for place, piece in enumerate(pieces, start=1)
    ]
    assert any("(" in row[4] for row in rows)
    assert any("(" in row[0] for row in rows)


def test_no_place_is_itself_where_the_translation_looks_at_the_text(run: Callable[..., str], model: Path) -> None:
    found = json.loads(run("explain", model, TEXT, "--max-length", 6, "--json"))
    assert len(found["target"]["pieces"]) == len(found["source"]["pieces"]) == 6  # as long as each other, by chance
    heads = re.findall(r"(?m)^(encoder|decoder|cross) layer \d+ head \d+ +\d\.\d+(.*)$", run("explain", model, TEXT, "--max-length", 6))
    assert {kind for kind, _ in heads} == {"encoder", "decoder", "cross"}
    assert all(place.strip() == "" for kind, place in heads if kind == "cross")
    assert all(place.strip() for kind, place in heads if kind != "cross")


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("",), 2, "the text is empty, so there is nothing to explain; give a sentence"),
        (("ona " * 60,), 1, "the text has 61 tokens and the model takes 40; give a shorter one"),
        ((TEXT, "--layer", "3"), 2, "layer 3: the model has layers 1 to 2; give one of them"),
        ((TEXT, "--head", "3"), 2, "head 3: the model has heads 1 to 2; give one of them"),
        ((TEXT, "--token", "9"), 2, "token 9: the text has 6 tokens; give a number from 1 to 6, or a word"),
        ((TEXT, "--token", "vast"), 2, "token 'vast': the text has no such piece; its pieces are ona bek tilu rem sova </s>"),
        ((TEXT, "--candidate", "9"), 2, "candidate 9: the search gave"),
        ((TEXT, "--npy", "x.npy"), 2, "--npy writes the tensor that --tensor names; give --tensor NAME as well"),
        ((TEXT, "--kind", "cross"), 2, "--kind chooses what --attention draws; give --attention FILE as well"),
        ((TEXT, "--attention", "x.svg", "--kind", "all"), 2, "--kind all: unknown; choose among encoder, decoder, cross"),
        ((TEXT, "--head", "1", "--head", "2"), 2, "--head: several heads are for --attention"),
        ((TEXT, "--tensor", "encoder.0"), 2, "there is no tensor 'encoder.0'; near it are"),
        ((TEXT, "--html", "x", "--attention", "x"), 2, "--html, --attention and --npy name one file"),
    ],
)
def test_a_mistake_is_one_sentence(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...], status: int, sentence: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["explain", str(model), *arguments]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dragoman: ")
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_learning_rate_is_marked_on_the_runs_own_curve(run: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    save_bundle(bundle_of("paper"), folder / "checkpoints" / "step-000700")
    mark_checkpoint(folder, "best", folder / "checkpoints" / "step-000700")
    records = [{"t": "train", "step": step, "lr": step / 1e6} for step in (100, 700, 900)]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    out = tmp_path / "page.html"
    run("explain", folder, TEXT, "--html", out)
    text = out.read_text(encoding="utf-8")
    assert "Learning rate, over steps: as trained, equation (3), this model" in text
    run("explain", folder / "checkpoints" / "step-000700", TEXT, "--html", out)
    assert "Learning rate, over steps: as trained, equation (3), this model" in out.read_text(encoding="utf-8")


def test_a_model_is_not_written_over(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (model / "config.json").read_bytes()
    assert main(["explain", str(model), TEXT, "--html", str(model / "config.json")]) == 2
    assert "is to be read and would be written over" in capsys.readouterr().err
    assert (model / "config.json").read_bytes() == before


def test_tokens_are_found_by_word_and_by_number() -> None:
    pieces = (" It", " is", " 7", " spi", "rit", " it", ".", "</s>")
    text = "It is 7 spirit it."
    assert [find_token(pieces, text, wanted, "text") for wanted in ("It", "it", "7", "spirit", "rit", "2")] == [0, 5, 2, 3, 4, 1]


def test_a_tag_is_needed_as_in_translate() -> None:
    from dataclasses import replace

    bundle = bundle_of("paper")
    tokenizer = replace(bundle.source_tokenizer, tags={"de": 23})
    with pytest.raises(DragomanError, match="the text: the line begins with no language tag"):
        explain(replace(bundle, source_tokenizer=tokenizer), TEXT)
    found = explain(replace(bundle, source_tokenizer=tokenizer), f">>de<< {TEXT}")
    assert found.source.ids[0] == 23
    assert len(found.source.pieces) == 7


def test_a_model_that_is_being_trained_is_looked_at_without_dropout_and_goes_on() -> None:
    bundle = bundle_of("paper")
    wanted = explained("paper").target
    bundle.model.train()
    try:
        found = explain(bundle, TEXT)
        assert bundle.model.training
    finally:
        bundle.model.eval()
    assert found.target.side.pieces == wanted.side.pieces
    assert np.array_equal(found.target.log_probs, wanted.log_probs)


def test_rows_without_an_entry_in_the_vocabulary_have_their_numbers() -> None:
    """Some models have more rows than entries; the search never says them, but they have probabilities."""
    tokenizer = bundle_of("paper").source_tokenizer
    found = explain(make_bundle(tokenizer, tokenizer, source_vocabulary=400, target_vocabulary=400), TEXT)
    focus = focus_on(found)
    steps = walk(found, focus)
    pieces = {piece for step in found.record()["steps"] for piece, _ in step["top"]}
    assert any(piece.startswith("<row ") for piece in pieces)
    assert "&lt;row " in explanation_page(found, focus, steps)
    assert "<row " in summary(found, focus, steps)
    assert max(found.target.side.ids) < len(tokenizer)


def test_a_model_of_another_kind_is_refused() -> None:
    from dataclasses import replace

    from torch import nn

    with pytest.raises(DragomanError, match="explain looks into the paper's attention"):
        explain(replace(bundle_of("paper"), model=nn.Linear(2, 2)), TEXT)  # type: ignore[arg-type]


def test_the_lines_of_a_step_have_their_numbers_and_their_text_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file of more than 9999 lines too, whose numbers have five digits."""
    texts = [f"    line_{number} = x < {number}" for number in range(1, 10_005)]
    (tmp_path / "long.py").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    monkeypatch.setattr("dragoman.explain.record.PACKAGE", tmp_path)
    lines = tuple(Line("long.py", number, texts[number - 1], "3.1", ("x",), "") for number in (3, 10_001))
    step = Step(1, "title", "3.1", "", "prose", "<math></math>", (), (), lines)
    ((title, found),) = step.sources()
    shown = [*range(1, 6), *range(9_999, 10_004)]
    assert title == "long.py:3, 10001"
    assert [(each.number, each.text) for each in found if each.number is not None] == [(number, texts[number - 1]) for number in shown]
    assert [each.number for each in found if each.marked] == [3, 10_001]
    (source,) = step.record()["sources"]
    assert source["lines"][4:8] == [
        (f"   5  {texts[4]}", False),
        ("   …", False),
        (f"9999  {texts[9_998]}", False),
        (f"10000  {texts[9_999]}", False),
    ]
    rows = sources_html(step).partition("<pre>")[2].partition("</pre>")[0].split("\n")
    assert rows[2] == '<mark><span class="at">   3</span>     line_3 = x &lt; 3</mark>'
    assert rows[8] == '<mark><span class="at">10001</span>     line_10001 = x &lt; 10001</mark>'
