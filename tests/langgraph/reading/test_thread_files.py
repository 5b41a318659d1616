"""The files in a thread's state, read without its graph."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from deepagents.middleware.filesystem import _file_data_delta_reducer as reduce_files
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.errors import NotFound
from perdure.langgraph.reading.thread_files import TEXT, FilesPage, FileText, load_file, load_files
from perdure.model.records import Partition

AT: Any = {"configurable": {"thread_id": "t"}}


class Deep(TypedDict):
    files: Annotated[dict[str, Any], DeltaChannel(reduce_files, snapshot_frequency=50)]


class Plain(TypedDict):
    files: Any


@pytest.fixture
def database() -> Iterator[SyncDatabase]:
    with perdure.connect_sync("memory://") as opened:
        yield opened


def write(database: SyncDatabase, files: Any, kind: Any = Deep) -> None:
    built = StateGraph(kind).add_node("n", lambda _: {}).add_edge(START, "n")
    built.compile(checkpointer=database.checkpointer()).invoke({"files": files}, AT)


def listed(database: SyncDatabase, **more: Any) -> FilesPage:
    handle = handle_of(database)
    return handle.run(load_files(Partition("", "t"), handle.digest, **more))


def opened(database: SyncDatabase, path: str, **more: Any) -> FileText:
    handle = handle_of(database)
    return handle.run(load_file(Partition("", "t"), handle.digest, path, **more))


def test_files_are_listed_by_path_with_their_sizes(database: SyncDatabase) -> None:
    assert listed(database) == FilesPage(None, [], 0, None)
    png = base64.b64encode(b"\x89PNG\xff").decode()
    write(database, {"/b.md": {"content": "é\n", "encoding": "utf-8", "modified_at": "2026-01-01"}})
    before = listed(database).checkpoint_id
    write(database, {"/a.png": {"content": png, "encoding": "base64"}, "/b.md": None})
    write(database, {"/old.md": {"content": ["one", "two"], "created_at": 7}, "/c": {"content": ""}})
    page = listed(database)
    shown = [(each.path, each.size, each.is_text) for each in page.files]
    assert shown == [("/a.png", 6 - 1, False), ("/c", 0, True), ("/old.md", 7, True)]
    assert (page.total, page.cursor) == (3, None)
    first = listed(database, limit=2)
    assert [each.path for each in first.files] == ["/a.png", "/c"]
    rest = listed(database, limit=2, after=first.cursor)
    assert ([each.path for each in rest.files], rest.cursor) == (["/old.md"], None)
    (earlier,) = listed(database, checkpoint_id=before).files
    assert (earlier.path, earlier.size, earlier.modified_at) == ("/b.md", 3, "2026-01-01")
    assert opened(database, "/old.md").text == "one\ntwo"
    assert (opened(database, "/a.png").text, opened(database, "/c").length) == ("", 0)


def test_a_large_file_comes_in_parts(database: SyncDatabase) -> None:
    text = "".join(f"line {number} ü\n" for number in range(30_000))
    write(database, {"/large.txt": {"content": text}})
    parts, start = [], 0
    while start < len(text):
        part = opened(database, "/large.txt", start=start)
        assert len(part.text) <= TEXT
        assert (part.length, part.file.size) == (len(text), len(text.encode()))
        parts.append(part.text)
        start += len(part.text)
    assert "".join(parts) == text
    assert opened(database, "/large.txt", start=10**9).text == ""


def test_what_is_not_a_file_is_not_listed(database: SyncDatabase) -> None:
    odd = {
        "/a": "text",
        "/b": {"name": "x"},
        "/c": {"content": 5},
        "/d": None,
        "/e": {"content": "!", "encoding": "base64"},
    }
    write(database, odd, Plain)
    assert [(each.path, each.size) for each in listed(database).files] == [("/c", 0), ("/e", 0)]
    write(database, ["no", "dict"], Plain)
    assert listed(database).total == 0


def test_what_is_missing_is_named(database: SyncDatabase) -> None:
    write(database, {"/a": {"content": "x"}})
    with pytest.raises(NotFound, match="no file '/b'"):
        opened(database, "/b")
    with pytest.raises(NotFound, match="no checkpoint nope"):
        listed(database, checkpoint_id="nope")
    with pytest.raises(NotFound, match="namespace 'sub:1'"):
        listed(database, namespace="sub:1")
