"""The chat page over a graph that sleeps and waits for a signal: it says so, and asks nobody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.runtime import sleep, wait_for_sync
from tests.server.browsing import Site, answered, ask, bodies, browsing, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(240)


def test_a_sleep_is_said_and_asks_nothing(browser: Browser, tmp_path: Path) -> None:
    async def turn(state: MessagesState) -> dict[str, Any]:
        text = str(state["messages"][-1].text)
        if text == "hope":
            text = str(wait_for_sync("post"))
        elif text == "nap":
            await sleep(3)
            text = "slept"
        return {"messages": [AIMessage(text)]}

    graph = StateGraph(MessagesState).add_node(turn).add_edge(START, "turn").compile()
    site = Site(f"sqlite:///{tmp_path / 'page.db'}", {"chat": graph})
    try:
        with browsing(browser, viewport={"width": 1280, "height": 800}) as page:
            page.goto(site.page)
            page.locator("#graph option").first.wait_for(state="attached")
            ask(page, "hope")
            page.get_by_text("The agent waits for post.").wait_for()
            when = page.locator(".thread-when").first
            wait_for("the status in the list", lambda: when.inner_text() == "Asleep")
            assert page.locator(".question").count() == 0
            page.reload()
            page.get_by_text("The agent waits for post.").wait_for()
            ask(page, "never mind")
            answered(page, 1)
            assert bodies(page) == ["hope", "never mind", "never mind"]
            assert page.get_by_text("The agent waits").count() == 0
            ask(page, "nap")
            page.get_by_text("The agent sleeps until").wait_for()
            # What wakes it comes without anybody's doing.
            page.get_by_text("slept").wait_for()
            assert page.get_by_text("The agent sleeps").count() == 0
    finally:
        site.stop()
