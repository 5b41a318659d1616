"""Forked children open the file for themselves, whatever their parent did with it at the fork."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import Unavailable
from perdure.storage.sqlite import driver as sqlite
from perdure.storage.sqlite import forks

PATIENCE = 30
CHILDREN = 10
BUILDER = StateGraph(MessagesState).add_node("node", lambda state: {}).add_edge(START, "node")

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    sqlite.migrate(url)
    return url


def turn(graph: Any, thread_id: str) -> None:
    graph.invoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": thread_id}})


def forked(body: Callable[[], None]) -> int:
    """Run the body in a forked child, which is ended should it hang, and return the child's process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(PATIENCE)
            body()
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> None:
    _, status = os.waitpid(child, 0)
    assert not os.WIFSIGNALED(status), "the child waited for ever"
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_child_of_a_busy_parent_opens_the_file_and_writes(url: str) -> None:
    with perdure.connect_sync(url) as db:
        over = threading.Event()
        turns = [0, 0]
        graph = BUILDER.compile(checkpointer=db.checkpointer())

        def busy(number: int) -> None:
            while not over.is_set():
                turn(graph, f"parent {number}-{turns[number] // 20}")
                turns[number] += 1

        threads = [threading.Thread(target=busy, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()

        def body(number: int) -> None:
            with pytest.raises(Unavailable, match="opened before this process was forked"):
                db.store().get(("parent",), "key")
            with perdure.connect_sync(url) as own:
                own.store().put(("child",), str(number), {"n": number})
            db.close()

        try:
            for number in range(CHILDREN):
                ended(forked(lambda number=number: body(number)))  # type: ignore[misc]
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert len(db.store().search(("child",), limit=1000)) == CHILDREN
        heard = 0
        for number in range(2):
            for part in range(-(-turns[number] // 20)):
                state = graph.get_state({"configurable": {"thread_id": f"parent {number}-{part}"}})
                heard += len(state.values["messages"])
        assert heard == sum(turns)
        assert db.fsck() == []


def test_a_child_keeps_the_file_when_its_parent_closes_it(url: str) -> None:
    """It has locks of its own: otherwise the parent takes itself for the last one and removes the log."""
    opened, opened_end = os.pipe()
    closed_end, closed = os.pipe()

    def body() -> None:
        os.close(closed)
        with perdure.connect_sync(url) as own:
            own.store().put(("child",), "first", {})
            os.write(opened_end, b"!")
            os.read(closed_end, 1)
            own.store().put(("child",), "second", {})

    with perdure.connect_sync(url) as db:
        db.store().put(("parent",), "key", {})
        child = forked(body)
        os.close(opened_end)
        os.read(opened, 1)
    os.close(closed)
    ended(child)
    os.close(opened)
    os.close(closed_end)
    with perdure.connect_sync(url) as db:
        assert {item.key for item in db.store().search(("child",))} == {"first", "second"}


def test_a_fork_waits_for_calls_that_are_under_way_and_not_for_ever(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have locked the file: the child then has connections that it must not close."""
    monkeypatch.setattr(forks, "_PATIENCE_S", 0.1)
    with ExitStack() as stack:
        db = stack.enter_context(perdure.connect_sync(url))
        other = stack.enter_context(closing(apsw.Connection(str(tmp_path / "threads.db"))))
        other.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=lambda: db.store().put(("parent",), "key", {}))
        writer.start()
        while not forks.CALLS._under_way:
            pass
        ended(forked(db.close))
        other.execute("COMMIT")
        writer.join()
        assert db.store().get(("parent",), "key") is not None


def test_a_call_that_a_signal_interrupts_keeps_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    enter = threading.Condition.__enter__

    def interrupt(self: threading.Condition) -> bool:
        enter(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Condition, "__enter__", interrupt)
    for _ in range(3):
        forks.CALLS.enter()
        forks.CALLS.leave()
    assert forks.CALLS._lock.acquire(timeout=1)
    forks.CALLS._lock.release()
