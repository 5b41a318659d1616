"""The listing of namespaces against that of LangGraph's own store in memory, over any number of pages.

A page of names may end at a namespace that is shorter than the depth, at one that is cut, or between the two.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import BaseStore, ListNamespacesOp, MatchCondition, PutOp
from langgraph.store.memory import InMemoryStore

from perdure.engine.items import items
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend
from tests.backends import BACKENDS, fresh

LABELS = st.sampled_from(["a", "b", "ab", "a\x01", "\x02", "é", "*"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=4).map(tuple)
CONDITIONS = st.builds(
    MatchCondition, st.sampled_from(["prefix", "suffix"]), st.lists(LABELS, min_size=1, max_size=2).map(tuple)
)
LISTINGS = st.builds(
    ListNamespacesOp,
    st.lists(CONDITIONS, max_size=2).map(tuple),
    st.none() | st.integers(1, 4),
    st.integers(1, 40),
    st.integers(0, 20),
)


def _fill(store: BaseStore, namespaces: list[tuple[str, ...]]) -> None:
    store.batch([PutOp(namespace, "k", {"n": 1}) for namespace in namespaces])


@settings(deadline=None)
@given(
    namespaces=st.lists(NAMESPACES, max_size=40, unique=True),
    listings=st.lists(LISTINGS, min_size=1, max_size=5),
    page=st.integers(1, 4),
)
def test_a_listing_is_that_of_the_stock_store_wherever_its_pages_end(
    namespaces: list[tuple[str, ...]], listings: list[ListNamespacesOp], page: int
) -> None:
    ours, stock = Backend(MemoryDriver()).store(), InMemoryStore()
    _fill(ours, namespaces)
    _fill(stock, namespaces)
    with patch.object(items, "_NAMES", page):
        for listing in listings:
            assert ours.batch([listing]) == stock.batch([listing])


@pytest.mark.parametrize("on", BACKENDS)
def test_every_backend_lists_what_lies_within_the_last_namespace_of_a_page(on: str) -> None:
    users = [f"user{n}" for n in range(4)]
    namespaces = [(user, *rest) for user in users for rest in ((), ("facts",), ("facts", "x"))]
    with fresh(on) as driver, patch.object(items, "_NAMES", 4):
        store = Backend(driver).store()
        _fill(store, namespaces)
        listed = {depth: store.list_namespaces(max_depth=depth) for depth in (1, 2, 3, None)}
    assert listed == {
        depth: sorted({namespace[:depth] for namespace in namespaces}) for depth in (1, 2, 3, None)
    }
