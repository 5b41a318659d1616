"""Contract of a thread's queue: its records, the index of due work, and the database's clock."""

from __future__ import annotations

from perdure.model.ops import Check, Delete, Drop, Expect, Fetch, FindDue, Get, Now, Range
from perdure.model.records import DEDUPE, EFFECT, INBOX, LANE, OUTBOX, RUN, Partition
from perdure.storage.port import Driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE

T = 1_700_000_000_000_000
"""A time in microseconds."""


def list_due(
    driver: Driver, until: int, tenant: str | None = None, limit: int = 1000, since: int | None = None
) -> list[tuple[str, str]]:
    """Return the due queues in order, as thread and queue name."""
    out: list[tuple[str, str]] = []
    for found in driver.perform(FindDue(tenant, until=until, limit=limit, since=since)):
        assert found.record is not None
        assert found.record.kind is LANE
        out.append((found.partition.thread, found.record.key[0]))
    return out


class Queues:
    """Contract of queue records, messages, runs and replies."""

    def test_lanes_are_found_when_they_are_due_longest_first(self, driver: Driver) -> None:
        for n in (5, 1, 9, 3, 7, -2):
            rows.store_ops(driver, rows.lane("inbox", T + n), at=Partition("acme", f"t{n}"))
        rows.store_ops(
            driver, rows.lane("inbox", T + 4), rows.lane("outbox", T + 2), at=Partition("bull", "b")
        )
        rows.store_ops(driver, rows.lane("inbox", None), at=Partition("acme", "idle"))
        assert list_due(driver, T - 3) == []
        expected = [("t-2", "inbox"), ("t1", "inbox"), ("b", "outbox"), ("t3", "inbox"), ("b", "inbox")]
        assert list_due(driver, T + 4) == expected
        assert list_due(driver, T + 100, "acme") == [(f"t{n}", "inbox") for n in (-2, 1, 3, 5, 7, 9)]
        assert list_due(driver, T + 100, "bull") == [("b", "outbox"), ("b", "inbox")]
        assert list_due(driver, T + 100, "none") == []
        assert list_due(driver, T + 100, limit=3) == list_due(driver, T + 100)[:3]
        assert list_due(driver, T + 100, "acme", limit=2) == [("t-2", "inbox"), ("t1", "inbox")]
        whole = list_due(driver, T + 9)
        assert list_due(driver, T + 9, since=T - 2) == whole
        assert list_due(driver, T + 9, since=T - 1) == whole[1:]
        assert list_due(driver, T + 4, since=T + 2) == whole[2:5]
        assert list_due(driver, T + 9, "acme", limit=2, since=T + 3) == [("t3", "inbox"), ("t5", "inbox")]
        assert list_due(driver, T + 9, since=T + 10) == []

    def test_a_lane_is_found_where_it_stands_now(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.lane("inbox", T + 5))
        assert list_due(driver, T + 5) == [("thread", "inbox")]
        rows.store_ops(driver, rows.lane("inbox", T + 50, expect=1, version=2))
        assert list_due(driver, T + 49) == []
        assert not rows.commit(driver, rows.lane("inbox", T + 1, expect=1, version=2))
        assert list_due(driver, T + 49) == [], "a refused commit moved a lane"
        rows.store_ops(driver, rows.lane("inbox", None, expect=2, version=3))
        assert list_due(driver, 1 << 60) == []
        rows.store_ops(driver, rows.lane("inbox", T, expect=3, version=4))
        assert list_due(driver, T) == [("thread", "inbox")]
        rows.store_ops(driver, Delete(LANE, ("inbox",), 4))
        assert list_due(driver, 1 << 60) == []
        rows.store_ops(driver, rows.lane("inbox", T))
        driver.perform(Drop(HERE))
        assert list_due(driver, 1 << 60) == []
        rows.store_ops(driver, rows.tag("again"))
        assert list_due(driver, 1 << 60) == []

    def test_a_due_lane_stays_stored_however_old_it_is(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.lane("inbox", 1))
        assert list_due(driver, 1) == [("thread", "inbox")]
        record = rows.read(driver, LANE, "inbox")
        assert record.fields["due_at"] == 1

    def test_messages_runs_and_replies_come_in_order(self, driver: Driver) -> None:
        for seq in (2, 11, 1, 300, 10):
            rows.store_ops(
                driver,
                rows.inbox(seq),
                rows.reply(seq),
                rows.a_run(f"run {seq}", seq),
                rows.dedupe(b"%d" % seq, seq),
                rows.effect("task", seq),
            )
        assert [k[0] for k in rows.keys(driver, Range(INBOX))] == [1, 2, 10, 11, 300]
        assert [k[0] for k in rows.keys(driver, Range(INBOX, after=(2,), limit=2))] == [10, 11]
        assert [k[0] for k in rows.keys(driver, Range(OUTBOX, reverse=True, limit=2))] == [300, 11]
        earlier = rows.keys(driver, Range(RUN, by="first", reverse=True, after=11))
        assert [k[0] for k in earlier] == ["run 10", "run 2", "run 1"]
        assert [k[2] for k in rows.keys(driver, Range(EFFECT, ("run", "task")))] == [1, 2, 10, 11, 300]
        record = rows.read(driver, DEDUPE, b"11")
        assert record.fields["seq"] == 11

    def test_what_a_queue_stores_comes_back_whole(self, driver: Driver) -> None:
        puts = (rows.lane("outbox", None, version=7), rows.inbox(1, b"\0\xff"), rows.a_run("r", version=3))
        rows.store_ops(driver, *puts, rows.reply(4, version=2), rows.effect("t", 1, b""))
        for put in (*puts, rows.reply(4, version=2), rows.effect("t", 1, b"")):
            record = rows.read(driver, put.kind, *put.key)
            assert dict(record.fields) == dict(put.fields)
            assert (record.version, record.body) == (put.version, put.body)

    def test_a_message_is_accepted_once(self, driver: Driver) -> None:
        assert rows.commit(driver, rows.dedupe(b"d"), rows.inbox(1), rows.lane("inbox", T, Expect.ABSENT))
        assert not rows.commit(driver, rows.dedupe(b"d"), rows.inbox(2), rows.lane("inbox", T, 1, 2))
        assert not rows.commit(driver, rows.dedupe(b"e"), rows.inbox(1), rows.lane("inbox", T, 1, 2))
        assert not rows.commit(driver, rows.dedupe(b"e"), rows.inbox(2), rows.lane("inbox", T, 2, 3))
        assert rows.commit(driver, rows.dedupe(b"e"), rows.inbox(2), rows.lane("inbox", T, 1, 2))
        assert [k[0] for k in rows.keys(driver, Range(INBOX))] == [1, 2]
        assert rows.commit(driver, Check(LANE, ("inbox",), 2))
        answers = driver.perform(Fetch(HERE, (Get(LANE, ("inbox",)), Get(LANE, ("outbox",)))))
        assert [len(answer) for answer in answers] == [1, 0]

    def test_the_clock_goes_forward(self, driver: Driver) -> None:
        times = [driver.perform(Now()) for _ in range(3)]
        assert times == sorted(times)
        assert times[0] > 1_600_000_000_000_000, "microseconds since 1970"
