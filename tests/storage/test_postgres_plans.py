"""Every statement reaches its rows by an index, in the order that is asked for, however big the tables are.

The server itself tells the plans that it used, also of the statements inside the functions: in a session
that began while the tables were empty and kept its plans, and in one that began when they were full.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from perdure.model.ops import (
    Check,
    Commit,
    Delete,
    Expect,
    Fetch,
    FindDue,
    FindExpired,
    FindRuns,
    FindThreads,
    Get,
    Put,
    Range,
)
from perdure.model.records import (
    BLOB,
    CHECKPOINT,
    CHUNK,
    DEDUPE,
    DOCUMENT,
    EFFECT,
    EPOCH,
    EVENT,
    GC,
    HEAD,
    INBOX,
    ITEM,
    KINDS,
    LANE,
    OUTBOX,
    PACK,
    RUN,
    STORE,
    TAG,
    WRITE,
    Partition,
)
from perdure.storage.postgres import codec, opening
from perdure.storage.postgres.request_arrays import SHAPES
from perdure.storage.postgres.statements import Statement, Statements
from perdure.storage.postgres.url import PostgresUrl, parse_url
from perdure.testing.conformance import rows
from tests.servers import postgres

AT = Partition("t", "thread7")
LATE = 1 << 60


class Session:
    """A connection that keeps the plans of everything that it executes."""

    def __init__(self, place: PostgresUrl) -> None:
        self.connection = psycopg.connect(place.conninfo, autocommit=True)
        self.plans: list[dict[str, Any]] = []
        self.connection.add_notice_handler(self._noticed)
        for setting in (
            "LOAD 'auto_explain'",
            "SET auto_explain.log_min_duration = 0",
            "SET auto_explain.log_nested_statements = on",
            "SET auto_explain.log_analyze = on",
            "SET auto_explain.log_format = json",
            "SET client_min_messages = log",
        ):
            self.connection.execute(setting)
        self.plans.clear()

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        _, found, plan = (notice.message_primary or "").partition("plan:\n")
        if found:
            self.plans.append(json.loads(plan))

    def execute(self, statement: Statement, values: Sequence[bytes | None]) -> list[dict[str, Any]]:
        """The plans that a statement used, its own and those within its function."""
        self.plans.clear()
        formats = [int(statement.binary)] * len(values)
        result = self.connection.pgconn.exec_params(statement.sql, values, statement.types, formats, 1)
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
        assert self.plans, "no plan was told"
        return list(self.plans)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def refuse_scans(plans: Sequence[dict[str, Any]]) -> set[str]:
    """No table is scanned, no record is read and thrown away, none is sorted; the tables that were read."""
    read: set[str] = set()
    for told in plans:
        held = list(nodes(told["Plan"]))
        tables = {node["Relation Name"] for node in held if "Relation Name" in node}
        for node in held:
            kind, table = node["Node Type"], node.get("Relation Name")
            assert kind not in ("Seq Scan", "Bitmap Heap Scan"), (
                f"{kind} of {table}: {told['Query Text'][:300]}"
            )
            if table is not None and "Index" in kind:
                assert node.get("Rows Removed by Filter", 0) <= 1, f"{table}: {told['Query Text'][:300]}"
            # Partitions are put into order to be locked; nothing else is.
            if "Sort" in kind:
                assert tables <= {"thread"}, f"{kind} of {tables}: {told['Query Text'][:300]}"
        read |= tables
    return read


def fill(connection: psycopg.Connection, schema: str) -> None:
    """Forty threads of 500 records of each kind that holds many."""
    many = " FROM generate_series(1, 40) t, generate_series(1, 500) n"
    each = " FROM generate_series(1, 2000) t"
    for table, values in {
        "thread (tenant, thread, space)": "'t', 'thread' || t, (ARRAY['store', 'thread'])[1 + t % 2]" + each,
        "gc": "t, 1" + each,
        "epoch": "t, NULL, 1" + each,
        "head": "t, 'n' || n, 'c', n, 1" + many,
        "checkpoint": "t, '', 'c' || n, n, NULL, 'run' || n, 'loop', 1, 'x'" + many,
        "chunk": "t, sha256(n::text::bytea), 1, 'x'" + many,
        "write": "t, '', 'c' || n / 4, 't', n, 'x', '', '', 1, 'x'" + many,
        "tag": "t, 'n' || n, '', 'c', 1" + many,
        "seal": "t, 'n' || n, 1, 'x'" + many,
        "item": "t, 'k' || n, 1, 1, NULL, CASE WHEN n < 9 THEN t * n END, 1, 'x'" + many,
        "lane": "t, 'n' || n, CASE WHEN n < 490 THEN t * n END, 1, 1, NULL, NULL, NULL, NULL, 1, NULL, NULL,"
        " NULL, NULL, 1" + many,
        "inbox": "t, n, 'g', '', 'coalesce', '', 1, 'x'" + many,
        "dedupe": "t, sha256(n::text::bytea), n" + many,
        "run": "t, 'r' || n, n, n, 'done', 'g', '', 1, 1, NULL, 1, 1, 1, 'x'" + many,
        "outbox": "t, n, 'r' || n, 0, 'x', 'sent', 1, NULL, 1, 1, 'x'" + many,
        "effect": "t, 'r' || n / 4, 't', n, 'x'" + many,
        "document": "t, 'c' || n % 4, 'd' || n, n, 1, 'x'" + many,
        "event": "t, n, 'r' || n / 4, 'x'" + many,
    }.items():
        connection.execute(f"INSERT INTO {schema}.{table} SELECT {values}".encode())


@pytest.fixture(scope="module", params=["planned when empty", "planned when full"])
def session(request: pytest.FixtureRequest) -> Iterator[tuple[Session, Statements]]:
    with postgres.empty() as url:
        opening.migrate(url)
        place = parse_url(url)
        statements = Statements(place)
        early = Session(place)
        for fetch in fetches():
            early.execute(statements.fetch, codec.pack_fetches([fetch]))
        for commit in commits():
            early.execute(statements.commit, codec.pack_writes([commit], LATE))
        for find in (FindRuns("t", "run7"), FindExpired("t", until=9), FindDue("t", until=9)):
            early.execute(*statements.find(find))
        with psycopg.connect(place.conninfo, autocommit=True) as admin:
            admin.execute(f'TRUNCATE "{place.schema}".thread RESTART IDENTITY'.encode())
            for kind in KINDS:
                admin.execute(f'TRUNCATE "{place.schema}".{kind.name}'.encode())
            fill(admin, f'"{place.schema}"')
            if request.param == "planned when full":
                admin.execute("ANALYZE")
        session = early if request.param == "planned when empty" else Session(place)
        yield session, statements
        early.connection.close()
        session.connection.close()


def fetches() -> list[Fetch]:
    """A range of every shape, with a limit and without, and a load as the engine does it."""
    out: list[Fetch] = []
    values: dict[str, Any] = {"integer": 3, "text": "c3", "bytes": b"c3"}
    for shape in SHAPES:
        key = tuple(values[c.kind] for c in shape.kind.key)
        after: Any = None
        if shape.after:
            after = 3 if shape.by else key
        prefix = key[: shape.depth]
        if shape.depth == len(key):
            out.append(Fetch(AT, (Get(shape.kind, key),)))
            continue
        for limit in (None, 5):
            item = Range(shape.kind, prefix, shape.by, shape.reverse, after, limit)
            out.append(Fetch(AT, (item,)))
    load = (
        Get(HEAD, ("n3",)),
        Get(GC, ()),
        Get(EPOCH, ()),
        Get(CHECKPOINT, ("", "c3")),
        Range(WRITE, ("", "c3")),
    )
    out.append(Fetch(AT, load))
    out.append(Fetch(AT, tuple(Get(CHUNK, (b"%d" % n,)) for n in range(300))))
    return out


def commits() -> list[Commit]:
    fields = {"seq": 1, "parent_id": None, "run_id": "r", "source": "loop", "step": 1}
    return [
        Commit(
            AT,
            (
                Put(CHECKPOINT, ("", "new"), fields, b"x"),
                Put(HEAD, ("n3",), {"checkpoint_id": "new", "seq": 1}, version=2),
                Check(GC, (), Expect.ANY),
                Check(EPOCH, (), Expect.ANY),
                *(Put(CHUNK, (b"%d" % n,), {"generation": 1}, b"x") for n in range(200)),
                Put(BLOB, (b"1",), {"generation": 1}, b"x"),
                Put(PACK, (1, b"1"), {"generation": 1}, b"x"),
            ),
        ),
        Commit(
            AT,
            (
                Put(
                    WRITE,
                    ("", "new", "t", 1),
                    {"channel": "x", "task_path": "", "nonce": ""},
                    expect=Expect.ABSENT,
                ),
                Put(TAG, ("new",), {"namespace": "", "checkpoint_id": "c"}, expect=Expect.ABSENT),
            ),
        ),
        Commit(
            AT,
            (
                Delete(CHUNK, (b"3",), unchanged={"generation": 1}),
                Delete(CHECKPOINT, ("", "new")),
                Delete(WRITE, ("", "new", "t", 1), 0),
                Delete(TAG, ("new",)),
                Check(GC, (), Expect.ANY),
            ),
        ),
        Commit(
            Partition("t", "a\x01", STORE),
            tuple(
                Put(ITEM, (f"k{n}",), dict.fromkeys(("created_at", "updated_at", "ttl", "expires_at"), 1))
                for n in range(50)
            ),
        ),
        Commit(
            AT,
            (
                rows.lane("n7", 7, expect=Expect.PRESENT, version=2),
                rows.lane("new", None),
                *(rows.dedupe(b"%d" % n, n) for n in range(20)),
                *(rows.inbox(n) for n in range(1000, 1020)),
                *(rows.a_run(f"r{n}", n) for n in range(20)),
                *(rows.reply(n) for n in range(20)),
                *(rows.effect("t", n) for n in range(20)),
                *(rows.document(f"d{n}", n) for n in range(20)),
                *(rows.event(n) for n in range(1000, 1020)),
            ),
        ),
        Commit(
            AT,
            (
                Delete(LANE, ("new",), unchanged={"due_at": 7}),
                *(Delete(DEDUPE, (b"%d" % n,)) for n in range(20)),
                *(Delete(INBOX, (n,)) for n in range(1000, 1020)),
                *(Delete(RUN, (f"r{n}",), 1) for n in range(2)),
                Delete(OUTBOX, (3,), 1),
                Delete(EFFECT, ("run", "t", 3)),
                *(Delete(DOCUMENT, ("threads", f"d{n}"), 1) for n in range(20)),
                *(Delete(EVENT, (n,)) for n in range(1000, 1020)),
            ),
        ),
    ]


def test_every_range_and_record_is_read_by_an_index_in_its_order(session: tuple[Session, Statements]) -> None:
    run, statements = session
    read: set[str] = set()
    for fetch in fetches():
        read |= refuse_scans(run.execute(statements.fetch, codec.pack_fetches([fetch])))
    together = [Fetch(Partition("t", f"thread{n}"), fetches()[-2].items) for n in range(1, 40)]
    read |= refuse_scans(run.execute(statements.fetch, codec.pack_fetches(together)))
    assert read == {"thread", *(kind.name for kind in KINDS)}


# Tests share the database of the module: the crowd of this one begins behind the threads that others drop.
def test_commits_check_write_and_delete_by_an_index(session: tuple[Session, Statements]) -> None:
    run, statements = session
    read: set[str] = set()
    for commit in commits():
        read |= refuse_scans(run.execute(statements.commit, codec.pack_writes([commit], LATE)))
    crowd = [Commit(Partition("t", f"thread{n}"), commits()[0].ops) for n in range(14, 73)]
    read |= refuse_scans(run.execute(statements.commit, codec.pack_writes(crowd, LATE)))
    assert {"thread", *(kind.name for kind in KINDS)} - read == {"gc", "epoch", "seal"}


def test_pages_of_threads_runs_and_expired_items_are_read_by_an_index(
    session: tuple[Session, Statements],
) -> None:
    run, statements = session
    run.connection.execute("ANALYZE")
    for tenant in ("t", None):
        for after in (None, AT):
            for space, prefix in (("thread", ""), ("store", "thread1")):
                find = FindThreads(tenant, after=after, limit=20, space=space, prefix=prefix)
                pages = run.execute(*statements.find(find))
                assert "thread_space_tenant_thread_key" in json.dumps(pages)
                refuse_scans_of("thread", pages)
        runs = run.execute(*statements.find(FindRuns(tenant, "run7")))
        assert "checkpoint_run_id" in json.dumps(runs)
        refuse_scans_of("checkpoint", runs)
        expired = run.execute(*statements.find(FindExpired(tenant, until=9)))
        assert "item_expires_at" in json.dumps(expired)
        refuse_scans_of("item", expired)


@pytest.mark.parametrize("limit", [20, 1000])
@pytest.mark.parametrize("until", [20, 1 << 60])
@pytest.mark.parametrize("tenant", ["t", None])
def test_due_lanes_are_read_from_their_index_in_its_order(
    session: tuple[Session, Statements], tenant: str | None, until: int, limit: int
) -> None:
    run, statements = session
    due = run.execute(*statements.find(FindDue(tenant, until=until, limit=limit)))
    assert "lane_due_at" in json.dumps(due)
    assert refuse_scans(due) == {"lane", "thread"}
    assert max(node["Actual Rows"] for told in due for node in nodes(told["Plan"])) <= limit


@pytest.mark.parametrize("limit", [20, 1000])
@pytest.mark.parametrize("tenant", ["t", None])
def test_due_lanes_from_a_time_on_are_read_from_their_index_in_its_order(
    session: tuple[Session, Statements], tenant: str | None, limit: int
) -> None:
    run, statements = session
    run.connection.execute("ANALYZE")
    due = run.execute(*statements.find(FindDue(tenant, until=1 << 60, since=5000, limit=limit)))
    assert "lane_due_at" in json.dumps(due)
    assert refuse_scans(due) == {"lane", "thread"}
    assert max(node["Actual Rows"] for told in due for node in nodes(told["Plan"])) <= limit


def refuse_scans_of(table: str, plans: Sequence[dict[str, Any]]) -> None:
    for told in plans:
        for node in nodes(told["Plan"]):
            assert (node["Node Type"], node.get("Relation Name")) != ("Seq Scan", table)


def test_a_partition_is_dropped_by_an_index(session: tuple[Session, Statements]) -> None:
    run, statements = session
    values = [b"t", b"thread9", b"thread", b"10000", b"%d" % LATE]
    refuse_scans([p for p in run.execute(statements.drop, values) if "dropped" not in p["Query Text"]])


def test_a_partition_is_dropped_on_conditions_by_an_index(session: tuple[Session, Statements]) -> None:
    run, statements = session
    schema = statements._schema
    numbers = [number.to_bytes(8, "big") for number in (10_000, LATE)]
    for thread, checks, is_dropped in (
        ("thread11", (Check(HEAD, ("n3",), 1), Check(LANE, ("none",), Expect.ABSENT)), True),
        ("thread13", (Check(HEAD, ("n3",), 2), Check(DOCUMENT, ("c3", "d3"), 1)), False),
    ):
        at = Partition("t", thread)
        values = [*codec.pack_writes([Commit(at, checks)], LATE), *(part.encode() for part in at), *numbers]
        plans = run.execute(statements.drop_if, values)
        # The function's own table of what it dropped is scanned; it holds the partition's number alone.
        refuse_scans([plan for plan in plans if "dropped" not in plan["Query Text"]])
        left = run.connection.execute(
            f"SELECT count(*) FROM {schema}.thread WHERE tenant = 't' AND thread = %s".encode(), (thread,)
        ).fetchone()
        assert left == (0 if is_dropped else 1,)


def test_the_check_sees_a_scan_and_a_sort(session: tuple[Session, Statements]) -> None:
    run, statements = session
    schema = statements._schema
    for sql in (
        f"SELECT body FROM {schema}.checkpoint WHERE source = 'loop'",
        f"SELECT body FROM {schema}.checkpoint WHERE t = 7 ORDER BY step",
    ):
        plans = run.execute(Statement(b"", sql.encode(), ()), [])
        with pytest.raises(AssertionError):
            refuse_scans(plans)
