"""Namespaces and keys of any text, from the stock stores, come as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

import perdure
from perdure.imports.importer import ImportOptions
from perdure.imports.items import ItemImporter
from perdure.imports.postgres import PostgresSource
from perdure.imports.sqlite import SqliteSource
from tests.imports.stocks import postgres_url

# The stock stores refuse dots, and PostgreSQL and SQLite's text functions the character NUL.
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters=".\0")
LABELS = st.one_of(
    st.sampled_from(["a", "a_b", "%", "a b", "ü", "'", '"', "\\", "/", "𝄞"]), st.text(LETTERS, min_size=1)
)
NAMESPACES = (
    st.lists(LABELS, min_size=1, max_size=5).map(tuple).filter(lambda labels: labels[0] != "langgraph")
)
KEYS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), LABELS
)
ITEMS = st.dictionaries(st.tuples(NAMESPACES, KEYS), st.integers(0, 9), min_size=1, max_size=40)

Opened = tuple[BaseStore, Callable[[], Any]]


@contextmanager
def sqlite() -> Iterator[Opened]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with SqliteStore.from_conn_string(str(path)) as stock:
            stock.setup()
            yield stock, lambda: SqliteSource(path)


@contextmanager
def postgresql() -> Iterator[Opened]:
    url = postgres_url()
    with PostgresStore.from_conn_string(url) as stock:
        stock.setup()
        yield stock, lambda: PostgresSource(url)


@pytest.mark.parametrize("stocked", [sqlite, pytest.param(postgresql, marks=pytest.mark.slow)])
def test_namespaces_and_keys_of_any_text_come_as_they_are(
    stocked: Callable[[], AbstractContextManager[Opened]],
) -> None:
    with stocked() as (stock, open_source):
        there: dict[tuple[tuple[str, ...], str], int] = {}

        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(ITEMS)
        def import_again(items: dict[tuple[tuple[str, ...], str], int]) -> None:
            stock.batch([PutOp(namespace, key, {"n": n}) for (namespace, key), n in items.items()])
            there.update(items)

        import_again()
        source = open_source()
        with perdure.connect_sync("memory://") as db:
            counts = ItemImporter(db, ImportOptions(), time.time_ns() // 1000).run(source.items())
            assert (counts.written, counts.skipped) == (len(there), [])
            store = db.store()
            for (namespace, key), n in there.items():
                item = store.get(namespace, key)
                assert item is not None, (namespace, key)
                assert (item.namespace, item.key, item.value) == (namespace, key, {"n": n})
            again = ItemImporter(db, ImportOptions(), time.time_ns() // 1000).run(source.items())
            assert (again.written, again.unchanged) == (0, len(there))
        source.close()
        print(f"{len(there)} items of {len({namespace for namespace, _ in there})} namespaces")
