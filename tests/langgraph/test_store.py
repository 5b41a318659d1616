"""The store in its places: in a graph, in threads and loops, on an encrypted file, beside look-alikes.

Covers perdure.langgraph.store_arguments, perdure.langgraph.ttl_sweeper.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore, GetOp, Op, PutOp

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.errors import DecryptionError, NotAllowed, Unavailable, Unserialisable
from perdure.langgraph.search.index import NOTHING
from perdure.langgraph.store import PerdureStore, _drive_side_by_side
from perdure.model.ops import Commit
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Capabilities, CommitLimits, Driver, arun
from perdure.testing.conformance import Backend
from perdure.testing.conformance.store_operations import HOME, keys, there
from tests.backends import BACKENDS, fresh
from tests.langgraph.savers import opened

KEY = bytes(range(32))
FULL = os.environ.get("PERDURE_CHAOS") == "full"


class State(TypedDict, total=False):
    said: str
    known: list[str]


class User(TypedDict):
    user: str


def remembering(store: BaseStore, checkpointer: Any, awaited: bool) -> Any:
    """A graph that remembers what each user said, in whatever thread."""

    def remember(state: State, runtime: Runtime[User]) -> State:
        assert runtime.store is not None
        user = runtime.context["user"]
        known = [item.value["said"] for item in runtime.store.search(("users", user))]
        runtime.store.put(("users", user), f"m{len(known)}", {"said": state["said"]})
        return {"known": known}

    async def aremember(state: State, *, store: BaseStore, runtime: Runtime[User]) -> State:
        user = runtime.context["user"]
        known = [item.value["said"] for item in await store.asearch(("users", user))]
        await store.aput(("users", user), f"m{len(known)}", {"said": state["said"]})
        return {"known": known}

    graph: Any = StateGraph(State, context_schema=User)
    graph.add_node("remember", aremember if awaited else remember)
    graph.add_edge(START, "remember")
    return graph.compile(checkpointer=checkpointer, store=store)


@pytest.fixture(params=BACKENDS)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[perdure.SyncDatabase]:
    with opened(request.param, tmp_path) as database:
        yield database


@pytest.fixture(params=BACKENDS)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with fresh(request.param) as driver:
        yield driver


def test_a_graph_remembers_across_threads(db: perdure.SyncDatabase) -> None:
    store, checkpointer = db.store(), db.checkpointer()
    graph, agraph = (remembering(store, checkpointer, awaited) for awaited in (False, True))

    def say(thread: str, user: str, said: str) -> list[str]:
        config = {"configurable": {"thread_id": thread}}
        return graph.invoke({"said": said}, config, context={"user": user})["known"]

    async def asay(thread: str, user: str, said: str) -> list[str]:
        config = {"configurable": {"thread_id": thread}}
        return (await agraph.ainvoke({"said": said}, config, context={"user": user}))["known"]

    assert say("t1", "ada", "tea") == []
    assert say("t2", "ada", "not coffee") == ["tea"]
    assert say("t3", "bob", "coffee") == []
    assert asyncio.run(asay("t4", "ada", "scones")) == ["not coffee", "tea"]
    assert asyncio.run(asay("t1", "ada", "more")) == ["scones", "not coffee", "tea"]
    assert sorted(t.thread_id for t in db.threads()) == ["t1", "t2", "t3", "t4"]
    assert db.store().list_namespaces() == [("users", "ada"), ("users", "bob")]


class Counting:
    """A driver that counts what is asked of it without blocking."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def aperform(self, effect: Any) -> Any:
        self.asked += 1
        return await self._driver.aperform(effect)


class Crowded(Counting):
    """A driver that knows how many requests were under way at most."""

    def __init__(self, driver: Driver, *, is_local: bool) -> None:
        super().__init__(driver)
        self.capabilities = replace(driver.capabilities, is_local=is_local)
        self.most = self._now = 0

    async def aperform(self, effect: Any) -> Any:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        try:
            return await super().aperform(effect)
        finally:
            self._now -= 1


@pytest.mark.parametrize("is_local", [True, False])
def test_namespaces_are_read_at_once_only_over_a_network(is_local: bool) -> None:
    with fresh("memory") as driver:
        crowded: Any = Crowded(driver, is_local=is_local)
        store = PerdureStore(crowded)
        ops: list[Op] = [GetOp(("users", str(n)), "key") for n in range(20)]
        for n in range(20):
            store.put(("users", str(n)), "key", {"n": n})
        found: list[Any] = asyncio.run(store.abatch(ops))
        assert [item.value["n"] for item in found] == list(range(20))
        assert (crowded.most == 1) is is_local


