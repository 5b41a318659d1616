"""The PostgreSQL driver keeps the contract of the storage port, and says in one sentence what is wrong.

Covers perdure.storage.postgres.functions and perdure.storage.postgres.errors.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.proxy import Proxy
from perdure.errors import BadUrl, MigrationRequired, PerdureError, TooLarge, Unavailable, Unserialisable
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Drop,
    Expect,
    Fetch,
    FindThreads,
    Get,
    Now,
    Put,
    Range,
    Refused,
)
from perdure.model.records import CHUNK, GC, HEAD, TAG, Partition
from perdure.storage.port import Driver
from perdure.storage.postgres import codec, lock_waits, opening
from perdure.storage.postgres import driver as driver_module
from perdure.storage.postgres.connection import ServerConnection
from perdure.storage.postgres.url import parse_url
from perdure.storage.url import open_driver
from perdure.testing.conformance import DriverContract
from tests.backends import FACES_OVER_A_NETWORK
from tests.servers import postgres

ROOT = Path(__file__).resolve().parents[2]
AT = Partition("", "thread")


class TestPostgres(DriverContract):
    @pytest.fixture(params=FACES_OVER_A_NETWORK)
    def driver(self, request: pytest.FixtureRequest) -> Iterator[Driver]:
        with postgres.empty() as url, closing(open_driver(url, migrate=True)) as driver:
            yield request.param(driver)


@pytest.fixture
def url() -> Iterator[str]:
    with postgres.empty() as url:
        yield url


@pytest.fixture
def admin() -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
        yield connection


# Text and order


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_escaping_keeps_order_and_difference(left: str, right: str) -> None:
    assert codec.unescape(codec.escape(left)) == left
    assert "\0" not in codec.escape(left)
    assert (codec.escape(left) < codec.escape(right)) == (left < right)


def test_the_server_sorts_as_people_do_and_the_tables_by_code_point(
    url: str, admin: psycopg.Connection
) -> None:
    opening.migrate(url)
    assert admin.execute("SELECT 'a' < 'B'").fetchone() == (True,), "this server's default collation is C"
    others = admin.execute(
        "SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_collation o ON o.oid = a.attcollation"
        " WHERE c.relnamespace = %s::regnamespace AND a.attnum > 0 AND o.collname <> 'C'",
        (parse_url(url).schema,),
    ).fetchall()
    assert others == []


# One trip


def test_commits_that_gather_leave_in_one_trip_and_so_do_reads_of_a_sort(url: str) -> None:
    opening.migrate(url)
    server = postgres.shared()
    proxy = Proxy("127.0.0.1", server.port)
    try:
        passed = proxy.through(url).replace("pool=4", "pool=2") + "&sslmode=disable&gssencmode=disable"
        with closing(open_driver(passed)) as driver:
            assert isinstance(driver, opening.PostgresDriver)
            commits = [Commit(Partition("", f"t{n}"), (Put(GC, (), version=n + 1),)) for n in range(40)]
            fetches = [Fetch(commit.partition, (Get(GC, ()), Range(TAG))) for commit in commits]
            driver.perform(commits[0])
            driver.perform(fetches[0])
            clocks = [Now() for _ in range(40)]
            given: list[list[Any]] = []
            for effects in (commits, fetches, clocks):
                before = proxy.counts().round_trips
                with ThreadPoolExecutor(40) as pool, held(driver):
                    calls = [pool.submit(driver.perform, effects[0])]
                    until(lambda: len(driver._writes._begun + driver._reads._begun) == 1)
                    calls += [pool.submit(driver.perform, effect) for effect in effects[1:]]
                    until(lambda: len(driver._writes._queue) + len(driver._reads._queue) == 39)
                given.append([call.result(60) for call in calls])
                assert proxy.counts().round_trips - before <= 2
            outcomes, records, times = given
            assert outcomes == [Committed()] * 40
            assert [gc.version for ((gc,), _) in records] == list(range(1, 41))
            assert len(set(times)) == 2
    finally:
        proxy.close()


def test_a_commit_and_a_read_after_it_are_one_trip(url: str) -> None:
    opening.migrate(url)
    proxy = Proxy("127.0.0.1", postgres.shared().port, round_trip_s=0.01)
    here, other = Partition("", "here"), Partition("", "other")
    fetch = Fetch(here, (Get(GC, ()),))

    def put(expect: int | Expect, version: int) -> Commit:
        return Commit(here, (Put(GC, (), expect=expect, version=version),))

    async def main(driver: opening.PostgresDriver) -> None:
        await driver.acommit_and_fetch(Commit(other, (Put(GC, (), version=1),)), fetch)
        before = proxy.counts().round_trips
        outcome, answers = await driver.acommit_and_fetch(put(Expect.ABSENT, 1), fetch)
        assert proxy.counts().round_trips == before + 1
        assert answers is not None
        assert (outcome, answers[0][0].version) == (Committed(), 1)
        # It is read also after a commit that was refused.
        outcome, answers = await driver.acommit_and_fetch(put(7, 8), fetch)
        assert answers is not None
        assert (outcome, answers[0][0].version) == (Refused(GC, ()), 1)
        # Each of those that share a trip gets its own.
        commits = [Commit(Partition("", f"t{n}"), (Put(GC, (), version=n + 1),)) for n in range(20)]
        both = [driver.acommit_and_fetch(each, Fetch(each.partition, fetch.items)) for each in commits]
        found = await asyncio.gather(*both)
        assert [answers and answers[0][0].version for _, answers in found] == list(range(1, 21))
        # A read that fails takes nothing of the commit with it.
        driver._sql.fetch = replace(driver._sql.fetch, name=b"failing", sql=b"SELECT 1 / 0, $1, $2, $3, $4")
        assert await driver.acommit_and_fetch(put(1, 2), fetch) == (Committed(), None)
        assert await driver.acommit_and_fetch(put(2, 3), fetch) == (Committed(), None)
        assert await driver.aperform(put(3, 4)) == Committed()
        # Nor does one whose answer cannot be read; nor are those that share the trip stored twice.
        driver._sql.fetch = replace(driver._sql.fetch, name=b"odd", sql=b"SELECT 99::int8, $1, $2, $3, $4")
        with driver._writes._lock:
            both = [driver.acommit_and_fetch(put(at, at + 1), fetch) for at in (4, 5)]
            calls = [asyncio.ensure_future(each) for each in both]
            await asyncio.sleep(0)
        assert await asyncio.gather(*calls) == [(Committed(), None)] * 2

    try:
        passed = proxy.through(url).replace("pool=4", "pool=2") + "&sslmode=disable&gssencmode=disable"
        with closing(open_driver(passed)) as driver:
            assert isinstance(driver, opening.PostgresDriver)
            asyncio.run(main(driver))
    finally:
        proxy.close()


def test_what_fails_when_its_transaction_ends_is_not_called_stored(url: str) -> None:
    opening.migrate(url)
    with psycopg.connect(parse_url(url).conninfo, autocommit=True) as connection:
        schema = parse_url(url).schema
        connection.execute(
            f"CREATE FUNCTION {schema}.late() RETURNS trigger LANGUAGE plpgsql"
            " AS $$ BEGIN RAISE EXCEPTION 'too late'; END $$"
        )
        connection.execute(
            f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {schema}.tag DEFERRABLE INITIALLY DEFERRED"
            f" FOR EACH ROW EXECUTE FUNCTION {schema}.late()"
        )
    at = Partition("", "thread")
    put = Put(TAG, ("a",), {"namespace": "", "checkpoint_id": "c"}, version=1)
    fetch = Fetch(at, (Range(TAG),))

    async def main(driver: opening.PostgresDriver) -> None:
        with pytest.raises(PerdureError, match=r"a statement of Perdure .*too late"):
            await driver.aperform(Commit(at, (put,)))
        with pytest.raises(PerdureError, match=r"a statement of Perdure .*too late"):
            await driver.acommit_and_fetch(Commit(at, (put,)), fetch)
        assert await driver.aperform(fetch) == ((),)

    with closing(open_driver(url)) as driver:
        assert isinstance(driver, opening.PostgresDriver)
        asyncio.run(main(driver))


class held:  # noqa: N801 - reads as a state
    """Keeps the workers of a driver from what is queued until the block ends."""

    def __init__(self, driver: Driver) -> None:
        assert isinstance(driver, opening.PostgresDriver)
        self._driver = driver
        self._go = threading.Event()

    def __enter__(self) -> None:
        link = self._driver._links
        self._plain = [(each, each.ask) for each in link]
        for each in link:

            def ask(*arguments: object, plain: object = each.ask) -> object:
                assert self._go.wait(60)
                return plain(*arguments)  # type: ignore[operator]

            each.ask = ask  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        for each, plain in self._plain:
            each.ask = plain  # type: ignore[method-assign]
        self._go.set()


def until(holds: Callable[[], bool]) -> None:
    """Wait until requests stand as the test wants them."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "requests did not gather"
        time.sleep(0.005)


