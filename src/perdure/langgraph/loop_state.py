"""The state of each loop: what it loaded, against which its later writes are checked.

LangGraph passes a loop's config to every put, with its ``thread_id`` unchanged. ``get_tuple`` returns a
config whose id is a ``ThreadId``: the same text, which also carries the loop that began with this load. In a
config that was serialised and read back the id is plain text; a put with it counts as one that no load
preceded. A loop that starts on an absent thread gets no config back, so its load is remembered by thread and
namespace instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypedDict, Unpack
from weakref import WeakSet, WeakValueDictionary

from yaml.representer import Representer, SafeRepresenter

from perdure.engine.threads.steering import Taking
from perdure.errors import PerdureError
from perdure.langgraph.awaited_checkpoints import StoredCheckpoints
from perdure.langgraph.task_statements import TaskStatements
from perdure.model.bounded_cache import BoundedCache
from perdure.model.checkpoint import CheckpointRecord, PendingWrite, TaskSpan
from perdure.model.heads import LoadedHead
from perdure.model.records import Key, Partition
from perdure.model.times import time_of
from perdure.model.write_records import record_key
from perdure.storage.error_origins import find_origin, note_origin

_ABSENT_MAX = 4096
_THREADS_MAX = 4096
_CONFLICTS_MAX = 32
_WRITTEN_MAX = 4
_HERE: ContextVar[tuple[Loops | None, Loop | None]] = ContextVar("loop_of_the_graph", default=(None, None))


@dataclass(slots=True, eq=False, weakref_slot=True)
class Loop:
    """One loop over a namespace of a thread, its ``place``.

    ``loaded`` is the head that it loaded, ``base`` the checkpoint that it loaded or stored last, ``child``
    the id of the one that it put, or tried to put, on the loaded one. ``written`` has the channels of the
    tasks' writes that it loaded or stored, and the keys of their records, by checkpoint, for the latest few
    checkpoints. ``began_at`` is the time of its load in microseconds since 1970, ``None`` if the times of
    tasks are not stored. ``given`` has, by the id of a checkpoint, the statements of the tasks that began
    with it: the next checkpoint may be stored only when they are executed. ``stores_at_exit`` is True from
    the load of a run that stores only at its exit until its put begins.
    """

    nonce: str
    place: tuple[Partition, str]
    loaded: LoadedHead
    seen: Mapping[tuple[str, int], int] = field(default_factory=dict)
    seen_nonces: tuple[str, ...] = ()
    base: CheckpointRecord | None = None
    generation: int = -1
    child: str | None = None
    lost: PerdureError | None = None
    written: dict[str, list[tuple[Key, str]]] = field(default_factory=dict)
    began_at: int | None = None
    given: dict[str, WeakSet[TaskStatements]] = field(default_factory=dict[str, WeakSet[TaskStatements]])
    stores_at_exit: bool = False

    def span(self, checkpoint_id: str, now: int) -> TaskSpan | None:
        """Return the time in which a task ran that began with a checkpoint and ends ``now``, ``None`` if it
        is not known."""
        made_at = time_of(checkpoint_id)
        if made_at is None or self.began_at is None:
            return None
        if checkpoint_id == self.loaded.addressed:
            began_at = self.began_at
        else:
            began_at = made_at
        # Clocks of two writers differ, and one may be set back: no time is below 0.
        return TaskSpan(max(0, began_at - made_at), max(0, now - began_at))

    def note(self, checkpoint_id: str, writes: Iterable[PendingWrite]) -> None:
        """Remember the stored writes on a checkpoint."""
        noted = self.written.setdefault(checkpoint_id, [])
        noted += [(record_key(write), write.channel) for write in writes if write.idx >= 0]
        if len(self.written) > _WRITTEN_MAX:
            for older in list(self.written)[:-_WRITTEN_MAX]:
                self.written.pop(older, None)

    def give_statements(self, checkpoint_id: str) -> TaskStatements:
        """Return the collection for the statements of a task that began with a checkpoint."""
        given = TaskStatements()
        self.given.setdefault(checkpoint_id, WeakSet()).add(given)
        return given

    def take_outcomes(self, checkpoint_id: str) -> list[Future[None]]:
        """Return the outcomes of the statements of the tasks that began with a checkpoint. The next
        checkpoint holds what those tasks wrote, so it must not be stored unless the statements are
        executed."""
        if self.given:
            return [given.outcome for given in self.given.pop(checkpoint_id, ())]
        return []

    def refuse_if_lost(self) -> None:
        """Raise the error with which this loop lost a race, if it lost one."""
        if self.lost is not None:
            raise _drop_traceback(self.lost)

    def find_base(self, parent: str | None, generation: int) -> CheckpointRecord | None:
        """Return the checkpoint whose references may be reused for a put on ``parent``, if any."""
        base = self.base
        if base is not None and base.id == parent and self.generation == generation:
            return base
        return None


class RunData(TypedDict, total=False):
    """Data of a run that the id of its thread carries.

    ``loop`` is the loop that began with a load, ``keeper`` the saver's table of loops. ``epoch`` is the lease
    epoch under which writes are made, ``journal`` the object that a runtime passes to the nodes of its run,
    ``taking`` the messages that the run takes while it is under way. ``stored`` knows which of the run's
    checkpoints are durable, if its nodes need that. ``confirm`` is awaited before a step may begin, and
    raises if another process may hold the lease. ``is_scan`` marks a load of one of many threads: no put
    follows it, and it leaves the caches as they are.
    """

    keeper: Loops | None
    loop: Loop | None
    epoch: int | None
    journal: object
    taking: Taking | None
    stored: StoredCheckpoints | None
    confirm: Callable[[], Awaitable[None]] | None
    is_scan: bool | None


class ThreadId(str):
    """A thread's id that also carries data of a run on the thread, invisible to other users of the id: it is
    equal to the plain text, and so are its hash, its representation and its serialised forms."""

    __slots__ = ("confirm", "epoch", "is_scan", "journal", "keeper", "loop", "stored", "taking")

    keeper: Loops | None
    loop: Loop | None
    epoch: int | None
    journal: object
    taking: Taking | None
    stored: StoredCheckpoints | None
    confirm: Callable[[], Awaitable[None]] | None
    is_scan: bool | None

    @classmethod
    def of(cls, thread: object, **data: Unpack[RunData]) -> ThreadId:
        """Return the id with more data; data that it carries already stays unless replaced."""
        new, before = cls(to_plain_id(thread)), thread if isinstance(thread, ThreadId) else None
        given: Mapping[str, object] = data
        for name in cls.__slots__:
            value = given.get(name)
            setattr(new, name, getattr(before, name, None) if value is None else value)
        return new

    def __str__(self) -> str:
        """Return the id itself: LangGraph calls ``str`` on ids that it passes on, and they must keep their
        data."""
        return self

    def __eq__(self, other: object) -> bool:
        # Other subclasses of ``str`` decide the comparison themselves, as they do with plain text.
        if isinstance(other, str) and type(other) not in (str, ThreadId):
            return NotImplemented
        return str.__eq__(self, other)

    __hash__ = str.__hash__

    def __copy__(self) -> ThreadId:
        return self

    def __deepcopy__(self, memo: object) -> ThreadId:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (to_plain_id(self),)


# PyYAML represents only the exact classes that it knows, not their subclasses.
SafeRepresenter.add_representer(ThreadId, lambda dumper, thread: dumper.represent_str(to_plain_id(thread)))
Representer.add_representer(ThreadId, lambda dumper, thread: dumper.represent_str(to_plain_id(thread)))


def to_plain_id(thread: object) -> str:
    """Return a thread's id as text that carries nothing."""
    if isinstance(thread, str):
        return str.__str__(thread)
    return str(thread)


