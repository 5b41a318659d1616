"""The verified user in a graph, and what rules do to the graphs' own assistants, copies and streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph_sdk import Auth
from langgraph_sdk.errors import ConflictError, NotFoundError

from perdure.server.auth.handlers import Handlers
from tests.server.hosting import owners, run, serving

INPUT: Any = {"messages": [{"role": "user", "content": "hi"}]}


def _gate() -> Handlers:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        name = (authorization or "").removeprefix("Bearer ")
        org = {"name": "Acme", "tiers": ["gold"]}
        return {"identity": name, "org": org, "mail": f"{name}@acme", "permissions": ["read", "run"]}

    return Handlers(auth)


def _seen(state: MessagesState, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
    configurable = config.get("configurable", {})
    user, info = configurable["langgraph_auth_user"], runtime.server_info
    assert info is not None
    assert info.user is not None
    told = [
        *(user.identity, user["identity"], user.mail, user["org"]["name"], user.org.tiers),
        *(info.user.identity, info.graph_id, getattr(info.user, "mail", None)),
        *(configurable["langgraph_auth_user_id"], configurable["langgraph_auth_permissions"]),
        *(configurable["user_id"], configurable["run_id"] == (config.get("metadata") or {})["run_id"]),
        "kind" in user,
    ]
    return {"messages": [AIMessage(repr(told))]}


@run
async def test_the_verified_user_reaches_the_graph_whole_and_nobody_says_so_of_himself(near: str) -> None:
    builder: Any = StateGraph(MessagesState)
    graph = builder.add_node("seen", _seen).add_edge(START, "seen").compile()
    expected = [
        *("ada", "ada", "ada@acme", "Acme", ["gold"], "ada", "seen", "ada@acme"),
        *("ada", ["read", "run"], "ada", True, False),
    ]
    forged = {
        "langgraph_auth_user": {"identity": "root"},
        "langgraph_auth_user_id": "root",
        "langgraph_auth_permissions": ["all"],
        "user_id": "root",
        "run_id": "another",
    }
    async with serving(near, of={"seen": graph}, gate=_gate()) as served:
        client, http = await served.client("ada"), await served.http("ada")
        for given in ({}, {"config": {"configurable": forged}}, {"context": forged}):
            thread = (await client.threads.create())["thread_id"]
            values: Any = await client.runs.wait(thread, "seen", input=INPUT, **given)
            assert values["messages"][-1]["content"] == repr(expected)
            paths = ("", "/state", "/history", "/runs")
            for path in paths:
                found = (await http.get(f"/threads/{thread}{path}")).text
                assert '"org"' not in found


@run
async def test_rules_hold_for_the_graphs_own_assistants_too_and_their_graphs_can_be_run(near: str) -> None:
    async with serving(near, gate=owners()) as served:
        ada, root = await served.client("ada"), await served.client("root")
        assert len(await root.assistants.search()) == len(served.host.runtime.graphs)
        assert await ada.assistants.search() == []
        assert await ada.assistants.count() == 0
        with pytest.raises(NotFoundError):
            await ada.assistants.get("aware")
        mine = await ada.assistants.create("aware")
        assert [one["assistant_id"] for one in await ada.assistants.search()] == [mine["assistant_id"]]
        values: Any = await ada.runs.wait(None, "aware", input=INPUT)
        assert values["messages"]


@run
async def test_another_s_thread_is_neither_copied_nor_followed(near: str) -> None:
    async with serving(near, gate=owners()) as served:
        ada, bob = await served.client("ada"), await served.client("bob")
        thread = (await ada.threads.create())["thread_id"]
        made = await ada.runs.create(thread, "aware", input=INPUT)
        await ada.runs.join(thread, made["run_id"])
        for their in (thread, "nothing"):
            with pytest.raises(ConflictError):
                await bob.threads.copy(their)
            told = [part async for part in bob.runs.join_stream(their, made["run_id"])]
            assert [part.event for part in told] == ["error"]
            assert "404" in told[0].data["message"]
        # It answers with the copy, though its type has no result.
        copy: Callable[[str], Awaitable[Any]] = ada.threads.copy
        copied = await copy(thread)
        assert copied["thread_id"] != thread


def _who(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    configurable = config.get("configurable", {})
    seen = [configurable.get(name) for name in ("user_id", "user_email", "color")]
    return {"messages": [AIMessage(repr(seen))]}


CLAIMS = {"user_id": "claimed-id", "user_email": "claimed@mail", "color": "red"}


@run
@pytest.mark.parametrize(
    "given",
    [
        {"config": {"configurable": CLAIMS}},
        {"context": CLAIMS},
        {"metadata": CLAIMS},
        {"config": {"metadata": CLAIMS}},
    ],
    ids=["configurable", "context", "metadata", "config.metadata"],
)
@pytest.mark.parametrize("by", ["run", "assistant"])
async def test_who_a_client_claims_to_be_is_stored_nowhere(near: str, given: dict[str, Any], by: str) -> None:
    builder: Any = StateGraph(MessagesState)
    graph = builder.add_node("who", _who).add_edge(START, "who").compile()
    async with serving(near, of={"who": graph}, gate=_gate()) as served:
        client, http = await served.client("ada"), await served.http("ada")
        thread, of_run, assistant_id = (await client.threads.create())["thread_id"], given, "who"
        if by == "assistant":
            made: Any = await client.assistants.create("who", **given)
            of_run, assistant_id = {}, made["assistant_id"]
        values: Any = await client.runs.wait(thread, assistant_id, input=INPUT, **of_run)
        color = "red" if "context" in given or "configurable" in given.get("config", {}) else None
        assert values["messages"][-1]["content"] == repr(["ada", None, color])
        for path in ("", "/state", "/history", "/runs"):
            found = (await http.get(f"/threads/{thread}{path}")).text
            assert "claimed" not in found, path
