"""Sends calls to the servers that own their slots, and returns their answers: many calls in one round trip.

A call that a server certainly did not execute is repeated, for as long as the caller's patience allows. A
call whose answer was lost is repeated only if it is ``safe``; else its answer is ``CallLost``, and the caller
has to determine the outcome.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any, NamedTuple

from redis import exceptions as client
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry

from perdure.errors import PerdureError, Unavailable
from perdure.storage.credentials import Token
from perdure.storage.outage import Outage
from perdure.storage.redis import scripts
from perdure.storage.redis.errors import CLIENT_ERRORS, is_final, is_refusal, translate
from perdure.storage.redis.url import RedisUrl

Node = tuple[str, int]

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_REDIRECTIONS_MOST = 8


class Call(NamedTuple):
    """One command for the server that owns ``slot``. ``safe`` is True if it may be executed twice."""

    slot: int
    parts: Sequence[bytes]
    safe: bool


class CallLost(Exception):
    """The connection ended between a call and its answer: the call may have been executed, or not."""

    def __init__(self, cause: Exception) -> None:
        super().__init__()
        self.__cause__ = cause


def evaluate(
    script: scripts.Script, slot: int, keys: Sequence[bytes], args: Iterable[bytes], safe: bool
) -> Call:
    """Return a call of a script that the servers know by its digest.

    Args:
        script: The script.
        slot: The slot of its keys.
        keys: The keys.
        args: The other arguments.
        safe: True if the call may be executed twice.
    """
    return Call(slot, (b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *args), safe)


def pack_command(parts: Sequence[bytes]) -> bytes:
    """Return a command in its wire format."""
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        out += (b"$%d\r\n" % len(part), part, b"\r\n")
    return b"".join(out)


class Topology:
    """The owners of slots, and the distance to the servers; shared by all connections of a driver.

    ``distance_s`` is the shortest round trip in seconds since the last failure; infinite before the first
    one. ``breaks`` counts failures.
    """

    def __init__(self, settings: RedisUrl) -> None:
        self.settings = settings
        self.distance_s = float("inf")
        self.breaks = 0
        self._seed: Node = (settings.connect["host"], settings.connect["port"])
        self._owners: dict[int, Node] = {}
        self._nodes: list[Node] = [self._seed]
        self._has_owners = not settings.cluster
        self._outages: dict[Node, Outage] = {}
        self._lock = Lock()

    def find_owner(self, slot: int) -> Node:
        if not self.settings.cluster:
            return self._seed
        with self._lock:
            if not self._has_owners:
                self._load_owners()
            if slot not in self._owners:
                raise client.ClusterDownError("a slot has no owner")
            return self._owners[slot]

    def list_nodes(self) -> list[Node]:
        """Return every node that takes writes."""
        if not self.settings.cluster:
            return [self._seed]
        with self._lock:
            if not self._has_owners:
                self._load_owners()
            return list(dict.fromkeys(self._owners.values()))

    def note_break(self) -> None:
        """Record a failure or a moved slot: the owners are loaded again before the next call."""
        self._has_owners = not self.settings.cluster
        with self._lock:
            self.distance_s = float("inf")
            self.breaks += 1

    def note_time(self, seconds: float, breaks: int) -> None:
        """Record the duration of a round trip, unless there was a failure since ``breaks`` was read."""
        with self._lock:
            if breaks == self.breaks:
                self.distance_s = min(self.distance_s, seconds)

    def note_move(self, slot: int, node: Node) -> None:
        self._owners[slot] = node

    def connect(self, node: Node) -> Any:
        """Return a new connection, authenticated; a ``Connection`` of the client, which is mostly untyped.
        A node that was silent a moment ago, and is waited for no longer, is not tried: its error is raised
        again."""
        outage = self.outage(node)
        if (failure := outage.get_current_failure()) is not None:
            raise failure
        began = time.monotonic()
        options = dict(self.settings.connect)
        options.update(host=node[0], port=node[1], protocol=2, retry=Retry(NoBackoff(), 0))
        make = options.pop("connection_class", Connection)
        try:
            connection = self._sign_in(make, options, began + self.settings.patience)
        except client.TimeoutError as error:
            outage.note(error, began)
            raise
        outage.end()
        return connection

    def _sign_in(self, make: Any, options: dict[str, Any], until: float) -> Any:
        """Connect with the newest password, and with another one if the server refuses it."""
        source = self.settings.password
        pause = 0.0
        while True:
            token: Token | None = None
            if source is not None:
                token = source.current(max(0.0, until - time.monotonic()))
            if token is not None:
                options["password"] = token.value
            connection: Any = make(**options)
            connection.signed_in_with = token
            try:
                connection.connect()
                return connection
            except client.AuthenticationError as error:
                connection.disconnect()
                if source is None or token is None:
                    raise
                source.refuse(token)
                if time.monotonic() + pause > until:
                    raise Unavailable(f"{self.settings.shown}: {source.refusal()}") from error
                time.sleep(pause)
                pause = min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)

    def renew_login(self, connection: Any) -> bool:
        """Sign in again on an idle connection whose password was renewed; return False if the connection
        cannot be used any more."""
        source = self.settings.password
        if source is None or (token := source.peek()) is connection.signed_in_with:
            return True
        is_valid = not connection.signed_in_with.is_over
        if token is None:
            return is_valid
        user = self.settings.connect.get("username") or "default"
        try:
            connection.send_packed_command([pack_command((b"AUTH", user.encode(), token.value.encode()))])
            connection.read_response()
        except client.AuthenticationError:
            # The server may learn the new password a little later; until then the connection stays signed in.
            source.refuse(token)
            return is_valid
        except CLIENT_ERRORS:
            return False
        connection.signed_in_with = token
        return True

    def outage(self, node: Node) -> Outage:
        """Return the state of a node that accepts connections, but does not answer."""
        return self._outages.setdefault(node, Outage(self.settings.patience))

    def _load_owners(self) -> None:
        failed: Exception | None = None
        for node in dict.fromkeys((*self._nodes, self._seed)):
            try:
                connection = self.connect(node)
                try:
                    connection.send_packed_command([pack_command((b"CLUSTER", b"SLOTS"))])
                    ranges: Any = connection.read_response()
                finally:
                    connection.disconnect()
            except CLIENT_ERRORS as error:
                failed = error
                continue
            owners: dict[int, Node] = {}
            for first, last, primary, *_ in ranges:
                host = (primary[0] or b"").decode() or node[0]
                owners.update(dict.fromkeys(range(first, last + 1), (host, int(primary[1]))))
            self._owners, self._nodes = owners, list(dict.fromkeys(owners.values()))
            self._has_owners = True
            return
        if failed is not None:
            raise failed


class NodeConnections:
    """One worker's connections, one for each node; for one OS thread at a time.

    ``until`` is the time (``time.monotonic``) until which calls that were refused temporarily are repeated.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._shown = topology.settings.shown
        self._open: dict[Node, Any] = {}
        self.until = 0.0

    def close(self) -> None:
        for connection in self._open.values():
            connection.disconnect()
        self._open.clear()

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Return the answer of each call: the server's, ``CallLost``, or a ``PerdureError``."""
        answers: list[Any] = [None] * len(calls)
        remaining: Sequence[int] = range(len(calls))
        pause, redirections = _FIRST_PAUSE, 0
        while True:
            refused: dict[int, Exception] = {}
            redirected = False
            for node, numbers in self._group_by_node(calls, remaining, refused).items():
                redirected |= self._call_node(node, numbers, calls, answers, refused)
            remaining = sorted(refused)
            if not remaining:
                return answers
            if redirected and redirections < _REDIRECTIONS_MOST:
                redirections += 1
                continue
            if time.monotonic() >= self.until:
                for n in remaining:
                    answers[n] = translate(refused[n], self._shown)
                return answers
            time.sleep(max(0.0, min(pause, self.until - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def ask(self, node: Node, *commands: Sequence[bytes]) -> list[Any]:
        """Return one node's answers to commands without a slot, with errors among them; none is repeated."""
        connection = self._get_connection(node)
        try:
            started, breaks = time.monotonic(), self._topology.breaks
            connection.send_packed_command([b"".join(map(pack_command, commands))])
            answers = [_read_answer(connection) for _ in commands]
            self._topology.note_time(time.monotonic() - started, breaks)
            return answers
        except CLIENT_ERRORS:
            self._drop_connection(node)
            raise

    def _group_by_node(
        self, calls: Sequence[Call], numbers: Sequence[int], refused: dict[int, Exception]
    ) -> dict[Node, list[int]]:
        out: dict[Node, list[int]] = {}
        for n in numbers:
            try:
                out.setdefault(self._topology.find_owner(calls[n].slot), []).append(n)
            except (*CLIENT_ERRORS, Unavailable) as error:
                self._topology.note_break()
                refused[n] = error
        return out

    def _call_node(
        self,
        node: Node,
        numbers: Sequence[int],
        calls: Sequence[Call],
        answers: list[Any],
        refused: dict[int, Exception],
    ) -> bool:
        """Send calls to one node; return True if some have to be repeated elsewhere, or with scripts
        loaded."""
        try:
            connection = self._get_connection(node)
        except (*CLIENT_ERRORS, TypeError, PerdureError) as error:
            for n in numbers:
                if is_final(error) or isinstance(error, TypeError | PerdureError):
                    answers[n] = translate(error, self._shown)
                else:
                    refused[n] = error
            self._topology.note_break()
            return False
        done = 0
        to_repeat: list[tuple[int, client.ResponseError]] = []
        started, breaks = time.monotonic(), self._topology.breaks
        try:
            connection.send_packed_command([b"".join([pack_command(calls[n].parts) for n in numbers])])
            for n in numbers:
                reply = _read_answer(connection)
                done += 1
                if isinstance(reply, client.NoScriptError | client.AskError):
                    to_repeat.append((n, reply))
                elif isinstance(reply, Exception) and (
                    is_refusal(reply) or (calls[n].safe and "non local key" in str(reply))
                ):
                    refused[n] = reply
                else:
                    answers[n] = self._to_answer(reply)
            self._topology.note_time(time.monotonic() - started, breaks)
        except CLIENT_ERRORS as error:
            self._drop_connection(node)
            if isinstance(error, client.TimeoutError):
                self._topology.outage(node).note(error, started)
            # A server that no longer takes the password has executed none of the further calls.
            source = self._topology.settings.password
            is_signed_out = source is not None and isinstance(error, client.AuthenticationError)
            if source is not None and is_signed_out:
                source.refuse(connection.signed_in_with)
            for n in numbers[done:]:
                if is_signed_out or calls[n].safe or (is_refusal(error) and n == numbers[done]):
                    refused[n] = error
                else:
                    answers[n] = CallLost(error)
        if any(n in refused for n in numbers):
            self._drop_connection(node)
        return self._redirect(node, to_repeat, calls, answers, refused)

    def _redirect(
        self,
        node: Node,
        to_repeat: Sequence[tuple[int, client.ResponseError]],
        calls: Sequence[Call],
        answers: list[Any],
        refused: dict[int, Exception],
    ) -> bool:
        """Note where slots were moved, and load missing scripts; return True if calls are to be repeated."""
        has_to_load = False
        for n, reply in to_repeat:
            if isinstance(reply, client.NoScriptError):
                refused[n], has_to_load = reply, True
            elif not self._topology.settings.cluster:
                answers[n] = translate(reply, self._shown)
            elif isinstance(reply, client.MovedError):
                refused[n] = reply
                self._topology.note_move(calls[n].slot, (reply.host or node[0], reply.port))
                self._topology.note_break()
            elif isinstance(reply, client.AskError) and calls[n].parts[0] != b"EVALSHA":
                self._send_asking(n, (reply.host or node[0], reply.port), calls, answers, refused)
            else:
                # Some keys of the slot are elsewhere, and a script would take them for absent: it is repeated
                # later.
                refused[n] = reply
        if has_to_load:
            try:
                self.load(node)
            except CLIENT_ERRORS:
                self._drop_connection(node)
                return False
        return bool(to_repeat)

    def _send_asking(
        self, n: int, node: Node, calls: Sequence[Call], answers: list[Any], refused: dict[int, Exception]
    ) -> None:
        """Send one call to the node to which its slot is being moved."""
        try:
            self.load(node)
            _, reply = self.ask(node, (b"ASKING",), calls[n].parts)
        except CLIENT_ERRORS as error:
            if calls[n].safe:
                refused[n] = error
            else:
                answers[n] = CallLost(error)
            return
        if isinstance(reply, client.AskError | client.NoScriptError) or (
            isinstance(reply, Exception) and is_refusal(reply)
        ):
            refused[n] = reply
        else:
            answers[n] = self._to_answer(reply)

    def _to_answer(self, reply: Any) -> Any:
        """Return a server's answer; an error is translated."""
        if isinstance(reply, Exception):
            return translate(reply, self._shown)
        return reply

    def load(self, node: Node) -> None:
        """Load the scripts into a node."""
        for reply in self.ask(node, *((b"SCRIPT", b"LOAD", script.text) for script in scripts.ALL)):
            if isinstance(reply, Exception):
                raise reply

    def _get_connection(self, node: Node) -> Any:
        connection = self._open.get(node)
        if connection is not None and not self._topology.renew_login(connection):
            del self._open[node]
            connection.disconnect()
            connection = None
        if connection is None:
            connection = self._open[node] = self._topology.connect(node)
        return connection

    def _drop_connection(self, node: Node) -> None:
        connection = self._open.pop(node, None)
        if connection is not None:
            connection.disconnect()
        self._topology.note_break()


def _read_answer(connection: Any) -> Any:
    """Return the next answer, which may be an error; raise an error that ends the connection."""
    try:
        return connection.read_response()
    except client.ResponseError as error:
        return error
