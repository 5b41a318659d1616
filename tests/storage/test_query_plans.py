"""SQLite answers every hot statement from one index: no table is scanned, nothing is sorted.

The statements are taken from the driver while the saver works, so that a new one is looked at as well.

Covers perdure.storage.sql.searches, perdure.storage.sql.listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.model.ops import (
    CopyCondition,
    FindDue,
    FindExpired,
    FindListed,
    FindRuns,
    FindThreads,
    ListedPlace,
    Range,
)
from perdure.model.records import (
    CHECKPOINT,
    CHUNK,
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
    RUN,
    STORE,
    TAG,
    THREADS,
    WRITE,
    Partition,
)
from perdure.storage.sql import compile as sql
from perdure.storage.sql import schema
from perdure.storage.sqlite import driver as sqlite
from tests.storage.living import live


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def connection(path: Path) -> Iterator[apsw.Connection]:
    connection = sqlite.connect(path)
    yield connection
    connection.close()


def plan(connection: apsw.Connection, statement: str) -> list[str]:
    """The lines of a statement's plan."""
    bound = (None,) * len(set(re.findall(r"\?\d+", statement)) or re.findall(r"\?", statement))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", bound)]


def refuse_scans(connection: apsw.Connection, statement: str) -> None:
    lines = plan(connection, statement)
    assert lines, f"no plan for {statement}"
    for line in lines:
        # The keys of a statement for several records are a list of values.
        is_list = line.startswith("LIST SUBQUERY") or line.endswith("-ROW VALUES CLAUSE")
        # The table of the schema's version has one row.
        is_short = line == "SCAN perdure_schema"
        assert is_list or is_short or line.startswith("SEARCH"), f"{line!r} in the plan of {statement}"


def ranges() -> list[Range]:
    """Every range that latest, list, history, pending writes, heads, tags, collection and queues ask for."""
    return [
        Range(CHECKPOINT, ("",), "seq", reverse=True, limit=64),
        Range(CHECKPOINT, ("",), "seq", reverse=True, after=9, limit=64),
        Range(CHECKPOINT, limit=1000),
        Range(CHECKPOINT, after=("", "c"), limit=1000),
        Range(WRITE, ("", "c")),
        Range(WRITE, limit=1000),
        Range(WRITE, after=("", "c", "t", 0), limit=1000),
        Range(CHUNK, limit=1000, bodies=False),
        Range(CHUNK, after=(b"",), limit=1000, bodies=False),
        Range(HEAD),
        Range(TAG),
        Range(GC),
        Range(EPOCH),
        Range(LANE),
        Range(INBOX, after=(3,), limit=20),
        Range(INBOX, reverse=True, limit=1),
        Range(OUTBOX, after=(3,), limit=20),
        Range(OUTBOX, reverse=True, limit=1),
        Range(RUN, by="first", reverse=True, limit=20),
        Range(RUN, by="first", reverse=True, after=9, limit=20),
        Range(EFFECT, ("run", "task")),
        Range(EFFECT, limit=1000),
        Range(DOCUMENT, ("threads",), "updated_at", reverse=True, limit=20),
        Range(DOCUMENT, ("threads",), "updated_at", reverse=True, after=9, limit=20),
        Range(DOCUMENT, limit=1000),
        Range(DOCUMENT, after=("threads", "d"), limit=1000),
        Range(EVENT, after=(3,), limit=20),
        Range(EVENT, reverse=True, limit=1),
    ]


@pytest.mark.parametrize("item", ranges(), ids=str)
def test_a_range_is_one_search_in_the_order_of_its_index(connection: apsw.Connection, item: Range) -> None:
    statement, parameters = sql.select_range(item, 1)
    assert statement.count("?") == len(parameters)
    assert len(plan(connection, statement)) == 1
    refuse_scans(connection, statement)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_record_is_one_search(connection: apsw.Connection, kind: Any) -> None:
    for statement in (
        sql.select_some(kind, 1), sql.select_versions(kind, 1), sql.delete(kind, 1), sql.drop(kind)
    ):  # fmt: skip
        assert len(plan(connection, statement)) == 1
        refuse_scans(connection, statement)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.key], ids=lambda kind: kind.name)
