"""Contract of the store's storage: its space of partitions, namespaces by prefix, items that expire."""

from __future__ import annotations

import pytest

from perdure.model.ops import (
    Commit,
    Delete,
    Drop,
    Expect,
    Expectation,
    Fetch,
    FindExpired,
    FindThreads,
    Get,
    Put,
    Range,
)
from perdure.model.records import ITEM, STORE, TAG, Partition
from perdure.storage.port import Driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import NAMES

SPACE = Partition("acme", "thread", STORE)
"""A namespace whose name is that of a thread of the same tenant."""

NAMESPACES = (
    "A\x01", "a\x01", "a\x01\x02\x02\x01", "a\x01a\x01", "a\x01b\x01", "a\x01b\x01c\x01", "a\x01bc\x01",
    "a\x01é\x01", "a\x01\U0010ffff\x01", "a\x02\x02\x01", "a \x01", "a%\x01", "a*\x01", "a[b]\x01", "a_\x01",
    "aa\x01", "ab\x01", "b\x01", "é\x01",
)  # fmt: skip
"""Names as the store makes them: each label, then a terminator below every character of a label."""

LATER = 7_000_000_000_000_000
"""A time far from now: a backend that removes expired items by itself leaves these alone."""

FOREIGN = Partition("bull", "a\x01", STORE)


def put_at(
    key: str,
    now: int,
    body: bytes = b"{}",
    *,
    expires_at: int | None = None,
    expect: Expectation = Expect.ANY,
) -> Put:
    """Return a put of an item at a time, which keeps the time of creation of the item that it overwrites."""
    ttl = None if expires_at is None else 60_000_000
    fields = {"created_at": now, "updated_at": now, "ttl": ttl, "expires_at": expires_at}
    return Put(ITEM, (key,), fields, body, expect, now, keep="created_at")


def item(key: str, body: bytes = b"{}", *, expires_at: int | None = None, version: int = 1) -> Put:
    ttl = None if expires_at is None else 60_000_000
    fields = {"created_at": LATER - 9, "updated_at": LATER - 5, "ttl": ttl, "expires_at": expires_at}
    return Put(ITEM, (key,), fields, body, version=version)


