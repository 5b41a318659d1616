"""Redis's ``PUBLISH`` and ``SUBSCRIBE`` as the connection of a notifier: two connections, as one that has
subscribed cannot send other commands. A cluster passes what is published on to all of its nodes.
"""

from __future__ import annotations

import random
from typing import Any

from perdure.storage.notify import wait
from perdure.storage.redis.cluster import Topology, packed


class RedisListener:
    """The connections of a notifier to one of the servers."""

    def __init__(self, topology: Topology) -> None:
        settings = topology.settings
        # Channels are the server's, not a numbered database's.
        database = int(settings.connect.get("db") or 0)
        self._channel = settings.prefix + b":bell:%d" % database
        self._topology = topology
        # Connections of the client, most of which has no types.
        self._receiving: Any = None
        self._sending: Any = None

    def open(self, *, listens: bool) -> None:
        try:
            node = random.choice(self._topology.nodes())  # noqa: S311 - any node will do
            self._sending = self._topology.connect(node)
            if listens:
                self._receiving = self._topology.connect(node)
                self._ask(self._receiving, b"SUBSCRIBE", self._channel)
        except Exception:
            self._topology.doubt()
            raise

    def send(self, text: str) -> None:
        self._ask(self._sending, b"PUBLISH", self._channel, text.encode())

    def receive(self, within: float, waker: int) -> list[str]:
        if self._receiving is None:
            wait(within, waker)
            return []
        if not self._receiving.can_read(0):
            wait(within, self._receiving._sock.fileno(), waker)
        found: list[str] = []
        while self._receiving.can_read(0):
            kind, _, text = self._receiving.read_response()
            if kind == b"message":
                found.append(text.decode(errors="replace"))
        return found

    def close(self) -> None:
        for connection in (self._receiving, self._sending):
            if connection is not None:
                connection.disconnect()
        self._receiving = self._sending = None

    def _ask(self, connection: Any, *parts: bytes) -> None:
        """Send a command and read its answer; raise an error that it is."""
        connection.send_packed_command([packed(parts)])
        connection.read_response()
