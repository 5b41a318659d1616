"""Redis or Valkey, one server or a cluster: each request is one atomic script in the slot of its bucket.

Requests that arrive while others are under way share the next round trip. The durability of an acknowledged
commit depends on the server's settings: ``appendonly yes`` with ``appendfsync always`` guarantees it; opening
warns when the server keeps nothing.
"""

from __future__ import annotations

import logging
import shlex
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from redis.crc import key_slot

from perdure.errors import MigrationRequired, PerdureError, Unavailable
from perdure.model.ops import Commit, Drop, Fetch, Find, Now, Refused, Stage
from perdure.model.program import Effect
from perdure.storage.batching import Batcher, PendingRequest, wait_at
from perdure.storage.credentials import Password
from perdure.storage.in_doubt import evidence, is_in_doubt, is_repeatable, was_applied
from perdure.storage.kv import keys
from perdure.storage.layout_version import other_version_error, require_steps
from perdure.storage.notify import ServerNotifier
from perdure.storage.port import Capabilities, CommitLimits
from perdure.storage.redis import requests, scripts
from perdure.storage.redis.cluster import Call, CallLost, NodeConnections, Topology, evaluate
from perdure.storage.redis.errors import CLIENT_ERRORS, translate
from perdure.storage.redis.find import find
from perdure.storage.redis.notify import RedisListener
from perdure.storage.redis.url import RedisUrl, read

R = TypeVar("R")
Parse = Callable[[Any], Any]
"""Returns the answer of a request, given that of its call."""

SCHEMA_VERSION = keys.LAYOUT_VERSION
BUCKETS = 256
"""The number of buckets of a new database; stored with it, and never changed."""

_GROUP_MAX = 128
_LOGGER = logging.getLogger("perdure.storage.redis")


class RedisDriver:
    """One prefix of a Redis or Valkey server or cluster. Creating the driver connects to nothing yet."""

    def __init__(self, topology: Topology, buckets: int) -> None:
        settings = topology.settings
        self._shown = settings.shown
        self._space = requests.Keyspace(settings.prefix, buckets, settings.life)
        self._topology = topology
        self.limits = CommitLimits(ops=10_000, bytes=16 << 20)
        self._idle: deque[NodeConnections] = deque()
        self._bell = (
            ServerNotifier(RedisListener(self._topology), name=settings.shown) if settings.notify else None
        )
        self._batcher = Batcher(self._execute, name=settings.shown, workers=settings.pool, most=_GROUP_MAX)

    @property
    def capabilities(self) -> Capabilities:
        password = self._topology.settings.password
        return Capabilities(bell=self._bell, statements="Redis", password=password)

    def perform(self, effect: Effect[R]) -> R:
        return self._batcher.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        return await self._batcher.aperform(effect)

    def close(self) -> None:
        if self._bell is not None:
            self._bell.close()
        self._batcher.close()
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _borrow_connections(self) -> Iterator[NodeConnections]:
        """Yield the connections for one worker's round trip: of the idle ones, those used most recently."""
        try:
            links = self._idle.pop()
        except IndexError:
            links = NodeConnections(self._topology)
        try:
            yield links
        except BaseException:
            links.close()
            raise
        self._idle.append(links)

    def _execute(self, group: Sequence[PendingRequest]) -> None:
        self._batcher.wait_s = wait_at(self._topology.distance_s)
        with self._borrow_connections() as links:
            links.until = min(job.asked_at for job in group) + self._topology.settings.patience
            sent: list[tuple[PendingRequest, Call, Parse]] = []
            for job in group:
                try:
                    if isinstance(job.effect, Find):
                        job.answer = find(self._space, job.effect, lambda calls: _ask(links, calls))
                    else:
                        sent.append((job, *self._make_call(job.effect)))
                except Exception as error:  # of this request only
                    job.error = error
                    self._close_doubtful(links, error)
            answers = links.run([call for _, call, _ in sent])
            for (job, _, parse), answer in zip(sent, answers, strict=True):
                try:
                    if isinstance(answer, CallLost) and isinstance(job.effect, Commit):
                        job.answer = self._resolve(links, job.effect, answer)
                    else:
                        job.answer = parse(_require_answer(answer))
                except Exception as error:
                    job.error = error
                    self._close_doubtful(links, error)

    def _close_doubtful(self, links: NodeConnections, error: Exception) -> None:
        """Close connections after an unexpected error: they may hold unread answers of earlier requests."""
        if not isinstance(error, PerdureError):
            links.close()

    def _make_call(self, effect: Effect[Any]) -> tuple[Call, Parse]:
        """Return the call of a request, and the function that reads its answer."""
        if isinstance(effect, Fetch):
            return requests.fetch(self._space, effect), partial(requests.parse_fetch, effect)
        if isinstance(effect, Commit | Stage):
            return requests.commit(self._space, effect), partial(requests.parse_commit, effect)
        if isinstance(effect, Drop):
            return requests.drop(self._space, effect), partial(requests.parse_drop, effect)
        if isinstance(effect, Now):
            return requests.now(self._space), requests.read_server_time
        raise TypeError(f"not a storage request: {type(effect).__name__}")

    def _resolve(self, links: NodeConnections, effect: Commit, lost: CallLost) -> Any:
        """Return the outcome of a commit whose answer was lost, repeating it if it was not applied."""
        call = requests.commit(self._space, effect)
        for _ in range(8):
            if self._find_outcome(links, effect, lost)[0]:
                return requests.parse_commit(effect, 0)
            if not is_repeatable(effect):
                break
            (answer,) = links.run([call])
            if isinstance(answer, CallLost):
                continue
            outcome = requests.parse_commit(effect, _require_answer(answer))
            if isinstance(outcome, Refused):
                # The first copy may have been applied late, and may have been overwritten since.
                applied, in_doubt = self._find_outcome(links, effect, lost)
                if applied:
                    return requests.parse_commit(effect, 0)
                if in_doubt:
                    break
            return outcome
        raise self._unknown_error(effect, lost)

    def _find_outcome(self, links: NodeConnections, effect: Commit, lost: CallLost) -> tuple[bool, bool]:
        """Return two flags: the commit was applied; it may have been applied and overwritten since."""
        reads = evidence(effect)
        try:
            (data,) = _ask(links, [requests.fetch(self._space, reads)])
        except PerdureError as error:
            raise self._unknown_error(effect, lost) from error
        stored = requests.parse_fetch(reads, data)
        return was_applied(effect, stored), is_in_doubt(effect, stored)

    def _unknown_error(self, effect: Commit, lost: CallLost) -> Unavailable:
        error = Unavailable(
            f"{self._shown}: the connection broke in a write to thread {effect.partition.thread!r}, and it "
            "could not be found out whether it was stored. Load the thread again and see"
        )
        error.__cause__ = lost.__cause__
        return error


