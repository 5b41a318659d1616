"""Tools of an agent, called by LangGraph's node for tools, with the arguments that LangMem's tools take."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import perdure
from perdure.memory import Memory, memory_tools
from tests.memory.test_memory import embed


def call_tool(
    store: Any,
    name: str,
    args: dict[str, Any],
    user: str | None = "ada",
    *,
    waits: bool = False,
    user_of: Any = None,
) -> ToolMessage:
    """Call a tool in a graph's node, as an agent does; with ``waits`` without an event loop."""
    tools = ToolNode(memory_tools() if user_of is None else memory_tools(user=user_of))
    builder = StateGraph(MessagesState).add_node("tools", tools).add_edge(START, "tools")
    graph = builder.compile(store=store)
    asked = AIMessage("", tool_calls=[{"name": name, "args": args, "id": "1"}])
    of = {} if user is None else {"langgraph_auth_user": {"identity": user}}
    config: Any = {"configurable": {"thread_id": "t1", **of}}
    given: Any = {"messages": [asked]}
    after = graph.invoke(given, config) if waits else asyncio.run(graph.ainvoke(given, config))
    message = after["messages"][-1]
    assert isinstance(message, ToolMessage)
    return message


@pytest.mark.parametrize("waits", [False, True])
def test_a_memory_is_created_found_updated_and_deleted_without_loss(waits: bool) -> None:
    with perdure.connect_sync("memory://") as db:
        store = db.store(index={"dims": 16, "embed": embed})
        call = partial(call_tool, waits=waits)
        created = call(store, "manage_memory", {"content": "Lives in Lisbon.", "action": "create"})
        (fact,) = Memory(store, "ada").facts()
        assert (created.content, fact.thread) == (f"created memory {fact.id}", "t1")
        found = call(store, "search_memory", {"query": "home", "limit": 3, "offset": 0, "filter": None})
        (entry,) = json.loads(str(found.content))
        assert (entry["id"], entry["content"]) == (fact.id, "Lives in Lisbon.")
        assert found.artifact == [fact]
        update = {"content": "Lives in Porto.", "action": "update", "id": fact.id}
        assert str(call(store, "manage_memory", update).content).startswith("updated memory ")
        (home,) = Memory(store, "ada").facts()
        call(store, "manage_memory", {"action": "delete", "id": home.id})
        assert Memory(store, "ada").facts() == []
        assert [each.text for each in Memory(store, "ada").undo(home.id)] == ["Lives in Porto."]
        assert json.loads(str(call(store, "search_memory", {"query": "home"}, "bob").content)) == []
        narrow = {"query": "home", "filter": {"thread": "elsewhere"}}
        assert json.loads(str(call(store, "search_memory", narrow).content)) == []


UUID_1 = UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("user", [7, 0, -3, 2**80, UUID_1, "x" * 200])
def test_a_user_may_have_a_number_or_a_uuid(user: Any, waits: bool) -> None:
    with perdure.connect_sync("memory://") as db:
        store = db.store()
        for given in (user, lambda configurable: user):
            call_tool(store, "manage_memory", {"content": "Sings."}, user=None, waits=waits, user_of=given)
        assert [each.text for each in Memory(store, str(user)).facts()] == ["Sings."]
        assert Memory(store, user).facts() == Memory(store, str(user)).facts()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("user", ["", "x" * 201, "a\0b", "\ud800", 1.5, True, b"ada", ("ada",)])
def test_a_user_who_can_have_no_memory_is_an_answer_for_the_model(user: Any, waits: bool) -> None:
    with perdure.connect_sync("memory://") as db:
        for name, args in (("manage_memory", {"content": "Sings."}), ("search_memory", {"query": "song"})):
            answer = call_tool(
                db.store(), name, args, user=None, waits=waits, user_of=lambda configurable: user
            )
            assert answer.status == "error"
            assert "no memory" in str(answer.content)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("manage_memory", {"content": "a", "id": "00000000-0000-0000-0000-000000000000"}, "leave it out"),
        ("manage_memory", {"action": "delete"}, "needs the id"),
        ("manage_memory", {"action": "create", "content": " "}, "needs content"),
        ("manage_memory", {"action": "delete", "id": "00000000-0000-0000-0000-000000000000"}, "no memory"),
        ("manage_memory", {"content": "x" * 3000}, "at most 2000"),
    ],
)
def test_a_wrong_call_is_answered_with_an_error_for_the_model(
    name: str, args: dict[str, Any], message: str
) -> None:
    with perdure.connect_sync("memory://") as db:
        store = db.store()
        answer = call_tool(store, name, args)
        assert message in str(answer.content)
        assert answer.status == "error"
        assert Memory(store, "ada").facts(history=True) == []


def test_without_a_user_there_is_no_memory() -> None:
    with perdure.connect_sync("memory://") as db:
        answer = call_tool(db.store(), "manage_memory", {"content": "Sings."}, user=None)
        assert "no user" in str(answer.content)
