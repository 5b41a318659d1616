"""A thread that moves arrives whole or not at all, and says what it said before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.database.opening import open_database
from perdure.engine.transfer.transfer import LEFT, MOVED
from perdure.engine.transfer.transfer_terms import Exists, State
from perdure.errors import Conflict, Contention, Corrupt, NotFound, Unavailable
from perdure.model.ops import Commit, Delete, Expect, Fetch, Put, Range, Stage
from perdure.model.program import Effect
from perdure.model.records import (
    CHECKPOINT,
    CHUNK,
    EPOCH,
    GC,
    HEAD,
    KINDS,
    TAG,
    THREADS,
    WRITE,
    Kind,
    Partition,
    Record,
)
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Capabilities, CommitLimits, Driver, WrappingDriver
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail
from tests.backends import BACKENDS, EMPTY
from tests.chunk_names import chunk_names
from tests.houses import furnish, seen
from tests.langgraph import graphs
from tests.langgraph.session import config

R = TypeVar("R")
KEY_A, KEY_B = bytes(range(32)), bytes(range(1, 33))
DYNAMODB = CommitLimits(ops=95, bytes=3_500_000)
WAY = ["sqlite", "postgresql", "dynamodb", "d1", "redis"]
CHAIN = sorted(set(BACKENDS) - {"memory"}, key=lambda name: (*WAY, name).index(name))
FORK = Partition("", "tagged_fork 4")


class Narrow:
    """A driver that takes no more at once than its limits say."""

    capabilities = Capabilities()

    def __init__(self, inner: Driver, limits: CommitLimits) -> None:
        self._inner = inner
        self.limits = limits

    def perform(self, effect: Effect[R]) -> R:
        if isinstance(effect, Commit | Stage):
            ops = effect.ops if isinstance(effect, Commit) else effect.puts
            assert len(ops) <= self.limits.ops
            bodies = [len(op.body) for op in ops if isinstance(op, Put)]
            assert sum(bodies) <= self.limits.bytes or len(bodies) == 1
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)

    def close(self) -> None:
        self._inner.close()


class Hooked(WrappingDriver):
    """A driver that lets a test act before an effect is performed, or change it."""

    def __init__(self, inner: Driver, before: Callable[[Effect[Any]], Effect[Any] | None]) -> None:
        super().__init__(inner)
        self._before = before

    def perform(self, effect: Effect[R]) -> R:
        changed: Any = self._before(effect)
        return self._inner.perform(effect if changed is None else changed)

    async def aperform(self, effect: Effect[R]) -> R:
        return self.perform(effect)


def in_memory(
    key: bytes | None = None, wrap: Callable[[Driver], Driver] = lambda driver: driver
) -> perdure.SyncDatabase:
    return open_database("memory://", encryption_key=key, wrap=wrap)


@contextmanager
def opened(backend: str, key: bytes | None = None) -> Iterator[perdure.SyncDatabase]:
    with EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True, encryption_key=key) as db:
        yield db


@pytest.fixture(scope="module")
def house() -> Iterator[perdure.SyncDatabase]:
    """Fifty threads that nobody writes to."""
    db = in_memory()
    furnish(db)
    yield db
    db.close()


def digests(db: perdure.SyncDatabase) -> dict[Partition, str]:
    return {p: admin.digest_of(db, p).hex for p in admin.partitions(db, None)}


def move_all(source: perdure.SyncDatabase, target: perdure.SyncDatabase, **options: Any) -> set[State]:
    return {admin.move(source, p, target, **options).found for p in admin.partitions(source, None)}


def assert_sound(db: perdure.SyncDatabase) -> None:
    for partition in admin.partitions(db, None):
        if partition.space == THREADS:
            assert tenant_of(db, partition.tenant).fsck(partition.thread) == []


def tenant_of(db: perdure.SyncDatabase, tenant: str) -> perdure.SyncDatabase:
    handle = handle_of(db)
    return perdure.SyncDatabase(DatabaseHandle(handle.driver, tenant=tenant, digest=handle.digest))


def rows(db: perdure.SyncDatabase, partition: Partition, kind: Kind) -> tuple[Record, ...]:
    (found,) = handle_of(db).driver.perform(Fetch(partition, (Range(kind),)))
    return found


def is_absent(db: perdure.SyncDatabase, partition: Partition) -> bool:
    """Whether a graph that is called on the thread finds nothing."""
    return db.checkpointer(tenant=partition.tenant).get_tuple(config(partition.thread)) is None


def test_every_kind_of_record_moves_or_is_meant_to_stay() -> None:
    assert {*MOVED, *LEFT} == set(KINDS)
    assert len(MOVED) + len(LEFT) == len(KINDS)


def test_the_house_has_what_is_easily_lost(house: perdure.SyncDatabase) -> None:
    partitions = admin.partitions(house, None)
    threads = [p for p in partitions if p.space == THREADS]
    assert len(threads) == 50
    assert len(partitions) > len(threads)
    assert any(len(rows(house, p, HEAD)) > 2 for p in threads)
    assert rows(house, FORK, TAG)
    assert_sound(house)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_house_moves_from_backend_to_backend_and_back(house: perdure.SyncDatabase) -> None:
    expected = digests(house)
    own = [p for p in expected if p.tenant == ""]
    with ExitStack() as stack:
        here = house
        for backend in (*CHAIN, CHAIN[0]):
            there = stack.enter_context(opened(backend))
            assert move_all(here, there) == {State.ABSENT}, backend
            assert digests(there) == expected, backend
            assert {admin.move(here, p, there).found for p in own} == {State.SAME}, backend
            assert [f for p in own if p.space == THREADS for f in there.fsck(p.thread)] == [], backend
            here = there
        assert_sound(here)
        for partition in expected:
            if partition.space == THREADS:
                assert seen(here, *partition[:2]) == seen(house, *partition[:2])
        items = here.store().search(("users",))
        assert [i.dict() for i in items] == [i.dict() for i in house.store().search(("users",))]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [(None, KEY_A), (KEY_A, KEY_B), (KEY_B, None), (KEY_A, KEY_A)])
def test_a_house_moves_between_keys(
    house: perdure.SyncDatabase, keys: tuple[bytes | None, bytes | None]
) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    source, target = in_memory(keys[0]), in_memory(keys[1])
    move_all(house, source)
    expected = digests(house)
    assert digests(source) == expected
    assert move_all(source, target) == {State.ABSENT}
    assert digests(target) == expected
    assert_sound(target)
    for partition in expected:
        if partition.space == THREADS:
            assert seen(target, *partition[:2]) == seen(house, *partition[:2])


def test_a_thread_that_moved_goes_on(house: perdure.SyncDatabase) -> None:
    for key in (None, KEY_A):
        target = in_memory(key)
        there = Partition("", "conversation 0")
        admin.move(house, there, target)
        graph = graphs.chat(target.checkpointer())
        before = graph.get_state(config(there.thread)).values["messages"]
        graph.invoke(graphs.message(1000), config(there.thread))
        after = graph.get_state(config(there.thread)).values["messages"]
        assert after[: len(before)] == before
        assert after[-1].content == "re: question 1000"
        target.checkpointer().prune([there.thread])
        assert graph.get_state(config(there.thread)).values["messages"] == after
        assert target.fsck(there.thread) == []


@pytest.mark.parametrize("limits", [DYNAMODB, CommitLimits(ops=6, bytes=1)])
def test_a_house_moves_through_narrow_doors(house: perdure.SyncDatabase, limits: CommitLimits) -> None:
    target = in_memory(wrap=lambda driver: Narrow(driver, limits))
    assert move_all(house, target) == {State.ABSENT}
    assert digests(target) == digests(house)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_move_that_is_cut_short_anywhere_goes_on(house: perdure.SyncDatabase, side: str, when: Any) -> None:
    expected = admin.digest_of(house, FORK)

    def attempt(*faults: Fault) -> tuple[perdure.SyncDatabase, FaultyDriver, BaseException | None]:
        made: list[FaultyDriver] = []
        store = Narrow(MemoryDriver(), CommitLimits(ops=8, bytes=4000))

        def wrap(driver: Driver) -> Driver:
            made.append(FaultyDriver(driver, *faults))
            return made[0]

        clean = database(store)
        source, target = house, clean
        if side == "target":
            target = database(wrap(store))
        else:
            source = database(wrap(handle_of(house).driver))
        error = None
        try:
            admin.move(source, FORK, target)
        except Unavailable as raised:
            error = raised
        return clean, made[0], error

    _, driver, error = attempt()
    assert error is None
    assert driver.count > 5
    partial = 0
    for number in range(1, driver.count + 1):
        clean, _, error = attempt(Fault(number, fail("unavailable"), when))
        assert error is not None
        if not is_absent(clean, FORK):
            assert (number, when) == (driver.count, "after") or side == "source"
            assert admin.digest_of(clean, FORK).agrees(expected)
        again = admin.move(house, FORK, clean)
        partial += again.found is State.PARTIAL
        assert admin.digest_of(clean, FORK).agrees(expected)
        assert clean.fsck(FORK.thread) == []
        assert seen(clean, *FORK[:2]) == seen(house, *FORK[:2])
    assert partial


def test_what_is_there_already_is_not_written_twice(house: perdure.SyncDatabase) -> None:
    there = Partition("", "conversation 0")
    whole = admin.move(house, there, in_memory()).written
    made: list[FaultyDriver] = []

    def wrap(driver: Driver) -> Driver:
        made.append(FaultyDriver(driver, Fault(4, fail("unavailable")), counts=WRITES))
        return made[0]

    target = in_memory(wrap=lambda driver: wrap(Narrow(driver, CommitLimits(ops=1000, bytes=400_000))))
    with pytest.raises(Unavailable):
        admin.move(house, there, target)
    rest = admin.move(house, there, target)
    assert rest.found is State.PARTIAL
    assert 0 < rest.written < whole - 200_000


def grow(db: perdure.SyncDatabase, thread: str, turns: int) -> None:
    graph = graphs.chain(db.checkpointer())
    for n in range(turns):
        graph.invoke({"said": [f"turn {n} {'x' * 100}"]}, config(thread))


def test_a_source_that_is_written_to_meanwhile_is_read_again() -> None:
    source = in_memory()
    grow(source, "t", 2)
    acted: list[int] = []

    def act(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and len(acted) < 2:
            acted.append(1)
            if len(acted) == 1:
                grow(source, "t", 1)
            else:
                source.checkpointer().prune(["t"], keep_last=1)

    target = in_memory(wrap=lambda driver: Hooked(driver, act))
    admin.move(source, Partition("", "t"), target)
    assert len(acted) == 2
    assert target.digest("t").agrees(source.digest("t"))
    assert seen(target, "", "t") == seen(source, "", "t")
    assert chunk_names(target, Partition("", "t")) == chunk_names(source, Partition("", "t"))


@pytest.mark.parametrize("write", ["put", "put_writes", "tag"])
def test_a_source_that_never_stands_still_is_not_moved(write: str) -> None:
    source = in_memory()
    grow(source, "t", 1)
    count = 0

    def act(effect: Effect[Any]) -> None:
        nonlocal count
        if isinstance(effect, Commit):
            count += 1
            if write == "put":
                grow(source, "t", 1)
            elif write == "tag":
                source.tag("t", f"tag {count}")
            else:
                at = config("t", checkpoint_ns="", checkpoint_id="9" * 32)
                source.checkpointer().put_writes(at, [("said", count)], f"task {count}")

    target = in_memory(wrap=lambda driver: Hooked(driver, act))
    with pytest.raises(Contention, match="'t' keeps being written to"):
        admin.move(source, Partition("", "t"), target)
    assert is_absent(target, Partition("", "t"))


class Cut(Exception):
    """Where a test stops a mover for good."""


def cut_at_arrival(effect: Effect[Any]) -> None:
    if isinstance(effect, Commit) and any(isinstance(op, Put) and op.kind is GC for op in effect.ops):
        raise Cut


class Crossed:
    """A narrow target at which something else happens before the write of a number."""

    def __init__(self, number: int, act: Callable[[perdure.SyncDatabase], object]) -> None:
        self.writes = 0
        store = Narrow(MemoryDriver(), CommitLimits(ops=8, bytes=4000))

        def before(effect: Effect[Any]) -> None:
            if isinstance(effect, Commit | Stage):
                self.writes += 1
                if self.writes == number:
                    act(self.clean)

        self.clean = database(store)
        self.crossed = database(Hooked(store, before))


def database(driver: Driver) -> perdure.SyncDatabase:
    return perdure.SyncDatabase(DatabaseHandle(driver, tenant="", digest=handle_of(in_memory()).digest))


@pytest.mark.parametrize("killed", [False, True])
def test_of_two_movers_to_one_name_one_wins_whole(killed: bool) -> None:
    source, other = in_memory(), in_memory()
    grow(source, "t", 3)
    grow(other, "t", 2)
    partition = Partition("", "t")

    def cross(clean: perdure.SyncDatabase) -> None:
        if not killed:
            admin.move(other, partition, clean)
            return
        with pytest.raises(Cut):
            admin.move(other, partition, database(Hooked(handle_of(clean).driver, cut_at_arrival)))

    alone = Crossed(0, cross)
    admin.move(source, partition, alone.crossed)
    assert alone.writes > 5
    for number in range(1, alone.writes + 1):
        target = Crossed(number, cross)
        if killed and number == 1:
            admin.move(source, partition, target.crossed)
            assert target.clean.digest("t").agrees(source.digest("t"))
        else:
            with pytest.raises(Conflict, match="'t' is written to at the target"):
                admin.move(source, partition, target.crossed)
            assert is_absent(target.clean, partition) == killed, number
            assert admin.move(other, partition, target.clean).found is (
                State.PARTIAL if killed else State.SAME
            )
            assert target.clean.digest("t").agrees(other.digest("t"))
        assert target.clean.fsck("t") == []


def test_a_target_that_is_removed_meanwhile_is_whole_or_absent() -> None:
    source = in_memory()
    grow(source, "t", 3)
    partition = Partition("", "t")

    def remove(clean: perdure.SyncDatabase) -> None:
        clean.checkpointer().delete_thread("t")

    alone = Crossed(0, remove)
    admin.move(source, partition, alone.crossed)
    for number in range(1, alone.writes + 1):
        target = Crossed(number, remove)
        if number == 1:
            admin.move(source, partition, target.crossed)
        else:
            with pytest.raises(Conflict, match="'t' is written to at the target"):
                admin.move(source, partition, target.crossed)
            assert is_absent(target.clean, partition)
            admin.move(source, partition, target.clean)
        assert target.clean.digest("t").agrees(source.digest("t"))
        assert target.clean.fsck("t") == []


@pytest.mark.parametrize("write", ["put", "put_writes"])
def test_a_target_that_is_written_to_meanwhile_keeps_what_was_written(write: str) -> None:
    source = in_memory()
    grow(source, "t", 1)
    acted = False

    def act(effect: Effect[Any]) -> None:
        nonlocal acted
        if isinstance(effect, Commit) and not acted:
            acted = True
            if write == "put":
                grow(target, "t", 1)
            else:
                at = config("t", checkpoint_ns="", checkpoint_id="9" * 32)
                target.checkpointer().put_writes(at, [("said", 1)], "task")

    target = in_memory(wrap=lambda driver: Hooked(driver, act))
    with pytest.raises(Conflict, match="'t' is written to at the target"):
        admin.move(source, Partition("", "t"), target)
    assert not rows(target, Partition("", "t"), HEAD) or len(seen(target, "", "t")) == 4


def test_a_thread_that_differs_is_left_alone_unless_told_otherwise() -> None:
    source, target = in_memory(), in_memory()
    grow(source, "t", 4)
    admin.move(source, Partition("", "t"), target)
    grow(target, "t", 2)
    source.checkpointer().prune(["t"], keep_last=1)
    grow(source, "t", 1)
    before = seen(target, "", "t")
    with pytest.raises(Exists, match="'t' is at the target already and differs"):
        admin.move(source, Partition("", "t"), target)
    assert admin.move(source, Partition("", "t"), target, dry_run=True).found is State.DIFFERENT
    assert seen(target, "", "t") == before
    assert admin.move(source, Partition("", "t"), target, replace=True).found is State.DIFFERENT
    assert seen(target, "", "t") == seen(source, "", "t")
    assert target.digest("t").agrees(source.digest("t"))
    assert target.fsck("t") == []
    assert chunk_names(target, Partition("", "t")) == chunk_names(source, Partition("", "t"))


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("lost", ["arrival", "head"])
def test_what_is_damaged_replaces_nothing(lost: str, dry_run: bool) -> None:
    partition = Partition("", "t")
    good, bad = in_memory(), in_memory()
    grow(good, "t", 2)
    if lost == "arrival":
        with pytest.raises(Cut):
            admin.move(good, partition, database(Hooked(handle_of(bad).driver, cut_at_arrival)))
    else:
        admin.move(good, partition, bad)
        handle_of(bad).driver.perform(Commit(partition, (Delete(HEAD, ("",)),)))
    grow(good, "t", 1)
    before = [rows(good, partition, kind) for kind in KINDS]
    with pytest.raises(Corrupt, match="half a copy: a head is missing"):
        admin.move(bad, partition, good, replace=True, dry_run=dry_run)
    assert [rows(good, partition, kind) for kind in KINDS] == before


def test_a_loop_that_began_before_a_replacement_does_not_write_into_it() -> None:
    source, target = in_memory(), in_memory()
    grow(source, "t", 2)
    grow(target, "t", 1)
    saver = target.checkpointer()
    found = saver.get_tuple(config("t"))
    assert found is not None
    admin.move(source, Partition("", "t"), target, replace=True)
    with pytest.raises(perdure.HeadConflict):
        saver.put_writes(found.config, [("said", ["late"])], "task")
    assert target.digest("t").agrees(source.digest("t"))


def test_what_arrives_otherwise_than_it_was_sent_is_not_put_in_place() -> None:
    source = in_memory()
    grow(source, "t", 2)

    def lose_a_write(effect: Effect[Any]) -> Effect[Any] | None:
        if not isinstance(effect, Commit):
            return None
        kept = [op for op in effect.ops if op.kind is not WRITE]
        return Commit(effect.partition, tuple(kept))

    def lose_a_chunk(effect: Effect[Any]) -> Effect[Any] | None:
        return Stage(effect.partition, effect.puts[1:]) if isinstance(effect, Stage) else None

    for lose in (lose_a_write, lose_a_chunk):
        target = in_memory(wrap=lambda driver, lose=lose: Hooked(driver, lose))  # type: ignore[misc]
        with pytest.raises(Corrupt, match="'t'"):
            admin.move(source, Partition("", "t"), target)
        assert is_absent(target, Partition("", "t"))


@pytest.mark.packs_late
def test_a_damaged_source_is_not_spread() -> None:
    source = in_memory()
    grow(source, "t", 2)
    partition = Partition("", "t")
    half = in_memory()
    admin.move(source, partition, half)
    handle_of(half).driver.perform(Commit(partition, (Delete(HEAD, ("",)), Delete(GC, ()))))
    target = in_memory()
    with pytest.raises(Corrupt, match="half a copy"):
        admin.move(half, partition, target)
    chunk = rows(source, partition, CHUNK)[0]
    for damage in (
        Put(CHUNK, chunk.key, chunk.fields, chunk.body + b"x"),
        Delete(CHUNK, chunk.key),
    ):
        handle_of(source).driver.perform(Commit(partition, (damage,)))
        with pytest.raises(Corrupt, match=chunk.key[0].hex()):
            admin.move(source, partition, target)
    assert admin.partitions(target, None) in ([], [partition])
    assert is_absent(target, partition)


def test_a_lease_stays_behind() -> None:
    source, target = in_memory(), in_memory()
    grow(source, "t", 1)
    partition = Partition("", "t")
    lease = Put(EPOCH, (), {"open_run": "run"}, expect=Expect.ABSENT, version=7)
    handle_of(source).driver.perform(Commit(partition, (lease,)))
    admin.move(source, partition, target)
    (epoch,) = rows(target, partition, EPOCH)
    assert (epoch.version, epoch.fields["open_run"]) == (8, None)
    grow(target, "t", 1)
    handle_of(target).driver.perform(Commit(partition, (Put(EPOCH, (), {"open_run": "run"}, version=9),)))
    with pytest.raises(perdure.Fenced):
        admin.move(source, partition, target, replace=True)


def test_every_record_and_field_counts_in_the_digest(house: perdure.SyncDatabase) -> None:
    db = in_memory()
    for partition in (FORK, Partition("", "questions 1"), Partition("", "pruned 3")):
        admin.move(house, partition, db)
        whole = admin.digest_of(db, partition)
        for kind in (CHECKPOINT, WRITE, TAG, HEAD):
            for record in rows(db, partition, kind):
                for change in changes(kind, record):
                    handle_of(db).driver.perform(Commit(partition, (change,)))
                    with suppress(Corrupt):
                        assert not admin.digest_of(db, partition).agrees(whole), change
                    restore = Put(kind, record.key, record.fields, record.body, version=record.version)
                    handle_of(db).driver.perform(Commit(partition, (restore,)))
        assert admin.digest_of(db, partition).agrees(whole)


def changes(kind: Kind, record: Record) -> Iterator[Delete | Put]:
    yield Delete(kind, record.key)
    for column in kind.fields:
        if column.name == "seq":
            continue
        other = "other" if column.kind == "text" else 77
        fields = {**record.fields, column.name: other}
        yield Put(kind, record.key, fields, record.body, version=record.version)


def test_versions_generations_and_sequence_numbers_do_not_count(house: perdure.SyncDatabase) -> None:
    db = in_memory()
    admin.move(house, FORK, db)
    whole = admin.digest_of(db, FORK)
    for kind in (CHECKPOINT, HEAD):
        for record in rows(db, FORK, kind):
            fields = {**record.fields, "seq": 10 * record.fields["seq"]}
            put = Put(kind, record.key, fields, record.body, version=record.version + 5)
            handle_of(db).driver.perform(Commit(FORK, (put,)))
    handle_of(db).driver.perform(Commit(FORK, (Put(GC, (), version=99),)))
    assert admin.digest_of(db, FORK).agrees(whole)
    first, second = sorted(rows(db, FORK, CHECKPOINT), key=lambda r: r.fields["seq"])[:2]
    for record, twin in ((first, second), (second, first)):
        fields = {**record.fields, "seq": twin.fields["seq"]}
        handle_of(db).driver.perform(Commit(FORK, (Put(CHECKPOINT, record.key, fields, record.body),)))
    assert not admin.digest_of(db, FORK).agrees(whole)


def test_a_thread_that_is_not_there_is_said_so() -> None:
    source, target = in_memory(), in_memory()
    with pytest.raises(NotFound, match="'gone'"):
        admin.move(source, Partition("", "gone"), target)
    assert admin.partitions(target, None) == []
