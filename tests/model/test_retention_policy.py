"""Policies are checked when they are made, and each thread gets the right one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perdure import Retention, RetentionRules
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.retention_policy import parse_duration

DAY_US = 86_400_000_000
DAYS = ("2026-01-01", "2026-01-10", "2026-01-20", "2026-01-30")
NOW = 1_769_817_600_000_000
"""2026-01-31."""


def checkpoint(seq: int, day: str) -> CheckpointRecord:
    return CheckpointRecord(
        "", f"c{seq}", seq, None, None, None, None, 4, f"{day}T00:00:00+00:00", {}, {}, {}, (), b""
    )


ROOTS = [checkpoint(seq, day) for seq, day in enumerate(DAYS, 1)]


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("90s", 90_000_000),
        ("90 s", 90_000_000),
        ("15m", 900_000_000),
        ("12h", DAY_US // 2),
        ("30d", 30 * DAY_US),
        (1.5, 1_500_000),
        ("3600", 3_600_000_000),
        (" 0.5 ", 500_000),
    ],
)
def test_a_duration_is_a_number_with_a_unit_or_seconds(text: str | float, us: int) -> None:
    assert parse_duration(text) == us


@pytest.mark.parametrize(
    "text",
    ["", "30 days", "-1d", "-1", "0", "0s", "d", "1e3", "9" * 400, "nan", 0, -1, True, math.inf, math.nan],
)
def test_anything_else_is_none(text: Any) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keep_last": 0}, "keep_last is 0; it has to be a whole number of at least 1"),
        ({"keep_last": 2.5}, "keep_last is 2.5"),
        ({"keep_for": "soon"}, "keep_for is 'soon'; it has to be a duration"),
        ({"idle": None, "keep_for": []}, "keep_for is"),
        ({"keep_tagged": "no"}, "keep_tagged is 'no'"),
    ],
)
def test_a_bad_field_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retention(**fields)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (Retention(), {"c1", "c2", "c3", "c4"}),
        (Retention(keep_last=1), {"c4"}),
        (Retention(keep_for="15d"), {"c3", "c4"}),
        (Retention(keep_last=3, keep_for="15d"), {"c2", "c3", "c4"}),
        (Retention(keep_last=1, keep_for="25d"), {"c2", "c3", "c4"}),
        (Retention(idle="1d"), {"c1", "c2", "c3", "c4"}),
    ],
)
def test_either_rule_keeps_a_checkpoint(policy: Retention, kept: set[str]) -> None:
    assert policy.find_kept(ROOTS, NOW) == kept


def test_a_checkpoint_whose_time_is_unknown_stays_for_its_time() -> None:
    unknown = ROOTS[0]._replace(ts="yesterday")
    assert Retention(keep_for="1d").find_kept([unknown], NOW) == {"c1"}


def test_metadata_come_before_the_assistant_and_that_before_the_graph() -> None:
    short, long = Retention(keep_last=1), Retention(keep_last=9)
    rules = RetentionRules(None, {"short": short, "long": long}, {"support": "short", "agent": "long"})
    assert rules.policy_for({}) is None
    assert rules.policy_for({"graph_id": "agent"}) is long
    assert rules.policy_for({"graph_id": "agent", "assistant_id": "support"}) is short
    assert rules.policy_for({"graph_id": "agent", "retention": "short"}) is short
    with pytest.raises(LookupError):
        rules.policy_for({"retention": "for ever"})
    with pytest.raises(LookupError):
        rules.policy_for({"retention": {"keep_last": 1}})


def test_an_assistant_needs_a_policy_that_exists() -> None:
    with pytest.raises(
        ValueError, match="'support' has the policy 'shrot', which does not exist; there is short"
    ):
        RetentionRules(None, {"short": Retention(keep_last=1)}, {"support": "shrot"})


def test_the_shortest_time_is_that_of_all_policies() -> None:
    assert RetentionRules(Retention(keep_last=1)).shortest_idle_us is None
    rules = RetentionRules(Retention(idle="2d"), {"a": Retention(idle="1d"), "b": Retention()})
    assert rules.shortest_idle_us == DAY_US
    assert RetentionRules.of(rules) is rules
    assert RetentionRules.of(None).is_empty
