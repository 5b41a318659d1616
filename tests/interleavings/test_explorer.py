"""The explorer of interleavings finds what comes out as neither order, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import Corrupt
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Put
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver
from tests.interleavings.explorer import Case, World, explore

KEY = ("counters", "one")


def value(world: World) -> Program[tuple[int, int]]:
    (found,) = yield from ask(Fetch(world.here, (Get(DOCUMENT, KEY),)))
    return (int(found[0].body), found[0].version) if found else (0, 0)


def add(world: World, *, checks: bool) -> Program[int]:
    while True:
        before, version = yield from value(world)
        expect = (version or Expect.ABSENT) if checks else Expect.ANY
        put = Put(DOCUMENT, KEY, {"updated_at": 0}, b"%d" % (before + 1), expect, version + 1)
        if isinstance((yield from ask(Commit(world.here, (put,)))), Committed):
            return before + 1


def case(**operations: Any) -> Case[World]:
    return Case(World, operations, lambda world: world.run(value(world))[0])


def test_a_lost_update_is_found_and_named() -> None:
    explored = explore(case(add=lambda world: world.run(add(world, checks=False))))
    assert (explored.pairs, explored.interleavings) == (1, 2)
    (lost,) = explored.found
    assert (lost.name, lost.other, lost.at, lost.found) == ("add", "add", 2, (1, 1, 1))
    assert "'add' before request 2 of 'add'" in str(lost)


@pytest.mark.parametrize("driver", [None, MemoryDriver()], ids=["copied", "set up anew"])
def test_what_is_repeated_on_conflict_is_as_one_after_the_other(driver: Driver | None) -> None:
    def add_checked(world: World) -> int:
        return world.run(add(world, checks=True))

    explored = explore(case(add=add_checked, get=lambda world: world.run(value(world))[0]), driver)
    assert (explored.pairs, explored.interleavings, explored.found) == (4, 6, [])


def test_an_excused_pair_is_counted_and_not_named() -> None:
    lossy = case(add=lambda world: world.run(add(world, checks=False)))
    excused = Case(lossy.new, lossy.operations, lossy.read, {("add", "add"): "it is so in this test"})
    assert (explore(excused).interleavings, explore(excused).found) == (2, [])


def test_damage_is_found_even_if_both_orders_end_with_it() -> None:
    def fail(world: World) -> None:
        world.run(value(world))
        raise Corrupt("a record is missing")

    assert len(explore(case(fail=fail)).found) == 1
