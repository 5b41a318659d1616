"""What is stored of a checkpoint's values, beside what the stock savers store of it."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from tests.langgraph.savers import opened
from tests.langgraph.session import config


def _joined(held: list[str], writes: list[list[str]]) -> list[str]:
    return [*held, *(item for write in writes for item in write)]


class State(TypedDict):
    often: Annotated[list[str], DeltaChannel(_joined, snapshot_frequency=1)]
    seldom: Annotated[list[str], DeltaChannel(_joined, snapshot_frequency=3)]
    plain: Annotated[list[str], operator.add]


def _graph(saver: BaseCheckpointSaver[Any]) -> Any:
    builder = StateGraph(State)
    previous = START
    for name in ("first", "second", "third"):
        builder.add_node(name, lambda _, name=name: {"plain": [name]})
        builder.add_edge(previous, name)
        previous = name
    return builder.compile(checkpointer=saver)


def _shape(saver: BaseCheckpointSaver[Any]) -> list[dict[str, Any]]:
    """The values of every checkpoint of a talk of four turns, newest first."""
    graph = _graph(saver)
    for turn in range(4):
        graph.invoke({"often": [f"o{turn}"], "seldom": [f"s{turn}"]}, config("t"))
    return [found.checkpoint["channel_values"] for found in saver.list(config("t"))]


@pytest.mark.parametrize("driver", ["memory", "sqlite"])
def test_a_snapshot_is_the_value_of_every_checkpoint_of_its_version(driver: str, tmp_path: Path) -> None:
    stock = _shape(InMemorySaver())
    with opened(driver, tmp_path) as db:
        ours = _shape(db.checkpointer())
    # From the second turn's first step on: a thread's first run knows of no stored values to keep.
    assert sum("often" in values for values in stock[:14]) > 12
    assert ours[:14] == stock[:14]
