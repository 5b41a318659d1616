"""Writes threads and items to a LangGraph server, as far as its API allows.

A thread is created with the steps that led to its latest state: each input, then what each task wrote. So its
values and next tasks are the same; its checkpoints have ids and times of their own. Existing threads are
compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import orjson
from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from perdure.errors import Conflict, NotAllowed, NotFound, Unserialisable
from perdure.imports.langgraph_server.api import ServerApi

Outcome = Literal["written", "unchanged"]
_INPUT = "__input__"
_START = "__start__"


class ServerTarget:
    """A LangGraph server that gets threads and items."""

    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self._client = api.client

    def write_thread(
        self,
        graph: Pregel[Any, Any, Any, Any],
        thread: str,
        metadata: Mapping[str, Any],
    ) -> Outcome:
        """Create a thread with the history of its latest state.

        Args:
            graph: The graph of the thread, with the checkpointer that has the thread.
            thread: The thread's id.
            metadata: Its metadata, with its ``graph_id`` at the server.

        Raises:
            NotFound: The thread has no state.
            NotAllowed: Its history has a change that the API cannot repeat, or the server cannot repeat any.
            Conflict: The server has another thread with this id, or the steps lead to another state there.
            Unserialisable: A value has no form in JSON.
        """
        config: Any = {"configurable": {"thread_id": thread}}
        states = {_get_id(state): state for state in graph.get_state_history(config)}
        head = graph.get_state(config)
        if head.created_at is None:
            raise NotFound(f"thread {thread!r} has no state to export")
        state = states.get(_get_id(head), head)
        wanted = {"values": state.values, "next": sorted(state.next)}
        existing: Mapping[str, Any] | None = None
        with suppress(NotFound):
            existing = self._api.call(lambda: self._client.threads.get_state(thread))
        if existing is not None and _has_state(existing):
            self._compare(thread, wanted, existing)
            return "unchanged"
        if existing is not None:
            # A thread without a state was left by an export that was stopped.
            self._api.call(lambda: self._client.threads.delete(thread))
        steps = _list_steps(thread, states, _get_id(head))
        self._api.call(
            lambda: self._client.threads.create(thread_id=thread, metadata=dict(metadata), supersteps=steps)
        )
        made = self._api.call(lambda: self._client.threads.get_state(thread))
        if not _has_state(made):
            raise NotAllowed(
                f"{self._api.name} created thread {thread!r} without its state, as Aegra does, whose API "
                "cannot repeat steps; export it to its database, with --to postgresql://…, then again here"
            )
        self._compare(thread, wanted, made)
        return "written"

    def _compare(self, thread: str, wanted: Mapping[str, Any], shown: Mapping[str, Any]) -> None:
        found = {"values": shown["values"], "next": sorted(shown["next"])}
        for part, value in wanted.items():
            if _normalize(_to_json_data(value)) != _normalize(_sort_sets(value, found[part])):
                raise Conflict(
                    f"thread {thread!r} differs at {self._api.name}: its {part} differ; nothing was "
                    "changed there"
                )

    def write_item(self, namespace: Sequence[str], key: str, value: Mapping[str, Any]) -> Outcome:
        """Write an item of the store. Raise ``Conflict`` if the server has another item under this name."""
        existing: Mapping[str, Any] | None = None
        with suppress(NotFound):
            existing = self._api.call(lambda: self._client.store.get_item(namespace, key))
        if existing is not None:
            if existing["value"] != _to_json_data(value):
                raise Conflict(f"item {key!r} of {list(namespace)!r} differs at {self._api.name}")
            return "unchanged"
        self._api.call(lambda: self._client.store.put_item(namespace, key, dict(value), index=None))
        return "written"


def _has_state(shown: Mapping[str, Any]) -> bool:
    return bool((shown.get("checkpoint") or {}).get("checkpoint_id"))


def _get_id(state: StateSnapshot) -> str:
    return str(state.config.get("configurable", {})["checkpoint_id"])


def _list_steps(thread: str, states: Mapping[str, StateSnapshot], head: str) -> list[dict[str, Any]]:
    """Return the steps from the first input to a state."""
    path: list[StateSnapshot] = []
    checkpoint_id: str | None = head
    while checkpoint_id is not None and checkpoint_id in states:
        path.append(states[checkpoint_id])
        parent = states[checkpoint_id].parent_config
        checkpoint_id = None
        if parent is not None:
            checkpoint_id = str(parent.get("configurable", {})["checkpoint_id"])
    path.reverse()
    steps: list[dict[str, Any]] = []
    before: StateSnapshot | None = None
    for state in path:
        source = (state.metadata or {}).get("source")
        if source == "input":
            after = _find_values_after(states, state)
            inputs = [_add_message_ids(task.result, after) for task in state.tasks if task.name == _START]
            updates = [{"as_node": _INPUT, "values": _to_json_data(each)} for each in inputs]
        elif source == "loop" and before is not None:
            updates = [
                {"as_node": task.name, "values": _to_json_data(_add_message_ids(task.result, state.values))}
                for task in before.tasks
            ]
        else:
            raise NotAllowed(
                f"thread {thread!r} was changed by update_state or imported as a conversation (checkpoint "
                f"{_get_id(state)}), and LangGraph's API cannot repeat that; export it to a stock saver, or "
                "with --as history"
            )
        if updates:
            steps.append({"updates": updates})
        before = state
    return steps


def _find_values_after(states: Mapping[str, StateSnapshot], state: StateSnapshot) -> Any:
    """Return the values of the first child of a state; an empty dict without a child."""
    for each in states.values():
        parent = each.parent_config
        if parent is not None and str(parent.get("configurable", {})["checkpoint_id"]) == _get_id(state):
            return each.values
    return {}


def _add_message_ids(result: Any, after: Any) -> Any:
    """Return a task's result, its messages with the ids that they got when they were added to the state."""
    if not isinstance(result, dict) or not isinstance(after, dict):
        return result
    return {channel: _add_ids(value, after.get(channel)) for channel, value in result.items()}


