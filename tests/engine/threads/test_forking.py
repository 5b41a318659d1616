"""Forks of a thread: the next turn builds on the earlier checkpoint, and the later ones stay.

Covers perdure.langgraph.checkpoint_ids.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.database.base import handle_of
from perdure.engine.threads import forking
from perdure.errors import Conflict, Fenced, NotFound, NotWaiting
from perdure.model.ops import Commit, Expect, Put
from perdure.model.program import ask
from perdure.model.records import EPOCH, Partition
from perdure.runtime import Runtime


def extend(held: list[str], more: list[Any]) -> list[str]:
    return [*held, *(item for each in more for item in each)]


class State(TypedDict):
    texts: Annotated[list[str], lambda held, more: [*held, *more]]
    replayed: Annotated[list[str], DeltaChannel(extend)]


def conversation(saver: Any) -> Any:
    def answer(state: State) -> dict[str, list[str]]:
        text = f"answer to {state['texts'][-1]}"
        return {"texts": [text], "replayed": [text]}

    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


def said(*turns: int) -> list[str]:
    return [text for turn in turns for text in (f"question {turn}", f"answer to question {turn}")]


def ask_of(graph: Any, turn: int) -> dict[str, list[str]]:
    text = f"question {turn}"
    found = graph.invoke({"texts": [text], "replayed": [text]}, ADA)
    return {name: found[name] for name in ("texts", "replayed")}


ADA: Any = {"configurable": {"thread_id": "ada"}}


@pytest.fixture
def db() -> Any:
    with perdure.connect_sync("memory://") as db:
        yield db


def test_the_next_turn_builds_on_the_copy_and_the_branch_stays(db: perdure.SyncDatabase) -> None:
    graph = conversation(db.checkpointer())
    ask_of(graph, 1)
    early = db.show("ada").checkpoint_id
    ask_of(graph, 2)
    late = db.show("ada").checkpoint_id
    copy = db.fork("ada", early)
    view = db.show("ada")
    assert (view.checkpoint_id, view.source) == (copy, "fork")
    assert view.parent_id == db.show("ada", early).parent_id
    assert view.channels == db.show("ada", early).channels
    # Another process, which has nothing in memory, sees the same.
    fresh = conversation(db.checkpointer())
    assert ask_of(fresh, 3) == {"texts": said(1, 3), "replayed": said(1, 3)}
    branch = fresh.get_state({"configurable": {"thread_id": "ada", "checkpoint_id": late}}).values
    assert branch == {"texts": said(1, 2), "replayed": said(1, 2)}
    assert db.fsck() == []


def test_a_step_that_was_under_way_starts_again(db: perdure.SyncDatabase) -> None:
    graph = conversation(db.checkpointer())
    ask_of(graph, 1)
    before = next(v.checkpoint_id for v in db.timeline("ada") if v.source == "input")
    copy = db.fork("ada", before)
    config = {"configurable": {"thread_id": "ada", "checkpoint_id": copy}}
    assert graph.get_state(config).next == graph.get_state(ADA).next != ()
    assert graph.invoke(None, ADA)["texts"] == said(1)
    assert db.fsck() == []


def test_the_latest_checkpoint_and_a_pruned_thread_can_be_forked(db: perdure.SyncDatabase) -> None:
    graph = conversation(db.checkpointer())
    ask_of(graph, 1)
    early = db.show("ada").checkpoint_id
    db.tag("ada", "kept", early)
    ask_of(graph, 2)
    db.checkpointer().prune(["ada"])
    db.fork("ada", early)
    db.fork("ada", db.show("ada").checkpoint_id)
    assert ask_of(graph, 3)["replayed"] == said(1, 3)
    db.checkpointer().prune(["ada"])
    assert ask_of(graph, 4) == {"texts": said(1, 3, 4), "replayed": said(1, 3, 4)}
    assert db.fsck() == []


def test_what_cannot_be_forked_is_refused_and_changes_nothing(db: perdure.SyncDatabase) -> None:
    graph = conversation(db.checkpointer())
    ask_of(graph, 1)
    head = db.show("ada").checkpoint_id
    digest = db.digest("ada")
    with pytest.raises(NotFound, match=r"no checkpoint 'nowhere'.*history"):
        db.fork("ada", "nowhere")
    with pytest.raises(NotFound):
        db.fork("eve", head)
    at = Partition("", "ada")
    lease = Put(EPOCH, (), {"open_run": "run"}, expect=Expect.ABSENT, version=1)
    handle_of(db).run(ask(Commit(at, (lease,))))
    with pytest.raises(Fenced, match=r"open run 'run'"):
        db.fork("ada", head)
    assert db.digest("ada") == digest


def test_a_head_that_moves_meanwhile_is_seen(db: perdure.SyncDatabase) -> None:
    graph = conversation(db.checkpointer())
    ask_of(graph, 1)
    early = db.show("ada").checkpoint_id
    program = forking.fork(Partition("", "ada"), early, new_id="z", now="2026-01-01T00:00:00+00:00")
    handle = handle_of(db)
    moved: list[int] = []

    def drive() -> None:
        effect = next(program)
        while True:
            if isinstance(effect, Commit) and not moved:
                moved.append(1)
                ask_of(graph, 2)
            effect = program.send(handle.driver.perform(effect))

    with pytest.raises(StopIteration, match=r"^z$"):
        drive()
    assert moved
    assert db.show("ada").checkpoint_id == "z"
    assert len([v for v in db.timeline("ada") if v.source == "input"]) == 2
    assert db.fsck() == []


def test_a_checkpoint_that_is_removed_meanwhile_is_not_copied(db: perdure.SyncDatabase) -> None:
    graph = conversation(db.checkpointer())
    ask_of(graph, 1)
    early = db.show("ada").checkpoint_id
    ask_of(graph, 2)
    program = forking.fork(Partition("", "ada"), early, new_id="z", now="2026-01-01T00:00:00+00:00")

    def drive() -> None:
        effect = next(program)
        while True:
            if isinstance(effect, Commit):
                db.checkpointer().prune(["ada"])
            effect = program.send(handle_of(db).driver.perform(effect))

    with pytest.raises(NotFound, match="no checkpoint"):
        drive()
    assert ask_of(graph, 3) == {"texts": said(1, 2, 3), "replayed": said(1, 2, 3)}
    assert db.fsck() == []


def test_an_answer_is_not_given_to_a_question_that_a_fork_asks_again() -> None:
    def first(state: State) -> dict[str, list[str]]:
        return {"texts": [f"first {interrupt('Delete all?')}"]}

    def second(state: State) -> dict[str, list[str]]:
        return {"texts": [f"second {interrupt('Greet?')}"]}

    builder = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")

    async def talk() -> None:
        async with perdure.connect("memory://") as db:
            graph = builder.compile(checkpointer=db.checkpointer())
            async with Runtime(db, builder.compile()) as runtime:
                await runtime.wait(await runtime.submit("ada", {"texts": ["start"]}))
                early = (await db.show("ada")).checkpoint_id
                await runtime.wait(await runtime.answer("ada", "no"))
                await db.fork("ada", early)
                assert await db.fsck() == []
                with pytest.raises(NotWaiting):
                    await runtime.answer("ada", "yes")
                assert (await graph.aget_state(ADA)).values["texts"] == ["start"]
                await runtime.wait(await runtime.submit("ada", {"texts": ["again"]}))
                await runtime.wait(await runtime.answer("ada", "never"))
                assert (await graph.aget_state(ADA)).values["texts"] == ["start", "again", "first never"]
            # No worker takes the answer.
            at = Runtime(db, builder.compile())
            await at.answer("ada", "hello")
            with pytest.raises(Conflict, match="answer whose run has not begun"):
                await db.fork("ada", early)

    asyncio.run(talk())


def with_memory(saver: Any) -> Any:
    """A graph with a subgraph that keeps its state from run to run."""
    inner = StateGraph(State)
    inner.add_node("note", lambda state: {"texts": [f"noted {len(state['texts'])}"]})
    inner.add_edge(START, "note")
    outer = StateGraph(State)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_edge(START, "inner")
    return outer.compile(checkpointer=saver)


def test_a_subgraph_returns_to_what_a_replay_would_load(db: perdure.SyncDatabase) -> None:
    found = []
    for thread in ("replayed", "ada"):
        at: Any = {"configurable": {"thread_id": thread}}
        graph = with_memory(db.checkpointer())
        ends = []
        for turn in range(3):
            graph.invoke({"texts": [f"turn {turn}"]}, at)
            ends.append(db.show(thread).checkpoint_id)
        if thread == "ada":
            db.fork("ada", ends[0])
            assert db.fsck() == []
        else:
            at["configurable"]["checkpoint_id"] = ends[0]
        found.append(with_memory(db.checkpointer()).invoke({"texts": ["other"]}, at))
    assert found[0] == found[1]
    assert db.fsck() == []
    first = min(db.timeline("ada"), key=lambda view: view.step or 0).checkpoint_id
    digest = db.digest("ada")
    with pytest.raises(Conflict, match="subgraph 'inner' keeps its state"):
        db.fork("ada", first)
    assert db.digest("ada") == digest
