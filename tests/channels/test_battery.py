"""Kills at every step from a message to its reply, and many chats under all faults at once.

A process ends at a commit, before it or after it, as a kill would end it; another one goes on. A short
battery runs by default, every step and 1,000 messages in 50 chats with ``PERDURE_CHAOS=full``.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.channels import ChatAddress
from perdure.runtime import Runtime
from perdure.testing.channels import DeliveryFaults, ProviderFault, TelegramDouble
from perdure.testing.channels.provider import WebhookCall
from tests.channels.serving import at_work, echo, telegram
from tests.runtime.graphs import HOUR_US, Storage, eventually_stored, go, stored, vanish

FULL = os.environ.get("PERDURE_CHAOS") == "full"
CHATS, MESSAGES, KILLS = (50, 20, 12) if FULL else (5, 4, 2)


@pytest.fixture
def sqlite() -> Iterator[Storage]:
    with stored("sqlite") as storage:
        yield storage


async def heard(runtime: Runtime, chat: int) -> list[str]:
    """What the thread of a chat holds of people, in order."""
    thread_id = ChatAddress("telegram", str(chat)).thread_id
    graph: Any = runtime.graph("agent")
    state = await graph.aget_state({"configurable": {"thread_id": thread_id}})
    return [message.text for message in state.values.get("messages", ()) if message.type == "human"]


def answered(double: TelegramDouble, chat: int) -> list[str]:
    """What was answered in a chat, without the second of two equal neighbours: a reply sent again."""
    texts = double.texts(chat)
    once = [text for n, text in enumerate(texts) if n == 0 or text != texts[n - 1]]
    return [text for reply in once for text in reply.split(" + ")]


async def _commits(storage: Storage) -> int:
    """The number of commits from a message to its reply."""
    database, line = storage.open()
    async with TelegramDouble() as double, at_work(database, echo(), telegram(double)) as work:
        double.webhook = work.webhook
        before = line.commits
        await double.say(1, "one")
        await double.until_shown(1)
        await asyncio.sleep(0.2)
        return line.commits - before


async def _killed_at(storage: Storage, chat: int, number: int, when: str) -> None:
    async with TelegramDouble() as double:
        database, line = storage.open()
        async with at_work(database, echo(), telegram(double)) as first:
            double.webhook = first.webhook
            line.die_at(number, when)
            saying = asyncio.create_task(double.say(chat, "one"))
            async with asyncio.timeout(20):
                while not line.is_dead:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            vanish(first.runtime, line)
        database, line = storage.open()
        line.ahead_us = HOUR_US
        async with at_work(database, echo(), telegram(double)) as second:
            double.webhook = second.webhook
            await saying
            await double.say(chat, "two")
            async with asyncio.timeout(30):
                while "two" not in " ".join(double.texts(chat)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            at = f"killed {when} commit {number}"
            assert await heard(second.runtime, chat) == ["one", "two"], at
            assert answered(double, chat) == ["one", "two"], at
            assert len(double.texts(chat)) <= 3, at


def test_killed_at_any_step_from_a_message_to_its_reply_nothing_is_lost_or_run_twice(sqlite: Storage) -> None:
    async def main() -> None:
        total = await _commits(sqlite)
        assert total >= 5
        steps = [(number, when) for number in range(1, total + 1) for when in ("before", "after")]
        for chat, (number, when) in enumerate(steps if FULL else steps[1::4], 100):
            await _killed_at(sqlite, chat, number, when)

    go(main())


def test_a_queued_message_is_not_stranded_when_the_process_ends_that_works_on_the_one_before(
    sqlite: Storage,
) -> None:
    gate = asyncio.Event()

    async def hold(state: MessagesState) -> dict[str, Any]:
        await gate.wait()
        return {"messages": [AIMessage(state["messages"][-1].text)]}

    graph = StateGraph(MessagesState).add_node(hold).add_edge(START, "hold").compile()

    async def main() -> None:
        async with TelegramDouble() as double:
            database, line = sqlite.open()
            async with at_work(database, graph, telegram(double)) as first:
                double.webhook = first.webhook
                await double.say(1, "first")
                thread_id = ChatAddress("telegram", "1").thread_id

                async def is_open() -> bool:
                    return bool(await first.runtime.runs(thread_id))

                await eventually_stored(is_open)
                await double.say(1, "queued")
                vanish(first.runtime, line)
            database, line = sqlite.open()
            line.ahead_us = HOUR_US
            gate.set()
            async with at_work(database, graph, telegram(double)) as second:
                # Nobody writes again: the queued message is found by itself.
                await double.until_shown(2)
                assert double.texts(1) == ["first", "queued"]
                assert await heard(second.runtime, 1) == ["first", "queued"]

    go(main())


class Timed(TelegramDouble):
    """A double that measures how long an acknowledgement takes."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.took: list[float] = []

    async def post(self, delivery: WebhookCall) -> int:
        began = time.perf_counter()
        status = await super().post(delivery)
        if status == 200:
            self.took.append(time.perf_counter() - began)
        return status


@pytest.mark.timeout(600)
def test_many_chats_under_all_faults_lose_nothing_and_stay_in_order(sqlite: Storage) -> None:
    rng = random.Random(18)
    faults = DeliveryFaults(copies=2, delay=0.02, seed=18)

    async def main() -> None:
        async with Timed(deliveries=faults, patience=120.0) as double:

            async def person(chat: int) -> None:
                for number in range(MESSAGES):
                    await double.say(chat, f"{chat}-{number}")
                    if rng.random() < 0.2:
                        kind: Any = rng.choice(["limit", "fail", "lose", "refuse", "slow"])
                        double.faults.append(ProviderFault(kind, chat=str(chat), seconds=0.3))

            people = [asyncio.create_task(person(chat)) for chat in range(1, CHATS + 1)]
            last = CHATS * MESSAGES
            for number in range(KILLS + 1):
                database, line = sqlite.open()
                line.ahead_us = number * HOUR_US
                async with at_work(database, echo(), telegram(double)) as work:
                    double.webhook = work.webhook
                    if number < KILLS:
                        reached = len(double.took) + rng.randint(1, 2 * last // (KILLS + 1))
                        while len(double.took) < reached and not all(task.done() for task in people):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                        vanish(work.runtime, line)
                        continue
                    await asyncio.gather(*people)
                    for chat in range(1, CHATS + 1):
                        said = [f"{chat}-{n}" for n in range(MESSAGES)]
                        while answered(double, chat)[-1:] != said[-1:]:  # noqa: ASYNC110
                            await asyncio.sleep(0.02)
                        assert await heard(work.runtime, chat) == said
                        assert answered(double, chat) == said
            took = sorted(double.took)
            p99 = took[int(len(took) * 0.99)] * 1000
            print(f"{last} messages, {KILLS} kills, {len(took)} acknowledged, p99 {p99:.0f} ms")

    asyncio.run(asyncio.wait_for(main(), 580))
