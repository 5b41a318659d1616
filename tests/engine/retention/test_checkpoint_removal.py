"""Plans are carried out in commits that a backend has room for, each of them guarded.

Whatever kills a removal, and whoever writes beside it, it ends with what the planner says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine.checks.fsck_report import Damage
from perdure.engine.retention.checkpoint_plan import Planner, keep_by, keep_tagged
from perdure.engine.retention.checkpoint_removal import prune
from perdure.engine.threads.chunk_reads import ChunkReader, reachable
from perdure.engine.threads.tags import set_tag
from perdure.engine.threads.thread_records import Contents, read, references
from perdure.engine.threads.thread_state import HeadView, View, load_view
from perdure.engine.transact import Budget
from perdure.errors import NotFound, Unavailable
from perdure.langgraph.saver import PerdureSaver
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, DOCUMENT, EPOCH, GC, HEAD, OF_THREAD, TAG, WRITE, Partition
from perdure.model.removal_plan import Name, make_newest_rule
from perdure.model.values import refs
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import make_chunk_puts
from perdure.model.write_records import make_new_puts
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits, run
from perdure.testing.conformance.backend import at, put
from perdure.testing.faults import Fault, FaultyDriver, fail
from tests.engine.queue.queues import always
from tests.engine.retention.test_checkpoint_plan import HERE, PLANNERS, stored_threads
from tests.engine.transfer.test_transfer import Hooked, Narrow, rows
from tests.model.test_removal_plan import checkpoint

DIGEST = Digester()
BODIES = [b"value %d " % n * 8 for n in range(6)]
NAMED = [refs.chunk(refs.MSGPACK, DIGEST(body)) for body in BODIES]


def keep(contents: Contents) -> MemoryDriver:
    """A database with this thread; its values are a few that several checkpoints and writes share."""
    memory = MemoryDriver()
    checkpoints = [c._replace(refs={"x": NAMED[n % 4]}) for n, c in enumerate(contents.checkpoints)]
    writes = [w._replace(ref=NAMED[n % len(NAMED)]) for n, w in enumerate(contents.writes)]
    memory.perform(
        Commit(
            contents.partition,
            (
                Put(GC, (), version=1),
                Put(EPOCH, (), {"open_run": contents.view.open_run}, version=1),
                *(
                    Put(HEAD, (ns,), {"checkpoint_id": h.checkpoint_id, "seq": h.seq}, version=1)
                    for ns, h in contents.heads.items()
                ),
                *(Put(TAG, tag.key, tag.fields, version=1) for tag in contents.tags),
                *(c.put() for c in checkpoints),
                *make_new_puts(writes),
                *make_chunk_puts({DIGEST(body): body for body in BODIES}, 1),
            ),
        )
    )
    return memory


def assert_sound(memory: MemoryDriver) -> Contents:
    """Assert that what is stored of the thread names nothing that is not; return it."""
    contents = run(read(HERE), memory)
    names = {c.name for c in contents.checkpoints}
    assert contents.tagged_names <= names
    assert all(c.parent_id is None or (c.namespace, c.parent_id) in names for c in contents.checkpoints)
    assert {(ns, head) for ns, head in contents.latest.items()} <= names
    # Raises an error if a chunk is missing.
    run(reachable(HERE, references(contents), DIGEST), memory)
    return contents


def branched(*subgraph: CheckpointRecord) -> Contents:
    """A thread of three root checkpoints of which none is another's ancestor, with the head on the first, and
    with these checkpoints of a subgraph. To keep the newest one removes the second."""
    roots = [checkpoint("", n, None) for n in (1, 2, 3)]
    heads = {"": HeadView(1, "#1", 1), "sub": HeadView(1, subgraph[-1].id, len(subgraph))}
    return Contents(HERE, View(heads[""], 1, 1, None, "#1"), heads, (), [*roots, *subgraph], [])


OFF_BRANCH = checkpoint("sub", 2, "sub#1", root="#2")
ON_THIRD = checkpoint("sub", 3, "sub#2", root="#3")
AFTER_EACH: list[tuple[int, Any]] = [(1, "after")] * 4


@given(
    stored_threads(),
    st.sampled_from(PLANNERS),
    st.integers(6, 40),
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["before", "after"])), max_size=4),
)
# Replays of both branches that stay load sub#1, and not sub#2, which stays as the head of its namespace.
@example(branched(checkpoint("sub", 1, None), OFF_BRANCH), PLANNERS[0], 6, AFTER_EACH)
# … and not sub#2, which is removed after its root.
@example(branched(checkpoint("sub", 1, None), OFF_BRANCH, ON_THIRD), PLANNERS[0], 6, AFTER_EACH)
# … and sub#2 does not look like one of a run that goes on under the head.
@example(
    branched(checkpoint("sub", 1, None), OFF_BRANCH._replace(root_head="#1"), ON_THIRD),
    PLANNERS[0],
    6,
    AFTER_EACH,
)
def test_whatever_kills_it_a_removal_ends_with_what_was_planned(
    contents: Contents, how: tuple[Planner, frozenset[str]], ops: int, kills: list[tuple[int, Any]]
) -> None:
    planner, budget = how[0], Budget(ops, 2_500_000)
    memory = keep(contents)
    before = run(read(HERE), memory)
    plan = planner(before)
    by_name = {c.name: c for c in before.checkpoints}
    stay = by_name.keys() - plan.removed
    # The open run returns to an earlier one once the head has moved there.
    unneeded = before.bases - before.tagged_names if how[1] else set[Name]()
    for moment, when in kills:
        faulty = FaultyDriver(memory, Fault(moment, fail("unavailable"), when), counts=[Commit])
        with suppress(Unavailable):
            run(prune(HERE, planner, DIGEST, budget), faulty)
        assert stay - unneeded <= {c.name for c in assert_sound(memory).checkpoints}
    run(prune(HERE, planner, DIGEST, budget), memory)
    after = assert_sound(memory)
    left = {c.name for c in after.checkpoints}
    assert stay - unneeded <= left
    if how[1] and kills:
        # That the root was emptied is not seen again once it is: what others left under it stays.
        assert not {name for name in left - stay if by_name[name].run_id in how[1]}
    else:
        assert left <= stay
        assert unneeded or planner(after).is_empty
    if not kills and not plan.is_empty:
        reader = ChunkReader(HERE, DIGEST)
        run(reader.read(), memory)
        assert set(reader.bodies) == run(reachable(HERE, references(after), DIGEST), memory)


def tag(memory: MemoryDriver, name: Name) -> bool:
    try:
        run(set_tag(HERE, "new", namespace=name[0], checkpoint_id=name[1]), memory)
    except NotFound:
        return False
    return True


def advance(memory: MemoryDriver, name: Name) -> bool:
    """Store a checkpoint with a value that may be about to be collected."""
    view = run(load_view(HERE, ""), memory)
    seq = view.head.seq + 1 if view.head else 1
    parent = view.head.checkpoint_id if view.head else None
    new = checkpoint("", seq, parent)._replace(id="new", refs={"x": NAMED[5]})
    generation = view.generation or 77
    guard = Check(GC, (), generation) if view.generation else Put(GC, (), expect=Expect.ABSENT, version=77)
    version = view.head.version if view.head else 0
    fields = {"checkpoint_id": "new", "seq": seq}
    head = Put(HEAD, ("",), fields, expect=version or Expect.ABSENT, version=version + 1)
    ops = (guard, head, new.put(), *make_chunk_puts({DIGEST(BODIES[5]): BODIES[5]}, generation))
    return isinstance(memory.perform(Commit(HERE, ops)), Committed)


@given(
    stored_threads(),
    st.sampled_from(PLANNERS),
    st.integers(6, 40),
    st.integers(1, 15),
    st.sampled_from([tag, advance]),
    st.data(),
)
def test_what_another_writer_stores_meanwhile_stays(
    contents: Contents,
    how: tuple[Planner, frozenset[str]],
    ops: int,
    moment: int,
    act: Callable[[MemoryDriver, Name], bool],
    data: st.DataObject,
) -> None:
    memory = keep(contents)
    name = data.draw(st.sampled_from([c.name for c in contents.checkpoints]))
    has_come = False

    def cross(number: int, effect: Effect[Any]) -> None:
        nonlocal has_come
        if number == moment:
            has_come = act(memory, name)

    run(prune(HERE, how[0], DIGEST, Budget(ops, 2_500_000)), FaultyDriver(memory, on_effect=cross))
    after = {c.name for c in assert_sound(memory).checkpoints}
    if has_come and act is tag:
        assert name in after
    if has_come and act is advance and how[0] is not keep_tagged:
        assert ("", "new") in after


LIMITS = CommitLimits(ops=99, bytes=2_500_000)
"""Those of DynamoDB."""

ADA = Partition("", "ada")
TURNS = 130


def filled(turns: int = TURNS) -> MemoryDriver:
    """A thread in which every turn has called a subgraph, whose namespace is its own."""
    memory = MemoryDriver()
    db = open_database("memory://", wrap=lambda own: memory)
    saver = db.checkpointer()
    before: str | None = None
    for n in range(turns):
        name = f"{n:08}"
        put(saver, at(before, thread="ada"), name)
        inner = at(thread="ada", namespace=f"node:{n:08}")
        put(saver, inner, f"i{n:07}", root=name)
        before = name
    return memory


def opened(memory: MemoryDriver, wrap: Any = lambda driver: driver) -> perdure.SyncDatabase:
    narrow = Narrow(memory, LIMITS)
    return open_database("memory://", wrap=lambda own: wrap(narrow))


def count(db: perdure.SyncDatabase) -> dict[str, int]:
    return {kind.name: len(rows(db, ADA, kind)) for kind in (HEAD, CHECKPOINT, WRITE)}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"strategy": "delete", "keep_last": 2}, ValueError, "keeps no checkpoint; leave out keep_last"),
        ({"strategy": "all", "keep_last": 2}, ValueError, "'all' is unknown"),
        ({"keep_last": 0}, ValueError, "keep_last is at least 1"),
        ({"keep_last": 1.5}, TypeError, "keep_last is a whole number, not 1.5"),
    ],
)
def test_what_contradicts_itself_prunes_nothing(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    db = opened(filled())
    before = count(db)
    with pytest.raises(error, match=says):
        db.checkpointer().prune(["ada"], **arguments)
    assert count(db) == before


@pytest.mark.parametrize("keep", [1, 40, 120])
def test_a_thread_with_more_heads_than_a_commit_has_room_is_pruned(keep: int) -> None:
    db = opened(filled())
    assert count(db) == {"head": TURNS + 1, "checkpoint": 2 * TURNS, "write": 0}
    db.checkpointer().prune(["ada"], keep_last=keep)
    assert count(db) == {"head": keep + 1, "checkpoint": 2 * keep, "write": 0}
    assert db.fsck("ada") == []
    newest = db.checkpointer().get_tuple(at(thread="ada"))
    assert newest is not None
    assert newest.checkpoint["id"] == f"{TURNS - 1:08}"


def test_a_prune_that_is_cut_short_anywhere_leaves_a_sound_thread_and_is_finished_by_the_next() -> None:
    step = 0
    while True:
        step += 1
        memory = filled(60)
        few = CommitLimits(ops=20, bytes=LIMITS.bytes)
        fault = Fault(step, fail("unavailable"), "after")
        narrow = Narrow(memory, few)
        db = open_database("memory://", wrap=always(FaultyDriver(narrow, fault, counts=[Commit])))
        sound = open_database("memory://", wrap=always(narrow))
        try:
            db.checkpointer().prune(["ada"], keep_last=5)
        except Unavailable:
            assert sound.fsck("ada") == [], step
            assert all(
                len(list(sound.checkpointer().list(at(thread="ada", namespace=f"node:{n:08}")))) == 1
                for n in range(55, 60)
            )
        else:
            break
        sound.checkpointer().prune(["ada"], keep_last=5)
        assert count(sound) == {"head": 6, "checkpoint": 10, "write": 0}
    assert step > 8


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_prune_that_is_cut_short_anywhere_leaves_a_replay_the_state_of_its_branch(
    goes_on: bool,
) -> None:
    step, is_cut = 0, True
    while is_cut:
        step, is_cut = step + 1, False
        narrow = Narrow(MemoryDriver(), CommitLimits(ops=6, bytes=LIMITS.bytes))
        sound = open_database("memory://", wrap=always(narrow))
        saver = sound.checkpointer()
        put(saver, at(thread="ada"), "r1")
        put(saver, at(thread="ada", namespace="sub"), "s1", root="r1")
        # A background writer may store a subgraph's checkpoint before the root's.
        put(saver, at("s1", thread="ada", namespace="sub"), "s-left", root="left")
        put(saver, at("r1", thread="ada"), "left")
        put(saver, at("r1", thread="ada"), "right", source="fork")
        if goes_on:
            put(saver, at("s1", thread="ada", namespace="sub"), "s-right", root="right")
        fault = Fault(step, fail("unavailable"), "after")
        db = open_database("memory://", wrap=always(FaultyDriver(narrow, fault, counts=[Commit])))
        try:
            db.checkpointer().prune(["ada"], keep_last=1)
        except Unavailable:
            is_cut = True
            assert loaded_by_replay(sound, "right") == "s1", step
        sound.checkpointer().prune(["ada"], keep_last=1)
        assert loaded_by_replay(sound, "right") == "s1", step
        left = {(row.key[0], row.key[1]) for row in rows(sound, ADA, CHECKPOINT)}
        assert left == {("", "right"), ("sub", "s1"), ("sub", "s-right" if goes_on else "s-left")}, step
    assert step > 3


def loaded_by_replay(db: perdure.SyncDatabase, root: str) -> str:
    """The id of the subgraph's checkpoint that a replay of a root checkpoint loads."""
    place = at(thread="ada", namespace="sub")
    newest = next(iter(db.checkpointer().list(place, before=at(root, thread="ada"), limit=1)))
    return newest.checkpoint["id"]


