"""Recorded runs of generated graphs replay without a difference, whatever their models answered.

The models, tools and nodes answer something else at every call, so that a replay that called one, or mixed up
two answers, would differ. ``PERDURE_CHAOS=full`` does 150 threads.
"""

from __future__ import annotations

import asyncio
import operator
import os
import random
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import Command, Send, interrupt

import perdure
from perdure.replay import record_calls, replay_sync

SEEDS = range(150) if os.environ.get("PERDURE_CHAOS") == "full" else range(2)
MADE: list[str] = []


def fresh() -> str:
    MADE.append(uuid.uuid4().hex[:9] + "!")
    return MADE[-1]


class Whimsical(BaseChatModel):
    """A model that never answers the same."""

    @property
    def _llm_type(self) -> str:
        return "whimsical"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(fresh()))])


@tool
def roll(reason: str) -> str:
    """Roll dice."""
    return fresh()


@tool
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(fresh())


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], add_messages]
    marks: Annotated[dict[str, str], operator.or_]


class SubState(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], add_messages]


model = Whimsical()
Node = Any


def thinks(name: str) -> Node:
    return lambda state: {"log": [f"{name} {model.invoke(name).content}"]}


def thinks_twice(name: str) -> Node:
    def node(state: Any) -> Any:
        first = model.invoke([("system", name), ("user", "the same")])
        second = model.invoke([("system", name), ("user", "the same")])
        return {"log": [f"{first.content} {second.content}"]}

    return node


def streams(name: str) -> Node:
    async def node(state: Any) -> Any:
        return {"log": ["".join([str(part.content) async for part in model.astream(name)])]}

    return node


def batches(name: str) -> Node:
    def node(state: Any) -> Any:
        return {"log": [str(each.content) for each in model.batch([f"{name} {n}" for n in range(3)])]}

    return node


def speaks(name: str) -> Node:
    async def node(state: Any) -> Any:
        return {"messages": [await model.ainvoke([("system", name), *state.get("messages", [])])]}

    return node


def uses_tool(name: str) -> Node:
    return lambda state: {"log": [str(roll.invoke({"reason": name})), str(model.invoke(name).content)]}


def catches(name: str) -> Node:
    def node(state: Any) -> Any:
        try:
            return {"log": [str(fail.invoke({"reason": name}))]}
        except ValueError as error:
            return {"log": [repr(error)]}

    return node


def asks(name: str) -> Node:
    def node(state: Any) -> Any:
        question = model.invoke(f"{name} asks").content
        answer = interrupt({"from": name, "question": question})
        return {"log": [f"{answer} {model.invoke(str(answer)).content}"]}

    return node


def asks_twice(name: str) -> Node:
    def node(state: Any) -> Any:
        first = interrupt(f"{name} {model.invoke('one').content}")
        second = interrupt(f"{name} {first} {model.invoke('two').content}")
        return {"log": [first, second, str(model.invoke("three").content)]}

    return node


def marks(name: str) -> Node:
    return lambda state: {"marks": {name: str(uuid.uuid4()), f"{name} at": datetime.now(UTC).isoformat()}}


def jumps(name: str) -> Node:
    return lambda state: Command(update={"log": [str(model.invoke(name).content)]})


PLAIN = (thinks, thinks_twice, streams, batches, speaks, uses_tool, catches, asks, asks_twice, jumps)


def subgraph(dice: random.Random, name: str, depth: int) -> Any:
    builder = StateGraph(SubState)
    last = START
    for number in range(dice.randint(1, 3)):
        node = f"{name}s{number}"
        nested = depth < 1 and dice.random() < 0.3
        builder.add_node(node, subgraph(dice, node, depth + 1) if nested else dice.choice(PLAIN)(node))
        builder.add_edge(last, node)
        last = node
    return builder.compile(checkpointer=dice.choice([None, None, True]) if depth == 0 else None)


def calls_graph(dice: random.Random, name: str) -> Node:
    """A node whose function calls a graph of its own."""
    inner = subgraph(dice, name, 1)

    async def node(state: Any) -> Any:
        out = await inner.ainvoke({"log": [], "messages": []})
        return {"log": [*out.get("log", []), str(model.invoke(name).content)]}

    return node


def generated(seed: int) -> Any:
    """Return the builder of a graph: layers of parallel nodes, of subgraphs, and of sent tasks."""
    dice = random.Random(seed)
    builder = StateGraph(State)
    before: list[str] = [START]
    for layer in range(dice.randint(2, 4)):
        kind = dice.choice(["nodes", "nodes", "subgraph", "sends", "calls"])
        if kind == "sends":
            name, count = f"sent{layer}", dice.randint(1, 4)
            made = dice.choice(PLAIN)(name)
            builder.add_node(name, made)

            def spread(state: Any, name: str = name, count: int = count) -> list[Send]:
                return [Send(name, {"messages": [("user", f"{name} {n}")]}) for n in range(count)]

            gate = f"gate{layer}"
            builder.add_node(gate, thinks(gate))
            builder.add_conditional_edges(gate, spread, [name])
            names, last = [gate], [name]
        elif kind == "subgraph":
            names = last = [f"sub{layer}"]
            builder.add_node(names[0], subgraph(dice, f"sub{layer}", 0))
        elif kind == "calls":
            names = last = [f"calls{layer}"]
            builder.add_node(names[0], calls_graph(dice, names[0]))
        else:
            names = last = [f"n{layer}{number}" for number in range(dice.randint(1, 3))]
            for name in names:
                builder.add_node(name, dice.choice((*PLAIN, marks))(name))
        for name in names:
            if before == [START]:
                builder.add_edge(START, name)
            else:
                builder.add_edge(before, name)
        before = last
    return builder


@pytest.mark.parametrize("seed", SEEDS)
def test_a_recorded_thread_replays_without_a_difference(seed: int) -> None:
    dice = random.Random(f"turns {seed}")
    config: Any = {"configurable": {"thread_id": "one"}}

    async def lived(graph: Any) -> None:
        for turn in range(dice.randint(1, 2)):
            given: Any = {"messages": [("user", f"turn {turn}")]}
            for _ in range(60):
                out = await graph.ainvoke(given, config)
                asked = out.get("__interrupt__")
                if not asked or dice.random() < 0.05:
                    break
                some = dice.sample(asked, dice.randint(1, len(asked)))
                given = Command(resume={each.id: f"reply {dice.random()}" for each in some})

    with perdure.connect_sync("memory://") as db:
        graph = record_calls(generated(seed).compile(checkpointer=db.checkpointer()))
        asyncio.run(lived(graph))
        count = len(MADE)
        report = replay_sync(db, generated(seed).compile(), "one")
        assert report.differences == ()
        assert report.replayed > 1
        assert report.skipped == ()
        assert report.derived == 0
        assert len(MADE) == count
        assert db.fsck("one") == []