class Items:
    """Contract of the store's records. A backend that removes expired items by itself finds none of
    them, ever; any other finds them all."""

    def test_a_namespace_and_a_thread_of_one_name_are_apart(self, driver: Driver) -> None:
        thread = Partition(SPACE.tenant, SPACE.thread)
        rows.store_ops(driver, item("k", b"item"), rows.tag("t"), at=SPACE)
        assert rows.everything(driver, thread) == []
        assert rows.get(driver, ITEM, "k", at=thread) is None
        rows.store_ops(driver, item("k", b"thread"), rows.tag("t", Expect.ABSENT), at=thread)
        assert [f.partition for f in driver.perform(FindThreads("acme"))] == [thread]
        assert [f.partition for f in driver.perform(FindThreads("acme", space=STORE))] == [SPACE]
        rows.store_ops(driver, Delete(TAG, ("t",)), at=thread)
        assert rows.get(driver, TAG, "t", at=SPACE) is not None
        driver.perform(Drop(thread))
        found = rows.read(driver, ITEM, "k", at=SPACE)
        assert found.body == b"item"
        rows.store_ops(driver, rows.tag("t"), at=thread)
        driver.perform(Drop(SPACE))
        assert driver.perform(FindThreads(None, space=STORE)) == ()
        assert len(rows.everything(driver, thread)) == 1

    def test_an_item_comes_back_as_it_was_put(self, driver: Driver) -> None:
        puts = [item("plain", bytes(range(256))), item("timed", b"", expires_at=LATER, version=(1 << 53) - 1)]
        rows.store_ops(driver, *puts, at=SPACE)
        for put in puts:
            record = rows.read(driver, ITEM, *put.key, at=SPACE)
            assert dict(record.fields) == dict(put.fields)
            assert (record.version, record.body) == (put.version, put.body)

    def test_an_item_is_rewritten_and_deleted_by_its_version(self, driver: Driver) -> None:
        big = (1 << 52) + 1
        rows.store_ops(driver, item("k", version=big), at=SPACE)
        assert not rows.commit(driver, item("k", b"no", version=3)._replace(expect=big - 1), at=SPACE)
        assert not rows.commit(driver, Delete(ITEM, ("k",), big + 1), at=SPACE)
        # Versions of items are drawn, not counted: the next one may be smaller.
        rows.store_ops(driver, item("k", b"new", version=2)._replace(expect=big), at=SPACE)
        record = rows.read(driver, ITEM, "k", at=SPACE)
        assert (record.version, record.body) == (2, b"new")
        rows.store_ops(driver, Delete(ITEM, ("k",), 2), at=SPACE)
        rows.store_ops(driver, Delete(ITEM, ("k",)), at=SPACE)
        assert rows.get(driver, ITEM, "k", at=SPACE) is None

    def test_a_whole_key_as_a_prefix_is_that_record(self, driver: Driver) -> None:
        rows.store_ops(
            driver, *(item(name, b"large", version=n + 1) for n, name in enumerate(NAMES)), at=SPACE
        )
        ranges = tuple(Range(ITEM, (name,), bodies=False) for name in NAMES)
        answers = driver.perform(Fetch(SPACE, ranges))
        assert [[(r.key, r.version, r.body) for r in answer] for answer in answers] == [
            [((name,), n + 1, b"")] for n, name in enumerate(NAMES)
        ]
        assert driver.perform(Fetch(SPACE, (Range(ITEM, ("absent",), bodies=False),))) == ((),)

    def test_items_are_paged_in_order_of_their_keys(self, driver: Driver) -> None:
        rows.store_ops(driver, *(item(name) for name in reversed(NAMES)), at=SPACE)
        paged: list[tuple[str, ...]] = []
        while page := rows.keys(
            driver, Range(ITEM, after=paged[-1] if paged else None, limit=4, bodies=False), at=SPACE
        ):
            assert len(page) <= 4
            paged += page
        assert paged == [(name,) for name in sorted(NAMES)]

    def test_namespaces_are_found_by_prefix_in_order_and_in_pages(self, driver: Driver) -> None:
        for name in reversed(NAMESPACES):
            rows.store_ops(driver, item("k"), at=Partition("acme", name, STORE))
            rows.store_ops(driver, rows.tag("t"), at=Partition("acme", name))
        rows.store_ops(driver, item("k"), at=FOREIGN)
        prefixes = ("", "\x01", "a\x01", "a\x01b\x01", "a\x01b\x01c\x01", "a\x02\x02\x01", "zz\x01", "é\x01")
        for prefix in prefixes:
            expected = [n for n in sorted(NAMESPACES) if n.startswith(prefix)]
            for size in (1, 3, 1000):
                assert self._read_pages(driver, "acme", prefix, size) == [("acme", n) for n in expected]
            foreign = [("bull", n) for n in (FOREIGN.thread,) if n.startswith(prefix)]
            assert self._read_pages(driver, None, prefix, 2) == [("acme", n) for n in expected] + foreign
        assert self._read_pages(driver, "acm", "a\x01", 5) == []

    def test_a_page_begins_after_a_name_that_need_not_exist(self, driver: Driver) -> None:
        for name in NAMESPACES:
            rows.store_ops(driver, item("k"), at=Partition("acme", name, STORE))
        inside = [n for n in sorted(NAMESPACES) if n.startswith("a\x01")]
        for after in ("", "A", "a\x01", "a\x01az", "a\x01b\x02", "a\x02", "b\x01", "\U0010ffff"):
            place = Partition("acme", after, STORE)
            found = driver.perform(FindThreads("acme", after=place, space=STORE, prefix="a\x01", limit=50))
            assert [f.partition.thread for f in found] == [n for n in inside if n > after]

    def test_an_expired_item_is_found_and_removed_unless_it_was_renewed(self, driver: Driver) -> None:
        """An item is found by its expiry, and deleted on condition that the expiry is unchanged."""
        other = Partition("acme", "b\x01", STORE)
        rows.store_ops(
            driver,
            item("never"),
            item("early", expires_at=LATER - 1),
            item("now", expires_at=LATER),
            item("late", expires_at=LATER + 1),
            at=SPACE,
        )
        rows.store_ops(driver, item("early", expires_at=LATER - 2), at=other)
        rows.store_ops(driver, item("early", expires_at=LATER - 2), at=FOREIGN)
        finds = bool(driver.perform(FindExpired(None, until=LATER)))
        due = {(SPACE, "early", LATER - 1), (SPACE, "now", LATER), (other, "early", LATER - 2)}
        self._check_expired(driver, finds, "acme", due)
        self._check_expired(driver, finds, "bull", {(FOREIGN, "early", LATER - 2)})
        self._check_expired(driver, finds, None, {*due, (FOREIGN, "early", LATER - 2)})
        self._check_expired(driver, finds, "acme", set(), until=LATER - 3)
        page = driver.perform(FindExpired("acme", until=LATER, limit=2))
        assert len(page) == (2 if finds else 0)

        renewed = item("early", expires_at=LATER + 9, version=2)
        rows.store_ops(driver, renewed, at=SPACE)
        stale = Delete(ITEM, ("early",), unchanged={"expires_at": LATER - 1})
        assert not rows.commit(driver, Delete(ITEM, ("now",)), stale, at=SPACE)
        assert not rows.commit(driver, Delete(ITEM, ("none",), unchanged={"expires_at": LATER}), at=SPACE)
        assert rows.get(driver, ITEM, "now", at=SPACE) is not None
        rows.store_ops(driver, Delete(ITEM, ("now",), unchanged={"expires_at": LATER}), at=SPACE)
        rows.store_ops(driver, item("early", expires_at=None, version=3), at=other)
        assert len(rows.keys(driver, Range(ITEM), at=SPACE)) == 3
        self._check_expired(driver, finds, "acme", set())
        driver.perform(Drop(FOREIGN))
        self._check_expired(driver, finds, None, set())

    def test_what_a_batch_deletes_is_no_longer_due(self, driver: Driver) -> None:
        keys = [f"k{n}" for n in range(40)]
        rows.store_ops(driver, *(item(key, expires_at=LATER - n) for n, key in enumerate(keys)), at=SPACE)
        ops = [
            Delete(ITEM, (key,), unchanged={"expires_at": LATER - n}) for n, key in enumerate(keys) if n % 2
        ]
        driver.perform(Commit(SPACE, tuple(ops)))
        finds = bool(driver.perform(FindExpired(None, until=LATER)))
        kept = {(SPACE, key, LATER - n) for n, key in enumerate(keys) if not n % 2}
        self._check_expired(driver, finds, "acme", kept)
        answers = driver.perform(Fetch(SPACE, tuple(Get(ITEM, (key,)) for key in keys)))
        assert [len(answer) for answer in answers] == [1, 0] * 20

    def test_a_put_keeps_a_field_of_the_item_that_it_overwrites(self, driver: Driver) -> None:
        if not driver.capabilities.keeps_fields:
            pytest.skip("the driver keeps no field of a record that it overwrites")
        first, second = LATER - 50, LATER - 40
        for n in range(0, 200, 2):
            rows.store_ops(driver, put_at(f"k{n}", first + n % 5, b"old"), at=SPACE)
        puts = [put_at(f"k{n}", second, b"new") for n in range(200)]
        rows.store_ops(driver, *puts, item("plain"), at=SPACE)
        (found,) = driver.perform(Fetch(SPACE, (Range(ITEM),)))
        by_key = {record.key[0]: record for record in found}
        assert len(by_key) == 201
        for n in range(200):
            record = by_key[f"k{n}"]
            assert (record.body, record.version, record.fields["updated_at"]) == (b"new", second, second)
            assert record.fields["created_at"] == (second if n % 2 else first + n % 5)
        rows.store_ops(driver, item("k0"), at=SPACE)
        again = rows.read(driver, ITEM, "k0", at=SPACE)
        assert again.fields["created_at"] == LATER - 9, "a put that keeps nothing kept something"

    def test_nothing_is_kept_of_an_item_that_has_expired(self, driver: Driver) -> None:
        if not driver.capabilities.keeps_fields:
            pytest.skip("the driver keeps no field of a record that it overwrites")
        for now, expires_at, created in (
            (LATER - 50, LATER - 30, LATER - 50),
            (LATER - 31, LATER - 20, LATER - 50),
            (LATER - 20, None, LATER - 20),
            (LATER - 10, LATER - 5, LATER - 20),
        ):
            rows.store_ops(driver, put_at("k", now, expires_at=expires_at), at=SPACE)
            record = rows.read(driver, ITEM, "k", at=SPACE)
            assert (record.fields["created_at"], record.fields["updated_at"]) == (created, now)
            assert record.fields["expires_at"] == expires_at

    def test_a_put_that_keeps_a_field_has_its_expectation(self, driver: Driver) -> None:
        if not driver.capabilities.keeps_fields:
            pytest.skip("the driver keeps no field of a record that it overwrites")
        born, later = LATER - 50, LATER - 40
        rows.store_ops(driver, put_at("k", born), at=SPACE)
        for expect in (Expect.ABSENT, born + 1):
            assert not rows.commit(driver, put_at("k", later, b"late", expect=expect), at=SPACE)
        before = rows.read(driver, ITEM, "k", at=SPACE)
        assert (before.body, before.version) == (b"{}", born)
        rows.store_ops(driver, put_at("k", later, b"new", expect=born), at=SPACE)
        after = rows.read(driver, ITEM, "k", at=SPACE)
        assert (after.body, after.version, after.fields["created_at"]) == (b"new", later, born)

    def _read_pages(
        self, driver: Driver, tenant: str | None, prefix: str, size: int
    ) -> list[tuple[str, str]]:
        out: list[Partition] = []
        while page := driver.perform(
            FindThreads(tenant, after=out[-1] if out else None, limit=size, space=STORE, prefix=prefix)
        ):
            assert len(page) <= size
            assert all(f.partition.space == STORE for f in page)
            out += [f.partition for f in page]
        return [(at.tenant, at.thread) for at in out]

    def _check_expired(
        self,
        driver: Driver,
        finds: bool,
        tenant: str | None,
        expected: set[tuple[Partition, str, int]],
        until: int = LATER,
    ) -> None:
        answer = driver.perform(FindExpired(tenant, until=until))
        found = [(f.partition, f.record.key[0], f.record.fields["expires_at"]) for f in answer if f.record]
        assert len(found) == len(answer)
        assert len(set(found)) == len(found)
        assert set(found) == (expected if finds else set())
