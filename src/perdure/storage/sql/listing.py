"""The listing: one row for each thread with the columns that listings filter and sort by, kept by triggers.

A row is changed in the same transaction as the records that it is derived from, however these are written. So
it is never out of date, and listing threads by status or time reads an index and no thread. ``status`` is
``unsure`` if it depends on the content of a body, which may be sealed: such a thread has to be read. Times
are microseconds since 1970: those of the records, or of a checkpoint's id when it is a version 6 UUID, else
the time of the write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

NOT_IDLE = "status <> 'idle'"
"""Condition of the rows that the indexes by status have. Most threads are idle. They are left out, as each of
their steps would change these indexes, and are found by their time."""

_UUID6 = "________-____-6___-____-____________"
_EPOCH = 12_219_292_800_000_000
"""Microseconds from the start of a UUID's calendar to 1970."""


class _Dialect(NamedTuple):
    """The syntax in which databases differ: a table's name, the largest of several values, the time, an id's
    time, the comparison of two values that may be NULL, and the clause that keeps a subquery from being
    evaluated for each of its uses."""

    table: Callable[[str], str]
    largest: str
    now: str
    time_of: Callable[[str], str]
    differs: str
    fence: str
    text: str
    integer: str


def _write_sqlite_time(name: str) -> str:
    """Return the expression for the time of a version 6 UUID. Its 60 bits are 15 hex digits: all of the first
    two parts, and the last three of the third part."""
    places = (*range(1, 9), *range(10, 14), *range(16, 19))
    digits = " + ".join(
        f"((instr('0123456789abcdef', substr({name}, {place}, 1)) - 1) << {4 * (14 - n)})"
        for n, place in enumerate(places)
    )
    return f"CASE WHEN {name} LIKE '{_UUID6}' THEN ({digits}) / 10 - {_EPOCH} END"


def _write_postgres_time(name: str) -> str:
    digits = f"substr({name}, 1, 8) || substr({name}, 10, 4) || substr({name}, 16, 3)"
    is_hex = f"{name} ~ '^[0-9a-f]{{8}}-[0-9a-f]{{4}}-6[0-9a-f]{{3}}-'"
    return f"CASE WHEN {is_hex} THEN ('x0' || {digits})::bit(64)::bigint / 10 - {_EPOCH} END"


_SQLITE = _Dialect(
    lambda name: f"perdure_{name}",
    "max",
    # For programs with an older SQLite, too, which change a database by hand.
    "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
    _write_sqlite_time,
    "IS NOT",
    "LIMIT -1 OFFSET 0",
    "TEXT",
    "INTEGER",
)


def _make_postgres_dialect(schema: str) -> _Dialect:
    return _Dialect(
        lambda name: f"{schema}.{name}",
        "greatest",
        "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        _write_postgres_time,
        "IS DISTINCT FROM",
        "OFFSET 0",
        'text COLLATE "C"',
        "bigint",
    )


def _write_table(d: _Dialect) -> list[str]:
    listing, prefix = d.table("listing"), d.table("listing").rpartition(".")[2]
    return [
        f"CREATE TABLE {listing} (t {d.integer} PRIMARY KEY, tenant {d.text} NOT NULL,"
        f" created_at {d.integer} NOT NULL, updated_at {d.integer} NOT NULL, status {d.text} NOT NULL)",
        *(
            f"CREATE INDEX {prefix}_{n} ON {listing} ({', '.join(columns)}, t)"
            f"{f' WHERE {NOT_IDLE}' if 'status' in columns else ''}"
            for n, columns in {
                "updated": ("tenant", "updated_at"),
                "created": ("tenant", "created_at"),
                "status_updated": ("tenant", "status", "updated_at"),
                "status_created": ("tenant", "status", "created_at"),
            }.items()
        ),
    ]


