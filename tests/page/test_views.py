"""The views Attention, Steps and Paper, in a browser, beside what the server and NumPy say."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.bundle import load_bundle, resolve_model
from dragoman.explain.answer import Explanation, explain
from explained import explained, walked
from page_browser import TEXT, TRAINING, faults_of, module, translate, write_run
from serving import Client
from small_bundles import fx_rand

VIEWS = {"attention": "#attention figure.wide canvas", "steps": "#steps .spark button", "paper": "#paper .checks .browser"}
Opens = Callable[..., Any]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model with two layers and two heads in each stack, which doubts everything."""
    return write_run(tmp_path_factory.mktemp("views") / "rand", bundle=fx_rand(seed=7))


@pytest.fixture(scope="module")
def found(toy: Path) -> Explanation:
    """What the page shows, from Python."""
    return explain(load_bundle(resolve_model(toy)), TEXT)


@pytest.fixture(scope="module")
def page(open_once: Opens) -> Any:
    """The page after a translation, for all tests that leave what is looked at as it was."""
    page = open_once()
    translate(page, TEXT)
    return page


def show(page: Any, view: str, place: str = "") -> None:
    """Goes to a view, and waits until it shows what is asked for."""
    go = "addEventListener('hashchange', done, { once: true }); location.hash = hash;"
    page.evaluate(f"(hash) => new Promise((done) => {{ if (location.hash === hash) done(); else {{ {go} }} }})", f"#view={view}{place}")
    page.wait_for_selector(VIEWS[view])
    page.wait_for_selector(f"#{view} [aria-busy=true]", state="detached")


def cells(page: Any, caption: str) -> list[list[str]]:
    """The cells of the first table whose caption begins so."""
    table = page.locator("table:visible", has=page.locator(f"caption:has-text({json.dumps(caption, ensure_ascii=False)})")).first
    return table.locator("tbody tr").evaluate_all("(rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))")


def shares(rows: list[list[str]], column: int) -> np.ndarray[Any, Any]:
    """A column of weights; a bar before a number has no text."""
    return np.array([float(row[column]) for row in rows])


def pixels(page: Any, selector: str) -> np.ndarray[Any, Any]:
    """The strength of each pixel of a canvas, from 0 to 1."""
    height, width, values = picture(page, selector)
    return np.reshape(values, (height, width, 4))[..., 3] / 255


def picture(page: Any, selector: str) -> tuple[int, int, list[int]]:
    """Height, width and bytes of a canvas, read from a copy."""
    found = page.eval_on_selector(
        selector,
        """(canvas) => {
          const {width, height} = canvas, copy = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true});
          copy.drawImage(canvas, 0, 0);
          return [height, width, [...copy.getImageData(0, 0, width, height).data]];
        }""",
    )
    return tuple(found)


def test_numbers_of_a_head_are_those_of_the_trace(page: Any, found: Explanation) -> None:
    """Cross-attention has a row for each target token: a matrix that is not square, and not turned round."""
    show(page, "attention", "&kind=cross&layer=2&head=2&target=3")
    weights = found.weights("cross")
    targets, sources = weights.shape[2:]
    assert targets != sources
    rows = cells(page, "cross, layer 2, from token 3")
    assert [row[0] for row in rows] == list(found.source.pieces)
    assert shares(rows, 1) == pytest.approx(weights[1, 1, 2], abs=5.1e-5)
    assert shares(rows, 2) == pytest.approx(weights[1, :, 2].mean(0), abs=5.1e-5)
    assert shares(rows, 3) == pytest.approx(weights[1, :, 2].max(0), abs=5.1e-5)
    assert pixels(page, "figure.wide canvas") == pytest.approx(np.sqrt(weights[1, 1]), abs=0.05)
    assert page.locator("figure.wide [aria-pressed=true]").inner_text() == found.target.side.pieces[2]
    assert page.locator(".grid canvas").count() == weights.shape[0] * weights.shape[1]
    assert "no proof" in page.inner_text("#attention")
    assert "shifted by one" in page.inner_text("#attention")


