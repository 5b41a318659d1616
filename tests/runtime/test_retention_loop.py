"""Workers sweep a database one at a time, and a message to an expired thread starts a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure import Retention
from perdure.engine.retention import sweep
from perdure.errors import Unavailable
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime import Observer, Runtime
from perdure.runtime.observers import Observers
from perdure.runtime.retention_loop import RetentionLoop
from tests import backends
from tests.retention.test_expiring_driver import Kept, wait
from tests.runtime.graphs import eventually

__all__ = ["wait"]


class Heard(Observer):
    """Observer that collects events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append((name, fields))


def graph() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    builder.add_edge(START, "answer")
    return builder.compile()


def said(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


def loop_of(db: Any, heard: Heard, every: float = 3600.0) -> RetentionLoop:
    return RetentionLoop(db, Observers((heard,)), every=every, options=RetentionOptions(share=1.0))


@pytest.mark.anyio
async def test_a_sweep_is_due_once_an_interval_whoever_does_it() -> None:
    one, two = Heard(), Heard()
    async with perdure.connect("memory://", retention=Retention(keep_last=1)) as db:
        async with Runtime(db, graph()) as runtime:
            ticket = await runtime.submit("a", said("hello"))
            await runtime.wait(ticket, 30)
        assert len(await db.timeline("a")) == 3
        await loop_of(db, one).sweep_if_due()
        assert len(await db.timeline("a")) == 1
        left = await loop_of(db, two).sweep_if_due()
        assert 0 < left <= 60
        assert await loop_of(db, two, every=1e-6).sweep_if_due() <= 1e-6
    assert [name for name, _ in one.events] == ["sweep.finished", "sweep.seen"]
    assert [name for name, _ in two.events] == ["sweep.seen", "sweep.finished", "sweep.seen"]
    first = one.events[0][1]
    assert {key: first[key] for key in ("threads", "expired", "checkpoints", "failed")} == {
        "threads": 1,
        "expired": 0,
        "checkpoints": 2,
        "failed": 0,
    }
    assert two.events[1][1]["checkpoints"] == 0
    assert two.events[0][1]["every"] == 3_600_000_000


@pytest.mark.anyio
async def test_a_failed_sweep_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, calls = Heard(), list[None]()
    read_state = sweep.read_progress

    def failing(tenant: str | None) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise Unavailable("away")
        return read_state(tenant)

    monkeypatch.setattr(sweep, "read_progress", failing)
    monkeypatch.setattr("perdure.runtime.retention_loop._POLL_S", 0.01)
    async with (
        perdure.connect("memory://", retention=Retention(keep_last=1)) as db,
        loop_of(db, heard),
    ):
        await eventually(lambda: "sweep.finished" in [name for name, _ in heard.events])
    assert heard.events[0] == ("sweep.failed", {"error": "Unavailable"})


@pytest.mark.parametrize("backend", backends.BACKENDS)
@pytest.mark.anyio
async def test_a_message_to_an_expired_thread_starts_a_new_one(
    backend: str, wait: Callable[[float], None]
) -> None:
    with (
        backends.EMPTY[backend]() as url,
        perdure.connect_sync(url, migrate=True, retention=Retention(idle="1h")) as opened,
    ):
        db = Kept(opened, wait).db
        config: Any = {"configurable": {"thread_id": "a"}}

        async def messages() -> int:
            found = await db.checkpointer().aget_tuple(config)
            return 0 if found is None else len(found.checkpoint["channel_values"]["messages"])

        async with Runtime(db, graph()) as runtime:
            for text in ("one", "two"):
                await runtime.wait(await runtime.submit("a", said(text), dedupe_key=text), 30)
            again = await runtime.submit("a", said("one"), dedupe_key="one")
            assert again.is_duplicate
            assert await messages() == 4
            wait(2)
            assert await messages() == 0
            runtime._context.clock._asked_at = None
            ticket = await runtime.submit("a", said("one"), dedupe_key="one")
            assert not ticket.is_duplicate
            await runtime.wait(ticket, 30)
            assert await messages() == 2
        assert db.fsck("a") == []


@pytest.mark.anyio
async def test_a_message_that_waits_and_a_run_under_way_keep_their_thread(
    wait: Callable[[float], None],
) -> None:
    with perdure.connect_sync("memory://", retention=Retention(idle="1h")) as opened:
        kept = Kept(opened, wait)
        db = kept.db
        async with Runtime(db, graph()) as runtime:
            await runtime.wait(await runtime.submit("a", said("one")), 30)
        async with Runtime(db, graph(), works=False) as accepting:
            ticket = await accepting.submit("a", said("two"))
            wait(2)
            assert len(db.timeline("a")) == 3
            done = db.apply_retention(RetentionOptions(share=1.0))
            assert done is not None
            assert done.expired == 0
        async with Runtime(db, graph()) as runtime:
            await runtime.wait(ticket, 30)
            found = await db.checkpointer().aget_tuple({"configurable": {"thread_id": "a"}})
            assert found is not None
            assert len(found.checkpoint["channel_values"]["messages"]) == 4
