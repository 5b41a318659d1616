"""Contract of expiry in the store: never read after it, postponed by reading, removed without a race."""

from __future__ import annotations

from typing import Any

from langgraph.store.base import GetOp, PutOp, SearchOp

from perdure.model.ops import Commit, Delete
from perdure.model.program import Effect
from perdure.model.records import ITEM
from perdure.model.store_items import MINUTE
from perdure.testing.conformance.backend import Backend, expect_refusal
from perdure.testing.conformance.concurrency import at_once
from perdure.testing.conformance.items import LATER
from perdure.testing.conformance.store_operations import HOME, keys, there
from perdure.testing.faults import FaultyDriver


class Hand:
    """Clock that is moved by hand and starts far in the future, so that nothing expires by itself."""

    def __init__(self) -> None:
        self.time = LATER

    def __call__(self) -> int:
        return self.time

    def forward(self, minutes: float) -> None:
        self.time += round(minutes * MINUTE)


class Expiry:
    """Contract of time-to-live."""

    def test_an_expired_item_is_never_returned(self, backend: Backend) -> None:
        clock = Hand()
        store = backend.store(clock=clock)
        store.put(HOME, "brief", {"n": 1}, ttl=1)
        store.put(HOME, "long", {"n": 1}, ttl=10)
        store.put(("brief",), "k", {"n": 1}, ttl=1)
        clock.forward(0.99)
        assert len(store.search((), refresh_ttl=False)) == 3
        clock.forward(0.02)
        for _ in range(2):
            assert store.get(HOME, "brief", refresh_ttl=False) is None
            assert store.batch([GetOp(HOME, "brief"), GetOp(("brief",), "k")]) == [None, None]
            assert keys(store.search((), filter={"n": 1}, refresh_ttl=False)) == ["long"]
            assert keys(store.search((), offset=0, limit=1, refresh_ttl=False)) == ["long"]
            assert store.search(("brief",)) == []
            assert store.list_namespaces() == [HOME]
            assert store.list_namespaces(max_depth=1) == [("users",)]
            store.sweep_ttl()
        clock.forward(10)
        assert store.list_namespaces() == []

    def test_putting_over_an_item_that_is_over_makes_a_new_one(self, backend: Backend) -> None:
        clock = Hand()
        store = backend.store(clock=clock)
        store.put(HOME, "k", {"n": 1}, ttl=1)
        born = there(store.get(HOME, "k")).created_at
        store.put(HOME, "k", {"n": 2}, ttl=1)
        assert there(store.get(HOME, "k")).created_at == born
        clock.forward(2)
        store.put(HOME, "k", {"n": 3})
        item = there(store.get(HOME, "k"))
        assert item.created_at == item.updated_at > born
        clock.forward(1e6)
        assert there(store.get(HOME, "k")).value == {"n": 3}, "a put without a ttl kept the old end"

    def test_reading_postpones_the_expiry_unless_disabled(self, backend: Backend) -> None:
        clock = Hand()
        store = backend.store(clock=clock)
        for key in ("got", "found", "batched", "left", "passed"):
            store.put(HOME, key, {"k": key}, ttl=10)
        written = there(store.get(HOME, "got")).updated_at
        for _ in range(3):
            clock.forward(6)
            assert there(store.get(HOME, "got")).updated_at == written, "reading is not updating"
            store.search(HOME, filter={"k": "found"})
            store.batch([GetOp(HOME, "batched"), SearchOp(HOME, filter={"k": "none"})])
            store.get(HOME, "left", refresh_ttl=False)
            store.search(HOME, filter={"k": "passed"}, refresh_ttl=False)
            store.list_namespaces()
        assert sorted(keys(store.search(HOME, refresh_ttl=False))) == ["batched", "found", "got"]

    def test_a_store_has_ttl_settings_of_its_own(self, backend: Backend) -> None:
        clock = Hand()
        plain, store = (
            backend.store(clock=clock),
            backend.store(clock=clock, ttl={"default_ttl": 2, "refresh_on_read": False}),
        )
        store.put(HOME, "default", {})
        store.put(HOME, "own", {}, ttl=9)
        store.put(HOME, "never", {}, ttl=None)
        store.batch([PutOp(HOME, "batched", {})])
        clock.forward(1.5)
        store.search(HOME)
        assert store.get(HOME, "default", refresh_ttl=True) is not None
        clock.forward(1)
        assert store.get(HOME, "default") is not None
        clock.forward(2)
        assert sorted(keys(plain.search(HOME))) == ["batched", "never", "own"]
        clock.forward(7)
        assert sorted(keys(plain.search(HOME))) == ["batched", "never", "own"]
        expect_refusal(ValueError, lambda: store.put(HOME, "k", {}, ttl=0))
        expect_refusal(ValueError, lambda: backend.store(ttl={"default_ttl": -1}))
        expect_refusal(ValueError, lambda: backend.store(ttl={"ttl": 1}))  # type: ignore[arg-type]

    def test_a_sweep_removes_what_is_over_and_nothing_else(self, backend: Backend) -> None:
        clock = Hand()
        store, other = backend.store(clock=clock), backend.store(clock=clock, tenant="other")
        store.batch([PutOp(("s", str(n % 3)), f"k{n}", {}, ttl=1 + n % 2) for n in range(60)])
        store.put(("s",), "never", {})
        other.put(("s", "0"), "k0", {}, ttl=1)
        assert store.sweep_ttl() == 0
        clock.forward(1.5)
        assert store.sweep_ttl() == 30 * backend.finds_expired
        assert store.sweep_ttl() == 0
        assert len(store.search((), limit=99, refresh_ttl=False)) == 31
        clock.forward(1)
        assert store.sweep_ttl() == 30 * backend.finds_expired
        assert keys(store.search((), limit=99)) == ["never"]
        assert other.sweep_ttl() == backend.finds_expired

    def test_a_sweep_spares_what_was_renewed_or_written_meanwhile(self, backend: Backend) -> None:
        if not backend.finds_expired:
            return
        clock, other_clock = Hand(), Hand()
        other = backend.store(clock=other_clock)
        for key in ("read", "written", "kept", "over"):
            other.put(HOME, key, {"n": 1}, ttl=1)
        clock.forward(1.5)
        done = False

        def interfere(_: int, effect: Effect[Any]) -> None:
            nonlocal done
            if isinstance(effect, Commit) and not done:
                done = True
                # A process whose clock is behind still finds the items, and its reads postpone their expiry.
                other_clock.forward(0.9)
                assert other.get(HOME, "read") is not None
                other.put(HOME, "written", {"n": 2}, ttl=1)
                other.put(HOME, "kept", {"n": 2})

        store = backend.store(clock=clock, wrap=lambda driver: FaultyDriver(driver, on_effect=interfere))
        assert store.sweep_ttl() == 1
        found = backend.store(clock=clock).search(HOME)
        assert {i.key: i.value["n"] for i in found} == {"read": 1, "written": 2, "kept": 2}

    def test_renewing_loses_against_every_writer(self, backend: Backend) -> None:
        """A put, a delete, or both come between a read and its renewal: none of them is lost."""
        clock = Hand()
        other = backend.store(clock=clock)
        remove, rewrite = PutOp(HOME, "k", None), PutOp(HOME, "k", {"n": 2})
        for name, overtaking in (("put", [rewrite]), ("delete", [remove]), ("both", [remove, rewrite])):
            other.put(HOME, "k", {"n": 1}, ttl=10)
            other.put(HOME, "beside", {}, ttl=10)
            clock.forward(5)
            overtaken = False

            def interfere(_: int, effect: Effect[Any]) -> None:
                nonlocal overtaken
                if isinstance(effect, Commit) and not overtaken:
                    overtaken = True
                    for op in overtaking:  # noqa: B023
                        other.batch([op])

            store = backend.store(clock=clock, wrap=lambda driver: FaultyDriver(driver, on_effect=interfere))
            seen = {i.key: i.value for i in store.search(HOME)}
            assert overtaken, "nothing was renewed"
            assert seen == {"k": {"n": 1}, "beside": {}}
            clock.forward(8)
            after = other.get(HOME, "k", refresh_ttl=False)
            assert (after.value if after else None) == (None if name == "delete" else {"n": 2}), name
            assert other.get(HOME, "beside", refresh_ttl=False) is not None, "a neighbour was not renewed"

    def test_many_readers_renew_at_once(self, backend: Backend) -> None:
        clock = Hand()
        stores = [backend.store(clock=clock) for _ in range(6)]
        stores[0].batch([PutOp(HOME, f"k{n}", {}, ttl=10) for n in range(5)])
        for _ in range(3):
            clock.forward(9)
            found = at_once(len(stores), lambda n: len(stores[n].search(HOME)))
            assert found == [5] * len(stores)

    def test_a_batch_that_reads_and_writes_one_item_keeps_what_it_wrote(self, backend: Backend) -> None:
        clock = Hand()
        store = backend.store(clock=clock)
        store.put(HOME, "k", {"n": 1}, ttl=10)
        clock.forward(5)
        store.batch([GetOp(HOME, "k"), PutOp(HOME, "k", {"n": 2}, ttl=1)])
        assert there(store.get(HOME, "k", refresh_ttl=False)).value == {"n": 2}
        clock.forward(2)
        assert store.get(HOME, "k") is None

    def test_only_a_sweep_removes_an_expired_item(self, backend: Backend) -> None:
        """Reads never remove an expired item; only a sweep does, guarded."""
        clock = Hand()

        def watch(_: int, effect: Effect[Any]) -> None:
            if isinstance(effect, Commit):
                removals = [op for op in effect.ops if isinstance(op, Delete) and op.kind is ITEM]
                assert all(op.unchanged for op in removals)
                # Entries of items are removed in the same commit, and records of the whole namespace once.
                others = sum(isinstance(op, Delete) for op in effect.ops) - len(removals)
                assert others == (len(removals) + 1 if removals else 0)

        store = backend.store(clock=clock, wrap=lambda driver: FaultyDriver(driver, on_effect=watch))
        store.put(HOME, "k", {}, ttl=1)
        clock.forward(2)
        assert store.get(HOME, "k") is None
        assert store.search(()) == []
        store.sweep_ttl()
