"""The binding of a Worker keeps the driver's contract, in one thread, on D1's own engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import BadUrl
from perdure.model.ops import Commit, Committed, Expect, Put, Refused
from perdure.model.records import DOCUMENT, Partition
from perdure.retention.sweeper import RetentionOptions
from perdure.storage.d1.binding import open_binding
from perdure.storage.port import Driver
from perdure.storage.url import open_driver
from perdure.testing.conformance import Awaited, DriverContract
from tests.servers import d1_binding


@pytest.mark.slow
class TestContract(DriverContract):
    @pytest.fixture
    def driver(self) -> Iterator[Driver]:
        # The contract has writers in threads of its own.
        with (
            d1_binding.empty(one_thread=False) as (url, _),
            closing(open_driver(url, migrate=True)) as driver,
        ):
            yield Awaited(driver)


def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(str(len(state["messages"])))]}


BUILDER = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")


def test_a_worker_s_requests_and_its_scheduled_compaction_use_one_thread_and_lose_nothing() -> None:
    at: Any = {"configurable": {"thread_id": "ada"}}

    async def fetch(url: str) -> str:
        async with perdure.connect(url, migrate=True) as db:
            graph = BUILDER.compile(checkpointer=db.checkpointer())
            state = await graph.ainvoke({"messages": [HumanMessage("hi")]}, at, durability="sync")
            return str(state["messages"][-1].text)

    async def scheduled(url: str) -> int:
        kept = perdure.Retention(keep_last=2)
        async with perdure.connect(url, retention=kept) as db:
            swept = await db.apply_retention(RetentionOptions(share=1.0))
            assert await db.fsck("ada") == []
            assert swept is not None
            return swept.checkpoints

    with d1_binding.empty() as (url, binding):
        before = set(threading.enumerate())
        assert asyncio.run(fetch(url)) == "1"
        binding.lose = 1
        assert asyncio.run(fetch(url)) == "3", "an answer was lost, and nothing was stored twice"
        assert binding.lose == 0
        assert asyncio.run(scheduled(url)) > 0
        assert asyncio.run(fetch(url)) == "5"
        assert binding.batches > 10
        assert not [t for t in set(threading.enumerate()) - before if t.name.startswith("perdure-")]


@pytest.mark.slow
def test_the_work_of_a_turn_is_counted_and_stays_flat() -> None:
    """In calls of Perdure's functions, which is what a Worker's CPU time is spent on; its one thread makes
    all of them."""
    at: Any = {"configurable": {"thread_id": "ada"}}
    home = str(Path(perdure.__file__).parent)
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(home)

    async def talk(url: str, turns: int) -> list[int]:
        nonlocal calls
        counts: list[int] = []
        async with perdure.connect(url, migrate=True) as db:
            graph = BUILDER.compile(checkpointer=db.checkpointer())
            for number in range(turns):
                calls = 0
                sys.setprofile(count)
                try:
                    await graph.ainvoke({"messages": [HumanMessage(f"{number}")]}, at, durability="sync")
                finally:
                    sys.setprofile(None)
                counts.append(calls)
        return counts

    with d1_binding.empty() as (url, _):
        counts = asyncio.run(talk(url, 40))
    early, late = median(counts[3:13]), median(counts[-10:])
    print(early, late, "calls a turn, in the beginning and after forty turns")
    assert 0 < late < 1.25 * early


def test_a_url_is_good_for_its_block_alone() -> None:
    with d1_binding.empty() as (url, _):
        pass
    with pytest.raises(BadUrl, match="no D1 binding is open"):
        open_driver(url)
    with pytest.raises(BadUrl, match="in a Python Worker only"), open_binding(object()):  # type: ignore[arg-type]
        pass


def test_a_search_by_words_and_meaning_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main(url: str) -> list[str]:
        async with perdure.connect(url, migrate=True) as db:
            store = db.store(index={"text": True, "embed": lengths, "dims": 1})
            await store.aput(("ada",), "k", {"text": "a bicycle"})
            return [found.key for found in await store.asearch(("ada",), query="bicycle")]

    def lengths(texts: list[str]) -> list[list[float]]:
        return [[float(len(text))] for text in texts]

    with d1_binding.empty(one_thread=True) as (url, _), monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert asyncio.run(main(url)) == ["k"]


@pytest.mark.slow
def test_the_driver_loads_without_the_client_of_another_backend() -> None:
    """A Worker has none of them, and apsw cannot be compiled for it."""
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('apsw', 'psycopg', 'redis', 'boto3')))\n"
        "import perdure.storage.d1.driver, perdure.storage.d1.binding"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_null_of_javascript_is_none_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in newer releases of Pyodide, in which None is JavaScript's undefined."""
    null = object()
    ffi: Any = types.ModuleType("pyodide.ffi")
    ffi.run_sync, ffi.to_js, ffi.jsnull = (lambda promise: promise.value), list, null
    monkeypatch.setitem(sys.modules, "pyodide", types.ModuleType("pyodide"))
    monkeypatch.setitem(sys.modules, "pyodide.ffi", ffi)
    with d1_binding.empty(one_thread=True) as (_, stand_in):
        stand_in.null = null
        with open_binding(stand_in) as url, closing(open_driver(url, migrate=True)) as driver:
            at, new = (
                Partition("", "ada"),
                Put(DOCUMENT, ("c", "n"), {"updated_at": 1}, b"{}", Expect.ABSENT, 1),
            )
            assert driver.perform(Commit(at, (new,))) == Committed()
            assert driver.perform(Commit(at, (new,))) == Refused(DOCUMENT, ("c", "n"))
