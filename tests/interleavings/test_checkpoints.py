"""Whatever two processes do at once with the checkpoints of a thread comes out as one after the other.

Edits and reads by two versions of an application, pins, tags, forks, copies, removals and sweeps. A run of a
graph stores several checkpoints; what comes between them is in the tests of the undisturbed thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from perdure import Retention, RetentionRules
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import make_database
from perdure.engine.threads import schema_pin
from perdure.errors import Conflict, HeadConflict, NotFound, SchemaTooNew, ThreadPinned
from perdure.retention.sweeper import RetentionOptions
from perdure.schema import Schema, convert
from perdure.storage.port import Driver
from tests.interleavings.explorer import Case, World, check
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES
from tests.langgraph.session import config

TURNS = 3
THREAD = "ada"


def louder(said: list[str]) -> list[str]:
    """Migrate a state, once: what is migrated twice shows it."""
    return [text.replace("turn", "TURN+") for text in said]


SCHEMAS = {1: Schema(1, []), 2: Schema(2, [convert(2, "said", louder)])}


class Threads(World):
    """A thread of a few turns, with a tag on an early checkpoint. Each operation is of its own process."""

    state = "plain"

    def database(self) -> SyncDatabase:
        return make_database(self.driver, tenant=self.tenant)

    def graph(self, version: int) -> Any:
        saver = self.database().checkpointer(schema=SCHEMAS[version])
        return graphs.chain(saver, STATES[self.state])

    def remember(self) -> None:
        history = [s for s in self.graph(1).get_state_history(config(THREAD)) if s.values.get("said")]
        ids = [each.config["configurable"]["checkpoint_id"] for each in history]
        self.latest, self.early = ids[0], ids[-2]


class Deltas(Threads):
    state = "delta"


def said(world: Threads, version: int, thread: str = THREAD) -> Any:
    return world.graph(version).get_state(config(thread)).values.get("said", [])


def edit(world: Threads, version: int, text: str) -> None:
    again(lambda: world.graph(version).update_state(config(THREAD), {"said": [text]}, as_node="second"))


def again(act: Callable[[], Any]) -> Any:
    """Return the result of a call that is repeated if it was refused, as another process came in between."""
    for _ in range(3):
        try:
            return act()
        except (Conflict, HeadConflict, NotFound) as error:
            refused = error
    raise refused


def history(world: Threads, version: int) -> Any:
    states = world.graph(version).get_state_history(config(THREAD))
    return [state.values.get("said", []) for state in states]


def copy(world: Threads) -> Any:
    world.database().checkpointer().copy_thread(THREAD, "copy")


def export(world: Threads) -> Any:
    return [each["id"] for each in world.database().export(THREAD)["checkpoints"]]


def sweep(world: Threads) -> None:
    options = RetentionOptions(rules=RetentionRules(Retention(keep_last=2)))
    # Of two sweeps at once both count what one of them removes.
    world.database().apply_retention_to(THREAD, options)


def pin(world: Threads, version: int | None) -> None:
    world.run(schema_pin.pin(world.here, version, 0))


def prune(world: Threads, **options: Any) -> None:
    world.database().checkpointer().prune([THREAD], **options)


def fork(world: Threads) -> None:
    world.database().fork(THREAD, world.early)


def read(world: Threads) -> Any:
    """Return what readers of both versions see; the ids of new checkpoints differ from time to time."""
    return [_seen(world, thread) for thread in (THREAD, "copy")], world.run(schema_pin.read_pin(world.here))


def _seen(world: Threads, thread: str) -> Any:
    database = world.database()
    try:
        count = len(database.timeline(thread))
    except NotFound:
        return "not there"
    damage = [str(finding) for finding in database.fsck(thread)]
    values = [_result(partial(said, world, version, thread)) for version in SCHEMAS]
    return count, sorted(database.tags(thread)), values, damage


def _result(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except (SchemaTooNew, ThreadPinned) as error:
        return type(error).__name__


OPERATIONS: Mapping[str, Callable[[Threads], Any]] = {
    "read": lambda w: again(lambda: said(w, 1)),
    "read in the newer version": lambda w: again(lambda: said(w, 2)),
    "read the history": lambda w: again(lambda: history(w, 1)),
    "edit": lambda w: edit(w, 1, "edited"),
    "edit in the newer version": lambda w: edit(w, 2, "edited anew"),
    "pin": lambda w: pin(w, 1),
    "unpin": lambda w: pin(w, None),
    "tag": lambda w: w.database().tag(THREAD, "tag", w.early) and None,
    "tag the latest": lambda w: w.database().tag(THREAD, "latest") and None,
    "untag": lambda w: w.database().untag(THREAD, "kept"),
    "fork": fork,
    "copy": copy,
    "prune": prune,
    "prune to two": lambda w: prune(w, keep_last=2),
    "prune everything": lambda w: prune(w, strategy="delete"),
    "take out a run": lambda w: w.database().checkpointer().delete_for_runs(["run 1"]),
    "take back the last run": lambda w: w.database().checkpointer().delete_for_runs([f"run {TURNS - 1}"]),
    "sweep": sweep,
    "check": lambda w: [str(finding) for finding in w.database().fsck(THREAD)],
    "measure": lambda w: w.database().measure(THREAD).checkpoints.count,
    "delete": lambda w: w.database().checkpointer().delete_thread(THREAD),
}


def with_turns(kind: type[Threads], pinned: int | None = None) -> Callable[[Driver], Threads]:
    def new(driver: Driver) -> Threads:
        world = kind(driver)
        for turn in range(TURNS):
            given: Any = {**config(THREAD), "metadata": {"run_id": f"run {turn}"}}
            world.graph(1).invoke({"said": [f"turn {turn}"]}, given, durability="sync")
        world.remember()
        world.database().tag(THREAD, "kept", world.early)
        if pinned is not None:
            pin(world, pinned)
        return world

    return new


LATE_COPY = "a copy that was read before a run was removed, and arrives after that, still has the run"
TWO_STEPS = "LangGraph stores an edit in two steps: a copy may have the first, a pin stops the second"
EXCUSED = {
    **{("copy", other): LATE_COPY for other in ("take out a run", "take back the last run")},
    **{(other, "copy"): LATE_COPY for other in ("take out a run", "take back the last run")},
    **{("edit in the newer version", other): TWO_STEPS for other in ("copy", "pin")},
}
CASES: Mapping[str, Case[Threads]] = {
    "plain": Case(with_turns(Threads), OPERATIONS, read, EXCUSED),
    "plain, pinned": Case(with_turns(Threads, pinned=1), OPERATIONS, read, EXCUSED),
    "delta": Case(with_turns(Deltas), OPERATIONS, read, EXCUSED),
}
QUICK = 25
"""Pairs of a set-up that are explored in the quick run."""


@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting], size=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other(setting: str, name: str) -> None:
    check(f"{setting}, {name}", CASES[setting], pairs=[(name, other) for other in OPERATIONS])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other_in_a_database(setting: str, stored: Driver) -> None:
    check(setting, CASES[setting], stored, size=QUICK)
