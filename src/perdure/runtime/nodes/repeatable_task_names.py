"""Names of tasks in nested graphs, which are the same at every attempt of the enclosing step.

LangGraph's id of a task is a hash over the checkpoint at which its step began. That checkpoint, and with it
the id, is new at each attempt in a graph without checkpoints, and at each try of a retry policy in a subgraph
with checkpoints. A name is derived from stable facts instead: the task of the outermost graph, the number of
the graph's call within it, and for each level of graphs the node, the number of the step, and the path that
distinguishes tasks of one step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig

from perdure.errors import NotAllowed
from perdure.runtime.nodes.callback_handlers import NodesOnly, with_handlers

_ISOLATED = "__perdure_isolated"
_PLACES = "__perdure_places"
_TASK_ID = "__pregel_task_id"
_NAMESPACE = "checkpoint_ns"
_CHECKPOINTS = "checkpoint_map"
_NODE_TAG = "graph:step:"
"""Prefix of the tag with which LangGraph starts a node, and of no other start within it."""
_SCRATCHPAD = "__pregel_scratchpad"
_RUNTIME = "__pregel_runtime"
_CHECKPOINTER = "__pregel_checkpointer"

_calls: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()
"""Number of calls of isolated graphs so far, by task and by try of the task."""
_calls_lock = Lock()
_used: WeakKeyDictionary[Any, set[tuple[int, str, int]]] = WeakKeyDictionary()
"""Try, name and number of the effects that each task has claimed."""


class _Places(NodesOnly):
    """Places of the tasks that were started below this handler, nested graphs included: a task's own config
    has only the place of the innermost level."""

    def __init__(self) -> None:
        self._places: dict[str, list[Any]] = {}
        self._first_calls: dict[str, int] = {}
        self._next_calls: dict[str, int] = {}
        self._lock = Lock()

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        metadata: dict[str, Any] | None = None,
        tags: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.learn(metadata)
        if metadata and any(tag.startswith(_NODE_TAG) for tag in tags or ()):
            namespace = metadata.get("langgraph_checkpoint_ns") or ""
            with self._lock:  # The node starts, or a retry policy repeats it: count its calls from here.
                self._first_calls[namespace] = self._next_calls.get(namespace, 0)

    def learn(self, metadata: Mapping[str, Any] | None) -> None:
        """Record the place of the task that has this metadata, and the calls of graphs that lead to it."""
        if metadata is None or not (namespace := metadata.get("langgraph_checkpoint_ns")):
            return
        node, step = metadata["langgraph_node"], metadata["langgraph_step"]
        with self._lock:
            self._places[namespace] = [node, step, metadata["langgraph_path"]]
            for caller, call in _list_calls(namespace):
                self._next_calls[caller] = max(self._next_calls.get(caller, 0), call + 1)

    def find_call(self, namespace: str, caller: str) -> list[int]:
        """Return the number of the graph's call that leads from the task ``caller`` to ``namespace``, within
        this try of the task; an empty list for the first call."""
        with self._lock:
            number = dict(_list_calls(namespace))[caller] - self._first_calls.get(caller, 0)
        if number:
            return [number]
        return []

    def list_levels(self, namespace: str, start: int) -> list[Any]:
        """Return the places of the levels of ``namespace`` from the part number ``start`` on, each with the
        number of the call that leads to the next.

        Raises:
            NotAllowed: A level is unknown.
        """
        parts = namespace.split("|")
        levels: list[Any] = []
        for index in range(start, len(parts)):
            if parts[index].isdigit():
                continue
            reached = "|".join(parts[: index + 1])
            place = self._places.get(reached)
            if place is None:
                raise NotAllowed(
                    f"a side effect inside node {parts[index].partition(':')[0]!r} of a subgraph has no key "
                    "that stays the same: the node's graph was called without the callbacks of the node that "
                    "calls it; pass on that node's config, whole"
                )
            levels.append(place)
            if index + 1 < len(parts):
                levels += self.find_call(namespace, reached)
        return levels


class _Isolated(_Places):
    """Call of a graph without checkpoints by the task with ``config``; ``number`` counts its calls."""

    def __init__(self, config: RunnableConfig, number: int) -> None:
        super().__init__()
        self._config, self._number = config, number
        self._namespace: str = config.get("configurable", {}).get(_NAMESPACE) or ""

    def make_name(self, namespace: str) -> str:
        """Return the name of the task in ``namespace``.

        Raises:
            NotAllowed: A level of the namespace is unknown.
        """
        # The first number is LangGraph's count of calls in the enclosing task, which continues when a retry
        # policy repeats the task. ``number`` counts within one try.
        start = 0
        if self._namespace:
            start = len(self._namespace.split("|"))
        levels = self.list_levels(namespace, start)
        place = [find_task_name(self._config), self._number, levels]
        return sha256(json.dumps(place).encode()).hexdigest()[:32]

    def list_origins(self) -> list[tuple[str, str]]:
        """Return the checkpoints that names within this call are derived from; see ``origins``."""
        return origins(self._config)


def with_places(config: RunnableConfig) -> RunnableConfig:
    """Return the config for a run of an outermost graph, under which nested tasks have stable names."""
    places = _Places()
    configurable = {**config.get("configurable", {}), _PLACES: places}
    callbacks = with_handlers(config.get("callbacks"), places)
    return cast(RunnableConfig, {**config, "configurable": configurable, "callbacks": callbacks})


def find_task_name(config: RunnableConfig) -> str | None:
    """Return the name of the current task, which is the same at every attempt of its step.

    It is LangGraph's id, except inside an isolated graph, and in the subgraphs of a runtime's run; ``None``
    outside of a node.

    Raises:
        NotAllowed: A level of nested graphs is unknown.
    """
    configurable = config.get("configurable", {})
    task_id: str | None = configurable.get(_TASK_ID)
    if not task_id:
        return task_id
    namespace: str = configurable.get(_NAMESPACE) or ""
    isolated: _Isolated | None = configurable.get(_ISOLATED)
    if isolated is not None:
        isolated.learn(config.get("metadata"))
        return isolated.make_name(namespace)
    places: _Places | None = configurable.get(_PLACES)
    if places is None or "|" not in namespace:
        return task_id
    places.learn(config.get("metadata"))
    parts = namespace.split("|")
    begin = _find_stable(parts)
    outermost = "|".join(parts[: begin + 1])
    if outermost == namespace:
        return task_id
    place = [outermost, *places.find_call(namespace, outermost), *places.list_levels(namespace, begin + 1)]
    return sha256(json.dumps(place).encode()).hexdigest()[:32]


def origins(config: RunnableConfig) -> list[tuple[str, str]]:
    """Return the namespaces and ids of the checkpoints that the name of the current task is derived from."""
    configurable = config.get("configurable", {})
    isolated: _Isolated | None = configurable.get(_ISOLATED)
    if isolated is not None:
        return isolated.list_origins()
    stored: Mapping[str, str] = configurable.get(_CHECKPOINTS) or {}
    parts = (configurable.get(_NAMESPACE) or "").split("|")
    return [
        (place, stored[place])
        for place in sorted({"", "|".join(parts[: _find_stable(parts)])} & stored.keys())
    ]


def _find_stable(parts: Sequence[str]) -> int:
    """Return the index of the part whose task has the same id in LangGraph at every attempt: a task of the
    outermost graph, or of the last graph with ``checkpointer=True``. The part of such a graph has no task's
    id, and the graph loads its own checkpoints."""
    return 1 + max((n for n, part in enumerate(parts) if not part.isdigit() and ":" not in part), default=-1)


def _list_calls(namespace: str) -> Iterator[tuple[str, int]]:
    """Yield each task on the way to ``namespace`` that calls a graph, with LangGraph's number of the call."""
    parts = namespace.split("|")
    for index, part in enumerate(parts[:-1]):
        if not part.isdigit():
            call = parts[index + 1]
            yield "|".join(parts[: index + 1]), int(call) if call.isdigit() else 0


