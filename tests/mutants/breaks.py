"""Deliberate breaks, one a promise: each takes one guard away, as a hasty change might.

A mutant breaks the driver (see ``drivers``) or the code above it (a monkeypatch).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from perdure.engine.threads import checkpoints, history
from perdure.engine.threads.thread_state import View
from perdure.errors import Conflict
from perdure.langgraph import translate
from perdure.langgraph.saver import PerdureSaver
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import LoadedHead
from perdure.model.ops import Check, Commit, Committed, Expect, Op, Put
from perdure.model.records import EPOCH, Partition
from perdure.storage.port import Driver
from perdure.storage.sqlite import driver, rows
from tests.mutants.drivers import (
    CaseBlindOrder,
    CheckThenWrite,
    DueBeforeItsTime,
    DueInAnyOrder,
    KeyEndsAtNul,
    LostStage,
    MaxIdHead,
    NoBy,
    NoDrop,
    NoHeadCompare,
    NoNamespace,
    NonAtomic,
    NoTenant,
    NoThread,
    PutsDoNotCheckGc,
    Shrinking,
    TagLeavesGenerationAlone,
    TornFetch,
    UnguardedChunkDelete,
    WriteDemandsCheckpoint,
    changed,
)

Patch = Callable[[pytest.MonkeyPatch], None]


def no_fence(patch: pytest.MonkeyPatch) -> None:
    real = vars(checkpoints)["guards"]

    def guards(partition: Partition, view: View, epoch: int | None) -> tuple[Check, Check]:
        free = changed(view, open_run=None, epoch=view.epoch if epoch is None else epoch)
        return Check(EPOCH, (), Expect.ANY), real(partition, free, epoch)[1]

    patch.setattr(checkpoints, "guards", guards)


def fence_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """The epoch is compared with what was read, and not again in the commit."""
    real = vars(checkpoints)["guards"]

    def guards(partition: Partition, view: View, epoch: int | None) -> tuple[Check, Check]:
        return Check(EPOCH, (), Expect.ANY), real(partition, view, epoch)[1]

    patch.setattr(checkpoints, "guards", guards)


def no_epoch_needed(patch: pytest.MonkeyPatch) -> None:
    real = vars(checkpoints)["guards"]

    def guards(partition: Partition, view: View, epoch: int | None) -> tuple[Check, Check]:
        return real(partition, changed(view, open_run=None) if epoch is None else view, epoch)

    patch.setattr(checkpoints, "guards", guards)


def head_taken_for_a_fork(patch: pytest.MonkeyPatch) -> None:
    real = vars(checkpoints)["judge"]

    def judge(*, loaded: LoadedHead | None, **rest: Any) -> Any:
        if loaded is not None and loaded.addressed is not None:
            loaded = LoadedHead(loaded.addressed, was_head=False)
        return real(loaded=loaded, **rest)

    patch.setattr(checkpoints, "judge", judge)


def forks_inherited(patch: pytest.MonkeyPatch) -> None:
    real = vars(checkpoints)["judge"]

    def judge(*, loaded: LoadedHead | None, parent: str | None, **rest: Any) -> Any:
        if loaded is not None and loaded.addressed is not None and not loaded.was_head:
            parent = loaded.addressed
        return real(loaded=loaded, parent=parent, **rest)

    patch.setattr(checkpoints, "judge", judge)


def before_by_commit_order(patch: pytest.MonkeyPatch) -> None:
    """What was committed while an ancestor was the root's head, whichever root spawned it."""

    def before_root(_: Partition, found: list[CheckpointRecord], ancestors: frozenset[str]) -> Any:
        yield from ()
        return [c for c in found if (c.root_head or "") in ancestors]

    patch.setattr(history, "before_root", before_root)


def references_of_the_parent(patch: pytest.MonkeyPatch) -> None:
    """A channel that is not announced as new takes the reference that the parent has."""
    real = translate.to_record
    made: dict[tuple[str, str], CheckpointRecord] = {}

    def to_record(*args: Any, **named: Any) -> CheckpointRecord:
        record, new_versions = real(*args, **named), args[-1]
        parent = made.get((record.namespace, record.parent_id or ""))
        if parent is not None:
            taken = {c: r for c, r in parent.refs.items() if c in record.refs and c not in new_versions}
            record = record._replace(refs={**record.refs, **taken})
        made[record.namespace, record.id] = record
        return record

    patch.setattr(translate, "to_record", to_record)


def memory_believed(patch: pytest.MonkeyPatch) -> None:
    """A remembered view of the thread refuses a write by itself."""
    patch.setattr(checkpoints, "Conflict", type("Other", (Conflict,), {}))


