"""Programs that put checkpoints themselves: every value that is passed is there afterwards, whatever they say
of its version."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import StateUpdate

import perdure
from tests import backends
from tests.langgraph.graphs import STATES

IDS = [f"1ef4f797-8335-6428-8001-8a1503f9b87{n}" for n in range(3)]
VALUES: list[dict[str, Any]] = [{}, {"a": 1}, {"a": 2, "b": [1]}, {"a": None, "b": [1, 2], "c": "x"}]


def checkpoint(n: int, values: dict[str, Any], versions: dict[str, Any]) -> Any:
    return {**empty_checkpoint(), "id": IDS[n], "channel_values": values, "channel_versions": versions}


def put(saver: Any, thread: str, steps: Any, *, is_loaded: bool) -> list[dict[str, Any]]:
    """Put checkpoints one on the other; return the values of each."""
    at: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    config = at
    for n, (values, versions, new) in enumerate(steps):
        config = saver.put(config, checkpoint(n, values, versions), {"source": "loop", "step": n}, new)
        if is_loaded:
            config = saver.get_tuple(at).config
    return [found.checkpoint["channel_values"] for found in saver.list(at)]


@pytest.mark.parametrize("is_loaded", [False, True], ids=["bare", "loaded"])
@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_no_value_that_is_put_is_dropped(backend: str, is_loaded: bool) -> None:
    ways: list[Any] = [
        lambda values, n: ({}, {}),
        lambda values, n: ({}, dict.fromkeys(values, n)),
        lambda values, n: (dict.fromkeys(values, 1), {}),
        lambda values, n: (dict.fromkeys(values, 1), {"b": 1}),
        lambda values, n: (dict.fromkeys(values, n), {}),
        lambda values, n: ({"a": n}, {"a": n}),
    ]
    if backend not in ("memory", "sqlite"):
        ways = ways[::2]
    with (
        backends.EMPTY[backend]() as url,
        perdure.connect_sync(url, migrate=True) as db,
        SqliteSaver.from_conn_string(":memory:") as stock,
    ):
        for number, (first, second) in enumerate(product(ways, ways)):
            picked = [VALUES[1], VALUES[2], VALUES[3]]
            steps = [
                (values, *way(values, n))
                for n, (values, way) in enumerate(zip(picked, (first, second, first), strict=True), 1)
            ]
            thread = f"t{number}"
            found = put(db.checkpointer(), thread, steps, is_loaded=is_loaded)
            assert found == put(stock, thread, steps, is_loaded=is_loaded) == picked[::-1]
        assert db.fsck() == []
        # What has no version survives what rewrites a thread.
        saver = db.checkpointer()
        saver.copy_thread("t0", "copy")
        saver.prune(["t0"], keep_last=2)
        for thread in ("t0", "copy"):
            config: Any = {"configurable": {"thread_id": thread}}
            found_last = saver.get_tuple(config)
            assert found_last is not None
            assert found_last.checkpoint["channel_values"] == VALUES[3]
        assert db.fsck() == []


@pytest.mark.parametrize("state", STATES)
def test_a_copy_and_an_empty_update_keep_every_value(state: str) -> None:
    with perdure.connect_sync("memory://") as db:
        builder = StateGraph(STATES[state])
        builder.add_node("say", lambda state: {"said": ["answer"]})
        builder.add_edge(START, "say")
        graph: Any = builder.compile(db.checkpointer())
        config: Any = {"configurable": {"thread_id": "t"}}
        for n in range(3):
            graph.invoke({"said": [f"turn {n}"]}, config)
        for at in (config, list(graph.get_state_history(config))[3].config):
            before = graph.get_state(at).values
            copied = graph.update_state(at, None, as_node="__copy__")
            assert graph.get_state(copied).values == before
            cleared = graph.bulk_update_state(copied, [[StateUpdate(None, None)]])
            assert graph.get_state(cleared).values == before
        assert db.fsck() == []
