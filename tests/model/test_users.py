"""A user is named by text, a whole number or a UUID, and by nothing else."""

from __future__ import annotations

from uuid import UUID

import pytest

from perdure.model.users import name_user


@pytest.mark.parametrize(
    ("value", "user"),
    [
        ("ada", "ada"),
        ("42", "42"),
        (42, "42"),
        (0, "0"),
        (-1, "-1"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    ],
)
def test_text_whole_numbers_and_uuids_name_users(value: object, user: str) -> None:
    assert name_user(value) == user


@pytest.mark.parametrize("value", ["", None, True, False, 4.0, b"ada", ["ada"], {"identity": "ada"}])
def test_other_values_name_no_user(value: object) -> None:
    assert name_user(value) is None
