"""The frame and the views Translate, Beams and Run, in a browser."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from page_browser import EVALUATIONS, MARKUP, TEXT, TRAINING, faults_of, module, translate, write_run
from serving import Client, serving

LONG = " ".join(["ona bek tilu rem sova kip dal nur"] * 8)[: -len(" nur")]
VIEWS = ("translate", "beams", "run")
CHOSEN = "#beams svg text[font-weight]"
Opens = Callable[..., Any]


def show(page: Any, view: str) -> None:
    """Goes to a view by its link, and waits until it has something to show."""
    page.click(f'nav a[href^="#view={view}"]')
    page.wait_for_selector(f"#{view} table, #{view} .tokens", state="attached")


def asked(client: Client, path: str, **fields: Any) -> Any:
    """What the server answers to a request of our own."""
    return client.post(path, {"q": TEXT, "source": "en", "target": "de", **fields}).json


def test_a_text_is_translated_by_the_keyboard_alone(open_page: Opens, served: Client) -> None:
    page = open_page()
    page.wait_for_selector("#text:focus")
    page.keyboard.type(TEXT)
    for _ in range(5):  # past the translation and three settings
        page.keyboard.press("Tab")
    page.wait_for_selector("button.main:focus")
    page.keyboard.press("Enter")
    page.wait_for_selector("#translate .token[title*=', id ']")
    answer = asked(served, "/api/v1/translate")["translations"][0]
    assert page.inner_text(".said") == answer["text"]
    tokens = answer["sentences"][0]["tokens"]
    assert page.locator(".tokens").nth(1).locator("button").all_inner_texts() == tokens


def test_every_piece_tells_its_id_to_those_who_reach_it(translated: Opens, served: Client) -> None:
    page = translated(f"{TEXT} strange")
    source = asked(served, "/api/v1/explain", q=f"{TEXT} strange")["source"]
    buttons = page.locator(".tokens").first.locator("button")
    for place, (piece, token) in enumerate(zip(source["pieces"], source["ids"], strict=True)):
        buttons.nth(place).focus()
        told = page.inner_text(".detail")
        assert f"“{piece}”, id {token}" in told
        assert (place in source["unk"]) == ("not in the vocabulary" in told) == ("unknown" in buttons.nth(place).get_attribute("class"))
    assert source["unk"] == [4]


def test_a_token_leads_to_its_step(translated: Opens) -> None:
    page = translated()
    page.locator(".tokens").nth(1).locator("button").nth(2).click()
    assert page.evaluate("location.hash") == "#view=steps&target=3"


def test_nothing_is_wrong_for_those_who_cannot_see_it(translated: Opens) -> None:
    page = translated(color_scheme="light")
    found = {}
    for view in VIEWS:
        show(page, view)
        found[view, "light"] = faults_of(page)
        page.emulate_media(color_scheme="dark")
        page.wait_for_selector("html[data-theme=dark]")
        found[view, "dark"] = faults_of(page, "color-contrast")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 390, "height": 800})
        found[view, "phone"] = faults_of(page, "scrollable-region-focusable", "target-size")
        page.set_viewport_size({"width": 320, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, view
        ends = page.locator("caption:visible").evaluate_all("(captions) => captions.map((each) => each.getBoundingClientRect().right)")
        assert max(ends, default=0) <= 320, view
        page.set_viewport_size({"width": 1280, "height": 800})
    assert found == {place: [] for place in found}


def test_sixty_four_tokens_are_shown_at_once(open_page: Opens) -> None:
    page = open_page()
    with page.expect_response("**/api/v1/explain") as answer:
        translate(page, LONG)
    assert page.locator(".tokens").first.locator("button").count() == 64
    assert faults_of(page) == []
    show(page, "beams")
    assert faults_of(page, "color-contrast", "scrollable-region-focusable", "svg-img-alt") == []
    body = """const began = performance.now();
    m.show({explanation: {...a, asked: {}}});
    document.body.offsetHeight;
    return (performance.now() - began) / 1000;"""
    assert module(page, "beams", body, answer.value.json()) < 5 * 0.5


def test_what_is_typed_stays_text(translated: Opens) -> None:
    page = translated(MARKUP)
    assert page.locator("img").count() == 0
    assert "<unk>" in page.locator(".tokens").first.locator("button").all_inner_texts()
    show(page, "beams")
    assert page.inner_text("#beams .sentence") == MARKUP
    show(page, "run")
    assert page.locator("#run caption").nth(1).inner_text() == f"“{MARKUP}”"
    assert page.locator("img").count() == 0


def test_stop_ends_the_search(open_page: Opens, served: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's steps wait for each other here, so that they can be counted."""
    import dragoman.decoding.prepared as prepared

    steps, pace = [], threading.Semaphore(2)
    whole = prepared.PreparedStep.likeliest

    def counted(self: object, *given: object) -> object:
        assert pace.acquire(timeout=20)
        steps.append(1)
        return whole(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(prepared.PreparedStep, "likeliest", counted)
    page = open_page()
    page.fill("#text", f"{TEXT} sova kip dal nur")
    page.click("button.main")
    page.wait_for_selector("text=step 2")
    told = len(served.log)
    page.click("button:text('Stop')")
    page.wait_for_selector("text=Stopped after")
    assert page.is_disabled("button:text('Stop')")
    for _ in range(200):
        if len(served.log) > told:
            break
        page.wait_for_timeout(20)
    assert any('"route": "/api/v1/stream"' in line for line in served.log[told:])
    pace.release(50)
    page.wait_for_timeout(200)
    assert 2 <= len(steps) <= 4


def test_the_address_holds_the_view_and_never_the_text(translated: Opens) -> None:
    page = translated()
    addresses = [page.url]
    for view in ("beams", "run", "translate"):
        show(page, view)
        addresses.append(page.url)
        assert page.evaluate("location.hash") == f"#view={view}"
    assert not any(word in address for word in TEXT.split() for address in addresses)
    page.go_back()
    page.wait_for_selector("#run:not([hidden])")
    page.go_back()
    page.wait_for_selector("#beams:not([hidden])")
    assert page.get_attribute('nav a:text("Beams")', "aria-current") == "page"
    assert page.title() == "Beams · Dragoman"
    assert page.evaluate("Object.entries(localStorage).length") == 0


def test_a_linked_view_asks_for_a_sentence_first(open_page: Opens) -> None:
    page = open_page("#view=beams&layer=2&head=mean&token=3&kind=<b>")
    page.wait_for_selector("#notice a")
    assert "There is no sentence yet" in page.inner_text("#notice")
    page.click("#notice a")
    page.wait_for_selector("#text")
    translate(page, TEXT)
    assert page.evaluate("location.hash") == "#view=translate"


def test_a_refusal_is_told_where_one_looks(open_page: Opens) -> None:
    page = open_page()
    page.fill("#text", TEXT)
    page.get_by_label("Beam", exact=True).fill("99999")
    page.click("button.main")
    page.wait_for_selector("[role=alert]:not(:empty)")
    assert "beam" in page.inner_text("#translate [role=alert]")
    assert page.input_value("#text") == TEXT
    page.get_by_label("Beam", exact=True).fill("2")
    page.click("button.main")
    page.wait_for_selector("#translate .token[title*=', id ']")
    assert page.inner_text("#translate [role=alert]") == ""
    show(page, "beams")
    assert page.locator("#beams tbody").first.locator("tr").count() == 2


def test_theme_shortcuts_and_the_way_past_the_header(open_page: Opens) -> None:
    page = open_page(color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    assert page.inner_text("#theme") == "Light"
    assert page.evaluate(background) != light
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("d")
    assert page.evaluate(background) == light
    page.keyboard.press("6")
    page.wait_for_selector("#run table", state="attached")
    page.keyboard.press("?")
    assert page.is_visible("#help")
    assert faults_of(page, "color-contrast", "aria-dialog-name", "label") == []
    page.uncheck("#single")
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    assert page.is_visible("#run")


def test_the_candidates_are_those_of_the_search(translated: Opens, served: Client) -> None:
    page = translated()
    show(page, "beams")
    record = asked(served, "/api/v1/explain")
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#beams tbody").first.locator("tr").all()]
    assert [row[1] for row in rows] == [each["text"] for each in record["candidates"]]
    for row, each in zip(rows, record["candidates"], strict=True):
        assert [float(cell) for cell in row[2:6]] == pytest.approx(
            [each["score"], each["logprob"], each["lp"], len(each["pieces"])], abs=1e-4
        )
        if each["behind_from"] is not None:
            assert f"at token {each['behind_from'] + 1}, “{each['pieces'][each['behind_from']].strip()}”" in row[6]
    nodes = sum(len(step["nodes"]) for step in record["beam_tree"])
    assert page.locator("#beams svg text title").count() == nodes
    assert page.locator(CHOSEN).count() == len(record["candidates"][0]["pieces"])


def test_a_chosen_candidate_is_what_all_views_are_about(translated: Opens, served: Client) -> None:
    page = translated()
    show(page, "beams")
    page.focus("#beams input >> nth=0")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#beams tr.chosen:nth-child(2) input:focus")
    record = asked(served, "/api/v1/explain", chosen=1)
    assert page.locator(CHOSEN).count() == len(record["candidates"][1]["pieces"])


def test_the_run_is_told_in_numbers(open_page: Opens) -> None:
    page = open_page("#view=run")
    page.wait_for_selector("#run svg")
    tables = page.locator("#run table")
    rows = [[float(cell) for cell in row.locator("th, td").all_inner_texts()] for row in tables.first.locator("tbody tr").all()]
    assert rows == [[record[name] for name in ("step", "loss", "ppl", "bleu", "chrf")] for record in EVALUATIONS]
    samples = [row.locator("th, td").all_inner_texts() for row in tables.nth(1).locator("tbody tr").all()]
    assert samples == [["reference", "KEB ANO"], ["step 2", "KEB"], ["step 4", "KEB ANO"]]
    page.click("#run summary")
    updates = [row.locator("th, td").all_inner_texts() for row in tables.last.locator("tbody tr").all()]
    assert [[float(cell) for cell in row[:2]] for row in updates] == [[record["step"], record["loss"]] for record in TRAINING]
    assert [chart.get_attribute("aria-label") for chart in page.locator("#run svg").all()] == [
        "Loss, over steps: training, smoothed, validation, smoothed", "Score on the validation text, over steps: BLEU, chrF",
        "Learning rate, over steps: as trained, equation (3) of the paper", "Speed, target tokens a second, over steps: tokens a second",
        "Norm of the gradient, before clipping, over steps: norm",
    ]  # fmt: skip


def test_a_run_that_goes_on_is_followed(open_page: Opens, tmp_path: Path) -> None:
    run = write_run(tmp_path / "going", status="running")
    with serving(run, device="cpu") as client:
        page = open_page("#view=run", client=client)
        page.wait_for_selector("#run svg")
        with (run / "log.jsonl").open("a") as log:
            log.write(json.dumps({**TRAINING[-1], "step": 1234, "loss": 0.125}) + "\n")
        page.wait_for_selector("text=step 1,234")
        page.click("#run summary")
        with page.expect_response(lambda answer: "/drawn?since=" in answer.url):
            pass
        shown = page.evaluate_handle("document.querySelector('#run h2')")
        with page.expect_response(lambda answer: "/drawn?since=" in answer.url):
            pass
        assert shown.evaluate("(heading) => heading.isConnected")  # nothing is drawn anew where nothing is new
        assert page.locator("#run table").last.locator("tbody tr").last.locator("td").first.inner_text() == "0.1250"
        (run / "run.json").write_text((run / "run.json").read_text().replace("running", "done"))
        page.wait_for_selector("text=done · step 1,234")
        assert page.locator("#run details").evaluate("(details) => details.open")  # as it was
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(2_500)  # longer than it is from one look to the next
        assert asked == []  # of a run that has ended there is no news
