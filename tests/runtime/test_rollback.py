"""A run that is taken back leaves the thread at the head that was there before the run, whatever else is
removed meanwhile.

Covers perdure.runtime.control.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, interrupt

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.threads.chunk_reads import reachable
from perdure.engine.threads.thread_records import read, references
from perdure.errors import Unavailable
from perdure.model.ops import Commit, Delete
from perdure.model.program import Effect, ask
from perdure.model.records import CHECKPOINT, CHUNK, Partition
from perdure.runtime import Runtime
from perdure.runtime.options import Options
from tests.runtime.graphs import (
    Line,
    Storage,
    Talk,
    deafen,
    eventually,
    go,
    settings,
    spoken,
    values,
    vanish,
    working,
)
from tests.runtime.test_heads_model import Obeying

KEEP: tuple[Mapping[str, Any], ...] = ({}, {"keep_last": 2}, {"strategy": "delete"})
"""What a prune may keep."""


async def turns(runtime: Runtime, count: int) -> list[str]:
    """Messages that were answered, with their answers."""
    for number in range(count):
        run = await runtime.wait(await runtime.accept("ada", f"turn {number}"), 30)
        assert run.state == "done"
    return [text for n in range(count) for text in (f"turn {n}", f"echo: turn {n}")]


def at(database: SyncDatabase, talk: Talk, messages: int) -> str:
    """The newest checkpoint with this many messages."""
    app = talk.graph.copy(update={"checkpointer": database.checkpointer()})
    history = app.get_state_history({"configurable": {"thread_id": "ada"}})
    found = next(state for state in history if len(state.values.get("messages", ())) == messages)
    checkpoint_id: str = found.config["configurable"]["checkpoint_id"]
    return checkpoint_id


@pytest.mark.parametrize("keep", KEEP, ids=["latest", "two", "delete"])
def test_a_stopped_run_is_taken_back_although_it_was_pruned_meanwhile(
    storage: Storage, talk: Talk, keep: Mapping[str, Any]
) -> None:
    async def main() -> None:
        database, other = storage.database(), storage.database()
        async with working(database, talk.graph) as runtime:
            before = await turns(runtime, 3)
            run = await runtime.accept("ada", "hold this")
            await eventually(lambda: talk.under_way)
            await other.checkpointer().aprune(["ada"], **keep)
            assert await runtime.stop("ada", run.id, rollback=True)
            assert (await runtime.wait(run, 30)).state == "rolled_back"
            assert await spoken(other, talk.graph, "ada") == before
            assert (await runtime.wait(await runtime.accept("ada", "next"), 30)).state == "done"
        assert await spoken(other, talk.graph, "ada") == [*before, "next", "echo: next"]
        assert database.fsck("ada") == []

    go(main())


def test_a_failing_run_is_taken_back_although_the_thread_is_pruned_at_every_effect(
    near: Storage, talk: Talk
) -> None:
    async def main() -> None:
        (database, line), other = near.open(), near.database()
        pruning = asyncio.Lock()

        async def prune(effect: Effect[Any]) -> None:
            async with pruning:
                await other.checkpointer().aprune(["ada"])

        async with working(database, talk.graph, settings=settings(attempts=3)) as runtime:
            before = await turns(runtime, 10)
            line.before = prune
            run = await runtime.wait(await runtime.accept("ada", "boom"), 60)
            assert (run.state, run.attempts) == ("failed", 3)
            line.before = None
            assert await spoken(other, talk.graph, "ada") == before
        assert database.fsck("ada") == []

    go(main())


def test_the_first_run_of_a_thread_leaves_nothing_although_it_was_pruned_meanwhile(
    near: Storage, talk: Talk
) -> None:
    async def main() -> None:
        database, other = near.database(), near.database()
        async with working(database, talk.graph) as runtime:
            run = await runtime.accept("ada", "hold this")
            await eventually(lambda: talk.under_way)
            await other.checkpointer().aprune(["ada"])
            assert await runtime.stop("ada", run.id, rollback=True)
            assert (await runtime.wait(run, 30)).state == "rolled_back"
        assert await spoken(other, talk.graph, "ada") == []
        assert database.fsck("ada") == []

    go(main())


@pytest.mark.parametrize("pruned", [False, True])
def test_a_run_from_an_old_checkpoint_is_taken_back_to_the_head_before_it(
    storage: Storage, talk: Talk, pruned: bool
) -> None:
    async def main() -> None:
        database, other = storage.database(), storage.database()
        async with working(database, talk.graph) as runtime:
            before = await turns(runtime, 4)
            options = Options(checkpoint_id=at(database, talk, 2))
            run = await runtime.submit("ada", {"messages": [("user", "hold this")]}, options=options)
            await eventually(lambda: talk.under_way)
            assert len(await spoken(other, talk.graph, "ada")) == 3
            if pruned:
                await other.checkpointer().aprune(["ada"])
            assert await runtime.stop("ada", run.id, rollback=True)
            assert (await runtime.wait(run, 30)).state == "rolled_back"
            assert await spoken(other, talk.graph, "ada") == before
        assert database.fsck("ada") == []

    go(main())


def test_a_tag_on_a_run_does_not_hold_the_head_at_it(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, other = near.database(), near.database()
        async with working(database, talk.graph) as runtime:
            before = await turns(runtime, 2)
            run = await runtime.accept("ada", "hold this")
            await eventually(lambda: talk.under_way)
            other.tag("ada", "kept")
            assert await runtime.stop("ada", run.id, rollback=True)
            assert (await runtime.wait(run, 30)).state == "rolled_back"
            assert await spoken(other, talk.graph, "ada") == before
        assert database.fsck("ada") == []

    go(main())


@pytest.mark.parametrize("is_tagged", [False, True])
def test_the_head_does_not_go_to_what_an_earlier_rollback_left_for_a_tag(
    near: Storage, talk: Talk, is_tagged: bool
) -> None:
    """Once the tag is gone; with it, what it names is all that is left of the thread."""

    async def main() -> None:
        database, other = near.database(), near.database()
        async with working(database, talk.graph) as runtime:
            first = await runtime.accept("ada", "first")
            assert (await runtime.wait(first, 30)).state == "done"
            second = await runtime.accept("ada", "hold this")
            await eventually(lambda: talk.under_way)
            other.tag("ada", "kept")
            assert await runtime.stop("ada", second.id, rollback=True)
            assert (await runtime.wait(second, 30)).state == "rolled_back"
            if not is_tagged:
                other.untag("ada", "kept")
            await other.checkpointer().adelete_for_runs([first.id])
            left = ["first", "echo: first", "hold this"] if is_tagged else []
            assert await spoken(other, talk.graph, "ada") == left
            assert database.fsck("ada") == []
            assert (await runtime.wait(await runtime.accept("ada", "next"), 30)).state == "done"
        answer = "echo: hold this + next" if is_tagged else "echo: next"
        assert await spoken(other, talk.graph, "ada") == [*left, "next", answer]
        assert database.fsck("ada") == []

    go(main())


@pytest.mark.packs_late
def test_a_run_is_taken_back_although_an_earlier_checkpoint_is_damaged(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, other = near.database(), near.database()
        async with working(database, talk.graph) as runtime:
            await turns(runtime, 5)
            await begin_anew(other, talk, "fresh")
            run = await runtime.accept("ada", "hold this")
            await eventually(lambda: talk.under_way)
            _lose_what_only_earlier_checkpoints_need(other)
            assert await runtime.stop("ada", run.id, rollback=True)
            assert (await runtime.wait(run, 30)).state == "rolled_back"
            assert await spoken(other, talk.graph, "ada") == ["fresh"]
        assert database.fsck("ada") != []

    go(main())


async def begin_anew(database: SyncDatabase, talk: Talk, text: str) -> None:
    """Replace all messages of the thread, so that its latest state shares nothing with those before."""
    app = talk.graph.copy(update={"checkpointer": database.checkpointer()})
    messages = [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage(text)]
    await app.aupdate_state({"configurable": {"thread_id": "ada"}}, {"messages": messages}, as_node="talk")


def _lose_what_only_earlier_checkpoints_need(database: SyncDatabase, thread: str = "ada") -> None:
    at, handle = Partition("", thread), handle_of(database)
    contents = handle.run(read(at))
    held = [c for c in contents.checkpoints if c.namespace == "" and c.id in contents.latest.values()]
    held += [c for c in contents.checkpoints if (c.namespace, c.id) in contents.bases]
    mine = [ref for checkpoint in held for ref in checkpoint.references()]
    needed = handle.run(reachable(at, [*mine, *(w.ref for w in contents.writes)], handle.digest))
    everything = handle.run(reachable(at, references(contents), handle.digest))
    assert everything - needed
    handle.run(ask(Commit(at, tuple(Delete(CHUNK, (name,)) for name in everything - needed))))


def test_a_worker_that_lost_a_run_does_not_take_back_what_another_finished(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        (first, line), (second, later) = near.open(), near.open()
        slow = settings(attempts=1, on_failure="rollback")
        async with working(first, talk.graph, settings=slow) as losing:
            await turns(losing, 1)
            deafen(losing)
            run = await losing.accept("ada", "hold this")
            await eventually(lambda: talk.under_way)
            # The second process takes the run over and finishes it; then the first one's attempt fails.
            other = Talk()
            other.gate.set()
            later.ahead_us = 60_000_000
            async with working(second, other.graph, settings=settings(attempts=5)) as taking:
                assert (await taking.wait(run, 30)).state == "done"
                talk.error = RuntimeError("late")
                runner = losing._worker.runner
                held = runner._working[next(iter(runner._working))]
                held.cancel("rollback")
                await eventually(lambda: not runner._working)
                await asyncio.sleep(0.2)
                said = await spoken(second, talk.graph, "ada")
        assert said == ["turn 0", "echo: turn 0", "hold this", "echo: hold this"]
        assert second.fsck("ada") == []
        assert line.commits

    go(main())


def _fails_before_the_first_checkpoint(line: Line, thread: str = "ada") -> None:
    """The next commit that stores a checkpoint is refused, as if the database were away, once."""
    failed: list[bool] = []

    async def fail(effect: Effect[Any]) -> None:
        puts = isinstance(effect, Commit) and any(op.kind is CHECKPOINT for op in effect.ops)
        if puts and not failed:
            failed.append(True)
            raise Unavailable("the database is away for a moment")

    line.before = fail


def test_a_command_whose_first_attempt_stored_nothing_is_given_again(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = near.open()
        async with working(database, talk.graph) as runtime:
            before = await turns(runtime, 2)
            deadly = asyncio.Event()

            async def die(effect: Effect[Any]) -> None:
                if isinstance(effect, Commit) and any(
                    op.kind.name in ("checkpoint", "write") for op in effect.ops
                ):
                    deadly.set()
                    line.is_dead = True

            line.before = die
            run = await runtime.submit(
                "ada",
                None,
                command={"update": {"messages": [{"role": "user", "content": "told"}]}, "goto": "talk"},
            )
            await asyncio.wait_for(deadly.wait(), 30)
            vanish(runtime, line)
        second, ahead = near.open()
        ahead.ahead_us = 3600 * 1_000_000
        async with working(second, talk.graph) as runtime:
            ended = await runtime.wait(run, 30)
            assert (ended.state, ended.attempts) == ("done", 2)
        assert await spoken(second, talk.graph, "ada") == [*before, "told", "echo: told"]

    go(main())


def test_a_run_from_an_old_checkpoint_whose_first_attempt_stored_nothing_starts_there(
    near: Storage, talk: Talk
) -> None:
    async def main() -> None:
        database, line = near.open()
        async with working(database, talk.graph) as runtime:
            before = await turns(runtime, 3)
            options = Options(checkpoint_id=at(database, talk, 2))
            _fails_before_the_first_checkpoint(line)
            run = await runtime.submit("ada", {"messages": [("user", "instead")]}, options=options)
            ended = await runtime.wait(run, 30)
            assert (ended.state, ended.attempts) == ("done", 2)
        assert await spoken(database, talk.graph, "ada") == [*before[:2], "instead", "echo: instead"]
        assert (await values(database, talk.graph, "ada"))["heard"] == ["turn 0", "instead"]

    go(main())


def test_a_subgraph_that_starts_from_an_old_state_writes_under_the_lease(near: Storage) -> None:
    async def main() -> None:
        agent = Obeying(stateful=True)
        database = near.database()
        app = agent.graph.copy(update={"checkpointer": database.checkpointer()})
        async with working(database, agent.graph) as runtime:
            for text in ("one", "two"):
                said = await runtime.submit("ada", {"messages": [("user", text)]})
                assert (await runtime.wait(said, 30)).state == "done"
            old = next(
                state.config["configurable"]["checkpoint_id"]
                for state in app.get_state_history({"configurable": {"thread_id": "ada"}})
                if len(state.values["messages"]) == 2
            )
            options = Options(checkpoint_id=old)
            said = await runtime.submit("ada", {"messages": [("user", "three")]}, options=options)
            run = await runtime.wait(said, 30)
            assert (run.state, run.attempts) == ("done", 1)
        assert await spoken(database, agent.graph, "ada") == ["one", "echo: one", "three", "echo: three"]

    go(main())


@pytest.mark.parametrize("is_pruned", [True, False], ids=["pruned", "unknown"])
def test_a_run_from_a_checkpoint_that_is_not_stored_fails_at_once_by_name(
    near: Storage, talk: Talk, is_pruned: bool
) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph, settings=settings(attempts=3)) as runtime:
            before = await turns(runtime, 3)
            options = Options(checkpoint_id=at(database, talk, 2) if is_pruned else "1f0-unknown")
            await database.checkpointer().aprune(["ada"])
            run = await runtime.submit("ada", {"messages": [("user", "instead")]}, options=options)
            ended = await runtime.wait(run, 30)
            assert (ended.state, ended.note["kind"], ended.attempts) == ("failed", "MissingStart", 1)
            assert str(options.checkpoint_id) in ended.note["error"]
        assert await spoken(database, talk.graph, "ada") == before

    go(main())


class Asked(TypedDict):
    messages: Annotated[list[Any], add_messages]
    heard: Annotated[list[str], operator.add]


def asking(name: str) -> Any:
    def ask(state: Asked) -> dict[str, Any]:
        answer = interrupt(f"{name}?")
        if answer == "boom":
            raise RuntimeError
        return {"heard": [f"{name}: {answer}"]}

    return ask


def test_tasks_of_a_run_that_was_taken_back_are_not_done(storage: Storage) -> None:
    """Of two that are answered at once one fails: the other's work stands on the head before the run."""
    builder = StateGraph(Asked).add_node("left", asking("left")).add_node("right", asking("right"))
    builder.add_edge(START, "left").add_edge(START, "right")
    here: Any = {"configurable": {"thread_id": "ada"}}

    async def main() -> None:
        database = storage.database()
        async with working(database, builder.compile(), settings=settings(attempts=2)) as runtime:
            assert (await runtime.wait(await runtime.accept("ada", "hello"), 30)).state == "waiting"
            graph = runtime.graph("agent")
            before = await graph.aget_state(here)
            names = {question.value: question.id for question in before.interrupts}
            answers = {names["left?"]: "taken back", names["right?"]: "boom"}
            run = await runtime.wait(await runtime.answer("ada", answers), 30)
            assert (run.state, run.attempts) == ("failed", 2)
            assert await graph.aget_state(here) == before
            again: Command[Any] = Command(resume={names["left?"]: "yes", names["right?"]: "no"})
            state = await graph.ainvoke(again, here)
            assert sorted(state["heard"]) == ["left: yes", "right: no"]
        assert database.fsck("ada") == []

    go(main())