def isolate(config: RunnableConfig) -> RunnableConfig:
    """Return the config for calling a graph without checkpoints from a node.

    It lacks the checkpointer of the enclosing graph, which inner graphs would inherit and use for checkpoints
    that are never found again.
    """
    configurable = config.get("configurable", {})
    inside = {**configurable, _CHECKPOINTER: None}
    if not configurable.get(_TASK_ID):  # called on its own, not by a node
        return {**config, "configurable": inside}
    isolated = inside[_ISOLATED] = _Isolated(config, _count_earlier_calls(configurable))
    callbacks = with_handlers(config.get("callbacks"), isolated)
    return {**config, "configurable": inside, "callbacks": callbacks}


def _count_earlier_calls(configurable: Mapping[str, Any]) -> int:
    """Return the number of calls of isolated graphs before this one in the same try of the task. A task that
    a retry policy repeats keeps its scratchpad, and the function that is used here is the only part of it
    that can be weakly referenced."""
    of_task = configurable[_SCRATCHPAD].get_null_resume
    current = configurable[_RUNTIME].execution_info.node_attempt
    with _calls_lock:
        counts = _calls.setdefault(of_task, {})
        number = counts.get(current, 0)
        counts[current] = number + 1
    return number


@contextmanager
def claim_for_try(config: RunnableConfig, effect: tuple[str, int], label: str) -> Iterator[None]:
    """Claim the name and number of an effect for the current try of its task; a block that raises frees them.

    Raises:
        NotAllowed: Another effect of this try has claimed them.
    """
    configurable = config.get("configurable", {})
    used = (configurable[_RUNTIME].execution_info.node_attempt, *effect)
    with _calls_lock:
        # See ``_count_earlier_calls``: an object that lives as long as the task.
        claimed = _used.setdefault(configurable[_SCRATCHPAD].get_null_resume, set())
        if used in claimed:
            raise NotAllowed(
                f"two side effects of one step have the label {label!r} and the number {effect[1]}, so that "
                "one would get the other's result; distinguish them: effects(call, label=…, number=…)"
            )
        claimed.add(used)
    try:
        yield
    except BaseException:
        with _calls_lock:
            claimed.discard(used)
        raise