def test_jobs_of_one_partition_in_one_trip_see_each_other_in_order() -> None:
    put, check = Put(GC, (), version=1), Check(GC, (), 1)
    tag = Put(TAG, ("t",), {"namespace": "", "checkpoint_id": ""})
    jobs = [
        Commit(AT, (put,)),
        Commit(AT, (check, tag)),
        Commit(AT, (check,)),
        Commit(AT, (put._replace(expect=1),)),
    ]
    other = Commit(Partition("", "other"), (put,))
    rounds = codec._rounds([*jobs, other])
    assert [[number for number, _ in held] for held in rounds] == [[1, 5], [2, 3], [4]]


def test_a_group_in_which_commits_build_on_each_other(url: str) -> None:
    with closing(open_driver(url, migrate=True)) as driver:
        assert isinstance(driver, opening.PostgresDriver)
        outcomes: list[object] = []
        jobs: list[codec.Write] = []
        for n in range(6):
            jobs.append(Commit(AT, (Put(GC, (), expect=n or Expect.ABSENT, version=n + 1),)))
            jobs.append(Commit(AT, (Put(GC, (), expect=99, version=n + 1),)))
            jobs.append(Commit(AT, (Put(CHUNK, (b"%d" % (n % 2),), {"generation": n}, b"x"),)))
        outcomes = driver._commit_with_vectors(jobs)
        assert [isinstance(o, Committed) for o in outcomes] == [True, False, True] * 6
        gc, chunks = driver.perform(Fetch(AT, (Get(GC, ()), Range(CHUNK))))
        assert gc[0].version == 6
        assert [r.fields["generation"] for r in chunks] == [4, 5]


