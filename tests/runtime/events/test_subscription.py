"""A whole thread is followed: what each of its runs tells, from wherever it is told, once and in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

from perdure.engine.queue.events import END, LAST, Event
from perdure.errors import SubscriberTooSlow
from perdure.model.ops import Fetch, Range
from perdure.model.records import EVENT
from perdure.runtime import Options, Runtime, Standing, StreamOptions, Ticket
from perdure.runtime.events import publisher
from tests.runtime.graphs import Storage, Talk, eventually, go, settings, working

KEPT = StreamOptions(modes=("values", "updates"))


async def listen(runtime: Runtime, ends: int, after: int = 0) -> list[Event]:
    """What is told on a thread until so many runs have ended."""
    return await until(runtime.follow_thread("ada", after=after), ends)


async def until(events: AsyncIterator[Event], ends: int) -> list[Event]:
    heard: list[Event] = []
    async for event in events:
        heard.append(event)
        ends -= event.name == END
        if not ends:
            return heard
    raise AssertionError("a thread was followed to an end")


async def say(runtime: Runtime, text: str, how: StreamOptions = KEPT) -> Ticket:
    given = {"messages": [{"role": "user", "content": text}]}
    return await runtime.submit("ada", given, options=Options(stream=how))


def test_every_run_is_told_here_and_elsewhere(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        here, there = near.database(), near.database()
        async with working(here, talk.graph) as works, working(there, talk.graph, works=False) as looks:
            ears = [asyncio.create_task(listen(one, 3)) for one in (works, looks)]
            await asyncio.sleep(0.2)
            tickets = [await say(looks, text) for text in ("one", "two", "three")]
            inside, outside = await asyncio.gather(*ears)
        assert inside == outside
        assert [event.seq for event in inside] == sorted({event.seq for event in inside})
        ends = [json.loads(event.data) for event in inside if event.name == END]
        assert [end["run_id"] for end in ends] == [ticket.id for ticket in tickets]
        assert {end["state"] for end in ends} == {"done"}
        begun = [event.run_id for event in inside if event.name == "metadata"]
        assert begun == [ticket.id for ticket in tickets]

    go(main())


def test_who_comes_with_a_number_hears_the_rest(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        here, there = near.database(), near.database()
        async with working(here, talk.graph) as works, working(there, talk.graph, works=False) as looks:
            for text in ("one", "two"):
                await works.wait(await say(works, text))
            whole = await listen(works, 2)
            held = await say(works, "hold on")
            await eventually(lambda: talk.under_way)
            last = asyncio.create_task(listen(works, 3))
            await asyncio.sleep(0.1)
            talk.gate.set()
            whole = await last
            assert whole[-1].run_id == held.id
            for at in (0, 3, len(whole) // 2, len(whole) - 2):
                rest = whole[at + 1 :]
                ends = sum(event.name == END for event in rest)
                assert await listen(works, ends, whole[at].seq) == rest
                assert await listen(looks, ends, whole[at].seq) == rest

    go(main())


def test_what_is_to_be_kept_nowhere_is_stored_while_its_thread_is_followed(
    memory: Storage, talk: Talk
) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph, name="here") as works:
            unkept = StreamOptions(modes=("values",), kept=False, by="here")
            ear = asyncio.create_task(listen(works, 3))
            slow = works.follow_thread("ada", after=0)
            await eventually(lambda: works._context.subscriptions._noted)
            first = await say(works, "one")
            told = [await anext(slow)]
            second = await say(works, "two", unkept)
            third = await say(works, "three")
            for ticket in (first, second, third):
                await works.wait(ticket)
            heard = await ear
            # Who listens slowly comes to them one after the other.
            told += await until(slow, 3)
            assert told == heard
            runs = list(dict.fromkeys(event.run_id for event in heard))
            assert runs == [first.id, second.id, third.id]
            assert await listen(works, 3) == heard

    go(main())


def test_who_is_too_slow_for_what_is_not_kept_is_told_so(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_HELD_BYTES", 300)

    async def main() -> None:
        async with working(memory.database(), talk.graph, name="here") as works:
            unkept = StreamOptions(modes=("values", "updates", "tasks"), kept=False, by="here")
            before = await works.latest_event("ada")
            ticket = await say(works, "hold on", unkept)
            events = works.follow_thread("ada", after=before)
            await eventually(lambda: talk.under_way)
            # It comes in the middle: nothing of the run is stored before its end, and then what is held.
            assert (await anext(events)).run_id == ticket.id
            talk.gate.set()
            await works.wait(ticket)
            with pytest.raises(SubscriberTooSlow, match="faster than they are read"):
                async for _ in events:
                    pass

    go(main())


def test_what_was_dropped_from_memory_is_read_from_the_log(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_HELD_BYTES", 300)

    async def main() -> None:
        async with working(memory.database(), talk.graph) as works:
            ear = asyncio.create_task(listen(works, 1))
            events = works.follow_thread("ada", after=0)
            coming = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.1)
            how = StreamOptions(modes=("values", "updates", "tasks"))
            ticket = await say(works, "hold on", how)
            told = [await coming]
            await eventually(lambda: talk.under_way)
            talk.gate.set()
            await works.wait(ticket)
            assert told + await until(events, 1) == await ear

    go(main())


def test_nobody_is_kept_who_has_gone(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph) as works:
            ears = [asyncio.create_task(listen(works, 1)) for _ in range(3)]
            await asyncio.sleep(0.1)
            for ear in ears:
                ear.cancel()
            await asyncio.gather(*ears, return_exceptions=True)
            await eventually(lambda: not works._context.subscriptions._waiting)
            await works.wait(await say(works, "one"))
            assert len(await listen(works, 1)) > 2

    go(main())


def test_a_slow_reader_is_cut_off_by_name_and_holds_no_more_than_a_page(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, page, size, count = 60_000, 10_000, 1_000, 600
    monkeypatch.setattr(publisher, "_HELD_BYTES", held)
    monkeypatch.setattr(publisher, "_PAGE_BYTES", page)
    fast: list[list[int]] = [[], [], []]
    heard_more, has_come = asyncio.Event(), asyncio.Event()

    async def tell(_: MessagesState) -> dict[str, Any]:
        write = get_stream_writer()
        for number in range(count):
            write({"number": number, "text": "x" * size})
            while min(map(len, fast)) < number - 5:
                heard_more.clear()
                await heard_more.wait()
            if number == held // size // 2:
                await has_come.wait()
        return {"messages": []}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("tell", tell)
    builder.add_edge(START, "tell")

    async def main() -> None:
        async with working(memory.database(), builder.compile(), name="here") as works:
            how = StreamOptions(modes=("custom",), kept=False, by="here")
            ticket = await say(works, "hello", how)

            async def keep_up(heard: list[int]) -> None:
                async for item in works.follow("ada", ticket.id):
                    if isinstance(item, Event) and item.name == "custom":
                        heard += [json.loads(item.data)["number"]]
                        heard_more.set()

            readers = [asyncio.create_task(keep_up(heard)) for heard in fast]
            await eventually(lambda: min(map(len, fast)) >= held // size // 2)
            # It comes while much is held, then takes nothing until the run is over.
            slow = works.follow("ada", ticket.id)
            taken = [await anext(slow)]
            has_come.set()
            await works.wait(ticket)
            await asyncio.gather(*readers)
            assert fast == [list(range(count))] * 3, "the others miss nothing, in order"

            async def take() -> None:
                async for item in slow:
                    taken.append(item)  # noqa: PERF401 (those before an error count, too)

            with pytest.raises(SubscriberTooSlow, match="thread 'ada'"):
                await take()
            assert sum(len(item.data) for item in taken if isinstance(item, Event)) <= 2 * page

    go(main())


def test_a_reader_that_comes_late_gets_all_that_is_held_page_by_page(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_PAGE_BYTES", 1)

    async def main() -> None:
        async with working(memory.database(), talk.graph, name="here") as works:
            ear = asyncio.create_task(listen(works, 1))
            await asyncio.sleep(0)
            ticket = await say(
                works, "hello", StreamOptions(modes=("values", "tasks"), kept=False, by="here")
            )
            await works.wait(ticket)
            heard = await ear
            assert [event.name for event in heard if event.run_id == ticket.id][-1] == END
            own = [item async for item in works.follow("ada", ticket.id) if isinstance(item, Event)]
            assert own == [event for event in heard if event.name != END]

    go(main())


class Held:
    """A database of which requests wait until they are let go."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.gate = asyncio.Event()

    async def arun(self, program: Any) -> Any:
        await self.gate.wait()
        return await self._inner.arun(program)


