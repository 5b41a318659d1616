"""Every call of a database and of a saver that names or lists threads takes an expired one for absent."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

import perdure
from perdure.langgraph.saver import PerdureSaver
from tests import backends
from tests.langgraph import graphs
from tests.langgraph.session import config
from tests.retention.test_expiring_driver import Kept, kept, wait

__all__ = ["kept", "wait"]
Call = Callable[[Any, str, str], Any]
"""Makes a call for a thread, with the id of a checkpoint that it had."""


def at(thread: str, checkpoint: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint}}


DATABASE: dict[str, Call] = {
    "digest": lambda db, t, c: db.digest(t),
    "export": lambda db, t, c: db.export(t),
    "fork": lambda db, t, c: db.fork(t, c),
    "fsck": lambda db, t, c: db.fsck(t),
    "measure": lambda db, t, c: db.measure(t),
    "repair": lambda db, t, c: db.repair(t),
    "show": lambda db, t, c: [_outcome(lambda: db.show(t)), _outcome(lambda: db.show(t, c))],
    "find_stuck": lambda db, t, c: db.find_stuck(0.0),
    "tag": lambda db, t, c: [_outcome(lambda: db.tag(t, "x")), _outcome(lambda: db.tag(t, "x", c))],
    "tags": lambda db, t, c: db.tags(t),
    "threads": lambda db, t, c: list(db.threads()),
    "timeline": lambda db, t, c: db.timeline(t),
    "untag": lambda db, t, c: db.untag(t, "x"),
}
NO_THREADS = {"apply_retention", "apply_retention_to", "checkpointer", "close", "history", "store"}
"""Calls of a database that neither name nor list threads, or remove the expired ones."""

SAVER: dict[str, Call] = {
    "conflicts": lambda s, t, c: s.conflicts(t),
    "copy_thread": lambda s, t, c: [
        s.copy_thread(t, f"copy of {t}"),
        s.get_tuple(config(f"copy of {t}")),
    ],
    "delete_for_runs": lambda s, t, c: s.delete_for_runs([f"run of {t}"]),
    "delete_thread": lambda s, t, c: s.delete_thread(t),
    "get": lambda s, t, c: [s.get(config(t)), s.get(at(t, c))],
    "get_delta_channel_history": lambda s, t, c: s.get_delta_channel_history(
        config=at(t, c), channels=["messages"]
    ),
    "get_tuple": lambda s, t, c: [s.get_tuple(config(t)), s.get_tuple(at(t, c))],
    "list": lambda s, t, c: [
        list(s.list(config(t))),
        list(s.list(None)),
        list(s.list(config(t), before=at(t, c))),
        list(s.list(config(t), filter={"source": "loop"}, limit=1)),
    ],
    "moved_interrupts": lambda s, t, c: s.moved_interrupts(config(t)),
    "prune": lambda s, t, c: s.prune([t], keep_last=1),
    "put": lambda s, t, c: s.put(config(t), empty_checkpoint(), {}, {}) and list(s.list(config(t)))[1:],
    "put_writes": lambda s, t, c: s.put_writes(at(t, c), [("messages", "x")], "task"),
}
NO_LOOK = {
    "declare",
    "forget_thread",
    "get_next_version",
    "give_statements",
    "is_of_older_schema",
    "plan_early_load",
    "read_asked",
    "stored_writes",
    "keep_early_load",
    "with_allowlist",
}
"""Calls of a saver that look nothing up, or only what another call has found."""
NEAR = {"memory", "sqlite"}
BEGINS = {"put", "put_writes"}
"""Calls that write: a thread begins anew with them."""


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except perdure.PerdureError as error:
        return type(error), str(error)


def _said(call: Callable[[str, str], Any], thread: str, checkpoint: str) -> str:
    """The outcome of a call as text, without the names of the thread and of what was made by the call."""
    text = repr(_outcome(lambda: call(thread, checkpoint)))
    text = text.replace(checkpoint, "…").replace(thread, "…")
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.+]+|object at 0x\w+", "…", text)


def _public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_every_call_is_tried() -> None:
    assert _public(perdure.SyncDatabase) == {*DATABASE, *NO_THREADS}
    names = _public(PerdureSaver)
    awaited = {name for name in names if name.startswith("a") and name[1:] in SAVER}
    assert awaited == {f"a{name}" for name in SAVER if name != "conflicts"}
    assert names - awaited == {*SAVER, *NO_LOOK}


@pytest.mark.parametrize(
    "kept",
    [pytest.param(name, marks=[] if name in NEAR else [pytest.mark.slow]) for name in backends.BACKENDS],
    indirect=True,
)
def test_every_call_takes_an_expired_thread_for_absent(kept: Kept) -> None:
    loop = asyncio.new_event_loop()
    try:
        _try_every_call(kept, loop)
    finally:
        loop.close()


def _try_every_call(kept: Kept, loop: asyncio.AbstractEventLoop) -> None:
    calls: dict[str, Callable[[str, str], Any]] = {}
    saver = kept.db.checkpointer(may_list_all_threads=True)
    for name, call in DATABASE.items():
        calls[f"database {name}"] = functools.partial(call, kept.db)
    for name, call in SAVER.items():
        calls[f"saver {name}"] = functools.partial(call, saver)
        if hasattr(saver, f"a{name}"):
            calls[f"saver a{name}"] = functools.partial(call, Awaited(saver, loop))
    graph = graphs.chat(saver)
    had: dict[str, str] = {}
    for n, name in enumerate(calls):
        made: RunnableConfig = {**config(f"expired-{n:03}"), "metadata": {"run_id": f"run of expired-{n:03}"}}
        graph.invoke(graphs.message(0), made)
        had[name] = kept.db.timeline(f"expired-{n:03}")[-1].checkpoint_id
    kept.wait(2)
    wrong = {}
    for n, (name, made_call) in enumerate(calls.items()):
        expired, never = (
            _said(made_call, thread, had[name]) for thread in (f"expired-{n:03}", f"missing-{n:03}")
        )
        if expired != never:
            wrong[name] = expired, never
        if name.split()[1].removeprefix("a") in BEGINS:
            # What a write has begun is not of the next call's listing.
            for thread in (f"expired-{n:03}", f"missing-{n:03}"):
                saver.delete_thread(thread)
    assert wrong == {}


class Awaited:
    """A saver whose calls are made through their awaited twins."""

    def __init__(self, saver: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._saver, self._loop = saver, loop

    def __getattr__(self, name: str) -> Any:
        twin = getattr(self._saver, f"a{name}")

        def call(*args: Any, **more: Any) -> Any:
            async def made() -> Any:
                if name == "list":
                    return [found async for found in twin(*args, **more)]
                return await twin(*args, **more)

            return self._loop.run_until_complete(made())

        return call
