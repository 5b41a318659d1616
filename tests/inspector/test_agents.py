"""The inspector's view of an agent's to-dos and subagents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.graph import START, StateGraph

import perdure
from examples.researcher.agent import FIELDS, agent
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.errors import NotFound
from perdure.inspector import agents, api
from perdure.inspector.access import LocalAccess
from perdure.langgraph.reading.thread_agents import load_subagents
from tests.inspector.browsing import served
from tests.inspector.staging import HOSTILE
from tests.inspector.test_steps import OwnersAccess
from tests.langgraph.reading.test_thread_agents import Planned
from tests.server.browsing import browsing, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AT: Any = {"configurable": {"thread_id": "t"}}
HOSTILE_PLAN = [{"content": HOSTILE, "status": HOSTILE}]


def work(database: Any) -> None:
    app = agent()
    app.checkpointer, app.store = database.checkpointer(), database.store()
    app.invoke({"messages": [("user", HOSTILE)]}, AT)


def test_to_dos_and_subagents_are_views_of_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with perdure.connect_sync("memory://") as database:
        work(database)

        async def main() -> None:
            access = LocalAccess(handle_of(database), "")
            found = await api.view(access, "todos", {"id": "t"})
            assert [each["status"] for each in found["todos"]] == ["completed", "in_progress"]
            page = await api.view(access, "subagents", {"id": "t"})
            assert sorted(each["name"] for each in page["subagents"]) == sorted(["editor", *FIELDS])
            assert page["cursor"] is None
            space = next(each["namespace"] for each in page["subagents"] if each["name"] == "costs")
            said = await api.view(access, "conversation", {"id": "t", "namespace": space})
            assert said["messages"][0]["text"].startswith("costs of ")
            monkeypatch.setattr(agents, "_SUBAGENTS_MAX", 1)
            monkeypatch.setattr(load_subagents, "__kwdefaults__", {"after": "", "limit": 1})
            names: list[str] = []
            after = ""
            while after is not None:
                part = await api.view(access, "subagents", {"id": "t", "after": after})
                assert len(part["subagents"]) == 1
                names += [each["name"] for each in part["subagents"]]
                after = part["cursor"]
            assert sorted(names) == sorted(["editor", *FIELDS])
            for view in ("todos", "subagents"):
                with pytest.raises(NotFound):
                    await api.view(access, view, {"id": "other"})
                with pytest.raises(NotFound):
                    await api.view(OwnersAccess(handle_of(database), ""), view, {"id": "t"})

        asyncio.run(main())


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


@pytest.mark.slow
def test_subagents_are_followed_to_their_transcripts_on_the_page(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as database:
        work(database)
        planned = StateGraph(Planned).add_node("n", lambda _: {}).add_edge(START, "n")
        planned.compile(database.checkpointer()).invoke(
            {"todos": HOSTILE_PLAN}, {"configurable": {"thread_id": "plan"}}
        )
    with served(LocalAccess(handle_of(open_for_reading(url)), "")) as address, browsing(browser) as page:
        page.goto(f"{address}#/thread?id=t&view=agent")
        page.locator(".agents > li").nth(3).wait_for()
        assert page.locator(".todos li").count() == 2
        editor = page.locator(".agents > li", has=page.get_by_text("editor", exact=True))
        assert "waits for an answer" in editor.inner_text()
        costs = page.locator(".agents > li", has=page.get_by_text("costs", exact=True))
        assert "done" in costs.inner_text()
        costs.get_by_role("link", name="Transcript").click()
        page.locator(".conversation .bubble").nth(3).wait_for()
        assert "costs of" in page.locator(".conversation .bubble").first.inner_text()
        page.goto(f"{address}#/thread?id=plan&view=agent")
        page.locator(".todos li").first.wait_for()
        assert HOSTILE in page.locator(".todos li").first.inner_text()
        page.get_by_text("This thread has no subagents.").wait_for()
        assert "owned" not in page.title()
