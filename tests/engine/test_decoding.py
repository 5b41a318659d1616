"""A record of a queue whose body is not what was stored: an error that names the thread, and a finding."""

from __future__ import annotations

import pytest

from perdure.engine.checks.fsck import check
from perdure.engine.checks.fsck_report import Damage
from perdure.engine.queue import inbox, outbox, runs
from perdure.errors import Corrupt
from perdure.model.ops import Commit, Committed, Put
from perdure.model.records import INBOX, OUTBOX, RUN, Kind
from perdure.model.values.chunks import Digester
from tests.engine.queue.queues import HERE, Queue

BODIES = [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b"7", b"{}", b'{"id":1,"payload":{},"options":[]}']

damaged = pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))


def damage(queue: Queue, kind: Kind, body: bytes) -> None:
    (record,) = queue.rows(kind)
    put = Put(kind, record.key, record.fields, body, expect=record.version, version=record.version + 1)
    assert queue.memory.perform(Commit(HERE, (put,))) == Committed()


def finds(queue: Queue, name: str) -> None:
    findings = queue.run(check(HERE, Digester()))
    assert {(f.thread_id, f.kind) for f in findings} == {("ada", Damage.UNREADABLE)}
    assert any(name in f.detail for f in findings)


@damaged
def test_a_message_that_cannot_be_read_is_named_with_its_thread(body: bytes) -> None:
    queue = Queue()
    queue.accept(key="k")
    damage(queue, INBOX, body)
    named = pytest.raises(Corrupt, match="thread 'ada': inbox '1' is not the JSON that was stored")
    with named:
        queue.claim()
    with named:
        queue.run(inbox.read_standing(HERE, 1, "id1"))
    with named:
        queue.run(inbox.read_latest(HERE, 10))
    with named:
        queue.run(inbox.find_run_id(HERE, 1, "id1", 10))
    with named:
        queue.accept(key="k")
    finds(queue, "message 1")


@pytest.mark.parametrize("body", BODIES[:6], ids=range(6))
def test_a_run_that_cannot_be_read_is_named_with_its_thread(body: bytes) -> None:
    queue = Queue()
    queue.accept()
    queue.held()
    queue.now += 1000
    damage(queue, RUN, body)
    named = pytest.raises(Corrupt, match="thread 'ada': run 'id1' is not the JSON that was stored")
    with named:
        queue.claim()
    with named:
        queue.run(runs.read_latest(HERE, 10))
    with named:
        queue.run(inbox.find(HERE, "id1"))
    finds(queue, "run id1")


@damaged
def test_a_reply_that_cannot_be_read_is_named_with_its_thread(body: bytes) -> None:
    queue = Queue()
    queue.replied("one")
    damage(queue, OUTBOX, body)
    named = pytest.raises(Corrupt, match="thread 'ada': outbox '1' is not the JSON that was stored")
    with named:
        queue.take()
    with named:
        queue.run(outbox.read_replies(HERE, 10))
    finds(queue, "reply 1")
