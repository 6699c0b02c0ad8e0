"""The page at the root, in a real browser that can reach nothing but the server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.serving.conftest import Live, Start

from louver.bundle import Bundle

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "no browser; 'make browser' installs Debian's chromium"
    quiet = ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        # root in a container has no sandbox of its own
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu", *quiet])
        yield running
        running.close()


class Opened:
    """A page that was opened, and everything that it asked for or complained of."""

    def __init__(self, browser: Browser, live: Live, **options: Any) -> None:
        self.page: Page = browser.new_page(**options)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.goto(live.url)
        self.page.wait_for_selector("#model option", state="attached")

    def answer(self, text: str) -> None:
        self.page.fill("#first", text)
        self.page.click("#ask")
        self.page.wait_for_selector("#result:not([hidden])")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)


@pytest.fixture
def opened(browser: Browser, live: Live) -> Iterator[Opened]:
    found = Opened(browser, live)
    yield found
    assert all(url.startswith((live.url, "data:")) for url in found.asked)  # nothing from elsewhere
    assert found.complaints == []
    found.page.close()


def test_a_label_with_what_was_read_and_how_long_it_took(opened: Opened) -> None:
    opened.page.select_option("#model", "colours")
    opened.answer("rose ruby cherry scarlet")
    assert opened.text("#answer .headline") == "red"
    expect(opened.page.locator("#answer .name").first).to_have_text("red")
    assert "tokens read, nothing cut" in opened.text("#read")
    times = opened.text("#times")
    for part in ("tokenization", "queue", "inference", "together"):
        assert part in times
    opened.page.click("summary")
    tokens = [token.inner_text() for token in opened.page.query_selector_all("#tokens li")]
    assert tokens[0] == "[CLS]"
    assert tokens[-1] == "[SEP]"
    assert "rose" in tokens


def test_numbers_of_an_embedding_and_what_a_long_text_loses(opened: Opened) -> None:
    opened.page.select_option("#model", "embed")
    opened.page.select_option("#truncate", "tail")
    opened.answer("alpha " + "beta " * 2500 + "omega")
    assert "numbers" in opened.text("#answer")
    assert " cut" in opened.text("#read")
    assert "nothing cut" not in opened.text("#read")
    opened.page.click("summary")
    assert len(opened.page.query_selector_all("#tokens li")) == 2000
    opened.page.click("#more")
    cut = opened.page.query_selector_all("#tokens li.cut")
    assert cut[0].inner_text() == "alpha"  # the tail is kept
    assert "omega" not in {token.inner_text() for token in cut}


def test_the_server_s_own_words_for_what_cannot_be(opened: Opened) -> None:
    opened.page.click("#ask")  # no text
    opened.page.wait_for_selector("#error:not([hidden])")
    assert "empty" in opened.text("#error")
    opened.page.select_option("#truncate", "error")
    opened.page.fill("#first", "beta " * 5000)
    opened.page.click("#ask")
    expect(opened.page.locator("#error")).to_contain_text("tokens")
    assert opened.page.is_hidden("#result")


def test_a_text_is_text_and_the_keyboard_is_enough(opened: Opened, tmp_path: Path) -> None:
    """Markup in a text or a file does nothing; the text box has the focus, and Ctrl+Enter answers."""
    expect(opened.page.locator("#first")).to_be_focused()
    opened.page.keyboard.type("<img src=x onerror=\"document.title='broken'\"> rose")
    opened.page.keyboard.press("Control+Enter")
    opened.page.wait_for_selector("#result:not([hidden])")
    opened.page.click("summary")
    assert "<" in {token.inner_text() for token in opened.page.query_selector_all("#tokens li")}
    assert opened.page.title() == "louver"
    file = tmp_path / "text.txt"
    file.write_text("sky ocean " * 3, "utf8")
    opened.page.set_input_files("#file", file)
    expect(opened.page.locator("#first")).to_have_value("sky ocean " * 3)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it(scheme: str, browser: Browser, live: Live) -> None:
    opened = Opened(browser, live, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    opened.answer("rose " * 300)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360  # nothing to scroll sideways
    dark = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(20, 24, 30)" if scheme == "dark" else "rgb(247, 248, 250)")
    opened.page.close()


def test_spans_and_answers_are_marked_where_they_stand(
    browser: Browser, start: Start, tagging: Bundle, answering: Bundle
) -> None:
    """Characters that are two units in a browser count as one."""
    live = start({"tag": tagging.path, "answer": answering.path})
    opened = Opened(browser, live)
    text = "😀😀 sky ocean azure rose ruby"
    opened.answer(text)
    marks = opened.page.query_selector_all("#answer mark")
    assert marks
    own = live.post("/answer", {"inputs": [text], "model": "tag"}).json()["answers"][0]["spans"]
    shown = [mark.evaluate("mark => mark.firstChild.textContent") for mark in marks]
    assert shown == [span["text"] for span in own]
    opened.page.select_option("#model", "answer")
    assert opened.text("#first-name") == "Question"
    opened.page.fill("#second", text)
    opened.answer("which?")
    found = live.post("/answer", {"inputs": [["which?", text]], "model": "answer"}).json()["answers"][0]["answer"]
    assert opened.text("#answer .headline") == found["text"].strip()
    opened.page.close()


def test_a_key_is_asked_for_and_the_page_itself_needs_none(browser: Browser, start: Start, exported: Bundle) -> None:
    live = start({"colours": exported.path}, keys=["secret"])
    page = browser.new_page()
    page.goto(live.url)
    page.wait_for_selector("#key-row:not([hidden])")
    assert "API key" in page.inner_text("#error")
    page.fill("#key", "secret")
    page.press("#key", "Tab")
    page.wait_for_selector("#model option", state="attached")
    page.fill("#first", "rose ruby")
    page.click("#ask")
    page.wait_for_selector("#result:not([hidden])")
    assert page.inner_text("#answer .headline") == "red"
    page.close()
    headers = live.get("/").headers
    assert "default-src 'none'" in headers["content-security-policy"]
