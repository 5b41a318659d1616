"""Cache of inboxes: guesses that save fetches, verified by the commits that use them."""

from __future__ import annotations

from perdure.engine.queue.claims import RememberedInbox
from perdure.engine.queue.inbox import Accepted
from perdure.model.bounded_cache import BoundedCache
from perdure.model.records import Partition
from perdure.model.runs.queue import Lane

_MOST = 20_000


class QueueCache:
    """The inboxes of the threads that this process changed last."""

    def __init__(self) -> None:
        self._known: BoundedCache[Partition, RememberedInbox] = BoundedCache(_MOST)

    def get(self, partition: Partition) -> RememberedInbox | None:
        return self._known.get(partition)

    def note_accepted(self, partition: Partition, accepted: Accepted) -> None:
        """Record a message that this process stored."""
        if accepted.lane is None or accepted.message is None:
            return
        inbox = self._known.get(partition)
        if accepted.is_first:
            self._known[partition] = RememberedInbox(accepted.lane, 0, (accepted.message,))
        elif inbox is not None and inbox.lane.version == accepted.over:
            messages = (*inbox.messages, accepted.message)
            self._known[partition] = RememberedInbox(accepted.lane, inbox.epoch, messages)
        elif inbox is None or inbox.lane.version < accepted.lane.version:
            self._known[partition] = RememberedInbox(accepted.lane)

    def note_begun(self, partition: Partition, lane: Lane) -> None:
        """Record that this process stored a message and claimed its run."""
        self._known[partition] = RememberedInbox(lane)

    def note_ended(self, partition: Partition, lane: Lane, epoch: int) -> None:
        """Record that this process ended a run, and its epoch."""
        self._known[partition] = RememberedInbox(lane, None if lane.pending else epoch)

    def forget(self, partition: Partition) -> None:
        self._known.pop(partition, None)
