"""Facts as they are stored, and those that are to be remembered."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.memory.facts import NewFact


def test_one_id_is_no_list_of_its_letters() -> None:
    one: Any = "abc"
    with pytest.raises(TypeError, match="list of ids"):
        NewFact(text="I sing", supersedes=one)
    assert NewFact(text="I sing", supersedes=["abc"]).supersedes == ["abc"]
