"""What the store asks of a backend: how often, how much of it, and what it leaves when it is cut short."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest
from langgraph.store.base import GetOp, Op, PutOp

from perdure.engine.items import items
from perdure.engine.transact import Budget
from perdure.errors import TooLarge, Unavailable
from perdure.langgraph.search.index import SearchIndex
from perdure.langgraph.store import PerdureStore
from perdure.model.ops import Commit, Delete, Expect, Fetch, FindExpired, Get, Put, Range
from perdure.model.program import Effect
from perdure.model.records import DOCUMENT, ITEM, Record
from perdure.model.store_items import Write, name_of, partition_of
from perdure.storage.encryption import DataKeys, EncryptedDriver, Keyring
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits, Driver, WrappingDriver, run
from perdure.testing.conformance import Backend, Narrow
from perdure.testing.conformance.expiry import Hand
from perdure.testing.conformance.store_operations import HOME, keys, there
from perdure.testing.faults import FaultyDriver
from tests.backends import fresh

AT = partition_of("", HOME)
R = TypeVar("R")
WIDE = Budget(1000, 1 << 20)


def _embed(texts: list[str]) -> list[list[float]]:
    return [[1.0, float(len(text))] for text in texts]


class Watched:
    """A store over a driver that keeps no fields, and the effects of its last call."""

    def __init__(self, driver: Any = None, **options: Any) -> None:
        self.effects: list[Effect[Any]] = []
        self.driver = driver or MemoryDriver()
        wrapped = FaultyDriver(self.driver, on_effect=lambda _, effect: self.effects.append(effect))
        wrapped.capabilities = replace(wrapped.capabilities, keeps_fields=False)
        self.store: PerdureStore = Backend(wrapped).store(**options)

    def asked(self, call: Any) -> list[str]:
        self.effects.clear()
        call()
        return [type(effect).__name__ for effect in self.effects]


class Keeping(WrappingDriver):
    """A driver that records the requests, and keeps fields if the inner one does."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.effects: list[Effect[Any]] = []

    def perform(self, effect: Effect[R]) -> R:
        self.effects.append(effect)
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)


def stored(driver: MemoryDriver, key: str) -> Record | None:
    (answer,) = driver.perform(Fetch(AT, (Get(ITEM, (key,)),)))
    return answer[0] if answer else None


def test_each_operation_costs_few_trips() -> None:
    watched = Watched()
    store = watched.store
    assert watched.asked(lambda: store.put(HOME, "k", {})) == ["Fetch", "Commit"]
    assert watched.asked(lambda: store.put(HOME, "timed", {}, ttl=5)) == ["Fetch", "Commit"]
    assert watched.asked(lambda: store.get(HOME, "k")) == ["Fetch"]
    assert watched.asked(lambda: store.get(HOME, "timed", refresh_ttl=False)) == ["Fetch"]
    assert watched.asked(lambda: store.get(HOME, "timed")) == ["Fetch", "Commit"]
    assert watched.asked(lambda: store.delete(HOME, "none")) == ["Fetch"]
    assert watched.asked(lambda: store.delete(HOME, "timed")) == ["Fetch", "Commit"]
    assert watched.asked(lambda: store.search(HOME)) == ["FindThreads", "Fetch"]
    assert watched.asked(lambda: store.search(HOME, limit=1)) == ["FindThreads", "Fetch"]
    assert watched.asked(lambda: store.sweep_ttl()) == ["FindExpired"]
    gets: list[Op] = [GetOp(HOME, f"k{n}") for n in range(50)]
    assert watched.asked(lambda: store.batch(gets)) == ["Fetch"]
    puts: list[Op] = [PutOp(HOME, f"k{n}", {}) for n in range(50)]
    assert watched.asked(lambda: store.batch(puts)) == ["Fetch", "Commit"]


