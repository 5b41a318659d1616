"""Graphs that record the calls of models and tools in their threads, for ``perdure.replay``."""

from __future__ import annotations

from copy import copy
from typing import Any

from langchain_core.runnables.config import merge_configs
from langgraph.pregel import Pregel

from perdure.langgraph.call_records import CallRecorder
from perdure.langgraph.saver import PerdureSaver


def record_calls(graph: Pregel[Any, Any, Any, Any]) -> Pregel[Any, Any, Any, Any]:
    """Return a copy of a compiled graph that records each call of a model or a tool with its step.

    The answer, and digests of what was sent, are stored by the commit that stores the step's result: no
    commit is added. They are removed with the step's checkpoint. A node that replaces the callbacks of its
    config hides its calls.

    Raises:
        TypeError: The graph's checkpointer is not Perdure's.
    """
    if not isinstance(graph.checkpointer, PerdureSaver):
        raise TypeError(
            "record_calls(graph) needs a graph with a checkpointer of Perdure: "
            "compile(checkpointer=db.checkpointer())"
        )
    saver, recorder = copy(graph.checkpointer), CallRecorder()
    saver.recorder = recorder
    config = merge_configs(graph.config, {"callbacks": [recorder]})
    return graph.copy(update={"checkpointer": saver, "config": config})
