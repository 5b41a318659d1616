"""Graphs made from a seed whose nodes and conditional edges fail now and then, as often as a test lets them.

Their result does not depend on these failures: it is that of the same graph without any.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any, Literal, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, RetryPolicy, Send, interrupt

Graph = Pregel[Any, Any, Any, Any]
SHAPES = (
    "plain", "routed", "command", "fan", "sends", "subgraph", "nested", "parent", "question", "retried",
    "pair",
)  # fmt: skip
"""Kinds of the steps that a graph is made of."""


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Item(TypedDict):
    item: int


@dataclass(slots=True)
class Troubles:
    """What befalls the calls of a graph.

    Attributes:
        rng: source of chance.
        share: share of the calls that fail; another such share takes a moment.
        most: failures of one place at the most.
    """

    rng: Random
    share: float = 0.0
    most: int = 2
    met: Counter[str] = field(default_factory=Counter[str])

    def _strike(self, place: str) -> float:
        if not self.share:
            return 0.0
        luck = self.rng.random()
        if luck < self.share and self.met[place] < self.most:
            self.met[place] += 1
            raise ConnectionError(f"{place} does not answer")
        return 0.004 * self.rng.random() if luck > 1 - self.share else 0.0

    def strike(self, place: str) -> None:
        """Fail, take a moment, or do nothing."""
        time.sleep(self._strike(place))

    async def astrike(self, place: str) -> None:
        """Do the same for a coroutine."""
        await asyncio.sleep(self._strike(place))


def build(seed: int, troubles: Troubles) -> Graph:
    """Return the graph of a seed."""
    return _build(Random(seed), troubles, "", SHAPES).compile()


def _build(rng: Random, troubles: Troubles, prefix: str, shapes: Iterable[str]) -> StateGraph[State]:
    builder = StateGraph(State)
    steps = rng.choices(list(shapes), k=rng.randint(2, 4))
    names = [f"{prefix}{number}_{shape}" for number, shape in enumerate(steps)]
    follows = [*names[1:], END]
    for name, shape, then in zip(names, steps, follows, strict=True):
        _add_step(builder, rng, troubles, (name, shape, then))
    if rng.random() < 0.5:
        builder.add_conditional_edges(START, _router(rng, troubles, f"{prefix}start", names[0]), [names[0]])
    else:
        builder.add_edge(START, names[0])
    return builder


def _node(rng: Random, troubles: Troubles, name: str, result: Callable[[Any], Any] | None = None) -> Any:
    """Return a node, plain or a coroutine, that may fail before and after its work."""

    def work(state: Any) -> Any:
        return {"log": [name]} if result is None else result(state)

    def plain(state: Any) -> Any:
        troubles.strike(f"{name} begins")
        out = work(state)
        troubles.strike(f"{name} ends")
        return out

    async def coroutine(state: Any) -> Any:
        await troubles.astrike(f"{name} begins")
        out = work(state)
        await troubles.astrike(f"{name} ends")
        return out

    return rng.choice([plain, coroutine])


def _router(rng: Random, troubles: Troubles, name: str, then: str) -> Any:
    def plain(_: Any) -> str:
        troubles.strike(f"{name} chooses")
        return then

    async def coroutine(_: Any) -> str:
        await troubles.astrike(f"{name} chooses")
        return then

    return rng.choice([plain, coroutine])


def _add_step(
    builder: StateGraph[State], rng: Random, troubles: Troubles, step: tuple[str, str, str]
) -> None:
    """Add what belongs to a step, and its way to the next one."""
    name, shape, then = step
    match shape:
        case "command":
            goto: Command[Any] = Command(goto=then, update={"log": [name]})
            builder.add_node(name, _node(rng, troubles, name, lambda _: goto), destinations=(then,))
            return
        case "fan":
            rest = [f"{name} part {number}" for number in range(3)]
            builder.add_node(name, _node(rng, troubles, name))
            for part in rest:
                builder.add_node(part, _node(rng, troubles, part)).add_edge(name, part)
            _join(builder, rng, troubles, rest, (name, then))
            return
        case "sends":
            item = f"{name} item"

            def shared(state: Item) -> dict[str, Any]:
                return {"log": [f"{item} {state['item']}"]}

            async def send(_: State) -> list[Send]:
                await troubles.astrike(f"{name} sends")
                return [Send(item, {"item": number}) for number in range(3)]

            builder.add_node(name, _node(rng, troubles, name)).add_conditional_edges(name, send, [item])
            builder.add_node(item, _node(rng, troubles, item, shared), input_schema=Item)
            _join(builder, rng, troubles, [item], (name, then))
            return
        case "parent":
            inner = StateGraph(State)
            leave: Command[Any] = Command(graph=Command.PARENT, goto=then, update={"log": [name]})
            inner.add_node("inner", _node(rng, troubles, f"{name} inner", lambda _: leave))
            inner.add_edge(START, "inner")
            inside: Any = inner.compile()
            builder.add_node(name, inside, destinations=(then,))
            return
        case "subgraph" | "nested":
            shapes = (
                ("plain", "routed", "command", "sends", "question")
                if shape == "nested"
                else ("plain", "routed")
            )
            builder.add_node(name, _wrapped(_build(rng, troubles, f"{name} ", shapes).compile()))
        case "question":
            builder.add_node(
                name, _node(rng, troubles, name, lambda _: {"log": [f"{name}: {interrupt(name)}"]})
            )
        case "retried":
            retry = RetryPolicy(initial_interval=0.001, max_attempts=2, jitter=False)
            builder.add_node(name, _node(rng, troubles, name), retry_policy=retry)
        case "pair":
            beside = f"{name} beside"
            builder.add_node(name, _node(rng, troubles, name)).add_node(beside, _node(rng, troubles, beside))
            builder.add_edge(name, beside)
            builder.add_conditional_edges(beside, _router(rng, troubles, beside, then), [then])
            return
        case _:
            builder.add_node(name, _node(rng, troubles, name))
    if shape == "routed":
        builder.add_conditional_edges(name, _router(rng, troubles, name, then), [then])
    else:
        builder.add_edge(name, then)


def _wrapped(inner: Any) -> Any:
    """Return a node that calls a graph and adds what that added."""

    async def call(state: State) -> dict[str, Any]:
        out = await inner.ainvoke({"log": []})
        return {"log": out["log"]}

    return call


def _join(
    builder: StateGraph[State],
    rng: Random,
    troubles: Troubles,
    parts: list[str],
    way: tuple[str, str],
) -> None:
    name, then = way
    joint = f"{name} joint"
    builder.add_node(joint, _node(rng, troubles, joint))
    for part in parts:
        builder.add_edge(part, joint)
    builder.add_edge(joint, then)


Durability = Literal["sync", "async"]
