"""The genuine clients of providers, over HTTP: no list that is sent is refused, whatever happened before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

import perdure
from perdure import Database, SyncDatabase
from perdure.conversation import Conversation, Limit, fit_model
from perdure.errors import NoWindow
from perdure.runtime import Agent, Runtime, Settings
from perdure.testing.faults import faulty
from tests.conversation.histories import Histories, each, how_many
from tests.conversation.provider import CLIENTS, Provider, providing

agents = pytest.importorskip("langchain.agents", reason="pip install langchain")
SETTINGS = Settings(lease=0.5, poll=0.05, backoff=0.02, max_backoff=0.05, attempts=8)


@tool
async def look(at: str) -> str:
    """Look at something."""
    await asyncio.sleep(0)
    return f"saw {at}"


def test_the_provider_refuses_what_providers_refuse() -> None:
    call = {"name": "look", "args": {"at": "x"}, "id": "c1"}
    orphan = [HumanMessage("hi"), AIMessage("", tool_calls=[call]), HumanMessage("still there?")]
    misplaced = [HumanMessage("hi"), ToolMessage("saw", tool_call_id="c1")]
    with providing() as provider:
        for name in CLIENTS:
            client = provider.client(name)
            assert client.invoke([HumanMessage("hi")]).text == "It is noted."
            for wrong in (orphan, misplaced):
                with pytest.raises(Exception, match="400"):
                    client.invoke(wrong)
        assert (provider.accepted, len(provider.refused)) == (2, 4)


@pytest.mark.parametrize("name", CLIENTS)
def test_windows_of_random_histories_are_accepted(name: str) -> None:
    with providing() as provider:
        model = fit_model(provider.client(name), Limit(300))

        def check(number: int, histories: Histories) -> None:
            with suppress(NoWindow):
                model.invoke(histories.broken())

        each(25, 3_000, check)
        assert provider.refused == []
        assert provider.accepted >= how_many(20, 2_500)


class Talk:
    """A conversation over a broken history, whose process ends at one await: at a storage effect or a request
    to the model. A second process goes on with it."""

    def __init__(self, provider: Provider, name: str, number: int) -> None:
        self.provider = provider
        self.histories = Histories(number)
        self.end = self.histories.random.randint(1, 70)
        self.awaits = 0
        self.is_over = False
        policy = Conversation(
            limit=Limit(900, summary=120),
            summarize=lambda summary, messages: f"{len(messages)} more messages",
        )
        graph = agents.create_agent(provider.client(name), [look], system_prompt="Be brief.")
        self.agent = Agent(graph, conversation=policy)

    def step(self, *_: object) -> None:
        """Count an await; from one on nothing reaches the storage any more."""
        self.awaits += 1
        if self.awaits >= self.end:
            self.is_over = True
        if self.is_over:
            raise ConnectionError("the process has ended")

    def request(self) -> None:
        with suppress(ConnectionError):
            self.step()

    def calls(self, body: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """One or two calls for a message of the user, in most cases."""
        last = body["messages"][-1]
        is_user = last["role"] == "user" and "tool_result" not in str(last["content"])
        number = self.histories.random.choice((0, 1, 2)) if is_user else 0
        return [("look", {"at": str(place)}) for place in range(number)]

    async def turns(self, database: Database | SyncDatabase, first: int, last: int) -> list[str]:
        async with Runtime(database, self.agent, settings=SETTINGS) as app:
            if first == 0:
                config: RunnableConfig = {"configurable": {"thread_id": "t"}}
                before: list[BaseMessage] = self.histories.broken()
                if before:
                    await app.graph("agent").aupdate_state(config, {"messages": before}, as_node="__start__")
            states: list[str] = []
            for number in range(first, last):
                ticket = await app.accept("t", f"question {number} " * 12, dedupe_key=str(number))
                states.append((await asyncio.wait_for(app.wait(ticket), 60)).state)
            return states

    def run(self) -> list[str]:
        self.provider.calls, self.provider.on_request = self.calls, self.request
        with faulty("memory://", migrate=True) as (db, driver):
            driver._on_effect = self.step
            with suppress(ConnectionError, TimeoutError, perdure.PerdureError):
                asyncio.run(asyncio.wait_for(self.turns(db, 0, 6), 2))
            driver._on_effect, self.is_over, self.end = None, False, 1 << 30
            return asyncio.run(self.turns(db, 1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_no_invalid_list_is_sent_although_processes_end_at_any_await(name: str) -> None:
    with providing() as provider:

        def check(number: int, histories: Histories) -> None:
            states = Talk(provider, name, number).run()
            assert set(states) == {"done"}, states
            assert provider.refused == []

        each(6, 1_000, check)
        assert provider.accepted > how_many(30, 5_000)