def _add_ids(value: Any, after: Any) -> Any:
    if not _is_message_list(value) or not isinstance(after, list) or len(after) < len(value):
        return value
    messages = convert_to_messages(value)
    added = after[len(after) - len(messages) :]
    same = all(
        isinstance(there, BaseMessage) and here.id in (None, there.id) and here.content == there.content
        for here, there in zip(messages, added, strict=True)
    )
    if same:
        return added
    return value


def _is_message_list(value: Any) -> bool:
    """Return True for a list of messages in one of the forms that an input may have."""

    def is_message(each: Any) -> bool:
        if isinstance(each, list | tuple):
            return len(each) == 2 and all(isinstance(part, str) for part in each)
        return isinstance(each, BaseMessage) or (
            isinstance(each, dict) and "content" in each and "role" in each
        )

    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def _to_json_data(value: Any) -> Any:
    """Return a value as JSON data."""
    try:
        return orjson.loads(orjson.dumps(value, default=_convert_for_json, option=orjson.OPT_NON_STR_KEYS))
    except (TypeError, ValueError) as error:
        raise Unserialisable(f"a value has no form in JSON ({type(error).__name__})") from error


def _convert_for_json(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        # A server takes an unknown field for the provider's even if it is empty, so leave empty ones out.
        dumped = value.model_dump(mode="json")
        return {key: each for key, each in dumped.items() if key == "content" or each not in (None, [], {})}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    raise TypeError(type(value).__name__)


def _sort_sets(ours: Any, theirs: Any) -> Any:
    """Return a server's value; a list that is a set in our value is sorted in the order in which sets are
    sent."""
    if isinstance(ours, set | frozenset) and isinstance(theirs, list):
        return sorted(theirs, key=repr)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {key: _sort_sets(ours.get(key), each) for key, each in theirs.items()}
    if isinstance(ours, list | tuple) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [_sort_sets(here, there) for here, there in zip(ours, theirs, strict=True)]
    return theirs


def _normalize(value: Any) -> Any:
    """Return a value without details that JSON does not keep: the order of sets, and empty fields of
    messages."""
    if isinstance(value, dict):
        return {key: _normalize(each) for key, each in value.items() if each not in (None, [], {})}
    if isinstance(value, list):
        return [_normalize(each) for each in value]
    return value