def generations_return(patch: pytest.MonkeyPatch) -> None:
    """Every thread starts with the same generation, also one that was deleted."""
    patch.setattr(PerdureSaver, "_first_version", lambda self: 1)


def generations_close_together(patch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(1)
    patch.setattr(PerdureSaver, "_first_version", lambda self: next(numbers))


def neighbours_fail(patch: pytest.MonkeyPatch) -> None:
    """One error fails every commit of its group."""

    def write_group(self: Any, group: list[Any]) -> None:
        try:
            self._transact(group, optimistic=False)
        except Exception as error:
            for job in group:
                job.error = error

    patch.setattr(driver.SqliteDriver, "_write_group", write_group)


def answered_before_written(patch: pytest.MonkeyPatch) -> None:
    """A refusal is taken for a commit."""
    real = driver.SqliteDriver._apply

    def apply(self: Any, effect: Any, optimistic: bool) -> Any:
        answer = real(self, effect, optimistic)
        return Committed() if isinstance(effect, Commit) else answer

    patch.setattr(driver.SqliteDriver, "_apply", apply)


def versions_trusted(patch: pytest.MonkeyPatch) -> None:
    """Not only absence is left to the tables: no put's expectation is looked at."""
    real = rows.holds

    def holds(op: Op, known: Any) -> bool:
        return isinstance(op, Put) or real(op, known)

    patch.setattr(rows, "holds", holds)


@dataclass(frozen=True)
class Mutant:
    """A break, the contract that has to catch it, and the driver that it is tried on."""

    name: str
    contract: Literal["driver", "saver", "store"]
    wrap: Callable[[Driver], Driver] | None = None
    patch: Patch | None = None
    on: Literal["memory", "sqlite"] = "memory"


MUTANTS = (
    Mutant("the tenant is missing from the key", "driver", NoTenant),
    Mutant("the tenant is missing from the key, seen from above", "saver", NoTenant),
    Mutant("the thread is missing from the key", "driver", NoThread),
    Mutant("the namespace is missing from the head's key", "driver", NoNamespace),
    Mutant("what is due later is found", "driver", DueBeforeItsTime),
    Mutant("what is due is found in any order", "driver", DueInAnyOrder),
    Mutant("a key ends at its first NUL", "driver", KeyEndsAtNul),
    Mutant("a batch is applied until its first failure", "driver", NonAtomic),
    Mutant("expectations are looked at before the transaction", "driver", CheckThenWrite),
    Mutant("the head is not compared", "driver", NoHeadCompare),
    Mutant("staged chunks are lost", "driver", LostStage),
    Mutant("drop leaves records behind", "driver", NoDrop),
    Mutant("a growing field shrinks", "driver", Shrinking),
    Mutant("a fetch is of several moments", "driver", TornFetch),
    Mutant("text is ordered without regard to case", "driver", CaseBlindOrder),
    Mutant("a declared order is ignored", "driver", NoBy),
    Mutant("a delete does not look at what must be unchanged", "driver", UnguardedChunkDelete),
    Mutant("one failed commit fails its group", "driver", patch=neighbours_fail, on="sqlite"),
    Mutant("a refusal is answered as a commit", "driver", patch=answered_before_written, on="sqlite"),
    Mutant("a put's version is not looked at", "driver", patch=versions_trusted, on="sqlite"),
    Mutant("no compare-and-set on the head", "saver", NoHeadCompare),
    Mutant("the head is the largest id", "saver", MaxIdHead),
    Mutant("staging is lost", "saver", LostStage),
    Mutant("no fence", "saver", patch=no_fence),
    Mutant("the fence is not in the commit", "saver", patch=fence_in_memory_only),
    Mutant("a write without a lease passes beside an open run", "saver", patch=no_epoch_needed),
    Mutant("addressing the head is taken for a fork", "saver", patch=head_taken_for_a_fork),
    Mutant("a fork's later steps are forks", "saver", patch=forks_inherited),
    Mutant("before is answered by commit order", "saver", patch=before_by_commit_order),
    Mutant("references are inherited from the parent", "saver", patch=references_of_the_parent),
    Mutant("a remembered view refuses writes", "saver", patch=memory_believed),
    Mutant("a new thread starts with the generation of its past", "saver", patch=generations_return),
    Mutant("generations of threads lie close together", "saver", patch=generations_close_together),
    Mutant("puts do not check the collection generation", "saver", PutsDoNotCheckGc),
    Mutant("collection deletes without its guard", "saver", UnguardedChunkDelete),
    Mutant("a tag leaves the generation alone", "saver", TagLeavesGenerationAlone),
    Mutant("a write demands its checkpoint", "saver", WriteDemandsCheckpoint),
)
