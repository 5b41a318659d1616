"""The page in a real browser, over the real process and model, through kill -9 in the middle of an answer."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import missing
from tests.demo.process import free_port, need_the_parts, running, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONG = "Tell me a very long story about a lighthouse keeper and the sea."
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 120_000

pytestmark = pytest.mark.timeout(360)


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    need_the_parts()
    if importlib.util.find_spec("playwright") is None:
        missing("playwright", "pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        shown = browser.new_page()
        shown.set_default_timeout(PATIENCE)
        faults: list[str] = []
        shown.on("pageerror", lambda error: faults.append(str(error)))
        yield shown
        browser.close()
    assert faults == []


def ask(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def wait_for_text(page: Page, words: str) -> None:
    from playwright.sync_api import TimeoutError as Late

    try:
        page.get_by_text(words, exact=True).wait_for()
    except Late:
        pytest.fail(f"{words!r} is not on the page, which says: {page.inner_text('main')}")


def wait_until_answered(page: Page, answers: int = 1) -> None:
    page.locator(".message.assistant").nth(answers - 1).wait_for()
    page.locator(".message.writing").wait_for(state="detached")


def wait_for_tokens(page: Page, characters: int) -> str:
    written = page.locator(".message.writing .body")
    written.wait_for()
    wait_for("a streamed answer", lambda: len(written.inner_text()) >= characters)
    return written.inner_text()


def roles(page: Page) -> list[str | None]:
    return [m.get_attribute("class") for m in page.locator(".message").all()]


def test_an_open_page_outlives_the_process(page: Page, tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path / "demo.db", port) as demo:
        page.goto(demo.address)
        ask(page, "What is the capital of France?")
        wait_for_text(page, "Stored")
        wait_until_answered(page)
        first = page.locator(".message.assistant .body").inner_text()
        ask(page, LONG)
        wait_for_tokens(page, 40)
        demo.kill()
        page.get_by_text("The program is not running").wait_for()
        assert page.locator(".message.cut").count() == 1
    with running(tmp_path / "demo.db", port) as demo:
        page.get_by_text("This answer was cut off").wait_for()
        wait_for_tokens(page, 40)
        wait_until_answered(page, 2)
        page.get_by_text("Written again after an interruption").wait_for()
        assert page.locator("#notice").is_hidden()
        assert roles(page) == ["message user", "message assistant"] * 2
        assert page.locator(".message.assistant .body").first.inner_text() == first
        ask(page, "Thank you!")
        wait_until_answered(page, 3)
        (thread,) = demo.get("/api/threads")["threads"]
        kept = demo.get(f"/api/threads/{thread['id']}")
        assert kept["status"] == "finished"
        assert [m["text"] for m in kept["messages"] if m["role"] == "user"] == [
            "What is the capital of France?",
            LONG,
            "Thank you!",
        ]


def test_a_fresh_page_finds_the_conversation_and_goes_on(page: Page, tmp_path: Path) -> None:
    with running(tmp_path / "demo.db", free_port()) as demo:
        page.goto(demo.address)
        ask(page, LONG)
        wait_for_tokens(page, 40)
        demo.kill()
        page.goto("about:blank")
    with running(tmp_path / "demo.db", free_port()) as demo:
        page.goto(demo.address)
        line = page.locator(".thread")
        assert line.locator(".thread-title").inner_text().startswith("Tell me a very long story")
        assert line.locator(".thread-when").inner_text() == "Answer cut off"
        line.click()
        page.get_by_text("This answer was cut off").wait_for()
        assert page.locator(".message.user").inner_text() == LONG
        wait_until_answered(page)
        assert roles(page) == ["message user", "message assistant"]


def test_a_message_sent_while_the_process_is_away_is_sent_once_when_it_is_back(
    page: Page, tmp_path: Path
) -> None:
    port = free_port()
    with running(tmp_path / "demo.db", port) as demo:
        page.goto(demo.address)
        page.locator("#model").get_by_text("SmolLM2").wait_for()
        demo.kill()
    ask(page, "What is the capital of France?")
    page.get_by_text("The program is not running").wait_for()
    with running(tmp_path / "demo.db", port) as demo:
        wait_for_text(page, "Stored")
        wait_until_answered(page)
        (thread,) = demo.get("/api/threads")["threads"]
        assert [m["role"] for m in demo.get(f"/api/threads/{thread['id']}")["messages"]] == [
            "user",
            "assistant",
        ]


def test_keys_threads_themes_and_a_phone(page: Page, tmp_path: Path) -> None:
    with running(tmp_path / "demo.db", free_port()) as demo:
        page.goto(demo.address)
        page.locator("#text").type("one")
        page.press("#text", "Shift+Enter")
        page.locator("#text").type("<b>two</b>")
        page.press("#text", "Enter")
        wait_until_answered(page)
        assert page.locator(".message.user .body").inner_text() == "one\n<b>two</b>"
        page.reload()
        page.locator(".message.assistant").wait_for()
        assert page.locator(".message.user .body").inner_text() == "one\n<b>two</b>"
        page.click("#new-thread")
        ask(page, LONG)
        wait_for_tokens(page, 20)
        page.get_by_text("one <b>two</b>").click()
        page.locator(".message.user .body", has_text="two").wait_for()
        page.locator(".thread", has_text="Tell me").click()
        wait_for_tokens(page, 20)
        assert page.locator("#notice").is_hidden()
        wait_until_answered(page)
        grounds = {}
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            grounds[theme] = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert grounds["light"] != grounds["dark"]
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("() => document.documentElement.scrollWidth") == 360
        page.click("#open-list")
        delete = page.get_by_role("button", name=re.compile("^Delete Tell me"))
        delete.click()
        assert len(demo.get("/api/threads")["threads"]) == 2
        page.get_by_text("Delete?").click()
        page.get_by_text("Tell me a very long").first.wait_for(state="detached")
        assert [t["title"] for t in demo.get("/api/threads")["threads"]] == ["one <b>two</b>"]
