"""What else happens to a thread that waits: forks, edits, copies, moves, prunes, expiry, messages, rollbacks
and removal; and waits in subgraphs, branches, tasks, side effects and tools."""

from __future__ import annotations

import asyncio
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Send, interrupt

from perdure import SyncDatabase
from perdure.admin import move, new_archive
from perdure.database.base import handle_of
from perdure.engine.checks.fsck_queue import check_queue
from perdure.errors import Conflict, NotFound, NotWaiting, QueueFull, TooLarge
from perdure.model.records import DOCUMENT, LANE, RUN, Partition
from perdure.model.retention_policy import Retention, RetentionRules
from perdure.model.runs.messages import DONE, WAITING
from perdure.model.runs.queue import WAITS
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime import Options, Runtime, ask, effect, sleep, wait_for
from tests.runtime.graphs import (
    HOUR_US,
    Storage,
    advance,
    eventually_stored,
    go,
    settings,
    stored,
    values,
    working,
)
from tests.runtime.nodes.test_question_rules import Scripted
from tests.runtime.nodes.test_waiting import HOUR, Noted, chain, naps, reach, waits, woken

CONFIG: Any = {"configurable": {"thread_id": "t"}}


async def begin(runtime: Runtime, thread: str = "t", given: Any = None) -> None:
    """Run a graph until it waits."""
    run = await runtime.wait(await runtime.submit(thread, {} if given is None else given))
    assert run.state == WAITING


async def stays(runtime: Runtime, count: int, thread: str = "t") -> None:
    """Nothing wakes a thread: it has so many runs, now and after a while."""
    await eventually_stored(lambda: _has_no_timer(runtime, thread))
    await asyncio.sleep(0.3)
    assert len(await runtime.runs(thread)) == count
    assert await handle_of(runtime.database).arun(check_queue(Partition("", thread))) == []


async def _has_no_timer(runtime: Runtime, thread: str) -> bool:
    from perdure.model.ops import Fetch, Get
    from perdure.model.program import ask as perform

    program = perform(Fetch(Partition("", thread), (Get(LANE, (WAITS,)),)))
    return not (await handle_of(runtime.database).arun(program))[0]


def early(storage: Storage, thread: str = "t") -> list[Any]:
    return [row for row in storage.rows(thread, DOCUMENT) if row.key[0] == "signals"]


# ---------------------------------------------------------------- what is done to the thread


async def _forked(runtime: Runtime, database: SyncDatabase) -> None:
    latest = database.timeline("t")[0].checkpoint_id
    database.fork("t", latest)


async def _edited(runtime: Runtime, database: SyncDatabase) -> None:
    await runtime.graph("agent").aupdate_state(CONFIG, {"notes": ["edited"]}, as_node="naps")


@pytest.mark.parametrize("change", [_forked, _edited])
def test_a_fork_and_an_edit_end_a_sleep(near: Storage, change: Any) -> None:
    async def main() -> None:
        database, graph = near.database(), chain(naps, waits)
        async with working(database, graph) as runtime:
            await begin(runtime)
            await change(runtime, database)
            advance(runtime)
            await stays(runtime, 1)
            # Run without input, it goes on from where it is now, and what it begins has times of its own.
            await runtime.wait(await runtime.submit("t", None))
            advance(runtime)
            await reach(runtime, 3, WAITING if change is _forked else DONE)

    go(main())


def test_a_copy_sleeps_until_it_is_run_and_has_no_signal_of_the_original(near: Storage) -> None:
    async def main() -> None:
        database, graph = near.database(), chain(naps, waits)
        async with working(database, graph) as runtime:
            await begin(runtime)
            await runtime.signal("t", "paid", 7)
            await runtime.threads.copy("t", "copy")
            assert early(near)
            assert not early(near, "copy")
            advance(runtime)
            await reach(runtime, 3, DONE)
            assert not await runtime.runs("copy")
            assert (await runtime.wait(await runtime.submit("copy", None))).state == WAITING
            advance(runtime)
            await reach(runtime, 2, WAITING, "copy")
            assert woken(near, "copy") == [True]
            await runtime.signal("copy", "paid", 8)
            await reach(runtime, 3, DONE, "copy")
        assert (await values(database, graph, "t"))["notes"] == ["slept", 7]
        assert (await values(database, graph, "copy"))["notes"] == ["slept", 8]

    go(main())


