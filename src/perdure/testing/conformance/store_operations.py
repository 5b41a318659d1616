"""Contract of a store's operations: items, searches, listings, batches, and concurrent callers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)

from perdure.errors import Unserialisable
from perdure.model.filters import accepts, parse_filter
from perdure.model.ops import Commit, Delete, Fetch, Find
from perdure.model.program import Effect
from perdure.storage.port import Driver
from perdure.testing.conformance.backend import Backend, at, expect_refusal
from perdure.testing.conformance.concurrency import at_once
from perdure.testing.faults import FaultyDriver

HOME = ("users", "ada")

FAMILY = (
    ("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a", "b", "f"), ("a", "c", "f"),
    ("b", "a", "f"), ("users", "123"), ("users", "456", "settings"),
)  # fmt: skip


def keys(found: list[SearchItem]) -> list[str]:
    return [item.key for item in found]


def there(item: Item | None) -> Item:
    """Return an item; fail if it is absent."""
    assert item is not None, "a stored item was not found"
    return item


class Operations:
    """Contract of LangGraph's ``BaseStore``, and of questions that it leaves open."""

    def test_an_item_comes_back_as_it_was_put(self, backend: Backend) -> None:
        value = {"text": "é\0中", "n": 1, "x": 1.5, "yes": True, "none": None, "deep": {"list": [1, [2], {}]}}
        backend.store().put(HOME, "k", value)
        item = there(backend.store().get(HOME, "k"))
        assert (item.namespace, item.key, item.value) == (HOME, "k", value)
        assert item.created_at == item.updated_at
        assert item.created_at.tzinfo is not None
        assert backend.store().get(HOME, "other") is None
        assert backend.store().get(("users",), "k") is None
        assert backend.store().get((*HOME, "k"), "k") is None

    def test_what_a_caller_does_to_a_value_is_not_stored(self, backend: Backend) -> None:
        store, value = backend.store(), {"list": [1]}
        store.put(HOME, "k", value)
        value["list"].append(2)
        there(store.get(HOME, "k")).value["list"].append(3)
        assert there(store.get(HOME, "k")).value == {"list": [1]}

    def test_putting_again_keeps_the_time_of_creation(self, backend: Backend) -> None:
        store = backend.store()
        store.put(HOME, "k", {"n": 1})
        first = there(store.get(HOME, "k"))
        backend.store().put(HOME, "k", {"n": 2})
        second = there(store.get(HOME, "k"))
        assert second.value == {"n": 2}
        assert second.created_at == first.created_at
        assert second.updated_at > first.updated_at
        store.delete(HOME, "k")
        store.put(HOME, "k", {"n": 3})
        assert there(store.get(HOME, "k")).created_at > first.created_at

    def test_deleting_is_repeatable_and_needs_nothing_to_delete(self, backend: Backend) -> None:
        store = backend.store()
        store.delete(HOME, "k")
        store.put(HOME, "k", {})
        store.put(HOME, "other", {})
        for _ in range(2):
            store.delete(HOME, "k")
            assert store.get(HOME, "k") is None
        assert keys(store.search(HOME)) == ["other"]

    def test_odd_keys_are_keys_of_their_own(self, backend: Backend) -> None:
        odd = ["", "a", "A", "a\0", "a\0b", "a/b", "a.b", "\x01", "\x02", " ", "é", "\U0010ffff", *"%_*"]
        store = backend.store()
        store.batch([PutOp(HOME, key, {"n": n}) for n, key in enumerate(odd)])
        assert [there(store.get(HOME, key)).value["n"] for key in odd] == list(range(len(odd)))
        assert keys(store.search(HOME, limit=99)) == odd[::-1]

    def test_odd_labels_make_namespaces_of_their_own(self, backend: Backend) -> None:
        odd = [("a",), ("a", "b"), ("a", "b/"), ("a/", "b"), ("a/b",)]
        odd += [("a\x01", "b"), ("a\x02b",), ("é", "%")]
        store = backend.store()
        store.batch([PutOp(namespace, "k", {"n": n}) for n, namespace in enumerate(odd)])
        assert [there(store.get(namespace, "k")).value["n"] for namespace in odd] == list(range(len(odd)))
        assert store.list_namespaces() == sorted(odd)
        assert sorted(item.namespace for item in store.search(("a",))) == [("a",), ("a", "b"), ("a", "b/")]

    def test_namespaces_that_nobody_could_tell_apart_are_refused(self, backend: Backend) -> None:
        store = backend.store()
        wrong: list[Any] = [("a", ""), ("a.b",), ("a\0",), ("a", 1), ("a\ud800",)]
        for namespace in wrong:
            expect_refusal(InvalidNamespaceError, lambda: store.put(namespace, "k", {}))  # noqa: B023
            expect_refusal(InvalidNamespaceError, lambda: store.get(namespace, "k"))  # noqa: B023
            expect_refusal(InvalidNamespaceError, lambda: store.search(namespace))  # noqa: B023
            expect_refusal(InvalidNamespaceError, lambda: store.list_namespaces(prefix=namespace))  # noqa: B023
            expect_refusal(InvalidNamespaceError, lambda: store.batch([PutOp(namespace, "k", {})]))  # noqa: B023
        for reserved in ((), ("langgraph", "x")):
            expect_refusal(InvalidNamespaceError, lambda: store.put(reserved, "k", {}))  # noqa: B023
        expect_refusal(InvalidNamespaceError, lambda: store.batch([PutOp((), "k", {})]))
        assert store.get((), "k") is None
        store.batch([PutOp(("langgraph", "x"), "k", {})])
        store.put(("x", "langgraph"), "k", {})
        assert store.list_namespaces() == [("langgraph", "x"), ("x", "langgraph")]

    def test_a_value_that_would_not_come_back_stops_its_whole_batch(self, backend: Backend) -> None:
        store = backend.store()
        ops = [PutOp(HOME, "fine", {}), PutOp(HOME, "k", {"at": object()})]
        message = str(expect_refusal(Unserialisable, lambda: store.batch(ops)))
        assert "['at'] is an object" in message
        assert "'k'" in message
        expect_refusal(Unserialisable, lambda: store.put(HOME, "\ud800", {}))
        assert store.search(()) == []

    def test_a_search_finds_what_was_written_last_first(self, backend: Backend) -> None:
        store = backend.store()
        order = ["z", "b", "x", "a"]
        for key in order:
            store.put(("s", "b"), key, {"k": key})
        for namespace in (("s", "b", "c"), ("s", "a"), ("s",), ("s b",), ("sb",), ("r",)):
            store.put(namespace, "/".join(namespace), {})
        store.put(("s", "b"), "x", {"k": "new"})
        assert keys(store.search(("s",), limit=99)) == ["x", "s", "s/a", "s/b/c", "a", "b", "z"]
        assert keys(store.search(("s", "b"), limit=99)) == ["x", "s/b/c", "a", "b", "z"]
        assert keys(store.search((), limit=2)) == ["x", "r"]
        assert keys(store.search(("none",))) == []
        assert len(store.search((), limit=99)) == 10

    def test_a_search_is_cut_by_offset_and_limit(self, backend: Backend) -> None:
        store = backend.store()
        names = [f"k{n:03}" for n in range(150)]
        store.batch([PutOp(("many",), key, {"n": n}) for n, key in enumerate(reversed(names))])
        store.batch([PutOp(("many", "more"), key, {"n": n}) for n, key in enumerate(names[:9])])
        whole = [*reversed(names[:9]), *names]
        assert keys(store.search(("many",), limit=1000)) == whole
        for offset, limit in ((0, 10), (60, 70), (145, 10), (150, 3), (158, 9), (159, 1), (500, 5), (3, 0)):
            assert keys(store.search(("many",), offset=offset, limit=limit)) == whole[offset : offset + limit]
            chosen = store.search(("many",), filter={"n": {"$gte": 0, "$ne": -1}}, offset=offset, limit=limit)
            assert keys(chosen) == whole[offset : offset + limit]
        assert [i.value["n"] for i in store.search(("many",), filter={"n": 7})] == [7, 7]
        assert len(store.search(("many",))) == 10
        expect_refusal(ValueError, lambda: store.search(("many",), limit=-1))
        expect_refusal(ValueError, lambda: store.search(("many",), offset=-1))

    def test_a_search_filters_by_value(self, backend: Backend) -> None:
        store = backend.store()
        values: list[dict[str, Any]] = [
            {"kind": "note", "score": 1, "by": {"name": "ada", "age": 36}},
            {"kind": "note", "score": 2.5, "tags": ["x", "y"]},
            {"kind": "task", "score": 4, "by": {"name": "bob"}},
            {"kind": None},
        ]
        for n, value in enumerate(values):
            store.put(HOME, str(n), value)
        for conditions, expected in (
            ({"kind": "note"}, "01"),
            ({"kind": "note", "score": {"$gt": 1}}, "1"),
            ({"score": {"$gte": 2.5, "$lt": 4}}, "1"),
            ({"score": {"$lte": 2.5}}, "01"),
            ({"kind": {"$ne": "note"}}, "23"),
            ({"kind": {"$eq": "task"}}, "2"),
            ({"by": {"name": "ada"}}, "0"),
            ({"by": {"age": {"$gt": 30}}}, "0"),
            ({"tags": ["x", "y"]}, "1"),
            ({"tags": ["x"]}, ""),
            ({"kind": None}, "3"),
            ({"missing": 1}, ""),
            ({"kind": {"$in": ["task", None]}}, "23"),
            ({"kind": {"$nin": ["task", None]}}, "01"),
            ({"$or": [{"kind": "task"}, {"score": {"$not": {"$gt": 1}}}]}, "023"),
            ({}, "0123"),
            ({"score": {"$lt": float("inf"), "$gt": float("-inf")}}, "012"),
            ({"score": {"$gt": float("inf")}}, ""),
            ({"score": float("inf")}, ""),
            ({"score": {"$ne": float("inf")}}, "0123"),
            ({"score": 10**400}, ""),
            ({"score": {"$lt": 10**400, "$gt": -(10**400)}}, "012"),
        ):
            found = keys(store.search(HOME, filter=conditions))
            assert "".join(reversed(found)) == expected, conditions
        for wrong in ({"kind": {"$like": "note"}}, {"kind": {"$in": "note"}}, {"$gt": 1}):
            expect_refusal(ValueError, partial(store.search, HOME, filter=wrong))
        newest = store.search(HOME, query="what is there?")
        assert [(item.key, item.score) for item in newest] == [(key, None) for key in "3210"], (
            "without an index a query is ignored"
        )
        assert len(store.search(HOME, query="", limit=2)) == 2

    def test_namespaces_are_listed_in_order(self, backend: Backend) -> None:
        store = backend.store()
        for namespace in reversed(FAMILY):
            store.put(namespace, "k", {})
        ab = [n for n in FAMILY if n[:2] == ("a", "b")]
        assert store.list_namespaces() == list(FAMILY)
        assert store.list_namespaces(prefix=("a", "b")) == ab
        assert store.list_namespaces(suffix=("f",)) == [("a", "b", "f"), ("a", "c", "f"), ("b", "a", "f")]
        assert store.list_namespaces(prefix=("a",), suffix=("f",)) == [("a", "b", "f"), ("a", "c", "f")]
        assert store.list_namespaces(prefix=("a", "*", "f")) == [("a", "b", "f"), ("a", "c", "f")]
        assert store.list_namespaces(suffix=("*", "settings")) == [("users", "456", "settings")]
        assert store.list_namespaces(prefix=("a", "b"), max_depth=3) == [*FAMILY[:1], ("a", "b", "d"), ab[3]]
        assert store.list_namespaces(max_depth=1) == [("a",), ("b",), ("users",)]
        assert store.list_namespaces(max_depth=1, offset=1, limit=1) == [("b",)]
        assert store.list_namespaces(limit=3, offset=2) == list(FAMILY[2:5])
        assert store.list_namespaces(limit=0) == store.list_namespaces(offset=99) == []
        assert store.list_namespaces(prefix=("absent",)) == store.list_namespaces(prefix=("*",) * 9) == []
        expect_refusal(ValueError, lambda: store.list_namespaces(limit=-1))

    def test_a_namespace_without_items_is_not_listed(self, backend: Backend) -> None:
        store = backend.store()
        for n in range(130):
            store.put(("n", f"{n:03}"), "k", {})
        for n in range(130):
            if n % 10:
                store.delete(("n", f"{n:03}"), "k")
        store.get(("asked", "for"), "k")
        store.delete(("deleted", "from"), "k")
        assert store.list_namespaces() == [("n", f"{n:03}") for n in range(0, 130, 10)]
        assert store.list_namespaces(max_depth=1) == [("n",)]
        assert store.list_namespaces(offset=12) == [("n", "120")]

    def test_a_batch_reads_what_was_there_and_then_writes(self, backend: Backend) -> None:
        store = backend.store()
        store.put(HOME, "old", {"n": 1})
        everything = ListNamespacesOp((MatchCondition("prefix", ("*",)),))
        answers = store.batch(
            [
                PutOp(HOME, "old", {"n": 2}),
                GetOp(HOME, "old"),
                PutOp(("new",), "k", {"n": 3}),
                SearchOp(()),
                everything,
                PutOp(HOME, "gone", {}),
                PutOp(HOME, "old", {"n": 4}),
                GetOp(("new",), "k"),
                PutOp(HOME, "gone", None),
                GetOp(HOME, "old"),
            ]
        )
        before: Any = [answer.value if isinstance(answer, Item) else answer for answer in answers]
        assert before[:3] == [None, {"n": 1}, None]
        assert keys(before[3]) == ["old"]
        assert before[4:] == [[HOME], None, None, None, None, {"n": 1}]
        after = {(i.namespace, i.key): i.value for i in store.search(())}
        assert after == {(HOME, "old"): {"n": 4}, (("new",), "k"): {"n": 3}}
        expect_refusal(ValueError, lambda: store.batch(["op"]))  # type: ignore[list-item]
        assert store.batch([]) == []

    def test_the_async_operations_are_the_same(self, backend: Backend) -> None:
        store = backend.store()

        async def use() -> None:
            await store.aput(HOME, "a", {"n": 1})
            await asyncio.gather(*(store.aput(HOME, f"k{n}", {"n": n}) for n in range(9)))
            assert there(await store.aget(HOME, "a")).value == {"n": 1}
            assert len(await store.asearch(("users",), filter={"n": {"$gte": 1}})) == 9
            assert await store.alist_namespaces(prefix=("users",)) == [HOME]
            await store.adelete(HOME, "a")
            assert await store.abatch([GetOp(HOME, "a"), PutOp(HOME, "a", {})]) == [None, None]

        asyncio.run(use())
        asyncio.run(use())  # another loop, the same store
        assert len(store.search(HOME, limit=99)) == 10

    def test_tenants_do_not_see_each_other(self, backend: Backend) -> None:
        names = ["", "acme", "acme\0", "acme\x01users", "ACME"]
        stores = [backend.store(tenant=name) for name in names]
        for n, store in enumerate(stores):
            assert store.search(()) == []
            assert store.list_namespaces() == []
            store.put(HOME, "k", {"n": n})
        for n, store in enumerate(stores):
            assert there(store.get(HOME, "k")).value == {"n": n}
            assert [i.value["n"] for i in store.search(())] == [n]
            assert store.list_namespaces() == [HOME]
        stores[0].delete(HOME, "k")
        assert [len(store.search(())) for store in stores] == [0, 1, 1, 1, 1]

    def test_threads_and_namespaces_of_one_name_do_not_meet(self, backend: Backend) -> None:
        saver, store = backend.saver(may_list_all_threads=True), backend.store()
        store.put(("thread",), "k", {})
        assert list(saver.list(None)) == []
        saver.put_writes(at("c1", thread="thread\x01"), [("x", "y")], "task")
        assert store.list_namespaces() == [("thread",)]
        saver.delete_thread("thread\x01")
        saver.delete_thread("thread")
        assert store.get(("thread",), "k") is not None

    def test_of_many_writers_one_is_last_and_none_fails(self, backend: Backend) -> None:
        backend.store().put(HOME, "k", {"n": -1})
        born = there(backend.store().get(HOME, "k")).created_at
        stores = [backend.store() for _ in range(8)]

        def work(n: int) -> None:
            for m in range(6):
                stores[n].put(HOME, "k", {"n": n, "m": m})
                stores[n].put(HOME, f"own{n}", {"m": m})

        at_once(len(stores), work)
        item = there(backend.store().get(HOME, "k"))
        assert item.value["m"] == 5
        assert item.created_at == born
        found = backend.store().search(HOME, limit=99)
        assert {i.key: i.value["m"] for i in found} == {"k": 5, **{f"own{n}": 5 for n in range(8)}}

    def test_a_writer_that_loses_every_race_still_writes(self, backend: Backend) -> None:
        other, lost = backend.store(), 0

        def interfere(_: int, effect: Effect[Any]) -> None:
            nonlocal lost
            if isinstance(effect, Commit) and lost < 40:
                lost += 1
                other.put(HOME, "k", {"n": lost})

        def wrap(driver: Driver) -> Driver:
            faulty = FaultyDriver(driver, on_effect=interfere)
            # Where a put keeps fields of the record that it overwrites, it reads nothing, so it cannot lose a
            # race.
            faulty.capabilities = replace(faulty.capabilities, keeps_fields=False)
            return faulty

        store = backend.store(wrap=wrap)
        store.put(HOME, "k", {"n": "last"})
        assert there(other.get(HOME, "k")).value == {"n": "last"}
        assert lost > 1

    def test_a_search_goes_on_while_items_come_and_go(self, backend: Backend) -> None:
        writer = backend.store()
        names = [f"k{n:03}" for n in range(100)]
        writer.batch([PutOp(HOME, key, {"n": 0}) for key in names])
        reads = 0

        def interfere(_: int, effect: Effect[Any]) -> None:
            nonlocal reads
            reads += 1
            if reads == 2:
                writer.batch([PutOp(HOME, key, None) for key in names[:20]])

        store = backend.store(wrap=lambda driver: FaultyDriver(driver, on_effect=interfere))
        found = keys(store.search(HOME, limit=500))
        assert found[:80] == names[:19:-1]
        assert len(set(found)) == len(found)

    def test_items_that_are_removed_meanwhile_do_not_hide_others(self, backend: Backend) -> None:
        writer = backend.store()
        names = [f"k{n:03}" for n in range(200)]
        writer.batch([PutOp(HOME, key, {"n": n % 2}) for n, key in enumerate(names)])
        reads = 0

        def interfere(_: int, effect: Effect[Any]) -> None:
            nonlocal reads
            reads += isinstance(effect, Find | Fetch)
            if reads == 2 and isinstance(effect, Find | Fetch):
                writer.batch([PutOp(HOME, key, None) for key in names[-40:]])

        store = backend.store(wrap=lambda driver: FaultyDriver(driver, on_effect=interfere))
        found = keys(store.search(HOME, filter={"n": {"$ne": 1}}, limit=110))
        assert {name for n, name in enumerate(names[:-40]) if not n % 2} <= set(found)
        assert len(set(found)) == len(found)

    def test_an_ordering_finds_exactly_what_the_filter_accepts(self, backend: Backend) -> None:
        store = backend.store()
        values: list[Any] = [None, True, False, 0, -1, 0.1, -0.0, 1e308, 5e-324, (1 << 53) + 1, 10**100]
        values += [-(10**100), 9.99, "1", "1e3", "", "a", "a\0b", "a\0", "é", "\uffff", "\U0001f600", 'q"\\']
        values += ["\x1f", "2026-01-31T10:00:00Z", "nan", [1], ["a"], {"x": 1}]
        store.batch([PutOp(HOME, f"k{n}", {"x": value, "y": "x"}) for n, value in enumerate(values)])
        operands: list[Any] = [v for v in values if isinstance(v, int | float | str)]
        operands += [1e-300, 10**400, "2026", "z"]
        for sign in ("$eq", "$gt", "$gte", "$lt", "$lte"):
            for operand in operands:
                wanted = parse_filter({"x": {sign: operand}})
                expected = {f"k{n}" for n, value in enumerate(values) if accepts(wanted, {"x": value})}
                assert set(keys(store.search(HOME, filter={"x": {sign: operand}}, limit=99))) == expected, (
                    wanted
                )

    def test_nothing_deletes_without_being_asked(self, backend: Backend) -> None:
        def watch(_: int, effect: Effect[Any]) -> None:
            assert not isinstance(effect, Commit) or not any(isinstance(op, Delete) for op in effect.ops)

        store = backend.store(wrap=lambda driver: FaultyDriver(driver, on_effect=watch))
        store.put(HOME, "k", {})
        store.put(HOME, "k", {}, ttl=1)
        store.search(())
        store.list_namespaces()
        assert store.get(HOME, "k") is not None
