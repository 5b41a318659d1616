"""The user of a thread or a run, as metadata and configs name one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from perdure.runtime.threads.user_and_title import find_user, user_of_options


@pytest.mark.parametrize(
    ("metadata", "user"),
    [
        ({"user_id": 42}, "42"),
        ({"owner": UUID(int=7)}, str(UUID(int=7))),
        ({"user_id": "", "langgraph_auth_user_id": "ada", "owner": "bob"}, "ada"),
        ({"user_id": True, "user": "ada"}, "ada"),
        ({"user_id": 1.5}, None),
        ({}, None),
    ],
)
def test_the_first_key_of_metadata_that_names_a_user_counts(metadata: dict[str, Any], user: str) -> None:
    assert find_user(metadata) == user


@pytest.mark.parametrize(
    ("configurable", "user"),
    [
        ({"user_id": 42, "langgraph_auth_user": {"identity": "ada"}}, "42"),
        ({"user_id": 0}, "0"),
        ({"user_id": True, "langgraph_auth_user": {"identity": 7}}, "7"),
        ({"user_id": "", "langgraph_auth_user": "ada"}, None),
        (None, None),
    ],
)
def test_options_name_the_user_of_their_run(configurable: Any, user: str | None) -> None:
    assert user_of_options({"config": {"configurable": configurable}}) == user
    assert user_of_options({"config": None}) is None
    assert user_of_options({}) is None
