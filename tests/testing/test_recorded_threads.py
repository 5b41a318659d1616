"""Threads of an export as a fixture: as they were recorded, each time anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import perdure
from perdure import admin
from perdure.errors import BadArchive, DecryptionError
from perdure.testing import from_export

KEY = bytes(range(32))
THREAD: Any = {"configurable": {"thread_id": "ada"}}


def compiled(saver: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [("ai", f"answered {interrupt('go on?')}")]})
    return builder.add_edge(START, "ask").compile(checkpointer=saver)


def recorded(folder: Path, *, tenant: str = "", key: bytes | None = None) -> Path:
    """A file with a thread that waits for an answer."""
    file = folder / "ada.perdure"
    with perdure.connect_sync(f"sqlite:///{folder / 't.db'}", migrate=True, tenant=tenant) as db:
        compiled(db.checkpointer()).invoke({"messages": [("user", "hello")]}, THREAD)
        with admin.new_archive(file, encryption_key=key) as archive:
            for each in admin.partitions(db, tenant):
                admin.move(db, each, archive)
    return file


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_a_recorded_thread_goes_on_where_it_was_each_time(tmp_path: Path, tenant: str) -> None:
    file = recorded(tmp_path, tenant=tenant)
    before = file.read_bytes()
    for answer in ("yes", "no"):
        with from_export(file) as db:
            graph = compiled(db.checkpointer())
            assert graph.get_state(THREAD).next == ("ask",)
            result = graph.invoke(Command(resume=answer), THREAD)
        assert [message.content for message in result["messages"]] == ["hello", f"answered {answer}"]
    assert file.read_bytes() == before


def test_an_encrypted_file_needs_its_key(tmp_path: Path) -> None:
    file = recorded(tmp_path, key=KEY)
    with from_export(str(file), encryption_key=KEY) as db:
        assert compiled(db.checkpointer()).get_state(THREAD).next == ("ask",)
    with pytest.raises(DecryptionError), from_export(file):
        pass


def test_a_file_that_is_no_export_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(BadArchive), from_export(tmp_path / "notes.txt"):
        pass
