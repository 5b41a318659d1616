"""Wherever several names are taken, one text is refused before anything is done: it would pass for its
letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langgraph.store.base import InvalidNamespaceError

import perdure
from perdure.database.blocking import SyncDatabase
from perdure.testing.conformance.backend import at, put

TEXTS: list[Any] = ["ab", b"ab", bytearray(b"ab")]

Calls = dict[str, Callable[[SyncDatabase, Any], object]]

CALLS: Calls = {
    "prune": lambda db, text: db.checkpointer().prune(text, strategy="delete"),
    "prune some": lambda db, text: db.checkpointer().prune(text, keep_last=1),
    "aprune": lambda db, text: db.checkpointer().aprune(text, strategy="delete"),
    "delete_for_runs": lambda db, text: db.checkpointer().delete_for_runs(text),
    "adelete_for_runs": lambda db, text: db.checkpointer().adelete_for_runs(text),
    "delta": lambda db, text: db.checkpointer().get_delta_channel_history(
        config=at(thread="a"), channels=text
    ),
    "adelta": lambda db, text: db.checkpointer().aget_delta_channel_history(
        config=at(thread="a"), channels=text
    ),
    "allow": lambda db, text: db.checkpointer(allow=text),
    "one of allow": lambda db, text: db.checkpointer(allow=(text, "Name")),  # type: ignore[arg-type]
    "metadata_keys": lambda db, text: db.checkpointer(metadata_keys=text),
    "with_allowlist": lambda db, text: db.checkpointer().with_allowlist(text),
    "store get": lambda db, text: db.store().get(text, "key"),
    "store put": lambda db, text: db.store().put(text, "key", {"x": 1}),
    "store aput": lambda db, text: db.store().aput(text, "key", {"x": 1}),
    "store delete": lambda db, text: db.store().delete(text, "key"),
    "store search": lambda db, text: db.store().search(text),
    "store asearch": lambda db, text: db.store().asearch(text),
    "store namespaces": lambda db, text: db.store().list_namespaces(prefix=text),
    "store suffix": lambda db, text: db.store().list_namespaces(suffix=text),
}


STORE = [name for name in CALLS if name.startswith("store")]


async def _called(call: Callable[[SyncDatabase, Any], object], db: SyncDatabase, text: Any) -> None:
    called = call(db, text)
    if isinstance(called, Awaitable):
        await called


@pytest.mark.parametrize("text", TEXTS, ids=["text", "bytes", "bytearray"])
@pytest.mark.parametrize("name", CALLS)
def test_one_text_for_several_is_refused(name: str, text: Any) -> None:
    with perdure.connect_sync("memory://") as db:
        saver = db.checkpointer()
        for thread in ("a", "b", "ab"):
            put(saver, at(thread=thread), "c1")
            db.store().put((thread,), "key", {"x": 1})
        # LangGraph itself refuses the bytes in a namespace, as numbers.
        with pytest.raises((TypeError, InvalidNamespaceError) if name in STORE else (TypeError, ValueError)):
            asyncio.run(_called(CALLS[name], db, text))
        for thread in ("a", "b", "ab"):
            assert saver.get_tuple(at(thread=thread)) is not None
            assert [item.key for item in db.store().search((thread,))] == ["key"]
        assert len(db.store().list_namespaces()) == 3
