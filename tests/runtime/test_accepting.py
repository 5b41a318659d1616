"""Accepting: durable before it is said, once however often it is sent, and refused without a trace.

Covers perdure.runtime.queue_cache.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from perdure.errors import NotFound, QueueFull, TooLarge, Unavailable, Unserialisable
from perdure.model.ops import Commit, Now
from perdure.model.program import Effect
from perdure.model.records import INBOX, LANE, RUN
from perdure.model.runs.messages import MESSAGE_MAX
from perdure.runtime import Runtime, Ticket
from tests.runtime.graphs import (
    WITHIN_S,
    Heard,
    Storage,
    Talk,
    advance,
    eventually,
    go,
    settings,
    spoken,
    values,
    working,
)


class Job(TypedDict):
    job: dict[str, int]
    done: int


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_a_message_is_durable_before_it_is_accepted(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph, works=False) as here:
            ticket = await here.accept("ada", "hello", dedupe_key="k", channel="post")
            async with working(storage.database(), talk.graph, works=False) as there:
                standing = await there.look(ticket)
        assert standing.run is None
        message = standing.message
        assert (message.seq, message.id, message.channel) == (ticket.number, ticket.id, "post")
        assert message.payload == {"message": {"role": "user", "content": "hello"}}

    go(main())


def test_a_message_that_is_sent_again_is_answered_as_the_first_time(storage: Storage, talk: Talk) -> None:
    senders = 16

    async def send(runtime: Runtime) -> Ticket:
        return await runtime.accept("ada", "hello", dedupe_key="k")

    async def main() -> None:
        async with (
            working(storage.database(), talk.graph, works=False) as one,
            working(storage.database(), talk.graph, works=False) as two,
        ):
            tickets = await asyncio.gather(*(send((one, two)[n % 2]) for n in range(senders)))
            assert [t.is_duplicate for t in tickets].count(False) == 1
            assert {(t.number, t.id) for t in tickets} == {(1, tickets[0].id)}
            assert len(storage.rows("ada", INBOX)) == 1
            other = await one.accept("ada", "hello", dedupe_key="another")
            assert (other.number, other.is_duplicate) == (2, False)
            elsewhere = await one.accept("bob", "hello", dedupe_key="k")
            assert (elsewhere.number, elsewhere.is_duplicate) == (1, False)
        async with working(storage.database(), talk.graph) as worker:
            await worker.wait(other, 30)
            await worker.wait(elsewhere, 30)
            late = await send(worker)
            assert (late.number, late.id, late.is_duplicate) == (1, tickets[0].id, True)
            # And nothing of it happens: what comes next is the next message.
            after = await worker.accept("ada", "after")
            await worker.wait(after, 30)
            assert after.number == 3
            assert sum(len(text.split(" + ")) for thread, text in talk.calls if thread == "ada") == 3

    go(main())


def test_a_full_queue_takes_no_more_and_then_again(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        full = settings(max_pending=2)
        async with working(storage.database(), talk.graph, works=False, settings=full) as runtime:
            tickets = [await runtime.accept("ada", f"m{n}", dedupe_key=f"k{n}") for n in range(2)]
            with pytest.raises(QueueFull, match=r"2 messages waiting.*nothing of this one was stored"):
                await runtime.accept("ada", "m2", dedupe_key="k2")
            with pytest.raises(QueueFull):
                await runtime.submit("ada", {"messages": []})
            assert len(storage.rows("ada", INBOX)) == 2
            assert (await runtime.accept("ada", "m1", dedupe_key="k1")).is_duplicate, "it was accepted before"
            async with working(storage.database(), talk.graph) as worker:
                await worker.wait(tickets[-1], 30)
            again = await runtime.accept("ada", "m2", dedupe_key="k2")
            assert (again.number, again.is_duplicate) == (3, False)

    go(main())


def test_a_run_has_what_was_accepted_while_its_sender_goes_on_with_the_same_object(storage: Storage) -> None:
    async def work(state: Job) -> dict[str, int]:
        await asyncio.sleep(0.01)
        return {"done": state["job"]["n"]}

    graph: Any = StateGraph(Job).add_node(work).add_edge(START, "work").compile()

    async def main() -> None:
        database = storage.database()
        async with working(database, graph) as runtime:
            job = {"n": 0}
            tickets = []
            for n in range(3):
                job["n"] = n
                tickets.append(await runtime.submit(f"thread {n}", {"job": job}))
            job["n"] = -1
            for n, ticket in enumerate(tickets):
                await runtime.wait(ticket, 30)
                assert await values(database, graph, f"thread {n}") == {"job": {"n": n}, "done": n}

    go(main())


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda r: r.accept("ada", "x" * MESSAGE_MAX), TooLarge, "at most 262144"),
        (lambda r: r.accept("ada", {"role": "user", "content": b"x"}), Unserialisable, "plain JSON"),
        (lambda r: r.accept("ada", "\ud800"), Unserialisable, "plain JSON"),
        (lambda r: r.submit("ada", {"amount": float("nan")}), Unserialisable, "plain JSON"),
        (lambda r: r.submit("ada", {1, 2}), Unserialisable, "plain JSON"),
        (lambda r: r.submit("ada", {"messages": nested(300)}), Unserialisable, "deeper than 256 levels"),
        (lambda r: r.submit("ada", {"messages": nested(3000)}), Unserialisable, "deeper than 256 levels"),
        (lambda r: r.accept("ada", "x", config={"a": {1}}), Unserialisable, "plain JSON"),
        (lambda r: r.accept("ada", "x", config=[]), TypeError, "config is a mapping, not list"),
        (lambda r: r.accept("ada", "x", config={"configurable": 5}), ValueError, "configurable of a config"),
        (lambda r: r.accept("ada", "x", options=5), TypeError, "options is perdure.runtime.Options"),
        (lambda r: r.accept("ada", "x", channel=None), TypeError, "channel is text, not NoneType"),
        (lambda r: r.answer("ada", "x", channel=5), TypeError, "channel is text, not int"),
        (lambda r: r.answer("ada", "x", command=5), TypeError, "command is a mapping, not int"),
        (lambda r: r.submit("ada", {}, command=5), TypeError, "command is a mapping, not int"),
        (lambda r: r.submit("ada", {}, delay="1"), TypeError, "delay is a number, not str"),
        (lambda r: r.submit("ada", {"a": {1: 2, "1": 3}}), Unserialisable, "one key in JSON"),
        (lambda r: r.accept("ada", "x", config={"configurable": {"__x": 1}}), ValueError, "__x"),
        (lambda r: r.accept("ada", "x", strategy="drop"), ValueError, "drop"),
        (lambda r: r.accept("ada", "x", debounce=-1), ValueError, "debounce is -1 s; it has to be"),
        (lambda r: r.accept("ada", "x", debounce=math.nan), ValueError, "debounce is nan s; it has to be"),
        (lambda r: r.accept("ada", "x", max_wait=math.inf), ValueError, "max_wait is inf s; it has to be"),
        (lambda r: r.submit("ada", {"a": 1}, delay=-0.1), ValueError, r"delay is -0\.1 s; it has to be"),
        (lambda r: r.submit("ada", {"a": 1}, delay=math.nan), ValueError, "delay is nan s; it has to be"),
        (lambda r: r.submit("ada", {"a": 1}, delay=1e300), ValueError, r"delay is 1e\+300 s; it has to be"),
        (lambda r: r.accept("ada", "x", graph="other"), NotFound, "other"),
        (lambda r: r.accept("", "x"), ValueError, "thread_id is empty"),
    ],
)
def test_what_cannot_be_accepted_is_refused_whole(
    memory: Storage, talk: Talk, call: Any, error: type[Exception], says: str
) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph, works=False) as runtime:
            with pytest.raises(error, match=says):
                await call(runtime)
            assert memory.rows("ada") == []
            assert memory.rows("") == []
            assert (await runtime.accept("ada", "x")).number == 1

    go(main())


# ---------------------------------------------------------------- messages that begin at once


def test_a_message_to_an_idle_thread_is_claimed_by_the_commit_that_stores_it(
    near: Storage, talk: Talk
) -> None:
    heard = Heard()

    async def main() -> None:
        database, line = near.open()
        async with working(database, talk.graph, observers=[heard]) as runtime:
            await runtime.wait(await runtime.accept("ada", "one"))
            before = line.commits
            ticket = await runtime.accept("ada", "hold")
            assert line.commits == before + 1
            (lane,) = near.rows("ada", LANE)
            assert (lane.fields["run_id"], lane.fields["bound"]) == (ticket.id, 2)
            # What comes meanwhile waits, as ever.
            after = await runtime.accept("ada", "after")
            talk.gate.set()
            assert (await runtime.wait(after)).state == "done"
            assert (await runtime.wait(ticket)).state == "done"
        assert [text for _, text in talk.calls] == ["one", "hold", "after"]
        names = [name for name, _ in heard.events if name in ("message.accepted", "run.claimed")]
        assert names[2:4] == ["message.accepted", "run.claimed"]
        assert sorted(names) == ["message.accepted"] * 3 + ["run.claimed"] * 3

    go(main())


@pytest.mark.parametrize("thread", ["ada", "a new one"])
def test_a_thread_that_this_process_does_not_know_is_claimed_by_the_commit_that_stores_a_message(
    storage: Storage, talk: Talk, thread: str
) -> None:
    async def main() -> None:
        first, _ = storage.open()
        async with working(first, talk.graph) as runtime:
            for said in ("one", "two"):
                await runtime.wait(await runtime.accept("ada", said, dedupe_key=said))
        database, line = storage.open()
        async with working(database, talk.graph) as runtime:
            again = await runtime.accept("ada", "one", dedupe_key="one")
            assert (again.number, again.is_duplicate) == (1, True)
            before = line.commits
            ticket = await runtime.accept(thread, "hold")
            # Where a read costs as much as a refused commit, the thread is taken for a new one first.
            is_refused = line.capabilities.reads_with_commits and thread == "ada"
            assert line.commits == before + (2 if is_refused else 1)
            (lane,) = storage.rows(thread, LANE)
            assert lane.fields["run_id"] == ticket.id
            talk.gate.set()
            assert (await runtime.wait(ticket)).state == "done"
        assert [text for _, text in talk.calls] == ["one", "two", "hold"]
        assert database.fsck(thread) == []

    go(main())


def test_a_thread_that_another_process_holds_is_not_claimed_with_a_message(storage: Storage) -> None:
    theirs, ours = Talk(), Talk()

    async def main() -> None:
        database = storage.database()
        async with working(storage.database(), theirs.graph) as other, working(database, ours.graph) as here:
            holding = await other.accept("ada", "hold")
            await eventually(lambda: theirs.under_way)
            (before,) = storage.rows("ada", LANE)
            waiting = await here.accept("ada", "after")
            (lane,) = storage.rows("ada", LANE)
            held = ("run_id", "owner", "epoch", "bound")
            assert [lane.fields[name] for name in held] == [before.fields[name] for name in held]
            assert lane.fields["last"] == 2
            assert (theirs.most, ours.most) == (1, 0)
            theirs.gate.set()
            assert (await other.wait(holding)).state == "done"
            assert (await here.wait(waiting)).state == "done"
        assert [text for _, text in (*theirs.calls, *ours.calls)] == ["hold", "after"]
        assert database.fsck("ada") == []

    go(main())


def test_a_caller_that_leaves_leaves_no_claimed_message_behind(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, settings=settings(lease=3600.0)) as runtime:
            await runtime.wait(await runtime.accept("ada", "one"))
            asked, go_on = asyncio.Event(), asyncio.Event()

            async def held_up(effect: Effect[Any]) -> None:
                if isinstance(effect, Commit) and not asked.is_set():
                    asked.set()
                    await go_on.wait()

            line.before = held_up
            sending = asyncio.create_task(runtime.accept("ada", "two"))
            await asked.wait()
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled()
            go_on.set()
            await eventually(lambda: [text for _, text in talk.calls] == ["one", "two"])

    go(main())


def test_a_worker_without_a_free_slot_claims_nothing_as_it_accepts(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph, settings=settings(concurrency=1)) as runtime:
            for thread in ("ada", "bob"):
                await runtime.wait(await runtime.accept(thread, "one"))
            holding = await runtime.accept("ada", "hold")
            waiting = await runtime.accept("bob", "two")
            (lane,) = memory.rows("bob", LANE)
            assert (lane.fields["run_id"], lane.fields["bound"], lane.fields["last"]) == (None, 1, 2)
            talk.gate.set()
            assert (await runtime.wait(waiting)).state == "done"
            assert (await runtime.wait(holding)).state == "done"

    go(main())


def test_slots_are_counted_while_their_messages_are_being_stored(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, settings=settings(concurrency=2)) as runtime:

            async def slow(effect: Effect[Any]) -> None:
                await asyncio.sleep(0)

            for thread in range(6):
                await runtime.wait(await runtime.accept(f"t{thread}", "one"))
            line.before = slow
            tickets = await asyncio.gather(*(runtime.accept(f"t{n}", "hold") for n in range(6)))
            lanes = [memory.rows(f"t{n}", LANE)[0] for n in range(6)]
            assert sum(lane.fields["run_id"] is not None for lane in lanes) == 2
            await eventually(lambda: talk.under_way == 2)
            talk.gate.set()
            for ticket in tickets:
                assert (await runtime.wait(ticket)).state == "done"
        assert talk.most == 2

    go(main())


def test_what_is_claimed_while_the_worker_stops_is_for_others_at_once(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, settings=settings(lease=3600.0)) as runtime:
            await runtime.wait(await runtime.accept("ada", "one"))

            async def stop(effect: Effect[Any]) -> None:
                if isinstance(effect, Commit):
                    runtime._worker.dispatch.is_stopping = True

            line.before = stop
            await runtime.accept("ada", "two")
            line.before = None
            (lane,) = memory.rows("ada", LANE)
            assert (lane.fields["owner"], lane.fields["bound"]) == (None, 2)
            async with working(memory.database(), talk.graph):
                await eventually(lambda: [text for _, text in talk.calls] == ["one", "two"])

    go(main())


def test_a_runtime_ends_after_what_it_claims_for_a_caller_that_left(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = memory.open()
        options = {"settings": settings(lease=3600.0), "all_tenants": True}
        async with working(database, talk.graph, **options) as whole:
            runtime = whole.for_tenant("acme")
            await runtime.wait(await runtime.accept("ada", "one"))
            asked, go_on = asyncio.Event(), asyncio.Event()

            async def held_up(effect: Effect[Any]) -> None:
                if isinstance(effect, Commit) and not asked.is_set():
                    asked.set()
                    await go_on.wait()

            line.before = held_up
            sending = asyncio.create_task(runtime.accept("ada", "two"))
            await asked.wait()
            sending.cancel()
            await asyncio.wait([sending])
            asyncio.get_running_loop().call_later(0.1, go_on.set)
        (lane,) = memory.rows("ada", LANE, tenant="acme")
        assert (lane.fields["owner"], lane.fields["bound"], lane.fields["last"]) == (None, 2, 2)

    go(main())


def test_a_runtime_ends_after_it_has_settled_a_claim_in_doubt(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = memory.open()
        options = {"settings": settings(lease=3600.0), "all_tenants": True}
        async with working(database, talk.graph, **options) as whole:
            runtime = whole.for_tenant("acme")
            await runtime.wait(await runtime.accept("ada", "one"))
            asked, go_on, looking, answered = (asyncio.Event() for _ in range(4))

            async def held_up(effect: Effect[Any]) -> None:
                if isinstance(effect, Commit) and not asked.is_set():
                    asked.set()
                    await go_on.wait()
                elif go_on.is_set():
                    # To look the claim up takes longer than the rest of the runtime's end.
                    if not looking.is_set():
                        asyncio.get_running_loop().call_later(0.1, answered.set)
                        looking.set()
                    await answered.wait()

            def lose(at: int, when: str) -> None:
                if when == "after":
                    line.on_commit = lambda at, when: None
                    raise Unavailable("the answer was lost")

            line.before, line.on_commit = held_up, lose
            sending = asyncio.create_task(runtime.accept("ada", "two"))
            await asked.wait()
            sending.cancel()
            await asyncio.wait([sending])
            asyncio.get_running_loop().call_later(0.1, go_on.set)
        (lane,) = memory.rows("ada", LANE, tenant="acme")
        assert (lane.fields["owner"], lane.fields["bound"], lane.fields["last"]) == (None, 2, 2)
        assert [text for _, text in talk.calls] == ["one"]

    go(main())


@pytest.mark.parametrize("requests", [1, 4])
def test_a_claim_whose_answer_was_lost_is_worked_on_at_once(
    memory: Storage, talk: Talk, requests: int
) -> None:
    async def main() -> None:
        database, line = memory.open()
        quick = settings(lease=3600.0, poll=0.05)
        async with working(database, talk.graph, settings=quick) as runtime:
            await runtime.wait(await runtime.accept("ada", "one"))
            lost = 0

            def lose(at: int, when: str) -> None:
                nonlocal lost
                if when == "after" and not lost:
                    lost = line.count
                    line.failing = lambda number: number < lost + requests
                    raise Unavailable("the answer was lost")

            line.on_commit = lose
            with pytest.raises(Unavailable):
                await runtime.accept("ada", "two")
            assert len(memory.rows("ada", INBOX)) == 2
            await eventually(lambda: [text for _, text in talk.calls] == ["one", "two"])
            await eventually(lambda: memory.rows("ada", LANE)[0].fields["run_id"] is None)
        runs = memory.rows("ada", RUN)
        assert [run.fields["attempts"] for run in runs] == [1, 1]

    go(main())


def test_a_claim_that_was_not_stored_leaves_nothing_behind(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, settings=settings(lease=3600.0)) as runtime:
            await runtime.wait(await runtime.accept("ada", "one"))
            line.failing = lambda number: True
            with pytest.raises(Unavailable):
                await runtime.accept("ada", "two")
            line.failing = lambda number: False
            await runtime.wait(await runtime.accept("ada", "three"))
            await eventually(lambda: not runtime._worker.runner._doubted)
        assert [text for _, text in talk.calls] == ["one", "three"]

    go(main())


def test_a_run_that_was_claimed_begins_without_the_database_clock(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, settings=settings(lease=3600.0)) as runtime:
            await runtime.wait(await runtime.accept("ada", "one"))
            failed: list[Effect[Any]] = []
            clock = runtime._context.clock

            async def away(effect: Effect[Any]) -> None:
                if isinstance(effect, Now) and not failed:
                    failed.append(effect)
                    raise Unavailable("the clock is away for a moment")

            def stale(at: int, when: str) -> None:
                if when == "after" and line.before is None:
                    clock._asked_at = None
                    line.before = away

            line.on_commit = stale
            await runtime.accept("ada", "two")
            await eventually(lambda: [text for _, text in talk.calls] == ["one", "two"])

    go(main())


# ---------------------------------------------------------------- messages that wait for more of them


def test_fragments_become_one_run(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = storage.database()
        async with working(database, talk.graph) as runtime:
            fragments = ("one", "two", "three")
            tickets = [await runtime.accept("ada", text, debounce=600, max_wait=600) for text in fragments]
            assert talk.calls == []
            advance(runtime)
            ended = [await runtime.wait(ticket, 30) for ticket in tickets]
            assert len({run.id for run in ended}) == 1
            assert (ended[0].first, ended[0].last, ended[0].state) == (1, 3, "done")
            assert await spoken(database, talk.graph, "ada") == [*fragments, "echo: one + two + three"]

    go(main())


def test_a_steady_stream_is_not_waited_out(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph) as runtime:
            sent: list[str] = []
            async with asyncio.timeout(WITHIN_S):
                while not talk.calls:
                    sent.append(f"m{len(sent)}")
                    await runtime.accept("ada", sent[-1], debounce=0.5, max_wait=1.0)
                    await asyncio.sleep(0.05)
            taken = talk.calls[0][1].split(" + ")
            assert taken == sent[: len(taken)]

    go(main())


def test_a_message_that_does_not_wait_lets_those_before_it_go(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(storage.database(), talk.graph) as runtime:
            first = await runtime.accept("ada", "one", debounce=600, max_wait=600)
            second = await runtime.accept("ada", "two", debounce=0)
            run = await runtime.wait(second, 30)
            assert (await runtime.wait(first, 30)).id == run.id
            assert talk.calls == [("ada", "one + two")]

    go(main())


def test_one_run_has_one_channel_and_one_graph(storage: Storage) -> None:
    one, other = Talk("one"), Talk("other")
    graphs = {"one": one.graph, "other": other.graph}
    said = [
        ("a", "one", "post", True),
        ("b", "one", "post", True),
        ("c", "one", "chat", True),
        ("d", "other", "chat", True),
        ("e", "other", "chat", False),
        ("f", "other", "chat", True),
        ("g", "other", "chat", True),
    ]

    async def main() -> None:
        shared = settings(shared_threads=True)
        async with working(storage.database(), graphs, works=False, settings=shared) as front:
            tickets = [
                await front.accept("ada", text, graph=graph, channel=channel, coalesce=together)
                for text, graph, channel, together in said
            ]
        async with working(storage.database(), graphs, settings=shared) as worker:
            await worker.wait(tickets[-1], 40)
            runs = await worker.runs("ada")
        spans = [(run.first, run.last, run.graph, run.channel) for run in reversed(runs)]
        assert spans == [
            (1, 2, "one", "post"),
            (3, 3, "one", "chat"),
            (4, 4, "other", "chat"),
            (5, 5, "other", "chat"),
            (6, 7, "other", "chat"),
        ]
        assert [text for _, text in one.calls] == ["a + b", "c"]
        assert [text for _, text in other.calls] == ["d", "e", "f + g"]

    go(main())


def test_a_run_takes_no_more_than_a_batch(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        few = settings(max_batch=2)
        async with working(memory.database(), talk.graph, works=False) as front:
            tickets = [await front.accept("ada", f"m{n}", debounce=0.1) for n in range(5)]
        async with working(memory.database(), talk.graph, settings=few) as worker:
            await worker.wait(tickets[-1], 30)
        assert [text for _, text in talk.calls] == ["m0 + m1", "m2 + m3", "m4"]

    go(main())


def test_a_whole_input_is_a_run_of_its_own(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = memory.database()
        async with working(database, talk.graph, works=False) as front:
            await front.accept("ada", "one")
            ticket = await front.submit("ada", {"messages": [["user", "two"]], "heard": ["given"]})
            await front.accept("ada", "three")
        async with working(database, talk.graph) as worker:
            run = await worker.wait(ticket, 30)
            assert (run.id, run.first, run.last) == (ticket.id, 2, 2)
            await eventually(lambda: len(talk.calls) == 3)
        assert [text for _, text in talk.calls] == ["one", "two", "three"]

    go(main())