def test_what_is_awaited_together_costs_as_much_as_one_batch() -> None:
    with fresh("memory") as driver:
        counting: Any = Counting(driver)
        store = PerdureStore(counting)

        async def work() -> list[Any]:
            await store.aput(("a", "b"), "key0", {"n": -1})
            calls = []
            for n in range(300):
                calls += [
                    store.aput(("a", "b"), f"key{n}", {"n": n}),
                    store.aget(("a", "b"), "key0"),
                    store.alist_namespaces(max_depth=1 + n % 2),
                    store.asearch(("a",)),
                ]
            return await asyncio.gather(*calls)

        found = asyncio.run(work())
        assert found[0::4] == [None] * 300
        assert {item.value["n"] for item in found[1::4]} == {-1}
        assert found[2::4] == [[("a",)], [("a", "b")]] * 150
        assert [[hit.value["n"] for hit in hits] for hits in found[3::4]] == [[-1]] * 300
        found[3][0].value["n"] = "changed"
        assert found[7][0].value["n"] == -1, "each has its own"
        assert {item.value["n"] for item in store.search(("a", "b"), limit=400)} == set(range(300))
        assert counting.asked < 50, "not one for each of the calls"

        async def refused() -> list[Any]:
            values = [{"n": n} if n != 41 else {"n": object()} for n in range(100)]
            puts = (store.aput(("d",), f"key{n}", value) for n, value in enumerate(values))
            return await asyncio.gather(*puts, return_exceptions=True)

        found = asyncio.run(refused())
        assert [n for n, each in enumerate(found) if isinstance(each, Unserialisable)] == [41]
        assert {item.value["n"] for item in store.search(("d",), limit=400)} == {*range(100)} - {41}


def test_threads_and_loops_share_a_store(db: perdure.SyncDatabase) -> None:
    store = db.store()

    def blocking(n: int) -> None:
        for m in range(5):
            store.put(("t", str(n)), str(m), {"n": n, "m": m})
            assert there(store.get(("t", str(n)), str(m))).value == {"n": n, "m": m}

    def awaited(n: int) -> None:
        async def use() -> None:
            await asyncio.gather(*(store.aput(("l", str(n)), str(m), {"m": m}) for m in range(5)))
            assert len(await store.asearch(("l", str(n)))) == 5

        asyncio.run(use())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: (awaited if n % 2 else blocking)(n), range(8)))
    found = store.search((), limit=99)
    assert len(found) == 40
    assert {len([i for i in found if i.namespace == ns]) for ns in store.list_namespaces()} == {5}


