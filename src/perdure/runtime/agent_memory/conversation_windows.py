"""Conversations of a runtime's threads: windows as part of a run's input, and summaries made after replies.

A summary is made while no one waits for it, and is stored in the thread when it is finished. The thread's
next run, in whatever process, puts it among the messages with its input, in one commit. If the process ends
before a summary is finished, the next reply leads to another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.pregel import Pregel

from perdure.conversation.compaction import compact
from perdure.conversation.hook import run_off_loop
from perdure.conversation.policy import Conversation
from perdure.conversation.summary import SUMMARY_ID, Summary
from perdure.database.handle import DatabaseHandle
from perdure.engine.documents import Document
from perdure.engine.queue import finished_summary
from perdure.engine.queue.finished_summary import FinishedSummary
from perdure.engine.queue.runs import HeldRun
from perdure.errors import NoWindow
from perdure.langgraph.reading.readable_states import aread_state
from perdure.model.arguments import read_mapping
from perdure.model.records import Partition
from perdure.runtime.agents.agent import list_given
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.contained_exits import contain
from perdure.runtime.failures.failure_location import log_failure
from perdure.runtime.observers import Observers

_AT_ONCE = 8
"""Maximum number of summaries that a process makes at the same time."""
_PATIENCE_S = 300.0
"""Seconds after which a summary is given up."""


class Conversations:
    """Applies the conversation policies of agents to the runs of their threads."""

    def __init__(self, database: DatabaseHandle, clock: DatabaseClock, observers: Observers) -> None:
        self._database = database
        self._clock = clock
        self._observers = observers
        self._replied: dict[Partition, tuple[HeldRun, Conversation, Sequence[BaseMessage]]] = {}
        self._tasks: dict[Partition, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def prepare_input(
        self,
        conversation: Conversation,
        held: HeldRun,
        given: Any,
        stored: Mapping[str, Any],
    ) -> Any:
        """Return a run's input, with the thread's messages replaced by their window if that differs.

        The replacement is part of the input's own checkpoint: both are stored, or neither.

        Args:
            conversation: The policy.
            held: The run.
            given: The input; answers to interrupts and commands are returned unchanged.
            stored: The values of the state from which the run starts.

        Raises:
            NoWindow: No valid selection of the messages fits the limit.
        """
        if not isinstance(given, Mapping):
            return given
        key = conversation.key
        new = given.get(key, [])
        if not isinstance(new, list | tuple | str | BaseMessage | Mapping):
            return given
        stored_messages = stored.get(key) or []
        combined: Any = cast("Any", add_messages)(stored_messages, list_given(new))
        if not combined:
            return given
        finished = None
        if conversation.summarize is not None:
            made = await self._database.arun(finished_summary.load(held.partition))
            finished = _choose_usable(made, stored_messages)
        window = await run_off_loop(conversation, compact, conversation, combined, finished)
        if window is None:
            return given
        if window.repairs:
            self._observers.run_event("conversation.repaired", held, changes=sum(window.repairs.values()))
        if window.left_out:
            self._observers.run_event(
                "conversation.compacted", held, left_out=window.left_out, kept=len(window.messages)
            )
        if window.has_new_summary:
            self._observers.run_event("conversation.summary_stored", held)
        return {**given, key: [RemoveMessage(id=REMOVE_ALL_MESSAGES), *window.messages]}

    async def note_reply(
        self,
        conversation: Conversation,
        graph: Pregel[Any, Any, Any, Any],
        config: RunnableConfig,
        held: HeldRun,
        values: Any,
    ) -> None:
        """Remember a thread's messages at the end of a run, for its summary.

        Args:
            conversation: The policy.
            graph: The graph of the run.
            config: The config of the run.
            held: The run.
            values: The output of the run; the state is read if it lacks the messages.
        """
        if conversation.summarize is None:
            return
        messages = await read_messages(graph, config, values, conversation.key)
        if messages is not None:
            self._replied[held.partition] = (held, conversation, messages)

    def begin_due_summary(self, partition: Partition) -> None:
        """Begin a thread's summary in the background if its latest run has made one due."""
        replied = self._replied.pop(partition, None)
        if replied is None or partition in self._tasks:
            return
        task = asyncio.create_task(self._summarise(*replied))
        self._tasks[partition] = task
        task.add_done_callback(lambda _: self._tasks.pop(partition, None))

    async def wait_for_summaries(self, within: float | None = None) -> None:
        """Wait for the summaries under way, at most ``within`` seconds."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=within)

    async def close(self) -> None:
        """End the summaries under way; the next reply of their threads leads to others."""
        for task in list(self._tasks.values()):
            task.cancel()
        await self.wait_for_summaries()

    def forget(self, partition: Partition) -> None:
        """Drop what this process keeps of a thread that was deleted."""
        self._replied.pop(partition, None)
        if (task := self._tasks.get(partition)) is not None:
            task.cancel()

    async def _summarise(
        self, held: HeldRun, conversation: Conversation, messages: Sequence[BaseMessage]
    ) -> None:
        summary = Summary.of(messages)
        rest = [message for message in messages if message.id != SUMMARY_ID]
        try:
            leaving = await run_off_loop(conversation, conversation.to_fold, rest, summary)
            if leaving is None:
                return
            document = await self._database.arun(finished_summary.load(held.partition))
            if _choose_usable(document, messages) is not None:
                return  # This one waits for the thread's next run, after which another may be due.
            async with self._slots, asyncio.timeout(_PATIENCE_S):
                made = await contain(conversation.fold(summary, leaving))
            stored = await self._store(held, summary, made, document)
        except NoWindow:
            return  # The thread's next run is refused with this error, which its caller then gets.
        except Exception as error:
            self._observers.run_event("conversation.summary_failed", held, error=type(error).__name__)
            log_failure(held.run.id, error)
            return
        if made.shortened:
            self._observers.run_event("conversation.summary_shortened", held, how=made.shortened)
        if stored:
            self._observers.run_event("conversation.summary_made", held, messages=len(leaving.messages))
        else:
            self._observers.run_event("conversation.summary_superseded", held)

    async def _store(
        self, held: HeldRun, before: Summary | None, made: Summary, document: Document | None
    ) -> bool:
        """Store a finished summary, unless another one was stored, or the thread deleted, meanwhile."""
        body = {
            "base": _find_last_covered(before),
            "text": made.text,
            "covers": made.covers,
            "keeps": list(made.keeps),
        }
        now = await self._clock.now()
        finished = FinishedSummary(body, held.run.id, document)
        program = finished_summary.store(held.partition, finished, now, fresh=self._database.draw_version())
        return await self._database.arun(program)


async def read_messages(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, values: Any, key: str
) -> list[Any] | None:
    """Return the messages at the end of a run from its output ``values``, or from the state if the output
    lacks them; ``None`` if there are none."""
    messages = read_mapping(values).get(key)
    if not isinstance(messages, list):
        messages = (await aread_state(graph, config)).values.get(key)
    if isinstance(messages, list):
        return messages
    return None


def _find_last_covered(summary: Summary | None) -> str | None:
    """Return the last message that a summary covers."""
    if summary is None:
        return None
    return summary.covers


def _choose_usable(document: Document | None, messages: Any) -> Summary | None:
    """Return a stored summary, unless a thread's messages have this or another newer one already."""
    if document is None or not isinstance(messages, list):
        return None
    body, present = document.body, Summary.of(messages)
    if body["base"] != _find_last_covered(present):
        return None
    summarisable = messages
    if present is not None:
        summarisable = [*messages, *present.pending]
    if body["covers"] not in [message.id for message in summarisable]:
        return None  # The thread went another way since, e.g. from an earlier checkpoint.
    return Summary(body["text"], body["covers"], keeps=tuple(body["keeps"]))
