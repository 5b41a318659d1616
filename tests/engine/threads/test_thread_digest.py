"""The digest of a thread is that of its content, wherever and however it is stored."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine.threads.thread_records import read
from perdure.model.checkpoint import Carried, CarriedWrite, CheckpointRecord
from perdure.model.ops import Commit
from perdure.model.records import Partition
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES
from tests.langgraph.session import config
from tests.packing_soon import packing_soon

THREAD = Partition("", "t")
NOT_CONTENT = {"namespace", "id", "seq", "blocks"}
"""Fields of a checkpoint that name it, count it in its database, or say where its values are stored."""


def opened(key: bytes | None = None) -> perdure.SyncDatabase:
    return open_database("memory://", encryption_key=key)


def checkpoints(db: perdure.SyncDatabase) -> list[CheckpointRecord]:
    return handle_of(db).run(read(THREAD)).checkpoints


def prune_a_delta(db: perdure.SyncDatabase) -> None:
    """Have a checkpoint carry updates that are too long to be stored within it."""
    graph = graphs.chain(db.checkpointer(), STATES["delta"])
    for n in range(4):
        graph.invoke({"said": [f"turn {n} " * 50]}, config("t"))
    db.checkpointer().prune(["t"], keep_last=2)
    assert any(each.carried for each in checkpoints(db))


def talk_and_forget(db: perdure.SyncDatabase) -> None:
    """Have a long conversation of which the state keeps the end, so that few of many packs hold it."""

    def answer(state: MessagesState) -> Any:
        old = [RemoveMessage(str(message.id)) for message in state["messages"][:-2]]
        return {"messages": [*old, AIMessage("answer " * 40)]}

    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    with packing_soon():
        for n in range(40):
            graph: Any = builder.compile(checkpointer=db.checkpointer())
            graph.invoke({"messages": [("user", f"question {n} " * 40)]}, config("t"))
    assert any(each.blocks for each in checkpoints(db))


@pytest.mark.parametrize("live", [prune_a_delta, talk_and_forget])
def test_a_thread_keeps_its_digest_under_another_key_and_in_a_copy(live: Any) -> None:
    db = opened()
    live(db)
    digest = db.digest("t")
    for key in (None, bytes(range(32))):
        target = opened(key)
        assert admin.move(db, THREAD, target).digest == digest
        assert target.digest("t").hex == digest.hex
    db.checkpointer().copy_thread("t", "copy")
    assert db.digest("copy").hex == digest.hex


def test_every_field_of_a_checkpoint_is_content_or_a_place() -> None:
    db = opened()
    prune_a_delta(db)
    carrying = next(each for each in checkpoints(db) if each.carried)
    ref = next(iter(carrying.references()))
    others: dict[str, Any] = {
        "parent_id": "other", "run_id": "other", "source": "other", "step": 77, "v": 77, "ts": "other",
        "versions": {}, "refs": {}, "versions_seen": {}, "updated": ("other",), "metadata": b"\x80",
        "extra": b"\x80", "nonce": "other", "seen": ("other",), "root": "other", "root_head": "other",
        "cut": not carrying.cut, "deltas": ("other",), "prior": "other", "passed": ("other",), "schema": 77,
        "carried": {"said": Carried(None, (CarriedWrite("other", ref),))},
    }  # fmt: skip
    assert others.keys() | NOT_CONTENT == set(CheckpointRecord._fields)
    whole = db.digest("t")
    for name, other in others.items():
        handle_of(db).driver.perform(Commit(THREAD, (carrying._replace(**{name: other}).put(),)))
        assert not db.digest("t").agrees(whole), name
    handle_of(db).driver.perform(Commit(THREAD, (carrying._replace(blocks=(1, 2)).put(),)))
    assert db.digest("t").agrees(whole)
