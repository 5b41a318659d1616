"""Answers that are being written: at most one a thread, each apart from the requests that watch it.

An answer is a run of the graph. It goes on when the browser that asked for it goes away, and any number of
requests may follow it from its beginning. Here is decided when a message counts as accepted (its checkpoint
is stored) and what a failure is called; how events travel to a browser is not known here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from perdure.demo.agent import ANSWER, Agent, Conversation
from perdure.errors import Conflict, PerdureError, Unavailable

logger = logging.getLogger("perdure.demo")


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, in words for the person at the page; ``status`` is the HTTP status that fits."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to an answer.

    ``accepted`` comes first and once: the message is stored. Then tokens, then ``done`` with the stored
    answer. ``error`` ends the answer at any point; when it is the first event, nothing was accepted.
    """

    name: Literal["accepted", "token", "done", "error"]
    text: str = ""
    message_id: str | None = None
    problem: Problem | None = None


STOPPED = Event(
    "error",
    problem=Problem(503, "stopped", "The answer was stopped; open the conversation again to go on."),
)


class Refused(Exception):
    """A request that cannot be met now; holds the :class:`Problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Answer:
    """One answer in the making: a list of events that only grows."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._over = False
        self._grown = asyncio.Event()

    def publish(self, event: Event) -> None:
        """Append an event and wake everybody who follows; ``done`` and ``error`` are the last."""
        self._events.append(event)
        self._over = event.name in ("done", "error")
        self._grown.set()
        self._grown = asyncio.Event()

    @property
    def accepted(self) -> bool:
        """Whether the message that this answers is stored."""
        return bool(self._events) and self._events[0].name == "accepted"

    async def first(self) -> Event:
        """The first event, once there is one."""
        while not self._events:
            await self._grown.wait()
        return self._events[0]

    async def follow(self) -> AsyncIterator[Event]:
        """Every event from the beginning, then each as it comes, until the last."""
        position = 0
        while True:
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self._over:
                return
            await self._grown.wait()


class Answers:
    """The answers of one process, by thread. Use from one event loop."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._open: dict[str, tuple[Answer, asyncio.Task[Event]]] = {}
        self._closed = False

    def writing(self, thread_id: str) -> bool:
        """Whether an answer is being written in this thread now."""
        return thread_id in self._open

    def ask(self, thread_id: str, message: HumanMessage) -> Answer:
        """Put a message to the agent.

        A message whose id the thread already holds is not put again: its answer goes on where it stopped.
        Raises :class:`Refused` while another answer is being written in the thread.
        """
        if thread_id in self._open:
            raise Refused(Problem(409, "answering", "An answer is being written; send this when it is done."))
        return self._start(thread_id, message)

    def resume(self, thread_id: str) -> Answer:
        """The answer being written, or the unfinished one, taken up again.

        With nothing to take up, its first event is an error of the code ``nothing_unfinished``.
        """
        if thread_id in self._open:
            return self._open[thread_id][0]
        return self._start(thread_id, None)

    async def stop(self, thread_id: str) -> None:
        """End the answer being written in this thread, if any; returns when it writes nothing more."""
        if thread_id in self._open:
            _, task = self._open[thread_id]
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> int:
        """End every answer and refuse new ones; the number that was cut off."""
        self._closed = True
        threads = list(self._open)
        for thread_id in threads:
            await self.stop(thread_id)
        return len(threads)

    def _start(self, thread_id: str, message: HumanMessage | None) -> Answer:
        if self._closed:
            raise Refused(Problem(503, "stopping", "The demo is stopping; start it again and repeat this."))
        answer = Answer()
        task = asyncio.create_task(self._write(thread_id, message, answer), name=f"answer {thread_id}")
        self._open[thread_id] = (answer, task)

        def end(task: asyncio.Task[Event]) -> None:
            # First free, then told: who hears of the end may ask at once.
            del self._open[thread_id]
            answer.publish(STOPPED if task.cancelled() else task.result())

        task.add_done_callback(end)
        return answer

    async def _write(self, thread_id: str, message: HumanMessage | None, answer: Answer) -> Event:
        try:
            last = await self._run(thread_id, message, answer)
        except Refused as refusal:
            return Event("error", problem=refusal.problem)
        except Exception as error:
            logger.warning("answer failed thread=%s error=%s", thread_id, type(error).__name__)
            return Event("error", problem=problem_of(error, accepted=answer.accepted))
        return Event("done", text=str(last.text), message_id=last.id)

    async def _run(self, thread_id: str, message: HumanMessage | None, answer: Answer) -> BaseMessage:
        config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        before = await self._agent.aget_state(config)
        known = messages_of(before)
        repeated = message is not None and any(message.id == stored.id for stored in known)
        if not before.next:
            if message is None:
                raise Refused(Problem(409, "nothing_unfinished", "There is no unfinished answer here."))
            if repeated:
                answer.publish(Event("accepted", message_id=message.id))
                return known[-1]
        fresh: Conversation | None = None
        if message is not None and not repeated:
            fresh = Conversation(messages=[message])
        stream = self._agent.astream(fresh, config, stream_mode=["messages", "tasks"], durability="sync")
        async for mode, payload in cast("AsyncIterator[tuple[str, Any]]", stream):
            if mode == "tasks":
                if payload["name"] == ANSWER and "input" in payload:
                    # A task is announced after the checkpoint that asks for it is stored.
                    asked = payload["input"]["messages"][-1]
                    answer.publish(Event("accepted", message_id=asked.id))
            elif isinstance(payload[0], AIMessage) and payload[0].text:
                answer.publish(Event("token", text=str(payload[0].text)))
        return messages_of(await self._agent.aget_state(config))[-1]


def messages_of(state: StateSnapshot) -> list[BaseMessage]:
    """The messages of a state, oldest first; none for a thread of another kind of graph."""
    if not isinstance(state.values, dict):
        return []
    return [m for m in state.values.get("messages", []) if isinstance(m, BaseMessage)]


def problem_of(error: Exception, *, accepted: bool) -> Problem:
    """The words for a failure; ``accepted`` says whether the message was stored before it."""
    kept = (
        "Your message is stored; continue tries again." if accepted else "Nothing was stored; send it again."
    )
    match error:
        case Unavailable():
            return Problem(503, "database_unavailable", f"The database does not answer. {kept}")
        case Conflict():
            return Problem(409, "conflict", "Somebody else changed this conversation first; open it again.")
        case PerdureError():
            return Problem(500, "storage", f"{error} {kept}")
        case _ if accepted:
            return Problem(502, "model", f"The model gave no answer ({type(error).__name__}). {kept}")
        case _:
            return Problem(
                500, "not_accepted", f"The message could not be stored ({type(error).__name__}). {kept}"
            )
