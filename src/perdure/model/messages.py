"""What is said to a thread and what it answers: messages, runs and replies as they are stored.

What people wrote stands in bodies, as JSON, where a key seals it; what the queue needs stands beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import NoneType
from typing import Any, Literal

from perdure.errors import Corrupt, TooLarge, Unserialisable
from perdure.model.ops import Expect, Expectation, Put
from perdure.model.queue import INTERRUPT, Stop
from perdure.model.records import DEDUPE, INBOX, OUTBOX, RUN, Record

MESSAGE_MAX = 256 * 1024
"""The largest message or reply, in bytes of JSON."""

_NOTE_MAX = 4000

Mode = Literal["enqueue", "coalesce", "answer", "withdrawn"]
"""How a message becomes a run: ``enqueue`` as one of its own, ``coalesce`` together with those that wait
beside it, ``answer`` as the answer to an interrupt. One that was ``withdrawn`` becomes a run that is over."""

ANSWERS = "answers"
"""The option of an answer that has the ids of the interrupts it answers."""

OPEN, WAITING, DONE = "open", "waiting", "done"
FAILED, INTERRUPTED, ROLLED_BACK = "failed", "interrupted", "rolled_back"
"""The states of a run. Only ``open`` goes on; the answer to a ``waiting`` run is a run of its own."""

TIMEOUT = "Timeout"
"""The kind of failure of a run that took longer than it may."""

READY, SENDING, SENT, UNKNOWN, DEAD = "ready", "sending", "sent", "unknown", "dead"
"""The states of a reply. ``sending`` may or may not have reached the provider, ``unknown`` is held for a
person to decide, ``dead`` was given up."""


@dataclass(frozen=True, slots=True)
class Message:
    """An accepted message. ``id`` is stable however often it is sent; a run of it alone has the same id.
    ``options`` is what its run is to be given beside it."""

    id: str
    payload: Any
    graph: str
    channel: str = ""
    mode: Mode = "enqueue"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seq: int = 0
    accepted_at: int = 0
    dedupe: bytes = b""

    @property
    def is_withdrawn(self) -> bool:
        """Whether its sender took it back while it waited."""
        return self.mode == "withdrawn"

    @property
    def stop(self) -> Stop:
        """How it was taken back."""
        stop: Stop = self.options.get("stop", INTERRUPT)
        return stop

    def withdrawn(self, how: Stop) -> Message:
        """As it is once it was taken back."""
        return replace(self, mode="withdrawn", options={**self.options, "stop": how})

    def put(self, expect: Expectation = Expect.ABSENT) -> Put:
        fields = {
            "graph": self.graph,
            "channel": self.channel,
            "mode": self.mode,
            "dedupe": self.dedupe,
            "accepted_at": self.accepted_at,
        }
        body = encode({"id": self.id, "payload": self.payload, "options": dict(self.options)}, "message")
        return Put(INBOX, (self.seq,), fields, body, expect)

    @classmethod
    def read(cls, record: Record) -> Message:
        said, fields = decode_object(record, id=str, payload=object, options=dict), record.fields
        return cls(
            said["id"],
            said["payload"],
            fields["graph"],
            fields["channel"],
            fields["mode"],
            said["options"],
            record.key[0],
            fields["accepted_at"],
            fields["dedupe"],
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A run over the messages ``first`` to ``last``. ``base`` is the head that an answer was given on,
    ``epoch`` the lease under which it was last attempted. ``note`` says what it ended with."""

    id: str
    first: int
    last: int
    state: str
    graph: str
    channel: str
    epoch: int
    attempts: int
    base: str | None
    started_at: int
    updated_at: int
    note: Mapping[str, Any] = field(default_factory=dict[str, Any])
    version: int = 0

    @property
    def is_fresh(self) -> bool:
        """Whether it is stored as its first claim left it: nobody attempted it before."""
        return self.version == 1

    def put(self) -> Put:
        """The operation that stores it over the version that was read."""
        fields = {
            "first": self.first,
            "last": self.last,
            "state": self.state,
            "graph": self.graph,
            "channel": self.channel,
            "epoch": self.epoch,
            "attempts": self.attempts,
            "base": self.base,
            "started_at": self.started_at,
            "updated_at": self.updated_at,
        }
        expect: Expectation = self.version or Expect.ABSENT
        return Put(RUN, (self.id,), fields, encode(self.note, "note"), expect, self.version + 1)

    @classmethod
    def read(cls, record: Record) -> Run:
        fields = record.fields
        return cls(
            record.key[0],
            fields["first"],
            fields["last"],
            fields["state"],
            fields["graph"],
            fields["channel"],
            fields["epoch"],
            fields["attempts"],
            fields["base"],
            fields["started_at"],
            fields["updated_at"],
            decode_object(record),
            record.version,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply on its way. ``ord`` is its place among the replies of its run."""

    seq: int
    run_id: str
    ord: int
    channel: str
    payload: Any
    state: str = READY
    attempts: int = 0
    provider_id: str | None = None
    created_at: int = 0
    error: str | None = None
    version: int = 0

    @property
    def id(self) -> str:
        """The idempotency key under which it is sent, however often."""
        return f"{self.run_id}:{self.ord}"

    def put(self) -> Put:
        """The operation that stores it over the version that was read."""
        fields = {
            "run_id": self.run_id,
            "ord": self.ord,
            "channel": self.channel,
            "state": self.state,
            "attempts": self.attempts,
            "provider_id": self.provider_id,
            "created_at": self.created_at,
        }
        body = encode({"payload": self.payload, "error": self.error}, "reply")
        expect: Expectation = self.version or Expect.ABSENT
        return Put(OUTBOX, (self.seq,), fields, body, expect, self.version + 1)

    @classmethod
    def read(cls, record: Record) -> Reply:
        said, fields = decode_object(record, payload=object, error=(str, NoneType)), record.fields
        return cls(
            record.key[0],
            fields["run_id"],
            fields["ord"],
            fields["channel"],
            said["payload"],
            fields["state"],
            fields["attempts"],
            fields["provider_id"],
            fields["created_at"],
            said["error"],
            record.version,
        )


def dedupe_digest(key: str) -> bytes:
    """What stands for a dedupe key: of one length, and no sender's text in the clear."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()[:16]


def dedupe_put(digest: bytes, seq: int, expect: Expect = Expect.ABSENT) -> Put:
    """The operation that stores a dedupe key. ``seq`` is the message's number, or, for one that is postponed
    and has none yet, minus the time at which it is due."""
    return Put(DEDUPE, (digest,), {"seq": seq}, expect=expect)


def batch(pending: Sequence[Message], most: int) -> Sequence[Message]:
    """The messages that the next run takes: those at the front that go together."""
    first = pending[0]
    count = 1
    if first.mode == "coalesce":
        while count < min(len(pending), most) and _together(first, pending[count]):
            count += 1
    return pending[:count]


def _together(first: Message, other: Message) -> bool:
    alike = (other.mode, other.channel, other.graph) == (first.mode, first.channel, first.graph)
    return alike and other.options == first.options


def error_note(error: BaseException) -> str:
    """An error as it is noted with a run or a reply: what can be stored of it."""
    return stored_text(f"{type(error).__name__}: {error}"[:_NOTE_MAX])


def stored_text(text: str) -> str:
    """Text from elsewhere with a mark for each half of a character, which databases cannot hold."""
    return text.encode("utf-8", "replace").decode()


def decode(record: Record) -> Any:
    """The plain data of a body that ``encode`` made; ``Corrupt`` when it is no JSON."""
    try:
        return json.loads(record.body)
    except (ValueError, RecursionError) as error:
        raise _other_than_stored(record) from error


def decode_object(record: Record, **fields: type | tuple[type, ...]) -> dict[str, Any]:
    """The object in a body, which has these ``fields`` of these types; ``Corrupt`` when it is not that."""
    found = decode(record)
    if not isinstance(found, dict) or any(
        name not in found or not isinstance(found[name], kind) for name, kind in fields.items()
    ):
        raise _other_than_stored(record)
    return found


def _other_than_stored(record: Record) -> Corrupt:
    name = "/".join(part.hex() if isinstance(part, bytes) else str(part) for part in record.key)
    return Corrupt(f"{record.kind.name} {name!r} is not the JSON that was stored; run `perdure fsck`")


def encode(value: Any, what: str) -> bytes:
    """Plain data as JSON; ``Unserialisable`` or ``TooLarge`` when it cannot be stored."""
    try:
        body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise Unserialisable(
            f"a {what} has to be plain JSON data ({error}); nothing of it was stored"
        ) from error
    if len(body) > MESSAGE_MAX:
        raise TooLarge(
            f"a {what} has {len(body)} bytes of JSON, at most {MESSAGE_MAX} are taken; nothing of it was "
            "stored. Put large content elsewhere and send a reference to it"
        )
    return body
