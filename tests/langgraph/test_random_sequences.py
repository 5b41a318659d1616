"""Random sequences of calls show a user of a graph the same on Perdure as on LangGraph's own saver.

Four sequences by default; ``PERDURE_CHAOS=full`` plays four hundred. Answers name their questions, and
threads with a DeltaChannel are not forked: the stock saver gives an answer without a name to the next
question as well, and may show what one branch wrote to a DeltaChannel in another.
"""

from __future__ import annotations

import operator
import os
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, StateUpdate, interrupt
from typing_extensions import TypedDict

from tests.langgraph.graphs import Build, DeltaOften, Graph
from tests.langgraph.savers import opened
from tests.langgraph.session import Session, config, play

SEEDS = 400 if os.environ.get("PERDURE_CHAOS") == "full" else 4
CALLS = 8
MODES = (("sync", "sync"), ("async", "async"), ("async", "exit"), ("sync", "async"), ("async", "sync"))
WORDS = ("end", "ask", "both", "send", "jump", "sub", "deep", "late", "over", "boom")
NODES = (None, "first", "ask", "left", "sub", "meet", START, END, "__copy__", "__input__")


class Plain(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    word: str


class Delta(DeltaOften, total=False):
    word: str


def _asking(name: str) -> Any:
    return lambda state: {"said": [f"{name} {interrupt(name)} {len(state['said'])}"]}


def _first(state: Any) -> Any:
    if state.get("word") == "boom":
        raise RuntimeError("boom")
    return {"said": [f"first saw {len(state['said'])}"]}


def _route(state: Any) -> Any:
    ways: dict[str, Any] = {
        "both": ["left", "right"],
        "send": [Send("work", {"word": word}) for word in ("a", "b")],
        "late": ["late", "left"],
    }
    word = state.get("word", "end")
    return ways.get(word, END if word in ("end", "boom") else word)


def _work(state: Any) -> Any:
    answer = interrupt("work") if state["word"] == "b" else "none"
    return {"said": [f"work {state['word']} {answer}"]}


def build(state: Any) -> Build:
    """Return what builds a graph of branches, joins, Sends, questions and subgraphs with a saver."""

    def compiled(saver: Any) -> Graph:
        inner = StateGraph(state).add_node("one", lambda _: {"said": ["one"]}).add_node("two", _asking("two"))
        inner.add_edge(START, "one").add_edge("one", "two")
        deep = StateGraph(state).add_node("low", inner.compile()).add_edge(START, "low").compile()
        graph = StateGraph(state).add_node("first", _first).add_node("work", _work)
        for name in ("ask", "left", "right"):
            graph.add_node(name, _asking(name))
        graph.add_node(
            "jump", lambda _: Command(update={"said": ["jump"]}, goto="meet"), destinations=("meet",)
        )
        graph.add_node("over", lambda _: {"said": Overwrite(["over"])})
        graph.add_node("meet", lambda state: {"said": [f"met {len(state['said'])}"]})
        graph.add_node("late", lambda state: {"said": [f"late {len(state['said'])}"]}, defer=True)
        graph.add_node("sub", inner.compile()).add_node("deep", deep)
        graph.add_edge(START, "first").add_edge(["left", "right"], "meet")
        graph.add_conditional_edges(
            "first", _route, ["ask", "left", "right", "work", "jump", "sub", "deep", "late", "over", END]
        )
        return graph.compile(checkpointer=saver)

    return compiled


async def calls(seed: int, forks: bool, s: Session) -> None:
    """Make random calls, and record the whole history after each."""
    luck = Random(seed)
    await s.invoke({"word": luck.choice(WORDS[:-1]), "said": ["in"]})
    for _ in range(CALLS):
        past = await s.history()
        at = config()
        if forks and luck.random() < 0.35:
            at = luck.choice(past).config
        kind = luck.choice(
            ("run", "run", "go on", "answer", "answer", "update", "update", "bulk", "state", "below")
        )
        given: dict[str, Any] = {"word": luck.choice(WORDS), "said": ["in"]}
        values, node, answer = (
            luck.choice((given, {"said": ["edited"]}, None)),
            luck.choice(NODES),
            luck.choice(("yes", 0)),
        )
        try:
            if kind == "run":
                await s.invoke(given, at)
            elif kind == "go on":
                await s.invoke(None, at)
            elif kind == "answer":
                asked = [one.id for task in (await s.state(at)).tasks for one in task.interrupts]
                if asked:
                    answered = luck.sample(asked, luck.randint(1, len(asked)))
                    await s.invoke(Command(resume=dict.fromkeys(answered, answer)), at)
            elif kind == "update":
                await s.update(at, values, node)
            elif kind == "bulk":
                await s.bulk(at, [[StateUpdate(given, "first")], [StateUpdate({"said": ["more"]}, "meet")]])
            elif kind == "state":
                await s.state(at, subgraphs=True)
            else:
                for task in (await s.state()).tasks:
                    if isinstance(task.state, dict):
                        await s.update(task.state, {"said": ["edited below"]})
                        await s.history(task.state)
        except Exception as error:  # What is refused, too, has to be refused by both.
            s.record.append((kind, type(error).__name__))
    await s.history()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_calls_show_what_they_show_on_the_stock_saver(seed: int, tmp_path: Path) -> None:
    mode, durability = MODES[seed % len(MODES)]
    forks = seed % 2 == 0
    compiled, script = build(Plain if forks else Delta), partial(calls, seed, forks)
    expected = play(script, Session(compiled(InMemorySaver()), mode, durability))
    with opened("sqlite" if seed % 4 < 2 else "memory", tmp_path) as db:
        savers = [db.checkpointer(), db.checkpointer()]
        record = play(script, Session(compiled(savers[0]), mode, durability, savers))
    assert record == expected
