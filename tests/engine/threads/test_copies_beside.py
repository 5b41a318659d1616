"""A thread is written to, pruned, deleted or copied, at either database, between any two requests of a copy:
what arrives is the thread as it was at one moment, or the copy is refused, and neither database is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.errors import Conflict, Contention, HeadConflict, NotFound
from tests.engine.threads.test_undisturbed import ADA, HERE, Thread
from tests.engine.transfer.test_transfer import in_memory

Sides = tuple[perdure.SyncDatabase, perdure.SyncDatabase]
Act = Callable[[perdure.SyncDatabase, perdure.SyncDatabase], object]


def say(db: perdure.SyncDatabase, text: str) -> None:
    Thread(db, "plain").say(text, text)


BESIDE: Mapping[str, Act] = {
    "say": lambda here, there: say(here, "more"),
    "edit": lambda here, there: Thread(here, "plain").graph.update_state(HERE, {"said": ["edited"]}),
    "tag": lambda here, there: here.tag("ada", "best"),
    "prune": lambda here, there: here.checkpointer().prune(["ada"]),
    "delete": lambda here, there: here.checkpointer().delete_thread("ada"),
    "say there": lambda here, there: say(there, "theirs"),
    "delete there": lambda here, there: there.checkpointer().delete_thread("ada"),
    "copy as well": lambda here, there: admin.move(here, ADA, there),
    "replace as well": lambda here, there: admin.move(here, ADA, there, replace=True),
}
COPIES: Mapping[str, Act] = {
    "copy": lambda here, there: admin.move(here, ADA, there),
    "replace": lambda here, there: admin.move(here, ADA, there, replace=True),
}
REFUSED = (Conflict, Contention, HeadConflict, NotFound)


def digest(db: perdure.SyncDatabase) -> str:
    """The thread's content, empty for none."""
    if db.checkpointer().get_tuple(HERE) is None:
        return ""
    return db.digest("ada").hex


def tables(db: perdure.SyncDatabase) -> Any:
    return handle_of(db).driver._inner  # type: ignore[attr-defined]


def kept(db: perdure.SyncDatabase) -> Any:
    return {p: {k: dict(t) for k, t in held.items()} for p, held in tables(db)._partitions.items()}


def restore(db: perdure.SyncDatabase, held: Any) -> None:
    tables(db)._partitions = {p: {k: dict(t) for k, t in each.items()} for p, each in held.items()}


def interruptions(sides: Sides, act: Act, other: Act) -> Iterator[tuple[bool, set[str], set[str]]]:
    """Do the other before each request of the act in turn; yield whether the act was refused, and what either
    database had before the other and after it."""
    begin = [kept(db) for db in sides]
    drivers = [handle_of(db).driver for db in sides]
    performs = [driver.perform for driver in drivers]
    at = 0
    while True:
        at += 1
        for db, held in zip(sides, begin, strict=True):
            restore(db, held)
        count, seen = 0, ([digest(sides[0])], [digest(sides[1])])

        def watched(perform: Any) -> Any:
            def reached(effect: Any) -> Any:
                nonlocal count
                count += 1
                if count == at:  # noqa: B023
                    for db, found in zip(sides, seen, strict=True):  # noqa: B023
                        found.append(digest(db))
                    with suppress(*REFUSED):
                        other(*sides)
                    for db, found in zip(sides, seen, strict=True):  # noqa: B023
                        found.append(digest(db))
                return perform(effect)

            return reached

        for driver, perform in zip(drivers, performs, strict=True):
            driver.perform = watched(perform)  # type: ignore[method-assign]
        refused = False
        try:
            act(*sides)
        except REFUSED:
            refused = True
        finally:
            for driver, perform in zip(drivers, performs, strict=True):
                driver.perform = perform  # type: ignore[method-assign]
        if count < at:
            return
        yield refused, set(seen[0]), set(seen[1])


@pytest.mark.slow
@pytest.mark.parametrize("older", [False, True], ids=["new", "older"])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_of_one_moment_whatever_is_done_beside_it(name: str, beside: str, older: bool) -> None:
    sides = in_memory(), in_memory()
    say(sides[0], "first")
    if older:
        admin.move(sides[0], ADA, sides[1])
    say(sides[0], "second")
    runs = 0
    for refused, mine, theirs in interruptions(sides, COPIES[name], BESIDE[beside]):
        runs += 1
        assert sides[0].fsck() == []
        found = sides[1].fsck("ada")
        assert all(refused and "it has not arrived" in each.detail for each in found), found
        after = digest(sides[1])
        if refused:
            # A replacement may have taken the older thread away already; its copy is kept then.
            assert after in theirs | {""}
        elif beside == "delete there":
            assert after in mine | {""}
        else:
            assert after in (mine - {""}) | (theirs - {""} if "there" in beside else set())
        # Once nobody else writes, it can be repeated.
        if sides[0].checkpointer().get_tuple(HERE) is not None:
            admin.move(sides[0], ADA, sides[1], replace=True)
            assert digest(sides[1]) == digest(sides[0])
            assert sides[1].fsck("ada") == []
    assert runs > 3
