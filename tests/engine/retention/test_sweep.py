"""A sweep applies each thread's policy, counts what it frees, and lets no tenant wait for another."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import perdure
from perdure import Retention, RetentionRules
from perdure.database.base import handle_of
from perdure.engine.complete_reads import read_all
from perdure.engine.retention import sweep, thread_expiry, thread_removal
from perdure.engine.retention.sweep import RetentionProgress, RetentionResult, RetentionTerms
from perdure.engine.transact import Budget
from perdure.errors import TooLarge
from perdure.model.ops import Delete, Fetch, Range
from perdure.model.program import Program
from perdure.model.records import (
    BLOB,
    CHECKPOINT,
    CHUNK,
    DEDUPE,
    EFFECT,
    INBOX,
    OUTBOX,
    PACK,
    RUN,
    WRITE,
    Partition,
)
from perdure.runtime.worker.delivery import Channel
from perdure.storage.port import WrappingDriver, run
from tests import houses
from tests.backends import BACKENDS
from tests.houses import seen
from tests.langgraph import graphs
from tests.langgraph.session import config
from tests.runtime.graphs import Storage, Talk, go, working
from tests.runtime.graphs import stored as stored_on

DAY_US = 86_400_000_000


@pytest.fixture
def db() -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync("memory://") as db:
        yield db


def terms(db: perdure.SyncDatabase, rules: RetentionRules, **more: Any) -> RetentionTerms:
    return RetentionTerms(
        rules, handle_of(db).digest, Budget(handle_of(db).limits.ops, handle_of(db).limits.bytes), **more
    )


def rules(**fields: Any) -> RetentionRules:
    return RetentionRules(Retention(**fields))


def now(days: float = 0) -> thread_expiry.Clocks:
    at = time.time_ns() // 1000 + round(days * DAY_US)
    return thread_expiry.Clocks(at, at)


def stored(db: perdure.SyncDatabase, thread: str) -> int:
    kinds = (CHECKPOINT, CHUNK, WRITE, BLOB, PACK)
    found = handle_of(db).run(read_all(Partition("", thread), *map(Range, kinds)))
    return sum(len(record.body) for records in found for record in records)


def visit(db: perdure.SyncDatabase, thread: str, days: float = 0, **fields: Any) -> RetentionResult:
    return handle_of(db).run(sweep.visit(Partition("", thread), terms(db, rules(**fields)), now(days)))


def talk(db: perdure.SyncDatabase, thread: str, turns: int, tenant: str = "", **metadata: Any) -> None:
    graph = graphs.chat(db.checkpointer(tenant=tenant))
    for n in range(turns):
        graph.invoke(graphs.message(n), {**config(thread), "metadata": metadata})


@pytest.mark.parametrize(
    "live",
    [houses.conversation, houses.questions, houses.subgraphs, houses.tagged_fork, houses.writes_only],
    ids=lambda live: live.__name__,
)
def test_a_dry_run_counts_what_the_sweep_removes_then(live: Any, db: perdure.SyncDatabase) -> None:
    live(db.checkpointer(), "a", db)
    at = Partition("", "a")
    head = db.checkpointer().get_tuple(config("a"))
    held, before = seen(db, "", "a"), stored(db, "a")
    planned = handle_of(db).run(sweep.visit(at, terms(db, rules(keep_last=1), dry_run=True), now()))
    assert seen(db, "", "a") == held
    assert visit(db, "a", keep_last=1) == planned
    # A pack whose chunks go in part is compressed anew, to a few bytes more or less than its share.
    assert stored(db, "a") == pytest.approx(before - planned.bytes, rel=1e-3)
    assert planned.checkpoints or live is houses.writes_only
    found = db.checkpointer().get_tuple(config("a"))
    if head is not None:
        assert found is not None
        assert found.checkpoint == head.checkpoint
        assert found.pending_writes == head.pending_writes
    assert db.fsck("a") == []
    assert visit(db, "a", keep_last=1) == RetentionResult(threads=1)


def test_either_age_or_number_keeps_a_checkpoint(db: perdure.SyncDatabase) -> None:
    talk(db, "a", 4)
    count = len(db.timeline("a"))
    at = Partition("", "a")

    def visited(days: float, **fields: Any) -> int:
        done = handle_of(db).run(sweep.visit(at, terms(db, rules(**fields), dry_run=True), now(days)))
        return done.checkpoints

    assert visited(10, keep_for="30d") == 0
    assert visited(31, keep_for="30d") == count - 1
    assert visited(31, keep_for="30d", keep_last=5) == count - 5
    assert visited(10, keep_for="30d", keep_last=5) == 0
    assert visited(10, keep_last=5) == count - 5


def test_a_tagged_checkpoint_hides_no_old_one(db: perdure.SyncDatabase) -> None:
    talk(db, "a", 3)
    oldest = db.timeline("a")[-1].checkpoint_id
    db.tag("a", "first", oldest)
    assert visit(db, "a", 2, keep_for="1d", keep_last=2).checkpoints == 9 - 3
    assert {view.checkpoint_id for view in db.timeline("a")} >= {oldest}
    assert len(db.timeline("a")) == 3


def test_an_idle_thread_is_removed_as_a_whole_unless_it_is_tagged(db: perdure.SyncDatabase) -> None:
    talk(db, "a", 2)
    talk(db, "b", 2)
    db.tag("b", "kept")
    held = stored(db, "a")
    assert visit(db, "a", 89, idle="90d") == RetentionResult(threads=1)
    gone = visit(db, "a", 91, idle="90d")
    assert gone == RetentionResult(threads=1, expired=1, checkpoints=6, bytes=held)
    assert visit(db, "b", 91, idle="90d") == RetentionResult(threads=1)
    assert [t.thread_id for t in db.threads()] == ["b"]
    assert visit(db, "b", 91, idle="90d", keep_tagged=False).expired == 1
    assert list(db.threads()) == []


def test_a_thread_names_its_policy_in_its_metadata(db: perdure.SyncDatabase) -> None:
    named = RetentionRules(Retention(keep_last=1), {"audit": Retention()}, {"support": "audit"})
    talk(db, "plain", 2)
    talk(db, "named", 2, retention="audit")
    talk(db, "assistant", 2, assistant_id="support")
    talk(db, "unknown", 2, retention="for ever")
    state, failures = swept_once(db, terms(db, named))
    assert state.last == RetentionResult(threads=4, checkpoints=5, bytes=state.last.bytes, failed=1)
    assert [f.partition.thread for f in failures] == ["unknown"]
    assert "a retention policy that does not exist" in failures[0].reason
    assert len(db.timeline("plain")) == 1
    assert all(len(db.timeline(name)) == 6 for name in ("named", "assistant", "unknown"))
    only = terms(db, RetentionRules(Retention(keep_last=2), only_default=True))
    state, failures = swept_once(db, only)
    assert not failures
    assert all(len(db.timeline(name)) == 2 for name in ("named", "assistant", "unknown"))


def swept_once(
    db: perdure.SyncDatabase, how: RetentionTerms, quantum: int = 3
) -> tuple[RetentionProgress, list[sweep.Failure]]:
    state, every = RetentionProgress(owner="me"), list[sweep.Failure]()
    while not state.is_over:
        state, failures = handle_of(db).run(sweep.step(state, how, quantum, now()))
        every += failures
    return state, every


def test_a_damaged_thread_does_not_block_the_others(db: perdure.SyncDatabase) -> None:
    for name in "abc":
        talk(db, name, 2)
    head = db.timeline("b")[0].checkpoint_id
    handle_of(db).run(_remove(Partition("", "b"), head))
    state, failures = swept_once(db, terms(db, rules(keep_last=1)))
    assert [f.partition.thread for f in failures] == ["b"]
    assert (state.last.threads, state.last.failed) == (3, 1)
    assert len(db.timeline("a")) == len(db.timeline("c")) == 1


@pytest.mark.parametrize("error", [TooLarge("too much at once"), ValueError("no MessagePack")])
def test_a_thread_that_cannot_be_pruned_does_not_block_the_others(
    db: perdure.SyncDatabase, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        talk(db, name, 2)
    real = sweep.visit

    def failing(partition: Partition, *how: Any) -> Any:
        if partition.thread == "b":
            raise error
        return (yield from real(partition, *how))

    monkeypatch.setattr(sweep, "visit", failing)
    state, failures = swept_once(db, terms(db, rules(keep_last=1)))
    assert [f.partition.thread for f in failures] == ["b"]
    assert "no MessagePack" not in failures[0].reason
    assert (state.last.threads, state.last.failed) == (3, 1)
    assert len(db.timeline("a")) == len(db.timeline("c")) == 1


def test_a_tag_that_is_set_while_an_expired_thread_is_removed_keeps_it(db: perdure.SyncDatabase) -> None:
    talk(db, "a", 2)
    at = Partition("", "a")
    thread = handle_of(db).run(thread_expiry.read_expiry_facts(at))
    assert thread.expires_at(rules(idle="1h")) is not None
    db.tag("a", "approved")
    assert not handle_of(db).run(thread_removal.remove_expired(at, thread))
    assert db.tags("a")


def _remove(partition: Partition, checkpoint_id: str) -> Any:
    from perdure.model.ops import Commit
    from perdure.model.program import ask

    yield from ask(Commit(partition, (Delete(CHECKPOINT, ("", checkpoint_id)),)))


def test_a_tenant_with_many_threads_does_not_delay_the_others(db: perdure.SyncDatabase) -> None:
    for n in range(20):
        talk(db, f"t{n:02}", 1, tenant="many")
    for tenant in ("alone", "other", "zoe"):
        talk(db, "t", 1, tenant=tenant)
    order: list[str] = []
    state, how = RetentionProgress(owner="me"), terms(db, rules(keep_last=1))
    while not state.is_over:
        before = state.swept.threads
        state, _ = handle_of(db).run(sweep.step(state, how, 4, now()))
        done = (state.last if state.is_over else state.swept).threads - before
        order += [state.position or ""] * done
    assert order.index("zoe") == 1 + 4 + 1
    assert state.last == RetentionResult(threads=23, checkpoints=23 * 2, bytes=state.last.bytes)


def test_a_sweep_of_one_tenant_leaves_the_others(db: perdure.SyncDatabase) -> None:
    for tenant in ("", "ada", "bob"):
        talk(db, "t", 2, tenant=tenant)
    state, _ = swept_once(db, terms(db, rules(keep_last=1), tenant="ada"))
    assert state.last.threads == 1
    counts = {t: len(list(db.checkpointer(tenant=t).list(config("t")))) for t in ("", "ada", "bob")}
    assert counts == {"": 6, "ada": 1, "bob": 6}


def test_more_unfinished_tenants_than_a_state_holds_are_swept_too(
    db: perdure.SyncDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_OPEN_MAX", 2)
    monkeypatch.setattr(sweep, "_PAGE", 2)
    for tenant in "abcde":
        for n in range(5):
            talk(db, f"t{n}", 1, tenant=tenant)
    state, _ = swept_once(db, terms(db, rules(keep_last=1)), quantum=2)
    assert state.last == RetentionResult(threads=25, checkpoints=50, bytes=state.last.bytes)


def test_one_process_sweeps_until_its_lease_is_over(db: perdure.SyncDatabase) -> None:
    first = handle_of(db).run(sweep.begin("one", None, 1_000, 100))
    assert first is not None
    assert handle_of(db).run(sweep.begin("two", None, 1_050, 100)) is None
    assert handle_of(db).run(sweep.begin("two", "ada", 1_050, 100)) is not None
    state, version = first
    saved = handle_of(db).run(sweep.save(replace(state, until=1_200), None, version, 1_060))
    assert saved is not None
    assert handle_of(db).run(sweep.begin("two", None, 1_150, 100)) is None
    taken = handle_of(db).run(sweep.begin("two", None, 1_201, 100))
    assert taken is not None
    assert taken[0].started_at == 1_000
    assert handle_of(db).run(sweep.save(state, None, saved, 1_202)) is None
    assert handle_of(db).run(sweep.read_progress(None))[0].owner == "two"


def requests_of(db: perdure.SyncDatabase, program: Program[Any]) -> list[Any]:
    """Run a program, and return its requests."""
    asked: list[Any] = []

    class Recording(WrappingDriver):
        def perform(self, effect: Any) -> Any:
            asked.append(effect)
            return self._inner.perform(effect)

    run(program, Recording(handle_of(db).driver))
    return asked


def test_a_thread_with_nothing_to_remove_costs_two_requests(db: perdure.SyncDatabase) -> None:
    talk(db, "a", 3)
    asked = requests_of(
        db, sweep.visit(Partition("", "a"), terms(db, rules(keep_last=50, idle="90d"), keep_us=1), now())
    )
    assert len(asked) == 2
    assert all(isinstance(effect, Fetch) for effect in asked)


@pytest.fixture(params=BACKENDS)
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    with stored_on(request.param) as storage:
        yield storage


QUEUE = (INBOX, DEDUPE, RUN, OUTBOX, EFFECT)


def test_what_has_ended_goes_from_threads_at_rest(storage: Storage) -> None:
    """Their next run would remove it, and may never come."""
    database = storage.database()

    async def main() -> None:
        async with working(database, Talk().graph, channels={"post": Channel(send)}) as runtime:
            for n in range(3):
                ticket = await runtime.submit(
                    "withdrawn", {"messages": ["secret"]}, delay=3600, dedupe_key=str(n)
                )
                assert await runtime.cancel("withdrawn", ticket.id)
                await runtime.wait(ticket)
            for text in ("a", "b"):
                await runtime.wait(await runtime.accept("answered", text, channel="post"))
            await runtime.wait(await runtime.accept("single", "a"))
            await runtime.submit("withdrawn", {"messages": ["later"]}, delay=3600)

    async def send(*_: Any) -> None:
        """Send nothing."""

    go(main())
    before = {name: storage.rows(name, *QUEUE) for name in ("withdrawn", "answered", "single")}
    for keep_us, dry_run in ((DAY_US, False), (1, True)):
        how = terms(database, rules(keep_last=50), keep_us=keep_us, dry_run=dry_run)
        for name, rows in before.items():
            handle_of(database).run(sweep.visit(Partition("", name), how, now(0.5)))
            assert storage.rows(name, *QUEUE) == rows, "it is kept for longer, or it is a dry run"
    how = terms(database, rules(keep_last=50), keep_us=1)
    for name in before:
        handle_of(database).run(sweep.visit(Partition("", name), how, now(0.5)))
        left = Counter(row.kind.name for row in storage.rows(name, *QUEUE))
        assert (left["inbox"], left["run"]) == (1, 1), "the newest run stays"
        assert left["dedupe"] <= 1
        assert left["outbox"] == (name == "answered")
        assert database.fsck(name) == []
        first, second = (
            requests_of(database, sweep.visit(Partition("", name), each, now(0.5)))
            for each in (how, replace(how, keep_us=None))
        )
        assert len(first) == len(second), "what stays costs no further request"
