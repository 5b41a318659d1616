"""The inspector's view of an agent's files."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.errors import BadSetting, NotFound
from perdure.inspector import api
from perdure.inspector.access import LocalAccess
from tests.inspector.staging import HOSTILE
from tests.inspector.test_steps import OwnersAccess

AT: Any = {"configurable": {"thread_id": "t"}}
LARGE = "a line 🚀\n" * 30_000


class State(TypedDict):
    files: dict[str, Any]


def graph(saver: Any) -> Any:
    return StateGraph(State).add_node("n", lambda _: {}).add_edge(START, "n").compile(saver)


FILES: dict[str, Any] = {
    "/report.md": {"content": HOSTILE, "modified_at": "2026-01-02T03:04:05"},
    f"/{HOSTILE}.md": {"content": ""},
    "/large.txt": {"content": LARGE},
    "/photo.png": {"content": "AAAA", "encoding": "base64"},
}


def test_files_are_a_view_of_their_thread() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as database:
            await graph(database.checkpointer()).ainvoke({"files": FILES}, AT)
            access = LocalAccess(handle_of(database), "")
            page = await api.view(access, "files", {"id": "t"})
            assert [each["path"] for each in page["files"]] == sorted(FILES)
            found = await api.view(access, "file", {"id": "t", "path": "/report.md"})
            assert (found["text"], found["length"], found["file"]["size"]) == (
                HOSTILE,
                len(HOSTILE),
                len(HOSTILE),
            )
            part = await api.view(access, "file", {"id": "t", "path": "/large.txt", "start": "299990"})
            assert part["text"] == LARGE[299990:]
            with pytest.raises(NotFound, match="no file"):
                await api.view(access, "file", {"id": "t", "path": "/other"})
            with pytest.raises(BadSetting, match="path"):
                await api.view(access, "file", {"id": "t"})
            with pytest.raises(BadSetting, match="start"):
                await api.view(access, "file", {"id": "t", "path": "/large.txt", "start": "-1"})
            for view in ("files", "file"):
                asked = {"id": "t", "path": "/report.md"}
                with pytest.raises(NotFound):
                    await api.view(OwnersAccess(handle_of(database), ""), view, asked)
                with pytest.raises(NotFound):
                    await api.view(LocalAccess(handle_of(database), "other"), view, asked)

    asyncio.run(main())
