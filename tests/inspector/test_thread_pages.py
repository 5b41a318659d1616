"""The page of one thread in a real browser, with names and sizes that are not usual."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from langchain_core.messages import AnyMessage, ChatMessage, HumanMessage
from langgraph.graph import START, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.inspector.access import LocalAccess
from perdure.model.model_calls import Price, Prices
from tests.inspector import many_threads, staging
from tests.inspector.browsing import PHONE, findings, served
from tests.server.browsing import browsing, launched, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


def test_a_wide_graph_can_be_read(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    names = [*(f"{'W' * 40} {n}" for n in range(9)), "\u8c03\u7528\u5de5\u5177" * 6]
    with perdure.connect_sync(url, migrate=True) as database:
        built = StateGraph(staging.State)
        for name in names:
            built.add_node(name, lambda _: {}).add_edge(START, name)
        staging.say(built.compile(checkpointer=database.checkpointer()), "t", "hello")
    reading = open_for_reading(url)
    with (
        served(LocalAccess(handle_of(reading), "")) as address,
        browsing(browser, viewport=PHONE, reduced_motion="reduce") as page,
    ):
        page.goto(f"{address}#/thread?id=t&view=graph")
        page.locator(".picture .box").nth(10).wait_for()
        boxes = page.locator(".picture .box").evaluate_all(
            """all => all.map(box => ["rect", "text"].map(
                name => box.querySelector(name).getBoundingClientRect().width))"""
        )
        assert all(text <= rect for rect, text in boxes)
        assert (
            page.locator(".picture rect").first.evaluate("each => each.getBoundingClientRect().height") > 20
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator(".picture").focus()
        page.keyboard.press("ArrowRight")
        place = page.locator(".picture")
        wait_for("the graph to be scrolled", lambda: place.evaluate("each => each.scrollLeft > 0"))
        assert findings(page) == []
    reading.close()


def test_names_that_every_object_has_are_names_in_every_view(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as database:
        inner = StateGraph(staging.State).add_node("toString", lambda _: {}).add_edge(START, "toString")
        built = StateGraph(staging.State).add_node("constructor", inner.compile(checkpointer=True))
        said: list[AnyMessage] = [
            ChatMessage(content="hi", role="valueOf"),
            HumanMessage("hi", name="valueOf"),
        ]
        app = built.add_edge(START, "constructor").compile(checkpointer=database.checkpointer())
        app.invoke({"messages": said, "notes": [], "facts": {}}, staging.at("t"))
    reading = open_for_reading(url)
    with (
        served(LocalAccess(handle_of(reading), "")) as address,
        browsing(browser, reduced_motion="reduce") as page,
    ):
        page.goto(f"{address}#/thread?id=t&view=graph")
        page.locator(".picture .box").nth(1).wait_for()
        names = page.locator(".picture .box text:not(.times)").all_text_contents()
        assert sorted(names) == ["constructor", "end", "start"]
        assert page.locator(".picture .times").all_text_contents() == ["1×"]
        page.get_by_role("button", name="Conversation").click()
        page.locator(".bubble").nth(1).wait_for()
        assert "function" not in "".join(page.locator(".bubble").all_inner_texts())
        # An address with another view, as a link or the history has it, leads to that view.
        page.evaluate("location.hash = '#/thread?id=t&view=timeline'")
        page.locator('[data-view="timeline"][aria-pressed="true"]').wait_for()
        page.locator(".timeline .group a").first.wait_for()
        # The steps of a subgraph that keeps its state are among those of its task: the sum is the thread's.
        page.get_by_role("button", name="Steps").click()
        page.locator(".waterfall .name", has_text="toString").first.wait_for()
        page.get_by_text("No tokens were counted").wait_for()
        assert page.get_by_role("button", name="Count the whole thread").count() == 0
    reading.close()


def has_more(links: Locator, shown: int) -> bool:
    return links.count() > shown


def test_a_step_is_gone_to_by_its_number(browser: Browser, tmp_path: Path) -> None:
    url, steps = f"sqlite:///{tmp_path / 'threads.db'}", 260

    async def fill() -> None:
        async with perdure.connect(url, migrate=True) as database:
            await many_threads.lengthen(database, steps)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(fill())).result()
    reading = open_for_reading(url)
    with (
        served(LocalAccess(handle_of(reading), "")) as address,
        browsing(browser, viewport=PHONE, reduced_motion="reduce") as page,
    ):
        page.goto(f"{address}#/thread?id={many_threads.LONG}")
        newest = steps - 2
        page.get_by_text(re.compile(rf"Steps \d+ to {newest} of {newest}")).wait_for()
        earlier = page.get_by_role("button", name="Earlier")
        shown = page.locator("a.step").count()
        earlier.press("Enter")
        wait_for("earlier steps", partial(has_more, page.locator("a.step"), shown))
        page.wait_for_function("() => document.activeElement.matches('a.step')")
        page.get_by_label("Go to step").fill("20")
        page.keyboard.press("Enter")
        facts = page.locator(".detail .facts")
        facts.get_by_text("20, loop").wait_for()
        assert facts.locator("dt").all_inner_texts()[3:6] == ["Step", "Node", "Took"]
        assert page.url.endswith("&step=20")
        page.get_by_role("button", name="Written by the next step").wait_for()
        # An address with a step opens there, too; one that is not there is an error beside the newest ones.
        page.set_viewport_size({"width": 1280, "height": 800})
        page.reload()
        page.locator("a.step[aria-current]", has_text="step 20").wait_for()
        assert page.get_by_text(f"Steps -1 to 28 of {newest}").is_visible()
        page.get_by_label("Go to step").fill("9999")
        page.get_by_role("button", name="Go", exact=True).press("Enter")
        page.get_by_text("has no step 9999").wait_for()
        page.get_by_text(re.compile(rf"Steps \d+ to {newest} of {newest}")).wait_for()
    reading.close()


def test_the_calls_of_a_thread_of_many_pages_are_counted_by_keys(browser: Browser, tmp_path: Path) -> None:
    url, steps = f"sqlite:///{tmp_path / 'threads.db'}", 260

    async def fill() -> None:
        async with perdure.connect(url, migrate=True) as database:
            await many_threads.lengthen(database, steps)

    with ThreadPoolExecutor(1) as pool:  # the browser's client has a loop in this one
        pool.submit(lambda: asyncio.run(fill())).result()
    reading = open_for_reading(url)
    prices = Prices({many_threads.MODEL: Price(2.0, 8.0)})
    with (
        served(LocalAccess(handle_of(reading), "", prices=prices)) as address,
        browsing(browser, viewport=PHONE, reduced_motion="reduce") as page,
    ):
        page.goto(f"{address}#/thread?id={many_threads.LONG}")
        button = page.get_by_role("button", name="Count the whole thread")
        button.wait_for()
        assert "Tokens of the steps below" in page.locator(".sums").inner_text()
        assert findings(page) == []
        button.focus()
        page.keyboard.press("Enter")
        calls = steps - 2
        whole = f"Tokens of this thread: {calls * 1000:,} in, {calls * 500:,} out, in {calls} calls"
        page.get_by_text(whole).wait_for()
        assert f"{calls * 0.006:.4g} USD" in page.locator(".sums").inner_text()
        assert page.evaluate("document.activeElement.textContent").startswith("Tokens of this thread")
        assert page.locator("#announcer").inner_text() == "The thread is counted."
        assert findings(page) == []
        # It stays while the other pages come, the last of which shows that the first input has no tokens.
        links = page.locator("a.step")
        while links.count() < steps - 2:
            shown = links.count()
            links.last.scroll_into_view_if_needed()
            wait_for("more steps", partial(has_more, links, shown))
            assert whole in page.locator(".sums").inner_text()
        assert button.count() == 0
    reading.close()