def test_a_checkpoint_that_comes_between_two_parts_keeps_its_parent() -> None:
    """A fork in a subgraph from what the next part would remove."""
    memory = filled(60)
    sound = open_database("memory://", wrap=lambda own: memory)
    commits = 0

    def fork(effect: Effect[Any]) -> None:
        nonlocal commits
        if not isinstance(effect, Commit):
            return
        commits += 1
        if commits == 2:
            saver = sound.checkpointer()
            place = at("00000003", thread="ada")
            put(saver, place, "f0000001", source="fork")

    narrow = Narrow(memory, CommitLimits(ops=20, bytes=LIMITS.bytes))
    db = open_database("memory://", wrap=lambda own: Hooked(narrow, fork))
    db.checkpointer().prune(["ada"], keep_last=20)
    assert commits > 2
    assert sound.fsck("ada") == []
    head = sound.checkpointer().get_tuple(at(thread="ada"))
    assert head is not None
    assert head.checkpoint["id"] == "f0000001"


def test_a_small_plan_is_one_commit() -> None:
    memory = filled(10)
    commits: list[Commit] = []

    def note(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit):
            commits.append(effect)

    db = open_database("memory://", wrap=lambda own: Hooked(memory, note))
    handle = handle_of(db)
    handle.run(prune(ADA, keep_by(make_newest_rule(2)), handle.digest, handle.budget))
    assert sum(any(op.kind is CHECKPOINT for op in commit.ops) for commit in commits) == 1


