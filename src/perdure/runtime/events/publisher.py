"""What a run tells while it goes on: LangGraph's stream parts become numbered events that can be followed.

Events are told at once to those in this process who follow the run, and are stored in batches for everybody
else. They are provisional: what counts is stored in checkpoints, and an attempt that crashed may have told
what the next one tells again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
    message_chunk_to_message,
)

from perdure.database import Database
from perdure.engine import events
from perdure.engine.events import Event
from perdure.engine.transact import Budget
from perdure.errors import Fenced, PerdureError, Unavailable
from perdure.model.ops import Put
from perdure.model.records import Partition
from perdure.runtime.encoding import encoded
from perdure.runtime.events import protocol
from perdure.runtime.events.outgoing import outgoing, outgoing_event
from perdure.runtime.options import StreamOptions

_GATHER_S = 0.05
_STORED_AT_ONCE = 128 * 1024
_AWAY_S = 30.0
"""For how long a database is waited for that is away."""
_AGAIN_S = 0.2
_HELD_BYTES = 8 * 1024 * 1024
"""How much of what a run told stays in this process for those who follow it here."""

_OWN = {"messages-tuple": "messages"}
"""What LangGraph calls a mode that has another name here."""


class EventBuffer:
    """What one attempt at a run tells. Used from the event loop of the runtime. What comes after ``floor`` is
    held here."""

    def __init__(
        self,
        database: Database,
        partition: Partition,
        run_id: str,
        epoch: int,
        first: int,
        stored: bool,
        changed: Callable[[Partition], None],
        announce: Callable[[Partition], None],
    ) -> None:
        self.partition = partition
        self.run_id = run_id
        self.is_stored = stored
        self._stores_end = stored
        self._stored_after = first - 1
        self._database = database
        self._epoch = epoch
        self.first = first
        self.floor = first - 1
        self._next = first
        self._began = time.monotonic()
        self._changed = changed
        self._announce = announce
        self._held: deque[Event] = deque()
        self._bytes = 0
        self._waiting: list[Event] = []
        self._waiting_bytes = 0
        self._storing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self.is_over = False
        self.is_heard = False
        self.stream: StreamOptions | None = None
        """What is told on it."""

    def tell(self, name: str, data: Any, room: int = 1) -> Event:
        """Tell something; it is numbered, and there for those who follow when this returns. ``room`` is how
        many numbers it takes, of which the last is its own: one for each event that others make of it."""
        text = encoded(data)
        seq = self._free() + max(room, events.span_of(text)) - 1
        self._next = seq + 1
        event = Event(seq, self.run_id, name, text)
        self._hold(event)
        if self.is_stored:
            self._waiting.append(event)
            self._waiting_bytes += len(text)
            if self._storing is None:
                self._storing = asyncio.create_task(self._store())
        return event

    async def room(self) -> None:
        """Return at once, unless far more was told than could be stored: then when it is. ``Fenced`` when
        the run is not held any more."""
        while self._waiting_bytes > _HELD_BYTES and self._storing is not None:
            await asyncio.wait([self._storing])
        if isinstance(self._failure, Fenced):
            raise self._failure

    async def flush(self) -> None:
        """Store what was told. What cannot be stored in time is lost for those who follow from elsewhere,
        and for nobody else; ``Fenced`` when the run is not held any more."""
        while self._storing is not None:
            await asyncio.wait([self._storing])
        if isinstance(self._failure, Fenced):
            raise self._failure

    def keep(self) -> None:
        """Store what was told, as far as it is held here, and what comes; repeatable. Events that could not
        be stored before are not tried again, except the end."""
        self._stores_end = True
        if self.is_stored or self._failure is not None:
            return
        self.is_stored, self._stored_after = True, self.floor
        self._waiting, self._waiting_bytes = list(self._held), self._bytes
        if self._waiting:
            self._storing = asyncio.create_task(self._store())

    def last(self, data: Any) -> tuple[Event, list[Put]]:
        """The run's end, to be stored in the commit that ends it; ``over`` tells it here after that."""
        event = Event(self._free(), self.run_id, events.END, encoded(data))
        return event, events.puts(self.run_id, [event]) if self.is_stored or self._stores_end else []

    def over(self, event: Event | None) -> None:
        """Nothing more comes: the run has ended, or, without its last event, this attempt has."""
        if event is not None:
            self._hold(event)
        self.is_over = True
        self._changed(self.partition)

    @property
    def newest(self) -> int | None:
        """The number of what was told last, if anything was."""
        return self._held[-1].seq if self._held else None

    def since(self, after: int) -> list[Event] | None:
        """What was told after a number, or ``None`` when that is not all here."""
        if after < self.floor:
            return None
        return [event for event in self._held if event.seq > after]

    def is_in_log(self, after: int) -> bool:
        """Whether what was told after a number is stored, or will be. For numbers before the first this is so
        where anything is stored."""
        return self.is_stored and (after < self.first or after >= self._stored_after)

    def _free(self) -> int:
        """The next number. It is as many microseconds above the first as have passed, so that numbers tell
        the time, or more."""
        return max(self._next, self.first + int((time.monotonic() - self._began) * 1_000_000))

    def _hold(self, event: Event) -> None:
        self._held.append(event)
        self._bytes += len(event.data)
        while self._bytes > _HELD_BYTES and len(self._held) > 1:
            gone = self._held.popleft()
            self._bytes -= len(gone.data)
            self.floor = gone.seq
        self._changed(self.partition)

    async def _store(self) -> None:
        """Store in batches what is told meanwhile."""
        try:
            while self._waiting:
                if self._waiting_bytes < _STORED_AT_ONCE:
                    await asyncio.sleep(_GATHER_S)
                batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
                await self._append(batch)
                self._announce(self.partition)
        except PerdureError as error:
            self._failure = error
            self.is_stored = False
        finally:
            self._storing = None

    async def _append(self, batch: Sequence[Event]) -> None:
        """Store a batch; a database that is away for a moment is waited for, as the run itself may do."""
        limits = self._database.limits
        budget = Budget(limits.ops, limits.bytes)
        until = time.monotonic() + _AWAY_S
        is_repeated = False
        while True:
            try:
                await self._database.arun(
                    events.append(self.partition, self.run_id, batch, self._epoch, budget, again=is_repeated)
                )
            except Unavailable:
                if time.monotonic() > until:
                    raise
                is_repeated = True
                await asyncio.sleep(_AGAIN_S)
            else:
                return


