"""Acceptance of what a chat sends: a message becomes a turn, an answer or a command, durable on return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from langgraph.types import Interrupt

from perdure.channels import questions
from perdure.channels.addresses import ChatAddress
from perdure.channels.incoming import ButtonPress, ChatMessage, position_of
from perdure.channels.options import ChatOptions
from perdure.channels.sessions import SessionList, Sessions
from perdure.errors import NotWaiting
from perdure.model.messages import OPEN, WAITING
from perdure.runtime import Runtime

_LOOKED_AT = 100
_EDITED = "(edited) "
_NOT_OPEN = "This question is not open any more."


class Received(NamedTuple):
    """Outcome of an acceptance.

    Attributes:
        notice: Text to show in the chat at once, or empty. It is not stored, and may be lost.
        is_duplicate: True if it was accepted before, and had no further effect.
        decided: The decision that a button press made, or empty.
        ticket_id: The id of the accepted message, or empty.
    """

    notice: str = ""
    is_duplicate: bool = False
    decided: str = ""
    ticket_id: str = ""


class _Question(NamedTuple):
    thread_id: str
    interrupt_id: str
    value: Any


class Receiver:
    """Accepts the messages and button presses of one channel.

    Deliveries for one chat are accepted one by one in this process, in the order of their arrival.

    Args:
        runtime: The runtime.
        channel: The name of the channel, which is also that of the runtime's ``Channel`` for replies.
        options: The options of the channel.
    """

    def __init__(self, runtime: Runtime, channel: str, options: ChatOptions) -> None:
        tenant = runtime.tenant if options.tenant is None else options.tenant
        self._runtime = runtime.for_tenant(tenant)
        self._channel = channel
        self._options = options
        self._sessions = Sessions(runtime, tenant, channel)
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def message(self, message: ChatMessage) -> Received:
        """Accept a message.

        Raises:
            QueueFull: Too many messages of the chat wait.
            Unavailable: The database does not answer; nothing is acknowledged.
        """
        if message.is_empty or not self._options.serves(message.chat, message.sender):
            return Received()
        if message.edit and self._options.edits == "ignore":
            return Received()
        async with self._in_turn(message.chat, message.topic):
            sessions = await self._sessions.of(message.chat, message.topic)
            thread_id = self._thread_id(message, sessions)
            if message.command and not message.edit:
                return await self._command(message, thread_id)
            if message.edit:
                return await self._edited(message, thread_id)
            found = await self._question(thread_id)
            if found is not None:
                try:
                    return await self._answered(message, found, sessions)
                except NotWaiting:
                    # Somebody else has answered meanwhile: the text is a message like any other.
                    found = None
            return await self._accepted(message, thread_id, _key(message))

    async def press(self, press: ButtonPress) -> Received:
        """Accept the press of a button. Raises as ``message`` does."""
        meant = questions.pressed(press.data)
        if meant is None or not self._options.serves(press.chat, press.sender):
            return Received()
        interrupt_id, decision = meant
        async with self._in_turn(press.chat, press.topic):
            sessions = await self._sessions.of(press.chat, press.topic)
            asked = await self._question(self._thread_id(press, sessions), interrupt_id)
            if asked is None:
                return Received(_NOT_OPEN)
            try:
                if decision == "edit" and "edit" in questions.decisions(asked.value):
                    await self._sessions.edit(press.chat, press.topic, interrupt_id)
                    return Received(questions.edit_prompt(asked.value))
                value = questions.resume_value(asked.value, decision)
                ticket = await self._runtime.answer(
                    asked.thread_id, value, interrupt_id=interrupt_id, dedupe_key=f"press {press.key}"
                )
            except questions.UnusableAnswer as error:
                return Received(str(error))
            except NotWaiting:
                return Received(_NOT_OPEN)
        return Received(is_duplicate=ticket.is_duplicate, decided=decision)

    @asynccontextmanager
    async def _in_turn(self, chat: str, topic: str) -> AsyncIterator[None]:
        lock = self._locks.get((chat, topic))
        if lock is None:
            lock = self._locks[chat, topic] = asyncio.Lock()
        async with lock:
            yield

    def _thread_id(self, event: ChatMessage | ButtonPress, sessions: SessionList) -> str:
        session = sessions.at(event.position)
        return ChatAddress(self._channel, event.chat, event.topic, session).thread_id

    async def _accepted(self, message: ChatMessage, thread_id: str, key: str, prefix: str = "") -> Received:
        ticket = await self._runtime.accept(
            thread_id,
            message.payload(self._channel, prefix=prefix),
            dedupe_key=key,
            graph=self._options.graph,
            channel=self._channel,
            debounce=self._options.debounce,
            max_wait=self._options.max_wait,
        )
        return Received(is_duplicate=ticket.is_duplicate, ticket_id=ticket.id)

    async def _edited(self, message: ChatMessage, thread_id: str) -> Received:
        """Accept a changed message. It takes the place of the original if that one still waits."""
        if not (original := await self._accepted(message, thread_id, _key(message))).is_duplicate:
            # The original was never delivered.
            return original
        is_replaced = await self._runtime.withdraw(thread_id, original.ticket_id)
        return await self._accepted(
            message, thread_id, f"edit {message.edit}", "" if is_replaced else _EDITED
        )

    # Questions

    async def _question(self, thread_id: str, interrupt_id: str | None = None) -> _Question | None:
        """Return the question for which a thread waits: the named one, or the first."""
        runs = await self._runtime.runs(thread_id, limit=1)
        if not runs or runs[0].state != WAITING:
            return None
        asked = [each["id"] for each in runs[0].note.get("interrupts", ())]
        if interrupt_id is not None and interrupt_id not in asked:
            return None
        async with self._runtime.opened(runs[0].graph, "threads.read") as graph:
            state = await graph.aget_state({"configurable": {"thread_id": thread_id}})
        for interrupt in state.interrupts:
            if _is_named(interrupt, interrupt_id, asked):
                return _Question(thread_id, interrupt.id, interrupt.value)
        return None

    async def _answered(self, message: ChatMessage, asked: _Question, sessions: SessionList) -> Received:
        """Accept a text as the answer to a question."""
        is_edit = sessions.editing == asked.interrupt_id
        try:
            value = questions.resume_value(asked.value, "edit" if is_edit else None, message.content())
        except questions.UnusableAnswer as error:
            return Received(str(error))
        ticket = await self._runtime.answer(
            asked.thread_id, value, interrupt_id=asked.interrupt_id, dedupe_key=_key(message)
        )
        return Received(is_duplicate=ticket.is_duplicate)

    # Commands

    async def _command(self, message: ChatMessage, thread_id: str) -> Received:
        last = await self._stop(thread_id, message.position)
        if message.command == "stop":
            return Received(self._options.stop_notice)
        start = max(message.position, last)
        is_new = await self._sessions.begin(message.chat, message.topic, message.position, start)
        return Received(self._options.new_notice) if is_new else Received(is_duplicate=True)

    async def _stop(self, thread_id: str, position: int) -> int:
        """End the run of a thread and withdraw what waits, as far as its messages are older than a position.
        Return the greatest position of the thread's messages."""
        last = 0
        for standing in await self._runtime.messages(thread_id, limit=_LOOKED_AT):
            at = position_of(standing.message.payload)
            last = max(last, at or 0)
            # An answer has no position: its run continues an older question.
            if at is not None and at > position:
                continue
            if standing.run is None and not standing.message.is_withdrawn:
                await self._runtime.cancel(thread_id, standing.message.id)
            elif standing.run is not None and standing.run.state == OPEN:
                await self._runtime.stop(thread_id, standing.run.id)
        return last


def _key(message: ChatMessage) -> str:
    return f"message {message.key}"


def _is_named(interrupt: Interrupt, interrupt_id: str | None, asked: list[str]) -> bool:
    return interrupt.id == interrupt_id if interrupt_id is not None else interrupt.id in asked
