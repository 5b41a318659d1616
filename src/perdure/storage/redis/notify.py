"""Redis's ``PUBLISH`` and ``SUBSCRIBE`` as the connection of a notifier: two connections, as one that has
subscribed cannot send other commands. A cluster forwards published messages to all its nodes.
"""

from __future__ import annotations

import random
import time
from typing import Any

from perdure.storage.notify import wait
from perdure.storage.redis.cluster import Topology, pack_command

_RENEW_S = 1.0
"""The least seconds between two checks for a renewed password."""


class RedisListener:
    """The connections of a notifier to one of the servers."""

    def __init__(self, topology: Topology) -> None:
        settings = topology.settings
        # Channels belong to the server, not to one of its numbered databases.
        database = int(settings.connect.get("db") or 0)
        self._channel = settings.prefix + b":bell:%d" % database
        self._topology = topology
        self._node = ("", 0)
        # Connections of the client library, most of which is untyped.
        self._receiving: Any = None
        self._sending: Any = None

    def open(self, *, listens: bool) -> None:
        try:
            self._node = random.choice(self._topology.list_nodes())  # noqa: S311 - any node will do
            self._sending = self._topology.connect(self._node)
            if listens:
                self._receiving = self._topology.connect(self._node)
                self._ask(self._receiving, b"SUBSCRIBE", self._channel)
        except Exception:
            self._topology.note_break()
            raise

    def send(self, text: str) -> None:
        self._ask(self._sending, b"PUBLISH", self._channel, text.encode())

    def receive(self, within: float, waker: int) -> list[str]:
        if self._receiving is None:
            wait(within, waker)
            return []
        if not self._receiving.can_read(0):
            wait(self._limit_wait(within), self._receiving._sock.fileno(), waker)
            return [*self._renew(), *_read_texts(self._receiving)]
        return _read_texts(self._receiving)

    def _limit_wait(self, within: float) -> float:
        """Return the seconds to wait: not for longer than until the password is renewed."""
        token = self._receiving.signed_in_with
        return within if token is None else min(within, max(_RENEW_S, token.renew_at - time.monotonic()))

    def _renew(self) -> list[str]:
        """Subscribe on another connection once the password was renewed, as a connection that has subscribed
        cannot sign in again; return what the old one has received until then."""
        source, old = self._topology.settings.password, self._receiving
        if source is None or (token := source.peek()) is None or token is old.signed_in_with:
            return []
        new = self._topology.connect(self._node)
        try:
            self._ask(new, b"SUBSCRIBE", self._channel)
        except Exception:
            new.disconnect()
            raise
        if not self._topology.renew_login(self._sending):
            self._sending.disconnect()
            self._sending = self._topology.connect(self._node)
        self._receiving = new
        try:
            return _read_texts(old)
        finally:
            old.disconnect()

    def close(self) -> None:
        for connection in (self._receiving, self._sending):
            if connection is not None:
                connection.disconnect()
        self._receiving = self._sending = None

    def _ask(self, connection: Any, *parts: bytes) -> None:
        """Send a command and read its answer; raise the answer if it is an error."""
        connection.send_packed_command([pack_command(parts)])
        connection.read_response()


def _read_texts(connection: Any) -> list[str]:
    """Return the texts that have arrived."""
    found: list[str] = []
    while connection.can_read(0):
        kind, _, text = connection.read_response()
        if kind == b"message":
            found.append(text.decode(errors="replace"))
    return found