@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_a_put_reads_nothing_where_the_driver_keeps_the_time_of_creation(name: str) -> None:
    with fresh(name) as driver:
        watched = Keeping(driver)
        store = Backend(watched).store()
        puts: list[Op] = [PutOp(HOME, f"k{n}", {}) for n in range(50)]
        for _ in range(2):
            watched.effects.clear()
            store.batch(puts)
            assert [type(effect) for effect in watched.effects] == [Commit]
        item = there(store.get(HOME, "k0"))
        assert item.created_at < item.updated_at
        watched.effects.clear()
        # Whether there is anything to delete has to be read.
        store.batch([PutOp(HOME, "k0", {}), PutOp(HOME, "none", None)])
        assert [type(effect) for effect in watched.effects] == [Fetch, Commit]
        assert there(store.get(HOME, "k0")).created_at == item.created_at


@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_the_only_writer_of_an_index_does_not_read_its_generation(name: str) -> None:
    with fresh(name) as driver:
        watched = Keeping(driver)
        config: Any = {"dims": 2, "embed": _embed}
        mine, theirs = (Backend(watched).store(index=SearchIndex(config)) for _ in range(2))

        def put(store: PerdureStore, key: str) -> list[type[Effect[Any]]]:
            watched.effects.clear()
            store.put(HOME, key, {"text": key})
            return [type(effect) for effect in watched.effects]

        def found(store: PerdureStore) -> set[str]:
            return {item.key for item in store.search(HOME, query="a", limit=99)}

        assert [put(mine, f"m{n}") for n in range(2)] == [[Fetch, Commit], [Fetch, Commit]]
        assert [put(mine, f"m{n}") for n in range(2, 4)] == [[Commit], [Commit]]
        assert found(theirs) == {"m0", "m1", "m2", "m3"}
        # What others wrote is noticed by the commit, which is made once more.
        assert put(theirs, "t0") == [Fetch, Commit]
        assert put(mine, "m4") == [Commit, Fetch, Commit]
        assert found(theirs) == found(mine) == {"m0", "m1", "m2", "m3", "m4", "t0"}
        # Of writers that take turns none guesses.
        for n in range(3):
            assert put(theirs, f"u{n}") == [Fetch, Commit]
            assert put(mine, f"n{n}") == [Fetch, Commit]
        assert len(found(theirs)) == 12
        mine.delete(HOME, "m0")
        assert put(mine, "m5") == [Commit]
        Backend(watched).store().delete(HOME, "m1")
        assert put(mine, "m6") == [Commit, Fetch, Commit]
        assert found(theirs) == found(mine) == {item.key for item in mine.search(HOME, limit=99)}


def test_a_sealed_item_keeps_its_time_of_creation() -> None:
    with fresh("sqlite") as driver:
        store = Backend(EncryptedDriver(driver, Keyring(DataKeys.create(0)))).store()
        store.put(HOME, "k", {"n": 1})
        born = there(store.get(HOME, "k")).created_at
        store.put(HOME, "k", {"n": 2})
        item = there(store.get(HOME, "k"))
        assert (item.value, item.created_at) == ({"n": 2}, born)
        assert item.updated_at > born


def test_a_listing_reads_no_body_and_no_namespace_that_it_does_not_name() -> None:
    watched = Watched()
    store = watched.store
    for n in range(30):
        store.put(("mine", f"{n:02}"), "k", {"large": "x" * 999})
        store.put(("yours", f"{n:02}"), "k", {"large": "x" * 999})
    watched.asked(lambda: store.list_namespaces(prefix=("mine",), limit=5))
    reads = [effect for effect in watched.effects if isinstance(effect, Fetch)]
    assert len(reads) == 5
    assert all(effect.partition.thread.startswith(name_of(("mine",))) for effect in reads)
    assert all(isinstance(i, Range) and not i.bodies and i.limit for effect in reads for i in effect.items)
    watched.asked(lambda: store.search(("mine",)))
    reads = [effect for effect in watched.effects if isinstance(effect, Fetch)]
    assert all(effect.partition.thread.startswith(name_of(("mine",))) for effect in reads)
    # Cut to one label, each root is looked into once and the rest of it is skipped.
    asked = watched.asked(lambda: store.list_namespaces(max_depth=1))
    assert asked.count("Fetch") == 2
    assert asked.count("FindThreads") <= 3


