"""Warning about large channels: a log line that names the channel before a state grows without bound.

It is for checkpointers without a runtime. A runtime emits events and metrics at the same sizes instead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from langgraph.constants import START

from perdure.model.bounded_cache import BoundedCache
from perdure.model.records import Partition

WARN_BYTES = 50 * 1024
"""Size from which a channel is large, unless another is given."""

_THREADS_MOST = 4096
_NAMED_MOST = 5
_log = logging.getLogger("perdure.langgraph")


class LargeChannels:
    """Logs a channel whose serialised value is larger than ``warn_bytes``, or a state that is larger although
    none of its channels is: once for each thread, as long as the thread is remembered. It is safe to use from
    many OS threads. Raises ``ValueError`` unless ``warn_bytes`` is an integer above 0."""

    def __init__(self, warn_bytes: int = WARN_BYTES) -> None:
        self._warn_bytes = _check_warn_bytes(warn_bytes)
        self._lock = threading.Lock()
        self._warned: BoundedCache[Partition, set[str]] = BoundedCache(_THREADS_MOST)

    def check(self, partition: Partition, namespace: str, sizes: Mapping[str, int]) -> None:
        """Log the large channels of a durable checkpoint.

        Args:
            partition: The thread.
            namespace: The namespace of the checkpoint.
            sizes: The serialised sizes of those of its channels whose sizes are known.
        """
        kept = {channel: size for channel, size in sizes.items() if channel != START}
        if is_large_in_sum(kept, self._warn_bytes) and self._note_first_time(partition, path_of(namespace)):
            _log.warning(
                "the state of thread %r has grown to %s bytes, more than %s, in many channels, and every "
                "turn loads it whole; the largest are %s; keep large values out of the state, or pass "
                "checkpointer(warn_bytes=…)",
                partition.thread,
                f"{sum(kept.values()):,}",
                f"{self._warn_bytes:,}",
                ", ".join(f"{path_of(namespace)}{name} ({size:,})" for name, size in find_largest(kept)),
            )
        for channel, size in kept.items():
            if size > self._warn_bytes:
                name = path_of(namespace) + channel
                if self._note_first_time(partition, name):
                    _log.warning(
                        "channel %r of thread %r has grown to %s bytes, more than %s, and every turn loads "
                        "it whole; remove old messages, keep large values out of the state, or pass "
                        "checkpointer(warn_bytes=…)",
                        name,
                        partition.thread,
                        f"{size:,}",
                        f"{self._warn_bytes:,}",
                    )

    def _note_first_time(self, partition: Partition, channel: str) -> bool:
        with self._lock:
            channels = self._warned[partition] = self._warned.get(partition, set())
            is_first = channel not in channels
            channels.add(channel)
            return is_first


def _check_warn_bytes(warn_bytes: object) -> int:
    if isinstance(warn_bytes, bool) or not isinstance(warn_bytes, int) or warn_bytes < 1:
        raise ValueError(f"warn_bytes has to be a number of bytes, at least 1, or None, not {warn_bytes!r}")
    return warn_bytes


def is_large_in_sum(sizes: Mapping[str, int], warn_bytes: int) -> bool:
    """Return True if channels are large together, although none of them is large by itself."""
    return sum(sizes.values()) > warn_bytes >= max(sizes.values(), default=0)


def find_largest(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the largest channels with their sizes, the largest first."""
    return sorted(sizes.items(), key=lambda each: (-each[1], each[0]))[:_NAMED_MOST]


def path_of(namespace: str) -> str:
    """Return the path of a subgraph as node names, without the ids of their tasks."""
    nodes = [part.partition(":")[0] for part in namespace.split("|") if part and not part.isdigit()]
    return "".join(f"{node}/" for node in nodes)
