"""What stands after a lost answer tells whether the commit was applied, was not, or nobody can know."""

from __future__ import annotations

import pytest

from perdure.model.ops import Check, Commit, Delete, Expect, Get, Op, Put
from perdure.model.records import CHUNK, GC, ITEM, TAG, Partition, Record
from perdure.storage.in_doubt import evidence, is_in_doubt, is_repeatable, was_applied

AT = Partition("", "thread")
GENERATION = Put(GC, (), expect=1, version=2)
CHUNKED = Put(CHUNK, (b"digest",), {"generation": 3}, b"sealed by us")
GONE = Delete(TAG, ("tag",), 7)
CHECKED = Check(TAG, ("other",), Expect.PRESENT)


def commit(*ops: Op) -> Commit:
    return Commit(AT, ops)


def left(*puts: Put | None) -> list[tuple[Record, ...]]:
    """The evidence, in order: records as these puts leave them, and where there is none, nothing."""
    return [
        () if put is None else (Record(put.kind, put.key, put.fields, put.version, put.body),) for put in puts
    ]


def test_the_evidence_is_every_record_that_is_written_and_none_that_is_only_checked() -> None:
    asked = evidence(commit(CHECKED, GENERATION, GONE))
    assert asked.partition == AT
    assert asked.items == (Get(GC, ()), Get(TAG, ("tag",)))


def test_what_stands_as_written_was_applied() -> None:
    item = Put(
        ITEM, ("k",), dict.fromkeys(("created_at", "updated_at", "ttl", "expires_at")), b"ours", version=5
    )
    whole = commit(CHECKED, GENERATION, item, GONE)
    assert was_applied(whole, left(GENERATION, item, None))
    for other in (item._replace(version=6), item._replace(body=b"theirs"), None):
        assert not was_applied(whole, left(GENERATION, other, None))
    assert not was_applied(whole, left(GENERATION, item, Put(TAG, ("tag",), version=7)))


def test_a_chunk_stands_however_the_one_who_stored_it_first_sealed_it() -> None:
    whole = commit(GENERATION, CHUNKED)
    theirs = CHUNKED._replace(body=b"sealed by them")
    assert was_applied(whole, left(GENERATION, theirs))
    assert was_applied(whole, left(GENERATION, theirs._replace(fields={"generation": 4})))
    assert not was_applied(whole, left(GENERATION, theirs._replace(fields={"generation": 2})))
    assert not was_applied(whole, left(GENERATION, None))


@pytest.mark.parametrize("op", [GONE, CHUNKED])
def test_absence_and_chunks_do_not_tell_who_brought_them_about(op: Put | Delete) -> None:
    stands = left(op if isinstance(op, Put) else None)
    assert not was_applied(commit(op), stands)
    assert is_in_doubt(commit(CHECKED, op), stands)


def test_a_commit_that_only_checks_has_nothing_to_apply_and_leaves_no_doubt() -> None:
    assert not was_applied(commit(CHECKED), [])
    assert not is_in_doubt(commit(CHECKED), [])


def test_a_refused_commit_of_which_a_part_stands_is_in_doubt_and_one_of_which_none_stands_is_not() -> None:
    tag = Put(TAG, ("new",), {"namespace": "", "checkpoint_id": "c"}, version=9)
    whole = commit(GENERATION, tag, CHUNKED)
    raised = GENERATION._replace(version=3)
    assert is_in_doubt(whole, left(raised, tag, CHUNKED))
    assert not is_in_doubt(whole, left(raised, tag._replace(version=8), CHUNKED))
    assert not is_in_doubt(whole, left(None, None, CHUNKED))


def test_what_would_undo_what_others_built_on_it_is_not_made_twice() -> None:
    anyhow = Put(TAG, ("tag",), {"namespace": "", "checkpoint_id": "c"}, version=1)
    assert is_repeatable(commit(GENERATION, anyhow))
    assert is_repeatable(commit(GONE))
    assert is_repeatable(commit(CHUNKED))
    assert is_repeatable(commit(CHECKED))
    assert not is_repeatable(commit(anyhow))
    assert not is_repeatable(commit(CHECKED, Delete(TAG, ("tag",)), CHUNKED))
