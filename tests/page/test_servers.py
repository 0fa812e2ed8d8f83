"""The page on servers of other kinds: models of one text, without looking inside, with keys, before there is a model."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.bundle import save_bundle
from language_models import BERT, GPT, WORDS, random_bundle
from page_browser import TEXT, faults_of, module, translate, write_run
from serving import Client, serving

Opens = Callable[..., Any]
WITHOUT_BEAMS = "This model reads one text and searches for nothing, so there are no beams."


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server of a decoder-only and of an encoder-only model."""
    folder = tmp_path_factory.mktemp("single")
    for name, kind in (("writer", GPT), ("reader", BERT)):
        save_bundle(random_bundle(kind), folder / name)
    with serving(folder / "writer", folder / "reader", device="cpu") as client:
        yield client


@pytest.mark.parametrize(("name", "kind"), [("writer", "decoder-only"), ("reader", "encoder-only")])
def test_a_model_of_one_text_is_looked_into(open_page: Opens, single: Client, name: str, kind: str) -> None:
    page = open_page(client=single)
    page.select_option("#model", label=f"{name}: {kind}")
    assert f"{name} is {kind}: it reads one text and translates nothing." in page.inner_text(".said")
    assert page.locator("input[type=number]:visible").count() == 0
    text = " ".join(WORDS.split()[:5])
    page.fill("#text", text)
    page.click("button:text('Look inside')")
    page.wait_for_selector("#translate .token[title*=', id ']")
    record = single.post("/api/v1/explain", {"q": text, "model": name}).json
    rows = [row.locator("button").all_inner_texts() for row in page.locator(".tokens").all()]
    assert rows == [record["source"]["pieces"], [step["piece"] for step in record["steps"]]]
    assert faults_of(page, "color-contrast", "label") == []
    page.click("nav a:text('Beams')")
    page.wait_for_selector(f"text={WITHOUT_BEAMS}")


def test_a_view_is_shown_when_it_can_do_something(open_page: Opens, single: Client) -> None:
    """Over a slow line there are models before there is the view; what is typed and chosen must not fall into a void."""
    held: list[Any] = []
    page = open_page(client=single, loaded=False, before=lambda page: page.route("**/translate.js", lambda route: held.append(route)))
    page.wait_for_selector("#model option", state="attached")
    page.select_option("#model", label="reader: encoder-only")
    while not held:
        page.wait_for_timeout(20)
    assert page.is_hidden("#text")
    held[0].continue_()
    page.wait_for_selector("#text:focus")
    assert page.inner_text(".said").startswith("reader is encoder-only")


def test_a_view_that_was_left_before_it_came_is_not_shown(open_page: Opens, single: Client) -> None:
    held: list[Any] = []
    page = open_page(client=single)
    page.route("**/run.js", lambda route: held.append(route))
    page.click("nav a:text('Run')")
    page.click("nav a:text('Translate')")
    while not held:
        page.wait_for_timeout(20)
    with page.expect_response("**/run.js"):
        held[0].continue_()
    page.evaluate("import(new URL('web/js/run.js', document.baseURI))")  # it is there, and who waited before has it
    assert (page.is_hidden("#run"), page.is_visible("#translate")) == (True, True)
    assert page.inner_text("[aria-current]") == "Translate"


def test_a_server_that_looks_into_nothing_hides_these_views(open_page: Opens, toy: Path) -> None:
    with serving(toy, device="cpu", explain=False) as client:
        page = open_page("#view=beams", client=client)
        page.wait_for_selector("text=--no-explain")
        assert page.locator("nav a:visible").all_inner_texts() == ["Translate", "Run"]
        page.click("nav a:text('Translate')")
        page.fill("#text", TEXT)
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".tinted, .doubt")
        page.locator(".tokens button").first.click()
        assert page.is_visible("#translate")


@pytest.mark.parametrize("kind", ["translator", "writer"])
def test_a_server_with_keys_asks_for_one(open_page: Opens, toy: Path, tmp_path: Path, kind: str) -> None:
    from dragoman.serve.keys import new_key, write_keys

    key, entry = new_key("someone", req_limit=None, char_limit=None)
    write_keys(tmp_path / "keys.json", [entry])
    if kind == "writer":
        save_bundle(random_bundle(GPT), tmp_path / kind)
    with serving(toy if kind == "translator" else tmp_path / kind, device="cpu", keys=tmp_path / "keys.json") as client:
        page = open_page(client=client)
        page.fill("#text", TEXT)
        assert page.is_hidden("input[type=password]")
        page.click("button.main")
        page.fill("input[type=password]", key)
        assert faults_of(page, "label") == []
        page.click("button.main")
        page.wait_for_selector("#translate .token[title*=', id ']")


def test_what_is_said_of_a_model_follows_the_server(open_page: Opens, toy: Path) -> None:
    """A server that is told to reads a newer checkpoint; the page asks again after a translation, and keeps what it found."""
    with serving(toy, device="cpu") as client:
        page = open_page(client=client)
        newer = client.get("/api/v1/models").json
        newer["models"][0]["said"] = newer["models"][0]["said"].replace("step 4,", "step 12,345,")
        page.route("**/api/v1/models", lambda route: route.fulfill(json=newer))
        page.fill("#text", TEXT)
        page.click("button.main")
        page.wait_for_selector("#facts:has-text('step 12,345')")
        page.wait_for_selector(".tinted, .doubt")
        assert page.inner_text(".said")


