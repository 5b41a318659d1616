"""A thread is pruned, cut, written to or deleted between any two requests of a read, a removal or a run: what
comes back is the thread as it was at one moment, or an error that says what happened, and never that a sound
thread is damaged.

Covers perdure.engine.threads.undisturbed, perdure.engine.threads.checkpoint_loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import perdure
from perdure import Retention, RetentionRules
from perdure.database.base import handle_of
from perdure.engine import complete_reads
from perdure.engine.threads import history
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.errors import CannotTakeBack, Contention, Corrupt, HeadConflict, NotFound, SchemaTooNew
from perdure.model.ops import Commit, Put
from perdure.model.program import Program, ask
from perdure.model.records import GC, Partition
from perdure.retention.sweeper import RetentionOptions
from perdure.schema import Schema, convert
from perdure.storage.memory import MemoryDriver
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES
from tests.langgraph.session import config
from tests.pairwise import pairwise

ADA = Partition("", "ada")
TURNS = 4
HERE: Any = config("ada")
LAST = f"run {TURNS - 1}"


@cache
def compiled(build: Any, state: str) -> Any:
    """Compile a graph once: each test opens its thread after every request of another."""
    return build(None, STATES[state])


class Thread:
    """A thread of a few turns, as one process holds it, and a checkpoint of it after four messages."""

    def __init__(
        self, db: perdure.SyncDatabase, state: str, build: Any = graphs.chain, old: str = ""
    ) -> None:
        self.db, self.state, self.build, self.old = db, state, build, old
        self.saver = db.checkpointer()
        self.graph = compiled(build, state).copy(update={"checkpointer": self.saver})

    def again(self) -> Thread:
        """The same thread as another process holds it."""
        return Thread(self.db, self.state, self.build, self.old)

    def say(self, text: str, run_id: str) -> Any:
        given: Any = {**HERE, "metadata": {"run_id": run_id}}
        return self.graph.invoke({"said": [text]}, given, durability="sync")["said"]

    def say_in_a_newer_version(self) -> Any:
        schema = Schema(2, [convert(2, "said", lambda said: said)])
        self.graph = graphs.chain(self.db.checkpointer(schema=schema), STATES[self.state])
        return self.say("next", "next")

    def said(self, thread: str = "ada") -> list[str]:
        return self.graph.get_state(config(thread)).values.get("said", [])

    def copied(self) -> list[str]:
        self.saver.copy_thread("ada", "copy")
        assert self.db.fsck("copy") == []
        return self.again().said("copy")


def conversation(turns: int) -> list[str]:
    out: list[str] = []
    for n in range(turns):
        out.append(f"turn {n}")
        out += [f"first saw {len(out)}", f"second saw {len(out) + 1}"]
    return out


WHOLE = conversation(TURNS)


def sweep(thread: Thread) -> list[list[str]]:
    options = RetentionOptions(rules=RetentionRules(Retention(keep_last=3)))
    assert thread.db.apply_retention_to("ada", options).threads == 1
    return []


Act = Callable[[Thread], Any]
REMOVALS: Mapping[str, Act] = {
    "prune": lambda t: t.saver.prune(["ada"]),
    "prune to five": lambda t: t.saver.prune(["ada"], keep_last=5),
    "prune everything": lambda t: t.saver.prune(["ada"], strategy="delete"),
    "take out a run": lambda t: t.saver.delete_for_runs(["run 1"]),
    "take back the last run": lambda t: t.saver.delete_for_runs([LAST]),
}
ACTS: Mapping[str, Act] = {
    **REMOVALS,
    "read the state": lambda t: [t.said()],
    "list": lambda t: list(t.saver.list(HERE)) and [],
    "read the history": lambda t: [s.values.get("said", []) for s in t.graph.get_state_history(HERE)],
    "copy": lambda t: [t.copied()],
    "export": lambda t: t.db.export("ada") and [],
    "show": lambda t: [] if t.db.show("ada").channels else None,
    "sweep": sweep,
    "check": lambda t: t.db.fsck("ada"),
    "fork": lambda t: t.db.fork("ada", t.old) and [],
    "say": lambda t: [t.say("next", "next")],
    "say in a newer version": lambda t: [t.say_in_a_newer_version()],
    "edit": lambda t: t.graph.update_state(HERE, {"said": ["edited"]}, as_node="second") and [],
}
BESIDE: Mapping[str, Act] = {
    **REMOVALS,
    "take out another run": lambda t: t.saver.delete_for_runs(["run 2"]),
    "delete": lambda t: t.saver.delete_thread("ada"),
    "say": lambda t: t.say("other", "other"),
}
EMPTYING = {"prune everything", "delete"}


def is_of_one_moment(said: list[str]) -> bool:
    """Return True for the conversation up to some message, or a turn and what came after it."""
    own = next(
        (n for n, (a, b) in enumerate(zip(said, WHOLE, strict=False)) if a != b), min(len(said), len(WHOLE))
    )
    more = said[own:]
    return not more or (own % 3 == 0 and more[0] in ("next", "other"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few records, so that reads take as many requests as those of a long thread."""
    monkeypatch.setattr(history, "PAGE", 4)
    monkeypatch.setattr(complete_reads, "PAGE", 6)


