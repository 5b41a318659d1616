"""A run that waits, or that may be continued, moves with all that a later run of its thread reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.retention import queue_retention
from perdure.errors import Unavailable
from perdure.model.records import DEDUPE, EFFECT, INBOX, RUN, Partition
from perdure.model.runs.messages import DONE, FAILED, WAITING, Run
from perdure.runtime import Runtime, effect, effects, sleep
from perdure.storage.port import CommitLimits
from perdure.testing.conformance.backend import at as place
from perdure.testing.conformance.backend import put
from perdure.testing.faults import ALL, Fault, FaultyDriver, fail
from tests.backends import BACKENDS
from tests.engine.transfer.test_transfer import Narrow, assert_sound, database, in_memory, opened, rows
from tests.runtime.graphs import advance, eventually_stored, go, settings
from tests.runtime.nodes.test_waiting import HOUR, Noted, chain

HERE = Partition("", "t")
ONCE = settings(attempts=1, on_failure="keep")
KINDS = ["question", "two questions", "sleep", "failure"]


def paying(calls: list[int], kind: str) -> Any:
    """A graph of one node whose step calls, and stops after that in one of several ways."""

    async def charge(amount: int) -> int:
        calls.append(amount)
        return len(calls)

    async def pay(state: Noted) -> dict[str, Any]:
        receipts = [await effect(charge, 12)]
        if kind == "sleep":
            await sleep(HOUR)
        elif kind == "failure" and not state.get("notes") and len(calls) == 1:
            calls.append(0)
            raise RuntimeError("the step fails after its effect")
        elif kind != "failure":
            interrupt("sure?")
        if kind == "two questions":
            receipts.append(await effects(charge, number=1)(30))
            interrupt("really?")
        return {"notes": receipts}

    async def start(state: Noted) -> dict[str, Any]:
        return {"notes": []}

    return chain(start, pay)


def begin(db: perdure.SyncDatabase, graph: Any, kind: str) -> None:
    """Let a thread come to a stop, at its second question if it has two."""

    async def main() -> None:
        async with Runtime(db, graph, settings=ONCE) as runtime:
            run = await runtime.wait(await runtime.submit("t", {}))
            if kind == "two questions":
                run = await runtime.wait(await runtime.answer("t", "yes"))
            assert run.state == (FAILED if kind == "failure" else WAITING)

    go(main())


def go_on(db: perdure.SyncDatabase, graph: Any, kind: str) -> list[Any]:
    """Let a thread go on to its end, and return what it has noted."""

    async def main() -> list[Any]:
        async with Runtime(db, graph, settings=ONCE) as runtime:
            if kind == "sleep":
                advance(runtime)
            elif kind == "failure":
                await runtime.submit("t", None)
            else:
                await runtime.answer("t", "yes")

            async def is_done() -> bool:
                return (await runtime.runs("t", limit=1))[0].state == DONE

            await eventually_stored(is_done)
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "t"}})
            notes: list[Any] = state.values["notes"]
            return notes

    return go(main())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_effect_is_not_repeated_at_the_target(backend: str, kind: str) -> None:
    calls: list[int] = []
    graph = paying(calls, kind)
    source = in_memory()
    begin(source, graph, kind)
    before = list(calls)
    with opened(backend) as target:
        admin.move(source, HERE, target, hand_over=kind == "sleep")
        assert go_on(target, graph, kind) == ([1, 2] if kind == "two questions" else [1])
        assert calls == before
        assert_sound(target)
        # Nothing of it outlives the runs.
        handle, later = handle_of(target), 1 << 62
        while handle.run(queue_retention.forget(HERE, later, handle.budget.ops)):
            pass
        (newest,) = map(Run.read, rows(target, HERE, RUN))
        assert handle.run(queue_retention.remove(HERE, newest, handle.budget.ops))
        for kept in (EFFECT, RUN, INBOX, DEDUPE):
            assert rows(target, HERE, kept) == (), kept.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_has_the_recorded_effects_and_a_later_move_takes_them_along(tmp_path: Path, kind: str) -> None:
    calls: list[int] = []
    graph = paying(calls, kind)
    source, between, target = in_memory(), in_memory(), in_memory()
    begin(source, graph, kind)
    before = list(calls)
    with admin.new_archive(tmp_path / "t.perdure") as archive:
        admin.move(source, HERE, archive, hand_over=True)
    with admin.open_archive(tmp_path / "t.perdure") as archive:
        admin.move(archive, HERE, between)
    admin.move(between, HERE, target, hand_over=True)
    assert go_on(target, graph, kind) == ([1, 2] if kind == "two questions" else [1])
    assert calls == before


def test_no_effect_is_left_of_a_move_that_was_cut_short_and_given_up() -> None:
    graph = paying([], "question")
    source = in_memory()
    begin(source, graph, "question")
    seen = 0
    for number in range(1, 60):
        target = in_memory()
        cut = database(FaultyDriver(handle_of(target).driver, Fault(number, fail("unavailable")), counts=ALL))
        try:
            admin.move(source, HERE, cut)
        except Unavailable:
            seen += bool(rows(target, HERE, EFFECT))
            # The thread that is begun at the name has nothing of it.
            put(target.checkpointer(), place(thread="t"), "c1")
            assert rows(target, HERE, EFFECT) == ()
        else:
            break
    assert seen


@pytest.mark.parametrize(("ops", "known"), [(1000, 12), (30, 5)])
def test_the_messages_of_a_run_are_the_same_for_those_who_send_them_again(ops: int, known: int) -> None:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("sure?"))]}

    graph = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()
    source, target = in_memory(), in_memory(wrap=lambda each: Narrow(each, CommitLimits(ops, 1 << 20)))

    async def send(db: perdure.SyncDatabase) -> list[bool]:
        async with Runtime(db, graph, settings=ONCE) as runtime:
            sent = [
                await runtime.accept("t", str(n), dedupe_key=f"k{n}", debounce=0.5, max_wait=5)
                for n in range(12)
            ]
            await runtime.wait(sent[0])
            return [ticket.is_duplicate for ticket in sent]

    assert go(send(source)) == [False] * 12
    admin.move(source, HERE, target)
    assert len(rows(target, HERE, RUN)) == 1
    assert len(rows(target, HERE, DEDUPE)) == known
    assert_sound(target)
    # What one commit does not hold is left out, the oldest first, except the first one.
    are_known = go(send(target))
    assert are_known[0]
    assert are_known[-1]
    assert all(are_known) == (ops == 1000)