def test_pruned_kept_and_swept_a_thread_wakes_as_it_was(near: Storage) -> None:
    async def main() -> None:
        database, graph = near.database(), chain(naps, waits)
        async with working(database, graph, settings=settings(keep=0.001)) as runtime:
            await begin(runtime)
            await runtime.threads.keep_latest("t")
            await database.checkpointer().aprune(["t"], strategy="keep_latest")
            database.tag("t", "here")
            rules = RetentionRules(Retention(keep_last=1, idle=0.001, keep_tagged=False))
            for _ in range(2):
                database.apply_retention(RetentionOptions(share=1.0, rules=rules))
            advance(runtime)
            await reach(runtime, 2, WAITING)
            advance(runtime)
            await reach(runtime, 3, DONE)
            assert database.fsck("t") == []
        assert (await values(database, graph, "t"))["notes"] == ["slept", None]

    go(main())


def test_a_thread_whose_signal_has_no_deadline_expires_as_any_with_a_question(near: Storage) -> None:
    async def ever(state: Noted) -> dict[str, Any]:
        return {"notes": [await wait_for("go")]}

    async def main() -> None:
        database = near.database()
        async with working(database, chain(ever)) as runtime:
            await begin(runtime)
            await stays(runtime, 1)
            rules = RetentionRules(Retention(idle=0.001))
            await asyncio.sleep(0.05)
            database.apply_retention(RetentionOptions(share=1.0, rules=rules))
            with pytest.raises(NotFound):
                await runtime.signal("t", "go")

    go(main())


@pytest.mark.parametrize("how", ["message", "end", "delete", "rollback"])
def test_a_sleep_is_over_when_something_else_comes(near: Storage, how: str) -> None:
    async def main() -> None:
        database, graph = near.database(), chain(naps)
        async with working(database, graph) as runtime:
            await begin(runtime)
            (run,) = await runtime.runs("t")
            if how == "message":
                await runtime.wait(await runtime.submit("t", {"notes": ["more"]}))
                advance(runtime, HOUR_US // 2)
                await stays_waiting(runtime, 2)
                advance(runtime)
                await reach(runtime, 3, DONE)
                assert (await values(database, graph, "t"))["notes"] == ["more", "slept"]
                return
            if how == "end":
                ended = await runtime.wait(await runtime.submit("t", None, command={"goto": "__end__"}))
                assert ended.state == DONE
            elif how == "delete":
                await runtime.delete("t")
            else:
                await runtime.remove_run("t", run, rollback=True)
            left = len(await runtime.runs("t"))
            advance(runtime)
            await stays(runtime, left)
            if how == "delete":
                assert near.rows("t") == []
                with pytest.raises(NotFound, match="there is no thread"):
                    await runtime.signal("t", "paid")
                assert near.rows("t") == []

    go(main())


async def stays_waiting(runtime: Runtime, count: int) -> None:
    await asyncio.sleep(0.4)
    runs = await runtime.runs("t")
    assert (len(runs), runs[0].state) == (count, WAITING)


def test_a_rolled_back_message_returns_to_the_sleep_with_its_time(near: Storage) -> None:
    async def dozes(state: Noted) -> dict[str, Any]:
        if "past it" not in state.get("notes", []):
            await sleep(HOUR)
        return {"notes": ["slept"]}

    async def main() -> None:
        database, graph = near.database(), chain(dozes)
        async with working(database, graph) as runtime:
            await begin(runtime)
            await runtime.wait(await runtime.submit("t", {"notes": ["past it"]}))
            past, _ = await runtime.runs("t")
            assert past.state == DONE
            await runtime.remove_run("t", past, rollback=True)
            assert await runtime.question("t") is None
            row = await runtime.threads.get("t")
            assert (row.status, row.is_asleep) == ("interrupted", True)
            with pytest.raises(NotWaiting, match="sleeps or waits"):
                await runtime.answer("t", "wake up")
            advance(runtime)
            await reach(runtime, 2, DONE)
        assert (await values(database, graph, "t"))["notes"] == ["slept"]

    go(main())


def test_an_answer_without_an_id_is_for_the_question_beside_a_sleep(near: Storage) -> None:
    async def asks(state: Noted) -> dict[str, Any]:
        return {"notes": [interrupt("well?")]}

    builder = StateGraph(Noted)
    for node in (asks, naps):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)

    async def main() -> None:
        database, graph = near.database(), builder.compile()
        async with working(database, graph) as runtime:
            await begin(runtime)
            assert (await runtime.wait(await runtime.answer("t", "yes"))).state == WAITING
            with pytest.raises(NotWaiting, match="sleeps or waits"):
                await runtime.answer("t", "again")
            advance(runtime)
            await reach(runtime, 3, DONE)
        assert sorted((await values(database, graph, "t"))["notes"]) == ["slept", "yes"]

    go(main())


