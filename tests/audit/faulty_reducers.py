"""Graphs with faulty reducers, for the table of the faulty graphs."""

from __future__ import annotations

import operator
import random
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph.message import add_messages

from tests.audit.building import Graph, finds, graph, state


def joined(left: list[Any], right: list[Any]) -> list[Any]:
    return left + right


@finds("duplicated-messages", "value")
def added_messages() -> Graph:
    return graph(state(Annotated[list[AnyMessage], operator.add]))


@finds("duplicated-messages", "value")
def joined_messages() -> Graph:
    return graph(state(Annotated[Sequence[BaseMessage], joined]))


@finds("duplicated-messages", "value")
def delta_messages_joined() -> Graph:
    def flat(state: list[HumanMessage], writes: Sequence[list[HumanMessage]]) -> list[HumanMessage]:
        return [*state, *(each for write in writes for each in write)]

    return graph(state(Annotated[list[HumanMessage], DeltaChannel(flat)]))


@finds("unusable-reducer", "value")
def added_dicts() -> Graph:
    return graph(state(Annotated[dict[str, str], operator.add]))


@finds("unusable-reducer", "value")
def united_lists() -> Graph:
    return graph(state(Annotated[list[str], operator.or_]))


@finds("unusable-reducer", "value")
def messages_reducer_for_numbers() -> Graph:
    return graph(state(Annotated[dict[str, int], lambda left, right: left.extend(right)]))


@finds("unusable-reducer", "value")
def delta_of_an_optional() -> Graph:
    return graph(state(Annotated[list[str] | None, DeltaChannel(lambda state, writes: state)]))


@finds("not-associative", "value")
def difference() -> Graph:
    return graph(state(Annotated[int, operator.sub]))


@finds("not-associative", "value")
def average() -> Graph:
    return graph(state(Annotated[float, lambda left, right: (left + right) / 2]))


@finds("not-associative", "value")
def emptied_by_an_empty_list() -> Graph:
    def reset(left: list[str], right: list[str]) -> list[str]:
        return left + right if right else []

    return graph(state(Annotated[list[str], reset]))


@finds("not-associative", "value")
def first_of_the_update() -> Graph:
    return graph(state(Annotated[list[str], lambda left, right: left + right[:1]]))


@finds("not-associative", "value")
def nested() -> Graph:
    return graph(state(Annotated[list[Any], lambda left, right: [*left, right]]))


@finds("not-associative", "value")
def counted() -> Graph:
    return graph(
        state(Annotated[dict[str, int], lambda left, right: {**left, "updates": left.get("updates", 0) + 1}])
    )


@finds("not-associative", "value")
def reversed_each_time() -> Graph:
    return graph(state(Annotated[list[str], lambda left, right: [*left, *right][::-1]]))


@finds("not-associative", "value")
def messages_that_lose_their_ids() -> Graph:
    # LangGraph declares it without its keyword.
    reducer = add_messages(format="langchain-openai")  # type: ignore[call-arg]
    return graph(state(Annotated[list[AnyMessage], reducer]))


@finds("mutating-reducer", "value")
def extended() -> Graph:
    def extend(left: list[str], right: list[str]) -> list[str]:
        left.extend(right)
        return left

    return graph(state(Annotated[list[str], extend]))


@finds("mutating-reducer", "value")
def updated() -> Graph:
    def update(left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
        left.update(right)
        return left

    return graph(state(Annotated[dict[str, str], update]))


@finds("mutating-reducer", "value")
def emptied_update() -> Graph:
    def take(left: list[str], right: list[str]) -> list[str]:
        taken = [*left]
        while right:
            taken.append(right.pop(0))
        return taken

    return graph(state(Annotated[list[str], take]))


@finds("mutating-reducer", "value")
def items_changed_in_place() -> Graph:
    def merge(left: dict[str, list[str]], right: dict[str, list[str]]) -> dict[str, list[str]]:
        merged = dict(left)
        for key, items in right.items():
            merged.setdefault(key, []).extend(items)
        return merged

    return graph(state(Annotated[dict[str, list[str]], merge]))


@finds("mutating-reducer", "value")
def appended_one() -> Graph:
    def append(left: list[str], right: str) -> list[str]:
        left.append(right)
        return left

    return graph(state(Annotated[list[str], append]))


@finds("unstable-reducer", "value")
def shuffled() -> Graph:
    return graph(state(Annotated[list[str], lambda left, right: [*left, *right, random.random()]]))


@finds("unstable-reducer", "value")
def stamped() -> Graph:
    return graph(
        state(Annotated[dict[str, Any], lambda left, right: {**left, **right, "at": time.perf_counter()}])
    )


@finds("unstable-reducer", "value")
def named_anew() -> Graph:
    return graph(state(Annotated[list[str], lambda left, right: [*left, *right, uuid.uuid4().hex]]))


@finds("not-batching-invariant", "value")
def delta_of_the_last_write() -> Graph:
    return graph(state(Annotated[list[str], DeltaChannel(lambda state, writes: [*state, *writes[-1]])]))


@finds("not-batching-invariant", "value")
def delta_that_counts_batches() -> Graph:
    def count(state: list[str], writes: Sequence[list[str]]) -> list[str]:
        return [*state, f"{len(writes)} writes"]

    return graph(state(Annotated[list[str], DeltaChannel(count)]))


@finds("not-batching-invariant", "value")
def delta_deduplicated_within_a_batch() -> Graph:
    def distinct(state: list[str], writes: Sequence[list[str]]) -> list[str]:
        return [*state, *dict.fromkeys(item for write in writes for item in write)]

    return graph(state(Annotated[list[str], DeltaChannel(distinct)]))


@finds("not-batching-invariant", "value")
def delta_sorted_by_batch() -> Graph:
    def ordered(state: list[int], writes: Sequence[list[int]]) -> list[int]:
        return state + sorted(item for write in writes for item in write)

    return graph(state(Annotated[list[int], DeltaChannel(ordered)]))


@finds("not-batching-invariant", "value")
def delta_of_dicts_by_first_writer_of_a_batch() -> Graph:
    def merge(state: dict[str, int], writes: Sequence[dict[str, int]]) -> dict[str, int]:
        merged: dict[str, int] = {}
        for write in reversed(writes):
            merged.update(write)
        return {**state, **merged}

    return graph(state(Annotated[dict[str, int], DeltaChannel(merge)]))


@finds("mutating-reducer", "value")
def delta_that_extends_its_state() -> Graph:
    def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
        for write in writes:
            state.extend(write)
        return state

    return graph(state(Annotated[list[str], DeltaChannel(extend)]))