def test_a_copy_has_more_heads_than_a_commit_has_room() -> None:
    db = opened(filled())
    db.checkpointer().copy_thread("ada", "copy")
    assert db.digest("copy").agrees(db.digest("ada"))
    assert db.fsck("copy") == []


def kept_by_its_document(turns: int) -> MemoryDriver:
    """A thread with a document and a subgraph that keeps its state from run to run."""
    memory = MemoryDriver()
    db = open_database("memory://", wrap=lambda own: memory)
    saver = db.checkpointer()
    before: str | None = None
    for n in range(turns):
        name = f"{n:08}"
        put(saver, at(before, thread="ada"), name)
        put(saver, at(before and f"i{before[1:]}", thread="ada", namespace="sub"), f"i{n:07}", root=name)
        before = name
    handle_of(db).driver.perform(Commit(ADA, (Put(DOCUMENT, OF_THREAD, {}, b"\x80"),)))
    return memory


@pytest.mark.parametrize(("turns", "ops"), [(2, 20), (12, 9), (12, 40)])
def test_a_removal_that_is_cut_short_anywhere_leaves_a_sound_thread_and_no_memory_of_a_removed_one(
    turns: int, ops: int
) -> None:
    step, is_cut = 0, True
    while is_cut:
        step, is_cut = step + 1, False
        fault = Fault(step, fail("unavailable"), "after")
        narrow = Narrow(kept_by_its_document(turns), CommitLimits(ops=ops, bytes=LIMITS.bytes))
        db = open_database("memory://", wrap=always(FaultyDriver(narrow, fault, counts=[Commit])))
        sound = open_database("memory://", wrap=always(narrow))
        try:
            db.checkpointer().prune(["ada"], strategy="delete")
        except Unavailable:
            is_cut = True
            damage = {finding.kind for finding in sound.fsck("ada")}
            assert not damage & {Damage.HOLE, Damage.HEAD, Damage.ORDER}, step
            saver = sound.checkpointer()
            if saver.get_tuple(at(thread="ada")) is None:
                assert saver.get_tuple(at(thread="ada", namespace="sub")) is None, step
        sound.checkpointer().prune(["ada"], strategy="delete")
        assert count(sound) == {"head": 0, "checkpoint": 0, "write": 0}, step
    assert step > 1


