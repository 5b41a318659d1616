"""Contract of commits, with versions, expectations and atomicity, and of staging."""

from __future__ import annotations

from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Expectation, Op, Range, Refused, Stage
from perdure.model.records import CHECKPOINT, CHUNK, GC, HEAD, TAG, WRITE
from perdure.storage.port import Driver
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE


class Committing:
    """Contract of ``Commit`` and ``Stage``."""

    def test_a_commit_is_read_by_the_next_fetch(self, driver: Driver) -> None:
        for version in range(1, 20):
            rows.store_ops(driver, rows.gc(version))
            record = rows.read(driver, GC)
            assert record.version == version

    def test_an_empty_commit_holds(self, driver: Driver) -> None:
        assert rows.commit(driver)
        assert rows.everything(driver) == []

    def test_a_put_replaces_the_whole_record(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.checkpoint("c", 1, body=b"long body", run_id="run"))
        rows.store_ops(driver, rows.checkpoint("c", 2, body=b"short"))
        record = rows.read(driver, CHECKPOINT, "", "c")
        assert (record.fields["seq"], record.fields["run_id"], record.body) == (2, None, b"short")

    def test_the_writer_names_the_version(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.head(version=1 << 40))
        rows.store_ops(driver, rows.head(version=3, expect=1 << 40))
        record = rows.read(driver, HEAD, "")
        assert record.version == 3

    def test_every_expectation_of_a_put(self, driver: Driver) -> None:
        absent: dict[Expectation, bool]
        absent = {Expect.ANY: True, Expect.ABSENT: True, Expect.PRESENT: False, 1: False}
        for n, (expect, holds) in enumerate(absent.items()):
            assert rows.commit(driver, rows.tag(f"new{n}", expect)) is holds, f"{expect} on an absent record"
            assert (rows.get(driver, TAG, f"new{n}") is not None) is holds
        present: dict[Expectation, bool] = {
            Expect.ANY: True, Expect.ABSENT: False, Expect.PRESENT: True,
            5: True, 4: False, 6: False, 0: False,
        }  # fmt: skip
        for n, (expect, holds) in enumerate(present.items()):
            rows.store_ops(driver, rows.tag(f"old{n}", version=5))
            assert rows.commit(driver, rows.tag(f"old{n}", expect, version=9)) is holds, (
                f"{expect} on version 5"
            )
            record = rows.read(driver, TAG, f"old{n}")
            assert record.version == (9 if holds else 5)

    def test_every_expectation_of_a_delete_and_a_check(self, driver: Driver) -> None:
        cases: list[tuple[Expectation, bool, bool]] = [
            (Expect.ANY, True, True), (Expect.ABSENT, True, False), (Expect.PRESENT, False, True),
            (5, False, True), (4, False, False),
        ]  # fmt: skip
        for n, (expect, if_absent, if_present) in enumerate(cases):
            rows.store_ops(driver, rows.tag(f"t{n}", version=5))
            assert rows.commit(driver, Check(TAG, ("none",), expect)) is if_absent, f"check {expect}, absent"
            assert rows.commit(driver, Check(TAG, (f"t{n}",), expect)) is if_present, (
                f"check {expect}, present"
            )
            assert rows.get(driver, TAG, f"t{n}") is not None, "a check removed its record"
            assert rows.commit(driver, Delete(TAG, ("none",), expect)) is if_absent, (
                f"delete {expect}, absent"
            )
            assert rows.commit(driver, Delete(TAG, (f"t{n}",), expect)) is if_present, (
                f"delete {expect}, present"
            )
            assert (rows.get(driver, TAG, f"t{n}") is None) is if_present

    def test_kinds_without_versions_are_expected_by_presence(self, driver: Driver) -> None:
        assert not rows.commit(driver, Check(CHECKPOINT, ("", "c"), Expect.PRESENT))
        assert rows.commit(driver, rows.checkpoint("c", expect=Expect.ABSENT))
        assert rows.commit(driver, Check(CHECKPOINT, ("", "c"), Expect.PRESENT))
        assert not rows.commit(driver, rows.checkpoint("c", expect=Expect.ABSENT))

    def test_a_refusal_names_the_first_expectation_that_failed(self, driver: Driver) -> None:
        ops: tuple[Op, ...] = (
            rows.tag("fine"),
            Check(HEAD, ("a",), 3),
            rows.tag("bad", Expect.PRESENT),
            Check(GC, (), Expect.ABSENT),
        )
        assert driver.perform(Commit(HERE, ops)) == Refused(HEAD, ("a",))
        rows.store_ops(driver, rows.head("a", version=3))
        assert driver.perform(Commit(HERE, ops)) == Refused(TAG, ("bad",))
        rows.store_ops(driver, rows.tag("bad"))
        assert driver.perform(Commit(HERE, ops)) == Committed()

    def test_a_refused_commit_writes_nothing_wherever_it_fails(self, driver: Driver) -> None:
        rows.store_ops(driver, *rows.every_kind("old"), rows.tag("gone"))
        before = rows.everything(driver)
        changes: list[Op] = [*rows.every_kind("new", 2), rows.head("old", "moved", 9), Delete(TAG, ("gone",))]
        for place in range(len(changes) + 1):
            ops = [*changes[:place], Check(TAG, ("never",), Expect.PRESENT), *changes[place:]]
            assert not rows.commit(driver, *ops)
            assert rows.everything(driver) == before, (
                f"a refused commit wrote; its failing check stood at {place}"
            )

    def test_expectations_are_of_the_state_before_the_commit(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.head(version=1))
        ops = (
            rows.head(version=2, expect=1),
            rows.head("n", version=2, expect=Expect.ABSENT),
            Delete(TAG, ("t",), Expect.ABSENT),
            rows.gc(1, Expect.ABSENT),
        )
        assert rows.commit(driver, *ops)
        assert not rows.commit(driver, *ops)

    def test_a_compare_and_set_chain_has_no_second_winner(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.head(version=1))
        for version in range(1, 10):
            assert rows.commit(driver, rows.head(version=version + 1, expect=version))
            assert not rows.commit(driver, rows.head(version=version + 1, expect=version))

    def test_a_delete_demands_unchanged_fields(self, driver: Driver) -> None:
        digest = b"d" * 16
        rows.store_ops(driver, rows.chunk(digest, 3))
        assert not rows.commit(driver, Delete(CHUNK, (digest,), unchanged={"generation": 2}))
        assert not rows.commit(driver, Delete(CHUNK, (b"e" * 16,), unchanged={"generation": 3}))
        rows.store_ops(driver, rows.chunk(digest, 4))
        assert not rows.commit(driver, Delete(CHUNK, (digest,), unchanged={"generation": 3}))
        assert rows.get(driver, CHUNK, digest) is not None
        assert rows.commit(driver, Delete(CHUNK, (digest,), unchanged={"generation": 4}))
        assert rows.get(driver, CHUNK, digest) is None

    def test_one_changed_record_refuses_the_deletes_of_all(self, driver: Driver) -> None:
        digests = [bytes([n]) * 16 for n in range(21)]
        rows.store_ops(driver, *(rows.chunk(digest, 3) for digest in digests))
        rows.store_ops(driver, rows.chunk(digests[17], 4))
        deletes = [Delete(CHUNK, (digest,), unchanged={"generation": 3}) for digest in digests]
        assert not rows.commit(driver, *deletes)
        assert len(rows.keys(driver, Range(CHUNK))) == 21
        del deletes[17]
        assert rows.commit(driver, *deletes)
        assert rows.keys(driver, Range(CHUNK)) == [(digests[17],)]

    def test_a_delete_demands_every_unchanged_field_and_its_version(self, driver: Driver) -> None:
        rows.store_ops(driver, rows.head("", "c", 1, version=2))
        for expect, unchanged in (
            (Expect.ANY, {"checkpoint_id": "c", "seq": 2}),
            (Expect.ANY, {"checkpoint_id": "b", "seq": 1}),
            (1, {"checkpoint_id": "c", "seq": 1}),
        ):
            assert not rows.commit(driver, Delete(HEAD, ("",), expect, unchanged))
        assert rows.commit(driver, Delete(HEAD, ("",), 2, {"checkpoint_id": "c", "seq": 1}))

    def test_a_growing_field_never_shrinks(self, driver: Driver) -> None:
        digest = b"d" * 16
        for generation, expected in ((5, 5), (3, 5), (7, 7), (6, 7)):
            rows.store_ops(driver, rows.chunk(digest, generation))
            record = rows.read(driver, CHUNK, digest)
            assert (record.fields["generation"], record.body) == (expected, b"bytes")

    def test_staged_chunks_are_visible_and_staging_is_repeatable(self, driver: Driver) -> None:
        puts = tuple(rows.chunk(bytes((n,)) * 16, 2, bytes((n,)) * 100) for n in range(50))
        for _ in range(3):
            driver.perform(Stage(HERE, puts))
        for put in puts:
            record = rows.get(driver, CHUNK, *put.key)
            assert record is not None, "a staged chunk is not there"
            assert (record.body, record.fields["generation"]) == (put.body, 2)
        driver.perform(Stage(HERE, (rows.chunk(puts[0].key[0], 1, puts[0].body),)))
        driver.perform(Stage(HERE, (rows.chunk(puts[1].key[0], 3, puts[1].body),)))
        ages = [r.fields["generation"] for put in puts[:2] if (r := rows.get(driver, CHUNK, *put.key))]
        assert ages == [2, 3]

    def test_staging_changes_nothing_else(self, driver: Driver) -> None:
        rows.store_ops(driver, *rows.every_kind())
        before = rows.everything(driver)
        driver.perform(Stage(HERE, (rows.chunk(b"s" * 16),)))
        assert [r for r in rows.everything(driver) if r.key != (b"s" * 16,)] == before

    def test_one_operation_a_key(self, driver: Driver) -> None:
        del driver  # The request itself refuses, so no driver ever meets it.
        for pair in ((rows.tag("t"), rows.tag("t")), (rows.tag("t"), Check(TAG, ("t",), Expect.ABSENT))):
            try:
                Commit(HERE, pair)
            except ValueError:
                continue
            raise AssertionError("a commit took two operations on one key")
        Commit(HERE, (rows.tag("t"), rows.head("t")))

    def test_a_commit_of_many_operations_holds_as_one(self, driver: Driver) -> None:
        count = min(driver.limits.ops - 1, 2000)
        puts = [rows.write("t", i) for i in range(count)]
        assert not rows.commit(driver, *puts, Check(GC, (), Expect.PRESENT))
        assert rows.everything(driver) == []
        rows.store_ops(driver, *puts)
        assert len(rows.everything(driver)) == count
        rows.store_ops(driver, *(Delete(WRITE, put.key, 1) for put in puts))
        assert rows.everything(driver) == []