def _ask(links: NodeConnections, calls: Sequence[Call]) -> list[Any]:
    """Return the answers of calls that may be repeated, or raise the first error among them."""
    return list(map(_require_answer, links.run(calls)))


def _require_answer(answer: Any) -> Any:
    """Return the answer of a call; raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


# The layout record


def _name_layout_key(settings: RedisUrl) -> bytes:
    return settings.prefix + b":layout"


def _call_once(settings: RedisUrl, *calls: Call) -> list[Any]:
    """Return the answers of calls on connections of their own, without retries."""
    links = NodeConnections(Topology(settings))
    try:
        return _ask(links, calls)
    finally:
        links.close()


def _read_layout(settings: RedisUrl) -> tuple[int, int]:
    """Return version and number of buckets of the stored layout; zeros when there is none."""
    key = _name_layout_key(settings)
    (stored,) = _call_once(settings, Call(key_slot(key), (b"GET", key), safe=True))
    if stored is None:
        return 0, 0
    try:
        version, buckets = (int(word) for word in stored.split())
    except ValueError as error:
        raise Unavailable(
            f"{settings.shown} holds a key of another program under this prefix; choose one with ?prefix=…"
        ) from error
    return version, buckets


def _find_readable_versions(settings: RedisUrl) -> tuple[int, int, str]:
    """Return the first and the last version from which ``migrate`` leads to this release's, and the
    command."""
    return keys.FIRST_VERSION, SCHEMA_VERSION, f"perdure migrate --db {shlex.quote(settings.shown)}"


def open_driver(url: str, password: Password | None = None) -> RedisDriver:
    """Open the database; raise ``MigrationRequired`` unless its layout has this release's version. Emits a
    ``RuntimeWarning`` if the server would keep nothing over a restart. ``password`` is as for ``connect``."""
    settings = read(url, password)
    version, buckets = _read_layout(settings)
    if not version:
        raise MigrationRequired(
            f"{settings.shown} has no Perdure layout; run `perdure migrate` with this URL, or connect with "
            "migrate=True"
        )
    if version != SCHEMA_VERSION:
        raise other_version_error(settings.shown, version, *_find_readable_versions(settings))
    topology = Topology(settings)
    _warn_of_loss(topology)
    return RedisDriver(topology, buckets)


def schema_version(url: str) -> int:
    """Return the version of the stored layout, 0 when there is none."""
    return _read_layout(read(url))[0]


def plan_migration(url: str) -> list[str]:
    """Return the commands that ``migrate`` would execute now."""
    settings = read(url)
    version, buckets = _read_layout(settings)
    require_steps(settings.shown, version, *_find_readable_versions(settings))
    if version == SCHEMA_VERSION:
        return []
    key = _name_layout_key(settings).decode(errors="replace")
    layout_command = f"SET {key} '{SCHEMA_VERSION} {buckets or BUCKETS}'"
    if not version:
        return [f"{layout_command} NX"]
    marks = f"SET {settings.prefix.decode(errors='replace')}:{{N}}:v {SCHEMA_VERSION}"
    return [f"{marks}, for each N from 0 to {buckets - 1}", f"{layout_command} XX"]


def migrate(url: str, password: Password | None = None) -> int:
    """Write the layout record, or raise its version; return the version that was stored.

    The buckets are marked first: if the migration is interrupted, processes of earlier releases are refused
    from then on, and the next migration completes it.
    """
    settings = read(url, password)
    version, buckets = _read_layout(settings)
    require_steps(settings.shown, version, *_find_readable_versions(settings))
    key = _name_layout_key(settings)
    slot, present = key_slot(key), b"%d" % SCHEMA_VERSION
    if not version:
        layout = b"%b %d" % (present, BUCKETS)
        _call_once(settings, Call(slot, (b"SET", key, layout, b"NX"), safe=True))
    elif version < SCHEMA_VERSION:
        space = requests.Keyspace(settings.prefix, buckets, settings.life)
        marks = [
            evaluate(scripts.RAISE, space.slot(n), (space.mark(n),), (present, b"0"), safe=True)
            for n in range(buckets)
        ]
        _call_once(settings, *marks)
        _call_once(settings, evaluate(scripts.RAISE, slot, (key,), (present, b""), safe=True))
    return version


# Durability of the server


def _warn_of_loss(topology: Topology) -> None:
    """Warn if a server that takes writes would lose them at a restart, or may evict some."""
    settings, links = topology.settings, NodeConnections(topology)
    try:
        for node in topology.list_nodes():
            names = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
            answers = links.ask(node, *((b"CONFIG", b"GET", word.encode()) for word in names))
            _warn_of_settings(settings, node, dict(zip(names, answers, strict=True)))
    except CLIENT_ERRORS as error:
        raise translate(error, settings.shown) from error
    finally:
        links.close()


def _warn_of_settings(settings: RedisUrl, node: tuple[str, int], answers: dict[str, Any]) -> None:
    where = f"{settings.shown} ({node[0]}:{node[1]})"
    if any(isinstance(answer, Exception) or len(answer) != 2 for answer in answers.values()):
        _LOGGER.warning(
            "%s does not show its settings, so whether acknowledged writes survive a restart is not known; "
            "see that it runs with appendonly yes, appendfsync always and maxmemory-policy noeviction",
            where,
        )
        return
    values = {word: answer[1].decode() for word, answer in answers.items()}
    if values["appendonly"] != "yes":
        warnings.warn(
            f"{where} runs without an append-only file: acknowledged writes are lost when it stops. Set "
            "appendonly yes and appendfsync always there",
            RuntimeWarning,
            stacklevel=4,
        )
    elif values["appendfsync"] != "always":
        _LOGGER.warning(
            "%s runs with appendfsync %s: the writes of the last second or two are lost when it is killed",
            where,
            values["appendfsync"],
        )
    if values["maxmemory"] != "0" and values["maxmemory-policy"] != "noeviction":
        warnings.warn(
            f"{where} evicts keys when memory is short (maxmemory-policy {values['maxmemory-policy']}): "
            "threads would vanish in part. Set maxmemory-policy noeviction there",
            RuntimeWarning,
            stacklevel=4,
        )
