"""Publishing of a run's events: LangGraph's stream parts become numbered events that subscribers can follow.

Subscribers in this process receive events at once; all others read them from storage, to which they are
written in batches. Events are provisional: the state is what checkpoints store, and after a crash the next
attempt may publish events again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from langchain_core.messages import (
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
    message_chunk_to_message,
)
from langgraph.pregel import Pregel

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import events
from perdure.engine.queue.events import Event
from perdure.engine.queue.inbox import Standing
from perdure.engine.queue.runs import Ending, HeldRun
from perdure.engine.transact import Budget
from perdure.errors import Fenced, PerdureError, Unavailable
from perdure.model.ops import Put
from perdure.model.records import Partition
from perdure.model.runs.messages import DONE, FAILED
from perdure.model.runs.waits import Waits, is_unanswerable
from perdure.model.write_records import INTERRUPT
from perdure.runtime.events import protocol
from perdure.runtime.events.outgoing import to_outgoing, to_outgoing_event
from perdure.runtime.events.transformers import Part, StreamTransformers
from perdure.runtime.json_encoding import to_json
from perdure.runtime.options import StreamOptions

_GATHER_S = 0.05
_STORED_AT_ONCE = 128 * 1024
_AWAY_S = 30.0
"""Seconds for which a batch is retried while the database is unavailable."""
_AGAIN_S = 0.2
_HELD_BYTES = 8 * 1024 * 1024
"""Bytes of a run's events that are kept in memory for subscribers in this process."""
_PAGE_BYTES = 256 * 1024
"""Bytes of events that a subscriber gets at once, and so the most memory that one slow subscriber can
occupy."""

VALUES = "values"
_HIDDEN = "langsmith:hidden"
"""Tag of steps that LangChain's viewers, and LangGraph's server, hide."""
_LANGGRAPH_NAMES = {"messages-tuple": "messages"}
"""LangGraph's names of modes that have another name here."""


class Ended(Standing):
    """Final state of a run's message, as known to the process that ended the run. ``values`` is the JSON of
    the values with which the run is done, if they were published."""

    values: str | None = None

    @classmethod
    def of(cls, held: HeldRun, ending: Ending, now: int, values: str | None) -> Ended | None:
        """Return the state of the only message of a run that ended at ``now``; ``None`` where the database
        has to be asked: about a run that waits or was stopped, and about a run of several messages, some of
        which may have been removed."""
        if ending.state not in (DONE, FAILED) or len(held.messages) != 1 or held.messages[0].is_withdrawn:
            return None
        note = held.run.with_version(ending.note)
        run = replace(held.run, state=ending.state, note=note, updated_at=now)
        ended = cls(held.messages[0], run)
        ended.values = values if ending.state == DONE else None
        return ended


