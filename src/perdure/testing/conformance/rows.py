"""Short forms of the records and operations that the contract uses."""

from __future__ import annotations

from typing import Any

from perdure.model.ops import Commit, Committed, Expect, Expectation, Fetch, Get, Op, Put, Range
from perdure.model.records import (
    BLOB,
    CHECKPOINT,
    CHUNK,
    DEDUPE,
    DOCUMENT,
    EFFECT,
    EPOCH,
    EVENT,
    GC,
    HEAD,
    INBOX,
    ITEM,
    KINDS,
    LANE,
    OUTBOX,
    PACK,
    RUN,
    SEAL,
    TAG,
    WRITE,
    Key,
    Kind,
    Partition,
    Record,
)
from perdure.storage.port import Driver

HERE = Partition("acme", "thread")

NAMES = (
    "", "\0", " ", "0", "A", "Z", "a", "a\0", "a\0b", "a\0c", "a\x01", "a b", "a%", "a_b", "aa", "b", "z",
    "~", "É", "é", "ß", "中文", "\ufffd", "\U0001f600", "\U0010ffff",
)  # fmt: skip
"""Text in every shape that a name may take. Surrogates are not text and are not among them."""


def head(
    namespace: str = "",
    checkpoint_id: str = "c",
    seq: int = 1,
    expect: Expectation = Expect.ANY,
    version: int = 1,
) -> Put:
    return Put(
        HEAD, (namespace,), {"checkpoint_id": checkpoint_id, "seq": seq}, expect=expect, version=version
    )


def gc(version: int, expect: Expectation = Expect.ANY) -> Put:
    return Put(GC, (), expect=expect, version=version)


def checkpoint(
    checkpoint_id: str,
    seq: int = 1,
    *,
    namespace: str = "",
    body: bytes = b"body",
    run_id: str | None = None,
    expect: Expectation = Expect.ANY,
) -> Put:
    fields = {"seq": seq, "parent_id": None, "run_id": run_id, "source": "loop", "step": None}
    return Put(CHECKPOINT, (namespace, checkpoint_id), fields, body, expect)


def chunk(
    digest: bytes, generation: int = 0, body: bytes = b"bytes", expect: Expectation = Expect.ANY
) -> Put:
    return Put(CHUNK, (digest,), {"generation": generation}, body, expect)


def blob(digest: bytes, generation: int = 0, body: bytes = b"large") -> Put:
    return Put(BLOB, (digest,), {"generation": generation}, body)


def pack(block: int, digest: bytes, generation: int = 0, body: bytes = b"pack") -> Put:
    return Put(PACK, (block, digest), {"generation": generation}, body)


def write(
    task: str, idx: int, *, at: str = "c", namespace: str = "", body: bytes = b"w", version: int = 1
) -> Put:
    fields = {"channel": "x", "task_path": "", "nonce": "n"}
    return Put(WRITE, (namespace, at, task, idx), fields, body, version=version)


def tag(name: str, expect: Expectation = Expect.ANY, version: int = 1) -> Put:
    return Put(TAG, (name,), {"namespace": "", "checkpoint_id": "c"}, expect=expect, version=version)


def lane(name: str, due_at: int | None, expect: Expectation = Expect.ANY, version: int = 1) -> Put:
    fields: dict[str, Any] = {column.name: None for column in LANE.fields}
    fields.update(due_at=due_at, last=3, bound=2, epoch=5, owner="worker 1")
    return Put(LANE, (name,), fields, expect=expect, version=version)


def inbox(seq: int, body: bytes = b"message") -> Put:
    fields = {"graph": "g", "channel": "", "mode": "coalesce", "dedupe": b"\0d", "accepted_at": 1 << 50}
    return Put(INBOX, (seq,), fields, body, Expect.ABSENT)


def dedupe(digest: bytes, seq: int = 1) -> Put:
    return Put(DEDUPE, (digest,), {"seq": seq}, expect=Expect.ABSENT)


