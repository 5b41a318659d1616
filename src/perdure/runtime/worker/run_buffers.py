"""Event buffers of the runs under way: which runs publish events, and which of these are stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from perdure.engine.queue import events
from perdure.engine.queue.events import Event
from perdure.engine.queue.runs import Ending, HeldRun
from perdure.model.ops import Put
from perdure.model.records import Partition
from perdure.model.runs.messages import LIMIT, NODE, TRACEBACK
from perdure.model.runs.waits import WAITS
from perdure.runtime.events.publisher import Ended, EventBuffer
from perdure.runtime.notifications import STORED
from perdure.runtime.options import Options, StreamOptions
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.leases import Leases


class RunBuffers:
    """Buffers of the runs in this process whose events may be followed."""

    def __init__(self, context: RuntimeContext, leases: Leases) -> None:
        self._context, self._leases = context, leases
        self._buffers: dict[str, EventBuffer] = {}

    def get(self, held: HeldRun) -> EventBuffer | None:
        """Return the buffer of a run, ``None`` if it publishes no events."""
        return self._buffers.get(held.run.id)

    async def open(self, held: HeldRun, options: Options) -> None:
        """Open the buffer of a run that streams, or whose thread is followed."""
        stream, owner = options.stream, self._context.owner
        if stream is None and (held.is_followed or self._context.subscriptions.is_followed(held.partition)):
            # The run does not stream by itself, but its thread is followed.
            stream = StreamOptions(modes=("values",), kept=False, by=owner)
        if stream is None:
            return
        buffer = await self.make(held, stream.kept or stream.by != owner or held.is_followed)
        buffer.stream = stream

    async def make(self, held: HeldRun, is_stored: bool) -> EventBuffer:
        """Make the buffer of a run and register it with the subscriptions."""
        context, partition = self._context, held.partition
        now = await context.clock.now()
        first = context.subscriptions.find_first_free(
            partition, now, self._leases.get_earlier_epoch(partition)
        )
        if first is None:
            first = await context.database.arun(events.find_first_free(partition, now))
        buffer = EventBuffer(
            context.database,
            partition,
            held.run.id,
            held.epoch,
            first=first,
            stored=is_stored,
            changed=context.subscriptions.wake,
            announce=partial(context.notifications.notify, STORED),
            is_leased=partial(self._leases.is_confirmed, held),
        )
        self._buffers[held.run.id] = buffer
        context.subscriptions.register(buffer)
        starting = self._leases.starting.get(partition)
        if starting is not None and starting.is_followed:
            buffer.start_storing()
        return buffer

    def start_storing(self, is_meant: Callable[[Partition], bool]) -> None:
        """Store the past and future events of the runs of some threads, because another process follows
        them."""
        for buffer in self._buffers.values():
            if is_meant(buffer.partition):
                buffer.start_storing()
        for partition, starting in self._leases.starting.items():
            starting.is_followed = starting.is_followed or is_meant(partition)

    async def end(self, held: HeldRun, ending: Ending) -> tuple[Event | None, list[Put]]:
        """Return the run's last event, and the operations that store it if its events are stored."""
        buffer = self.get(held)
        if buffer is None:
            return None, []
        await buffer.flush()
        hidden = (TRACEBACK, NODE, LIMIT, WAITS)
        shown = {name: value for name, value in ending.note.items() if name not in hidden}
        last, puts = buffer.make_end({"run_id": held.run.id, "state": ending.state, **shown})
        if puts:
            kept_us = round(self._context.settings.keep_events * 1_000_000)
            until = self._context.clock.estimate() + kept_us
            puts.append(events.keep_until(until, self._context.database.draw_version()))
        return last, puts

    def close(self, held: HeldRun, last: Event | None = None, ended: Ended | None = None) -> None:
        """Remove the buffer of a run, if it has one; its subscribers get the ``last`` event and the end."""
        if (buffer := self._buffers.pop(held.run.id, None)) is not None:
            self._context.subscriptions.unregister(buffer, last, ended)