def test_heads_are_joined_and_the_end_left_out(page: Any, found: Explanation) -> None:
    weights = found.weights("encoder")[0]  # heads × tokens × tokens
    show(page, "attention", "&kind=encoder&layer=1&head=max&token=2")
    assert shares(cells(page, "encoder, layer 1"), 1) == pytest.approx(weights[:, 1].max(0), abs=5.1e-5)
    page.check("#a-drop")
    page.wait_for_function("() => document.querySelector('#attention .two > :last-child tr:last-child td').innerText.trim() === '0.0000'")
    kept = weights[:, 1, :-1] / weights[:, 1, :-1].sum(-1, keepdims=True)
    rows = cells(page, "encoder, layer 1")
    assert shares(rows, 1)[:-1] == pytest.approx(kept.max(0), abs=5.1e-5)
    assert shares(rows, 2)[:-1] == pytest.approx(kept.mean(0), abs=5.1e-5)
    assert pixels(page, "figure.wide canvas")[:, -1].max() == 0
    page.uncheck("#a-drop")


def test_lines_end_at_the_threshold(page: Any, found: Explanation) -> None:
    show(page, "attention", "&kind=cross&layer=1&head=1&target=1")
    row = found.weights("cross")[0, 0, 0]
    for least in (0.0, float(np.sort(row)[-2])):
        page.eval_on_selector("#a-least", "(range, value) => { range.value = value; range.dispatchEvent(new Event('input')); }", least)
        said = float(page.inner_text("output"))
        assert page.locator(".links path").count() == int(((row >= said) & (row > 0)).sum())


def test_all_is_reached_by_keys(page: Any) -> None:
    """Radios by arrows, menus and buttons by themselves; the keyboard stays where it was, and the address says what is chosen."""
    show(page, "attention")
    page.focus("#a-cross")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("#a-decoder:focus")
    page.focus("#a-row-2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#a-row-2[aria-pressed=true]:focus")
    page.focus("#a-head")
    page.keyboard.press("End")
    page.wait_for_selector("caption:has-text('decoder, layer 1, from token 2')")
    page.focus("#a-2-1")
    page.keyboard.press("Space")
    page.wait_for_selector("#a-2-1[aria-pressed=true]:focus")
    assert page.evaluate("location.hash") == "#view=attention&layer=2&head=1&target=2&kind=decoder"
    show(page, "steps", "&target=2")
    page.focus("#own-3")
    page.keyboard.press("Enter")
    page.wait_for_selector("#own-3[aria-pressed=true]:focus")
    show(page, "paper", "&step=4")
    page.focus("#p-on")
    page.keyboard.press("Enter")
    page.wait_for_selector("#paper h2:has-text('5 Scores')")
    page.wait_for_selector("#p-on:focus")
    assert "step=5" in page.evaluate("location.hash")


def test_nothing_is_wrong_for_those_who_cannot_see_it(page: Any) -> None:
    """In light, in dark, and on a narrow screen, which nothing makes wider."""
    rules = {"light": [], "dark": ["color-contrast"], "narrow": None}
    for setting in rules:
        if setting == "narrow":
            page.set_viewport_size({"width": 320, "height": 640})
        for view in VIEWS:
            show(page, view, "&step=5")
            assert rules[setting] is None or faults_of(page, *rules[setting]) == [], (view, setting)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (view, setting)
        page.click("#theme")
    page.click("#theme")
    page.set_viewport_size({"width": 1280, "height": 720})


def test_an_equation_is_whole_on_a_projector(page: Any) -> None:
    page.set_viewport_size({"width": 1024, "height": 768})
    show(page, "paper", "&step=3")
    page.wait_for_selector("#paper h2:has-text('3 Positions')")
    assert page.eval_on_selector("#paper [aria-label=Equation]", "(equation) => equation.scrollWidth <= equation.clientWidth")
    weights = page.eval_on_selector_all("#paper figcaption", "(all) => all.map((each) => getComputedStyle(each).fontWeight)")
    assert weights[:2] == ["400", "600"]  # below a picture, and above lines of code
    page.set_viewport_size({"width": 1280, "height": 720})


