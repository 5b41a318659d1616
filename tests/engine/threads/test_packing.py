"""The newest chunks of a thread are packed: what a thread holds stays the same, whoever else works on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

import perdure
from perdure.database.base import handle_of
from perdure.engine.retention import checkpoint_removal
from perdure.engine.retention.checkpoint_plan import keep_by
from perdure.engine.threads import chunk_reads
from perdure.engine.threads.chunk_reads import FEW, ChunkReader, resolve
from perdure.engine.threads.packing import pack
from perdure.engine.transact import Budget
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Commit, Delete, Fetch, Put, Range
from perdure.model.program import Effect, Program
from perdure.model.records import CHECKPOINT, CHUNK, PACK, Kind, Partition, Record
from perdure.model.removal_plan import make_newest_rule
from perdure.model.values.packs import BLOCK, PACK_BYTES
from perdure.storage.port import Capabilities, Driver, run
from tests.backends import EMPTY
from tests.langgraph import graphs
from tests.langgraph.session import config

pytestmark = pytest.mark.packs_late

R = TypeVar("R")
ADA = Partition("", "ada")


@pytest.fixture(params=["memory", "sqlite"])
def db(request: pytest.FixtureRequest) -> Iterator[perdure.SyncDatabase]:
    with EMPTY[request.param]() as url, perdure.connect_sync(url, migrate=True) as database:
        yield database


def talk(db: perdure.SyncDatabase, turns: int, thread: str = "ada", first: int = 0) -> None:
    graph = graphs.chat(db.checkpointer())
    for n in range(first, first + turns):
        graph.invoke(graphs.message(n), config(thread))


def records(db: perdure.SyncDatabase, kind: Kind, thread: str = "ada") -> tuple[Record, ...]:
    (found,) = handle_of(db).driver.perform(Fetch(Partition("", thread), (Range(kind),)))
    return found


def said(db: perdure.SyncDatabase, thread: str = "ada") -> list[str]:
    found = db.checkpointer().get_tuple(config(thread))
    assert found is not None
    return [message.content for message in found.checkpoint["channel_values"]["messages"]]


def pack_all(db: perdure.SyncDatabase, thread: str = "ada") -> int:
    handle = handle_of(db)
    return len(handle.run(pack(Partition("", thread), handle.digest, handle.budget, 1)))


def test_a_conversation_is_packed_as_it_grows(db: perdure.SyncDatabase) -> None:
    talk(db, 60)
    loose, packs = records(db, CHUNK), records(db, PACK)
    assert len(loose) < 3 * BLOCK < 60 * 4
    assert 2 <= len(packs) <= 16
    assert all(len(record.body) <= PACK_BYTES + 500 for record in packs)
    assert said(db)[-1] == "re: question 59"
    assert len(said(db)) == 120
    assert db.fsck("ada") == []
    # Each checkpoint is read, whatever was packed after it.
    counts = [
        found.checkpoint["channel_values"].get("count", 0) for found in db.checkpointer().list(config("ada"))
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 60


def test_packing_again_changes_nothing(db: perdure.SyncDatabase) -> None:
    talk(db, 5)
    before = said(db)
    assert pack_all(db) > 0
    packs = records(db, PACK)
    assert pack_all(db) == 0
    assert records(db, PACK) == packs
    assert records(db, CHUNK) == ()
    assert said(db) == before
    assert db.fsck("ada") == []


def test_a_conversation_goes_on_over_what_was_packed_meanwhile(db: perdure.SyncDatabase) -> None:
    """Its process takes chunks for stored that another one has put into a pack since."""
    warm = graphs.chat(db.checkpointer())
    for n in range(12):
        warm.invoke(graphs.message(n), config("ada"))
        if n % 3 == 2:
            pack_all(db)
    assert said(db) == [text for n in range(12) for text in (f"question {n}", f"re: question {n}")]
    assert db.fsck("ada") == []


class Between:
    """A driver that does something right before the first commit that deletes a chunk."""

    def __init__(self, inner: Driver, act: Callable[[], Any]) -> None:
        self.inner, self.act, self.is_done = inner, act, False

    capabilities = Capabilities()

    @property
    def limits(self) -> Any:
        return self.inner.limits

    def perform(self, effect: Effect[R]) -> R:
        ops: Any = effect.ops if isinstance(effect, Commit) else ()
        if not self.is_done and any(isinstance(op, Delete) and op.kind is CHUNK for op in ops):
            self.is_done = True
            self.act()
        return self.inner.perform(effect)


@pytest.mark.parametrize("rival", ["turn", "prune", "pack", "delete"])
def test_a_rival_between_the_read_and_the_commit_loses_nothing(db: perdure.SyncDatabase, rival: str) -> None:
    talk(db, 6)
    acts: dict[str, Callable[[], Any]] = {
        "turn": lambda: talk(db, 1, first=6),
        "prune": lambda: db.checkpointer().prune(["ada"], keep_last=1),
        "pack": lambda: pack_all(db),
        "delete": lambda: db.checkpointer().delete_thread("ada"),
    }
    handle = handle_of(db)
    driver: Any = Between(handle.driver, acts[rival])
    run(pack(ADA, handle.digest, handle.budget, 1), driver)
    assert driver.is_done
    if rival == "delete":
        assert not any(records(db, kind) for kind in (CHUNK, PACK, CHECKPOINT))
        return
    assert said(db)[-1] == ("re: question 6" if rival == "turn" else "re: question 5")
    assert db.fsck("ada") == []


def tell_a_secret(db: perdure.SyncDatabase) -> tuple[Any, Any]:
    """Hold a conversation with a secret, and return its graph and the message."""
    graph = graphs.chat(db.checkpointer())
    talk(db, 4)
    graph.update_state(config("ada"), {"messages": [("user", "a secret that is taken back " * 9)]})
    (secret,) = [m for m in graph.get_state(config("ada")).values["messages"] if "secret" in m.content]
    return graph, secret


def holds_the_secret(db: perdure.SyncDatabase) -> bool:
    reader = ChunkReader(ADA, handle_of(db).digest)
    handle_of(db).run(reader.read())
    return any(b"a secret" in body for body in reader.bodies.values())


def test_what_a_prune_removes_is_in_no_pack(db: perdure.SyncDatabase) -> None:
    graph, secret = tell_a_secret(db)
    pack_all(db)
    graph.update_state(config("ada"), {"messages": [RemoveMessage(secret.id)]})

    assert holds_the_secret(db)
    before = said(db)
    db.checkpointer().prune(["ada"], keep_last=1)
    assert not holds_the_secret(db)
    assert said(db) == before
    assert db.fsck("ada") == []


def test_what_is_packed_in_the_middle_of_a_prune_is_in_no_pack_either(db: perdure.SyncDatabase) -> None:
    graph, secret = tell_a_secret(db)
    graph.update_state(config("ada"), {"messages": [RemoveMessage(secret.id)]})
    handle = handle_of(db)
    driver: Any = Between(handle.driver, lambda: pack_all(db))
    run(checkpoint_removal.prune(ADA, keep_by(make_newest_rule(1)), handle.digest, handle.budget), driver)
    assert driver.is_done
    assert not holds_the_secret(db)
    assert db.fsck("ada") == []


def test_a_prune_leaves_what_earlier_checkpoints_need(db: perdure.SyncDatabase) -> None:
    talk(db, 40)
    pack_all(db)
    before = len(records(db, PACK))
    db.checkpointer().prune(["ada"], keep_last=3)
    assert len(records(db, PACK)) <= before
    assert db.fsck("ada") == []
    found = list(db.checkpointer().list(config("ada")))
    assert len(found) == 3
    assert said(db)[-1] == "re: question 39"
    talk(db, 1, first=40)
    assert len(said(db)) == 82


def test_a_packed_thread_is_copied(db: perdure.SyncDatabase) -> None:
    talk(db, 30)
    db.checkpointer().copy_thread("ada", "eve")
    assert said(db, "eve") == said(db)
    assert db.fsck() == []
    talk(db, 1, "eve", first=30)
    assert len(said(db, "eve")) == 62


def test_a_damaged_pack_is_found_and_named(db: perdure.SyncDatabase) -> None:
    talk(db, 12)
    pack_all(db)
    driver = handle_of(db).driver
    damaged = records(db, PACK)[0]
    body = damaged.body[:-1] + bytes((damaged.body[-1] ^ 1,))
    driver.perform(Commit(ADA, (Delete(PACK, damaged.key),)))
    driver.perform(Commit(ADA, (Put(PACK, damaged.key, damaged.fields, body),)))
    findings = db.fsck("ada")
    assert findings
    assert {finding.kind.value for finding in findings} <= {"damaged", "dangling"}
    assert any(damaged.key[1].hex() in finding.detail for finding in findings)
    with pytest.raises(perdure.PerdureError, match=damaged.key[1].hex()):
        db.checkpointer().get_tuple(config("ada"))
    assert db.repair("ada").left == tuple(findings)


def performed(program: Program[Any], driver: Driver) -> Iterator[Any]:
    """Yield the requests that a program makes, each performed."""
    answer = None
    while True:
        try:
            effect: Any = program.send(answer)
        except StopIteration:
            return
        answer = driver.perform(effect)
        yield effect


@pytest.mark.parametrize("turns", [10, 100])
def test_a_new_process_reads_a_thread_with_one_request(db: perdure.SyncDatabase, turns: int) -> None:
    talk(db, turns)
    saver = db.checkpointer()
    handle = handle_of(db)
    assert len(list(performed(saver._get(config("ada")), handle.driver))) == 1


def test_the_newest_chunks_are_found_without_the_older_packs(db: perdure.SyncDatabase) -> None:
    talk(db, 100)
    reader = ChunkReader(ADA, handle_of(db).digest, packs=FEW)
    newest = records(db, CHUNK)[0].key[0]
    handle_of(db).run(reader.find([newest]))
    assert len(reader.packs) == FEW


def test_a_thread_whose_state_was_replaced_is_read_from_the_blocks_that_it_needs(
    db: perdure.SyncDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_reads, "_SPARE", 2)
    talk(db, 80)
    graph = graphs.chat(db.checkpointer())
    messages = [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("anew", id="anew")]
    graph.update_state(config("ada"), {"messages": messages})
    # The next turn of a new process notes where it found what it needs.
    talk(db, 2, first=80)
    newest = max((CheckpointRecord.read(r) for r in records(db, CHECKPOINT)), key=lambda c: c.seq)
    assert newest.blocks
    reader = ChunkReader(ADA, handle_of(db).digest, newest.blocks)
    for ref in newest.refs.values():
        handle_of(db).run(resolve(ADA, {"value": ref}, handle_of(db).digest, reader))
    assert len(reader.packs) < len(records(db, PACK)) // 2
    assert said(db)[0] == "anew"


def test_many_chunks_are_packed_within_the_limits_of_a_commit(db: perdure.SyncDatabase) -> None:
    talk(db, 30)
    before, loose = said(db), len(records(db, CHUNK))
    handle = handle_of(db)
    commits = [
        effect
        for effect in performed(pack(ADA, handle.digest, Budget(12, 40_000), 1), handle.driver)
        if isinstance(effect, Commit)
    ]
    assert len(commits) > loose // 9
    assert all(len(commit.ops) <= 12 for commit in commits)
    assert records(db, CHUNK) == ()
    assert said(db) == before
    assert db.fsck("ada") == []