FEW = CommitLimits(ops=8, bytes=2_500_000)


def turn(saver: PerdureSaver, n: int) -> None:
    """A checkpoint after the one before, and the writes of two tasks on it."""
    put(saver, at(f"{n - 1:08}" if n else None, thread="ada"), f"{n:08}")
    for task in ("a", "b"):
        saver.put_writes(at(f"{n:08}", thread="ada"), [("x", n)], f"{task}{n}")


def written_to(turns: int = 9) -> MemoryDriver:
    memory = MemoryDriver()
    saver = open_database("memory://", wrap=lambda own: memory).checkpointer()
    for n in range(turns):
        turn(saver, n)
    return memory


def written(memory: MemoryDriver) -> set[str]:
    """Ids of the checkpoints that writes are stored on."""
    db = open_database("memory://", wrap=lambda own: memory)
    return {row.key[1] for row in rows(db, ADA, WRITE)}


def test_no_write_stays_of_a_prune_that_was_cut_short_anywhere() -> None:
    step, is_cut = 0, True
    while is_cut:
        step, is_cut = step + 1, False
        memory = written_to()
        narrow, fault = Narrow(memory, FEW), Fault(step, fail("unavailable"), "after")
        db = open_database("memory://", wrap=always(FaultyDriver(narrow, fault, counts=[Commit])))
        try:
            db.checkpointer().prune(["ada"], keep_last=1)
        except Unavailable:
            is_cut = True
        sound = open_database("memory://", wrap=always(narrow))
        stored = {row.key[1] for row in rows(sound, ADA, CHECKPOINT)}
        assert written(memory) <= stored, step
        assert sound.fsck("ada") == [], step
        sound.checkpointer().prune(["ada"], keep_last=1)
        assert written(memory) == {"00000008"}, step
    assert step > 4


