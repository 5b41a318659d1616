"""The table of vectors that PostgreSQL derives from the entries of the search index, and its absence."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from langgraph.store.base import PutOp

import perdure
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.items.search_index import IndexEntry, pack
from perdure.errors import MigrationRequired
from perdure.langgraph.search.index import SearchIndex
from perdure.model.store_items import partition_of
from perdure.storage.postgres import opening, schema, vector_table
from perdure.storage.postgres.vector_table import Extension
from perdure.testing.conformance.meaning import new_index
from tests.servers import postgres

HOME = ("users", "ada")


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    with postgres.empty() as url:
        opening.migrate(url)
        yield url


@pytest.fixture
def database(shared: str) -> Iterator[SyncDatabase]:
    with perdure.connect_sync(shared) as database:
        yield database
        store = database.store()
        for namespace in store.list_namespaces():
            store.batch([PutOp(namespace, item.key, None) for item in store.search(namespace, limit=1000)])


@pytest.fixture
def admin(shared: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(shared.partition("?")[0], autocommit=True) as connection:
        connection.execute(f"SET search_path = {name_of(shared)}, public".encode())
        yield connection


def name_of(url: str) -> str:
    return url.partition("schema=")[2].partition("&")[0]


def rows(admin: psycopg.Connection) -> list[Any]:
    return admin.execute("SELECT item, place, dims FROM vector ORDER BY item, place").fetchall()


def test_entries_are_read_as_they_are_written(admin: psycopg.Connection) -> None:
    chance = Random(5)
    extremes = [0.0, -0.0, 1.5, -2.25, 1e-45, -1.17549435e-38, 3.4028235e38, 1 / 3]
    for _ in range(60):
        dims = chance.choice([1, 3, 8, 60, 64, 300])
        numbers = [
            tuple(chance.choice([*extremes, chance.gauss(0, 1)]) for _ in range(dims))
            for _ in range(chance.choice([0, 1, 1, 2, 17]))
        ]
        packed = tuple(struct.pack(f"<{dims}f", *each) for each in numbers)
        paths = chance.choice([None, (), ("text",), ("é" * 40, "x" * 300), tuple("abcdefghijklmnopqr")])
        model = chance.choice([b"", bytes(8)])
        found = admin.execute(
            "SELECT place, model, content, dims, numbers FROM vectors_of(%s)",
            (pack(IndexEntry(model, bytes(range(16)), paths, packed)),),
        ).fetchall()
        if numbers:
            assert tuple(struct.pack(f"<{dims}f", *row[4]) for row in found) == packed
            assert [row[:4] for row in found] == [
                (place, model, bytes(range(16)), dims) for place in range(1, len(numbers) + 1)
            ]
        else:
            refused = model == b"" and paths != ()
            assert found == ([(0, model, bytes(range(16)), 0, None)] if refused else [])


def test_a_sealed_entry_has_no_vectors(admin: psycopg.Connection) -> None:
    assert admin.execute("SELECT * FROM vectors_of('\\xf550010203'::bytea)").fetchall() == []


def test_vectors_follow_every_write_of_their_item(database: SyncDatabase, admin: psycopg.Connection) -> None:
    store = database.store(index=new_index(fields=["text", "more"]))
    store.put(HOME, "a\0b", {"text": "tea", "more": "coffee"})
    store.put(HOME, "out", {"text": "tea"}, index=False)
    assert rows(admin) == [("a\x01\x01b", 1, 16), ("a\x01\x01b", 2, 16)]
    store.put(HOME, "a\0b", {"text": "tea"})
    assert rows(admin) == [("a\x01\x01b", 1, 16)]
    store.delete(HOME, "a\0b")
    assert rows(admin) == []
    store.put(HOME, "short", {"text": "tea"}, ttl=1e-6)
    assert store.sweep_ttl() == 1
    assert rows(admin) == []


def test_a_commit_that_is_refused_leaves_no_vectors(
    database: SyncDatabase, admin: psycopg.Connection
) -> None:
    store = database.store(index=new_index())
    put = PutOp(HOME, "a", {"text": "tea"})
    assert not store.put_if_unchanged([put], {"b": {"absent": True}})
    assert rows(admin) == []
    assert store.put_if_unchanged([put], {"b": None})
    assert len(rows(admin)) == 1


def test_vectors_that_a_commit_sends_are_those_that_the_database_would_read() -> None:
    chance = Random(9)
    extremes = [0.0, -0.0, 1.5, -2.25, 1e-45, -1.17549435e-38, 3.4028235e38, 1 / 3]

    def some(texts: list[str]) -> list[list[float]]:
        return [[chance.choice([*extremes, chance.gauss(0, 1)]) for _ in range(5)] for _ in texts]

    index = SearchIndex({"dims": 5, "embed": some, "fields": ["text", "more[*]"], "name": "some"})
    with postgres.empty() as url, psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
        admin.execute(f"SET search_path = {name_of(url)}, public".encode())
        with perdure.connect_sync(url, migrate=True) as database:
            # The trigger still reads what is not sent: it would fail.
            admin.execute("ALTER FUNCTION vectors_of RENAME TO read_by_nobody")
            store = database.store(index=index)
            for _ in range(30):
                puts = [
                    PutOp(
                        ("users", chance.choice(["ada", "a\1b", "é"])),
                        chance.choice(["a", "a\0\1", "=", "ü"]),
                        chance.choice(
                            [
                                None,
                                {"text": "x", "more": ["y", "z", "w"][: chance.randrange(4)]},
                                {"text": "x"},
                            ]
                        ),
                    )
                    for _ in range(chance.randrange(1, 9))
                ]
                store.batch(puts)
            admin.execute("ALTER FUNCTION read_by_nobody RENAME TO vectors_of")
            living = sum(len(store.search(home, limit=100)) for home in store.list_namespaces())
        assert living
        assert len({row[0] for row in rows(admin)}) > 2
        assert admin.execute("SELECT count(DISTINCT (t, item)) FROM vector").fetchone() == (living,)
        assert admin.execute("SELECT * FROM vectors_damaged(NULL)").fetchall() == []


def test_rows_that_are_not_those_of_their_entries_are_found_and_made_anew(
    database: SyncDatabase, admin: psycopg.Connection
) -> None:
    index = new_index()
    store, driver = database.store(index=index), handle_of(database).driver
    store.batch([PutOp(HOME, key, {"text": f"tea {key}"}) for key in ("a", "b", "c")])
    partition = partition_of("", HOME)
    handle = handle_of(database)
    assert handle.examine(partition) == []
    admin.execute("UPDATE vector SET embedding = (SELECT embedding FROM vector WHERE item = 'b')")
    admin.execute("DELETE FROM vector WHERE item = 'c'")
    found = handle.examine(partition)
    assert len(found) == 2
    assert all("store reindex" in each for each in found)
    assert index.prepare(driver) == 2
    assert handle.examine(partition) == []
    assert [hit.key for hit in store.search(HOME, query="tea c", limit=1)] == ["c"]


def test_entries_from_before_the_table_are_filled_in() -> None:
    with postgres.empty() as url, psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
        admin.execute(f"SET search_path = {name_of(url)}, public".encode())
        for statement in schema.plan_migration(name_of(url), 0):
            admin.execute(statement.encode())
        index = new_index()
        with perdure.connect_sync(url) as database:
            store = database.store(index=index)
            store.put(HOME, "a", {"text": "tea"})
            assert not index.is_stored_in(handle_of(database).driver)
            assert "perdure migrate" in index.method(handle_of(database).driver)
            assert [hit.key for hit in store.search(HOME, query="tea")] == ["a"]
        assert any("vector" in statement for statement in opening.plan_migration(url))
        assert opening.migrate(url) == opening.SCHEMA_VERSION
        assert opening.plan_migration(url) == []
        assert rows(admin) == [("a", 1, 16)]
        with perdure.connect_sync(url) as database:
            assert new_index().is_stored_in(handle_of(database).driver)
            assert [hit.key for hit in database.store(index=new_index()).search((), query="tea")] == ["a"]


def test_without_the_extension_nothing_is_added() -> None:
    missing = Extension("", False, may_be_created=False, has_parts=False, is_sound=False)
    assert vector_table.setup("perdure", missing) == ()
    assert (
        vector_table.setup("perdure", Extension("public", True, False, has_parts=True, is_sound=True)) == ()
    )
    created = vector_table.setup("perdure", missing._replace(may_be_created=True))
    assert created[0] == vector_table.CREATE


def test_functions_of_another_release_are_replaced_by_migrate() -> None:
    with postgres.empty() as url, perdure.connect_sync(url, migrate=True) as database:
        database.store(index=new_index()).put(HOME, "a", {"text": "tea"})
        name = parse_qs(urlsplit(url).query)["schema"][0]
        with psycopg.connect(postgres.shared().url(), autocommit=True) as admin:
            admin.execute(f"ALTER FUNCTION {name}.nearest RESET enable_sort".encode())
        assert opening.plan_migration(url)
        opening.migrate(url)
        assert opening.plan_migration(url) == []
        store = database.store(index=new_index())
        assert [hit.key for hit in store.search(HOME, query="tea", limit=1)] == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "DROP EXTENSION vector CASCADE",
        "DROP EXTENSION vector CASCADE; CREATE EXTENSION vector",
        "CREATE SCHEMA moved; ALTER EXTENSION vector SET SCHEMA moved",
    ],
)
def test_an_extension_that_was_dropped_or_moved_is_followed_by_migrate(change: str) -> None:
    server = postgres.shared()
    with psycopg.connect(server.url(), autocommit=True) as root:
        root.execute("CREATE DATABASE changed_vectors")
    url = server.url("changed_vectors", pool=2)
    try:
        with perdure.connect_sync(url, migrate=True) as database:
            store = database.store(index=new_index())
            store.put(HOME, "a", {"text": "tea"})
            with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
                admin.execute(change.encode())
            with pytest.raises(MigrationRequired, match="pgvector was dropped from the database"):
                # A put uses nothing that is moved.
                store.search((), query="x") if "moved" in change else store.put(HOME, "b", {"text": "coffee"})
        with perdure.connect_sync(url) as database:
            index = new_index()
            assert "`perdure migrate` has been run" in index.method(handle_of(database).driver)
            assert [hit.key for hit in database.store(index=index).search(HOME, query="tea", limit=1)] == [
                "a"
            ]
        assert opening.plan_migration(url)
        opening.migrate(url)
        assert opening.plan_migration(url) == []
        with perdure.connect_sync(url) as database:
            index = new_index()
            store = database.store(index=index)
            assert index.is_stored_in(handle_of(database).driver)
            store.put(HOME, "b", {"text": "coffee"})
            assert [hit.key for hit in store.search(HOME, query="coffee")] == ["b", "a"]
            assert handle_of(database).examine(partition_of("", HOME)) == []
    finally:
        with psycopg.connect(server.url(), autocommit=True) as root:
            root.execute("DROP DATABASE changed_vectors WITH (FORCE)")


def test_a_process_that_is_open_follows_an_extension_that_was_created_again() -> None:
    server = postgres.shared()
    with psycopg.connect(server.url(), autocommit=True) as root:
        root.execute("CREATE DATABASE vectors_anew")
    # Prepared statements know the functions by their numbers.
    url = f"{server.url('vectors_anew', pool=2)}&prepare=1"
    try:
        with perdure.connect_sync(url, migrate=True) as database:
            store = database.store(index=new_index())
            store.put(HOME, "a", {"text": "tea"})
            with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
                admin.execute("DROP EXTENSION vector CASCADE")
            with pytest.raises(MigrationRequired, match="pgvector was dropped from the database"):
                store.put(HOME, "b", {"text": "coffee"})
            opening.migrate(url)
            store.put(HOME, "b", {"text": "coffee"})
            store.put(HOME, "a", {"text": "cold tea"})
            assert [hit.key for hit in store.search(HOME, query="coffee")] == ["b", "a"]
            assert handle_of(database).examine(partition_of("", HOME)) == []
    finally:
        with psycopg.connect(server.url(), autocommit=True) as root:
            root.execute("DROP DATABASE vectors_anew WITH (FORCE)")


def test_pgvector_in_a_schema_that_the_user_may_not_use_is_left_out() -> None:
    server = postgres.shared()
    with psycopg.connect(server.url(), autocommit=True) as root:
        root.execute("CREATE DATABASE vectors_apart")
        root.execute("CREATE ROLE apart LOGIN")
    url = server.url("vectors_apart", pool=2)
    by_apart = url.replace("postgres@", "apart@")
    try:
        with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
            admin.execute("CREATE SCHEMA hidden; CREATE EXTENSION vector SCHEMA hidden")
            admin.execute("CREATE SCHEMA perdure; GRANT USAGE, CREATE ON SCHEMA perdure TO apart")
        opening.migrate(by_apart)
        assert opening.plan_migration(by_apart) == []
        with perdure.connect_sync(by_apart) as database:
            store = database.store(index=new_index())
            store.put(HOME, "a", {"text": "tea"})
            assert [hit.key for hit in store.search(HOME, query="tea")] == ["a"]
    finally:
        with psycopg.connect(server.url(), autocommit=True) as root:
            root.execute("DROP DATABASE vectors_apart WITH (FORCE)")
            root.execute("DROP ROLE apart")


def test_an_encrypted_database_compares_in_the_process(caplog: pytest.LogCaptureFixture) -> None:
    with postgres.empty() as url, caplog.at_level("INFO", "perdure.langgraph"):
        with perdure.connect_sync(url, migrate=True, encryption_key=bytes(32)) as database:
            index: SearchIndex = new_index()
            store = database.store(index=index)
            database.store(index=index)
            store.put(HOME, "a", {"text": "tea"})
            assert [hit.key for hit in store.search(HOME, query="tea")] == ["a"]
        with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
            admin.execute(f"SET search_path = {name_of(url)}, public".encode())
            assert rows(admin) == []
    said = [record.getMessage() for record in caplog.records if "compare" in record.getMessage()]
    assert said == ["searches in the store compare vectors in this process, as the database is encrypted"]
