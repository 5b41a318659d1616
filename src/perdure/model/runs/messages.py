"""Messages, runs and replies of a thread as they are stored.

User content is in bodies, as JSON, encrypted if a key is set. The fields that the queue needs are beside
them, never encrypted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from operator import attrgetter
from types import NoneType
from typing import Any, Literal

from perdure.errors import Corrupt, OverMaximum, Unserialisable
from perdure.model.ops import Expect, Expectation, Op, Put
from perdure.model.records import DEDUPE, INBOX, OUTBOX, RUN, Kind, Record
from perdure.model.runs.payloads import can_be_joined
from perdure.model.runs.queue import INTERRUPT_RUN, Stop
from perdure.model.values.json_values import DEPTH, find_fault, has_other_keys, is_deeper

MESSAGE_MAX = 256 * 1024
"""Largest message or reply, in bytes of JSON."""

_NOTE_MAX = 4000

Mode = Literal["enqueue", "coalesce", "steer", "answer", "withdrawn"]
"""Relation of a message to its run: ``enqueue`` for a run of its own; ``coalesce`` for a run that it shares
with the messages that wait beside it; ``steer`` for the open run or, if that does not take it, as
``coalesce``; ``answer`` for the answer to an interrupt. A ``withdrawn`` message becomes a finished run."""

ANSWERS = "answers"
"""Option of an answer with the ids of the interrupts it answers."""

SIGNAL = "signal"
"""Option of an answer that a signal gives: the signal's name, and whether it ends all waits for it."""

START = "checkpoint_id"
"""Option of a message with the checkpoint from which its run starts, if not the thread's latest."""

RETRY_OF = "retry_of"
"""Option of a message that repeats a failed run, with the id of that run."""

OPEN, WAITING, DONE = "open", "waiting", "done"
FAILED, INTERRUPTED, ROLLED_BACK = "failed", "interrupted", "rolled_back"
"""States of a run. Only an ``open`` one is in progress; the answer to a ``waiting`` run is another run."""

TRACEBACK = "traceback"
"""Entry of the note of a run with the traceback of its error, which is for operators and not for clients."""

NODE = "node"
"""Entry of the note of a failed run with the node whose error it is, for operators."""

LIMIT = "limit"
"""Entry of the note of a run with the limit that postponed it."""

VERSION = "version"
"""Entry of the note of a run with the name of the version of its graph at its latest attempt."""

TIMEOUT = "Timeout"
"""Kind of failure of a run that exceeded its time limit."""

READY, SENDING, SENT, UNKNOWN, DEAD = "ready", "sending", "sent", "unknown", "dead"
"""States of a reply. ``sending`` may or may not have reached the provider, ``unknown`` is held for a person
to decide, ``dead`` was given up."""


@dataclass(frozen=True, slots=True)
class Message:
    """An accepted message.

    ``id`` is the same however often the message is sent, and is also the id of a run of this message alone.
    ``options`` are given to the message's run."""

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
        """True if its sender withdrew it while it waited."""
        return self.mode == "withdrawn"

    @property
    def is_signal(self) -> bool:
        """True if a signal has become this message. The repetition of a failed run is not a signal: it may be
        requested again."""
        return SIGNAL in self.options and RETRY_OF not in self.options

    @property
    def stop(self) -> Stop:
        """Kind of its withdrawal."""
        stop: Stop = self.options.get("stop", INTERRUPT_RUN)
        return stop

    @property
    def shared_run_id(self) -> str | None:
        """The id of the message with which this one was withdrawn, as it waited to share that one's run."""
        if self.is_withdrawn:
            return self.options.get("shared_run_id")
        return None

    def withdraw(self, how: Stop, first: Message | None = None) -> Message:
        """Return the message as withdrawn; ``first`` is the message whose run this one waited to share."""
        options = {**self.options, "stop": how}
        if first is not None and first.id != self.id:
            options["shared_run_id"] = first.id
        return replace(self, mode="withdrawn", options=options)

    def put(self, expect: Expectation = Expect.ABSENT) -> Put:
        """Return the operation that stores the message."""
        body = encode({"id": self.id, "payload": self.payload, "options": dict(self.options)}, "message")
        return Put(INBOX, (self.seq,), _make_fields(self, INBOX), body, expect)

    def put_with_key(self, expect_key: Expect = Expect.ABSENT) -> list[Op]:
        """Return the operations that store the message, and its dedupe key if it has one."""
        if self.dedupe:
            return [self.put(), dedupe_put(self.dedupe, self.seq, expect_key)]
        return [self.put()]

    @classmethod
    def read(cls, record: Record) -> Message:
        """Read a message from its record."""
        content = decode_object(record, id=str, payload=object, options=dict)
        return cls(
            content["id"], content["payload"], options=content["options"], seq=record.key[0], **record.fields
        )