def test_colours_change_with_the_theme(page: Any) -> None:
    show(page, "attention")
    before = picture(page, "figure.wide canvas")
    page.click("#theme")
    assert picture(page, "figure.wide canvas") != before
    page.click("#theme")
    assert picture(page, "figure.wide canvas") == before


def test_another_way_is_what_a_target_prefix_gives(translated: Opens, found: Explanation) -> None:
    page = translated()
    show(page, "steps", "&target=2")
    assert page.locator(".spark button").all_inner_texts() == list(found.target.side.pieces)
    rows = cells(page, "What could stand at token 2")
    steps = found.target.steps(found.bundle.target_tokenizer, 8)
    assert [row[0] for row in rows] == [piece for piece, _ in steps[1]["top"]]
    assert shares(rows, 1) == pytest.approx([p for _, p in steps[1]["top"]], abs=5.1e-5)
    said = [place for place, row in enumerate(rows, start=1) if row[2] == "Use this instead"]
    columns = "(two) => getComputedStyle(two).gridTemplateColumns.split(' ').length"
    assert page.locator("#steps .two").evaluate(columns) == 1  # the whole width, as long as nothing stands beside it
    page.click(f"#use-{said[0]}")
    page.wait_for_selector("#take")
    assert page.locator("#steps .two").evaluate(columns) == 2
    prefix = f"{found.target.side.pieces[0]} {rows[said[0] - 1][0]}"
    other = explain(found.bundle, TEXT, target_prefix=prefix)
    assert f"“{prefix}”" in page.inner_text("#steps")
    assert page.inner_text("#steps .answer") == other.target.side.text
    assert page.locator(".spark").nth(1).locator("button").all_inner_texts() == list(other.target.side.pieces)
    assert other.target.side.text != found.target.side.text
    page.click("#take")
    page.wait_for_function("() => document.querySelectorAll('.spark').length === 1")
    assert page.locator(".spark button").all_inner_texts() == list(other.target.side.pieces)


def test_a_typed_reference_has_its_ranks(translated: Opens, found: Explanation) -> None:
    page = translated()
    show(page, "steps", "&target=1")
    page.fill("#steps input", "rem tilu")
    page.keyboard.press("Enter")
    page.wait_for_selector("#steps h2:has-text('Your translation')")
    given = explain(found.bundle, TEXT, reference="rem tilu").reference
    assert given is not None
    rows = cells(page, "“rem tilu”")
    assert [row[0] for row in rows] == list(given.side.pieces)
    assert [row[2] for row in rows] == [str(rank) for rank in given.ranks()]
    assert f"Your translation has “{given.side.pieces[0]}” here: rank {given.ranks()[0]}," in page.inner_text("#steps")


def test_a_candidate_of_the_search_is_looked_into_everywhere(translated: Opens, found: Explanation) -> None:
    page = translated()
    page.evaluate("() => { location.hash = '#view=beams'; }")
    page.check("tr:nth-child(2) > * input[name=candidate]")
    page.wait_for_selector("tr.chosen:nth-child(2)")
    show(page, "steps")
    other = explain(found.bundle, TEXT, chosen=1)
    assert page.locator(".spark button").all_inner_texts() == list(other.target.side.pieces)
    show(page, "attention", "&kind=cross&layer=1&head=1&target=1")
    rows = cells(page, "cross, layer 1")
    assert shares(rows, 1) == pytest.approx(other.weights("cross")[0, 0, 0], abs=5.1e-5)


