"""What runs tell: each event once and in order, from memory or from the log, from any process, to the end.

Covers perdure.runtime.events.outgoing.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.database.base import handle_of
from perdure.engine.queue import events
from perdure.engine.queue.events import Event
from perdure.engine.queue.runs import EXCUSES_MOST
from perdure.engine.transact import Budget
from perdure.errors import NotFound, SubscriberTooSlow, Unavailable
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import EVENT, LANE, Partition
from perdure.model.runs.messages import NODE, TRACEBACK, VERSION
from perdure.runtime import Options, Runtime, Standing, StreamOptions, Ticket
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.events import publisher
from tests.runtime.graphs import HOUR_US, Storage, Talk, eventually, go, settings, vanish, working

TOLD = Options(stream=StreamOptions(modes=("values", "updates", "tasks")))


async def told(runtime: Runtime, ticket: Ticket, after: int = 0) -> tuple[list[Event], Standing]:
    """Everything that a run tells after a number, and its end."""
    heard: list[Event] = []
    async for item in runtime.for_tenant(ticket.tenant).follow(ticket.thread_id, ticket.id, after=after):
        if isinstance(item, Standing):
            return heard, item
        heard.append(item)
    raise AssertionError("a run was followed to no end")


async def say(runtime: Runtime, text: str, options: Options = TOLD) -> Ticket:
    return await runtime.submit("ada", {"messages": [{"role": "user", "content": text}]}, options=options)


def names(heard: list[Event]) -> list[str]:
    return [event.name for event in heard]


def test_a_run_is_followed_from_its_own_process_and_from_another(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        here, there = storage.database(), storage.database()
        async with working(here, talk.graph) as works, working(there, talk.graph, works=False) as looks:
            ticket = await say(looks, "hold on")
            near, far = asyncio.create_task(told(works, ticket)), asyncio.create_task(told(looks, ticket))
            await eventually(lambda: talk.under_way)
            talk.gate.set()
            (heard, ended), (elsewhere, ended_there) = await near, await far
        assert names(heard) == ["metadata", "values", *["tasks", "updates", "tasks", "values"] * 2]
        assert [e.seq for e in heard] == sorted({e.seq for e in heard})
        assert heard == elsewhere
        assert json.loads(heard[0].data) == {"run_id": ticket.id, "attempt": 1}
        assert json.loads(heard[-1].data)["messages"][-1]["content"] == "echo: hold on"
        assert ended.run is not None
        assert ended_there.run is not None
        assert (ended.run.state, ended_there.run.state) == ("done", "done")

    go(main())


def test_who_comes_back_goes_on_after_what_was_heard_last(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = storage.database()
        async with working(database, talk.graph) as runtime:
            ticket = await say(runtime, "one")
            whole, _ = await told(runtime, ticket)
            for heard in (0, 3, len(whole) - 1):
                rest, standing = await told(runtime, ticket, whole[heard].seq)
                assert rest == whole[heard + 1 :]
                assert standing.is_over
            assert await runtime.latest_event("ada") > whole[-1].seq, "the end has a number, too"
            second, _ = await told(runtime, await say(runtime, "two"))
            assert second[0].seq > whole[-1].seq
        async with working(storage.database(), talk.graph, works=False) as later:
            assert (await told(later, ticket))[0] == whole, "a process that came after it reads the log"
            with pytest.raises(NotFound, match="no run"):
                await told(later, ticket._replace(id="nobody's"))

    go(main())


def test_the_next_attempt_tells_behind_what_the_first_one_told(storage: Storage) -> None:
    async def main() -> None:
        database, line = storage.open()
        first, second = Talk("first"), Talk("second")
        second.gate.set()
        async with working(storage.database(), second.graph, works=False) as looks:
            async with asyncio.timeout(60):
                lost = Runtime(database, {"agent": first.graph}, settings=settings(), observers=())
                await lost.__aenter__()
                ticket = await say(looks, "hold on")
                await eventually(lambda: first.under_way)
                await eventually(lambda: storage.rows("ada", EVENT))
                vanish(lost, line)
            taking, later = storage.open()
            later.ahead_us = HOUR_US
            async with Runtime(taking, {"agent": second.graph}, settings=settings(), observers=()):
                heard, standing = await told(looks, ticket)
        attempts = [json.loads(e.data)["attempt"] for e in heard if e.name == "metadata"]
        assert attempts == [1, 2]
        assert [e.seq for e in heard] == sorted({e.seq for e in heard})
        assert standing.run is not None
        assert (standing.run.state, standing.run.attempts) == ("done", 2)
        said = json.loads(heard[-1].data)["messages"]
        assert [m["content"] for m in said] == ["hold on", "second: hold on"]

    go(main())


def test_what_is_not_kept_is_told_here_and_leaves_nothing(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph) as runtime:
            mine = Options(stream=StreamOptions(modes=("values",), kept=False, by=runtime.name))
            ticket = await say(runtime, "hold on", mine)
            listening = asyncio.create_task(told(runtime, ticket))
            await eventually(lambda: talk.under_way)
            talk.gate.set()
            heard, _ = await listening
            assert names(heard) == ["metadata", "values", "values", "values"]
            assert near.rows("ada", EVENT) == []

    go(main())


def test_what_another_process_asked_to_be_told_is_stored_for_it(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        here, there = storage.database(), storage.database()
        async with working(here, talk.graph), working(there, talk.graph, works=False) as looks:
            mine = Options(stream=StreamOptions(modes=("values",), kept=False, by=looks.name))
            heard, _ = await told(looks, await say(looks, "hello", mine))
        assert names(heard) == ["metadata", "values", "values", "values"]

    go(main())


def test_a_stale_holder_tells_nothing_more(near: Storage) -> None:
    async def main() -> None:
        database = near.database()
        partition = Partition("", "ada")
        event = Event(7, "run", "values", "{}")
        with pytest.raises(Exception, match="not held under epoch"):
            await handle_of(database).arun(events.append(partition, "run", [event], 3, Budget(100, 1 << 20)))
        assert near.rows("ada", EVENT) == []

    go(main())


def test_a_long_event_comes_back_whole(storage: Storage) -> None:
    class Long(MessagesState):
        pass

    text = "ünbelievably löng ✂ " * 25_000

    def speak(state: Long) -> dict[str, Any]:
        return {"messages": [AIMessage(text), AIMessage("short")]}

    builder = StateGraph(Long)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")

    async def main() -> None:
        database = storage.database()
        async with working(database, builder.compile()) as runtime:
            ticket = await say(runtime, "go")
            near, _ = await told(runtime, ticket)
        async with working(storage.database(), builder.compile(), works=False) as later:
            far, _ = await told(later, ticket)
        assert far == near
        assert json.loads(far[-1].data)["messages"][1]["content"] == text

    go(main())


def test_who_is_too_slow_for_what_is_not_kept_is_told_so(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_HELD_BYTES", 2000)

    async def main() -> None:
        database = memory.database()
        async with working(database, talk.graph) as runtime:
            mine = Options(stream=StreamOptions(modes=("values", "tasks"), kept=False, by=runtime.name))
            ticket = await say(runtime, "hold " + "x" * 500, mine)
            following = runtime.follow("ada", ticket.id)
            first = await anext(following)
            assert isinstance(first, Event)
            await eventually(lambda: talk.under_way)
            talk.gate.set()
            await runtime.wait(ticket, 30)
            with pytest.raises(SubscriberTooSlow, match="faster than they are read"):
                async for _ in following:
                    pass

    go(main())


def _stores_events(effect: Any) -> bool:
    kinds = {op.kind for op in getattr(effect, "ops", ())}
    return EVENT in kinds and LANE not in kinds


def test_what_was_told_while_the_database_was_away_is_told_elsewhere_when_it_is_back(
    memory: Storage, talk: Talk
) -> None:
    """Also when it had been stored, and only the answer was lost."""

    async def main() -> None:
        database, line = memory.open()
        elsewhere, other = memory.open()
        away = 0

        async def refuse(effect: Any) -> None:
            nonlocal away
            if _stores_events(effect) and away < 3:
                away += 1
                if away == 2:
                    await other.aperform(effect)
                raise Unavailable("away")

        line.before = refuse
        async with (
            working(database, talk.graph) as runtime,
            working(elsewhere, talk.graph, works=False) as looks,
        ):
            ticket = await say(runtime, "hello")
            near, far = await asyncio.gather(told(runtime, ticket), told(looks, ticket))
        assert away == 3
        assert near[0] == far[0]
        assert names(far[0]).count("metadata") == 1, "the run was taken for lost"
        assert names(far[0])[-1] == "values"

    go(main())


def test_a_database_that_is_away_costs_the_log_and_not_the_run(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_AWAY_S", 0.3)

    async def main() -> None:
        database, line = memory.open()

        async def refuse(effect: Any) -> None:
            if _stores_events(effect):
                raise Unavailable("away")

        line.before = refuse
        async with working(database, talk.graph) as runtime:
            ticket = await say(runtime, "hello")
            heard, standing = await told(runtime, ticket)
            assert standing.run is not None
            assert standing.run.state == "done"
            assert names(heard)[-1] == "values"

    go(main())


def test_what_was_told_is_forgotten_when_its_time_is_over(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph, settings=settings(keep_events=300.0)) as runtime:
            before, _ = await told(runtime, await say(runtime, "one"))
            await told(runtime, await say(runtime, "two"))
        assert len(storage.rows("ada", EVENT)) > 2
        assert [lane.key[0] for lane in storage.rows("ada", LANE)] == ["inbox", "told"]
        later, line = storage.open()
        line.ahead_us = HOUR_US
        async with working(later, talk.graph, settings=settings(keep_events=300.0)) as runtime:
            await eventually(lambda: len(storage.rows("ada", EVENT)) == 1)
            assert [lane.key[0] for lane in storage.rows("ada", LANE)] == ["inbox"], "nothing is due any more"
            after, _ = await told(runtime, await say(runtime, "three"))
        assert after[0].seq > before[-1].seq
        assert names(after)[0] == "metadata"

    go(main())


def test_what_a_run_tells_stays_while_it_is_open(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = near.open()
        async with working(database, talk.graph, settings=settings(keep_events=300.0)) as runtime:
            await told(runtime, await say(runtime, "one"))
            ticket = await say(runtime, "hold on")
            await eventually(lambda: talk.under_way)
            await eventually(lambda: len({r.fields["run_id"] for r in near.rows("ada", EVENT)}) == 2)
            line.ahead_us = HOUR_US
            now = line.ahead_us + await DatabaseClock(lambda: handle_of(database).arun(ask(Now()))).now()
            budget = Budget(handle_of(database).limits.ops, handle_of(database).limits.bytes)
            while await handle_of(database).arun(events.forget(Partition("", "ada"), now, 1, budget)):
                pass
            assert {r.fields["run_id"] for r in near.rows("ada", EVENT)} == {ticket.id}
            talk.gate.set()
            heard, _ = await told(runtime, ticket)
            assert [lane.key[0] for lane in near.rows("ada", LANE)] == ["inbox", "told"]
        assert names(heard)[0] == "metadata"

    go(main())


# ---------------------------------------------------------------- where a run starts, and taking back


def test_a_run_may_start_from_an_older_checkpoint(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = storage.database()
        async with working(database, talk.graph) as runtime:
            await runtime.wait(await say(runtime, "one"), 30)
            graph = runtime.graph("agent")
            here = await graph.aget_state({"configurable": {"thread_id": "ada"}})
            await runtime.wait(await say(runtime, "two"), 30)
            older = here.config["configurable"]["checkpoint_id"]
            ticket = await say(runtime, "another two", Options(checkpoint_id=older))
            run = await runtime.wait(ticket, 30)
            assert run.state == "done"
            state = await graph.aget_state({"configurable": {"thread_id": "ada"}})
            said = [m.text for m in state.values["messages"]]
            assert said == ["one", "echo: one", "another two", "echo: another two"]

    go(main())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fork_is_made_once_wherever_its_worker_ends(near: Storage, number: int, when: str) -> None:
    async def main() -> None:
        database = near.database()
        first = Talk()
        async with working(database, first.graph) as runtime:
            await runtime.wait(await say(runtime, "one"), 30)
            here = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            await runtime.wait(await say(runtime, "two"), 30)
        older = here.config["configurable"]["checkpoint_id"]
        dying, line = near.open()
        lost = Runtime(dying, {"agent": Talk().graph}, settings=settings(lease=0.4), observers=())
        await lost.__aenter__()
        line.die_at(number, when)
        async with working(database, Talk().graph, works=False) as looks:
            ticket = await say(looks, "fork", Options(checkpoint_id=older))
            await asyncio.sleep(0.4)
            vanish(lost, line)
            async with Runtime(database, {"agent": Talk().graph}, settings=settings(lease=0.4), observers=()):
                run = await looks.wait(ticket, 30)
                assert run.state == "done"
            graph = looks.graph("agent")
            state = await graph.aget_state({"configurable": {"thread_id": "ada"}})
            assert [m.text for m in state.values["messages"]] == ["one", "echo: one", "fork", "echo: fork"]
            forks = [
                s
                async for s in graph.aget_state_history(
                    {"configurable": {"thread_id": "ada"}}, filter={"run_id": ticket.id}
                )
            ]
            steps = [s.metadata["step"] for s in forks if s.metadata is not None]
            assert all(a == b + 1 for a, b in pairwise(steps)), "one chain, and no second beginning"

    go(main())


def test_a_message_that_waits_can_be_taken_back(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        here, there = storage.database(), storage.database()
        async with working(here, talk.graph) as works, working(there, talk.graph, works=False) as looks:
            under_way = await say(works, "hold on")
            await eventually(lambda: talk.under_way)
            unwanted, wanted = await say(works, "unwanted"), await say(works, "wanted")
            assert await looks.withdraw("ada", unwanted.id)
            assert await looks.withdraw("ada", unwanted.id), "again is as well"
            assert not await looks.withdraw("ada", under_way.id), "it does not wait any more"
            assert not await looks.withdraw("ada", "nobody's")
            standing = await looks.find("ada", unwanted.id)
            assert standing is not None
            assert standing.is_over
            talk.gate.set()
            assert (await works.wait(wanted, 30)).state == "done"
            assert (await works.wait(unwanted, 30)).state == "interrupted"
            _, ended = await told(looks, unwanted)
            assert ended.is_over
        assert [said for _, said in talk.calls] == ["hold on", "wanted"]

    go(main())


def test_an_answer_that_is_taken_back_leaves_the_question_open(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph) as runtime:
            assert (await runtime.wait(await say(runtime, "ask"), 30)).state == "waiting"
        async with working(near.database(), talk.graph, works=False) as accepts:
            first = await accepts.answer("ada", "no")
            assert await accepts.withdraw("ada", first.id)
            second = await accepts.answer("ada", "yes")
        async with working(database, talk.graph) as runtime:
            assert (await runtime.wait(second, 30)).state == "done"
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert state.values["messages"][-1].text == "echo: you said yes"

    go(main())


def test_inputs_that_go_together_become_one_run(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(near.database(), talk.graph, works=False) as accepts:
            tickets = [
                await accepts.submit(
                    "ada", {"messages": [{"role": "user", "content": text}]}, coalesce=True, options=TOLD
                )
                for text in ("one", "two", "three")
            ]
            assert {await accepts.run_id(ticket) for ticket in tickets} == {tickets[0].id}
        async with working(database, talk.graph) as runtime:
            assert {(await runtime.wait(ticket, 30)).id for ticket in tickets} == {tickets[0].id}
            assert {await runtime.run_id(ticket) for ticket in tickets} == {tickets[0].id}
        assert [said for _, said in talk.calls] == ["one + two + three"]

    go(main())


def test_a_run_can_be_told_to_fail_at_once_and_keep_what_it_stored(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph) as runtime:
            at_once = Options(attempts=1, on_failure="keep")
            run = await runtime.wait(await say(runtime, "boom", at_once), 30)
            assert (run.state, run.attempts) == ("failed", 1)
            noted = {NODE: "talk", TRACEBACK: run.note[TRACEBACK], VERSION: run.graph_version}
            assert run.note == {"error": "RuntimeError: boom", "kind": "RuntimeError", **noted}
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert [m.text for m in state.values["messages"]] == ["boom"]
            assert state.next == ("talk",)

    go(main())


def test_that_the_database_was_away_is_no_attempt_s_fault(near: Storage) -> None:
    """However often a graph that raises is to be tried: it did not. Such a run ends all the same."""
    away = 2

    def fragile(state: MessagesState) -> dict[str, Any]:
        nonlocal away
        away -= 1
        if away >= 0:
            raise Unavailable("the database does not answer")
        return {"messages": [AIMessage("here again")]}

    graph = StateGraph(MessagesState).add_node(fragile).add_edge(START, "fragile").compile()

    async def main() -> None:
        nonlocal away
        async with working(near.database(), graph, settings=settings(attempts=3)) as runtime:
            run = await runtime.wait(await say(runtime, "hello", Options(attempts=1)), 30)
            assert (run.state, run.attempts) == ("done", 3)
            away = 1000
            run = await runtime.wait(await say(runtime, "hello", Options(attempts=1)), 30)
            assert (run.state, run.attempts) == ("failed", EXCUSES_MOST + 3)

    go(main())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"config": {"configurable": {"__odd": 1}}}, "not a caller's"),
        ({"durability": "often"}, "durability"),
        ({"on_failure": "explode"}, "on_failure"),
        ({"attempts": 0}, "at least 1"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Options(**wrong)


def test_modes_that_cannot_be_told_are_refused() -> None:
    with pytest.raises(ValueError, match="'dreams'"):
        StreamOptions(modes=("values", "dreams"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no stream mode is named"):
        StreamOptions(modes=())


def test_options_come_back_as_they_were_stored() -> None:
    whole = Options(
        config={"configurable": {"a": 1}},
        context={"b": 2},
        checkpoint_id="c",
        interrupt_before="*",
        interrupt_after=["node"],
        durability="async",
        stream=StreamOptions(modes=("values", "messages-tuple"), subgraphs=True, kept=False, by="me"),
        attempts=2,
        on_failure="keep",
        about={"d": 3},
    )
    assert Options.read(json.loads(json.dumps(whole.dump()))) == whole
    assert Options.read(Options().dump()) == Options()


def test_what_comes_later_waits_for_its_time_and_holds_up_nothing(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph) as runtime:
            late = await runtime.submit("ada", {"messages": [("user", "late")]}, delay=900.0, options=TOLD)
            last = await runtime.submit("ada", {"messages": [("user", "last")]}, delay=1800.0)
            now = await say(runtime, "now")
            assert (await runtime.wait(now, 30)).state == "done"
            standing = await runtime.find("ada", late.id)
            assert standing is not None
            assert (standing.run, standing.is_over) == (None, False)
            line.ahead_us = 1_200_000_000
        again, line = storage.open()
        line.ahead_us = 1_200_000_000
        async with working(again, talk.graph) as runtime:
            heard, ended = await told(runtime, late)
            assert ended.run is not None
            assert (ended.run.id, ended.run.state) == (late.id, "done")
            assert names(heard)[0] == "metadata"
            assert (await runtime.find("ada", last.id)) is not None
        assert [said for _, said in talk.calls] == ["now", "late"]
        assert [lane.key[0] for lane in storage.rows("ada", LANE)] == ["inbox", "later", "told"]

    go(main())


def test_what_comes_later_can_be_taken_back(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, _ = near.open()
        async with working(database, talk.graph) as runtime:
            late = await runtime.submit("ada", {"messages": [("user", "late")]}, delay=900.0)
            later_still = await runtime.submit("ada", {"messages": [("user", "last")]}, delay=1800.0)
            assert await runtime.cancel("ada", late.id)
            assert (await told(runtime, late))[1].is_over
            assert await runtime.cancel("ada", later_still.id)
            assert [lane.key[0] for lane in near.rows("ada", LANE)] == ["inbox"]
        assert talk.calls == []

    go(main())


def test_what_comes_later_holds_its_key_before_its_time(storage: Storage, talk: Talk) -> None:
    """Sent again without a delay it is the same message, and those behind it are not held up."""

    async def main() -> None:
        database, line = storage.open()
        async with working(database, talk.graph, works=False) as front:
            late = await front.submit("ada", {"messages": [("user", "late")]}, delay=900.0, dedupe_key="k")
            now = await front.submit("ada", {"messages": [("user", "now")]}, dedupe_key="k")
            assert (now.id, now.is_duplicate) == (late.id, True)
            assert await front.run_id(now) == late.id
            assert (await front.look(now)).message.id == late.id
            behind = await front.submit("ada", {"messages": [("user", "behind")]}, delay=901.0)
            other = await front.submit("ada", {"messages": [("user", "other")]}, delay=1800.0, dedupe_key="o")
            await front.submit("ada", {"messages": [("user", "other")]}, dedupe_key="o")
            assert await front.cancel("ada", other.id)
            line.ahead_us = 1_200_000_000
            assert not await front.cancel("ada", "none")
        again, line = storage.open()
        line.ahead_us = 1_200_000_000
        async with working(again, talk.graph) as runtime:
            for ticket in (late, behind):
                assert (await runtime.wait(ticket, 30)).id == ticket.id
        assert [said for _, said in talk.calls] == ["late", "behind"]

    go(main())


def test_what_comes_later_is_accepted_once_under_a_key(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, _ = near.open()
        async with working(database, talk.graph) as runtime:
            tickets = [
                await runtime.submit("ada", {"messages": [("user", "late")]}, delay=0.3, dedupe_key="k")
                for _ in range(2)
            ]
            assert [t.is_duplicate for t in tickets] == [False, True]
            await told(runtime, tickets[0])
            tickets.append(
                await runtime.submit("ada", {"messages": [("user", "late")]}, delay=0.3, dedupe_key="k")
            )
            assert {t.id for t in tickets} == {tickets[0].id}
            assert tickets[2].is_duplicate
        assert [said for _, said in talk.calls] == ["late"]

    go(main())