@dataclass(frozen=True, slots=True)
class Run:
    """A run over the messages ``first`` to ``last``.

    ``base`` is the head at the run's first claim, ``epoch`` the lease of its latest attempt, ``note`` its
    result."""

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
    def graph_version(self) -> str | None:
        """The name of the version of its graph at its latest attempt, ``None`` if that was not noted."""
        version = self.note.get(VERSION)
        if isinstance(version, str):
            return version
        return None

    def with_version(self, note: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a new note of this run, with the version of its graph."""
        version = self.graph_version
        if version is None:
            return note
        return {**note, VERSION: version}

    @property
    def is_fresh(self) -> bool:
        """True if it is stored as its first claim left it, without an earlier attempt."""
        return self.version == 1

    def put(self) -> Put:
        """Return the operation that stores it over the version that was read."""
        fields = _make_fields(self, RUN)
        expect: Expectation = self.version or Expect.ABSENT
        return Put(RUN, (self.id,), fields, encode(self.note, "note"), expect, self.version + 1)

    @classmethod
    def read(cls, record: Record) -> Run:
        """Read a run from its record."""
        note = decode_object(record)
        return cls(record.key[0], **record.fields, note=note, version=record.version)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to be delivered. ``ord`` is its place among the replies of its run."""

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
        """Idempotency key under which it is sent, however often."""
        return f"{self.run_id}:{self.ord}"

    def put(self) -> Put:
        """Return the operation that stores it over the version that was read."""
        body = encode({"payload": self.payload, "error": self.error}, "reply")
        expect: Expectation = self.version or Expect.ABSENT
        return Put(OUTBOX, (self.seq,), _make_fields(self, OUTBOX), body, expect, self.version + 1)

    @classmethod
    def read(cls, record: Record) -> Reply:
        """Read a reply from its record."""
        content = decode_object(record, payload=object, error=(str, NoneType))
        return cls(
            record.key[0],
            payload=content["payload"],
            error=content["error"],
            version=record.version,
            **record.fields,
        )


_FIELDS = {kind: tuple(column.name for column in kind.fields) for kind in (INBOX, RUN, OUTBOX)}
_READ_FIELDS = {kind: attrgetter(*names) for kind, names in _FIELDS.items()}


def _make_fields(stored: Message | Run | Reply, kind: Kind) -> dict[str, Any]:
    """Return the fields of the record of a kind, which are attributes of what it stores."""
    return dict(zip(_FIELDS[kind], _READ_FIELDS[kind](stored), strict=True))


def check_reply(payload: Any) -> None:
    """Raise the error of ``encode`` if a reply cannot be stored."""
    Reply(0, "", 0, "", payload).put()


def dedupe_digest(key: str) -> bytes:
    """Return the stored form of a dedupe key: of fixed length, without the sender's text in the clear."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()[:16]


def dedupe_put(digest: bytes, seq: int, expect: Expect = Expect.ABSENT) -> Put:
    """Return the operation that stores a dedupe key.

    ``seq`` is the message's number, or, for a postponed one that has none yet, minus the time at which it is
    due, in microseconds.
    """
    return Put(DEDUPE, (digest,), {"seq": seq}, expect=expect)


def select_batch(pending: Sequence[Message], most: int) -> Sequence[Message]:
    """Return the messages that the next run takes: the first one, and those after it that belong together."""
    first = pending[0]
    count = 1
    if first.mode in ("coalesce", "steer"):
        payloads = [first.payload]
        while count < min(len(pending), most) and _belong_together(first, pending[count]):
            if not can_be_joined(payloads, pending[count].payload):
                break
            payloads.append(pending[count].payload)
            count += 1
    return pending[:count]


def divide_among_runs(pending: Sequence[Message], most: int) -> Iterator[Sequence[Message]]:
    """Yield the messages that the next runs take, one run after the other."""
    while pending:
        taken = select_batch(pending, most)
        yield taken
        pending = pending[len(taken) :]


def _belong_together(first: Message, other: Message) -> bool:
    are_alike = (other.mode, other.channel, other.graph) == (first.mode, first.channel, first.graph)
    return are_alike and other.options == first.options


def shorten_error(error: BaseException) -> str:
    """Return an error as text for the note of a run or a reply, cut to what can be stored."""
    return replace_surrogates(text_of_error(error)[:_NOTE_MAX])


def text_of_error(error: BaseException) -> str:
    """Return the type and the text of an error."""
    return f"{type(error).__name__}: {read_message(error)}"


def read_message(error: BaseException) -> str:
    """Return the text of an error. Code of the application may make it, and raise an error in turn; what
    failed has to be recorded and shown all the same."""
    try:
        return str(error)
    except Exception as unreadable:
        return f"(its text cannot be read: {type(unreadable).__name__})"


def replace_surrogates(text: str) -> str:
    """Return text with the replacement character for each lone surrogate, which is half of a character that
    databases and strict parsers of JSON refuse. Two halves that stand together become their character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def replace_surrogates_in(value: Any, depth: int = DEPTH) -> Any:
    """Return plain data with the texts in it as ``replace_surrogates`` returns them. Parts that ``encode``
    refuses, as they are not plain data or too deep, are left as they are."""
    match value:
        case str():
            return replace_surrogates(value)
        case dict() if depth:
            return {
                replace_surrogates_in(name, 0): replace_surrogates_in(part, depth - 1)
                for name, part in value.items()
            }
        case list() | tuple() if depth:
            return [replace_surrogates_in(part, depth - 1) for part in value]
        case _:
            return value


def decode(record: Record) -> Any:
    """Decode a body that ``encode`` made; raises ``Corrupt`` if it is not JSON."""
    try:
        return json.loads(record.body)
    except (ValueError, RecursionError) as error:
        raise _changed_record_error(record) from error


def decode_object(record: Record, **fields: type | tuple[type, ...]) -> dict[str, Any]:
    """Decode a body that is an object with these ``fields`` of these types; raises ``Corrupt`` otherwise."""
    content = decode(record)
    if not isinstance(content, dict) or any(
        name not in content or not isinstance(content[name], kind) for name, kind in fields.items()
    ):
        raise _changed_record_error(record)
    return content


def _changed_record_error(record: Record) -> Corrupt:
    name = "/".join(map(_show_key_part, record.key))
    return Corrupt(f"{record.kind.name} {name!r} is not the JSON that was stored; run `perdure fsck`")


def _show_key_part(part: object) -> str:
    if isinstance(part, bytes):
        return part.hex()
    return str(part)


def encode(value: Any, what: str) -> bytes:
    """Encode plain data as JSON. Lone surrogates are kept: models leave them when they cut an emoji, and a
    run whose nodes make such a text does not fail.

    Raises:
        Unserialisable: the value is not plain JSON data, or is nested deeper than ``DEPTH`` levels; or two
            keys of a dict are one key in JSON, such as 1 and "1".
        OverMaximum: it exceeds ``MESSAGE_MAX``.
    """
    return _encode(value, what, keeps_surrogates=True)


def _encode(value: Any, what: str, *, keeps_surrogates: bool) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        try:
            body = text.encode()
        except UnicodeEncodeError:
            if not keeps_surrogates:
                raise
            body = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise _not_plain_error(what, _find_other_fault(value, keeps_surrogates) or error) from error
    except RecursionError as error:
        raise _too_deep_error(what) from error
    if body.count(b"[") + body.count(b"{") > DEPTH and is_deeper(value, DEPTH):
        raise _too_deep_error(what)
    if len(body) > MESSAGE_MAX:
        raise OverMaximum(
            f"a {what} has {len(body)} bytes of JSON, at most {MESSAGE_MAX} are taken; nothing of it was "
            "stored. Put large content elsewhere and send a reference to it"
        )
    if has_other_keys(value) and (fault := _find_other_fault(value, keeps_surrogates)):
        raise _not_plain_error(what, fault)
    return body


def _find_other_fault(value: Any, keeps_surrogates: bool) -> str | None:
    """Return what keeps a value from being stored, other than lone surrogates if these are kept."""
    if keeps_surrogates:
        value = replace_surrogates_in(value)
    return find_fault(value, are_keys_text=False)


def _not_plain_error(what: str, fault: object) -> Unserialisable:
    return Unserialisable(f"a {what} has to be plain JSON data, and {fault}; nothing of it was stored")


def _too_deep_error(what: str) -> Unserialisable:
    return Unserialisable(
        f"a {what} is nested deeper than {DEPTH} levels, or contains itself; nothing of it was stored"
    )


def copy_plain(value: Any, what: str) -> Any:
    """Return a copy of plain data of a caller as it is read after it was stored; errors as of ``encode``, and
    ``Unserialisable`` for a lone surrogate, which the receivers of a message could not read."""
    return json.loads(_encode(value, what, keeps_surrogates=False))