def a_run(run_id: str, first: int = 1, body: bytes = b"{}", version: int = 1) -> Put:
    fields = {
        "first": first,
        "last": first + 1,
        "state": "open",
        "graph": "g",
        "channel": "",
        "epoch": 5,
        "attempts": 1,
        "base": None,
        "started_at": 1 << 50,
        "updated_at": 1 << 50,
    }
    return Put(RUN, (run_id,), fields, body, version=version)


def reply(seq: int, body: bytes = b"reply", version: int = 1) -> Put:
    fields = {
        "run_id": "run",
        "ord": 0,
        "channel": "telegram",
        "state": "ready",
        "attempts": 0,
        "provider_id": None,
        "created_at": 1 << 50,
    }
    return Put(OUTBOX, (seq,), fields, body, version=version)


def effect(task_id: str, idx: int = 0, body: bytes = b"result") -> Put:
    return Put(EFFECT, ("run", task_id, idx), body=body)


def document(
    name: str,
    updated_at: int = 1 << 50,
    *,
    collection: str = "threads",
    body: bytes = b"{}",
    expect: Expectation = Expect.ANY,
    version: int = 1,
) -> Put:
    return Put(DOCUMENT, (collection, name), {"updated_at": updated_at}, body, expect, version)


def event(seq: int, body: bytes = b"[]", run_id: str = "run") -> Put:
    return Put(EVENT, (seq,), {"run_id": run_id}, body)


def commit(driver: Driver, *ops: Op, at: Partition = HERE) -> bool:
    """Return True if the commit was accepted."""
    return isinstance(driver.perform(Commit(at, ops)), Committed)


def store_ops(driver: Driver, *ops: Op, at: Partition = HERE) -> None:
    """Commit operations that the rest of the test needs."""
    assert commit(driver, *ops, at=at), "a commit without a failing expectation was refused"


def store_records(driver: Driver, *puts: Put) -> None:
    """Store records, in several commits if needed."""
    for first in range(0, len(puts), driver.limits.ops):
        store_ops(driver, *puts[first : first + driver.limits.ops])


def get(driver: Driver, kind: Kind, *key: Any, at: Partition = HERE) -> Record | None:
    (answer,) = driver.perform(Fetch(at, (Get(kind, key),)))
    assert len(answer) <= 1, "one key has several records"
    if answer:
        return answer[0]
    return None


def read(driver: Driver, kind: Kind, *key: Any, at: Partition = HERE) -> Record:
    """Return a record; fail if it is absent."""
    found = get(driver, kind, *key, at=at)
    assert found is not None, f"there is no record {key} of the kind {kind.name}"
    return found


def keys(driver: Driver, item: Range, at: Partition = HERE) -> list[Key]:
    (answer,) = driver.perform(Fetch(at, (item,)))
    return [record.key for record in answer]


OF_THREADS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind is not ITEM)
"""Kinds of the records that a thread has."""


def every_kind(mark: str = "x", version: int = 1) -> tuple[Put, ...]:
    """Return one record of each kind that a thread has, with the mark or the version."""
    return (
        head(mark, version=version),
        gc(version),
        Put(EPOCH, (), {"open_run": mark}, version=version),
        Put(SEAL, (mark,), body=mark.encode(), version=version),
        checkpoint(mark, run_id="run", body=mark.encode()),
        chunk(mark.encode().ljust(16), body=mark.encode()),
        blob(mark.encode().ljust(16), body=mark.encode()),
        pack(version, mark.encode().ljust(16), body=mark.encode()),
        write(mark, 0, body=mark.encode(), version=version),
        tag(mark, version=version),
        lane(mark, 1 << 50, version=version),
        inbox(version, mark.encode())._replace(expect=Expect.ANY),
        dedupe(mark.encode())._replace(expect=Expect.ANY),
        a_run(mark, body=mark.encode(), version=version),
        reply(version, mark.encode(), version),
        effect(mark, body=mark.encode()),
        document(mark, body=mark.encode(), version=version),
        event(version, mark.encode()),
    )


def everything(driver: Driver, at: Partition = HERE) -> list[Record]:
    """Return every record of a thread's partition."""
    answers = driver.perform(Fetch(at, tuple(Range(kind) for kind in OF_THREADS)))
    return [record for answer in answers for record in answer]
