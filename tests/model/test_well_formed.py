"""Covers perdure.model.well_formed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from perdure.errors import OverMaximum
from perdure.model.ops import Commit, Delete, Expect, Fetch, FindThreads, Get, Put, Range
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, DOCUMENT, HEAD, INBOX, RUN, STORE, Partition
from perdure.model.well_formed import NAME_MAX, require_names

ADA = Partition("", "ada")
MESSAGE: dict[str, Any] = {"graph": "g", "channel": "", "mode": "enqueue", "dedupe": b"", "accepted_at": 1}
STEP: dict[str, Any] = {"seq": 1, "parent_id": None, "run_id": None, "source": None, "step": None}
LONG = "x" * (NAME_MAX + 1)


@pytest.mark.parametrize(
    ("put", "says"),
    [
        (Put(INBOX, (1,), {**MESSAGE, "channel": None}), "the channel of .* 'inbox' is text, not NoneType"),
        (Put(INBOX, (1,), {**MESSAGE, "channel": 5}), "the channel of .* is text, not int"),
        (Put(INBOX, (1,), {**MESSAGE, "accepted_at": 1.5}), "the accepted_at of .* is integer, not float"),
        (Put(INBOX, ("1",), MESSAGE), "the seq of .* is integer, not str"),
        (Delete(HEAD, (5,)), "the namespace of .* 'head' is text, not int"),
    ],
)
def test_a_value_of_another_type_than_its_column_is_the_callers_fault(put: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        require_names(Commit(ADA, (put,)))


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (Fetch(ADA, (Range(INBOX, limit=-1),)), ValueError, "limit is -1; it is 0 or more"),
        (Fetch(ADA, (Range(INBOX, limit=cast(int, 1.5)),)), TypeError, r"limit is a whole number, not 1\.5"),
        (FindThreads(None, limit=cast(int, "5")), TypeError, "limit is a whole number, not '5'"),
        (Fetch(ADA, (Get(DOCUMENT, ("a", 5)),)), TypeError, "the name of .* 'document' is text, not int"),
        (Fetch(ADA, (Range(DOCUMENT, (5,)),)), TypeError, "the collection of .* is text, not int"),
        (Fetch(ADA, (Range(INBOX, after=("x",)),)), TypeError, "the seq of .* 'inbox' is integer, not str"),
        (Fetch(ADA, (Range(RUN, by="first", after="x"),)), TypeError, "the first of .* is integer, not str"),
    ],
)
def test_a_read_of_another_type_is_the_callers_fault(
    request_: Effect[Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        require_names(request_)


def test_absent_values_are_taken_where_a_column_may_be_empty() -> None:
    require_names(Commit(ADA, (Put(CHECKPOINT, ("", "1"), STEP), Put(INBOX, (1,), MESSAGE))))


@pytest.mark.parametrize(
    ("partition", "put"),
    [
        (Partition("", LONG), Put(HEAD, ("",), {"checkpoint_id": "1", "seq": 1})),
        (Partition("t" * 1000, "x" * 1001), Put(HEAD, ("",), {"checkpoint_id": "1", "seq": 1})),
        (Partition("", "\u00e9" * (NAME_MAX // 2 + 1), STORE), Put(DOCUMENT, ("a", "b"), {"updated_at": 1})),
        (ADA, Put(DOCUMENT, ("a", LONG), {"updated_at": 1})),
        (ADA, Put(CHECKPOINT, ("", "1"), {**STEP, "run_id": LONG})),
    ],
)
def test_a_new_name_has_a_limit(partition: Partition, put: Put) -> None:
    with pytest.raises(OverMaximum, match=f"at most {NAME_MAX} are taken"):
        require_names(Commit(partition, (put,)))


def test_what_has_a_long_name_already_can_be_read_changed_and_removed() -> None:
    partition = Partition("", LONG)
    require_names(Fetch(partition, (Get(HEAD, ("",)),)))
    require_names(Commit(partition, (Put(HEAD, (LONG,), {"checkpoint_id": "1", "seq": 1}, expect=3),)))
    require_names(Commit(partition, (Delete(HEAD, (LONG,), Expect.PRESENT),)))