def test_a_long_text_is_asked_for_a_layer_at_a_time(open_page: Opens) -> None:
    page = open_page()
    page.fill("#text", " ".join([TEXT] * 17))  # 68 pieces and an end
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#translate .token")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show(page, "attention", "&kind=encoder&layer=2&head=1")
    assert page.locator("figure.wide canvas").get_attribute("width") == "69"
    assert page.locator(".grid tr").count() == 2
    assert "one layer" in page.inner_text(".grid caption")
    traces = [url for url in asked if "/trace/" in url]
    assert len(traces) == 2
    assert all("encoder.1.self.weights" in url for url in traces)


def test_every_step_of_the_walk_is_computed_again_in_the_browser(page: Any, served: Client) -> None:
    """All but the first and the last, which need the tokenizer and the gradient; the server's own checks stand beside each."""
    show(page, "paper", "&step=5")
    record = served.post("/api/v1/explain", {"q": TEXT, "source": "en", "target": "de"}).json
    steps = served.get(f"/api/v1/walk/{record['id']}").json["steps"]
    assert [page.locator(f"#p-{number}").count() for number in range(1, 21)] == [1] * 20
    for step in steps:
        page.click(f"#p-{step['number']}")
        page.wait_for_selector(f"#paper h2:has-text({json.dumps(step['title'], ensure_ascii=False)})")
        page.wait_for_selector("#paper .checks li:has-text('recomputed')")
        again = page.locator("#paper .checks .browser").all_inner_texts()
        assert bool(again) == (step["number"] not in (1, 20)), step["title"]
        for line in again:
            words = line.replace(",", "").split()
            difference = 0.0 if "no difference" in line else float(words[words.index("difference") + 1])
            assert difference < 2e-6 * max(1.0, abs(float(words[words.index("model:") + 1]))), line
        assert page.locator("#paper .checks .dim").count() == len(step["checks"])
        assert page.locator("#paper math").count() == 1
        shown = page.locator("#paper mark").all_inner_texts()
        assert sorted(line.split(maxsplit=1)[1].strip() for line in shown) == sorted(line["text"].strip() for line in step["lines"])
        assert page.inner_text("#paper article").count("dragoman explain") == bool(step["tensor"])
    rates = module(page, "api", "return (await m.getJson('api/v1/runs/rand?from=0')).train.map((each) => each.lr)")
    assert rates == [record["lr"] for record in TRAINING]


def test_the_walk_follows_what_is_chosen(page: Any, found: Explanation) -> None:
    show(page, "paper", "&step=7&layer=1&head=2&token=3")
    weights = found.trace.array("encoder.0.self.weights")[1, 2]
    page.wait_for_selector(f"caption:has-text(\"Where '{found.source.pieces[2]}' looks\")")
    assert shares(cells(page, "Where"), 3) == pytest.approx(weights, abs=5.1e-5)
    page.select_option("#p-token", index=0)
    page.wait_for_selector(f"caption:has-text(\"Where '{found.source.pieces[0]}' looks\")")
    assert "token=1" in page.evaluate("location.hash")
    show(page, "paper", "&step=19")
    page.wait_for_selector("#paper h2:has-text('19 ')")
    assert page.locator("#paper figure svg polyline").count() == 2  # equation (3), and as trained
    assert page.locator("#paper figure svg circle").count() == 1
    show(page, "attention", "&kind=encoder&token=99&layer=99&head=99")
    page.wait_for_selector(f"#a-row-{len(found.source.pieces)}[aria-pressed=true]")  # what was shown before stays until this is there
    assert page.locator("[id^=a-row-][aria-pressed=true]").inner_text() == found.source.pieces[-1]
    show(page, "steps", "&target=99")
    page.wait_for_selector(f"#own-{len(found.target.side.ids)}[aria-pressed=true]")
    show(page, "steps", "&target=word")
    page.wait_for_selector("#own-1[aria-pressed=true]")


