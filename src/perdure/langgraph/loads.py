"""What each loop loaded, so that its later writes can be judged.

LangGraph hands a loop's config to every put, and a configurable key that starts with two underscores travels
with it without being persisted. ``get_tuple`` puts a token there: text that says which checkpoint was
addressed, whether that was the head, and a nonce that names the loop. The token also carries what is known of
the loop, which so lives as long as a config of it does. A loop that started on an absent thread gets no
config back, so an absent load is remembered by thread and namespace instead.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import Any

from perdure.errors import PerdureError
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.lineage import Loaded
from perdure.model.records import Partition

TOKEN = "__perdure_load"  # noqa: S105 - a key's name
EPOCH = "__perdure_epoch"
"""The configurable key that carries the lease epoch."""

_ABSENT_MAX = 4096
_THREADS_MAX = 4096
_CONFLICTS_MAX = 32


@dataclass(slots=True, eq=False)
class Loop:
    """One loop over a thread's namespace: what it loaded, the checkpoint that it loaded or wrote last, and
    the one that it put, or tried to, on what it loaded."""

    nonce: str
    loaded: Loaded
    seen: Mapping[tuple[str, int], int] = field(default_factory=dict)
    seen_nonces: tuple[str, ...] = ()
    base: CheckpointRecord | None = None
    generation: int = -1
    child: str | None = None
    lost: PerdureError | None = None

    def refuse_if_lost(self) -> None:
        """Raise the error that this loop came to, if it lost a race."""
        if self.lost is not None:
            raise _bare(self.lost)

    def built_on(self, parent: str | None, generation: int) -> CheckpointRecord | None:
        """The checkpoint whose references may be reused for a put on ``parent``, if any."""
        base = self.base
        return base if base is not None and base.id == parent and self.generation == generation else None


class Token(str):
    """A load as text, and while it stays in this process, the loop that began with it and who knows it."""

    __slots__ = ("keeper", "loop")

    keeper: Loops
    loop: Loop

    @classmethod
    def of(cls, text: str, keeper: Loops, loop: Loop) -> Token:
        token = cls(text)
        token.keeper, token.loop = keeper, loop
        return token

    def __copy__(self) -> Token:
        return self

    def __deepcopy__(self, memo: object) -> Token:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class Loops:
    """The loops of one saver, and the races that they lost."""

    def __init__(self) -> None:
        self._absent: OrderedDict[tuple[Partition, str], Loop] = OrderedDict()
        self._conflicts: OrderedDict[str, deque[PerdureError]] = OrderedDict()
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
    ) -> str:
        """Remember a load; its token, or nothing for an absent thread."""
        if checkpoint is None:
            with self._lock:
                slot = (partition, namespace)
                if slot not in self._absent:
                    self._absent[slot] = Loop(nonce, Loaded(None, was_head=True))
                self._absent.move_to_end(slot)
                _trim(self._absent, _ABSENT_MAX)
            return ""
        loop = Loop(
            nonce,
            Loaded(checkpoint.id, was_head, version),
            {(w.task_id, w.idx): w.version for w in writes},
            tuple(dict.fromkeys(w.nonce for w in writes if w.nonce)),
            checkpoint,
            generation,
        )
        text = ":".join((nonce, _place(partition, namespace), "h" if was_head else "o", checkpoint.id))
        return Token.of(text, self, loop)

    def of(self, partition: Partition, namespace: str, configurable: Mapping[str, Any]) -> Loop | None:
        """The loop that a config belongs to; ``None`` for a bare call that no load preceded."""
        token = configurable.get(TOKEN)
        if isinstance(token, str) and token:
            nonce, place, was_head, addressed = token.split(":", 3)
            if place == _place(partition, namespace):
                if isinstance(token, Token) and token.keeper is self:
                    return token.loop
                # Loaded by another process or saver, or written down since: it still says what was loaded.
                return Loop(nonce, Loaded(addressed, was_head == "h"))
        with self._lock:
            return self._absent.get((partition, namespace))

    def lose(self, thread: str, loop: Loop | None, error: PerdureError) -> None:
        """Remember that a loop lost; its later writes are refused without asking the database."""
        error = _bare(error)
        with self._lock:
            if loop is not None and loop.loaded.addressed is not None:
                loop.lost = error
            self._conflicts.setdefault(thread, deque(maxlen=_CONFLICTS_MAX)).append(error)
            self._conflicts.move_to_end(thread)
            _trim(self._conflicts, _THREADS_MAX)

    def conflicts(self, thread: str) -> tuple[PerdureError, ...]:
        with self._lock:
            return tuple(self._conflicts.get(thread, ()))

    def forget(self, partition: Partition) -> None:
        """The thread is gone: what was absent or loaded before says nothing about its successor."""
        with self._lock:
            for slot in [s for s in self._absent if s[0] == partition]:
                del self._absent[slot]


def _bare(error: PerdureError) -> PerdureError:
    """The error without its traceback, whose frames hold everything that was to be written."""
    return type(error)(*error.args)


def _place(partition: Partition, namespace: str) -> str:
    packed = "\0".join((partition.tenant, partition.thread, namespace)).encode("utf-8", "surrogatepass")
    return blake2b(packed, digest_size=8).hexdigest()


def _trim(table: OrderedDict[Any, Any], most: int) -> None:
    while len(table) > most:
        table.popitem(last=False)
