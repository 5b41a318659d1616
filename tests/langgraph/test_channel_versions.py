"""Threads whose channel versions are another saver's go on: text, floating-point and whole numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from perdure import PerdureSaver
from perdure.errors import Unserialisable
from perdure.langgraph.channel_versions import make_next_version
from tests.langgraph.graphs import STATES, Plain, asking, chain, sending
from tests.langgraph.savers import DRIVERS, opened
from tests.langgraph.session import Session, config, play

NUMBERS = st.one_of(st.integers(0, 2**62), st.floats(-1e300, 1e300, allow_nan=False))

DOTTED = st.from_regex(r"[0-9]{1,40}(\.[0-9]{1,20})?", fullmatch=True)


class Floating(InMemorySaver):
    """A saver whose versions are floating-point numbers."""

    def get_next_version(self, current: Any, channel: None) -> Any:
        return 1.5 if current is None else current + 1.0


class Whole(InMemorySaver):
    """A saver whose versions are whole numbers."""

    def get_next_version(self, current: Any, channel: None) -> Any:
        return 1 if current is None else current + 1


@contextlib.contextmanager
def sqlite() -> Iterator[BaseCheckpointSaver[Any]]:
    with SqliteSaver.from_conn_string(":memory:") as saver:
        yield saver


@contextlib.contextmanager
def kept(saver: BaseCheckpointSaver[Any]) -> Iterator[BaseCheckpointSaver[Any]]:
    yield saver


SAVERS: dict[str, Callable[[], contextlib.AbstractContextManager[BaseCheckpointSaver[Any]]]] = {
    "memory": lambda: kept(InMemorySaver()),
    "sqlite": sqlite,
    "float": lambda: kept(Floating()),
    "int": lambda: kept(Whole()),
}


def carry_over(source: BaseCheckpointSaver[Any], target: BaseCheckpointSaver[Any], thread: str = "t") -> int:
    """Put everything that a saver has of a thread into another, oldest first; how many checkpoints."""
    found = list(source.list({"configurable": {"thread_id": thread}}))
    for item in sorted(found, key=lambda item: item.checkpoint["id"]):
        place = {**item.config["configurable"], "checkpoint_id": None}
        if item.parent_config is not None:
            place["checkpoint_id"] = item.parent_config["configurable"]["checkpoint_id"]
        versions = item.checkpoint["channel_versions"]
        at = target.put({"configurable": place}, item.checkpoint, item.metadata, versions)
        for task_id, channel, value in item.pending_writes or []:
            target.put_writes(at, [(channel, value)], task_id)
    return len(found)


def nested(saver: BaseCheckpointSaver[Any]) -> Any:
    """A graph with a subgraph that keeps its state from turn to turn and asks."""

    def ask(state: Any) -> Any:
        return {"said": [f"{len(state['said'])}: {interrupt('which?')}"]}

    inner = StateGraph(Plain).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=True)
    outer = StateGraph(STATES["plain"]).add_node("inner", inner).add_edge(START, "inner")
    return outer.add_edge("inner", END).compile(checkpointer=saver)


async def turn(session: Session) -> None:
    await session.invoke({"said": ["again"]})
    await session.state()


async def resume(session: Session) -> None:
    state = await session.state(subgraphs=True)
    answers = {asked.id: f"an answer to {asked.value}" for asked in state.interrupts}
    await session.invoke(Command(resume=answers))
    await session.state()


async def fork(session: Session) -> None:
    at = await session.at(step=0)
    forked = await session.update(at, {"said": ["edited"]})
    await session.invoke(None, forked)
    await session.state()
    await session.history()


CASES: dict[str, tuple[Any, Any]] = {
    "a turn": (chain, turn),
    "a turn that sends": (sending, turn),
    "a resume": (asking, resume),
    "a subgraph's resume": (nested, resume),
    "a fork": (chain, fork),
    "a fork of a question": (asking, fork),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize(
    ("name", "mode"), [("memory", "sync"), ("sqlite", "sync"), ("float", "async"), ("int", "sync")]
)
def test_a_thread_of_another_saver_goes_on_as_it_would_there(
    name: str, mode: str, case: tuple[Any, Any], tmp_path: Path
) -> None:
    build, script = case
    with SAVERS[name]() as stock, opened("memory", tmp_path) as db:
        build(stock).invoke({"said": ["x"]}, config())
        ours = db.checkpointer()
        assert carry_over(stock, ours) > 0
        theirs = InMemorySaver()
        build(theirs).invoke({"said": ["x"]}, config())
        records = []
        for saver in (theirs, ours):
            graph = build(saver)
            records.append(play(script, Session(graph, mode, "sync")))
        assert records[1] == records[0]
        kinds = {type(v) for v in stock.get_tuple(config()).checkpoint["channel_versions"].values()}  # type: ignore[union-attr]
        assert kinds_of(ours) == kinds


def kinds_of(saver: PerdureSaver) -> set[type]:
    found = [item.checkpoint for item in saver.list({"configurable": {"thread_id": "t"}})]
    kinds = {type(version) for item in found for version in item["channel_versions"].values()}
    return kinds | {
        type(v) for item in found for seen in item["versions_seen"].values() for v in seen.values()
    }


@pytest.mark.parametrize("driver", DRIVERS)
def test_versions_come_back_as_they_were_put(driver: str, tmp_path: Path) -> None:
    with opened(driver, tmp_path) as db:
        for made in SAVERS.values():
            with made() as stock:
                chain(stock).invoke({"said": ["x"]}, config())
                saver = db.checkpointer()
                saver.delete_thread("t")
                carry_over(stock, saver)
                for item in saver.list(config()):
                    before = stock.get_tuple(item.config)
                    assert before is not None
                    for name in ("channel_versions", "versions_seen"):
                        assert item.checkpoint[name] == before.checkpoint[name]
                assert chain(saver).invoke({"said": ["y"]}, config())["said"][-1] == "second saw 5"


@given(
    st.one_of(NUMBERS, st.text(max_size=40), st.from_regex(r"[0-9]{1,40}(\.[0-9]{1,20})?", fullmatch=True))
)
def test_every_version_is_greater_than_the_one_before_and_of_its_type(first: Any) -> None:
    current = first
    for _ in range(12):
        after = make_next_version(current)
        assert type(after) is type(first)
        assert after > current
        current = after
    if isinstance(first, str):
        assert len(current) <= len(first) + 60


def test_the_form_of_the_stock_savers_is_kept() -> None:
    theirs = InMemorySaver()
    current = theirs.get_next_version(None, None)
    for number in range(2, 30):
        following = make_next_version(current)
        assert isinstance(following, str)
        current = following
        assert int(current.split(".")[0]) == number
        assert theirs.get_next_version(current, None) > current


def test_a_version_that_has_no_next_one_is_refused_by_name() -> None:
    for last in (math.inf, math.nan, 1.7976931348623157e308):
        with pytest.raises(Unserialisable, match="channel version"):
            make_next_version(last)