def test_attention_is_unpacked_joined_and_cut(page: Any) -> None:
    bits = np.arange(2 * 3 * 2 * 4, dtype=np.uint8).reshape(2, 3, 2, 4)
    u8 = base64.b64encode(bits.tobytes()).decode()
    one, mean, most = module(
        page,
        "matrix",
        """const at = m.planes(a), two = [at(0, 0), at(0, 1)];
        return [at(1, 2), m.combined(two, 'mean'), m.combined(two, 'max')].map((all) => [...all]);""",
        {"shape": [2, 3, 2, 4], "u8": u8},
    )
    assert one == pytest.approx(bits[1, 2].ravel() / 255)
    assert mean == pytest.approx(bits[0, :2].mean(0).ravel() / 255)
    assert most == pytest.approx(bits[0, 1].ravel() / 255)
    cut = module(page, "matrix", "return [...m.without(Float32Array.from([.5, .3, .2, 0, 0, 1]), 3, [2])];")
    assert cut == pytest.approx([0.625, 0.375, 0, 0, 0, 0])


@pytest.mark.parametrize("name", ["deepnorm", "rms", "bare", "gpt", "bert"])
def test_what_departs_from_the_paper_is_computed_again_too(page: Any, name: str) -> None:
    """Norms first, DeepNorm, RMSNorm, rotary and learned positions, shared keys, no biases, models of one text."""
    found = explained(name)
    steps = [step.record() for step in walked(name)]
    parts = [part for step in steps for each in step["again"] for part in (*each["of"], each["model"])]
    tensors = {part["tensor"] for part in parts if isinstance(part, dict)}
    again = module(
        page,
        "numbers",
        """const {unpackFloats} = await import(new URL('web/js/api.js', location.href));
        const ask = async (name, {index: [head] = [0], rows, cols}) => {
          const {shape, f32} = a.tensors[name], values = unpackFloats(f32), size = shape.at(-1) * shape.at(-2);
          const [from, to] = rows ? rows.split(':').map((row) => row * shape.at(-1)) : [head * size, (head + 1) * size];
          const asked = shape.length > 1 ? values.subarray(from, to) : values;
          return {shape: shape.slice(-2), values: cols ? asked.subarray(...cols.split(':')) : asked};
        };
        return Promise.all(a.steps.map((step) => m.recomputed(step, ask)));""",
        {
            "steps": steps,
            "tensors": {each: found.slice_of(each) for each in tensors},
        },
    )
    checks = {step["number"]: each for step, each in zip(steps, again, strict=True)}
    for number, own in checks.items():
        assert all(each["difference"] < 1e-5 * max(1.0, abs(each["model"])) for each in own), (number, own)
    assert {4, 5, 7, 8, 9, 10, 12, 16, 19} <= {number for number, own in checks.items() if own}


def test_the_equations_have_their_golden_values(page: Any) -> None:

    def said(expression: str) -> Any:
        return module(page, "numbers", f"return {expression};")

    assert said("m.sinusoid(1, 4)") == pytest.approx([np.sin(1), np.cos(1), np.sin(0.01), np.cos(0.01)])
    assert said("m.sinusoid(1, 4, true)") == pytest.approx([np.sin(1), np.sin(0.01), np.cos(1), np.cos(0.01)])
    assert said("m.learningRate(4000, 512, 4000)") == pytest.approx(6.987712429686844e-4)
    assert said("m.lengthPenalty(11, 0.6)") == pytest.approx((16 / 6) ** 0.6)
    assert said("m.softmax([1, 2, 3], [false, true, false])") == pytest.approx([1 / (1 + np.e**2), 0, np.e**2 / (1 + np.e**2)])
    assert said("m.softmax([1, 2], [true, true])") == [0, 0]
    assert said("m.smoothedLoss(m.logSoftmax([0, 0, 0, 0]), 1, 0.1)") == pytest.approx(np.log(4))
    assert said("m.norm([1, 3], {gain: [1, 2], shift: [0, 1], epsilon: 0})") == pytest.approx([-1, 3])
    assert said("m.norm([3, 4], {gain: [1, 1], epsilon: 0, kind: 'RMSNorm'})") == pytest.approx(np.array([3, 4]) / np.sqrt(12.5))
