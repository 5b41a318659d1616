"""Documents with a past, on the memory driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.engine import versioned_documents
from perdure.engine.complete_reads import read_all
from perdure.engine.versioned_documents import Versioned
from perdure.errors import Unserialisable
from perdure.model.ops import Range
from perdure.model.records import DOCUMENT, SERVER, Partition
from perdure.storage.port import Driver, run
from tests.backends import fresh

HERE = Partition("t", "place", SERVER)


@pytest.fixture
def driver() -> Iterator[Driver]:
    with fresh("memory") as driver:
        yield driver


class Shelf:
    """A collection, with a clock and versions of its own."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.now, self.fresh = 1000, 1 << 30

    def tick(self) -> tuple[int, int]:
        self.now += 1
        self.fresh += 1 << 30
        return self.now, self.fresh

    def create(self, name: str, **body: Any) -> Versioned | None:
        return run(versioned_documents.create(HERE, "c", name, body, *self.tick()), self.driver)

    def revise(self, name: str, before: Versioned | None = None, **more: Any) -> Versioned | None:
        def change(held: Versioned) -> dict[str, Any]:
            return {**held.body, **more}

        return run(
            versioned_documents.revise(HERE, "c", name, change, *self.tick(), before=before), self.driver
        )

    def choose(self, name: str, number: int) -> Versioned | None:
        return run(versioned_documents.choose(HERE, "c", name, number, *self.tick()), self.driver)

    def past(self, name: str) -> list[tuple[int, Any]]:
        found = run(versioned_documents.list_versions(HERE, "c", name), self.driver)
        return [(one.number, dict(one.body)) for one in found]

    def stored(self) -> list[tuple[Any, ...]]:
        (found,) = run(read_all(HERE, Range(DOCUMENT, bodies=False)), self.driver)
        return [record.key for record in found]


def test_every_change_is_a_version_and_an_older_one_may_be_current_again(driver: Driver) -> None:
    shelf = Shelf(driver)
    first = shelf.create("a", n=1)
    assert first is not None
    assert shelf.create("a", n=9) is None
    assert shelf.revise("a", n=2) is not None
    chosen = shelf.choose("a", 1)
    assert chosen is not None
    assert (chosen.number, chosen.last, dict(chosen.body)) == (1, 2, {"n": 1})
    assert (chosen.created_at, chosen.updated_at) == (first.created_at, shelf.now)
    assert shelf.past("a") == [(2, {"n": 2}), (1, {"n": 1})]
    revised = shelf.revise("a", m=3)
    assert revised is not None
    assert (revised.number, dict(revised.body)) == (3, {"n": 1, "m": 3})
    assert run(versioned_documents.get(HERE, "c", "a"), driver) == revised
    for number in (0, 4):
        assert shelf.choose("a", number) is None
    assert shelf.choose("b", 1) is None
    assert shelf.revise("b", n=1) is None
    assert shelf.past("b") == []
    assert [one.name for one in run(versioned_documents.read_all_current(HERE, "c"), driver)] == ["a"]


def test_one_that_is_not_stored_has_a_first_version_too(driver: Driver) -> None:
    shelf = Shelf(driver)
    before = Versioned("a", {"n": 0}, 1, 1, 0, 0)
    made = shelf.revise("a", before, n=1)
    assert made is not None
    assert made.number == 2
    again = shelf.revise("a", before, n=2)
    assert again is not None
    assert again.number == 3
    assert shelf.past("a") == [(3, {"n": 2}), (2, {"n": 1}), (1, {"n": 0})]


def test_ten_versions_are_in_order_of_their_numbers(driver: Driver) -> None:
    shelf = Shelf(driver)
    shelf.create("a", n=1)
    for n in range(2, 13):
        shelf.revise("a", n=n)
    assert [number for number, _ in shelf.past("a")] == list(range(12, 0, -1))


def test_removed_is_removed_with_its_past(driver: Driver) -> None:
    shelf = Shelf(driver)
    for name in ("a", "aa"):
        shelf.create(name, n=1)
        shelf.revise(name, n=2)
    assert run(versioned_documents.remove(HERE, "c", "a"), driver)
    assert not run(versioned_documents.remove(HERE, "c", "a"), driver)
    assert shelf.past("aa") == [(2, {"n": 2}), (1, {"n": 1})]
    assert all("aa" in "/".join(key) for key in shelf.stored())


def test_what_a_removal_left_behind_is_nobodys_past(driver: Driver) -> None:
    shelf = Shelf(driver)
    shelf.create("a", n=1)
    shelf.revise("a", n=2)
    program = versioned_documents.remove(HERE, "c", "a")
    # It reads the past and removes the document; then its process dies.
    answer: Any = None
    for _ in range(2):
        answer = driver.perform(program.send(answer))
    program.close()
    assert shelf.past("a") == []
    assert len(shelf.stored()) == 2
    shelf.create("a", m=1)
    assert shelf.past("a") == [(1, {"m": 1})]
    assert shelf.choose("a", 2) is None
    shelf.revise("a", m=2)
    assert shelf.past("a") == [(2, {"m": 2}), (1, {"m": 1})]


def test_a_removal_that_is_late_leaves_what_was_made_anew(driver: Driver) -> None:
    shelf = Shelf(driver)
    shelf.create("a", n=1)
    late = versioned_documents.remove(HERE, "c", "a")
    effect = late.send(None)
    answer: Any = driver.perform(effect)
    effect = late.send(answer)
    answer = driver.perform(effect)
    shelf.create("a", m=1)
    for _ in range(10):
        try:
            answer = driver.perform(late.send(answer))
        except StopIteration:
            break
    assert shelf.past("a") == [(1, {"m": 1})]


def test_what_cannot_be_stored_changes_nothing(driver: Driver) -> None:
    shelf = Shelf(driver)
    shelf.create("a", n=1)
    with pytest.raises(Unserialisable):
        shelf.revise("a", n=object())
    assert shelf.past("a") == [(1, {"n": 1})]
