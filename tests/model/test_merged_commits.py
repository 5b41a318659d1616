"""Several commits as one: accepted when they would be one after another, and leaving what they leave."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from perdure.model.merged_commits import merge
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Get, Op, Put
from perdure.model.ops import Fetch as Read
from perdure.model.records import CHUNK, EPOCH, GC, HEAD, Key, Kind, Partition
from perdure.storage.memory import MemoryDriver

AT = Partition("", "thread")
VERSIONED: list[tuple[Kind, Key]] = [(HEAD, ("",)), (HEAD, ("sub",)), (GC, ()), (EPOCH, ())]
CHUNKS: list[tuple[Kind, Key]] = [(CHUNK, (b"one",)), (CHUNK, (b"two",))]

expectations: st.SearchStrategy[Expect | int] = st.sampled_from(
    [Expect.ANY, Expect.ABSENT, Expect.PRESENT, 1, 2, 3]
)
versions = st.integers(1, 3)


@st.composite
def operations(draw: st.DrawFn) -> Op:
    if draw(st.integers(0, 5)) == 0:
        kind, key = draw(st.sampled_from(CHUNKS))
        return Put(kind, key, {"generation": draw(versions)}, key[0])
    kind, key = draw(st.sampled_from(VERSIONED))
    what = draw(st.sampled_from([Check, Put, Put, Delete]))
    if what is Check:
        return Check(kind, key, draw(expectations))
    if what is Delete:
        return Delete(kind, key, draw(expectations))
    return put(kind, key, draw(expectations), draw(versions))


def put(kind: Kind, key: Key, expect: Expect | int, version: int) -> Put:
    fields: dict[Kind, dict[str, Any]] = {
        HEAD: {"checkpoint_id": f"at {version}", "seq": version},
        EPOCH: {"open_run": None},
        GC: {},
    }
    return Put(kind, key, fields[kind], expect=expect, version=version)


commits = st.lists(operations(), max_size=4, unique_by=lambda op: op[:2]).map(
    lambda ops: Commit(AT, tuple(ops))
)


def contents(driver: MemoryDriver) -> object:
    return driver.perform(Read(AT, tuple(Get(*at) for at in VERSIONED + CHUNKS)))


def started(there: list[tuple[int, int]]) -> MemoryDriver:
    driver = MemoryDriver()
    puts = {VERSIONED[at]: put(*VERSIONED[at], Expect.ANY, version) for at, version in there}
    driver.perform(Commit(AT, tuple(puts.values())))
    return driver


@given(
    st.lists(st.tuples(st.integers(0, len(VERSIONED) - 1), versions), max_size=4),
    st.lists(commits, min_size=1, max_size=3),
)
def test_one_commit_does_what_several_do_or_there_is_none(
    there: list[tuple[int, int]], several: list[Commit]
) -> None:
    one = merge(several)
    if one is None:
        event("no such commit")
        return
    together, apart = started(there), started(there)
    before = contents(apart)
    accepted = all(isinstance(apart.perform(commit), Committed) for commit in several)
    event(f"accepted: {accepted}")
    assert isinstance(together.perform(one), Committed) is accepted
    assert contents(together) == (contents(apart) if accepted else before)


def test_two_steps_of_a_head_are_one() -> None:
    first = Commit(AT, (Put(GC, (), expect=Expect.ABSENT, version=7), put(HEAD, ("",), Expect.ABSENT, 1)))
    second = Commit(AT, (Check(GC, (), 7), put(HEAD, ("",), 1, 2)))
    assert merge([first, second]) == Commit(
        AT, (Put(GC, (), expect=Expect.ABSENT, version=7), put(HEAD, ("",), Expect.ABSENT, 2))
    )


def test_a_second_that_the_first_makes_fail_is_not_merged() -> None:
    first = Commit(AT, (put(HEAD, ("",), Expect.ABSENT, 1),))
    assert merge([first, Commit(AT, (put(HEAD, ("",), 3, 4),))]) is None
    assert merge([first, Commit(AT, (put(HEAD, ("",), Expect.ABSENT, 2),))]) is None


def test_commits_of_two_threads_are_refused() -> None:
    other = Commit(Partition("", "another"), (Check(GC, (), 1),))
    with pytest.raises(ValueError, match="different partitions"):
        merge([Commit(AT, ()), other])


def test_nothing_is_no_commit() -> None:
    assert merge([]) is None
