"""Agents of one server that are called with one context: each has its own state, tasks and receivers.

Covers perdure.server.a2a.contexts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.types import a2a_pb2 as types
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from langgraph_sdk.errors import UnprocessableEntityError

from perdure.server.a2a.contexts import context_of, own_thread_of
from perdure.server.config import Http
from tests.backends import BACKENDS, EMPTY
from tests.server.a2a.test_handler import Gate, graphs
from tests.server.a2a.test_push import receiver_at, sending
from tests.server.acceptance.saying import state_values
from tests.server.hosting import run, serving
from tests.server.receiving import receiving
from tests.server.talking import said, talking, text_of

DONE, ASKING, CANCELED = (f"TASK_STATE_{state}" for state in ("COMPLETED", "INPUT_REQUIRED", "CANCELED"))


def agent(name: str) -> Any:
    """An agent that says how many messages of its own it has heard, and asks where it is told to."""

    def turn(state: MessagesState) -> dict[str, Any]:
        heard = [one.text for one in state["messages"] if one.type == "human"]
        answer = interrupt("which one?") if heard[-1] == "ask" else ""
        return {"messages": [AIMessage(f"{name} heard {', '.join(heard)}{answer and f' and {answer}'}")]}

    return StateGraph(MessagesState).add_node("turn", turn).add_edge(START, "turn").compile()


def two() -> dict[str, Any]:
    return {name: agent(name) for name in ("travel", "weather")}


@asynccontextmanager
async def both(url: str = "memory://", *, version: str = "1.0", **how: Any) -> AsyncIterator[Any]:
    """A server with both agents, and a client of each."""
    async with (
        serving(url, of=two(), **how) as served,
        talking(served.url, "travel", version=version) as travel,
        talking(served.url, "weather", version=version) as weather,
    ):
        yield served, travel, weather


async def listed(talk: Any, context: str) -> list[str]:
    found = await talk.client.list_tasks(types.ListTasksRequest(context_id=context))
    return [one.id for one in found.tasks]


@pytest.mark.parametrize("version", ["1.0", pytest.param("0.3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shared_threads", [True, False])
@run
async def test_each_agent_has_its_own_state_and_tasks_in_a_context(
    version: str, shared_threads: bool
) -> None:
    async with both(version=version, shared_threads=shared_threads) as (served, travel, weather):
        tasks: dict[Any, list[str]] = {travel: [], weather: []}
        for text in ("one", "two"):
            for talk, name in ((travel, "travel"), (weather, "weather")):
                task = await talk.task(f"{text} {name}", context="ctx")
                assert task["contextId"] == "ctx"
                assert text_of(task) == f"{name} heard one {name}" + (f", two {name}" * (text == "two"))
                assert text_of(await talk.get(task["id"])) == text_of(task)
                tasks[talk].insert(0, task["id"])
        if version == "1.0":
            for talk, ids in tasks.items():
                assert await listed(talk, "ctx") == ids
                assert await listed(talk, "another") == []
        with pytest.raises(TaskNotFoundError):
            await weather.get(tasks[travel][0])
        # The context's name is the thread of the agent that came first, as ever.
        values = await state_values(await served.client(), "ctx")
        assert values["messages"][-1]["content"] == "travel heard one travel, two travel"


@run
async def test_a_thread_that_a_client_creates_takes_no_messages_of_an_agent_in_a_context() -> None:
    async with both() as (served, travel, _):
        client = await served.client()
        ids = {each["graph_id"]: each["assistant_id"] for each in await client.assistants.search()}
        await travel.task("one", context="ctx")
        for name, assistant_id in ids.items():
            own = own_thread_of(assistant_id, "ctx")
            with pytest.raises(UnprocessableEntityError, match="those of agents in A2A contexts"):
                await client.threads.create(thread_id=own)
            with pytest.raises(UnprocessableEntityError, match="those of agents in A2A contexts"):
                await client.runs.create(own, name, input={"messages": ["two"]}, if_not_exists="create")
            # One that was created before is not the agent's either, if the agent has run in the context.
            assert await served.host.runtime.threads.create(own, {}) is not None
        assert text_of(await travel.task("two", context="ctx")) == "travel heard one, two"
        assert (await state_values(client, "ctx"))["messages"][-1]["content"] == "travel heard one, two"


@run
async def test_both_may_ask_be_answered_be_canceled_and_be_followed_in_a_context() -> None:
    async with both() as (served, travel, weather):
        asked = [await talk.task("ask", context="ctx") for talk in (travel, weather)]
        assert [task["status"]["state"] for task in asked] == [ASKING, ASKING]
        assert [task["contextId"] for task in asked] == ["ctx", "ctx"]
        for name, task in zip(("travel", "weather"), asked, strict=True):
            request = types.SubscribeToTaskRequest(id=task["id"])
            async with talking(served.url, name, streaming=True) as following:
                (event,) = [MessageToDict(one) async for one in following.client.subscribe(request)]
            assert event["task"]["contextId"] == "ctx"
            assert event["task"]["status"]["message"]["contextId"] == "ctx"
        with pytest.raises(InvalidParamsError, match="belongs to another context"):
            await weather.task("rain", task=asked[1]["id"], context="another")
        done = await weather.task("rain", task=asked[1]["id"], context="ctx")
        assert text_of(done) == "weather heard ask and rain"
        assert (await travel.get(asked[0]["id"]))["status"]["state"] == ASKING, "it is the other's answer"
        cancel = types.CancelTaskRequest(id=asked[0]["id"])
        assert MessageToDict(await travel.client.cancel_task(cancel))["status"]["state"] == CANCELED
        again = await weather.task("ask", context="ctx")
        cancel = types.CancelTaskRequest(id=again["id"])
        assert MessageToDict(await weather.client.cancel_task(cancel))["status"]["state"] == CANCELED
        assert (await weather.get(done["id"]))["status"]["state"] == DONE


@run
async def test_a_task_is_followed_from_its_beginning_by_another_connection_in_a_context() -> None:
    gate = Gate()
    async with (
        serving("memory://", of=graphs(gate)) as served,
        talking(served.url, "chat") as chat,
        talking(served.url, "rest") as rest,
        talking(served.url, "rest", streaming=True) as streaming,
    ):
        await chat.task("hello", context="ctx")
        at_once = types.SendMessageConfiguration(return_immediately=True)
        (begun,) = await rest.events(said("one", context="ctx", configuration=at_once))
        request = types.SubscribeToTaskRequest(id=begun["task"]["id"])
        await gate.reached.wait()
        following = streaming.client.subscribe(request)
        events = [MessageToDict(await anext(following))]
        gate.opened.set()
        events += [MessageToDict(one) async for one in following]
        contexts = {next(iter(event.values()))["contextId"] for event in events}
        assert contexts == {"ctx"}
        assert events[-1]["statusUpdate"]["status"]["state"] == DONE
        assert text_of(await chat.task("again", context="ctx")) == "echo again"


@run
async def test_the_receivers_of_both_are_sent_their_own_tasks() -> None:
    async with (
        receiving() as first,
        receiving() as second,
        sending() as url,
        talking(url, "chat") as chat,
        talking(url, "ask") as ask,
    ):
        for talk, receiver in ((chat, first), (ask, second)):
            config = types.SendMessageConfiguration(task_push_notification_config=receiver_at(receiver))
            task = await talk.task("tea", context="ctx", configuration=config)
            await receiver.told(1)
            sent = receiver.calls[0].body["task"]
            assert (sent["id"], sent["contextId"]) == (task["id"], "ctx")
            assert sent["status"]["state"] == task["status"]["state"]


@pytest.mark.parametrize(
    "backend",
    [
        "memory",
        "sqlite",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in BACKENDS
            if name not in ("memory", "sqlite")
        ),
    ],
)
@run
async def test_agents_that_are_first_at_the_same_time_do_not_meet(backend: str) -> None:
    with EMPTY[backend]() as url:
        async with both(url) as (served, travel, weather):
            api = await served.client()
            for number in range(4):
                context = f"ctx-{number}"
                if number % 2:
                    await api.threads.create(thread_id=context)
                talks = (travel, weather) * 2
                tasks = await asyncio.gather(*(talk.task("hi", context=context) for talk in talks))
                for task, name in zip(tasks, ("travel", "weather") * 2, strict=True):
                    assert text_of(task) in (f"{name} heard hi", f"{name} heard hi, hi")


@run
async def test_what_was_there_before_goes_on_where_it_was() -> None:
    async with both() as (served, travel, weather):
        api = await served.client()
        words: Any = {"messages": [{"role": "user", "content": "before"}]}
        await api.runs.wait("ctx", "weather", input=words, if_not_exists="create")
        assert text_of(await travel.task("hi", context="ctx")) == "travel heard hi"
        assert text_of(await weather.task("hi", context="ctx")) == "weather heard before, hi"
        await api.threads.delete("ctx")
        assert text_of(await travel.task("on", context="ctx")) == "travel heard hi, on"
        assert text_of(await weather.task("on", context="ctx")) == "weather heard on"
        message_id = str(uuid.uuid4())
        sent = [await travel.task("once", context="ctx", message_id=message_id) for _ in range(2)]
        assert sent[0] == sent[1]


@run
async def test_assistants_of_one_graph_are_agents_of_their_own() -> None:
    async with serving("memory://", of=two()) as served:
        api = await served.client()
        made = await api.assistants.create("travel", config={"configurable": {"tone": "dry"}})
        async with (
            talking(served.url, "travel") as plain,
            talking(served.url, made["assistant_id"]) as dry,
        ):
            await plain.task("one", context="ctx")
            assert text_of(await dry.task("two", context="ctx")) == "travel heard two"


@run
async def test_agents_share_the_thread_of_a_context_where_that_is_set() -> None:
    async with both(http=Http(a2a_shared_contexts=True)) as (_, travel, weather):
        first = await travel.task("one", context="ctx")
        second = await weather.task("two", context="ctx")
        assert text_of(second) == "weather heard one, two"
        assert [await listed(talk, "ctx") for talk in (travel, weather)] == [[first["id"]], [second["id"]]]


@run
async def test_no_context_is_the_thread_of_another_agent() -> None:
    async with both() as (served, travel, weather):
        api = await served.client()
        (assistant,) = await api.assistants.search(graph_id="weather")
        name = own_thread_of(assistant["assistant_id"], "ctx")
        await travel.task("one", context="ctx")
        await travel.task("two", context=name)
        task = await weather.task("three", context="ctx")
        assert text_of(task) == "weather heard three"
        task = await travel.task("four", context=name)
        assert (task["contextId"], text_of(task)) == (name, "travel heard two, four")
        with pytest.raises(InvalidParamsError, match="1 to 255 characters"):
            await travel.task("five", context=name.ljust(250, "x"))


IDS = st.uuids().map(str)


@given(IDS, IDS, st.text(min_size=1), st.text(min_size=1))
def test_two_agents_and_contexts_never_have_the_same_thread(
    agent: str, another: str, context: str, other: str
) -> None:
    for text in (context, own_thread_of(another, context)):
        assert context_of(own_thread_of(agent, text)) == text
    if (agent, context) != (another, other):
        assert own_thread_of(agent, context) != own_thread_of(another, other)
