"""The page as a browser shows it: a small trained model that is served, Chromium, and a page that must stay quiet and at home."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from page_browser import TEXT, expected, translate, write_run

if TYPE_CHECKING:
    from serving import Client

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended."""
    return write_run(tmp_path_factory.mktemp("page") / "toy")


@pytest.fixture(scope="module")
def served(toy: Path) -> Iterator["Client"]:
    """A server of it."""
    from serving import serving

    with serving(toy, device="cpu", access_log=True) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, one for a file of tests."""
    program = CHROMIUM if CHROMIUM.exists() else shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed; apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def opening(browser: Any, served: "Client") -> Iterator[Callable[..., Any]]:
    """Opens the page, with settings of Playwright's contexts; whatever it complained of or asked of others fails the test."""
    complaints: list[str] = []
    contexts = []

    def opened(
        place: str = "", *, client: "Client" = served, loaded: bool = True, before: Callable[[Any], Any] | None = None, **settings: Any
    ) -> Any:
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: complaints.append(message.text) if expected(message) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: None if request.url.startswith((client.address, "data:")) else complaints.append(request.url))
        if before:
            before(page)
        page.goto(f"{client.address}/{place}")
        if loaded:
            page.wait_for_selector("#model option", state="attached")
            page.wait_for_selector("nav [aria-current]", state="attached")  # the view is there, with what it does
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def modules(browser: Any, served: "Client") -> Iterator[Any]:
    """The page, to ask its modules for what they compute."""
    page = browser.new_page()
    page.goto(f"{served.address}/")
    yield page
    page.close()


@pytest.fixture
def open_page(browser: Any, served: "Client") -> Iterator[Callable[..., Any]]:
    """Opens the page, for one test."""
    yield from opening(browser, served)


@pytest.fixture(scope="module")
def open_once(browser: Any, served: "Client") -> Iterator[Callable[..., Any]]:
    """Opens the page, for a file of tests."""
    yield from opening(browser, served)


@pytest.fixture
def translated(open_page: Callable[..., Any]) -> Callable[..., Any]:
    """Opens the page and translates a text, until it is looked into."""

    def done(text: str = TEXT, **settings: Any) -> Any:
        page = open_page(**settings)
        translate(page, text)
        return page

    return done
