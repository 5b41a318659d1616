"""A database that many threads live in, each with something that is easily lost on the way to another."""

from __future__ import annotations

from itertools import islice
from typing import Any

from langgraph.types import Command

import perdure
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES
from tests.langgraph.scenarios import SCENARIOS, Scenario
from tests.langgraph.session import Session, config, play

LONG = 60


def furnish(db: perdure.SyncDatabase, count: int = 50) -> None:
    """Let threads of several tenants live through what users do, and leave items in the store."""
    own = [conversation, questions, subgraphs, pruned, tagged_fork, writes_only, odd_values]
    for number, live in enumerate(own):
        live(db.checkpointer(), f"{live.__name__} {number}", db)
    step = max(1, len(SCENARIOS) // max(1, count - len(own)))
    chosen = islice(SCENARIOS.items(), 0, None, step)
    for name, scenario in islice(chosen, max(0, count - len(own))):
        play_as(db, name, scenario)
    store = db.store()
    store.put(("users", "ada"), "likes", {"tea": True, "count": 3})
    store.put(("users", "ada"), "said", {"text": "x" * 5000})
    store.put(("users",), "ada", {"deep": {"list": [1, 2.5, None]}})
    store.put(("odd\x01name", "*"), "key\x01", {"v": 1})


def play_as(db: perdure.SyncDatabase, tenant: str, scenario: Scenario) -> None:
    build, script = scenario
    play(script, Session(build(db.checkpointer(tenant=tenant)), "sync", "sync"))


def conversation(saver: perdure.PerdureSaver, thread: str, db: perdure.SyncDatabase) -> None:
    """Long enough for trees of several levels, with a message too large for one chunk."""
    graph = graphs.chat(saver)
    for n in range(LONG):
        graph.invoke(graphs.message(n), config(thread))
    graph.invoke({"messages": [("user", "large " * 100_000)]}, config(thread))


def questions(saver: perdure.PerdureSaver, thread: str, db: perdure.SyncDatabase) -> None:
    """Two interrupts pend, one of which was answered."""
    graph = graphs.asking(saver, STATES["delta"])
    graph.invoke({"said": ["turn"]}, config(thread))
    first = graph.get_state(config(thread)).interrupts[0]
    graph.invoke(Command(resume={first.id: "one"}), config(thread))


def subgraphs(saver: perdure.PerdureSaver, thread: str, db: perdure.SyncDatabase) -> None:
    graph = graphs.nested(saver, STATES["delta-often"], stateful=True)
    for n in range(3):
        graph.invoke({"said": [f"turn {n}"]}, config(thread))


def pruned(saver: perdure.PerdureSaver, thread: str, db: perdure.SyncDatabase) -> None:
    """A DeltaChannel that carries what its removed ancestors had."""
    graph = graphs.chain(saver, STATES["delta"])
    for n in range(6):
        graph.invoke({"said": [f"turn {n}"]}, config(thread))
    saver.prune([thread], keep_last=2)


def tagged_fork(saver: perdure.PerdureSaver, thread: str, db: perdure.SyncDatabase) -> None:
    graph = graphs.chain(saver)
    for n in range(3):
        graph.invoke({"said": [f"turn {n}"]}, config(thread))
    old = list(graph.get_state_history(config(thread)))[4].config
    db.tag(thread, "approved", old["configurable"]["checkpoint_id"])
    db.tag(thread, "latest")
    graph.invoke({"said": ["instead"]}, graph.update_state(old, {"said": ["edited"]}))


def writes_only(saver: perdure.PerdureSaver, thread: str, db: perdure.SyncDatabase) -> None:
    """Writes on a checkpoint that was never stored."""
    at = config(thread, checkpoint_ns="", checkpoint_id="0" * 32)
    saver.put_writes(at, [("said", ["early"]), ("said", "y" * 3000)], "task")


def odd_values(saver: perdure.PerdureSaver, thread: str, db: perdure.SyncDatabase) -> None:
    values: list[Any] = [
        {"nested": {"list": [{"n": n, "text": "z" * 100} for n in range(300)]}},
        b"bytes" * 1000,
        bytearray(b"more"),
        {f"key {n}": n for n in range(500)},
        None,
        {1: "int key", (2, 3): "tuple key"},
        "é\u0000ü",
    ]
    graph = graphs.chain(saver)
    for value in values:
        graph.invoke({"said": [value]}, config(thread))


def seen(db: perdure.SyncDatabase, tenant: str, thread: str) -> list[Any]:
    """All that a user of a thread's checkpoints could see."""
    saver = db.checkpointer(tenant=tenant)
    return [
        (item.config, item.checkpoint, item.metadata, item.parent_config, item.pending_writes)
        for item in saver.list(config(thread))
    ]