class EventBuffer:
    """Events of one attempt at a run, used from the event loop of the runtime. Events after the number
    ``floor`` are held in memory."""

    def __init__(
        self,
        database: DatabaseHandle,
        partition: Partition,
        run_id: str,
        epoch: int,
        *,
        first: int,
        stored: bool,
        changed: Callable[[Partition], None],
        announce: Callable[[Partition], None],
        is_leased: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create an empty buffer.

        Args:
            database: The database that stores the events.
            partition: The run's thread.
            run_id: The run.
            epoch: The epoch of the run's lease, which fences the writes.
            first: The number of the first event.
            stored: True if events are stored for subscribers in other processes.
            changed: Called when subscribers in this process can read something new.
            announce: Called when a batch was stored.
            is_leased: Returns False if the run's lease was not renewed in time, so that another process may
                have the run. Events are then shown once they are stored.
        """
        self.partition = partition
        self.run_id = run_id
        self.is_stored = stored
        self._stores_end = stored
        self._stored_after = first - 1
        self._database = database
        self.epoch = epoch
        self.first = first
        self.floor = first - 1
        self._next = first
        self._began = time.monotonic()
        self._changed = changed
        self._announce = announce
        self._is_leased = is_leased
        self._doubtful: deque[Event] = deque()
        """Events that are shown once they are stored, as the run's lease was in doubt."""
        self._held: deque[Event] = deque()
        self._readers: list[tuple[int, asyncio.Future[None]]] = []
        self._held_bytes = 0
        self._unstored: list[Event] = []
        self._unstored_bytes = 0
        self._storing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self.is_over = False
        self.is_heard = False
        self.ended: Ended | None = None
        """State of the run's message once the run has ended in this process."""
        self.values: str | None = None
        """JSON of the latest values of the graph itself that were published."""
        self.stream: StreamOptions | None = None
        """Stream options of the run; ``None`` without a stream."""

    def publish(self, name: str, data: Any, room: int = 1) -> Event:
        """Number an event and make it available to subscribers in this process: before this returns, unless
        the run's lease is in doubt.

        Args:
            name: The name of the event.
            data: Its data, which is encoded as JSON.
            room: The count of numbers that the event takes, as a protocol may make several events of it. The
                event itself gets the last of them.
        """
        text = to_json(data)
        seq = self._find_next() + max(room, events.span_of(text)) - 1
        self._next = seq + 1
        event = Event(seq, self.run_id, name, text)
        if name == VALUES:
            self.values = text
        is_doubtful = not self._is_leased()
        if is_doubtful:
            self.start_storing()
        if self.is_stored and (is_doubtful or self._doubtful):
            # Another process may have published events with lower numbers: after this one, subscribers would
            # not get them.
            self._doubtful.append(event)
        elif not isinstance(self._failure, Fenced):
            self._hold(event)
        if self.is_stored:
            self._unstored.append(event)
            self._unstored_bytes += len(text)
            if self._storing is None:
                self._storing = asyncio.create_task(self._store())
        return event

    async def wait_for_room(self) -> None:
        """Wait while more events are pending than the buffer may hold.

        Raises:
            Fenced: The run is not held any more.
        """
        while self._unstored_bytes > _HELD_BYTES and self._storing is not None:
            await asyncio.wait([self._storing])
        if isinstance(self._failure, Fenced):
            raise self._failure

    async def flush(self) -> None:
        """Wait until the pending events are stored.

        Events that cannot be stored in time are lost for subscribers in other processes only.

        Raises:
            Fenced: The run is not held any more.
        """
        while self._storing is not None:
            await asyncio.wait([self._storing])
        if isinstance(self._failure, Fenced):
            raise self._failure

    def start_storing(self) -> None:
        """Store the events that are held here, and all later ones; idempotent. After a failure to store
        events, only the end is still stored."""
        self._stores_end = True
        if self.is_stored or self._failure is not None:
            return
        self.is_stored, self._stored_after = True, self.floor
        self._unstored, self._unstored_bytes = list(self._held), self._held_bytes
        if self._unstored:
            self._storing = asyncio.create_task(self._store())

    def make_end(self, data: Any) -> tuple[Event, list[Put]]:
        """Return the run's end, and the operations that store it in the commit that ends the run. ``close``
        publishes it in this process afterwards."""
        event = Event(self._find_next(), self.run_id, events.END, to_json(data))
        return event, events.puts(self.run_id, [event]) if self.is_stored or self._stores_end else []

    def close(self, event: Event | None) -> None:
        """Close the buffer: with its last event the run has ended, with ``None`` only this attempt."""
        self.is_over = True
        if event is not None:
            self._hold(event)
        else:
            self._wake()

    @property
    def newest(self) -> int | None:
        """Number of the latest event, or ``None`` if there is none."""
        if self._held:
            return self._held[-1].seq
        return None

    async def wait_for_more(self, after: int) -> None:
        """Wait until there is an event after a number, or the buffer is closed. No event of a run that this
        process works on is missed, so there is no timeout."""
        if self.is_over or after < (self.newest or 0):
            return
        reader = (after, asyncio.get_running_loop().create_future())
        self._readers.append(reader)
        try:
            await reader[1]
        finally:
            self._readers.remove(reader)

    def list_after(self, after: int) -> list[Event] | None:
        """Return the next events after a number, a page of them if there are many; ``None`` if some of them
        are not in memory any more."""
        if after < self.floor:
            return None
        # From the newest backwards: a subscriber that keeps up needs only the last of many thousands.
        found: list[Event] = []
        for event in reversed(self._held):
            if event.seq <= after:
                break
            found.append(event)
        found.reverse()
        size = 0
        for number, event in enumerate(found):
            size += len(event.data)
            if size > _PAGE_BYTES and number:
                return found[:number]
        return found

    def is_in_log(self, after: int) -> bool:
        """Return True if the events after a number are stored or will be: for a number before the first event
        of this buffer that is so if events are stored at all."""
        return self.is_stored and (after < self.first or after >= self._stored_after)

    def _find_next(self) -> int:
        """Return the next number: at least the microseconds passed since the first one, so that numbers
        follow the time."""
        return max(self._next, self.first + int((time.monotonic() - self._began) * 1_000_000))

    def _hold(self, event: Event) -> None:
        self._held.append(event)
        self._held_bytes += len(event.data)
        while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
            gone = self._held.popleft()
            self._held_bytes -= len(gone.data)
            self.floor = gone.seq
        self._wake()

    def _wake(self) -> None:
        """Wake the subscribers that wait for an event that exists now."""
        newest = self.newest or 0
        for after, reader in self._readers:
            if not reader.done() and (self.is_over or after < newest):
                reader.set_result(None)
        self._changed(self.partition)

    async def _store(self) -> None:
        """Store pending events in batches until there are none."""
        try:
            while self._unstored:
                if self._unstored_bytes < _STORED_AT_ONCE:
                    await asyncio.sleep(_GATHER_S)
                batch, self._unstored, self._unstored_bytes = self._unstored, [], 0
                await self._append(batch)
                while self._doubtful and self._doubtful[0].seq <= batch[-1].seq:
                    self._hold(self._doubtful.popleft())
                self._announce(self.partition)
        except PerdureError as error:
            self._failure = error
            self.is_stored = False
            while self._doubtful and not isinstance(error, Fenced):
                self._hold(self._doubtful.popleft())
        finally:
            self._storing = None

    async def _append(self, batch: Sequence[Event]) -> None:
        """Store a batch; retry for ``_AWAY_S`` while the database is unavailable, as the run itself may
        do."""
        limits = self._database.limits
        budget = Budget(limits.ops, limits.bytes)
        until = time.monotonic() + _AWAY_S
        is_repeated = False
        while True:
            try:
                await self._database.arun(
                    events.append(self.partition, self.run_id, batch, self.epoch, budget, again=is_repeated)
                )
            except Unavailable:
                if time.monotonic() > until:
                    raise
                is_repeated = True
                await asyncio.sleep(_AGAIN_S)
            else:
                return


class StreamPublisher:
    """Publishes the parts of one run's stream in the requested modes; for clients of the event streaming
    protocol the graph's transformers are applied before. ``waits`` are the waits that its nodes begin."""

    def __init__(
        self, buffer: EventBuffer, stream: StreamOptions, graph: Pregel[Any, Any, Any, Any], waits: Waits
    ) -> None:
        self._buffer = buffer
        self._waits = waits
        self.stream = stream
        self._wanted = frozenset(stream.modes)
        self._messages: dict[str, BaseMessage] = {}
        self._is_repeated = False
        self._protocol: protocol.ProtocolPublisher | None = None
        self._transformers: StreamTransformers | None = None
        if "protocol" in self._wanted:
            self._transformers = StreamTransformers.of(graph)
            withheld = () if self._transformers is None else self._transformers.withheld
            self._protocol = protocol.ProtocolPublisher(buffer.publish, withheld)

    @property
    def speaks_protocol(self) -> bool:
        """True if all modes are published, for clients of the event streaming protocol."""
        return self._protocol is not None

    @property
    def stream_modes(self) -> list[str]:
        """Modes to request from LangGraph."""
        if self._protocol is not None:
            modes = set[str](protocol.MODES)
            if self._transformers is not None:
                modes |= self._transformers.modes
            return sorted(modes)
        asked = {_LANGGRAPH_NAMES.get(mode, mode) for mode in self._wanted - {"events"}}
        return sorted(asked | {"values", "updates"})

    def publish_start(self, attempt: int, graph: str, begun_at: str | None = None) -> None:
        """Publish the start of an attempt, with the checkpoint from which it continues, if an earlier
        attempt stored one: steps after it are executed, and their events published, again."""
        self._is_repeated = attempt > 1
        data: dict[str, Any] = {"run_id": self._buffer.run_id, "attempt": attempt}
        if begun_at is not None:
            data["checkpoint_id"] = begun_at
        if self._protocol is not None:
            data["graph_id"] = graph
        self._buffer.publish("metadata", data)

    def get_root_id(self) -> UUID:
        """Return the id that the graph's own run has in LangChain's events. It is the run's id, except in a
        later attempt or part of an attempt, which gets a new one."""
        is_repeated, self._is_repeated = self._is_repeated, True
        with suppress(ValueError):
            if is_repeated:
                return uuid4()
            return UUID(self._buffer.run_id)
        # A program may give a run an id that is not a UUID.
        return uuid4()

    async def publish_end(self) -> None:
        """Publish the events that were held back until the end of the stream."""
        if self._protocol is None:
            return
        if self._transformers is not None:
            for part in await self._transformers.end():
                self._protocol.publish_part(*part)
        self._protocol.publish_end()
        if self._transformers is not None:
            # The published values may differ from the state, so they are not those of the run's end.
            self._buffer.values = None

    async def wait_for_room(self) -> None:
        """Wait while too many events are pending; see ``EventBuffer.wait_for_room``."""
        await self._buffer.wait_for_room()

    async def fail(self, error: BaseException) -> None:
        """End the transformers of a run that fails, or is cancelled."""
        if self._transformers is not None:
            await self._transformers.fail(error)

    async def publish_part(self, mode: str, payload: Any, namespace: Sequence[str] = ()) -> None:
        """Publish one part, if its mode was requested.

        Args:
            mode: LangGraph's stream mode of the part.
            payload: The part's data.
            namespace: The path of the subgraph that the part comes from; empty for the graph itself.
        """
        if self._waits and mode in ("updates", "values") and _is_question(payload):
            # Clients would show the interrupts of sleeps and of waits for signals to a person, who cannot
            # answer them.
            for_people = tuple(one for one in payload[INTERRUPT] if not is_unanswerable(self._waits, one.id))
            payload = {name: value for name, value in payload.items() if name != INTERRUPT}
            if for_people:
                payload[INTERRUPT] = for_people
            if not payload and mode == "updates":
                return
        if self._protocol is not None:
            parts: Iterable[Part] = ((mode, payload, namespace),)
            if self._transformers is not None:
                parts = await self._transformers.transform(mode, payload, namespace)
            for part in parts:
                self._protocol.publish_part(*part)
            return
        path = "|".join(("", *namespace))
        if mode == "messages":
            self._publish_message(payload, path)
        # A question is published even if updates are not wanted; LangChain's events contain it anyway.
        elif mode in self._wanted or (
            mode == "updates" and "events" not in self._wanted and _is_question(payload)
        ):
            self._buffer.publish(f"{mode}{path}", to_outgoing(mode, payload), protocol.room_of(mode, payload))

    def publish_event(self, event: Any) -> None:
        """Publish one of LangChain's events, unless it is hidden."""
        if _HIDDEN in (event.get("tags") or ()):
            return
        self._buffer.publish("events", to_outgoing_event(event))

    def _publish_message(self, payload: tuple[BaseMessage, dict[str, Any]], path: str) -> None:
        message, metadata = payload
        if "messages-tuple" in self._wanted:
            # If both forms are wanted, only this one is published, as by LangGraph's server.
            self._buffer.publish(f"messages{path}", [message, metadata])
            return
        key = message.id or ""
        previous = self._messages.get(key)
        if previous is None:
            self._buffer.publish("messages/metadata", {key: {"metadata": metadata}})
        if isinstance(message, BaseMessageChunk):
            accumulated = message
            if isinstance(previous, AIMessageChunk):
                # Chunks of two calls of a model that gives both one id may not fit together.
                with suppress(TypeError, ValueError):
                    accumulated = previous + message
            self._messages[key] = accumulated
            # Clients receive the accumulated chunks as a whole message.
            self._buffer.publish("messages/partial", [message_chunk_to_message(accumulated)])
        else:
            self._messages[key] = message
            self._buffer.publish("messages/complete", [message])


def _is_question(payload: Any) -> bool:
    return isinstance(payload, dict) and INTERRUPT in payload
