"""A missing chunk or head, and a head that leads nowhere, are a named error on every way to a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.errors import Corrupt
from perdure.model.ops import Commit, Committed, Delete
from perdure.model.records import CHECKPOINT, CHUNK, HEAD, PACK, Partition
from tests.engine.transfer.test_transfer import in_memory, rows
from tests.langgraph import graphs
from tests.langgraph.session import config

ADA = Partition("", "ada")
LOST = {
    "chunk": "is named by a checkpoint and is not stored; run `perdure fsck`",
    "head": "the record of the latest one is missing; run `perdure fsck`",
    "checkpoint of the head": "its latest checkpoint is .* which is not stored; run `perdure fsck`",
}

WAYS: dict[str, Callable[[perdure.SyncDatabase], Any]] = {
    "invoke": lambda db: graphs.chat(db.checkpointer()).invoke(graphs.message(9), config("ada")),
    "resume": lambda db: graphs.chat(db.checkpointer()).invoke(None, config("ada")),
    "get_state": lambda db: graphs.chat(db.checkpointer()).get_state(config("ada")),
    "get_state_history": lambda db: list(graphs.chat(db.checkpointer()).get_state_history(config("ada"))),
    "get_tuple": lambda db: db.checkpointer().get_tuple(config("ada")),
    "list": lambda db: list(db.checkpointer().list(config("ada"))),
    "show": lambda db: db.show("ada"),
    "export": lambda db: db.export("ada"),
}


def damaged(lost: str) -> perdure.SyncDatabase:
    db = in_memory()
    for n in range(2):
        graphs.chat(db.checkpointer()).invoke(graphs.message(n), config("ada"))
    (head,) = rows(db, ADA, HEAD)
    if lost == "chunk":
        gone = [Delete(CHUNK, record.key) for record in rows(db, ADA, CHUNK)]
    elif lost == "head":
        gone = [Delete(HEAD, head.key)]
    else:
        gone = [Delete(CHECKPOINT, ("", head.fields["checkpoint_id"]))]
    assert handle_of(db).driver.perform(Commit(ADA, tuple(gone))) == Committed()
    return db


@pytest.mark.packs_late
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_damaged_thread_names_it_and_says_what_to_do(way: str, lost: str) -> None:
    db = damaged(lost)
    before = [rows(db, ADA, kind) for kind in (HEAD, CHECKPOINT, CHUNK, PACK)]
    with pytest.raises(Corrupt, match=LOST[lost]) as raised:
        WAYS[way](db)
    assert "'ada'" in str(raised.value)
    assert [rows(db, ADA, kind) for kind in (HEAD, CHECKPOINT, CHUNK, PACK)] == before


@pytest.mark.parametrize("lost", ["head", "checkpoint of the head"])
def test_what_fsck_repairs_goes_on(lost: str) -> None:
    db = damaged(lost)
    assert [finding.kind.value for finding in db.fsck("ada")] == ["head"]
    assert db.repair("ada").left == ()
    state = graphs.chat(db.checkpointer()).invoke(graphs.message(9), config("ada"))
    assert len(state["messages"]) >= 4
    assert db.fsck("ada") == []
