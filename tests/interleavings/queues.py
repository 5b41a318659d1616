"""Set-ups of a thread's queues, and what senders, workers, operators and sweeps do in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.engine.queue import accept_and_claim, ended_leases, events, inbox, runs, subscribers
from perdure.engine.retention import thread_removal
from perdure.model.ops import Fetch
from perdure.model.program import ask
from perdure.model.runs.messages import DEAD, FAILED, READY, SENDING, SENT, UNKNOWN
from perdure.storage.port import Driver
from tests.interleavings.explorer import Case
from tests.interleavings.thread_queues import BEFORE, BUDGET, NOW, TTL, Thread, read

Does = Callable[[Thread], Any]


def idle(driver: Driver) -> Thread:
    """Return a thread on which nothing happened yet."""
    return Thread(driver)


def one_waits(driver: Driver) -> Thread:
    world = Thread(driver)
    world.accept("a", key="k")
    return world


def two_wait(driver: Driver) -> Thread:
    world = one_waits(driver)
    world.accept("b", quiet=TTL)
    return world


def runs_with_one_waiting(driver: Driver) -> Thread:
    world = one_waits(driver)
    world.held = world.hold("w")
    world.accept("b", "steer")
    return world


def runs_under_an_expired_lease(driver: Driver) -> Thread:
    world = one_waits(driver)
    world.held = world.hold("w", ttl=10)
    world.accept("b", "steer")
    return world


def asks(driver: Driver) -> Thread:
    world = one_waits(driver)
    world.held = world.hold("w")
    world.ask_question()
    world.held = None
    return world


def is_answered(driver: Driver) -> Thread:
    world = asks(driver)
    world.accept("b", "answer")
    return world


def has_postponed(driver: Driver) -> Thread:
    world = Thread(driver)
    world.postpone("late", BEFORE + 10, key="k")
    world.postpone("later", NOW + 10)
    return world


def is_put_off(driver: Driver) -> Thread:
    world = one_waits(driver)
    world.held = world.hold("w")
    world.accept("b")
    world.run(runs.postpone(world.held, BEFORE + 10, {"error": "x"}, BEFORE))
    world.held = None
    return world


def has_finished(driver: Driver) -> Thread:
    world = one_waits(driver)
    world.held = world.hold("w")
    world.tell()
    world.finish(replies=["one", "two"])
    world.accept("b", channel="")
    world.held = world.hold("w")
    world.finish(FAILED, error="x")
    world.held = None
    return world


def is_sending(driver: Driver) -> Thread:
    world = has_finished(driver)
    world.sending = world.take("s")
    return world


def sends_under_an_expired_lease(driver: Driver) -> Thread:
    world = has_finished(driver)
    world.sending = world.take("s", ttl=10)
    return world


def has_given_up(driver: Driver) -> Thread:
    world = is_sending(driver)
    world.settle(DEAD, error="no")
    world.sending = None
    return world


def _at_work(setting: Callable[[Driver], Thread]) -> Callable[[Driver], Thread]:
    """Return a set-up after which time has gone on, and one process remembers the inbox."""

    def new(driver: Driver) -> Thread:
        world = setting(driver)
        found = world.run(ask(Fetch(world.here, accept_and_claim.GETS)))
        world.remembered = accept_and_claim.read(found)
        waiting = world.run(inbox.read_latest(world.here, 100))
        pending = tuple(s.message for s in reversed(waiting) if s.message.seq > world.remembered.lane.bound)
        world.remembered = world.remembered._replace(messages=pending)
        world.now = NOW
        return world

    return new


SENDERS: Mapping[str, Does] = {
    "accept": lambda t: t.accept("c"),
    "accept, remembering": lambda t: t.accept("c", knows=True),
    "accept by itself": lambda t: t.accept("c", "enqueue", channel=""),
    "accept a key": lambda t: t.accept("key", key="k"),
    "accept a key again": lambda t: t.accept("key again", key="k", knows=True),
    "accept if idle": lambda t: t.accept("c", strategy="reject"),
    "accept if there is room": lambda t: t.accept("c", max_pending=1, knows=True),
    "accept with a wait": lambda t: t.accept("c", quiet=100),
    "interrupt": lambda t: t.accept("c", strategy="interrupt", knows=True),
    "roll back": lambda t: t.accept("c", strategy="rollback"),
    "roll back all": lambda t: t.accept("c", strategy="rollback", cancel_pending=True),
    "steer": lambda t: t.accept("c", "steer", strategy="steer"),
    "answer": lambda t: t.accept("c", "answer"),
    "accept and claim": lambda t: t.accept_and_claim("c", knows=False),
    "accept and claim, remembering": lambda t: t.accept_and_claim("c", knows=True),
    "postpone": lambda t: t.postpone("soon", NOW + 20),
    "postpone a key": lambda t: t.postpone("key", NOW + 20, key="k"),
}
OPERATORS: Mapping[str, Does] = {
    "cancel a": lambda t: t.cancel("a", "interrupt"),
    "roll back a": lambda t: t.cancel("a", "rollback"),
    "cancel b": lambda t: t.cancel("b", "interrupt"),
    "cancel the postponed one": lambda t: t.cancel("late", "rollback"),
    "remove run a": lambda t: t.remove_run("a"),
    "remove run b": lambda t: t.remove_run("b"),
    "delete": lambda t: t.run(thread_removal.delete_thread(t.here)),
    "delete at rest": lambda t: t.run(thread_removal.remove_if_idle(t.here)),
    "retry the first reply": lambda t: t.retry(1),
}
WORKERS: Mapping[str, Does] = {
    "claim": lambda t: t.claim("v"),
    "claim, remembering": lambda t: t.claim("u", knows=True),
    "bring": lambda t: t.bring(),
    "send": lambda t: t.send_next("r"),
    "follow": lambda t: t.follow(),
}
HOLDERS: Mapping[str, Does] = {
    "finish": lambda t: t.finish(),
    "finish with replies": lambda t: t.finish(replies=["done"]),
    "ask": lambda t: t.ask_question(),
    "fail": lambda t: t.finish(FAILED, error="x"),
    "put off": lambda t: t.put_off(counts=True),
    "hand over": lambda t: t.put_off(counts=False),
    "renew": lambda t: t.renew(),
    "take up": lambda t: t.take_up(),
    "tell": lambda t: t.tell(),
}
DELIVERERS: Mapping[str, Does] = {
    "sent": lambda t: t.settle(SENT, provider_id="p"),
    "fails": lambda t: t.settle(READY, error="x", again_at=NOW + 40),
    "is in doubt": lambda t: t.settle(SENDING, error="x", again_at=NOW + 40),
    "is held": lambda t: t.settle(UNKNOWN, error="x"),
    "given up": lambda t: t.settle(DEAD, error="x"),
    "send again": lambda t: t.send_again(),
}
SWEEPS: Mapping[str, Does] = {
    "forget what is finished": lambda t: t.forget(),
    "forget events": lambda t: t.run(events.forget(t.here, NOW, 10, BUDGET)),
    "forget followers": lambda t: t.run(subscribers.forget(t.here, NOW)),
    "end leases": lambda t: t.run(ended_leases.end(["w", "s"], t.tenant, 2 * TTL)),
}

EXCUSED: Mapping[tuple[str, str], str] = {
    ("accept and claim", "delete"): "a message for a thread that was busy is left to the workers",
    ("take up", "take up"): "the holder of a run takes one step at a time",
    ("tell", "tell"): "the holder of a run stores its events one after the other",
    (
        "take up",
        "delete",
    ): "a step finds nothing to take up on a thread that is gone; its own write is refused",
}
"""Pairs that may come out as neither order."""

EVERYBODY = {**SENDERS, **OPERATORS, **WORKERS, **SWEEPS}
CASES: Mapping[str, Case[Thread]] = {
    name: Case(_at_work(setting), operations, read, EXCUSED)
    for name, setting, operations in (
        ("idle", idle, EVERYBODY),
        ("one waits", one_waits, EVERYBODY),
        ("two wait", two_wait, EVERYBODY),
        ("runs", runs_with_one_waiting, {**EVERYBODY, **HOLDERS}),
        ("runs under an expired lease", runs_under_an_expired_lease, {**EVERYBODY, **HOLDERS}),
        ("asks", asks, {k: v for k, v in EVERYBODY.items() if k not in ("answer", "remove run a")}),
        ("is answered", is_answered, EVERYBODY),
        ("has postponed", has_postponed, EVERYBODY),
        ("is put off", is_put_off, EVERYBODY),
        ("has finished", has_finished, EVERYBODY),
        ("is sending", is_sending, {**EVERYBODY, **DELIVERERS}),
        ("sends under an expired lease", sends_under_an_expired_lease, {**EVERYBODY, **DELIVERERS}),
        ("has given up", has_given_up, EVERYBODY),
    )
}