# ---------------------------------------------------------------- other databases


def test_a_thread_that_waits_is_not_moved_and_one_that_is_over_is(tmp_path: Path) -> None:
    async def main(here: Storage, there: Storage) -> None:
        database, other, graph = here.database(), there.database(), chain(naps, waits)
        async with working(database, graph) as runtime:
            await begin(runtime)
            for target in (other, tmp_path / "out"):
                with pytest.raises(Conflict, match="its wait come to its end"):
                    _move(database, target)
            advance(runtime)
            await reach(runtime, 2, WAITING)
            await runtime.signal("t", "paid", 7)
            await reach(runtime, 3, DONE)
            # It came when nothing waited, and is the thread's: it moves with it.
            await runtime.signal("t", "paid", 8)
        move(database, Partition("", "t"), other)
        async with working(other, graph) as runtime:
            await begin(runtime)
            advance(runtime)
            await reach(runtime, 3, DONE)
        assert (await values(other, graph, "t"))["notes"] == ["slept", 7, "slept", 8]

    with stored("sqlite") as here, stored("memory") as there:
        asyncio.run(main(here, there))


def _move(database: SyncDatabase, target: SyncDatabase | Path) -> None:
    if isinstance(target, SyncDatabase):
        move(database, Partition("", "t"), target)
        return
    with new_archive(target) as archive:
        move(database, Partition("", "t"), archive)


