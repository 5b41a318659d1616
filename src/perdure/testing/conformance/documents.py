"""Contract of documents, which are replaced as a whole, of events, which are read in the order of their
numbers, and of the partitions of a server."""

from __future__ import annotations

from perdure.model.ops import Check, Delete, Drop, Expect, Fetch, FindThreads, Get, Range
from perdure.model.records import DOCUMENT, EVENT, SERVER, STORE, THREADS, Partition
from perdure.storage.port import Driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE

T = 1_700_000_000_000_000
"""A time in microseconds."""

PLACE = Partition("acme", "thread", SERVER)


def newest(driver: Driver, after: int | None = None, limit: int | None = None) -> list[str]:
    """Return the names of the documents in the collection of threads, newest first."""
    item = Range(DOCUMENT, ("threads",), "updated_at", reverse=True, after=after, limit=limit)
    return [key[1] for key in rows.keys(driver, item, PLACE)]


class Documents:
    """Contract of documents, events, and the space of a server."""

    def test_documents_are_found_newest_first(self, driver: Driver) -> None:
        for n in (5, 1, 300, 3, -2):
            rows.store_ops(driver, rows.document(f"d{n}", T + n), at=PLACE)
        for name in ("thread", "threads\0", "threads.", "threadsx", ""):
            rows.store_ops(driver, rows.document("other", T + 2, collection=name), at=PLACE)
        rows.store_ops(driver, rows.document("there", T + 2))
        assert newest(driver) == ["d300", "d5", "d3", "d1", "d-2"]
        assert newest(driver, limit=2) == ["d300", "d5"]
        assert newest(driver, T + 5, 2) == ["d3", "d1"]
        assert newest(driver, T + 4) == ["d3", "d1", "d-2"]
        assert newest(driver, T - 2) == []
        oldest = Range(DOCUMENT, ("threads",), "updated_at", after=T + 1, limit=2)
        assert [key[1] for key in rows.keys(driver, oldest, PLACE)] == ["d3", "d5"]
        by_name = Range(DOCUMENT, ("threads",), after=("threads", "d1"), limit=2)
        assert [key[1] for key in rows.keys(driver, by_name, PLACE)] == ["d3", "d300"]
        assert len(rows.keys(driver, Range(DOCUMENT), PLACE)) == 10

    def test_documents_of_one_moment_are_all_found(self, driver: Driver) -> None:
        for n in range(7):
            rows.store_ops(driver, rows.document(f"d{n}", T), at=PLACE)
        rows.store_ops(driver, rows.document("late", T + 1), rows.document("early", T - 1), at=PLACE)
        found = newest(driver)
        assert (found[0], found[-1]) == ("late", "early")
        assert sorted(found[1:-1]) == [f"d{n}" for n in range(7)]
        assert newest(driver, T + 1) == found[1:]
        assert newest(driver, T) == ["early"]

    def test_a_document_stands_where_it_was_last_written(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.document("a", T), rows.document("b", T + 5), at=PLACE)
        assert rows.commit(driver, rows.document("a", T + 9, expect=1, version=2), at=PLACE)
        assert newest(driver) == ["a", "b"]
        assert not rows.commit(driver, rows.document("b", T + 99, expect=2, version=3), at=PLACE)
        assert not rows.commit(driver, rows.document("a", T + 1, expect=Expect.ABSENT), at=PLACE)
        assert newest(driver) == ["a", "b"], "a refused commit moved a document"
        assert newest(driver, T + 9) == ["b"], "a document is found where it stood before"
        rows.store_ops(driver, Delete(DOCUMENT, ("threads", "a"), 2), at=PLACE)
        assert newest(driver) == ["b"]

    def test_documents_and_events_come_back_whole(self, driver: Driver) -> None:
        named = [rows.document(name, T, body=b"\0\xff", version=1 << 40) for name in rows.NAMES]
        named += [rows.document("x", collection=name, body=b"", version=7) for name in rows.NAMES]
        puts = (*named, rows.event(1 << 52, b"\0" * 300_000, ""), rows.event(-1, b""))
        for put in puts:
            rows.store_ops(driver, put, at=PLACE)
        for put in puts:
            record = rows.read(driver, put.kind, *put.key, at=PLACE)
            assert dict(record.fields) == dict(put.fields)
            assert (record.version, record.body) == (put.version, put.body)
        items = (Range(DOCUMENT, ("threads",), bodies=False), Range(EVENT, bodies=False))
        bare = [record for found in driver.perform(Fetch(PLACE, items)) for record in found]
        assert [record.body for record in bare] == [b""] * (len(rows.NAMES) + 2)

    def test_events_are_followed_by_their_numbers(self, driver: Driver) -> None:
        for seq in (2, 11, 1, 300, 10, 1 << 40):
            rows.store_ops(driver, rows.event(seq, b"%d" % seq))
        assert [k[0] for k in rows.keys(driver, Range(EVENT))] == [1, 2, 10, 11, 300, 1 << 40]
        assert [k[0] for k in rows.keys(driver, Range(EVENT, after=(2,)))] == [10, 11, 300, 1 << 40]
        assert [k[0] for k in rows.keys(driver, Range(EVENT, after=(3,), limit=2))] == [10, 11]
        assert [k[0] for k in rows.keys(driver, Range(EVENT, reverse=True, limit=1))] == [1 << 40]
        assert rows.keys(driver, Range(EVENT, after=(1 << 40,))) == []
        rows.store_ops(driver, Delete(EVENT, (10,)), Delete(EVENT, (1 << 40,)))
        (found,) = driver.perform(Fetch(HERE, (Range(EVENT, after=(2,)),)))
        assert [(record.key[0], record.body) for record in found] == [(11, b"11"), (300, b"300")]
        assert rows.commit(driver, Check(EVENT, (11,), Expect.PRESENT))
        assert not rows.commit(driver, Check(EVENT, (10,), Expect.PRESENT))

    def test_the_space_of_a_server_is_its_own(self, driver: Driver) -> None:
        spaces = (SERVER, THREADS, STORE)
        places = [Partition(tenant, "p\0", space) for tenant in ("", "acme") for space in spaces]
        places += [Partition("acme", name, SERVER) for name in ("a", "z")]
        for n, at in enumerate(places):
            rows.store_ops(driver, rows.document("d", T + n), rows.event(n), at=at)
        server = sorted(at for at in places if at.space == SERVER)
        assert [f.partition for f in driver.perform(FindThreads(None, space=SERVER))] == server
        of_acme = [at for at in server if at.tenant == "acme"]
        assert [f.partition for f in driver.perform(FindThreads("acme", space=SERVER))] == of_acme
        (second,) = driver.perform(FindThreads("acme", space=SERVER, after=of_acme[0], limit=1))
        assert second.partition == of_acme[1]
        (prefixed,) = driver.perform(FindThreads("acme", space=SERVER, prefix="a"))
        assert prefixed.partition == of_acme[0]
        driver.perform(Drop(of_acme[1]))
        left = [at for at in server if at != of_acme[1]]
        assert [f.partition for f in driver.perform(FindThreads(None, space=SERVER))] == left
        for n, at in enumerate(places):
            gone = at == of_acme[1]
            (documents, events) = driver.perform(Fetch(at, (Range(DOCUMENT), Range(EVENT))))
            assert [r.fields["updated_at"] for r in documents] == ([] if gone else [T + n]), at
            assert [r.key for r in events] == ([] if gone else [(n,)]), at

    def test_a_dropped_partition_leaves_no_document_and_no_event(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.document("d", T), rows.event(1), at=PLACE)
        driver.perform(Drop(PLACE))
        rows.store_ops(driver, rows.document("e", T), at=PLACE)
        assert newest(driver) == ["e"]
        assert rows.keys(driver, Range(EVENT), PLACE) == []
        assert rows.get(driver, DOCUMENT, "threads", "d", at=PLACE) is None
        assert driver.perform(Fetch(PLACE, (Get(EVENT, (1,)),))) == ((),)
