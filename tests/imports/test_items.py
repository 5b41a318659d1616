"""Items of the stock stores, as they are after an import.

Covers perdure.engine.transfer.importing_items.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.sqlite import SqliteStore

import perdure
from perdure import admin
from perdure.errors import Corrupt, TooLarge
from perdure.imports.importer import ImportOptions
from perdure.imports.items import ItemCounts, ItemImporter
from perdure.imports.source import SourceItem
from perdure.imports.sqlite import SqliteSource
from perdure.imports.store_rows import item_of
from perdure.model.ops import Commit
from perdure.storage.memory import MemoryDriver
from tests.engine.transfer.test_transfer import Hooked, database

ODD = [
    ("users", "alice"),
    ("users", "alice2"),
    ("users", "alice", "deep er"),
    ("ü", "%", "a_b"),
    ("a", "b"),
    ("a_b",),
]


def now() -> int:
    return time.time_ns() // 1000


def imported(db: perdure.SyncDatabase, items: list[SourceItem], **options: Any) -> ItemCounts:
    return ItemImporter(db, ImportOptions(**options), now()).run(items)


def test_every_item_keeps_its_namespace_value_and_times(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with (
        SqliteStore.from_conn_string(str(path)) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        stock.setup()
        for n, namespace in enumerate(ODD):
            for key in ("one", "two/ž"):
                stock.put(namespace, key, {"n": n, "list": [1, None, {"x": "y"}]})
        stock.put(("short",), "lived", {"n": 1}, ttl=60)
        source = SqliteSource(path)
        dry = ItemImporter(db, ImportOptions(dry_run=True), now()).run(source.items())
        assert (dry.written, admin.partitions(db, None)) == (13, [])
        counts = ItemImporter(db, ImportOptions(), now()).run(source.items())
        assert (counts.written, counts.unchanged, counts.skipped) == (13, 0, [])
        store = db.store()
        for namespace in [*ODD, ("short",)]:
            found = store.search(namespace, limit=100)
            expected = stock.search(namespace, limit=100)
            assert {(i.namespace, i.key): (i.value, i.created_at, i.updated_at) for i in found} == {
                # The stock store leaves out that its times are UTC.
                (i.namespace, i.key): (
                    i.value,
                    i.created_at.replace(tzinfo=UTC),
                    i.updated_at.replace(tzinfo=UTC),
                )
                for i in expected
            }
        again = ItemImporter(db, ImportOptions(), now()).run(source.items())
        assert (again.written, again.unchanged) == (0, 13)
        source.close()


def test_the_newer_of_two_counts_and_a_ttl_goes_on(tmp_path: Path) -> None:
    at = now()
    minute = 60_000_000
    with perdure.connect_sync("memory://") as db:
        store = db.store()
        store.put(("n",), "here", {"from": "target"})
        items = [
            SourceItem(("n",), "here", {"from": "source"}, at - minute, at - minute),
            SourceItem(("n",), "gone", {"from": "source"}, at - 9 * minute, at - 9 * minute, minute, at - 1),
            SourceItem(("n",), "soon", {"from": "source"}, at, at, 5 * minute, at + 5 * minute),
        ]
        counts = imported(db, items)
        assert (counts.written, counts.unchanged, counts.expired) == (1, 1, 1)
        assert [i.key for i in store.search(("n",), filter={"from": "source"})] == ["soon"]
        later = items[2]._replace(value={"from": "source", "v": 2}, updated_at=at + 1)
        assert imported(db, [later]).written == 1
        assert store.get(("n",), "soon").value["v"] == 2  # type: ignore[union-attr]


def test_a_damaged_row_is_skipped_by_name_and_the_others_arrive(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with SqliteStore.from_conn_string(str(path)) as stock:
        stock.setup()
        for key in "abcdefgh":
            stock.put(("n",), key, {"key": key})
    damage: dict[str, tuple[str, object]] = {
        "a": ("value", "{not json"),
        "b": ("value", "[1]"),
        "c": ("updated_at", "yesterday"),
        "d": ("value", '{"x": NaN}'),
        "e": ("prefix", b"\x01\x02"),
        "f": ("ttl_minutes", "soon"),
    }
    with closing(sqlite3.connect(path)) as connection, connection:
        for key, (column, value) in damage.items():
            connection.execute(f"UPDATE store SET {column} = ? WHERE key = ?", (value, key))
        connection.execute("UPDATE store SET value = CAST(x'7b22ff227d' AS TEXT) WHERE key = 'g'")
        connection.execute("UPDATE store SET key = CAST(x'ff' AS TEXT) WHERE key = 'h'")
        connection.execute(
            "INSERT INTO store SELECT prefix, 'i', '{\"key\": \"i\"}', created_at, updated_at, NULL, NULL "
            "FROM store WHERE key = 'b'"
        )
    source = SqliteSource(path)
    with perdure.connect_sync("memory://") as db:
        counts = ItemImporter(db, ImportOptions(), now()).run(source.items())
        source.close()
        assert counts.written == 1, counts
        assert len(counts.skipped) == 8
        for key in "abcdefg":
            assert sum(f"item {key!r}" in why for why in counts.skipped) == 1, counts.skipped
        assert db.store().get(("n",), "i").value == {"key": "i"}  # type: ignore[union-attr]


def test_one_item_that_the_target_refuses_does_not_take_others_along() -> None:
    at = now()
    items = [SourceItem(("n",), key, {"v": key}, at, at) for key in ("one", "large", "two")]

    def refuse(effect: Any) -> None:
        if isinstance(effect, Commit) and any(op.key == ("large",) for op in effect.ops):
            raise TooLarge("a value is too large")

    db = database(Hooked(MemoryDriver(), refuse))
    counts = imported(db, items)
    assert (counts.written, counts.skipped) == (2, ["item 'large' of ('n',): a value is too large"])
    assert {i.key for i in db.store().search(("n",))} == {"one", "two"}


def test_rows_are_read_in_both_spellings_of_time() -> None:
    at = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    text = item_of("a.b", "k", '{"x": 1}', "2026-05-04 03:02:01", "2026-05-04 03:02:01", None, None)
    typed = item_of("a.b", "k", {"x": 1}, at, at, at + timedelta(minutes=3), 3)
    assert text == typed._replace(ttl=None, expires_at=None)
    assert (typed.ttl, typed.expires_at) == (180_000_000, typed.updated_at + 180_000_000)
    with pytest.raises(Corrupt, match="not a JSON object"):
        item_of("a", "k", "[1]", at, at, None, None)


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_only_the_target_has_is_counted_and_stays(dry_run: bool) -> None:
    with perdure.connect_sync("memory://") as db:
        for namespace, key in ((("u",), "gone"), (("u",), "both"), (("other",), "gone")):
            db.store().put(namespace, key, {"n": 1})
        db.store().put(("u",), "short", {"n": 1}, ttl=1e-6)
        time.sleep(0.001)
        items = [SourceItem(("u",), key, {"n": 1}, 1, 1) for key in ("both", "new")]
        counts = imported(db, items, dry_run=dry_run)
        assert (counts.written, counts.unchanged, counts.kept) == (1, 1, 2)
        assert db.store().get(("u",), "gone") is not None