def test_a_refused_group_leaves_no_thread_and_no_neighbour_behind(url: str) -> None:
    with closing(open_driver(url, migrate=True)) as driver:
        assert isinstance(driver, opening.PostgresDriver)
        no, yes = Check(GC, (), Expect.PRESENT), Put(GC, (), version=1)
        ats = [Partition("", name) for name in "abcd"]
        outcomes = driver._commit_with_vectors(
            [Commit(at, (no if n % 2 else yes,)) for n, at in enumerate(ats)]
        )
        assert [isinstance(o, Committed) for o in outcomes] == [True, False, True, False]
        assert [f.partition.thread for f in driver.perform(FindThreads(""))] == ["a", "c"]


def test_a_big_thread_is_dropped_in_pages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_DROP_ROWS", 7)
    with closing(open_driver(url, migrate=True)) as driver:
        puts = [Put(CHUNK, (b"%d" % n,), {"generation": 0}, b"x") for n in range(100)]
        tags = [Put(TAG, (f"{n}",), {"namespace": "", "checkpoint_id": ""}) for n in range(14)]
        driver.perform(Commit(AT, (*puts, *tags)))
        driver.perform(Drop(AT))
        schema = parse_url(url).schema
        with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
            for table in ("chunk", "tag", "dropped", "thread"):
                assert connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode()).fetchone() == (
                    0,
                )