def test_a_deep_page_reads_the_bodies_of_the_page_alone() -> None:
    watched = Watched()
    watched.store.batch([PutOp(HOME, f"k{n:03}", {"n": n}) for n in range(500)])
    found: list[Any] = []
    watched.asked(lambda: found.extend(watched.store.search(HOME, offset=400, limit=10)))
    assert keys(found) == [f"k{n:03}" for n in range(99, 89, -1)]
    gets = [i for e in watched.effects if isinstance(e, Fetch) for i in e.items if isinstance(i, Get)]
    assert len(gets) == 10
    ranges = [i for e in watched.effects if isinstance(e, Fetch) for i in e.items if isinstance(i, Range)]
    assert [i.bodies for i in ranges] == [True, False]


def test_a_rare_filter_is_one_look_where_the_database_can_tell_and_few_where_it_cannot() -> None:
    with fresh("sqlite") as driver:
        watched = Watched(driver)
        store = watched.store
        store.batch(
            [PutOp(HOME, f"k{n}", {"n": n, "t": f"2026-{n:05}", "in": {"n": n}}) for n in range(5000)]
        )
        for rare in (
            {"n": {"$lt": 3}},
            {"n": {"$lt": 3.5, "$gte": 0.5}},
            {"t": {"$lte": "2026-00002"}},
            {"n": 2},
        ):
            found: list[Any] = []
            assert watched.asked(lambda: found.extend(store.search(HOME, filter=rare))) == ["FindItems"]  # noqa: B023
            assert "k2" in keys(found)
            assert len(found) <= 3
        assert watched.asked(lambda: store.search(HOME, filter={"in": {"n": 2}})) == ["FindItems"] * 4


def test_a_refused_put_is_planned_anew_with_what_is_there_now() -> None:
    driver = MemoryDriver()
    program = items.write(AT, [Write("k", b"{}", at=50, version=9)], WIDE)
    assert isinstance(next(program), Fetch)
    first = program.send(((),))
    assert isinstance(first, Commit)
    assert first.ops[0].expect is Expect.ABSENT
    # Meanwhile another writer made the item.
    run(items.write(AT, [Write("k", b"[]", at=20, version=7)], WIDE), driver)
    refused = driver.perform(first)
    again = program.send(refused)
    assert isinstance(again, Fetch)
    second = program.send(driver.perform(again))
    assert isinstance(second, Commit)
    (put,) = second.ops
    assert isinstance(put, Put)
    assert put.expect == 7
    assert (put.fields["created_at"], put.fields["updated_at"]) == (20, 50)
    with pytest.raises(StopIteration):
        program.send(driver.perform(second))


def test_a_batch_that_is_cut_anywhere_leaves_whole_items() -> None:
    """Cut before every effect in turn: each item is the old one or the new one, and repeating mends it."""
    ops: list[Op] = [
        PutOp(HOME, "changed", {"v": "new"}),
        PutOp(HOME, "made", {"v": "new"}),
        PutOp(HOME, "gone", None),
        PutOp(("other",), "made", {"v": "new"}),
    ]
    for narrow in (False, True):
        for at in range(1, 40):
            memory = MemoryDriver()
            driver = Narrow(memory, CommitLimits(ops=3, bytes=100)) if narrow else memory
            clean = Backend(driver).store()
            clean.batch([PutOp(HOME, "changed", {"v": "old"}), PutOp(HOME, "gone", {"v": "old"})])

            def fail(n: int, effect: Effect[Any]) -> None:
                if n == at:  # noqa: B023
                    raise Unavailable("cut")

            try:
                Backend(FaultyDriver(driver, on_effect=fail)).store().batch(ops)
                done = True
            except Unavailable:
                done = False
            now = {(i.namespace, i.key): i.value["v"] for i in clean.search(())}
            home = {key: v for (namespace, key), v in now.items() if namespace == HOME}
            assert home.get("changed") in ("old", "new")
            assert home.get("made") in (None, "new")
            if not narrow:
                assert home in ({"changed": "old", "gone": "old"}, {"changed": "new", "made": "new"})
            clean.batch(ops)
            final = {(i.namespace, i.key): i.value["v"] for i in clean.search(())}
            assert final == {(HOME, "changed"): "new", (HOME, "made"): "new", (("other",), "made"): "new"}
            if done:
                break
        else:
            raise AssertionError("the batch never came to its end")


