"""What a process knows of the generations of search indexes that it wrote."""

from __future__ import annotations

from threading import Lock

from perdure.engine.items import known_generations
from perdure.engine.items.known_generations import KnownGenerations
from perdure.engine.items.search_index import Generation
from perdure.model.records import STORE, Partition

ADA = Partition("", "ada", STORE)


def written(known: KnownGenerations, partition: Partition, *versions: int) -> None:
    before = None
    for version in versions:
        known.note_commit(partition, before, Generation(version, []))
        before = version


def test_a_generation_is_known_once_this_process_wrote_the_last_two() -> None:
    known = KnownGenerations(Lock())
    written(known, ADA, 1)
    assert known.get(ADA) is None
    known.note_commit(ADA, 1, Generation(2, [[1, ["tea"]]]))
    assert known.get(ADA) == (2, [[1, ["tea"]]])


def test_a_generation_after_another_writer_s_is_not_known() -> None:
    known = KnownGenerations(Lock())
    written(known, ADA, 1, 2)
    known.note_commit(ADA, 7, Generation(8, []))
    assert known.get(ADA) is None


def test_a_refused_generation_is_forgotten_unless_a_newer_one_was_written_since() -> None:
    known = KnownGenerations(Lock())
    written(known, ADA, 1, 2, 3)
    known.note_refusal(ADA, 2)
    assert known.get(ADA) is not None
    known.note_refusal(ADA, 3)
    assert known.get(ADA) is None


def test_an_index_without_a_generation_is_not_known() -> None:
    known = KnownGenerations(Lock())
    written(known, ADA, 1, 2)
    known.note_commit(ADA, 2, None)
    assert known.get(ADA) is None


def test_the_generation_that_was_written_longest_ago_is_forgotten_first() -> None:
    known = KnownGenerations(Lock())
    names = [Partition("", f"user {n}", STORE) for n in range(known_generations.MOST + 1)]
    for name in names:
        written(known, name, 1, 2)
    assert known.get(names[0]) is None
    assert all(known.get(name) is not None for name in names[1:])
