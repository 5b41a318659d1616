"""Retention settings: read from files, variables and flags, and checked before anything is removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure import Retention
from perdure.config.retention import RetentionSettings, load
from perdure.errors import BadSetting

FILE = """
[retention]
keep_last = 50
idle = "90d"
share = 0.1
every = "15m"

[retention.policies.audit]
keep_for = "365d"

[retention.assistants]
support = "audit"
"""


def read(folder: Path, text: str, flags: dict[str, Any] | None = None, **env: str) -> RetentionSettings:
    path = folder / "perdure.toml"
    path.write_text(text, encoding="utf-8")
    return load(file=path, flags=flags or {}, environ=env, has_key=False)


def test_a_file_has_the_policies(tmp_path: Path) -> None:
    found = read(tmp_path, FILE)
    assert found.rules.default == Retention(keep_last=50, idle="90d")
    assert found.rules.policies == {"audit": Retention(keep_for="365d")}
    assert found.rules.assistants == {"support": "audit"}
    assert (found.every, found.share) == (900.0, 0.1)


def test_the_policy_of_flags_replaces_that_of_variables_and_files(tmp_path: Path) -> None:
    for flags, policy in (
        ({"keep_last": 3, "keep_for": None, "idle": None}, Retention(keep_last=3)),
        ({"keep_for": "3600"}, Retention(keep_for="3600")),
        ({"idle": "1d"}, Retention(idle="1d")),
        ({"keep_last": None, "share": 0.5}, Retention(keep_last=50, idle="7d", keep_tagged=False)),
    ):
        text = FILE.replace('"90d"', '"90d"\nkeep_tagged = false')
        found = read(tmp_path, text, flags, PERDURE_RETENTION_IDLE="7d")
        assert found.rules.default == policy
        assert found.rules.policies == {"audit": Retention(keep_for="365d")}
        assert found.rules.assistants == {"support": "audit"}
        assert (found.every, found.share) == (900.0, flags.get("share", 0.1))


def test_the_policy_of_flags_replaces_the_usual_time_to_live(tmp_path: Path) -> None:
    path = tmp_path / "langgraph.json"
    path.write_text(json.dumps({"checkpointer": {"ttl": {"default_ttl": 1, "strategy": "delete"}}}))
    for flags, policy in (({}, Retention(idle=60.0)), ({"keep_last": 3}, Retention(keep_last=3))):
        found = load(file=path, flags=flags, environ={}, has_key=False)
        assert found.rules.default == policy
        assert (found.rules.usual_ttl is None) is bool(flags)


def test_variables_come_before_files_and_may_be_seconds(tmp_path: Path) -> None:
    found = read(tmp_path, FILE, PERDURE_RETENTION_IDLE="3600", PERDURE_RETENTION_EVERY="120")
    assert found.rules.default == Retention(keep_last=50, idle="3600")
    assert found.rules.default is not None
    assert found.rules.default.idle_us == 3_600_000_000
    assert found.every == 120.0
    named = read(
        tmp_path,
        "",
        PERDURE_RETENTION_POLICIES='{"short": {"keep_last": 1}}',
        PERDURE_RETENTION_ASSISTANTS='{"agent": "short"}',
    )
    assert named.rules.default is None
    assert named.rules.policies == {"short": Retention(keep_last=1)}
    assert (named.every, named.share) == (3600.0, 0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "which threads and checkpoints may go"),
        ("[retention]\nkeep_last = 0", "retention.keep_last"),
        ('[retention]\nidle = "soon"', "retention.idle"),
        ("[retention]\nkeep_tagged = false", "no thread expires; set retention.idle"),
        ("[retention]\nkeep_last = 1\nshare = 2", "retention.share"),
        ("[retention.policies.audit]\nkeep = 1", "keep is not a field of a retention policy"),
        ("[retention.policies.audit]\nkeep_last = 0", "'audit': keep_last is 0"),
        ('[retention]\nkeep_last = 1\n[retention.assistants]\na = "audit"', "'audit', which does not exist"),
    ],
)
def test_a_bad_setting_stops_the_command_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        read(tmp_path, text)