class StreamPublisher:
    """Tells the parts of one run's stream in the modes that were asked for."""

    def __init__(self, tape: EventBuffer, stream: StreamOptions) -> None:
        self._tape = tape
        self.stream = stream
        self._wanted = frozenset(stream.modes)
        self._spoken: dict[str, BaseMessage] = {}
        self._speaker = protocol.ProtocolPublisher(tape.tell) if "protocol" in self._wanted else None

    @property
    def speaks_protocol(self) -> bool:
        """Whether it tells what clients of the event streaming protocol are told, which is all there is."""
        return self._speaker is not None

    @property
    def stream_modes(self) -> list[str]:
        """The modes that LangGraph is to be asked for."""
        if self._speaker is not None:
            return list(protocol.MODES)
        asked = {_OWN.get(mode, mode) for mode in self._wanted - {"events"}}
        return sorted(asked | {"values", "updates"})

    def begun(self, attempt: int, graph: str) -> None:
        """An attempt begins."""
        said = {"run_id": self._tape.run_id, "attempt": attempt}
        self._tape.tell("metadata", said if self._speaker is None else {**said, "graph_id": graph})

    def ended(self) -> None:
        """There are no more parts."""
        if self._speaker is not None:
            self._speaker.ended()

    def part(self, mode: str, payload: Any, namespace: Sequence[str] = ()) -> None:
        """Tell one part, if it was asked for."""
        if self._speaker is not None:
            self._speaker.part(mode, payload, namespace)
            return
        path = "|".join(("", *namespace))
        if mode == "messages":
            self._message(payload, path)
        elif mode in self._wanted or (mode == "updates" and _is_question(payload)):
            self._tape.tell(f"{mode}{path}", outgoing(mode, payload), protocol.room_of(mode, payload))

    def event(self, event: Any) -> None:
        """Tell one of LangChain's events."""
        self._tape.tell("events", outgoing_event(event))

    def _message(self, payload: tuple[BaseMessage, dict[str, Any]], path: str) -> None:
        message, metadata = payload
        if "messages-tuple" in self._wanted:
            self._tape.tell(f"messages{path}", [message, metadata])
        if "messages" not in self._wanted:
            return
        key = message.id or ""
        before = self._spoken.get(key)
        if before is None:
            self._tape.tell(f"messages/metadata{path}", {key: {"metadata": metadata}})
        if isinstance(message, BaseMessageChunk):
            whole = before + message if isinstance(before, AIMessageChunk) else message
            self._spoken[key] = whole
            # So far as it has come it is a message, no chunk of one.
            self._tape.tell(f"messages/partial{path}", [message_chunk_to_message(whole)])
        else:
            self._spoken[key] = message
            self._tape.tell(f"messages/complete{path}", [message])


def _is_question(payload: Any) -> bool:
    return isinstance(payload, dict) and "__interrupt__" in payload