def test_no_write_stays_of_a_prune_beside_a_run() -> None:
    memory = written_to()
    beside = open_database("memory://", wrap=lambda own: memory).checkpointer()
    removals = 0

    def run(effect: Effect[Any]) -> None:
        nonlocal removals
        if isinstance(effect, Commit) and any(isinstance(op, Delete) for op in effect.ops):
            removals += 1
            if removals == 4:
                turn(beside, 9)

    db = open_database("memory://", wrap=lambda own: Hooked(Narrow(memory, FEW), run))
    db.checkpointer().prune(["ada"], keep_last=1)
    assert removals > 4
    assert written(memory) == {row.key[1] for row in rows(db, ADA, CHECKPOINT)} == {"00000009"}


@pytest.mark.parametrize(
    ("checkpoint_id", "namespace", "stays"),
    [
        ("00000003", "", False),
        ("00000009", "", True),
        ("00000003", "node:1", False),
        ("00000009", "node:1", True),
    ],
)
def test_a_write_without_its_checkpoint_goes_unless_the_checkpoint_may_still_come(
    checkpoint_id: str, namespace: str, stays: bool
) -> None:
    memory = written_to(5)
    db = open_database("memory://", wrap=lambda own: memory)
    saver = db.checkpointer()
    saver.prune(["ada"], keep_last=1)
    saver.put_writes(at(checkpoint_id, thread="ada", namespace=namespace), [("x", 1)], "early")
    saver.prune(["ada"], keep_last=1)
    there = {(row.key[0], row.key[1]) for row in rows(db, ADA, WRITE)}
    assert there == {("", "00000004"), *([(namespace, checkpoint_id)] if stays else [])}
    assert len(rows(db, ADA, HEAD)) == 1
