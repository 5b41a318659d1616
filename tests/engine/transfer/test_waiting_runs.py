"""A thread that waits goes on in one database only, wherever its transfer is cut short.

Covers perdure.engine.transfer.waiting_runs, perdure.engine.transfer.transfer_waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.queue.signals import Signal
from perdure.engine.queue.waits import Wake
from perdure.engine.transact import Budget
from perdure.engine.transfer.transfer_terms import State
from perdure.errors import Conflict, Contention, NotWaiting, Unavailable
from perdure.model.ops import Now
from perdure.model.program import ask as request
from perdure.model.records import INBOX, LANE, RUN, Partition
from perdure.model.runs.messages import DONE, WAITING, Message
from perdure.model.runs.queue import WAITS
from perdure.model.runs.waits import BY_WAIT, read_waits
from perdure.runtime import Channel, Runtime, ask, sleep, wait_for
from perdure.runtime.operations import open_questions
from perdure.testing.faults import ALL, Fault, FaultyDriver, fail
from tests.backends import BACKENDS
from tests.engine.transfer.test_transfer import assert_sound, database, in_memory, opened, rows
from tests.runtime.graphs import HOUR_US, Post, advance, eventually_stored, go, settings
from tests.runtime.nodes.test_waiting import HOUR, Noted, chain, reach

HERE = Partition("", "t")
_ids = count()


async def asks(state: Noted) -> dict[str, Any]:
    return {"notes": [ask("pay?", within=2 * HOUR, default="late", remind=HOUR)]}


async def naps(state: Noted) -> dict[str, Any]:
    await sleep(HOUR)
    return {"notes": ["slept"]}


async def waits(state: Noted) -> dict[str, Any]:
    return {"notes": [await wait_for("paid", within=HOUR, default="never")]}


async def only_asks(state: Noted) -> dict[str, Any]:
    return {"notes": [interrupt("really?")]}


def begin(db: perdure.SyncDatabase, *nodes: Any, channel: str = "") -> None:
    """Let a thread of a database wait."""

    async def main() -> None:
        channels = {"post": Channel(Post().send, ask=lambda name, value: {"content": value})}
        async with Runtime(db, chain(*nodes), settings=settings(), channels=channels) as runtime:
            given = {"configurable": {"user_id": "ada"}}
            ticket = await runtime.submit("t", {}, channel=channel, config=given, dedupe_key="first")
            assert (await runtime.wait(ticket)).state == WAITING

    go(main())


def wake(db: perdure.SyncDatabase, ahead_us: int = 100 * HOUR_US) -> None:
    """Do what is due at a database by then, as its workers would."""
    handle = handle_of(db)
    now = handle.run(request(Now())) + ahead_us
    read_asked = partial(db.checkpointer().read_asked, HERE)
    made = Wake(
        HERE, now, 1000, handle.draw_version(), Budget(1000, 1 << 20), lambda: f"w{next(_ids)}", read_asked
    )
    handle.run(made.run())


def woken(*databases: perdure.SyncDatabase) -> list[int]:
    """How often the thread was woken in each database."""
    found = [[Message.read(row) for row in rows(db, HERE, INBOX)] for db in databases]
    return [sum(BY_WAIT in each.options for each in messages) for messages in found]


def timers(db: perdure.SyncDatabase) -> list[Any]:
    return [row for row in rows(db, HERE, LANE) if row.key == (WAITS,)]


@pytest.mark.parametrize("node", [asks, naps, waits])
def test_a_thread_that_wakes_is_not_copied_unless_it_is_handed_over(node: Any) -> None:
    source, target = in_memory(), in_memory()
    begin(source, node)
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=r"goes on by itself.*--hand-over \(hand_over=True\)"):
            admin.move(source, HERE, target, dry_run=dry_run)
    assert not rows(target, HERE, RUN)
    assert admin.move(source, HERE, target, hand_over=True, dry_run=True).found is State.ABSENT
    assert timers(source)
    assert admin.move(source, HERE, target, hand_over=True).found is State.ABSENT
    assert not timers(source)
    for again in (True, False):
        assert admin.move(source, HERE, target, hand_over=again).found is State.SAME
    for _ in range(3):
        wake(source)
        wake(target)
    assert woken(source, target) == [0, 1]
    assert_sound(source)
    assert_sound(target)


def test_the_source_takes_nothing_any_more_that_the_target_waits_for() -> None:
    source, target = in_memory(), in_memory()
    begin(source, asks, waits)
    admin.move(source, HERE, target, hand_over=True)

    async def main() -> None:
        async with Runtime(source, chain(asks, waits), settings=settings()) as runtime:
            assert await runtime.question("t") is None
            with pytest.raises(NotWaiting, match="handed over to another database"):
                await runtime.answer("t", "yes")
            with pytest.raises(Conflict, match="handed over to another database"):
                await runtime.signal("t", "paid", 1)
            row = await runtime.threads.get("t")
            assert (
                await handle_of(source).arun(open_questions.load_questions(handle_of(source), "", row)) == ()
            )
            advance(runtime, 100 * HOUR_US)
            # A message goes past what it waited for.
            run = await runtime.wait(await runtime.submit("t", {}))
            assert run.state == WAITING
            assert len(await runtime.runs("t")) == 2

    go(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_goes_on_with_reminders_deadlines_sleeps_and_signals(backend: str) -> None:
    graph = chain(asks, naps, waits)
    post = Post()

    async def main(target: perdure.SyncDatabase) -> None:
        channels = {"post": Channel(post.send, ask=lambda name, value: {"content": value})}
        made = Runtime(target, graph, settings=settings(), channels=channels)
        async with made as runtime:
            (run,) = await runtime.runs("t")
            (wait,) = read_waits(run.note).values()
            assert (wait.default, len(wait.remind)) == (("late",), 1)
            # It is the same message for those who send it again.
            assert (await runtime.submit("t", {}, dedupe_key="first")).is_duplicate
            advance(runtime)
            await eventually_stored(lambda: _is(post.texts == ["pay?"]))
            advance(runtime)
            await reach(runtime, 2, WAITING)
            assert "late" in str((await runtime.messages("t"))[0].message.payload)
            assert (await runtime.messages("t"))[0].message.options["config"]["configurable"] == {
                "user_id": "ada"
            }
            advance(runtime)
            await reach(runtime, 3, WAITING)
            await runtime.signal("t", "paid", 7)
            await reach(runtime, 4, DONE)
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "t"}})
            assert state.values["notes"] == ["late", "slept", 7]

    source = in_memory()
    begin(source, asks, naps, waits, channel="post")
    with opened(backend) as target:
        admin.move(source, HERE, target, hand_over=True)
        go(main(target))
        wake(source)
        assert woken(source) == [0]


async def _is(value: bool) -> bool:
    return value


def test_a_kept_signal_moves_and_is_given_at_the_target() -> None:
    source, target = in_memory(), in_memory()
    begin(source, naps, waits)
    give(source, "early")
    admin.move(source, HERE, target, hand_over=True)

    async def main() -> None:
        async with Runtime(target, chain(naps, waits), settings=settings()) as runtime:
            advance(runtime)
            await reach(runtime, 3, DONE)
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "t"}})
            assert state.values["notes"] == ["slept", "early"]

    go(main())


def give(db: perdure.SyncDatabase, value: Any) -> None:
    handle = handle_of(db)
    now, read_asked = handle.run(request(Now())), partial(db.checkpointer().read_asked, HERE)
    made = Signal(HERE, "paid", value, b"", True, f"s{next(_ids)}", now, handle.draw_version(), read_asked)
    handle.run(made.store())


def test_a_question_without_times_may_be_answered_at_both_places() -> None:
    source, target = in_memory(), in_memory()
    begin(source, only_asks)
    before = rows(source, HERE, LANE)
    assert admin.move(source, HERE, target).found is State.ABSENT
    assert rows(source, HERE, LANE) == before

    async def main(db: perdure.SyncDatabase) -> None:
        async with Runtime(db, chain(only_asks), settings=settings()) as runtime:
            run = await runtime.wait(await runtime.answer("t", "yes"))
            assert run.state == DONE

    for db in (target, source):
        go(main(db))
        assert_sound(db)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_wherever_it_is_cut_short_it_wakes_once_and_at_the_target(side: str, when: Any, step: int) -> None:
    moves = 0
    for at in count(1, step):
        source, target = in_memory(), in_memory()
        begin(source, asks)
        there = source if side == "source" else target
        cut = database(
            FaultyDriver(handle_of(there).driver, Fault(at, fail("unavailable"), when), counts=ALL)
        )
        sides = (cut, target) if side == "source" else (source, cut)
        try:
            admin.move(sides[0], HERE, sides[1], hand_over=True)
        except Unavailable:
            moves += 1
            # Whichever of both has workers meanwhile, the other one wakes nothing.
            assert not (timers(source) and timers(target))
            admin.move(source, HERE, target, hand_over=True)
        else:
            break
        for _ in range(3):
            wake(source)
            wake(target)
        assert woken(source, target) == [0, 1], at
        assert_sound(source)
        assert_sound(target)
    assert moves >= 10 // step


@pytest.mark.parametrize("how", ["deadline", "signal"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_what_comes_while_it_is_handed_over_counts_once(how: str, step: int) -> None:
    """At each request to the source, workers there wake the thread, or a signal comes."""
    come: Callable[[perdure.SyncDatabase], None] = wake if how == "deadline" else partial(give, value=7)
    outcomes: set[tuple[int, int]] = set()
    for at in count(1, step):
        source, target = in_memory(), in_memory()
        begin(source, waits)
        met = False

        def act(number: int, effect: Any, *, at: int = at, source: perdure.SyncDatabase = source) -> None:
            nonlocal met
            if number == at:
                met = True
                try:
                    come(source)
                except (Conflict, Contention):
                    return

        watched = database(FaultyDriver(handle_of(source).driver, counts=ALL, on_effect=act))
        try:
            admin.move(watched, HERE, target, hand_over=True)
        except Conflict:
            assert woken(source) == [1], at
        if not met:
            break
        for _ in range(3):
            wake(source)
            wake(target)
        outcomes.add((woken(source)[0], woken(target)[0]))
    assert outcomes == {(1, 0), (0, 1)}


def test_a_thread_is_handed_over_to_one_database_and_back() -> None:
    here, there, third = in_memory(), in_memory(), in_memory()
    begin(here, asks)
    admin.move(here, HERE, there, hand_over=True)
    with pytest.raises(Conflict, match=r"handed over .* before, and goes on there"):
        admin.move(here, HERE, third, hand_over=True)
    # A copy that does not wake is a copy like any other.
    assert admin.move(here, HERE, third).found is State.ABSENT
    assert admin.move(there, HERE, here, hand_over=True).found is State.SAME
    for _ in range(3):
        for db in (here, there, third):
            wake(db)
    assert woken(here, there, third) == [1, 0, 0]
    with pytest.raises(Conflict, match="under way"):
        admin.move(here, HERE, there, hand_over=True)


def test_what_went_on_at_the_target_is_not_replaced_by_what_was_handed_over() -> None:
    source, target = in_memory(), in_memory()
    begin(source, naps)
    admin.move(source, HERE, target, hand_over=True)

    async def main() -> None:
        async with Runtime(target, chain(naps), settings=settings()) as runtime:
            advance(runtime)
            await reach(runtime, 2, DONE)

    go(main())
    for replace in (False, True):
        with pytest.raises(Conflict, match="goes on there"):
            admin.move(source, HERE, target, hand_over=True, replace=replace)
    wake(target)
    assert woken(source, target) == [0, 1]


def test_a_file_takes_its_waits_along(tmp_path: Path) -> None:
    source, target, file = in_memory(), in_memory(), tmp_path / "t.perdure"
    begin(source, asks)
    with pytest.raises(Conflict, match="--hand-over"), admin.new_archive(file) as archive:
        admin.move(source, HERE, archive)
    # A file that was lost is written again.
    for _ in range(2):
        with admin.new_archive(file) as archive:
            admin.move(source, HERE, archive, hand_over=True)
    with admin.open_archive(file) as archive:
        assert admin.move(archive, HERE, target, dry_run=True).found is State.ABSENT
        for found in (State.ABSENT, State.SAME):
            assert admin.move(archive, HERE, target).found is found
    for _ in range(3):
        wake(source)
        wake(target)
    assert woken(source, target) == [0, 1]
    assert_sound(target)


def test_a_replaced_thread_waits_for_nothing_that_its_replacement_does_not() -> None:
    source, target = in_memory(), in_memory()
    begin(target, asks)

    async def main() -> None:
        async with Runtime(source, chain(naps), settings=settings()) as runtime:
            await runtime.wait(await runtime.submit("t", {}))
            advance(runtime)
            await reach(runtime, 2, DONE)

    go(main())
    assert admin.move(source, HERE, target, replace=True).found is State.DIFFERENT
    wake(target)
    assert woken(target) == [0]
    assert not timers(target)
    assert_sound(target)
