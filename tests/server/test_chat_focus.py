"""The keyboard's focus in the chat page: after a message, an answer or a question a person can go on typing.

An element that had the focus and is removed, hidden or disabled leaves it to the page's body, from where Tab
begins at the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.server.browsing import Site, answered, ask, browsing, wait_for, written
from tests.server.gates import GATES
from tests.server.test_chat_page import choose_chat, shown, site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["site"]
pytestmark = pytest.mark.timeout(240)
WIDTHS = pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.slow)])


@pytest.fixture
def page(browser: Browser, site: Site, width: int) -> Iterator[Page]:
    with browsing(browser, viewport={"width": width, "height": 800}) as opened:
        opened.goto(site.page)
        choose_chat(opened)
        yield opened


def comes_to(page: Page, wanted: str) -> None:
    """Wait until the focus is on the element of an id, or on one with this text or label."""
    found = """() => {
        const at = document.activeElement;
        return at === document.body ? "nowhere" : at.id || at.getAttribute("aria-label") || at.textContent;
    }"""
    seen: list[str] = []

    def is_there() -> bool:
        seen.append(page.evaluate(found))
        return seen[-1] == wanted

    try:
        wait_for("the focus", is_there, 10)
    except AssertionError:
        pytest.fail(f"the focus is on {seen[-1]!r} and not on {wanted!r}")


def stays_during_an_answer(page: Page) -> None:
    """Let the first answer be written, and see that the focus is on the field before and after its end."""
    written(page, 5)
    comes_to(page, "text")
    GATES["count"].set()
    answered(page, 1)
    comes_to(page, "text")


@WIDTHS
def test_it_stays_with_what_is_written_next(page: Page) -> None:
    page.locator("#text").focus()
    page.keyboard.type("count 40 at 20")
    page.keyboard.press("Enter")
    stays_during_an_answer(page)
    page.keyboard.type("by the button")
    page.keyboard.press("Tab")
    while page.evaluate("() => document.activeElement.id") != "send":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    comes_to(page, "text")
    answered(page, 2)
    comes_to(page, "text")


@WIDTHS
def test_it_stays_when_an_answer_is_stopped_made_again_or_fails(page: Page) -> None:
    ask(page, "count 4000")
    written(page, 20)
    page.locator("#stop").focus()
    page.keyboard.press("Enter")
    shown(page, "What was written is kept")
    comes_to(page, "text")
    again = page.locator("#notice").get_by_role("button", name="Answer again")
    again.focus()
    page.keyboard.press("Enter")
    written(page, 20)
    comes_to(page, "text")
    page.keyboard.press("Escape")
    shown(page, "What was written is kept")
    ask(page, "break")
    shown(page, "The answer failed with ConnectionError: no line.")
    comes_to(page, "text")


@WIDTHS
def test_it_stays_after_an_edit(page: Page) -> None:
    ask(page, "one")
    answered(page, 1)
    page.locator('[data-act="edit"]').first.focus()
    page.keyboard.press("Enter")
    page.keyboard.type(" count 40 at 20")
    page.keyboard.press("Control+A")
    page.keyboard.type("count 40 at 20")
    page.keyboard.press("Enter")
    stays_during_an_answer(page)


@WIDTHS
def test_it_comes_to_a_question_and_back(page: Page) -> None:
    page.select_option("#graph", "asking")
    page.locator("#text").focus()
    page.keyboard.type("action")
    page.keyboard.press("Tab")
    while page.evaluate("() => document.activeElement.id") != "send":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    comes_to(page, "Approve")
    page.keyboard.press("Enter")
    answered(page, 1)
    comes_to(page, "text")
    page.keyboard.press("Control+k")
    page.select_option("#graph", "asking")
    ask(page, "text")
    comes_to(page, "Your answer")
    page.keyboard.type("Vienna")
    page.keyboard.press("Enter")
    comes_to(page, "text")
    answered(page, 1)
    comes_to(page, "text")


@pytest.mark.parametrize("width", [1280])
def test_a_reader_elsewhere_keeps_it(page: Page) -> None:
    ask(page, "count 40 at 20")
    written(page, 5)
    page.locator("#theme").focus()
    GATES["count"].set()
    answered(page, 1)
    comes_to(page, "theme")
    ask(page, "count 40 at 20")
    page.locator(".message.user .body").last.click()
    answered(page, 2)
    comes_to(page, "scroller")
