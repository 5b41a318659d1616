"""Chains of corrections, made, taken back and forgotten in any order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random

import pytest

import perdure
from perdure.database.blocking import SyncDatabase
from perdure.errors import Conflict, Forgotten
from perdure.memory import Memory
from perdure.memory.facts import normalise_text
from perdure.testing.conformance.meaning import new_text_index
from tests.conversation.histories import how_many


def memory_in(database: SyncDatabase, user: str = "ada") -> Memory:
    ticks = count()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    store = database.store(index=new_text_index())
    return Memory(store, user, now=lambda: start + timedelta(seconds=next(ticks)))


@pytest.fixture
def memory() -> Iterator[Memory]:
    with perdure.connect_sync("memory://", migrate=True) as database:
        yield memory_in(database)


def current(memory: Memory) -> list[str]:
    return [fact.text for fact in memory.facts()]


def test_a_chain_whose_middle_was_forgotten_is_still_one(memory: Memory) -> None:
    first = memory.remember("I live in Rome")
    second = memory.remember("I live in Lisbon", supersedes=[first.id])
    memory.remember("I live in Porto", supersedes=[second.id])
    memory.forget(second.id)
    third = memory.remember("I live in Oslo", supersedes=[first.id])
    assert current(memory) == ["I live in Oslo"]
    assert [fact.text for fact in memory.undo(third.id)] == ["I live in Porto"]
    assert [fact.text for fact in memory.undo(memory.facts()[0].id)] == ["I live in Oslo"]
    assert current(memory) == ["I live in Oslo"]


def test_a_correction_of_a_retracted_fact_is_undone_to_nothing(memory: Memory) -> None:
    first = memory.remember("I live in Rome")
    memory.retract(first.id)
    second = memory.remember("I live in Oslo", supersedes=[first.id])
    with pytest.raises(Conflict, match=second.id):
        memory.undo(first.id)
    assert memory.undo(second.id) == []
    assert current(memory) == []
    assert [fact.text for fact in memory.undo(second.id)] == ["I live in Oslo"]


def test_a_text_that_came_back_often_is_forgotten_as_a_whole(memory: Memory) -> None:
    last = memory.remember("I sing")
    for _ in range(13):
        memory.remember("I dance", supersedes=[last.id])
        last = memory.remember("I sing", supersedes=[last.id])
    kept = memory.remember("I paint", supersedes=[last.id])
    assert memory.forget(last.id) == 14
    assert current(memory) == ["I paint"]
    assert not any("I sing" in fact.text for fact in memory.facts(history=True))
    with pytest.raises(Forgotten):
        memory.remember("I sing", heard_at=datetime(2025, 1, 1, tzinfo=UTC))
    # What was known before it is forgotten, and what was corrected before that is not true again.
    assert memory.undo(kept.id) == []


def test_the_facts_of_a_message_leave_their_chain_whole(memory: Memory) -> None:
    first = memory.remember("I live in Rome")
    second = memory.remember("I live in Lisbon", supersedes=[first.id], thread="t", message="m")
    memory.remember("I live in Porto", supersedes=[second.id])
    assert memory.forget_source("t", "m") == 1
    memory.remember("I live in Oslo", supersedes=[first.id])
    assert current(memory) == ["I live in Oslo"]


def test_of_a_chain_one_fact_is_current_at_most_whatever_happens_to_it(memory: Memory) -> None:
    """Subjects have texts of their own, so each chain is that of a subject."""
    for number in range(how_many(12, 2_000)):
        chance = Random(number)
        memory.forget()
        subjects = range(chance.randrange(1, 3))
        for _ in range(chance.randrange(3, 16)):
            subject = chance.choice(subjects)
            own = [f for f in memory.facts(history=True) if f.text.startswith(f"{subject}:")]
            text = f"{subject}: is {'abcdef'[chance.randrange(6)]}"
            act = chance.choice(["correct", "correct", "correct", "forget", "undo", "retract"])
            if not own:
                memory.remember(text)
            elif act == "correct":
                memory.remember(text, supersedes=[chance.choice(own).id])
            elif act == "forget":
                lost = chance.choice(own)
                memory.forget(lost.id)
                left = memory.export()
                assert normalise_text(lost.text) not in normalise_text(json.dumps(left)), number
                assert memory.recall(lost.text, 50, filter={"text": lost.text}) == [], number
            elif act == "retract":
                memory.retract(chance.choice(own).id)
            else:
                with suppress(Conflict):
                    memory.undo(chance.choice(own).id)
            for each in subjects:
                known = [text for text in current(memory) if text.startswith(f"{each}:")]
                assert len(known) <= 1, (number, known)
            for fact in memory.facts(history=True):
                ids = {other.id for other in memory.facts(history=True)}
                assert {*fact.supersedes, *filter(None, [fact.superseded_by])} <= ids, number
