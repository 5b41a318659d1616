"""Writes that share a round trip to PostgreSQL: their parts, and what a later one hides of an earlier one."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.model.ops import Commit, Committed, Delete, Drop, Expect, Fetch, Put, Refused
from perdure.model.records import CHECKPOINT, HEAD, Partition
from perdure.storage.batching import PendingRequest
from perdure.storage.postgres import write_groups

AT = Partition("", "t")


def request(effect: Any) -> PendingRequest:
    return PendingRequest(effect)


def commit(key: str, body: bytes = b"", *, expect: Expect = Expect.ANY) -> Commit:
    return Commit(AT, (Put(CHECKPOINT, (key,), body=body, expect=expect),))


def test_a_drop_is_a_part_of_its_own_in_its_place() -> None:
    group = [request(each) for each in (commit("a"), commit("b"), Drop(AT), commit("c"))]
    assert list(write_groups.split_group(group)) == [group[:2], group[2:3], group[3:]]


def test_a_part_ends_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_groups, "_GROUP_BYTES", 1000)
    group = [
        request(commit(key, bytes(size))) for key, size in (("a", 500), ("b", 600), ("c", 2000), ("d", 1))
    ]
    assert list(write_groups.split_group(group)) == [[each] for each in group]


def test_what_is_no_write_gets_an_error_and_the_others_go_on() -> None:
    group = [request(commit("a")), request(Fetch(AT, ())), request(commit("b"))]
    assert list(write_groups.split_group(group)) == [[group[0], group[2]]]
    assert isinstance(group[1].error, TypeError)


def test_a_later_write_hides_an_earlier_one_unless_it_had_to_find_nothing() -> None:
    key = (AT, CHECKPOINT, ("a",))
    assert write_groups.find_overwritten([request(commit("a"))]) == {(*key, Put), (*key, Delete)}
    assert write_groups.find_overwritten([request(commit("a", expect=Expect.ABSENT))]) == {(*key, Delete)}


def test_a_refusal_names_the_condition_that_does_not_hold() -> None:
    write = Commit(AT, (Put(CHECKPOINT, ("a",)), Put(HEAD, ())))
    assert write_groups.outcome(write, 0) == Committed()
    assert write_groups.outcome(write, 2) == Refused(HEAD, ())