def test_an_item_that_no_commit_takes_is_refused_before_anything_is_written() -> None:
    driver = MemoryDriver(CommitLimits(ops=10, bytes=100))
    store = Backend(driver).store()
    ops: list[Op] = [PutOp(HOME, "small", {}), PutOp(HOME, "big", {"x": "y" * 100})]
    with pytest.raises(TooLarge, match=r"item 'big' of \('users', 'ada'\) has 108 bytes"):
        store.batch(ops)
    assert store.search(()) == []


def test_versions_are_never_used_again() -> None:
    """A guard on a version means one write: the same version must not come back with another body."""
    driver = MemoryDriver()
    store = Backend(driver).store()
    seen = set()
    for n in range(200):
        store.put(HOME, "k", {"n": n})
        record = stored(driver, "k")
        assert record is not None
        seen.add(record.version)
        if n % 3 == 0:
            store.delete(HOME, "k")
    assert len(seen) == 200


def test_writes_of_one_moment_keep_their_order() -> None:
    clock = Hand()
    store = Backend(MemoryDriver()).store(clock=clock)
    order = ["z", "a", "m", "b"]
    for key in order[:2]:
        store.put(HOME, key, {})
    store.batch([PutOp(HOME, key, {}) for key in order[2:]])
    assert keys(store.search(HOME)) == order[::-1]
    clock.forward(-60)
    store.put(HOME, "later", {})
    assert keys(store.search(HOME))[0] == "later", "a clock that went back reordered what was written"


def test_a_sweep_goes_on_until_nothing_is_due_and_stops_when_nothing_moves() -> None:
    clock = Hand()
    watched = Watched(clock=clock)
    watched.store.batch([PutOp(("n", str(n % 7)), f"k{n}", {}, ttl=1) for n in range(1200)])
    clock.forward(2)
    removed: list[int] = []
    asked = watched.asked(lambda: removed.append(watched.store.sweep_ttl()))
    assert removed == [1200]
    assert asked.count("FindExpired") == 3
    assert all(
        isinstance(op, Delete) and (op.unchanged or op.kind is DOCUMENT)
        for e in watched.effects
        if isinstance(e, Commit)
        for op in e.ops
    )

    class Stuck(MemoryDriver):
        """Finds what was removed long ago, again and again."""

        def perform(self, effect: Any) -> Any:
            if isinstance(effect, FindExpired):
                return hints
            return super().perform(effect)

    clock, driver = Hand(), Stuck()
    store = Backend(driver).store(clock=clock)
    store.batch([PutOp(HOME, f"k{n}", {}, ttl=1) for n in range(500)])
    clock.forward(2)
    hints = MemoryDriver.perform(driver, FindExpired("", until=clock(), limit=500))
    assert store.sweep_ttl() == 500
    assert store.sweep_ttl() == 0


def test_a_renewal_writes_only_what_moves() -> None:
    clock = Hand()
    watched = Watched(clock=clock)
    watched.store.put(HOME, "k", {}, ttl=5)
    watched.store.put(HOME, "never", {})
    clock.forward(1)
    assert watched.asked(lambda: watched.store.search(HOME, limit=2)) == ["FindThreads", "Fetch", "Commit"]
    (commit,) = [e for e in watched.effects if isinstance(e, Commit)]
    assert [op.key for op in commit.ops] == [("k",)]
    assert watched.asked(lambda: there(watched.store.get(HOME, "k"))) == ["Fetch"], "its end did not move"