def test_a_model_that_a_server_no_longer_has_stays_chosen_and_is_said_to_be_gone(open_page: Opens, toy: Path) -> None:
    """The list must not show another model than the one that is asked; what was found stays."""
    with serving(toy, device="cpu") as client:
        page = open_page(client=client)
        chosen = page.input_value("#model")
        here = client.get("/api/v1/models").json
        (model,) = here["models"]
        other = model | {"run": "other", "pairs": [{"source": "fr", "target": "de"}]}
        choice = {"label": "French → German", "run": "other", "pair": {"source": "fr", "target": "de"}}
        gone = here | {"models": [other], "choices": [choice]}
        shown = "labels => String(labels) === String([...document.getElementById('model').options].map((option) => option.label))"
        listed = [gone, gone | {"models": [other | {"step": 5}]}, here]
        page.route("**/api/v1/models", lambda route: route.fulfill(json=listed.pop(0)))
        page.fill("#text", TEXT)
        before = page.locator("#model option").first.inner_text()
        for labels in (["French → German", f"{before}, no longer served"],) * 2 + ([before],):
            with page.expect_response("**/api/v1/models"):  # asked for when the translation is there
                page.click("button.main")
            page.wait_for_function(shown, arg=labels)
            assert page.input_value("#model") == chosen
            assert page.inner_text(".said")


def test_a_run_without_a_checkpoint_shows_its_curves(open_page: Opens, tmp_path: Path) -> None:
    run = write_run(tmp_path / "young", status="running")
    shutil.rmtree(run / "checkpoints")
    with serving(run, device="cpu", watch=True) as client:
        page = open_page(client=client, loaded=False)
        page.wait_for_selector("text=The server is loading its model")
        page.click("nav a:text('Run')")
        page.wait_for_selector("#run svg")
        assert page.inner_text("#run h2") == "young: en-de"


def test_while_the_server_is_slow_nothing_of_the_sentence_before_is_left(open_page: Opens) -> None:
    held: list[Any] = []
    page = open_page()
    translate(page, TEXT)
    assert page.inner_text("#status").endswith("tokens")
    page.route("**/api/v1/stream", lambda route: held.append(route))
    page.fill("#text", "rem tilu")
    page.click("#go")
    page.wait_for_selector("#stop:enabled")
    assert [page.inner_text(place) for place in ("#status", ".said", "#pieces")] == ["", "", ""]
    page.click("#stop")
    page.wait_for_selector("#status:has-text('Stopped after')")


def test_an_unknown_piece_is_marked_where_nothing_is_looked_into(open_page: Opens, toy: Path) -> None:
    with serving(toy, device="cpu", explain=False) as client:
        page = open_page(client=client)
        page.fill("#text", "rem nowhere tilu")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#pieces button")
        assert page.locator("#pieces .unknown.token").all_inner_texts() == ["<unk>"]


def test_a_late_list_of_runs_takes_no_place(open_page: Opens, toy: Path) -> None:
    """It was asked for while the server had no model; the run of the one that has come stays."""
    held: list[Any] = []
    with serving(toy, device="cpu") as client:

        def hold(page: Any) -> None:
            for path in ("runs", "models"):
                page.route(f"**/api/v1/{path}", lambda route: held.append(route))

        page = open_page("#view=run", client=client, loaded=False, before=hold)
        while len(held) < 2:
            page.wait_for_timeout(20)
        models, runs = sorted(held, key=lambda route: route.request.url)
        models.continue_()
        page.wait_for_selector("#run svg")
        runs.fulfill(json={"runs": [{"name": "other"}]})
        page.wait_for_timeout(300)
        assert page.inner_text("#run h2") == "toy: en-de"


def test_an_answer_about_what_was_shown_before_is_passed_over(open_page: Opens, tmp_path: Path) -> None:
    """A look at a run, then another run and back to the first, before the first look has its answer, which is that nothing has changed."""
    held: list[Any] = []
    with serving(write_run(tmp_path / "going", status="running"), device="cpu") as client:
        page = open_page("#view=run", client=client)
        page.wait_for_selector("#run svg")
        page.route("**/going/drawn*", lambda route: held.append(route))
        while not held:
            page.wait_for_timeout(20)
        own = module(page, "state", "const { model } = m.state; m.set({ model: { run: 'none' } }); return model")
        page.wait_for_selector("#run .error")
        module(page, "state", "m.set({ model: a })", own)
        while len(held) < 2:
            page.wait_for_timeout(20)
        said = page.inner_text("#run")
        held[0].continue_()
        page.wait_for_timeout(300)
        assert page.inner_text("#run") == said
        held[1].continue_()
        page.wait_for_selector("#run svg")


def test_a_server_that_is_gone_is_told_of(open_page: Opens, toy: Path) -> None:
    with serving(toy, device="cpu") as client:
        page = open_page(client=client)
        page.fill("#text", TEXT)
    page.click("button.main")
    page.wait_for_selector("text=The server does not answer; is it still running?")
    assert page.input_value("#text") == TEXT
    page.click("nav a:text('Run')")  # a view whose files the page does not have yet
    page.wait_for_selector("#notice:has-text('The server does not send this view')")
    assert page.locator("section:not([hidden])").count() == 0
    page.click("nav a:text('Translate')")
    page.wait_for_selector("#text:visible")
    assert page.inner_text("#notice") == ""


def test_sentences_of_a_longer_text_are_chosen_one_by_one(open_page: Opens) -> None:
    page = open_page()
    page.fill("#text", "Ona bek.\nTilu rem sova.")
    page.click("button.main")
    page.wait_for_selector("#translate .token[title*=', id ']")
    page.get_by_label("Sentence").select_option(label="2: Tilu rem sova.")
    page.wait_for_selector("#translate .token[title^='piece 4'][title*=', id ']")
    page.click("nav a:text('Beams')")
    page.wait_for_selector("#beams .sentence:text('Tilu rem sova.')")
