"""Acceptance of what a chat sends: commands, questions and changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.channels import ChatAddress
from perdure.memory import RECALL_ID, Memory, MemoryPolicy
from perdure.runtime import Agent, ask, sleep
from perdure.testing.channels import ProviderFault
from tests.channels.serving import QUICK, WINDOW, echo, telegram_at_work
from tests.runtime.graphs import Storage, advance, eventually_stored, go, stored

STOPPED, NEW = QUICK.stop_notice, QUICK.new_notice
NOT_OPEN = "This question is not open any more."


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def thread(chat: int, session: str = "") -> str:
    return ChatAddress("telegram", str(chat), session=session).thread_id


def requests(name: str, *allowed: str) -> dict[str, Any]:
    return {
        "action_requests": [{"name": name, "args": {"text": "old"}}],
        "review_configs": [{"action_name": name, "allowed_decisions": list(allowed)}],
    }


def asking_first(value: Any) -> Any:
    """A graph that asks about the first message, and answers the others."""

    def ask(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1].text
        return {"messages": [AIMessage(f"got {interrupt(value)}" if last == "ask" else f"heard {last}")]}

    return StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()


@pytest.mark.parametrize("value", [requests("pay", "approve", "edit", "reject"), "Which size?"])
def test_stop_closes_the_open_question(memory: Storage, value: Any) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), asking_first(value)) as (double, _):
            await double.say(1, "ask")
            await double.until_shown(1)
            stop = double.update(message=double.message(1, "/stop"))
            await double.deliver(stop)
            await double.until_shown(2)
            await double.say(1, "the weather?")
            await double.until_shown(3)
            assert double.texts(1)[1:] == [STOPPED, "heard the weather?"]
            if double.shown[0].buttons:
                await double.press(double.shown[0], "Approve")
                await double.until_shown(4)
                assert double.texts(1)[3] == NOT_OPEN
            # A late copy of the command does not close a newer question.
            await double.say(1, "ask")
            await double.until_shown(count := len(double.shown) + 1)
            await double.deliver(stop)
            await double.until_shown(count + 1)
            if double.shown[count - 1].buttons:
                await double.press(double.shown[count - 1], "Approve")
            else:
                await double.say(1, "large")
            await double.until_shown(count + 2)
            assert double.texts(1)[-1].startswith("got ")

    go(main())


@pytest.mark.parametrize("command", ["/stop", "/new"])
@pytest.mark.parametrize("waits", ["sleep", "question"])
def test_a_command_ends_what_would_go_on_by_itself(memory: Storage, command: str, waits: str) -> None:
    async def later(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].text != "later":
            return {"messages": [AIMessage("heard")]}
        if waits == "question":
            return {"messages": [AIMessage(f"asked: {ask('sure?', within=3600, default='no')}")]}
        await sleep(3600)
        return {"messages": [AIMessage("good morning")]}

    graph = StateGraph(MessagesState).add_node(later).add_edge(START, "later").compile()

    async def main() -> None:
        async with telegram_at_work(memory.database(), graph) as (double, line):
            await double.say(1, "later")
            runtime = line.runtime

            async def waits_now() -> bool:
                runs = await runtime.runs(thread(1))
                return bool(runs) and runs[0].state == "waiting"

            await eventually_stored(waits_now)
            before = [] if waits == "sleep" else ["sure?"]
            await double.until_shown(len(before))
            await double.say(1, command)
            await double.until_shown(len(before) + 1)

            async def is_over() -> bool:
                row = await runtime.threads.find(thread(1))
                return row is not None and row.status == "idle"

            await eventually_stored(is_over)
            advance(runtime)
            await asyncio.sleep(0.5)
            await double.say(1, "hello")
            await double.until_shown(len(before) + 2)
            told = STOPPED if command == "/stop" else NEW
            assert double.texts(1) == [*before, told, "heard"]

    go(main())


def test_a_button_of_the_conversation_before_runs_nothing(memory: Storage) -> None:
    async def main() -> None:
        value = requests("pay", "approve")
        async with telegram_at_work(memory.database(), asking_first(value)) as (double, _):
            await double.say(1, "ask")
            await double.until_shown(1)
            await double.say(1, "/new")
            await double.until_shown(2)
            await double.press(double.shown[0], "Approve")
            await double.until_shown(3)
            assert double.texts(1)[1:] == [NEW, NOT_OPEN]

    go(main())


def test_a_text_from_before_the_question_was_visible_does_not_answer_it(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), asking_first("Delete it?")) as (double, line):
            double.faults.append(ProviderFault("limit", seconds=4.0))
            await double.say(1, "ask")

            async def is_limited() -> bool:
                replies = await line.runtime.replies(thread(1))
                return bool(replies) and replies[0].error is not None

            await eventually_stored(is_limited)
            assert double.shown == []
            await double.say(1, "yes")
            await double.until_shown(2)
            assert double.texts(1) == ["Delete it?", "heard yes"]
            # Written before the next question, and delivered after it.
            early = double.update(message=double.message(1, "early"))
            await double.say(1, "ask")
            await double.until_shown(3)
            await double.deliver(early)
            await double.until_shown(4)
            assert double.texts(1)[3] == "heard early"

    go(main())


def test_the_changed_arguments_are_those_of_the_question_whose_edit_was_pressed(memory: Storage) -> None:
    def asks(name: str) -> Any:
        def ask(state: MessagesState) -> dict[str, Any]:
            got = interrupt(requests(name, "approve", "edit", "reject"))
            return {"messages": [AIMessage(f"{name} {json.dumps(got)}")]}

        return ask

    graph = StateGraph(MessagesState)
    for name in ("one", "two"):
        graph.add_node(name, asks(name)).add_edge(START, name)

    async def main() -> None:
        async with telegram_at_work(memory.database(), graph.compile()) as (double, line):
            await double.say(1, "go")
            await double.until_shown(2)
            (second,) = [each for each in double.shown if "two" in each.text]
            await double.press(second, "Edit")
            await double.until_shown(3)
            await double.say(1, "new")

            async def is_answered() -> bool:
                newest = (await line.runtime.messages(thread(1)))[0]
                return "resume" in json.dumps(newest.message.payload)

            await eventually_stored(is_answered)
            (answer,) = json.loads(json.dumps((await line.runtime.messages(thread(1)))[0].message.payload))[
                "resume"
            ].values()
            edited = {"type": "edit", "edited_action": {"name": "two", "args": {"text": "new"}}}
            assert answer == {"decisions": [edited]}

    go(main())


def test_a_change_of_nothing_is_no_turn_and_of_two_changes_one_is_seen(memory: Storage) -> None:
    async def main() -> None:
        async with telegram_at_work(memory.database(), echo(), WINDOW) as (double, line):
            message = await double.say(1, "pay 1000")
            first = double.update(edited_message={**message, "text": "pay 100"})
            await double.deliver(first)
            await double.edit(message, "pay 10")
            await double.deliver(first)
            advance(line.runtime)
            await double.until_shown(1)
            assert double.texts(1) == ["pay 10"]
            stored_before = len(await line.runtime.messages(thread(1)))
            await double.edit(message, "pay 10")
            place = {**message, "text": None, "location": {"latitude": 1.0, "longitude": 2.0}}
            await double.deliver(double.update(edited_message=place))
            assert len(await line.runtime.messages(thread(1))) == stored_before
            await double.edit(message, "pay 1")
            advance(line.runtime)
            await double.until_shown(2)
            assert double.texts(1)[1] == "(edited) pay 1"

    go(main())


def test_stop_reaches_all_messages_that_wait(memory: Storage) -> None:
    gate = asyncio.Event()

    async def hold(state: MessagesState) -> dict[str, Any]:
        await gate.wait()
        return {"messages": [AIMessage("done")]}

    graph = StateGraph(MessagesState).add_node(hold).add_edge(START, "hold").compile()

    async def main() -> None:
        async with telegram_at_work(memory.database(), graph) as (double, line):
            await double.say(1, "first")

            async def is_open() -> bool:
                return bool(await line.runtime.runs(thread(1)))

            await eventually_stored(is_open)
            message = double.message(1, "waits")
            position = message["message_id"]
            for number in range(105):
                about = {"channel": {"position": position}}
                await line.runtime.accept(
                    thread(1),
                    {"role": "user", "content": str(number), "additional_kwargs": about},
                    channel="telegram",
                )
            await double.say(1, "/stop")

            async def is_over() -> bool:
                standing = await line.runtime.messages(thread(1), limit=200)
                return len(standing) == 106 and all(
                    each.message.is_withdrawn or (each.run is not None and each.run.state != "open")
                    for each in standing
                )

            await eventually_stored(is_over)

    go(main())


def test_a_question_of_a_graph_that_is_not_served_any_more_blocks_no_message(memory: Storage) -> None:
    async def main() -> None:
        graphs: list[dict[str, Any]] = [{"old": asking_first("Delete it?")}, {"new": echo()}]
        async with telegram_at_work(memory.database(), graphs[0]) as (double, _):
            await double.say(1, "ask")
            await double.until_shown(1)
        async with telegram_at_work(memory.database(), graphs[1]) as (double, line):
            update = double.update(message={**double.message(1, "hello"), "message_id": 1000})
            assert await double.post(update) == 200
            assert (await line.runtime.messages(thread(1)))[0].message.graph == "new"

    go(main())


def test_the_sender_is_the_user_of_the_run_with_costs_and_memory(memory: Storage) -> None:
    def who(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        user = config["configurable"].get("langgraph_auth_user")
        recalled = [each.text for each in state["messages"] if each.id == RECALL_ID]
        return {"messages": [AIMessage(f"{user and user['identity']} {'knows' if recalled else ''}".strip())]}

    def person(number: int) -> dict[str, Any]:
        return {"from": {"id": number, "is_bot": False, "first_name": "Ada"}}

    graph = StateGraph(MessagesState).add_node(who).add_edge(START, "who").compile()
    agent = Agent(graph, memory=MemoryPolicy())

    async def main() -> None:
        async with telegram_at_work(memory.database(), agent) as (double, line):
            await Memory(line.runtime.store(), "telegram:7").aremember("Sings.")
            for count, (chat, sender) in enumerate([(7, 7), (5, 7), (5, 8), (8, 8)], 1):
                await double.say(chat, "hello", **person(sender))
                await double.until_shown(count)
            texts = [shown.text for shown in double.shown]
            assert texts == ["telegram:7 knows", "telegram:5:7", "telegram:5:8", "telegram:8"]

    go(main())


def test_people_who_write_in_one_chat_at_once_are_answered_each_as_a_user(memory: Storage) -> None:
    def who(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [AIMessage(config["configurable"]["langgraph_auth_user"]["identity"])]}

    graph = StateGraph(MessagesState).add_node(who).add_edge(START, "who").compile()

    async def main() -> None:
        async with telegram_at_work(memory.database(), graph) as (double, _):
            for sender in (7, 7, 8):
                more: Any = {"from": {"id": sender, "is_bot": False, "first_name": "Ada"}}
                await double.say(5, "hello", **more)
            await double.until_shown(2)
            if double.shown[-1].text != "telegram:5:8":
                await double.until_shown(3)
            assert list(dict.fromkeys(shown.text for shown in double.shown)) == [
                "telegram:5:7",
                "telegram:5:8",
            ]

    go(main())
