"""Records and pages of a SQLite file that are not what was written: noticed when read, reported by thread.

Covers perdure.admin.databases, perdure.database.base, perdure.storage.sqlite.integrity.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw
import pytest
from langgraph.graph import END, START, StateGraph

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.checks.fsck_report import Damage
from perdure.model.ops import Commit, Committed, Delete, Fetch, Get, Put, Range
from perdure.model.records import HEAD, ITEM, KINDS, TAG, Kind, Partition
from perdure.storage.port import NOT_LATEST
from perdure.storage.sql import schema
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.sqlite.driver import SqliteDriver
from perdure.testing.conformance import items, rows


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def graph(db: perdure.SyncDatabase) -> Any:
    builder = StateGraph(State)
    builder.add_node("answer", lambda _: {"said": ["an answer"]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=db.checkpointer())


def of(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def page_of(connection: apsw.Connection, name: str) -> tuple[int, int]:
    """Return the number of the root page of a table or index, and the size of a page in bytes."""
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).get
    size = connection.pragma("page_size")
    assert isinstance(root, int)
    assert isinstance(size, int)
    return root, size


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "threads.db"
    sqlite.migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def url(path: Path) -> str:
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        for turn in range(3):
            for thread in ("ada", "bob"):
                graph(db).invoke({"said": [f"question {turn}"]}, of(thread))
    return f"sqlite:///{path}"


def change(path: Path, *statements: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        for statement in statements:
            connection.execute(statement)


def a_record(kind: Kind) -> Put:
    values: dict[str, Any] = {"text": "name", "integer": 7, "bytes": b"name"}
    key = tuple(values[c.kind] for c in kind.key)
    return Put(kind, key, {c.name: values[c.kind] for c in kind.fields}, b"body", version=3)


@pytest.fixture
def every_kind(path: Path) -> Path:
    with closing(SqliteDriver(path)) as driver:
        puts = {op.kind: op for op in (*map(a_record, KINDS), *rows.every_kind())}
        assert driver.perform(Commit(rows.HERE, tuple(puts.values()))) == Committed()
    return path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_changed_column_is_noticed_when_the_record_is_read(every_kind: Path, kind: Kind) -> None:
    own = {c.name: c.kind for c in (*kind.key, *kind.fields)} | {"version": "integer", "body": "bytes"}
    turned = {"text": "coalesce({0}, '') || 'x'", "integer": "coalesce({0}, 0) + 1", "bytes": "{0} || x'00'"}
    table, copy = schema.table(kind), "a_copy"
    change(every_kind, f"CREATE TABLE {copy} AS SELECT * FROM {table}")
    for column in kind.columns():
        if column == kind.grows:
            continue
        change(
            every_kind,
            "DROP TABLE IF EXISTS temp_copy",
            f"CREATE TABLE temp_copy AS SELECT * FROM {schema.table(kind)}",
        )
        change(every_kind, f"UPDATE {table} SET {column} = {turned[own[column]].format(column)}")
        with closing(SqliteDriver(every_kind)) as driver:
            damaged = rf"thread '{rows.HERE.thread}': {kind.name} .*damaged.*perdure fsck"
            with pytest.raises(perdure.Corrupt, match=damaged):
                driver.perform(Fetch(rows.HERE, (Range(kind),)))
            assert driver.perform(Fetch(rows.HERE, (Range(kind, verify=False),)))[0]
            assert driver.examine(rows.HERE) or kind.grows
        change(every_kind, f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM {copy}")
    with closing(SqliteDriver(every_kind)) as driver:
        assert driver.perform(Fetch(rows.HERE, (Range(kind),)))[0]
        assert driver.examine(rows.HERE) == []


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["plain", "encrypted"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.body], ids=lambda kind: kind.name)
def test_what_is_no_bytes_in_place_of_a_body_is_an_error_with_a_name(
    every_kind: Path, kind: Kind, key: bytes | None
) -> None:
    """As a page of another table, or of an index, may show it."""
    url, table = f"sqlite:///{every_kind}", schema.table(kind)
    if key is not None:
        every_kind.unlink()
        with perdure.connect_sync(url, encryption_key=key, migrate=True) as db:
            puts = {op.kind: op for op in (*map(a_record, KINDS), *rows.every_kind())}
            assert handle_of(db).driver.perform(Commit(rows.HERE, tuple(puts.values()))) == Committed()
    for value in ("'text'", "7"):
        change(every_kind, f"UPDATE {table} SET body = {value} WHERE t IN (SELECT pk FROM {IN_ACME})")
        with perdure.connect_sync(url, encryption_key=key, tenant=rows.HERE.tenant) as db:
            for verify in (True, False):
                with suppress(perdure.PerdureError):
                    handle_of(db).driver.perform(Fetch(rows.HERE, (Range(kind, verify=verify),)))
            with suppress(perdure.PerdureError):
                assert db.fsck(rows.HERE.thread)


IN_ACME = f"perdure_thread WHERE tenant = '{rows.HERE.tenant}'"


def test_no_field_is_kept_of_a_damaged_item(path: Path) -> None:
    with closing(SqliteDriver(path)) as driver:
        assert (
            driver.perform(Commit(items.SPACE, (items.put_at("a", 5), items.put_at("b", 5)))) == Committed()
        )
        for now in (7, 8):
            commit = Commit(items.SPACE, (items.put_at("a", now), items.item("c", version=now)))
            assert driver.perform(commit) == Committed()
        assert driver.examine(items.SPACE) == []
    for damage in ("created_at = 1", "checksum = NULL"):
        change(path, f"UPDATE perdure_item SET {damage} WHERE key = 'b'")
        with closing(SqliteDriver(path)) as driver:
            with pytest.raises(perdure.Corrupt, match=r"item b is damaged"):
                driver.perform(Commit(items.SPACE, (items.put_at("b", 9), items.put_at("new", 9))))
            assert rows.get(driver, ITEM, "new", at=items.SPACE) is None
            assert driver.examine(items.SPACE)


def test_a_row_without_its_checksum_is_noticed(url: str, path: Path) -> None:
    change(path, "UPDATE perdure_head SET checksum = NULL")
    with perdure.connect_sync(url) as db, pytest.raises(perdure.Corrupt, match="ada"):
        graph(db).get_state(of("ada"))


def test_a_record_of_another_thread_is_not_read_as_this_one_s(url: str, path: Path) -> None:
    change(
        path,
        *(f"UPDATE perdure_{kind.name} SET t = t + 100" for kind in KINDS),
        *(f"UPDATE perdure_{kind.name} SET t = 103 - t" for kind in KINDS),
        "UPDATE perdure_thread SET head ="
        " (SELECT checksum FROM perdure_head WHERE t = pk AND namespace = '')",
    )
    with perdure.connect_sync(url) as db:
        for thread in ("ada", "bob"):
            with pytest.raises(perdure.Corrupt, match=thread):
                graph(db).get_state(of(thread))
            assert db.fsck(thread)


def older_head(connection: apsw.Connection, before: list[Any]) -> None:
    columns = ", ".join(f"{name} = ?" for name in ("checkpoint_id", "seq", "version", "checksum"))
    connection.execute(f"UPDATE perdure_head SET {columns} WHERE t = 1", before)


def no_head(connection: apsw.Connection, _: list[Any]) -> None:
    connection.execute("DELETE FROM perdure_head WHERE t = 1")


@pytest.mark.parametrize("deed", [older_head, no_head], ids=lambda deed: deed.__name__)
def test_an_older_head_or_none_is_refused_and_reported(
    url: str, path: Path, deed: Callable[[apsw.Connection, list[Any]], None]
) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        read = "SELECT checkpoint_id, seq, version, checksum FROM perdure_head WHERE t = 1"
        before = list(connection.execute(read).fetchall()[0])
    with perdure.connect_sync(url) as db:
        graph(db).invoke({"said": ["one more"]}, of("ada"))
    with closing(apsw.Connection(str(path))) as connection:
        deed(connection, before)
    with perdure.connect_sync(url) as db:
        with pytest.raises(perdure.Corrupt, match=r"thread 'ada': .*its head is not the one.*perdure fsck"):
            graph(db).get_state(of("ada"))
        with pytest.raises(perdure.Corrupt, match="ada"):
            graph(db).invoke({"said": ["lost"]}, of("ada"))
        assert any(f.kind is Damage.CHANGED and f.thread_id == "ada" for f in db.fsck())
        assert len(graph(db).get_state(of("bob")).values["said"]) == 6


@pytest.mark.parametrize("kind", ["write", "checkpoint", "lane", "epoch", "document"])
def test_records_that_are_gone_or_older_are_reported_by_fsck(every_kind: Path, kind: str) -> None:
    name = rows.HERE.thread
    with perdure.connect_sync(f"sqlite:///{every_kind}", tenant=rows.HERE.tenant) as db:
        assert not any(f.kind is Damage.CHANGED for f in db.fsck(name))
    change(every_kind, f"DELETE FROM perdure_{kind}")
    with perdure.connect_sync(f"sqlite:///{every_kind}", tenant=rows.HERE.tenant) as db:
        assert any(f.kind is Damage.CHANGED and f.thread_id == name for f in db.fsck(name))


def test_a_catalogue_whose_index_lies_serves_no_empty_thread(url: str, path: Path) -> None:
    """The index by name says that ada is somebody else; the row itself is right."""
    with closing(apsw.Connection(str(path))) as connection:
        root, size = page_of(connection, "sqlite_autoindex_perdure_thread_1")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    page = data[(root - 1) * size : root * size]
    assert page.count(b"ada") == 1
    data[(root - 1) * size : root * size] = page.replace(b"ada", b"adb")
    path.write_bytes(data)
    with perdure.connect_sync(url) as db:
        with pytest.raises(perdure.Corrupt, match=r"thread 'ada': .*catalogue"):
            graph(db).get_state(of("ada"))
        assert any("integrity check" in line for line in admin.examine(db))


def test_a_page_that_sqlite_itself_refuses_names_the_thread_and_the_command(url: str, path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        root, size = page_of(connection, "perdure_head")
    data = bytearray(path.read_bytes())
    data[(root - 1) * size : root * size] = bytes(size)
    path.write_bytes(data)
    with perdure.connect_sync(url) as db:
        with pytest.raises(perdure.Corrupt, match=r"thread 'ada': .*is damaged.*perdure fsck") as caught:
            graph(db).get_state(of("ada"))
        assert isinstance(caught.value.__cause__, apsw.CorruptError)
        assert {f.thread_id for f in db.fsck()} == {"ada", "bob"}
        assert admin.examine(db)


def test_text_that_is_no_text_is_damage_and_is_not_shown(url: str, path: Path) -> None:
    change(path, "UPDATE perdure_head SET checkpoint_id = CAST(x'ff9148494445' AS TEXT)")
    with perdure.connect_sync(url) as db, pytest.raises(perdure.Corrupt, match="thread 'ada'") as caught:
        graph(db).get_state(of("ada"))
    assert "HIDE" not in str(caught.value)


def test_items_of_the_store_are_verified_and_checked(path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        db.store().put(("memories",), "a", {"text": "likes tea"})
        assert admin.examine(db) == []
    change(path, "UPDATE perdure_item SET body = body || x'00'")
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        with pytest.raises(perdure.Corrupt, match=r"memories.*item a is damaged"):
            db.store().get(("memories",), "a")
        assert any("item a" in line for line in admin.examine(db))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_fsck_reports_records_whose_columns_are_of_other_types(every_kind: Path, kind: Kind) -> None:
    table = schema.table(kind)
    change(every_kind, f"CREATE TABLE a_copy AS SELECT * FROM {table}", f"DROP TABLE {table}")
    change(every_kind, f"CREATE TABLE {table} AS SELECT * FROM a_copy")  # with no constraints
    for column in kind.columns():
        for other in ("NULL", "'other'", "x'ff00'", "7"):
            change(every_kind, f"UPDATE {table} SET {column} = {other}")
            with perdure.connect_sync(f"sqlite:///{every_kind}", tenant=rows.HERE.tenant) as db:
                assert [*db.fsck(), *admin.examine(db)], f"{column} = {other}"
        change(every_kind, f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM a_copy")


@pytest.mark.parametrize("column", ["body", "checksum", "body = NULL, checksum"])
def test_items_that_a_search_finds_are_verified(path: Path, column: str) -> None:
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        db.store().put(("memories",), "a", {"text": "likes tea"})
    change(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'body BLOB NOT NULL', 'body BLOB')"
        " WHERE name = 'perdure_item'",
    )
    change(path, f"UPDATE perdure_item SET {column} = NULL")
    with (
        perdure.connect_sync(f"sqlite:///{path}") as db,
        pytest.raises(perdure.Corrupt, match=r"memories.*item a is damaged"),
    ):
        db.store().search(("memories",))


@pytest.mark.parametrize("column", ["tenant", "thread"])
def test_a_catalogue_with_names_that_are_no_text_is_refused(url: str, path: Path, column: str) -> None:
    change(path, f"UPDATE perdure_thread SET {column} = CAST({column} AS BLOB) WHERE pk = 1")
    with perdure.connect_sync(url) as db, pytest.raises(perdure.Corrupt, match="run `perdure fsck`"):
        admin.partitions(db, None)


@pytest.mark.parametrize("column", ["checksum", "total", "head", "commits"])
def test_a_row_of_the_catalogue_without_its_numbers_is_noticed(url: str, path: Path, column: str) -> None:
    change(path, f"UPDATE perdure_thread SET {column} = NULL")
    with perdure.connect_sync(url) as db, pytest.raises(perdure.Corrupt, match="ada"):
        graph(db).get_state(of("ada"))


def test_a_record_without_a_checksum_that_is_overwritten_is_found_by_the_sum(path: Path) -> None:
    here = Partition("", "thread")
    with closing(SqliteDriver(path)) as driver:
        rows.store_ops(driver, rows.tag("t"), rows.tag("u"), at=here)
    change(path, "UPDATE perdure_tag SET checksum = NULL")
    with closing(SqliteDriver(path)) as driver:
        rows.store_ops(driver, rows.tag("t"), at=here)
        driver.perform(Commit(here, (Delete(TAG, ("u",)),)))
        assert driver.examine(here) == [NOT_LATEST]


def test_nothing_of_a_head_is_lost_when_its_thread_is_deleted(path: Path) -> None:
    """Deletion and a new thread of the same name are no damage."""
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        for _ in range(3):
            graph(db).invoke({"said": ["hello"]}, of("ada"))
            assert db.fsck() == []
            db.checkpointer().delete_thread("ada")
            assert graph(db).get_state(of("ada")).values == {}
            assert db.fsck() == []
            assert admin.examine(db) == []


def test_the_head_of_the_catalogue_follows_every_commit(path: Path) -> None:
    here = Partition("", "thread")
    with closing(SqliteDriver(path)) as driver:
        for version in range(1, 30):
            put = Put(HEAD, ("",), {"checkpoint_id": str(version), "seq": version}, version=version)
            assert driver.perform(Commit(here, (put,))) == Committed()
            (found,) = driver.perform(Fetch(here, (Get(HEAD, ("",)),)))
            assert found[0].version == version
            assert driver.examine(here) == []