def look_alikes() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Pairs of namespaces that some encoding would take for one, or one for a part of the other."""
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    odd = [
        "/",
        ":",
        "|",
        "\x01",
        "\x02",
        "\x03",
        "\x1f",
        " ",
        "%",
        "_",
        "\\",
        "*",
        ",",
        "\n",
        "\u200b",
        "é",
        "😀",
    ]
    for n in range(12):
        for o in odd:
            pairs += [
                ((f"u{n}", "b"), (f"u{n}{o}b",)),
                ((f"u{n}",), (f"u{n}{o}",)),
                ((o, f"u{n}"), (f"{o}u{n}",)),
                ((f"u{n}{o}", "c"), (f"u{n}", f"{o}c")),
            ]
    for n in range(46):
        pairs += [
            ((f"U{n}",), (f"u{n}",)),
            ((f"e\u0301{n}",), (f"é{n}",)),
            ((f"a{n}",), (f"а{n}",)),  # noqa: RUF001 - a Cyrillic letter
            ((f"n{n}",), (f"n{n}", "x")),
        ]
    return pairs


@pytest.mark.slow
@pytest.mark.timeout(1800 if FULL else 120)
def test_users_whose_names_look_alike_see_nothing_of_each_other(
    driver: Driver, request: pytest.FixtureRequest
) -> None:
    pairs = look_alikes()
    assert len(pairs) >= 1000
    backend = request.node.callspec.params["driver"]
    if backend not in ("memory", "sqlite") and not FULL:
        pairs = pairs[:: len(pairs) // 50]
    store = Backend(driver).store()
    owners = dict.fromkeys(namespace for pair in pairs for namespace in pair)
    ops: list[Op] = [PutOp(owner, "secret", {"of": list(owner)}) for owner in owners]
    store.batch(ops)
    for left, right in pairs:
        for me, other in ((left, right), (right, left)):
            assert there(store.get(me, "secret")).value == {"of": list(me)}
            seen = {item.namespace for item in store.search(me, limit=99)}
            assert me in seen
            assert all(found[: len(me)] == me for found in seen)
            assert (other in seen) == (other[: len(me)] == me)
            if "*" not in me:  # which stands for any label in a listing, as in every store of LangGraph
                listed = store.list_namespaces(prefix=me)
                assert (other in listed) == (other[: len(me)] == me)
    store.batch([PutOp(left, "secret", None) for left, _ in pairs])
    left_over = {item.namespace for item in store.search((), limit=10_000)}
    assert left_over == set(owners) - {left for left, _ in pairs}


def test_a_sweeper_runs_until_the_database_closes() -> None:
    with perdure.connect_sync("memory://") as db:
        store = db.store(ttl={"default_ttl": 0.0001, "sweep_interval_minutes": 1})
        store.put(HOME, "k", {})
        store.start_ttl_sweeper(0.0005)
        (thread,) = [store._sweeper._thread]  # type: ignore[union-attr]
        deadline = time.monotonic() + 60
        held = handle_of(db).driver._inner._partitions  # type: ignore[attr-defined]
        while held[next(iter(held))]["item"]:
            assert time.monotonic() < deadline, "nothing was swept"
            time.sleep(0.01)
        store.start_ttl_sweeper()
        assert not thread.is_alive(), "two sweepers run"
        (thread,) = [store._sweeper._thread]  # type: ignore[union-attr]
        assert thread.is_alive()
    assert not thread.is_alive()
    assert store.stop_ttl_sweeper()


def test_a_sweep_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    from perdure.errors import Unavailable
    from perdure.storage.memory import MemoryDriver
    from perdure.testing.faults import FaultyDriver

    calls = 0

    def fail(n: int, _: object) -> None:
        nonlocal calls
        calls = n
        if n == 1:
            raise Unavailable("the database is away")

    store = Backend(FaultyDriver(MemoryDriver(), on_effect=fail)).store()
    store.start_ttl_sweeper(0.0002)
    deadline = time.monotonic() + 60
    while calls < 3:
        assert time.monotonic() < deadline, "it gave up"
        time.sleep(0.01)
    assert store.stop_ttl_sweeper()
    assert "the database is away" in caplog.text


def test_under_a_key_values_are_sealed_and_names_are_clear(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sealed.db'}"
    with perdure.connect_sync(url, migrate=True, encryption_key=KEY) as db:
        db.store().put(("clearname", "x"), "clearkey", {"hiddenfield": "hiddenvalue", "n": 3})
        found = db.store().search((), filter={"hiddenfield": "hiddenvalue", "n": {"$gt": 2}})
        assert keys(found) == ["clearkey"]
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"clearname" in raw
    assert b"clearkey" in raw
    assert b"hidden" not in raw
    with pytest.raises(DecryptionError):
        perdure.connect_sync(url).__enter__()


def test_a_database_with_items_in_the_clear_takes_no_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'clear.db'}"
    with perdure.connect_sync(url, migrate=True) as db:
        db.store().put(HOME, "k", {})
    with pytest.raises(DecryptionError, match="items that are stored in the clear"):
        perdure.connect_sync(url, encryption_key=KEY).__enter__()


def test_an_item_that_was_moved_or_stripped_is_refused() -> None:
    from perdure.model.ops import Commit, Fetch, Put, Range
    from perdure.model.records import ITEM
    from perdure.model.store_items import partition_of
    from perdure.storage.encryption import DataKeys, Keyring
    from perdure.storage.memory import MemoryDriver

    driver = MemoryDriver()
    sealed = Backend(driver, Keyring(DataKeys.create(0))).store()
    sealed.put(HOME, "k", {"n": 1}, ttl=5)
    ((record,),) = driver.perform(Fetch(partition_of("", HOME), (Range(ITEM),)))
    with pytest.raises(
        DecryptionError, match=r"store namespace \('users', 'ada'\): item k is encrypted; pass its key"
    ):
        Backend(driver).store().get(HOME, "k")
    longer = {**record.fields, "expires_at": record.fields["expires_at"] + 1}
    for namespace, key, fields in (
        (("users", "bob"), "k", record.fields),
        (HOME, "other", record.fields),
        (HOME, "k", longer),
    ):
        put = Put(ITEM, (key,), fields, record.body, version=1)
        driver.perform(Commit(partition_of("", namespace), (put,)))
        with pytest.raises(DecryptionError, match="was changed or moved"):
            sealed.get(namespace, key)


def test_the_tenant_of_a_database_is_that_of_its_stores(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tenants.db'}"
    with perdure.connect_sync(url, migrate=True, tenant="acme") as db:
        db.store().put(HOME, "k", {})
        db.store(tenant="bull").put(HOME, "l", {})
        assert keys(db.store().search(())) == ["k"]
    with perdure.connect_sync(url, tenant="bull") as db:
        assert keys(db.store().search(())) == ["l"]
    with perdure.connect_sync(url) as db:
        assert db.store().list_namespaces() == []


class Gated:
    """A driver whose commits wait at a gate, and are counted when they begin and when they end."""

    capabilities = Capabilities()

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.limits = inner.limits
        self.gate = asyncio.Event()
        self.begun = 0
        self.ended = 0

    def perform(self, effect: Any) -> Any:
        return self._inner.perform(effect)

    async def aperform(self, effect: Any) -> Any:
        if not isinstance(effect, Commit):
            return await self._inner.aperform(effect)
        self.begun += 1
        await self.gate.wait()
        # One that was handed to the database is carried out, whoever waits for it.
        try:
            return await self._inner.aperform(effect)
        finally:
            self.ended += 1

    def close(self) -> None:
        self._inner.close()


def test_a_batch_that_is_cancelled_begins_nothing_more_and_leaves_nothing_half_done() -> None:
    async def main() -> None:
        backend = Backend(MemoryDriver())
        gates: list[Gated] = []

        def wrap(driver: Driver) -> Driver:
            gates.append(Gated(driver))
            return gates[0]

        store = backend.store(wrap=wrap)
        ops: list[Op] = [PutOp(("home", f"room {n}"), "lamp", {"on": True}) for n in range(100)]
        (stage,) = [
            stage
            for stage in store._plan_stages(ops, store._puts(ops), [], NOTHING)
            if len(stage) == len(ops)
        ]
        batch = asyncio.create_task(_drive_side_by_side(stage, partial(arun, driver=store._driver)))
        while gates[0].begun < 32 and not batch.done():  # noqa: ASYNC110 - the driver tells nobody
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert gates[0].begun == 32, "more at once than are driven at a time"
        batch.cancel()
        gates[0].gate.set()
        with pytest.raises(asyncio.CancelledError):
            await batch
        for _ in range(10):
            await asyncio.sleep(0)
        assert gates[0].begun == 32, "begun after the cancellation"
        assert len(backend.store().search(("home",), limit=1000)) == gates[0].ended

    asyncio.run(main())


def test_a_batch_of_which_one_fails_ends_what_is_under_way_and_begins_nothing_more() -> None:
    async def main() -> None:
        begun: list[int] = []
        ended: list[int] = []
        gate = asyncio.Event()

        class Failing:
            capabilities = Capabilities()

            limits = CommitLimits(ops=10, bytes=10)

            def perform(self, effect: Any) -> Any:
                raise AssertionError("not awaited")

            async def aperform(self, effect: Any) -> Any:
                begun.append(effect)
                if effect == 3:
                    raise Unavailable("the database is away")
                await gate.wait()
                ended.append(effect)

            def close(self) -> None:
                pass

        def program(n: int) -> Any:
            yield n

        batch = asyncio.create_task(
            _drive_side_by_side([program(n) for n in range(100)], partial(arun, driver=Failing()))
        )
        for _ in range(20):
            await asyncio.sleep(0)
        assert not batch.done(), "its error came before what was under way had ended"
        gate.set()
        with pytest.raises(Unavailable):
            await batch
        assert begun == [0, 1, 2, 3]
        assert ended == [0, 1, 2]

    asyncio.run(main())


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_database_for_reading_only_returns_items_with_a_time_to_live(
    tmp_path: Path, is_sealed: bool
) -> None:
    url, key = f"sqlite:///{tmp_path / 'threads.db'}", KEY if is_sealed else None
    with perdure.connect_sync(url, migrate=True, encryption_key=key) as db:
        db.store().put(HOME, "k", {"n": 1}, ttl=5)
    before = (tmp_path / "threads.db").read_bytes()
    with closing(open_for_reading(url, encryption_key=key)) as reading:
        store = reading.store()
        found = store.get(HOME, "k")
        assert found is not None
        assert found.value == {"n": 1}
        assert keys(store.search(HOME)) == ["k"]
        with pytest.raises(NotAllowed):
            store.put(HOME, "k", {"n": 2})
    assert (tmp_path / "threads.db").read_bytes() == before