_CARRIES_NOTHING = ThreadId.of("")


def read_carrier(configurable: Mapping[str, Any]) -> ThreadId:
    """Return the thread's id in a config if it is one that carries data of a run; else an empty one, which
    carries nothing."""
    thread = configurable.get("thread_id")
    if isinstance(thread, ThreadId):
        return thread
    return _CARRIES_NOTHING


def without_loop(thread: ThreadId) -> ThreadId | None:
    """Return the id with the lease and the journal of a run, and without its loop; ``None`` if there is no
    lease."""
    if thread.epoch is None:
        return None
    leased = ThreadId.of(thread)
    leased.keeper = leased.loop = None
    return leased


def mark_scan(thread_id: str) -> ThreadId:
    """Return a thread's id marked as that of one of many threads, whose state is read and followed by no
    put."""
    return ThreadId.of(thread_id, is_scan=True)


def with_lease(
    configurable: Mapping[str, Any], epoch: int, journal: object = None, taking: Taking | None = None
) -> dict[str, Any]:
    """Return the configurable values for a caller that holds the thread's lease.

    Args:
        configurable: The values, with ``thread_id``.
        epoch: The epoch of the lease.
        journal: The object for the nodes of the run.
        taking: The messages that the run takes.
    """
    thread = ThreadId.of(configurable["thread_id"], epoch=epoch, journal=journal, taking=taking)
    return {**configurable, "thread_id": thread}


