"""Threads that sleep, or wait for a signal, as clients see them: nobody is asked; and what they do to them.

Covers perdure.server.responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel

from perdure.runtime import ask, sleep, wait_for
from tests.server.hosting import Served, run, serving

HOUR = 3600.0
SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}]}


async def _naps(state: MessagesState) -> dict[str, Any]:
    await sleep(HOUR)
    return {"messages": [AIMessage("slept")]}


async def _dozes(state: MessagesState) -> dict[str, Any]:
    await sleep(0.5)
    return {"messages": [AIMessage("slept")]}


async def _hopes(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"got {await wait_for('post', within=HOUR, default=None)}")]}


async def _asks(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"heard {ask('well?', within=1.5, default='nothing', remind=0.5)}")]}


def _of(*nodes: Any) -> Pregel[Any, Any, Any, Any]:
    builder = StateGraph(MessagesState)
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    return builder.compile()


def graphs() -> dict[str, Pregel[Any, Any, Any, Any]]:
    return {
        "asks": _of(_asks),
        "both": _of(_naps, _asks),
        "dozes": _of(_dozes),
        "hopes": _of(_hopes),
        "naps": _of(_naps),
    }


async def until(what: Callable[[], Awaitable[Any]]) -> Any:
    while not (found := await what()):  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.1)
    return found


async def texts(server: Served, thread_id: str) -> list[str]:
    client = await server.client()
    values: Any = (await client.threads.get_state(thread_id))["values"]
    return [one["content"] for one in values["messages"]]


async def asleep(server: Served, graph: str) -> str:
    client = await server.client()
    thread_id = str((await client.threads.create())["thread_id"])
    result: Any = await client.runs.wait(thread_id, graph, input=SAY)
    assert "__interrupt__" not in result
    return thread_id


@run
async def test_a_sleep_is_no_question_anywhere(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        http, client, thread_id = await server.http(), await server.client(), await asleep(server, "naps")
        shown = (await http.get(f"/threads/{thread_id}")).json()
        assert (shown["status"], shown["interrupts"]) == ("interrupted", {})
        (wait,) = shown["waits"]
        assert (wait["kind"], wait["until"] > shown["updated_at"]) == ("sleep", True)
        state = (await http.get(f"/threads/{thread_id}/state")).json()
        history = (await http.post(f"/threads/{thread_id}/history", json={})).json()
        at = (await http.get(f"/threads/{thread_id}/state/{state['checkpoint_id']}")).json()
        for each in (state, history[0], at):
            assert (each["interrupts"], each["tasks"][0]["interrupts"]) == ([], [])
            assert (each["waits"], each["next"]) == ([wait], ["_naps"])
        selected = {"select": ["status", "waits"], "ids": [thread_id]}
        assert (await http.post("/threads/search", json=selected)).json() == [
            {"status": "interrupted", "waits": [wait]}
        ]
        assert (await client.threads.search(ids=[thread_id]))[0]["interrupts"] == {}
        with pytest.raises(httpx.HTTPStatusError, match="409"):
            await client.runs.wait(thread_id, "naps", command={"resume": "wake up"})
        for named in ({"checkpoint": state["checkpoint"]}, {"checkpoint_id": state["checkpoint_id"]}):
            with pytest.raises(httpx.HTTPStatusError, match="409"):
                await client.runs.wait(thread_id, "naps", command={"resume": "wake up"}, **named)
        signal = (await http.get(f"/threads/{await asleep(server, 'hopes')}")).json()
        assert [(one["kind"], one["signal"]) for one in signal["waits"]] == [("signal", "post")]


@pytest.mark.parametrize("mode", [["values"], ["updates"], ["values", "updates", "messages-tuple"]])
@run
async def test_a_stream_asks_nobody_either(mode: Any) -> None:
    async with serving("memory://", of=graphs()) as server:
        client = await server.client()
        for graph, asks in (("naps", False), ("both", True)):
            thread_id = (await client.threads.create())["thread_id"]
            parts = [part async for part in client.runs.stream(thread_id, graph, input=SAY, stream_mode=mode)]
            told = str([part.data for part in parts])
            assert ("__interrupt__" in told, "waits_for" in told) == (asks, False)


@run
async def test_a_question_beside_a_sleep_is_asked(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = (await client.threads.create())["thread_id"]
        result: Any = await client.runs.wait(thread_id, "both", input=SAY)
        assert [one["value"] for one in result["__interrupt__"]] == ["well?"]
        shown = (await http.get(f"/threads/{thread_id}")).json()
        ((question,),) = shown["interrupts"].values()
        assert (question["wait"]["kind"], [one["kind"] for one in shown["waits"]]) == ("question", ["sleep"])
        await client.runs.wait(thread_id, "both", command={"resume": "yes"})
        shown = (await http.get(f"/threads/{thread_id}")).json()
        assert (shown["interrupts"], [one["kind"] for one in shown["waits"]]) == ({}, ["sleep"])


@run
async def test_a_reminder_comes_to_who_has_joined(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client = await server.client()
        thread_id = (await client.threads.create())["thread_id"]
        heard: list[Any] = []

        async def listen() -> None:
            async for part in await client.threads.join_stream(thread_id, last_event_id="-"):
                heard.append((part.event, part.data))  # noqa: PERF401 - the list grows while it is read

        listening = asyncio.create_task(listen())
        result: Any = await client.runs.wait(thread_id, "asks", input=SAY)
        (asked,) = result["__interrupt__"]
        assert await until(lambda: _done(server, thread_id, "heard nothing"))
        await until(lambda: _has(heard, "reminder"))
        listening.cancel()
        (told,) = [data for event, data in heard if event == "reminder"]
        assert [one["id"] for one in told["interrupts"]] == [asked["id"]]
        assert told["interrupts"][0]["until"].startswith("20")


async def _has(heard: list[Any], name: str) -> bool:
    return any(event == name for event, _ in heard)


async def _done(server: Served, thread_id: str, text: str) -> bool:
    return text in await texts(server, thread_id)


@pytest.mark.parametrize("what", ["copy", "prune", "state", "fork", "end", "input"])
@run
async def test_what_clients_do_to_a_sleeping_thread(what: str) -> None:
    async with serving("memory://", of=graphs()) as server:
        client, http = await server.client(), await server.http()
        thread_id = await asleep(server, "naps")
        at = f"/threads/{thread_id}"

        async def waits(of: str = at) -> list[str]:
            return [one["kind"] for one in (await http.get(of)).json().get("waits", [])]

        match what:
            case "copy":
                copied = (await http.post(f"{at}/copy")).json()["thread_id"]
                assert await waits(f"/threads/{copied}") == [], "a copy does not wake"
                await client.runs.wait(copied, "naps", input=None)
                assert await waits(f"/threads/{copied}") == ["sleep"], "run without input, it sleeps anew"
                assert await waits() == ["sleep"]
            case "prune":
                answer = await http.post(
                    "/threads/prune", json={"thread_ids": [thread_id], "strategy": "keep_latest"}
                )
                assert answer.status_code == 200, answer.text
                assert await waits() == ["sleep"]
            case "state":
                await client.threads.update_state(thread_id, {"messages": []}, as_node="_naps")
                assert await waits() == []
                assert (await client.threads.get(thread_id))["status"] == "idle"
            case "fork":
                past = (await client.threads.get_history(thread_id))[-1]["checkpoint"]
                await client.threads.update_state(thread_id, {"messages": []}, checkpoint=past)
                assert await waits() == []
            case "end":
                await client.runs.wait(thread_id, "naps", input=None, command={"goto": "__end__"})
                assert await waits() == []
                assert (await client.threads.get(thread_id))["status"] == "idle"
            case _:
                result: Any = await client.runs.wait(thread_id, "naps", input=SAY)
                assert len(result["messages"]) == 2
                assert await waits() == ["sleep"], "the message is past the first sleep, and sleeps itself"


@run
async def test_a_run_without_a_thread_wakes_and_its_webhook_hears_of_it() -> None:
    async with serving("memory://", of=graphs()) as server:
        client = await server.client()
        made = await client.runs.create(None, "dozes", input=SAY)
        assert await until(lambda: _done(server, made["thread_id"], "slept"))


# ---------------------------------------------------------------- protocols for agents

WORKING, COMPLETED = "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"


@run
async def test_a_task_that_sleeps_is_at_work_and_says_until_when() -> None:
    from a2a.types import a2a_pb2 as types

    from tests.server.talking import said, talking, text_of

    async with serving("memory://", of=graphs()) as server:
        async with talking(server.url, "naps") as talk:
            task = await talk.task("go")
            assert task["status"]["state"] == WORKING
            assert "The agent sleeps until 20" in task["status"]["message"]["parts"][0]["text"]
            assert await talk.get(task["id"]) == task
            over = MessageToDict(await talk.client.cancel_task(types.CancelTaskRequest(id=task["id"])))
            assert over["status"]["state"] == "TASK_STATE_CANCELED"
            left = await talk.task("go")
            later = await talk.task("more", context=left["contextId"])
            assert (await talk.get(left["id"]))["status"]["state"] == "TASK_STATE_CANCELED"
            assert later["status"]["state"] == WORKING
        async with talking(server.url, "hopes") as talk:
            task = await talk.task("go")
            assert "the signal 'post' until" in task["status"]["message"]["parts"][0]["text"]
            http = await server.http()
            await http.post(f"/threads/{task['contextId']}/signals/post", json={"value": "mail"})
            done = await until(lambda: _over(talk, task["id"]))
            assert (text_of(done), len(done["history"])) == ("got mail", 1)
        async with talking(server.url, "dozes", streaming=True) as talk:
            events = await talk.events(said("go"))
            states = [event["statusUpdate"]["status"]["state"] for event in events if "statusUpdate" in event]
            assert states[-1] == COMPLETED
            assert "The agent sleeps" in str(events)
        async with talking(server.url, "asks") as talk:
            task = await talk.task("go")
            assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            done = await until(lambda: _over(talk, task["id"]))
            assert text_of(done) == "heard nothing", "the deadline's answer continues the task"
            tasks = await talk.client.list_tasks(types.ListTasksRequest(context_id=task["contextId"]))
            assert [one.id for one in tasks.tasks] == [task["id"]]


async def _over(talk: Any, task_id: str) -> Any:
    task = await talk.get(task_id)
    return task if task["status"]["state"] == COMPLETED else None


@run
async def test_a_tool_says_that_its_agent_sleeps_and_leaves_nothing() -> None:
    from tests.server.mcp.test_exchange import tools

    async with serving("memory://", of=graphs()) as server, tools(server) as client:
        result = await client.call_tool("naps", SAY)
        assert result.is_error
        assert "The agent sleeps until" in result.content[0].text  # type: ignore[union-attr]
        assert await (await server.client()).threads.count() == 0
