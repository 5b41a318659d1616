"""Names of tasks in graphs without checkpoints, which are the same at every attempt of the enclosing step.

LangGraph's id of a task is a hash over the checkpoint at which its step began. In a graph without checkpoints
that one is new at each attempt, and so are the ids. A name is derived from stable facts instead: the
enclosing task, the number of the graph's call within it, and for each level of graphs the node, the number of
the step, and the path that distinguishes tasks of one step.
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
    """Call of a graph without checkpoints, as ``number`` of the calls by the task with ``config``. As a
    callback handler it records the place of each task inside, nested graphs included: a task's own config has
    only the last level's."""

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
        """Record the place of the task that has this metadata."""
        if metadata is not None and (namespace := metadata.get("langgraph_checkpoint_ns")):
            node, step = metadata["langgraph_node"], metadata["langgraph_step"]
            self._places[namespace] = [node, step, metadata["langgraph_path"]]

    def name(self, namespace: str) -> str:
        """Return the name of the task in ``namespace``.

        Raises:
            NotAllowed: A level of the namespace is unknown.
        """
        parts = namespace.removeprefix(self._namespace).removeprefix("|").split("|")
        # The first number is LangGraph's count of calls in the enclosing task, which continues when a retry
        # policy repeats the task. ``number`` counts within one try.
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
                    f"a side effect inside node {part.partition(':')[0]!r} of an isolated graph has no key "
                    "that stays the same: the node's graph was called without the callbacks of the node that "
                    "calls it; pass on that node's config, whole"
                )
            reached += "|"
        place = [task_name(self._config), self._number, levels]
        return sha256(json.dumps(place).encode()).hexdigest()[:32]


def task_name(config: RunnableConfig) -> str | None:
    """Return the name of the current task, which is the same at every attempt of its step.

    It is LangGraph's id, except inside an isolated graph; ``None`` outside of a node.

    Raises:
        NotAllowed: A level of an isolated graph is unknown.
    """
    configurable = config.get("configurable", {})
    task_id: str | None = configurable.get(_TASK_ID)
    isolated: _Isolated | None = configurable.get(_ISOLATED)
    if not task_id or isolated is None:
        return task_id
    isolated.learn(config.get("metadata"))
    return isolated.name(configurable.get(_NAMESPACE) or "")


def isolate(config: RunnableConfig) -> RunnableConfig:
    """Return the config for calling a graph without checkpoints from a node.

    It lacks the checkpointer of the enclosing graph, which inner graphs would inherit and use for checkpoints
    that are never found again, and its durability, with which LangGraph waits for the checkpoint of a step.
    """
    configurable = config.get("configurable", {})
    inside = {**configurable, _CHECKPOINTER: None, _DURABILITY: "async"}
    if not configurable.get(_TASK_ID):  # called on its own, not by a node
        return {**config, "configurable": inside}
    isolated = inside[_ISOLATED] = _Isolated(config, _call_number(configurable))
    merged = merge_configs({"callbacks": config.get("callbacks")}, {"callbacks": [isolated]})
    return {**config, "configurable": inside, "callbacks": merged.get("callbacks")}


def _call_number(configurable: Mapping[str, Any]) -> int:
    """Return the number of calls of isolated graphs before this one in the same try of the task. A task that
    a retry policy repeats keeps its scratchpad; this function of it is the one part that lives as long and
    can be weakly referenced."""
    of_task = configurable[_SCRATCHPAD].get_null_resume
    current = configurable[_RUNTIME].execution_info.node_attempt
    with _calls_lock:
        counts = _calls.setdefault(of_task, {})
        number = counts.get(current, 0)
        counts[current] = number + 1
    return number
