"""Subscriptions to the events of a thread in the event streaming protocol: the client's request, the position
at which its events begin, and the events from there on."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, NamedTuple
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from perdure.errors import PerdureError, SubscriberTooSlow
from perdure.model.bounded_cache import BoundedCache
from perdure.model.records import Partition
from perdure.model.runs.messages import OPEN, WAITING
from perdure.runtime import Event
from perdure.runtime.events import END, LAST
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Refusal
from perdure.server.resources import Caller, ServerState
from perdure.server.streaming.protocol_events import CHANNELS, EventFilter, ProtocolEvent, is_channel, project
from perdure.server.streaming.thread_events import thread_events
from perdure.server.validation_faults import fault_text

_log = logging.getLogger("perdure.server")
_LATEST = 20
"""Number of newest messages in which the latest run is searched; the newest may be queued without a run."""
_LATE_S = 30.0
"""Seconds after a run's end during which a subscriber without ``since`` receives the run from its
beginning."""
_ENDS_MAX = 10_000

_Channel = Annotated[str, Field(max_length=200)]
_Namespace = Annotated[list[Annotated[str, Field(max_length=500)]], Field(max_length=100)]


class SubscriptionRequest(BaseModel):
    """Request for events: those after ``since``, by default from the beginning of the run that is in progress
    or waiting."""

    model_config = ConfigDict(extra="ignore")

    channels: list[_Channel] = Field(min_length=1, max_length=100)
    namespaces: list[_Namespace] | None = Field(None, max_length=1000)
    depth: StrictInt | None = Field(None, ge=0)
    since: StrictInt | None = Field(None, ge=0, le=LAST)

    @property
    def event_filter(self) -> EventFilter:
        """The filter for the requested events."""
        namespaces = None
        if self.namespaces is not None:
            namespaces = tuple(map(tuple, self.namespaces))
        return EventFilter(frozenset(self.channels), namespaces, self.depth)


class Failed(NamedTuple):
    """End of a subscription, with a text for the client, which should subscribe again."""

    message: str


def read(body: dict[str, Any]) -> SubscriptionRequest:
    """Return the request in a body; raise ``Refusal`` if it is not valid, or names an unknown channel."""
    try:
        subscription = SubscriptionRequest.model_validate(body)
    except ValidationError as error:
        raise Refusal(400, fault_text(error.errors()[0])) from None
    if unknown := [name for name in subscription.channels if not is_channel(name)]:
        raise Refusal(
            400, f"there is no channel {unknown[0]!r}; there are {', '.join(CHANNELS)}, custom:NAME"
        )
    return subscription


async def subscribe(
    caller: Caller, thread_id: str, conditions: Filter | None, subscription: SubscriptionRequest
) -> AsyncGenerator[ProtocolEvent | Failed, None]:
    """Return the events of a thread that a client requests. No event from the return of this call on is
    missed.

    Args:
        caller: the authenticated user of the request.
        thread_id: the thread, which need not exist yet.
        conditions: the filter that restricts the user's threads, or None.
        subscription: the request.

    Returns:
        The events until the server stops or the subscription fails; the last item is then ``Failed``.
    """
    await caller.runtime.expect_followers(thread_id)
    wanted, since = subscription.event_filter, subscription.since
    if since is None:
        start = await _find_start(caller, thread_id, wanted)
    else:
        start = _Start(since)
    return _follow_events(caller, thread_id, conditions, wanted, start)


async def _follow_events(
    caller: Caller, thread_id: str, conditions: Filter | None, wanted: EventFilter, start: _Start
) -> AsyncGenerator[ProtocolEvent | Failed, None]:
    partition = caller.partition(thread_id)
    try:
        async for event in thread_events(caller, thread_id, conditions, start.after):
            if isinstance(event, SubscriberTooSlow):
                yield Failed(str(event))
                return
            if not start.includes(event):
                continue
            for projected in project(event, wanted):
                if projected.seq > start.after:
                    yield projected
            if event.name == END:
                _get_ends(caller.host).note_sent(partition, event.run_id, wanted)
    except PerdureError as error:
        _log.error("the events of a thread could not be read: %s", type(error).__name__)
        yield Failed("the events of the thread could not be read; open the stream again")
        return
    yield Failed("the server is stopping; open the stream again")


class _Start(NamedTuple):
    """Position at which a stream begins. Up to ``through`` it contains only the events of ``run_id``."""

    after: int
    through: int = -1
    run_id: str = ""

    def includes(self, event: Event) -> bool:
        return event.seq > self.through or event.run_id == self.run_id


async def _find_start(caller: Caller, thread_id: str, wanted: EventFilter) -> _Start:
    """Return the start of a stream for a subscriber without ``since``: the run that is in progress or waits
    for an answer. A run that has just ended is included, because a client learns of its run before it
    subscribes. But it is included only once, and not while a later message waits for its run: otherwise the
    next turn would begin with the end of the previous one."""
    partition = caller.partition(thread_id)
    through = await caller.runtime.latest_event(thread_id)
    latest = await caller.runtime.messages(thread_id, limit=_LATEST)
    run = next((standing.run for standing in latest if standing.run is not None), None)
    if run is None:
        return _Start(through)
    if run.state not in (OPEN, WAITING):
        if any(standing.message.seq > run.last and not standing.is_over for standing in latest):
            return _Start(through)
        is_late = await caller.host.runtime.now() - run.updated_at > _LATE_S * 1_000_000
        if is_late or _get_ends(caller.host).was_sent(partition, run.id, wanted):
            return _Start(through)
    return _Start(min(through, run.started_at - 1), through, run.id)


class _Ends:
    """The ends of runs that streams of this server have recently sent, by thread, run and filter."""

    def __init__(self) -> None:
        self._sent: BoundedCache[tuple[Partition, str, bytes], float] = BoundedCache(_ENDS_MAX)

    def note_sent(self, partition: Partition, run_id: str, wanted: EventFilter) -> None:
        now = time.monotonic()
        self._sent[partition, run_id, _make_digest(wanted)] = now
        while next(iter(self._sent.values())) < now - 2 * _LATE_S:
            self._sent.popitem(last=False)

    def was_sent(self, partition: Partition, run_id: str, wanted: EventFilter) -> bool:
        return (partition, run_id, _make_digest(wanted)) in self._sent


def _make_digest(wanted: EventFilter) -> bytes:
    # A digest is kept, for as long as a minute, instead of the filter, which may be large.
    text = json.dumps([sorted(wanted.channels), wanted.namespaces, wanted.depth])
    return hashlib.sha256(text.encode()).digest()


_all_ends: WeakKeyDictionary[ServerState, _Ends] = WeakKeyDictionary()


def _get_ends(host: ServerState) -> _Ends:
    found = _all_ends.get(host)
    if found is None:
        found = _all_ends[host] = _Ends()
    return found
