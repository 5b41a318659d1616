"""Damage made by hand through the driver is found, and what can be mended is mended.

Covers perdure.engine.checks.scan.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any, TypedDict, cast

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.engine.checks.fsck import check
from perdure.engine.checks.fsck_report import Damage, Finding
from perdure.model.ops import Commit, Committed, Delete, Fetch, Get, Put, Range
from perdure.model.program import Effect
from perdure.model.records import BLOB, CHECKPOINT, CHUNK, EPOCH, HEAD, PACK, TAG, Kind, Partition, Record
from perdure.model.values.chunks import Digester
from perdure.storage.port import Driver, run
from perdure.testing.faults import FaultyDriver

THREAD = Partition("", "thread")
CONFIG: Any = {"configurable": {"thread_id": "thread"}}


class State(TypedDict):
    said: Annotated[list[str], operator.add]


@pytest.fixture(params=["memory", "sqlite", "sealed"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[tuple[SyncDatabase, Driver]]:
    """A database, and the driver under it."""
    made: list[Driver] = []

    def wrap(driver: Driver) -> Driver:
        made.append(driver)
        return driver

    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'threads.db'}"
    key = secrets.token_bytes(32) if request.param == "sealed" else None
    if key is not None:
        pytest.importorskip("cryptography")
    database = open_database(url, migrate=True, encryption_key=key, wrap=wrap)
    yield database, made[0]
    database.close()


def talk(database: SyncDatabase, turns: int = 3) -> list[str]:
    """A thread of some turns, each with a subgraph call; the ids of its root checkpoints, oldest first."""
    inner = StateGraph(State)
    inner.add_node("note", lambda state: {"said": ["noted " + "n" * 100]})
    inner.add_edge(START, "note")
    outer = StateGraph(State)
    outer.add_node("say", lambda state: {"said": [f"answer {len(state['said'])} " + "a" * 100]})
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "say")
    outer.add_edge("say", "sub")
    graph = outer.compile(database.checkpointer())
    for turn in range(turns):
        graph.invoke({"said": [f"question {turn} " + "q" * 100]}, CONFIG)
    return [s.config["configurable"]["checkpoint_id"] for s in graph.get_state_history(CONFIG)][::-1]


def test_a_sound_thread_takes_few_requests() -> None:
    """A database far away takes milliseconds for each, and there are many threads."""
    requests: list[Effect[Any]] = []

    def wrap(driver: Driver) -> Driver:
        return FaultyDriver(driver, on_effect=lambda _, effect: requests.append(effect))

    with closing(open_database("memory://", migrate=True, wrap=wrap)) as database:
        talk(database, turns=1)
        requests.clear()
        assert database.fsck("thread") == []
        assert len(requests) <= 10, requests


def commit(driver: Driver, *ops: Any) -> None:
    assert driver.perform(Commit(THREAD, ops)) == Committed()


def one(driver: Driver, kind: Kind, key: Any) -> Record:
    ((record,),) = driver.perform(Fetch(THREAD, (Get(kind, key),)))
    return record


def everything(driver: Driver) -> list[Any]:
    kinds = (HEAD, CHECKPOINT, CHUNK, BLOB, PACK, TAG)
    return list(driver.perform(Fetch(THREAD, tuple(Range(kind) for kind in kinds))))


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_sound_thread_and_an_absent_one_have_no_findings(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    talk(database)
    database.tag("thread", "start")
    before = everything(driver)
    assert database.fsck("thread") == []
    assert database.fsck("nobody") == []
    assert database.fsck() == []
    repaired = database.repair("thread")
    assert (repaired.fixed, repaired.left) == ((), ())
    assert everything(driver) == before


def test_what_a_prune_cuts_is_no_hole(store: tuple[SyncDatabase, Driver]) -> None:
    database, _ = store
    talk(database)
    database.checkpointer().prune(["thread"], keep_last=2)
    assert database.fsck() == []


def test_a_hole_is_found_and_closed_with_the_nearest_ancestor(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    ids = talk(database)
    commit(driver, Delete(CHECKPOINT, ("", ids[4])))
    hole = only(database.fsck())
    assert (hole.thread_id, hole.namespace, hole.checkpoint_id) == ("thread", "", ids[5])
    assert (hole.kind, hole.repairable) == (Damage.HOLE, True)
    assert ids[4] in hole.detail
    repaired = database.repair("thread")
    assert repaired.fixed == (hole,)
    assert repaired.left == ()
    assert database.fsck() == []
    assert one(driver, CHECKPOINT, ("", ids[5])).fields["parent_id"] == ids[3]
    history = [c.checkpoint["id"] for c in database.checkpointer().list(CONFIG) if _is_root(c)]
    assert history == [i for i in reversed(ids) if i != ids[4]]


def test_a_hole_after_a_fork_becomes_a_cut(store: tuple[SyncDatabase, Driver]) -> None:
    """The newest checkpoint below the hole is on the other line, so it must not become the parent."""
    database, driver = store
    ids = talk(database)
    graph = StateGraph(State)
    graph.add_node("say", lambda state: {"said": ["again"]})
    graph.add_node("sub", lambda state: {})
    graph.add_edge(START, "say")
    graph.add_edge("say", "sub")
    old = {"configurable": {"thread_id": "thread", "checkpoint_id": ids[3]}}
    forked = graph.compile(database.checkpointer())
    forked.invoke({"said": ["another way"]}, cast(Any, old))
    line: list[str] = []
    at = one(driver, HEAD, ("",)).fields["checkpoint_id"]
    while at not in ids:
        line.append(at)
        at = one(driver, CHECKPOINT, ("", at)).fields["parent_id"]
    assert at == ids[3]
    commit(driver, Delete(CHECKPOINT, ("", line[-1])))
    assert only(database.fsck()).checkpoint_id == line[-2]
    assert database.repair("thread").left == ()
    assert one(driver, CHECKPOINT, ("", line[-2])).fields["parent_id"] is None
    assert database.fsck() == []


def test_a_thread_works_on_after_a_repair(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    ids = talk(database)
    commit(driver, Delete(CHECKPOINT, ("", ids[-1])), Delete(CHECKPOINT, ("", ids[2])))
    assert {f.kind for f in database.fsck()} == {Damage.HEAD, Damage.HOLE}
    assert len(database.repair("thread").fixed) == 2
    talk(database, turns=1)
    assert database.fsck() == []


def test_a_stray_head_goes_to_the_newest_by_sequence(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    ids = talk(database)
    head = one(driver, HEAD, ("",))
    fields = {**head.fields, "checkpoint_id": "nowhere"}
    commit(driver, Put(HEAD, ("",), fields, version=head.version + 1))
    stray = only(database.fsck())
    assert (stray.kind, stray.checkpoint_id, stray.repairable) == (Damage.HEAD, "nowhere", True)
    database.repair("thread")
    after = one(driver, HEAD, ("",))
    assert after.fields == head.fields
    assert after.fields["checkpoint_id"] == ids[-1]
    assert after.version > head.version + 1
    assert database.fsck() == []


def test_a_head_without_any_checkpoint_goes_away(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    commit(driver, Put(HEAD, ("",), {"checkpoint_id": "gone", "seq": 3}, version=1))
    assert only(database.fsck()).kind is Damage.HEAD
    assert database.repair("thread").left == ()
    assert driver.perform(Fetch(THREAD, (Get(HEAD, ("",)),))) == ((),)


def test_a_lost_head_and_one_whose_sequence_lags_are_set_again(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    talk(database)
    head = one(driver, HEAD, ("",))
    commit(driver, Delete(HEAD, ("",)))
    assert only(database.fsck()).kind is Damage.HEAD
    assert database.repair("thread").left == ()
    assert one(driver, HEAD, ("",)).fields == head.fields
    lag = {**head.fields, "seq": head.fields["seq"] - 1}
    commit(driver, Put(HEAD, ("",), lag, version=head.version))
    assert only(database.fsck()).kind is Damage.ORDER
    assert database.repair("thread").left == ()
    assert one(driver, HEAD, ("",)).fields == head.fields


@pytest.mark.timeout(60)
def test_a_repair_that_mends_nothing_ends_and_says_what_is_left(
    store: tuple[SyncDatabase, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, driver = store
    talk(database)
    head = one(driver, HEAD, ("",))
    stray = Put(HEAD, ("",), {**head.fields, "checkpoint_id": "nowhere"}, version=head.version + 1)
    commit(driver, stray)
    monkeypatch.setattr("perdure.engine.checks.fsck._fix_heads", lambda *_: iter([stray]))
    repaired = database.repair("thread")
    assert (repaired.fixed, only(list(repaired.left)).kind) == ((), Damage.HEAD)


def test_a_dangling_chunk_is_found_at_every_checkpoint_that_needs_it(
    store: tuple[SyncDatabase, Driver],
) -> None:
    database, driver = store
    talk(database)
    (chunks,) = driver.perform(Fetch(THREAD, (Range(CHUNK),)))
    for chunk in chunks:
        commit(driver, Delete(CHUNK, chunk.key))
        findings = database.fsck()
        assert findings
        assert {f.kind for f in findings} == {Damage.DANGLING}
        assert all(chunk.key[0].hex() in f.detail and not f.repairable for f in findings)
        assert database.repair("thread").left == tuple(findings)
        commit(driver, Put(CHUNK, chunk.key, chunk.fields, chunk.body))
        assert database.fsck() == []


def test_a_chunk_that_is_not_what_its_name_says_is_found(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    talk(database)
    (chunks,) = driver.perform(Fetch(THREAD, (Range(CHUNK),)))
    for chunk in chunks[:3]:
        commit(driver, Delete(CHUNK, chunk.key))
        commit(driver, Put(CHUNK, chunk.key, chunk.fields, chunk.body[:-1] + bytes((chunk.body[-1] ^ 1,))))
        findings = database.fsck()
        assert findings
        assert {f.kind for f in findings} == {Damage.DAMAGED}
        commit(driver, Delete(CHUNK, chunk.key))
        commit(driver, Put(CHUNK, chunk.key, chunk.fields, chunk.body))


def test_a_record_that_does_not_open_is_one_finding_and_hides_no_other(
    store: tuple[SyncDatabase, Driver],
) -> None:
    database, driver = store
    ids = talk(database)
    record = one(driver, CHECKPOINT, ("", ids[2]))
    commit(driver, Put(CHECKPOINT, record.key, record.fields, b"\xc1"), Delete(CHECKPOINT, ("", ids[6])))
    found = {(f.checkpoint_id, f.kind) for f in database.fsck()}
    assert found == {(ids[2], Damage.UNREADABLE), (ids[7], Damage.HOLE)}


def test_a_tag_on_nothing_is_found(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    talk(database)
    commit(driver, Put(TAG, ("best",), {"namespace": "", "checkpoint_id": "gone"}, version=1))
    tag = only(database.fsck())
    assert (tag.kind, tag.checkpoint_id) == (Damage.TAG, "gone")
    assert "'best'" in tag.detail


def test_a_sequence_given_twice_and_a_parent_after_its_child_are_found(
    store: tuple[SyncDatabase, Driver],
) -> None:
    database, driver = store
    ids = talk(database)
    record = one(driver, CHECKPOINT, ("", ids[3]))
    commit(
        driver, Put(CHECKPOINT, record.key, {**record.fields, "seq": record.fields["seq"] + 1}, record.body)
    )
    findings = database.fsck()
    assert {f.kind for f in findings} == {Damage.ORDER}
    assert any("parent" in f.detail for f in findings)
    assert any("history may skip" in f.detail for f in findings)


def test_a_repair_waits_for_an_open_run(store: tuple[SyncDatabase, Driver]) -> None:
    database, driver = store
    ids = talk(database)
    commit(driver, Delete(CHECKPOINT, ("", ids[4])), Put(EPOCH, (), {"open_run": "r1"}, version=1))
    with pytest.raises(perdure.Fenced):
        database.repair("thread")
    # Nobody's inbox has that run.
    assert {finding.kind for finding in database.fsck()} == {Damage.HOLE, Damage.QUEUE}


def test_a_hole_under_replayed_values_is_left_for_a_person(store: tuple[SyncDatabase, Driver]) -> None:
    """Linking over it would silently drop the writes that were replayed through what is gone."""
    from perdure.model.checkpoint import CheckpointRecord

    database, driver = store
    ids = talk(database)
    record = CheckpointRecord.read(one(driver, CHECKPOINT, ("", ids[5])))._replace(deltas=("said",))
    commit(driver, record.put(), Delete(CHECKPOINT, ("", ids[4])))
    hole = only(database.fsck())
    assert (hole.kind, hole.repairable) == (Damage.HOLE, False)
    assert "said" in hole.advice
    assert database.repair("thread").left == (hole,)


def test_a_thread_that_moves_while_it_is_read_is_read_again() -> None:
    """A removal between reading the checkpoints and reading their chunks looks like damage for a moment."""
    database = open_database("memory://")
    driver = handle_of(database).driver
    talk(database)
    done: list[int] = []

    def prune_once(at: int, effect: Effect[Any]) -> None:
        if isinstance(effect, Fetch) and any(item.kind is PACK for item in effect.items) and not done:
            done.append(at)
            database.checkpointer().prune(["thread"], keep_last=1)

    watched = FaultyDriver(driver, on_effect=prune_once)
    assert run(check(THREAD, Digester()), watched) == []
    assert done


def _is_root(found: Any) -> bool:
    return bool(found.config["configurable"]["checkpoint_ns"] == "")
