"""Threads of langgraph-checkpoint-postgres, made by its own saver, as they are after an import."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.store.postgres import PostgresStore

import perdure
from perdure.errors import BadUrl, Unavailable
from perdure.imports.importer import ImportOptions
from perdure.imports.items import ItemImporter
from perdure.imports.postgres import PostgresSource
from tests.imports import parity, threads
from tests.imports.stocks import postgres_url


@pytest.fixture
def url() -> str:
    return postgres_url()


def test_an_import_keeps_every_promise(url: str, tmp_path: Path) -> None:
    with (
        PostgresSaver.from_conn_string(url) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        stock.setup()
        parity.check(stock, lambda: PostgresSource(url), db)


def test_without_the_package_what_was_read_is_compared(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        PostgresSaver.from_conn_string(url) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        stock.setup()
        made = threads.fill(stock, 6)
        monkeypatch.setattr("perdure.imports.postgres.find_spec", lambda name: None)
        source = PostgresSource(url)
        assert source.verifier == source.name
        assert {r.state for r in parity.imported(source, db)} == {"imported"}
        source.close()
        for thread in made:
            assert threads.raw(db.checkpointer(), thread) == threads.raw(stock, thread)


def test_pending_sends_of_an_older_form_come_along(url: str, tmp_path: Path) -> None:
    with (
        PostgresSaver.from_conn_string(url) as stock,
        perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db,
    ):
        stock.setup()
        threads.fill(stock, 1)
        stock.conn.execute("""UPDATE checkpoints SET checkpoint = checkpoint || '{"v": 3}'""")  # type: ignore[union-attr]
        source = PostgresSource(url)
        (report,) = parity.imported(source, db)
        source.close()
        assert report.state == "imported"
        assert threads.raw(db.checkpointer(), "parked 0") == threads.raw(stock, "parked 0")


def test_the_store_comes_along_with_its_times_to_live(url: str) -> None:
    with PostgresStore.from_conn_string(url) as stock, perdure.connect_sync("memory://") as db:
        stock.setup()
        stock.put(("users", "ü %"), "name", {"is": [1, None, "x"]})
        stock.put(("users",), "short", {"n": 1}, ttl=60)
        source = PostgresSource(url)
        for written in (2, 0):
            counts = ItemImporter(db, ImportOptions(), time.time_ns() // 1000).run(source.items())
            assert (counts.written, counts.written + counts.unchanged) == (written, 2)
        source.close()
        for namespace, key in ((("users", "ü %"), "name"), (("users",), "short")):
            here, there = db.store().get(namespace, key), stock.get(namespace, key)
            assert here is not None
            assert there is not None
            assert (here.value, here.created_at, here.updated_at) == (
                there.value,
                there.created_at,
                there.updated_at,
            )


def test_another_database_is_refused_by_name(url: str) -> None:
    with pytest.raises(BadUrl, match="no tables of langgraph-checkpoint-postgres"):
        PostgresSource(url)
    with pytest.raises(BadUrl, match="not a PostgreSQL URL"):
        PostgresSource("threads.db")
    with pytest.raises(Unavailable, match=r"\*\*\*.*does not answer|does not answer"):
        PostgresSource("postgresql://me:secret@127.0.0.1:1/none")