def test_a_run_that_begins_and_ends_while_its_state_is_read_is_followed_whole(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with working(memory.database(), talk.graph, name="here") as works:
            subscriptions = works._context.subscriptions
            held = Held(subscriptions._database)
            monkeypatch.setattr(subscriptions, "_database", held)
            unkept = StreamOptions(modes=("values",), kept=False, by="here")
            given = {"messages": [{"role": "user", "content": "one"}]}
            ticket = await works.submit("ada", given, delay=0.2, options=Options(stream=unkept))
            followed = works.follow("ada", ticket.id)
            first = asyncio.ensure_future(anext(followed))
            await asyncio.sleep(0)
            await works.wait(ticket)
            held.gate.set()
            heard = [await first, *[item async for item in followed]]
            names = [item.name for item in heard if isinstance(item, Event)]
            assert names == ["metadata", *["values"] * 3]

    go(main())


def test_a_reader_wakes_for_what_it_lacks_and_one_that_waits_for_the_end_once(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 30
    looks: list[int] = []
    since = publisher.EventBuffer.list_after
    buffers: list[publisher.EventBuffer] = []

    def counted(self: publisher.EventBuffer, after: int) -> list[Event] | None:
        looks.append(after)
        buffers.append(self)
        return since(self, after)

    monkeypatch.setattr(publisher.EventBuffer, "list_after", counted)
    follows, taken = asyncio.Event(), asyncio.Event()

    async def tell(_: MessagesState) -> dict[str, Any]:
        write = get_stream_writer()
        await follows.wait()
        for number in range(count):
            taken.clear()
            write(number)
            await taken.wait()
        return {"messages": []}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("tell", tell)
    builder.add_edge(START, "tell")

    async def main() -> None:
        async with working(memory.database(), builder.compile(), name="here") as works:
            ticket = await say(works, "hello", StreamOptions(modes=("custom",), kept=False, by="here"))

            async def read() -> list[Event | Standing]:
                heard: list[Event | Standing] = []
                async for item in works.follow("ada", ticket.id):
                    heard.append(item)
                    taken.set()
                return heard

            async def wait() -> list[Event | Standing]:
                return [item async for item in works.follow("ada", ticket.id, after=LAST)]

            reading, waiting = asyncio.create_task(read()), asyncio.create_task(wait())
            gone = works.follow("ada", ticket.id, after=LAST)
            left = asyncio.ensure_future(anext(gone))
            await eventually(lambda: len({id(b) for b in buffers}) == 1 and len(buffers[0]._readers) == 3)
            left.cancel()
            await asyncio.wait([left])
            assert len(buffers[0]._readers) == 2
            looks.clear()
            follows.set()
            heard, (end,) = await asyncio.gather(reading, waiting)
            custom = [item.data for item in heard if isinstance(item, Event) and item.name == "custom"]
            assert custom == [str(number) for number in range(count)]
            assert heard[-1] == end
            assert looks.count(LAST) == 1
            assert buffers[0]._readers == []

    go(main())


def test_the_number_of_the_next_event_is_read_after_runs_elsewhere_alone(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        here, there = near.open(), near.open()
        reads: list[int] = []
        heard: list[Event] = []

        async def note(effect: object) -> None:
            if isinstance(effect, Fetch):
                reads.append(effect.items.count(Range(EVENT, reverse=True, limit=1, bodies=False)))

        async def read_by(runtime: Runtime, name: str) -> int:
            """Return how often the number is read for a run."""
            reads.clear()
            ticket = await say(runtime, "hello", StreamOptions(modes=("values",), kept=True, by=name))
            heard.extend([e async for e in runtime.follow("ada", ticket.id) if isinstance(e, Event)])
            await runtime.wait(ticket)
            return sum(reads)

        here[1].before = there[1].before = note
        rare = settings(poll=600.0)
        async with (
            working(here[0], talk.graph, settings=rare, name="one") as one,
            working(there[0], talk.graph, settings=rare, name="two") as two,
        ):
            for runtime in (one, two):
                # As if no time passed: only what is known of earlier events makes later numbers higher.
                runtime._context.clock.estimate = lambda: 1_000_000  # type: ignore[method-assign]
            # The claim of the first ones may be a commit of its own, while the workers start.
            first = [await read_by(one, "one") for _ in range(4)]
            assert first[-2:] == [0, 0]
            assert [await read_by(runtime, name) for runtime, name in ((two, "two"), (one, "one"))] == [1, 1]
            assert await read_by(one, "one") == 0
        assert [event.seq for event in heard] == sorted({event.seq for event in heard})
        assert [event.name for event in heard] == ["metadata", *["values"] * 3] * 7

    go(main())
