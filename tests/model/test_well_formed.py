"""Covers perdure.model.well_formed."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.model.ops import Commit, Delete, Put
from perdure.model.records import CHECKPOINT, HEAD, INBOX, Partition
from perdure.model.well_formed import require_names

ADA = Partition("", "ada")
MESSAGE: dict[str, Any] = {"graph": "g", "channel": "", "mode": "enqueue", "dedupe": b"", "accepted_at": 1}
STEP: dict[str, Any] = {"seq": 1, "parent_id": None, "run_id": None, "source": None, "step": None}


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


def test_absent_values_are_taken_where_a_column_may_be_empty() -> None:
    require_names(Commit(ADA, (Put(CHECKPOINT, ("", "1"), STEP), Put(INBOX, (1,), MESSAGE))))
