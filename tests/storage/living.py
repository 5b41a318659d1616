"""A thread's life, for those who look at what a driver sends meanwhile."""

from __future__ import annotations

from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.model.values.chunks import Digester
from perdure.storage.port import Driver
from perdure.testing.conformance.backend import at, load, long, put


def live(driver: Driver) -> None:
    """Write a thread, read, list, tag, find, prune, copy and delete it."""
    database = SyncDatabase(DatabaseHandle(driver, tenant="", digest=Digester()))
    saver = database.checkpointer()
    step = at()
    for n in range(6):
        step = put(saver, step, f"c{n}", {"x": [long(f"item {i}") for i in range(30 + n)]}, version=n)
    saver.put_writes(step, [("x", long("write"))], "t")
    put(saver, at(namespace="inner"), "s1", root="c2")
    load(saver)
    list(saver.list(at(), before=at("c4"), limit=2))
    list(saver.list(at(namespace="inner"), before=at("c3")))
    database.tag("thread", "mine", "c1")
    database.tags("thread")
    assert len(list(database.threads())) == 1
    saver.prune(["thread"])
    saver.delete_for_runs(["run"])
    saver.copy_thread("thread", "copy")
    saver.delete_thread("thread")
