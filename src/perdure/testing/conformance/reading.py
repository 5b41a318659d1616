"""Contract of fetches: keys, ranges, orders, pages, bodies."""

from __future__ import annotations

from random import Random

from perdure.model.ops import Fetch, Get, Range
from perdure.model.records import CHECKPOINT, CHUNK, GC, HEAD, TAG, WRITE, Partition
from perdure.model.values.compression import decompress
from perdure.storage.port import Driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE, NAMES


class Reading:
    """Contract of ``Fetch``."""

    def test_an_absent_partition_answers_each_item_with_nothing(self, driver: Driver) -> None:
        items = (Get(HEAD, ("",)), Range(CHECKPOINT), Get(GC, ()))
        assert driver.perform(Fetch(HERE, items)) == ((), (), ())

    def test_answers_come_in_the_order_of_the_items(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.tag("a"), rows.tag("b"), rows.gc(7), rows.head("", "c9", 3, version=5))
        answers = driver.perform(
            Fetch(
                HERE, (Get(TAG, ("b",)), Get(TAG, ("none",)), Get(GC, ()), Get(TAG, ("a",)), Get(HEAD, ("",)))
            )
        )
        assert [[r.key for r in answer] for answer in answers] == [[("b",)], [], [()], [("a",)], [("",)]]
        assert answers[2][0].version == 7
        assert answers[4][0].version == 5
        assert dict(answers[4][0].fields) == {"checkpoint_id": "c9", "seq": 3}

    def test_many_keys_are_fetched_at_once_and_in_order(self, driver: Driver) -> None:
        digests = [bytes((i % 251, i // 251)) * 8 for i in range(700)]
        rows.store_records(driver, *(rows.chunk(d, body=d) for d in digests[::2]))
        answers = driver.perform(Fetch(HERE, tuple(Get(CHUNK, (d,)) for d in digests)))
        assert [answer[0].body if answer else None for answer in answers] == [
            d if i % 2 == 0 else None for i, d in enumerate(digests)
        ]

    def test_one_key_asked_for_twice_is_answered_twice(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.chunk(b"d" * 16))
        answers = driver.perform(Fetch(HERE, (Get(CHUNK, (b"d" * 16,)),) * 20))
        assert [len(answer) for answer in answers] == [1] * 20

    def test_every_column_comes_back_as_it_was_put(self, driver: Driver) -> None:
        put = rows.checkpoint("id", 1 << 40, namespace="n|s:1", body=bytes(range(256)), run_id="run")
        rows.store_ops(driver, put)
        record = rows.read(driver, CHECKPOINT, "n|s:1", "id")
        assert (record.kind, record.key, record.version, record.body) == (CHECKPOINT, put.key, 0, put.body)
        assert dict(record.fields) == dict(put.fields)
        empty = rows.checkpoint("empty", body=b"")
        rows.store_ops(driver, empty)
        found = rows.read(driver, CHECKPOINT, "", "empty")
        assert found.body == b""
        assert found.fields["run_id"] is None

    def test_integers_of_64_bits_come_back(self, driver: Driver) -> None:
        for number in (-(1 << 63), -1, 0, (1 << 63) - 1):
            rows.store_ops(driver, rows.checkpoint("id", number))
            record = rows.read(driver, CHECKPOINT, "", "id")
            assert record.fields["seq"] == number

    def test_text_is_ordered_by_code_point(self, driver: Driver) -> None:
        rows.store_ops(driver, *(rows.tag(name) for name in NAMES))
        expected = [(name,) for name in sorted(NAMES)]
        assert rows.keys(driver, Range(TAG)) == expected
        assert rows.keys(driver, Range(TAG, reverse=True)) == expected[::-1]

    def test_every_name_is_a_key_of_its_own(self, driver: Driver) -> None:
        for place, name in enumerate(NAMES):
            rows.store_ops(driver, rows.head(name, f"c{place}", place))
        for place, name in enumerate(NAMES):
            record = rows.get(driver, HEAD, name)
            assert record is not None, f"the key {name!r} was not found"
            assert record.key == (name,)
            assert record.fields["seq"] == place

    def test_parts_of_a_key_do_not_run_into_each_other(self, driver: Driver) -> None:
        pairs = [(a, b) for a in ("", "a", "a\0", "a\0b") for b in ("", "b", "\0b", "\0")]
        rows.store_ops(driver, *(rows.checkpoint(b, i, namespace=a) for i, (a, b) in enumerate(pairs)))
        for place, pair in enumerate(pairs):
            record = rows.read(driver, CHECKPOINT, *pair)
            assert record.fields["seq"] == place
        assert rows.keys(driver, Range(CHECKPOINT, ("a",))) == sorted(p for p in pairs if p[0] == "a")

    def test_long_names_are_told_apart_to_their_last_letter(self, driver: Driver) -> None:
        left, right = "n" * 3000 + "a", "n" * 3000 + "b"
        rows.store_ops(driver, rows.tag(right), rows.tag(left))
        assert rows.keys(driver, Range(TAG)) == [(left,), (right,)]
        assert rows.get(driver, TAG, left[:-1]) is None

    def test_bytes_are_ordered_as_unsigned_numbers(self, driver: Driver) -> None:
        digests = [b"", b"\0", b"\0\0", b"\0\x01", b"\x7f", b"\x80", b"\xff", b"\xff\0"]
        rows.store_ops(driver, *(rows.chunk(d) for d in reversed(digests)))
        assert rows.keys(driver, Range(CHUNK)) == [(d,) for d in digests]

    def test_each_kind_is_read_whole_whichever_was_read_before(self, driver: Driver) -> None:
        first, second = rows.every_kind("a"), rows.every_kind("b", 2)
        assert {put.kind for put in first} == set(rows.OF_THREADS)
        expected = {(put.kind.name, put.key) for put in (*first, *second)}
        for kind in rows.OF_THREADS:
            at = Partition("acme", kind.name)
            rows.store_ops(driver, *first, at=at)
            rows.keys(driver, Range(kind), at)
            rows.store_ops(driver, *second, at=at)
            found = {(record.kind.name, record.key) for record in rows.everything(driver, at)}
            assert found == expected, f"after a read of {kind.name}"

    def test_integers_in_a_key_are_ordered_as_numbers(self, driver: Driver) -> None:
        slots = [-1000, -4, -1, 0, 1, 2, 10, 100]
        rows.store_ops(driver, *(rows.write("task", i) for i in reversed(slots)))
        assert [key[3] for key in rows.keys(driver, Range(WRITE, ("", "c")))] == slots

    def test_a_prefix_is_whole_parts_of_the_key(self, driver: Driver) -> None:
        rows.store_ops(
            driver,
            *(
                rows.write(task, i, at=at, namespace=ns)
                for ns in ("", "n")
                for at in ("c", "cc")
                for task in "pq"
                for i in (0, 1)
            ),
        )
        assert len(rows.keys(driver, Range(WRITE))) == 16
        assert len(rows.keys(driver, Range(WRITE, ("n",)))) == 8
        assert rows.keys(driver, Range(WRITE, ("", "c"))) == [("", "c", t, i) for t in "pq" for i in (0, 1)]
        assert rows.keys(driver, Range(WRITE, ("", "c", "q"))) == [("", "c", "q", 0), ("", "c", "q", 1)]
        assert rows.keys(driver, Range(WRITE, ("", "c", "q", 1))) == [("", "c", "q", 1)]
        assert rows.keys(driver, Range(WRITE, ("", "none"))) == []

    def test_pages_of_a_range_join_without_gap_or_overlap(self, driver: Driver) -> None:
        rows.store_ops(driver, *(rows.tag(name) for name in NAMES))
        for reverse in (False, True):
            whole = rows.keys(driver, Range(TAG, reverse=reverse))
            for size in (1, 2, 7, len(NAMES), len(NAMES) + 1):
                paged = []
                after = None
                while page := rows.keys(driver, Range(TAG, reverse=reverse, after=after, limit=size)):
                    assert len(page) <= size
                    paged += page
                    after = page[-1]
                assert paged == whole

    def test_after_a_key_that_is_not_stored_comes_the_next_one(self, driver: Driver) -> None:
        rows.store_ops(driver, *(rows.tag(name) for name in "bdf"))
        assert rows.keys(driver, Range(TAG, after=("c",))) == [("d",), ("f",)]
        assert rows.keys(driver, Range(TAG, after=("c",), reverse=True)) == [("b",)]
        assert rows.keys(driver, Range(TAG, after=("f",))) == []

    def test_a_key_of_several_parts_is_continued_part_by_part(self, driver: Driver) -> None:
        rows.store_ops(driver, *(rows.write(task, i) for task in ("s", "t") for i in (-1, 0, 1)))
        whole = rows.keys(driver, Range(WRITE, ("", "c")))
        for place, key in enumerate(whole):
            assert rows.keys(driver, Range(WRITE, ("", "c"), after=key)) == whole[place + 1 :]
            assert rows.keys(driver, Range(WRITE, after=key)) == whole[place + 1 :]
            assert rows.keys(driver, Range(WRITE, ("", "c"), after=key, reverse=True)) == whole[:place][::-1]

    def test_a_declared_field_orders_a_range(self, driver: Driver) -> None:
        # Ids descend while seq ascends, so a driver that orders by id fails.
        ids = {seq: f"id{9 - seq}" for seq in range(9)}
        rows.store_ops(driver, *(rows.checkpoint(ids[seq], seq) for seq in (3, 0, 8, 5, 1, 7, 2, 6, 4)))
        rows.store_ops(driver, rows.checkpoint("other", 4, namespace="n"))

        def find(**options: object) -> list[int]:
            item = Range(CHECKPOINT, ("",), "seq", **options)  # type: ignore[arg-type]
            (answer,) = driver.perform(Fetch(HERE, (item,)))
            assert all(record.key == ("", ids[record.fields["seq"]]) for record in answer)
            return [record.fields["seq"] for record in answer]

        assert find() == list(range(9))
        assert find(reverse=True) == list(range(8, -1, -1))
        assert find(after=5) == [6, 7, 8]
        assert find(after=5, reverse=True) == [4, 3, 2, 1, 0]
        assert find(after=5, reverse=True, limit=2) == [4, 3]
        assert find(limit=1, reverse=True) == [8]

    def test_a_limit_of_none_is_no_limit(self, driver: Driver) -> None:
        rows.store_records(driver, *(rows.chunk(i.to_bytes(16, "big"), body=b"") for i in range(1500)))
        assert len(rows.keys(driver, Range(CHUNK))) == 1500
        assert len(rows.keys(driver, Range(CHUNK, limit=1200))) == 1200

    def test_bodies_can_be_left_out(self, driver: Driver) -> None:
        rows.store_ops(
            driver, rows.checkpoint("c", 4, body=b"large"), rows.write("t", 0, body=b"large", version=3)
        )
        answers = driver.perform(Fetch(HERE, (Range(CHECKPOINT, bodies=False), Range(WRITE, bodies=False))))
        (found,), (pending,) = answers
        assert (found.body, found.fields["seq"]) == (b"", 4)
        assert (pending.body, pending.version, pending.fields["channel"]) == (b"", 3, "x")

    def test_big_bodies_come_back_whole(self, driver: Driver) -> None:
        size = min(driver.limits.bytes // 2, 3 << 20)
        # Some drivers compress chunks, which makes only the first body smaller; some store large ones in
        # parts.
        bodies = [b"\xff" * size, Random(1).randbytes(size)]
        rows.store_ops(driver, *(rows.chunk(bytes((n,)) * 16, body=body) for n, body in enumerate(bodies)))
        for n, body in enumerate(bodies):
            record = rows.read(driver, CHUNK, bytes((n,)) * 16)
            assert body in (record.body, decompress(record.body))
