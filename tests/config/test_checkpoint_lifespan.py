"""A checkpointer for applications of any kind, without a web framework."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import BadSetting, BadUrl, KeyMissing


def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(str(len(state["messages"])))]}


BUILDER = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")


async def turn(url: str | None, **how: Any) -> str:
    async with perdure.checkpoint_lifespan(url, **how) as saver:
        graph = perdure.compile_graph(BUILDER, checkpointer=saver)
        at: Any = {"configurable": {"thread_id": "t"}}
        state = await graph.ainvoke({"messages": [("user", "hi")]}, at)
        return str(state["messages"][-1].text)


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_a_thread_goes_on_in_the_next_lifespan(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:///{tmp_path / 'threads.db'}"
    with pytest.raises(BadUrl, match="perdure migrate"):
        asyncio.run(turn(url))
    assert asyncio.run(turn(url, migrate=True)) == "1"
    assert asyncio.run(turn(url)) == "3"


def test_the_url_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_DB", raising=False)
    monkeypatch.delenv("LANGGRAPH_DEV", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with pytest.raises(BadSetting, match="DATABASE_URL is not set"):
        asyncio.run(turn(None))
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'threads.db'}")
    assert asyncio.run(turn(None, migrate=True)) == "1"


def test_the_keys_are_those_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    monkeypatch.setenv("PERDURE_KEYS", str(tmp_path / "key"))
    assert asyncio.run(turn(url, migrate=True)) == "1"
    monkeypatch.setenv("PERDURE_KEYS", str(tmp_path / "nowhere"))
    with pytest.raises(BadSetting, match="nowhere cannot be read"):
        asyncio.run(turn(url))
    monkeypatch.delenv("PERDURE_KEYS")
    with pytest.raises(KeyMissing, match="is encrypted"):
        asyncio.run(turn(url))


def test_a_closed_checkpointer_is_closed_and_a_graph_that_forgets_is_refused() -> None:
    async def main() -> None:
        async with perdure.checkpoint_lifespan("memory://") as saver:
            with pytest.raises(BadSetting, match="keeps threads in memory"):
                perdure.compile_graph(BUILDER, checkpointer=saver)
            perdure.compile_graph(BUILDER, checkpointer=saver, allow_in_memory=True)

    asyncio.run(main())


def test_no_web_framework_is_imported() -> None:
    code = (
        "import sys, perdure; perdure.checkpoint_lifespan; perdure.compile_graph; "
        "assert not {'fastapi', 'starlette', 'uvicorn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
