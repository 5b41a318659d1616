"""Kills at every step from a message to its reply, and many chats under all faults at once.

A process ends at a commit, before it or after it, as a kill would end it; another one goes on. A short
battery runs by default; with ``PERDURE_CHAOS=full`` every step, and 1,000 messages in 50 chats of each
provider. ``PERDURE_BATTERY_BACKENDS`` names other backends than SQLite, separated by commas, and
``PERDURE_BATTERY_REPORTS`` a folder for what was measured.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.channels import ChatAddress, SlackApp, WhatsAppPhone
from perdure.channels.chat_channel import ChatChannel
from perdure.runtime import Runtime
from perdure.testing.channels import DeliveryFaults, ProviderFault, TelegramDouble
from perdure.testing.channels.provider import ProviderDouble, WebhookCall
from perdure.testing.channels.slack import SIGNING_SECRET, SlackDouble
from perdure.testing.channels.slack import TOKEN as BOT_TOKEN
from perdure.testing.channels.whatsapp import APP_SECRET, PHONE_ID, WhatsAppDouble
from perdure.testing.channels.whatsapp import TOKEN as ACCESS
from tests.channels.serving import QUICK, at_work, echo, polled_telegram, telegram
from tests.runtime.graphs import HOUR_US, WITHIN_S, Storage, eventually_stored, go, settings, stored, vanish

FULL = os.environ.get("PERDURE_CHAOS") == "full"
CHATS, MESSAGES, KILLS = (50, 20, 12) if FULL else (5, 4, 2)
PATIENT = settings(attempts=3 * (KILLS + 1))
"""As a run may be cut off by every kill, more attempts than there are kills: a message that is given up is
taken from its thread, with an apology, and would be missed here."""


@pytest.fixture
def sqlite() -> Iterator[Storage]:
    with stored("sqlite") as storage:
        yield storage


@dataclass(frozen=True)
class Kind:
    """A provider: its double, the bot that talks to it, and how its chats are called."""

    name: str
    double: Callable[..., Any]
    bot: Callable[[Any], ChatChannel]
    chat: Callable[[int], Any]
    thread: Callable[[Any], str]


KINDS = (
    Kind("telegram", TelegramDouble, telegram, int, lambda chat: _thread(chat)),
    Kind("telegram-polling", TelegramDouble, polled_telegram, int, lambda chat: _thread(chat)),
    Kind(
        "whatsapp",
        WhatsAppDouble,
        lambda double: WhatsAppPhone(
            PHONE_ID,
            token=ACCESS,
            app_secret=APP_SECRET,
            verify_token="verify-me",
            options=QUICK,
            api_url=f"{double.url}/v1",
        ),
        lambda number: f"49{number:04}",
        lambda chat: ChatAddress("whatsapp", chat).thread_id,
    ),
    Kind(
        "slack",
        SlackDouble,
        lambda double: SlackApp(
            BOT_TOKEN, signing_secret=SIGNING_SECRET, options=QUICK, api_url=f"{double.url}/api/"
        ),
        lambda number: f"D{number}",
        lambda chat: ChatAddress("slack", f"T1.{chat}").thread_id,
    ),
)


async def heard(runtime: Runtime, thread_id: str) -> list[str]:
    """What a thread holds of people, in order."""
    graph: Any = runtime.graph("agent")
    state = await graph.aget_state({"configurable": {"thread_id": thread_id}})
    return [message.text for message in state.values.get("messages", ()) if message.type == "human"]


def _thread(chat: int) -> str:
    return ChatAddress("telegram", str(chat)).thread_id


def answered(double: ProviderDouble, chat: str | int) -> list[str]:
    """What was answered in a chat, without the second of two equal neighbours: a reply sent again."""
    texts = double.texts(chat)
    once = [text for n, text in enumerate(texts) if n == 0 or text != texts[n - 1]]
    return [text for reply in once for text in reply.split(" + ")]


def timed(double: ProviderDouble) -> list[float]:
    """The seconds that each acknowledgement of a delivery takes, from now on."""
    took: list[float] = []
    post = double.post

    async def measured(delivery: WebhookCall) -> int:
        began = time.perf_counter()
        status = await post(delivery)
        if status == 200:
            took.append(time.perf_counter() - began)
        return status

    double.post = measured  # type: ignore[method-assign]
    return took


async def _commits(storage: Storage, bot: Callable[[Any], ChatChannel] = telegram) -> int:
    """The number of commits from a message to its reply."""
    database, line = storage.open()
    async with TelegramDouble() as double, at_work(database, echo(), bot(double)) as work:
        double.webhook = work.webhook
        before = line.commits
        await double.say(1, "one")
        await double.until_shown(1)
        await asyncio.sleep(0.2)
        return line.commits - before


async def _killed_at(
    storage: Storage, chat: int, number: int, when: str, bot: Callable[[Any], ChatChannel] = telegram
) -> None:
    async with TelegramDouble() as double:
        database, line = storage.open()
        async with at_work(database, echo(), bot(double)) as first:
            double.webhook = first.webhook
            line.die_at(number, when)
            saying = asyncio.create_task(double.say(chat, "one"))
            async with asyncio.timeout(WITHIN_S):
                while not line.is_dead:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            vanish(first.runtime, line)
        database, line = storage.open()
        line.ahead_us = HOUR_US
        async with at_work(database, echo(), bot(double)) as second:
            double.webhook = second.webhook
            await saying
            await double.say(chat, "two")
            async with asyncio.timeout(WITHIN_S):
                while "two" not in " ".join(double.texts(chat)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            at = f"killed {when} commit {number}"
            assert await heard(second.runtime, _thread(chat)) == ["one", "two"], at
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


def test_killed_at_any_step_of_a_message_that_was_polled_nothing_is_lost_or_run_twice(
    sqlite: Storage,
) -> None:
    async def main() -> None:
        total = await _commits(sqlite, polled_telegram)
        assert total >= 5
        steps = [(number, when) for number in range(1, total + 1) for when in ("before", "after")]
        for chat, (number, when) in enumerate(steps if FULL else steps[1::3], 100):
            await _killed_at(sqlite, chat, number, when, polled_telegram)

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
                thread_id = _thread(1)

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
                assert await heard(second.runtime, _thread(1)) == ["first", "queued"]

    go(main())


async def _battery(kind: Kind, storage: Storage) -> str:
    rng = random.Random(18)
    faults = DeliveryFaults(copies=2, delay=0.02, seed=18)
    async with kind.double(deliveries=faults, patience=240.0) as double:
        took = timed(double)

        async def person(chat: Any) -> None:
            for number in range(MESSAGES):
                await double.say(chat, f"{chat}-{number}")
                if rng.random() < 0.2:
                    trouble: Any = rng.choice(["limit", "fail", "lose", "refuse", "slow"])
                    double.faults.append(ProviderFault(trouble, chat=str(chat), seconds=0.3))

        chats = [kind.chat(number) for number in range(1, CHATS + 1)]
        people = [asyncio.create_task(person(chat)) for chat in chats]
        last = CHATS * MESSAGES
        for number in range(KILLS + 1):
            database, line = storage.open()
            line.ahead_us = number * HOUR_US
            async with at_work(database, echo(), kind.bot(double), settings=PATIENT) as work:
                double.webhook = work.webhook
                if number < KILLS:
                    reached = len(took) + rng.randint(1, 2 * last // (KILLS + 1))
                    while len(took) < reached and not all(task.done() for task in people):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    vanish(work.runtime, line)
                    continue
                await asyncio.gather(*people)
                turns = 0
                for chat in chats:
                    said = [f"{chat}-{n}" for n in range(MESSAGES)]
                    while answered(double, chat)[-1:] != said[-1:]:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                    assert await heard(work.runtime, kind.thread(chat)) == said
                    assert answered(double, chat) == said
                    turns += len(double.texts(chat))
        took.sort()
        p50, p99 = (took[int(len(took) * part)] * 1000 for part in (0.5, 0.99))
        return (
            f"{kind.name} on {storage.backend}: {last} messages in {CHATS} chats, {KILLS} kills, "
            f"{turns} replies shown, {len(took)} acknowledged, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        )


WHERE = os.environ.get("PERDURE_BATTERY_BACKENDS", "sqlite").split(",")
COMBINATIONS = [
    pytest.param(kind, backend, id=f"{kind.name}-{backend}", marks=[pytest.mark.slow] if number else [])
    for number, (kind, backend) in enumerate((kind, backend) for backend in WHERE for kind in KINDS)
]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kind", "backend"), COMBINATIONS)
def test_many_chats_under_all_faults_lose_nothing_and_stay_in_order(kind: Kind, backend: str) -> None:
    with stored(backend) as storage:
        report = asyncio.run(asyncio.wait_for(_battery(kind, storage), 1150))
    print(report)
    if folder := os.environ.get("PERDURE_BATTERY_REPORTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"channels-{kind.name}-{backend}.txt").write_text(f"{report}\n", encoding="utf-8")
