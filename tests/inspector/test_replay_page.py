"""The replay page in Chromium: by mouse and by keys, with one graph and with two, light, dark and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.inspector.access import LocalAccess, LocalReplays
from perdure.replay import record_calls
from perdure.runtime import Agent
from tests.backends import EMPTY
from tests.inspector.browsing import findings, served
from tests.inspector.staging import HOSTILE, HOSTILE_ID
from tests.inspector.test_replaying import chat
from tests.server.browsing import browsing, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The pages over recorded threads that are only read, with an older and a newer graph."""
    with EMPTY[request.param]() as url:
        with perdure.connect_sync(url, migrate=True) as database:
            graph = record_calls(chat("Be kind.").compile(checkpointer=database.checkpointer()))
            for name, texts in (("t", ("tides", "cats")), (HOSTILE_ID, (HOSTILE,))):
                for text in texts:
                    graph.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": name}})
        if request.param == "sqlite":
            # A file that nobody may write.
            Path(url.removeprefix("sqlite:///")).chmod(0o444)
        database = open_for_reading(url)
        old, new = chat("Be kind.").compile(), chat("Be kind.", shouts=True).compile()
        replays = LocalReplays(database, {"old": Agent(old), "new": Agent(new)}, "new")
        access = LocalAccess(handle_of(database), "", replays=replays, allowed=frozenset({"replay"}))
        try:
            with served(access) as found:
                yield found
        finally:
            database.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browsing(browser, reduced_motion="reduce") as shown:
        yield shown


def test_a_thread_is_replayed_by_two_versions(page: Page, address: str) -> None:
    page.goto(f"{address}#/thread?id=t")
    page.get_by_role("link", name="Replay by a graph").click()
    page.get_by_role("button", name="Replay", exact=True).click()
    # It stops at the first step that differs: the newer version's answer.
    page.get_by_text("2 steps replayed, not all; 1 differs.").wait_for()
    page.locator('.version[data-graph="old"]', has_text="As it was recorded.").wait_for()
    changed = page.locator('.version[data-graph="new"] .change.edited')
    assert changed.locator("ins pre").inner_text() == "ANSWER 1 TO TIDES"
    page.get_by_role("button", name="Go on after this step").click()
    page.get_by_text("4 steps replayed, not all; 2 differ.").wait_for()
    page.get_by_role("button", name="Go on after this step").click()
    page.get_by_text("4 steps replayed; 2 differ.").wait_for()
    page.get_by_label("Beside it").select_option("")
    page.get_by_role("button", name="Replay", exact=True).click()
    page.get_by_text("4 steps replayed; nothing differs.").wait_for()
    assert page.locator(".version").count() == 0


def test_it_works_by_keys_alone_and_shows_hostile_texts_as_text(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name=HOSTILE_ID).focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Replay by a graph").focus()
    page.keyboard.press("Enter")
    page.get_by_label("every step that differs").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("2 steps replayed; 1 differs.").wait_for()
    assert page.locator(".version ins pre").inner_text() == f"ANSWER 1 TO {HOSTILE.upper()}".replace(
        "ANSWER 1", "ANSWER 3"
    )
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "Perdure inspector"


def hostile(*, changed: bool = False) -> Any:
    """A graph whose channels, nodes, questions and errors have hostile names and texts."""
    typed_dict: Any = TypedDict
    state = typed_dict("state", {"messages": list[Any], HOSTILE: Any})

    def write(held: Any) -> dict[str, Any]:
        return {HOSTILE: {HOSTILE: [HOSTILE * 2 if changed else HOSTILE]}}

    def fail(held: Any) -> dict[str, Any]:
        if changed:
            raise ValueError(HOSTILE)
        return {HOSTILE: HOSTILE}

    builder: Any = StateGraph(state)
    builder.add_node(HOSTILE, write)
    builder.add_node(f"{HOSTILE} again", fail)
    builder.add_edge(START, HOSTILE)
    builder.add_edge(HOSTILE, f"{HOSTILE} again")
    return builder


def test_hostile_names_errors_and_graphs_are_only_shown(browser: Browser) -> None:
    with perdure.connect_sync("memory://") as database:
        graph = record_calls(hostile().compile(checkpointer=database.checkpointer()))
        graph.invoke({"messages": []}, {"configurable": {"thread_id": HOSTILE_ID}})
        graphs = {HOSTILE: Agent(hostile().compile()), "new": Agent(hostile(changed=True).compile())}
        replays = LocalReplays(database, graphs, "new")
        access = LocalAccess(handle_of(database), "", replays=replays, allowed=frozenset({"replay"}))
        with served(access) as address, browsing(browser, reduced_motion="reduce") as page:
            page.set_default_timeout(60_000)
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.goto(address)
            page.get_by_role("link", name=HOSTILE_ID).click()
            page.get_by_role("link", name="Replay by a graph").click()
            page.get_by_label("every step that differs").check()
            page.get_by_role("button", name="Replay", exact=True).click()
            page.get_by_text("2 differ.").wait_for()
            assert page.locator("main").inner_text().count(HOSTILE) > 5
            assert page.locator("main img, main script").count() == 0
            assert page.title() == "Perdure inspector"
            assert [url for url in asked if not url.startswith(address)] == []
            page.get_by_label("Context").fill(HOSTILE)
            page.get_by_role("button", name="Replay", exact=True).click()
            page.get_by_role("alert").get_by_text("The context is not JSON.").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Page, address: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(f"{address}#/replay?id=t")
    page.get_by_role("button", name="Replay", exact=True).click()
    page.get_by_text("1 differs.").wait_for()
    page.get_by_role("button", name="Go on after this step").wait_for()
    assert findings(page) == []
    page.set_viewport_size(PHONE)
    assert findings(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_context_that_is_no_json_is_an_error(page: Page, address: str) -> None:
    page.goto(f"{address}#/replay?id=t")
    page.get_by_label("Context").fill("{")
    page.get_by_role("button", name="Replay", exact=True).click()
    page.get_by_role("alert").get_by_text("The context is not JSON.").wait_for()