def test_what_is_made_while_a_big_thread_is_dropped_stays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_DROP_ROWS", 7)
    with closing(open_driver(url, migrate=True)) as driver, closing(open_driver(url)) as other:
        assert isinstance(driver, opening.PostgresDriver)
        driver.perform(Commit(AT, tuple(Put(CHUNK, (b"%d" % n,), {"generation": 0}) for n in range(20))))
        made = Commit(AT, (Put(GC, (), expect=Expect.ABSENT, version=5),))
        plain, pages = driver._connect, itertools.count(1)

        def connected() -> ServerConnection:
            if next(pages) == 2:
                assert other.perform(made) == Committed()
            return plain()

        monkeypatch.setattr(driver, "_connect", connected)
        driver.perform(Drop(AT))
        assert next(pages) > 3
        gc, chunks = other.perform(Fetch(AT, (Get(GC, ()), Range(CHUNK))))
        assert [record.version for record in gc] == [5]
        assert chunks == ()


# Migration


def test_thirty_cold_processes_migrate_one_database_at_once(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.postgres_client", "migrate", url],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes = sorted(json.loads(done.stdout))
    assert outcomes == ["migrated from 0"] + [f"migrated from {opening.SCHEMA_VERSION}"] * 29


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_waits, "CHECK_S", 0.1)
    monkeypatch.setattr(opening, "_LOCK_TIMEOUT_S", 2)
    monkeypatch.setattr(opening, "_OTHERS_TIMEOUT_S", 2)


def _schema_lock(schema: str) -> bytes:
    lock = int.from_bytes(sha256(f"perdure {schema}".encode()).digest()[:8], "big", signed=True)
    return f"SELECT pg_advisory_xact_lock({lock})".encode()


@pytest.mark.parametrize("held", ["schema", "table", "another migration"])
def test_a_migration_says_for_whom_it_waits_and_for_how_long(
    url: str, admin: psycopg.Connection, hurried: None, caplog: pytest.LogCaptureFixture, held: str
) -> None:
    place = parse_url(url)
    if held == "table":
        opening.migrate(url)
    statement = {
        "schema": f"CREATE SCHEMA {place.schema}".encode(),
        "table": f"LOCK TABLE {place.schema}.schema".encode(),
        "another migration": _schema_lock(place.schema),
    }[held]
    with admin.transaction():
        admin.execute(statement)
        before = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            opening.migrate(url)
        assert time.monotonic() - before < 30
        pid = admin.info.backend_pid
        assert f"session {pid} of" in str(caught.value)
        assert f"SELECT pg_terminate_backend({pid})" in str(caught.value)
        assert "changed nothing" in str(caught.value)
        waits = [record.getMessage() for record in caplog.records if record.name == "perdure.storage"]
        assert any(f"waits for session {pid} of" in said for said in waits)
        assert all("SCHEMA" not in said for said in waits), "a statement may quote data"
    if held == "schema":
        admin.execute(f"DROP SCHEMA {place.schema}".encode())
    opening.migrate(url)
    assert opening.schema_version(url) == opening.SCHEMA_VERSION


