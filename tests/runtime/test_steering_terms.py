"""Which messages an open run takes up, and what becomes of those that it cannot: they harm no other run."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import StateSnapshot
from typing_extensions import TypedDict

from perdure.conversation import Conversation
from perdure.langgraph.reading.readable_states import aupdate_state
from perdure.model.runs.messages import Message
from perdure.runtime import Agent, Options
from perdure.runtime.nodes import steering
from tests.runtime.graphs import Storage, eventually, go, spoken, values, working
from tests.runtime.nodes.test_steering import Tools, wanted


def given(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_message_and_a_whole_input_are_not_taken_up_together(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=2)
        gate = tools.hold("tool", 1)
        database = memory.database()
        async with working(database, tools.graph) as runtime:
            stopping = Options(interrupt_before=["tool"])
            await runtime.wait(await runtime.accept("ada", "one", options=stopping), 30)
            answer = await runtime.answer("ada", "go on", options=Options(attempts=1))
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            third = await runtime.submit("ada", given("three"), strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            run = await runtime.wait(answer, 30)
            assert (run.state, run.last) == ("done", second.number)
            run = await runtime.wait(third, 30)
            assert (run.state, run.first) == ("done", third.number)
        texts = await spoken(database, tools.graph, "ada")
        assert [text for text in texts if text not in ("", "found", "done")] == ["one", "two", "three"]

    go(main())


def test_a_message_and_a_whole_input_are_no_common_run(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=0)
        gate = tools.hold("model", 1)
        async with working(memory.database(), tools.graph) as runtime:
            await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("model", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            third = await runtime.submit("ada", given("three"), strategy="steer")
            gate.set()
            runs = [await runtime.wait(ticket, 30) for ticket in (second, third)]
            assert [(run.state, run.first, run.last) for run in runs] == [("done", 2, 2), ("done", 3, 3)]

    go(main())


def test_a_message_without_an_input_fails_by_itself(memory: Storage) -> None:
    def to_input(messages: Sequence[Message]) -> dict[str, Any]:
        texts = [message.payload["message"]["content"] for message in messages]
        if "two" in texts:
            raise ValueError("no input")
        return {"messages": [("user", text) for text in texts]}

    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        async with working(memory.database(), Agent(tools.graph, to_input=to_input)) as runtime:
            once = Options(attempts=1)
            first = await runtime.accept("ada", "one", options=once)
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two", strategy="steer", options=once)
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            run = await runtime.wait(first, 30)
            assert (run.state, run.last) == ("done", 1)
            assert (await runtime.wait(second, 30)).note["kind"] == "ValueError"

    go(main())


def test_the_recursion_limit_of_langgraph_is_one_for_the_whole_run(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "DEFAULT_RECURSION_LIMIT", 5)

    async def main() -> None:
        tools = Tools(rounds=50)
        gate = tools.hold("tool", 1)
        # A node that is never reached: the message waits, and the loop ends before each step.
        agent = Agent(tools.graph, steer_before=["__start__"])
        async with working(memory.database(), agent) as runtime:
            first = await runtime.accept("ada", "one", options=Options(attempts=1))
            await eventually(lambda: tools.at("tool", 1))
            await runtime.accept("ada", "two", strategy="steer", options=Options(attempts=1))
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            run = await runtime.wait(first, 30)
            assert (run.state, run.note["kind"]) == ("failed", "GraphRecursionError")

    go(main())


def test_a_graph_whose_nodes_ask_is_never_ended_between_steps(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        async with working(memory.database(), Agent(tools.graph, steer_before=())) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            (under_way,) = runtime._worker.runner.leases.working.values()
            await under_way.steering.check_for_messages()
            assert not under_way.steering.control.is_wanted
            gate.set()
            assert (await runtime.wait(first, 30)).last == 1
            assert (await runtime.wait(second, 30)).first == 2

    go(main())


def test_a_message_that_was_taken_up_keeps_its_id(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate, later = tools.hold("tool", 1), tools.hold("model", 2)
        database = memory.database()

        async def ids() -> list[str]:
            state = await values(database, tools.graph, "ada")
            return [message.id for message in state["messages"] if message.text == "two"]

        async with working(database, tools.graph) as runtime:
            first = await runtime.submit("ada", given("one"))
            await eventually(lambda: tools.at("tool", 1))
            await runtime.submit("ada", given("two"), strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            await eventually(lambda: tools.at("model", 2))
            before = [await ids(), await ids()]
            later.set()
            await runtime.wait(first, 30)
            assert before == [await ids()] * 2
            assert len(before[0]) == 1

    go(main())


def test_what_exceeds_the_conversations_limit_is_a_run_of_its_own(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        database = memory.database()
        agent = Agent(tools.graph, conversation=Conversation(limit=300))
        async with working(database, agent) as runtime:
            first = await runtime.accept("ada", "one " * 100)
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two " * 200, strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            assert (await runtime.wait(first, 30)).last == 1
            run = await runtime.wait(second, 30)
            assert (run.state, run.first) == ("done", 2)
        texts = await spoken(database, tools.graph, "ada")
        assert not any("one one" in text for text in texts), "its input was cut to the limit"

    go(main())


CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "content": "found", "tool_call_id": "c"}


@pytest.mark.parametrize(
    ("held", "fits"),
    [
        ([CALL], False),
        ([CALL, RESULT], True),
        ([CALL, RESULT, {"role": "assistant", "content": "done"}], False),
        ([{"role": "user", "content": "one"}], True),
        ([{"title": "no message"}, 3], True),
    ],
)
def test_messages_that_are_plain_data_are_read_too(held: list[Any], fits: bool) -> None:
    state = StateSnapshot({"messages": held}, ("model",), {}, None, None, None, (), ())
    assert steering.is_open(state, Agent(Tools().graph)) is fits


@pytest.mark.parametrize("terms", [{"strategy": "steer"}, {"coalesce": True}], ids=["steer", "coalesce"])
def test_of_inputs_with_one_message_each_none_is_lost(memory: Storage, terms: dict[str, Any]) -> None:
    async def main() -> None:
        tools = Tools(rounds=2)
        gate = tools.hold("tool", 1)
        database = memory.database()
        async with working(database, tools.graph) as runtime:
            await runtime.submit("ada", given("one"))
            await eventually(lambda: tools.at("tool", 1))
            tickets = [
                await runtime.submit("ada", {"messages": {"role": "user", "content": text}}, **terms)
                for text in ("two", "three", "four")
            ]
            gate.set()
            runs = [await runtime.wait(ticket, 30) for ticket in tickets]
            assert [run.state for run in runs] == ["done"] * 3
        texts = await spoken(database, tools.graph, "ada")
        assert [text for text in texts if text not in ("", "found", "done")] == [
            "one",
            "two",
            "three",
            "four",
        ]

    go(main())


def test_of_commands_that_wait_together_each_is_applied(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=2)
        gate = tools.hold("tool", 1)
        database = memory.database()
        async with working(database, tools.graph) as runtime:
            await runtime.submit("ada", given("one"))
            await eventually(lambda: tools.at("tool", 1))
            tickets = [
                await runtime.submit(
                    "ada", None, command={"update": given(text), "goto": "model"}, coalesce=True
                )
                for text in ("two", "three")
            ]
            gate.set()
            for ticket in tickets:
                assert (await runtime.wait(ticket, 30)).state == "done"
        texts = await spoken(database, tools.graph, "ada")
        assert [text for text in texts if text not in ("", "found", "done")] == ["one", "two", "three"]

    go(main())


@pytest.mark.parametrize("as_node", ["hear", None, "work"])
def test_an_update_of_the_state_keeps_what_a_failed_run_had_taken_up(
    memory: Storage, as_node: str | None
) -> None:
    arrived, gate = asyncio.Event(), asyncio.Event()

    class Log(TypedDict):
        log: Annotated[list[str], operator.add]

    async def hear(state: Log) -> dict[str, Any]:
        arrived.set()
        await gate.wait()
        return {"log": ["heard"]}

    async def work(state: Log) -> dict[str, Any]:
        raise RuntimeError("does not work")

    async def main() -> None:
        builder = StateGraph(Log).add_sequence([hear, work]).add_edge(START, "hear")
        database = memory.database()
        async with working(database, builder.compile()) as runtime:
            kept = Options(attempts=1, on_failure="keep")
            first = await runtime.submit("ada", {"log": ["one"]}, options=kept)
            await arrived.wait()
            await runtime.submit("ada", {"log": ["two"]}, strategy="steer", options=kept)
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            run = await runtime.wait(first, 30)
            assert (run.state, run.last) == ("failed", 2)
        graph = builder.compile(checkpointer=database.checkpointer())
        config: RunnableConfig = {"configurable": {"thread_id": "ada"}}
        shown = (await graph.aget_state(config)).values["log"]
        assert shown == ["one", "heard", "two"]
        await aupdate_state(graph, config, {"log": ["three"]}, as_node=as_node)
        assert (await graph.aget_state(config)).values["log"] == [*shown, "three"]

    go(main())