def test_some_records_are_one_search_for_each_key(connection: apsw.Connection, kind: Any) -> None:
    for statement in (sql.select_some(kind, 4, True), sql.select_versions(kind, 4), sql.delete(kind, 4)):
        refuse_scans(connection, statement)
        search = plan(connection, statement)[0]
        assert all(f"{column.name}=?" in search for column in kind.key)


def test_threads_runs_and_due_lanes_are_found_by_index(connection: apsw.Connection) -> None:
    at = Partition("t", "thread")
    pages = [
        sql.select_threads(FindThreads(tenant, after=after, space=space, prefix=prefix))[0]
        for tenant in ("t", None)
        for after in (None, at)
        for space, prefix in ((THREADS, ""), (STORE, "memories/"))
    ]
    runs, expired = (
        sql.select_indexed(find)[0] for find in (FindRuns("t", "run"), FindExpired(None, until=1))
    )
    for by in ("updated_at", "created_at"):
        for status in ("", "idle", "busy"):
            for reverse in (False, True):
                find = FindListed("t", status, by=by, reverse=reverse, skip=9)
                later = replace(find, last=ListedPlace(1, 1))
                pages += [sql.select_threads(each)[0] for each in (find, later)]
                # Most threads are idle, and are found without an index of their own.
                used = f"{schema.PREFIX}listing_{'status_' * (status == 'busy')}{by.removesuffix('_at')}"
                assert all(used in plan(connection, page)[0] for page in pages[-2:])
                assert f"{by}{'<' if reverse else '>'}" in plan(connection, pages[-1])[0].replace("(", "")
                # With a condition on copies, each copy is found by its key.
                copies = CopyCondition(b"end", ((b"one", b"other"), (b"more",)))
                steps = "\n".join(plan(connection, sql.select_threads(replace(later, copies=copies))[0]))
                assert used in steps
                assert re.search(r"SEARCH d .*\(t=\? AND collection=\? AND name=\?\)", steps), steps
    for statement in (sql.THREAD_PK, sql.THREAD_DROP, *pages, runs, expired):
        refuse_scans(connection, statement)
    for tenant in ("t", None):
        due = sql.select_indexed(FindDue(tenant, until=1))[0]
        refuse_scans(connection, due)
        assert f"{schema.table(LANE)}_due_at" in plan(connection, due)[0]
    assert f"{schema.table(CHECKPOINT)}_run_id" in plan(connection, runs)[0]
    assert f"{schema.table(ITEM)}_expires_at" in plan(connection, expired)[0]


def test_no_statement_of_a_thread_s_life_scans(path: Path, connection: apsw.Connection) -> None:
    """Whatever the driver sends while threads are written, read, listed, tagged, found and pruned."""
    driver = sqlite.SqliteDriver(path)
    seen: set[str] = set()

    def trace(_: apsw.Cursor, statement: str, __: object) -> bool:
        seen.add(statement)
        return True

    driver._writer.exec_trace = trace
    for reader in [sqlite.connect(path, read_only=True) for _ in range(4)]:
        reader.exec_trace = trace
        driver._readers.append(reader)
    live(driver)
    driver.perform(FindThreads(None))
    driver.close()
    reads = {s for s in seen if s.startswith(("SELECT", "DELETE", "UPDATE"))}
    assert len(reads) > 20
    for statement in reads:
        refuse_scans(connection, statement)


def test_the_check_sees_a_scan_and_a_sort(connection: apsw.Connection) -> None:
    table = schema.table(CHECKPOINT)
    for statement in (
        f"SELECT body FROM {table} WHERE source = ?",
        f"SELECT body FROM {table} WHERE t = ? ORDER BY step",
    ):
        with pytest.raises(AssertionError):
            refuse_scans(connection, statement)