def test_what_is_waited_for_is_encrypted_where_the_database_is(tmp_path: Path) -> None:
    secret = "a-word-that-nobody-shall-read"

    async def hides(state: Noted) -> dict[str, Any]:
        return {"notes": [ask(secret, within=HOUR, default=secret, remind=HOUR / 2), await wait_for("go")]}

    async def main() -> None:
        import perdure

        path = tmp_path / "sealed.db"
        with perdure.connect_sync(f"sqlite:///{path}", migrate=True, encryption_key=b"k" * 32) as database:
            async with working(database, chain(hides)) as runtime:
                await begin(runtime)
                advance(runtime, HOUR_US // 2)
                await asyncio.sleep(0.5)
                await runtime.signal("t", "other", secret, key=secret)
                advance(runtime)
                await reach(runtime, 2, WAITING)
                await runtime.signal("t", "go", secret)
                await reach(runtime, 3, DONE)

    go(main())
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes(), file.name


# ---------------------------------------------------------------- places of waits


class Fanned(TypedDict, total=False):
    number: int
    notes: Annotated[list[Any], operator.add]


def test_fifty_waits_of_a_fan_end_each_at_its_time(near: Storage) -> None:
    async def one(state: Fanned) -> dict[str, Any]:
        number = state["number"]
        if number % 3 == 0:
            await sleep(HOUR if number < 25 else 2 * HOUR)
            return {"notes": [number]}
        if number % 3 == 1:
            return {"notes": [ask(f"{number}?", within=HOUR, default=number)]}
        return {"notes": [await wait_for(f"go {number}", within=2 * HOUR, default=number)]}

    builder = StateGraph(Fanned)
    builder.add_node("one", one)
    builder.add_conditional_edges(START, lambda state: [Send("one", {"number": n}) for n in range(50)])

    async def main() -> None:
        database, graph = near.database(), builder.compile()
        async with working(database, graph) as runtime:
            await begin(runtime)
            await runtime.signal("t", "go 2", "early")
            await reach(runtime, 2, WAITING)
            advance(runtime)
            await reach(runtime, 3, WAITING)
            advance(runtime)
            await reach(runtime, 4, DONE)
        notes = (await values(database, graph, "t"))["notes"]
        assert [*map(str, notes)] == [*map(str, [0, 1, "early", *range(3, 50)])]

    go(main())


def _below(node: Any, *, keeps: bool | None = None) -> Pregel[Any, Any, Any, Any]:
    inner = StateGraph(Noted).add_node("inner", node).add_edge(START, "inner").compile(checkpointer=keeps)
    return StateGraph(Noted).add_node("below", inner).add_edge(START, "below").compile()


@pytest.mark.parametrize("keeps", [None, True])
def test_a_wait_in_a_subgraph_ends(near: Storage, keeps: bool | None) -> None:
    async def node(state: Noted) -> dict[str, Any]:
        answer = ask("well?", within=HOUR, default="late")
        await sleep(HOUR)
        return {"notes": [answer, await wait_for("go", within=HOUR, default="never")]}

    async def main() -> None:
        database, graph = near.database(), _below(node, keeps=keeps)
        async with working(database, graph) as runtime:
            await begin(runtime)
            for runs in (2, 3):
                advance(runtime)
                await reach(runtime, runs, WAITING)
            await runtime.signal("t", "go", "went")
            await reach(runtime, 4, DONE)
        assert (await values(database, graph, "t"))["notes"] == ["late", "went"]

    go(main())


def test_a_task_of_the_functional_api_waits_and_those_before_it_are_not_repeated(near: Storage) -> None:
    calls: list[str] = []

    @task
    async def counts(name: str) -> str:
        calls.append(name)
        return name

    @task
    async def pauses() -> Any:
        await sleep(HOUR)
        return await wait_for("go", within=HOUR, default="late")

    @entrypoint()
    async def workflow(given: dict[str, Any]) -> list[Any]:
        return [await counts("a"), await pauses(), await counts("b")]

    async def main() -> None:
        async with working(near.database(), workflow) as runtime:
            await begin(runtime)
            advance(runtime)
            await reach(runtime, 2, WAITING)
            await runtime.signal("t", "go", "went")
            await reach(runtime, 3, DONE)
            state = await runtime.graph("agent").aget_state(CONFIG)
        assert calls == ["a", "b"]
        assert state.values == ["a", "went", "b"]

    go(main())


def test_a_side_effect_that_asks_is_recorded_with_its_answer(near: Storage) -> None:
    calls: list[Any] = []

    async def pays() -> Any:
        answer = ask("pay?", within=HOUR, default="no")
        calls.append(answer)
        return answer

    async def node(state: Noted) -> dict[str, Any]:
        paid = await effect(pays)
        await sleep(HOUR)
        return {"notes": [paid]}

    async def main() -> None:
        database, graph = near.database(), chain(node)
        async with working(database, graph) as runtime:
            await begin(runtime)
            advance(runtime)
            await reach(runtime, 2, WAITING)
            advance(runtime)
            await reach(runtime, 3, DONE)
        assert (await values(database, graph, "t"))["notes"] == ["no"]
        assert calls == ["no"]

    go(main())


def test_a_tool_of_an_agent_waits(near: Storage) -> None:
    @tool
    async def delivery(order: str) -> str:
        """Wait for the delivery of an order."""
        await sleep(HOUR)
        return str(await wait_for(f"delivered {order}", within=HOUR, default="lost"))

    def call(order: str) -> dict[str, Any]:
        return {"name": "delivery", "args": {"order": order}, "id": order}

    model = Scripted(responses=[AIMessage("", tool_calls=[call("a"), call("b")]), AIMessage("told")])

    async def main() -> None:
        database, graph = near.database(), create_agent(model, [delivery])
        async with working(database, graph) as runtime:
            await begin(runtime, given={"messages": [("user", "where is it?")]})
            assert await runtime.question("t") is None
            advance(runtime)
            await reach(runtime, 2, WAITING)
            await runtime.signal("t", "delivered b", "at the door")
            await reach(runtime, 3, WAITING)
            advance(runtime)
            await reach(runtime, 4, DONE)
        messages = (await values(database, graph, "t"))["messages"]
        assert [each.text for each in messages][2:] == ["lost", "at the door", "told"]

    go(main())


# ---------------------------------------------------------------- signals nobody hoped for


def test_signals_that_nothing_waits_for_are_bounded(memory: Storage) -> None:
    async def main() -> None:
        async with working(memory.database(), chain(naps)) as runtime:
            await begin(runtime)
            with pytest.raises(TooLarge):
                await runtime.signal("t", "n", "x" * 1_000_000)
            refused = 0
            for n in range(10_000):
                try:
                    await runtime.signal("t", f"n{n}", n)
                except QueueFull:
                    refused += 1
            assert refused == 9_900
            (row,) = early(memory)
            assert len(row.body) < 256 * 1024

    go(main())


@pytest.mark.parametrize("name", ["a/b", "ü", "\x00\n", "..", "%2F", "🙂" * 100, " "])
def test_a_signal_has_any_name(near: Storage, name: str) -> None:
    async def node(state: Noted) -> dict[str, Any]:
        return {"notes": [await wait_for(name), await wait_for(name)]}

    async def main() -> None:
        database, graph = near.database(), chain(node)
        async with working(database, graph) as runtime:
            await begin(runtime)
            await runtime.signal("t", name, 1, key=name)
            await reach(runtime, 2, WAITING)
            # A key counts once, and its first value is the one that counts.
            assert (await runtime.signal("t", name, 2, key=name)).is_duplicate
            await runtime.signal("t", name, 3, key=f"{name}2")
            await reach(runtime, 3, DONE)
        assert (await values(database, graph, "t"))["notes"] == [1, 3]

    go(main())


def test_a_signal_to_a_thread_that_is_deleted_at_that_moment_leaves_nothing(memory: Storage) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with working(database, chain(naps)) as runtime:
            await runtime.threads.create("t", {})
            deleted = asyncio.Event()

            def delete(number: int, when: str) -> None:
                if when == "before" and not deleted.is_set():
                    deleted.set()
                    memory.database().checkpointer().delete_thread("t")

            line.on_commit = delete
            with pytest.raises(NotFound):
                await runtime.signal("t", "n")
            assert memory.rows("t") == []

    go(main())


def test_a_run_has_its_options_when_a_deadline_goes_on_with_it(near: Storage) -> None:
    seen: list[Any] = []

    async def node(state: Noted, config: RunnableConfig) -> dict[str, Any]:
        seen.append(config["configurable"].get("mood"))
        await sleep(HOUR)
        return {"notes": ["slept"]}

    async def main() -> None:
        async with working(near.database(), chain(cast(Any, node)), settings=settings(keep=0.001)) as runtime:
            options = Options(config={"configurable": {"mood": "calm"}})
            await runtime.wait(await runtime.submit("t", {}, options=options))
            advance(runtime)
            await reach(runtime, 2, DONE)
        assert set(seen) == {"calm"}
        assert len(near.rows("t", RUN)) >= 1

    go(main())
