"""Acceptance of a chat's updates: a message becomes a turn, an answer or a command, durable on return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from perdure.channels import questions
from perdure.channels.addresses import ChatAddress, user_of
from perdure.channels.incoming import (
    ButtonPress,
    ChatAnswer,
    ChatMessage,
    edit_of,
    is_same,
    make_dedupe_key,
    message_id_of,
    payload_of,
    position_of,
)
from perdure.channels.options import ChatOptions
from perdure.channels.sessions import SessionList, Sessions
from perdure.engine.queue.inbox import Standing
from perdure.errors import NotFound, NotWaiting
from perdure.langgraph.reading.shown_questions import aread_with_questions
from perdure.model.runs.messages import OPEN, SENDING, SENT, Message, Reply
from perdure.model.runs.waits import read_waits
from perdure.runtime import Options, Runtime
from perdure.runtime.agents.run_user import USER

_PAGE_SIZE = 100
"""Number of the newest messages, or replies, that are read at once."""
_PAGES = 10
"""Number of pages of messages in which the earlier versions of an edited message are searched, and of replies
in which a question is."""
_SETTLING_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses before the state of a question that is just being sent is read again."""
_EDITED = "(edited) "
_NOT_OPEN = "This question is not open any more."


class Received(NamedTuple):
    """Outcome of an acceptance.

    Attributes:
        notice: Text to show in the chat at once, or empty. It is not stored, and may be lost.
        is_duplicate: True if the delivery was accepted before, and had no further effect.
        decided: The decision that a button press made, or empty.
        ticket_id: The id of the accepted message, or empty.
    """

    notice: str = ""
    is_duplicate: bool = False
    decided: str = ""
    ticket_id: str = ""


class _Question(NamedTuple):
    thread_id: str
    run_id: str
    interrupt_id: str
    value: Any


ChatLocks = WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str, str], asyncio.Lock]
"""Locks of the chats whose deliveries are being accepted, by event loop, chat and topic."""