def _write_derivation(d: _Dialect, which: str) -> str:
    """Return the statement that writes the rows of the threads that the condition ``which`` selects. A row is
    derived from its thread's records."""

    def select_value(table: str, column: str, where: str) -> str:
        return f"(SELECT {column} FROM {d.table(table)} x WHERE x.t = p.pk AND {where})"

    latest = "x.state <> 'rolled_back' ORDER BY x.first DESC LIMIT 1"
    states = (
        "CASE x.state WHEN 'done' THEN 'idle' WHEN 'failed' THEN 'error' WHEN 'waiting' THEN 'interrupted'"
        " ELSE 'unsure' END"
    )
    head = d.time_of("x.checkpoint_id")
    asked = (
        f"EXISTS (SELECT 1 FROM {d.table('head')} h JOIN {d.table('write')} w ON w.t = h.t AND"
        " w.namespace = h.namespace AND w.checkpoint_id = h.checkpoint_id"
        " WHERE h.t = p.pk AND h.namespace = '' AND w.channel = '__interrupt__')"
    )
    parts = {
        "made": select_value("document", "x.updated_at", "x.collection = 'thread' AND x.name = ''"),
        "edited": select_value("document", "x.updated_at", "x.collection = 'edited' AND x.name = ''"),
        "head": select_value("head", head, "x.namespace = ''"),
        "ran": select_value("run", "x.updated_at", latest),
        "state": select_value("run", states, latest),
        "busy": select_value("lane", "1", "x.name = 'inbox' AND (x.run_id IS NOT NULL OR x.last > x.bound)"),
    }
    # A program may have gone past the end of the latest run without another run. Unless the head shows that
    # none did, the records have to be read.
    newest = f"(SELECT x.run_id FROM {d.table('run')} x WHERE x.t = q.pk AND {latest})"
    at_head = f"SELECT 1 FROM {d.table('head')} h"
    of_thread = "WHERE h.t = q.pk AND h.namespace = ''"
    stands = (
        f"EXISTS ({at_head} JOIN {d.table('checkpoint')} c ON c.t = h.t AND c.namespace = h.namespace"
        f" AND c.checkpoint_id = h.checkpoint_id JOIN {d.table('run')} r ON r.t = h.t AND r.run_id = c.run_id"
        f" {of_thread} AND (state = 'error' OR r.run_id = {newest}))"
        f" OR (state = 'error' AND NOT EXISTS ({at_head} {of_thread}))"
    )
    columns = ", ".join(f"{sql} AS {name}" for name, sql in parts.items())
    times = ", ".join(f"coalesce({name}, 0)" for name in ("made", "head", "ran"))
    status = (
        "CASE WHEN busy IS NOT NULL THEN 'busy' WHEN edited >= coalesce(ran, 0) THEN 'unsure'"
        " WHEN coalesce(state, 'idle') = 'idle' THEN CASE WHEN asked THEN 'interrupted' ELSE 'idle' END"
        f" WHEN (asked AND state = 'interrupted') OR {stands} THEN state ELSE 'unsure' END"
    )
    latest_time = f"coalesce(nullif({d.largest}({times}), 0), {d.now})"
    listing = d.table("listing")
    return (
        f"INSERT INTO {listing} (t, tenant, created_at, updated_at, status)"
        f" SELECT q.pk, q.tenant, coalesce(made, head, ran, {d.now}), {latest_time}, {status} FROM"
        f" (SELECT p.pk, p.tenant, {columns}, {asked} AS asked FROM {d.table('thread')} p"
        f" WHERE {which} AND p.space = 'thread' {d.fence}) q WHERE true"
        " ON CONFLICT (t) DO UPDATE SET updated_at = excluded.updated_at, status = excluded.status"
    )


_SOURCES = {
    "head": "NEW.namespace = ''",
    "lane": "NEW.name = 'inbox'",
    "run": "",
    "document": "NEW.collection IN ('thread', 'edited')",
    "write": "NEW.namespace = '' AND NEW.channel = '__interrupt__'",
}
"""The condition of the records from which a row is derived, by table."""

_EVENTS = [(table, event) for table in _SOURCES for event in ("INSERT", "UPDATE")] + [("head", "DELETE")]
"""The changes after which a row is derived again. Of these records only a head is ever removed while its
thread stays and its status changes."""


def _write_condition(d: _Dialect, table: str, event: str) -> str:
    conditions = list(filter(None, [_SOURCES[table]]))
    if event == "UPDATE" and table == "lane":
        # A lease is renewed all the time, without any effect on the listing.
        pending = f"(OLD.last > OLD.bound) {d.differs} (NEW.last > NEW.bound)"
        conditions.append(f"(OLD.run_id {d.differs} NEW.run_id OR {pending})")
    if not conditions:
        return ""
    condition = " AND ".join(conditions)
    if event == "DELETE":
        condition = condition.replace("NEW.", "OLD.")
    return f" WHEN ({condition})"


def make_sqlite_statements() -> tuple[str, ...]:
    """Return the statements that add the listing to SQLite or D1, and fill it."""
    d = _SQLITE
    statements = _write_table(d)
    for table, event in _EVENTS:
        changed = "OLD" if event == "DELETE" else "NEW"
        statements.append(
            f"CREATE TRIGGER perdure_listing_{table}_{event.lower()} AFTER {event} ON {d.table(table)}"
            f"{_write_condition(d, table, event)} BEGIN {_write_derivation(d, f'p.pk = {changed}.t')}; END"
        )
    remove = "DELETE FROM perdure_listing WHERE t ="
    statements += [
        f"CREATE TRIGGER perdure_listing_removed AFTER DELETE ON perdure_thread BEGIN {remove} OLD.pk; END",
        "CREATE TRIGGER perdure_listing_dropped AFTER UPDATE OF space ON perdure_thread"
        f" BEGIN {remove} NEW.pk; END",
        _write_derivation(d, "true"),
    ]
    return tuple(statements)


def make_postgres_statements(schema: str) -> tuple[str, ...]:
    """Return the statements that add the listing to PostgreSQL, and fill it. ``schema`` is quoted."""
    d = _make_postgres_dialect(schema)
    statements = _write_table(d)
    statements += [
        f"CREATE FUNCTION {schema}.listed() RETURNS trigger LANGUAGE plpgsql AS $perdure$ BEGIN"
        f" {_write_derivation(d, 'p.pk = coalesce(NEW.t, OLD.t)')}; RETURN NULL; END $perdure$",
        f"CREATE FUNCTION {schema}.unlisted() RETURNS trigger LANGUAGE plpgsql AS $perdure$ BEGIN"
        f" DELETE FROM {schema}.listing WHERE t = OLD.pk; RETURN NULL; END $perdure$",
    ]
    statements += [
        f"CREATE TRIGGER listing_{table}_{event.lower()} AFTER {event} ON {d.table(table)} FOR EACH ROW"
        f"{_write_condition(d, table, event)} EXECUTE FUNCTION {schema}.listed()"
        for table, event in _EVENTS
    ]
    statements += [
        f"CREATE TRIGGER listing_removed AFTER DELETE ON {schema}.thread FOR EACH ROW"
        f" EXECUTE FUNCTION {schema}.unlisted()",
        _write_derivation(d, "true"),
    ]
    return tuple(statements)