def interruptions(
    state: str, act: Act, other: Act, build: Any = graphs.chain
) -> Iterator[tuple[perdure.SyncDatabase, Any]]:
    """Do one thing after each number of requests of the other, each time on the same thread, and yield what
    the other returned."""
    with perdure.connect_sync("memory://") as db:
        thread = Thread(db, state, build)
        for n in range(TURNS):
            thread.say(f"turn {n}", f"run {n}")
        history = thread.graph.get_state_history(HERE)
        after_four = next(state.config for state in history if len(state.values["said"]) == 4)
        thread.old = after_four["configurable"]["checkpoint_id"]
        driver = handle_of(db).driver
        inner: Any = driver._inner  # type: ignore[attr-defined]
        kept = {
            p: {kind: dict(table) for kind, table in held.items()} for p, held in inner._partitions.items()
        }
        perform = driver.perform
        at = 0
        while True:
            inner._partitions = {p: {k: dict(t) for k, t in held.items()} for p, held in kept.items()}
            left = at

            def interrupted(effect: Any) -> Any:
                nonlocal left
                left -= 1
                if left == -1:
                    # What comes too late for itself is no matter here.
                    with suppress(CannotTakeBack, SchemaTooNew):
                        other(thread.again())
                return perform(effect)

            driver.perform = interrupted  # type: ignore[method-assign]
            try:
                found = act(thread.again())
            except (NotFound, HeadConflict, CannotTakeBack) as error:
                found = error
            finally:
                driver.perform = perform  # type: ignore[method-assign]
            if left >= 0:
                return
            yield db, found
            at += 1


@pytest.mark.usefixtures("small")
@pairwise(state=STATES, name=ACTS, beside=BESIDE)
def test_what_is_removed_beside_disturbs_nothing(state: str, name: str, beside: str) -> None:
    for db, found in interruptions(state, ACTS[name], BESIDE[beside]):
        if isinstance(found, list):
            assert all(map(is_of_one_moment, found)), found
        if beside not in EMPTYING:
            gone = beside == "take back the last run" or name in ("read the history", "fork")
            assert gone or not isinstance(found, NotFound), found
            if name in ("read the state", "copy", "say") and isinstance(found, list):
                assert len(found[0]) >= len(conversation(TURNS - 1))
        assert db.fsck("ada") == []


@pytest.mark.usefixtures("small")
@pairwise(state=STATES, name=["read the state", "say"], beside=BESIDE)
def test_a_head_that_is_read_first_may_be_gone_when_the_rest_is_read(
    monkeypatch: pytest.MonkeyPatch, state: str, name: str, beside: str
) -> None:
    capabilities = replace(MemoryDriver.capabilities, reads_heads_first=True)
    monkeypatch.setattr(MemoryDriver, "capabilities", capabilities)
    test_what_is_removed_beside_disturbs_nothing(state, name, beside)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("beside", [*REMOVALS, "delete"])
@pytest.mark.parametrize("state", ["plain", "delta"])
@pytest.mark.packs_late
def test_a_subgraph_of_a_run_from_an_old_state_does_not_begin_anew(state: str, beside: str) -> None:
    def branch(thread: Thread) -> list[list[str]]:
        given: Any = {"configurable": {**HERE["configurable"], "checkpoint_id": thread.old}}
        return [thread.graph.invoke({"said": ["branch"]}, given, durability="sync")["said"]]

    seen = set[str]()
    for db, found in interruptions(state, branch, BESIDE[beside], graphs.remembering):
        if isinstance(found, list):
            seen.add(found[0][-1])
        assert db.fsck("ada") == []
    # Of a run that is taken out the subgraph forgets what it said. A thread that is gone takes no branch.
    remembered = {"remembers 3", "remembers 2"} if beside == "take out a run" else {"remembers 3"}
    assert seen == (set() if beside in EMPTYING else remembered)


def raising(generation: int) -> Program[None]:
    yield from ask(Commit(ADA, (Put(GC, (), version=generation),)))


def test_what_is_missing_again_although_nothing_was_removed_is_damage() -> None:
    calls: list[int] = []

    def read() -> Program[str]:
        calls.append(len(calls))
        if len(calls) < 4:
            yield from raising(len(calls))
        raise Corrupt("a chunk is missing")

    with perdure.connect_sync("memory://") as db:
        with pytest.raises(Corrupt, match="a chunk is missing"):
            handle_of(db).run(read_undisturbed(ADA, read))
        assert calls == [0, 1, 2, 3]


def test_a_thread_that_is_pruned_all_the_time_is_not_read_for_ever() -> None:
    calls: list[int] = []

    def read() -> Program[str]:
        calls.append(len(calls))
        yield from raising(len(calls))
        raise Corrupt("a chunk is missing")

    with (
        perdure.connect_sync("memory://") as db,
        pytest.raises(Contention, match="'ada' keeps being pruned"),
    ):
        handle_of(db).run(read_undisturbed(ADA, read))