class Loops:
    """The loops of one saver, and the races that they lost."""

    def __init__(self) -> None:
        self._absent: BoundedCache[tuple[Partition, str], Loop] = BoundedCache(_ABSENT_MAX)
        # The latest loops of runs, as long as LangGraph refers to them, and the namespaces that were absent
        # when a run loaded them last.
        self._latest: WeakValueDictionary[tuple[Partition, str], Loop] = WeakValueDictionary()
        self._new: BoundedCache[tuple[Partition, str], bool] = BoundedCache(_ABSENT_MAX)
        # Loops of runs that may go on after their thread was removed: their puts do not count as bare.
        self._removed: BoundedCache[tuple[Partition, str], Loop] = BoundedCache(_ABSENT_MAX)
        self._conflicts: BoundedCache[str, deque[PerdureError]] = BoundedCache(_THREADS_MAX)
        self._lock = Lock()

    def start(
        self,
        partition: Partition,
        namespace: str,
        nonce: str,
        *,
        checkpoint: CheckpointRecord | None,
        writes: tuple[PendingWrite, ...],
        was_head: bool,
        version: int | None,
        generation: int,
        began_at: int | None = None,
        durability: str | None = None,
    ) -> Loop | None:
        """Remember a load.

        Args:
            partition: The thread.
            namespace: The namespace that was loaded.
            nonce: The name of the new loop.
            checkpoint: The checkpoint that was loaded, ``None`` if there was none.
            writes: Its pending writes.
            was_head: True if it was the head of its namespace.
            version: The version of the head.
            generation: The thread's collection generation.
            began_at: The time of the load, ``None`` if the times of tasks are not stored.
            durability: The durability of the run that begins with the load, ``None`` if no run does.

        Returns:
            The loop that begins with this load, ``None`` for an absent thread.
        """
        slot = (partition, namespace)
        if checkpoint is None:
            with self._lock:
                known = self._absent.get(slot)
                loop = known or Loop(nonce, slot, LoadedHead(None, was_head=True), began_at=began_at)
                self._absent[slot] = loop
                if durability is not None:
                    self._new[slot], loop.stores_at_exit = True, durability == "exit"
            return None
        loop = Loop(
            nonce,
            slot,
            LoadedHead(checkpoint.id, was_head, version),
            {(w.task_id, w.idx): w.version for w in writes},
            tuple(dict.fromkeys(w.nonce for w in writes if w.nonce)),
            checkpoint,
            generation,
            began_at=began_at,
            stores_at_exit=durability == "exit",
        )
        loop.note(checkpoint.id, writes)
        if durability is not None:
            with self._lock:
                self._new.pop(slot, None)
                self._latest[slot] = loop
        return loop

    def may_be_under_way(self, partition: Partition, namespace: str) -> tuple[bool, bool]:
        """Return True if a run of this process may be under way on a namespace: LangGraph still refers to its
        loop, or the namespace was absent when it was loaded; and True if that run stores at its exit, and has
        not begun to."""
        slot = (partition, namespace)
        with self._lock:
            loop = self._latest.get(slot) or (self._absent.get(slot) if slot in self._new else None)
            is_known = loop is not None or slot in self._new
        return is_known, loop is not None and loop.stores_at_exit

    def of(self, partition: Partition, namespace: str, configurable: Mapping[str, Any]) -> Loop | None:
        """Return the loop that a config belongs to; ``None`` for a bare call that no load preceded.

        Args:
            partition: The thread.
            namespace: The namespace of the call.
            configurable: The config's values.
        """
        thread = read_carrier(configurable)
        # A loop's config has ``checkpoint_id``, possibly ``None``; a config made by a caller may lack it.
        loop = thread.loop if "checkpoint_id" in configurable else None
        if loop is not None and loop.place == (partition, namespace):
            if thread.keeper is self:
                return loop
            # Loaded by another saver: what was loaded is valid here, what that saver remembers is not.
            loaded = LoadedHead(loop.loaded.addressed, loop.loaded.was_head)
            return Loop(loop.nonce, loop.place, loaded, began_at=loop.began_at)
        with self._lock:
            slot = (partition, namespace)
            return self._absent.get(slot) or self._removed.get(slot)

    def enter(self, loop: Loop | None) -> None:
        """Remember in this context the root loop that begins with a checkpoint named by its id, ``None`` if
        that checkpoint is absent. The run's nodes find it with ``find_current``: they are called in copies
        of the context."""
        _HERE.set((self, loop))

    def find_current(self, partition: Partition) -> Loop | None:
        """Return the loop that ``enter`` remembered in this context, if it is one of this thread."""
        keeper, loop = _HERE.get()
        if keeper is self and loop is not None and loop.place[0] == partition:
            return loop
        return None

    def note_lost_race(self, thread: str, loop: Loop | None, error: PerdureError) -> None:
        """Remember that a loop lost a race; its later writes are refused without asking the database.

        Args:
            thread: The thread's id.
            loop: The loop, ``None`` for a bare call.
            error: The error with which it lost.
        """
        error = _drop_traceback(error)
        with self._lock:
            if loop is not None and loop.loaded.addressed is not None:
                loop.lost = error
            errors = self._conflicts[thread] = self._conflicts.get(thread) or deque(maxlen=_CONFLICTS_MAX)
            errors.append(error)

    def conflicts(self, thread: str) -> tuple[PerdureError, ...]:
        with self._lock:
            return tuple(self._conflicts.get(thread, ()))

    def forget(self, partition: Partition) -> None:
        """Drop what is known of a removed thread: it is not true of a later thread of the same name. That a
        loop began on the absent thread is remembered, so that its next put counts as one that lost a race and
        not as a bare one."""
        with self._lock:
            for slot in [s for s in self._absent if s[0] == partition]:
                del self._absent[slot]
                self._removed[slot] = Loop("", slot, LoadedHead(None, was_head=True))


def _drop_traceback(error: PerdureError) -> PerdureError:
    """Return the error without its traceback, whose frames hold everything that was to be written."""
    bare, origin = type(error)(*error.args), find_origin(error)
    if origin is not None:
        note_origin(bare, *origin)
    return bare
