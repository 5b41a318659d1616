"""A checkpoint of which a channel is replayed from many writes: its commit stays small, and proves them.

Covers perdure.engine.threads.drafts.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from perdure.errors import PerdureError
from perdure.model.ops import Check, Commit, Delete, Fetch, Put, Range
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, WRITE
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend
from tests.langgraph.graphs import appended

TASKS = 75


class Watched(MemoryDriver):
    """Counts the writes that the commit of a checkpoint checks. ``lacking`` removes the last write before the
    checkpoint that is replayed from it is stored, as the restore of a database does."""

    def __init__(self, *, lacking: bool = False) -> None:
        super().__init__()
        self.checked: list[int] = []
        self._lacking = lacking

    def perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Commit) and any(
            isinstance(o, Put) and o.kind is CHECKPOINT for o in effect.ops
        ):
            proven = [op for op in effect.ops if isinstance(op, Check) and op.kind is WRITE]
            self.checked.append(len(proven))
            if self._lacking and len(proven) > 1:
                super().perform(Commit(effect.partition, (Delete(WRITE, proven[-1].key),)))
        return super().perform(effect)


class Many(TypedDict, total=False):
    said: Annotated[list[str], DeltaChannel(appended)]
    count: Annotated[int, operator.add]


def graph(driver: MemoryDriver) -> Any:
    builder = StateGraph(Many)
    builder.add_node("leaf", lambda state: {"said": [state["name"]]})
    builder.add_node("last", lambda state: {"count": len(state["said"])})
    builder.add_conditional_edges(
        START, lambda state: [Send("leaf", {"name": f"leaf {n}"}) for n in range(TASKS)], ["leaf"]
    )
    builder.add_edge("leaf", "last")
    return builder.compile(checkpointer=Backend(driver).saver())


AT: Any = {"configurable": {"thread_id": "t"}}


def test_a_checkpoint_checks_the_last_of_very_many_writes() -> None:
    driver = Watched()
    built = graph(driver)
    built.invoke({"said": ["hello"]}, AT, durability="sync")
    assert max(driver.checked) == 48 < TASKS
    values = built.get_state(AT).values
    assert values["count"] == TASKS + 1
    assert sorted(values["said"]) == sorted(["hello", *(f"leaf {n}" for n in range(TASKS))])


def test_a_checkpoint_of_which_the_last_write_is_gone_is_refused() -> None:
    driver = Watched(lacking=True)
    with pytest.raises(PerdureError):
        graph(driver).invoke({"said": ["hello"]}, AT, durability="sync")
    assert max(driver.checked) == 48
    (stored,) = driver.perform(Fetch(next(iter(driver._partitions)), (Range(CHECKPOINT),)))
    assert all(record.fields["step"] < 1 for record in stored)