class Receiver:
    """Accepts the messages and button presses of one channel.

    Deliveries for one chat are accepted one by one by receivers with the same locks, in the order of their
    arrival.

    Args:
        runtime: The runtime.
        channel: The name of the channel, which is also that of the runtime's ``Channel`` for replies.
        options: The options of the channel.
        position: Returns the place of a reply in its chat from the provider's id, if it has one.
        locks: The locks of the chats.
    """

    def __init__(
        self,
        runtime: Runtime,
        channel: str,
        options: ChatOptions,
        position: Callable[[str], int | None],
        locks: ChatLocks,
    ) -> None:
        tenant = options.choose_tenant(runtime)
        self._runtime = runtime.for_tenant(tenant)
        self._channel = channel
        self._options = options
        self._position = position
        self._sessions = Sessions(runtime, tenant, channel)
        self._locks = locks

    async def accept_message(self, message: ChatMessage) -> Received:
        """Accept a message.

        Raises:
            QueueFull: Too many messages of the chat wait.
            Unavailable: The database does not answer; nothing is acknowledged.
        """
        if message.is_empty or not self._options.serves(message.chat, message.sender):
            return Received()
        if message.edit and self._options.edits == "ignore":
            return Received()
        async with self._lock_chat(message.chat, message.topic):
            sessions = await self._sessions.load(message.chat, message.topic)
            thread_id = self._find_thread_id(message, sessions)
            if message.command and not message.edit:
                return await self._handle_command(message, sessions)
            if not message.is_addressed and not await self._is_for_bot(message, thread_id, sessions):
                return Received()
            if message.edit:
                return await self._accept_edit(message, thread_id, sessions)
            if answered := await self._accept_answer(message, thread_id, sessions):
                return answered
            return await self._accept(message, thread_id, message.dedupe_key)

    async def accept_press(self, press: ButtonPress) -> Received:
        """Accept the press of a button. A second delivery, or a second press with the same choice, gets the
        same answer. Raises the errors of ``message``."""
        button = questions.parse_button(press.data)
        if button is None or not self._options.serves(press.chat, press.sender):
            return Received()
        interrupt_id, decision = button
        key, edit_key, notice = f"press {press.key}", f"edit {press.key}", _NOT_OPEN
        choice = key
        if press.question:
            choice = f"press {press.question} {decision}"
        async with self._lock_chat(press.chat, press.topic):
            sessions = await self._sessions.load(press.chat, press.topic)
            thread_id = self._find_thread_id(press, sessions)
            if key in sessions.noticed:
                return Received(notice, is_duplicate=True)
            question = await self._find_pressed_question(press, thread_id, sessions, interrupt_id)
            if question is not None:
                try:
                    if decision == "edit" and "edit" in questions.decisions(question.value):
                        is_new = await self._note_notice(press, edit_key, interrupt_id)
                        return Received(questions.edit_prompt(question.value), is_duplicate=not is_new)
                    value = questions.resume_value(question.value, decision)
                    is_duplicate = await self._answer(press, question, value, choice)
                    return Received(is_duplicate=is_duplicate, decided=decision)
                except questions.UnusableAnswer as error:
                    notice = str(error)
                except NotWaiting:
                    pass
            if await self._runtime.threads.was_accepted(thread_id, choice):
                return Received(is_duplicate=True, decided=decision)
            if edit_key in sessions.noticed:
                # The changed arguments for which this press asked have come already.
                return Received(is_duplicate=True)
            is_new = await self._note_notice(press, key)
            return Received(notice, is_duplicate=not is_new)

    @asynccontextmanager
    async def _lock_chat(self, chat: str, topic: str) -> AsyncIterator[None]:
        place = asyncio.get_running_loop(), chat, topic
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        async with lock:
            yield

    def _make_config(self, event: ChatMessage | ButtonPress) -> dict[str, Any] | None:
        """Return the config of a run with its user: the sender, as the provider has signed it."""
        identity = user_of(self._channel, event.chat, event.sender)
        if identity:
            return {"configurable": {USER: {"identity": identity, "is_authenticated": True}}}
        return None

    def _find_thread_id(self, event: ChatMessage | ButtonPress, sessions: SessionList) -> str:
        return self._make_thread_id(event, sessions.find_name(event.position))

    def _make_thread_id(self, event: ChatMessage | ButtonPress, session: str) -> str:
        return ChatAddress(self._channel, event.chat, event.topic, session).thread_id

    async def _is_for_bot(self, message: ChatMessage, thread_id: str, sessions: SessionList) -> bool:
        """Return True if a message that is not addressed to the bot changes one that was, or is in a topic
        that began with a message to the bot."""
        was_accepted = self._runtime.threads.was_accepted
        if message.edit and (
            message.dedupe_key in sessions.noticed or await was_accepted(thread_id, message.dedupe_key)
        ):
            return True
        first_thread_id = self._make_thread_id(message, "")
        return bool(message.topic) and await was_accepted(first_thread_id, make_dedupe_key(message.topic))

    async def _accept(self, message: ChatMessage, thread_id: str, key: str, prefix: str = "") -> Received:
        ticket = await self._runtime.accept(
            thread_id,
            message.payload(self._channel, prefix=prefix),
            dedupe_key=key,
            graph=self._options.graph,
            channel=self._channel,
            debounce=self._options.debounce,
            max_wait=self._options.max_wait,
            config=self._make_config(message),
        )
        return Received(is_duplicate=ticket.is_duplicate, ticket_id=ticket.id)

    async def _accept_edit(self, message: ChatMessage, thread_id: str, sessions: SessionList) -> Received:
        """Accept a changed message, in place of those of its versions that still wait."""
        if versions := await self._find_versions(message, thread_id):
            return await self._replace_versions(message, thread_id, sessions, versions)
        # The original was refused as an answer, or was never delivered.
        if answered := await self._accept_answer(message, thread_id, sessions):
            return answered
        if not (original := await self._accept(message, thread_id, message.dedupe_key)).is_duplicate:
            return original
        if versions := await self._find_versions(message, thread_id):
            # The message was accepted meanwhile, unchanged or with this change.
            return await self._replace_versions(message, thread_id, sessions, versions)
        is_replaced = await self._runtime.withdraw(thread_id, original.ticket_id)
        return await self._accept(message, thread_id, message.delivery_key, "" if is_replaced else _EDITED)

    async def _find_versions(self, message: ChatMessage, thread_id: str) -> list[Standing]:
        """Return the versions of a message that are among the newest stored messages, the latest first."""
        versions: list[Standing] = []
        before = None
        for _ in range(_PAGES):
            page = await self._runtime.messages(thread_id, limit=_PAGE_SIZE, before=before)
            for standing in page:
                payload = payload_of(standing.message)
                if message_id_of(payload) == message.key:
                    versions.append(standing)
                    if not edit_of(payload):
                        return versions
            if len(page) < _PAGE_SIZE:
                break
            before = page[-1].message.seq
        return versions

    async def _replace_versions(
        self, message: ChatMessage, thread_id: str, sessions: SessionList, versions: list[Standing]
    ) -> Received:
        payloads = [payload_of(each.message) for each in versions]
        if any(edit_of(each) == message.edit for each in payloads):
            return Received(is_duplicate=True)
        is_noticed = message.delivery_key in sessions.noticed
        if not is_noticed and any(
            is_same(payloads[0], {"message": message.payload(self._channel, prefix=prefix)})
            for prefix in ("", _EDITED)
        ):
            # Providers also report edits that do not change the text.
            return Received()
        is_seen = False
        for each in versions:
            if not each.message.is_withdrawn and not is_noticed:
                is_seen |= not await self._withdraw_version(thread_id, each.message)
        if not is_seen:
            replaced = ChatAnswer.of(versions[0].message)
            if answered := await self._accept_answer(message, thread_id, sessions, replaced):
                return answered
        received = await self._accept(message, thread_id, message.delivery_key, _EDITED if is_seen else "")
        # Another process may have accepted another change meanwhile: the one accepted last counts.
        for each in (await self._find_versions(message, thread_id))[1:]:
            if each.run is None and not each.message.is_withdrawn and ChatAnswer.of(each.message) is None:
                await self._runtime.withdraw(thread_id, each.message.id)
        return received

    async def _withdraw_version(self, thread_id: str, version: Message) -> bool:
        """Withdraw a version of a changed message if it still waits. An answer stays if another message waits
        behind it: that one would close the question."""
        if ChatAnswer.of(version) is not None:
            for each in await self._runtime.messages(thread_id, limit=_PAGE_SIZE):
                if each.message.id == version.id:
                    break
                if not each.message.is_withdrawn:
                    return False
        return await self._runtime.withdraw(thread_id, version.id)

    # Questions

    async def _accept_answer(
        self,
        message: ChatMessage,
        thread_id: str,
        sessions: SessionList,
        replaced: ChatAnswer | None = None,
    ) -> Received | None:
        """Accept a text as the answer to a question, or refuse it as that; return ``None`` if it is a message
        like any other.

        Args:
            message: The text.
            thread_id: The thread.
            sessions: The sessions of the chat.
            replaced: The answer that was withdrawn for this change of it, if any.
        """
        if replaced is None:
            key = message.dedupe_key
            question = await self._find_answered_question(message, thread_id, sessions)
        else:
            key = message.delivery_key
            question = await self._find_question(thread_id, sessions, replaced.interrupt_id)
            if question is not None and not await self._was_shown(question, message.position):
                question = None
        if question is not None and not await self._runtime.threads.was_accepted(thread_id, key):
            try:
                return await self._answer_question(message, question, sessions, key, replaced)
            except NotWaiting:
                # The question was answered meanwhile: the text is a message like any other.
                pass
        if message.delivery_key in sessions.noticed:
            # It was refused as an answer before, so a second delivery is not accepted as a message.
            return Received(is_duplicate=True)
        return None

    async def _find_answered_question(
        self, message: ChatMessage, thread_id: str, sessions: SessionList
    ) -> _Question | None:
        """Return the question that a text answers: the one whose arguments are being edited, or the first
        open one if the text was written after it. The change of a text from before it answers neither."""
        if sessions.editing:
            edited = await self._find_question(thread_id, sessions, sessions.editing)
            if edited is not None and (not message.edit or await self._was_shown(edited, message.position)):
                return edited
        question = await self._find_question(thread_id, sessions)
        if question is not None and await self._was_shown(question, message.position):
            return question
        return None

    async def _was_shown(self, asked: _Question, position: int) -> bool:
        """Return True if a question was shown in the chat before a position."""
        reply = await self._find_reply(asked)
        for pause in _SETTLING_S:
            if reply is None or reply.state != SENDING:
                break
            await asyncio.sleep(pause)
            reply = await self._find_reply(asked)
        if reply is None or reply.state != SENT:
            return False
        question_position = None
        if reply.provider_id is not None:
            question_position = self._position(reply.provider_id)
        return question_position is None or question_position < position

    async def _find_reply(self, asked: _Question) -> Reply | None:
        """Return the newest reply that asks a question, ``None`` if there is none."""
        async for reply in self._read_question_replies(asked):
            return reply
        return None

    async def _read_question_replies(self, asked: _Question) -> AsyncIterator[Reply]:
        """Yield the replies that ask a question, newest first."""
        before = None
        for _ in range(_PAGES):
            page = await self._runtime.replies(asked.thread_id, limit=_PAGE_SIZE, before=before)
            for reply in page:
                if questions.interrupt_of(reply.payload) == asked.interrupt_id:
                    yield reply
            if len(page) < _PAGE_SIZE:
                return
            before = page[-1].seq

    async def _find_question(
        self, thread_id: str, sessions: SessionList, interrupt_id: str | None = None
    ) -> _Question | None:
        """Return an open question of a thread: the named one, or the first."""
        question = await self._runtime.question(thread_id)
        if question is None or question.run is None or question.run.id in sessions.closed:
            return None
        if interrupt_id is not None and not question.knows(interrupt_id):
            return None
        try:
            opening = self._runtime.open_graph(question.run.graph, "threads.read")
        except NotFound:
            # The graph that asked is not served any more, so no answer can reach it.
            return None
        async with opening as graph:
            state = await aread_with_questions(graph, {"configurable": {"thread_id": thread_id}})
        for interrupt in state.interrupts:
            if interrupt.id == interrupt_id or (interrupt_id is None and question.knows(interrupt.id)):
                return _Question(thread_id, question.run.id, interrupt.id, interrupt.value)
        return None

    async def _find_pressed_question(
        self, press: ButtonPress, thread_id: str, sessions: SessionList, interrupt_id: str
    ) -> _Question | None:
        """Return the open question that was shown with a button, ``None`` if it is not open any more. A node
        that asks again asks under the same id, and a button must only decide the question with which it was
        shown."""
        question = await self._find_question(thread_id, sessions, interrupt_id)
        if question is None or not press.question:
            return question
        newest: Reply | None = None
        async for reply in self._read_question_replies(question):
            newest = newest or reply
            if reply.provider_id == press.question:
                return question if reply.payload == newest.payload else None
        return question

    async def _answer_question(
        self,
        message: ChatMessage,
        asked: _Question,
        sessions: SessionList,
        key: str,
        replaced: ChatAnswer | None,
    ) -> Received:
        """Accept a text as the answer to a question, under a key, or refuse it."""
        is_edit = sessions.editing == asked.interrupt_id
        if replaced is not None:
            is_edit = replaced.is_edit
        decision: questions.Decision | None = None
        editing = ""
        if is_edit:
            # The changed arguments are awaited again if those that were sent before are withdrawn.
            decision, editing = "edit", asked.interrupt_id
        try:
            value = questions.resume_value(asked.value, decision, message.content())
        except questions.UnusableAnswer as error:
            is_new = await self._note_notice(message, message.delivery_key, editing)
            return Received(str(error), is_duplicate=not is_new)
        if message.delivery_key in sessions.noticed:
            return Received(is_duplicate=True)
        payload = {"message": message.payload(self._channel)}
        answer = ChatAnswer(key, payload, asked.interrupt_id, is_edit)
        return Received(is_duplicate=await self._answer(message, asked, value, key, answer))

    async def _answer(
        self,
        event: ChatMessage | ButtonPress,
        asked: _Question,
        value: Any,
        key: str,
        answer: ChatAnswer | None = None,
    ) -> bool:
        """Accept the answer to a question, and return True if it was accepted before.

        The answer is withdrawn if a command has closed its question or session meanwhile: a command in
        another process did not see the answer."""
        ticket = await self._runtime.answer(
            asked.thread_id,
            value,
            interrupt_id=asked.interrupt_id,
            dedupe_key=key,
            config=self._make_config(event),
            options=None if answer is None else Options(about=answer.about()),
        )
        sessions = await self._sessions.load(event.chat, event.topic)
        if asked.run_id in sessions.closed or self._find_thread_id(event, sessions) != asked.thread_id:
            await self._runtime.withdraw(asked.thread_id, ticket.id)
        if sessions.editing == asked.interrupt_id and not ticket.is_duplicate:
            await self._sessions.end_editing(event.chat, event.topic, asked.interrupt_id)
        return ticket.is_duplicate

    async def _note_notice(self, event: ChatMessage | ButtonPress, key: str, editing: str = "") -> bool:
        """Note that a delivery is answered by a notice alone; return False if that was noted before."""
        return await self._sessions.note_notice(event.chat, event.topic, key, editing)

    # Commands

    async def _handle_command(self, message: ChatMessage, sessions: SessionList) -> Received:
        session_names = sessions.list_names(message.position)
        # A provider's times may be too coarse to tell a message after a /new from one before it: so a /stop
        # ends the session before the /new, too.
        to_end = session_names[-2:]
        if message.command == "new":
            to_end = session_names[-1:]
        last = [await self._stop_session(message, session) for session in to_end]
        received = Received(self._options.stop_notice)
        if message.command == "new":
            received = Received(self._options.new_notice)
            begins_after = max(message.position, *last)
            if not await self._sessions.begin(message.chat, message.topic, message.position, begins_after):
                received = Received(is_duplicate=True)
        for session in to_end:
            thread_id = self._make_thread_id(message, session)
            # Another process may have accepted an answer before its question was closed.
            await self._end_older(message, thread_id, only_answers=True)
            await self._end_waits(message, thread_id)
        return received

    async def _stop_session(self, message: ChatMessage, session: str) -> int:
        """End the run of a session, withdraw its waiting messages and close its questions, if they are older
        than the command. Return the greatest position of the examined messages."""
        thread_id = self._make_thread_id(message, session)
        last, newer_runs = await self._end_older(message, thread_id)
        await self._close_questions(message, thread_id, newer_runs)
        return last

    async def _end_older(
        self, message: ChatMessage, thread_id: str, *, only_answers: bool = False
    ) -> tuple[int, set[str]]:
        """End the run of a thread and withdraw its waiting messages, if they are older than a command. Return
        the greatest position of the examined messages, and the runs of newer messages."""
        last, before, newer_runs = 0, None, set[str]()
        while page := await self._runtime.messages(thread_id, limit=_PAGE_SIZE, before=before):
            for standing in page:
                position = position_of(standing.message.payload)
                last = max(last, position or 0)
                # An answer has no position: its run continues an older question.
                if position is None or (position <= message.position and not only_answers):
                    await self._end_message(thread_id, standing)
                elif standing.run is not None:
                    newer_runs.add(standing.run.id)
            if page[-1].run is not None and page[-1].run.state != OPEN:
                # The runs of older messages have ended before this one.
                break
            before = page[-1].message.seq
        return last, newer_runs

    async def _end_message(self, thread_id: str, standing: Standing) -> None:
        runtime, message = self._runtime, standing.message
        if standing.run is None and not message.is_withdrawn:
            # Not ``cancel``: it also withdraws messages that would share the run, even if newer than the
            # command.
            for end in (runtime.withdraw, runtime.stop, runtime.withdraw):
                if await end(thread_id, message.id):
                    break
        elif standing.run is not None and standing.run.state == OPEN:
            await self._runtime.stop(thread_id, standing.run.id)

    async def _close_questions(self, message: ChatMessage, thread_id: str, newer_runs: set[str]) -> None:
        """Close the questions of a thread that are older than a command."""
        asking_run = None
        for run in await self._runtime.runs(thread_id, limit=1):
            if run.state == OPEN:
                # A run that is being stopped may still end at a question.
                asking_run = run.id
        if asking_run is None:
            asking_run = await self._runtime.waiting_run(thread_id)
        if asking_run is None or asking_run in newer_runs:
            return
        for reply in await self._runtime.replies(thread_id, limit=_PAGE_SIZE):
            if reply.run_id != asking_run or reply.provider_id is None:
                continue
            position = self._position(reply.provider_id)
            if position is not None and position > message.position:
                return
        await self._sessions.close(message.chat, message.topic, asking_run)

    async def _end_waits(self, message: ChatMessage, thread_id: str) -> None:
        """End the waits of a thread whose question was closed: otherwise it would go on at a deadline or a
        signal."""
        asking_run = await self._runtime.waiting_run(thread_id)
        if asking_run is None or (standing := await self._runtime.find(thread_id, asking_run)) is None:
            return
        if (run := standing.run) is None or not read_waits(run.note):
            return
        sessions = await self._sessions.load(message.chat, message.topic)
        if run.id in sessions.closed:
            key = f"{message.dedupe_key} ends"
            await self._runtime.submit(
                thread_id, None, command={"goto": "__end__"}, dedupe_key=key, graph=run.graph
            )
