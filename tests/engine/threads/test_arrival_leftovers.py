"""A thread that is begun where an arrival was killed has nothing of the source in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

import perdure
from perdure import Retention, RetentionRules, admin
from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine.complete_reads import list_all_partitions
from perdure.engine.queue.inbox import Accept
from perdure.engine.retention.thread_removal import delete_thread
from perdure.engine.threads import arrival_leftovers
from perdure.engine.threads.transfer_claim import CLAIM
from perdure.engine.transfer import importing
from perdure.errors import NotFound, Unavailable
from perdure.imports.importer import Importer, ImportOptions
from perdure.imports.sqlite import SqliteSource
from perdure.model.ops import Commit, Fetch, Get
from perdure.model.records import CHUNK, INBOX, KINDS, LANE, SEAL, Partition
from perdure.model.runs.messages import Message
from perdure.model.runs.queue import Debounce
from perdure.retention.sweeper import RetentionOptions
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail
from tests import backends
from tests.engine.transfer.test_transfer import Narrow, database, in_memory, rows
from tests.imports import threads
from tests.langgraph import graphs
from tests.langgraph.session import config

ADA = Partition("", "ada")
SHAPE = threads.SHAPES["nested"]

Arrive = Callable[[perdure.SyncDatabase], object]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stock") / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        SHAPE.make(SHAPE.graph(saver), "ada")
    return path


def arrivals(stock: Path) -> dict[str, tuple[Arrive, Arrive]]:
    """What has to be at the target before, and the arrival of the thread "ada"."""

    def imported(db: perdure.SyncDatabase) -> None:
        source = SqliteSource(stock)
        try:
            Importer(source, db, ImportOptions()).import_thread("ada")
        finally:
            source.close()

    other = in_memory()
    SHAPE.make(SHAPE.graph(other.checkpointer()), "ada")
    other.tag("ada", "kept")

    def moved(db: perdure.SyncDatabase, **options: Any) -> None:
        admin.move(other, ADA, db, **options)

    def copied(db: perdure.SyncDatabase) -> None:
        db.checkpointer().copy_thread("other", "ada")

    def nothing(db: perdure.SyncDatabase) -> None:
        """The target is empty."""

    def grown(db: perdure.SyncDatabase) -> None:
        SHAPE.make(SHAPE.graph(db.checkpointer()), "other")

    def there(db: perdure.SyncDatabase) -> None:
        SHAPE.make(SHAPE.graph(db.checkpointer()), "ada")

    return {
        "import": (nothing, imported),
        "move": (nothing, moved),
        "move in place of another": (there, lambda db: moved(db, replace=True)),
        "copy": (grown, copied),
    }


def killed(arrive: tuple[Arrive, Arrive], at: int) -> tuple[perdure.SyncDatabase, bool]:
    """A target at which an arrival was killed at a write, and whether it had got so far."""
    memory = MemoryDriver()
    arrive[0](open_database("memory://", wrap=lambda own: memory))
    wrapped = FaultyDriver(memory, Fault(at, fail("unavailable"), "after"), counts=WRITES)
    try:
        arrive[1](open_database("memory://", wrap=lambda own: wrapped))
    except Unavailable:
        return open_database("memory://", wrap=lambda own: memory), True
    return open_database("memory://", wrap=lambda own: memory), False


def is_claimed(db: perdure.SyncDatabase) -> bool:
    return any(record.key == CLAIM for record in rows(db, ADA, SEAL))


@pytest.mark.parametrize("way", ["import", "move", "move in place of another", "copy"])
def test_a_killed_arrival_leaves_nothing_in_the_thread_that_is_begun_there(way: str, stock: Path) -> None:
    arrive = arrivals(stock)[way]
    alone = in_memory()
    graphs.chat(alone.checkpointer()).invoke(graphs.message(1), config("ada"))
    wanted = {kind.name: len(rows(alone, ADA, kind)) for kind in KINDS}
    claimed = at = 0
    while True:
        at += 1
        db, is_killed = killed(arrive, at)
        if not is_killed:
            break
        saver = db.checkpointer()
        if not is_claimed(db):
            continue  # all or nothing of it is there
        claimed += 1
        # What is there so far is not there for anybody.
        assert saver.get_tuple(config("ada")) is None
        assert list(saver.list(config("ada"))) == []
        for record in rows(db, ADA, KINDS_BY_NAME["checkpoint"])[:1]:
            assert saver.get_tuple(config("ada", checkpoint_ns="", checkpoint_id=record.key[1])) is None
        state = graphs.chat(saver).invoke(graphs.message(1), config("ada"))
        assert len(state["messages"]) == 2
        assert {kind.name: len(rows(db, ADA, kind)) for kind in KINDS} == wanted, at
        assert db.fsck("ada") == []
    assert claimed >= 2


KINDS_BY_NAME = {kind.name: kind for kind in KINDS}


def test_a_pending_write_that_comes_first_removes_what_was_left(stock: Path) -> None:
    db, _ = killed(arrivals(stock)["import"], 2)
    assert is_claimed(db)
    assert rows(db, ADA, KINDS_BY_NAME["checkpoint"])
    at = config("ada", checkpoint_ns="", checkpoint_id="9" * 32)
    db.checkpointer().put_writes(at, [("said", 1)], "task")
    assert len(rows(db, ADA, KINDS_BY_NAME["write"])) == 1
    assert not rows(db, ADA, KINDS_BY_NAME["checkpoint"])
    assert not is_claimed(db)


def test_a_large_first_checkpoint_whose_chunks_do_not_fit_one_commit_removes_it_too(stock: Path) -> None:
    db, _ = killed(arrivals(stock)["import"], 2)
    before = len(rows(db, ADA, KINDS_BY_NAME["checkpoint"]))
    assert before > 3
    narrow = database(Narrow(handle_of(db).driver, CommitLimits(ops=95, bytes=2000)))
    words = "".join(map(str, range(2000)))
    graphs.chat(narrow.checkpointer()).invoke({"messages": [("user", words)]}, config("ada"))
    assert {r.key[0] for r in rows(db, ADA, KINDS_BY_NAME["checkpoint"])} == {""}
    assert db.fsck("ada") == []


def test_an_arrival_that_still_goes_on_is_refused_and_does_not_mix(stock: Path) -> None:
    memory = MemoryDriver()
    mine = open_database("memory://", wrap=lambda own: memory)
    spoken: list[int] = []

    def speak(number: int, effect: Any) -> None:
        if isinstance(effect, Commit) and not spoken and is_claimed(mine):
            spoken.append(number)
            graphs.chat(mine.checkpointer()).invoke(graphs.message(1), config("ada"))

    wrapped = FaultyDriver(memory, on_effect=speak)
    source = SqliteSource(stock)
    db = open_database("memory://", wrap=lambda own: wrapped)
    report = Importer(source, db, ImportOptions()).import_thread("ada")
    source.close()
    assert spoken
    assert (report.state, "went on at the target" in report.why) == ("skipped", True), report
    assert len(list(mine.checkpointer().list(config("ada")))) == 3
    assert mine.fsck("ada") == []


def test_what_arrives_is_neither_pruned_nor_expired_nor_tagged(stock: Path) -> None:
    db, _ = killed(arrivals(stock)["import"], 2)
    before = {kind.name: rows(db, ADA, kind) for kind in KINDS}
    rules = RetentionRules(Retention(keep_last=1, idle="1s"))
    db.apply_retention(RetentionOptions(rules=rules, share=1.0))
    db.checkpointer().prune(["ada"], strategy="delete")
    checkpoint = rows(db, ADA, KINDS_BY_NAME["checkpoint"])[0].key[1]
    with pytest.raises(NotFound, match="has not arrived yet"):
        db.tag("ada", "mine", checkpoint_id=checkpoint)
    assert {kind.name: rows(db, ADA, kind) for kind in KINDS} == before


def test_a_name_that_was_claimed_again_meanwhile_is_left_to_the_other() -> None:
    db = in_memory()
    handle = handle_of(db)
    program = arrival_leftovers.clear(ADA, 7, handle.budget)
    assert handle.run(program) is None
    (claims,) = handle.driver.perform(Fetch(ADA, (Get(SEAL, ("arriving",)),)))
    assert claims == ()


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_an_import_that_fails_leaves_what_was_accepted_meanwhile(backend: str) -> None:
    with backends.fresh(backend) as driver:
        db = open_database("memory://", wrap=lambda own: driver)
        handle = handle_of(db)
        for is_written_to in (True, False):
            found = handle.run(importing.survey(ADA))
            arrival = handle.run(importing.begin(ADA, found, {"": 1}, handle.draw_version(), handle.budget))
            handle.run(importing.store(arrival, [], {b"c" * 16: b"half"}))
            if is_written_to:
                message = Message(id="m1", payload="hello", graph="g")
                accept = Accept(ADA, message, 1, Debounce(), "enqueue", 10, handle.draw_version())
                handle.run(accept.store(None))
            handle.run(importing.abandon(arrival))
            assert not any(rows(db, ADA, kind) for kind in (SEAL, CHUNK))
            assert len(rows(db, ADA, INBOX)) == len(rows(db, ADA, LANE)) == int(is_written_to)
            handle.run(delete_thread(ADA))
        found = handle.run(importing.survey(ADA))
        handle.run(importing.abandon(handle.run(importing.begin(ADA, found, {}, 7, handle.budget))))
        assert handle.run(list_all_partitions("")) == []
