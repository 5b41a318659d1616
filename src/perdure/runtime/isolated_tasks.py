"""Names of the tasks inside a graph that stores no checkpoints: the same at every attempt of the step around.

LangGraph's id of a task is a hash over the checkpoint that its step began from. Inside a graph without
checkpoints that one is new at each attempt, and so are the ids. A name is made instead of what is the same:
the task around the graph, which call of the graph within that task it is, and for each level of graphs the
node, the number of the step, and the path that tells tasks of one step apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from perdure.errors import NotAllowed

_ISOLATED = "__perdure_isolated"
_TASK_ID = "__pregel_task_id"
_NAMESPACE = "checkpoint_ns"
_SCRATCHPAD = "__pregel_scratchpad"
_RUNTIME = "__pregel_runtime"
_CHECKPOINTER = "__pregel_checkpointer"
_DURABILITY = "__pregel_durability"

_calls: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
_calls_lock = Lock()


class _Isolated(BaseCallbackHandler):
    """One call of a graph without checkpoints: ``config`` is that of the task that makes it, ``number`` tells
    the calls of that task apart. As a handler it learns the place of each task inside, of graphs in graphs
    too: a task's own config has only the last level's."""

    run_inline = True

    def __init__(self, config: RunnableConfig, number: int) -> None:
        self._config, self._number = config, number
        self._namespace: str = config.get("configurable", {}).get(_NAMESPACE) or ""
        self._places: dict[str, list[Any]] = {}

    @property
    def ignore_llm(self) -> bool:
        return True

    @property
    def ignore_chat_model(self) -> bool:
        return True

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.learn(metadata)

    def learn(self, metadata: Mapping[str, Any] | None) -> None:
        """Keep the place of a task that has this metadata."""
        if metadata is not None and (namespace := metadata.get("langgraph_checkpoint_ns")):
            node, step = metadata["langgraph_node"], metadata["langgraph_step"]
            self._places[namespace] = [node, step, metadata["langgraph_path"]]

    def name(self, namespace: str) -> str:
        """The name of the task in ``namespace``. ``NotAllowed`` when a level of it is not known."""
        parts = namespace.removeprefix(self._namespace).removeprefix("|").split("|")
        # The first number is LangGraph's count of the calls in the task around, which goes on when a retry
        # policy tries the task again. ``number`` is that of the one try.
        inside = parts[1:] if parts[0].isdigit() else parts
        reached = namespace.removesuffix("|".join(inside))
        levels: list[Any] = []
        for part in inside:
            reached += part
            if part.isdigit():  # which call of a graph within the task of the level above
                levels.append(int(part))
            elif reached in self._places:
                levels.append(self._places[reached])
            else:
                raise NotAllowed(
                    f"a side effect inside node {part.partition(':')[0]!r} of a isolated graph has no key "
                    "that stays the same: the node's graph was called without the callbacks of the node that "
                    "calls it; pass on that node's config, whole"
                )
            reached += "|"
        place = [task_name(self._config), self._number, levels]
        return sha256(json.dumps(place).encode()).hexdigest()[:32]


def task_name(config: RunnableConfig) -> str | None:
    """The name of the task that is running, the same at every attempt of its step; ``None`` outside of a
    node. It is LangGraph's id, but inside an isolated graph; ``NotAllowed`` if a level there is not known."""
    configurable = config.get("configurable", {})
    task_id: str | None = configurable.get(_TASK_ID)
    isolated: _Isolated | None = configurable.get(_ISOLATED)
    if not task_id or isolated is None:
        return task_id
    isolated.learn(config.get("metadata"))
    return isolated.name(configurable.get(_NAMESPACE) or "")


def isolate(config: RunnableConfig) -> RunnableConfig:
    """The config under which a node calls a graph that stores nothing: without the checkpointer of the graph
    around, which graphs inside would take over and write what is never found again, and without its
    durability, as LangGraph waits for the checkpoint of a step and fails where there is none."""
    configurable = config.get("configurable", {})
    inside = {**configurable, _CHECKPOINTER: None, _DURABILITY: "async"}
    if not configurable.get(_TASK_ID):  # called on its own, not by a node
        return {**config, "configurable": inside}
    isolated = inside[_ISOLATED] = _Isolated(config, _call_number(configurable))
    merged = merge_configs({"callbacks": config.get("callbacks")}, {"callbacks": [isolated]})
    return {**config, "configurable": inside, "callbacks": merged.get("callbacks")}


def _call_number(configurable: Mapping[str, Any]) -> int:
    """How many calls of isolated graphs came before in this try of the task. A task that a retry policy tries
    again has the same scratchpad, of which this function is the one part that lives as long and can be
    weakly referred to."""
    of_task = configurable[_SCRATCHPAD].get_null_resume
    current = configurable[_RUNTIME].execution_info.node_attempt
    with _calls_lock:
        counts = _calls.setdefault(of_task, {})
        number = counts.get(current, 0)
        counts[current] = number + 1
    return number
