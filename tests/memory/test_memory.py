"""What is known of a user: remembered once, corrected without loss, forgotten for good, never another's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

import perdure
from perdure.database.base import handle_of
from perdure.engine.items import search_index
from perdure.errors import Conflict, Corrupt, Forgotten, NotFound
from perdure.langgraph.store import PerdureStore
from perdure.memory import Fact, Memory, ausers, programs, users
from perdure.memory.facts import NewFact
from perdure.memory.steps import FactChange, Place
from perdure.model.ops import Fetch, FindThreads, Range
from perdure.model.records import DOCUMENT
from perdure.model.store_items import partition_of
from perdure.storage.port import run
from tests.backends import BACKENDS, EMPTY, fresh

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def embed(texts: list[str]) -> list[list[float]]:
    """Vectors of the letters of texts: near if they share letters."""
    return [[float(text.casefold().count(letter)) + 0.01 for letter in "abcdefghijklmnop"] for text in texts]


@pytest.fixture
def store() -> Iterator[PerdureStore]:
    with perdure.connect_sync("memory://") as db:
        yield db.store(index={"dims": 16, "embed": embed})


def daily() -> Callable[[], datetime]:
    """A clock that is a day later at each look."""
    days = iter(range(10_000))
    return lambda: BEGAN + timedelta(days=next(days))


def texts(facts: list[Fact]) -> list[str]:
    return [fact.text for fact in facts]


def test_a_fact_is_remembered_with_its_source(store: PerdureStore) -> None:
    since = datetime(2025, 5, 1, tzinfo=UTC)
    fact = Memory(store, "ada").remember(" She sings. ", thread="t", message="m", valid_from=since)
    assert (fact.text, fact.thread, fact.message, fact.valid_from) == ("She sings.", "t", "m", since)
    assert Memory(store, "ada").facts() == [fact]


def test_an_equal_fact_is_remembered_once(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    first = memory.remember("She sings.", thread="t")
    assert memory.remember("she  SINGS.", thread="u") == first
    assert memory.facts(history=True) == [first]


def test_a_correction_closes_and_keeps_what_it_corrects(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    lisbon = memory.remember("Lives in Lisbon.")
    porto = memory.remember("Lives in Porto.", supersedes=[lisbon.id])
    assert memory.facts() == [porto]
    before, after = memory.facts(history=True)
    assert (before.superseded_by, before.known_until) == (porto.id, porto.known_from)
    assert after.supersedes == (lisbon.id,)
    assert texts(memory.facts(known_at=BEGAN + timedelta(hours=1))) == ["Lives in Lisbon."]
    assert memory.facts(known_at=BEGAN - timedelta(hours=1)) == []
    assert texts(memory.facts(known_at=porto.known_from)) == ["Lives in Porto."]


def test_a_closed_fact_is_not_found_by_a_query(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    lisbon = memory.remember("Lives in Lisbon.")
    porto = memory.remember("Lives in Porto.", supersedes=[lisbon.id])
    assert memory.recall("Lives in Lisbon.") == [porto]


def test_an_undo_brings_back_what_was_superseded_and_can_be_undone(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    lisbon = memory.remember("Lives in Lisbon.", thread="t")
    porto = memory.remember("Lives in Porto.", supersedes=[lisbon.id])
    with pytest.raises(Conflict, match=porto.id):
        memory.undo(lisbon.id)
    (again,) = memory.undo(porto.id)
    assert (again.text, again.thread) == ("Lives in Lisbon.", "t")
    assert memory.facts() == [again]
    assert texts(memory.facts(known_at=porto.known_from)) == ["Lives in Porto."]
    (redone,) = memory.undo(again.id)
    assert memory.facts() == [redone]
    assert redone.text == "Lives in Porto."
    assert len(memory.facts(history=True)) == 4


def test_an_undo_brings_back_one_of_equal_facts_that_were_superseded_one_after_the_other(
    store: PerdureStore,
) -> None:
    memory = Memory(store, "ada", now=daily())
    porto = memory.remember("Lives in Porto.", supersedes=[memory.remember("Lives in Lisbon.").id])
    again = memory.remember("Lives in Lisbon.")
    assert memory.remember("Lives in Porto.", supersedes=[again.id]).supersedes[-1] == again.id
    assert texts(memory.undo(porto.id)) == ["Lives in Lisbon."]
    assert texts(memory.facts()) == ["Lives in Lisbon."]


def test_a_retraction_keeps_the_history_and_can_be_undone(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    fact = memory.remember("She sings.")
    closed = memory.retract(fact.id)
    assert memory.retract(fact.id) == closed
    assert memory.facts() == []
    (again,) = memory.undo(fact.id)
    assert memory.facts() == [again]
    assert memory.remember("She sings.") == again


def test_the_undo_of_a_new_fact_leaves_none(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    fact = memory.remember("She sings.")
    assert memory.undo(fact.id) == []
    assert memory.facts() == []


def test_forgetting_a_fact_leaves_no_version_of_its_text(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    first = memory.remember("She sings.")
    memory.retract(first.id)
    again = memory.remember("She sings.")
    kept = memory.remember("She dances.")
    assert memory.forget(again.id) == 2
    assert memory.facts(history=True) == [kept]
    assert "sings" not in json.dumps(memory.export())


def test_forgetting_a_user_leaves_nothing(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    for number in range(30):
        memory.remember(f"Fact {number}.")
    memory.summarise("t", "They talked.")
    Memory(store, "bob").remember("Fact 1.")
    assert memory.forget() == 31
    assert memory.export() == {"format": "perdure.memory/1", "user": "ada", "facts": [], "summaries": []}
    assert memory.forget() == 0
    assert users(store) == ["bob"]


def test_a_thread_has_one_summary_the_latest(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    first = memory.summarise("t", "They met.")
    assert memory.summarise("t", "They met.") == first
    memory.summarise("t", "They met, and talked.")
    (summary,) = memory.summaries()
    assert (summary.thread, summary.text) == ("t", "They met, and talked.")
    assert memory.forget("t") == 1
    assert memory.summaries() == []


def test_an_export_has_the_whole_history_as_plain_data(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    old = memory.remember("Lives in Lisbon.")
    memory.remember("Lives in Porto.", supersedes=[old.id])
    memory.summarise("t", "They talked.")
    exported = json.loads(json.dumps(memory.export()))
    assert [(each["text"], each["current"]) for each in exported["facts"]] == [
        ("Lives in Lisbon.", False),
        ("Lives in Porto.", True),
    ]
    assert [each["thread"] for each in exported["summaries"]] == ["t"]


def test_without_a_query_the_newest_come_first(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    for text in ("One.", "Two.", "Three."):
        memory.remember(text)
    assert [each.text for each in memory.recall(None, 2)] == ["Three.", "Two."]
    assert [each.text for each in memory.recall("  ", 2)] == ["Three.", "Two."]


def test_without_an_index_the_newest_come_first_whatever_is_asked() -> None:
    with perdure.connect_sync("memory://") as db:
        memory = Memory(db.store(), "ada")
        for text in ("She sings.", "She runs.", "She reads."):
            memory.remember(text)
        assert memory.recall("sings", 2) == memory.recall(None, 2)
        assert [each.text for each in memory.recall("sings")] == ["She reads.", "She runs.", "She sings."]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"text": " "}, ValueError, "not empty"),
        ({"text": "\u200b \u2060\ufeff"}, ValueError, "not empty"),
        ({"text": "x" * 2001}, ValueError, "at most 2000"),
        ({"text": 5}, TypeError, "int"),
        ({"text": "a", "supersedes": ["gone"]}, NotFound, "gone"),
        ({"text": "a", "supersedes": "gone"}, TypeError, "list"),
        ({"text": "a", "valid_from": datetime(2026, 1, 1)}, ValueError, "time zone"),
        ({"text": "a", "heard_at": datetime(2026, 1, 1)}, ValueError, "time zone"),
    ],
)
def test_what_cannot_be_remembered_changes_nothing(
    store: PerdureStore, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    memory = Memory(store, "ada")
    with pytest.raises(error, match=message):
        memory.remember(**arguments)  # type: ignore[arg-type]
    assert memory.facts(history=True) == []


@pytest.mark.parametrize("call", ["forget", "retract", "undo"])
def test_an_unknown_id_is_named(store: PerdureStore, call: str) -> None:
    with pytest.raises(NotFound, match="'gone'"):
        getattr(Memory(store, "ada"), call)("gone")


def test_a_foreign_item_is_named_as_such(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    store.put((*memory.namespace, "facts"), "odd", {"text": "a"})
    with pytest.raises(Corrupt, match="odd"):
        memory.facts()


def test_the_methods_for_event_loops_do_the_same(store: PerdureStore) -> None:
    async def body() -> None:
        memory = Memory(store, "ada")
        first = await memory.aremember("She sings.")
        second = await memory.aremember("She dances.", supersedes=[first.id])
        assert await memory.afacts() == [second]
        assert await memory.arecall("She dances.") == [second]
        (again,) = await memory.aundo(second.id)
        assert await memory.aretract(again.id) in await memory.afacts(history=True)
        summary = await memory.asummarise("t", "They talked.")
        assert await memory.asummaries() == [summary]
        assert await memory.aexport() == memory.export()
        assert await ausers(store) == ["ada"]
        assert await memory.aforget() == 4

    asyncio.run(body())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=25))
def test_at_any_time_it_knew_what_a_model_of_it_knew(steps: list[tuple[int, int]]) -> None:
    """Compare with a plain set of texts, of which a copy is kept after each step."""
    with perdure.connect_sync("memory://") as db:
        ticks = iter(range(10_000))
        memory = Memory(db.store(), "ada", now=lambda: BEGAN + timedelta(seconds=next(ticks)))
        known: set[str] = set()
        snapshots: list[tuple[datetime, set[str]]] = []
        for which, kind in steps:
            text = f"fact {which}"
            current = {fact.text: fact for fact in memory.facts()}
            if kind == 0:
                memory.remember(text)
                known.add(text)
            elif kind == 1 and current:
                old = sorted(current)[which % len(current)]
                memory.remember(text, supersedes=[current[old].id])
                known = (known - {old}) | {text}
            elif kind == 2 and current:
                old = sorted(current)[which % len(current)]
                memory.retract(current[old].id)
                known = known - {old}
            elif kind == 3 and current:
                last = sorted(current)[which % len(current)]
                back = {fact.text for fact in memory.undo(current[last].id)}
                known = (known - {last}) | back
            snapshots.append((BEGAN + timedelta(seconds=next(ticks)), set(known)))
        for at, expected in snapshots:
            assert {fact.text for fact in memory.facts(known_at=at)} == expected
        assert len({fact.id for fact in memory.facts(history=True)}) == len(memory.facts(history=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_of_it_works_on_every_backend(backend: str) -> None:
    with EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        memory = Memory(db.store(index={"dims": 16, "embed": embed}), "ada@example.org", now=daily())
        lisbon = memory.remember("Lives in Lisbon.")
        porto = memory.remember("Lives in Porto.", supersedes=[lisbon.id])
        memory.summarise("t", "They talked.")
        assert memory.recall("Lives in Porto.", 1) == [porto]
        assert texts(memory.facts(known_at=lisbon.known_from)) == ["Lives in Lisbon."]
        assert memory.undo(porto.id)[0].text == "Lives in Lisbon."
        assert users(db.store()) == ["ada@example.org"]
        steps = programs.retract(memory._place, memory.facts()[0].id)
        ended = between(db.store(), lambda: memory.remember("Lives in Rome.", supersedes=[lisbon.id]), steps)
        assert (texts(memory.facts()), ended.superseded_by) == (["Lives in Rome."], memory.facts()[0].id)
        assert memory.forget(memory.facts()[0].id) == 1
        with pytest.raises(Forgotten):
            memory.remember("Lives in Rome.", heard_at=BEGAN)
        assert memory.forget() == 4
        assert users(db.store()) == []


def test_a_correction_to_what_is_known_already_can_be_undone(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    porto = memory.remember("Lives in Porto.")
    lisbon = memory.remember("Lives in Lisbon.")
    assert memory.remember("Lives in Porto.", supersedes=[lisbon.id]).supersedes == (lisbon.id,)
    assert texts(memory.undo(porto.id)) == ["Lives in Lisbon."]
    assert texts(memory.facts()) == ["Lives in Lisbon."]


def test_an_equal_fact_is_found_although_earlier_versions_have_expired(store: PerdureStore) -> None:
    memory = Memory(store, "ada", now=daily())
    first = memory.remember("She sings.")
    memory.retract(first.id)
    second = memory.remember("She sings.")
    store.delete((*memory.namespace, "facts"), first.id)
    assert memory.remember("She sings.") == second
    memory.retract(second.id)
    assert memory.remember("She sings.").id not in (first.id, second.id)


def test_no_fact_is_missed_that_is_written_between_pages(
    store: PerdureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_PAGE", 3)
    memory = Memory(store, "ada", now=daily())
    known = [memory.remember(f"Fact {number}.") for number in range(8)]
    steps: Any = programs.read_facts(Place(memory.namespace, daily()))
    answer = store.batch(next(steps))
    # The oldest one, of the last page, moves to the first one.
    store.put((*memory.namespace, "facts"), known[0].id, known[0].dump())
    found: list[Fact] = []
    while not found:
        try:
            answer = store.batch(steps.send(answer))
        except StopIteration as ended:
            found = ended.value
    assert {fact.id for fact in found} == {fact.id for fact in known}


def test_a_text_that_no_store_takes_is_refused_by_name(store: PerdureStore) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        Memory(store, "ada").remember("\ud83d")
    with pytest.raises(NotFound, match="perdure memory ls"):
        Memory(store, "ada").retract("gone")


def between(store: PerdureStore, act: Callable[[], Any], steps: Any) -> Any:
    """Drive the steps of an operation, and act as another process once, right before its first change."""
    step, acted = next(steps), False
    while True:
        if isinstance(step, FactChange) and not acted:
            act()
            acted = True
        if isinstance(step, FactChange):
            answer: Any = store.put_if_unchanged(step.puts, step.seen)
        else:
            answer = store.batch(step)
        try:
            step = steps.send(answer)
        except StopIteration as ended:
            assert acted
            return ended.value


@pytest.mark.parametrize("change", ["remember", "retract", "undo"])
def test_a_change_that_a_removal_overtakes_stores_nothing(change: str, store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    secret = memory.remember("Secret.")
    if change == "undo":
        memory.retract(secret.id)
    changes: dict[str, Callable[[], Any]] = {
        "remember": lambda: programs.remember(memory._place, NewFact(text="Other.", supersedes=[secret.id])),
        "retract": lambda: programs.retract(memory._place, secret.id),
        "undo": lambda: programs.undo(memory._place, secret.id),
    }
    steps = changes[change]()
    with pytest.raises(NotFound):
        between(store, memory.forget, steps)
    assert memory.facts(history=True) == []
    assert users(store) == []
    assert memory.forgotten_at() is not None


def test_of_two_corrections_of_one_fact_the_later_one_is_current(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    lives = memory.remember("Lives in Lisbon.")
    steps = programs.remember(memory._place, NewFact(text="Lives in Rome.", supersedes=[lives.id]))
    rome = between(store, lambda: memory.remember("Lives in Porto.", supersedes=[lives.id]), steps)
    assert texts(memory.facts()) == ["Lives in Rome."]
    first, porto, _ = memory.facts(history=True)
    assert (first.superseded_by, porto.superseded_by) == (porto.id, rome.id)
    assert texts(memory.undo(rome.id)) == ["Lives in Porto."]


def test_many_corrections_at_once_leave_one_current_fact(store: PerdureStore) -> None:
    lives = Memory(store, "ada").remember("Lives in Lisbon.")

    async def body() -> None:
        towns = [f"Lives in town {number}." for number in range(8)]
        every = [Memory(store, "ada").aremember(town, supersedes=[lives.id]) for town in towns]
        await asyncio.gather(*every)

    asyncio.run(body())
    facts = Memory(store, "ada").facts(history=True)
    assert len(facts) == 9
    assert len({fact.superseded_by for fact in facts if not fact.is_current}) == 8


def test_of_two_retractions_and_undos_none_is_lost(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    sings = memory.remember("She sings.")
    again = between(store, lambda: memory.retract(sings.id), programs.retract(memory._place, sings.id))
    assert again == memory.facts(history=True)[0]
    back = between(store, lambda: memory.undo(sings.id), programs.undo(memory._place, sings.id))
    assert memory.facts() == back
    assert len(memory.facts(history=True)) == 2


def test_a_store_of_others_is_read_again_before_a_change() -> None:
    memory = Memory(InMemoryStore(), "ada")
    lives = memory.remember("Lives in Lisbon.")
    memory.remember("Lives in Porto.", supersedes=[lives.id])
    rome = memory.remember("Lives in Rome.", supersedes=[lives.id])
    assert memory.facts() == [rome]
    assert memory.forget(rome.id) == 1
    assert memory.facts() == []


def test_what_was_forgotten_is_not_remembered_from_earlier_messages(store: PerdureStore) -> None:
    days = daily()
    memory = Memory(store, "ada", now=days)
    fact, heard = memory.remember("She sings."), days()
    memory.summarise("t", "They sang.")
    assert memory.forget(fact.id) == 1
    assert memory.forget("t") == 1
    for source in (None, "m1"):
        with pytest.raises(Forgotten):
            memory.remember("she  SINGS.", heard_at=heard, message=source)
    with pytest.raises(Forgotten):
        memory.summarise("t", "They sang.", heard_at=heard)
    assert memory.export()["facts"] == memory.export()["summaries"] == memory.recall() == []
    with pytest.raises(NotFound):
        memory.forget(fact.id)
    later = memory.remember("She sings.", heard_at=days())
    assert memory.facts() == [later]
    assert memory.summarise("t", "They danced.", heard_at=days()) == memory.summaries()[0]
    assert memory.forget() == 2
    assert users(store) == []


def test_a_text_that_is_forgotten_while_it_is_remembered_again_stays_forgotten(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    fact, heard = memory.remember("She sings."), datetime.now(UTC)
    memory.retract(fact.id)
    steps = programs.remember(memory._place, NewFact(text="She sings.", heard_at=heard))
    with pytest.raises(Forgotten):
        between(store, lambda: memory.forget(fact.id), steps)
    assert memory.facts(history=True) == []


def test_a_repeated_extraction_does_not_bring_back_what_was_corrected_since(store: PerdureStore) -> None:
    memory, heard = Memory(store, "ada"), datetime.now(UTC)
    source: Any = {"thread": "t", "message": "m", "heard_at": heard}
    lisbon = memory.remember("Lives in Lisbon.", **source)
    porto = memory.remember("Lives in Porto.", supersedes=[lisbon.id])
    assert memory.remember("Lives in Lisbon.", **source).id == lisbon.id
    assert memory.facts() == [porto]


def test_what_comes_from_a_message_is_removed_without_a_mark(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    memory.remember("She sings.", thread="t", message="m")
    other = memory.remember("She dances.", thread="t", message="n")
    memory.summarise("t", "They sang.")
    assert memory.forget_source("t", "m") == 2
    assert memory.facts() == [other]
    assert memory.remember("She sings.", heard_at=BEGAN).is_current


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_text_that_a_process_without_the_index_forgets_leaves_no_vector(backend: str) -> None:
    """As the command does, which knows no embedding model."""
    with EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        indexed = Memory(db.store(index={"dims": 16, "embed": embed}), "ada")
        fact, other = indexed.remember("She sings."), indexed.remember("She dances.")
        indexed.summarise("t", "They talked.")
        plain = Memory(db.store(), "ada")
        assert plain.forget(fact.id) == plain.forget("t") == 1
        driver = handle_of(db).driver
        for namespace, left in ((plain._place.facts, {other.id}), (plain._place.summaries, set())):
            partition = partition_of("", namespace)
            assert set(run(search_index.read(partition, [fact.id, other.id, "t"]), driver)) == left
        assert indexed.recall("She sings.") == [other]
        # The index names the last items that were changed, and an id follows from its text.
        assert plain.forget() == 1
        assert indexed.recall("She sings.") == []
        for namespace in (plain._place.facts, plain._place.summaries):
            (records,) = driver.perform(Fetch(partition_of("", namespace), (Range(DOCUMENT, ("search",)),)))
            assert records == ()


def test_a_namespace_that_the_catalogue_does_not_list_yet_is_read_and_forgotten() -> None:
    """DynamoDB's catalogue follows the table within moments."""
    with fresh("memory") as driver:
        real, is_late = driver.perform, [True]

        def perform(effect: Any) -> Any:
            if isinstance(effect, FindThreads) and is_late:
                return ()
            return real(effect)

        driver.perform = perform  # type: ignore[method-assign]
        memory = Memory(PerdureStore(driver), "ada")
        fact = memory.remember("She sings.")
        summary = memory.summarise("t", "They talked.")
        assert memory.facts() == [fact]
        assert memory.summaries() == [summary]
        assert memory.forget() == 2
        is_late.clear()
        assert users(PerdureStore(driver)) == []


def test_what_only_looks_like_a_mark_is_forgotten_with_the_rest(store: PerdureStore) -> None:
    memory = Memory(store, "ada")
    memory.remember("She sings.")
    store.put(memory._place.facts, "odd", {"kind": "forgotten", "at": "once"})
    memory.forget()
    assert users(store) == []


def test_a_mark_that_is_set_while_a_source_is_forgotten_stays(store: PerdureStore) -> None:
    memory, heard = Memory(store, "ada"), datetime.now(UTC)
    memory.summarise("t", "They talked.")
    assert between(store, lambda: memory.forget("t"), programs.forget_source(memory._place, "t", "m")) == 0
    with pytest.raises(Forgotten):
        memory.summarise("t", "They talked.", heard_at=heard)
