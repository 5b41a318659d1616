"""Interception in threads, pools and processes that nodes start, and the reasons that refusals give."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import perdure
from perdure.errors import UnrecordedCall
from perdure.replay import ReplayReport, replay_sync
from tests.replay.agents import Counted, parts
from tests.replay.test_run import THREAD, converse, first, simple


@pytest.fixture(scope="module")
def db() -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync("memory://") as database:
        converse(database, simple(lambda state: {"messages": [AIMessage("hello")]}))
        yield database


def report_of(db: perdure.SyncDatabase, act: Callable[[], Any]) -> ReplayReport:
    """Replay a thread by a node that does something beside its recorded work, and hides its failure."""

    def node(state: Any) -> Any:
        with suppress(UnrecordedCall):
            act()
        return {"messages": [AIMessage("hello")]}

    return replay_sync(db, simple(node).compile(), THREAD)


def quietly(model: Counted) -> None:
    with suppress(UnrecordedCall):
        model.invoke("hello")


def in_thread(act: Callable[[], Any]) -> None:
    thread = Thread(target=act)
    thread.start()
    thread.join()


def in_pool(act: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(in_thread, act).result()


@pytest.mark.parametrize("start", [in_thread, in_pool])
def test_calls_in_threads_that_a_node_starts_are_refused_and_named(
    db: perdure.SyncDatabase, start: Callable[[Callable[[], Any]], None]
) -> None:
    model = Counted()
    report = report_of(db, lambda: start(lambda: quietly(model)))
    assert model.calls == []
    assert first(report) == ("unrecorded", 1, "answer", ())
    assert "'Counted'" in report.differences[0].detail


def test_calls_in_the_executor_of_the_event_loop_are_refused(db: perdure.SyncDatabase) -> None:
    used = parts()

    async def node(state: Any) -> Any:
        loop = asyncio.get_running_loop()
        with suppress(UnrecordedCall):
            await loop.run_in_executor(None, used.tool.invoke, {"word": "tea"})
        with suppress(UnrecordedCall):
            await loop.run_in_executor(None, socket.getaddrinfo, "localhost", 80)
        return {"messages": [AIMessage("hello")]}

    report = replay_sync(db, simple(node).compile(), THREAD)
    assert used.looked_up == []
    assert [each.node for each in report.differences if each.kind == "unrecorded"] == ["answer", "answer"]


def test_a_pool_that_a_replay_used_first_works_afterwards(db: perdure.SyncDatabase) -> None:
    model = Counted()
    with ThreadPoolExecutor(1) as pool:
        report_of(db, lambda: pool.submit(quietly, model).result())
        assert model.calls == []
        pool.submit(quietly, model).result()
        assert model.calls == ["hello"]


def test_a_process_is_refused_however_it_is_started(db: perdure.SyncDatabase) -> None:
    started = multiprocessing.get_context("spawn").Process(target=print)
    acts = (
        lambda: started.start(),  # looked up when it is called: a replay replaces it
        os.fork,
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    )
    for act in acts:
        assert first(report_of(db, act)) == ("unrecorded", 1, "answer", ())
    assert started.pid is None


def test_a_datagram_is_refused(db: perdure.SyncDatabase) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        ours.bind(("127.0.0.1", 0))
        ours.setblocking(False)
        for act in (
            lambda: other.sendto(b"x", ours.getsockname()),
            lambda: other.sendmsg([b"x"], [], 0, ours.getsockname()),
        ):
            report = report_of(db, act)
            assert "127.0.0.1" in report.differences[0].detail
        with pytest.raises(BlockingIOError):
            ours.recv(1)


def test_the_reason_of_a_refusal_has_no_secret(db: perdure.SyncDatabase) -> None:
    for act in (
        lambda: urllib.request.urlopen("https://ada:hidden@example.org/hidden?key=hidden"),
        lambda: subprocess.run([sys.executable, "hidden"], check=True),
        lambda: os.system("true hidden"),  # noqa: S605
    ):
        report = report_of(db, act)
        assert first(report) == ("unrecorded", 1, "answer", ())
        assert "hidden" not in str(report.differences)
    named = report_of(db, lambda: socket.getaddrinfo("exa\x1b[31mmple.org", 80))
    assert named.differences[0].detail.isprintable()