def test_a_migration_goes_on_once_it_may(
    url: str, admin: psycopg.Connection, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_LOCK_TIMEOUT_S", 60)
    with ThreadPoolExecutor(1) as pool:
        with admin.transaction():
            admin.execute(f"CREATE SCHEMA {parse_url(url).schema}".encode())
            migrating = pool.submit(opening.migrate, url)
            time.sleep(0.5)
            assert not migrating.done()
        assert migrating.result(60) == 0


def test_pending_tells_what_migrate_does_and_changes_nothing(url: str, admin: psycopg.Connection) -> None:
    assert opening.schema_version(url) == 0
    statements = opening.plan_migration(url)
    assert opening.schema_version(url) == 0
    for statement in statements:
        admin.execute(statement.encode())
    assert opening.plan_migration(url) == []
    assert opening.schema_version(url) == opening.SCHEMA_VERSION
    assert opening.migrate(url) == opening.SCHEMA_VERSION
    open_driver(url).close()


# What goes wrong, and what it says


def said(url: str, error: type[PerdureError]) -> str:
    """The message of the error that opening ends in, which never shows a secret and is one line."""
    with pytest.raises(error) as caught:
        open_driver(url).close()
    message = str(caught.value)
    assert "secret" not in message
    assert "\n" not in message
    return message


def test_a_database_without_a_schema_names_the_command(url: str) -> None:
    message = said(url, MigrationRequired)
    assert (
        f"perdure migrate --db 'postgresql://postgres@127.0.0.1:{postgres.shared().port}/postgres?schema="
        in message
    )


def test_a_newer_schema_is_refused(url: str, admin: psycopg.Connection) -> None:
    opening.migrate(url)
    admin.execute(f"UPDATE {parse_url(url).schema}.schema SET version = 99".encode())
    assert "upgrade perdure" in said(url, MigrationRequired)
    with pytest.raises(MigrationRequired, match="upgrade perdure"):
        opening.migrate(url)


def test_a_schema_that_went_away_is_named(url: str, admin: psycopg.Connection) -> None:
    with closing(open_driver(url, migrate=True)) as driver:
        driver.perform(Commit(AT, (Put(GC, (), version=1),)))
        admin.execute(f"DROP SCHEMA {parse_url(url).schema} CASCADE".encode())
        with pytest.raises(MigrationRequired, match="perdure migrate"):
            driver.perform(Commit(AT, (Put(GC, (), version=1),)))
        with pytest.raises(MigrationRequired, match="perdure migrate"):
            driver.perform(Fetch(AT, (Get(GC, ()),)))
        with pytest.raises(MigrationRequired, match="perdure migrate"):
            driver.perform(FindThreads(""))


def test_a_wrong_password_an_unknown_database_and_user(admin: psycopg.Connection) -> None:
    server = postgres.shared()
    server.demand_password("locked")
    admin.execute("DROP ROLE IF EXISTS locked")
    admin.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
    base = f"127.0.0.1:{server.port}"
    assert "refused the user's name or password" in said(
        f"postgresql://locked:secret@{base}/postgres", Unavailable
    )
    assert "refused the user's name or password" in said(f"postgresql://locked@{base}/postgres", Unavailable)
    said(f"postgresql://locked:right@{base}/postgres?schema=none", MigrationRequired)
    assert "no such database" in said(f"postgresql://postgres:secret@{base}/nowhere", Unavailable)
    assert "no such user" in said(f"postgresql://nobody_knows:secret@{base}/postgres", Unavailable)


def test_a_host_where_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    message = said(f"postgresql://user:secret@127.0.0.1:{port}/postgres?patience=0", Unavailable)
    assert "no server answers there" in message
    assert "no server answers there" in said(
        "postgresql://user:secret@nowhere.invalid/db?patience=0", Unavailable
    )


def test_a_user_without_rights_a_read_only_one_and_one_without_connections(
    url: str, admin: psycopg.Connection
) -> None:
    opening.migrate(url)
    schema = parse_url(url).schema
    put = Commit(AT, (Put(GC, (), version=1),))
    for role in ("poor", "reader", "crowded"):
        admin.execute(f"DROP OWNED BY {role}".encode()) if exists(admin, role) else None
        admin.execute(f"DROP ROLE IF EXISTS {role}".encode())
        admin.execute(f"CREATE ROLE {role} LOGIN".encode())
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
        if role != "poor":
            admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
        else:
            admin.execute(f"GRANT SELECT ON {schema}.schema TO {role}".encode())
    admin.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    admin.execute("ALTER ROLE crowded CONNECTION LIMIT 0")
    try:
        poor = open_driver(url.replace("postgres@", "poor@"))
        with closing(poor), pytest.raises(Unavailable, match="lacks a right"):
            poor.perform(put)
        with closing(open_driver(url.replace("postgres@", "reader@"))) as driver:
            with pytest.raises(Unavailable, match="takes no writes"):
                driver.perform(put)
            assert driver.perform(Fetch(AT, (Get(GC, ()),))) == ((),)
        crowded = url.replace("postgres@", "crowded@") + "&patience=0"
        assert "no connection left" in said(crowded, Unavailable)
    finally:
        for role in ("poor", "reader", "crowded"):
            admin.execute(f"DROP OWNED BY {role}".encode())
            admin.execute(f"DROP ROLE {role}".encode())


def test_a_migration_without_rights_names_those_that_it_needs(url: str, admin: psycopg.Connection) -> None:
    schema = parse_url(url).schema
    admin.execute(b"DROP ROLE IF EXISTS maker")
    admin.execute(b"CREATE ROLE maker LOGIN")
    by_maker = url.replace("postgres@", "maker@")
    try:
        with pytest.raises(Unavailable, match=r"permission denied for database.*CREATE on the database"):
            opening.migrate(by_maker)
        admin.execute(f"CREATE SCHEMA {schema}".encode())
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO maker".encode())
        with pytest.raises(Unavailable, match=r"permission denied for schema.*as a user with CREATE on it"):
            opening.migrate(by_maker)
        admin.execute(f"GRANT CREATE ON SCHEMA {schema} TO maker".encode())
        assert opening.migrate(by_maker) == 0
        with closing(open_driver(by_maker)) as driver:
            assert driver.perform(Fetch(AT, (Get(GC, ()),))) == ((),)
    finally:
        admin.execute(b"DROP OWNED BY maker")
        admin.execute(b"DROP ROLE maker")


def exists(admin: psycopg.Connection, role: str) -> bool:
    return admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is not None


def test_settings_that_would_break_a_promise_do_not(url: str, admin: psycopg.Connection) -> None:
    """Another isolation is refused; commits that are not waited for are waited for all the same."""
    opening.migrate(url)
    admin.execute("DROP ROLE IF EXISTS hasty")
    admin.execute("CREATE ROLE hasty LOGIN SUPERUSER")
    try:
        admin.execute("ALTER ROLE hasty SET default_transaction_isolation = 'repeatable read'")
        put = Commit(AT, (Put(GC, (), version=1),))
        hasty = open_driver(url.replace("postgres@", "hasty@"))
        with closing(hasty), pytest.raises(Unavailable, match="read committed"):
            hasty.perform(put)
        admin.execute("ALTER ROLE hasty RESET default_transaction_isolation")
        admin.execute("ALTER ROLE hasty SET synchronous_commit = off")
        with closing(open_driver(url.replace("postgres@", "hasty@"))) as driver:
            assert driver.perform(put) == Committed()
    finally:
        admin.execute("DROP ROLE hasty")


@pytest.mark.parametrize(
    ("parameters", "part"),
    [
        ("shema=x", "unknown parameter 'shema'"),
        ("pool=1", "pool='1'"),
        ("pool=many", "pool='many'"),
        ("patience=-1", "patience"),
        ("prepare=yes", "prepare='yes'"),
        ("schema=", "schema"),
        ("schema=pg_x", "schema"),
        ("schema=" + "x" * 64, "schema"),
    ],
)
def test_a_parameter_that_cannot_be_meant(parameters: str, part: str) -> None:
    assert part in said(f"postgresql://user:secret@127.0.0.1/db?{parameters}", BadUrl)


def test_a_url_that_is_none() -> None:
    said("postgresql://user:se%ZZcret@127.0.0.1:1/db", BadUrl)
    said("postgresql://user:secret@127.0.0.1:port/db", BadUrl)
    assert "%23" in said("postgresql://user:secret@127.0.0.1/db#fragment", BadUrl)


def test_a_missing_client_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import perdure\n"
        "try: perdure.connect_sync('postgresql://u@h/d').__enter__()\n"
        "except perdure.MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert 'pip install "perdure[postgres]"' in done.stdout, done.stderr


def test_values_that_postgresql_does_not_keep(url: str) -> None:
    with closing(open_driver(url, migrate=True)) as driver:
        for bad, error in (
            (Put(HEAD, ("",), {"checkpoint_id": "c", "seq": 1 << 63}), TooLarge),
            (Put(HEAD, ("\ud800",), {"checkpoint_id": "c", "seq": 1}), Unserialisable),
            (Put(HEAD, (os.urandom(3000).hex(),), {"checkpoint_id": "c", "seq": 1}), TooLarge),
        ):
            with pytest.raises(error):
                driver.perform(Commit(AT, (bad,)))
        assert driver.perform(FindThreads("")) == ()


def test_statements_prepared_by_name_do_the_same(url: str) -> None:
    with closing(open_driver(url + "&prepare=1", migrate=True)) as driver:
        for version in range(1, 30):
            assert driver.perform(Commit(AT, (Put(GC, (), version=version),))) == Committed()
            assert driver.perform(Fetch(AT, (Get(GC, ()),)))[0][0].version == version
            assert len(driver.perform(FindThreads(""))) == 1
        driver.perform(Drop(AT))
