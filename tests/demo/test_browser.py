"""The page in a real browser, over the real process and model, through kill -9 in the middle of an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.demo.process import free_port, need_the_parts, running
from tests.server.browsing import answered, ask, bodies, browsing, launched, written

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONG = "Tell me a story of five sentences about a lighthouse keeper and the sea."
PATIENCE_MS = 120_000

pytestmark = pytest.mark.timeout(360)


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    need_the_parts()
    with launched(chromium) as browser, browsing(browser) as shown:
        shown.set_default_timeout(PATIENCE_MS)
        yield shown


@pytest.mark.slow
def test_an_open_page_outlives_the_process(page: Page, tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path / "demo.db", port) as demo:
        page.goto(demo.address)
        page.locator("#model", has_text=re.compile("^SmolLM2")).wait_for()
        ask(page, "What is the capital of France?")
        answered(page, 1)
        first = bodies(page)[1]
        ask(page, LONG)
        written(page, 40)
        demo.kill()
        page.locator("#notice", has_text="The server does not answer.").wait_for()
        ask(page, "Thank you!")
        page.get_by_text("Waits for the server").wait_for()
    with running(tmp_path / "demo.db", port) as demo:
        answered(page, 3)
        page.locator("#notice").wait_for(state="hidden")
        assert bodies(page)[:3] == ["What is the capital of France?", first, LONG]
        (thread,) = demo.threads()
        assert [kind for kind, _ in demo.said(thread)] == ["human", "ai"] * 3
        assert [text for _, text in demo.said(thread)[::2]] == bodies(page)[::2]


@pytest.mark.slow
def test_the_page_kills_the_process_and_another_one_goes_on(page: Page, tmp_path: Path) -> None:
    with running(tmp_path / "demo.db", free_port()) as demo:
        page.goto(demo.address)
        page.locator("#model", has_text=re.compile("^SmolLM2")).wait_for()
        first = demo.ask("GET", "/chat/process.json")["pid"]
        page.get_by_role("button", name="What is stored").click()
        ask(page, LONG)
        written(page, 40)
        page.get_by_role("button", name="Kill the server process").click()
        page.get_by_text(f"Process {first} was killed with SIGKILL").wait_for()
        page.get_by_text("Attempt 2 began, from the last stored checkpoint").wait_for()
        answered(page, 1)
        second = demo.ask("GET", "/chat/process.json")["pid"]
        page.get_by_text(f"Process {second} took over").wait_for()
        assert second != first
        (thread,) = demo.threads()
        # A model may end with white space, which the page does not show.
        assert [text.strip() for _, text in demo.said(thread)] == bodies(page)


@pytest.mark.slow
def test_the_page_shows_what_was_remembered_and_forgets_it(page: Page, tmp_path: Path) -> None:
    with running(tmp_path / "demo.db", free_port()) as demo:
        page.goto(demo.address)
        page.locator("#model", has_text=re.compile("^SmolLM2")).wait_for()
        ask(page, "My name is Ada. What is the capital of France?")
        answered(page, 1)
        known = page.request
        while not known.get(f"{demo.address}/memory").json()["facts"]:
            page.wait_for_timeout(100)
        page.locator("#new-thread").click()
        ask(page, "Hello!")
        answered(page, 1)
        remembered = page.locator(".message.memory li")
        remembered.get_by_text("My name is Ada.").wait_for()
        remembered.get_by_role("button", name="Forget").click()
        page.locator(".message.memory li", has_text="Forgotten").wait_for()
        assert known.get(f"{demo.address}/memory").json()["facts"] == []
        page.reload()
        page.locator(".message.memory li", has_text="Forgotten").wait_for()
