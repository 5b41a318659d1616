"""Sizes of a run's state, by channel, emitted with every checkpoint to locate unlimited growth.

Sizes are those of whole serialised values: the data that a step loads, not the data that it adds to the
database. An unchanged value whose size the saver has dropped from its cache is left out, rather than read
again.

Savers report from any OS thread; observers are called on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langgraph.constants import START

from perdure.langgraph.values.large_channel_warning import find_largest, is_large_in_sum, path_of
from perdure.model.bounded_cache import BoundedCache
from perdure.model.records import Partition
from perdure.runtime.observers import Observers

_THREADS_MOST = 4096

FieldsOf = Callable[[Partition], dict[str, Any] | None]


class SaverReports:
    """Emits events for what a runtime's savers report: stored checkpoints, older threads, dropped keys.
    ``fields_of``, called on the event loop, returns the run that works on a thread in this process;
    checkpoints outside of runs are ignored."""

    def __init__(self, observers: Observers, warn_bytes: int, fields_of: FieldsOf) -> None:
        self._observers = observers
        self._warn_bytes = warn_bytes
        self._fields_of = fields_of
        self._warned: BoundedCache[Partition, tuple[str, set[str]]] = BoundedCache(_THREADS_MOST)

    def report_checkpoint(self, partition: Partition, namespace: str, sizes: Mapping[str, int]) -> None:
        """Report a durable checkpoint. Graphs that a plain function invokes store theirs in another
        OS thread."""
        self._observers.run_on_loop(lambda: self._emit(partition, namespace, sizes))

    def report_older(self, partition: Partition) -> None:
        """Report a thread whose stored state is older than a known one: the database was restored to an
        earlier state."""
        self._observers.thread_event("thread.older", partition)

    def report_undeclared(self, graph: str, node: str, key: str) -> None:
        """Report a key that a graph dropped."""
        self._observers.event("state.undeclared", graph=graph, node=node, key=key)

    def _emit(self, partition: Partition, namespace: str, sizes: Mapping[str, int]) -> None:
        fields = self._fields_of(partition)
        if fields is None:
            return
        place = path_of(namespace)
        # Left out: triggers of a step have no value, and the input of a run is gone after the first step.
        channels = {place + name: size for name, size in sizes.items() if size and name != START}
        self._observers.event("checkpoint.stored", **fields, bytes=sum(channels.values()), channels=channels)
        if is_large_in_sum(channels, self._warn_bytes) and self._note_first_time(
            partition, fields["run"], place
        ):
            names = [name for name, _ in find_largest(channels)]
            self._observers.event("state.large", **fields, bytes=sum(channels.values()), channels=names)
        for channel, size in channels.items():
            if size > self._warn_bytes and self._note_first_time(partition, fields["run"], channel):
                self._observers.event("checkpoint.large", **fields, channel=channel, bytes=size)

    def _note_first_time(self, partition: Partition, run_id: str, channel: str) -> bool:
        """Return True the first time that a channel, or the path of a namespace, is reported for a run."""
        warned_run, channels = self._warned.get(partition, ("", set[str]()))
        if warned_run != run_id:
            channels = set()
        self._warned[partition] = run_id, channels
        is_first = channel not in channels
        channels.add(channel)
        return is_first
