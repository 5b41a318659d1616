"""Whatever two deliveries of a chat, or a delivery and a worker, do at once comes out as one after the other.

Messages, copies and changes of them, answers, presses of buttons and commands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.channels import questions
from perdure.channels.addresses import ChatAddress
from perdure.channels.chat_channel import ChatChannel
from perdure.channels.incoming import ButtonPress, ChatMessage
from perdure.channels.options import ChatOptions
from perdure.channels.receiving import Received, Receiver
from perdure.database.opening import make_database
from perdure.runtime import Runtime
from perdure.storage.port import Driver
from tests.interleavings.explorer import Case, World, check
from tests.runtime.graphs import eventually_stored, settings

OPTIONS = ChatOptions(debounce=0.0)
CHAT = "1"
SHOWN = 100
"""Position of the first reply in the chat."""


class Bot(ChatChannel):
    """A channel to a chat that shows every reply at once, each at the place of its number."""

    length = question_length = 4000

    def position(self, provider_id: str) -> int | None:
        return int(provider_id)

    async def handle(self, request: Any, receiver: Receiver) -> Any:
        raise NotImplementedError("the tests call the receiver")

    async def deliver(self, address: ChatAddress, text: str, reply: Any) -> str | None:
        return str(SHOWN + reply.seq)


def ask(state: MessagesState) -> dict[str, Any]:
    """Ask about a message that says so, and answer all others."""
    last = state["messages"][-1].text
    if last == "ask":
        return {"messages": [AIMessage(f"got {interrupt('Which size?')}")]}
    if last == "pay":
        request = {"action_requests": [{"name": "pay", "args": {}}]}
        asked = {
            **request,
            "review_configs": [{"action_name": "pay", "allowed_decisions": ["approve", "reject"]}],
        }
        return {"messages": [AIMessage(f"got {interrupt(asked)['decisions'][0]['type']}")]}
    return {"messages": [AIMessage(f"heard {last}")]}


GRAPH = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()


def apart(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as another process does: in an event loop of its own, whatever loop is waiting."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main).result()


def receive(world: World, act: Callable[[Receiver], Awaitable[Received]]) -> Any:
    async def main() -> Any:
        bot = Bot("bot", options=OPTIONS, in_doubt="resend")
        database = make_database(world.driver, tenant=world.tenant)
        given: Any = {"channels": bot.channels, "settings": settings(), "observers": [], "works": False}
        async with Runtime(database, GRAPH, **given) as runtime:
            received = await act(Receiver(runtime, bot.name, OPTIONS, bot.position, bot._locks))
        return received.notice, received.is_duplicate, received.decided

    return apart(main())


def say(position: int, text: str, edit: str = "") -> Callable[[World], Any]:
    message = ChatMessage(chat=CHAT, position=position, key=str(position), text=text, sender="7", edit=edit)
    return lambda world: receive(world, lambda receiver: receiver.accept_message(message))


def press(button: str, key: str = "") -> Callable[[World], Any]:
    """Return the press of a button below the only question that was shown; ``key`` is another press of it."""

    def act(world: World) -> Any:
        (shown,) = [reply for reply in seen_replies(world) if questions.list_buttons(reply.payload)]
        (data,) = [each.data for each in questions.list_buttons(shown.payload) if each.text == button]
        at = SHOWN + shown.seq
        pressed = ButtonPress(
            chat=CHAT, position=at, key=key or button, data=data, question=str(at), sender="7"
        )
        return receive(world, lambda receiver: receiver.accept_press(pressed))

    return act


def work(world: World) -> None:
    async def main() -> None:
        bot = Bot("bot", options=OPTIONS, in_doubt="resend")
        database = make_database(world.driver, tenant=world.tenant)
        given: Any = {"channels": bot.channels, "settings": settings(), "observers": []}
        async with Runtime(database, GRAPH, **given) as runtime:

            async def is_done() -> bool:
                assert await runtime.work_off(20)
                found = [await runtime.messages(thread) for thread in threads(world)]
                return all(each.run is not None and each.is_over for standing in found for each in standing)

            # By the clock of the process that accepted it, a message may be due in a moment.
            await eventually_stored(is_done)

    apart(main())


def threads(world: World) -> list[str]:
    """Return the threads of the chat's sessions, of those that the tests begin."""
    return [ChatAddress("bot", CHAT, session=session).thread_id for session in ("", "6", "7", "8")]


