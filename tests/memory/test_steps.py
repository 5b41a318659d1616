"""The fence between the removal of a user and those who still extract facts of what came before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

import perdure
from perdure.errors import Forgotten
from perdure.langgraph.store import PerdureStore
from perdure.memory import Memory, programs, users
from perdure.memory.facts import NewFact
from perdure.memory.steps import FactChange, Steps
from perdure.testing.faults import WRITES, Fault, fail, faulty
from tests.backends import BACKENDS, EMPTY
from tests.conversation.histories import how_many

TEXT = "She sings."
WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")


@pytest.fixture
def store() -> Iterator[PerdureStore]:
    with perdure.connect_sync("memory://") as db:
        yield db.store()


def act_before(store: PerdureStore, number: int, act: Callable[[], object], steps: Steps[Any]) -> bool:
    """Run steps, and another's act before the one of this number; return False if there are fewer."""
    acted = False
    try:
        step, count = next(steps), 0
        while True:
            if count == number:
                act()
                acted = True
            made: Any = (
                store.put_if_unchanged(step.puts, step.seen)
                if isinstance(step, FactChange)
                else store.batch(step)
            )
            step, count = steps.send(made), count + 1
    except (StopIteration, Forgotten):
        return acted


@pytest.mark.parametrize("what", ["fact", "summary"])
@pytest.mark.parametrize("has_extracted", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("is_heard_again", [False, True], ids=["quiet", "heard again"])
def test_nothing_of_before_is_stored_wherever_the_user_is_forgotten(
    what: str, has_extracted: bool, is_heard_again: bool, store: PerdureStore
) -> None:
    memory = Memory(store, "ada")
    later = "She dances."

    def forgotten() -> None:
        memory.forget()
        if is_heard_again:
            # Another process extracts what the user has written since.
            memory.remember(later, heard_at=datetime.now(UTC) + timedelta(hours=1))
            memory.summarise("u", later, heard_at=datetime.now(UTC) + timedelta(hours=1))

    number = 0
    while True:
        memory.forget()
        heard = datetime.now(UTC)
        if has_extracted:
            memory.remember("She paints.", heard_at=heard)
            memory.summarise("u", "They painted.", heard_at=heard)
        steps: Steps[Any] = (
            programs.remember(memory._place, NewFact(text=TEXT, heard_at=heard))
            if what == "fact"
            else programs.summarise(memory._place, "t", TEXT, heard)
        )
        if not act_before(store, number, forgotten, steps):
            break
        known: list[Any] = [*memory.facts(history=True), *memory.summaries()]
        assert [each.text for each in known] == [later, later] * is_heard_again, number
        assert users(store) == ["ada"] * is_heard_again, number
        number += 1
    assert number >= 4 - has_extracted


def test_what_is_heard_after_a_removal_is_stored(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    memory.remember(TEXT, heard_at=datetime.now(UTC))
    assert memory.forget() == 1
    assert users(store) == []
    with pytest.raises(Forgotten, match="the user was forgotten"):
        memory.remember(TEXT, heard_at=datetime.now(UTC) - timedelta(hours=1))
    with pytest.raises(Forgotten, match="the user was forgotten"):
        memory.summarise("t", TEXT, heard_at=datetime.now(UTC) - timedelta(hours=1))
    assert users(store) == []
    fact = memory.remember(TEXT, heard_at=datetime.now(UTC) + timedelta(hours=1))
    assert memory.facts(history=True) == [fact]
    assert memory.recall() == [fact]
    assert memory.export()["summaries"] == []
    assert memory.forget() == 1


def fill(url: str) -> None:
    """Store what is known of a user, some of it extracted and one fact forgotten, and of another one whose id
    begins like it."""
    with perdure.connect_sync(url) as db:
        memory = Memory(db.store(), "ada")
        first = memory.remember("Lives in Lisbon.", heard_at=datetime.now(UTC) + timedelta(hours=1))
        memory.remember("Lives in Porto.", supersedes=[first.id])
        memory.forget(memory.remember("Hates Rome.").id)
        memory.summarise("t", "They talked.", heard_at=datetime.now(UTC) + timedelta(hours=1))
        Memory(db.store(), "ada2").remember("Dances.")


def forget(url: str, *faults: Fault) -> int:
    """Forget the user, and return the number of writes."""
    with faulty(url, *faults, counts=WRITES) as (db, driver):
        Memory(db.store(), "ada").forget()
        return driver.count


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("on", [each for each in BACKENDS if each != "memory"])
def test_a_removal_that_ends_anywhere_is_finished_by_the_next_one(on: str) -> None:
    """Each process ends before or after one of its writes, as a killed one does."""
    heard = datetime.now(UTC) - timedelta(hours=1)
    gone = fail(ConnectionError("this process has ended"))
    with EMPTY[on]() as url:
        with perdure.connect_sync(url, migrate=True):
            pass
        fill(url)
        writes = forget(url)
        assert writes >= 3
        for at in range(1, writes + 1, max(1, writes // how_many(3, writes))):
            for when in WHEN:
                fill(url)
                # Nothing that a process does after its end reaches the database.
                faults = [Fault(n, gone, when if n == at else "before") for n in range(at, at + 9)]
                with pytest.raises(ConnectionError):
                    forget(url, *faults)
                with perdure.connect_sync(url) as db:
                    memory = Memory(db.store(), "ada")
                    assert memory.export()["user"] == "ada"
                    with pytest.raises(Forgotten):
                        memory.remember("Lives in Lisbon.", heard_at=heard)
                    memory.forget()
                    assert memory.export()["facts"] == memory.export()["summaries"] == []
                    assert users(db.store()) == ["ada2"]
                    assert [fact.text for fact in Memory(db.store(), "ada2").facts()] == ["Dances."]