async def _look(world: World) -> tuple[list[Any], list[Any]]:
    database = make_database(world.driver, tenant=world.tenant)
    async with Runtime(database, GRAPH, settings=settings(), observers=[], works=False) as runtime:
        replies: list[Any] = []
        seen: list[Any] = []
        for thread in threads(world):
            found = await runtime.replies(thread, limit=100)
            replies += found
            standing = await runtime.messages(thread, limit=100)
            seen.append(
                (
                    [_words(each) for each in standing],
                    [(run.state, run.first, run.last) for run in await runtime.runs(thread, limit=100)],
                    [(reply.seq, reply.payload["content"], reply.state, reply.attempts) for reply in found],
                )
            )
    return seen, replies


def _words(standing: Any) -> Any:
    payload, run = standing.message.payload, standing.run
    # The id of an interrupt is another one in each world.
    said = payload["message"]["content"] if "message" in payload else [*payload["resume"].values()]
    return str(said), standing.message.mode, None if run is None else run.state, standing.stop


def read(world: World) -> Any:
    """Return what is seen of the chat once everything that waits was worked on."""
    work(world)
    return apart(_look(world))[0]


def seen_replies(world: World) -> list[Any]:
    replies: list[Any] = apart(_look(world))[1]
    return replies


def after(*acts: Callable[[World], Any]) -> Callable[[Driver], World]:
    def new(driver: Driver) -> World:
        world = World(driver)
        for act in acts:
            act(world)
        return world

    return new


MESSAGES: Mapping[str, Callable[[World], Any]] = {
    "say one": say(1, "one"),
    "say two": say(2, "two"),
    "change one": say(1, "one, changed", "e1"),
    "change one again": say(1, "one, again", "e2"),
    "stop": say(5, "/stop"),
    "begin anew": say(6, "/new"),
    "say after all": say(9, "late"),
}
ANSWERS: Mapping[str, Callable[[World], Any]] = {
    **MESSAGES,
    "answer": say(SHOWN + 50, "large"),
    "answer otherwise": say(SHOWN + 51, "small"),
    "stop late": say(SHOWN + 52, "/stop"),
}
PRESSES: Mapping[str, Callable[[World], Any]] = {
    **ANSWERS,
    "approve": press("Approve"),
    "approve again": press("Approve", "again"),
    "reject": press("Reject"),
}
WORK: Mapping[str, Callable[[World], Any]] = {"work": work}
CASES: Mapping[str, Case[World]] = {
    "a new chat": Case(after(), MESSAGES, read, sequences=WORK),
    "one waits": Case(after(say(1, "one")), MESSAGES, read, sequences=WORK),
    "one was changed": Case(
        after(say(1, "one"), say(1, "one, changed", "e1")), MESSAGES, read, sequences=WORK
    ),
    "one is answered": Case(after(say(1, "one"), work), MESSAGES, read, sequences=WORK),
    "a question was asked": Case(after(say(1, "ask"), work), ANSWERS, read, sequences=WORK),
    "a question with buttons": Case(after(say(1, "pay"), work), PRESSES, read, sequences=WORK),
}
QUICK = 12
STORED = 3
"""Pairs of a set-up that are explored in the quick run, and on a database."""


@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting], size=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other_in_a_database(setting: str, stored: Driver) -> None:
    check(setting, CASES[setting], stored, size=STORED)
